//! `kaas-engine verify` on a whole data directory: the block of producer ids that is handed out next lies above all that any partition knows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/data.rs"]
mod data;
#[path = "support/looking.rs"]
mod looking;
mod support;

use std::path::Path;
use std::sync::Arc;

use data::Data;
use kaas_engine::identity::read_partition;
use kaas_engine::leadership::{self, Claimant};
use kaas_engine::types::Offset;
use kaas_engine::verify::Kind;
use kaas_engine::{Engine, EngineSettings, LogConfig, ManualClock, OpenPartition, Partition};
use support::{START, producer_batch};

const IDS: &str = "cluster/producer-ids.00000001.1.json";

/// Every partition that has records.
const PARTITIONS: [&str; 6] = [
    "topics/orders/0",
    "topics/orders/1",
    "topics/orders/2",
    "topics/payments/0",
    "topics/payments/1",
    "topics/payments/2",
];

/// Has somebody lead a partition, with a segment for each batch, and close it.
fn lead(data: &Data, partition: &str, act: impl FnOnce(&Arc<Partition>)) {
    let (volume, dir) = (data.volume(), Path::new(partition));
    let engine =
        Engine::open(Arc::clone(&volume), EngineSettings::default(), Arc::new(ManualClock::new(START)))
            .unwrap();
    let opened = engine
        .open_partition(OpenPartition {
            dir: dir.to_owned(),
            identity: read_partition(&*volume, dir).unwrap(),
            epoch: leadership::highest(&*volume, dir).unwrap().next(),
            claimant: Claimant { broker_id: 1, incarnation: "next".into(), assignment_version: 0 },
            config: LogConfig { segment_bytes: 1, ..LogConfig::default() },
        })
        .unwrap();
    act(&opened);
    opened.close().wait().unwrap().unwrap();
}

fn append(partition: &Arc<Partition>, id: i64, sequence: i32) {
    let batch = producer_batch(id, 0, sequence, &["x"]);
    partition.append(&batch, Default::default()).unwrap().wait().unwrap().unwrap();
}

fn next_block(data: &Data, start: i64) {
    data.write_json(IDS, &serde_json::json!({ "next_block_start": start }));
}

#[track_caller]
fn assert_behind(data: &Data, start: i64, highest: i64) {
    next_block(data, start);
    let found = data.assert_found(Kind::ProducerIdsBehind, IDS);
    assert!(found.problem.contains(&format!("producer id {highest} is")), "{found:?}");
}

#[test]
fn ids_that_would_be_handed_out_again() {
    let data = Data::new();
    data.assert_clean();
    assert_behind(&data, 7, 7);
    assert_behind(&data, 0, 7);
    next_block(&data, 8);
    data.assert_clean();
    std::fs::remove_file(data.path(IDS)).unwrap();
    data.assert_found(Kind::ProducerIdsBehind, "cluster");
    // The file is right only for the whole data directory: less says nothing of it.
    assert!(data.verify("cluster").is_clean() && data.verify("topics").is_clean());
}

#[test]
fn an_id_that_one_partition_knows() {
    for partition in PARTITIONS {
        let data = Data::new();
        lead(&data, partition, |partition| {
            // In a segment between others.
            append(partition, 7, 1);
            append(partition, 900, 0);
            append(partition, 7, 2);
        });
        assert_behind(&data, 900, 900);
        next_block(&data, 901);
        data.assert_clean();
    }
}

#[test]
fn an_id_whose_batches_are_deleted() {
    let data = Data::new();
    lead(&data, PARTITIONS[1], |partition| {
        append(partition, 900, 0);
        append(partition, 7, 1);
        let end = partition.status().high_watermark;
        partition.delete_records(Some(Offset(end.0 - 1))).wait().unwrap().unwrap();
        partition.maintain().wait().unwrap().unwrap();
    });
    // Only the producer snapshot knows it.
    let logs = data.path(PARTITIONS[1]).read_dir().unwrap().map(|entry| entry.unwrap().path());
    let logs: Vec<_> = logs.filter(|path| path.extension().is_some_and(|end| end == "log")).collect();
    let has_it = |bytes: &[u8]| bytes.windows(8).any(|window| window == 900_i64.to_be_bytes());
    assert!(logs.iter().all(|log| !has_it(&std::fs::read(log).unwrap())), "{logs:?}");
    assert_behind(&data, 900, 900);
}
