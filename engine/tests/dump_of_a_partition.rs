//! What the log writes is what a dump shows: files of a live partition's making, without a finding.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::path::Path;

use kaas_engine::batch::{BatchOptions, EndMarker, Marker, Producer, SimpleRecord, data_batch};
use kaas_engine::dump::{DumpOptions, dump};
use kaas_engine::types::ProducerId;
use serde_json::Value;
use support::{START, Volume};

fn dumped(volume: &Volume) -> (Vec<Value>, u64) {
    let options = DumpOptions { json: true, records: true, ..DumpOptions::default() };
    let mut out = Vec::new();
    let summary = dump(&*volume.substrate, Path::new(""), &options, &mut out).unwrap();
    let items = String::from_utf8(out).unwrap();
    (items.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), summary.findings)
}

fn of_kind<'a>(items: &'a [Value], kind: &str) -> Vec<&'a Value> {
    items.iter().filter(|item| item["kind"] == kind).collect()
}

#[test]
fn a_partition_that_was_led_twice() {
    let mut volume = Volume::local();
    // Small segments and an index entry for each batch, so that all files come about.
    volume.config.index_interval_bytes = 0;
    volume.config.segment_bytes = 4096;
    let id = ProducerId(77);
    let mut sequence = 0;
    for _ in 0..2 {
        let log = volume.open();
        for round in 0..20 {
            let options = BatchOptions {
                base_timestamp: START,
                producer: Some(Producer { id, epoch: 0, base_sequence: sequence }),
                transactional: true,
                ..BatchOptions::default()
            };
            let value = format!("{round} {}", "x".repeat(300));
            log.append_batch(&data_batch(&[SimpleRecord::of("key", value)], &options).unwrap()).unwrap();
            sequence += 1;
            if round % 5 == 4 {
                let marker = EndMarker { marker: Marker::Abort, coordinator_epoch: 1 };
                log.partition.append_marker(id, 0, marker).unwrap().wait().unwrap().unwrap();
            }
        }
        log.close();
    }

    let (items, findings) = dumped(&volume);
    assert_eq!(findings, 0, "{:#?}", of_kind(&items, "finding"));
    let batches = of_kind(&items, "batch");
    let offsets: Vec<_> = batches.iter().map(|batch| batch["base_offset"].as_i64().unwrap()).collect();
    // Files are listed by name: epoch, then base offset; so offsets come in order.
    assert_eq!(offsets, (0..48).collect::<Vec<_>>());
    assert!(batches.iter().all(|batch| batch["crc_ok"] == true));
    let keys = of_kind(&items, "record").iter().filter(|record| record["key"] == "key").count();
    assert_eq!(keys, 40);
    assert_eq!(of_kind(&items, "aborted_transaction").len(), 8);
    assert!(of_kind(&items, "offset_entry").len() > 20);
    assert!(!of_kind(&items, "time_entry").is_empty());
    let claimed = of_kind(&items, "fence")
        .iter()
        .filter(|fence| fence["state"].as_str().unwrap().starts_with("claimed by broker 1"))
        .count();
    assert_eq!(claimed, 2);

    // Every offset entry is the last offset of the batch that begins at its position.
    let (mut segment, mut ends, mut entries) = (String::new(), Vec::new(), Vec::new());
    for item in &items {
        let number = |field: &str| item[field].as_i64().unwrap();
        match item["kind"].as_str().unwrap() {
            "file" => {
                let path = item["path"].as_str().unwrap();
                segment = path.split_once('.').map_or(path, |(stem, _)| stem).to_owned();
            }
            "batch" => ends.push((segment.clone(), number("position"), number("last_offset"))),
            "offset_entry" => entries.push((segment.clone(), number("position"), number("offset"))),
            _ => {}
        }
    }
    for entry in &entries {
        assert!(ends.contains(entry), "{entry:?}");
    }
}
