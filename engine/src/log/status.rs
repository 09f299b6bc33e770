//! The offsets and the state of a partition as everybody may read them, without touching the partition's lock for
//! longer than a copy.

use crate::error::{AppendError, EngineError, ReadError};
use crate::types::{Epoch, Offset};

/// Whether a partition serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Leads and serves.
    Leading,
    /// The fence could not be read: serves nothing until it is known who leads.
    Unsure,
    /// Another leader has taken over, at `by` or a later epoch. For good.
    Deposed { by: Epoch },
    /// A storage error left the files in a state that only a new leadership can resolve.
    Poisoned { reason: String },
    /// Closed by this process.
    Closed,
}

/// A copy of where a partition stands. `log_start <= last_stable <= high_watermark <= log_end`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// First offset that may be read.
    pub log_start: Offset,
    /// The offset behind the last record that no open transaction can take back.
    pub last_stable: Offset,
    /// The offset behind the last committed record.
    pub high_watermark: Offset,
    /// The offset that the next record gets; what is staged is below it.
    pub log_end: Offset,
    /// The epoch this process leads at.
    pub epoch: Epoch,
    /// Whether it serves.
    pub state: State,
}

impl Status {
    /// Panics if the offsets are out of order: no input can bring that about, only a mistake in the engine, and
    /// going on would show readers what can vanish.
    #[allow(clippy::panic)]
    pub(crate) fn assert_ordered(&self) {
        let ordered = self.log_start <= self.last_stable
            && self.last_stable <= self.high_watermark
            && self.high_watermark <= self.log_end;
        if !ordered {
            panic!("offsets out of order: {self:?}");
        }
    }
}

impl State {
    pub(crate) fn append_error(&self) -> Option<AppendError> {
        match self {
            Self::Leading => None,
            Self::Unsure => Some(AppendError::Storage { reason: "the fence cannot be read".into() }),
            Self::Deposed { .. } => Some(AppendError::NotLeader { reason: "another broker has taken over" }),
            Self::Closed => Some(AppendError::NotLeader { reason: "the partition is closed" }),
            Self::Poisoned { reason } => Some(AppendError::Storage { reason: reason.clone() }),
        }
    }

    pub(crate) fn read_error(&self) -> Option<ReadError> {
        match self {
            Self::Leading => None,
            Self::Unsure => Some(ReadError::NotLeader { reason: "the fence cannot be read" }),
            Self::Deposed { .. } => Some(ReadError::NotLeader { reason: "another broker has taken over" }),
            Self::Closed => Some(ReadError::NotLeader { reason: "the partition is closed" }),
            Self::Poisoned { .. } => {
                Some(ReadError::NotLeader { reason: "the partition must be led anew after a storage error" })
            }
        }
    }

    pub(crate) fn engine_error(&self) -> Option<EngineError> {
        match self {
            Self::Leading => None,
            Self::Unsure => Some(EngineError::Poisoned { reason: "the fence cannot be read".into() }),
            Self::Deposed { by } => Some(EngineError::Deposed { by: *by }),
            Self::Closed => Some(EngineError::Closed),
            Self::Poisoned { reason } => Some(EngineError::Poisoned { reason: reason.clone() }),
        }
    }
}
