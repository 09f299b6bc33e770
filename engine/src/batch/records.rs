//! Reading the records of a batch. For tools, time lookups and compaction; never on the way of a produce or fetch.
//!
//! Nothing here trusts a length: every one is checked against the bytes that are left, and decompression stops at
//! a bound.

use bytes::Bytes;

use super::error::{BatchError, RecordProblem};
use super::header::{BatchHeader, Compression, HEADER_BYTES, TimestampType, increment_sequence};
use super::varint::Reader;
use crate::types::{Offset, Timestamp};

/// Bounds of decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Most bytes that a batch's records may have after decompression.
    pub max_decompressed_bytes: usize,
}

impl Default for DecodeLimits {
    /// 256 MiB.
    fn default() -> Self {
        Self { max_decompressed_bytes: 256 << 20 }
    }
}

/// A record header. Keys may repeat, and their order is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordHeader {
    /// UTF-8 by convention; kept as bytes.
    pub key: Bytes,
    pub value: Option<Bytes>,
}

/// A decoded record. Key, value and headers share the batch's memory where it was not compressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Between the batch's base offset and last offset; see [`BatchHeader::record_offset`].
    pub offset: Offset,
    /// What the record itself says: how far it is behind the base offset. Not checked.
    pub offset_delta: i32,
    /// The batch's max timestamp where that is the log append time.
    pub timestamp: Timestamp,
    /// -1 without idempotence.
    pub sequence: i32,
    pub key: Option<Bytes>,
    /// `None` is a tombstone.
    pub value: Option<Bytes>,
    pub headers: Vec<RecordHeader>,
}

/// The records of one batch, in order. Ends behind the first error.
#[derive(Debug)]
pub struct Records {
    header: BatchHeader,
    reader: Reader,
    index: usize,
    count: usize,
}

/// Reads the records of the batch that `batch` begins with, decompressing them all at once if need be.
///
/// The CRC is not checked, see [`super::check_crc`].
///
/// # Errors
///
/// What is wrong with the header, [`BatchError::Truncated`], or why decompression failed. What is wrong with a
/// record comes out of the iterator.
pub fn decode_records(batch: &Bytes, limits: &DecodeLimits) -> Result<Records, BatchError> {
    let header = BatchHeader::parse(batch)?;
    let truncated = BatchError::Truncated { batch_bytes: header.batch_bytes, available: batch.len() };
    if batch.len() < header.batch_bytes {
        return Err(truncated);
    }
    let body = batch.slice(HEADER_BYTES..header.batch_bytes);
    let body = match header.compression()? {
        Compression::None => body,
        // Compaction leaves empty batches that still name their codec.
        _ if header.record_count == 0 => body,
        compression => super::compression::decompress(compression, &body, limits.max_decompressed_bytes)?,
    };
    let count = usize::try_from(header.record_count).unwrap_or(0);
    Ok(Records { header, reader: Reader::new(body), index: 0, count })
}

impl Records {
    /// The header of the batch.
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// All records in plain, one behind the other.
    pub(super) fn bytes(&self) -> Bytes {
        self.reader.bytes()
    }

    /// Where in these bytes the next record begins.
    pub(super) fn position(&self) -> usize {
        self.reader.position()
    }

    fn read(&mut self) -> Result<Record, RecordProblem> {
        let length = self.reader.varint()?;
        let length = usize::try_from(length).map_err(|_| RecordProblem::Length(i64::from(length)))?;
        if length > self.reader.remaining() {
            return Err(RecordProblem::Ends);
        }
        let start = self.reader.position();
        // Attributes of a record: none is defined.
        self.reader.i8()?;
        let timestamp_delta = self.reader.varlong()?;
        let offset_delta = self.reader.varint()?;
        let key = self.reader.nullable_bytes()?;
        let value = self.reader.nullable_bytes()?;
        let headers = self.read_headers()?;
        let used = self.reader.position() - start;
        if used != length {
            return Err(RecordProblem::Size { declared: length, used });
        }
        let header = &self.header;
        let timestamp = match header.timestamp_type() {
            TimestampType::LogAppendTime => header.max_timestamp,
            TimestampType::CreateTime => Timestamp(header.base_timestamp.0.saturating_add(timestamp_delta)),
        };
        let sequence = if header.base_sequence < 0 {
            -1
        } else {
            increment_sequence(header.base_sequence, offset_delta)
        };
        let offset = header.record_offset(offset_delta);
        Ok(Record { offset, offset_delta, timestamp, sequence, key, value, headers })
    }

    fn read_headers(&mut self) -> Result<Vec<RecordHeader>, RecordProblem> {
        let count = self.reader.varint()?;
        let wrong = RecordProblem::Length(i64::from(count));
        let count = usize::try_from(count).map_err(|_| wrong)?;
        // A header takes at least two bytes, so this also bounds the allocation.
        if count > self.reader.remaining() / 2 {
            return Err(wrong);
        }
        let mut headers = Vec::with_capacity(count);
        for _ in 0..count {
            let length = self.reader.varint()?;
            let length = usize::try_from(length).map_err(|_| RecordProblem::Length(i64::from(length)))?;
            let key = self.reader.take(length)?;
            headers.push(RecordHeader { key, value: self.reader.nullable_bytes()? });
        }
        Ok(headers)
    }

    fn fail(&mut self, position: usize, problem: RecordProblem) -> BatchError {
        let index = self.index;
        self.index = self.count;
        BatchError::Record { index, position, problem }
    }
}

impl Iterator for Records {
    type Item = Result<Record, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.index >= self.count {
            return None;
        }
        let position = self.reader.position();
        let record = match self.read() {
            Ok(record) => record,
            Err(problem) => return Some(Err(self.fail(position, problem))),
        };
        if self.index + 1 == self.count && self.reader.remaining() > 0 {
            let problem = RecordProblem::Remaining(self.reader.remaining());
            return Some(Err(self.fail(position, problem)));
        }
        self.index += 1;
        Some(Ok(record))
    }
}
