//! Why a config was refused. The words follow Kafka's, since people search for them.

use super::definition::ConfigType;

/// A refused config. For topics the answer is INVALID_CONFIG, for brokers Kafka answers INVALID_REQUEST
/// (KAFKA-13609), except that [`ConfigError::is_request_error`] means INVALID_REQUEST for both.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    #[error("Unknown topic config name: {name}")]
    UnknownTopicConfig { name: String },
    #[error("Unknown broker config name: {name}")]
    UnknownBrokerConfig { name: String },
    #[error("Invalid value {value} for configuration {name}: Not a number of type {kind}")]
    NotANumber { name: String, value: String, kind: ConfigType },
    #[error("Invalid value {value} for configuration {name}: Expected value to be either true or false")]
    NotABoolean { name: String, value: String },
    #[error("Invalid value {value} for configuration {name}: {rule}")]
    OutOfRange { name: String, value: String, rule: String },
    /// Valid in Kafka, but kaas could only ignore it.
    #[error("Invalid value {value} for configuration {name}: {reason}")]
    Unsupported { name: String, value: String, reason: &'static str },
    #[error("conflict topic config setting {lower_name} ({lower}) > {upper_name} ({upper})")]
    Conflict { lower_name: &'static str, lower: i64, upper_name: &'static str, upper: i64 },
    #[error("Cannot update these configs dynamically: {name}")]
    NotDynamic { name: String },
    #[error("Can't {operation} to key {name} because its type is not LIST.")]
    NotAList { name: String, operation: &'static str },
    #[error("Null value not supported for : {name}")]
    NullValue { name: String },
    #[error("Error due to duplicate config keys: {name}")]
    Duplicate { name: String },
    #[error("Unknown operations type {code}")]
    UnknownOperation { code: i8 },
}

impl ConfigError {
    /// Whether the request is malformed rather than the config invalid.
    pub fn is_request_error(&self) -> bool {
        matches!(self, Self::NullValue { .. } | Self::Duplicate { .. } | Self::UnknownOperation { .. })
    }

    /// The config the error is about, where it is about one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::UnknownTopicConfig { name }
            | Self::UnknownBrokerConfig { name }
            | Self::NotANumber { name, .. }
            | Self::NotABoolean { name, .. }
            | Self::OutOfRange { name, .. }
            | Self::Unsupported { name, .. }
            | Self::NotDynamic { name }
            | Self::NotAList { name, .. }
            | Self::NullValue { name }
            | Self::Duplicate { name } => Some(name),
            Self::Conflict { lower_name, .. } => Some(lower_name),
            Self::UnknownOperation { .. } => None,
        }
    }
}
