//! `kaas-engine verify --repair` where the manifest is gone, so that the segments' names say what counts, and where some of them were
//! written anew before: by a repair, as here, or by compaction.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/looking.rs"]
mod looking;
#[path = "support/mending.rs"]
mod mending;
mod support;

use std::path::PathBuf;
use std::sync::Arc;

use kaas_engine::batch::{BatchOptions, SimpleRecord, data_batch};
use kaas_engine::leadership;
use kaas_fault_injection::faulty::{Faulty, Hook, Rule, Rules, Verdict};
use kaas_substrate::Substrate;
use looking::{change, closed, crashed, dir, edit_json, files, last_log};
use mending::{assert_serves, end, mend, open, placed, repair_through, values, without};
use support::{START, Volume};

/// Takes every manifest away.
fn lose_manifests(volume: &Volume) {
    for manifest in files(volume, "manifest.", ".json") {
        std::fs::remove_file(manifest).unwrap();
    }
}

#[test]
fn what_a_repair_has_written_anew_counts_where_the_segment_that_it_was_made_from_is_gone() {
    let volume = closed();
    let (before, given) = (placed(&volume), end(&volume));
    // The first batch of a segment, with records: all that is behind it is written anew, and the segment goes.
    let logs = files(&volume, "", ".log");
    let has_records = |log: &&std::path::PathBuf| without(&before, log, 70, 71).len() < before.len();
    let damaged = logs.iter().skip(1).find(has_records).unwrap();
    change(damaged, |bytes| bytes[70] ^= 1);
    let expected = without(&before, damaged, 70, 71);
    mend(&volume);
    assert!(!damaged.exists());
    lose_manifests(&volume);
    let repaired = mend(&volume);
    assert!(repaired.lost.is_empty(), "the first repair has told of what is: {repaired:#?}");
    assert_serves(&volume, &expected, given);
}

#[test]
fn of_a_segment_that_was_written_anew_and_is_damaged_the_rest_counts() {
    for is_last in [false, true] {
        let volume = crashed();
        let given = end(&volume);
        change(&last_log(&volume), |bytes| bytes[70] ^= 1);
        mend(&volume);
        let logs = files(&volume, "", ".log");
        // The one that was written anew: its batches have an earlier leader's epoch than its name.
        let rewritten = logs.iter().max_by_key(|log| log.metadata().unwrap().modified().unwrap()).unwrap();
        let before = placed(&volume);
        let length = std::fs::metadata(rewritten).unwrap().len() as usize;
        let at = if is_last { length - 2 } else { 70 };
        let expected = without(&before, rewritten, at as u64, at as u64 + 1);
        assert!(expected.len() < before.len(), "{rewritten:?}");
        change(rewritten, |bytes| bytes[at] ^= 1);
        lose_manifests(&volume);
        let repaired = mend(&volume);
        assert!(!repaired.lost.is_empty(), "{repaired:#?}");
        assert_serves(&volume, &expected, given);
    }
}

#[test]
fn without_a_manifest_rewritten_segments_are_not_taken_for_an_empty_log() {
    let volume = closed();
    let (before, given) = (placed(&volume), end(&volume));
    for log in files(&volume, "", ".log") {
        change(&log, |bytes| bytes[25] ^= 1);
    }
    mend(&volume);
    let expected = values(&placed(&volume));
    assert!(
        files(&volume, "00000001-", ".log").is_empty()
            && !expected.is_empty()
            && expected.len() < before.len()
    );
    lose_manifests(&volume);
    let highest = leadership::highest(&*volume.substrate, &volume.dir).unwrap();
    let refused = volume.open_at(highest.next().get()).err().unwrap();
    assert!(refused.to_string().contains("manifest is missing"), "{refused}");
    mend(&volume);
    assert_serves(&volume, &expected, given);
}

