//! What is staged and who waits for it: the memory half of group commit.
//!
//! Everything here lives under the partition's lock and makes no system call. Batches are staged in the order of
//! their offsets; the worker takes them from the front. Waiters are told in the order of their offsets.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::batch::{BatchError, BatchHeader, EndMarker, HEADER_BYTES, StampedHeader};
use crate::completion::Completion;
use crate::error::AppendError;
use crate::log::tail::TailBatch;
use crate::producer_state::Undo;
use crate::types::{Epoch, Offset, Timestamp};

/// A batch of which the frame around it is more than so many times larger is copied out of it, so that a batch
/// that stays in the tail does not keep a large frame alive.
const FRAME_SHARE: usize = 2;

/// Where an append ended up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Offset of the first record.
    pub base_offset: Offset,
    /// Offset of the last record (inclusive).
    pub last_offset: Offset,
    /// The timestamp the records got, if the topic's timestamps are the broker's.
    pub log_append_time: Option<Timestamp>,
    /// First offset of the log at that time.
    pub log_start: Offset,
}

/// What an append's ticket is told.
pub type AppendOutcome = Result<Appended, AppendError>;

/// A batch that waits to be written.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) header: BatchHeader,
    pub(crate) stamped: StampedHeader,
    pub(crate) body: Bytes,
    /// What it says, if it is a control batch.
    pub(crate) marker: Option<EndMarker>,
    /// Takes the producer's state back if the batch is never written.
    pub(crate) undo: Option<Undo>,
}

impl Staged {
    pub(crate) fn new(
        header: BatchHeader,
        batch: &Bytes,
        base_offset: Offset,
        epoch: Epoch,
        log_append_time: Option<Timestamp>,
    ) -> Result<Self, BatchError> {
        let body = batch.slice(HEADER_BYTES.min(batch.len())..);
        let mut stamped = StampedHeader::new(batch, base_offset, epoch)?;
        if let Some(now) = log_append_time {
            stamped = stamped.with_log_append_time(now, &body);
        }
        let header = match log_append_time {
            Some(_) => stamped.header()?,
            None => header.appended_at(base_offset, epoch),
        };
        Ok(Self { header, stamped, body, marker: None, undo: None })
    }

    /// Moves the batch to the offset it is assigned.
    pub(crate) fn assign(&mut self, base_offset: Offset, epoch: Epoch) {
        self.header = self.header.appended_at(base_offset, epoch);
        self.stamped = self.stamped.appended_at(base_offset, epoch);
    }

    pub(crate) fn bytes(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }

    /// The batch for readers at the tail; copied into one piece if it is a small part of its frame.
    pub(crate) fn to_tail(&self, small_bytes: usize) -> TailBatch {
        let (base_offset, end_offset) = (self.header.base_offset, self.header.next_offset());
        if self.bytes() <= small_bytes {
            let mut copy = BytesMut::with_capacity(self.bytes());
            copy.extend_from_slice(self.stamped.bytes());
            copy.extend_from_slice(&self.body);
            return TailBatch { base_offset, end_offset, header: copy.freeze(), body: Bytes::new() };
        }
        let header = Bytes::copy_from_slice(self.stamped.bytes());
        TailBatch { base_offset, end_offset, header, body: self.body.clone() }
    }
}

/// The batch's bytes, out of its frame if that is much larger than the batch.
pub(crate) fn detach(batch: Bytes, frame_bytes: usize) -> Bytes {
    if batch.len().saturating_mul(FRAME_SHARE) < frame_bytes { Bytes::copy_from_slice(&batch) } else { batch }
}

/// Somebody who waits until the log has got to `end`.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// Exclusive.
    pub(crate) end: Offset,
    pub(crate) appended: Appended,
    pub(crate) completion: Completion<AppendOutcome>,
}

/// Waiters in the order of their ends.
#[derive(Debug, Default)]
pub(crate) struct Waiters(VecDeque<Waiter>);

impl Waiters {
    /// Adds a waiter; one for a duplicate may lie below waiters that are there.
    pub(crate) fn push(&mut self, waiter: Waiter) {
        let at = self.0.partition_point(|other| other.end <= waiter.end);
        self.0.insert(at, waiter);
    }

    /// Takes those that `end` satisfies.
    pub(crate) fn take_up_to(&mut self, end: Offset) -> Vec<Waiter> {
        let count = self.0.partition_point(|waiter| waiter.end <= end);
        self.0.drain(..count).collect()
    }

    /// Takes those that wait for something above `end`.
    pub(crate) fn take_above(&mut self, end: Offset) -> Vec<Waiter> {
        let count = self.0.partition_point(|waiter| waiter.end <= end);
        self.0.drain(count..).collect()
    }
}

/// Tells waiters outside of the lock.
#[derive(Debug, Default)]
pub(crate) struct Told(Vec<(Completion<AppendOutcome>, AppendOutcome)>);

impl Told {
    pub(crate) fn succeed(&mut self, waiters: Vec<Waiter>) {
        self.0.extend(waiters.into_iter().map(|waiter| (waiter.completion, Ok(waiter.appended))));
    }

    pub(crate) fn fail(&mut self, waiters: Vec<Waiter>, error: &AppendError) {
        self.0.extend(waiters.into_iter().map(|waiter| (waiter.completion, Err(error.clone()))));
    }

    /// Wakes everybody. To be called without the lock.
    pub(crate) fn tell(self) {
        for (completion, outcome) in self.0 {
            completion.complete(outcome);
        }
    }
}
