//! `kaas-engine verify`, `--dry-run` and `--repair` on any directory.
//!
//! Asserted: each ends with a report or an error. Looking and a dry run change nothing; a repair does what its dry run said, in the
//! partitions that it names and nowhere else, also where links lead out of the directory. What a consumer could read before, it
//! reads afterwards. Where the repair was carried out nothing is left to be repaired, and the partition is led. Where there was
//! nothing to be said in the first place, a leader agrees: it opens, and all can be read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kaas_engine::layout::CLUSTER_DIR;
use kaas_engine::leadership::Claimant;
use kaas_engine::verify::repair::{Mode, Outcome, Repaired, repair};
use kaas_engine::verify::{
    Finding, Kind, Options, Progress, Report, Severity, render, render_repairs, verify as look,
};
use kaas_substrate::{Local, Memory, Substrate};

use crate::partition::{Led, NOW, Served};
use crate::tree::{self, Tree};
use crate::{Archive, Item};

/// The directory that is looked at, relative to the volume's root, unless it is a whole data directory, which is the root itself.
/// The seeds' partitions are of a topic of this name.
const DIR: &str = "orders";

/// A directory beside it, which is nobody's business.
const BESIDE: &str = "beside";

/// What is looked at, and how.
struct Task {
    dir: PathBuf,
    options: Options,
}

/// A data directory, a topic, a partition, or anything else.
pub fn verify(data: &[u8]) {
    let archive = Archive::unpack(data);
    let is_data = archive.0.iter().any(|item| Path::new(&item.path).starts_with(CLUSTER_DIR));
    let dir = if is_data { "" } else { DIR };
    let mut all = if is_data { archive.clone() } else { archive.below(dir) };
    all.0.extend(
        Archive(vec![Item { path: "secret".into(), content: b"not kaas's".to_vec() }]).below(BESIDE).0,
    );
    // Half of the inputs.
    let all_at_once = data.len().is_multiple_of(2);
    let options = Options { accept_loss: all_at_once, brokers_stopped: all_at_once, ..options() };
    let task = Task { dir: dir.into(), options };
    if archive.has_links() { on_disk(&all, &task) } else { in_memory(&all, &task) }
}

fn in_memory(all: &Archive, task: &Task) {
    let volume = all.volume();
    let substrate: Arc<dyn Substrate> = Arc::new(volume.clone());
    let Some(report) = looked(&substrate, task, &|| tree::of_volume(&volume)) else { return };
    let before = consumed(&copy(&volume), task, true);
    let Some(repairs) = repaired(&substrate, &report, task, &|| tree::of_volume(&volume)) else { return };
    let after = consumed(&copy(&volume), task, false);
    for (dir, was) in &before {
        let is = after.get(dir).and_then(Option::as_ref);
        let repair = repairs.iter().find(|done| done.directory == *dir);
        let done = repair.map(|done| done.outcome);
        if let Some(was) = was {
            let is = is.unwrap_or_else(|| panic!("{} cannot be led any more: {done:?}", dir.display()));
            let gives_up = |batch: &&(i64, Bytes)| gives_up(&report, task, repair, batch.0);
            if let Some(gone) = was.difference(is).find(|batch| !gives_up(batch)) {
                panic!("{}: the batch at offset {} cannot be read any more: {done:?}", dir.display(), gone.0);
            }
        }
        assert!(
            done != Some(Outcome::Repaired) || is.is_some(),
            "{} was repaired and cannot be led",
            dir.display()
        );
    }
}

/// Whether a repair has said that it gives this offset up, in a segment that is another than the manifest says: that is what it is
/// for with `--accept-loss`. A leader, who compares less of it, may have served what is there.
fn gives_up(report: &Report, task: &Task, repair: Option<&Repaired>, offset: i64) -> bool {
    let Some(repair) = repair.filter(|_| task.options.accept_loss) else { return false };
    let is_foreign = |finding: &Finding| {
        finding.kind == Kind::ForeignSegment && finding.file.parent() == Some(&repair.directory)
    };
    report.findings.iter().any(is_foreign)
        && repair.lost.iter().any(|lost| (lost.from..lost.to).contains(&offset))
}

