//! `kaas-engine verify --repair`: keeps what can be read, and puts in order what is around it.
//!
//! A partition is repaired by its next leader: the repair claims the next epoch, so whoever leads is fenced out and can
//! acknowledge nothing more; it reads what counts as a new leader does; it writes a manifest of its own, which pins all
//! that can be read. The next leader opens it as after a clean close. Segments are never changed in place: what stands
//! behind damage is written as a new, rewritten segment, as compaction does. What cannot be read, and what does not
//! belong there, goes to `quarantine/`.
//!
//! # What a repair never does
//!
//! - make a record unreadable that counted and can be read;
//! - give an offset to a record that another record may have had: where the end of the log is lost, the next record goes
//!   behind everything that was ever promised;
//! - take records from a file that is not the one that was written, unless its content is to the batch what the manifest pins;
//! - touch a directory where nothing is wrong, or that it cannot understand (a newer format, a foreign directory, a
//!   volume that gives errors);
//! - give up what was acknowledged and is no record (configs, committed offsets), or a segment for one that is whole and may be
//!   another partition's, unless that is accepted;
//! - make a new fence where an old leader may still have the lost one open, unless whoever asks says that there is none.
//!
//! Slots and the controller's directory are repaired the same way, by their next leader; topics' own files and the cluster's
//! by the next controller, with no broker running.

mod act;
mod claimed_dir;
mod cluster_files;
mod content;
mod controller_guard;
mod layout;
mod looked;
mod neighbours;
mod partition;
mod placing;
mod plan;
pub(super) mod quarantine;
mod reading;
mod salvage;
mod slot;
mod survey;

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kaas_substrate::{ErrorClass, OpenMode, Substrate};
use serde::Serialize;

use super::finding::Finding;
use super::identity::Expected;
use super::report::{Place, Traces};
use super::tree::parallel;
use super::{Context, Options, Progress, Report, leaders, slots};
use crate::leadership::Claimant;
use claimed_dir::ClaimedDir;
use cluster_files::{ClusterFilesRepair, ControllerFiles};
use controller_guard::ControllerGuard;
use partition::PartitionRepair;
pub use salvage::Lost;
use slot::SlotRepair;

/// Whether a repair writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// Nothing is written; the steps are those that a repair would take.
    DryRun,
    /// Claims what it repairs, as this one.
    Repair(Claimant),
}

impl Mode {
    /// What has become of a directory when all went well.
    fn done(&self) -> Outcome {
        match self {
            Self::DryRun => Outcome::WouldRepair,
            Self::Repair(_) => Outcome::Repaired,
        }
    }
}

/// What became of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The steps were taken.
    Repaired,
    /// The steps would be taken.
    WouldRepair,
    /// It must be left as it is, or the repair could not come to its end; the reason says why.
    Refused,
}

/// What was done to one directory, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Repaired {
    /// The directory, relative to the volume's root.
    #[serde(serialize_with = "crate::printable::serialize_path")]
    pub directory: PathBuf,
    pub outcome: Outcome,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What is done, in order.
    pub steps: Vec<String>,
    /// Offsets that counted and that no file has any more. Of a repair that was begun and refused, those that it may have lost.
    pub lost: Vec<Lost>,
    /// What else was acknowledged, or may have been, and cannot be read: given up because that was accepted. Of a repair that
    /// was begun and refused, what it may have given up.
    pub given_up: Vec<String>,
    /// What cannot be known any more.
    pub unknown: Vec<String>,
    /// What of it was left as it is, and why.
    pub left: Vec<String>,
    /// How many findings there were, errors and warnings.
    pub findings: usize,
}

impl Repaired {
    /// Of a directory of which nothing has become yet; `None` if nothing is wrong there.
    fn of(dir: &Path, findings: &[Finding]) -> Option<Self> {
        let count = findings.iter().filter(|finding| finding.is_bad()).count();
        (count > 0).then(|| Self {
            directory: dir.to_owned(),
            outcome: Outcome::Refused,
            reason: None,
            steps: Vec::new(),
            lost: Vec::new(),
            given_up: Vec::new(),
            unknown: Vec::new(),
            left: Vec::new(),
            findings: count,
        })
    }
}

/// Repairs every directory in which `report` has found something: the cluster's and the topics' own files first, since
/// others rely on them, then partitions and slots side by side. `report` is of the same substrate, just now. What became of
/// each. Blocks for as long as it takes.
///
/// What only the controller writes (`cluster/`, topics' own files) is refused unless the substrate's root is the data
/// directory: its lock is looked for there.
pub fn repair(
    substrate: &Arc<dyn Substrate>,
    report: &Report,
    options: &Options,
    mode: &Mode,
    progress: &Progress,
) -> Vec<Repaired> {
    progress.directories_total.store(report.to_repair.len() as u64, Ordering::Relaxed);
    let context = Context { substrate: substrate.as_ref(), options, progress };
    let guard = ControllerGuard::new(&context, substrate, mode);
    let mut work = Work {
        context: &context,
        substrate,
        mode,
        guard: &guard,
        traces: report.traces,
        topic_ids: BTreeMap::new(),
    };
    let all = report.to_repair.iter();
    // The controller's claims and fence come first, and who relies on what others write comes last.
    let mut repaired: Vec<_> = all
        .clone()
        .filter(|place| matches!(place, Place::Controller(_)))
        .filter_map(|place| work.claimed(place))
        .collect();
    let own = all.clone().filter(|place| matches!(place, Place::Cluster(_) | Place::Topic(_)));
    repaired.extend(own.filter_map(|place| work.the_controllers(place)));
    let claimed: Vec<_> =
        all.filter(|place| matches!(place, Place::Slot(_) | Place::Partition(..))).collect();
    repaired.extend(parallel(options.threads, &claimed, |place| work.claimed(place)).into_iter().flatten());
    repaired
}

