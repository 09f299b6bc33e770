//! Finding out what a directory is (a partition, a topic, all topics, a whole data directory, slots) and examining
//! everything in it, on a few threads.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use kaas_substrate::{Entry, EntryKind, Substrate, TEMPORARY_PREFIX, read_small};
use parking_lot::Mutex;
use serde_json::Value;

use super::cluster::META_FILE;
use super::finding::{Finding, Kind, Severity};
use super::identity::{self, Expected, TOPIC_CONFIG, TOPIC_ID_FILE, partition_number};
use super::report::Report;
use super::topics::{has_gap, is_topic_name, missing_partitions, partitions, topic_strays};
use super::view::{decode_as, unsealed};
use super::{Context, Examined, Options, Progress, cluster, partition, slots};
use crate::identity::PARTITION_FILE;
use crate::journal::is_journal_file;
pub(super) use crate::layout::{CLUSTER_DIR, CONTROLLER_DIR, NEW_PREFIX, SLOTS_DIR, TOPICS_DIR};
use crate::leadership::FENCE_NAME;
use crate::log::SegmentName;
use crate::manifest::MANIFEST;

/// Prefix of directories that are being removed.
const DELETED_PREFIX: &str = "~deleted-";

/// Missing partitions and unknown names of one directory that are told one by one.
pub(super) const SHOWN_MAX: usize = 20;

/// Why nothing could be verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The directory cannot be listed.
    #[error(transparent)]
    Storage(#[from] kaas_substrate::Error),
    /// It is no directory of kaas.
    #[error("{} holds no partition, topic, slot or data directory of kaas", path.display())]
    NothingThere { path: PathBuf },
}

/// What there is to examine.
#[derive(Debug)]
enum Job {
    Partition { dir: PathBuf, expected: Expected },
    Slot { dir: PathBuf },
    Controller { dir: PathBuf },
}

/// What a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Partition,
    Slot,
    Slots,
    Controller,
    Cluster,
    Topic,
    Topics,
    Data,
    Nothing,
}

/// Examines the directory `target`, relative to the substrate's root, and all that is in it. Blocks for as long as
/// reading it takes.
///
/// # Errors
///
/// If the directory cannot be listed, or is none of kaas; everything else is a finding.
pub fn verify(
    substrate: &dyn Substrate,
    target: &Path,
    options: &Options,
    progress: &Progress,
) -> Result<Report, VerifyError> {
    let context = Context { substrate, options, progress };
    let tree = Tree { context: &context };
    let mut report = Report::default();
    let mut own = Vec::new();
    let what = tree.what(target)?;
    let jobs = match what {
        What::Nothing => {
            return Err(VerifyError::NothingThere { path: substrate.root().join(target) });
        }
        What::Partition => vec![tree.partition(target)],
        What::Slot => vec![Job::Slot { dir: target.to_owned() }],
        What::Controller => vec![Job::Controller { dir: target.to_owned() }],
        What::Slots => tree.slots(target, &mut own)?,
        What::Cluster => tree.cluster(target, &mut own)?,
        What::Topic => tree.topics(vec![target.to_owned()], &mut report),
        What::Topics => {
            let topics = tree.topic_dirs(target, &mut own)?;
            tree.topics(topics, &mut report)
        }
        What::Data => tree.data(target, &mut report, &mut own)?,
    };
    report.add(Examined { findings: own, ..Examined::default() }, target, options.findings_max);
    progress.directories_total.store(jobs.len() as u64, Ordering::Relaxed);
    if options.measure {
        let sizes = parallel(options.threads, &jobs, |job| match job {
            Job::Partition { dir, .. } => partition::bytes(&context, dir),
            Job::Slot { .. } | Job::Controller { .. } => 0,
        });
        progress.bytes_total.store(sizes.iter().sum(), Ordering::Relaxed);
    }
    let examined = parallel(options.threads, &jobs, |job| {
        let examined = tree.examine(job);
        progress.directories.fetch_add(1, Ordering::Relaxed);
        examined
    });
    let mut highest_producer = None;
    for (job, examined) in jobs.iter().zip(examined) {
        highest_producer = highest_producer.max(examined.counts.highest_producer);
        let dir = match job {
            Job::Partition { dir, expected } => {
                report.partitions += 1;
                if examined.findings.iter().any(|finding| finding.severity > Severity::Info) {
                    report.to_repair.push((dir.clone(), expected.clone()));
                }
                dir
            }
            Job::Slot { dir } => {
                report.slots += 1;
                dir
            }
            Job::Controller { dir } => dir,
        };
        report.add(examined, dir, options.findings_max);
    }
    if let Some(highest) = highest_producer.filter(|_| what == What::Data) {
        let cluster = target.join(CLUSTER_DIR);
        let findings = cluster::check_producer_ids(&context, &cluster, highest).into_iter().collect();
        report.add(Examined { findings, ..Examined::default() }, &cluster, options.findings_max);
    }
    Ok(report)
}

