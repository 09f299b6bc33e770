//! Which batches a leader takes from a client: the rules of Kafka's `LogValidator` that need no record decoded.
//!
//! **What headers cannot tell.** Kafka walks through the records of every client batch; here no record is ever
//! decoded on the way in. Three of Kafka's checks are therefore made on the header's word:
//!
//! - *Timestamp range.* Kafka refuses a batch if any record's timestamp is outside `[now - before_max, now +
//!   after_max]` (records without a timestamp, -1, are exempt). The header's max timestamp is the largest one, so
//!   "too far ahead" is exact. The header's base timestamp is the first record's, so "too old" is exact for the
//!   first record and, by the max timestamp, for the case that all are too old; an old record behind a younger
//!   first one is not seen.
//! - *Max timestamp.* Kafka recomputes it; here it is taken as sent (every client computes it).
//! - *Keys in compacted topics* and the agreement of record count and records are not checked here.
//!
//! A batch that claims the timestamp type `LogAppendTime` is refused on every topic. Kafka refuses it on
//! `LogAppendTime` topics and, on `CreateTime` ones, only where the record is out of range or without a
//! timestamp.

use bytes::Bytes;

use super::error::BatchError;
use super::header::{BatchHeader, TimestampType, check_crc};
use crate::types::Timestamp;

/// What a topic allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest batch in bytes, header included (`max.message.bytes`).
    pub max_batch_bytes: usize,
    /// Most batches in one append, from 1. Kafka allows a client one per partition and request.
    pub max_batches: usize,
    /// What timestamps are allowed.
    pub timestamps: TimestampRule,
}

impl Limits {
    /// Kafka's defaults at `now`: one batch of at most 1 MiB + 12 bytes, any past timestamp, one hour ahead.
    pub fn kafka_defaults(now: Timestamp) -> Self {
        Self {
            max_batch_bytes: 1_048_588,
            max_batches: 1,
            timestamps: TimestampRule::CreateTime { now, before_max_ms: i64::MAX, after_max_ms: 3_600_000 },
        }
    }
}

/// What a topic does about timestamps (`message.timestamp.type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestampRule {
    /// The producer's, within `[now - before_max_ms, now + after_max_ms]`.
    CreateTime { now: Timestamp, before_max_ms: i64, after_max_ms: i64 },
    /// Overwritten by the leader, so not checked.
    LogAppendTime,
}

impl TimestampRule {
    fn check(self, header: &BatchHeader) -> Result<(), BatchError> {
        if header.timestamp_type() == TimestampType::LogAppendTime {
            return Err(BatchError::LogAppendTimeFromClient);
        }
        let Self::CreateTime { now, before_max_ms, after_max_ms } = self else { return Ok(()) };
        let earliest = now.0.saturating_sub(before_max_ms);
        let latest = now.0.saturating_add(after_max_ms);
        let out_of_range = |timestamp: Timestamp| {
            timestamp != Timestamp::NONE && (timestamp.0 < earliest || timestamp.0 > latest)
        };
        // With a delete horizon the base timestamp is no record's.
        let base =
            if header.attributes.has_delete_horizon() { Timestamp::NONE } else { header.base_timestamp };
        for timestamp in [header.max_timestamp, base] {
            if out_of_range(timestamp) {
                return Err(BatchError::TimestampOutOfRange { timestamp: timestamp.0, earliest, latest });
            }
        }
        Ok(())
    }
}

/// Checks what a client wants appended: whole batches, nothing behind them, each allowed by `limits`.
///
/// Returns each batch's header and a slice of `records` that is exactly that batch. Nothing is copied; every byte
/// is read once, for the CRC. One bad batch refuses them all, as in Kafka.
///
/// # Errors
///
/// The first rule that a batch breaks; [`BatchError::Empty`] for no batch at all.
pub fn validate_client_batches(
    records: &Bytes,
    limits: &Limits,
) -> Result<Vec<(BatchHeader, Bytes)>, BatchError> {
    let mut batches = Vec::with_capacity(1);
    let mut rest = records.clone();
    while !rest.is_empty() {
        if !batches.is_empty() && BatchHeader::parse(&rest).is_err() {
            return Err(BatchError::TrailingBytes { trailing: rest.len() });
        }
        if batches.len() >= limits.max_batches {
            return Err(BatchError::SeveralBatches);
        }
        let header = validate_client_batch(&rest, limits)?;
        batches.push((header, rest.split_to(header.batch_bytes)));
    }
    if batches.is_empty() { Err(BatchError::Empty) } else { Ok(batches) }
}

/// Checks the batch at the start of `bytes`, in the order in which Kafka does.
fn validate_client_batch(bytes: &[u8], limits: &Limits) -> Result<BatchHeader, BatchError> {
    let header = BatchHeader::parse(bytes)?;
    if header.base_offset.0 != 0 {
        return Err(BatchError::ClientBaseOffset { base_offset: header.base_offset.0 });
    }
    let batch_bytes = header.batch_bytes;
    // Before the length check: the size is the batch's own claim, and it is the more helpful answer.
    if batch_bytes > limits.max_batch_bytes {
        return Err(BatchError::TooLarge { batch_bytes, max_batch_bytes: limits.max_batch_bytes });
    }
    check_crc(bytes)?;
    if header.record_count == 0 || header.record_count != header.last_offset_delta.saturating_add(1) {
        let BatchHeader { record_count, last_offset_delta, .. } = header;
        return Err(BatchError::RecordCount { record_count, last_offset_delta });
    }
    if header.is_control() {
        return Err(BatchError::ControlBatch);
    }
    match header.producer_id {
        Some(producer_id) if header.base_sequence < 0 => {
            return Err(BatchError::Sequence {
                producer_id: producer_id.0,
                base_sequence: header.base_sequence,
            });
        }
        None if header.is_transactional() => return Err(BatchError::TransactionalWithoutProducer),
        _ => {}
    }
    header.compression()?;
    limits.timestamps.check(&header)?;
    Ok(header)
}
