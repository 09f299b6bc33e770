//! Whether a batch or a marker may be appended: Kafka's `ProducerAppendInfo`, rule by rule and in its order.

use super::{BatchMetadata, NO_EPOCH, ProducerEntry, ProducerError, ProducerStates};
use crate::batch::{BatchHeader, EndMarker};
use crate::types::{Offset, ProducerId, Timestamp};

/// What to do with a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is new.
    Append,
    /// It is in the log already, at these offsets (inclusive): answer as if it had just been appended.
    Duplicate { base_offset: Offset, last_offset: Offset, timestamp: Timestamp },
}

impl From<&BatchMetadata> for Verdict {
    fn from(batch: &BatchMetadata) -> Self {
        Self::Duplicate {
            base_offset: batch.base_offset(),
            last_offset: batch.last_offset,
            timestamp: batch.timestamp,
        }
    }
}

/// What else to demand of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checks {
    /// A transactional batch needs a transaction that is open here already (`transaction.partition.verification.
    /// enable`). The caller leaves it out once the coordinator has confirmed the partition for this request.
    pub require_open_transaction: bool,
    /// The verification under way for this producer, if there is one.
    pub verification: Option<Verification>,
}

/// What is known about a producer whose first batch of a transaction is being verified (KIP-890).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verification {
    /// The lowest first sequence that has come since: no later one may get in before it.
    pub lowest_sequence: i32,
    /// The producer bumps its epoch with every transaction (transaction version 2), so that it begins at 0 where
    /// nothing is known of it.
    pub bumps_epoch: bool,
}

impl ProducerStates {
    /// Judges a data batch of a client; batches without a producer id always pass.
    ///
    /// - A batch with the epoch, first and last sequence of one of the last five is a duplicate, whatever else.
    /// - An epoch below the last one is a zombie's.
    /// - A new epoch must begin at sequence 0; so must the first batch behind a marker that raised the epoch.
    /// - Within an epoch a batch must follow its predecessor (`i32::MAX` is followed by 0).
    /// - Of a producer that is not known, any sequence is taken: its state may have expired, or been deleted with
    ///   its records.
    /// - A plain batch is refused while the producer's transaction is open.
    ///
    /// # Errors
    ///
    /// The first of these rules that is broken.
    pub fn check(&self, header: &BatchHeader, checks: &Checks) -> Result<Verdict, ProducerError> {
        let Some(producer_id) = header.producer_id else { return Ok(Verdict::Append) };
        let entry = self.producer(producer_id).unwrap_or(&ProducerEntry::EMPTY);
        if let Some(duplicate) = entry.duplicate_of(header) {
            return Ok(duplicate.into());
        }
        let open = entry.transaction_first_offset.is_some();
        if checks.require_open_transaction && header.is_transactional() && !open {
            return Err(ProducerError::NoTransaction { producer_id });
        }
        check_epoch(entry, producer_id, header.producer_epoch)?;
        check_verification(entry, producer_id, header, checks.verification)?;
        check_sequence(entry, producer_id, header)?;
        if open && !header.is_transactional() {
            return Err(ProducerError::NotTransactional { producer_id });
        }
        Ok(Verdict::Append)
    }

    /// Judges a marker: neither the producer's nor the coordinator's epoch may be lower than before.
    ///
    /// # Errors
    ///
    /// [`ProducerError::InvalidProducerEpoch`] or [`ProducerError::CoordinatorFenced`].
    pub fn check_marker(
        &self,
        producer_id: ProducerId,
        producer_epoch: i16,
        marker: EndMarker,
    ) -> Result<(), ProducerError> {
        let entry = self.producer(producer_id).unwrap_or(&ProducerEntry::EMPTY);
        check_epoch(entry, producer_id, producer_epoch)?;
        let (found, current) = (marker.coordinator_epoch, entry.coordinator_epoch);
        if found < current {
            return Err(ProducerError::CoordinatorFenced { producer_id, found, current });
        }
        Ok(())
    }
}

fn check_epoch(entry: &ProducerEntry, producer_id: ProducerId, found: i16) -> Result<(), ProducerError> {
    if found < entry.epoch {
        return Err(ProducerError::InvalidProducerEpoch { producer_id, found, current: entry.epoch });
    }
    Ok(())
}

fn check_verification(
    entry: &ProducerEntry,
    producer_id: ProducerId,
    header: &BatchHeader,
    verification: Option<Verification>,
) -> Result<(), ProducerError> {
    let Some(Verification { lowest_sequence, bumps_epoch }) = verification else { return Ok(()) };
    let (epoch, found) = (header.producer_epoch, header.base_sequence);
    if bumps_epoch && found != 0 && entry.batches.last().is_none() {
        return Err(ProducerError::OutOfOrderSequence { producer_id, epoch, found, last: -1 });
    }
    if found > lowest_sequence {
        return Err(ProducerError::SequenceBehindVerification {
            producer_id,
            found,
            lowest: lowest_sequence,
        });
    }
    Ok(())
}

fn check_sequence(
    entry: &ProducerEntry,
    producer_id: ProducerId,
    header: &BatchHeader,
) -> Result<(), ProducerError> {
    let (epoch, found) = (header.producer_epoch, header.base_sequence);
    let current = entry.epoch;
    if current == NO_EPOCH {
        return Ok(());
    }
    if epoch != current {
        return match found {
            0 => Ok(()),
            _ => Err(ProducerError::SequenceOfNewEpoch { producer_id, epoch, found, current }),
        };
    }
    let last = entry.last_sequence();
    let follows = i64::from(found) == i64::from(last) + 1 || (found == 0 && last == i32::MAX);
    if follows { Ok(()) } else { Err(ProducerError::OutOfOrderSequence { producer_id, epoch, found, last }) }
}
