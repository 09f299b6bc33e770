//! What stays of a batch: Kafka's rules (`Cleaner.cleanInto` and `MemoryRecords.filterTo`), on one batch at a time.
//!
//! - A record stays if no newer one with its key is known, or if it lies behind what the map covers. Records without
//!   keys go: a compacted topic refuses them, and they stem from before it was one.
//! - A tombstone stays until its batch's delete horizon has passed: `delete.retention.ms` behind the first round that
//!   found it to be the newest of its key. Who reads the log from its beginning within that time learns of the deletion.
//! - Batches of aborted transactions go at once. A marker stays as long as a batch of its transaction does, and then until
//!   its own delete horizon.
//! - The last batch of a producer that is known stays, if need be without records: its sequence number is all that is
//!   left of the producer, should its state be lost. So does the last batch of each output, which keeps the
//!   end of what was compacted.

use std::collections::HashMap;

use bytes::Bytes;

use super::offset_map::OffsetMap;
use super::transactions::{MarkerUse, Transactions};
use crate::batch::{
    BatchError, BatchHeader, DecodeLimits, Record, Retained, emptied, read_marker, retain_records,
};
use crate::index::AbortedTransaction;
use crate::planted::{Bug, planted};
use crate::producer_state::{BATCHES_KEPT, BatchMetadata, NO_EPOCH, ProducerEntry, ProducerStates};
use crate::types::{Offset, ProducerId, Timestamp};

/// The last thing that is committed of a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastOf {
    /// A data batch, which ends with this offset.
    Data(Offset),
    /// A data batch of this producer epoch, which ends with this sequence number: as many batches as are remembered of a
    /// producer follow it, and none of them is committed.
    Before { epoch: i16, sequence: i32 },
    /// Any of its batches: what is remembered is not committed, and says nothing of what was before.
    Any,
    /// Nothing but markers of this producer epoch.
    Marker(i16),
}

/// The last batch of each producer, among those that are committed. What is only staged may be taken back, and then the one
/// before it is the last.
pub(super) fn last_batches(
    producers: &ProducerStates,
    high_watermark: Offset,
) -> HashMap<ProducerId, LastOf> {
    let last_of = |(id, entry): (ProducerId, &ProducerEntry)| {
        let batches = entry.batches.batches();
        let committed = batches.iter().rev().find(|batch| batch.last_offset < high_watermark);
        let last = match (committed, batches.first().map(BatchMetadata::first_sequence)) {
            (Some(last), _) => LastOf::Data(last.last_offset),
            (None, Some(first)) if batches.len() == BATCHES_KEPT && first > 0 => {
                LastOf::Before { epoch: entry.epoch, sequence: first - 1 }
            }
            (None, Some(_)) => LastOf::Any,
            // A marker of a new epoch makes a producer's batches be forgotten, and may be taken back.
            (None, None) if producers.has_staged_marker(id) => LastOf::Any,
            (None, None) if entry.epoch != NO_EPOCH => LastOf::Marker(entry.epoch),
            (None, None) => return None,
        };
        Some((id, last))
    };
    producers.producers().filter_map(last_of).collect()
}

/// The rules of one round.
pub(super) struct Filter<'a> {
    pub(super) map: &'a OffsetMap,
    pub(super) producers: &'a HashMap<ProducerId, LastOf>,
    pub(super) now: Timestamp,
    /// `delete.retention.ms`.
    pub(super) delete_retention_ms: i64,
    pub(super) limits: DecodeLimits,
}

/// What stays of a batch.
#[derive(Debug, PartialEq)]
pub(super) struct Kept {
    /// The batch as it goes into the output; `None`: it goes.
    pub(super) batch: Option<Bytes>,
    /// An aborted transaction for the output's transaction index.
    pub(super) aborted: Option<AbortedTransaction>,
}

