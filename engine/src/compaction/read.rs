//! Reading a closed segment batch by batch, whole, with every CRC checked: what the cleaner writes anew gets a new CRC,
//! so damage that passed here would be hidden for good.

use std::sync::Arc;

use bytes::Bytes;
use kaas_substrate::File;

use super::Throttle;
use crate::batch::{BatchHeader, HEADER_BYTES, check_crc};
use crate::error::EngineError;
use crate::log::names::SegmentFile;
use crate::log::segment::Segment;

/// The batches of a segment, in order.
pub(super) struct Batches<'a> {
    segment: &'a Segment,
    file: Arc<dyn File>,
    position: u64,
    end: u64,
    /// Bytes of the file from `position` on.
    piece: Bytes,
    buffer_bytes: usize,
    throttle: &'a Throttle,
    goes_on: &'a dyn Fn() -> bool,
}

impl<'a> Batches<'a> {
    /// The batches from the one at byte `position` on.
    pub(super) fn new(
        segment: &'a Segment,
        file: Arc<dyn File>,
        position: u64,
        buffer_bytes: usize,
        throttle: &'a Throttle,
        goes_on: &'a dyn Fn() -> bool,
    ) -> Self {
        let end = segment.bytes();
        Self { segment, file, position, end, piece: Bytes::new(), buffer_bytes, throttle, goes_on }
    }

    /// Whether the batch returned last is the segment's last one.
    pub(super) fn is_at_end(&self) -> bool {
        self.position >= self.end
    }

    /// The next batch.
    ///
    /// # Errors
    ///
    /// [`EngineError::Damaged`] where no whole, undamaged batch stands; [`EngineError::Closed`] when the round is to
    /// end.
    pub(super) fn next(&mut self) -> Result<Option<(BatchHeader, Bytes)>, EngineError> {
        if self.is_at_end() {
            return Ok(None);
        }
        self.have(HEADER_BYTES)?;
        let header = BatchHeader::parse(&self.piece).map_err(|error| self.damaged(&error))?;
        let left = self.end - self.position;
        if header.batch_bytes as u64 > left {
            let reason = format!("the batch has {} bytes, of which {left} count", header.batch_bytes);
            return Err(self.damaged(&reason));
        }
        self.have(header.batch_bytes)?;
        check_crc(&self.piece).map_err(|error| self.damaged(&error))?;
        let batch = self.piece.split_to(header.batch_bytes);
        self.position += header.batch_bytes as u64;
        Ok(Some((header, batch)))
    }

    /// Sees to it that the piece has `bytes` bytes, if the segment has as many.
    fn have(&mut self, bytes: usize) -> Result<(), EngineError> {
        let left = usize::try_from(self.end - self.position).unwrap_or(usize::MAX);
        if self.piece.len() >= bytes.min(left) {
            return Ok(());
        }
        if !(self.goes_on)() {
            return Err(EngineError::Closed);
        }
        let mut piece = vec![0; self.buffer_bytes.max(bytes).min(left)];
        let read = self.file.read_at(&mut piece, self.position)?;
        piece.truncate(read);
        self.throttle.spent(read, self.goes_on);
        self.piece = piece.into();
        Ok(())
    }

    /// What is wrong with the batch at the position.
    pub(super) fn damaged(&self, reason: &dyn std::fmt::Display) -> EngineError {
        let path = self.segment.path(SegmentFile::Log);
        EngineError::Damaged { path, reason: format!("at byte {}: {reason}", self.position) }
    }
}
