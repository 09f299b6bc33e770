//! One run, from its line to its outcome.

use std::fmt;
use std::sync::Arc;

use crate::audit::audit;
use crate::choices::{Kept, Line, Stream};
use crate::cluster::{Cluster, Setup};
use crate::director::direct;
use crate::problem::Problem;
use crate::scenario::{Scenario, by_name};
use crate::scheduler::{Finished, NOBODY, Scheduler};
use crate::storage::FileSystem;

/// What became of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub line: Line,
    /// What went wrong; empty: nothing.
    pub problems: Vec<Problem>,
    /// Of every step in order; equal runs have equal ones.
    pub hash: u64,
    pub counts: Counts,
    /// Every step as text, if it was asked for.
    pub trace: Vec<String>,
    /// The decisions that were not the plainest.
    pub taken: Kept,
}

/// How much happened in a run, or in several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub steps: u64,
    /// Partitions and slots that were opened.
    pub leaders: u64,
    /// Records, and appends to journals.
    pub acknowledged: u64,
    pub read: u64,
    /// Ranges of files that were handed out to readers.
    pub ranges: u64,
    /// Segments that compaction replaced.
    pub compacted: u64,
    /// Repairs that have come to their end.
    pub repaired: u64,
    /// Looks at a fence in which a record stood half written.
    pub torn_fences: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.leaders += other.leaders;
        self.acknowledged += other.acknowledged;
        self.read += other.read;
        self.ranges += other.ranges;
        self.compacted += other.compacted;
        self.repaired += other.repaired;
        self.torn_fences += other.torn_fences;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, leaders, acknowledged, read, ranges, compacted, repaired, torn_fences } = self;
        write!(
            f,
            "{steps} steps, {leaders} leaders, {acknowledged} records acknowledged, {read} read, \
             {ranges} ranges of files, {compacted} segments compacted, {repaired} repairs, {torn_fences} looks at torn fences"
        )
    }
}

/// The line names no scenario of this build.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no scenario {name:?}; `--list` shows those there are")]
pub struct UnknownScenario {
    pub name: String,
}

/// Runs what `line` says, on this thread. The same line gives the same outcome.
pub fn run(line: &Line, trace: bool) -> Result<Outcome, UnknownScenario> {
    let scenario = by_name(&line.scenario).ok_or_else(|| UnknownScenario { name: line.scenario.clone() })?;
    let scheduler = Scheduler::new(line, trace);
    let (finished, counts) = act(scenario, &scheduler);
    let Finished { steps, hash, trace, taken, problems } = finished;
    Ok(Outcome { line: line.clone(), problems, hash, counts: Counts { steps, ..counts }, trace, taken })
}

fn act(scenario: &'static Scenario, scheduler: &Arc<Scheduler>) -> (Finished, Counts) {
    let (settings, config) = scenario.settings(scheduler);
    let faults = scenario.faults_of(scheduler);
    let file_system = scheduler.pick(Stream::SETUP, scenario.file_systems).unwrap_or(FileSystem::Local);
    scheduler.note(&format_args!("{file_system:?}, {faults:?}, {config:?}"));
    let journal_settings = scenario.journal_settings(scheduler);
    let Scenario { hosts, topics, slots, data_dir, .. } = *scenario;
    let setup = Setup {
        hosts,
        topics,
        slots,
        data_dir,
        file_system,
        broken: scenario.broken,
        settings,
        journal_settings,
        config,
        faults,
        is_busy: scenario.busy,
        transactions: scenario.transactions,
    };
    let cluster = match Cluster::new(scheduler, setup) {
        Ok(cluster) => cluster,
        Err(error) => {
            scheduler.report(Problem::Damaged(format!("an empty volume cannot be set up: {error}")));
            return (scheduler.finish(), Counts::default());
        }
    };
    let directed = Arc::clone(&cluster);
    scheduler.spawn(NOBODY, "director", move || {
        let (least, more) = scenario.event_count;
        let count = least + directed.scheduler.below(Stream::SETUP, more);
        direct(&directed, scenario.events, count);
    });
    scheduler.run();
    if !scheduler.has_problems() {
        scheduler.calm_down();
        let audited = Arc::clone(&cluster);
        scheduler.spawn(NOBODY, "audit", move || {
            let ending = audited.scheduler.pick(Stream::SETUP, scenario.endings);
            ending.into_iter().for_each(|ending| audit(&audited, ending));
        });
        scheduler.run();
    }
    cluster.kill_all();
    let mut counts = Counts { torn_fences: cluster.storage.torn_fences_met(), ..Counts::default() };
    for topic in &cluster.topics {
        let history = topic.history.lock();
        counts.leaders += history.leaders() as u64;
        counts.acknowledged += history.acknowledged;
        counts.read += history.read;
        counts.ranges += history.ranges;
        counts.compacted += history.compacted;
        counts.repaired += history.repaired;
    }
    for slot in &cluster.slots {
        let history = slot.history.lock();
        counts.leaders += history.coordinators() as u64;
        counts.acknowledged += history.acknowledged() as u64;
        counts.read += history.read;
        counts.repaired += history.repaired;
    }
    (scheduler.finish(), counts)
}
