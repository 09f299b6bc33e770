//! `kaas-engine verify` on partitions: clean ones are clean, and damage to records is found and named.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/looking.rs"]
mod looking;
mod support;

use std::time::Duration;

use kaas_engine::LogConfig;
use kaas_engine::types::{Offset, Timestamp};
use kaas_engine::verify::{Kind, Options, Progress, Severity, verify_partition};
use looking::{
    assert_clean, assert_found, bad, change, closed, counted, crashed, dir, expected, files, fill, last_log,
    look, options, small_segments,
};
use support::{START, Volume, producer_batch};

// Clean partitions.

#[test]
fn a_partition_is_clean_at_every_station_of_its_life() {
    let mut volume = small_segments();
    assert_clean(&volume, "born");
    volume.open().crash();
    assert_clean(&volume, "opened and crashed");
    for round in 0..4 {
        let log = volume.open();
        assert_clean(&volume, "open");
        fill(&log, round);
        assert_clean(&volume, "filled and live");
        if round % 2 == 0 {
            log.crash();
            let report = assert_clean(&volume, "after a crash");
            assert!(report.segments > 5 && report.records > 40, "{report:?}");
        } else {
            log.close();
            assert_clean(&volume, "after a close");
        }
    }
    let log = volume.open();
    log.partition.delete_records(Some(Offset(37))).wait().unwrap().unwrap();
    assert_clean(&volume, "after DeleteRecords");
    log.partition.set_config(LogConfig { retention_bytes: 2000, ..volume.config.clone() });
    assert!(log.partition.maintain().wait().unwrap().unwrap().segments_deleted > 2);
    assert_clean(&volume, "after retention by size");
    log.crash();
    assert_clean(&volume, "after retention and a crash");
    volume.config.segment_ms = 10;
    let log = volume.open();
    log.append(&["x"]).unwrap();
    volume.clock.advance_ms(11);
    log.partition.maintain().wait().unwrap().unwrap();
    assert_clean(&volume, "after a roll by time");
    log.partition.delete_records(None).wait().unwrap().unwrap();
    assert_clean(&volume, "all records deleted");
    log.append(&["y"]).unwrap();
    log.crash();
    assert_clean(&volume, "a record behind the deleted ones");
    volume.open().close();
    assert_clean(&volume, "closed at last");
}

#[test]
fn takeovers_and_what_deposed_leaders_leave_are_clean() {
    let volume = small_segments();
    let old = volume.open();
    fill(&old, 0);
    let new = volume.open();
    assert!(old.append(&["lost"]).is_err());
    assert_clean(&volume, "deposed leader's bytes behind the pinned end");
    assert_found(&volume, Kind::DeadBytes);
    fill(&new, 1);
    assert_clean(&volume, "the successor has gone on");
    new.close();
    assert_clean(&volume, "closed");
    let third = volume.open_at(40).unwrap();
    third.append(&["x"]).unwrap();
    assert_clean(&volume, "skipped epochs");
}

#[test]
fn idle_producers_that_are_forgotten_are_no_difference() {
    let volume = small_segments();
    let log = volume.open();
    fill(&log, 0);
    volume.clock.advance_ms(86_400_001);
    log.partition.set_config(LogConfig { retention_ms: -1, ..volume.config.clone() });
    log.partition.maintain().wait().unwrap().unwrap();
    log.append_batch(&producer_batch(7, 0, 99, &["again"])).unwrap();
    log.close();
    let later = Options { now: Timestamp(START.0 + 86_400_001), ..options() };
    let at = |options: &Options| {
        verify_partition(&*volume.substrate, &volume.dir, &expected(), options, &Progress::default())
    };
    assert!(at(&later).is_clean(), "{:#?}", at(&later).findings);
    // A verify that believes in a longer expiration sees that they are missing.
    let longer = Options { producer_id_expiration_ms: i64::MAX, ..later };
    let kinds: Vec<_> = at(&longer).findings.iter().map(|finding| finding.kind).collect();
    assert!(kinds.contains(&Kind::SnapshotDiffers), "{kinds:?}");
}

#[test]
fn a_leader_at_work_gives_no_false_findings() {
    let mut volume = small_segments();
    volume.config.segment_bytes = 2000;
    let options = Options { second_look_after: Duration::from_millis(20), ..options() };
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let began = std::time::Instant::now();
            let mut round = 0;
            while began.elapsed() < Duration::from_secs(4) {
                let log = volume.open();
                fill(&log, round);
                if round % 3 == 1 {
                    let end = log.partition.status().high_watermark;
                    log.partition.delete_records(Some(end.plus(-50))).wait().unwrap().unwrap();
                }
                if round % 2 == 0 {
                    log.close()
                } else {
                    log.crash()
                }
                round += 1;
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(round > 5, "{round}");
        });
        let mut looks = 0;
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            let progress = Progress::default();
            let report = verify_partition(&*volume.substrate, &volume.dir, &expected(), &options, &progress);
            assert!(
                report.is_clean() || report.findings.iter().any(|finding| finding.kind == Kind::InProgress),
                "{:#?}",
                bad(&report)
            );
            // Changed in each of three looks: nothing is certain then. It must not be the rule.
            looks += u32::from(report.is_clean());
        }
        assert!(looks > 5, "{looks}");
    });
    assert_clean(&volume, "at the end");
}

