//! Importing the log directories of an Apache Kafka 4: its topics become topics of kaas, with the same records at the same
//! offsets.
//!
//! Kafka's batches are those of kaas, so they are copied byte for byte. Carried over besides: topic ids, topic configs (from
//! KRaft's metadata log), the log start, leader epochs (kaas' own go on above them), the producers' last batches, aborted
//! transactions.
//!
//! **Two passes.** [`plan`] reads everything and checks every batch; what cannot be carried over is told, all of it, before
//! anything is written. [`Plan::carry_out`] reads again, checks again, copies, and compares with the plan. Each topic
//! appears whole, by a rename; an import that was killed is begun again, and passes over the topics that are there.
//!
//! All functions block. Memory: the producers of one partition, and one buffer.

mod group_offsets;
mod kafka_files;
mod metadata_log;
mod read;
mod report;
mod source;
mod target;

use std::collections::BTreeMap;
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kaas_config::{BrokerConfigs, ConfigError, TopicConfigs, Value, topic_definition};
use kaas_substrate::{OpenMode, Substrate};
use siphasher::sip128::{Hasher128, SipHasher13};

use self::group_offsets::GroupOffsets;
use self::read::{Nowhere, ReadPartition, read_partition};
use self::source::{SourcePartition, shown};
use self::target::{NewTopic, PartitionSink, Target};
use crate::error::EngineError;
use crate::identity::Identity;
use crate::journal;
use crate::layout::{Meta, PRODUCER_IDS_BLOCK, TOPICS_DIR};
use crate::leadership::{ClaimError, FenceError};
use crate::manifest::versioned::VersionedError;
use crate::types::Epoch;

pub use self::report::{ClusterIdReport, ConfigReport, CutReport, PartitionReport, Report, TopicReport};
pub use self::source::Source;

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

/// Above this there is no whole block of producer ids.
const PRODUCER_IDS_MAX: i64 = i64::MAX - PRODUCER_IDS_BLOCK;

/// Kafka's default of `index.interval.bytes`.
const INDEX_INTERVAL_BYTES: u64 = 4096;

/// What is to be imported, and how.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Only these topics; empty: all of them but Kafka's own.
    pub topics: Vec<String>,
    /// Configs that every imported topic gets, in place of what Kafka's metadata says.
    pub configs: BTreeMap<String, String>,
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
    /// There is no room for it.
    #[error("{needed_bytes} bytes are to be written, and {available_bytes} are free")]
    NoRoom { needed_bytes: u64, available_bytes: u64 },
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
    is_compacted: bool,
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

/// What kaas would refuse of a topic's configs: Kafka takes values that kaas could only ignore, and `--config` takes any.
fn wrong_configs(topic: &str, configs: &BTreeMap<String, String>) -> Vec<Problem> {
    let wrong = |error: ConfigError| {
        let hint = "set another value with --config NAME=VALUE, or change it in Kafka";
        Problem::new(PathBuf::from(topic), error.to_string(), hint)
    };
    let each = configs.iter().filter_map(|(name, text)| match topic_definition(name) {
        Some(definition) => Value::parse(definition, text).err(),
        None => Some(ConfigError::UnknownTopicConfig { name: name.clone() }),
    });
    let mut problems: Vec<_> = each.map(wrong).collect();
    if problems.is_empty() {
        // What they come to together.
        let defaults = BrokerConfigs::new(0, BTreeMap::new());
        let together = defaults.and_then(|defaults| TopicConfigs::validate(configs, &defaults));
        problems.extend(together.err().map(wrong));
    }
    problems
}

/// An id for a topic whose files do not say theirs: the same each time, so that an import that is begun again knows the topic.
fn new_topic_id(cluster_id: Option<&str>, topic: &str) -> [u8; 16] {
    let mut hasher = SipHasher13::new();
    cluster_id.unwrap_or_default().hash(&mut hasher);
    topic.hash(&mut hasher);
    *uuid::Builder::from_random_bytes(hasher.finish128().as_bytes()).as_uuid().as_bytes()
}

