//! `kaas-engine verify`: clean partitions are clean, and each kind of damage is found and named.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use kaas_engine::LogConfig;
use kaas_engine::batch::{BatchOptions, EndMarker, Marker, Producer, SimpleRecord, data_batch};
use kaas_engine::types::{Offset, ProducerId, Timestamp};
use kaas_engine::verify::{Expected, Finding, Kind, Options, Progress, Report, Severity, verify_partition};
use support::{Log, START, Volume, producer_batch};

fn options() -> Options {
    Options { now: START, second_look_after: Duration::ZERO, ..Options::default() }
}

fn expected() -> Expected {
    let identity = support::identity();
    Expected {
        topic: Some(identity.topic),
        topic_id: Some(identity.topic_id),
        partition: Some(identity.partition),
    }
}

fn look(volume: &Volume) -> Report {
    verify_partition(&*volume.substrate, &volume.dir, &expected(), &options(), &Progress::default())
}

fn bad(report: &Report) -> Vec<&Finding> {
    report.findings.iter().filter(|finding| finding.severity > Severity::Info).collect()
}

#[track_caller]
fn assert_clean(volume: &Volume, when: &str) -> Report {
    let report = look(volume);
    assert!(bad(&report).is_empty() && report.is_clean(), "{when}: {:#?}", bad(&report));
    report
}

/// The one finding of this kind; there may be others besides.
#[track_caller]
fn assert_found(volume: &Volume, kind: Kind) -> Finding {
    let report = look(volume);
    let found = report.findings.iter().find(|finding| finding.kind == kind);
    found.unwrap_or_else(|| panic!("{kind:?} is not among {:#?}", report.findings)).clone()
}

fn dir(volume: &Volume) -> PathBuf {
    volume.path().join(&volume.dir)
}

/// The files whose names have this beginning and end, in order.
fn files(volume: &Volume, prefix: &str, suffix: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(dir(volume))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with(prefix) && name.ends_with(suffix)
        })
        .collect();
    files.sort();
    files
}