/// Repairs the partition in `dir`, relative to the substrate's root; `None` if nothing is wrong there. Blocks for as long as
/// reading it takes, up to three times. A failing volume makes it [`Outcome::Refused`]; it may be repeated then.
pub fn repair_partition(
    substrate: &Arc<dyn Substrate>,
    dir: &Path,
    expected: &Expected,
    options: &Options,
    mode: &Mode,
    progress: &Progress,
) -> Option<Repaired> {
    let context = Context { substrate: substrate.as_ref(), options, progress };
    let guard = ControllerGuard::new(&context, substrate, mode);
    let (context, guard) = (&context, &guard);
    PartitionRepair { context, substrate, dir, expected, mode, guard }.run()
}

/// The repairs of one run.
struct Work<'a> {
    context: &'a Context<'a>,
    substrate: &'a Arc<dyn Substrate>,
    mode: &'a Mode,
    guard: &'a ControllerGuard<'a>,
    traces: Option<Traces>,
    /// The ids of topics whose `topic-id.json` was written anew, or would be.
    topic_ids: BTreeMap<PathBuf, [u8; 16]>,
}

impl Work<'_> {
    /// What only the controller writes; one after the other.
    fn the_controllers(&mut self, place: &Place) -> Option<Repaired> {
        let files = match place {
            Place::Cluster(_) => ControllerFiles::Cluster { traces: self.traces },
            _ => ControllerFiles::Topic,
        };
        let (context, mode, guard) = (self.context, self.mode, self.guard);
        let repaired = ClusterFilesRepair { context, mode, guard, dir: place.dir(), files }.run();
        self.count();
        let (repaired, topic_id) = repaired?;
        self.topic_ids.extend(topic_id.map(|id| (place.dir().to_owned(), id)));
        Some(repaired)
    }

    /// What a repair claims for itself: partitions, slots, the controller.
    fn claimed(&self, place: &Place) -> Option<Repaired> {
        let (context, substrate, mode, guard) = (self.context, self.substrate, self.mode, self.guard);
        let dir = place.dir();
        let repaired = match place {
            Place::Partition(_, expected) => {
                let mut expected = expected.clone();
                let topic_id = dir.parent().and_then(|topic| self.topic_ids.get(topic));
                expected.topic_id = expected.topic_id.or(topic_id.copied());
                PartitionRepair { context, substrate, dir, expected: &expected, mode, guard }.run()
            }
            Place::Slot(_) | Place::Controller(_) => {
                let has_journal = matches!(place, Place::Slot(_));
                let examine = if has_journal { slots::examine } else { slots::examine_controller };
                let findings = examine(context, dir).findings;
                let claimed = ClaimedDir::new(context, substrate, dir, guard, &findings);
                SlotRepair { claimed: &claimed, mode, has_journal }.run(&findings)
            }
            Place::Topic(_) | Place::Cluster(_) => None,
        };
        self.count();
        repaired
    }

    fn count(&self) {
        self.context.progress.directories.fetch_add(1, Ordering::Relaxed);
    }
}

/// What is said of an error that has ended a repair. A full volume is told as such: whoever repairs can do something about it.
fn said<E: Error + 'static>(error: &E) -> String {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(cause) = next {
        let system = cause.downcast_ref::<io::Error>();
        if system.is_some_and(|system| ErrorClass::of(system) == ErrorClass::NoSpace) {
            return format!("the volume is full: make room, and run the repair again ({error})");
        }
        next = cause.source();
    }
    error.to_string()
}

/// What is said of a repair that was begun and could not come to its end. `loses`: it gives something up, which nobody can tell
/// afterwards.
fn unfinished(error: &str, loses: bool) -> String {
    if loses {
        format!("{error}; what is lost by this repair may be gone already, and it may be repeated")
    } else {
        format!("{error}; what counted still does, and the repair may be repeated")
    }
}

/// Why nothing in `dir` can be repaired.
fn refusal(substrate: &dyn Substrate, dir: &Path) -> Option<String> {
    if leaders::is_aside(substrate, dir) {
        return Some("its topic is deleted, and goes with all that is in it".to_owned());
    }
    quarantine::refusal(substrate, dir)
}

/// Whether it is a file, and not a directory or link.
fn is_file(context: &Context<'_>, path: &Path) -> bool {
    context.substrate.open(path, OpenMode::Read).is_ok()
}
