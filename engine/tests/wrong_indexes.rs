//! Index files that are wrong or cannot be used are told of once, and built anew, while reads go on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, clippy::cast_possible_truncation)]

#[path = "support/looking.rs"]
mod looking;
mod support;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kaas_engine::batch::{BatchOptions, Marker, SimpleRecord, data_batch};
use kaas_engine::manifest::versioned::read_highest;
use kaas_engine::manifest::{IndexFiles, MANIFEST, Manifest};
use kaas_engine::types::{Offset, Timestamp};
use kaas_engine::verify::Kind;
use kaas_engine::{Isolation, LogConfig, ReadRequest, RecordsPart, TimeQuery};
use kaas_fault_injection::faulty::{Faulty, Point, Rule, Rules, Verdict};
use kaas_substrate::{ErrorClass, Substrate};
use looking::{assert_clean, assert_found, change, end_transaction, files, look, transactional};
use support::{Log, START, Volume};

const RECORDS: i64 = 200;

/// A closed segment of many batches with an entry for each, and the beginning of another one. Opened by a second leader.
fn two_segments() -> Volume {
    let mut volume = Volume::local();
    let segment_bytes = (RECORDS as u64) * record(0).len() as u64;
    volume.config = LogConfig { segment_bytes, index_interval_bytes: 1, ..LogConfig::default() };
    let log = volume.open();
    for n in 0..=RECORDS {
        log.append_batch(&record(n)).unwrap();
    }
    log.close();
    assert_eq!(files(&volume, "", ".log").len(), 2);
    volume
}

fn record(n: i64) -> bytes::Bytes {
    let options = BatchOptions { base_timestamp: Timestamp(START.0 + n), ..Default::default() };
    data_batch(&[SimpleRecord::of_value("x".repeat(1000))], &options).unwrap()
}

fn first_index(volume: &Volume, extension: &str) -> PathBuf {
    files(volume, "00000001-00000000000000000000.", extension).remove(0)
}

/// The index files of the first segment, as the manifest has them.
fn index_files(volume: &Volume) -> Option<IndexFiles> {
    let (_, manifest) = read_highest::<Manifest>(&*volume.substrate, &volume.dir, MANIFEST).unwrap().unwrap();
    manifest.segments[0].indexes
}

