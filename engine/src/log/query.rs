//! Exact answers about offsets: by time, by leader epoch. They block: segments are opened, batches read.

use std::sync::Arc;

use super::partition::{Partition, SegmentList};
use super::reader::{Isolation, read_batch};
use super::scan::{BatchScanner, Check, Scanned};
use super::segment::Segment;
use crate::batch::{
    BatchError, BatchHeader, DecodeLimits, first_record_at_or_after, record_of_max_timestamp,
};
use crate::error::ReadError;
use crate::log::names::SegmentFile;
use crate::types::{Epoch, Offset, Timestamp};

/// Which offset is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeQuery {
    /// The first record whose timestamp is at least this.
    At(Timestamp),
    /// The record with the largest timestamp (KIP-734); the first of several.
    MaxTimestamp,
}

/// Where a batch stands in its segment's file, and its header.
type Place = (u64, BatchHeader);

/// A batch and the segment it is in.
type Found<'a> = (&'a Arc<Segment>, Place);

/// A record's place in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimestampOffset {
    pub offset: Offset,
    pub timestamp: Timestamp,
    /// The epoch of the leader that appended it.
    pub leader_epoch: Epoch,
}

impl Partition {
    /// The committed record that a question about time asks for, decided record by record; `None` if there is
    /// none. Blocks.
    pub fn offset_for_time(
        self: &Arc<Self>,
        query: TimeQuery,
        isolation: Isolation,
    ) -> Result<Option<TimestampOffset>, ReadError> {
        let status = self.status();
        if let Some(error) = status.state.read_error() {
            return Err(error);
        }
        let limit = match isolation {
            Isolation::ReadUncommitted => status.high_watermark,
            Isolation::ReadCommitted => status.last_stable,
        };
        self.with_segments(|segments| match query {
            TimeQuery::At(target) => self.first_at(segments, target, status.log_start, limit),
            TimeQuery::MaxTimestamp => self.max_timestamp(segments, status.log_start, limit),
        })
    }

    fn first_at(
        self: &Arc<Self>,
        segments: &SegmentList,
        target: Timestamp,
        from: Offset,
        limit: Offset,
    ) -> Result<Option<TimestampOffset>, ReadError> {
        let mut from = from;
        for segment in segments.iter() {
            while segment.end_offset() > from && segment.state().max_timestamp >= target {
                let found = self.find_batch(segment, Some(target), from, limit, |header| {
                    header.max_timestamp >= target && header.last_offset() >= from
                })?;
                let Some((position, header)) = found else { break };
                let open = self.open_segment(segment)?;
                let batch = read_batch(&*open.file, position, &header, segment)?;
                let record = first_record_at_or_after(&batch, target, from, &DecodeLimits::default())
                    .map_err(|error| damaged(segment, position, &error))?;
                if let Some((offset, timestamp)) = record {
                    let leader_epoch = epoch_of(&header, segment);
                    return Ok(Some(TimestampOffset { offset, timestamp, leader_epoch }));
                }
                // Only what lies below the log start, or was compacted away, was late enough: the next batches decide.
                from = header.next_offset();
            }
        }
        Ok(None)
    }

    fn max_timestamp(
        self: &Arc<Self>,
        segments: &SegmentList,
        from: Offset,
        limit: Offset,
    ) -> Result<Option<TimestampOffset>, ReadError> {
        let mut best: Option<(Timestamp, &Arc<Segment>)> = None;
        for segment in segments.iter().filter(|segment| segment.end_offset() > from) {
            let state = segment.state();
            if state.bytes > 0 && best.is_none_or(|(timestamp, _)| state.max_timestamp > timestamp) {
                best = Some((state.max_timestamp, segment));
            }
        }
        let Some((largest, segment)) = best else { return Ok(None) };
        let found = self.find_batch(segment, Some(largest), from, limit, |header| {
            header.max_timestamp == largest && header.record_count > 0
        })?;
        // The batch with the largest timestamp may not be committed yet, or lie below the log start, or compaction may
        // have emptied it: look at all.
        let (segment, (position, header)) = match found {
            Some(found) => (segment, found),
            None => match self.largest_by_scan(segments, from, limit)? {
                Some(found) => found,
                None => return Ok(None),
            },
        };
        let open = self.open_segment(segment)?;
        let batch = read_batch(&*open.file, position, &header, segment)?;
        let record = record_of_max_timestamp(&batch, &DecodeLimits::default())
            .map_err(|error| damaged(segment, position, &error))?;
        let (offset, timestamp) = record.unwrap_or((header.last_offset(), header.max_timestamp));
        Ok(Some(TimestampOffset { offset, timestamp, leader_epoch: epoch_of(&header, segment) }))
    }