fn change(path: &Path, edit: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    edit(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

fn edit_json(path: &Path, edit: impl FnOnce(&mut serde_json::Value)) {
    change(path, |bytes| {
        let mut value = serde_json::from_slice(bytes).unwrap();
        edit(&mut value);
        *bytes = serde_json::to_vec(&value).unwrap();
    });
}

fn small_segments() -> Volume {
    let mut volume = Volume::local();
    volume.config = LogConfig { segment_bytes: 600, index_interval_bytes: 100, ..LogConfig::default() };
    volume.settings.checkpoint_distance_bytes = 300;
    volume
}

fn transactional(id: i64, sequence: i32, value: &str) -> bytes::Bytes {
    let producer = Some(Producer { id: ProducerId(id), epoch: 0, base_sequence: sequence });
    let options = BatchOptions { base_timestamp: START, producer, transactional: true, ..Default::default() };
    data_batch(&[SimpleRecord::of_value(value.to_string())], &options).unwrap()
}

fn end_transaction(log: &Log, id: i64, marker: Marker) {
    let marker = EndMarker { marker, coordinator_epoch: 0 };
    log.partition.append_marker(ProducerId(id), 0, marker).unwrap().wait().unwrap().unwrap();
}

/// Plain, idempotent and transactional batches, with rolls, checkpoints, commits and aborts.
fn fill(log: &Log, round: i32) {
    let sequence = round * 10;
    for n in 0..10 {
        let time = i64::from(round * 100 + (n * 7) % 10);
        let options = BatchOptions { base_timestamp: Timestamp(START.0 + time), ..Default::default() };
        let record = SimpleRecord::of_value(format!("plain-{round}-{n}"));
        log.append_batch(&data_batch(&[record.clone(), record], &options).unwrap()).unwrap();
        log.append_batch(&producer_batch(7, 0, sequence + n, &["idempotent"])).unwrap();
        log.append_batch(&transactional(8, sequence + n, "first")).unwrap();
        log.append_batch(&transactional(9, sequence + n, "second")).unwrap();
        end_transaction(log, 8, if n % 2 == 0 { Marker::Abort } else { Marker::Commit });
        if n % 3 == 2 {
            end_transaction(log, 9, Marker::Abort);
        }
    }
    end_transaction(log, 9, Marker::Commit);
}

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

/// Every log with the number of its bytes that count.
fn counted(volume: &Volume) -> Vec<(PathBuf, u64)> {
    let manifest = files(volume, "manifest.", ".json").pop().unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&std::fs::read(manifest).unwrap()).unwrap();
    let mut counted = Vec::new();
    for entry in manifest["segments"].as_array().unwrap() {
        let (epoch, base) = (entry["epoch"].as_u64().unwrap(), entry["base_offset"].as_u64().unwrap());
        let path = dir(volume).join(format!("{epoch:08x}-{base:020}.log"));
        counted.push((path, entry["bytes"].as_u64().unwrap()));
    }
    let pinned = counted.len();
    for path in files(volume, "", ".log") {
        if counted.iter().take(pinned).all(|(other, _)| *other != path) {
            let bytes = std::fs::metadata(&path).unwrap().len();
            counted.push((path, bytes));
        }
    }
    counted
}

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

/// Closed, with several segments.
fn closed() -> Volume {
    let volume = small_segments();
    let log = volume.open();
    fill(&log, 0);
    log.close();
    assert!(files(&volume, "", ".log").len() > 4);
    assert_clean(&volume, "closed");
    volume
}

/// Crashed with a checkpoint and something behind it in the last segment.
fn crashed() -> Volume {
    let mut volume = small_segments();
    volume.config.segment_bytes = 1 << 20;
    volume.settings.checkpoint_distance_bytes = 2000;
    let log = volume.open();
    fill(&log, 0);
    for n in 0..3 {
        log.append(&[&format!("last-{n}")]).unwrap();
    }
    log.crash();
    assert!(!files(&volume, "recovery-checkpoint", ".json").is_empty());
    assert_clean(&volume, "crashed");
    volume
}

fn last_log(volume: &Volume) -> PathBuf {
    files(volume, "", ".log").pop().unwrap()
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
    assert_found(&volume, Kind::OutOfSequence);
}

// Manifest and checkpoint.

#[test]
fn manifests() {
    let volume = closed();
    let manifest = files(&volume, "manifest.", ".json").pop().unwrap();
    let kept = std::fs::read(&manifest).unwrap();
    type Edit = fn(&mut serde_json::Value);
    let edits: [(Kind, Edit); 10] = [
        (Kind::NewerFormat, |value| value["format"] = 99.into()),
        (Kind::ManifestDamaged, |value| value["segments"] = "none".into()),
        (Kind::ManifestImpossible, |value| value["epoch"] = 7.into()),
        (Kind::ManifestImpossible, |value| value["segments"][1]["end_offset"] = 1_000_000.into()),
        (Kind::ManifestImpossible, |value| value["segments"][1]["base_offset"] = (-4).into()),
        (Kind::ManifestImpossible, |value| value["next_offset"] = 3.into()),
        (Kind::LogStartOutOfRange, |value| value["log_start_offset"] = 1_000_000.into()),
        (Kind::CommittedRecordsMissing, |value| value["high_watermark"] = 1_000_000.into()),
        (Kind::ManifestSummary, |value| value["segments"][0]["max_timestamp"] = 3.into()),
        (Kind::DamagedBatch, |value| {
            let bytes = value["segments"][0]["bytes"].as_u64().unwrap();
            value["segments"][0]["bytes"] = (bytes - 10).into();
        }),
    ];
    for (kind, edit) in edits {
        edit_json(&manifest, edit);
        assert_found(&volume, kind);
        std::fs::write(&manifest, &kept).unwrap();
    }
    edit_json(&manifest, |value| {
        value["segments"].as_array_mut().unwrap().remove(0);
    });
    let found = assert_found(&volume, Kind::LogStartOutOfRange);
    assert!(found.problem.contains("its first segment begins at"), "{}", found.problem);
    std::fs::write(&manifest, b"{").unwrap();
    assert_found(&volume, Kind::ManifestDamaged);
    std::fs::remove_file(&manifest).unwrap();
    assert_found(&volume, Kind::ManifestMissing);
    std::fs::write(&manifest, &kept).unwrap();
    assert_clean(&volume, "put back");

    // The leader of a higher epoch was here, and its manifest is gone.
    let log = volume.open();
    log.append(&["x"]).unwrap();
    log.crash();
    for path in files(&volume, "manifest.", ".json") {
        std::fs::remove_file(path).unwrap();
    }
    std::fs::write(&manifest, &kept).unwrap();
    assert_found(&volume, Kind::SegmentWithoutManifest);
}

#[test]
fn segments_behind_a_clean_close() {
    let volume = closed();
    let end = look(&volume).records;
    let extra = dir(&volume).join(format!("00000001-{end:020}.log"));
    let another = std::fs::read(last_log(&volume)).unwrap();
    std::fs::write(&extra, b"").unwrap();
    assert_clean(&volume, "an empty one");
    assert_found(&volume, Kind::EmptySegment);
    std::fs::write(&extra, another).unwrap();
    assert_found(&volume, Kind::SegmentBehindRelease);
}

#[test]
fn checkpoints() {
    let volume = crashed();
    let checkpoint = files(&volume, "recovery-checkpoint", ".json").pop().unwrap();
    let kept = std::fs::read(&checkpoint).unwrap();
    type Edit = fn(&mut serde_json::Value);
    let plus_one = |field: &'static str| {
        move |value: &mut serde_json::Value| value[field] = (value[field].as_i64().unwrap() + 1).into()
    };
    edit_json(&checkpoint, plus_one("position"));
    assert_found(&volume, Kind::CheckpointWrong);
    std::fs::write(&checkpoint, &kept).unwrap();
    edit_json(&checkpoint, plus_one("offset"));
    assert_found(&volume, Kind::CheckpointWrong);
    std::fs::write(&checkpoint, &kept).unwrap();
    let edits: [(Kind, Edit); 3] = [
        (Kind::CheckpointDamaged, |value| value["position"] = (-1).into()),
        (Kind::NewerFormat, |value| value["format"] = 2.into()),
        (Kind::ManifestSummary, |value| value["max_timestamp"] = 0.into()),
    ];
    for (kind, edit) in edits {
        edit_json(&checkpoint, edit);
        assert_found(&volume, kind);
        std::fs::write(&checkpoint, &kept).unwrap();
    }
    // One that nothing needs is no error.
    volume.open().close();
    std::fs::write(&checkpoint, b"?").unwrap();
    let found = assert_found(&volume, Kind::CheckpointUnused);
    assert_eq!(found.severity, Severity::Warning);
}