fn until_rebuilt(volume: &Volume, number: u64) -> IndexFiles {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(files) = index_files(volume)
            && files.version.is_some_and(|version| version.number == number)
        {
            return files;
        }
        assert!(Instant::now() < deadline, "nobody builds the index files anew: {:?}", index_files(volume));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What a consumer gets that reads as a broker does, sending ranges of files where it can.
fn consume(log: &Log) -> Vec<i64> {
    let mut offsets = Vec::new();
    loop {
        let from = Offset(offsets.last().map_or(0, |last| last + 1));
        let request = ReadRequest {
            from,
            max_bytes: 20_000,
            at_least_one: true,
            isolation: Isolation::ReadUncommitted,
            file_ranges: true,
        };
        let fetched = log.read_with(request).unwrap();
        if fetched.bytes == 0 {
            return offsets;
        }
        offsets.extend(support::decode_offsets(&fetched));
    }
}

/// A second leader reads everything, in every way, in spite of what was done to the index files of the first segment; they are
/// built anew once, and the third leader finds everything in order.
#[track_caller]
fn is_mended(volume: &Volume, damage: &str) {
    let log = volume.open();
    let all: Vec<_> = (0..=RECORDS).collect();
    for at in [0, 1, RECORDS / 2, RECORDS - 1] {
        let query = TimeQuery::At(Timestamp(START.0 + at));
        let found = log.partition.offset_for_time(query, Isolation::ReadUncommitted).unwrap().unwrap();
        assert_eq!(found.offset, Offset(at), "{damage}");
    }
    assert_eq!(consume(&log), all, "{damage}");
    // The second of this leader: the first would have been recovery's.
    let rebuilt = until_rebuilt(volume, 2);
    assert_eq!(rebuilt.version.unwrap().epoch, log.partition.epoch(), "{damage}");
    assert_eq!(consume(&log), all, "{damage}");
    log.partition.maintain().wait().unwrap().unwrap();
    // By then nothing refers to those that they replace, and they are gone.
    assert_eq!(files(volume, "00000001-00000000000000000000.", "index").len(), 2, "{damage}");
    assert_clean(volume, damage);
    log.close();
    let log = volume.open();
    assert_eq!(consume(&log), all, "{damage}");
    log.partition.maintain().wait().unwrap().unwrap();
    assert_eq!(index_files(volume).unwrap(), rebuilt, "{damage}: once is enough");
    log.close();
}

#[test]
fn index_files_that_cannot_be_used_are_built_anew() {
    type Edit = fn(&std::path::Path);
    let damages: [(&str, &str, Edit); 4] = [
        ("a missing offset index", ".index", |path| std::fs::remove_file(path).unwrap()),
        ("a short offset index", ".index", |path| change(path, |bytes| bytes.truncate(100))),
        ("a missing time index", ".timeindex", |path| std::fs::remove_file(path).unwrap()),
        ("a time index of zeros", ".timeindex", |path| change(path, |bytes| bytes.fill(0))),
    ];
    for (damage, extension, edit) in damages {
        let volume = two_segments();
        edit(&first_index(&volume, extension));
        is_mended(&volume, damage);
    }
}

/// Entries in order, each of them a byte off: nothing tells but the log.
#[test]
fn an_offset_index_that_readers_find_wrong_is_built_anew() {
    let volume = two_segments();
    change(&first_index(&volume, ".index"), |bytes| {
        for entry in bytes.chunks_exact_mut(8) {
            entry[7] = entry[7].wrapping_add(1);
        }
    });
    assert_found(&volume, Kind::IndexWrong);
    is_mended(&volume, "an offset index with wrong positions");
}

/// Entries that lead to batches behind the offset that they are of, past those that are looked for.
#[test]
fn an_offset_index_of_too_small_offsets_hides_nothing() {
    let volume = two_segments();
    change(&first_index(&volume, ".index"), |bytes| {
        for (entry, offset) in bytes.chunks_exact_mut(8).zip(0_i32..) {
            entry[..4].copy_from_slice(&offset.to_be_bytes());
        }
    });
    is_mended(&volume, "an offset index with wrong offsets");
}

/// What is built anew does not know what was stable when a transaction was aborted: nothing is wrong with that.
#[test]
fn aborted_transactions_are_in_an_index_that_is_built_anew() {
    let mut volume = Volume::local();
    volume.config = LogConfig { segment_bytes: 2000, index_interval_bytes: 1, ..LogConfig::default() };
    let log = volume.open();
    let mut aborted = Vec::new();
    for n in 0..20 {
        let appended = log.append_batch(&transactional(8, n, "aborted")).unwrap();
        log.append(&["plain"]).unwrap();
        end_transaction(&log, 8, Marker::Abort);
        aborted.push((8, appended.base_offset.0));
    }
    log.close();
    std::fs::remove_file(first_index(&volume, ".txnindex")).unwrap();
    let log = volume.open();
    let read = || {
        let (mut found, mut from) = (Vec::new(), Offset(0));
        while from < log.partition.status().last_stable {
            let isolation = Isolation::ReadCommitted;
            let request =
                ReadRequest { from, max_bytes: 1, at_least_one: true, isolation, file_ranges: false };
            let fetched = log.read_with(request).unwrap();
            found.extend(fetched.aborted.iter().map(|found| (found.producer_id.0, found.first_offset.0)));
            from = Offset(support::decode_offsets(&fetched).last().unwrap() + 1);
        }
        found.dedup();
        found
    };
    assert_eq!(read(), aborted);
    until_rebuilt(&volume, 2);
    assert_clean(&volume, "built anew");
    assert_eq!(read(), aborted);
    log.close();
    let log = volume.open();
    assert_eq!(log.records().len(), look(&volume).records as usize);
    assert_clean(&volume, "read by the next leader");
}

#[test]
fn where_the_log_is_damaged_its_index_files_stay_as_they_are() {
    let volume = two_segments();
    let before = index_files(&volume);
    // The header of a batch in the middle: the index leads there, and nothing can be walked past it.
    let batch_bytes = record(0).len();
    change(&files(&volume, "", ".log")[0], |bytes| bytes[batch_bytes * 100 + 16] = 9);
    let log = volume.open();
    log.read(100).unwrap_err();
    log.read(100).unwrap_err();
    // Whatever was begun has ended.
    log.partition.close().wait().unwrap().unwrap();
    log.engine.close();
    assert_eq!(index_files(&volume), before);
}

/// A leader that cannot write them reads on without.
#[test]
fn index_files_that_cannot_be_written_anew_are_left() {
    let volume = two_segments();
    std::fs::remove_file(first_index(&volume, ".index")).unwrap();
    let rules =
        Rules::new([Rule::nth(Point::Create, 1, Verdict::Fail(ErrorClass::NoSpace)).on("index").times(100)]);
    let faulty: Arc<dyn Substrate> =
        Arc::new(Faulty::new(Arc::clone(&volume.substrate), Arc::clone(&rules) as _));
    let full = volume.seen_through(faulty);
    let log = full.open();
    let all: Vec<_> = (0..=RECORDS).collect();
    for _ in 0..3 {
        assert_eq!(consume(&log), all);
        log.partition.maintain().wait().unwrap().unwrap();
    }
    assert_eq!(rules.hits(), 1, "tried once");
    log.close();
    let volume = volume.after(&full);
    is_mended(&volume, "not written by the leader before");
}

/// A range of a file is what the index says only where the log agrees.
#[test]
fn ranges_are_sent_again_once_the_index_is_right() {
    let volume = two_segments();
    change(&first_index(&volume, ".index"), |bytes| {
        for entry in bytes.chunks_exact_mut(8) {
            entry[7] = entry[7].wrapping_add(1);
        }
    });
    let log = volume.open();
    let request = ReadRequest {
        from: Offset(0),
        max_bytes: 150_000,
        at_least_one: true,
        isolation: Isolation::ReadUncommitted,
        file_ranges: true,
    };
    let is_range = || {
        let fetched = log.read_with(request).unwrap();
        matches!(fetched.parts[0], RecordsPart::FileRange { .. })
    };
    assert!(!is_range(), "the index is wrong");
    until_rebuilt(&volume, 2);
    assert!(is_range(), "it was built anew");
}
