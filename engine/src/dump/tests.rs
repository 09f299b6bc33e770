//! Dumps of files that the engine's own builders wrote, whole and damaged.

use std::io::IoSlice;
use std::sync::Arc;

use bytes::Bytes;
use kaas_substrate::Memory;
use serde_json::{Value, json};

use super::*;
use crate::batch::{
    BatchOptions, Compression, EndMarker, Marker, Producer, SimpleRecord, StampedHeader, control_batch,
    data_batch, read_marker,
};
use crate::identity::Identity;
use crate::index::SegmentIndexes;
use crate::leadership::{Claimant, birth, claim};
use crate::types::{Epoch, Offset, ProducerId, Timestamp};

const NOW: Timestamp = Timestamp(1_700_000_000_000);
const STEM: &str = "00000002-00000000000000000100";

/// Client batches as a leader would have appended them from offset 100 on: the log and what follows from it.
struct Segment {
    log: Vec<u8>,
    positions: Vec<usize>,
    indexes: SegmentIndexes,
    aborted: TxnIndex,
    producers: ProducerStates,
}

fn segment(batches: &[Bytes]) -> Segment {
    let mut segment = Segment {
        log: Vec::new(),
        positions: Vec::new(),
        indexes: SegmentIndexes::new(Offset(100), 0),
        aborted: TxnIndex::new(),
        producers: ProducerStates::new(),
    };
    let mut offset = Offset(100);
    for batch in batches {
        let stamped = StampedHeader::new(batch, offset, Epoch::new(2).unwrap()).unwrap();
        let header = stamped.header().unwrap();
        offset = header.next_offset();
        segment.indexes.observe(&header, segment.log.len() as u64).unwrap();
        if let Some(completed) = segment.producers.replay(&header, read_marker(batch).unwrap())
            && completed.aborted
        {
            segment.aborted.append(&(&completed).into()).unwrap();
        }
        segment.positions.push(segment.log.len());
        segment.log.extend_from_slice(stamped.bytes());
        segment.log.extend_from_slice(&batch[61..]);
    }
    segment.indexes.finish().unwrap();
    segment
}

fn batches() -> Vec<Bytes> {
    let producer = Producer { id: ProducerId(7), epoch: 1, base_sequence: 0 };
    let options = BatchOptions { base_timestamp: NOW, ..BatchOptions::default() };
    let transactional = BatchOptions { producer: Some(producer), transactional: true, ..options };
    let odd = SimpleRecord {
        key: Some(Bytes::from_static(&[0xff, 0])),
        headers: vec![("h".into(), None), ("h".into(), Some("x\u{1b}[2J".into()))],
        timestamp_delta: 5,
        ..SimpleRecord::default()
    };
    let end = EndMarker { marker: Marker::Abort, coordinator_epoch: 4 };
    let zipped = BatchOptions { compression: Compression::Zstd, ..options };
    vec![
        data_batch(&[SimpleRecord::of("k", "v"), odd], &options).unwrap(),
        data_batch(&[SimpleRecord::of_value("in a transaction")], &transactional).unwrap(),
        control_batch(end, ProducerId(7), 1, Timestamp(NOW.0 + 10)).unwrap(),
        #[cfg(feature = "compression")]
        data_batch(&[SimpleRecord::of_value(vec![b'z'; 3000])], &zipped).unwrap(),
        #[cfg(not(feature = "compression"))]
        data_batch(
            &[SimpleRecord::of_value(vec![b'z'; 3000])],
            &BatchOptions { compression: Compression::None, ..zipped },
        )
        .unwrap(),
    ]
}

fn write(substrate: &dyn Substrate, path: &Path, bytes: &[u8]) {
    let file = substrate.open(path, OpenMode::CreateNew).unwrap();
    file.write_all_at(&[IoSlice::new(bytes)], 0).unwrap();
}

fn volume(files: &[(&str, &[u8])]) -> Memory {
    let volume = Memory::new();
    for (name, bytes) in files {
        write(&volume, Path::new(name), bytes);
    }
    volume
}

