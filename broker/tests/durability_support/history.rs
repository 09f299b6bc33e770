//! Every promise that was made, and the judge.
//!
//! A promise is an acknowledgement (this record is at this offset) or a record that a consumer was given. The judge reads
//! the log as it is at the end, and reports each promise that it does not keep.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::PATIENCE;
use super::client::{Client, Failure};
use super::record::Tag;

/// Most failures that are spelled out.
const REPORTED_MAX: usize = 12;

/// `count` records from `first` on were acknowledged at `base_offset` and after.
#[derive(Debug, Clone)]
pub struct Acknowledged {
    pub first: Tag,
    pub count: u64,
    pub base_offset: i64,
    pub sent_at: Instant,
    /// Where; tests with two brokers tell them apart.
    pub by: SocketAddr,
}

/// What producers and consumers have seen. Shared by the threads of a test.
#[derive(Debug, Clone, Default)]
pub struct History(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    acknowledged: Vec<Acknowledged>,
    consumed: BTreeMap<(i32, i64), Tag>,
    violations: Vec<String>,
}

impl History {
    pub fn acknowledge(&self, acknowledged: Acknowledged) {
        self.0.lock().unwrap().acknowledged.push(acknowledged);
    }

    /// A consumer got this record. Two consumers that see different records at one offset are a violation at once.
    pub fn consume(&self, offset: i64, partition: i32, tag: Tag) {
        let mut seen = self.0.lock().unwrap();
        if let Some(earlier) = seen.consumed.insert((partition, offset), tag)
            && earlier != tag
        {
            seen.violations.push(format!("at {partition}/{offset} was {earlier:?}, later {tag:?}"));
        }
    }

    /// Something that must not happen has happened.
    pub fn violation(&self, what: String) {
        self.0.lock().unwrap().violations.push(what);
    }

    pub fn acknowledged(&self) -> Vec<Acknowledged> {
        self.0.lock().unwrap().acknowledged.clone()
    }

    /// Number of records that were acknowledged.
    pub fn acknowledged_records(&self) -> u64 {
        self.0.lock().unwrap().acknowledged.iter().map(|a| a.count).sum()
    }

    /// Number of records that one broker acknowledged.
    pub fn acknowledged_by(&self, by: SocketAddr) -> u64 {
        self.0.lock().unwrap().acknowledged.iter().filter(|a| a.by == by).map(|a| a.count).sum()
    }

    pub fn consumed_records(&self) -> usize {
        self.0.lock().unwrap().consumed.len()
    }

    /// Compares all promises with `log`. `retrying` are the producers that never give a record up: theirs must be in
    /// the log without a gap. Returns the number of records in the log; panics with a report.
    pub fn judge(&self, log: &Log, retrying: &BTreeSet<u32>) -> usize {
        let deleted: Vec<_> = log.starts.iter().filter(|(_, start)| **start != 0).collect();
        assert!(deleted.is_empty(), "nobody deleted records: {deleted:?}");
        self.judge_what_is_left(log, retrying)
    }

    /// The same where records have been deleted: promises of what lies before the log's starts are not looked at.
    pub fn judge_what_is_left(&self, log: &Log, retrying: &BTreeSet<u32>) -> usize {
        let seen = self.0.lock().unwrap();
        let mut wrong = seen.violations.clone();
        let mut places: BTreeMap<Tag, i64> = BTreeMap::new();
        for (&partition, records) in &log.partitions {
            let mut last: BTreeMap<u32, u64> = BTreeMap::new();
            for (&offset, &tag) in records {
                if tag.partition != partition {
                    wrong.push(format!("{tag:?} stands in partition {partition}"));
                }
                if let Some(other) = places.insert(tag, offset) {
                    wrong.push(format!("{tag:?} is there twice, at {other} and at {offset}"));
                }
                let unknown = if log.starts[&partition] == 0 { 0 } else { tag.n };
                let expected = last.get(&tag.producer).map_or(unknown, |n| n + 1);
                if tag.n < expected {
                    wrong.push(format!("{tag:?} at {offset} comes after number {}", expected - 1));
                } else if tag.n > expected && retrying.contains(&tag.producer) {
                    wrong.push(format!("numbers from {expected} on are missing before {tag:?} at {offset}"));
                }
                last.insert(tag.producer, tag.n);
            }
        }
        for a in &seen.acknowledged {
            for i in 0..a.count {
                let (tag, offset) = (a.first.nth_after(i), a.base_offset + i as i64);
                if offset < log.starts[&tag.partition] {
                    continue;
                }
                let found = log.partitions.get(&tag.partition).and_then(|records| records.get(&offset));
                if found != Some(&tag) {
                    wrong.push(format!(
                        "{tag:?} was acknowledged at {offset} by {}, where {found:?} is now; it is at {:?}",
                        a.by,
                        places.get(&tag)
                    ));
                }
            }
        }
        for (&(partition, offset), tag) in &seen.consumed {
            if offset < log.starts[&partition] {
                continue;
            }
            let found = log.partitions.get(&partition).and_then(|records| records.get(&offset));
            if found != Some(tag) {
                wrong.push(format!("{tag:?} was consumed at {partition}/{offset}, where {found:?} is now"));
            }
        }
        if !wrong.is_empty() {
            let mut report = format!("{} promises are not kept:\n", wrong.len());
            for what in wrong.iter().take(REPORTED_MAX) {
                let _ = writeln!(report, "  {what}");
            }
            panic!("{report}");
        }
        places.len()
    }
}

/// What the log holds: partition, offset, record.
#[derive(Debug, Default)]
pub struct Log {
    pub partitions: BTreeMap<i32, BTreeMap<i64, Tag>>,
    /// The first offset of each partition.
    pub starts: BTreeMap<i32, i64>,
}

impl Log {
    /// Reads all partitions of `topic` from their start to their high watermark. Offsets must be without a gap.
    pub fn read(address: SocketAddr, topic: &str, partitions: i32) -> Result<Self, Failure> {
        let mut client = Client::connect(address)?;
        let mut log = Self::default();
        for partition in 0..partitions {
            let start = client.list_offset(topic, partition, -2)?;
            let end = client.list_offset(topic, partition, -1)?;
            let mut records = BTreeMap::new();
            let mut next = start;
            let deadline = Instant::now() + PATIENCE;
            while next < end {
                assert!(Instant::now() < deadline, "{topic}-{partition} cannot be read from {next} to {end}");
                for fetched in client.fetch(topic, &BTreeMap::from([(partition, next)]), 100)? {
                    Failure::refused(format!("reading {topic}-{partition} at {next}"), fetched.error)?;
                    assert!(fetched.high_watermark >= end, "the high watermark went back");
                    for (offset, value) in fetched.records {
                        assert_eq!(offset, next, "a gap in {topic}-{partition}");
                        let tag = Tag::of_value(&value)
                            .unwrap_or_else(|| panic!("a strange record at {partition}/{offset}: {value:?}"));
                        records.insert(offset, tag);
                        next = offset + 1;
                    }
                }
            }
            log.partitions.insert(partition, records);
            log.starts.insert(partition, start);
        }
        Ok(log)
    }
}
