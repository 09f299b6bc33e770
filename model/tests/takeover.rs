//! The protocol holds in every state, and none of its rules can be left out.
#![allow(clippy::panic)]

use kaas_model::{Flaw, Takeover};
use stateright::{Checker, HasDiscoveries, Model};

/// Threads of a check; tests run side by side anyway.
const THREADS: usize = 1;

/// Leaders with their epochs and numbers of records. Neighbouring epochs, skipped ones, one epoch given to two
/// leaders; in the last one a leader that scans while the first one's writes still land, and two after it.
const THREE: &[(u8, usize)] = &[(1, 2), (2, 1), (3, 1)];
const SKIPPED: &[(u8, usize)] = &[(1, 1), (3, 1), (4, 1)];
const EQUAL: &[(u8, usize)] = &[(1, 1), (2, 1), (2, 1)];
const FOUR: &[(u8, usize)] = &[(1, 2), (2, 1), (3, 0), (4, 0)];

fn with_crashes(leaders: &[(u8, usize)], flaw: Flaw) -> Takeover {
    Takeover { leaders: leaders.to_vec(), hosts_lost: 1, server_crashes: 1, flaw }
}

fn without_crashes(leaders: &[(u8, usize)], flaw: Flaw) -> Takeover {
    Takeover { leaders: leaders.to_vec(), hosts_lost: 0, server_crashes: 0, flaw }
}

/// Every state, and that there were more than a handful.
fn holds(model: Takeover, states_min: usize) {
    let checker = model.checker().threads(THREADS).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    assert!(checker.unique_state_count() > states_min, "{} states", checker.unique_state_count());
    checker.assert_properties();
}

/// The first state that breaks a promise, and how it came about.
fn is_needed(model: Takeover) {
    let flaw = model.flaw;
    let checker =
        model.checker().threads(THREADS).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let broken = checker.discoveries().into_iter().find(|(name, _)| *name != kaas_model::HAPPENS);
    let Some((name, path)) = broken else {
        panic!("{flaw:?} goes unnoticed in {} states", checker.unique_state_count());
    };
    println!("{flaw:?}, not \"{name}\": {:?}", path.into_actions());
}

#[test]
fn the_protocol_holds_for_neighbouring_epochs() {
    holds(with_crashes(THREE, Flaw::None), 100_000);
}

#[test]
fn the_protocol_holds_for_skipped_epochs() {
    holds(with_crashes(SKIPPED, Flaw::None), 100_000);
}

#[test]
fn the_protocol_holds_when_an_epoch_is_given_twice() {
    holds(with_crashes(EQUAL, Flaw::None), 5_000);
}

#[test]
fn the_protocol_holds_for_four_leaders() {
    holds(without_crashes(FOUR, Flaw::None), 1_000_000);
}

#[test]
fn acknowledging_comes_after_the_sync() {
    is_needed(with_crashes(THREE, Flaw::AcknowledgeBeforeSync));
}

#[test]
fn the_fence_comes_after_the_sync() {
    is_needed(with_crashes(THREE, Flaw::FenceBeforeSync));
}

#[test]
fn a_commit_asks_the_fence() {
    is_needed(without_crashes(THREE, Flaw::NoFence));
}

#[test]
fn an_epoch_has_one_owner() {
    is_needed(without_crashes(EQUAL, Flaw::ClaimNotExclusive));
}

#[test]
fn a_claim_fills_the_epochs_that_it_skips() {
    is_needed(without_crashes(SKIPPED, Flaw::SkippedNotFilled));
}

#[test]
fn the_log_is_read_after_the_claim() {
    is_needed(without_crashes(THREE, Flaw::ScanBeforeClaim));
}

#[test]
fn manifests_pin_what_was_inherited() {
    is_needed(without_crashes(FOUR, Flaw::PinsIgnored));
}

#[test]
fn the_highest_manifest_counts() {
    is_needed(without_crashes(FOUR, Flaw::StaleManifest));
}

#[test]
fn what_was_inherited_is_made_durable() {
    is_needed(with_crashes(THREE, Flaw::InheritedNotDurable));
}

#[test]
fn a_new_leader_asks_before_it_serves() {
    is_needed(without_crashes(THREE, Flaw::ServeWithoutAsking));
}