    fn largest_by_scan<'a>(
        self: &Arc<Self>,
        segments: &'a SegmentList,
        from: Offset,
        limit: Offset,
    ) -> Result<Option<Found<'a>>, ReadError> {
        let mut best: Option<Found<'_>> = None;
        for segment in segments.iter().filter(|segment| segment.end_offset() > from) {
            let largest = best.map_or(Timestamp(i64::MIN), |(_, (_, header))| header.max_timestamp);
            if segment.state().max_timestamp <= largest {
                continue;
            }
            let mut candidate = largest;
            self.find_batch(segment, None, from, limit, |header| {
                if header.record_count > 0 {
                    candidate = candidate.max(header.max_timestamp);
                }
                false
            })?;
            if candidate > largest
                && let Some(found) = self.find_batch(segment, None, from, limit, |header| {
                    header.max_timestamp == candidate && header.record_count > 0
                })?
            {
                best = Some((segment, found));
            }
        }
        Ok(best)
    }

    /// The first batch of a segment, between `from` and `limit`, that `wanted` accepts. With a timestamp, batches
    /// that the time index knows to be earlier are skipped.
    fn find_batch(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        timestamp: Option<Timestamp>,
        from: Offset,
        limit: Offset,
        mut wanted: impl FnMut(&BatchHeader) -> bool,
    ) -> Result<Option<Place>, ReadError> {
        let open = self.open_segment(segment)?;
        let hint = {
            let indexes = open.indexes.lock();
            match timestamp {
                Some(timestamp) => indexes.lookup_time(timestamp, from),
                None => indexes.lookup(from),
            }
        };
        let start = self.start_of_walk(segment, &open, hint)?;
        let mut scanner = BatchScanner::new(&*open.file, start, segment.bytes(), Check::Headers);
        loop {
            match scanner.next()? {
                Scanned::Batch { header, .. } if header.next_offset() > limit => return Ok(None),
                Scanned::Batch { position, header } if header.last_offset() >= from && wanted(&header) => {
                    return Ok(Some((position, header)));
                }
                Scanned::Batch { .. } => {}
                Scanned::End => return Ok(None),
                Scanned::Torn { position, reason } => {
                    return Err(ReadError::Damaged {
                        path: segment.path(SegmentFile::Log),
                        position,
                        reason,
                    });
                }
            }
        }
    }

    /// The end of a leader epoch, as Kafka's `OffsetForLeaderEpoch` answers it: the largest epoch at or below
    /// `epoch` that has records (or is the current one), and the offset where the next epoch begins.
    ///
    /// `None` for an epoch above the current one, and for one below every epoch in the log. Cheap.
    pub fn end_offset_for_epoch(&self, epoch: Epoch) -> Option<(Epoch, Offset)> {
        let status = self.status();
        let current = self.epoch();
        if epoch == current {
            return Some((current, status.high_watermark));
        }
        if epoch > current {
            return None;
        }
        let segments = Arc::clone(&*self.segments.read());
        let mut found = None;
        for (begun, start) in segments.iter().flat_map(|segment| segment.leader_epochs()) {
            if begun > epoch {
                // Below every epoch in the log: the first one's beginning, as Kafka.
                return Some((found.unwrap_or(epoch), start.max(status.log_start)));
            }
            found = Some(begun);
        }
        Some((found.unwrap_or(epoch), status.high_watermark))
    }

    /// The epoch of the record at the log start offset; the current one if there is none. Cheap.
    pub fn epoch_of_log_start(&self) -> Epoch {
        let status = self.status();
        let log_start = status.log_start;
        if log_start == status.high_watermark {
            // The next record there is one of this epoch.
            return self.epoch();
        }
        let segments = Arc::clone(&*self.segments.read());
        let mut epochs = segments.iter().flat_map(|segment| segment.leader_epochs()).peekable();
        // Before a rewritten segment offsets may be missing: the first epoch there is, then.
        let first = epochs.peek().map_or(self.epoch(), |(epoch, _)| *epoch);
        epochs.take_while(|(_, start)| *start <= log_start).last().map_or(first, |(epoch, _)| epoch)
    }
}

/// The epoch of the leader that appended a batch.
fn epoch_of(header: &BatchHeader, segment: &Segment) -> Epoch {
    Epoch::from_wire(header.partition_leader_epoch).unwrap_or(segment.name.epoch)
}

fn damaged(segment: &Segment, position: u64, error: &BatchError) -> ReadError {
    ReadError::Damaged { path: segment.path(SegmentFile::Log), position, reason: error.to_string() }
}
