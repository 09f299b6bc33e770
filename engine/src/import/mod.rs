//! Importing the log directories of an Apache Kafka 4: its topics become topics of kaas, with the same records at the same
//! offsets.
//!
//! Kafka's batches are those of kaas, so they are copied byte for byte. Carried over besides: topic ids, topic configs (from
//! KRaft's metadata log, with the brokers' defaults), the log start, how far a log is compacted, leader epochs (kaas' own go on above them), the producers' last batches, aborted
//! transactions.
//!
//! **Two passes.** [`plan`] reads everything and checks every batch; what cannot be carried over is told, all of it, before
//! anything is written. [`Plan::carry_out`] reads again, checks again, copies, and compares with the plan. Each topic
//! appears whole, by a rename; an import that was killed is begun again, and passes over the topics that are there.
//!
//! All functions block. Memory: the producers of one partition, and one buffer.

mod defaults;
mod group_offsets;
mod kafka_files;
mod metadata_log;
mod missing;
mod planning;
mod properties;
mod read;
mod report;
mod source;
mod target;
mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kaas_substrate::{ErrorClass, Space, Substrate};

use self::group_offsets::GroupOffsets;
use self::read::{Nowhere, ReadPartition, Sink, read_partition};
use self::source::{SourcePartition, shown};
use self::target::{NewTopic, PartitionSink, Target};
use crate::error::EngineError;
use crate::identity::Identity;
use crate::journal;
use crate::layout::Meta;
use crate::leadership::{ClaimError, FenceError};
use crate::manifest::versioned::VersionedError;
use crate::types::Epoch;
use crate::verify::grouped;

pub use self::defaults::ServerProperties;
pub use self::planning::plan;
pub use self::report::{
    ClusterIdReport, ConfigReport, CutReport, DefaultReport, Doubt, PartitionReport, PassedOver, Report,
    TopicReport,
};
pub use self::source::{Source, is_partition_dir};

/// Configs that mean in kaas what they mean in Kafka, and are carried over.
pub const CARRIED_CONFIGS: &[&str] = &[
    "cleanup.policy",
    "delete.retention.ms",
    "flush.messages",
    "flush.ms",
    "index.interval.bytes",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
];

/// Kafka's default of `index.interval.bytes`.
const INDEX_INTERVAL_BYTES: u64 = 4096;

/// What is to be imported, and how.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Only these topics; empty: all of them but Kafka's own.
    pub topics: Vec<String>,
    /// The static configs of Kafka's brokers, of which topics without configs of their own have their defaults.
    pub server_properties: Option<ServerProperties>,
    /// Configs that every imported topic gets, in place of what Kafka's metadata and brokers say.
    pub configs: BTreeMap<String, String>,
    /// Topics that may have gaps, though nothing says that they are or were compacted.
    pub gaps: Vec<String>,
    /// Kafka was not stopped cleanly: what it had not finished writing is cut off, as its own recovery would.
    pub after_crash: bool,
    /// Leaves the groups' committed offsets behind.
    pub without_groups: bool,
    /// The node id of a data directory that does not exist yet.
    pub node_id: i32,
}

/// What keeps something from being imported.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// File or directory.
    #[serde(serialize_with = "crate::printable::serialize_path")]
    pub path: PathBuf,
    pub problem: String,
    /// What to do about it.
    pub hint: &'static str,
}

impl Problem {
    fn new(path: PathBuf, problem: impl Into<String>, hint: &'static str) -> Self {
        Self { path, problem: problem.into(), hint }
    }

    /// Something of Kafka's that cannot be read.
    fn unreadable(volume: &dyn Substrate, error: &kaas_substrate::Error) -> Self {
        let hint = match error.class {
            ErrorClass::NotFound | ErrorClass::Stale => {
                "something removes files there: see to it that Kafka has ended, and import again"
            }
            _ if error.source.kind() == std::io::ErrorKind::PermissionDenied => "let this user read it",
            ErrorClass::Invalid => {
                "links, directories and special files are not read: put the file itself there"
            }
            ErrorClass::Io => "the volume fails (the kernel's log says more): take another replica",
            _ => "import again",
        };
        let problem = format!("{} fails: {}", error.operation, error.source);
        Self::new(shown(volume, &error.path), problem, hint)
    }
}

/// How far an import is. Shared with whoever shows it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes of all segments.
    pub total: AtomicU64,
    /// Bytes read, of this pass.
    pub read: AtomicU64,
    /// Bytes written.
    pub written: AtomicU64,
    /// Set by whoever wants it to end: it does so at the next batch. Topics that are whole by then stay, as after an error.
    pub cancelled: Arc<AtomicBool>,
}

