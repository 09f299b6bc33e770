//! What there is to import: the partitions in Kafka's log directories, by their names and small files. No record is read here.
//!
//! Links are not followed, and nothing but directories and regular files is opened: what has the name of something that
//! counts and is neither is a problem.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_substrate::{Entry, EntryKind, Substrate, read_small};

use super::kafka_files::{
    CLEAN_SHUTDOWN, CLEANER_CHECKPOINT, DirName, FileName, INTERNAL_TOPICS, LEADER_EPOCHS,
    LOG_START_CHECKPOINT, META_PROPERTIES, PARTITION_METADATA, RECOVERY_POINT_CHECKPOINT, leader_epochs,
    offset_checkpoint, topic_id,
};
use super::missing::{absent_partitions, check_absent, check_indexes, check_partitions};
use super::report::PassedOver;
use super::{Options, Problem, metadata_log, properties};
use crate::layout::{CLUSTER_DIR, TOPICS_DIR, is_cluster_id, is_topic_name};
use crate::types::Offset;

/// Largest of Kafka's small files that is read.
const SMALL_FILE_BYTES_MAX: usize = 64 << 20;

const NOTHING_HERE: &str = "no partitions of Kafka here";
const NOTHING_HERE_HINT: &str =
    "is it one of Kafka's log.dirs? They hold meta.properties, and a directory for each partition";

const NO_DIRECTORY: &str = "no directory, but a link or a special file";
const NO_DIRECTORY_HINT: &str =
    "links are not followed: put the directory itself in its place; a bind mount will do";
const NO_FILE: &str = "no file, but a link, a directory or a special file";
const NO_FILE_HINT: &str = "links, directories and special files are not read: put the file itself there";

const ABSENT_HINT: &str =
    "restore it, or give the log directory that it was moved to, or name the topics to import with --topic";

/// One of Kafka's `log.dirs`, or one partition's directory in it.
#[derive(Debug, Clone)]
pub struct Source {
    /// The log directory.
    pub volume: Arc<dyn Substrate>,
    /// Only this partition of it: the name of its directory.
    pub only: Option<String>,
}

/// Whether a directory of that name, with these entries, is that of a partition, and not a whole log directory.
pub fn is_partition_dir(name: &str, entries: &[Entry]) -> bool {
    let is_its = |entry: &Entry| {
        entry.name == PARTITION_METADATA
            || matches!(entry.name.to_str().map(FileName::parse), Some(FileName::Log(_)))
    };
    matches!(DirName::parse(name), DirName::Partition { .. }) && entries.iter().any(is_its)
}

/// A partition that is to be imported.
#[derive(Debug)]
pub(super) struct SourcePartition {
    pub(super) volume: Arc<dyn Substrate>,
    pub(super) dir: PathBuf,
    pub(super) topic: String,
    pub(super) partition: u32,
    pub(super) topic_id: Option<[u8; 16]>,
    /// Its directory could be listed; if not, that is a problem.
    pub(super) is_listed: bool,
    /// Base offsets of the segments, ascending.
    pub(super) logs: Vec<Offset>,
    /// Offsets of the producer snapshots, ascending.
    pub(super) snapshots: Vec<Offset>,
    pub(super) leader_epochs: Vec<(u32, i64)>,
    /// The log start offset that was checkpointed.
    pub(super) checkpointed_start: Option<Offset>,
    /// Up to here Kafka has flushed; only behind it may a crash have left damage.
    pub(super) recovery_point: Option<Offset>,
    /// Kafka was stopped cleanly.
    pub(super) is_clean: bool,
    /// Segments of the topic may be in tiered storage.
    pub(super) is_tiered: bool,
    /// The first dirty offset that was checkpointed, if Kafka's cleaner has been at it; not compared with the log.
    pub(super) cleaned_up_to: Option<Offset>,
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct Sources {
    /// By topic, then by partition.
    pub(super) topics: BTreeMap<String, Vec<SourcePartition>>,
    /// With the file that says it.
    pub(super) cluster_id: Option<(String, PathBuf)>,
    /// The brokers that the log directories are of.
    pub(super) nodes: BTreeSet<i32>,
    /// The newest metadata log, and where it is; `None` if there is none in the directories.
    pub(super) metadata: Option<(PathBuf, metadata_log::State)>,
    /// Logs that checkpoints tell of and that have no directory.
    pub(super) absent: Vec<AbsentPartition>,
    /// Directories of which nothing is imported.
    pub(super) passed_over: Vec<PassedOver>,
}

/// A log that Kafka had in a directory when it stopped, and that is not there.
#[derive(Debug)]
pub(super) struct AbsentPartition {
    pub(super) topic: String,
    pub(super) partition: u32,
    /// The file that tells of it.
    pub(super) checkpoint: PathBuf,
    pub(super) end: Offset,
}

/// What the checkpoints of a log directory say of its logs.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    /// Kafka was stopped cleanly: they are as of the end.
    pub(super) is_clean: bool,
    log_starts: BTreeMap<(String, u32), i64>,
    /// By topic and partition.
    pub(super) recovery_points: BTreeMap<(String, u32), i64>,
    cleaned: BTreeMap<(String, u32), i64>,
}

