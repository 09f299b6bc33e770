//! Names and formats of what is outside of partitions in a data directory: what the control plane keeps there and tools read
//! or write without it. See `docs/formats.md`.

use std::io::IoSlice;
use std::path::{Path, PathBuf};

use kaas_substrate::{OpenMode, Substrate, remove_tree};
use serde::{Deserialize, Serialize};

use crate::leadership;
use crate::manifest::versioned::{self, FileKind, VersionedError};
use crate::types::Epoch;

/// The directory of topics.
pub const TOPICS_DIR: &str = "topics";

/// The directory of what belongs to the cluster rather than to a topic.
pub const CLUSTER_DIR: &str = "cluster";

/// The directory within it whose claimed epoch is the controller's.
pub const CONTROLLER_DIR: &str = "controller";

/// The file within it that a broker (or a tool that changes the directory) holds a lock on.
pub const LOCK_FILE: &str = "lock";

/// What the data directory is, within [`CLUSTER_DIR`].
pub const META_FILE: &str = "meta.json";

/// Whether a cluster id is one that brokers take: 1 to 128 printable ASCII characters.
pub fn is_cluster_id(id: &str) -> bool {
    (1..=128).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Kafka's rules for topic names.
pub(crate) fn is_topic_name(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=249).contains(&name.len()) && name != "." && name != ".." && name.bytes().all(legal)
}

/// The format of the data directory that is written, and the highest that is read.
pub const DATA_FORMAT: u32 = 1;

/// Prefix of directories that are not whole yet.
pub const NEW_PREFIX: &str = "~new-";

/// Which incarnation of its name a topic's directory is.
pub const TOPIC_ID_FILE: &str = "topic-id.json";

/// The format of [`TOPIC_ID_FILE`] that is written, and the highest that is read.
pub const TOPIC_ID_FORMAT: u32 = 1;

/// `config.<epoch>.<n>.json` of a topic.
pub const TOPIC_CONFIG: FileKind = FileKind::json("config", 1);

/// `producer-ids.<epoch>.<n>.json` of the cluster: which producer ids have been reserved.
pub const PRODUCER_IDS: FileKind = FileKind::json("producer-ids", 1);

/// Producer ids are reserved in blocks of this many.
pub const PRODUCER_IDS_BLOCK: i64 = 1000;

/// Number of slots that groups are spread over. Never to be changed.
pub const GROUP_SLOTS: usize = 50;

/// The directory of slots, and within it that of groups.
pub const SLOTS_DIR: &str = "slots";
pub const GROUPS_DIR: &str = "groups";

/// `producer-ids.<epoch>.<n>.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProducerIdsFile {
    /// The first id that no block contains.
    pub next_block_start: i64,
}

/// The directory of a slot of groups.
pub fn group_slot_dir(slot: usize) -> PathBuf {
    Path::new(SLOTS_DIR).join(GROUPS_DIR).join(format!("{slot:02}"))
}

/// What the files of the slot in `dir`, relative to the substrate's root, say that they are of: the last two names, as in
/// `groups/07`. `None` if the directory is not two levels below [`SLOTS_DIR`]: a copy that lies elsewhere.
pub(crate) fn slot_name(substrate: &dyn Substrate, dir: &Path) -> Option<String> {
    let path = substrate.root().join(dir);
    let mut names = path.ancestors().map(|path| path.file_name().and_then(|name| name.to_str()));
    let (slot, kind, slots) = (names.next()??, names.next()??, names.next()??);
    (slots == SLOTS_DIR).then(|| format!("{kind}/{slot}"))
}

/// The slot of a group: Java's `String.hashCode` of its id, without the sign, modulo the number of slots.
pub fn slot_of(group_id: &str, slots: usize) -> usize {
    let hash =
        group_id.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    // Kafka takes the absolute value, and 0 for the one number that has none.
    let positive = hash.checked_abs().and_then(|hash| usize::try_from(hash).ok()).unwrap_or(0);
    positive.checked_rem(slots).unwrap_or(0)
}

/// `meta.json`; `Id` is shown as 1 to 128 visible ASCII characters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta<Id> {
    pub cluster_id: Id,
    pub node_id: i32,
}

/// `topic-id.json`; `Id` is shown as 22 characters of URL-safe base64.
#[derive(Debug, Serialize, Deserialize)]
pub struct TopicIdFile<Id> {
    pub topic: String,
    pub topic_id: Id,
}

/// A topic's own configs: names and values.
#[derive(Debug, Serialize, Deserialize)]
pub struct TopicConfigFile<Map> {
    pub config: Map,
}

/// Bears the directory `cluster/`: built aside (`unique` makes its name), made durable, renamed into place. If it is there
/// already, that one stays: another process was faster, and its directory is as good. Durable on return.
pub fn bear_cluster<Id: Serialize>(
    substrate: &dyn Substrate,
    unique: &str,
    meta: &Meta<Id>,
) -> Result<(), VersionedError> {
    let name = format!("{NEW_PREFIX}{CLUSTER_DIR}-{unique}");
    let dir = Path::new(&name);
    substrate.create_dir(dir)?;
    let path = dir.join(META_FILE);
    write_new(substrate, &path, &versioned::encode(&path, DATA_FORMAT, meta)?)?;
    let controller = dir.join(CONTROLLER_DIR);
    substrate.create_dir(&controller)?;
    leadership::birth(substrate, &controller, Epoch::NONE)?;
    substrate.sync_tree(dir)?;
    match substrate.rename(dir, Path::new(CLUSTER_DIR)) {
        Err(error) if error.is_exists() => {
            let _ = remove_tree(substrate, dir);
        }
        outcome => outcome?,
    }
    Ok(substrate.sync_dir(Path::new(""))?)
}

/// Writes a new file; durable only with its tree.
pub fn write_new(substrate: &dyn Substrate, path: &Path, bytes: &[u8]) -> Result<(), kaas_substrate::Error> {
    let file = substrate.open(path, OpenMode::CreateNew)?;
    file.write_all_at(&[IoSlice::new(bytes)], 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_names() {
        for name in ["a", "A.b_c-9", ".hidden", "__consumer_offsets", &"x".repeat(249)] {
            assert!(is_topic_name(name), "{name}");
        }
        for name in ["", ".", "..", "a b", "~new-x", &"x".repeat(250)] {
            assert!(!is_topic_name(name), "{name}");
        }
    }

    #[test]
    fn cluster_ids() {
        for id in ["x", "abcdefghijklmnopqrstuv", &"x".repeat(128)] {
            assert!(is_cluster_id(id), "{id}");
        }
        for id in ["", "a b", "\u{e9}", "a\n", &"x".repeat(129)] {
            assert!(!is_cluster_id(id), "{id}");
        }
    }
}
