//! Doubts that the log has met: derived files that are gone, records without a time, syncs that fail at odd moments.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, clippy::cast_possible_truncation)]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_engine::batch::{BatchOptions, EndMarker, Marker, Producer, SimpleRecord, data_batch};
use kaas_engine::types::{Offset, ProducerId, Timestamp};
use kaas_engine::{Isolation, LogConfig, ReadRequest, State};
use kaas_fault_injection::faulty::{Faulty, Hook, Point, Rule, Rules, Verdict};
use kaas_substrate::{ErrorClass, Substrate};
use parking_lot::Mutex;
use support::{Log, START, Volume, batch};

fn files(volume: &Volume, suffix: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(volume.path().join("0"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(suffix))
        .collect();
    files.sort();
    files
}

fn aborted(log: &Log) -> Vec<(i64, i64)> {
    let request = ReadRequest {
        from: Offset(0),
        max_bytes: 1 << 20,
        at_least_one: true,
        isolation: Isolation::ReadCommitted,
        file_ranges: false,
    };
    let fetched = log.read_with(request).unwrap();
    assert!(fetched.bytes > 0);
    fetched.aborted.iter().map(|aborted| (aborted.producer_id.0, aborted.first_offset.0)).collect()
}

fn with_an_aborted_transaction() -> Volume {
    let volume = Volume::local();
    let log = volume.open();
    let producer = Some(Producer { id: ProducerId(1), epoch: 0, base_sequence: 0 });
    let options = BatchOptions { base_timestamp: START, producer, transactional: true, ..Default::default() };
    log.append_batch(&data_batch(&[SimpleRecord::of_value("aborted")], &options).unwrap()).unwrap();
    let marker = EndMarker { marker: Marker::Abort, coordinator_epoch: 0 };
    log.partition.append_marker(ProducerId(1), 0, marker).unwrap().wait().unwrap().unwrap();
    assert_eq!(aborted(&log), [(1, 0)]);
    log.close();
    volume
}

/// Index files are derived: when one is unusable the log is walked instead, for aborted transactions, too.
#[test]
fn an_unusable_index_file_does_not_make_aborted_records_committed() {
    for suffix in [".timeindex", ".txnindex"] {
        let volume = with_an_aborted_transaction();
        for path in files(&volume, suffix) {
            std::fs::remove_file(path).unwrap();
        }
        assert_eq!(aborted(&volume.open()), [(1, 0)], "without {suffix}");
    }
}

/// A transaction that began in an earlier segment than the one with its marker.
#[test]
fn an_aborted_transaction_over_several_segments_is_found_without_index_files() {
    let mut volume = Volume::local();
    volume.config = LogConfig { segment_bytes: 200, ..LogConfig::default() };
    let log = volume.open();
    let data = |id: i64, sequence: i32| {
        let producer = Some(Producer { id: ProducerId(id), epoch: 0, base_sequence: sequence });
        let options =
            BatchOptions { base_timestamp: START, producer, transactional: true, ..Default::default() };
        log.append_batch(
            &data_batch(&[SimpleRecord::of_value("some value of a transaction")], &options).unwrap(),
        )
        .unwrap()
        .base_offset
        .0
    };
    let end = |id: i64, marker| {
        let marker = EndMarker { marker, coordinator_epoch: 0 };
        log.partition.append_marker(ProducerId(id), 0, marker).unwrap().wait().unwrap().unwrap();
    };
    data(1, 0);
    end(1, Marker::Commit);
    let first = data(1, 1);
    data(2, 0);
    data(1, 2);
    data(1, 3);
    end(2, Marker::Commit);
    end(1, Marker::Abort);
    let second = data(1, 4);
    end(1, Marker::Abort);
    let read = |log: &Log| -> Vec<(i64, i64)> {
        let mut all = Vec::new();
        let mut from = 0;
        while from < log.partition.status().last_stable.0 {
            let fetched = log
                .read_with(ReadRequest {
                    from: Offset(from),
                    max_bytes: 1 << 20,
                    at_least_one: true,
                    isolation: Isolation::ReadCommitted,
                    file_ranges: false,
                })
                .unwrap();
            all.extend(fetched.aborted.iter().map(|aborted| (aborted.producer_id.0, aborted.first_offset.0)));
            from = support::decode_offsets(&fetched).last().unwrap() + 1;
        }
        all.sort_unstable();
        all.dedup();
        all
    };
    assert_eq!(read(&log), [(1, first), (1, second)]);
    log.close();
    assert!(files(&volume, ".log").len() > 3);
    for suffix in [".timeindex", ".txnindex", ".index"] {
        for path in files(&volume, suffix) {
            std::fs::remove_file(path).unwrap();
        }
    }
    assert_eq!(read(&volume.open()), [(1, first), (1, second)]);
}

/// One transaction that begins in front of another and ends behind it: what is said of the inner one, whose index is rebuilt, must
/// not end the search for the outer one.
#[test]
fn an_aborted_transaction_around_another_is_found_without_the_index_files_of_the_inner_one() {
    let mut volume = Volume::local();
    volume.config = LogConfig { segment_bytes: 200, ..LogConfig::default() };
    let log = volume.open();
    let data = |id: i64| {
        let producer = Some(Producer { id: ProducerId(id), epoch: 0, base_sequence: 0 });
        let options =
            BatchOptions { base_timestamp: START, producer, transactional: true, ..Default::default() };
        log.append_batch(&data_batch(&[SimpleRecord::of_value("x".repeat(100))], &options).unwrap()).unwrap();
    };
    let abort = |id: i64| {
        let marker = EndMarker { marker: Marker::Abort, coordinator_epoch: 0 };
        log.partition.append_marker(ProducerId(id), 0, marker).unwrap().wait().unwrap().unwrap();
    };
    data(1);
    data(2);
    abort(2);
    log.append(&["x".repeat(100).as_str()]).unwrap();
    abort(1);
    log.close();
    let indexes = files(&volume, ".txnindex");
    assert_eq!(indexes.len(), 2, "a segment each for the two markers: {indexes:?}");
    std::fs::remove_file(&indexes[0]).unwrap();
    assert_eq!(aborted(&volume.open()), [(1, 0)]);
}

/// The same without any damage: index files could not be written when the segment was inherited (here: no space), so
/// the manifest says `indexes: null`.
#[test]
fn index_files_that_could_not_be_written_do_not_make_aborted_records_committed() {
    let volume = Volume::local();
    let log = volume.open();
    let producer = Some(Producer { id: ProducerId(1), epoch: 0, base_sequence: 0 });
    let options = BatchOptions { base_timestamp: START, producer, transactional: true, ..Default::default() };
    log.append_batch(&data_batch(&[SimpleRecord::of_value("aborted")], &options).unwrap()).unwrap();
    let marker = EndMarker { marker: Marker::Abort, coordinator_epoch: 0 };
    log.partition.append_marker(ProducerId(1), 0, marker).unwrap().wait().unwrap().unwrap();
    log.crash();
    let rules = Rules::new([Rule {
        point: Some(Point::Create),
        path_contains: "index".into(),
        nth: 1,
        times: 100,
        verdict: Verdict::Fail(ErrorClass::NoSpace),
    }]);
    let faulty: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::clone(&volume.substrate), rules));
    assert_eq!(aborted(&volume.seen_through(faulty).open()), [(1, 0)]);
}

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<(Point, PathBuf)>>);

