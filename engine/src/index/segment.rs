//! Offset and time index of one segment, built from its batches: on append, in recovery, or behind loaded files.
//!
//! The same batches at the same positions give the same entries whichever way they come, so a rebuilt index is equal
//! to the one that grew. Kafka's rule: a batch gets an entry if it begins more than `index.interval.bytes` behind the
//! batch that got the last one (or the segment's start); at that moment the time index gets the largest timestamp
//! so far, if that has grown; closing adds it once more.

use super::error::IndexError;
use super::offset::{OffsetIndex, OffsetPosition};
use super::time::{TimeIndex, TimestampOffset};
use crate::batch::BatchHeader;
use crate::types::{Offset, Timestamp};

/// The indexes of one segment as they grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentIndexes {
    offsets: OffsetIndex,
    times: TimeIndex,
    interval_bytes: u64,
    largest: TimestampOffset,
    /// Last offset of the last batch that was observed.
    observed: Option<Offset>,
}

impl SegmentIndexes {
    /// Indexes of an empty segment.
    pub fn new(base_offset: Offset, interval_bytes: u64) -> Self {
        Self {
            offsets: OffsetIndex::new(base_offset),
            times: TimeIndex::new(base_offset),
            interval_bytes,
            largest: TimestampOffset { timestamp: Timestamp::NONE, offset: base_offset },
            observed: None,
        }
    }

    /// Takes over loaded indexes as far as they describe the segment's first `valid_bytes` bytes, to be continued.
    ///
    /// Returns the position of a batch from which on (inclusive) the segment's batches have to be observed: at most
    /// one interval and one batch in front of `valid_bytes`, if the index was complete. Entries behind
    /// `valid_bytes`, and time entries that the rest of the offset index does not vouch for, are dropped.
    ///
    /// The time index must be at least as complete as the offset index: its bytes are written and synced first (or
    /// both lengths are kept in the checkpoint), since a time entry that is missing cannot be told from one that was
    /// never due. An offset index that is short only makes the scan longer.
    pub fn resume(
        mut offsets: OffsetIndex,
        mut times: TimeIndex,
        interval_bytes: u64,
        base_offset: Offset,
        valid_bytes: u64,
    ) -> (Self, u64) {
        offsets.truncate_to_position(valid_bytes);
        let last = offsets.last();
        times.truncate_to_offset(last.map_or(base_offset, |last| last.offset.plus(1)));
        let largest = times.last();
        let indexes = Self { offsets, times, interval_bytes, largest, observed: None };
        (indexes, last.map_or(0, |last| last.position))
    }

    /// Takes over the indexes of a closed segment. Not to be continued.
    pub fn closed(offsets: OffsetIndex, times: TimeIndex, interval_bytes: u64) -> Self {
        let largest = times.last();
        Self { offsets, times, interval_bytes, largest, observed: None }
    }

    /// Takes note of a batch that begins at byte `position`. Batches come in order; one that is indexed already
    /// changes nothing. Returns whether entries were added.
    ///
    /// # Errors
    ///
    /// If the batch does not fit the segment (offset or position), or comes out of order.
    pub fn observe(&mut self, header: &BatchHeader, position: u64) -> Result<bool, IndexError> {
        let last_offset = header.last_offset();
        if self.observed.is_some_and(|observed| observed >= last_offset) {
            return Err(IndexError::Disorder { kind: "offset", entry: self.offsets.len() });
        }
        self.observed = Some(last_offset);
        if header.max_timestamp > self.largest.timestamp {
            self.largest = TimestampOffset { timestamp: header.max_timestamp, offset: last_offset };
        }
        let indexed = self.offsets.last().map_or(0, |last| last.position);
        if position <= indexed || position - indexed <= self.interval_bytes {
            return Ok(false);
        }
        self.offsets.append(last_offset, position)?;
        self.times.maybe_append(self.largest)?;
        Ok(true)
    }

    /// Adds the last entry of the time index, as Kafka does when a segment is rolled or closed. Harmless twice.
    ///
    /// # Errors
    ///
    /// None after [`SegmentIndexes::observe`] succeeded; the type is that of the index.
    pub fn finish(&mut self) -> Result<(), IndexError> {
        self.times.maybe_append(self.largest)?;
        self.offsets.shrink();
        self.times.shrink();
        Ok(())
    }

    /// The offset index.
    pub fn offsets(&self) -> &OffsetIndex {
        &self.offsets
    }

    /// The time index.
    pub fn times(&self) -> &TimeIndex {
        &self.times
    }

    /// The largest timestamp observed and the last offset of the first batch that has it; no timestamp without one.
    pub fn largest_timestamp(&self) -> TimestampOffset {
        self.largest
    }

    /// From where to scan for the batch with `target`, or the first behind it.
    pub fn position_of(&self, target: Offset) -> u64 {
        self.offsets.lookup(target).position
    }

    /// Whether some batch here has a timestamp of at least `target`: the first such segment has the answer.
    pub fn reaches(&self, target: Timestamp) -> bool {
        self.largest.timestamp >= target
    }

    /// From where to scan for the first record at or behind `from` with a timestamp of at least `target`.
    ///
    /// The scan skips batches for which [`may_answer`] is false, and looks into each other one with
    /// [`crate::batch::first_record_at_or_after`] until that finds a record.
    pub fn position_of_time(&self, target: Timestamp, from: Offset) -> u64 {
        self.lookup_time(target, from).position
    }

    /// As [`Self::position_of_time`], with the last offset of the batch that begins there.
    pub fn lookup_time(&self, target: Timestamp, from: Offset) -> OffsetPosition {
        self.offsets.lookup(self.times.lookup(target).offset.max(from))
    }
}

/// Whether a batch can hold the first record at or behind `from` with a timestamp of at least `target`.
pub fn may_answer(header: &BatchHeader, target: Timestamp, from: Offset) -> bool {
    header.max_timestamp >= target && header.last_offset() >= from && header.record_count > 0
}
