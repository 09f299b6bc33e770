//! Stamping a batch's header with what the leader decides, without copying or moving its records.
//!
//! A leader writes `StampedHeader::bytes()` followed by the client's bytes from byte 61 on.

use super::error::BatchError;
use super::header::{ATTRIBUTES_AT, Attributes, BatchHeader, CRC_AT, HEADER_BYTES, LEADER_EPOCH_AT};
use super::header::{MAX_TIMESTAMP_AT, field};
use crate::types::{Epoch, Offset, Timestamp};

/// A batch's header as it will stand in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StampedHeader([u8; HEADER_BYTES]);

impl StampedHeader {
    /// The header of `batch` with its offset and leader epoch set; the CRC covers neither, so it stays.
    ///
    /// # Errors
    ///
    /// [`BatchError::ShortHeader`] if `batch` has fewer than 61 bytes.
    pub fn new(batch: &[u8], base_offset: Offset, leader_epoch: Epoch) -> Result<Self, BatchError> {
        Ok(Self(field(batch, 0)?).appended_at(base_offset, leader_epoch))
    }

    /// The same at another offset and epoch; the CRC stays.
    #[must_use]
    pub fn appended_at(mut self, base_offset: Offset, leader_epoch: Epoch) -> Self {
        self.put(0, base_offset.0.to_be_bytes());
        self.put(LEADER_EPOCH_AT, leader_epoch.to_wire().to_be_bytes());
        self
    }

    /// The same with the timestamp type `LogAppendTime` and `timestamp` as max timestamp, as Kafka does it: the
    /// records stay untouched, and readers take the max timestamp for each of them.
    ///
    /// `body` is the batch from byte 61 to its end; it is read for the new CRC (about 45 µs a MiB).
    #[must_use]
    pub fn with_log_append_time(mut self, timestamp: Timestamp, body: &[u8]) -> Self {
        let attributes = field(&self.0, ATTRIBUTES_AT).map(i16::from_be_bytes).unwrap_or_default();
        self.put(ATTRIBUTES_AT, Attributes(attributes).with_log_append_time().0.to_be_bytes());
        self.put(MAX_TIMESTAMP_AT, timestamp.0.to_be_bytes());
        let head = self.0.get(ATTRIBUTES_AT..).unwrap_or_default();
        let crc = crc32c::crc32c_append(crc32c::crc32c(head), body);
        self.put(CRC_AT, crc.to_be_bytes());
        self
    }

    /// The 61 bytes.
    pub fn bytes(&self) -> &[u8; HEADER_BYTES] {
        &self.0
    }

    /// The header, parsed.
    ///
    /// # Errors
    ///
    /// As [`BatchHeader::parse`]; none if the batch was checked before.
    pub fn header(&self) -> Result<BatchHeader, BatchError> {
        BatchHeader::parse(&self.0)
    }

    fn put<const N: usize>(&mut self, at: usize, value: [u8; N]) {
        if let Some(chunk) = self.0.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<N>()) {
            *chunk = value;
        }
    }
}
