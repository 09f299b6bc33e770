//! Every scenario, over some seeds; over more with `KAAS_EXPLORER_SEEDS`. A failure prints the line that replays it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use kaas_explorer::scenario::{SCENARIOS, by_name};
use kaas_explorer::{Counts, Line, run};

/// Explores a scenario, and looks that enough happens for the outcome to mean something.
fn explore(name: &str) -> Counts {
    explore_a_share(name, 1)
}

/// The same, over one seed in `share`.
fn explore_a_share(name: &str, share: u64) -> Counts {
    let scenario = by_name(name).unwrap();
    let seeds: u64 =
        std::env::var("KAAS_EXPLORER_SEEDS").map_or(40, |seeds| seeds.parse().expect("a number"));
    let seeds = seeds.div_ceil(share);
    let mut counts = Counts::default();
    for seed in 0..seeds {
        let outcome = run(&Line { scenario: scenario.name.to_owned(), seed, kept: None }, false).unwrap();
        assert!(
            outcome.problems.is_empty(),
            "kaas-explorer --trace --replay {}\n{:?}",
            outcome.line,
            outcome.problems
        );
        counts.add(&outcome.counts);
    }
    let Counts { leaders, acknowledged, read, compacted, .. } = counts;
    assert!(leaders >= 2 * seeds && acknowledged >= 4 * seeds && read >= 10 * seeds, "{counts:?}");
    assert!(!scenario.compaction || compacted >= 2 * seeds, "{counts:?}");
    counts
}

#[test]
fn takeovers() {
    let counts = explore("takeovers");
    assert!(counts.ranges >= 1, "{counts:?}");
}

#[test]
fn one_leader_after_the_other() {
    explore("handover");
}

#[test]
fn hosts_and_servers_that_crash_and_are_cut_off() {
    explore("hosts");
}

#[test]
fn losses_of_power() {
    explore("power");
}

#[test]
fn recoveries_that_lose_power_at_every_step() {
    // Each has some hundred recoveries in it.
    explore_a_share("recovery", 5);
}

#[test]
fn faults() {
    explore("faults");
}

#[test]
fn retention() {
    explore("retention");
}

#[test]
fn unsynced_commits() {
    explore("unsynced");
}

#[test]
fn several_partitions_in_a_process() {
    explore("crowd");
}

#[test]
fn transactions() {
    explore("transactions");
}

#[test]
fn compaction() {
    explore("compaction");
}

#[test]
fn compaction_of_what_is_committed_without_a_sync() {
    explore("compactionflush");
}

#[test]
fn compactions_that_lose_power_at_every_step() {
    // Each has some hundred recoveries in it.
    explore_a_share("compactionsteps", 20);
}

#[test]
fn compaction_on_hosts() {
    explore("compactionhosts");
}

#[test]
fn journals_of_slots() {
    explore("journals");
}

#[test]
fn journals_and_losses_of_power() {
    explore("journalpower");
}

#[test]
fn takeovers_of_slots_that_lose_power_at_every_step() {
    explore_a_share("journalrecovery", 4);
}

#[test]
fn repairs_beside_leaders() {
    let counts = explore("repair");
    assert!(counts.repaired >= 20, "{counts:?}");
}

#[test]
fn repairs_that_die_at_every_step() {
    // Each has some hundred repairs in it.
    let counts = explore_a_share("repairsteps", 5);
    assert!(counts.repaired >= 20, "{counts:?}");
}

#[test]
fn repairs_of_slots_and_of_what_is_around_partitions() {
    let counts = explore("repairfiles");
    assert!(counts.repaired >= 4, "{counts:?}");
}

#[test]
fn repairs_of_slots_and_of_what_is_around_partitions_that_die_at_every_step() {
    // Each has some hundred repairs in it.
    let counts = explore_a_share("repairfilesteps", 5);
    assert!(counts.repaired >= 20, "{counts:?}");
}

/// A scenario without a test is explored by nobody.
#[test]
fn every_scenario_has_a_test() {
    let tests = include_str!("scenarios.rs");
    let named = |name: &str| {
        ["explore", "explore_a_share"].iter().any(|explore| tests.contains(&format!("{explore}(\"{name}\"")))
    };
    let missing: Vec<_> =
        SCENARIOS.iter().map(|scenario| scenario.name).filter(|name| !named(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn torn_records_of_fences() {
    let counts = explore("claims");
    assert!(counts.torn_fences >= 4, "{counts:?}");
}