// Derived data.

/// A producer snapshot with other contents and the right checksum.
fn reseal(path: &Path, from: &str, to: &str) {
    change(path, |bytes| {
        let text = String::from_utf8(bytes.clone()).unwrap();
        let body = &text[..text.trim_end().rfind('\n').unwrap() + 1];
        assert!(body.contains(from), "{body}");
        let body = body.replacen(from, to, 1);
        let crc = crc32c::crc32c(body.as_bytes());
        *bytes = format!("{body}{{\"crc32c\":\"{crc:08x}\"}}\n").into_bytes();
    });
}

#[test]
fn producer_snapshots() {
    for volume in [closed(), crashed()] {
        let snapshot = files(&volume, "producer-state", ".snapshot").pop().unwrap();
        let kept = std::fs::read(&snapshot).unwrap();
        for (from, to) in [
            ("\"last_sequence\":", "\"last_sequence\":1"),
            ("\"epoch\":0", "\"epoch\":1"),
            ("\"coordinator_epoch\":0", "\"coordinator_epoch\":4"),
            ("\"last_timestamp\":", "\"last_timestamp\":9"),
            ("\"producer_id\":7", "\"producer_id\":6"),
        ] {
            reseal(&snapshot, from, to);
            let found = assert_found(&volume, Kind::SnapshotDiffers);
            assert!(found.problem.contains("producer "), "{}", found.problem);
            std::fs::write(&snapshot, &kept).unwrap();
        }
        assert_clean(&volume, "put back");
        reseal(&snapshot, "\"version\":1", "\"version\":9");
        assert_found(&volume, Kind::NewerFormat);
        for at in (0..kept.len()).step_by(13) {
            std::fs::write(&snapshot, &kept).unwrap();
            change(&snapshot, |bytes| bytes[at] ^= 2);
            assert_found(&volume, Kind::SnapshotDamaged);
        }
        std::fs::remove_file(&snapshot).unwrap();
        let found = assert_found(&volume, Kind::SnapshotMissing);
        assert_eq!(found.file, snapshot.strip_prefix(volume.path()).unwrap());
    }
}