impl Checkpoints {
    pub(super) fn read(volume: &dyn Substrate, entries: &[Entry], problems: &mut Vec<Problem>) -> Self {
        let listed = Listed { volume, dir: Path::new(""), entries };
        // Its being there says it all; what it says is not needed.
        let marker = entries.iter().find(|entry| entry.name == CLEAN_SHUTDOWN);
        if marker.is_some_and(|marker| marker.kind != EntryKind::File) {
            let path = shown(volume, Path::new(CLEAN_SHUTDOWN));
            problems.push(Problem::new(path, NO_FILE, NO_FILE_HINT));
        }
        let mut offsets = |name: &str| listed.parsed(name, text(offset_checkpoint), problems);
        Self {
            is_clean: marker.is_some(),
            log_starts: offsets(LOG_START_CHECKPOINT),
            recovery_points: offsets(RECOVERY_POINT_CHECKPOINT),
            cleaned: offsets(CLEANER_CHECKPOINT),
        }
    }

    fn offset(offsets: &BTreeMap<(String, u32), i64>, of: &(String, u32)) -> Option<Offset> {
        offsets.get(of).map(|offset| Offset((*offset).max(0)))
    }

    /// Up to where a log was flushed: its end, if Kafka was stopped cleanly.
    pub(super) fn recovery_point(&self, of: &(String, u32)) -> Option<Offset> {
        Self::offset(&self.recovery_points, of)
    }
}

/// Where something is, for people.
pub(super) fn shown(volume: &dyn Substrate, path: &Path) -> PathBuf {
    volume.root().join(path)
}

/// A parser of text as one of bytes.
fn text<T>(parse: impl FnOnce(&str) -> Result<T, String>) -> impl FnOnce(&[u8]) -> Result<T, String> {
    |bytes| parse(&String::from_utf8_lossy(bytes))
}

/// A directory whose entries are known.
struct Listed<'a> {
    volume: &'a dyn Substrate,
    dir: &'a Path,
    entries: &'a [Entry],
}

impl Listed<'_> {
    /// Reads and parses a small file; what is wrong with it is a problem. The default if it is not there.
    fn parsed<T: Default>(
        &self,
        name: &str,
        parse: impl FnOnce(&[u8]) -> Result<T, String>,
        problems: &mut Vec<Problem>,
    ) -> T {
        let path = self.dir.join(name);
        let Some(entry) = self.entries.iter().find(|entry| entry.name == name) else { return T::default() };
        if entry.kind != EntryKind::File {
            problems.push(Problem::new(shown(self.volume, &path), NO_FILE, NO_FILE_HINT));
            return T::default();
        }
        let outcome = read_small(self.volume, &path, SMALL_FILE_BYTES_MAX);
        let parsed = outcome.map_err(|error| Problem::unreadable(self.volume, &error)).and_then(|bytes| {
            let hint = "restore it, or start and stop Kafka once";
            parse(&bytes).map_err(|reason| Problem::new(shown(self.volume, &path), reason, hint))
        });
        parsed.unwrap_or_else(|problem| {
            problems.push(problem);
            T::default()
        })
    }
}

