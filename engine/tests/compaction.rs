//! Compaction of one partition: what stays and for how long, beside whom, and how much memory it takes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, clippy::cast_possible_truncation)]

#[path = "support/compacting.rs"]
mod compacting;
#[path = "support/looking.rs"]
mod looking;
mod support;

use std::sync::Arc;

use compacting::{at, batches, compacted, consume, keyed, latest, logs, manifest, offset, offsets};
use kaas_engine::batch::{BatchHeader, BatchOptions, Compression, Marker, Producer, data_batch};
use kaas_engine::types::{Epoch, Offset, ProducerId, Timestamp};
use kaas_engine::{
    AppendError, AppendOptions, EngineError, Isolation, LogConfig, Read, ReadRequest, RecordsPart,
};
use looking::{assert_clean, end_transaction, files};
use support::{Log, START, Volume};

fn compact(log: &Log) -> kaas_engine::Compacted {
    log.partition.compact_now().unwrap()
}

// What stays.

#[test]
fn the_newest_record_of_each_key_stays_where_it_was() {
    let volume = compacted(Volume::memory());
    let log = volume.open();
    log.put("a", "1");
    log.put("b", "1");
    log.put("a", "2");
    log.put("c", "1");
    log.put("a", "3");
    log.roll();
    log.put("b", "2");
    let dirty = log.partition.dirtiness().unwrap().unwrap();
    assert!(dirty.clean_bytes == 0 && dirty.dirty_bytes > 500 && dirty.is_due(&log.partition.config()));
    let outcome = compact(&log);
    assert!(outcome.segments_before > 2, "{outcome:?}");
    assert!(outcome.bytes_after < outcome.bytes_before);
    let seen = consume(&log, Isolation::ReadUncommitted);
    assert_eq!(offsets(&seen)[..3], [1, 3, 4], "b 1 is only replaced in the active segment");
    assert_eq!(seen[2].value.as_deref(), Some("3"));
    assert_eq!(log.partition.dirtiness().unwrap().unwrap().dirty_bytes, 0);
    assert_eq!(compact(&log).segments_before, 0, "there is nothing left to do");
    // Segments that have become small become one with the next round.
    log.roll();
    let outcome = compact(&log);
    assert!(outcome.segments_after < outcome.segments_before, "{outcome:?}");
    let seen = consume(&log, Isolation::ReadUncommitted);
    // As the next leader finds it.
    for _ in 0..2 {
        assert_clean(&volume, "compacted");
        let (there, named) = logs(&volume);
        assert!(there.difference(&named).count() <= 1, "{there:?}, {named:?}");
        let log = volume.open();
        assert_eq!(consume(&log, Isolation::ReadUncommitted), seen);
        log.crash();
    }
}

#[test]
fn a_tombstone_stays_for_the_time_that_consumers_have() {
    let volume = compacted(Volume::memory());
    let log = volume.open();
    log.put("a", "1");
    log.remove("a");
    log.roll();
    compact(&log);
    assert_eq!(offsets(&consume(&log, Isolation::ReadUncommitted))[0], 1, "a is gone, its tombstone is not");
    let (header, _) = batches(&log)[0].clone();
    assert!(header.attributes.has_delete_horizon());
    assert_eq!(header.base_timestamp, at(1000));
    assert_eq!(header.max_timestamp, START, "the records keep their timestamps");
    volume.clock.advance_ms(999);
    log.roll();
    compact(&log);
    assert_eq!(offsets(&consume(&log, Isolation::ReadUncommitted))[0], 1);
    volume.clock.advance_ms(1);
    log.roll();
    compact(&log);
    assert!(offsets(&consume(&log, Isolation::ReadUncommitted))[0] > 1);
    assert!(!latest(&log).contains_key("a"));
}

fn in_transaction(log: &Log, id: i64, sequence: i32, key: &str) -> i64 {
    let producer = Some(Producer { id: ProducerId(id), epoch: 0, base_sequence: sequence });
    let options = BatchOptions { base_timestamp: START, producer, transactional: true, ..Default::default() };
    let batch = data_batch(&[compacting::record(key, Some("in a transaction"))], &options).unwrap();
    log.append_batch(&batch).unwrap().base_offset.0
}

