//! What is written to a slot's journal and snapshot.
//!
//! A journal entry is one JSON object with a `type`; opaque bytes are base64. Every entry is absolute (it does not
//! depend on the state it meets) and is applied in journal order; one request makes one entry, so that it is
//! there whole or not at all.
//!
//! | type | meaning |
//! | --- | --- |
//! | `group` | the membership of a group, as of this generation |
//! | `group_deleted` | the group and its offsets are gone |
//! | `offsets` | committed offsets of a group |
//! | `offsets_deleted` | offsets of a group are gone (expired, deleted, topic deleted) |
//!
//! An entry or snapshot that this version does not understand is an error: the slot is not served rather than
//! served with something missing.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Version of the snapshot's format.
pub const SNAPSHOT_FORMAT_VERSION: u32 = 1;

/// A journal entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Record {
    Group(GroupRecord),
    GroupDeleted { group: String },
    Offsets(OffsetsRecord),
    OffsetsDeleted { group: String, topics: BTreeMap<String, Vec<i32>> },
}

/// The membership of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    pub group: String,
    pub generation: i32,
    /// Empty for a group that has never had members.
    pub protocol_type: String,
    pub protocol: Option<String>,
    pub leader: Option<String>,
    /// Wall clock milliseconds since which the group is in its state; retention of an empty group counts from it.
    pub state_timestamp_ms: Option<i64>,
    pub members: Vec<MemberRecord>,
}

/// A member with what it subscribed and what it was assigned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    pub member_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_instance_id: Option<String>,
    pub client_id: String,
    pub client_host: String,
    pub rebalance_timeout_ms: i32,
    pub session_timeout_ms: i32,
    #[serde(with = "base64_bytes")]
    pub subscription: Bytes,
    #[serde(with = "base64_bytes")]
    pub assignment: Bytes,
}

/// Offsets of one commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffsetsRecord {
    pub group: String,
    pub topics: BTreeMap<String, Vec<OffsetRecord>>,
}

/// A committed offset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffsetRecord {
    pub partition: i32,
    pub offset: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_epoch: Option<i32>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub metadata: String,
    /// Wall clock milliseconds.
    pub commit_timestamp_ms: i64,
    /// Only from clients that ask for a retention of their own (OffsetCommit versions 2 to 4).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expire_timestamp_ms: Option<i64>,
}

/// The state of a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotSnapshot {
    pub format_version: u32,
    pub groups: Vec<GroupSnapshot>,
}

/// A group with its offsets. `group.members` are those of the last generation that was made durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSnapshot {
    /// Absent for a group that has offsets and has never had members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offsets: Option<OffsetsRecord>,
}

mod base64_bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map(Bytes::from).map_err(serde::de::Error::custom)
    }
}

impl Record {
    /// The group the record is about.
    pub fn group(&self) -> &str {
        match self {
            Self::Group(record) => &record.group,
            Self::Offsets(record) => &record.group,
            Self::GroupDeleted { group } | Self::OffsetsDeleted { group, .. } => group,
        }
    }
}
