//! Rewritten segments: offsets are missing before, in and behind them, and their batches are of several leader epochs.
//! Everything that reads a log copes with that; and such a segment counts only where the manifest names it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/looking.rs"]
mod looking;
mod support;

use std::path::PathBuf;

use kaas_engine::batch::{BatchHeader, BatchOptions, SimpleRecord, data_batch};
use kaas_engine::dump::{DumpOptions, dump};
use kaas_engine::types::{Epoch, Offset, Timestamp};
use kaas_engine::verify::Kind;
use kaas_engine::{Isolation, TimeQuery};
use looking::{assert_clean, assert_found, change, dir, edit_json, files};
use serde_json::json;
use support::{START, Volume};

/// Three leaders with ten batches each, closed, in segments of some four batches; record `n` has offset `n` and the
/// timestamp `START + n`.
fn thirty_records() -> Volume {
    let mut volume = Volume::local();
    volume.config.segment_bytes = 320;
    for leader in 0..3 {
        let log = volume.open();
        for n in 0..10 {
            let n = leader * 10 + n;
            let options = BatchOptions { base_timestamp: Timestamp(START.0 + n), ..Default::default() };
            let record = SimpleRecord::of_value(format!("v{n}"));
            log.append_batch(&data_batch(&[record], &options).unwrap()).unwrap();
        }
        log.close();
    }
    volume
}

fn manifest(volume: &Volume) -> PathBuf {
    files(volume, "manifest.", ".json").pop().unwrap()
}

/// The batches of the partition whose base offset is kept, in one rewritten segment in place of all those below
/// offset `below`; as an epoch that is claimed already would have written it.
fn rewrite(volume: &Volume, below: i64, keep: impl Fn(i64) -> bool) -> PathBuf {
    let (mut bytes, mut epochs, mut end, mut newest) = (Vec::new(), Vec::new(), 0, (-1, 0));
    let mut crcs: Vec<u32> = Vec::new();
    let mut gone = Vec::new();
    edit_json(&manifest(volume), |manifest| {
        let segments = manifest["segments"].as_array_mut().unwrap();
        let kept = segments.split_off(
            segments.iter().position(|entry| entry["base_offset"].as_i64().unwrap() >= below).unwrap(),
        );
        let base = segments[0]["base_offset"].as_i64().unwrap();
        for entry in segments.iter() {
            let (epoch, first) = (entry["epoch"].as_u64().unwrap(), entry["base_offset"].as_i64().unwrap());
            let path = dir(volume).join(format!("{epoch:08x}-{first:020}.log"));
            let log = std::fs::read(&path).unwrap();
            gone.push(path);
            if epochs.last().is_none_or(|last: &serde_json::Value| last["epoch"] != json!(epoch)) {
                epochs.push(json!({ "epoch": epoch, "start_offset": first }));
            }
            let mut at = 0;
            while at < log.len() {
                let header = BatchHeader::parse(&log[at..]).unwrap();
                if keep(header.base_offset.0) {
                    bytes.extend_from_slice(&log[at..at + header.batch_bytes]);
                    end = header.next_offset().0;
                    crcs.push(header.crc);
                    newest = newest.max((header.max_timestamp.0, header.last_offset().0));
                }
                at += header.batch_bytes;
            }
        }
        let all = crcs.iter().fold(0, |all, crc| crc32c::crc32c_append(all, &crc.to_be_bytes()));
        let hex = |crc: Option<&u32>| format!("{:08x}", crc.unwrap());
        let entry = json!({
            "batch_crcs": { "first": hex(crcs.first()), "last": hex(crcs.last()), "all": hex(Some(&all)) },
            "epoch": 3, "base_offset": base, "generation": 1, "end_offset": end, "bytes": bytes.len(),
            "max_timestamp": newest.0, "offset_of_max_timestamp": newest.1, "indexes": null,
            "leader_epochs": epochs,
        });
        *segments = std::iter::once(entry).chain(kept).collect();
    });
    for path in gone {
        std::fs::remove_file(&path).unwrap();
    }
    let path = dir(volume).join("00000003-00000000000000000000-00000001.log");
    std::fs::write(&path, bytes).unwrap();
    for index in files(volume, "", "index") {
        let log = index.with_extension("log");
        if !log.exists() {
            std::fs::remove_file(index).unwrap();
        }
    }
    path
}

/// Why the partition cannot be opened.
fn refusal(volume: &Volume) -> String {
    match volume.try_open() {
        Ok(_) => panic!("it was opened"),
        Err(error) => error.to_string(),
    }
}

fn missing(n: i64) -> bool {
    n < 3 || (7..12).contains(&n) || n == 15 || (18..20).contains(&n)
}

