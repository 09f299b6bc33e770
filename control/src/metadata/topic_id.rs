//! Topic ids: which incarnation of a name a topic is (KIP-516).

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A 128-bit id. Shown and stored as Kafka shows it: 22 characters of URL-safe base64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(pub [u8; 16]);

/// Not 22 characters of URL-safe base64.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a base64 id of 16 bytes")]
pub struct IdError {
    text: String,
}

impl TopicId {
    /// "No id" on the wire; never given to a topic.
    pub const ZERO: Self = Self([0; 16]);

    /// The id Kafka reserves for its metadata log; never given to a topic.
    pub const RESERVED_ONE: Self = Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

    /// A random id: a version 4 UUID, none of the reserved ones, and not starting with `-` when shown (tools would
    /// take it for an option).
    pub fn random() -> Self {
        loop {
            let id = Self(*uuid::Uuid::new_v4().as_bytes());
            if id != Self::ZERO && id != Self::RESERVED_ONE && !id.to_string().starts_with('-') {
                return id;
            }
        }
    }

    /// Reads what [`fmt::Display`] shows.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let invalid = || IdError { text: text.to_owned() };
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid())?;
        bytes.try_into().map(Self).map_err(|_| invalid())
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for TopicId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TopicId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_as_kafka_shows_it() {
        assert_eq!(TopicId::ZERO.to_string(), "AAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(TopicId::RESERVED_ONE.to_string(), "AAAAAAAAAAAAAAAAAAAAAQ");
        for _ in 0..1000 {
            let id = TopicId::random();
            assert!(!id.to_string().starts_with('-'));
            assert_eq!(TopicId::parse(&id.to_string()), Ok(id));
        }
        for bad in ["", "AAAA", "AAAAAAAAAAAAAAAAAAAAA!", "AAAAAAAAAAAAAAAAAAAAAAAAA"] {
            assert!(TopicId::parse(bad).is_err(), "{bad}");
        }
    }
}
