//! Whose directory it is: `partition.json` against the directory's place, `topic-id.json`, topic configs.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kaas_substrate::read_small;
use serde::Deserialize;

use super::Context;
use super::finding::{Finding, Kind};
use super::view::{decode_as, unsealed};
use crate::error::EngineError;
use crate::identity::{Identity, PARTITION_FILE, hex, read_partition};
pub(super) use crate::layout::{TOPIC_CONFIG, TOPIC_ID_FILE};

/// Largest metadata file that is read.
pub(super) const FILE_BYTES_MAX: usize = 16 << 20;

/// What the surroundings of a partition's directory say about it; `None`: nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Expected {
    pub topic: Option<String>,
    pub topic_id: Option<[u8; 16]>,
    pub partition: Option<u32>,
}

impl Expected {
    /// The identity, if all of it is known.
    pub(super) fn identity(&self) -> Option<Identity> {
        let (topic, topic_id) = (self.topic.clone()?, self.topic_id?);
        Some(Identity { topic, partition: self.partition?, topic_id })
    }
}

/// `topic-id.json`.
#[derive(Debug, Deserialize)]
struct TopicIdFile {
    topic: String,
    topic_id: String,
}

/// The partition that a directory's name stands for. Only the canonical spelling counts.
pub(super) fn partition_number(name: &str) -> Option<u32> {
    name.parse::<u32>().ok().filter(|number| number.to_string() == name)
}

/// A topic id as the controller writes it: 22 characters of URL-safe base64; 32 hex digits are taken too.
fn parse_topic_id(text: &str) -> Option<[u8; 16]> {
    let decoded = URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| bytes.try_into().ok());
    decoded.or_else(|| crate::identity::unhex(text))
}

/// The id as the controller writes it.
pub(super) fn show_topic_id(id: &[u8; 16]) -> String {
    URL_SAFE_NO_PAD.encode(id)
}

/// `partition.json` of the partition directory `dir`.
pub(super) fn check(context: &Context<'_>, dir: &Path, expected: &Expected, findings: &mut Vec<Finding>) {
    let path = dir.join(PARTITION_FILE);
    let found = match read_partition(context.substrate, dir) {
        Ok(found) => found,
        Err(error) => {
            let (kind, problem) = match error {
                EngineError::Storage(error) if error.is_not_found() => {
                    (Kind::IdentityMissing, "it is not there".to_owned())
                }
                EngineError::Storage(error) if error.is_too_long() => {
                    (Kind::IdentityDamaged, error.to_string())
                }
                EngineError::Storage(error) => (Kind::Unreadable, error.to_string()),
                EngineError::Damaged { reason, .. } => {
                    (Kind::IdentityDamaged, format!("it cannot be read: {reason}"))
                }
                EngineError::NewerFormat { found, supported, .. } => {
                    let problem =
                        format!("it has format {found}; this version of kaas reads up to {supported}");
                    (Kind::NewerFormat, problem)
                }
                other => (Kind::IdentityDamaged, other.to_string()),
            };
            findings.push(Finding::new(kind, &path, problem));
            return;
        }
    };
    if let Ok(bytes) = read_small(context.substrate, &path, FILE_BYTES_MAX) {
        findings.extend(unsealed(&path, &bytes));
    }
    let Identity { topic, partition, topic_id } = &found;
    let mut differs = |what: &str, found: &str, expected: &str| {
        let problem = format!("it says {what} {found}; the directory is that of {expected}");
        findings.push(Finding::new(Kind::ForeignDirectory, &path, problem));
    };
    if let Some(expected) = expected.topic.as_ref().filter(|expected| *expected != topic) {
        differs("topic", topic, expected);
    }
    if let Some(expected) = expected.partition.filter(|expected| expected != partition) {
        differs("partition", &partition.to_string(), &expected.to_string());
    }
    if let Some(expected) = expected.topic_id.as_ref().filter(|expected| *expected != topic_id) {
        differs("topic id", &hex(topic_id), &hex(expected));
    }
}

/// `topic-id.json` of the topic directory `dir`; the topic's id if it can be told.
pub(super) fn check_topic(
    context: &Context<'_>,
    dir: &Path,
    name: Option<&str>,
    findings: &mut Vec<Finding>,
) -> Option<[u8; 16]> {
    let path = dir.join(TOPIC_ID_FILE);
    let bytes = match read_small(context.substrate, &path, FILE_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) => {
            let kind = match &error {
                error if error.is_not_found() => Kind::TopicIdMissing,
                error if error.is_too_long() => Kind::TopicIdDamaged,
                _ => Kind::Unreadable,
            };
            let gone = kind == Kind::TopicIdMissing;
            let problem = if gone { "it is not there".to_owned() } else { error.to_string() };
            findings.push(Finding::new(kind, &path, problem));
            return None;
        }
    };
    let found: TopicIdFile = match decode_as(&path, &bytes, Kind::TopicIdDamaged) {
        Ok(found) => found,
        Err(finding) => {
            findings.push(finding);
            return None;
        }
    };
    findings.extend(unsealed(&path, &bytes));
    if let Some(name) = name.filter(|name| *name != found.topic) {
        let problem = format!("it says topic {}; the directory is that of {name}", found.topic);
        findings.push(Finding::new(Kind::ForeignDirectory, &path, problem));
    }
    let id = parse_topic_id(&found.topic_id);
    if id.is_none() {
        let problem = format!("topic id {:?} is not the base64 of 16 bytes", found.topic_id);
        findings.push(Finding::new(Kind::TopicIdDamaged, &path, problem));
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids() {
        assert_eq!(partition_number("10"), Some(10));
        for other in ["", "01", "+1", "-1", "1a", "99999999999"] {
            assert_eq!(partition_number(other), None, "{other}");
        }
        assert_eq!(parse_topic_id("AAAAAAAAAAAAAAAAAAAAAQ").map(|id| id[15]), Some(1));
        assert_eq!(parse_topic_id("000000000000000000000000000000ff").map(|id| id[15]), Some(255));
        assert_eq!(parse_topic_id("AAAA"), None);
        assert_eq!(parse_topic_id(&show_topic_id(&[7; 16])), Some([7; 16]));
    }
}
