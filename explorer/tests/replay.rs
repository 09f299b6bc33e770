//! A line decides a run: the same line, the same run; a shrunk line fails as the long one did.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use kaas_explorer::scenario::SCENARIOS;
use kaas_explorer::{Line, run};

fn line(scenario: &str, seed: u64) -> Line {
    format!("v1:{scenario}:{seed}").parse().unwrap()
}

#[test]
fn a_line_gives_the_same_run_again_step_by_step() {
    for scenario in SCENARIOS {
        for seed in 0..3 {
            let line = line(scenario.name, seed);
            let (first, second) = (run(&line, true).unwrap(), run(&line, true).unwrap());
            let differs = first.trace.iter().zip(&second.trace).find(|(first, second)| first != second);
            assert_eq!(differs, None, "{line}");
            assert_eq!((first.hash, first.counts), (second.hash, second.counts), "{line}");
        }
    }
}

#[test]
fn other_seeds_give_other_runs() {
    let hashes: std::collections::BTreeSet<u64> =
        (0..20).map(|seed| run(&line("takeovers", seed), false).unwrap().hash).collect();
    assert_eq!(hashes.len(), 20);
}

#[test]
fn a_line_with_every_decision_that_was_taken_is_the_same_run() {
    for scenario in SCENARIOS {
        let all = run(&line(scenario.name, 5), false).unwrap();
        let explicit = Line { kept: Some(all.taken.clone()), ..all.line.clone() };
        let again = run(&explicit.to_string().parse().unwrap(), false).unwrap();
        assert_eq!((again.hash, again.counts), (all.hash, all.counts), "{}", scenario.name);
    }
}

#[test]
fn without_any_decision_nothing_happens() {
    let plain = run(&"v1:takeovers:5:-".parse().unwrap(), false).unwrap();
    assert_eq!((plain.problems.len(), plain.counts.acknowledged), (0, 0));
}

#[test]
fn a_scenario_that_is_not_there_is_an_error() {
    assert!(run(&line("nothing", 1), false).unwrap_err().to_string().contains("\"nothing\""));
}
