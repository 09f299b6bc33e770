//! Why a producer's batch or a coordinator's marker is not appended.

use crate::types::ProducerId;

/// A refusal by the producer's state on this partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProducerError {
    /// A zombie: a later epoch of this producer has written here (`INVALID_PRODUCER_EPOCH`).
    #[error("producer {producer_id} writes with epoch {found}, epoch {current} has written already")]
    InvalidProducerEpoch { producer_id: ProducerId, found: i16, current: i16 },
    /// A gap, or an old batch that is no longer known (`OUT_OF_ORDER_SEQUENCE_NUMBER`).
    #[error("producer {producer_id}, epoch {epoch}: sequence {found} does not follow {last}")]
    OutOfOrderSequence { producer_id: ProducerId, epoch: i16, found: i32, last: i32 },
    /// The first batch of a new epoch does not begin at 0 (`OUT_OF_ORDER_SEQUENCE_NUMBER`).
    #[error("producer {producer_id} begins epoch {epoch} at sequence {found}, not 0 (epoch was {current})")]
    SequenceOfNewEpoch { producer_id: ProducerId, epoch: i16, found: i32, current: i16 },
    /// An earlier batch of this transaction is still being verified (`OUT_OF_ORDER_SEQUENCE_NUMBER`).
    #[error("producer {producer_id}: sequence {found} came before {lowest}, which is still being verified")]
    SequenceBehindVerification { producer_id: ProducerId, found: i32, lowest: i32 },
    /// A plain batch while this producer's transaction is open (`INVALID_TXN_STATE`).
    #[error("producer {producer_id} has an open transaction here, the batch is not transactional")]
    NotTransactional { producer_id: ProducerId },
    /// A transactional batch that the coordinator does not know of (`INVALID_TXN_STATE`).
    #[error("producer {producer_id} has no verified or open transaction here")]
    NoTransaction { producer_id: ProducerId },
    /// A coordinator that has been replaced (`TRANSACTION_COORDINATOR_FENCED`).
    #[error("marker of coordinator epoch {found} for producer {producer_id}, {current} has written already")]
    CoordinatorFenced { producer_id: ProducerId, found: i32, current: i32 },
}
