//! Which incarnation of which partition a directory belongs to, and how such a directory is born.
//!
//! A topic that is deleted and created again under its name gets a new id, and a directory of the former
//! incarnation is refused. `partition.json` is written once, before the directory has its final name.

use std::fmt;
use std::io::IoSlice;
use std::path::Path;

use kaas_substrate::{OpenMode, Substrate};
use serde::{Deserialize, Serialize};

use crate::error::EngineError;
use crate::leadership;
use crate::manifest::seal::seal_line;
use crate::manifest::versioned;
use crate::types::Epoch;

/// The format version of partition directories that this build reads and writes.
pub const PARTITION_FORMAT: u32 = 1;

/// Name of the file that carries a directory's identity.
pub const PARTITION_FILE: &str = "partition.json";

const PARTITION_FILE_BYTES_MAX: usize = 64 << 10;

/// Which partition of which incarnation of a topic. In JSON the id is 32 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// The topic's name.
    pub topic: String,
    /// The partition's number, from 0.
    pub partition: u32,
    /// The topic's id: 16 random bytes chosen when the topic was created.
    #[serde(with = "hex_digits")]
    pub topic_id: [u8; 16],
}

impl Identity {
    /// What is to be said of a file that says it is `found`'s, where it should be this partition's; `None` if it is.
    pub(crate) fn differs_from(&self, found: &Self) -> Option<String> {
        (self != found).then(|| format!("it belongs to {found}, not to {self}"))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{} (topic id {})", self.topic, self.partition, hex(&self.topic_id))
    }
}

mod hex_digits {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(id: &[u8; 16], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::hex(id))
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<[u8; 16], D::Error> {
        let text = String::deserialize(deserializer)?;
        super::unhex(&text).ok_or_else(|| D::Error::custom("topic_id is not 32 hex digits"))
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct PartitionFile {
    format: u32,
    #[serde(flatten)]
    identity: Identity,
}

/// Fills the existing directory `dir` with what a partition is born with: its fence, with every epoch up to and
/// including `skipped_up_to` marked as never to be claimed, and `partition.json`.
///
/// Nothing is durable on return. The caller builds the directory under a temporary name, syncs the tree, and
/// renames it into place.
pub fn write_partition(
    substrate: &dyn Substrate,
    dir: &Path,
    identity: &Identity,
    skipped_up_to: Epoch,
) -> Result<(), EngineError> {
    leadership::birth(substrate, dir, skipped_up_to)?;
    let path = dir.join(PARTITION_FILE);
    let bytes = encode(&path, identity)?;
    let file = substrate.open(&path, OpenMode::CreateNew)?;
    file.write_all_at(&[IoSlice::new(&bytes)], 0)?;
    Ok(())
}

/// The bytes of `partition.json`, which will be at `path`.
pub(crate) fn encode(path: &Path, identity: &Identity) -> Result<Vec<u8>, EngineError> {
    let body = PartitionFile { format: PARTITION_FORMAT, identity: identity.clone() };
    let mut bytes = serde_json::to_vec(&body)
        .map_err(|error| EngineError::Damaged { path: path.to_owned(), reason: error.to_string() })?;
    bytes.pop();
    Ok(seal_line(bytes))
}

/// The identity that the partition directory `dir` carries.
pub fn read_partition(substrate: &dyn Substrate, dir: &Path) -> Result<Identity, EngineError> {
    let path = dir.join(PARTITION_FILE);
    let bytes = kaas_substrate::read_small(substrate, &path, PARTITION_FILE_BYTES_MAX)?;
    let body: PartitionFile = versioned::decode(&path, PARTITION_FORMAT, &bytes)?;
    Ok(body.identity)
}

/// 32 hex digits of a topic id.
pub fn hex(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The topic id of 32 hex digits.
pub fn unhex(text: &str) -> Option<[u8; 16]> {
    (text.len() == 32).then_some(())?;
    u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_id_survives_its_text() {
        let id = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255];
        assert_eq!(unhex(&hex(&id)), Some(id));
        assert_eq!(unhex("zz"), None);
        assert_eq!(unhex(&"g".repeat(32)), None);
    }
}