impl Hook for Recorder {
    fn before(&self, point: Point, path: &Path) -> Verdict {
        self.0.lock().push((point, path.to_owned()));
        Verdict::Pass
    }
}

/// `Substrate::make_durable` must be called *before* reading what is relied upon: pages that a failed sync left clean
/// in the cache read as if they were on the volume, and are dropped afterwards.
#[test]
fn what_is_recovered_is_made_durable_before_it_is_read() {
    let volume = Volume::local();
    let log = volume.open();
    log.append(&["a"]).unwrap();
    log.crash();
    let recorder = Arc::new(Recorder::default());
    let hook: Arc<dyn Hook> = Arc::clone(&recorder) as Arc<dyn Hook>;
    let faulty: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::clone(&volume.substrate), hook));
    assert_eq!(volume.seen_through(faulty).open().values(), ["a"]);
    let calls = recorder.0.lock();
    let first = |wanted: Point| {
        calls.iter().position(|(point, path)| *point == wanted && path.to_string_lossy().ends_with(".log"))
    };
    assert!(first(Point::MakeDurable) < first(Point::Read), "{:#?}", *calls);
}

/// Records without a timestamp (-1) are allowed, as in Kafka; they are not from 1969.
#[test]
fn records_without_a_timestamp_are_not_expired_at_once() {
    let volume = Volume::local();
    let log = volume.open();
    let options = BatchOptions { base_timestamp: Timestamp::NONE, ..Default::default() };
    log.append_batch(&data_batch(&[SimpleRecord::of_value("x")], &options).unwrap()).unwrap();
    log.partition.maintain().wait().unwrap().unwrap();
    assert_eq!(log.values(), ["x"]);
}

