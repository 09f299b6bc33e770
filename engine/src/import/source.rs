//! What there is to import: the partitions in Kafka's log directories, by their names and small files. No record is read here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_substrate::{Entry, EntryKind, Substrate, read_small};

use super::kafka_files::{
    CLEAN_SHUTDOWN, DirName, FileName, INTERNAL_TOPICS, LEADER_EPOCHS, LOG_START_CHECKPOINT, META_PROPERTIES,
    PARTITION_METADATA, RECOVERY_POINT_CHECKPOINT, leader_epochs, offset_checkpoint, property, topic_id,
};
use super::metadata_log::{self, TopicConfigs};
use super::{Options, Problem};
use crate::layout::{is_cluster_id, is_topic_name};
use crate::types::Offset;

/// Largest of Kafka's small files that is read.
const SMALL_FILE_BYTES_MAX: usize = 64 << 20;

const NOTHING_HERE: &str = "no partitions of Kafka here";
const NOTHING_HERE_HINT: &str =
    "is it one of Kafka's log.dirs? They hold meta.properties, and a directory for each partition";

const CLEANER_CHECKPOINT: &str = "cleaner-offset-checkpoint";

/// One of Kafka's `log.dirs`, or one partition's directory in it.
#[derive(Debug, Clone)]
pub struct Source {
    /// The log directory.
    pub volume: Arc<dyn Substrate>,
    /// Only this partition of it: the name of its directory.
    pub only: Option<String>,
}