struct Tree<'a> {
    context: &'a Context<'a>,
}

impl Tree<'_> {
    fn list(&self, dir: &Path) -> Result<Vec<Entry>, kaas_substrate::Error> {
        let mut entries = self.context.substrate.list(dir)?;
        entries.sort_unstable();
        Ok(entries)
    }

    /// The directory's name, and its parent's and grandparent's, below and above the substrate's root.
    fn lineage(&self, dir: &Path) -> [Option<String>; 3] {
        let path = self.context.substrate.root().join(dir);
        let mut names =
            path.ancestors().map(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()));
        std::array::from_fn(|_| names.next().flatten())
    }

    fn what(&self, dir: &Path) -> Result<What, kaas_substrate::Error> {
        let entries = self.list(dir)?;
        let [name, parent, grandparent] = self.lineage(dir);
        let named = |found: &Option<String>, wanted: &str| found.as_deref() == Some(wanted);
        let has = |wanted: &str| entries.iter().any(|entry| entry.name == wanted);
        let files = || entries.iter().filter(|entry| entry.kind == EntryKind::File);
        let of_partition = |entry: &&Entry| {
            entry.name == PARTITION_FILE
                || MANIFEST.parse(&entry.name).is_some()
                || entry.name.to_str().and_then(SegmentName::parse).is_some()
        };
        if files().any(|entry| of_partition(&entry)) {
            return Ok(What::Partition);
        }
        if files().any(|entry| is_journal_file(&entry.name).is_some()) {
            return Ok(What::Slot);
        }
        if named(&name, CONTROLLER_DIR) && named(&parent, CLUSTER_DIR) {
            return Ok(What::Controller);
        }
        if has(FENCE_NAME) {
            return Ok(if named(&parent, SLOTS_DIR) || named(&grandparent, SLOTS_DIR) {
                What::Slot
            } else {
                What::Partition
            });
        }
        if has(TOPIC_ID_FILE) {
            return Ok(What::Topic);
        }
        if named(&name, SLOTS_DIR) || named(&parent, SLOTS_DIR) {
            return Ok(What::Slots);
        }
        if named(&name, TOPICS_DIR) {
            return Ok(What::Topics);
        }
        if has(CONTROLLER_DIR) && (has(META_FILE) || named(&name, CLUSTER_DIR)) {
            return Ok(What::Cluster);
        }
        if has(CLUSTER_DIR) || has(TOPICS_DIR) || has(SLOTS_DIR) {
            return Ok(What::Data);
        }
        let mut dirs = entries.iter().filter(|entry| entry.kind == EntryKind::Dir).peekable();
        if dirs.peek().is_none() {
            return Ok(What::Nothing);
        }
        if dirs.clone().any(|entry| entry.name.to_str().and_then(partition_number).is_some()) {
            return Ok(What::Topic);
        }
        for entry in dirs {
            if self.is_topic(&dir.join(&entry.name)) {
                return Ok(What::Topics);
            }
        }
        Ok(What::Nothing)
    }

    fn is_topic(&self, dir: &Path) -> bool {
        let entries = self.list(dir).unwrap_or_default();
        entries.iter().any(|entry| entry.name == TOPIC_ID_FILE)
    }

    /// A partition by itself; a topic around it says what is expected of it.
    fn partition(&self, dir: &Path) -> Job {
        let [name, topic, _] = self.lineage(dir);
        let mut expected =
            Expected { partition: name.as_deref().and_then(partition_number), ..Expected::default() };
        if let Some(parent) = dir.parent().filter(|parent| self.is_topic(parent)) {
            // What is wrong with the topic is not asked here.
            expected.topic_id = identity::check_topic(self.context, parent, None, &mut Vec::new());
            expected.topic = topic;
        }
        Job::Partition { dir: dir.to_owned(), expected }
    }

    fn data(
        &self,
        dir: &Path,
        report: &mut Report,
        own: &mut Vec<Finding>,
    ) -> Result<Vec<Job>, kaas_substrate::Error> {
        let entries = self.list(dir)?;
        let has = |wanted: &str| entries.iter().any(|entry| entry.name == wanted);
        let mut jobs = Vec::new();
        if has(CLUSTER_DIR) {
            jobs.extend(self.cluster(&dir.join(CLUSTER_DIR), own)?);
        } else {
            own.push(Finding::new(Kind::ClusterMetaDamaged, &dir.join(CLUSTER_DIR), "it is not there"));
        }
        if has(SLOTS_DIR) {
            jobs.extend(self.slots(&dir.join(SLOTS_DIR), own)?);
        }
        if has(TOPICS_DIR) {
            let topics = self.topic_dirs(&dir.join(TOPICS_DIR), own)?;
            jobs.extend(self.topics(topics, report));
        }
        cluster::data_strays(dir, &entries, own);
        Ok(jobs)
    }

    fn cluster(&self, dir: &Path, own: &mut Vec<Finding>) -> Result<Vec<Job>, kaas_substrate::Error> {
        let entries = self.list(dir)?;
        cluster::check_files(self.context, dir, &entries, own);
        let controller = dir.join(CONTROLLER_DIR);
        if entries.iter().any(|entry| entry.name == CONTROLLER_DIR) {
            return Ok(vec![Job::Controller { dir: controller }]);
        }
        own.push(Finding::new(Kind::FenceMissing, &controller, "the controller's directory is not there"));
        Ok(Vec::new())
    }

    /// Slots, one or two levels down.
    fn slots(&self, dir: &Path, own: &mut Vec<Finding>) -> Result<Vec<Job>, kaas_substrate::Error> {
        let mut jobs = Vec::new();
        for entry in self.list(dir)? {
            let path = dir.join(&entry.name);
            if entry.name.to_string_lossy().starts_with(NEW_PREFIX) {
                own.push(Finding::new(Kind::Unfinished, &path, "a slot that is not whole"));
                continue;
            }
            if entry.kind != EntryKind::Dir {
                own.push(Finding::new(Kind::UnknownFile, &path, "the name is not one of kaas"));
                continue;
            }
            let inner = self.list(&path)?;
            let is_slot =
                inner.iter().any(|entry| entry.name == FENCE_NAME || is_journal_file(&entry.name).is_some());
            let [_, parent, _] = self.lineage(&path);
            if is_slot || parent.as_deref() != Some(SLOTS_DIR) {
                jobs.push(Job::Slot { dir: path });
            } else {
                jobs.extend(self.slots(&path, own)?);
            }
        }
        Ok(jobs)
    }

    /// The topics below `dir`.
    fn topic_dirs(&self, dir: &Path, own: &mut Vec<Finding>) -> Result<Vec<PathBuf>, kaas_substrate::Error> {
        let mut topics = Vec::new();
        let mut unknown = 0;
        for entry in self.list(dir)? {
            let path = dir.join(&entry.name);
            let name = entry.name.to_string_lossy();
            if entry.kind == EntryKind::Dir && name.starts_with(NEW_PREFIX) {
                own.push(Finding::new(Kind::Unfinished, &path, "a topic that is not whole"));
            } else if entry.kind == EntryKind::Dir && name.starts_with(DELETED_PREFIX) {
                own.push(Finding::new(Kind::Deleted, &path, "a deleted topic"));
            } else if entry.kind == EntryKind::Dir && is_topic_name(&name) {
                topics.push(path);
            } else if name.starts_with(TEMPORARY_PREFIX) {
                own.push(Finding::new(Kind::Temporary, &path, "a temporary file"));
            } else {
                unknown += 1;
                if unknown <= SHOWN_MAX {
                    own.push(Finding::new(Kind::UnknownFile, &path, "it is not a topic's directory"));
                }
            }
        }
        Ok(topics)
    }

    /// Looks at topics side by side; their partitions.
    fn topics(&self, dirs: Vec<PathBuf>, report: &mut Report) -> Vec<Job> {
        report.topics += dirs.len() as u64;
        let options = self.context.options;
        let looked_at = parallel(options.threads, &dirs, |dir| {
            let mut findings = Vec::new();
            let partitions = self.topic(dir, &mut findings);
            (partitions, findings)
        });
        let mut jobs = Vec::new();
        for (dir, (partitions, findings)) in dirs.iter().zip(looked_at) {
            report.add(Examined { findings, ..Examined::default() }, dir, options.findings_max);
            jobs.extend(partitions);
        }
        jobs
    }

    fn topic(&self, dir: &Path, findings: &mut Vec<Finding>) -> Vec<Job> {
        let entries = match self.list(dir) {
            Ok(entries) => entries,
            Err(error) if error.is_not_found() => {
                findings.push(Finding::new(Kind::InProgress, dir, "the topic was deleted meanwhile"));
                return Vec::new();
            }
            Err(error) => {
                findings.push(Finding::new(Kind::Unreadable, dir, error.to_string()));
                return Vec::new();
            }
        };
        let [name, _, _] = self.lineage(dir);
        let topic_id = identity::check_topic(self.context, dir, name.as_deref(), findings);
        self.topic_config(dir, &entries, findings);
        let mut numbers = partitions(&entries);
        if has_gap(&numbers) {
            // Partitions that are being added may have been listed out of order.
            thread::sleep(self.context.options.second_look_after);
            numbers = self.list(dir).map_or(numbers, |entries| partitions(&entries));
            missing_partitions(dir, &numbers, findings);
        }
        topic_strays(dir, &entries, findings);
        let job = |number: u32| {
            let expected = Expected { topic: name.clone(), topic_id, partition: Some(number) };
            Job::Partition { dir: dir.join(number.to_string()), expected }
        };
        numbers.into_iter().map(job).collect()
    }

    fn topic_config(&self, dir: &Path, entries: &[Entry], findings: &mut Vec<Finding>) {
        let Some(newest) = entries.iter().filter_map(|entry| TOPIC_CONFIG.parse(&entry.name)).max() else {
            return;
        };
        let path = dir.join(TOPIC_CONFIG.file_name(newest));
        let bytes = match read_small(self.context.substrate, &path, identity::FILE_BYTES_MAX) {
            Ok(bytes) => bytes,
            // Replaced meanwhile.
            Err(error) if error.is_not_found() => return,
            Err(error) => {
                findings.push(Finding::new(Kind::Unreadable, &path, error.to_string()));
                return;
            }
        };
        match decode_as::<Value>(&path, &bytes, Kind::TopicConfigDamaged) {
            Ok(value) => {
                let config = value.get("config").and_then(Value::as_object);
                if !config.is_some_and(|config| config.values().all(Value::is_string)) {
                    let problem = "it has no object `config` of strings";
                    findings.push(Finding::new(Kind::TopicConfigDamaged, &path, problem));
                }
                findings.extend(unsealed(&path, &bytes));
            }
            Err(finding) => findings.push(finding),
        }
    }

    fn examine(&self, job: &Job) -> Examined {
        let (dir, examined) = match job {
            Job::Partition { dir, expected } => (dir, partition::examine(self.context, dir, expected)),
            Job::Slot { dir } => (dir, slots::examine(self.context, dir)),
            Job::Controller { dir } => (dir, slots::examine_controller(self.context, dir)),
        };
        let gone = !examined.findings.is_empty()
            && self.context.substrate.list(dir).is_err_and(|error| error.is_not_found());
        if gone {
            let finding = Finding::new(Kind::InProgress, dir, "it was removed meanwhile");
            return Examined { findings: vec![finding], counts: examined.counts };
        }
        examined
    }
}

/// `work` for every item on up to `threads` threads; the results in the order of the items.
pub(super) fn parallel<T: Sync, R: Send>(
    threads: usize,
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, items.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { return };
                    let result = work(item);
                    results.lock().push((at, result));
                }
            });
        }
    });
    let mut results = results.into_inner();
    results.sort_unstable_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}
