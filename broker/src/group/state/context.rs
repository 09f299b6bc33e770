//! What a group's operations act on besides the group: time, settings, timers, effects.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::config::GroupConfig;
use super::error::GroupError;
use super::messages::{DeletedGroup, PartitionErrors, Protocol, Response, Token};
use super::records::Record;
use super::timers::Timers;

/// The time of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Monotonic milliseconds, for timers.
    pub monotonic_ms: u64,
    /// Wall clock milliseconds since 1970, for what is persisted.
    pub wall_ms: i64,
}

/// Identifies an append; ids of a slot ascend in the order in which appends must be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PersistId(pub u64);

/// What the driver has to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Answer the request that waits with this token.
    Reply { token: Token, response: Response },
    /// Append these records as one unit behind all earlier ones, then call `SlotState::persisted`, in the order
    /// of the ids.
    Persist { id: PersistId, records: Vec<Record> },
}

/// What happens when an append has become durable, or has failed.
#[derive(Debug)]
pub(super) enum Then {
    /// The leader's assignment: hand it out, the group is stable.
    Assigned { group: Arc<str>, generation_id: i32, assignment: BTreeMap<Arc<str>, Bytes> },
    /// The group has become empty.
    Emptied,
    /// A static member came back under a new id.
    StaticReplaced(StaticReplaced),
    /// Offsets were committed.
    Committed { response: PartitionErrors, token: Token },
    /// Offsets were deleted, by request or with their topic.
    OffsetsDeleted { response: PartitionErrors, token: Token },
    /// Groups were deleted by request.
    GroupsDeleted { groups: Vec<Arc<str>>, response: Vec<DeletedGroup>, token: Token },
    /// Expired offsets and groups were removed.
    Cleaned { groups: Vec<Arc<str>> },
}

/// What is needed to answer, or take back, the replacement of a static member's id.
#[derive(Debug)]
pub(super) struct StaticReplaced {
    pub group: Arc<str>,
    pub generation_id: i32,
    pub instance_id: String,
    pub old_member_id: Arc<str>,
    pub new_member_id: Arc<str>,
    pub old_protocols: Vec<Protocol>,
    pub old_rebalance_timeout_ms: i32,
    pub old_session_timeout_ms: i32,
    pub old_leader: Option<Arc<str>>,
    pub supports_skipping_assignment: bool,
    pub token: Token,
}

/// Appends on their way, with what comes after them.
#[derive(Debug, Default)]
pub(super) struct Pending {
    next: u64,
    pub(super) appends: BTreeMap<PersistId, (Vec<Record>, Then)>,
}

/// The surroundings of one operation.
pub(super) struct Cx<'a> {
    pub now: Now,
    pub config: &'a GroupConfig,
    pub timers: &'a mut Timers,
    pub pending: &'a mut Pending,
    pub effects: &'a mut Vec<Effect>,
}

impl Cx<'_> {
    /// Answers a waiting request.
    pub fn reply(&mut self, token: Token, response: Response) {
        self.effects.push(Effect::Reply { token, response });
    }

    /// Appends records, then does `then`.
    pub fn persist(&mut self, records: Vec<Record>, then: Then) {
        let id = PersistId(self.pending.next);
        self.pending.next = self.pending.next.wrapping_add(1);
        self.effects.push(Effect::Persist { id, records: records.clone() });
        self.pending.appends.insert(id, (records, then));
    }

    /// The monotonic time `delay_ms` from now.
    pub fn after(&self, delay_ms: u64) -> u64 {
        self.now.monotonic_ms.saturating_add(delay_ms)
    }
}

/// A wire duration as milliseconds; negative ones are none.
pub(super) fn millis(wire: i32) -> u64 {
    u64::try_from(wire).unwrap_or(0)
}

/// Why an append failed, for those who wait for it.
pub type PersistOutcome = Result<(), GroupError>;
