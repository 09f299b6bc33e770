//! Many runs, on several threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use parking_lot::Mutex;

use crate::choices::Line;
use crate::run::{Counts, Outcome, run};
use crate::scenario::Scenario;

/// Which runs.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    pub scenarios: &'a [&'static Scenario],
    /// Seeds of each scenario: from the first on, so many.
    pub first_seed: u64,
    pub seeds: u64,
    /// Threads; each runs one seed at a time.
    pub threads: usize,
    /// Most failures before the exploration ends.
    pub failures_max: usize,
    /// A bug that is planted in every run.
    #[cfg(feature = "planted-bugs")]
    pub bug: Option<kaas_engine::planted::Bug>,
}

/// What came of them.
#[derive(Debug, Default)]
pub struct Explored {
    pub runs: u64,
    pub counts: Counts,
    /// Runs that found problems, by scenario and seed.
    pub failures: Vec<Outcome>,
}

/// Runs every seed of every scenario, one scenario after the other for each seed. `progress` is called after each run
/// with the number of runs so far, from any thread.
pub fn explore(plan: &Plan<'_>, progress: impl Fn(u64) + Sync) -> Explored {
    let explored = Mutex::new(Explored::default());
    let next = AtomicU64::new(0);
    let scenarios = plan.scenarios.len() as u64;
    let work = || {
        #[cfg(feature = "planted-bugs")]
        let _planted = plan.bug.map(kaas_engine::planted::plant);
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let seed = plan.first_seed + number.checked_div(scenarios).unwrap_or(u64::MAX);
            if seed - plan.first_seed >= plan.seeds || explored.lock().failures.len() >= plan.failures_max {
                return;
            }
            let at = usize::try_from(number % scenarios.max(1)).unwrap_or(0);
            let Some(scenario) = plan.scenarios.get(at) else { return };
            let line = Line { scenario: scenario.name.to_owned(), seed, kept: None };
            let Ok(outcome) = run(&line, false) else { return };
            let runs = {
                let mut explored = explored.lock();
                explored.runs += 1;
                explored.counts.add(&outcome.counts);
                if !outcome.problems.is_empty() {
                    explored.failures.push(outcome);
                }
                explored.runs
            };
            progress(runs);
        }
    };
    thread::scope(|scope| {
        for _ in 0..plan.threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut explored = explored.into_inner();
    explored.failures.sort_by(|a, b| (&a.line.scenario, a.line.seed).cmp(&(&b.line.scenario, b.line.seed)));
    explored
}
