//! Finding a record by its timestamp inside one batch: the last step of a lookup by time.
//!
//! A broker does this for clients, so it holds no record: a compressed batch is read as a stream, keys and values
//! are skipped, and what a hostile batch can cost is the time to decompress up to the bound.

use std::io::{BufRead, BufReader, Read, Take};

use bytes::Bytes;

use super::compression::{failed, reader};
use super::error::{BatchError, RecordProblem};
use super::header::{BatchHeader, Compression, HEADER_BYTES, TimestampType};
use super::records::DecodeLimits;
use crate::types::{Offset, Timestamp};

/// Bytes taken from the codec at once.
const PIECE_BYTES: usize = 16 << 10;

/// The first record at or behind `from` whose timestamp is at least `target`.
///
/// # Errors
///
/// What is wrong with the header, the compression, or a record in front of the one that is found.
pub fn first_record_at_or_after(
    batch: &Bytes,
    target: Timestamp,
    from: Offset,
    limits: &DecodeLimits,
) -> Result<Option<(Offset, Timestamp)>, BatchError> {
    find(batch, limits, |_, offset, timestamp| timestamp >= target && offset >= from)
}

/// The first record that has the batch's max timestamp: what `ListOffsets` with `MAX_TIMESTAMP` answers.
///
/// `None` for an empty batch, or if the header's max timestamp is no record's.
///
/// # Errors
///
/// As [`first_record_at_or_after`].
pub fn record_of_max_timestamp(
    batch: &Bytes,
    limits: &DecodeLimits,
) -> Result<Option<(Offset, Timestamp)>, BatchError> {
    find(batch, limits, |header, _, timestamp| timestamp == header.max_timestamp)
}

fn find(
    batch: &[u8],
    limits: &DecodeLimits,
    mut wanted: impl FnMut(&BatchHeader, Offset, Timestamp) -> bool,
) -> Result<Option<(Offset, Timestamp)>, BatchError> {
    let header = BatchHeader::parse(batch)?;
    if header.record_count == 0 {
        return Ok(None);
    }
    let mut walk = Walk::new(batch, &header, limits)?;
    for index in 0..usize::try_from(header.record_count).unwrap_or(0) {
        let start = walk.position();
        let (timestamp_delta, offset_delta) = walk.record().map_err(|stop| walk.error(stop, index, start))?;
        let offset = header.record_offset(offset_delta);
        let timestamp = match header.timestamp_type() {
            TimestampType::LogAppendTime => header.max_timestamp,
            TimestampType::CreateTime => Timestamp(header.base_timestamp.0.saturating_add(timestamp_delta)),
        };
        if wanted(&header, offset, timestamp) {
            return Ok(Some((offset, timestamp)));
        }
    }
    Ok(None)
}

/// Why a walk stops.
pub(super) enum Stop {
    Codec(std::io::Error),
    Record(RecordProblem),
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Self::Codec(error)
    }
}

/// A walk through a stream of records.
pub(super) struct Walk<'a> {
    source: BufReader<Take<Box<dyn Read + 'a>>>,
    compression: Compression,
    max_bytes: usize,
    /// Bytes of the stream so far.
    used: u64,
}

/// Where a record ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecordEnd {
    length: u64,
    end: u64,
}

impl<'a> Walk<'a> {
    /// A walk through the records of `batch`, whose header is `header`.
    pub(super) fn new(
        batch: &'a [u8],
        header: &BatchHeader,
        limits: &DecodeLimits,
    ) -> Result<Self, BatchError> {
        let truncated = BatchError::Truncated { batch_bytes: header.batch_bytes, available: batch.len() };
        let body = batch.get(HEADER_BYTES..header.batch_bytes).ok_or(truncated)?;
        let compression = header.compression()?;
        let max_bytes = limits.max_decompressed_bytes;
        let bound = match compression {
            Compression::None => u64::MAX,
            _ => u64::try_from(max_bytes).unwrap_or(u64::MAX),
        };
        let plain = reader(compression, body, max_bytes)?.take(bound);
        let source = BufReader::with_capacity(PIECE_BYTES, plain);
        Ok(Self { source, compression, max_bytes, used: 0 })
    }