impl Progress {
    fn add_bytes(&self, bytes: u64) {
        self.read.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The error that ends a read if nobody wants it any more.
    fn check(&self, path: impl FnOnce() -> PathBuf) -> Result<(), kaas_substrate::Error> {
        if self.cancelled.load(Ordering::Relaxed) {
            let interrupted = std::io::Error::from(std::io::ErrorKind::Interrupted);
            return Err(kaas_substrate::Error::new(kaas_substrate::Operation::Read, &path(), interrupted));
        }
        Ok(())
    }

    fn add_written(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Why nothing, or not all, was imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The volume failed.
    #[error(transparent)]
    Storage(#[from] kaas_substrate::Error),
    /// A small file of the data directory cannot be read or written.
    #[error(transparent)]
    Versioned(#[from] VersionedError),
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A slot of groups cannot be opened or written.
    #[error(transparent)]
    Slot(#[from] journal::OpenError),
    #[error(transparent)]
    Journal(#[from] journal::JournalError),
    /// The system gives no thread.
    #[error("no thread: {source}")]
    Thread { source: std::io::Error },
    /// It is neither empty nor a data directory of kaas.
    #[error("{} is neither empty nor a data directory of kaas", dir.display())]
    NotADataDirectory { dir: PathBuf },
    /// A broker (or another import) works on it.
    #[error("a broker is running on {}", dir.display())]
    Locked { dir: PathBuf },
    /// A broker was started on the data directory meanwhile, past its lock.
    #[error("another process took the data directory over, at epoch {by}")]
    Deposed { by: Epoch },
    #[error(transparent)]
    Fence(FenceError),
    /// What was read is not what was checked: Kafka is running.
    #[error("{} has changed since it was checked", path.display())]
    Changed { path: PathBuf },
    /// Kafka's leader epoch leaves none for kaas.
    #[error("leader epoch {epoch} is the highest that there can be")]
    EpochsExhausted { epoch: u32 },
}

/// A topic that can be imported.
#[derive(Debug)]
struct PlannedTopic {
    name: String,
    id: [u8; 16],
    /// Kafka's files do not say the id, and it was made now.
    has_new_id: bool,
    configs: BTreeMap<String, String>,
    not_carried: Vec<ConfigReport>,
    /// Its logs may have gaps: it is compacted, or was.
    may_have_gaps: bool,
    partitions: Vec<(SourcePartition, ReadPartition)>,
}

/// What an import will do. Everything it is about has been read and checked.
#[derive(Debug)]
pub struct Plan {
    topics: Vec<PlannedTopic>,
    groups: GroupOffsets,
    report: Report,
    cluster_id: Option<String>,
    node_id: i32,
    /// Above every producer id of Kafka's.
    next_producer_id: i64,
}

fn interval_bytes(configs: &BTreeMap<String, String>) -> u64 {
    configs.get("index.interval.bytes").and_then(|text| text.parse().ok()).unwrap_or(INDEX_INTERVAL_BYTES)
}

impl Plan {
    /// What was found, and what will be done.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Adds a problem if what is to be written does not fit into `space`, that of the volume of `dir`.
    pub fn check_room(&mut self, dir: &Path, space: &Space) {
        let needed = self.report.bytes;
        if let Some(available) = space.available_bytes.filter(|available| *available < needed) {
            self.report.problems.push(Problem::new(
                dir.to_owned(),
                format!("{} bytes are to be written, and {} are free", grouped(needed), grouped(available)),
                "make room, or import some of the topics with --topic",
            ));
        }
    }

    /// Adds a problem if a broker, or another import, works on the data directory `target` at this moment.
    pub fn check_not_in_use(&mut self, target: &dyn Substrate) -> Result<(), ImportError> {
        if target::is_locked(target)? {
            self.report.problems.push(Problem::new(
                target.root().to_owned(),
                "a broker is running on it",
                "stop the broker; it must not run during an import",
            ));
        }
        Ok(())
    }

    /// Imports into `target`, which is born if it is empty. Durable on return, topic by topic; after an error some topics are
    /// there, whole, and the same import may be begun again. With problems in the report nothing is done.
    pub fn carry_out(self, target: &Arc<dyn Substrate>, progress: &Progress) -> Result<Report, ImportError> {
        let Self { topics, groups, mut report, cluster_id, node_id, next_producer_id } = self;
        if !report.problems.is_empty() {
            return Ok(report);
        }
        let cluster_id =
            cluster_id.unwrap_or_else(|| URL_SAFE_NO_PAD.encode(uuid::Uuid::new_v4().as_bytes()));
        let held = Target::take(target, &Meta { cluster_id, node_id })?;
        // Before anybody can use a topic: an import that is begun again must not take back what was committed since.
        held.reserve_producer_ids(next_producer_id)?;
        groups.write(target, held.claimant())?;
        progress.read.store(0, Ordering::Relaxed);
        for topic in &topics {
            let shown_id = URL_SAFE_NO_PAD.encode(topic.id);
            if held.topic(&topic.name)?.is_some_and(|id| id.as_deref() == Some(&shown_id)) {
                continue;
            }
            let new = NewTopic { name: &topic.name, id: topic.id, shown_id, configs: &topic.configs };
            held.build_topic(&new, |volume, dir| {
                topic.partitions.iter().try_for_each(|(partition, checked)| {
                    copy(volume, dir, &new, topic, partition, checked, progress)
                })
            })?;
        }
        report.is_done = true;
        Ok(report)
    }
}

fn copy(
    volume: &dyn Substrate,
    dir: &Path,
    new: &NewTopic<'_>,
    topic: &PlannedTopic,
    partition: &SourcePartition,
    checked: &ReadPartition,
    progress: &Progress,
) -> Result<(), ImportError> {
    let identity = Identity { topic: new.name.to_owned(), partition: partition.partition, topic_id: new.id };
    let mut sink = PartitionSink::begin(volume, dir, &identity, checked.highest_epoch, progress)?;
    let mut problems = Vec::new();
    let interval = interval_bytes(&topic.configs);
    let may_have_gaps = topic.may_have_gaps || partition.cleaned_up_to.is_some();
    // Segments of which none counts are read again only to see that they have not changed.
    let into: &mut dyn Sink = if checked.segments.is_empty() { &mut Nowhere } else { &mut sink };
    let read = read_partition(partition, may_have_gaps, interval, into, progress, &mut problems)?;
    if read != *checked || !problems.is_empty() {
        return Err(ImportError::Changed { path: shown(&*partition.volume, &partition.dir) });
    }
    sink.finish(&read)
}
