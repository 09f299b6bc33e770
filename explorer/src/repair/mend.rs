//! Repairs: `kaas-engine verify --repair` as a process of its own, on any host, with whatever happens beside it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kaas_engine::leadership::{self, Claimant, FenceRecord};
use kaas_engine::verify::repair::{Mode, Outcome, Repaired, repair_partition};
use kaas_engine::verify::{Expected, Options, Progress, Severity, verify_partition};

use crate::cluster::{Cluster, Topic};
use crate::problem::Problem;
use crate::process::{Process, START};

/// Repairs one after the other, at the end: one may find what another could not do.
const REPAIRS_MAX: usize = 3;

fn options() -> Options {
    Options { threads: 1, now: START, second_look_after: Duration::ZERO, ..Options::default() }
}

fn expected(topic: &Topic) -> Expected {
    let identity = &topic.identity;
    Expected {
        topic: Some(identity.topic.clone()),
        topic_id: Some(identity.topic_id),
        partition: Some(identity.partition),
    }
}

/// Who a repair in a process is to claims.
pub fn incarnation(process: &Process) -> String {
    format!("repair {}", process.id)
}

/// Begins a repair of a partition on a host, as a task that may be killed and paused at any step.
pub fn begin(cluster: &Arc<Cluster>, host: usize, number: usize) {
    let process = cluster.start_beside(host);
    let (cluster, scheduler) = (Arc::clone(cluster), Arc::clone(&cluster.scheduler));
    scheduler.spawn(process.id, "repair", move || {
        if let Some(topic) = cluster.topics.get(number) {
            // What it has come to is checked once it is over.
            let _ = repair(&cluster, &process, topic);
        }
    });
}

/// Repairs in a process, and checks what is said to be lost. `None`: nothing was wrong, or it has died.
fn repair(cluster: &Cluster, process: &Process, topic: &Topic) -> Option<Repaired> {
    let claimant = Claimant { broker_id: -1, incarnation: incarnation(process), assignment_version: 0 };
    let began = topic.history.lock().harm.repair_begins();
    let repaired = repair_partition(
        process.engine.substrate(),
        &topic.dir,
        &expected(topic),
        &options(),
        &Mode::Repair(claimant),
        &Progress::default(),
    );
    heard(cluster, process, topic, began, repaired.as_ref());
    repaired.filter(|_| !process.is_dead())
}

/// A repair of a partition, which began when there was so much damage, is over: checks what it says is lost. None: nothing was wrong.
pub fn heard(cluster: &Cluster, process: &Process, topic: &Topic, began: u32, repaired: Option<&Repaired>) {
    let epoch = epoch_of(cluster, process, &topic.dir);
    topic.assigned.fetch_max(epoch.unwrap_or(0), Ordering::Relaxed);
    if process.is_dead() {
        return;
    }
    cluster.scheduler.note(&format_args!("repaired at epoch {epoch:?}: {repaired:?}"));
    let Some(Repaired { outcome, lost, .. }) = repaired else {
        return topic.history.lock().harm.repaired(began, None, []);
    };
    let lost: Vec<_> = lost.iter().map(|lost| (lost.from, lost.to)).collect();
    let is_done = *outcome == Outcome::Repaired;
    let mut history = topic.history.lock();
    history.repaired += u64::from(is_done);
    // One that was begun and has not come to its end says what it may have lost: as it was deposed, others have removed what they do
    // not need.
    let checked = if is_done { history.check_lost(&lost) } else { Ok(()) };
    history.harm.kept_behind_unseen |= is_done && !history.has_seen_all(&lost);
    history.harm.repaired(began, epoch.filter(|_| is_done), lost);
    drop(history);
    cluster.check(checked);
}

/// The epoch of a directory that a repair has claimed, by the fence.
pub fn epoch_of(cluster: &Cluster, process: &Process, dir: &Path) -> Option<u32> {
    let volume = cluster.storage.mount(cluster.auditor());
    let records = leadership::records(&*volume, dir).ok()?;
    let own = incarnation(process);
    let its =
        |record: &FenceRecord| matches!(record, FenceRecord::Claimed { owner } if owner.incarnation == own);
    records.iter().rfind(|(_, record)| its(record)).map(|(epoch, _)| epoch.get())
}

/// Repairs a partition that nobody leads until there is nothing to be done. Then nothing is wrong, and its next leader meets no damage.
pub fn mend(cluster: &Arc<Cluster>, topic: &Topic) {
    let process = cluster.start_beside(cluster.auditor());
    for _ in 0..REPAIRS_MAX {
        match repair(cluster, &process, topic) {
            None => break,
            Some(Repaired { outcome: Outcome::Repaired, .. }) => {}
            Some(repaired) => {
                let text = format!("{} cannot be repaired: {repaired:?}", topic.identity.topic);
                return cluster.scheduler.report(Problem::Repair(text));
            }
        }
    }
    let volume = cluster.storage.mount(cluster.auditor());
    let report = verify_partition(&*volume, &topic.dir, &expected(topic), &options(), &Progress::default());
    for finding in report.findings.iter().filter(|finding| finding.severity > Severity::Info) {
        cluster.scheduler.report(Problem::Repair(format!("left by a repair: {finding:?}")));
    }
    let highest = leadership::highest(&*volume, &topic.dir).map_or(0, |epoch| epoch.get());
    topic.assigned.fetch_max(highest, Ordering::Relaxed);
    topic.history.lock().harm.repaired_for_good(highest);
}

/// Repairs a partition that nobody leads, in a process that dies at its nth call to the volume; whether it has come so far.
pub fn mend_dying_at(cluster: &Arc<Cluster>, topic: &Topic, nth: u64) -> bool {
    let process = cluster.start_beside(cluster.auditor());
    process.die_at_call(nth);
    let _ = repair(cluster, &process, topic);
    process.is_dead()
}
