//! What a dump consists of: one item per line of JSON, or per line or two for people.

use serde::Serialize;
use serde_json::Value;

use crate::batch::{BatchHeader, Record, RecordHeader, TimestampType};
use crate::index::{AbortedTransaction, OffsetPosition, TimestampOffset};

/// One thing that a dump shows.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Item {
    /// A file begins; everything up to the next one is in it.
    File {
        path: String,
        what: &'static str,
        bytes: u64,
    },
    Batch(BatchItem),
    /// Bytes behind what counts that are no batches.
    Dead {
        path: String,
        position: u64,
        bytes: u64,
        reason: String,
    },
    Record(RecordItem),
    OffsetEntry {
        offset: i64,
        position: u64,
    },
    TimeEntry {
        timestamp: i64,
        offset: i64,
    },
    AbortedTransaction {
        producer_id: i64,
        first_offset: i64,
        last_offset: i64,
        last_stable_offset: i64,
    },
    /// A record of the fence.
    Fence {
        epoch: u32,
        state: String,
    },
    /// A JSON document, or a line of a file of them.
    Json {
        value: Value,
    },
    /// Something that is not as it should be.
    Finding {
        path: String,
        position: u64,
        problem: String,
        hint: &'static str,
    },
}

/// A batch of a log file.
#[derive(Debug, Clone, Serialize)]
pub struct BatchItem {
    /// Byte in the file.
    pub position: u64,
    pub batch_bytes: usize,
    pub base_offset: i64,
    /// Inclusive.
    pub last_offset: i64,
    pub record_count: i32,
    pub leader_epoch: i32,
    pub crc: String,
    pub crc_ok: bool,
    /// The codec's name, or its number if it is unknown.
    pub compression: String,
    pub timestamp_type: &'static str,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub producer: Option<ProducerItem>,
    pub transactional: bool,
    pub control: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub delete_horizon: bool,
    /// It stands behind what counts, by the manifest: it is never served.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dead: bool,
}

/// Who wrote a batch, and where in its sequence.
#[derive(Debug, Clone, Serialize)]
pub struct ProducerItem {
    pub id: i64,
    pub epoch: i16,
    pub base_sequence: i32,
    /// Inclusive.
    pub last_sequence: i32,
}

/// A record of a batch.
#[derive(Debug, Clone, Serialize)]
pub struct RecordItem {
    pub offset: i64,
    pub timestamp: i64,
    pub key: Content,
    pub value: Content,
    pub headers: Vec<(Content, Content)>,
    /// What a control record says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marker: Option<String>,
}

/// Bytes of a record: null, a string where they are UTF-8, else `{"base64": ...}`.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Content {
    None,
    Text(String),
    Bytes { base64: String },
}

impl Content {
    fn of(bytes: Option<&[u8]>) -> Self {
        use base64::Engine as _;
        match bytes {
            None => Self::None,
            Some(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Self::Text(text.to_owned()),
                Err(_) => Self::Bytes { base64: base64::engine::general_purpose::STANDARD.encode(bytes) },
            },
        }
    }
}

impl BatchItem {
    /// A batch at a position; `computed` is the CRC of what is there.
    pub fn new(header: &BatchHeader, position: u64, computed: u32) -> Self {
        let attributes = header.attributes;
        Self {
            position,
            batch_bytes: header.batch_bytes,
            base_offset: header.base_offset.0,
            last_offset: header.last_offset().0,
            record_count: header.record_count,
            leader_epoch: header.partition_leader_epoch,
            crc: format!("{:08x}", header.crc),
            crc_ok: header.crc == computed,
            compression: match header.compression() {
                Ok(compression) => compression.name().to_owned(),
                Err(_) => format!("codec {}", attributes.0 & 7),
            },
            timestamp_type: match header.timestamp_type() {
                TimestampType::CreateTime => "CreateTime",
                TimestampType::LogAppendTime => "LogAppendTime",
            },
            base_timestamp: header.base_timestamp.0,
            max_timestamp: header.max_timestamp.0,
            producer: header.producer_id.map(|id| ProducerItem {
                id: id.0,
                epoch: header.producer_epoch,
                base_sequence: header.base_sequence,
                last_sequence: header.last_sequence(),
            }),
            transactional: header.is_transactional(),
            control: header.is_control(),
            delete_horizon: attributes.has_delete_horizon(),
            dead: false,
        }
    }
}

impl RecordItem {
    /// A decoded record.
    pub fn new(record: &Record, marker: Option<String>) -> Self {
        let header = |header: &RecordHeader| {
            (Content::of(Some(header.key.as_ref())), Content::of(header.value.as_deref()))
        };
        Self {
            offset: record.offset.0,
            timestamp: record.timestamp.0,
            key: Content::of(record.key.as_deref()),
            value: Content::of(record.value.as_deref()),
            headers: record.headers.iter().map(header).collect(),
            marker,
        }
    }
}

impl From<OffsetPosition> for Item {
    fn from(entry: OffsetPosition) -> Self {
        Self::OffsetEntry { offset: entry.offset.0, position: entry.position }
    }
}

impl From<TimestampOffset> for Item {
    fn from(entry: TimestampOffset) -> Self {
        Self::TimeEntry { timestamp: entry.timestamp.0, offset: entry.offset.0 }
    }
}

impl From<AbortedTransaction> for Item {
    fn from(aborted: AbortedTransaction) -> Self {
        Self::AbortedTransaction {
            producer_id: aborted.producer_id.0,
            first_offset: aborted.first_offset.0,
            last_offset: aborted.last_offset.0,
            last_stable_offset: aborted.last_stable_offset.0,
        }
    }
}