/// Reads and checks everything in `sources`. Writes nothing; `target` is looked at, if it is there already.
///
/// The problems come in [`Report::problems`]; with any, [`Plan::carry_out`] is not to be called, and does nothing.
///
/// # Errors
///
/// Only what keeps it from looking at all: a volume that fails, a target that is no data directory.
pub fn plan(
    sources: &[Source],
    target: Option<&dyn Substrate>,
    options: &Options,
    progress: &Progress,
) -> Result<Plan, ImportError> {
    let mut problems = Vec::new();
    let existing = target.map(target::look).transpose()?.unwrap_or_default();
    let found = source::find(sources, options, &mut problems)?;
    let mut report = Report::new(found.passed_over, found.configs.is_some());
    report.cluster_id_left = found
        .cluster_id
        .clone()
        .zip(existing.cluster_id)
        .and_then(|(kafka, kept)| (kafka != kept).then_some(ClusterIdReport { kafka, kept }));
    let mut topics = Vec::new();
    let mut bytes = 0;
    for partition in found.topics.values().flatten() {
        for base in &partition.logs {
            bytes += partition.volume.open(&read::log_path(partition, *base), OpenMode::Read)?.length()?;
        }
    }
    progress.total.store(bytes, Ordering::Relaxed);
    for (name, partitions) in found.topics {
        let given =
            found.configs.as_ref().and_then(|configs| configs.get(&name)).cloned().unwrap_or_default();
        let (mut configs, not_carried): (BTreeMap<_, _>, BTreeMap<_, _>) =
            given.into_iter().partition(|(name, _)| CARRIED_CONFIGS.contains(&name.as_str()));
        configs.extend(options.configs.clone());
        problems.extend(wrong_configs(&name, &configs));
        let is_compacted = configs.get("cleanup.policy").is_some_and(|policy| policy.contains("compact"));
        let known_id = partitions.iter().find_map(|partition| partition.topic_id);
        let id = known_id.unwrap_or_else(|| new_topic_id(found.cluster_id.as_deref(), &name));
        if let Some(there) = existing.topics.get(&name) {
            if there.as_ref() == Some(&URL_SAFE_NO_PAD.encode(id)) {
                report.already_there.push(name);
            } else {
                let path = target.map(|target| shown(target, &Path::new(TOPICS_DIR).join(&name)));
                problems.push(Problem::new(
                    path.unwrap_or_default(),
                    format!("the data directory has another topic {name:?}"),
                    "delete one of them, or name the topics to import with --topic",
                ));
            }
            continue;
        }
        let mut planned = PlannedTopic {
            name,
            id,
            has_new_id: known_id.is_none(),
            not_carried: not_carried.into_iter().map(ConfigReport::new).collect(),
            is_compacted,
            partitions: Vec::with_capacity(partitions.len()),
            configs,
        };
        for partition in partitions {
            let was_cleaned = is_compacted || partition.was_cleaned;
            let interval = interval_bytes(&planned.configs);
            let read =
                read_partition(&partition, was_cleaned, interval, &mut Nowhere, progress, &mut problems)?;
            planned.partitions.push((partition, read));
        }
        report.add(&planned);
        topics.push(planned);
    }
    let mut groups = GroupOffsets::default();
    if !options.without_groups {
        groups = GroupOffsets::read(sources, &mut problems)?;
        groups.retain(|name| topics.iter().any(|topic: &PlannedTopic| topic.name == name));
    }
    (report.groups, report.committed_offsets) = groups.counts();
    report.problems = problems;
    let ids = topics.iter().flat_map(|topic| &topic.partitions).flat_map(|(_, read)| {
        let known = read.producers.producers().map(|(id, _)| id);
        known.chain(read.highest_producer)
    });
    let above = ids.map(|id| id.0.saturating_add(1)).max().unwrap_or(0);
    let next_producer_id = above.max(found.next_producer_id);
    if next_producer_id > PRODUCER_IDS_MAX {
        let path = sources.first().map(|source| source.volume.root().to_owned()).unwrap_or_default();
        report.problems.push(Problem::new(
            path,
            format!("producer ids up to {next_producer_id} are in use, which leaves none for kaas"),
            "no Kafka hands out such ids: leave the topic out whose producers have them, with --topic",
        ));
    }
    Ok(Plan {
        topics,
        groups,
        report,
        cluster_id: found.cluster_id,
        node_id: options.node_id,
        next_producer_id,
    })
}

impl Plan {
    /// What was found, and what will be done.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Imports into `target`, which is born if it is empty. Durable on return, topic by topic; after an error some topics are
    /// there, whole, and the same import may be begun again. With problems in the report nothing is done.
    pub fn carry_out(self, target: &Arc<dyn Substrate>, progress: &Progress) -> Result<Report, ImportError> {
        let Self { topics, groups, mut report, cluster_id, node_id, next_producer_id } = self;
        if !report.problems.is_empty() {
            return Ok(report);
        }
        let needed_bytes = report.bytes;
        if let Some(available_bytes) =
            target.space()?.available_bytes.filter(|available| *available < needed_bytes)
        {
            return Err(ImportError::NoRoom { needed_bytes, available_bytes });
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
    let was_cleaned = topic.is_compacted || partition.was_cleaned;
    let read = read_partition(partition, was_cleaned, interval, &mut sink, progress, &mut problems)?;
    if read != *checked || !problems.is_empty() {
        return Err(ImportError::Changed { path: shown(&*partition.volume, &partition.dir) });
    }
    sink.finish(&read)
}
