//! The 61-byte header of a record batch, format 2 (KIP-98).
//!
//! ```text
//!  0 base offset i64            17 CRC-32C u32 (over 21..)       43 producer id i64
//!  8 length i32 (from byte 12)  21 attributes i16                51 producer epoch i16
//! 12 leader epoch i32           23 last offset delta i32         53 base sequence i32
//! 16 magic i8                   27 base timestamp i64            57 record count i32
//!                               35 max timestamp i64             61 records
//! ```
//!
//! Base offset and leader epoch lie outside the CRC, so a leader stamps them without touching it. All integers
//! are big endian. Pure code, for any thread.

use super::error::BatchError;
use crate::types::{Epoch, Offset, ProducerId, Timestamp};

/// Bytes of a batch header.
pub const HEADER_BYTES: usize = 61;
/// Bytes in front of what the length field counts (base offset and the length itself).
pub const LENGTH_FIELD_END: usize = 12;
/// The smallest value of the length field: a header without records.
pub const MIN_LENGTH_FIELD: usize = HEADER_BYTES - LENGTH_FIELD_END;
/// The only batch format there is here.
pub const MAGIC: i8 = 2;

pub(super) const LEADER_EPOCH_AT: usize = 12;
pub(super) const CRC_AT: usize = 17;
pub(super) const ATTRIBUTES_AT: usize = 21;
pub(super) const MAX_TIMESTAMP_AT: usize = 35;

/// The attribute bits of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Attributes(pub i16);

impl Attributes {
    const CODEC: i16 = 0x07;
    const LOG_APPEND_TIME: i16 = 0x08;
    const TRANSACTIONAL: i16 = 0x10;
    const CONTROL: i16 = 0x20;
    const DELETE_HORIZON: i16 = 0x40;

    /// Attributes of a batch to be written.
    pub fn new(compression: Compression, transactional: bool, control: bool) -> Self {
        let transactional = if transactional { Self::TRANSACTIONAL } else { 0 };
        let control = if control { Self::CONTROL } else { 0 };
        Self(i16::from(compression.codec()) | transactional | control)
    }

    /// The codec, if it is one that is known.
    pub fn compression(self) -> Result<Compression, BatchError> {
        let codec = u8::try_from(self.0 & Self::CODEC).unwrap_or(u8::MAX);
        Compression::from_codec(codec).ok_or(BatchError::UnknownCompression { codec })
    }

    /// Who set the timestamps.
    pub fn timestamp_type(self) -> TimestampType {
        if self.0 & Self::LOG_APPEND_TIME == 0 {
            TimestampType::CreateTime
        } else {
            TimestampType::LogAppendTime
        }
    }

    /// The same with the timestamp type set to `LogAppendTime`.
    pub fn with_log_append_time(self) -> Self {
        Self(self.0 | Self::LOG_APPEND_TIME)
    }

    /// The same with a delete horizon in the base timestamp.
    pub fn with_delete_horizon(self) -> Self {
        Self(self.0 | Self::DELETE_HORIZON)
    }

    /// The same for a batch without records: not compressed, and without a delete horizon.
    pub fn of_nothing(self) -> Self {
        Self(self.0 & !(Self::CODEC | Self::DELETE_HORIZON))
    }

    /// True for records that belong to a transaction, and for the markers that end one.
    pub fn is_transactional(self) -> bool {
        self.0 & Self::TRANSACTIONAL != 0
    }

    /// True for markers; consumers never see them as records.
    pub fn is_control(self) -> bool {
        self.0 & Self::CONTROL != 0
    }

    /// True when the cleaner has put the time from which tombstones may go into the base timestamp.
    pub fn has_delete_horizon(self) -> bool {
        self.0 & Self::DELETE_HORIZON != 0
    }
}

/// How the records of a batch are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Compression {
    #[default]
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

