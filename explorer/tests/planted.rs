//! Bugs are planted, one at a time, and found: each within so many seeds of a scenario, all of which pass without it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use kaas_engine::planted::{Bug, plant};
use kaas_explorer::{Line, Outcome, run, shrink};

fn outcome(scenario: &str, seed: u64) -> Outcome {
    run(&Line { scenario: scenario.to_owned(), seed, kept: None }, false).unwrap()
}

/// The first of `seeds` seeds that finds the bug. The others, and that one too, find nothing without it.
fn caught(bug: Bug, scenario: &str, seeds: u64) -> Outcome {
    let found = {
        let _planted = plant(bug);
        (0..seeds).map(|seed| outcome(scenario, seed)).find(|outcome| !outcome.problems.is_empty())
    };
    let found = found.unwrap_or_else(|| panic!("{bug:?} is not found in {seeds} seeds of {scenario}"));
    for seed in 0..=found.line.seed {
        let without = outcome(scenario, seed);
        assert!(without.problems.is_empty(), "{} without any bug: {:?}", without.line, without.problems);
    }
    println!("{bug:?}: {}: {:?}", found.line, found.problems);
    found
}

#[test]
fn acknowledging_before_the_sync_is_found() {
    caught(Bug::AcknowledgeBeforeSync, "power", 1000);
}

#[test]
fn reading_the_fence_before_the_sync_is_found() {
    caught(Bug::FenceBeforeSync, "handover", 8000);
}

#[test]
fn a_look_at_the_fence_that_vouches_for_what_is_synced_later_is_found() {
    caught(Bug::FenceVouchesForLater, "handover", 12000);
}

#[test]
fn not_looking_at_the_fence_is_found() {
    caught(Bug::NoFence, "takeovers", 100);
}

#[test]
fn asking_for_a_successor_by_its_claims_name_is_found() {
    caught(Bug::FenceByName, "takeovers", 100);
}

#[test]
fn taking_an_unreadable_fence_for_leadership_is_found() {
    caught(Bug::UnknownIsLeading, "handover", 12000);
}

#[test]
fn unlinking_before_the_manifest_is_durable_is_found() {
    caught(Bug::UnlinkBeforeManifest, "retention", 1000);
}

#[test]
fn unlinking_without_a_look_at_the_fence_is_found() {
    caught(Bug::UnlinkWithoutFence, "retention", 500);
}

#[test]
fn not_syncing_the_directory_of_a_new_segment_is_found() {
    caught(Bug::NoDirectorySync, "power", 100);
}

#[test]
fn trying_a_failed_sync_again_is_found() {
    caught(Bug::RetryFailedSync, "faults", 500);
}

#[test]
fn claiming_an_epoch_twice_is_found() {
    caught(Bug::ReuseEpoch, "takeovers", 200);
}

#[test]
fn following_a_stale_manifest_is_found() {
    caught(Bug::StaleManifest, "takeovers", 500);
}

#[test]
fn taking_up_late_segments_of_deposed_leaders_is_found() {
    caught(Bug::LateSegmentsCount, "takeovers", 1000);
}

#[test]
fn serving_what_was_inherited_before_it_is_durable_is_found() {
    caught(Bug::InheritedNotDurable, "power", 6000);
}

#[test]
fn cutting_whole_batches_off_a_doubtful_tail_is_found() {
    caught(Bug::CutDoubtfulTail, "faults", 4000);
}

#[test]
fn serving_open_transactions_is_found() {
    caught(Bug::ServeOpenTransactions, "transactions", 100);
}

#[test]
fn a_transaction_that_is_stable_before_its_marker_is_committed_is_found() {
    caught(Bug::StableBeforeCommitted, "transactions", 15000);
}

#[test]
fn not_indexing_aborted_transactions_is_found() {
    caught(Bug::AbortedNotIndexed, "transactions", 100);
}

#[test]
fn unlinking_compacted_segments_before_the_manifest_is_durable_is_found() {
    caught(Bug::UnlinkCompacted, "compaction", 1000);
}

#[test]
fn naming_a_rewritten_segment_that_is_not_synced_is_found() {
    caught(Bug::NoSyncOfRewritten, "compaction", 1000);
}

#[test]
fn exchanging_segments_without_a_look_at_the_fence_is_found() {
    caught(Bug::ExchangeWithoutFence, "compactionhosts", 2000);
}