/// With links, which only a real directory has.
fn on_disk(all: &Archive, task: &Task) {
    let shared_memory = Path::new("/dev/shm");
    let temporary = if shared_memory.is_dir() { shared_memory.to_owned() } else { std::env::temp_dir() };
    let root = temporary.join(format!("kaas-fuzz-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&root);
    std::fs::create_dir(&root).expect("a temporary directory");
    let volume: Arc<dyn Substrate> = Arc::new(Local::open(&root).expect("a volume"));
    all.write(&*volume);
    all.link(&root);
    let tree = || tree::of_directory(&root);
    if let Some(report) = looked(&volume, task, &tree) {
        repaired(&volume, &report, task, &tree);
    }
    std::fs::remove_dir_all(&root).expect("it is removed");
}

fn options() -> Options {
    Options { threads: 1, now: NOW, second_look_after: Duration::ZERO, ..Options::default() }
}

/// Looks; `None` if there is nothing to be looked at.
fn looked(volume: &Arc<dyn Substrate>, task: &Task, tree: &dyn Fn() -> Tree) -> Option<Report> {
    let before = tree();
    let report = look(&**volume, &task.dir, &task.options, &Progress::default());
    tree::assert_same(&before, &tree(), "a look has changed something");
    let report = report.ok()?;
    let _ = render(&report, Duration::ZERO, true, 100);
    let _ = report.to_json(0).expect("a report is JSON");
    Some(report)
}

/// Repairs what is wrong, after a dry run; what was done. `None` if nothing was wrong.
fn repaired(
    volume: &Arc<dyn Substrate>,
    report: &Report,
    task: &Task,
    tree: &dyn Fn() -> Tree,
) -> Option<Vec<Repaired>> {
    if report.is_clean() {
        return None;
    }
    let before = tree();
    let planned = repair(volume, report, &task.options, &Mode::DryRun, &Progress::default());
    tree::assert_same(&before, &tree(), "a dry run has changed something");
    let claimant = Claimant { broker_id: -1, incarnation: "repair".into(), assignment_version: 0 };
    let done = repair(volume, report, &task.options, &Mode::Repair(claimant), &Progress::default());
    let _ = render_repairs(&done, 100);
    // What only the controller writes is repaired as the controller, who is claimed for it.
    let controller = [PathBuf::from(CLUSTER_DIR)];
    let dirs: Vec<PathBuf> = done.iter().map(|done| done.directory.clone()).chain(controller).collect();
    let after = tree();
    tree::assert_same(&tree::outside(&before, &dirs), &tree::outside(&after, &dirs), "written outside");
    assert_eq!(planned.len(), done.len());
    for (planned, done) in planned.iter().zip(&done) {
        assert_eq!(planned.directory, done.directory);
        if done.outcome == Outcome::Repaired {
            // A claim settles some of what is wrong with claims and the fence, and brings other things to light.
            let is_about_claims =
                |step: &&String| ["fence", " claim.", "claim epoch"].iter().any(|word| step.contains(word));
            // Epochs are others where the controller's directory was repaired before.
            let kind = |step: &String| step.replace(|letter: char| letter.is_ascii_hexdigit(), "");
            let kinds: BTreeSet<_> = done.steps.iter().map(kind).collect();
            let planned_steps = planned.steps.iter().filter(|step| !is_about_claims(step));
            let missing: Vec<_> = planned_steps.filter(|step| !kinds.contains(&kind(step))).collect();
            assert!(missing.is_empty(), "{missing:?} are not among {:?}", done.steps);
            assert_eq!(planned.lost, done.lost);
        }
    }
    let again = look(&**volume, &task.dir, &task.options, &Progress::default());
    let again = again.expect("what was repaired can be looked at");
    // Of partitions; what is repaired of slots, topics and the controller is not held to it here.
    let partitions = partitions(&**volume, &task.dir);
    let is_repaired =
        |done: &&Repaired| done.outcome == Outcome::Repaired && partitions.contains(&done.directory);
    for done in done.iter().filter(is_repaired).filter(|done| done.left.is_empty()) {
        let left: Vec<_> =
            again.findings.iter().filter(|finding| is_left(finding, &done.directory, volume)).collect();
        assert!(left.is_empty(), "{left:#?}\nis left after {done:#?}");
    }
    Some(done)
}

/// Whether a finding in a directory is one that its repair should have dealt with.
fn is_left(finding: &Finding, dir: &Path, volume: &Arc<dyn Substrate>) -> bool {
    let is_for_a_person = || {
        let entries = volume.list(dir).unwrap_or_default();
        let is_file = |entry: &kaas_substrate::Entry| entry.kind == kaas_substrate::EntryKind::File;
        finding.kind == Kind::UnknownFile
            && entries.iter().any(|entry| finding.file == dir.join(&entry.name) && !is_file(entry))
    };
    let is_here = finding.file == dir || finding.file.parent() == Some(dir);
    finding.severity > Severity::Info && is_here && !is_for_a_person()
}

fn copy(volume: &Memory) -> Arc<dyn Substrate> {
    Arc::new(Archive::of(volume, Path::new("")).volume())
}

type Batches = BTreeSet<(i64, Bytes)>;

/// What consumers can read of each partition of a volume that may be changed; `None` for one that cannot be led. With `judged`,
/// what verify says of each is compared with that, and what stands at a wrong offset does not count.
fn consumed(volume: &Arc<dyn Substrate>, task: &Task, judged: bool) -> BTreeMap<PathBuf, Option<Batches>> {
    let mut consumed = BTreeMap::new();
    for dir in partitions(&**volume, &task.dir) {
        let report = look(&**volume, &dir, &options(), &Progress::default()).expect("a partition");
        let has_errors = !judged || report.errors > 0;
        let batches = match Led::open(volume, &dir) {
            Ok(led) => {
                assert!(
                    led.read_all().is_some() || has_errors,
                    "{}: it cannot be read, and verify finds nothing",
                    dir.display()
                );
                let mut batches = led.read_what_can_be();
                led.close();
                if judged && report.findings.iter().any(|finding| finding.kind == Kind::OutOfSequence) {
                    batches = in_sequence(batches);
                }
                Some(batches.iter().filter(|batch| batch.has_records()).map(Served::records).collect())
            }
            Err(error) => {
                assert!(
                    has_errors || !is_damage(&error),
                    "{}: {error}, and verify finds nothing",
                    dir.display()
                );
                None
            }
        };
        consumed.insert(dir, batches);
    }
    consumed
}

/// Whether an error is about what the files say.
fn is_damage(error: &kaas_engine::EngineError) -> bool {
    matches!(error, kaas_engine::EngineError::Damaged { .. })
}

/// The batches that begin where the one before them ends.
fn in_sequence(batches: Vec<Served>) -> Vec<Served> {
    let mut expected = None;
    let follows = |batch: &Served| {
        let before = expected.replace(batch.header.next_offset());
        before.is_none_or(|before| before == batch.header.base_offset)
    };
    batches.into_iter().filter(follows).collect()
}

/// Every directory that says to be a partition's.
fn partitions(volume: &dyn Substrate, dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in volume.list(dir).unwrap_or_default() {
        if entry.kind == kaas_substrate::EntryKind::Dir && entry.name != "quarantine" {
            found.extend(partitions(volume, &dir.join(&entry.name)));
        } else if entry.name == "partition.json" {
            found.push(dir.to_owned());
        }
    }
    found
}