#[test]
fn aborted_records_go_and_markers_when_nothing_needs_them() {
    let volume = compacted(Volume::memory());
    let log = volume.open();
    let aborted = in_transaction(&log, 1, 0, "a");
    let committed = in_transaction(&log, 2, 0, "b");
    end_transaction(&log, 1, Marker::Abort);
    end_transaction(&log, 2, Marker::Commit);
    in_transaction(&log, 1, 1, "c");
    end_transaction(&log, 1, Marker::Commit);
    log.roll();
    compact(&log);
    let seen = consume(&log, Isolation::ReadUncommitted);
    assert!(offsets(&seen).starts_with(&[committed, 4]), "{seen:?}");
    assert_ne!(aborted, committed);
    assert_eq!(seen[1].key.as_deref(), Some("c"));
    let controls = |log: &Log| {
        let batches = batches(log).into_iter().filter(|(header, _)| header.is_control());
        batches.map(|(header, _)| header.base_offset.0).collect::<Vec<_>>()
    };
    assert_eq!(controls(&log), [2, 3, 5]);
    // The next round meets nothing of the aborted one: its marker gets a horizon, and goes behind that.
    log.roll();
    compact(&log);
    assert_eq!(controls(&log), [2, 3, 5]);
    volume.clock.advance_ms(1000);
    log.roll();
    compact(&log);
    assert_eq!(controls(&log), [3, 5], "those of records that are there stay");
    assert_clean(&volume, "without the marker");
    // An open transaction keeps everything behind its beginning.
    let open = in_transaction(&log, 1, 2, "a");
    log.roll();
    assert!(compact(&log).first_dirty <= Offset(open));
    end_transaction(&log, 1, Marker::Commit);
    log.roll();
    assert!(compact(&log).first_dirty > Offset(open));
    log.crash();
    assert_clean(&volume, "crashed");
    assert!(consume(&volume.open(), Isolation::ReadCommitted).iter().any(|record| record.offset == open));
}

#[test]
fn the_last_batch_of_a_producer_stays_if_need_be_without_records() {
    let volume = compacted(Volume::memory());
    let log = volume.open();
    let send = |log: &Log, sequence: i32| {
        let producer = Some(Producer { id: ProducerId(5), epoch: 2, base_sequence: sequence });
        let options = BatchOptions { base_timestamp: START, producer, ..Default::default() };
        log.append_batch(&data_batch(&[compacting::record("a", Some("1"))], &options).unwrap())
            .unwrap()
            .base_offset
            .0
    };
    let (first, second) = (send(&log, 0), send(&log, 1));
    log.put("a", "2");
    log.roll();
    compact(&log);
    let (header, _) = batches(&log)[0].clone();
    assert_eq!((header.base_offset.0, header.record_count, header.base_sequence), (second, 0, 1));
    assert_eq!(send(&log, 0), first);
    assert_eq!(send(&log, 1), second);
    assert_clean(&volume, "with an empty batch");
    log.crash();
    let log = volume.open();
    assert_eq!(send(&log, 1), second, "a retry is recognised after a crash");
    send(&log, 2);
    log.roll();
    compact(&log);
    assert!(batches(&log)[0].0.base_offset.0 > second, "it is not the last one any more");
}

/// With `flush.messages` what stands in the active segment may be lost with the host, though it is committed.
#[test]
fn the_last_batch_of_a_producer_that_is_synced_stays_too() {
    for (flush_messages, stays) in [(1, false), (1000, true)] {
        let mut volume = compacted(Volume::local());
        volume.config.flush_messages = flush_messages;
        let log = volume.open();
        let send = |sequence: i32| {
            let producer = Some(Producer { id: ProducerId(5), epoch: 2, base_sequence: sequence });
            let options = BatchOptions { base_timestamp: START, producer, ..Default::default() };
            let batch = data_batch(&[compacting::record("a", Some("1"))], &options).unwrap();
            log.append_batch(&batch).unwrap().base_offset
        };
        let first = send(0);
        log.put("a", "2");
        log.roll();
        let last = send(1);
        compact(&log);
        let found = |offset| batches(&log).iter().any(|(header, _)| header.base_offset == offset);
        assert!(found(last) && found(first) == stays, "flush.messages={flush_messages}");
    }
}