impl Compression {
    /// The codec number in the attributes.
    pub fn codec(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Gzip => 1,
            Self::Snappy => 2,
            Self::Lz4 => 3,
            Self::Zstd => 4,
        }
    }

    /// The codec of that number, 0 to 4.
    pub fn from_codec(codec: u8) -> Option<Self> {
        match codec {
            0 => Some(Self::None),
            1 => Some(Self::Gzip),
            2 => Some(Self::Snappy),
            3 => Some(Self::Lz4),
            4 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// The name, as in `compression.type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// Who set the timestamps of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimestampType {
    /// The producer.
    CreateTime,
    /// The leader: all records have the batch's max timestamp.
    LogAppendTime,
}

/// A parsed batch header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the first record; 0 in batches from clients.
    pub base_offset: Offset,
    /// Bytes of the whole batch, header included, from 61.
    pub batch_bytes: usize,
    /// Epoch of the leader that appended the batch; -1 when unknown.
    pub partition_leader_epoch: i32,
    /// Always 2.
    pub magic: i8,
    /// CRC-32C as stored; see [`super::check_crc`].
    pub crc: u32,
    pub attributes: Attributes,
    /// Offset of the last record relative to the base offset, from 0. Compaction keeps it, so it may exceed the
    /// number of records.
    pub last_offset_delta: i32,
    /// What record timestamps are relative to: the first record's timestamp, or the delete horizon.
    pub base_timestamp: Timestamp,
    /// The largest timestamp of the records, or the log append time.
    pub max_timestamp: Timestamp,
    /// `None` for producers that are neither idempotent nor transactional.
    pub producer_id: Option<ProducerId>,
    pub producer_epoch: i16,
    /// Sequence number of the first record; -1 without idempotence.
    pub base_sequence: i32,
    /// Number of records, from 0 (compaction can leave an empty batch).
    pub record_count: i32,
}

/// The `N` bytes at `at`, for fields of a header.
pub(super) fn field<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], BatchError> {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk::<N>())
        .copied()
        .ok_or(BatchError::ShortHeader { found: bytes.len() })
}

#[cfg(test)]
impl BatchHeader {
    /// For tests: of a batch of 100 bytes with `record_count` records from `base_offset` on, without compression, of no
    /// producer, of leader epoch 1, with timestamps of 0. What a test is about, it replaces.
    pub(crate) fn plain(base_offset: i64, record_count: i32) -> Self {
        Self {
            base_offset: Offset(base_offset),
            batch_bytes: 100,
            partition_leader_epoch: 1,
            magic: 2,
            crc: 0,
            attributes: Attributes(0),
            last_offset_delta: record_count - 1,
            base_timestamp: Timestamp(0),
            max_timestamp: Timestamp(0),
            producer_id: None,
            producer_epoch: -1,
            base_sequence: -1,
            record_count,
        }
    }
}

impl BatchHeader {
    /// Reads the header at the start of `bytes`, which may go on with anything.
    ///
    /// Checks that the format is 2, that the length can be that of a batch, that offsets and count are not
    /// negative and do not overflow. Does not check that the whole batch is there, nor its CRC.
    ///
    /// # Errors
    ///
    /// [`BatchError::ShortHeader`] below 61 bytes, else what is impossible about the header.
    pub fn parse(bytes: &[u8]) -> Result<Self, BatchError> {
        let header = bytes.first_chunk::<HEADER_BYTES>();
        let bytes = header.ok_or(BatchError::ShortHeader { found: bytes.len() })?.as_slice();

        let magic = i8::from_be_bytes(field(bytes, 16)?);
        if magic != MAGIC {
            return Err(BatchError::UnsupportedMagic { magic });
        }
        let length = i32::from_be_bytes(field(bytes, 8)?);
        let batch_bytes = usize::try_from(length)
            .ok()
            .filter(|length| *length >= MIN_LENGTH_FIELD)
            .and_then(|length| length.checked_add(LENGTH_FIELD_END))
            .ok_or(BatchError::ImpossibleLength { length })?;

        let base_offset = i64::from_be_bytes(field(bytes, 0)?);
        let last_offset_delta = i32::from_be_bytes(field(bytes, 23)?);
        // The next offset must still be a valid one.
        let room = i64::MAX - 1 - i64::from(last_offset_delta.max(0));
        if last_offset_delta < 0 || base_offset < 0 || base_offset > room {
            return Err(BatchError::OffsetRange { base_offset, last_offset_delta });
        }
        let record_count = i32::from_be_bytes(field(bytes, 57)?);
        if record_count < 0 || i64::from(record_count) > i64::from(last_offset_delta) + 1 {
            return Err(BatchError::RecordCount { record_count, last_offset_delta });
        }
        let producer_id = i64::from_be_bytes(field(bytes, 43)?);
        Ok(Self {
            base_offset: Offset(base_offset),
            batch_bytes,
            partition_leader_epoch: i32::from_be_bytes(field(bytes, LEADER_EPOCH_AT)?),
            magic,
            crc: u32::from_be_bytes(field(bytes, CRC_AT)?),
            attributes: Attributes(i16::from_be_bytes(field(bytes, ATTRIBUTES_AT)?)),
            last_offset_delta,
            base_timestamp: Timestamp(i64::from_be_bytes(field(bytes, 27)?)),
            max_timestamp: Timestamp(i64::from_be_bytes(field(bytes, MAX_TIMESTAMP_AT)?)),
            producer_id: (producer_id >= 0).then_some(ProducerId(producer_id)),
            producer_epoch: i16::from_be_bytes(field(bytes, 51)?),
            base_sequence: i32::from_be_bytes(field(bytes, 53)?),
            record_count,
        })
    }

