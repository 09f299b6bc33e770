//! The producer snapshot: JSON lines that a person can read, with a checksum at the end.
//!
//! ```text
//! {"format":"kaas producer state","version":1,"identity":{"topic":"orders","partition":0,"topic_id":"..."},"end_offset":1200,"producers":1}
//! {"producer_id":7,"epoch":0,"coordinator_epoch":-1,"last_timestamp":1700000000000,"batches":[...]}
//! {"crc32c":"9b1c03aa"}
//! ```
//!
//! The checksum covers every byte in front of its line. Unlike Kafka's, the snapshot keeps all five batches of a
//! producer, so a retry is recognised across a restart whichever batch it repeats. Fields that are not known are
//! ignored, a higher version is refused. Producers are sorted by id, so equal states give equal bytes.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::{BatchMetadata, ProducerEntry, ProducerStates, Ring};
use crate::identity::Identity;
use crate::types::{Offset, ProducerId, Timestamp};

/// The version that is written, and the highest that is read.
pub const SNAPSHOT_VERSION: u32 = 1;
const FORMAT: &str = "kaas producer state";

/// A snapshot that cannot be used. It is derived from the log, so recovery falls back to an older one, or to none.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("the snapshot has no checksum line at its end")]
    NoChecksum,
    #[error("the snapshot's checksum is {stored}, its contents give {computed}")]
    Checksum { stored: String, computed: String },
    #[error("line {line} of the snapshot: {source}")]
    Line { line: usize, source: serde_json::Error },
    #[error("the snapshot is no producer snapshot but {found:?}")]
    Format { found: String },
    #[error("the snapshot has format version {found}, this build reads up to {supported}")]
    NewerFormat { found: u32, supported: u32 },
    #[error("the snapshot lists {found} producers, its first line says {declared}")]
    Count { found: usize, declared: usize },
    #[error("producer {producer_id} of the snapshot is impossible: {problem}")]
    Producer { producer_id: i64, problem: &'static str },
}

#[derive(Serialize, Deserialize)]
struct HeadLine {
    format: String,
    version: u32,
    identity: Identity,
    end_offset: i64,
    producers: usize,
}

#[derive(Serialize, Deserialize)]
struct ProducerLine {
    producer_id: i64,
    epoch: i16,
    coordinator_epoch: i32,
    last_timestamp: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    transaction_first_offset: Option<i64>,
    batches: Vec<BatchLine>,
}

#[derive(Serialize, Deserialize)]
struct BatchLine {
    last_sequence: i32,
    last_offset: i64,
    offset_delta: i32,
    timestamp: i64,
}

#[derive(Serialize, Deserialize)]
struct TailLine {
    crc32c: String,
}

impl From<&BatchMetadata> for BatchLine {
    fn from(batch: &BatchMetadata) -> Self {
        Self {
            last_sequence: batch.last_sequence,
            last_offset: batch.last_offset.0,
            offset_delta: batch.offset_delta,
            timestamp: batch.timestamp.0,
        }
    }
}

impl From<&BatchLine> for BatchMetadata {
    fn from(line: &BatchLine) -> Self {
        Self {
            last_sequence: line.last_sequence,
            last_offset: Offset(line.last_offset),
            offset_delta: line.offset_delta,
            timestamp: Timestamp(line.timestamp),
        }
    }
}

impl ProducerStates {
    /// The state as a snapshot's bytes, of the partition `identity`, good for a log that has everything up to [`ProducerStates::end_offset`].
    ///
    /// What is only staged is part of it: the caller writes it once the high watermark has reached that offset.
    pub fn to_snapshot(&self, identity: &Identity) -> Vec<u8> {
        let mut sorted: Vec<_> = self.producers.iter().collect();
        sorted.sort_unstable_by_key(|(id, _)| id.0);
        let mut text = String::new();
        push_line(
            &mut text,
            &HeadLine {
                format: FORMAT.to_owned(),
                version: SNAPSHOT_VERSION,
                identity: identity.clone(),
                end_offset: self.end_offset.0,
                producers: sorted.len(),
            },
        );
        for (id, entry) in sorted {
            push_line(
                &mut text,
                &ProducerLine {
                    producer_id: id.0,
                    epoch: entry.epoch,
                    coordinator_epoch: entry.coordinator_epoch,
                    last_timestamp: entry.last_timestamp.0,
                    transaction_first_offset: entry.transaction_first_offset.map(|offset| offset.0),
                    batches: entry.batches.batches().iter().map(BatchLine::from).collect(),
                },
            );
        }
        let crc32c = checksum(text.as_bytes());
        push_line(&mut text, &TailLine { crc32c });
        text.into_bytes()
    }

