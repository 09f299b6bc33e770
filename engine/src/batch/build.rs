//! Building batches: for users of the library, tests, benches, and the markers that end transactions.

use bytes::{BufMut, Bytes, BytesMut};

use super::error::BatchError;
use super::header::{ATTRIBUTES_AT, Attributes, CRC_AT, Compression, HEADER_BYTES, LENGTH_FIELD_END, MAGIC};
use super::varint::put_varint;
use crate::types::{Offset, ProducerId, Timestamp};

/// A record to be written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SimpleRecord {
    pub key: Option<Bytes>,
    /// `None` is a tombstone.
    pub value: Option<Bytes>,
    /// Key and value, in order; keys may repeat.
    pub headers: Vec<(Bytes, Option<Bytes>)>,
    /// Milliseconds after [`BatchOptions::base_timestamp`].
    pub timestamp_delta: i64,
}

impl SimpleRecord {
    /// A record with a value and nothing else.
    pub fn of_value(value: impl Into<Bytes>) -> Self {
        Self { value: Some(value.into()), ..Self::default() }
    }

    /// A record with key and value.
    pub fn of(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self { key: Some(key.into()), value: Some(value.into()), ..Self::default() }
    }
}

/// What a producer writes into a batch's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchOptions {
    /// 0 for what a client sends.
    pub base_offset: Offset,
    /// What the records' timestamps are relative to.
    pub base_timestamp: Timestamp,
    /// `None` for a producer without idempotence.
    pub producer: Option<Producer>,
    pub transactional: bool,
    pub compression: Compression,
}

/// A producer's identity and where it is in its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Producer {
    pub id: ProducerId,
    pub epoch: i16,
    /// Sequence number of the batch's first record, from 0.
    pub base_sequence: i32,
}

impl Default for BatchOptions {
    /// Offset 0, timestamp 0, no producer, no transaction, no compression.
    fn default() -> Self {
        Self {
            base_offset: Offset::ZERO,
            base_timestamp: Timestamp(0),
            producer: None,
            transactional: false,
            compression: Compression::None,
        }
    }
}

/// A batch of `records`, as a client would send it.
///
/// # Errors
///
/// [`BatchError::Empty`] without records, [`BatchError::Unencodable`] above 2 GiB,
/// [`BatchError::CompressionNotBuilt`].
pub fn data_batch(records: &[SimpleRecord], options: &BatchOptions) -> Result<Bytes, BatchError> {
    let newest = records.iter().map(|record| record.timestamp_delta).max().ok_or(BatchError::Empty)?;
    let mut body = BytesMut::new();
    for (index, record) in records.iter().enumerate() {
        put_record(&mut body, i64::try_from(index).unwrap_or(i64::MAX), record)?;
    }
    let body = match options.compression {
        Compression::None => body.freeze(),
        compression => super::compression::compress(compression, &body)?,
    };
    let count = i32::try_from(records.len()).map_err(|_| BatchError::Unencodable)?;
    let max_timestamp = Timestamp(options.base_timestamp.0.saturating_add(newest));
    let attributes = Attributes::new(options.compression, options.transactional, false);
    assemble(options, attributes, max_timestamp, count, &body)
}

/// A batch without records that takes up the offsets from `from` to `to` (exclusive): 61 bytes that bring consumers past
/// them, as what compaction leaves of a batch does. Not stamped with a leader epoch yet.
///
/// # Errors
///
/// [`BatchError::OffsetRange`] unless these are 1 to 2^31 offsets.
pub fn empty_batch(from: Offset, to: Offset) -> Result<Bytes, BatchError> {
    let last = to.0.saturating_sub(from.0).saturating_sub(1);
    let last_offset_delta = i32::try_from(last).unwrap_or(-1);
    if last_offset_delta < 0 {
        return Err(BatchError::OffsetRange { base_offset: from.0, last_offset_delta });
    }
    let options =
        BatchOptions { base_offset: from, base_timestamp: Timestamp::NONE, ..BatchOptions::default() };
    assemble_over(&options, Attributes::default(), Timestamp::NONE, 0, last_offset_delta, &[])
}

/// The header for `body`, and `body` behind it. The leader epoch is -1, as in what clients send.
pub(super) fn assemble(
    options: &BatchOptions,
    attributes: Attributes,
    max_timestamp: Timestamp,
    count: i32,
    body: &[u8],
) -> Result<Bytes, BatchError> {
    assemble_over(options, attributes, max_timestamp, count, count.saturating_sub(1), body)
}

fn assemble_over(
    options: &BatchOptions,
    attributes: Attributes,
    max_timestamp: Timestamp,
    count: i32,
    last_offset_delta: i32,
    body: &[u8],
) -> Result<Bytes, BatchError> {
    let total = HEADER_BYTES.checked_add(body.len()).ok_or(BatchError::Unencodable)?;
    let length = i32::try_from(total - LENGTH_FIELD_END).map_err(|_| BatchError::Unencodable)?;
    let (id, epoch, sequence) = match options.producer {
        Some(producer) => (producer.id.0, producer.epoch, producer.base_sequence),
        None => (-1, -1, -1),
    };
    let mut batch = BytesMut::with_capacity(total);
    batch.put_i64(options.base_offset.0);
    batch.put_i32(length);
    batch.put_i32(-1);
    batch.put_i8(MAGIC);
    batch.put_u32(0);
    batch.put_i16(attributes.0);
    batch.put_i32(last_offset_delta);
    batch.put_i64(options.base_timestamp.0);
    batch.put_i64(max_timestamp.0);
    batch.put_i64(id);
    batch.put_i16(epoch);
    batch.put_i32(sequence);
    batch.put_i32(count);
    batch.put_slice(body);
    let crc = crc32c::crc32c(batch.get(ATTRIBUTES_AT..).unwrap_or_default());
    if let Some(stored) = batch.get_mut(CRC_AT..ATTRIBUTES_AT) {
        stored.copy_from_slice(&crc.to_be_bytes());
    }
    Ok(batch.freeze())
}

/// One record, its length in front.
pub(super) fn put_record(
    out: &mut BytesMut,
    offset_delta: i64,
    record: &SimpleRecord,
) -> Result<(), BatchError> {
    let mut fields = BytesMut::new();
    fields.put_i8(0);
    put_varint(&mut fields, record.timestamp_delta);
    put_varint(&mut fields, offset_delta);
    put_nullable(&mut fields, record.key.as_ref())?;
    put_nullable(&mut fields, record.value.as_ref())?;
    put_varint(&mut fields, encodable(record.headers.len())?);
    for (key, value) in &record.headers {
        put_nullable(&mut fields, Some(key))?;
        put_nullable(&mut fields, value.as_ref())?;
    }
    put_varint(out, encodable(fields.len())?);
    out.put_slice(&fields);
    Ok(())
}

fn put_nullable(out: &mut BytesMut, bytes: Option<&Bytes>) -> Result<(), BatchError> {
    match bytes {
        None => put_varint(out, -1),
        Some(bytes) => {
            put_varint(out, encodable(bytes.len())?);
            out.put_slice(bytes);
        }
    }
    Ok(())
}

fn encodable(length: usize) -> Result<i64, BatchError> {
    i32::try_from(length).map(i64::from).map_err(|_| BatchError::Unencodable)
}
