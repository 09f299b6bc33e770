//! The classic group protocol as a pure state machine: no threads, no clocks, no I/O.
//!
//! [`SlotState`] is the entry; everything that has to happen outside (answers, appends to the journal) comes back
//! as [`Effect`]s, and timers are a deadline to ask for. Behaviour is Apache Kafka's; KIP-345 (static members),
//! KIP-394 (known member ids), KIP-447 (stable offsets), KIP-800 (reasons), KIP-814 (skipped assignment).

mod config;
mod context;
mod error;
mod group;
mod join;
mod member;
mod messages;
mod offsets;
mod rebalance;
mod records;
mod slot;
mod slot_offsets;
mod subscription;
mod sync;
mod timers;

#[cfg(test)]
mod tests;

pub use config::{GroupConfig, GroupConfigError};
pub use context::{Effect, Now, PersistId, PersistOutcome};
pub use error::{GroupError, code_of};
pub use group::{CONSUMER_PROTOCOL_TYPE, ClassicGroup, GroupState};
pub use kaas_engine::layout::slot_of;
pub use messages::*;
pub use records::{
    GroupRecord, GroupSnapshot, MemberRecord, OffsetRecord, OffsetsRecord, Record, SNAPSHOT_FORMAT_VERSION,
    SlotSnapshot,
};
pub use slot::{Effects, GROUP_TYPE_CLASSIC, ReplayError, SlotState};