    /// Reads a snapshot: whose it is, and what it says. Transactions that had ended by then are taken to be below the
    /// high watermark.
    ///
    /// # Errors
    ///
    /// Any damage, or a newer format; nothing is taken from such a snapshot.
    pub fn from_snapshot(bytes: &[u8]) -> Result<(Identity, Self), SnapshotError> {
        let (body, tail) = split_tail(bytes).ok_or(SnapshotError::NoChecksum)?;
        let tail: TailLine = serde_json::from_slice(tail).map_err(|_| SnapshotError::NoChecksum)?;
        let computed = checksum(body);
        if tail.crc32c != computed {
            return Err(SnapshotError::Checksum { stored: tail.crc32c, computed });
        }
        let mut lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).enumerate();
        let (_, first) = lines.next().unwrap_or((0, &[]));
        let head: HeadLine =
            serde_json::from_slice(first).map_err(|source| SnapshotError::Line { line: 1, source })?;
        if head.format != FORMAT {
            return Err(SnapshotError::Format { found: head.format });
        }
        if head.version > SNAPSHOT_VERSION {
            let supported = SNAPSHOT_VERSION;
            return Err(SnapshotError::NewerFormat { found: head.version, supported });
        }
        let mut states = Self { end_offset: Offset(head.end_offset), ..Self::default() };
        for (index, line) in lines {
            let line: ProducerLine = serde_json::from_slice(line)
                .map_err(|source| SnapshotError::Line { line: index + 1, source })?;
            restore(&mut states.producers, &mut states.open, &line)?;
        }
        if states.producers.len() != head.producers {
            return Err(SnapshotError::Count { found: states.producers.len(), declared: head.producers });
        }
        Ok((head.identity, states))
    }
}

fn restore(
    producers: &mut HashMap<ProducerId, ProducerEntry>,
    open: &mut BTreeMap<Offset, ProducerId>,
    line: &ProducerLine,
) -> Result<(), SnapshotError> {
    let wrong = |problem| SnapshotError::Producer { producer_id: line.producer_id, problem };
    let id = ProducerId(line.producer_id);
    let mut batches = Ring::EMPTY;
    for batch in &line.batches {
        if batch.offset_delta < 0 || i64::from(batch.offset_delta) > batch.last_offset {
            return Err(wrong("a batch with an impossible offset range"));
        }
        if batches.push(batch.into()).is_some() {
            return Err(wrong("more than five batches"));
        }
    }
    let entry = ProducerEntry {
        epoch: line.epoch,
        coordinator_epoch: line.coordinator_epoch,
        last_timestamp: Timestamp(line.last_timestamp),
        transaction_first_offset: line.transaction_first_offset.map(Offset),
        batches,
    };
    if let Some(first_offset) = entry.transaction_first_offset
        && open.insert(first_offset, id).is_some()
    {
        return Err(wrong("two transactions that begin at one offset"));
    }
    if producers.insert(id, entry).is_some() {
        return Err(wrong("listed twice"));
    }
    Ok(())
}

/// What is in front of the last line, and the last line without its end.
fn split_tail(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let bytes = bytes.strip_suffix(b"\n")?;
    let start = bytes.iter().rposition(|byte| *byte == b'\n')? + 1;
    bytes.split_at_checked(start)
}

fn checksum(bytes: &[u8]) -> String {
    format!("{:08x}", crc32c::crc32c(bytes))
}

fn push_line(text: &mut String, line: &impl Serialize) {
    // Neither can fail: the lines have string keys, and a String takes everything.
    let line = serde_json::to_string(line).unwrap_or_default();
    let _ = writeln!(text, "{line}");
}