#[test]
fn compacting_past_the_last_stable_offset_is_found() {
    caught(Bug::CompactPastStable, "compaction", 500);
}

#[test]
fn records_of_aborted_transactions_that_supersede_others_are_found() {
    caught(Bug::AbortedSupersede, "compaction", 500);
}

#[test]
fn removing_tombstones_at_once_is_found() {
    caught(Bug::TombstonesAtOnce, "compaction", 500);
}

#[test]
fn forgetting_producers_is_found() {
    caught(Bug::ForgetProducers, "compaction", 500);
}

#[test]
fn acknowledging_appends_to_a_journal_before_the_sync_is_found() {
    caught(Bug::JournalAcknowledgeBeforeSync, "journalpower", 1000);
}

#[test]
fn reading_the_fence_before_the_sync_of_a_journal_is_found() {
    caught(Bug::JournalFenceBeforeSync, "journals", 4000);
}

#[test]
fn acknowledging_appends_to_a_journal_without_a_look_at_the_fence_is_found() {
    caught(Bug::JournalWithoutFence, "journals", 1000);
}

#[test]
fn trying_a_failed_sync_of_a_journal_again_is_found() {
    caught(Bug::JournalRetryFailedSync, "journalpower", 1000);
}

#[test]
fn following_a_stale_journal_is_found() {
    caught(Bug::JournalStaleFile, "journals", 1000);
}

#[test]
fn a_journal_that_is_there_before_its_snapshot_is_found() {
    caught(Bug::JournalBeforeSnapshot, "journalpower", 1000);
}

#[test]
fn leaving_appends_behind_a_snapshot_out_is_found() {
    caught(Bug::JournalForgetsLater, "journals", 1000);
}

#[test]
fn refusing_claims_above_a_torn_record_is_found() {
    caught(Bug::TornRecordRefusesClaims, "claims", 1000);
}

#[test]
fn a_range_of_a_file_past_what_is_committed_is_found() {
    caught(Bug::RangePastCommitted, "transactions", 2000);
}

#[test]
fn a_repair_without_a_look_at_the_fence_is_found() {
    caught(Bug::RepairWithoutFence, "repair", 1000);
}

#[test]
fn a_repair_that_removes_before_its_manifest_is_durable_is_found() {
    caught(Bug::RepairRemovesFirst, "repairsteps", 100);
}

#[test]
fn a_repair_that_goes_by_what_it_saw_before_its_claim_is_found() {
    caught(Bug::RepairTrustsFirstLook, "repair", 500);
}

#[test]
fn a_repair_that_does_not_sync_what_it_writes_anew_is_found() {
    caught(Bug::RepairNotDurable, "repairsteps", 100);
}

#[test]
fn a_repair_that_gives_out_lost_offsets_again_is_found() {
    caught(Bug::RepairReusesOffsets, "repairsteps", 200);
}

#[test]
fn a_repair_that_gives_up_what_stands_behind_damage_is_found() {
    caught(Bug::RepairStopsAtDamage, "repair", 500);
}

#[test]
fn a_repair_that_does_not_say_what_is_lost_is_found() {
    caught(Bug::RepairSaysNothing, "repair", 1000);
}

#[test]
fn a_repair_of_a_slot_without_a_look_at_the_fence_is_found() {
    caught(Bug::RepairWithoutFence, "repairfiles", 8000);
}

#[test]
fn a_repair_of_a_slot_that_does_not_say_what_is_lost_is_found() {
    caught(Bug::RepairSaysNothing, "repairfiles", 2000);
}

#[test]
fn controllers_that_do_not_look_at_the_fence_are_found() {
    caught(Bug::NoFence, "repairfiles", 1000);
}

/// A failure becomes a line of a few decisions that fails in the same way.
#[test]
fn a_failure_is_shrunk() {
    let found = caught(Bug::NoFence, "takeovers", 100);
    let _planted = plant(Bug::NoFence);
    let shrunk = shrink(&found, 1000, |_| {});
    assert!(shrunk.left * 2 < shrunk.of, "{} of {}", shrunk.left, shrunk.of);
    let line = shrunk.outcome.line.to_string();
    let again = run(&line.parse().unwrap(), false).unwrap();
    assert_eq!(again.problems, shrunk.outcome.problems, "{line}");
    assert_eq!(again.problems[0].kind(), found.problems[0].kind());
}
