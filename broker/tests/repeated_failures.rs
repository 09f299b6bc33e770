//! Clients that try again and again do not fill the log of a broker that cannot serve them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod raw;

use std::path::{Path, PathBuf};
use std::time::Duration;

use kaas_engine::layout::{GROUP_SLOTS, group_slot_dir, slot_of};
use kaas_protocol::messages::offset_commit::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kaas_protocol::messages::offset_fetch::OffsetFetchRequestTopic;
use kaas_protocol::{ErrorCode, OffsetCommitRequest, OffsetFetchRequest};
use raw::{Broker, Client, LONG, batch, record_bytes};

/// Between two attempts: longer than the broker remembers a failure to open a partition, or a slot.
const PARTITION_AGAIN: Duration = Duration::from_millis(300);
const SLOT_AGAIN: Duration = Duration::from_millis(1100);

/// The lines of its log that have this message.
fn lines(broker: &Broker, message: &str) -> Vec<String> {
    let said = broker.process.said();
    said.lines().filter(|line| line.contains(message)).map(ToOwned::to_owned).collect()
}

/// Waits until it has said so often, and gives the lines.
fn said(broker: &Broker, message: &str, times: usize) -> Vec<String> {
    let deadline = std::time::Instant::now() + LONG;
    loop {
        let lines = lines(broker, message);
        if lines.len() >= times {
            assert_eq!(lines.len(), times, "{lines:#?}");
            return lines;
        }
        assert!(std::time::Instant::now() < deadline, "{message}: {lines:#?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn restart(broker: &mut Broker, meanwhile: impl FnOnce(&Path)) {
    assert!(broker.process.terminate(LONG).unwrap().success());
    meanwhile(broker.dir.path());
    broker.restart(&[]);
}

fn file(dir: &Path, beginning: &str, end: &str) -> PathBuf {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = entries
        .filter(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with(beginning) && name.ends_with(end)
        })
        .collect();
    found.sort();
    found.pop().unwrap_or_else(|| panic!("no {beginning}*{end} in {}", dir.display()))
}

/// Fetches until `attempts` have failed.
fn fetch_in_vain(client: &mut Client, attempts: usize) {
    for _ in 0..attempts {
        assert_eq!(client.fetch("orders", 0, 0).error_code, ErrorCode::KAFKA_STORAGE_ERROR);
        std::thread::sleep(PARTITION_AGAIN);
    }
}

#[test]
fn a_partition_that_cannot_be_opened_is_told_once_and_again_when_the_reason_changes() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("orders", 1, &[]);
    assert_eq!(client.produce("orders", 0, batch(&[b"x"])).error_code, ErrorCode::NONE);
    let partition = broker.dir.path().join("topics/orders/0");
    let mut kept = Vec::new();
    restart(&mut broker, |_| {
        let manifest = file(&partition, "manifest.", ".json");
        kept = std::fs::read(&manifest).unwrap();
        std::fs::write(manifest, b"{").unwrap();
    });
    let mut client = broker.connect();
    fetch_in_vain(&mut client, 8);
    let first = said(&broker, "cannot open", 1).remove(0);
    assert!(first.contains("topic=orders partition=0"), "{first}");
    let hint = format!("hint=\"kaas-engine verify {}\"", partition.display());
    assert!(first.contains(&hint) && first.contains("times=1"), "{first}");

    // Another reason: the manifest is there again, and what it names is gone.
    std::fs::write(file(&partition, "manifest.", ".json"), &kept).unwrap();
    let log = file(&partition, "", ".log");
    let aside = broker.dir.path().join("aside");
    std::fs::rename(&log, &aside).unwrap();
    fetch_in_vain(&mut client, 4);
    let second = said(&broker, "cannot open", 2).remove(1);
    assert!(second.contains("it is missing") && second.contains(&hint), "{second}");
    assert!(!second.contains("times=1 "), "it has failed eight times since it was told: {second}");

    std::fs::rename(&aside, &log).unwrap();
    std::thread::sleep(PARTITION_AGAIN);
    let served = client.fetch("orders", 0, 0);
    assert_eq!((served.error_code, served.high_watermark), (ErrorCode::NONE, 1));
}

