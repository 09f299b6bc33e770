//! The one place that picks Kafka's error codes, and words.
//!
//! Which code a failure gets decides what clients do next: retry, refresh their metadata, give up. Where Kafka
//! has words for a failure, these are they: people search for them.

use kaas_control::ControlError;
use kaas_engine::batch::{BatchError, BatchErrorClass};
use kaas_engine::producer_state::ProducerError;
use kaas_engine::types::Epoch;
use kaas_engine::{AppendError, EngineError, MayBeNoSpace, ReadError};
use kaas_protocol::{ErrorCode, KString};

use crate::config::ConfigError;
use crate::group::state::{GroupError, code_of};
use crate::partitions::OpenError;
use crate::server::Overloaded;

/// A code and the words that go with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Never `NONE`.
    pub code: ErrorCode,
    /// For people; `None` where the code says it all.
    pub message: Option<String>,
}

impl Failure {
    /// A code alone.
    pub fn bare(code: ErrorCode) -> Self {
        Self { code, message: None }
    }

    /// A code with words.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: Some(message.into()) }
    }

    /// `INVALID_REQUEST` with words.
    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::INVALID_REQUEST, message)
    }

    /// Whether the topic or partition does not exist, as far as this broker knows.
    pub fn is_unknown_topic(&self) -> bool {
        matches!(self.code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION | ErrorCode::UNKNOWN_TOPIC_ID)
    }

    /// The words as the wire has them.
    pub fn text(&self) -> Option<KString> {
        self.message.as_deref().map(KString::from)
    }
}

impl From<Overloaded> for Failure {
    fn from(error: Overloaded) -> Self {
        // Retriable: the client comes back when the volume has caught up.
        Self::new(ErrorCode::REQUEST_TIMED_OUT, error.to_string())
    }
}

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        use ErrorCode as Code;
        match &error {
            ControlError::Name(reason) => Self::new(Code::INVALID_TOPIC_EXCEPTION, reason.to_string()),
            ControlError::TopicExists { name } => {
                Self::new(Code::TOPIC_ALREADY_EXISTS, format!("Topic '{name}' already exists."))
            }
            ControlError::TopicCollides { name, existing } => Self::new(
                Code::INVALID_TOPIC_EXCEPTION,
                format!("Topic '{name}' collides with existing topic: {existing}"),
            ),
            ControlError::UnknownTopic { name } => {
                Self::new(Code::UNKNOWN_TOPIC_OR_PARTITION, format!("The topic '{name}' does not exist."))
            }
            ControlError::UnknownTopicId { .. } => {
                Self::new(Code::UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            }
            ControlError::PartitionCount { name, current, requested } if current == requested => Self::new(
                Code::INVALID_PARTITIONS,
                format!("Topic '{name}' already has {current} partition(s)."),
            ),
            ControlError::PartitionCount { name, current, requested } => Self::new(
                Code::INVALID_PARTITIONS,
                format!(
                    "The topic {name} currently has {current} partition(s); {requested} would not be an increase."
                ),
            ),
            ControlError::PartitionLimit { .. } => Self::new(Code::INVALID_PARTITIONS, error.to_string()),
            // Another process acts by now; the client finds it by asking again.
            ControlError::Deposed { .. } => Self::new(Code::NOT_CONTROLLER, error.to_string()),
            ControlError::FenceUnknown { .. } => {
                tracing::warn!(%error, "a change of metadata was not made");
                Self::new(Code::REQUEST_TIMED_OUT, error.to_string())
            }
            ControlError::Storage(_)
            | ControlError::Locked { .. }
            | ControlError::NewerFormat { .. }
            | ControlError::Damaged { .. }
            | ControlError::ForeignDirectory { .. }
            | ControlError::MissingMeta { .. }
            | ControlError::NotEmpty { .. }
            | ControlError::Vanishing { .. }
            | ControlError::ProducerIdsExhausted
            | ControlError::Partition { .. }
            | ControlError::Claim { .. } => {
                tracing::error!(%error, "a change of metadata failed");
                Self::new(Code::KAFKA_STORAGE_ERROR, error.to_string())
            }
        }
    }
}

/// A refused config of a topic.
pub fn topic_config(error: &ConfigError) -> Failure {
    let code = if error.is_request_error() { ErrorCode::INVALID_REQUEST } else { ErrorCode::INVALID_CONFIG };
    Failure::new(code, error.to_string())
}

/// A refused config of a broker.
pub fn broker_config(error: &ConfigError) -> Failure {
    Failure::new(ErrorCode::INVALID_REQUEST, error.to_string())
}

