//! The cluster's id, as clients see it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::metadata::TopicId;

/// Longest cluster id in bytes.
const BYTES_MAX: usize = 128;

/// Names the cluster for good. Made as Kafka makes it, 22 characters of URL-safe base64; one given by an operator
/// may be any 1 to 128 visible ASCII characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterId(String);

/// Not a cluster id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a cluster id has 1 to {BYTES_MAX} visible ASCII characters, '{text}' has not")]
pub struct ClusterIdError {
    text: String,
}

impl ClusterId {
    /// A random one.
    pub fn random() -> Self {
        Self(TopicId::random().to_string())
    }

    /// One given by an operator.
    pub fn parse(text: &str) -> Result<Self, ClusterIdError> {
        let valid = (1..=BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        if valid { Ok(Self(text.to_owned())) } else { Err(ClusterIdError { text: text.to_owned() }) }
    }

    /// The id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for ClusterId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for ClusterId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_as_kafka_makes_it_or_given() {
        let id = ClusterId::random();
        assert_eq!((id.as_str().len(), ClusterId::parse(id.as_str())), (22, Ok(id)));
        for bad in ["", "a b", "ü", &"x".repeat(129)] {
            assert!(ClusterId::parse(bad).is_err(), "{bad}");
        }
    }
}
