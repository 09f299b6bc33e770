//! The errors of the control plane.

use std::path::PathBuf;

use kaas_engine::MayBeNoSpace;
use kaas_engine::leadership::ClaimError;
use kaas_engine::manifest::versioned::VersionedError;
use kaas_engine::types::Epoch;

use crate::metadata::{NameError, TopicId};

/// Why a control plane call failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The volume failed the call. What was asked for may or may not have happened.
    #[error(transparent)]
    Storage(#[from] kaas_substrate::Error),

    /// The name breaks a rule; nothing was touched.
    #[error(transparent)]
    Name(#[from] NameError),

    /// A topic of this name exists.
    #[error("topic '{name}' already exists")]
    TopicExists { name: String },

    /// A topic exists whose name differs only in '.' against '_'; metric names of the two would collide.
    #[error("topic '{name}' collides with existing topic '{existing}'")]
    TopicCollides { name: String, existing: String },

    /// There is no topic of this name.
    #[error("topic '{name}' does not exist")]
    UnknownTopic { name: String },

    /// There is no topic with this id (any more).
    #[error("topic id {id} does not exist")]
    UnknownTopicId { id: TopicId },

    /// Partitions can only be added.
    #[error("topic '{name}' has {current} partition(s), so it cannot be changed to {requested}")]
    PartitionCount { name: String, current: u32, requested: u32 },

    /// A topic needs at least one partition, and at most `limit`.
    #[error("{requested} partition(s) asked for topic '{name}': the number must be within 1 and {limit}")]
    PartitionLimit { name: String, requested: u32, limit: u32 },

    /// Another process is the controller by now. Nothing may be answered as done; this process has to stop
    /// acting as the controller.
    #[error("no longer the controller: epoch {epoch} was superseded by epoch {by}")]
    Deposed { epoch: Epoch, by: Epoch },

    /// It cannot be told whether this process is still the controller; the change may be on the volume.
    #[error("it cannot be told whether epoch {epoch} still is the controller's: {reason}")]
    FenceUnknown { epoch: Epoch, reason: String },

    /// Another process uses the data directory; on which host, if not on this one.
    #[error("data directory {} is in use by another kaas process{}", dir.display(), holder(*pid, host.as_deref()))]
    Locked { dir: PathBuf, pid: Option<u32>, host: Option<String> },

    /// A file of a newer kaas; nothing was touched.
    #[error(
        "{} has format version {found}, this kaas knows up to {supported}: start the newer kaas that wrote it",
        path.display()
    )]
    NewerFormat { path: PathBuf, found: u64, supported: u32 },

    /// A file that cannot be read as what its name says.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },

    /// The directory belongs to another broker or cluster; nothing was touched.
    #[error("data directory {} belongs to {what} {found}, not {expected}", dir.display())]
    ForeignDirectory { dir: PathBuf, what: &'static str, found: String, expected: String },

    /// There is no data, but files of something else; nothing was touched.
    #[error("{} holds no data of kaas, but something else: {found}", dir.display())]
    NotEmpty { dir: PathBuf, found: String },

    /// There are topics, or committed offsets, but nothing says which cluster they belong to; nothing was touched.
    #[error("{} holds topics or slots but no cluster/meta.json: it was not written whole, or meta.json was removed", dir.display())]
    MissingMeta { dir: PathBuf },

    /// A partition could not be born or taken away.
    #[error("partition {partition} of topic '{topic}': {source}")]
    Partition {
        topic: String,
        partition: u32,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// The versions of a file were replaced each time one was read.
    #[error("the versions of {} keep vanishing", path.display())]
    Vanishing { path: PathBuf },

    /// All 2^63 producer ids were given out.
    #[error("there are no producer ids left")]
    ProducerIdsExhausted,

    /// The engine's leadership of the controller's directory failed.
    #[error("controller claim at epoch {epoch}: {source}")]
    Claim {
        epoch: Epoch,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl MayBeNoSpace for ControlError {
    fn is_no_space(&self) -> bool {
        match self {
            Self::Storage(error) => error.is_no_space(),
            Self::Partition { source, .. } | Self::Claim { source, .. } => {
                source.downcast_ref::<ClaimError>().is_some_and(MayBeNoSpace::is_no_space)
            }
            _ => false,
        }
    }
}

impl From<VersionedError> for ControlError {
    fn from(error: VersionedError) -> Self {
        match error {
            VersionedError::Storage(error) => Self::Storage(error),
            VersionedError::NewerFormat { path, found, supported } => {
                Self::NewerFormat { path, found, supported }
            }
            VersionedError::Damaged { path, reason } | VersionedError::Unwritable { path, reason } => {
                Self::Damaged { path, reason: reason.to_string() }
            }
            VersionedError::Vanishing { path } => Self::Vanishing { path },
        }
    }
}

fn holder(pid: Option<u32>, host: Option<&str>) -> String {
    let on_host = host.map_or_else(String::new, |host| {
        format!(" on host {host}; if that host is down, the volume frees the lock when its lease has run out: try again")
    });
    pid.map_or_else(String::new, |pid| format!(" (pid {pid}{on_host})"))
}
