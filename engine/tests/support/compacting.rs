//! Records with keys, and a consumer that sees what Kafka's consumers see.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kaas_engine::batch::{
    BatchHeader, BatchOptions, Compression, DecodeLimits, Marker, SimpleRecord, data_batch, decode_records,
    read_marker,
};
use kaas_engine::manifest::versioned::read_highest;
use kaas_engine::manifest::{MANIFEST, Manifest};
use kaas_engine::types::{Offset, Timestamp};
use kaas_engine::{Isolation, LogConfig, ReadRequest};

use crate::support::{Log, START, Volume, bytes_of};

/// A record as a consumer sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub offset: i64,
    pub key: Option<String>,
    pub value: Option<String>,
    pub timestamp: i64,
}

/// What stands in the log: every batch, whether it has records or not.
pub fn batches(log: &Log) -> Vec<(BatchHeader, Bytes)> {
    let mut found = Vec::new();
    walk(log, Isolation::ReadUncommitted, |header, batch, _| found.push((header, batch)));
    found
}

/// Every record that a consumer of this isolation level sees, from the log start on.
pub fn consume(log: &Log, isolation: Isolation) -> Vec<Seen> {
    let log_start = log.partition.status().log_start;
    let mut seen = Vec::new();
    walk(log, isolation, |header, batch, hidden| {
        if header.is_control() || hidden {
            return;
        }
        for record in decode_records(&batch, &DecodeLimits::default()).unwrap() {
            let record = record.unwrap();
            if record.offset < log_start {
                continue;
            }
            let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
            seen.push(Seen {
                offset: record.offset.0,
                key: record.key.map(text),
                value: record.value.map(text),
                timestamp: record.timestamp.0,
            });
        }
    });
    assert!(seen.is_sorted_by(|first, second| first.offset < second.offset));
    seen
}

/// Shows every batch, and whether a consumer leaves it out because its transaction was aborted.
fn walk(log: &Log, isolation: Isolation, mut show: impl FnMut(BatchHeader, Bytes, bool)) {
    let mut from = log.partition.status().log_start;
    loop {
        let request = ReadRequest { from, max_bytes: 700, at_least_one: true, isolation, file_ranges: false };
        let fetched = log.read_with(request).unwrap();
        let limit = match isolation {
            Isolation::ReadUncommitted => fetched.status.high_watermark,
            Isolation::ReadCommitted => fetched.status.last_stable,
        };
        if fetched.bytes == 0 {
            assert_eq!(from, limit, "a read stopped short");
            return;
        }
        let mut pending: Vec<_> =
            fetched.aborted.iter().map(|aborted| (aborted.first_offset, aborted.producer_id)).collect();
        pending.sort_unstable();
        pending.reverse();
        let mut aborted = BTreeSet::new();
        let mut bytes = bytes_of(&fetched);
        while !bytes.is_empty() {
            kaas_engine::batch::check_crc(&bytes).unwrap();
            let header = BatchHeader::parse(&bytes).unwrap();
            let batch = bytes.split_to(header.batch_bytes);
            assert!(header.last_offset() >= from && header.next_offset() <= limit);
            while pending.last().is_some_and(|(first, _)| *first <= header.last_offset()) {
                aborted.extend(pending.pop().map(|(_, id)| id));
            }
            let id = header.producer_id.filter(|_| header.is_transactional());
            let end = if header.is_control() { read_marker(&batch).unwrap() } else { None };
            if end.is_some_and(|end| end.marker == Marker::Abort) {
                aborted.remove(&id.unwrap());
            }
            show(header, batch, id.is_some_and(|id| aborted.contains(&id)));
            from = header.next_offset();
        }
    }
}

/// The newest value of each key that a consumer sees.
pub fn latest(log: &Log) -> BTreeMap<String, Option<String>> {
    let seen = consume(log, Isolation::ReadCommitted);
    seen.into_iter().map(|record| (record.key.unwrap(), record.value)).collect()
}

pub fn record(key: &str, value: Option<&str>) -> SimpleRecord {
    SimpleRecord {
        key: Some(key.to_owned().into()),
        value: value.map(|value| value.to_owned().into()),
        ..SimpleRecord::default()
    }
}

/// A batch of keys and values; `None` is a tombstone.
pub fn keyed(records: &[(&str, Option<&str>)], compression: Compression) -> Bytes {
    let records: Vec<_> = records.iter().map(|(key, value)| record(key, *value)).collect();
    let options = BatchOptions { base_timestamp: START, compression, ..BatchOptions::default() };
    data_batch(&records, &options).unwrap()
}

impl Log {
    /// Appends one record; its offset.
    pub fn put(&self, key: &str, value: &str) -> i64 {
        self.append_batch(&keyed(&[(key, Some(value))], Compression::None)).unwrap().base_offset.0
    }

    /// Appends a tombstone; its offset.
    pub fn remove(&self, key: &str) -> i64 {
        self.append_batch(&keyed(&[(key, None)], Compression::None)).unwrap().base_offset.0
    }

    /// Fills the active segment with records of one key until it rolls, so that everything before it is closed.
    pub fn roll(&self) {
        for n in 0..10 {
            self.put("filler", &format!("{n:060}"));
        }
    }
}

/// A compacted topic with small segments.
pub fn compacted(mut volume: Volume) -> Volume {
    volume.config = LogConfig {
        segment_bytes: 500,
        index_interval_bytes: 100,
        compact: true,
        delete: false,
        min_cleanable_dirty_ratio: 0.0,
        delete_retention_ms: 1000,
        ..LogConfig::default()
    };
    volume
}

/// What the highest manifest says.
pub fn manifest(volume: &Volume) -> Manifest {
    read_highest::<Manifest>(&*volume.substrate, &volume.dir, MANIFEST).unwrap().unwrap().1
}

/// The names of the `.log` files, and those that the manifest names.
pub fn logs(volume: &Volume) -> (BTreeSet<String>, BTreeSet<String>) {
    let listed = volume.substrate.list(&volume.dir).unwrap().into_iter();
    let names = listed.map(|entry| entry.name.to_str().unwrap().to_owned());
    let named = manifest(volume).segments.into_iter().map(|entry| format!("{}.log", entry.name().unwrap()));
    (names.filter(|name| name.ends_with(".log")).collect(), named.collect())
}

pub fn at(ms: i64) -> Timestamp {
    Timestamp(START.0 + ms)
}

pub fn offsets(seen: &[Seen]) -> Vec<i64> {
    seen.iter().map(|record| record.offset).collect()
}

pub fn offset(number: i64) -> Option<Offset> {
    Some(Offset(number))
}