/// A batch of one record as a leader has stamped it.
fn stamped(offset: i64, epoch: u32, value: &str) -> Vec<u8> {
    let options = BatchOptions { base_timestamp: START, ..Default::default() };
    let mut batch = data_batch(&[SimpleRecord::of_value(value.to_string())], &options).unwrap().to_vec();
    batch[..8].copy_from_slice(&offset.to_be_bytes());
    batch[12..16].copy_from_slice(&epoch.to_be_bytes());
    batch
}

#[test]
fn what_a_deposed_leader_wrote_late_stays_dead_where_its_successors_records_were_written_anew() {
    let volume = Volume::local();
    let log = volume.open();
    for n in 0..4 {
        log.append(&[&format!("first-{n}")]).unwrap();
    }
    log.crash();
    let first = files(&volume, "", ".log").pop().unwrap();
    let log = volume.open();
    for n in 0..4 {
        log.append(&[&format!("second-{n}")]).unwrap();
    }
    log.close();
    let given = end(&volume);
    let before = placed(&volume);
    // Behind the fence, where nobody reads them.
    let counted = std::fs::metadata(&first).unwrap().len();
    let late: Vec<u8> = (4..8).flat_map(|offset| stamped(offset, 1, "late")).collect();
    change(&first, |bytes| bytes.extend(&late));
    let second = files(&volume, "00000002-", ".log").pop().unwrap();
    change(&second, |bytes| bytes[70] ^= 1);
    let expected = without(&before, &second, 70, 71);
    mend(&volume);
    assert!(!second.exists() && std::fs::metadata(&first).unwrap().len() > counted);
    lose_manifests(&volume);
    mend(&volume);
    assert_serves(&volume, &expected, given);
}

#[test]
fn what_a_repair_without_a_manifest_has_filled_is_lost_to_the_next_one() {
    let volume = crashed();
    let (before, log) = (placed(&volume), last_log(&volume));
    change(&log, |bytes| bytes.truncate(300));
    let expected = without(&before, &log, 300, u64::MAX);
    lose_manifests(&volume);
    // It dies before it has written a manifest.
    let rules = Rules::new([Rule::nth_change(1, Verdict::Crash).on("manifest.")]);
    let hook: Arc<dyn Hook> = Arc::clone(&rules) as Arc<dyn Hook>;
    let faulty: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::clone(&volume.substrate), hook));
    let _ = repair_through(&volume, &faulty);
    assert!(rules.hits() > 0 && files(&volume, "manifest.", ".json").is_empty());
    let fillers = |volume: &Volume| files(volume, "00000002-", ".log").len();
    assert!(fillers(&volume) > 0, "{:?}", files(&volume, "", ""));
    let repaired = mend(&volume);
    let (lost, end) = (&repaired.lost, expected.len() as i64);
    assert!(lost.first().is_some_and(|lost| lost.from == end), "{end}: {repaired:#?}");
    let given = lost.last().map_or(0, |lost| lost.to);
    assert!(given > end + 5 && fillers(&volume) == 0, "{repaired:#?}");
    assert_serves(&volume, &expected, given);
}

#[test]
fn a_segment_that_a_deposed_leader_began_late_where_its_successors_was_written_anew_stays_dead() {
    let volume = Volume::local();
    for _ in 0..2 {
        let log = volume.open();
        log.append(&["one"]).unwrap();
        log.append(&["two", "three"]).unwrap();
        log.crash();
    }
    let (expected, given) = (values(&placed(&volume)), end(&volume));
    // A base offset is put back, so all of the second leader's segment is written anew.
    let second = files(&volume, "00000002-", ".log").pop().unwrap();
    change(&second, |bytes| bytes[7] ^= 64);
    mend(&volume);
    assert!(!second.exists());
    let late: Vec<u8> = (3..5).flat_map(|offset| stamped(offset, 1, "late")).collect();
    std::fs::write(dir(&volume).join("00000001-00000000000000000003.log"), late).unwrap();
    lose_manifests(&volume);
    let repaired = mend(&volume);
    assert!(repaired.lost.is_empty(), "{repaired:#?}");
    assert_serves(&volume, &expected, given);
}

