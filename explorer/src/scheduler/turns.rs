//! Whose turn it is: the tasks there are, which of them can go on, which one does, and what happens when none can.
//!
//! Plain data, behind the lock of the [`super::Scheduler`].

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::time::Duration;

use kaas_engine::Job;

use super::{NOBODY, ProcessId, Until};
use crate::choices::{Choices, Line, Stream};
use crate::problem::Problem;

/// Longest pause of a task or a process, as a power of two of steps.
pub(super) const PAUSE_BITS: u64 = 12;

pub(super) type TaskId = u64;

/// What does not go on for some steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Paused {
    Process(ProcessId),
    Task(TaskId),
}

/// How the next task is chosen.
#[derive(Debug, Clone, Copy)]
enum Policy {
    /// The current one goes on, but for one step in so many.
    Bursts { switch_one_in: u64 },
    /// The one with the highest priority, which a task loses at one step in so many: few, long pauses (as PCT does it,
    /// "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", 2010).
    Priorities { change_one_in: u64 },
}

pub(super) struct Task {
    pub(super) process: ProcessId,
    pub(super) name: &'static str,
    pub(super) until: Until,
    pub(super) priority: i64,
}

pub(super) struct Spawned {
    pub(super) process: ProcessId,
    pub(super) name: &'static str,
    pub(super) job: Job,
}

pub(super) struct Timer {
    pub(super) at: Duration,
    pub(super) sequence: u64,
    pub(super) spawned: Spawned,
}

/// What the scheduler knows.
pub(super) struct State {
    pub(super) choices: Choices,
    policy: Policy,
    /// The current task, or its process, is paused at one step in so many; 0: never.
    pub(super) pause_one_in: u64,
    /// The current task is paused at one in so many of the points where that tells most; 0: never.
    pub(super) critical_one_in: u64,
    /// Time passes by itself at one step in so many; 0: only when nothing else can go on.
    pub(super) passes_one_in: u64,
    pub(super) now: Duration,
    pub(super) steps: u64,
    pub(super) hash: u64,
    pub(super) trace: Option<Vec<String>>,
    pub(super) spawned: VecDeque<Spawned>,
    pub(super) timers: BinaryHeap<Reverse<Timer>>,
    pub(super) tasks: BTreeMap<TaskId, Task>,
    pub(super) current: Option<TaskId>,
    pub(super) last_task: TaskId,
    pub(super) last_timer: u64,
    pub(super) lowest_priority: i64,
    pub(super) dead: BTreeSet<ProcessId>,
    /// Until which step.
    pub(super) paused: BTreeMap<Paused, u64>,
    pub(super) problems: Vec<Problem>,
}

impl State {
    /// At the beginning of a run.
    pub(super) fn new(line: &Line, trace: bool) -> Self {
        let mut choices = Choices::new(line);
        let policy = match choices.below(Stream::SETUP, 6) {
            0 => Policy::Bursts { switch_one_in: 30 },
            1 => Policy::Bursts { switch_one_in: 1 },
            2 => Policy::Bursts { switch_one_in: 8 },
            3 => Policy::Bursts { switch_one_in: 100 },
            4 => Policy::Priorities { change_one_in: 60 },
            _ => Policy::Priorities { change_one_in: 400 },
        };
        let pause_one_in = choices.pick(Stream::SETUP, &[0, 400, 100, 40]).unwrap_or(0);
        let critical_one_in = choices.pick(Stream::SETUP, &[0, 30, 8]).unwrap_or(0);
        Self {
            choices,
            policy,
            pause_one_in,
            critical_one_in,
            passes_one_in: 200,
            now: Duration::from_secs(1),
            steps: 0,
            hash: 0xCBF2_9CE4_8422_2325,
            trace: trace.then(Vec::new),
            spawned: VecDeque::new(),
            timers: BinaryHeap::new(),
            tasks: BTreeMap::new(),
            current: None,
            last_task: 0,
            last_timer: 0,
            lowest_priority: 0,
            dead: BTreeSet::new(),
            paused: BTreeMap::new(),
            problems: Vec::new(),
        }
    }