impl Filter<'_> {
    /// Decides about the next batch of the log, whose CRC has been checked.
    pub(super) fn apply(
        &self,
        transactions: &mut Transactions,
        header: &BatchHeader,
        batch: Bytes,
        is_last_of_output: bool,
    ) -> Result<Kept, BatchError> {
        let stays_empty = is_last_of_output || self.is_last_of_producer(header);
        let (retained, aborted) = if header.is_control() {
            self.control(transactions, header, &batch)?
        } else if transactions.data(header) {
            (Retained::Nothing, None)
        } else {
            (self.records(&batch, false, |record| self.wanted(header, record))?, None)
        };
        let batch = match retained {
            Retained::Whole => Some(batch),
            Retained::Rewritten(rewritten) => Some(rewritten),
            Retained::Nothing => stays_empty.then(|| emptied(&batch)).transpose()?,
        };
        Ok(Kept { batch, aborted })
    }

    fn control(
        &self,
        transactions: &mut Transactions,
        header: &BatchHeader,
        batch: &Bytes,
    ) -> Result<(Retained, Option<AbortedTransaction>), BatchError> {
        match transactions.control(header, read_marker(batch)?) {
            MarkerUse::Needed(aborted) => Ok((Retained::Whole, aborted)),
            MarkerUse::Unneeded if self.is_past_horizon(header) => Ok((Retained::Nothing, None)),
            MarkerUse::Unneeded => Ok((self.records(batch, true, |_| true)?, None)),
        }
    }

    fn records(
        &self,
        batch: &Bytes,
        is_removable_marker: bool,
        keep: impl FnMut(&Record) -> bool,
    ) -> Result<Retained, BatchError> {
        let horizon = Timestamp(self.now.0.saturating_add(self.delete_retention_ms));
        retain_records(batch, &self.limits, is_removable_marker, horizon, keep)
    }

    /// Whether a record stays.
    fn wanted(&self, header: &BatchHeader, record: &Record) -> bool {
        if self.map.latest().is_none_or(|latest| record.offset > latest) {
            return true;
        }
        let Some(key) = &record.key else { return false };
        let newest = self.map.get(key).is_none_or(|newest| record.offset >= newest);
        let expired = self.is_past_horizon(header) || planted(Bug::TombstonesAtOnce);
        newest && (record.value.is_some() || !expired)
    }

    fn is_past_horizon(&self, header: &BatchHeader) -> bool {
        header.attributes.has_delete_horizon() && self.now >= header.base_timestamp
    }

    fn is_last_of_producer(&self, header: &BatchHeader) -> bool {
        if planted(Bug::ForgetProducers) {
            return false;
        }
        match header.producer_id.and_then(|id| self.producers.get(&id)) {
            Some(LastOf::Data(offset)) => !header.is_control() && header.last_offset() == *offset,
            Some(LastOf::Before { epoch, sequence }) => {
                !header.is_control() && header.producer_epoch == *epoch && header.last_sequence() == *sequence
            }
            Some(LastOf::Any) => true,
            Some(LastOf::Marker(epoch)) => header.is_control() && header.producer_epoch == *epoch,
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Attributes, Compression, EndMarker, Marker};

    fn header(offset: i64, base_sequence: i32) -> BatchHeader {
        BatchHeader {
            producer_id: Some(ProducerId(7)),
            producer_epoch: 3,
            base_sequence,
            ..BatchHeader::plain(offset, 2)
        }
    }

    #[test]
    fn batches_that_are_not_committed_do_not_hide_the_last_one_that_is() {
        let mut producers = ProducerStates::new();
        let mut stage = |offset: i64, base_sequence| {
            let _ = producers.append(&header(offset, base_sequence));
            last_batches(&producers, Offset(10)).get(&ProducerId(7)).copied()
        };
        assert_eq!(stage(8, 4), Some(LastOf::Data(Offset(9))));
        for number in 1..5 {
            let last = stage(8 + i64::from(number) * 2, 4 + number * 2);
            assert_eq!(last, Some(LastOf::Data(Offset(9))), "{number} are not committed");
        }
        let last = stage(18, 14);
        assert_eq!(last, Some(LastOf::Before { epoch: 3, sequence: 5 }));
        let (map, limits) = (OffsetMap::new(1000, 0.9), DecodeLimits::default());
        let of_producers = HashMap::from([(ProducerId(7), last.unwrap())]);
        let filter =
            Filter { map: &map, producers: &of_producers, now: Timestamp(0), delete_retention_ms: 0, limits };
        assert!(filter.is_last_of_producer(&header(8, 4)));
        assert!(!filter.is_last_of_producer(&header(6, 2)));
        assert!(!filter.is_last_of_producer(&BatchHeader { producer_epoch: 2, ..header(8, 4) }));
    }

    #[test]
    fn a_marker_of_a_new_epoch_that_is_not_committed_hides_nothing() {
        let mut producers = ProducerStates::new();
        let _ = producers.append(&header(8, 4));
        let control = BatchHeader {
            attributes: Attributes::new(Compression::None, true, true),
            producer_epoch: 4,
            record_count: 1,
            last_offset_delta: 0,
            ..header(10, -1)
        };
        let end = EndMarker { marker: Marker::Commit, coordinator_epoch: 0 };
        let (_, undo) = producers.append_marker(&control, end);
        let last_at = |producers: &ProducerStates, high_watermark: i64| {
            last_batches(producers, Offset(high_watermark)).get(&ProducerId(7)).copied()
        };
        // What was before it is not known any more, and is the last if the marker is taken back: so everything stays.
        assert_eq!(last_at(&producers, 10), Some(LastOf::Any));
        let (map, limits) = (OffsetMap::new(1000, 0.9), DecodeLimits::default());
        let of_producers = HashMap::from([(ProducerId(7), LastOf::Any)]);
        let filter =
            Filter { map: &map, producers: &of_producers, now: Timestamp(0), delete_retention_ms: 0, limits };
        assert!(filter.is_last_of_producer(&header(8, 4)) && filter.is_last_of_producer(&control));
        let mut committed = producers.clone();
        committed.on_high_watermark(Offset(11));
        assert_eq!(last_at(&committed, 11), Some(LastOf::Marker(4)));
        producers.undo(undo);
        assert_eq!(last_at(&producers, 10), Some(LastOf::Data(Offset(9))));
        // One that was read back from the log is committed.
        producers.replay(&control, Some(end));
        assert_eq!(last_at(&producers, 11), Some(LastOf::Marker(4)));
    }

    #[test]
    fn nothing_is_known_of_what_was_before_the_first_batches_of_an_epoch() {
        let mut producers = ProducerStates::new();
        let _ = producers.append(&header(10, 0));
        assert_eq!(last_batches(&producers, Offset(10)).get(&ProducerId(7)), Some(&LastOf::Any));
        assert_eq!(last_batches(&producers, Offset(12)).get(&ProducerId(7)), Some(&LastOf::Data(Offset(11))));
    }
}
