//! Partitions to be verified, and what verify says of them.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use kaas_engine::LogConfig;
use kaas_engine::batch::{BatchOptions, EndMarker, Marker, Producer, SimpleRecord, data_batch};
use kaas_engine::types::{ProducerId, Timestamp};
use kaas_engine::verify::{Expected, Finding, Kind, Options, Progress, Report, Severity, verify_partition};

use crate::support::{self, Log, START, Volume, producer_batch};

pub fn options() -> Options {
    Options { now: START, second_look_after: Duration::ZERO, ..Options::default() }
}

pub fn expected() -> Expected {
    let identity = support::identity();
    Expected {
        topic: Some(identity.topic),
        topic_id: Some(identity.topic_id),
        partition: Some(identity.partition),
    }
}

pub fn look(volume: &Volume) -> Report {
    verify_partition(&*volume.substrate, &volume.dir, &expected(), &options(), &Progress::default())
}

pub fn bad(report: &Report) -> Vec<&Finding> {
    report.findings.iter().filter(|finding| finding.severity > Severity::Info).collect()
}

#[track_caller]
pub fn assert_clean(volume: &Volume, when: &str) -> Report {
    let report = look(volume);
    assert!(bad(&report).is_empty() && report.is_clean(), "{when}: {:#?}", bad(&report));
    report
}

/// The one finding of this kind; there may be others besides.
#[track_caller]
pub fn assert_found(volume: &Volume, kind: Kind) -> Finding {
    let report = look(volume);
    let found = report.findings.iter().find(|finding| finding.kind == kind);
    found.unwrap_or_else(|| panic!("{kind:?} is not among {:#?}", report.findings)).clone()
}

pub fn dir(volume: &Volume) -> PathBuf {
    volume.path().join(&volume.dir)
}

/// The files whose names have this beginning and end, in order.
pub fn files(volume: &Volume, prefix: &str, suffix: &str) -> Vec<PathBuf> {
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

pub fn change(path: &Path, edit: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    edit(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

pub fn edit_json(path: &Path, edit: impl FnOnce(&mut serde_json::Value)) {
    change(path, |bytes| {
        let mut value = serde_json::from_slice(bytes).unwrap();
        edit(&mut value);
        // Whoever edits a file by hand takes its checksum out.
        value.as_object_mut().unwrap().remove("crc32c");
        *bytes = serde_json::to_vec(&value).unwrap();
    });
}

pub fn small_segments() -> Volume {
    let mut volume = Volume::local();
    volume.config = LogConfig { segment_bytes: 600, index_interval_bytes: 100, ..LogConfig::default() };
    volume.settings.checkpoint_distance_bytes = 300;
    volume
}

pub fn transactional(id: i64, sequence: i32, value: &str) -> bytes::Bytes {
    let producer = Some(Producer { id: ProducerId(id), epoch: 0, base_sequence: sequence });
    let options = BatchOptions { base_timestamp: START, producer, transactional: true, ..Default::default() };
    data_batch(&[SimpleRecord::of_value(value.to_string())], &options).unwrap()
}

pub fn end_transaction(log: &Log, id: i64, marker: Marker) {
    let marker = EndMarker { marker, coordinator_epoch: 0 };
    log.partition.append_marker(ProducerId(id), 0, marker).unwrap().wait().unwrap().unwrap();
}

/// Plain, idempotent and transactional batches, with rolls, checkpoints, commits and aborts.
pub fn fill(log: &Log, round: i32) {
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

/// Every log with the number of its bytes that count.
pub fn counted(volume: &Volume) -> Vec<(PathBuf, u64)> {
    let manifest = files(volume, "manifest.", ".json").pop().unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&std::fs::read(manifest).unwrap()).unwrap();
    let mut counted = Vec::new();
    for entry in manifest["segments"].as_array().unwrap() {
        let (epoch, base) = (entry["epoch"].as_u64().unwrap(), entry["base_offset"].as_u64().unwrap());
        let generation = match entry["generation"].as_u64() {
            None | Some(0) => String::new(),
            Some(generation) => format!("-{generation:08x}"),
        };
        let path = dir(volume).join(format!("{epoch:08x}-{base:020}{generation}.log"));
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

/// Closed, with several segments.
pub fn closed() -> Volume {
    let volume = small_segments();
    let log = volume.open();
    fill(&log, 0);
    log.close();
    assert!(files(&volume, "", ".log").len() > 4);
    assert_clean(&volume, "closed");
    volume
}

/// Crashed with a checkpoint and something behind it in the last segment.
pub fn crashed() -> Volume {
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

pub fn last_log(volume: &Volume) -> PathBuf {
    files(volume, "", ".log").pop().unwrap()
}