// Records.

/// Flips one bit of every `stride`th byte that counts; each flip must be found where it is.
fn flip_everywhere(volume: &Volume, stride: usize) {
    assert_clean(volume, "before");
    let mut flips = 0;
    for (path, bytes) in counted(volume) {
        for at in (0..bytes as usize).step_by(stride) {
            change(&path, |bytes| bytes[at] ^= 1 << (at % 8));
            let report = look(volume);
            let file = path.strip_prefix(volume.path()).unwrap();
            let found = bad(&report).iter().any(|finding| {
                finding.file == file && finding.position.is_some_and(|position| position <= at as u64)
            });
            assert!(found, "bit {} of byte {at} of {}: {:#?}", at % 8, path.display(), report.findings);
            change(&path, |bytes| bytes[at] ^= 1 << (at % 8));
            flips += 1;
        }
    }
    assert!(flips > 100, "{flips}");
    assert_clean(volume, "afterwards");
}

#[test]
fn every_flipped_bit_that_counts_is_found_after_a_close() {
    let volume = small_segments();
    let log = volume.open();
    fill(&log, 0);
    log.close();
    flip_everywhere(&volume, 11);
}

#[test]
fn every_flipped_bit_that_counts_is_found_after_a_crash() {
    let mut volume = small_segments();
    volume.config.segment_bytes = 1500;
    let log = volume.open();
    fill(&log, 0);
    log.crash();
    flip_everywhere(&volume, 11);
}

#[test]
fn damage_in_a_pinned_segment_is_told_with_its_offsets_and_what_follows_is_still_read() {
    let volume = closed();
    let log = files(&volume, "", ".log").remove(1);
    let base: i64 = log.file_stem().unwrap().to_str().unwrap()[9..].parse().unwrap();
    let before = look(&volume).batches;
    change(&log, |bytes| bytes[70] ^= 4);
    let found = assert_found(&volume, Kind::DamagedBatch);
    assert_eq!((found.position, found.offset), (Some(0), Some(base)));
    assert!(
        found.problem.contains("CRC") && found.problem.contains(&format!("offsets {base} to")),
        "{}",
        found.problem
    );
    assert_eq!(look(&volume).batches, before - 1);
    assert_found(&volume, Kind::ProducersNotCompared);
}

#[test]
fn truncated_and_missing_segments() {
    let volume = closed();
    let log = files(&volume, "", ".log").remove(2);
    let whole = std::fs::read(&log).unwrap();
    std::fs::write(&log, &whole[..whole.len() - 1]).unwrap();
    let found = assert_found(&volume, Kind::ShortSegment);
    assert_eq!(found.position, Some(whole.len() as u64 - 1));
    std::fs::write(&log, b"").unwrap();
    assert_found(&volume, Kind::ShortSegment);
    std::fs::remove_file(&log).unwrap();
    let found = assert_found(&volume, Kind::MissingSegment);
    assert_eq!(found.file, log.strip_prefix(volume.path()).unwrap());
    std::fs::write(&log, &whole).unwrap();
    assert_clean(&volume, "put back");
    std::fs::write(&log, [whole, vec![1, 2, 3]].concat()).unwrap();
    assert_clean(&volume, "bytes behind the pinned end");
    assert_found(&volume, Kind::DeadBytes);
}

