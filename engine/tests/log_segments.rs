//! The segments of a partition: when they roll, when they are deleted, and what keeps an open from reading all of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss)]

mod support;

use kaas_engine::types::{Offset, Timestamp};
use kaas_engine::{EngineError, LogConfig, ReadError};
use support::{START, Volume, decode, each_volume, producer_batch};

#[test]
fn small_segments_roll_and_survive() {
    each_volume(|mut volume| {
        volume.config = LogConfig { segment_bytes: 300, index_interval_bytes: 1, ..LogConfig::default() };
        let values: Vec<String> = (0..40).map(|n| format!("value-{n:03}")).collect();
        let log = volume.open();
        for value in &values {
            log.append(&[value]).unwrap();
        }
        assert_eq!(log.values(), values);
        for from in 0..40 {
            assert_eq!(decode(&log.read(from).unwrap())[0].0, from);
        }
        log.crash();
        let log = volume.open();
        assert_eq!(log.values(), values, "after a crash");
        log.close();
        let log = volume.open();
        assert_eq!(log.values(), values, "after a clean close");
    });
}

#[test]
fn delete_records_raises_the_log_start_for_good() {
    each_volume(|mut volume| {
        volume.config = LogConfig { segment_bytes: 300, ..LogConfig::default() };
        let log = volume.open();
        for n in 0..20 {
            log.append(&[&format!("value-{n:03}")]).unwrap();
        }
        let too_far = log.partition.delete_records(Some(Offset(21))).wait().unwrap();
        assert!(matches!(too_far, Err(EngineError::OffsetOutOfRange { .. })));
        assert_eq!(log.partition.delete_records(Some(Offset(10))).wait().unwrap().unwrap(), Offset(10));
        assert_eq!(log.partition.delete_records(Some(Offset(5))).wait().unwrap().unwrap(), Offset(10));
        assert!(matches!(log.read(9), Err(ReadError::OffsetOutOfRange { .. })));
        assert_eq!(log.records()[0].0, 10);
        log.crash();
        let log = volume.open();
        assert_eq!(
            log.records().iter().map(|(offset, _)| *offset).collect::<Vec<_>>(),
            (10..20).collect::<Vec<_>>()
        );
        assert_eq!(log.partition.delete_records(None).wait().unwrap().unwrap(), Offset(20));
        assert_eq!(log.records(), []);
        assert_eq!(log.partition.size_bytes(), 0);
        assert_eq!(log.append(&["next"]).unwrap().base_offset, Offset(20));
        log.crash();
        assert_eq!(volume.open().records(), [(20, "next".into())]);
    });
}

#[test]
fn retention_deletes_by_time_and_by_size() {
    each_volume(|mut volume| {
        volume.config =
            LogConfig { segment_bytes: 300, retention_ms: 1000, retention_bytes: -1, ..LogConfig::default() };
        let log = volume.open();
        for n in 0..20 {
            log.append(&[&format!("value-{n:03}")]).unwrap();
        }
        assert_eq!(log.partition.maintain().wait().unwrap().unwrap().segments_deleted, 0);
        let size = log.partition.size_bytes();
        log.partition.set_config(LogConfig { retention_bytes: 700, ..volume.config.clone() });
        let maintained = log.partition.maintain().wait().unwrap().unwrap();
        assert!(maintained.segments_deleted > 0);
        assert!(log.partition.size_bytes() >= 700 && log.partition.size_bytes() < size);
        assert_eq!(log.partition.size_bytes(), size - maintained.bytes_deleted);
        volume.clock.advance_ms(1001);
        log.partition.maintain().wait().unwrap().unwrap();
        assert_eq!(log.partition.size_bytes(), 0);
        let status = log.partition.status();
        assert_eq!((status.log_start, status.high_watermark), (Offset(20), Offset(20)));
        log.append(&["after"]).unwrap();
        log.crash();
        assert_eq!(volume.open().records(), [(20, "after".into())]);
    });
}

#[test]
fn a_quiet_segment_rolls_by_time() {
    let mut volume = Volume::memory();
    volume.config = LogConfig { segment_ms: 1000, ..LogConfig::default() };
    let log = volume.open();
    log.append(&["a"]).unwrap();
    volume.clock.advance_ms(1001);
    log.partition.maintain().wait().unwrap().unwrap();
    log.append(&["b"]).unwrap();
    let names: Vec<_> = volume
        .substrate
        .list(&volume.dir)
        .unwrap()
        .into_iter()
        .filter_map(|entry| entry.name.into_string().ok())
        .filter(|name| name.ends_with(".log"))
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(log.values(), ["a", "b"]);
}

#[test]
fn a_changed_segment_ms_counts_for_the_segment_that_is_written() {
    let volume = Volume::memory();
    let log = volume.open();
    let segments = || {
        let entries = volume.substrate.list(&volume.dir).unwrap().into_iter();
        entries.filter(|entry| entry.name.to_string_lossy().ends_with(".log")).count()
    };
    let append_at = |ms: i64| {
        let options = kaas_engine::batch::BatchOptions {
            base_timestamp: Timestamp(START.0 + ms),
            ..Default::default()
        };
        let record = kaas_engine::batch::SimpleRecord::of_value("v");
        log.append_batch(&kaas_engine::batch::data_batch(&[record], &options).unwrap()).unwrap();
    };
    append_at(0);
    append_at(101);
    assert_eq!(segments(), 1);
    // As one does to have a log compacted, or deleted, soon.
    log.partition.set_config(LogConfig { segment_ms: 100, ..volume.config.clone() });
    append_at(102);
    assert_eq!(segments(), 2, "the records' own time is up");
    log.partition.set_config(LogConfig { compact: true, max_compaction_lag_ms: 50, ..volume.config.clone() });
    volume.clock.advance_ms(51);
    log.partition.maintain().wait().unwrap().unwrap();
    log.partition.set_config(volume.config.clone());
    append_at(103);
    assert_eq!(segments(), 3, "it had become too old for a compacted topic");
}

#[test]
fn a_recovery_checkpoint_bounds_the_scan_and_changes_nothing() {
    each_volume(|mut volume| {
        volume.settings.checkpoint_distance_bytes = 500;
        volume.config = LogConfig { index_interval_bytes: 100, ..LogConfig::default() };
        let log = volume.open();
        for n in 0..50 {
            log.append_batch(&producer_batch(3, 0, n, &[&format!("value-{n:03}")])).unwrap();
        }
        let values = log.values();
        log.crash();
        let names: Vec<_> =
            volume.substrate.list(&volume.dir).unwrap().into_iter().map(|entry| entry.name).collect();
        let checkpoints =
            names.iter().filter(|name| name.to_string_lossy().starts_with("recovery-checkpoint"));
        assert!(checkpoints.count() >= 1, "{names:?}");
        let log = volume.open();
        assert_eq!(log.values(), values);
        let repeated = log.append_batch(&producer_batch(3, 0, 49, &["value-049"])).unwrap();
        assert_eq!(repeated.base_offset, Offset(49));
        for from in 0..50 {
            assert!(decode(&log.read(from).unwrap())[0].0 <= from);
        }
    });
}