/// A batch that a client may not append.
pub fn batch(error: &BatchError) -> Failure {
    let code = match error.class() {
        BatchErrorClass::Corrupt => ErrorCode::CORRUPT_MESSAGE,
        BatchErrorClass::Invalid => ErrorCode::INVALID_RECORD,
        BatchErrorClass::TooLarge => ErrorCode::MESSAGE_TOO_LARGE,
        BatchErrorClass::Timestamp => ErrorCode::INVALID_TIMESTAMP,
        BatchErrorClass::Compression => ErrorCode::UNSUPPORTED_COMPRESSION_TYPE,
    };
    let words = match error {
        // Kafka's, which people search for; its topic and partition stand beside them.
        BatchError::NoKey { index } => {
            format!("Compacted topic cannot accept message without key (record {index} of the batch)")
        }
        error => error.to_string(),
    };
    Failure::new(code, words)
}

fn producer(error: &ProducerError) -> Failure {
    let code = match error {
        ProducerError::InvalidProducerEpoch { .. } => ErrorCode::INVALID_PRODUCER_EPOCH,
        ProducerError::OutOfOrderSequence { .. }
        | ProducerError::SequenceOfNewEpoch { .. }
        | ProducerError::SequenceBehindVerification { .. } => ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER,
        ProducerError::NotTransactional { .. } | ProducerError::NoTransaction { .. } => {
            ErrorCode::INVALID_TXN_STATE
        }
        ProducerError::CoordinatorFenced { .. } => ErrorCode::TRANSACTION_COORDINATOR_FENCED,
    };
    Failure::new(code, error.to_string())
}

/// An append that did not happen, or may not have.
pub fn append(error: &AppendError) -> Failure {
    let code = match error {
        AppendError::Batch(error) => return batch(error),
        AppendError::Producer(error) => return producer(error),
        AppendError::Busy { .. } => ErrorCode::REQUEST_TIMED_OUT,
        AppendError::NotLeader { .. } => ErrorCode::NOT_LEADER_OR_FOLLOWER,
        AppendError::Stalled { .. }
        | AppendError::NoSpace(_)
        | AppendError::NoDescriptors(_)
        | AppendError::Storage { .. } => ErrorCode::KAFKA_STORAGE_ERROR,
    };
    Failure::new(code, error.to_string())
}

/// A read that found nothing to answer with.
pub fn read(error: &ReadError) -> Failure {
    match error {
        ReadError::OffsetOutOfRange { .. } => Failure::bare(ErrorCode::OFFSET_OUT_OF_RANGE),
        ReadError::NotLeader { .. } => Failure::bare(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        // Not CORRUPT_MESSAGE: that tells a consumer to give up, and the volume may be repaired.
        ReadError::Storage(_) | ReadError::Damaged { .. } => {
            Failure::new(ErrorCode::KAFKA_STORAGE_ERROR, error.to_string())
        }
    }
}

/// A partition that cannot be opened or changed.
pub fn engine(error: &EngineError) -> Failure {
    let code = match error {
        full if full.is_no_space() => ErrorCode::KAFKA_STORAGE_ERROR,
        EngineError::Claim(_)
        | EngineError::Deposed { .. }
        | EngineError::Closed
        | EngineError::Poisoned { .. }
        | EngineError::EngineClosed => ErrorCode::NOT_LEADER_OR_FOLLOWER,
        // The directory is another topic's by now.
        EngineError::Foreign { .. } => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        EngineError::OffsetOutOfRange { .. } => ErrorCode::OFFSET_OUT_OF_RANGE,
        EngineError::Storage(_)
        | EngineError::Damaged { .. }
        | EngineError::NewerFormat { .. }
        | EngineError::DedupeBufferTooSmall { .. } => ErrorCode::KAFKA_STORAGE_ERROR,
    };
    Failure::new(code, error.to_string())
}

/// A partition that cannot be had.
pub fn open(error: &OpenError) -> Failure {
    let code = match error {
        OpenError::Engine(error) => return engine(error),
        OpenError::Control(ControlError::Deposed { .. }) | OpenError::Stopping => {
            ErrorCode::NOT_LEADER_OR_FOLLOWER
        }
        OpenError::Control(_) | OpenError::Overloaded => ErrorCode::KAFKA_STORAGE_ERROR,
        OpenError::Gone => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
    };
    Failure::new(code, error.to_string())
}

/// Refuses a client whose idea of the leader epoch is not ours (KIP-320); -1 asks for no check.
pub fn check_epoch(asked: i32, current: Epoch) -> Result<(), Failure> {
    let code = match Epoch::from_wire(asked) {
        // Lower than every epoch there can be.
        None if asked != -1 => ErrorCode::FENCED_LEADER_EPOCH,
        Some(asked) if asked < current => ErrorCode::FENCED_LEADER_EPOCH,
        Some(asked) if asked > current => ErrorCode::UNKNOWN_LEADER_EPOCH,
        _ => return Ok(()),
    };
    Err(Failure::bare(code))
}

/// The code of a group request's outcome: [`GroupError`] is one to one with Kafka's codes.
pub fn group(error: Option<GroupError>) -> ErrorCode {
    ErrorCode(code_of(error))
}
