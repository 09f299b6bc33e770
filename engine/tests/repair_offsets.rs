//! `kaas-engine verify --repair` where damage has reached into what no checksum covers: the base offset of a batch, and its leader
//! epoch. No batch is served at another offset than it had; one that is whole is kept if anything says which it had.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/looking.rs"]
mod looking;
#[path = "support/mending.rs"]
mod mending;
mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kaas_engine::LogConfig;
use kaas_engine::batch::{BatchHeader, BatchOptions, SimpleRecord, data_batch};
use kaas_engine::verify::repair::Repaired;
use looking::{assert_found, change, files};
use mending::{mend, open, placed, served, values, without};
use support::{START, Volume};

/// How many batches [`one_segment`] appends, of one to three records each.
const BATCHES: usize = 8;

/// One segment of a few batches, closed or not.
fn one_segment(is_closed: bool) -> Volume {
    let volume = Volume::local();
    let log = volume.open();
    for batch in 0..BATCHES {
        let values: Vec<_> = (0..=batch % 3).map(|record| format!("value-{batch}-{record}")).collect();
        log.append(&values.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    }
    if is_closed {
        log.close();
    } else {
        log.crash();
    }
    volume
}

/// Its log, and where its batches begin; the last is where the last one ends.
fn batches(volume: &Volume) -> (PathBuf, Vec<usize>) {
    let log = files(volume, "", ".log").pop().unwrap();
    let bytes = std::fs::read(&log).unwrap();
    let mut places = vec![0];
    while *places.last().unwrap() < bytes.len() {
        let header = BatchHeader::parse(&bytes[*places.last().unwrap()..]).unwrap();
        places.push(places.last().unwrap() + header.batch_bytes);
    }
    (log, places)
}

fn log_of(volume: &Volume) -> PathBuf {
    batches(volume).0
}

/// Puts bytes over those of a file.
fn put(log: &Path, at: usize, with: &[u8]) {
    change(log, |bytes| bytes[at..at + with.len()].copy_from_slice(with));
}

/// Repairs, and looks that every record that is served stands where it stood.
#[track_caller]
fn mend_in_place(volume: &Volume, all: &BTreeMap<i64, String>) -> (Repaired, BTreeMap<i64, String>) {
    let repaired = mend(volume);
    let served = served(&open(volume));
    for (offset, value) in &served {
        assert_eq!(all.get(offset), Some(value), "offset {offset}: {repaired:#?}");
    }
    // (Where the open end of the log is damaged, nothing says that there was more.)
    let end = open(volume).partition.status().log_end.0;
    for (offset, value) in all.range(..end).filter(|(offset, _)| !served.contains_key(offset)) {
        let is_told = repaired.lost.iter().any(|lost| (lost.from..lost.to).contains(offset));
        assert!(is_told, "{value} is lost, and nobody says so: {repaired:#?}");
    }
    (repaired, served)
}

#[test]
fn damage_that_ends_within_the_base_offset_of_the_next_batch_takes_its_own_batch_only() {
    for is_closed in [true, false] {
        for hit in [0, 3, 5, 6] {
            for (byte, reach) in [(0, 8), (0, 3), (0x01, 8), (0x80, 1)] {
                // From its records on, or from its header on.
                for from in [61, 23, 13] {
                    let volume = one_segment(is_closed);
                    let (before, (log, places)) = (placed(&volume), batches(&volume));
                    let (at, to) = (places[hit] + from, places[hit + 1] + reach);
                    put(&log, at, &vec![byte; to - at]);
                    let expected = without(&before, &log, at as u64, places[hit + 1] as u64);
                    let (repaired, served) = mend_in_place(&volume, &values(&before));
                    // The last one has nothing behind it, and without the header in front of it nothing says where it stood.
                    let is_alone = hit + 2 == BATCHES && !is_closed;
                    let headless = from < 61;
                    if !(is_alone && headless) {
                        assert_eq!(
                            served, expected,
                            "{is_closed} {hit} {byte} {reach} {from}: {repaired:#?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_batch_between_two_damaged_ones() {
    for is_closed in [true, false] {
        for hit in 0..BATCHES - 2 {
            for reach in [0, 8] {
                let volume = one_segment(is_closed);
                let (before, (log, places)) = (placed(&volume), batches(&volume));
                // Nothing in front of it can be walked, and all of its base offset may be gone.
                put(&log, places[hit] + 8, &vec![0; places[hit + 1] + reach - places[hit] - 8]);
                put(&log, places[hit + 2] + 30, &[0xaa; 20]);
                let between =
                    before.values().find(|(_, (_, at, _))| *at as usize == places[hit + 1]).unwrap();
                let (repaired, served) = mend_in_place(&volume, &values(&before));
                // What says where it stood is the base offset of the one behind it, and its own.
                let is_kept = served.values().any(|value| *value == between.0);
                assert!(is_kept || reach == 8, "{hit}: {repaired:#?}");
            }
        }
    }
}

#[test]
fn a_batch_that_alone_says_where_it_stands_is_served_only_if_no_zeros_reach_up_to_it() {
    // So many records that the lowest byte of an offset is not all of it.
    let make = || {
        let volume = Volume::local();
        let log = volume.open();
        for batch in 0..9 {
            let values: Vec<_> = (0..100).map(|record| format!("value-{batch}-{record}")).collect();
            log.append(&values.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        }
        log.append(&["the last one"]).unwrap();
        log.crash();
        volume
    };
    // 900 is 0x384; 0x84 is behind what is left of the log, too. So many records that 900 is short for more were not there.
    for (reach, is_served) in [(7, false), (0, true), (-5, true)] {
        let volume = make();
        let (before, (log, places)) = (placed(&volume), batches(&volume));
        let from = places[1] + 8;
        let to = places[9].checked_add_signed(reach).unwrap();
        put(&log, from, &vec![0; to - from]);
        let (_, served) = mend_in_place(&volume, &values(&before));
        assert_eq!(served.contains_key(&900), is_served, "{reach}: {served:?}");
        let copies = std::fs::read_dir(volume.path().join(&volume.dir).join("quarantine")).unwrap();
        assert_eq!(copies.count(), 1);
    }
}

#[test]
fn batches_in_the_records_of_a_damaged_one_are_not_taken_for_the_logs() {
    let volume = Volume::local();
    let log = volume.open();
    log.append(&["before"]).unwrap();
    // What stands in the log at another time, as a value.
    let options = BatchOptions { base_timestamp: START, ..Default::default() };
    let mut copies = Vec::new();
    for offset in [4_i64, 5, 6] {
        let mut copy =
            data_batch(&[SimpleRecord::of_value(format!("copied-{offset}"))], &options).unwrap().to_vec();
        copy[..8].copy_from_slice(&offset.to_be_bytes());
        copy[12..16].copy_from_slice(&1_u32.to_be_bytes());
        copies.extend(copy);
    }
    log.append_batch(&data_batch(&[SimpleRecord::of_value(copies)], &options).unwrap()).unwrap();
    log.append(&["behind", "it"]).unwrap();
    log.append(&["the last"]).unwrap();
    log.crash();
    let (log, places) = batches(&volume);
    put(&log, places[1] + 63, &[0xaa]);
    let repaired = mend(&volume);
    let served: Vec<_> = served(&open(&volume)).into_iter().collect();
    let expected = [(0, "before"), (2, "behind"), (3, "it"), (4, "the last")];
    assert_eq!(served, expected.map(|(offset, value)| (offset, value.to_owned())), "{repaired:#?}");
}

/// A closed partition with a rewritten segment of several batches, some offsets of which are gone; its log.
fn compacted() -> (Volume, PathBuf) {
    let mut volume = Volume::local();
    volume.config = LogConfig {
        segment_bytes: 700,
        compact: true,
        delete: false,
        min_cleanable_dirty_ratio: 0.0,
        ..LogConfig::default()
    };
    let log = volume.open();
    for n in 0..24 {
        // One in three is superseded by the next of these.
        let key = if n % 3 == 0 { "the same".to_owned() } else { format!("key-{}", n % 17) };
        let record = SimpleRecord::of(key, format!("value-{n}"));
        let options = BatchOptions { base_timestamp: START, ..Default::default() };
        log.append_batch(&data_batch(&[record], &options).unwrap()).unwrap();
    }
    log.partition.compact_now().unwrap();
    log.close();
    let rewritten = files(&volume, "", ".log");
    let rewritten = rewritten
        .into_iter()
        .filter(|path| path.file_name().unwrap().to_str().unwrap().matches('-').count() > 1);
    let rewritten = rewritten.max_by_key(|path| std::fs::metadata(path).unwrap().len()).unwrap();
    (volume, rewritten)
}

#[test]
fn a_base_offset_in_a_rewritten_segment_is_put_back_or_given_up_and_nothing_behind_it_is_lost() {
    let count = {
        let (_volume, log) = compacted();
        let bytes = std::fs::read(log).unwrap();
        let mut at = 0;
        let mut count = 0;
        while at < bytes.len() {
            at += BatchHeader::parse(&bytes[at..]).unwrap().batch_bytes;
            count += 1;
        }
        count
    };
    assert!(count > 4, "{count}");
    // (Bytes in front of it, which are filled with the first byte; and what becomes of its base offset.)
    type Change = (usize, fn(i64) -> i64);
    let changes: [Change; 6] = [
        (0, |_| 0),
        (0, |_| -1),
        (0, |base| base + 256),
        (0, |base| base + 3),
        (40, |_| 0),
        (40, |_| 0x0101_0101_0101_0101),
    ];
    for batch in 0..count {
        for (in_front, become_of) in changes {
            let (volume, log) = compacted();
            let before = placed(&volume);
            let bytes = std::fs::read(&log).unwrap();
            let mut at = 0;
            for _ in 0..batch {
                at += BatchHeader::parse(&bytes[at..]).unwrap().batch_bytes;
            }
            let header = BatchHeader::parse(&bytes[at..]).unwrap();
            let base = become_of(header.base_offset.0).to_be_bytes();
            let from = at.saturating_sub(in_front);
            put(&log, from, &[vec![base[0]; at - from], base.to_vec()].concat());
            if std::fs::read(&log).unwrap() == bytes {
                continue;
            }
            let untouched = without(&before, &log, from as u64, (at + header.batch_bytes) as u64);
            let (repaired, served) = mend_in_place(&volume, &values(&before));
            for (offset, value) in &untouched {
                assert_eq!(served.get(offset), Some(value), "{batch} {in_front} {base:?}: {repaired:#?}");
            }
        }
    }
}

#[test]
fn an_entry_of_a_time_index_that_a_checkpoint_promises_up_to_the_end_of_the_log_is_looked_at() {
    let mut volume = Volume::local();
    volume.config.index_interval_bytes = 60;
    volume.settings.checkpoint_distance_bytes = 1;
    let log = volume.open();
    for n in 0..6 {
        log.append(&[&format!("value-{n}")]).unwrap();
    }
    log.crash();
    let index = files(&volume, "", ".timeindex").pop().unwrap();
    // Where the entry points to lies far behind the end of the log.
    change(&index, |bytes| {
        let last = bytes.len() - 4;
        bytes[last] ^= 1;
    });
    assert_found(&volume, kaas_engine::verify::Kind::IndexWrong);
    mend(&volume);
}

#[test]
fn a_batch_behind_bytes_that_are_gone_or_that_was_copied_is_not_moved() {
    // The last batch but one is cut out.
    let volume = one_segment(false);
    let (all, (log, places)) = (values(&placed(&volume)), batches(&volume));
    change(&log, |bytes| drop(bytes.drain(places[BATCHES - 2]..places[BATCHES - 1])));
    let (repaired, _) = mend_in_place(&volume, &all);
    let end = *all.last_key_value().unwrap().0;
    assert!(repaired.lost.iter().any(|lost| lost.to == end + 1), "{repaired:#?}");
    // A copy of the first one stands at the end.
    let volume = one_segment(false);
    let all = values(&placed(&volume));
    change(&log_of(&volume), |bytes| bytes.extend_from_within(places[0]..places[1]));
    let (_, served) = mend_in_place(&volume, &all);
    assert_eq!(served, all);
}

#[test]
fn a_batch_that_was_written_over_another_of_its_segment_is_not_served_in_its_place() {
    let volume = Volume::local();
    let log = volume.open();
    for n in 0..6 {
        log.append(&[&format!("value-{n}")]).unwrap();
    }
    log.close();
    let (all, (log, places)) = (values(&placed(&volume)), batches(&volume));
    change(&log, |bytes| bytes.copy_within(places[3]..places[4], places[1]));
    let (repaired, served) = mend_in_place(&volume, &all);
    assert_eq!(served.len(), all.len() - 1, "{repaired:#?}");
}

#[test]
fn a_stray_file_of_a_later_epoch_is_no_later_leaders_segment() {
    let volume = one_segment(true);
    let log = open(&volume);
    log.append(&["of the last leader, which no manifest counts"]).unwrap();
    log.crash();
    let (all, log) = (values(&placed(&volume)), files(&volume, "", ".log").remove(0));
    std::fs::write(log.with_file_name("00000009-00000000000000000000.log"), b"").unwrap();
    std::fs::copy(&log, log.with_file_name("00000006-00000000000000000003.log")).unwrap();
    let (repaired, served) = mend_in_place(&volume, &all);
    assert_eq!((served, repaired.lost), (all, Vec::new()));
}
