//! What can be wrong with a record batch, and how a server would class it.

/// A record batch that is not acceptable, or not readable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    #[error("no record batch where one was expected")]
    Empty,
    #[error("{found} bytes are too few for a batch header ({} bytes)", super::HEADER_BYTES)]
    ShortHeader { found: usize },
    #[error(
        "the batch says its length is {length}, less than the {} bytes of an empty batch",
        super::MIN_LENGTH_FIELD
    )]
    ImpossibleLength { length: i32 },
    #[error("the batch has {batch_bytes} bytes, of which only {available} are here")]
    Truncated { batch_bytes: usize, available: usize },
    #[error("{trailing} bytes follow the last whole batch")]
    TrailingBytes { trailing: usize },
    #[error("batch format (magic) {magic} is not supported, only 2 is")]
    UnsupportedMagic { magic: i8 },
    #[error("stored CRC-32C {stored:#010x} differs from the computed {computed:#010x}")]
    Crc { stored: u32, computed: u32 },
    #[error("compression codec {codec} is unknown")]
    UnknownCompression { codec: u8 },
    #[error("the batch has {batch_bytes} bytes, more than the {max_batch_bytes} allowed")]
    TooLarge { batch_bytes: usize, max_batch_bytes: usize },
    #[error("a batch from a client must have base offset 0, not {base_offset}")]
    ClientBaseOffset { base_offset: i64 },
    #[error("base offset {base_offset} and last offset delta {last_offset_delta} are no valid offset range")]
    OffsetRange { base_offset: i64, last_offset_delta: i32 },
    #[error("record count {record_count} does not fit the last offset delta {last_offset_delta}")]
    RecordCount { record_count: i32, last_offset_delta: i32 },
    #[error("more than one record batch where exactly one is allowed")]
    SeveralBatches,
    #[error("clients may not write control batches")]
    ControlBatch,
    #[error("base sequence {base_sequence} of producer {producer_id} is negative")]
    Sequence { producer_id: i64, base_sequence: i32 },
    #[error("a transactional batch must carry a producer id")]
    TransactionalWithoutProducer,
    #[error("timestamp {timestamp} is outside [{earliest}, {latest}]")]
    TimestampOutOfRange { timestamp: i64, earliest: i64, latest: i64 },
    #[error("a producer may not set the timestamp type to LogAppendTime")]
    LogAppendTimeFromClient,
    #[error("record {index} has no key, which a compacted topic needs")]
    NoKey { index: usize },
    #[error("record {index} at byte {position} of the batch's records: {problem}")]
    Record { index: usize, position: usize, problem: RecordProblem },
    #[error("{compression} data cannot be read: {reason}")]
    Decompression { compression: &'static str, reason: String },
    #[error("the records have more than the {max_bytes} bytes allowed after decompression")]
    DecompressedTooLarge { max_bytes: usize },
    #[error("this build cannot read {compression} data (feature `compression` is off)")]
    CompressionNotBuilt { compression: &'static str },
    #[error("the records would not fit into one batch")]
    Unencodable,
}

/// What is wrong with one record inside a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordProblem {
    #[error("the data ends inside the record")]
    Ends,
    #[error("a variable-length integer is too long")]
    Varint,
    #[error("length {0} is impossible")]
    Length(i64),
    #[error("the record's length says {declared} bytes, its fields take {used}")]
    Size { declared: usize, used: usize },
    #[error("the offset delta {0} is not the record's place in its batch")]
    OffsetDelta(i32),
    #[error("{0} bytes follow the last record")]
    Remaining(usize),
    #[error("the marker has control type {0}, which does not end a transaction")]
    ControlType(i16),
    #[error("the control record has version {0}")]
    ControlVersion(i16),
}

/// How a server answers a client: Kafka's error codes draw these distinctions and no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BatchErrorClass {
    /// Damaged on the way or on the volume (`CORRUPT_MESSAGE`).
    Corrupt,
    /// Well formed but not allowed (`INVALID_RECORD`).
    Invalid,
    /// Above the size limit (`MESSAGE_TOO_LARGE`).
    TooLarge,
    /// A timestamp that the topic's settings refuse (`INVALID_TIMESTAMP`).
    Timestamp,
    /// A codec that is not known (`UNSUPPORTED_COMPRESSION_TYPE`).
    Compression,
}

impl BatchError {
    /// The class of this error.
    pub fn class(&self) -> BatchErrorClass {
        match self {
            Self::ShortHeader { .. }
            | Self::ImpossibleLength { .. }
            | Self::Truncated { .. }
            | Self::TrailingBytes { .. }
            | Self::Crc { .. }
            | Self::Decompression { .. } => BatchErrorClass::Corrupt,
            // Formats 0 and 1 are old, not damaged: Kafka answers them differently from a number it never used.
            Self::UnsupportedMagic { magic } => {
                if matches!(magic, 0 | 1) {
                    BatchErrorClass::Invalid
                } else {
                    BatchErrorClass::Corrupt
                }
            }
            Self::TooLarge { .. } | Self::DecompressedTooLarge { .. } | Self::Unencodable => {
                BatchErrorClass::TooLarge
            }
            Self::TimestampOutOfRange { .. } | Self::LogAppendTimeFromClient => BatchErrorClass::Timestamp,
            Self::UnknownCompression { .. } | Self::CompressionNotBuilt { .. } => {
                BatchErrorClass::Compression
            }
            Self::Empty
            | Self::ClientBaseOffset { .. }
            | Self::OffsetRange { .. }
            | Self::RecordCount { .. }
            | Self::SeveralBatches
            | Self::ControlBatch
            | Self::Sequence { .. }
            | Self::TransactionalWithoutProducer
            | Self::NoKey { .. }
            | Self::Record { .. } => BatchErrorClass::Invalid,
        }
    }
}
