//! A volume that does not keep one of the four properties loses something: each is found within so many seeds, all of
//! which pass on a volume that keeps them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use kaas_explorer::{Line, Outcome, run};

fn outcome(scenario: &str, seed: u64) -> Outcome {
    run(&Line { scenario: scenario.to_owned(), seed, kept: None }, false).unwrap()
}

fn caught(scenario: &str, seeds: u64) {
    let found = (0..seeds).map(|seed| outcome(scenario, seed)).find(|outcome| !outcome.problems.is_empty());
    let found = found.unwrap_or_else(|| panic!("{scenario} finds nothing in {seeds} seeds"));
    for seed in 0..=found.line.seed {
        let fit = outcome("onnfs", seed);
        assert!(fit.problems.is_empty(), "{}: {:?}", fit.line, fit.problems);
    }
}

#[test]
fn renames_that_are_not_atomic_are_found() {
    caught("unfitrename", 4000);
}

#[test]
fn exclusive_creates_with_two_winners_are_found() {
    caught("unfitcreate", 2000);
}

#[test]
fn uncached_reads_that_are_cached_are_found() {
    caught("unfitread", 200);
}

#[test]
fn syncs_that_lie_are_found() {
    caught("unfitsync", 200);
}
