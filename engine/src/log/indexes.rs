//! The three indexes of one segment, as the log uses them. The structures themselves are in [`crate::index`].

use crate::batch::BatchHeader;
use crate::index::{
    AbortedTransaction, IndexError, OffsetIndex, OffsetPosition, SegmentIndexes, TimeIndex, TxnIndex,
};
use crate::producer_state::CompletedTransaction;
use crate::types::{Offset, Timestamp};

/// Offset, time and transaction index of a segment.
#[derive(Debug)]
pub(crate) struct LogIndexes {
    segment: SegmentIndexes,
    txn: TxnIndex,
}

/// The contents of the three index files.
#[derive(Debug, Default)]
pub(crate) struct IndexImages {
    pub(crate) offset: Vec<u8>,
    pub(crate) time: Vec<u8>,
    pub(crate) txn: Vec<u8>,
}

impl LogIndexes {
    /// Of an empty segment.
    pub(crate) fn new(base_offset: Offset, interval_bytes: u64) -> Self {
        Self { segment: SegmentIndexes::new(base_offset, interval_bytes), txn: TxnIndex::new() }
    }

    /// Of a segment that nothing will be added to, as far as it counts: up to `end_offset`.
    pub(crate) fn closed(
        base_offset: Offset,
        interval_bytes: u64,
        images: &IndexImages,
        end_offset: Offset,
        bytes: u64,
    ) -> Result<Self, IndexError> {
        let mut offsets = OffsetIndex::from_bytes(base_offset, &images.offset)?;
        let mut times = TimeIndex::from_bytes(base_offset, &images.time)?;
        let mut txn = TxnIndex::from_bytes(base_offset, &images.txn)?;
        offsets.truncate_to_offset(end_offset);
        offsets.truncate_to_position(bytes);
        times.truncate_to_offset(end_offset);
        txn.truncate_to_offset(end_offset);
        Ok(Self { segment: SegmentIndexes::closed(offsets, times, interval_bytes), txn })
    }

    /// Of a segment's first `valid_bytes` bytes, to be continued; and the position of the batch from which on the
    /// segment's batches have to be added.
    pub(crate) fn resume(
        base_offset: Offset,
        interval_bytes: u64,
        images: &IndexImages,
        valid_bytes: u64,
    ) -> Result<(Self, u64), IndexError> {
        let offsets = OffsetIndex::from_bytes(base_offset, &images.offset)?;
        let times = TimeIndex::from_bytes(base_offset, &images.time)?;
        let txn = TxnIndex::from_bytes(base_offset, &images.txn)?;
        let (segment, position) =
            SegmentIndexes::resume(offsets, times, interval_bytes, base_offset, valid_bytes);
        Ok((Self { segment, txn }, position))
    }

    /// Takes note of a batch at `position`.
    pub(crate) fn append(&mut self, header: &BatchHeader, position: u64) {
        // A batch without an entry costs a lookup a longer walk, nothing else.
        if let Err(error) = self.segment.observe(header, position) {
            tracing::warn!(offset = %header.base_offset, position, %error, "no index entry for a batch");
        }
    }

    /// Takes note of a transaction that a marker in this segment has aborted.
    pub(crate) fn append_aborted(&mut self, ended: &CompletedTransaction) {
        self.append_aborted_transaction(&AbortedTransaction::from(ended));
    }

    /// As [`Self::append_aborted`], where it was in an index before.
    pub(crate) fn append_aborted_transaction(&mut self, aborted: &AbortedTransaction) {
        if let Err(error) = self.txn.append(aborted) {
            tracing::error!(marker = %aborted.last_offset, %error, "an aborted transaction is not indexed");
        }
    }

    /// Adds the last time entry, as when a segment is closed.
    pub(crate) fn finish(&mut self) {
        if let Err(error) = self.segment.finish() {
            tracing::warn!(%error, "no last entry in a time index");
        }
    }

    /// Whether the offset index has no room for another entry within `max_bytes`.
    pub(crate) fn is_full(&self, max_bytes: u64) -> bool {
        let entry_bytes = OffsetIndex::ENTRY_BYTES as u64;
        let next = (self.segment.offsets().len() as u64).saturating_add(1);
        next.saturating_mul(entry_bytes) > max_bytes.max(entry_bytes)
    }

    pub(crate) fn images(&self) -> IndexImages {
        IndexImages {
            offset: self.segment.offsets().as_bytes().to_vec(),
            time: self.segment.times().as_bytes().to_vec(),
            txn: self.txn.as_bytes().to_vec(),
        }
    }

    /// Where the index says to look for the batch that holds `offset`; the segment's start without an entry.
    pub(crate) fn lookup(&self, offset: Offset) -> OffsetPosition {
        self.segment.offsets().lookup(offset)
    }

    /// Where the indexes say to look for the first record at or behind `from` that is at least as late as `target`.
    pub(crate) fn lookup_time(&self, target: Timestamp, from: Offset) -> OffsetPosition {
        self.segment.lookup_time(target, from)
    }

    /// The last batch boundary that is known at or before byte `position`, of a batch below `limit`; with the last
    /// offset of the batch that begins there.
    pub(crate) fn boundary(&self, position: u64, limit: Offset) -> Option<OffsetPosition> {
        self.segment.offsets().last_below(position, limit)
    }

    pub(crate) fn has_aborted(&self) -> bool {
        !self.txn.is_empty()
    }

    /// See [`TxnIndex::collect`].
    pub(crate) fn collect_aborted(
        &self,
        from: Offset,
        up_to: Offset,
        found: &mut Vec<AbortedTransaction>,
    ) -> bool {
        self.txn.collect(from, up_to, found)
    }
}