    fn can_go_on(&self, id: TaskId, task: &Task) -> bool {
        let is_paused = |paused| self.paused.contains_key(&paused);
        if is_paused(Paused::Process(task.process)) || is_paused(Paused::Task(id)) {
            return false;
        }
        match &task.until {
            Until::Now => true,
            Until::Time(at) => *at <= self.now,
            Until::Step(step) => *step <= self.steps,
            Until::True(condition) => condition(),
        }
    }

    /// The task that goes on now, by the policy; `None` if none can.
    pub(super) fn choose(&mut self) -> Option<TaskId> {
        let steps = self.steps;
        self.paused.retain(|_, until| *until > steps);
        if self.choices.one_in(Stream::SCHEDULE, self.passes_one_in) {
            self.let_time_pass();
        }
        if let Some((id, task)) = self.current.and_then(|id| self.tasks.get_key_value(&id))
            && task.process != NOBODY
            && self.choices.one_in(Stream::SCHEDULE, self.pause_one_in)
        {
            let of_task = self.choices.one_in(Stream::SCHEDULE, 2);
            let paused = if of_task { Paused::Task(*id) } else { Paused::Process(task.process) };
            let longest = 1 << self.choices.below(Stream::SCHEDULE, PAUSE_BITS);
            self.paused.insert(paused, steps + longest);
        }
        let current = self.current;
        let able: Vec<TaskId> =
            self.tasks.iter().filter(|(id, task)| self.can_go_on(**id, task)).map(|(id, _)| *id).collect();
        if able.len() < 2 {
            return able.first().copied();
        }
        match self.policy {
            Policy::Bursts { switch_one_in } => {
                let stays = current.filter(|id| able.contains(id));
                if stays.is_some() && !self.choices.one_in(Stream::SCHEDULE, switch_one_in) {
                    return stays;
                }
                // The next one after the current is the plainest.
                let after = able.partition_point(|id| Some(*id) <= current);
                let chosen = self.choices.below(Stream::SCHEDULE, able.len() as u64);
                let at = usize::try_from(chosen).unwrap_or(0) + after;
                able.get(at % able.len()).copied()
            }
            Policy::Priorities { change_one_in } => {
                if self.choices.one_in(Stream::SCHEDULE, change_one_in)
                    && let Some(task) = current.and_then(|id| self.tasks.get_mut(&id))
                {
                    self.lowest_priority -= 1;
                    task.priority = self.lowest_priority;
                }
                let priority = |id: &TaskId| self.tasks.get(id).map(|task| task.priority);
                able.into_iter().rev().max_by_key(priority)
            }
        }
    }

    /// Nothing can go on: what may change that, in an order that is chosen. False if nothing can.
    pub(super) fn get_on(&mut self) -> bool {
        // A timer that has just gone off.
        if !self.spawned.is_empty() {
            return true;
        }
        let first = self.choices.below(Stream::SCHEDULE, 3);
        (0..3).any(|way| match (first + way) % 3 {
            0 => self.let_time_pass(),
            1 => self.end_waits_for_steps(),
            _ => !std::mem::take(&mut self.paused).is_empty(),
        })
    }

    /// Moves time on to the next timer or the next task that sleeps; false if there is none.
    fn let_time_pass(&mut self) -> bool {
        let asleep = self.tasks.values().filter_map(|task| match task.until {
            Until::Time(at) => Some(at),
            _ => None,
        });
        let timers = self.timers.peek().map(|Reverse(timer)| timer.at);
        let Some(at) = asleep.chain(timers).filter(|at| *at > self.now).min().or(timers) else {
            return false;
        };
        self.now = self.now.max(at);
        while self.timers.peek().is_some_and(|Reverse(timer)| timer.at <= self.now) {
            if let Some(Reverse(timer)) = self.timers.pop() {
                self.spawned.push_back(timer.spawned);
            }
        }
        true
    }

    fn end_waits_for_steps(&mut self) -> bool {
        let steps = self.steps;
        let mut any = false;
        for task in self.tasks.values_mut().filter(|task| matches!(task.until, Until::Step(at) if at > steps))
        {
            task.until = Until::Now;
            any = true;
        }
        any
    }
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}