#[test]
fn everything_reads_across_missing_offsets() {
    let volume = thirty_records();
    rewrite(&volume, 20, |n| !missing(n));
    assert_clean(&volume, "rewritten");
    let dumped =
        dump(&*volume.substrate, &volume.dir, &DumpOptions::default(), &mut std::io::sink()).unwrap();
    assert_eq!(dumped.findings, 0);
    // Twice: with indexes that are rebuilt, and behind a crash.
    for round in 0..2 {
        let log = volume.open();
        let expected: Vec<_> =
            (0..30 + round).filter(|n| !missing(*n)).map(|n| (n, format!("v{n}"))).collect();
        assert_eq!(log.records(), expected);
        for from in 0..30 {
            let next = (from..).find(|n| !missing(*n)).unwrap();
            let fetched = log.read(from).unwrap();
            assert_eq!(support::decode(&fetched)[0].0, next, "read at {from}");
            let query = TimeQuery::At(Timestamp(START.0 + from));
            let found = log.partition.offset_for_time(query, Isolation::ReadCommitted).unwrap().unwrap();
            assert_eq!((found.offset, found.timestamp), (Offset(next), Timestamp(START.0 + next)));
            assert_eq!(found.leader_epoch.get(), 1 + u32::try_from(next / 10).unwrap());
        }
        for (epoch, end) in [(1, 10), (2, 20), (3, 30)] {
            let epoch = Epoch::new(epoch).unwrap();
            assert_eq!(log.partition.end_offset_for_epoch(epoch), Some((epoch, Offset(end))));
        }
        assert_eq!(log.partition.epoch_of_log_start().get(), 1);
        log.append(&[&format!("v{}", 30 + round)]).unwrap();
        assert_clean(&volume, "appended to");
        log.crash();
    }
    let log = volume.open();
    // Into a gap, and then away with the whole segment.
    assert_eq!(log.partition.delete_records(Some(Offset(9))).wait().unwrap().unwrap(), Offset(9));
    assert_eq!(log.records()[0].0, 12);
    assert_eq!(log.partition.delete_records(Some(Offset(19))).wait().unwrap().unwrap(), Offset(19));
    assert_eq!(log.records()[0].0, 20);
    assert_clean(&volume, "deleted up to the gap behind a segment");
    log.crash();
    let log = volume.open();
    assert_eq!(log.partition.delete_records(Some(Offset(20))).wait().unwrap().unwrap(), Offset(20));
    assert!(files(&volume, "00000003-", "-00000001.log").is_empty());
    assert_clean(&volume, "deleted");
    log.crash();
    assert_eq!(volume.open().records()[0].0, 20);
}

#[test]
fn retention_passes_over_a_gap() {
    let mut volume = thirty_records();
    rewrite(&volume, 20, |n| !missing(n));
    volume.config.retention_bytes = 700;
    let log = volume.open();
    let maintained = log.partition.maintain().wait().unwrap().unwrap();
    assert_eq!((maintained.segments_deleted, maintained.log_start), (1, Offset(20)));
    log.partition.set_config(kaas_engine::LogConfig { retention_bytes: 0, ..volume.config.clone() });
    let maintained = log.partition.maintain().wait().unwrap().unwrap();
    assert_eq!(maintained.log_start, Offset(30));
    assert_clean(&volume, "everything deleted");
    log.crash();
    assert_eq!(volume.open().partition.status().log_start, Offset(30));
}

#[test]
fn only_rewritten_segments_may_have_gaps() {
    // Batches of a segment that was appended to are missing: a finding.
    let volume = thirty_records();
    let path = rewrite(&volume, 20, |n| !missing(n));
    edit_json(&manifest(&volume), |manifest| {
        let entry = &mut manifest["segments"][0];
        entry["generation"] = json!(0);
        entry["leader_epochs"] = json!([]);
    });
    std::fs::rename(&path, dir(&volume).join("00000003-00000000000000000000.log")).unwrap();
    assert_found(&volume, Kind::OutOfSequence);
    assert_found(&volume, Kind::ManifestImpossible);
    assert!(refusal(&volume).contains("does not follow"), "{}", refusal(&volume));

    // A batch of another epoch than the manifest says, in a rewritten one: a finding, too.
    let volume = thirty_records();
    rewrite(&volume, 20, |n| !missing(n));
    edit_json(&manifest(&volume), |manifest| {
        manifest["segments"][0]["leader_epochs"][1]["start_offset"] = json!(5);
    });
    assert_found(&volume, Kind::OutOfSequence);

    // A rewritten one whose end is not where the manifest says.
    let volume = thirty_records();
    rewrite(&volume, 20, |n| !missing(n));
    edit_json(&manifest(&volume), |manifest| manifest["segments"][0]["end_offset"] = json!(19));
    assert_found(&volume, Kind::WrongEnd);
}

#[test]
fn a_rewritten_segment_that_no_manifest_names_is_garbage() {
    let volume = Volume::local();
    let log = volume.open();
    for n in 0..10 {
        log.append(&[&format!("v{n}")]).unwrap();
    }
    log.crash();
    // What the cleaner of that epoch was writing: at the place where the log goes on, and at its very beginning.
    let tail = files(&volume, "00000001-", ".log").pop().unwrap();
    let mut other = std::fs::read(&tail).unwrap();
    other.truncate(other.len() / 2);
    for base in [0, 5, 10] {
        std::fs::write(dir(&volume).join(format!("00000001-{base:020}-00000007.log")), &other).unwrap();
    }
    let report = assert_clean(&volume, "crashed while a segment was rewritten");
    let dead = report.findings.iter().filter(|finding| finding.kind == Kind::DeadSegment).count();
    assert_eq!(dead, 3);
    let log = volume.open();
    assert_eq!(log.records().len(), 10);
    log.append(&["v10"]).unwrap();
    log.partition.maintain().wait().unwrap().unwrap();
    assert!(files(&volume, "", "-00000007.log").is_empty(), "the next leader removes it");
    log.crash();
    assert_eq!(volume.open().records().len(), 11);
}

#[test]
fn damage_in_a_rewritten_segment_is_told() {
    let volume = thirty_records();
    let path = rewrite(&volume, 20, |n| !missing(n));
    change(&path, |bytes| bytes[150] ^= 1);
    let finding = assert_found(&volume, Kind::DamagedBatch);
    assert!(finding.problem.contains("cannot be read"), "{}", finding.problem);
}
