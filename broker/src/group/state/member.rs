//! A member of a classic group.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use super::messages::{Protocol, Token};

/// A member. At most one JoinGroup and one SyncGroup of it wait for an answer.
#[derive(Debug, Clone)]
pub struct Member {
    pub id: Arc<str>,
    pub group_instance_id: Option<String>,
    pub client_id: String,
    pub client_host: String,
    pub rebalance_timeout_ms: i32,
    pub session_timeout_ms: i32,
    pub protocol_type: String,
    /// In the member's order of preference.
    pub protocols: Vec<Protocol>,
    pub assignment: Bytes,
    pub awaiting_join: Option<Token>,
    pub awaiting_sync: Option<Token>,
    /// It has not yet been answered a JoinGroup: its session runs even while it waits.
    pub is_new: bool,
    /// Order of arrival, so that "any other member" is always the same one.
    pub arrival: u64,
}

impl Member {
    /// Whether it has a group instance id (KIP-345).
    pub fn is_static(&self) -> bool {
        self.group_instance_id.is_some()
    }

    /// Its subscription for a protocol; empty if it does not offer that one.
    pub fn metadata(&self, protocol_name: &str) -> Bytes {
        self.protocols
            .iter()
            .find(|protocol| protocol.name == protocol_name)
            .map(|protocol| protocol.metadata.clone())
            .unwrap_or_default()
    }

    /// Its most preferred protocol among the candidates.
    pub fn vote<'a>(&'a self, candidates: &BTreeSet<&str>) -> Option<&'a str> {
        self.protocols.iter().map(|protocol| protocol.name.as_str()).find(|name| candidates.contains(name))
    }

    /// Whether an expired session may be ignored, since the member waits for an answer from us.
    pub fn has_satisfied_heartbeat(&self) -> bool {
        !self.is_new && (self.awaiting_join.is_some() || self.awaiting_sync.is_some())
    }
}