    /// The offset of a record that says it is `offset_delta` behind the base offset. What a record says is its producer's
    /// word, which nobody checks on the way in, so the answer lies between base offset and last offset whatever it is:
    /// no record is ever taken for one of another batch.
    pub fn record_offset(&self, offset_delta: i32) -> Offset {
        self.base_offset.plus(i64::from(offset_delta.clamp(0, self.last_offset_delta)))
    }

    /// Offset of the last record (inclusive).
    pub fn last_offset(&self) -> Offset {
        self.base_offset.plus(i64::from(self.last_offset_delta))
    }

    /// The offset behind the batch.
    pub fn next_offset(&self) -> Offset {
        self.last_offset().plus(1)
    }

    /// Sequence number of the last record; -1 without one. Wraps from `i32::MAX` to 0, as Kafka's.
    pub fn last_sequence(&self) -> i32 {
        if self.base_sequence < 0 {
            -1
        } else {
            increment_sequence(self.base_sequence, self.last_offset_delta)
        }
    }

    /// See [`Attributes::is_transactional`].
    pub fn is_transactional(&self) -> bool {
        self.attributes.is_transactional()
    }

    /// See [`Attributes::is_control`].
    pub fn is_control(&self) -> bool {
        self.attributes.is_control()
    }

    /// See [`Attributes::compression`].
    pub fn compression(&self) -> Result<Compression, BatchError> {
        self.attributes.compression()
    }

    /// See [`Attributes::timestamp_type`].
    pub fn timestamp_type(&self) -> TimestampType {
        self.attributes.timestamp_type()
    }

    /// The same header at an offset and epoch: what a batch looks like once it is appended.
    pub fn appended_at(mut self, base_offset: Offset, epoch: Epoch) -> Self {
        self.base_offset = base_offset;
        self.partition_leader_epoch = epoch.to_wire();
        self
    }
}

/// `sequence + increment` in the ring of non-negative `i32`.
pub fn increment_sequence(sequence: i32, increment: i32) -> i32 {
    let sum = i64::from(sequence) + i64::from(increment);
    i32::try_from(sum.rem_euclid(1 << 31)).unwrap_or(0)
}

/// `sequence - decrement` in the ring of non-negative `i32`.
pub fn decrement_sequence(sequence: i32, decrement: i32) -> i32 {
    let difference = i64::from(sequence) - i64::from(decrement);
    i32::try_from(difference.rem_euclid(1 << 31)).unwrap_or(0)
}

/// Checks a whole batch's CRC-32C, which covers everything from the attributes on.
///
/// `batch` must begin at the header; bytes behind the batch are ignored.
///
/// # Errors
///
/// [`BatchError::Crc`], [`BatchError::Truncated`] if `batch` is not all there, or what [`BatchHeader::parse`]
/// says.
pub fn check_crc(batch: &[u8]) -> Result<(), BatchError> {
    let header = BatchHeader::parse(batch)?;
    let covered = batch
        .get(ATTRIBUTES_AT..header.batch_bytes)
        .ok_or(BatchError::Truncated { batch_bytes: header.batch_bytes, available: batch.len() })?;
    let computed = crc32c::crc32c(covered);
    if computed == header.crc { Ok(()) } else { Err(BatchError::Crc { stored: header.crc, computed }) }
}
