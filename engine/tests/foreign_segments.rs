//! Segments whose files are not those that were written under their names: copied, restored or renamed wrongly. They are whole, so no
//! checksum of a batch tells; the manifest says which batches a segment begins and ends with.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/compacting.rs"]
mod compacting;
#[path = "support/looking.rs"]
mod looking;
#[path = "support/mending.rs"]
mod mending;
mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use compacting::compacted;
use kaas_engine::batch::BatchHeader;
use kaas_engine::verify::repair::{Mode, Outcome, Repaired, repair_partition};
use kaas_engine::verify::{Kind, Options, Progress};
use kaas_engine::{EngineError, LogConfig, ReadError};
use looking::{assert_found, bad, change, closed, crashed, dir, expected, files, fill, look, small_segments};
use mending::{assert_serves, claimant, contents, mend, open, placed, repair, served, values};
use support::Volume;

/// As [`closed`], of other records: the same names, offsets and lengths.
fn another() -> Volume {
    let volume = small_segments();
    // Markers of transactions that are ended in one millisecond are the same in all partitions.
    volume.clock.advance_ms(1);
    let log = volume.open();
    fill(&log, 1);
    log.close();
    volume
}

fn logs(volume: &Volume) -> Vec<PathBuf> {
    files(volume, "", ".log")
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// Where the batches of a log begin.
fn batches(bytes: &[u8]) -> Vec<usize> {
    let mut at = 0;
    let mut found = Vec::new();
    while at < bytes.len() {
        found.push(at);
        at += BatchHeader::parse(&bytes[at..]).unwrap().batch_bytes;
    }
    found
}

/// Makes the batch at a place another one of the same length, whole.
fn alter(bytes: &mut [u8], at: usize) {
    let end = at + BatchHeader::parse(&bytes[at..]).unwrap().batch_bytes;
    bytes[end - 2] ^= 1;
    let crc = crc32c::crc32c(&bytes[at + 21..end]);
    bytes[at + 17..at + 21].copy_from_slice(&crc.to_be_bytes());
}

fn lossy(volume: &Volume) -> Repaired {
    let options = Options { accept_loss: true, ..looking::options() };
    let (mode, progress) = (Mode::Repair(claimant()), Progress::default());
    repair_partition(&volume.substrate, &volume.dir, &expected(), &options, &mode, &progress).unwrap()
}

/// A segment is not the one that was written: verify says that and nothing else, nobody is served from it, and it is put
/// aside only if the loss of what was there is accepted.
#[track_caller]
fn assert_given_up(volume: &Volume, path: &Path, kept: &BTreeMap<i64, String>, given: i64) {
    let report = look(volume);
    let [found] = bad(&report)[..] else { panic!("{:#?}", bad(&report)) };
    assert_eq!((found.kind, name(&found.file)), (Kind::ForeignSegment, name(path)), "{found:#?}");
    let before = contents(volume.path());
    let refused = repair(volume).unwrap();
    assert_eq!(refused.outcome, Outcome::Refused, "{refused:#?}");
    assert!(refused.reason.unwrap().contains("--accept-loss"));
    assert_eq!(contents(volume.path()), before);
    let bytes = std::fs::read(path).unwrap();
    let repaired = lossy(volume);
    assert_eq!(repaired.outcome, Outcome::Repaired, "{repaired:#?}");
    assert_eq!(repaired.lost.len(), 1, "{repaired:#?}");
    assert!(repaired.lost[0].reason.contains(name(path)), "{repaired:#?}");
    let aside = dir(volume).join("quarantine").join(name(path));
    assert_eq!(std::fs::read(aside).unwrap(), bytes);
    assert!(bad(&look(volume)).is_empty(), "{:#?}", bad(&look(volume)));
    assert_serves(volume, kept, given);
}

/// What is left without the records of a file.
fn without(volume: &Volume, path: &Path) -> (BTreeMap<i64, String>, i64) {
    let all = placed(volume);
    let given = all.last_key_value().unwrap().0 + 1;
    let kept = all.into_iter().filter(|(_, (_, place))| place.0 != name(path));
    (kept.map(|(offset, (value, _))| (offset, value)).collect(), given)
}

#[test]
fn a_closed_segment_of_another_partition() {
    let donor = another();
    let names = |volume: &Volume| logs(volume).iter().map(|path| name(path).to_owned()).collect::<Vec<_>>();
    let count = logs(&donor).len();
    for at in [0, 2, count - 2] {
        let volume = closed();
        assert_eq!(names(&volume), names(&donor));
        let path = logs(&volume).remove(at);
        let (kept, given) = without(&volume, &path);
        std::fs::copy(&logs(&donor)[at], &path).unwrap();
        // Whoever leads serves everything else.
        let log = open(&volume);
        let first = log.partition.status().log_start.0;
        let mut seen = BTreeMap::new();
        for offset in first..log.partition.status().high_watermark.0 {
            match log.read(offset) {
                Ok(fetched) => {
                    seen.extend(support::decode(&fetched).into_iter().filter(|(at, _)| *at == offset))
                }
                Err(ReadError::Damaged { path: file, reason, .. }) => {
                    assert!(file.ends_with(name(&path)) && reason.contains("another partition"), "{reason}");
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(kept.iter().all(|(offset, value)| seen.get(offset) == Some(value)));
        assert!(seen.keys().all(|offset| kept.contains_key(offset) || !placed(&volume).contains_key(offset)));
        log.close();
        assert_given_up(&volume, &path, &kept, given);
    }
}

#[test]
fn the_last_segment_of_another_partition_keeps_the_log_from_being_opened() {
    let donor = another();
    let volume = closed();
    let path = logs(&volume).pop().unwrap();
    let (kept, given) = without(&volume, &path);
    std::fs::copy(logs(&donor).last().unwrap(), &path).unwrap();
    match volume.try_open().err() {
        Some(EngineError::Damaged { path: file, reason }) => {
            assert!(file.ends_with(name(&path)) && reason.contains("another partition"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert_given_up(&volume, &path, &kept, given);
}

#[test]
fn segments_that_differ_in_one_batch_only() {
    for pick in [0, 2, usize::MAX] {
        for at in [1, usize::MAX] {
            let volume = closed();
            let mut paths = logs(&volume);
            let path = paths.remove(at.min(paths.len() - 1));
            let (kept, given) = without(&volume, &path);
            change(&path, |bytes| {
                let places = batches(bytes);
                alter(bytes, places[pick.min(places.len() - 1)]);
            });
            if at == usize::MAX && pick != 2 {
                assert!(volume.try_open().is_err());
            }
            assert_given_up(&volume, &path, &kept, given);
        }
    }
}

#[test]
fn shorter_and_longer_ones() {
    let donor = another();
    let donor = std::fs::read(&logs(&donor)[2]).unwrap();
    let places = batches(&donor);
    let longer = [&donor[..], &donor[..places[1]]].concat();
    for content in [&donor[..places[1]], &donor[..places[1] + 30], &longer] {
        let volume = closed();
        let path = logs(&volume).remove(2);
        let (kept, given) = without(&volume, &path);
        std::fs::write(&path, content).unwrap();
        assert_given_up(&volume, &path, &kept, given);
    }
}

#[test]
fn damage_is_not_taken_for_another_segment() {
    for pick in [0, usize::MAX] {
        let volume = closed();
        let path = logs(&volume).remove(2);
        let bytes = std::fs::read(&path).unwrap();
        let places = batches(&bytes);
        let at = places[pick.min(places.len() - 1)];
        for byte in 0..70 {
            change(&path, |bytes| bytes[at + byte] ^= 4);
            let report = look(&volume);
            assert!(!bad(&report).is_empty(), "byte {byte}");
            assert!(report.findings.iter().all(|found| found.kind != Kind::ForeignSegment), "byte {byte}");
            std::fs::write(&path, &bytes).unwrap();
        }
        for length in [0, 30, places[1], bytes.len() - 1] {
            std::fs::write(&path, &bytes[..length]).unwrap();
            assert_found(&volume, Kind::ShortSegment);
            let report = look(&volume);
            assert!(report.findings.iter().all(|found| found.kind != Kind::ForeignSegment), "{length}");
        }
    }
}

#[test]
fn segments_of_one_partition_that_were_exchanged_are_put_right() {
    let rewritten = || {
        let volume = compacted(Volume::local());
        let log = volume.open();
        for n in 0..60 {
            log.put(&format!("key-{n}"), &format!("value-{n}"));
        }
        log.roll();
        log.partition.compact_now().unwrap();
        log.put("key-1", "behind");
        log.close();
        volume
    };
    for make in [closed as fn() -> Volume, rewritten] {
        let mut volume = make();
        let (all, given) = (values(&placed(&volume)), placed(&volume).last_key_value().unwrap().0 + 1);
        let paths = logs(&volume);
        let (one, other) = (&paths[0], &paths[1]);
        let kept = std::fs::read(one).unwrap();
        std::fs::copy(other, one).unwrap();
        std::fs::write(other, kept).unwrap();
        assert_eq!(bad(&look(&volume)).len(), 2, "{:#?}", bad(&look(&volume)));
        let repaired = mend(&volume);
        assert!(repaired.lost.is_empty() && repaired.unknown.is_empty(), "{repaired:#?}");
        volume.config = LogConfig::default();
        assert_serves(&volume, &all, given);
    }
}

#[test]
fn a_segment_is_found_under_another_name() {
    for other in [
        "00000001-00000000000000000004.log",
        "of-the-backup.log",
        "00000009-00000000000000000000-00000007.log",
    ] {
        for at in [0, 2, usize::MAX] {
            let volume = closed();
            let (all, given) = (values(&placed(&volume)), placed(&volume).last_key_value().unwrap().0 + 1);
            let mut paths = logs(&volume);
            let path = paths.remove(at.min(paths.len() - 1));
            std::fs::rename(&path, dir(&volume).join(other)).unwrap();
            assert_found(&volume, Kind::MissingSegment);
            let repaired = mend(&volume);
            assert!(repaired.lost.is_empty(), "{repaired:#?}");
            assert!(
                repaired.steps.iter().any(|step| step.contains(&format!("of {other} with"))),
                "{repaired:#?}"
            );
            assert_serves(&volume, &all, given);
        }
    }
}

#[test]
fn a_segment_that_may_have_the_lost_records_is_put_aside_and_told_of() {
    let volume = closed();
    let path = logs(&volume).remove(2);
    let (kept, given) = without(&volume, &path);
    // Of the very offsets that are lost, and not what was pinned.
    let dead = dir(&volume).join(name(&path).replace(".log", "-00000001.log"));
    std::fs::rename(&path, &dead).unwrap();
    change(&dead, |bytes| alter(bytes, 0));
    let repaired = mend(&volume);
    assert_eq!(repaired.lost.len(), 1, "{repaired:#?}");
    let told: Vec<_> = repaired.unknown.iter().filter(|unknown| unknown.contains(name(&dead))).collect();
    let [told] = told[..] else { panic!("{repaired:#?}") };
    let (from, to) = (repaired.lost[0].from, repaired.lost[0].to);
    assert!(told.contains(&format!("offsets {from} to {}", to - 1)), "{told}");
    assert!(dir(&volume).join("quarantine").join(name(&dead)).exists());
    assert_serves(&volume, &kept, given);
}

#[test]
fn an_active_segment_that_is_not_the_one_of_the_checkpoint() {
    for last in [false, true] {
        let volume = crashed();
        let path = logs(&volume).pop().unwrap();
        let checkpoint = files(&volume, "recovery-checkpoint", ".json").pop().unwrap();
        let checkpoint: serde_json::Value =
            serde_json::from_slice(&std::fs::read(checkpoint).unwrap()).unwrap();
        let position = checkpoint["position"].as_u64().unwrap() as usize;
        change(&path, |bytes| {
            let at = batches(bytes).into_iter().take_while(|at| *at < position).last().unwrap();
            alter(bytes, if last { at } else { 0 });
        });
        let found = assert_found(&volume, Kind::ForeignSegment);
        assert!(found.file.ends_with(name(&path)));
        match volume.try_open().err() {
            Some(EngineError::Damaged { reason, .. }) => {
                assert!(reason.contains("another partition"), "{reason}")
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(repair(&volume).unwrap().outcome, Outcome::Refused);
        let repaired = lossy(&volume);
        let offset = checkpoint["offset"].as_i64().unwrap();
        assert_eq!((repaired.lost[0].from, repaired.lost[0].to), (0, offset), "{repaired:#?}");
        let log = open(&volume);
        assert!(served(&log).is_empty());
        assert_eq!(log.append(&["next"]).unwrap().base_offset.0, offset);
    }
}
