//! Where the groups of a slot are stored: what the coordinator asks of a journal.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;
use thiserror::Error;

use super::state::{GroupError, Record, ReplayError, SlotSnapshot};

/// The outcome of a log operation, some time later.
pub type LogFuture<T> = Pin<Box<dyn Future<Output = Result<T, GroupLogError>> + Send>>;

/// Why a slot's log does not do what it was asked for.
#[derive(Debug, Error)]
pub enum GroupLogError {
    /// Another broker, or a later run of this one, leads the slot. Final.
    #[error("slot {slot}: deposed")]
    Deposed { slot: usize },
    /// The log cannot be trusted any more (a failed fdatasync); what is stored must be read afresh. Final.
    #[error("slot {slot}: {reason}")]
    Poisoned { slot: usize, reason: String },
    /// The volume has no room, or the process no file descriptor. Nothing was stored; a later append may succeed.
    #[error("slot {slot}: {reason}")]
    NoSpace { slot: usize, reason: String },
    /// Too much waits for the volume already. Nothing was stored; a later append may succeed.
    #[error("slot {slot}: {reason}")]
    Busy { slot: usize, reason: String },
    /// These entries cannot be stored, now or later: they are too large.
    #[error("slot {slot}: {reason}")]
    Refused { slot: usize, reason: String },
    /// The slot cannot be opened now.
    #[error("slot {slot} cannot be opened: {reason}")]
    Unavailable { slot: usize, reason: String },
    /// What is stored is damaged.
    #[error("slot {slot} cannot be opened: {reason}")]
    Damaged { slot: usize, reason: String },
    /// What is stored cannot be read.
    #[error("slot {slot}: entry {entry}: {reason}")]
    Unreadable { slot: usize, entry: String, reason: String },
    /// What is stored does not belong here.
    #[error("slot {slot}: {source}")]
    Replay { slot: usize, source: ReplayError },
}

impl GroupLogError {
    /// Whether the log is of no further use and must be opened anew.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::NoSpace { .. } | Self::Busy { .. } | Self::Refused { .. })
    }

    /// Whether what is stored is not what was stored.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Unreadable { .. } | Self::Replay { .. })
    }

    /// What clients are told, as Kafka would: go and find the coordinator, or just try again.
    pub fn answer(&self) -> GroupError {
        match self {
            Self::Deposed { .. } | Self::Poisoned { .. } => GroupError::NotCoordinator,
            Self::Refused { .. } => GroupError::UnknownServerError,
            Self::NoSpace { .. }
            | Self::Busy { .. }
            | Self::Unavailable { .. }
            | Self::Damaged { .. }
            | Self::Unreadable { .. }
            | Self::Replay { .. } => GroupError::CoordinatorNotAvailable,
        }
    }
}

/// The log of one slot, led by this process.
pub trait GroupLog: Send + Sync {
    /// Appends records, each as one JSON entry, behind all that were appended before. Only stages them: does not
    /// block, and the order of calls is the order in the log. On `Ok` they are durable and were so while this
    /// process led the slot.
    ///
    /// # Errors
    /// Not final: none of the records is stored. Final: it is not known whether they are.
    fn append(&self, records: &[Record]) -> LogFuture<()>;

    /// Asks whether this process still leads the slot; `Ok` says that it did at some moment after the call.
    ///
    /// # Errors
    /// As for `append`.
    fn confirm(&self) -> LogFuture<()>;

    /// Whether the log has grown so long that a snapshot is due, whatever the number of its entries.
    fn wants_snapshot(&self) -> bool;

    /// Replaces all entries so far by this state. Only called while no append is on its way.
    ///
    /// # Errors
    /// Not final: the entries so far are as they were. Final: as for `append`.
    fn snapshot(&self, state: SlotSnapshot) -> LogFuture<()>;

    /// Releases what the log holds. Nothing is called afterwards.
    fn close(&self) -> LogFuture<()>;
}

/// A log that has just been opened, and what it holds.
pub struct OpenedLog {
    pub log: Arc<dyn GroupLog>,
    pub snapshot: Option<Value>,
    /// In the order of their appends.
    pub entries: Vec<Value>,
}

/// The logs of all slots.
pub trait GroupLogs: Send + Sync {
    /// Slots that have a log already.
    fn existing(&self) -> LogFuture<Vec<usize>>;

    /// Takes over the slot's log at a new, higher epoch, creating it if need be, and reads it.
    fn open(&self, slot: usize) -> LogFuture<OpenedLog>;

    /// What a person may do about damage in the slot's log, if there is anything.
    fn damage_hint(&self, slot: usize) -> Option<String>;
}