#[test]
fn every_flipped_bit_of_an_index_is_found() {
    for volume in [closed(), crashed()] {
        for extension in [".index", ".timeindex", ".txnindex"] {
            let indexes = files(&volume, "", extension);
            assert!(!indexes.is_empty(), "{extension}");
            for path in indexes.iter().take(3) {
                let kept = std::fs::read(path).unwrap();
                let counted = kept.len().min(400);
                for at in 0..counted {
                    change(path, |bytes| bytes[at] ^= 1 << (at % 8));
                    let report = look(&volume);
                    let file = path.strip_prefix(volume.path()).unwrap();
                    let found = bad(&report).iter().any(|finding| finding.file == file);
                    assert!(found, "byte {at} of {}: {:#?}", path.display(), report.findings);
                    std::fs::write(path, &kept).unwrap();
                }
                std::fs::write(path, &kept[..kept.len() - 1]).unwrap();
                assert_found(&volume, Kind::IndexDamaged);
                std::fs::remove_file(path).unwrap();
                assert_found(&volume, Kind::IndexMissing);
                std::fs::write(path, &kept).unwrap();
            }
        }
        assert_clean(&volume, "put back");
    }
}

#[test]
fn an_aborted_transaction_that_is_not_indexed() {
    let volume = closed();
    let manifest = files(&volume, "manifest.", ".json").pop().unwrap();
    edit_json(&manifest, |value| {
        for entry in value["segments"].as_array_mut().unwrap() {
            entry["indexes"]["txn_index_bytes"] = 0.into();
        }
    });
    let found = assert_found(&volume, Kind::TxnIndexWrong);
    assert!(found.severity == Severity::Error && found.problem.contains("is missing"), "{}", found.problem);
}

// Leadership and identity.

