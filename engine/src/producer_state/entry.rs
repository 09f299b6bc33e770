//! What a partition remembers about one producer (KIP-98): its epoch, its last five batches, its transaction.

use crate::batch::{BatchHeader, decrement_sequence};
use crate::types::{Offset, Timestamp};

/// How many batches a producer may have in flight, and so how many can come twice.
pub const BATCHES_KEPT: usize = 5;

/// No epoch has been seen: whatever comes first is taken.
pub const NO_EPOCH: i16 = -1;

/// An appended batch, as needed to recognise it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchMetadata {
    pub last_sequence: i32,
    pub last_offset: Offset,
    /// Last offset minus base offset.
    pub offset_delta: i32,
    pub timestamp: Timestamp,
}

impl BatchMetadata {
    const EMPTY: Self =
        Self { last_sequence: -1, last_offset: Offset(-1), offset_delta: 0, timestamp: Timestamp::NONE };

    /// What there is to remember about an appended batch.
    pub fn of(header: &BatchHeader) -> Self {
        Self {
            last_sequence: header.last_sequence(),
            last_offset: header.last_offset(),
            offset_delta: header.last_offset_delta,
            timestamp: header.max_timestamp,
        }
    }

    /// Sequence number of the first record.
    pub fn first_sequence(&self) -> i32 {
        decrement_sequence(self.last_sequence, self.offset_delta)
    }

    /// Offset of the first record.
    pub fn base_offset(&self) -> Offset {
        self.last_offset.plus(-i64::from(self.offset_delta))
    }
}

/// The last batches of one producer epoch, oldest first. Inline, so that a producer costs one map entry.
#[derive(Debug, Clone, Copy)]
pub struct Ring {
    slots: [BatchMetadata; BATCHES_KEPT],
    length: u8,
}

impl Ring {
    /// No batches.
    pub const EMPTY: Self = Self { slots: [BatchMetadata::EMPTY; BATCHES_KEPT], length: 0 };

    /// The batches, oldest first.
    pub fn batches(&self) -> &[BatchMetadata] {
        self.slots.get(..usize::from(self.length)).unwrap_or_default()
    }

    /// The batch appended last.
    pub fn last(&self) -> Option<&BatchMetadata> {
        self.batches().last()
    }

    /// Adds a batch; returns the one that had to make room.
    pub fn push(&mut self, batch: BatchMetadata) -> Option<BatchMetadata> {
        let length = usize::from(self.length);
        if let Some(slot) = self.slots.get_mut(length) {
            *slot = batch;
            self.length += 1;
            return None;
        }
        let evicted = self.slots.first().copied();
        self.slots.rotate_left(1);
        if let Some(slot) = self.slots.last_mut() {
            *slot = batch;
        }
        evicted
    }

    /// Takes back the last [`Ring::push`], given what it returned.
    pub(super) fn unpush(&mut self, evicted: Option<BatchMetadata>) {
        match evicted {
            Some(evicted) => {
                self.slots.rotate_right(1);
                if let Some(slot) = self.slots.first_mut() {
                    *slot = evicted;
                }
            }
            None => self.length = self.length.saturating_sub(1),
        }
    }
}

impl PartialEq for Ring {
    fn eq(&self, other: &Self) -> bool {
        self.batches() == other.batches()
    }
}

impl Eq for Ring {}

/// One producer on one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerEntry {
    /// Highest epoch that wrote; [`NO_EPOCH`] before any.
    pub epoch: i16,
    /// Epoch of the coordinator whose marker came last; -1 before any.
    pub coordinator_epoch: i32,
    /// Max timestamp of the last batch, or the marker's; what expiry goes by, as in Kafka.
    pub last_timestamp: Timestamp,
    /// Where the open transaction begins.
    pub transaction_first_offset: Option<Offset>,
    /// The last batches of `epoch`.
    pub batches: Ring,
}

impl ProducerEntry {
    /// A producer of which nothing is known.
    pub const EMPTY: Self = Self {
        epoch: NO_EPOCH,
        coordinator_epoch: -1,
        last_timestamp: Timestamp::NONE,
        transaction_first_offset: None,
        batches: Ring::EMPTY,
    };

    /// Sequence number of the last record; -1 if no batch of this epoch is known.
    pub fn last_sequence(&self) -> i32 {
        self.batches.last().map_or(-1, |batch| batch.last_sequence)
    }

    /// The batch that `header` repeats: same epoch, same first and last sequence.
    pub fn duplicate_of(&self, header: &BatchHeader) -> Option<&BatchMetadata> {
        if header.producer_epoch != self.epoch {
            return None;
        }
        let (first, last) = (header.base_sequence, header.last_sequence());
        self.batches
            .batches()
            .iter()
            .find(|batch| batch.first_sequence() == first && batch.last_sequence == last)
    }
}
