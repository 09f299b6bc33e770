//! The scheduler: tasks that take turns on one thread, virtual time, processes that are paused and killed.
//!
//! A task is a coroutine with a stack of its own, so that an engine runs in it as it is: every call to a volume is a
//! point where the task may be left and another one goes on (see [`Scheduler::step`]). Which one that is, how long a
//! process is left alone, and when time passes is decided by the run's [`Choices`]; so a run is decided by its line.
//!
//! A task that belongs to a process ends with it: once the process is killed, its tasks are never left again, and every
//! call they still make to the volume fails ([`Dead`]). What they do in memory meanwhile, nobody sees.
//!
//! Locks are held for memory work only, never where a task may be left; the engine promises the same.

mod turns;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use generator::{Generator, Gn};
use kaas_engine::Job;
use parking_lot::Mutex;

use crate::choices::{Kept, Line, Stream};
use crate::problem::Problem;
use turns::{PAUSE_BITS, Paused, Spawned, State, Task, TaskId, Timer};

/// Stack of a task, in words.
const STACK_WORDS: usize = (512 << 10) / size_of::<usize>();

/// A run that makes more steps goes round in circles.
const STEPS_MAX: u64 = 200_000;

/// A process of the scheduler; 0 is nobody's.
pub type ProcessId = u32;

/// The process of tasks that belong to none: they are never paused or killed.
pub const NOBODY: ProcessId = 0;

/// The process was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dead;

/// When a task may go on.
pub enum Until {
    /// At any time.
    Now,
    /// Once virtual time has come to this.
    Time(Duration),
    /// Once so many steps were made, or nothing else can go on.
    Step(u64),
    /// Once it is true.
    True(Box<dyn Fn() -> bool + Send>),
}

/// Runs tasks. Shared by everything in a run.
pub struct Scheduler {
    state: Mutex<State>,
}

/// What a run made of the choices.
pub struct Finished {
    pub steps: u64,
    /// Of every step, in order: equal runs have equal ones.
    pub hash: u64,
    pub trace: Vec<String>,
    pub taken: Kept,
    pub problems: Vec<Problem>,
}

/// Folds text into a hash (FNV-1a, a word at a time).
struct Fold(u64);

impl Write for Fold {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
        Ok(())
    }
}

/// What a panic said.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".into())
}