fn run(volume: &dyn Substrate, path: &str, options: &DumpOptions) -> (Vec<Value>, Summary) {
    let mut out = Vec::new();
    let options = DumpOptions { json: true, ..*options };
    let summary = dump(volume, Path::new(path), &options, &mut out).unwrap();
    let lines = String::from_utf8(out).unwrap();
    (lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), summary)
}

fn of_kind(items: &[Value], kind: &str) -> Vec<Value> {
    items.iter().filter(|item| item["kind"] == kind).cloned().collect()
}

const RECORDS: DumpOptions = DumpOptions {
    records: true,
    json: true,
    max_batch_bytes: 1 << 20,
    max_decompressed_bytes: 1 << 20,
    max_file_bytes: 1 << 20,
};

#[test]
fn a_log_file_batch_by_batch() {
    let segment = segment(&batches());
    let name = format!("{STEM}.log");
    let volume = volume(&[(&name, &segment.log)]);
    let (items, summary) = run(&volume, &name, &DumpOptions::default());
    assert_eq!(summary, Summary { files: 1, findings: 0 });
    assert_eq!(items[0]["bytes"], segment.log.len());
    let found = of_kind(&items, "batch");
    let positions: Vec<_> = found.iter().map(|batch| batch["position"].as_u64().unwrap()).collect();
    assert_eq!(positions, segment.positions.iter().map(|at| *at as u64).collect::<Vec<_>>());
    let offsets: Vec<_> = found
        .iter()
        .map(|batch| (batch["base_offset"].as_i64().unwrap(), batch["last_offset"].as_i64().unwrap()))
        .collect();
    assert_eq!(offsets, [(100, 101), (102, 102), (103, 103), (104, 104)]);
    assert!(found.iter().all(|batch| batch["crc_ok"] == true && batch["leader_epoch"] == 2));
    assert_eq!(found[1]["producer"], json!({"id": 7, "epoch": 1, "base_sequence": 0, "last_sequence": 0}));
    assert_eq!(found[2]["control"], true);
    assert!(of_kind(&items, "record").is_empty());

    let (items, _) = run(&volume, &name, &RECORDS);
    let records = of_kind(&items, "record");
    assert_eq!(records.len(), 5);
    assert_eq!((&records[0]["key"], &records[0]["value"]), (&json!("k"), &json!("v")));
    assert_eq!(records[1]["key"], json!({"base64": "/wA="}));
    assert_eq!(records[1]["value"], Value::Null);
    assert_eq!(records[1]["headers"], json!([["h", null], ["h", "x\u{1b}[2J"]]));
    assert_eq!(records[3]["marker"], "ABORT by coordinator epoch 4");
    assert_eq!(records[4]["value"].as_str().unwrap().len(), 3000);
}