/// Lists what there is.
///
/// # Errors
///
/// A source that cannot be listed at all.
pub(super) fn find(
    sources: &[Source],
    options: &Options,
    problems: &mut Vec<Problem>,
) -> Result<Sources, kaas_substrate::Error> {
    let mut found = Sources::default();
    for source in sources {
        find_in(source, options, &mut found, problems)?;
    }
    let first_root = || sources.first().map(|source| source.volume.root().to_owned()).unwrap_or_default();
    // An import of nothing would give a new data directory an identity, and the right import would find it taken.
    if found.topics.is_empty() && options.topics.is_empty() && problems.is_empty() && found.absent.is_empty()
    {
        problems.push(Problem::new(first_root(), NOTHING_HERE, NOTHING_HERE_HINT));
    }
    for name in options.topics.iter().chain(&options.gaps) {
        if !found.topics.contains_key(name) {
            problems.push(Problem::new(
                first_root(),
                format!("there is no topic {name:?} here"),
                "check the name, and whether all log directories are given",
            ));
        }
    }
    for partitions in found.topics.values_mut() {
        partitions.sort_by_key(|partition| partition.partition);
    }
    for (topic, partitions) in &found.topics {
        check_partitions(topic, partitions, &found, problems);
    }
    let is_here = |topic: &str, number| {
        found.topics.get(topic).is_some_and(|here| here.iter().any(|partition| partition.partition == number))
    };
    check_absent(&found.absent, is_here, ABSENT_HINT, problems);
    if let Some((_, metadata)) = &found.metadata {
        for (topic, partitions) in &mut found.topics {
            let is_tiered = metadata.is_tiered(topic);
            partitions.iter_mut().for_each(|partition| partition.is_tiered = is_tiered);
        }
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
    let has = |name: &str| entries.iter().any(|entry| entry.name == name);
    if !is_log_directory(volume, &entries) {
        let (problem, hint) = if has(CLUSTER_DIR) && has(TOPICS_DIR) {
            (
                "a data directory of kaas, not a log directory of Kafka",
                "name Kafka's log directories first, and the data directory of kaas last",
            )
        } else {
            (NOTHING_HERE, NOTHING_HERE_HINT)
        };
        problems.push(Problem::new(volume.root().to_owned(), problem, hint));
        return Ok(());
    }
    let checkpoints = Checkpoints::read(volume, &entries, problems);
    find_owner(&Listed { volume, dir: Path::new(""), entries: &entries }, found, problems);
    let wanted = |topic: &str| {
        (options.topics.is_empty() || options.topics.iter().any(|name| name == topic))
            && !INTERNAL_TOPICS.contains(&topic)
    };
    let mut any = false;
    for entry in &entries {
        let Some(name) = entry.name.to_str() else { continue };
        let dir = Path::new(name);
        if name == metadata_log::DIR && entry.kind != EntryKind::Dir {
            problems.push(Problem::new(shown(volume, dir), NO_DIRECTORY, NO_DIRECTORY_HINT));
            continue;
        }
        if name == metadata_log::DIR {
            let newest = found.metadata.as_ref().map(|(_, newest)| newest.end());
            let state = metadata_log::read(volume, dir, checkpoints.is_clean, problems);
            if let Some(state) = state.filter(|state| newest < Some(state.end())) {
                found.metadata = Some((shown(volume, dir), state));
            }
            continue;
        }
        let parsed = DirName::parse(name);
        if let DirName::Partition { topic, partition } = parsed {
            let is_this = source.only.as_deref().is_none_or(|only| only == name);
            if !is_this || !wanted(&topic) || entry.kind == EntryKind::File {
                continue;
            }
            any = true;
            if entry.kind != EntryKind::Dir {
                problems.push(Problem::new(shown(volume, dir), NO_DIRECTORY, NO_DIRECTORY_HINT));
            } else if is_topic_name(&topic) {
                let partition = find_partition(source, (topic, partition), dir, &checkpoints, problems);
                found.topics.entry(partition.topic.clone()).or_default().push(partition);
            } else {
                let problem = format!("{topic:?} is no name of a topic");
                problems.push(Problem::new(
                    shown(volume, dir),
                    problem,
                    "it is none of Kafka's: take it away",
                ));
            }
            continue;
        }
        let reason = match parsed {
            DirName::Transient(kind) => kind.reason(),
            _ => "not the directory of a partition",
        };
        let is_known = ["lost+found", "remote-log-index-cache"].contains(&name);
        if entry.kind == EntryKind::Dir && source.only.is_none() && !is_known {
            found.passed_over.push(PassedOver { path: shown(volume, dir), reason });
        }
    }
    if source.only.is_none() {
        // A link, say, in its place has been told.
        let is_here =
            |name: &str| entries.iter().any(|entry| entry.name == name && entry.kind != EntryKind::File);
        let is_gone = |topic: &str, number| wanted(topic) && !is_here(&format!("{topic}-{number}"));
        found.absent.extend(absent_partitions(volume, &checkpoints, is_gone));
    }
    if any && !checkpoints.is_clean && !options.after_crash {
        problems.push(Problem::new(
            volume.root().to_owned(),
            "Kafka is running on it, or was not stopped cleanly",
            "stop Kafka and wait until it has ended; if it was killed for good, --after-crash cuts off what it had not finished",
        ));
    }
    Ok(())
}

/// Reads whose log directory it is: all must be of one cluster.
fn find_owner(listed: &Listed<'_>, found: &mut Sources, problems: &mut Vec<Problem>) {
    let (volume, path) = (listed.volume, Path::new(META_PROPERTIES));
    let properties = listed.parsed(META_PROPERTIES, |bytes| Ok(Some(properties::parse(bytes))), problems);
    let Some(properties) = properties else { return };
    let property = |name: &str| properties.get(name).map(|value| value.trim());
    found.nodes.extend(property("node.id").or(property("broker.id")).and_then(|id| id.parse::<i32>().ok()));
    let id = property("cluster.id").unwrap_or_default();
    if !is_cluster_id(id) {
        problems.push(Problem::new(
            shown(volume, path),
            if property("cluster.id").is_none() {
                "it has no cluster.id"
            } else {
                "its cluster.id is no text of 1 to 128 printable ASCII characters"
            },
            "restore the file; or take it away, and a new cluster id is made",
        ));
        return;
    }
    match &found.cluster_id {
        Some((first, of)) if first != id => problems.push(Problem::new(
            shown(volume, path),
            format!("its cluster id is {id}, and {first} in {}", of.display()),
            "import one cluster at a time",
        )),
        Some(_) => {}
        None => found.cluster_id = Some((id.to_owned(), shown(volume, path))),
    }
}

/// Looks at the files of a partition's directory.
fn find_partition(
    source: &Source,
    of: (String, u32),
    dir: &Path,
    checkpoints: &Checkpoints,
    problems: &mut Vec<Problem>,
) -> SourcePartition {
    let volume = &*source.volume;
    let listed = volume.list(dir);
    let is_listed = listed.is_ok();
    let entries = listed.unwrap_or_else(|error| {
        problems.push(Problem::unreadable(volume, &error));
        Vec::new()
    });
    let listed = Listed { volume, dir, entries: &entries };
    let id = text(|text| topic_id(text).map(Some));
    let mut partition = SourcePartition {
        volume: Arc::clone(&source.volume),
        dir: dir.to_owned(),
        topic_id: listed.parsed(PARTITION_METADATA, id, problems),
        is_listed,
        logs: Vec::new(),
        snapshots: Vec::new(),
        leader_epochs: listed.parsed(LEADER_EPOCHS, text(leader_epochs), problems),
        checkpointed_start: Checkpoints::offset(&checkpoints.log_starts, &of),
        recovery_point: checkpoints.recovery_point(&of),
        is_clean: checkpoints.is_clean,
        is_tiered: false,
        cleaned_up_to: Checkpoints::offset(&checkpoints.cleaned, &of),
        topic: of.0,
        partition: of.1,
    };
    sort_files(&mut partition, &entries, problems);
    partition
}

/// Whether Kafka has worked in a directory: it has the file that says whose it is, or the directory of a partition with a log.
fn is_log_directory(volume: &dyn Substrate, entries: &[Entry]) -> bool {
    let is_partition = |entry: &Entry| {
        let (name, files) = (entry.name.to_str(), || volume.list(Path::new(&entry.name)));
        entry.kind == EntryKind::Dir
            && name.is_some_and(|name| files().is_ok_and(|files| is_partition_dir(name, &files)))
    };
    entries.iter().any(|entry| entry.name == META_PROPERTIES) || entries.iter().any(is_partition)
}

/// What the files of a partition's directory are.
fn sort_files(partition: &mut SourcePartition, entries: &[Entry], problems: &mut Vec<Problem>) {
    let mut indexes = Vec::new();
    for entry in entries {
        let name = entry.name.to_string_lossy();
        let path = || shown(&*partition.volume, &partition.dir.join(&entry.name));
        let found = FileName::parse(&name);
        if matches!(found, FileName::Log(_) | FileName::Snapshot(_)) && entry.kind != EntryKind::File {
            problems.push(Problem::new(path(), NO_FILE, NO_FILE_HINT));
        }
        match found {
            FileName::Log(base) => partition.logs.push(base),
            FileName::Snapshot(at) => partition.snapshots.push(at),
            FileName::Index(base) => indexes.push((base, name.into_owned())),
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
    indexes.sort_unstable();
    check_indexes(partition, &indexes, problems);
}