#[test]
fn what_a_repair_has_written_before_it_died_is_not_served_twice() {
    let mut volume = Volume::local();
    volume.config.segment_bytes = 250;
    let log = volume.open();
    for n in 0..8 {
        log.append(&[&format!("a-{n}"), &format!("b-{n}"), &format!("c-{n}")]).unwrap();
    }
    log.close();
    let (before, given) = (placed(&volume), end(&volume));
    // Two batches each, as many offsets one as the other; the second one of a segment in the middle is cut off.
    let logs = files(&volume, "", ".log");
    assert_eq!(logs.len(), 4, "{logs:?}");
    let length = std::fs::metadata(&logs[1]).unwrap().len();
    change(&logs[1], |bytes| bytes.truncate(length as usize - 5));
    let expected = without(&before, &logs[1], length - 5, length);
    lose_manifests(&volume);
    let rules = Rules::new([Rule::nth_change(1, Verdict::Crash).on("manifest.")]);
    let hook: Arc<dyn Hook> = Arc::clone(&rules) as Arc<dyn Hook>;
    let faulty: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::clone(&volume.substrate), hook));
    let _ = repair_through(&volume, &faulty);
    assert!(rules.hits() > 0 && files(&volume, "manifest.", ".json").is_empty());
    let again = files(&volume, "", ".log");
    assert!(again.len() > 4, "{again:?}");
    let repaired = mend(&volume);
    assert_eq!(repaired.lost.iter().map(|lost| lost.to - lost.from).sum::<i64>(), 3, "{repaired:#?}");
    assert_serves(&volume, &expected, given);
}

/// A partition without a manifest, of which the leader of epoch 1 has said, after it was deposed, that everything below offset
/// 1000 is durable. The leader of epoch 2 has appended something, or nothing. And that late checkpoint.
fn with_a_late_checkpoint(appends: bool) -> (Volume, PathBuf) {
    let volume = crashed();
    let checkpoint = files(&volume, "recovery-checkpoint.", ".json").pop().unwrap();
    let late = std::fs::read(&checkpoint).unwrap();
    let log = volume.open();
    if appends {
        log.append(&["of the second"]).unwrap();
    }
    log.crash();
    for path in files(&volume, "recovery-checkpoint.", ".json") {
        std::fs::remove_file(path).unwrap();
    }
    std::fs::write(&checkpoint, late).unwrap();
    edit_json(&checkpoint, |value| {
        value["offset"] = 1000.into();
        value["producer_state"] = serde_json::Value::Null;
    });
    (volume, checkpoint)
}

#[test]
fn what_a_deposed_leader_says_late_is_no_loss_where_a_later_one_has_appended() {
    let (volume, _) = with_a_late_checkpoint(true);
    let (expected, given) = (values(&placed(&volume)), end(&volume));
    let (volume, _) = with_a_late_checkpoint(true);
    lose_manifests(&volume);
    let repaired = mend(&volume);
    assert!(repaired.lost.is_empty(), "{repaired:#?}");
    assert_serves(&volume, &expected, given);
}

#[test]
fn where_a_later_leader_has_left_nothing_it_is_said_that_what_is_lost_may_never_have_been_acknowledged() {
    let (volume, _) = with_a_late_checkpoint(false);
    lose_manifests(&volume);
    assert!(dir(&volume).join("claim.00000002").exists());
    let repaired = mend(&volume);
    assert_eq!(repaired.lost.last().map(|lost| lost.to), Some(1000), "{repaired:#?}");
    assert!(
        repaired.unknown.iter().any(|unknown| unknown.contains("was ever acknowledged")),
        "{repaired:#?}"
    );
    assert_eq!(open(&volume).partition.status().log_end.0, 1000);
}