/// Nor do they roll a segment: Kafka measures `segment.ms` from the first timestamp only if there is one.
#[test]
fn a_record_without_a_timestamp_does_not_roll_the_segment() {
    let volume = Volume::local();
    let log = volume.open();
    let options = BatchOptions { base_timestamp: Timestamp::NONE, ..Default::default() };
    log.append_batch(&data_batch(&[SimpleRecord::of_value("x")], &options).unwrap()).unwrap();
    log.append(&["y"]).unwrap();
    assert_eq!(files(&volume, ".log").len(), 1);
}

/// A failed fdatasync is final for the file, whatever its class, also at a roll (with flush.messages above 1) and when
/// it says "no space", as NFS does.
#[test]
fn a_sync_that_finds_no_space_at_a_roll_poisons_the_partition() {
    let mut volume = Volume::local();
    volume.config = LogConfig { flush_messages: 1_000_000, segment_bytes: 300, ..LogConfig::default() };
    let rules = Rules::new([Rule {
        point: Some(Point::SyncData),
        path_contains: ".log".into(),
        nth: 1,
        times: 1,
        verdict: Verdict::Fail(ErrorClass::NoSpace),
    }]);
    let faulty: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::clone(&volume.substrate), rules));
    let log = volume.seen_through(faulty).open();
    let failed = (0..10).map(|_| log.append(&["some value to fill the segment with"])).find(Result::is_err);
    assert!(failed.is_some());
    let state = log.partition.status().state;
    assert!(matches!(state, State::Poisoned { .. }), "{state:?}");
}

/// The checkpoint is an optimisation; a damaged one should cost a longer scan, not the partition.
#[test]
fn a_damaged_checkpoint_does_not_keep_the_partition_from_opening() {
    let mut volume = Volume::local();
    volume.settings.checkpoint_distance_bytes = 500;
    let log = volume.open();
    for n in 0..50 {
        log.append(&[&format!("value-{n:03}")]).unwrap();
    }
    log.crash();
    for path in files(&volume, ".json").iter().filter(|path| path.to_string_lossy().contains("checkpoint")) {
        std::fs::write(path, b"?").unwrap();
    }
    let opened = volume.try_open().map(|log| log.values().len());
    assert!(matches!(opened, Ok(50)), "{opened:?}");
}

/// Every start claims a new epoch; claim files of old ones are collected.
#[test]
fn old_claims_do_not_pile_up() {
    let volume = Volume::local();
    for _ in 0..5 {
        let log = volume.open();
        log.append_batch(&batch(&["x"])).unwrap();
        log.partition.maintain().wait().unwrap().unwrap();
        log.close();
    }
    let claims = files(&volume, "").iter().filter(|path| path.to_string_lossy().contains("/claim.")).count();
    assert!(claims <= 2, "{claims} claim files");
}