#[test]
fn what_is_young_or_without_a_key() {
    let mut volume = compacted(Volume::memory());
    volume.config.min_compaction_lag_ms = 100;
    volume.config.max_compaction_lag_ms = 5000;
    volume.config.min_cleanable_dirty_ratio = 1.0;
    let log = volume.open();
    log.partition.set_config(LogConfig { compact: false, ..volume.config.clone() });
    log.append(&["no key"]).unwrap();
    log.partition.set_config(volume.config.clone());
    let refused = log.append(&["no key"]).unwrap_err();
    assert!(matches!(refused, AppendError::Batch(kaas_engine::batch::BatchError::NoKey { index: 0 })));
    log.put("a", "1");
    log.put("a", "2");
    log.roll();
    volume.clock.advance_ms(99);
    assert_eq!(compact(&log).segments_before, 0, "too young");
    volume.clock.advance_ms(1);
    let is_due = |log: &Log| log.partition.dirtiness().unwrap().unwrap().is_due(&log.partition.config());
    assert!(!is_due(&log), "not dirty enough");
    volume.clock.advance_ms(4901);
    assert!(is_due(&log), "too old to wait any longer");
    compact(&log);
    assert_eq!(offsets(&consume(&log, Isolation::ReadUncommitted))[0], 2);
    // What is old is rolled, too.
    log.put("a", "3");
    volume.clock.advance_ms(5001);
    log.partition.maintain().wait().unwrap().unwrap();
    assert!(is_due(&log));
    compact(&log);
    let seen = consume(&log, Isolation::ReadUncommitted);
    assert_eq!(seen.iter().filter(|record| record.key.as_deref() == Some("a")).count(), 1);
}

#[test]
fn retention_and_compaction_go_together() {
    let mut volume = compacted(Volume::memory());
    volume.config.delete = true;
    volume.config.retention_ms = 10_000;
    let log = volume.open();
    log.put("a", "1");
    log.put("a", "2");
    log.roll();
    compact(&log);
    let status = log.partition.status();
    assert_eq!(offsets(&consume(&log, Isolation::ReadUncommitted))[0], 1);
    log.partition.delete_records(offset(1)).wait().unwrap().unwrap();
    assert_eq!(log.partition.status().log_start, Offset(1));
    volume.clock.advance_ms(10_001);
    log.partition.maintain().wait().unwrap().unwrap();
    assert!(log.partition.status().log_start >= status.high_watermark);
    assert_eq!(compact(&log).segments_before, 0);
    log.put("a", "3");
    log.roll();
    compact(&log);
    assert_clean(&volume, "deleted and compacted");
    log.crash();
    assert!(latest(&volume.open()).contains_key("a"));
}

#[test]
fn records_without_timestamps_do_not_become_younger_by_being_rewritten() {
    let mut volume = compacted(Volume::memory());
    volume.config.delete = true;
    volume.config.retention_ms = 10_000;
    let log = volume.open();
    let append = |n: i32| {
        let options = BatchOptions { base_timestamp: Timestamp::NONE, ..BatchOptions::default() };
        let records = [compacting::record(&format!("k{}", n % 3), Some(&"x".repeat(90)))];
        log.append_batch(&data_batch(&records, &options).unwrap()).unwrap();
    };
    (0..20).for_each(append);
    // Retention meets them for the first time.
    log.partition.maintain().wait().unwrap().unwrap();
    volume.clock.advance_ms(6000);
    assert!(compact(&log).segments_before > 3);
    volume.clock.advance_ms(4000);
    log.partition.maintain().wait().unwrap().unwrap();
    assert_eq!(log.partition.status().log_start, Offset(0), "not older than the time");
    volume.clock.advance_ms(1);
    let done = log.partition.maintain().wait().unwrap().unwrap();
    assert!(done.log_start >= Offset(15), "{done:?}");
}

