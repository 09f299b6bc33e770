//! The one place that picks Kafka's error codes, and words.
//!
//! Which code a failure gets decides what clients do next: retry, refresh their metadata, give up. Where Kafka
//! has words for a failure, these are they: people search for them.

use kaas_control::ControlError;
use kaas_protocol::{ErrorCode, KString};

use crate::config::ConfigError;
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
            ControlError::FenceUnknown { .. } => Self::new(Code::REQUEST_TIMED_OUT, error.to_string()),
            ControlError::Storage(_)
            | ControlError::Locked { .. }
            | ControlError::NewerFormat { .. }
            | ControlError::Damaged { .. }
            | ControlError::ForeignDirectory { .. }
            | ControlError::MissingMeta { .. }
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
