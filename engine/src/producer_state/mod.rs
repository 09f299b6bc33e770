//! Idempotence and transactions on one partition: Kafka's `ProducerStateManager` (KIP-98, KIP-360, KIP-890).
//!
//! The state of every producer that wrote lately decides whether a batch is new, a repetition, out of order, or a
//! zombie's; and where the first open transaction begins, which bounds what `read_committed` consumers see.
//!
//! Invariants: `open` holds exactly the producers with a `transaction_first_offset`; a state is a function of the
//! headers appended since an empty (or restored) one, so replaying them gives the same state. Pure code: the caller
//! holds the partition's lock. An idle partition without producers costs about 150 bytes and no heap.
//!
//! **Order of use.** `check` (or `check_marker`), then, under the same lock, `append` (or `append_marker`) with the
//! header as it will stand in the log. What is staged but not yet durable is part of the state; if it cannot be
//! written, its [`Undo`] tokens are given back, the latest first.

mod check;
mod entry;
mod error;
mod snapshot;
mod undo;

use std::collections::{BTreeMap, HashMap};

use crate::batch::{BatchHeader, EndMarker, Marker};
use crate::planted::{Bug, planted};
use crate::types::{Offset, ProducerId, Timestamp};

pub use check::{Checks, Verdict, Verification};
pub use entry::{BATCHES_KEPT, BatchMetadata, NO_EPOCH, ProducerEntry, Ring};
pub use error::ProducerError;
pub use snapshot::{SNAPSHOT_VERSION, SnapshotError};
pub use undo::Undo;

use undo::Change;

/// All producers of one partition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProducerStates {
    producers: HashMap<ProducerId, ProducerEntry>,
    /// Open transactions by first offset.
    open: BTreeMap<Offset, ProducerId>,
    /// Ended transactions whose marker is not below the high watermark yet: first offset to the marker's.
    ended: BTreeMap<Offset, Offset>,
    /// Markers that are not below the high watermark yet, and whose they are.
    staged_markers: BTreeMap<Offset, ProducerId>,
    /// The offset behind the last batch that went in.
    end_offset: Offset,
}

/// A transaction that a marker has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletedTransaction {
    pub producer_id: ProducerId,
    /// Offset of its first record on this partition.
    pub first_offset: Offset,
    /// Offset of the marker.
    pub last_offset: Offset,
    /// Aborted ones go into the segment's transaction index.
    pub aborted: bool,
    /// The last stable offset once the marker is in: the first offset of the next open transaction, else the one
    /// behind the marker.
    pub last_stable_offset: Offset,
}

impl ProducerStates {
    /// No producers, nothing appended.
    pub fn new() -> Self {
        Self::default()
    }

    /// The offset behind the last batch that this state includes.
    pub fn end_offset(&self) -> Offset {
        self.end_offset
    }

    /// Number of producers known.
    pub fn len(&self) -> usize {
        self.producers.len()
    }

