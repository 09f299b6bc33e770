//! Compacted topics, against the real binary: accepted, kept to, compacted in the background, the same after a crash.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod raw;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kaas_engine::batch::{BatchOptions, Compression, DecodeLimits, SimpleRecord, data_batch, decode_records};
use kaas_engine::types::Timestamp;
use kaas_protocol::ErrorCode;
use raw::{Broker, Client, batch, now, record_bytes};

/// How long the cleaner may take.
const LIMIT: Duration = Duration::from_secs(120);

fn keyed(records: &[(&str, Option<&str>)], compression: Compression) -> Bytes {
    let records: Vec<_> = records
        .iter()
        .map(|(key, value)| SimpleRecord {
            key: Some(key.to_string().into()),
            value: value.map(|value| value.to_string().into()),
            ..SimpleRecord::default()
        })
        .collect();
    let options = BatchOptions { base_timestamp: Timestamp(now()), compression, ..Default::default() };
    data_batch(&records, &options).unwrap()
}

/// Every record from the beginning: offset, key, value.
fn consume(client: &mut Client, topic: &str) -> Vec<(i64, String, Option<String>)> {
    let (mut records, mut from) = (Vec::new(), 0);
    loop {
        let data = client.fetch(topic, 0, from);
        assert_eq!(data.error_code, ErrorCode::NONE);
        let mut bytes = record_bytes(&data);
        if bytes.is_empty() {
            assert_eq!(from, data.high_watermark, "a fetch stopped short");
            return records;
        }
        while !bytes.is_empty() {
            let batch = decode_records(&bytes, &DecodeLimits::default()).unwrap();
            let header = *batch.header();
            for record in batch {
                let record = record.unwrap();
                let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
                records.push((record.offset.0, text(record.key.unwrap()), record.value.map(text)));
            }
            from = header.next_offset().0;
            bytes = bytes.split_off(header.batch_bytes);
        }
    }
}

fn latest(records: &[(i64, String, Option<String>)]) -> BTreeMap<String, Option<String>> {
    records.iter().map(|(_, key, value)| (key.clone(), value.clone())).collect()
}

const CONFIGS: &[(&str, &str)] = &[
    ("cleanup.policy", "compact"),
    ("segment.bytes", "8000"),
    ("min.cleanable.dirty.ratio", "0.01"),
    ("delete.retention.ms", "0"),
];

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < deadline, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_compacted_topic_keeps_the_newest_record_of_each_key() {
    let settings = ["--set", "log.cleaner.backoff.ms=50", "--set", "log.cleaner.threads=2"];
    let mut broker = Broker::start(&settings);
    let mut client = broker.connect();
    client.create_topic("t", 1, CONFIGS);
    client.create_topic("kept", 1, &[("segment.bytes", "8000")]);
    let codecs =
        [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];
    let mut sent = Vec::new();
    for n in 0..300 {
        let (key, value) = (format!("k{}", n % 7), format!("{n}-{}", "x".repeat(n % 90)));
        let records = [(key.as_str(), Some(value.as_str())), ("same", Some(value.as_str()))];
        let base = client.produce("t", 0, keyed(&records, codecs[n % 5])).base_offset;
        client.produce("kept", 0, keyed(&records, codecs[n % 5]));
        for (offset, (key, value)) in (base..).zip(records) {
            sent.push((offset, key.to_owned(), value.map(str::to_owned)));
        }
    }
    until("the old records are gone", || consume(&mut client, "t").len() < 150);
    let seen = consume(&mut client, "t");
    assert_eq!(latest(&seen), latest(&sent));
    assert!(seen.iter().all(|record| sent.contains(record)), "records stay where and what they were");
    assert_eq!(consume(&mut client, "kept").len(), 600, "other topics keep everything");

    // Without a key nothing is taken; nor is what is no record.
    let refused = client.produce("t", 0, batch(&[b"no key"]));
    assert_eq!(refused.error_code, ErrorCode::INVALID_RECORD);
    let words = refused.error_message.unwrap();
    assert!(words.as_str().starts_with("Compacted topic cannot accept message without key"), "{words:?}");
    assert_eq!(client.produce("kept", 0, batch(&[b"no key"])).error_code, ErrorCode::NONE);

    // The same after a crash, and compaction goes on.
    broker.process.kill().unwrap();
    broker.restart(&settings);
    let mut client = broker.connect();
    assert_eq!(latest(&consume(&mut client, "t")), latest(&sent));
    for key in 0..7 {
        client.produce("t", 0, keyed(&[(&format!("k{key}"), None)], Compression::None));
    }
    for n in 0..60 {
        client.produce(
            "t",
            0,
            keyed(&[("same", Some(&format!("{n}-{}", "y".repeat(50))))], Compression::None),
        );
    }
    until("the deleted keys are gone, their tombstones too", || {
        // Tombstones go with the round after the one that first met them.
        client.produce("t", 0, keyed(&[("same", Some(&"z".repeat(3000)))], Compression::None));
        latest(&consume(&mut client, "t")).keys().eq(["same"])
    });
}

#[test]
fn without_the_cleaner_nothing_is_compacted() {
    let settings = ["--set", "log.cleaner.backoff.ms=10", "--set", "log.cleaner.enable=false"];
    let broker = Broker::start(&settings);
    let mut client = broker.connect();
    client.create_topic("t", 1, CONFIGS);
    for n in 0..100 {
        client.produce("t", 0, keyed(&[("same", Some(&n.to_string()))], Compression::None));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(consume(&mut client, "t").len(), 100);
}

/// A damaged batch ends the round, and the log of the broker says why, what to do, and for how long the partition is left alone.
/// It is served all the same.
#[test]
fn a_round_that_fails_is_told_of() {
    let mut broker = Broker::start(&["--set", "log.cleaner.enable=false"]);
    let mut client = broker.connect();
    client.create_topic("t", 1, CONFIGS);
    let value = "x".repeat(500);
    for _ in 0..40 {
        client.produce("t", 0, keyed(&[("same", Some(&value))], Compression::None));
    }
    broker.process.kill().unwrap();
    let partition = broker.dir.path().join("topics/t/0");
    let mut logs: Vec<_> = std::fs::read_dir(&partition)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    logs.sort();
    let mut damaged = std::fs::read(&logs[0]).unwrap();
    damaged[200] ^= 1;
    std::fs::write(&logs[0], damaged).unwrap();

    broker.restart(&["--set", "log.cleaner.backoff.ms=50"]);
    let mut client = broker.connect();
    let offset = client.produce("t", 0, keyed(&[("same", Some("later"))], Compression::None)).base_offset;
    let words = "compaction failed: the partition is left uncompacted for now";
    until("the failure is told of", || broker.process.said().contains(words));
    let said = broker.process.said();
    let line = said.lines().find(|line| line.contains(words)).unwrap();
    for part in ["topics/t/0", "is damaged: at byte 0", "CRC", "kaas-engine verify", "600000"] {
        assert!(line.contains(part), "no {part:?} in {line}");
    }
    assert_eq!(said.matches(words).count(), 1, "it is not tried again at once:\n{said}");
    let data = client.fetch("t", 0, offset);
    assert_eq!(data.error_code, ErrorCode::NONE);
    assert!(!record_bytes(&data).is_empty());
}