    /// Bytes of plain records so far.
    pub(super) fn position(&self) -> usize {
        usize::try_from(self.used).unwrap_or(usize::MAX)
    }

    /// What stopped the walk in the record number `index`, which began at byte `start`.
    pub(super) fn error(&self, stop: Stop, index: usize, start: usize) -> BatchError {
        let max_bytes = self.max_bytes;
        match stop {
            Stop::Codec(error) => failed(self.compression, &error),
            Stop::Record(RecordProblem::Ends) if self.source.get_ref().limit() == 0 => {
                BatchError::DecompressedTooLarge { max_bytes }
            }
            Stop::Record(problem) => BatchError::Record { index, position: start, problem },
        }
    }

    /// Whether nothing follows.
    pub(super) fn is_at_end(&mut self) -> Result<bool, Stop> {
        Ok(self.source.fill_buf()?.is_empty())
    }

    /// Timestamp and offset delta of the next record, which is skipped.
    fn record(&mut self) -> Result<(i64, i32), Stop> {
        let RecordEnd { length, end } = self.begin_record()?;
        // Attributes of a record: none is defined.
        self.byte()?;
        let timestamp_delta = self.zigzag(10)?;
        let offset_delta = self.varint()?;
        let Some(rest) = end.checked_sub(self.used) else {
            return Err(self.wrong_size(RecordEnd { length, end }));
        };
        self.skip(rest)?;
        Ok((timestamp_delta, offset_delta))
    }

    /// Reads the length that stands in front of a record.
    pub(super) fn begin_record(&mut self) -> Result<RecordEnd, Stop> {
        let length = self.varint()?;
        let length =
            u64::try_from(length).map_err(|_| Stop::Record(RecordProblem::Length(i64::from(length))))?;
        Ok(RecordEnd { length, end: self.used.saturating_add(length) })
    }

    /// Behind the last field of a record.
    pub(super) fn end_record(&self, end: RecordEnd) -> Result<(), Stop> {
        if self.used == end.end { Ok(()) } else { Err(self.wrong_size(end)) }
    }

    fn wrong_size(&self, RecordEnd { length, end }: RecordEnd) -> Stop {
        let start = end.saturating_sub(length);
        let [declared, used] = [length, self.used.saturating_sub(start)]
            .map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        Stop::Record(RecordProblem::Size { declared, used })
    }

    pub(super) fn byte(&mut self) -> Result<u8, Stop> {
        let byte = self.source.fill_buf()?.first().copied().ok_or(Stop::Record(RecordProblem::Ends))?;
        self.source.consume(1);
        self.used += 1;
        Ok(byte)
    }

    pub(super) fn skip(&mut self, mut bytes: u64) -> Result<(), Stop> {
        while bytes > 0 {
            let here = self.source.fill_buf()?.len();
            if here == 0 {
                return Err(Stop::Record(RecordProblem::Ends));
            }
            let step = here.min(usize::try_from(bytes).unwrap_or(usize::MAX));
            self.source.consume(step);
            self.used += step as u64;
            bytes -= step as u64;
        }
        Ok(())
    }

    pub(super) fn zigzag(&mut self, max_bytes: u32) -> Result<i64, Stop> {
        let mut value = 0_u64;
        for index in 0..max_bytes {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                return Ok((value >> 1).cast_signed() ^ -((value & 1).cast_signed()));
            }
        }
        Err(Stop::Record(RecordProblem::Varint))
    }

    pub(super) fn varint(&mut self) -> Result<i32, Stop> {
        i32::try_from(self.zigzag(5)?).map_err(|_| Stop::Record(RecordProblem::Varint))
    }
}