/// A partition that is to be imported.
#[derive(Debug)]
pub(super) struct SourcePartition {
    pub(super) volume: Arc<dyn Substrate>,
    pub(super) dir: PathBuf,
    pub(super) topic: String,
    pub(super) partition: u32,
    pub(super) topic_id: Option<[u8; 16]>,
    /// Base offsets of the segments, ascending.
    pub(super) logs: Vec<Offset>,
    /// Offsets of the producer snapshots, ascending.
    pub(super) snapshots: Vec<Offset>,
    pub(super) leader_epochs: Vec<(u32, i64)>,
    /// The log start offset that was checkpointed; 0 if there is none.
    pub(super) log_start: Offset,
    /// Up to here Kafka has flushed; only behind it may a crash have left damage.
    pub(super) recovery_point: Offset,
    pub(super) is_clean: bool,
    /// Whether Kafka's cleaner has been at it.
    pub(super) was_cleaned: bool,
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct Sources {
    /// By topic, then by partition.
    pub(super) topics: BTreeMap<String, Vec<SourcePartition>>,
    pub(super) cluster_id: Option<String>,
    /// 0 if that is not known.
    pub(super) next_producer_id: i64,
    /// `None` if there is no metadata log in the directories.
    pub(super) configs: Option<BTreeMap<String, TopicConfigs>>,
    /// Directories that Kafka was deleting or moving.
    pub(super) passed_over: Vec<PathBuf>,
}

/// Where something is, for people.
pub(super) fn shown(volume: &dyn Substrate, path: &Path) -> PathBuf {
    volume.root().join(path)
}

fn read_text(volume: &dyn Substrate, path: &Path) -> Result<Option<String>, kaas_substrate::Error> {
    match read_small(volume, path, SMALL_FILE_BYTES_MAX) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads and parses a small file; what is wrong with it is a problem.
fn parsed<T: Default>(
    volume: &dyn Substrate,
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, String>,
    problems: &mut Vec<Problem>,
) -> Result<T, kaas_substrate::Error> {
    let Some(text) = read_text(volume, path)? else { return Ok(T::default()) };
    Ok(parse(&text).unwrap_or_else(|reason| {
        problems.push(Problem::new(shown(volume, path), reason, "restore it, or start and stop Kafka once"));
        T::default()
    }))
}

/// Lists what there is.
pub(super) fn find(
    sources: &[Source],
    options: &Options,
    problems: &mut Vec<Problem>,
) -> Result<Sources, kaas_substrate::Error> {
    let mut found = Sources::default();
    for source in sources {
        find_in(source, options, &mut found, problems)?;
    }
    // An import of nothing would give a new data directory an identity, and the right import would find it taken.
    if found.topics.is_empty() && options.topics.is_empty() && problems.is_empty() {
        let root = |source: &Source| source.volume.root().to_owned();
        let path = sources.first().map(root).unwrap_or_default();
        problems.push(Problem::new(path, NOTHING_HERE, NOTHING_HERE_HINT));
    }
    for name in &options.topics {
        if !found.topics.contains_key(name) {
            let path = sources.first().map_or_else(PathBuf::new, |source| source.volume.root().to_owned());
            let problem = format!("there is no topic {name:?} here");
            problems.push(Problem::new(
                path,
                problem,
                "check the name, and whether all log directories are given",
            ));
        }
    }
    for (topic, partitions) in &mut found.topics {
        partitions.sort_by_key(|partition| partition.partition);
        check_partitions(topic, partitions, problems);
    }
    Ok(found)
}

fn find_in(
    source: &Source,
    options: &Options,
    found: &mut Sources,
    problems: &mut Vec<Problem>,
) -> Result<(), kaas_substrate::Error> {
    let volume = &*source.volume;
    let entries = volume.list(Path::new(""))?;
    if !is_log_directory(volume, &entries)? {
        problems.push(Problem::new(volume.root().to_owned(), NOTHING_HERE, NOTHING_HERE_HINT));
        return Ok(());
    }
    let is_clean = entries.iter().any(|entry| entry.name == CLEAN_SHUTDOWN);
    let log_starts = parsed(volume, Path::new(LOG_START_CHECKPOINT), offset_checkpoint, problems)?;
    let recovery_points = parsed(volume, Path::new(RECOVERY_POINT_CHECKPOINT), offset_checkpoint, problems)?;
    let cleaned = parsed(volume, Path::new(CLEANER_CHECKPOINT), offset_checkpoint, problems)?;
    if let Some(meta) = read_text(volume, Path::new(META_PROPERTIES))? {
        let id = property(&meta, "cluster.id");
        if id.is_some_and(|id| !is_cluster_id(id)) {
            problems.push(Problem::new(
                shown(volume, Path::new(META_PROPERTIES)),
                "its cluster id is no text of 1 to 128 printable ASCII characters",
                "restore the file; or take the line away, and a new cluster id is made",
            ));
        }
        found.cluster_id = found.cluster_id.take().or(id.map(str::to_owned));
    }
    let mut any = false;
    for entry in entries.iter().filter(|entry| entry.kind == EntryKind::Dir) {
        let Some(name) = entry.name.to_str() else { continue };
        let dir = Path::new(name);
        if name == metadata_log::DIR {
            let metadata = metadata_log::read(volume, dir, problems)?;
            found.configs.get_or_insert_default().extend(metadata.configs);
            found.next_producer_id = found.next_producer_id.max(metadata.next_producer_id);
            continue;
        }
        let (topic, partition) = match DirName::parse(name) {
            DirName::Partition { topic, partition } => (topic, partition),
            DirName::Transient => {
                found.passed_over.push(shown(volume, dir));
                continue;
            }
            DirName::Other => continue,
        };
        let wanted = source.only.as_deref().is_none_or(|only| only == name)
            && (options.topics.is_empty() || options.topics.contains(&topic));
        if !wanted || INTERNAL_TOPICS.contains(&topic.as_str()) {
            continue;
        }
        any = true;
        if !is_topic_name(&topic) {
            let problem = format!("{topic:?} is no name of a topic");
            problems.push(Problem::new(shown(volume, dir), problem, "it is none of Kafka's: take it away"));
            continue;
        }
        let key = (topic, partition);
        let offset =
            |offsets: &BTreeMap<(String, u32), i64>| Offset(offsets.get(&key).copied().unwrap_or(0).max(0));
        let mut partition = SourcePartition {
            volume: Arc::clone(&source.volume),
            dir: dir.to_owned(),
            topic: key.0.clone(),
            partition: key.1,
            topic_id: None,
            logs: Vec::new(),
            snapshots: Vec::new(),
            leader_epochs: parsed(volume, &dir.join(LEADER_EPOCHS), leader_epochs, problems)?,
            log_start: offset(&log_starts),
            recovery_point: offset(&recovery_points),
            is_clean,
            was_cleaned: cleaned.contains_key(&key),
        };
        let id = |text: &str| topic_id(text).map(Some);
        partition.topic_id = parsed(volume, &dir.join(PARTITION_METADATA), id, problems)?;
        list_files(&mut partition, problems)?;
        found.topics.entry(partition.topic.clone()).or_default().push(partition);
    }
    if any && !is_clean && !options.after_crash {
        problems.push(Problem::new(
            volume.root().to_owned(),
            "Kafka is running on it, or was not stopped cleanly",
            "stop Kafka and wait until it has ended; if it was killed for good, --after-crash cuts off what it had not finished",
        ));
    }
    Ok(())
}

/// Whether Kafka has worked in a directory: it has the file that says whose it is, or the directory of a partition with a log.
fn is_log_directory(volume: &dyn Substrate, entries: &[Entry]) -> Result<bool, kaas_substrate::Error> {
    if entries.iter().any(|entry| entry.name == META_PROPERTIES) {
        return Ok(true);
    }
    for entry in entries.iter().filter(|entry| entry.kind == EntryKind::Dir) {
        let Some(name) = entry.name.to_str() else { continue };
        if !matches!(DirName::parse(name), DirName::Partition { .. }) {
            continue;
        }
        let is_log = |name: &str| matches!(FileName::parse(name), FileName::Log(_));
        if volume.list(Path::new(name))?.iter().any(|file| file.name.to_str().is_some_and(is_log)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn list_files(
    partition: &mut SourcePartition,
    problems: &mut Vec<Problem>,
) -> Result<(), kaas_substrate::Error> {
    for entry in partition.volume.list(&partition.dir)? {
        let name = entry.name.to_string_lossy();
        let path = || shown(&*partition.volume, &partition.dir.join(&entry.name));
        match FileName::parse(&name) {
            FileName::Log(base) => partition.logs.push(base),
            FileName::Snapshot(at) => partition.snapshots.push(at),
            FileName::Ignored => {}
            FileName::Swap => problems.push(Problem::new(
                path(),
                "Kafka's cleaner was putting it into place",
                "start Kafka, which finishes that, and stop it cleanly",
            )),
            FileName::Other => problems.push(Problem::new(
                path(),
                "not a file that can be imported (of tiered storage, perhaps)",
                "turn tiered storage off for the topic and let Kafka bring its segments back; or take the file away",
            )),
        }
    }
    partition.logs.sort_unstable();
    partition.snapshots.sort_unstable();
    Ok(())
}

/// Partitions from 0, each once, of one topic id.
fn check_partitions(topic: &str, partitions: &[SourcePartition], problems: &mut Vec<Problem>) {
    let mut expected = 0;
    let mut id = None;
    for partition in partitions {
        let path = || shown(&*partition.volume, &partition.dir);
        if partition.partition < expected {
            problems.push(Problem::new(
                path(),
                "the partition is there twice",
                "give each partition once: the log directories of one replica",
            ));
            continue;
        }
        if partition.partition > expected {
            let missing = partition.partition - expected;
            problems.push(Problem::new(
                path(),
                format!("partition {expected} of {topic:?} is missing ({missing} in all before this one)"),
                "give all log directories that hold partitions of the topic; a topic has partitions from 0 without a gap",
            ));
        }
        expected = partition.partition.saturating_add(1);
        if partition.topic_id.zip(id).is_some_and(|(own, first)| own != first) {
            problems.push(Problem::new(
                path(),
                "its topic id is not that of the topic's first partition",
                "it is a leftover of a deleted topic: take it away",
            ));
        }
        id = id.or(partition.topic_id);
    }
}
