//! `kaas-engine verify --repair` where the manifest is gone, so that the segments' names say what counts, and where some of them were
//! written anew before: by a repair, as here, or by compaction.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/looking.rs"]
mod looking;
#[path = "support/mending.rs"]
mod mending;
mod support;

use kaas_engine::batch::{BatchOptions, SimpleRecord, data_batch};
use kaas_engine::leadership;
use looking::{change, closed, files};
use mending::{assert_serves, end, mend, placed, values, without};
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
