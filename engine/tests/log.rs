//! A partition as its users see it: append, read, close, crash, reopen.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss)]

mod support;

use kaas_engine::types::{Epoch, Offset, Timestamp};
use kaas_engine::{AppendError, EngineError, Isolation, LogConfig, ReadError, ReadRequest, State, TimeQuery};
use kaas_substrate::{OpenMode, Substrate};
use std::path::Path;
use support::{START, Volume, batch, decode, each_volume, producer_batch};

#[test]
fn what_is_appended_is_read_back_at_its_offsets() {
    each_volume(|volume| {
        let log = volume.open();
        let first = log.append(&["a", "b"]).unwrap();
        assert_eq!((first.base_offset, first.last_offset), (Offset(0), Offset(1)));
        let second = log.append(&["c"]).unwrap();
        assert_eq!((second.base_offset, second.last_offset), (Offset(2), Offset(2)));
        assert_eq!(log.records(), [(0, "a".into()), (1, "b".into()), (2, "c".into())]);
        let status = log.partition.status();
        assert_eq!(
            (status.log_start, status.high_watermark, status.log_end),
            (Offset(0), Offset(3), Offset(3))
        );
        assert_eq!(decode(&log.read(1).unwrap()), [(0, "a".into()), (1, "b".into()), (2, "c".into())]);
        assert_eq!(log.read(3).unwrap().bytes, 0);
        assert!(matches!(log.read(4), Err(ReadError::OffsetOutOfRange { .. })));
    });
}

#[test]
fn a_clean_close_and_a_crash_keep_everything() {
    each_volume(|volume| {
        let log = volume.open();
        log.append(&["a", "b"]).unwrap();
        log.close();
        let log = volume.open();
        assert_eq!(log.values(), ["a", "b"]);
        log.append(&["c"]).unwrap();
        log.crash();
        let log = volume.open();
        assert_eq!(log.values(), ["a", "b", "c"]);
        assert_eq!(log.append(&["d"]).unwrap().base_offset, Offset(3));
        log.crash();
        let log = volume.open();
        log.crash();
        assert_eq!(volume.open().values(), ["a", "b", "c", "d"]);
    });
}

#[test]
fn a_torn_tail_is_ignored_and_written_over() {
    let volume = Volume::local();
    let log = volume.open();
    log.append(&["a", "b"]).unwrap();
    log.append(&["c"]).unwrap();
    log.crash();
    // The last batch was half written when the power went.
    let path = volume.path().join("0/00000001-00000000000000000000.log");
    let length = std::fs::metadata(&path).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length - 3).unwrap();
    let log = volume.open();
    assert_eq!(log.values(), ["a", "b"]);
    assert_eq!(log.append(&["d"]).unwrap().base_offset, Offset(2));
    log.crash();
    assert_eq!(volume.open().values(), ["a", "b", "d"]);
}

#[test]
fn what_a_deposed_leader_still_writes_is_never_seen() {
    let volume = Volume::local();
    let old = volume.open();
    old.append(&["a"]).unwrap();
    // A successor takes over while the old leader knows nothing of it.
    let new = volume.open();
    let late = old.append(&["lost"]);
    assert!(matches!(late, Err(AppendError::NotLeader { .. })), "{late:?}");
    assert_eq!(old.partition.status().state, State::Deposed { by: Epoch::new(2).unwrap() });
    assert!(matches!(old.read(0), Err(ReadError::NotLeader { .. })));
    assert_eq!(new.values(), ["a"]);
    assert_eq!(new.append(&["b"]).unwrap().base_offset, Offset(1));
    new.crash();
    assert_eq!(volume.open().values(), ["a", "b"]);
}

