//! Record batches of format 2: reading headers, judging what clients send, stamping, building, decoding.
//!
//! Pure code without I/O or locks, for any thread. Bytes from clients and from the volume are never trusted: every
//! function here returns an error for any input that is not a batch, and none panics.
//!
//! The hot path touches headers and checksums only; `records`, `times` and `compression` are for tools, lookups by
//! time and compaction.

mod build;
pub mod compression;
mod control;
mod error;
mod header;
mod keys;
mod records;
mod rewrite;
mod stamp;
mod times;
mod validate;
mod varint;

pub use build::{BatchOptions, Producer, SimpleRecord, data_batch, empty_batch};
pub use control::{EndMarker, Marker, control_batch, read_marker};
pub use error::{BatchError, BatchErrorClass, RecordProblem};
pub use header::{
    Attributes, BatchHeader, Compression, HEADER_BYTES, LENGTH_FIELD_END, MAGIC, MIN_LENGTH_FIELD,
    TimestampType, check_crc, decrement_sequence, increment_sequence,
};
pub use keys::check_keys;
pub use records::{DecodeLimits, Record, RecordHeader, Records, decode_records};
pub use rewrite::{Retained, emptied, retain_records};
pub use stamp::StampedHeader;
pub use times::{first_record_at_or_after, record_of_max_timestamp};
pub use validate::{Limits, TimestampRule, validate_client_batches};

#[cfg(test)]
mod tests;