#[test]
fn damage_that_consumers_meet_is_told_once() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("orders", 1, &[("segment.bytes", "100")]);
    for value in [b"first", b"later"] {
        assert_eq!(client.produce("orders", 0, batch(&[value])).error_code, ErrorCode::NONE);
    }
    let partition = broker.dir.path().join("topics/orders/0");
    restart(&mut broker, |_| {
        let log = file(&partition, "00000001-00000000000000000000", ".log");
        let mut bytes = std::fs::read(&log).unwrap();
        // The magic of its batch: an open looks at the last segment only.
        bytes[16] = 9;
        std::fs::write(log, bytes).unwrap();
    });
    let mut client = broker.connect();
    fetch_in_vain(&mut client, 5);
    let told = said(&broker, "cannot read", 1).remove(0);
    let hint = format!("hint=\"kaas-engine verify {}\"", partition.display());
    assert!(told.contains("topic=orders partition=0") && told.contains(&hint), "{told}");
}

#[test]
fn a_wrong_index_is_told_once_and_built_anew() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.connect();
    let configs = [("segment.bytes", "20000"), ("index.interval.bytes", "0")];
    client.create_topic("orders", 1, &configs);
    for _ in 0..50 {
        assert_eq!(client.produce("orders", 0, batch(&[&[7; 1000]])).error_code, ErrorCode::NONE);
    }
    let partition = broker.dir.path().join("topics/orders/0");
    let mut index = PathBuf::new();
    restart(&mut broker, |_| {
        index = file(&partition, "00000001-00000000000000000000", ".index");
        let mut bytes = std::fs::read(&index).unwrap();
        // The lowest byte of each position.
        bytes.iter_mut().skip(7).step_by(8).for_each(|byte| *byte ^= 1);
        std::fs::write(&index, bytes).unwrap();
    });
    let mut client = broker.connect();
    for offset in (0..15).cycle().take(60) {
        let fetched = client.fetch("orders", 0, offset);
        assert_eq!(fetched.error_code, ErrorCode::NONE);
        assert!(!record_bytes(&fetched).is_empty());
    }
    said(&broker, "index files were built anew", 1);
    said(&broker, "an entry of an offset index is wrong", 1);
    let anew = file(&partition, "00000001-00000000000000000000.", ".index");
    assert!(anew.to_str().unwrap().ends_with(".00000002.2.index"), "{}", anew.display());
}

fn commit(client: &mut Client, group: &str) -> ErrorCode {
    let partition = OffsetCommitRequestPartition { committed_offset: 1, ..Default::default() };
    let topic = OffsetCommitRequestTopic {
        name: "orders".into(),
        partitions: vec![partition],
        ..OffsetCommitRequestTopic::default()
    };
    let request = OffsetCommitRequest {
        group_id: group.into(),
        generation_id_or_member_epoch: -1,
        topics: vec![topic],
        ..OffsetCommitRequest::default()
    };
    client.call(8, &request).topics[0].partitions[0].error_code
}

fn committed(client: &mut Client, group: &str) -> ErrorCode {
    let topic = OffsetFetchRequestTopic { name: "orders".into(), partition_indexes: vec![0] };
    let request = OffsetFetchRequest {
        group_id: group.into(),
        topics: Some(vec![topic]),
        ..OffsetFetchRequest::default()
    };
    client.call(7, &request).error_code
}

#[test]
fn a_slot_of_groups_that_cannot_be_loaded_is_told_once() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("orders", 1, &[]);
    assert_eq!(commit(&mut client, "readers"), ErrorCode::NONE);
    let slot = broker.dir.path().join(group_slot_dir(slot_of("readers", GROUP_SLOTS)));
    restart(&mut broker, |_| {
        let journal = file(&slot, "journal.", ".jsonl");
        let mut bytes = std::fs::read(&journal).unwrap();
        bytes[2] ^= 1;
        std::fs::write(journal, bytes).unwrap();
    });
    let mut client = broker.connect();
    for _ in 0..4 {
        // What Kafka makes of a coordinator that is not available, here.
        assert_eq!(committed(&mut client, "readers"), ErrorCode::NOT_COORDINATOR);
        std::thread::sleep(SLOT_AGAIN);
    }
    let told = said(&broker, "cannot load the groups of a slot", 1).remove(0);
    let hint = format!("hint=\"kaas-engine verify {}\"", slot.display());
    assert!(told.contains(&hint), "{told}");
}