#[test]
fn text_cannot_drive_a_terminal() {
    let segment = segment(&batches());
    let name = format!("{STEM}.log");
    let volume = volume(&[(&name, &segment.log)]);
    let mut out = Vec::new();
    let options = DumpOptions { json: false, ..RECORDS };
    dump(&volume, Path::new(&name), &options, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(!text.contains('\u{1b}'), "{text}");
    assert!(text.contains("offsets 100..=101  2 records"), "{text}");
    assert!(text.contains("2023-11-14T22:13:20.000Z  key \"k\"  value \"v\""), "{text}");
    assert!(text.contains("producer 7 epoch 1 seq 0..=0  transactional"), "{text}");
    assert!(text.contains("ABORT by coordinator epoch 4"), "{text}");
}

#[test]
fn damage_is_found_and_what_follows_is_shown() {
    let mut segment = segment(&batches());
    let name = format!("{STEM}.log");
    // One byte in the records of the second batch.
    segment.log[segment.positions[1] + 70] ^= 1;
    let (items, summary) = run(&volume(&[(&name, &segment.log)]), &name, &RECORDS);
    assert_eq!(summary.findings, 1);
    let batches = of_kind(&items, "batch");
    let sound: Vec<_> = batches.iter().map(|batch| batch["crc_ok"] == true).collect();
    assert_eq!(sound, [true, false, true, true]);
    assert_eq!(of_kind(&items, "record").len(), 4);
    assert_eq!(of_kind(&items, "finding")[0]["position"], segment.positions[1]);

    // The end is missing, then the end is zeros.
    let last = segment.positions[3];
    let cut = &segment.log[..segment.log.len() - 1];
    let (items, summary) = run(&volume(&[(&name, cut)]), &name, &DumpOptions::default());
    assert_eq!((summary.findings, of_kind(&items, "batch").len()), (2, 3));
    assert_eq!(of_kind(&items, "finding")[1]["position"], last);
    let zeros = [&segment.log[..last], &[0; 100]].concat();
    let (items, _) = run(&volume(&[(&name, &zeros)]), &name, &DumpOptions::default());
    let problem = of_kind(&items, "finding")[1]["problem"].as_str().unwrap().to_owned();
    assert!(problem.contains("100 bytes"), "{problem}");
}

#[test]
fn batches_above_the_bound_are_not_held() {
    let big = data_batch(&[SimpleRecord::of_value(vec![1; 600_000])], &BatchOptions::default()).unwrap();
    let segment = segment(&[big]);
    let name = format!("{STEM}.log");
    let volume = volume(&[(&name, &segment.log)]);
    let options = DumpOptions { max_batch_bytes: 1000, ..RECORDS };
    let (items, summary) = run(&volume, &name, &options);
    assert_eq!(summary.findings, 1);
    assert!(of_kind(&items, "record").is_empty());
    // Its CRC was still read, in pieces.
    assert_eq!(of_kind(&items, "batch")[0]["crc_ok"], true);
}

#[test]
fn a_partition_directory() {
    let segment = segment(&batches());
    let substrate: Arc<dyn Substrate> = Arc::new(Memory::new());
    let dir = Path::new("orders");
    substrate.create_dir(dir).unwrap();
    birth(substrate.as_ref(), dir, Epoch::NONE).unwrap();
    let claimant = Claimant { broker_id: 3, incarnation: "run".to_owned(), assignment_version: 9 };
    claim(&substrate, dir, Epoch::new(2).unwrap(), &claimant).unwrap();
    let put = |name: &str, bytes: &[u8]| write(substrate.as_ref(), &dir.join(name), bytes);
    put(&format!("{STEM}.log"), &segment.log);
    put(&format!("{STEM}.index"), segment.indexes.offsets().as_bytes());
    put(&format!("{STEM}.timeindex"), segment.indexes.times().as_bytes());
    put(&format!("{STEM}.txnindex"), segment.aborted.as_bytes());
    let identity = Identity { topic: "t".to_owned(), partition: 0, topic_id: [7; 16] };
    put("producer-state.00000002.1.snapshot", &segment.producers.to_snapshot(&identity));
    put("manifest.00000002.1.json", b"{\"format\":1}");
    put("journal.00000002.1.jsonl", b"{\"a\":1}\n{\"a\":2}\n");

    let (items, summary) = run(substrate.as_ref(), "", &DumpOptions::default());
    assert_eq!(summary, Summary { files: 9, findings: 0 }, "{items:#?}");
    let offsets = of_kind(&items, "offset_entry");
    assert_eq!(offsets.len(), 3);
    assert_eq!(offsets[0], json!({"kind": "offset_entry", "offset": 102, "position": segment.positions[1]}));
    let times = of_kind(&items, "time_entry");
    assert_eq!(times[0], json!({"kind": "time_entry", "timestamp": NOW.0 + 5, "offset": 101}));
    let aborted = of_kind(&items, "aborted_transaction");
    assert_eq!(
        aborted,
        [json!({"kind": "aborted_transaction", "producer_id": 7, "first_offset": 102,
        "last_offset": 103, "last_stable_offset": 104})]
    );
    let fence = of_kind(&items, "fence");
    assert_eq!(fence.len(), 2);
    assert_eq!(fence[0]["state"], "skipped by the claimant of epoch 2");
    assert_eq!(fence[1]["state"], "claimed by broker 3, incarnation run, assignment 9");
    let documents: Vec<_> = of_kind(&items, "json").iter().map(|item| item["value"].clone()).collect();
    assert!(documents.contains(&json!({"a": 2})));
    assert!(documents.iter().any(|document| document["broker_id"] == 3), "the claim");
    assert!(documents.iter().any(|document| document["producer_id"] == 7), "the snapshot");
}

#[test]
fn damaged_small_files() {
    let files: [(&str, &[u8]); 5] = [
        ("manifest.00000001.1.json", b"{\"format\":"),
        ("journal.00000001.1.jsonl", b"{\"a\":1}\nnonsense\n{\"a\":"),
        ("00000001-00000000000000000000.index", &[0, 0, 0, 5, 0, 0, 0, 9, 1]),
        ("00000001-00000000000000000000.timeindex", &[0xff; 12]),
        ("producer-state.00000001.1.snapshot", b"{\"crc32c\":\"00000000\"}\n"),
    ];
    for (name, bytes) in files {
        let (items, summary) = run(&volume(&[(name, bytes)]), name, &DumpOptions::default());
        let expected = if name.starts_with("journal") { 2 } else { 1 };
        assert_eq!(summary.findings, expected, "{name}: {items:?}");
    }
    let torn = run(&volume(&[(files[1].0, files[1].1)]), files[1].0, &DumpOptions::default()).0;
    let positions: Vec<_> = of_kind(&torn, "finding").iter().map(|item| item["position"].clone()).collect();
    assert_eq!(positions, [8, 17]);
}

#[test]
fn long_lines_are_bounded_and_pieces_are_joined() {
    let long = format!("{{\"a\":\"{}\"}}\n", "x".repeat(200_000));
    let lines = [long.as_bytes(), b"{\"b\":1}\n", long.as_bytes()].concat();
    let name = "journal.00000001.1.jsonl";
    let volume = volume(&[(name, &lines)]);
    let (items, summary) = run(&volume, name, &DumpOptions::default());
    assert_eq!((of_kind(&items, "json").len(), summary.findings), (3, 0));
    let options = DumpOptions { max_file_bytes: 70_000, ..DumpOptions::default() };
    let (_, summary) = run(&volume, name, &options);
    assert_eq!(summary.findings, 1);
}

#[test]
fn what_is_not_there_is_an_error() {
    let error = dump(&Memory::new(), Path::new("nothing.log"), &RECORDS, &mut Vec::new()).unwrap_err();
    assert!(matches!(&error, DumpError::Storage(error) if error.is_not_found()), "{error}");
}

#[test]
fn every_prefix_and_flip_of_a_log_is_survived() {
    let segment = segment(&batches());
    let name = format!("{STEM}.log");
    for length in 0..segment.log.len() {
        let (items, summary) = run(&volume(&[(&name, &segment.log[..length])]), &name, &RECORDS);
        let whole = segment.positions.contains(&length);
        assert_eq!(summary.findings, u64::from(!whole), "{length}: {items:?}");
    }
    for byte in 0..segment.log.len() {
        let mut log = segment.log.clone();
        log[byte] ^= 0x80;
        let (_, summary) = run(&volume(&[(&name, &log)]), &name, &RECORDS);
        let at = segment.positions.iter().rev().find(|start| **start <= byte).map(|start| byte - start);
        // The base offset lies outside the CRC; a change that keeps the order cannot be told from compaction. So
        // does the leader epoch.
        match at {
            Some(1..=7) => {}
            Some(12..=15) => assert_eq!(summary.findings, 0, "byte {byte}"),
            _ => assert!(summary.findings > 0, "byte {byte}"),
        }
    }
    let twice = [&segment.log[..], &segment.log[..]].concat();
    let (items, summary) = run(&volume(&[(&name, &twice)]), &name, &RECORDS);
    assert_eq!(summary.findings, 1);
    assert_eq!(of_kind(&items, "finding")[0]["position"], segment.log.len());
}
