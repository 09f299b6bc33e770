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
use crate::producer_state::{NO_EPOCH, ProducerStates};
use crate::types::{Offset, ProducerId, Timestamp};

/// The last thing that is known of a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastOf {
    /// A data batch, which ends with this offset.
    Data(Offset),
    /// Nothing but markers of this producer epoch.
    Marker(i16),
}

/// The last batch of each producer, among those that are committed.
pub(super) fn last_batches(
    producers: &ProducerStates,
    high_watermark: Offset,
) -> HashMap<ProducerId, LastOf> {
    let last_of = |(id, entry): (ProducerId, &crate::producer_state::ProducerEntry)| {
        let batches = entry.batches.batches();
        // A batch that is only staged may be taken back, and then the one before it is the last.
        let committed = batches.iter().rev().find(|batch| batch.last_offset < high_watermark);
        match committed.or(batches.last()) {
            Some(last) => Some((id, LastOf::Data(last.last_offset))),
            None => (entry.epoch != NO_EPOCH).then_some((id, LastOf::Marker(entry.epoch))),
        }
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
            Some(LastOf::Marker(epoch)) => header.is_control() && header.producer_epoch == *epoch,
            None => false,
        }
    }
}