#[test]
fn fences_and_claims() {
    let volume = closed();
    volume.open().crash();
    volume.open().crash();
    assert_clean(&volume, "three epochs");
    let fence = dir(&volume).join("fence");
    let kept = std::fs::read(&fence).unwrap();
    let with = |kind: Kind, edit: &dyn Fn(&mut Vec<u8>)| {
        change(&fence, edit);
        let found = assert_found(&volume, kind);
        std::fs::write(&fence, &kept).unwrap();
        found
    };
    with(Kind::FenceGap, &|bytes| bytes[512 * 2..512 * 3].fill(0));
    with(Kind::FenceBehind, &|bytes| bytes[512 * 3..512 * 4].fill(0));
    with(Kind::FenceDamaged, &|bytes| bytes[512 * 4 + 7] = 1);
    with(Kind::FenceDamaged, &|bytes| bytes[512 * 3 + 100] = 1);
    let found = with(Kind::FenceRecordDamaged, &|bytes| bytes[512] ^= 1);
    assert_eq!((found.severity, found.position), (Severity::Warning, Some(512)));
    with(Kind::FenceShort, &|bytes| bytes.truncate(512 * 4));
    with(Kind::FenceShort, &|bytes| bytes.push(0));
    let skip = |bytes: &mut Vec<u8>| bytes.copy_within(512..1024, 512 * 5);
    with(Kind::FenceDamaged, &skip);

    let claim = dir(&volume).join("claim.00000003");
    let kept = std::fs::read(&claim).unwrap();
    edit_json(&claim, |value| value["incarnation"] = "somebody else".into());
    assert_found(&volume, Kind::ClaimDisagrees);
    std::fs::write(&claim, b"{\"format\":1").unwrap();
    assert_found(&volume, Kind::ClaimDamaged);
    std::fs::write(&claim, b"").unwrap();
    assert_clean(&volume, "an empty claim is one that was not finished");
    std::fs::remove_file(&claim).unwrap();
    assert_found(&volume, Kind::ClaimMissing);
    std::fs::write(&claim, kept).unwrap();
    std::fs::write(dir(&volume).join("claim.00000009"), b"").unwrap();
    assert_clean(&volume, "somebody has begun a claim");
    std::fs::remove_file(&fence).unwrap();
    assert_found(&volume, Kind::FenceMissing);
}

#[test]
fn identities() {
    let volume = closed();
    let file = dir(&volume).join("partition.json");
    let kept = std::fs::read(&file).unwrap();
    for (field, value) in [
        ("topic", serde_json::json!("payments")),
        ("partition", serde_json::json!(3)),
        ("topic_id", serde_json::json!("00112233445566778899aabbccddeeff")),
    ] {
        edit_json(&file, |json| json[field] = value);
        let found = assert_found(&volume, Kind::ForeignDirectory);
        assert!(found.problem.contains(&field.replace('_', " ")), "{}", found.problem);
        std::fs::write(&file, &kept).unwrap();
    }
    edit_json(&file, |json| json["format"] = 2.into());
    assert_found(&volume, Kind::NewerFormat);
    std::fs::write(&file, b"[]").unwrap();
    assert_found(&volume, Kind::IdentityDamaged);
    std::fs::remove_file(&file).unwrap();
    assert_found(&volume, Kind::IdentityMissing);
}

#[test]
fn what_lies_about() {
    let volume = closed();
    for name in ["notes.txt", "00000001-00000000000000000000.log.bak", "manifest.0000001F.1.json", ".nfs"] {
        std::fs::write(dir(&volume).join(name), b"x").unwrap();
        let found = assert_found(&volume, Kind::UnknownFile);
        assert_eq!(found.file, volume.dir.join(name));
        std::fs::remove_file(dir(&volume).join(name)).unwrap();
    }
    std::fs::create_dir(dir(&volume).join("quarantine")).unwrap();
    assert_found(&volume, Kind::UnknownFile);
    std::fs::remove_dir(dir(&volume).join("quarantine")).unwrap();

    for (name, kind) in [
        ("~tmp-manifest.00000001.9.json", Kind::Temporary),
        ("00000001-00000000000000009999.index", Kind::OrphanIndex),
        ("recovery-checkpoint.00000000.1.json", Kind::Replaced),
        ("producer-state.00000001.999.snapshot", Kind::Replaced),
        ("00000000-00000000000000000005.log", Kind::DeadSegment),
    ] {
        std::fs::write(dir(&volume).join(name), b"{}").unwrap();
        assert_found(&volume, kind);
        assert_clean(&volume, name);
        std::fs::remove_file(dir(&volume).join(name)).unwrap();
    }
}