#[test]
fn an_old_leaders_late_segment_does_not_hide_what_a_later_leader_served() {
    // Leader 1 wrote a record that it never acknowledged. Leader 2 has opened before that record landed; leader 3
    // has seen and served it. Then leader 2 begins a segment at that record's offset.
    let volume = Volume::local();
    let first = volume.open();
    first.append(&["a"]).unwrap();
    let log = volume.path().join("0/00000001-00000000000000000000.log");
    let before = std::fs::read(&log).unwrap();
    first.append(&["late"]).unwrap();
    first.crash();
    let with_late = std::fs::read(&log).unwrap();
    std::fs::write(&log, &before).unwrap();
    let manifests = |epoch: &str| -> Vec<(std::path::PathBuf, Vec<u8>)> {
        std::fs::read_dir(volume.path().join("0"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.to_string_lossy().contains(&format!("manifest.{epoch}")))
            .map(|path| (path.clone(), std::fs::read(path).unwrap()))
            .collect()
    };
    let firsts = manifests("00000001");
    let second = volume.open();
    assert_eq!(second.values(), ["a"]);
    std::fs::write(&log, &with_late).unwrap();
    // Leader 3 looks before leader 2's manifest is there.
    let seconds = manifests("00000002");
    seconds.iter().for_each(|(path, _)| std::fs::remove_file(path).unwrap());
    firsts.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    let third = volume.open();
    assert_eq!(third.values(), ["a", "late"]);
    seconds.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    assert!(second.append(&["intruder"]).is_err());
    assert_eq!(third.values(), ["a", "late"]);
    third.crash();
    let fourth = volume.open();
    assert_eq!(fourth.values(), ["a", "late"]);
    assert_eq!(fourth.append(&["b"]).unwrap().base_offset, Offset(2));
    fourth.crash();
    assert_eq!(volume.open().values(), ["a", "late", "b"]);
}

#[test]
fn an_epoch_that_is_taken_is_refused() {
    let volume = Volume::memory();
    let log = volume.open_at(5).unwrap();
    log.append(&["a"]).unwrap();
    for epoch in [1, 4, 5] {
        let refused = volume.open_at(epoch).map(|_| ());
        assert!(matches!(refused, Err(EngineError::Claim(_))) || epoch == 5, "{epoch}: {refused:?}");
    }
    assert_eq!(volume.open_at(6).unwrap().values(), ["a"]);
}

#[test]
fn reads_without_the_tail_come_from_the_file_and_honour_bounds() {
    each_volume(|mut volume| {
        volume.settings.tail_bytes_max = 0;
        volume.config = LogConfig { segment_bytes: 4000, index_interval_bytes: 100, ..LogConfig::default() };
        let log = volume.open();
        for n in 0..100 {
            log.append(&[&format!("value-{n:03}")]).unwrap();
        }
        assert!(decode(&log.read(60).unwrap()).len() > 10);
        let request = |max_bytes, at_least_one| ReadRequest {
            from: Offset(60),
            max_bytes,
            at_least_one,
            isolation: Isolation::ReadUncommitted,
            file_ranges: false,
        };
        let one = batch(&["value-000"]).len();
        assert_eq!(log.read_with(request(10, true)).unwrap().bytes, one);
        assert_eq!(log.read_with(request(10, false)).unwrap().bytes, 0);
        assert_eq!(log.read_with(request(3 * one - 1, true)).unwrap().bytes, 2 * one);
        for from in 0..100 {
            assert_eq!(decode(&log.read(from).unwrap())[0].0, from);
        }
    });
}

#[test]
fn file_ranges_are_whole_batches_below_the_high_watermark() {
    let mut volume = Volume::local();
    volume.settings.tail_bytes_max = 0;
    let log = volume.open();
    let value = "x".repeat(10_000);
    for _ in 0..50 {
        log.append(&[&value]).unwrap();
    }
    let fetched = log
        .read_with(ReadRequest {
            from: Offset(3),
            max_bytes: 200_000,
            at_least_one: true,
            isolation: Isolation::ReadUncommitted,
            file_ranges: true,
        })
        .unwrap();
    assert!(matches!(fetched.parts[0], kaas_engine::RecordsPart::FileRange { .. }), "{fetched:?}");
    let records = decode(&fetched);
    assert_eq!(records[0].0, 3);
    assert!(fetched.bytes <= 200_000 && records.len() > 10);
}

#[test]
fn a_retried_batch_is_recognised_also_after_a_crash() {
    each_volume(|volume| {
        let log = volume.open();
        let first = log.append_batch(&producer_batch(9, 0, 0, &["a", "b"])).unwrap();
        let second = log.append_batch(&producer_batch(9, 0, 2, &["c"])).unwrap();
        assert_eq!(
            log.append_batch(&producer_batch(9, 0, 0, &["a", "b"])).unwrap().base_offset,
            first.base_offset
        );
        assert!(matches!(
            log.append_batch(&producer_batch(9, 0, 7, &["gap"])),
            Err(AppendError::Producer(_))
        ));
        log.crash();
        let log = volume.open();
        assert_eq!(
            log.append_batch(&producer_batch(9, 0, 2, &["c"])).unwrap().base_offset,
            second.base_offset
        );
        assert_eq!(log.append_batch(&producer_batch(9, 0, 3, &["d"])).unwrap().base_offset, Offset(3));
        log.close();
        let log = volume.open();
        assert_eq!(log.append_batch(&producer_batch(9, 0, 3, &["d"])).unwrap().base_offset, Offset(3));
        assert_eq!(log.values(), ["a", "b", "c", "d"]);
    });
}

#[test]
fn offsets_by_time_are_exact() {
    each_volume(|mut volume| {
        volume.config = LogConfig { segment_bytes: 400, index_interval_bytes: 100, ..LogConfig::default() };
        let log = volume.open();
        let times = [10, 20, 15, 30, 25, 40, 40, 35];
        for time in times {
            let options = kaas_engine::batch::BatchOptions {
                base_timestamp: Timestamp(START.0 + time),
                ..Default::default()
            };
            let record = kaas_engine::batch::SimpleRecord::of_value("v");
            log.append_batch(&kaas_engine::batch::data_batch(&[record], &options).unwrap()).unwrap();
        }
        let at = |time: i64| {
            log.partition
                .offset_for_time(TimeQuery::At(Timestamp(START.0 + time)), Isolation::ReadUncommitted)
                .unwrap()
                .map(|found| (found.offset.0, found.timestamp.0 - START.0))
        };
        for target in 0..45 {
            let expected = times
                .iter()
                .enumerate()
                .find(|(_, time)| **time >= target)
                .map(|(n, time)| (n as i64, *time));
            assert_eq!(at(target), expected, "target {target}");
        }
        let largest =
            log.partition.offset_for_time(TimeQuery::MaxTimestamp, Isolation::ReadUncommitted).unwrap();
        assert_eq!(largest.map(|found| found.offset), Some(Offset(5)));
    });
}

#[test]
fn leader_epochs_end_where_the_next_one_begins() {
    let volume = Volume::memory();
    let log = volume.open_at(2).unwrap();
    log.append(&["a", "b"]).unwrap();
    log.crash();
    let log = volume.open_at(5).unwrap();
    let end =
        |epoch| log.partition.end_offset_for_epoch(Epoch::new(epoch).unwrap()).map(|(e, o)| (e.get(), o.0));
    assert_eq!(end(5), Some((5, 2)));
    log.append(&["c"]).unwrap();
    assert_eq!(end(5), Some((5, 3)));
    assert_eq!(end(2), Some((2, 2)));
    assert_eq!(end(4), Some((2, 2)));
    assert_eq!(end(1), Some((1, 0)));
    assert_eq!(end(6), None);
}

#[test]
fn a_directory_of_another_incarnation_is_refused() {
    let volume = Volume::memory();
    let engine = volume.engine();
    let mut other = support::identity();
    other.topic_id = [8; 16];
    let refused = engine.open_partition(kaas_engine::OpenPartition {
        dir: volume.dir.clone(),
        identity: other,
        epoch: Epoch::new(1).unwrap(),
        claimant: kaas_engine::leadership::Claimant {
            broker_id: 1,
            incarnation: "x".into(),
            assignment_version: 0,
        },
        config: LogConfig::default(),
    });
    assert!(matches!(refused, Err(EngineError::Foreign { .. })), "{refused:?}");
    assert_eq!(volume.open_at(1).unwrap().values(), Vec::<String>::new());
}

#[test]
fn log_append_time_replaces_the_producers_timestamps() {
    let mut volume = Volume::memory();
    volume.config.timestamps = kaas_engine::TimestampPolicy::LogAppendTime;
    let log = volume.open();
    volume.clock.advance_ms(5000);
    let appended = log.append(&["a"]).unwrap();
    assert_eq!(appended.log_append_time, Some(Timestamp(START.0 + 5000)));
    assert_eq!(decode(&log.read(0).unwrap()), [(0, "a".into())]);
    let found =
        log.partition.offset_for_time(TimeQuery::MaxTimestamp, Isolation::ReadUncommitted).unwrap().unwrap();
    assert_eq!(found.timestamp, Timestamp(START.0 + 5000));
}

#[test]
fn a_full_volume_fails_appends_and_recovers() {
    let memory = std::sync::Arc::new(kaas_substrate::Memory::with_capacity(3 << 20));
    let mut volume = Volume::on(std::sync::Arc::clone(&memory) as _, None);
    volume.config = LogConfig { segment_bytes: 200_000, ..LogConfig::default() };
    let log = volume.open();
    log.engine.reserve().replenish().unwrap();
    let value = "x".repeat(50_000);
    let mut stored = 0;
    let error = loop {
        match log.append_batch(&producer_batch(1, 0, stored, &[&value])) {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 100);
    };
    assert!(matches!(error, AppendError::NoSpace(_)), "{error:?}");
    assert!(stored > 20);
    assert_eq!(log.values().len(), stored as usize);
    assert_eq!(log.partition.status().log_end, Offset(i64::from(stored)));
    // Deleting works on a volume that is full to the last byte, and makes room.
    let left = usize::try_from(memory.space().unwrap().available_bytes.unwrap()).unwrap();
    let ballast = memory.open(Path::new("ballast"), OpenMode::CreateNew).unwrap();
    ballast.write_all_at(&[std::io::IoSlice::new(&vec![1; left])], 0).unwrap();
    assert_eq!(log.partition.delete_records(Some(Offset(15))).wait().unwrap().unwrap(), Offset(15));
    // The room is not for appends before what was put aside for cleaning up is back.
    let early = log.append_batch(&producer_batch(1, 0, stored, &[&value]));
    assert!(matches!(early, Err(AppendError::NoSpace(_))), "{early:?}");
    log.engine.reserve().replenish().unwrap();
    let next = log.append_batch(&producer_batch(1, 0, stored, &[&value])).unwrap();
    assert_eq!(next.base_offset, Offset(i64::from(stored)));
    log.crash();
    assert_eq!(volume.open().records().len(), stored as usize + 1 - 15);
}

#[test]
fn aborted_transactions_are_named_to_read_committed() {
    use kaas_engine::batch::{BatchOptions, EndMarker, Marker, Producer, SimpleRecord, data_batch};
    use kaas_engine::types::ProducerId;
    each_volume(|mut volume| {
        volume.config = LogConfig { segment_bytes: 400, ..LogConfig::default() };
        let log = volume.open();
        let transactional = |id: i64, sequence: i32, value: &str| {
            let producer = Some(Producer { id: ProducerId(id), epoch: 0, base_sequence: sequence });
            let options =
                BatchOptions { base_timestamp: START, producer, transactional: true, ..Default::default() };
            data_batch(&[SimpleRecord::of_value(value.to_string())], &options).unwrap()
        };
        log.append_batch(&transactional(1, 0, "one")).unwrap();
        log.append_batch(&transactional(2, 0, "two")).unwrap();
        log.append(&["plain"]).unwrap();
        assert_eq!(log.partition.status().last_stable, Offset(0));
        let end = |id, marker| {
            let marker = EndMarker { marker, coordinator_epoch: 0 };
            log.partition.append_marker(ProducerId(id), 0, marker).unwrap().wait().unwrap().unwrap();
        };
        end(1, Marker::Abort);
        assert_eq!(log.partition.status().last_stable, Offset(1));
        end(2, Marker::Commit);
        assert_eq!(log.partition.status().last_stable, Offset(5));
        let request = ReadRequest {
            from: Offset(0),
            max_bytes: 1 << 20,
            at_least_one: true,
            isolation: Isolation::ReadCommitted,
            file_ranges: false,
        };
        let check = |log: &support::Log| {
            let fetched = log.read_with(request).unwrap();
            let aborted: Vec<_> = fetched
                .aborted
                .iter()
                .map(|aborted| (aborted.producer_id.0, aborted.first_offset.0))
                .collect();
            assert_eq!(aborted, [(1, 0)]);
        };
        check(&log);
        log.crash();
        let log = volume.open();
        check(&log);
        log.close();
        check(&volume.open());
    });
}

#[test]
fn a_batch_that_is_damaged_is_refused_and_changes_nothing() {
    let volume = Volume::memory();
    let log = volume.open();
    let mut damaged = batch(&["a"]).to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    assert!(matches!(log.append_batch(&damaged.into()), Err(AppendError::Batch(_))));
    assert_eq!(log.partition.status().log_end, Offset(0));
    assert_eq!(log.append(&["b"]).unwrap().base_offset, Offset(0));
}

#[test]
fn threads_that_wait_commit_for_each_other() {
    each_volume(|volume| {
        let log = volume.open();
        std::thread::scope(|scope| {
            for producer in 0..8 {
                let log = &log;
                scope.spawn(move || {
                    for n in 0..50 {
                        let value = format!("{producer}-{n}");
                        log.append_batch(&producer_batch(producer, 0, n, &[&value])).unwrap();
                        if n % 10 == 0 {
                            let ticket = log
                                .partition
                                .append(&batch(&["ticket"]), kaas_engine::AppendOptions::default());
                            ticket.unwrap().wait().unwrap().unwrap();
                        }
                    }
                });
            }
        });
        let values = log.values();
        assert_eq!(values.len(), 8 * 55);
        for producer in 0..8 {
            let own: Vec<_> =
                values.iter().filter(|value| value.starts_with(&format!("{producer}-"))).collect();
            assert_eq!(
                own,
                (0..50).map(|n| format!("{producer}-{n}")).collect::<Vec<_>>().iter().collect::<Vec<_>>()
            );
        }
        log.close();
        assert_eq!(volume.open().values(), values);
    });
}