    /// True without producers.
    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }

    /// What is known about a producer.
    pub fn producer(&self, id: ProducerId) -> Option<&ProducerEntry> {
        self.producers.get(&id)
    }

    /// All producers, in no order.
    pub fn producers(&self) -> impl Iterator<Item = (ProducerId, &ProducerEntry)> {
        self.producers.iter().map(|(id, entry)| (*id, entry))
    }

    /// Whether the producer has a transaction open here.
    pub fn has_open_transaction(&self, id: ProducerId) -> bool {
        self.producers.get(&id).is_some_and(|entry| entry.transaction_first_offset.is_some())
    }

    /// Open transactions by first offset: first offset, producer, its last timestamp.
    pub fn open_transactions(&self) -> impl Iterator<Item = (Offset, ProducerId, Timestamp)> {
        self.open.iter().map(|(offset, id)| {
            let last = self.producers.get(id).map_or(Timestamp::NONE, |entry| entry.last_timestamp);
            (*offset, *id, last)
        })
    }

    /// The first offset that is not stable: of an open transaction, or of one whose marker is not below the high
    /// watermark. `None` if all is stable. May lie below the log start, if records were deleted.
    pub fn first_unstable_offset(&self) -> Option<Offset> {
        let open = self.open.keys().next();
        let ended = self.ended.keys().next().filter(|_| !planted(Bug::StableBeforeCommitted));
        open.into_iter().chain(ended).filter(|_| !planted(Bug::ServeOpenTransactions)).min().copied()
    }

    /// Tells that everything below `high_watermark` is committed: ended transactions there become stable.
    pub fn on_high_watermark(&mut self, high_watermark: Offset) {
        if !self.ended.is_empty() {
            self.ended.retain(|_, marker| *marker >= high_watermark);
        }
        if !self.staged_markers.is_empty() {
            self.staged_markers = self.staged_markers.split_off(&high_watermark);
        }
    }

    /// Whether a marker of the producer may still be taken back, and with it what it made of the producer.
    pub(crate) fn has_staged_marker(&self, id: ProducerId) -> bool {
        self.staged_markers.values().any(|staged| *staged == id)
    }

    /// Takes in a data batch that [`ProducerStates::check`] let through, with its offset (and log append time).
    #[must_use = "keep it until the batch is durable"]
    pub fn append(&mut self, header: &BatchHeader) -> Undo {
        let previous_end = self.end_offset;
        self.end_offset = header.next_offset();
        let Some(id) = header.producer_id.filter(|_| !header.is_control()) else {
            return Undo { previous_end, change: Change::Nothing };
        };
        let known = self.producers.get(&id).copied();
        let entry = self.producers.entry(id).or_insert(ProducerEntry::EMPTY);
        let same_epoch = known.is_some() && entry.epoch == header.producer_epoch;
        if !same_epoch {
            entry.epoch = header.producer_epoch;
            entry.batches = Ring::EMPTY;
        }
        let evicted = entry.batches.push(BatchMetadata::of(header));
        let last_timestamp = std::mem::replace(&mut entry.last_timestamp, header.max_timestamp);
        let mut began = None;
        if header.is_transactional() && entry.transaction_first_offset.is_none() {
            entry.transaction_first_offset = Some(header.base_offset);
            self.open.insert(header.base_offset, id);
            began = Some(header.base_offset);
        }
        let change = if same_epoch {
            Change::Pushed { id, evicted, last_timestamp, began }
        } else {
            Change::Replaced { id, previous: known.map(Box::new), began, ended: None }
        };
        Undo { previous_end, change }
    }

    /// Takes in a marker's batch, with its offset. `header` is the control batch's, `marker` what is in it.
    ///
    /// Returns the transaction it ended, `None` if the producer had none open here.
    #[must_use = "an aborted transaction belongs into the transaction index"]
    pub fn append_marker(
        &mut self,
        header: &BatchHeader,
        marker: EndMarker,
    ) -> (Option<CompletedTransaction>, Undo) {
        let previous_end = self.end_offset;
        self.end_offset = header.next_offset();
        let Some(id) = header.producer_id else {
            return (None, Undo { previous_end, change: Change::Nothing });
        };
        let known = self.producers.get(&id).copied();
        let entry = self.producers.entry(id).or_insert(ProducerEntry::EMPTY);
        if entry.epoch != header.producer_epoch {
            entry.epoch = header.producer_epoch;
            entry.batches = Ring::EMPTY;
        }
        self.staged_markers.insert(header.base_offset, id);
        entry.coordinator_epoch = marker.coordinator_epoch;
        entry.last_timestamp = header.max_timestamp;
        let ended = entry.transaction_first_offset.take();
        let completed = ended.map(|first_offset| {
            self.open.remove(&first_offset);
            self.ended.insert(first_offset, header.base_offset);
            let next_open = self.open.keys().next().copied();
            CompletedTransaction {
                producer_id: id,
                first_offset,
                last_offset: header.base_offset,
                aborted: marker.marker == Marker::Abort,
                last_stable_offset: next_open.unwrap_or(header.next_offset()),
            }
        });
        let change = Change::Replaced { id, previous: known.map(Box::new), began: None, ended };
        (completed, Undo { previous_end, change })
    }

    /// Takes in a batch read back from the log, without checks: whatever is there was let in once.
    ///
    /// `marker` is what [`crate::batch::read_marker`] finds in control batches. A batch below
    /// [`ProducerStates::end_offset`] is already included and ignored, so a scan may begin anywhere before it.
    pub fn replay(
        &mut self,
        header: &BatchHeader,
        marker: Option<EndMarker>,
    ) -> Option<CompletedTransaction> {
        if header.base_offset < self.end_offset {
            return None;
        }
        match marker {
            Some(marker) => {
                let completed = self.append_marker(header, marker).0;
                // It is not taken back any more.
                self.staged_markers.clear();
                completed
            }
            None => {
                let _ = self.append(header);
                None
            }
        }
    }

    /// Takes over producers of which nothing is known yet, as of `end_offset`, from a log that was kept elsewhere.
    pub(crate) fn inherit(
        &mut self,
        end_offset: Offset,
        producers: impl IntoIterator<Item = (ProducerId, ProducerEntry)>,
    ) {
        self.end_offset = end_offset;
        for (id, entry) in producers {
            if self.producers.contains_key(&id) {
                continue;
            }
            if let Some(first) = entry.transaction_first_offset {
                self.open.insert(first, id);
            }
            self.producers.insert(id, entry);
        }
        // What has ended is below the end, which is committed.
        self.ended.clear();
        self.staged_markers.clear();
    }

    /// Says that nothing more will be appended below `offset`: what stood there is gone.
    pub fn advance_to(&mut self, offset: Offset) {
        self.end_offset = self.end_offset.max(offset);
    }

    /// Forgets producers without an open transaction whose last timestamp is `expiration_ms` or more before `now`
    /// (`producer.id.expiration.ms`). Returns how many.
    pub fn expire(&mut self, now: Timestamp, expiration_ms: i64) -> usize {
        let before = self.producers.len();
        if before == 0 {
            return 0;
        }
        self.producers.retain(|_, entry| {
            entry.transaction_first_offset.is_some()
                || now.0.saturating_sub(entry.last_timestamp.0) < expiration_ms
        });
        if self.producers.len() < self.producers.capacity() / 4 {
            self.producers.shrink_to_fit();
        }
        before - self.producers.len()
    }
}

#[cfg(test)]
mod tests;
