//! What the engine's calls fail with. The class of a storage error is decided in the substrate; here it gets the
//! context of a partition. Broken batches and producers' mistakes have enums of their own.

use std::path::PathBuf;
use std::sync::Arc;

use crate::batch::BatchError;
use crate::leadership::ClaimError;
use crate::manifest::versioned::VersionedError;
use crate::producer_state::ProducerError;
use crate::types::{Epoch, Offset};

/// Opening, closing and changing a partition.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// The volume failed.
    #[error(transparent)]
    Storage(Arc<kaas_substrate::Error>),
    /// Somebody has the epoch, or a higher one, already. Ask the controller for a higher epoch.
    #[error(transparent)]
    Claim(Arc<ClaimError>),
    /// Another leader has taken over, at epoch `by` or higher.
    #[error("deposed: epoch {by} has been claimed")]
    Deposed { by: Epoch },
    /// The partition was closed.
    #[error("the partition is closed")]
    Closed,
    /// A sync failed, or a step was left half done: the partition must be opened again at a higher epoch.
    #[error("the partition must be led anew after a storage error: {reason}")]
    Poisoned { reason: String },
    /// The directory belongs to another incarnation of the topic, or to another partition.
    #[error("{} belongs to {found}, not to {expected}", path.display())]
    Foreign { path: PathBuf, expected: String, found: String },
    /// A file says something impossible. `kaas-engine verify` tells more.
    #[error("{} is damaged: {reason}; run `kaas-engine verify` on the directory", path.display())]
    Damaged { path: PathBuf, reason: String },
    /// A file was written by a newer version of kaas.
    #[error("{} has format {found}; this version of kaas reads up to {supported}: use a newer one", path.display())]
    NewerFormat { path: PathBuf, found: u64, supported: u64 },
    /// An offset outside of the log.
    #[error("offset {offset} is outside of the log ({log_start} to {high_watermark})")]
    OffsetOutOfRange { offset: Offset, log_start: Offset, high_watermark: Offset },
    /// The cleaner's memory does not hold the keys of even one batch.
    #[error(
        "{max_bytes} bytes do not hold the keys of the batch at offset {offset}: raise log.cleaner.dedupe.buffer.size"
    )]
    DedupeBufferTooSmall { offset: Offset, max_bytes: usize },
    /// The engine is shutting down and takes no more work.
    #[error("the engine is closed")]
    EngineClosed,
}

impl EngineError {
    /// Whether a file was not there.
    pub(crate) fn is_storage_not_found(&self) -> bool {
        matches!(self, Self::Storage(error) if error.is_not_found())
    }
}

/// An append that was not taken, or that did not get where its `acks` asked for.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// The records are not acceptable; nothing was appended.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The producer's epoch or sequence is wrong; nothing was appended.
    #[error(transparent)]
    Producer(#[from] ProducerError),
    /// Too much is staged already. Wait on `staging_space` and try again.
    #[error("{staged_bytes} bytes are staged already; the bound is {staged_bytes_max}")]
    Busy { staged_bytes: usize, staged_bytes_max: usize },
    /// The volume has not answered for longer than the stall limit; nothing was appended.
    #[error("the volume has not answered for {stalled_ms} ms")]
    Stalled { stalled_ms: u64 },
    /// The volume is full. The append is taken back, and nothing of it becomes visible, unless this leader is replaced
    /// (or dies) before it has written anything else: then a batch that had been written whole may survive.
    #[error("the volume is full: {0}")]
    NoSpace(Arc<kaas_substrate::Error>),
    /// A file had to be opened, and as many are open as may be. The append is taken back, as with [`Self::NoSpace`].
    #[error("{0}: raise the limit of open files (ulimit -n)")]
    NoDescriptors(Arc<kaas_substrate::Error>),
    /// This broker does not lead the partition (any more). Whether the records survive is not known.
    #[error("not the leader: {reason}")]
    NotLeader { reason: &'static str },
    /// The volume failed. Whether the records survive is not known.
    #[error("storage failed: {reason}")]
    Storage { reason: String },
}

/// A read that returns nothing.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// The offset is below the log start or above the high watermark.
    #[error("offset {offset} is outside of the log ({log_start} to {high_watermark})")]
    OffsetOutOfRange { offset: Offset, log_start: Offset, high_watermark: Offset },
    /// This broker does not lead the partition (any more).
    #[error("not the leader: {reason}")]
    NotLeader { reason: &'static str },
    /// The volume failed.
    #[error(transparent)]
    Storage(Arc<kaas_substrate::Error>),
    /// The bytes on the volume are not what was written.
    #[error("{} is damaged at byte {position}: {reason}", path.display())]
    Damaged { path: PathBuf, position: u64, reason: String },
}

impl ReadError {
    /// Whether a file was not there.
    pub(crate) fn is_storage_not_found(&self) -> bool {
        matches!(self, Self::Storage(error) if error.is_not_found())
    }
}

impl From<kaas_substrate::Error> for EngineError {
    fn from(error: kaas_substrate::Error) -> Self {
        Self::Storage(Arc::new(error))
    }
}

impl From<kaas_substrate::Error> for ReadError {
    fn from(error: kaas_substrate::Error) -> Self {
        Self::Storage(Arc::new(error))
    }
}

impl From<ClaimError> for EngineError {
    fn from(error: ClaimError) -> Self {
        Self::Claim(Arc::new(error))
    }
}

impl From<VersionedError> for EngineError {
    fn from(error: VersionedError) -> Self {
        match error {
            VersionedError::Storage(error) => error.into(),
            VersionedError::Damaged { path, reason } | VersionedError::Unwritable { path, reason } => {
                Self::Damaged { path, reason: reason.to_string() }
            }
            VersionedError::NewerFormat { path, found, supported } => {
                Self::NewerFormat { path, found, supported: u64::from(supported) }
            }
            VersionedError::Vanishing { path } => {
                Self::Damaged { path, reason: "the listed file is gone each time it is opened".into() }
            }
        }
    }
}

impl From<ReadError> for EngineError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::OffsetOutOfRange { offset, log_start, high_watermark } => {
                Self::OffsetOutOfRange { offset, log_start, high_watermark }
            }
            ReadError::NotLeader { .. } => Self::Closed,
            ReadError::Storage(error) => Self::Storage(error),
            ReadError::Damaged { path, position, reason } => {
                Self::Damaged { path, reason: format!("at byte {position}: {reason}") }
            }
        }
    }
}