#[test]
fn leader_epochs_survive_the_rewriting() {
    let mut volume = compacted(Volume::memory());
    volume.config.segment_bytes = 3000;
    for leader in 0..4 {
        let log = volume.open();
        for n in 0..5 {
            log.put(&format!("k{n}"), &format!("by {leader}"));
        }
        log.close();
    }
    let log = volume.open();
    log.put("k9", "by the fifth");
    assert_eq!(compact(&log).segments_after, 1);
    for (epoch, end) in [(1, 5), (2, 10), (3, 15), (4, 20), (5, 21)] {
        let epoch = Epoch::new(epoch).unwrap();
        assert_eq!(log.partition.end_offset_for_epoch(epoch), Some((epoch, Offset(end))));
    }
    assert_eq!(manifest(&volume).segments[0].leader_epochs.len(), 4);
    let epochs: Vec<_> = batches(&log).iter().map(|(header, _)| header.partition_leader_epoch).collect();
    assert_eq!(epochs, [4, 4, 4, 4, 4, 5]);
    assert_clean(&volume, "rewritten by the fifth leader");
}

// Beside everything else.

#[test]
fn readers_that_hold_old_segments_go_on() {
    let mut volume = compacted(Volume::local());
    volume.settings.tail_bytes_max = 0;
    volume.config.segment_bytes = 200_000;
    let log = volume.open();
    for n in 0..40 {
        let key = if n == 5 { "once".to_owned() } else { format!("k{}", n % 3) };
        log.put(&key, &format!("{n}-{}", "x".repeat(10_000)));
    }
    let request = |from: i64, file_ranges: bool| ReadRequest {
        from: Offset(from),
        max_bytes: 150_000,
        at_least_one: true,
        isolation: Isolation::ReadUncommitted,
        file_ranges,
    };
    let fetched = log.read_with(request(0, true)).unwrap();
    assert!(matches!(fetched.parts[0], RecordsPart::FileRange { .. }));
    let Read::Blocking(waiting) = log.partition.read(request(0, false)).unwrap() else { panic!("no tail") };
    compact(&log);
    assert!(files(&volume, "00000001-00000000000000000000.", "log").is_empty(), "the old file is gone");
    let before = support::decode(&fetched);
    assert!(before.len() > 5 && before[0].0 == 0, "what was fetched can still be sent");
    let after = support::decode(&waiting.run().unwrap());
    assert_eq!(after[0].0, 5, "what was not fetched yet is read from the new one");
    assert_eq!(log.read(0).unwrap().status, log.partition.status());
}

// Failures and bounds.

#[test]
fn readers_are_not_given_segment_after_segment_without_a_record() {
    let volume = compacted(Volume::memory());
    let log = volume.open();
    log.put("first", "1");
    for n in 0..100 {
        log.put("k", &format!("{n:060}"));
    }
    compact(&log);
    let emptied = manifest(&volume).segments;
    assert!(emptied.len() > 10, "{emptied:?}");
    for isolation in [Isolation::ReadUncommitted, Isolation::ReadCommitted] {
        let read = |from: i64| {
            let request = ReadRequest {
                from: Offset(from),
                max_bytes: 4096,
                at_least_one: true,
                isolation,
                file_ranges: false,
            };
            BatchHeader::parse(&support::bytes_of(&log.read_with(request).unwrap())).unwrap()
        };
        assert_eq!((read(0).base_offset, read(0).record_count), (Offset(0), 1));
        for from in emptied.iter().map(|segment| segment.end_offset - 1).filter(|from| *from > 5) {
            let first = read(from);
            assert_eq!(first.record_count, 1, "from {from}");
            assert!(first.base_offset >= Offset(emptied[emptied.len() - 1].end_offset - 1), "from {from}");
        }
    }
    assert_eq!(offsets(&consume(&log, Isolation::ReadUncommitted))[0], 0);

    // Where nothing follows, the reader is told how far it is.
    log.crash();
    let log = volume.open();
    log.put("k", "last");
    log.remove("k");
    for _ in 0..2 {
        log.roll();
        compact(&log);
        volume.clock.advance_ms(1001);
    }
    let seen = consume(&log, Isolation::ReadUncommitted);
    assert!(seen.iter().all(|record| record.key.as_deref() != Some("k")), "{seen:?}");
}

