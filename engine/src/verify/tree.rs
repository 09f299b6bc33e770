//! Finding out what a directory is (a partition, a topic, all topics, a whole data directory, slots) and examining
//! everything in it, on a few threads.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use kaas_substrate::{Entry, EntryKind, Substrate, printable};
use parking_lot::Mutex;

use super::cluster::META_FILE;
use super::finding::{Finding, Kind};
use super::identity::{self, Expected, TOPIC_ID_FILE, partition_number};
use super::report::{Place, Report, Traces};
use super::strays::{self, Strays};
use super::topics::{self, Topic};
use super::{Context, Examined, Options, Progress, cluster, partition, slots};
use crate::identity::PARTITION_FILE;
use crate::journal::is_journal_file;
use crate::layout::is_topic_name;
pub(super) use crate::layout::{CLUSTER_DIR, CONTROLLER_DIR, GROUPS_DIR, NEW_PREFIX, SLOTS_DIR, TOPICS_DIR};
use crate::leadership::FENCE_NAME;
use crate::log::SegmentFileName;
use crate::manifest::MANIFEST;

/// Prefix of directories that are being removed.
pub(super) const DELETED_PREFIX: &str = "~deleted-";

/// Why nothing could be verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The directory cannot be listed.
    #[error(transparent)]
    Storage(#[from] kaas_substrate::Error),
    /// It is no directory of kaas.
    #[error("{} holds no partition, topic, slot or data directory of kaas", printable(path))]
    NothingThere { path: PathBuf },
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
        What::Slot => vec![Place::Slot(target.to_owned())],
        What::Controller => vec![Place::Controller(target.to_owned())],
        What::Slots => tree.slots(target, &mut own),
        What::Cluster => tree.cluster(target),
        What::Topic => tree.topics(vec![target.to_owned()], &mut report),
        What::Topics => {
            let topics = tree.topic_dirs(target, &mut own);
            tree.topics(topics, &mut report)
        }
        What::Data => tree.data(target, &mut report, &mut own)?,
    };
    report.add(Examined { findings: own, ..Examined::default() }, target, options.findings_max);
    progress.directories_total.store(jobs.len() as u64, Ordering::Relaxed);
    if options.measure {
        let sizes = parallel(options.threads, &jobs, |job| match job {
            Place::Partition(dir, expected) => partition::bytes(&context, dir, expected),
            _ => 0,
        });
        progress.bytes_total.store(sizes.iter().sum(), Ordering::Relaxed);
    }
    let examined = parallel(options.threads, &jobs, |job| {
        let examined = tree.examine(job);
        progress.directories.fetch_add(1, Ordering::Relaxed);
        examined
    });
    let mut traces = Traces::default();
    for (place, examined) in jobs.into_iter().zip(examined) {
        traces.highest_producer = traces.highest_producer.max(examined.counts.highest_producer);
        traces.newest = traces.newest.max(examined.counts.newest);
        match &place {
            Place::Partition(..) => report.partitions += 1,
            Place::Slot(_) => report.slots += 1,
            Place::Controller(_) | Place::Cluster(_) | Place::Topic(_) => {}
        }
        report.add_place(place, examined, options.findings_max);
    }
    report.traces = (what == What::Data).then_some(traces);
    if let Some(highest) = report.traces.and_then(|traces| traces.highest_producer) {
        let cluster = target.join(CLUSTER_DIR);
        let findings = cluster::check_producer_ids(&context, &cluster, highest).into_iter().collect();
        let examined = Examined { findings, ..Examined::default() };
        report.add_place(Place::Cluster(cluster), examined, options.findings_max);
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

    fn lineage(&self, dir: &Path) -> [Option<String>; 3] {
        lineage(self.context.substrate, dir)
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
                || entry.name.to_str().and_then(SegmentFileName::parse).is_some()
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
    fn partition(&self, dir: &Path) -> Place {
        let [name, topic, _] = self.lineage(dir);
        let mut expected =
            Expected { partition: name.as_deref().and_then(partition_number), ..Expected::default() };
        if let Some(parent) = dir.parent().filter(|parent| self.is_topic(parent)) {
            // What is wrong with the topic is not asked here.
            expected.topic_id = identity::check_topic(self.context, parent, None, &mut Vec::new());
            // A topic that is renamed aside has its name within only.
            expected.topic = topic.filter(|topic| !topic.starts_with(DELETED_PREFIX));
        }
        Place::Partition(dir.to_owned(), expected)
    }

    fn data(
        &self,
        dir: &Path,
        report: &mut Report,
        own: &mut Vec<Finding>,
    ) -> Result<Vec<Place>, kaas_substrate::Error> {
        let entries = self.list(dir)?;
        let has = |wanted: &str| entries.iter().any(|entry| entry.name == wanted);
        let mut jobs = Vec::new();
        if has(CLUSTER_DIR) {
            jobs.extend(self.cluster(&dir.join(CLUSTER_DIR)));
        } else {
            own.push(Finding::new(Kind::ClusterMetaDamaged, &dir.join(CLUSTER_DIR), "it is not there"));
        }
        if has(SLOTS_DIR) {
            jobs.extend(self.slots(&dir.join(SLOTS_DIR), own));
        }
        if has(TOPICS_DIR) {
            let topics = self.topic_dirs(&dir.join(TOPICS_DIR), own);
            jobs.extend(self.topics(topics, report));
        }
        cluster::data_strays(dir, &entries, own);
        Ok(jobs)
    }

    fn cluster(&self, dir: &Path) -> Vec<Place> {
        vec![Place::Cluster(dir.to_owned()), Place::Controller(dir.join(CONTROLLER_DIR))]
    }

    /// The entries of a directory; that it cannot be listed is a finding.
    fn entries(&self, dir: &Path, own: &mut Vec<Finding>) -> Vec<Entry> {
        self.list(dir).unwrap_or_else(|error| {
            let mut finding = [Finding::new(Kind::Unreadable, dir, error.to_string())];
            strays::explain(self.context.substrate, dir, &mut finding);
            own.extend(finding);
            Vec::new()
        })
    }

    /// Slots, one or two levels down.
    fn slots(&self, dir: &Path, own: &mut Vec<Finding>) -> Vec<Place> {
        let mut jobs = Vec::new();
        let entries = self.entries(dir, own);
        let [name, _, _] = self.lineage(dir);
        let is_top = name.as_deref() == Some(SLOTS_DIR);
        for entry in entries {
            let path = dir.join(&entry.name);
            let name = entry.name.to_string_lossy();
            let is_ours = if is_top { name == GROUPS_DIR } else { is_slot_number(&name) };
            let mut strays = Strays::new(dir, own);
            match entry.kind {
                EntryKind::Dir if name.starts_with(NEW_PREFIX) => {
                    strays.tell(Kind::Unfinished, &entry.name, "a slot that is not whole");
                }
                EntryKind::Dir if !is_ours && strays::origin(&entry.name, entry.kind).is_some() => {
                    strays.other(&entry);
                }
                EntryKind::Dir => {
                    let inner = self.entries(&path, own);
                    let is_slot = inner
                        .iter()
                        .any(|entry| entry.name == FENCE_NAME || is_journal_file(&entry.name).is_some());
                    if is_slot || !is_top {
                        jobs.push(Place::Slot(path));
                    } else {
                        jobs.extend(self.slots(&path, own));
                    }
                }
                kind if is_ours => strays.wrong_type(&entry.name, kind, EntryKind::Dir),
                _ => strays.other(&entry),
            }
        }
        jobs
    }

    /// The topics below `dir`, and whatever else may be one.
    fn topic_dirs(&self, dir: &Path, own: &mut Vec<Finding>) -> Vec<PathBuf> {
        let mut topics = Vec::new();
        let entries = self.entries(dir, own);
        let mut strays = Strays::new(dir, own);
        for entry in entries {
            let name = entry.name.to_string_lossy();
            match entry.kind {
                EntryKind::Dir if name.starts_with(NEW_PREFIX) => {
                    strays.tell(Kind::Unfinished, &entry.name, "a topic that is not whole");
                }
                EntryKind::Dir if name.starts_with(DELETED_PREFIX) => {
                    strays.tell(Kind::Deleted, &entry.name, "a deleted topic");
                }
                EntryKind::Dir if is_topic_name(&name) => topics.push(dir.join(&entry.name)),
                // Somebody has moved a topic to another volume.
                EntryKind::Link if is_topic_name(&name) => {
                    strays.wrong_type(&entry.name, entry.kind, EntryKind::Dir);
                }
                _ => strays.other(&entry),
            }
        }
        topics
    }

    /// Looks at topics side by side; their partitions.
    fn topics(&self, dirs: Vec<PathBuf>, report: &mut Report) -> Vec<Place> {
        let options = self.context.options;
        let looked_at = parallel(options.threads, &dirs, |dir| {
            let mut findings = Vec::new();
            let topic = topics::look(self.context, dir, &mut findings);
            (topic, findings)
        });
        let mut jobs = Vec::new();
        for (dir, (topic, findings)) in dirs.iter().zip(looked_at) {
            report.topics += u64::from(!topic.is_stray);
            let examined = Examined { findings, ..Examined::default() };
            report.add_place(Place::Topic(dir.clone()), examined, options.findings_max);
            jobs.extend(self.partitions(dir, topic));
        }
        jobs
    }

    fn partitions(&self, dir: &Path, Topic { topic_id, partitions, .. }: Topic) -> Vec<Place> {
        let topic = file_name(self.context.substrate, dir);
        let job = |number: u32| {
            let expected = Expected { topic: topic.clone(), topic_id, partition: Some(number) };
            Place::Partition(dir.join(number.to_string()), expected)
        };
        partitions.into_iter().map(job).collect()
    }

    /// Why what was found of a place that is bad says nothing: what was looked at is not there any more.
    fn is_gone(&self, place: &Place) -> Option<&'static str> {
        let dir = place.dir();
        if matches!(place, Place::Controller(_) | Place::Cluster(_)) {
            return None;
        }
        if self.context.substrate.list(dir).is_err_and(|error| error.is_not_found()) {
            return Some("it was removed meanwhile");
        }
        let Place::Partition(_, Expected { topic_id: Some(expected), .. }) = place else { return None };
        let topic = dir.parent().filter(|topic| self.is_topic(topic))?;
        let now = identity::check_topic(self.context, topic, None, &mut Vec::new())?;
        (now != *expected).then_some("its topic was deleted meanwhile, and another one of that name created")
    }

    fn examine(&self, place: &Place) -> Examined {
        let dir = place.dir();
        let mut findings = Vec::new();
        let examined = match place {
            Place::Partition(_, expected) => partition::examine(self.context, dir, expected),
            Place::Slot(_) => slots::examine(self.context, dir),
            Place::Controller(_) => slots::examine_controller(self.context, dir),
            Place::Cluster(_) => {
                cluster::examine(self.context, dir, &mut findings);
                Examined { findings, ..Examined::default() }
            }
            Place::Topic(_) => {
                topics::look(self.context, dir, &mut findings);
                Examined { findings, ..Examined::default() }
            }
        };
        let is_in_doubt = examined.findings.iter().any(Finding::is_bad);
        if let Some(why) = is_in_doubt.then(|| self.is_gone(place)).flatten() {
            let finding = Finding::new(Kind::InProgress, dir, why);
            return Examined { findings: vec![finding], counts: examined.counts };
        }
        examined
    }
}

/// Whether a name is that of a slot: two digits or more.
fn is_slot_number(name: &str) -> bool {
    name.len() >= 2 && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// The directory's name, and its parent's and grandparent's, below and above the substrate's root.
pub(super) fn lineage(substrate: &dyn Substrate, dir: &Path) -> [Option<String>; 3] {
    let path = substrate.root().join(dir);
    let mut names =
        path.ancestors().map(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()));
    std::array::from_fn(|_| names.next().flatten())
}

/// The directory's name.
pub(super) fn file_name(substrate: &dyn Substrate, dir: &Path) -> Option<String> {
    let [name, _, _] = lineage(substrate, dir);
    name
}

/// `work` for every item on up to `threads` threads; the results in the order of the items.
pub(super) fn parallel<T: Sync, R: Send>(
    threads: usize,
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    if threads <= 1 {
        // On this one: whoever simulates time has no others.
        return items.iter().map(work).collect();
    }
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