#[test]
fn torn_tails_and_lost_tails_are_told_apart() {
    let volume = crashed();
    let log = last_log(&volume);
    let whole = std::fs::read(&log).unwrap();
    for cut in [1, 10, 65] {
        std::fs::write(&log, &whole[..whole.len() - cut]).unwrap();
        let report = look(&volume);
        let kinds: Vec<_> = bad(&report).iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [Kind::TornTail], "{cut}: {:#?}", report.findings);
    }
    std::fs::write(&log, [&whole[..], &[0; 1000]].concat()).unwrap();
    let found = assert_found(&volume, Kind::TornTail);
    assert_eq!(found.position, Some(whole.len() as u64));
    assert!(found.problem.contains("zeros"), "{}", found.problem);

    // A hole with whole batches behind it.
    let mut hole = whole.clone();
    let at = whole.len() - 200;
    hole[at..at + 20].fill(0);
    std::fs::write(&log, hole).unwrap();
    let found = assert_found(&volume, Kind::DamagedTail);
    assert!(
        found.severity == Severity::Error && found.problem.contains("follows at byte"),
        "{}",
        found.problem
    );

    // Zeros where a sector was may be what a loss of power left of a write, or acknowledged records that the volume has lost:
    // only the batches behind them tell, so this is never called harmless.
    let mut lost = whole.clone();
    let at = (whole.len() - 200) / 512 * 512 - 512;
    lost[at..at + 512].fill(0);
    std::fs::write(&log, lost).unwrap();
    let found = assert_found(&volume, Kind::DamagedTail);
    assert_eq!(found.severity, Severity::Error);

    // The last batch, whole and with another leader's epoch, which its CRC does not cover.
    let mut foreign = whole.clone();
    let last = last_batch(&whole);
    foreign[last + 12..last + 16].copy_from_slice(&9i32.to_be_bytes());
    std::fs::write(&log, foreign).unwrap();
    let found = assert_found(&volume, Kind::DamagedTail);
    assert!(found.problem.contains("epoch 9"), "{}", found.problem);

    // Below the checkpoint.
    std::fs::write(&log, &whole[..1000]).unwrap();
    let found = assert_found(&volume, Kind::CommittedRecordsMissing);
    assert_eq!(found.severity, Severity::Error);
    std::fs::remove_file(&log).unwrap();
    assert_found(&volume, Kind::MissingSegment);
}

#[test]
fn an_active_segment_that_is_gone_shows_by_the_high_watermark() {
    let volume = small_segments();
    let log = volume.open();
    fill(&log, 0);
    log.crash();
    std::fs::remove_file(last_log(&volume)).unwrap();
    let kinds: Vec<_> = look(&volume).findings.iter().map(|finding| finding.kind).collect();
    let told = [Kind::CommittedRecordsMissing, Kind::MissingSegment];
    assert!(kinds.iter().any(|kind| told.contains(kind)), "{kinds:?}");
}

/// Where the last batch of a segment begins.
fn last_batch(segment: &[u8]) -> usize {
    let mut at = 0;
    loop {
        let next = at + 12 + i32::from_be_bytes(segment[at + 8..at + 12].try_into().unwrap()) as usize;
        if next >= segment.len() {
            return at;
        }
        at = next;
    }
}

/// The same partition as if it had crashed before any rolled segment was pinned.
fn unpinned() -> Volume {
    let volume = small_segments();
    let log = volume.open();
    let first = files(&volume, "manifest.", ".json").pop().unwrap();
    let kept = std::fs::read(&first).unwrap();
    fill(&log, 0);
    log.crash();
    for path in files(&volume, "manifest.", ".json") {
        std::fs::remove_file(path).unwrap();
    }
    std::fs::write(first, kept).unwrap();
    assert_clean(&volume, "unpinned");
    volume
}

#[test]
fn segments_that_do_not_follow_one_another() {
    let volume = unpinned();
    let logs = files(&volume, "", ".log");
    assert!(logs.len() > 4);
    let middle = std::fs::read(&logs[2]).unwrap();
    std::fs::remove_file(&logs[2]).unwrap();
    let found = assert_found(&volume, Kind::SegmentsDoNotFollow);
    assert_eq!(found.file, logs[3].strip_prefix(volume.path()).unwrap());
    std::fs::write(&logs[2], &middle).unwrap();
    change(&logs[2], |bytes| bytes[100] ^= 1);
    assert_found(&volume, Kind::DamagedBatch);
    std::fs::write(&logs[2], &middle).unwrap();
    // An overlapping one: begins within its predecessor.
    let base: i64 = logs[2].file_stem().unwrap().to_str().unwrap()[9..].parse().unwrap();
    let extra = dir(&volume).join(format!("00000001-{:020}.log", base + 1));
    std::fs::copy(&logs[2], &extra).unwrap();
    assert_found(&volume, Kind::SegmentsDoNotFollow);
    std::fs::remove_file(&extra).unwrap();
    std::fs::remove_file(&logs[0]).unwrap();
    assert_found(&volume, Kind::MissingSegment);
}

#[test]
fn a_batch_in_the_wrong_place() {
    let volume = closed();
    let logs = files(&volume, "", ".log");
    // The base offset and the leader epoch are outside of the CRC.
    for (at, kind) in [(7, Kind::OutOfSequence), (15, Kind::OutOfSequence)] {
        change(&logs[1], |bytes| bytes[at] ^= 1);
        let report = look(&volume);
        let kinds: Vec<_> = bad(&report).iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [kind], "{:#?}", report.findings);
        change(&logs[1], |bytes| bytes[at] ^= 1);
    }
    // Another segment's content.
    std::fs::copy(&logs[1], &logs[2]).unwrap();
    assert_found(&volume, Kind::ForeignSegment);
}