impl Scheduler {
    /// One that `line` decides; remembers every step as text with `trace`.
    pub fn new(line: &Line, trace: bool) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State::new(line, trace)) })
    }

    /// Adds a task. It begins at a later step.
    pub fn spawn(&self, process: ProcessId, name: &'static str, job: impl FnOnce() + Send + 'static) {
        self.state.lock().spawned.push_back(Spawned { process, name, job: Box::new(job) });
    }

    /// Adds a task that begins when time has come to `at`.
    pub fn spawn_at(&self, at: Duration, process: ProcessId, name: &'static str, job: Job) {
        let mut state = self.state.lock();
        state.last_timer += 1;
        let sequence = state.last_timer;
        state.timers.push(Reverse(Timer { at, sequence, spawned: Spawned { process, name, job } }));
    }

    /// Virtual time.
    pub fn now(&self) -> Duration {
        self.state.lock().now
    }

    /// Steps made so far.
    pub fn steps(&self) -> u64 {
        self.state.lock().steps
    }

    /// A decision; see [`Choices`].
    pub fn below(&self, stream: Stream, bound: u64) -> u64 {
        self.state.lock().choices.below(stream, bound)
    }

    /// A decision; see [`Choices`].
    pub fn one_in(&self, stream: Stream, count: u64) -> bool {
        self.state.lock().choices.one_in(stream, count)
    }

    /// A decision; see [`Choices`].
    pub fn pick<T: Copy>(&self, stream: Stream, options: &[T]) -> Option<T> {
        self.state.lock().choices.pick(stream, options)
    }

    /// Notes what went wrong.
    pub fn report(&self, problem: Problem) {
        self.note(&format_args!("PROBLEM {problem}"));
        self.state.lock().problems.push(problem);
    }

    /// True once something went wrong: the run may end.
    pub fn has_problems(&self) -> bool {
        !self.state.lock().problems.is_empty()
    }

    /// Adds to the run's hash, and to its trace.
    pub fn note(&self, what: &dyn fmt::Display) {
        let mut state = self.state.lock();
        let mut fold = Fold(state.hash);
        // Writing to a number cannot fail.
        let _ = write!(fold, "{what}");
        state.hash = fold.0;
        if state.trace.is_some() {
            let task = state.current.and_then(|id| state.tasks.get(&id).map(|task| (id, task)));
            let who = task.map_or("-".to_owned(), |(id, task)| match task.process {
                NOBODY => format!("{} {id}", task.name),
                process => format!("process {process} {} {id}", task.name),
            });
            let line = format!("{:>6} {:>9.3}s {who}: {what}", state.steps, state.now.as_secs_f64());
            state.trace.iter_mut().for_each(|trace| trace.push(line.clone()));
        }
    }

    /// A point where the current task may be left; `what` it is about to do is noted.
    pub fn step(&self, what: &dyn fmt::Display) -> Result<(), Dead> {
        self.leave(Until::Now)?;
        self.note(what);
        Ok(())
    }

    /// Leaves the current task until it may go on. Outside of tasks, and in a dead process, nothing is waited for.
    pub fn leave(&self, until: Until) -> Result<(), Dead> {
        if !generator::is_generator() {
            return Ok(());
        }
        {
            let mut guard = self.state.lock();
            let state = &mut *guard;
            let Some(task) = state.current.and_then(|id| state.tasks.get_mut(&id)) else { return Ok(()) };
            if state.dead.contains(&task.process) {
                return Err(Dead);
            }
            task.until = until;
        }
        // The variant with a scope cannot be used: the engine lies between the scope and this call.
        #[allow(deprecated)]
        generator::yield_with(());
        let state = self.state.lock();
        let task = state.current.and_then(|id| state.tasks.get(&id));
        if task.is_some_and(|task| state.dead.contains(&task.process)) { Err(Dead) } else { Ok(()) }
    }

    /// Kills a process.
    pub fn kill(&self, process: ProcessId) {
        self.note(&format_args!("process {process} is killed"));
        let mut state = self.state.lock();
        state.dead.insert(process);
        state.paused.remove(&Paused::Process(process));
        for task in state.tasks.values_mut().filter(|task| task.process == process) {
            task.until = Until::Now;
        }
    }

    /// True once a process was killed.
    pub fn is_dead(&self, process: ProcessId) -> bool {
        self.state.lock().dead.contains(&process)
    }

    /// Pauses a process for so many steps, or until nothing else can go on.
    pub fn pause(&self, process: ProcessId, steps: u64) {
        self.note(&format_args!("process {process} is paused for {steps} steps"));
        let mut state = self.state.lock();
        let until = state.steps + steps;
        state.paused.insert(Paused::Process(process), until);
    }

    /// Leaves the current task where a pause tells most: behind a look at the fence, a write, a sync. Now and then for long.
    pub fn leave_at_critical_point(&self) -> Result<(), Dead> {
        {
            let mut guard = self.state.lock();
            let state = &mut *guard;
            if let Some(id) = state.current
                && state.choices.one_in(Stream::SCHEDULE, state.critical_one_in)
            {
                let steps = state.steps + (1 << state.choices.below(Stream::SCHEDULE, PAUSE_BITS));
                state.paused.insert(Paused::Task(id), steps);
            }
        }
        self.leave(Until::Now)
    }

    /// No more pauses from here on, and time passes only when nothing else can go on: nothing stalls any more.
    pub fn calm_down(&self) {
        let mut state = self.state.lock();
        state.pause_one_in = 0;
        state.critical_one_in = 0;
        state.passes_one_in = 0;
        state.paused.clear();
    }

    /// Runs every task to its end, or until something hangs.
    pub fn run(&self) {
        let mut coroutines: BTreeMap<TaskId, Generator<'static, (), ()>> = BTreeMap::new();
        loop {
            self.adopt(&mut coroutines);
            let next = match self.next() {
                Next::Task(next) => next,
                Next::Again => continue,
                Next::End => break,
            };
            let Some(coroutine) = coroutines.get_mut(&next) else { break };
            let resumed = catch_unwind(AssertUnwindSafe(|| coroutine.resume()));
            if let Err(panic) = &resumed {
                self.report(Problem::Panic { message: message(panic.as_ref()) });
            }
            if resumed.is_err() || coroutine.is_done() {
                coroutines.remove(&next);
                let task = self.state.lock().tasks.remove(&next);
                drop(task);
            }
        }
        // What hangs, or is waited for by nobody any more, is killed, so that its stack goes away in good order.
        let left: Vec<_> = {
            let mut state = self.state.lock();
            let left = state.tasks.values().map(|task| task.process).collect::<BTreeSet<_>>();
            state.dead.extend(left);
            coroutines.keys().copied().collect()
        };
        for id in left {
            self.state.lock().current = Some(id);
            if let Some(mut coroutine) = coroutines.remove(&id) {
                let _ = catch_unwind(AssertUnwindSafe(|| while coroutine.resume().is_some() {}));
            }
        }
        let mut state = self.state.lock();
        state.current = None;
        // Dropped without the lock: who knows what they hold.
        let left = (
            std::mem::take(&mut state.tasks),
            std::mem::take(&mut state.spawned),
            std::mem::take(&mut state.timers),
        );
        drop(state);
        drop(left);
    }

    /// What came of it all.
    pub fn finish(&self) -> Finished {
        let mut state = self.state.lock();
        Finished {
            steps: state.steps,
            hash: state.hash,
            trace: state.trace.take().unwrap_or_default(),
            taken: state.choices.taken().clone(),
            problems: std::mem::take(&mut state.problems),
        }
    }

    /// Makes coroutines of what was spawned.
    fn adopt(&self, coroutines: &mut BTreeMap<TaskId, Generator<'static, (), ()>>) {
        loop {
            let (id, job) = {
                let mut guard = self.state.lock();
                let state = &mut *guard;
                let Some(Spawned { process, name, job }) = state.spawned.pop_front() else { return };
                if state.dead.contains(&process) {
                    drop(guard);
                    drop(job);
                    continue;
                }
                state.last_task += 1;
                let id = state.last_task;
                let priority = i64::try_from(state.choices.below(Stream::SCHEDULE, 1000)).unwrap_or(0);
                state.tasks.insert(id, Task { process, name, until: Until::Now, priority });
                (id, job)
            };
            coroutines.insert(id, Gn::new_opt(STACK_WORDS, job));
        }
    }

    /// Whose turn it is. Lets time pass, or ends pauses, if nobody could go on otherwise.
    fn next(&self) -> Next {
        let mut state = self.state.lock();
        if state.tasks.is_empty() {
            // What is left in the timers is for processes that are done.
            return Next::End;
        }
        let doomed = state.tasks.iter().find(|(_, task)| state.dead.contains(&task.process));
        let doomed = doomed.map(|(id, _)| *id);
        if let Some(id) = doomed {
            state.current = doomed;
            return Next::Task(id);
        }
        state.steps += 1;
        if state.steps > STEPS_MAX {
            let steps = state.steps;
            state.problems.push(Problem::Endless { steps });
            return Next::End;
        }
        let next = state.choose();
        state.current = next;
        if let Some(id) = next {
            return Next::Task(id);
        }
        if state.get_on() {
            return Next::Again;
        }
        let waiting =
            state.tasks.values().map(|task| format!("{} of process {}", task.name, task.process)).collect();
        state.problems.push(Problem::Hangs { waiting });
        Next::End
    }
}

enum Next {
    Task(TaskId),
    /// Something has changed: look again.
    Again,
    End,
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler").field("steps", &self.steps()).finish_non_exhaustive()
    }
}