#[test]
fn damage_is_not_laundered() {
    let mut volume = compacted(Volume::local());
    volume.settings.cleaner.retry_ms = 0;
    let log = volume.open();
    for n in 0..40 {
        log.put(&format!("k{}", n % 3), &n.to_string());
    }
    let first = files(&volume, "00000001-00000000000000000000.", "log").remove(0);
    looking::change(&first, |bytes| bytes[70] ^= 1);
    let error = log.partition.compact_now().unwrap_err();
    assert!(matches!(error, EngineError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("CRC-32C"), "{error}");
    log.put("k0", "it serves on");
    assert!(log.partition.dirtiness().unwrap().is_some(), "and is tried again");
    let (there, named) = logs(&volume);
    assert!(there.difference(&named).count() <= 1, "nothing is left of the attempt: {there:?}, {named:?}");
    looking::change(&first, |bytes| bytes[70] ^= 1);
    compact(&log);
    assert_eq!(latest(&log)["k0"].as_deref(), Some("it serves on"));
}

#[test]
fn a_closing_partition_does_not_wait_for_its_cleaner() {
    let mut volume = compacted(Volume::memory());
    // It would take a quarter of an hour.
    volume.settings.cleaner.max_bytes_per_second = Some(100);
    let log = volume.open();
    for n in 0..1000 {
        log.partition
            .append(&keyed(&[(&format!("k{n}"), Some("x"))], Compression::None), AppendOptions::default())
            .unwrap();
    }
    log.put("last", "one");
    let partition = Arc::clone(&log.partition);
    let round = std::thread::spawn(move || partition.compact_now());
    std::thread::sleep(std::time::Duration::from_millis(30));
    log.close();
    let outcome = round.join().unwrap();
    assert!(matches!(outcome, Err(EngineError::Closed)) || outcome.is_ok(), "{outcome:?}");
    assert_clean(&volume, "closed while it was compacted");
    assert_eq!(latest(&volume.open()).len(), 1001);
}

#[test]
fn a_small_memory_takes_more_rounds() {
    let mut volume = compacted(Volume::memory());
    volume.config.segment_bytes = 20_000;
    volume.settings.cleaner.dedupe_buffer_bytes = 4096;
    let log = volume.open();
    for n in 0..1500 {
        let value = n.to_string();
        log.partition
            .append(
                &keyed(&[(&format!("k{}", (n * 7) % 500), Some(&value))], Compression::None),
                AppendOptions::default(),
            )
            .unwrap();
    }
    log.put("last", "one");
    let mut rounds = 0;
    let mut up_to = Offset(0);
    while log.partition.dirtiness().unwrap().unwrap().dirty_bytes > 0 {
        let outcome = compact(&log);
        assert!(outcome.first_dirty > up_to && outcome.keys <= 4096 / 24, "{outcome:?}");
        up_to = outcome.first_dirty;
        rounds += 1;
    }
    assert!(rounds > 5, "{rounds}");
    let closed =
        consume(&log, Isolation::ReadUncommitted).into_iter().filter(|record| record.offset < up_to.0);
    let mut keys: Vec<_> = closed.map(|record| record.key.unwrap()).collect();
    let all = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), all, "no key is there twice");

    // Not even one batch fits.
    volume.settings.cleaner.dedupe_buffer_bytes = 24;
    log.crash();
    let log = volume.open();
    let many: Vec<_> = (0..50).map(|n| format!("n{n}")).collect();
    let many: Vec<_> = many.iter().map(|key| (key.as_str(), Some("x"))).collect();
    log.append_batch(&keyed(&many, Compression::Lz4)).unwrap();
    log.crash();
    let log = volume.open();
    let mut outcome = log.partition.compact_now();
    while outcome.as_ref().is_ok_and(|outcome| outcome.segments_before > 0) {
        outcome = log.partition.compact_now();
    }
    let error = outcome.unwrap_err();
    assert!(matches!(error, EngineError::DedupeBufferTooSmall { .. }), "{error}");
    assert!(error.to_string().contains("log.cleaner.dedupe.buffer.size"), "{error}");
}
