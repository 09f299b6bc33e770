//! `kaas-engine verify --repair` over a data directory, or a part of it, as a process of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kaas_engine::layout::CLUSTER_DIR;
use kaas_engine::leadership::{self, Claimant};
use kaas_engine::types::Timestamp;
use kaas_engine::verify::repair::{Mode, Outcome, Repaired, repair as repair_all};
use kaas_engine::verify::{Options, Progress, Severity, verify};

use super::history::SettingsHistory;
use super::home::{DataDir, controller_dir};
use crate::choices::Stream;
use crate::cluster::Cluster;
use crate::journals::SlotHarm;
use crate::problem::Problem;
use crate::process::Process;
use crate::repair::{Harm, Met, epoch_of, heard, incarnation};

/// The time of repairs, in milliseconds since 1970 (2100): claims carry that of this machine, and producer ids go on by the clock.
const LATER: i64 = 4_102_444_800_000;

/// Repairs one after the other, at the end: one may find what another could not do.
const REPAIRS_MAX: usize = 4;

/// How a repair is run.
#[derive(Debug, Clone, Copy, Default)]
struct Accepted {
    loss: bool,
    brokers_stopped: bool,
}

/// At the end of a run nobody else lives, and whatever is lost is given up.
const AT_THE_END: Accepted = Accepted { loss: true, brokers_stopped: true };

fn options(data_dir: &DataDir, accepted: Accepted) -> Options {
    let seconds = i64::from(data_dir.repairs.fetch_add(1, Ordering::Relaxed));
    Options {
        threads: 1,
        now: Timestamp(LATER + 1000 * seconds),
        second_look_after: Duration::ZERO,
        // Its producers are of another time.
        producer_id_expiration_ms: 1 << 50,
        accept_loss: accepted.loss,
        brokers_stopped: accepted.brokers_stopped,
        ..Options::default()
    }
}

/// Begins a repair on a host, as a task that may be killed and paused at any step: of everything, or of one directory.
pub fn begin(cluster: &Arc<Cluster>, host: usize) {
    let Some(data_dir) = &cluster.data_dir else { return };
    let scheduler = &cluster.scheduler;
    let everything = PathBuf::new();
    let mut targets = vec![everything.clone(), everything.clone(), everything, PathBuf::from(CLUSTER_DIR)];
    targets.extend(data_dir.topics.iter().cloned());
    targets.extend(cluster.slots.iter().map(|slot| slot.dir.clone()));
    let chosen = usize::try_from(scheduler.below(Stream::EVENTS, targets.len() as u64)).unwrap_or(0);
    let target = targets.swap_remove(chosen);
    let accepted = Accepted { loss: scheduler.below(Stream::EVENTS, 2) == 1, brokers_stopped: false };
    let process = cluster.start_beside(host);
    let cluster = Arc::clone(cluster);
    Arc::clone(scheduler).spawn(process.id, "repair", move || {
        if let Some(data_dir) = &cluster.data_dir {
            // What it has come to is checked once it is over.
            let _ = repair(&cluster, &process, data_dir, &target, accepted);
        }
    });
}

/// Repairs in a process, and checks what is said to be lost. `None`: it has died.
fn repair(
    cluster: &Cluster,
    process: &Process,
    data_dir: &DataDir,
    target: &Path,
    accepted: Accepted,
) -> Option<Vec<Repaired>> {
    let claimant = Claimant { broker_id: -1, incarnation: incarnation(process), assignment_version: 0 };
    let began: Vec<_> =
        cluster.topics.iter().map(|topic| topic.history.lock().harm.repair_begins()).collect();
    let slots_began: Vec<_> = cluster.slots.iter().map(|slot| slot.history.lock().harm.met.times()).collect();
    let home_began = data_dir.met.lock().times();
    let (options, progress) = (options(data_dir, accepted), Progress::default());
    let volume = process.engine.substrate();
    let repaired = match verify(&**volume, target, &options, &progress) {
        Ok(report) => repair_all(volume, &report, &options, &Mode::Repair(claimant), &progress),
        Err(error) => {
            cluster.scheduler.note(&format_args!("{} is not repaired: {error}", target.display()));
            Vec::new()
        }
    };
    let epoch = epoch_of(cluster, process, &controller_dir());
    data_dir.assigned.fetch_max(epoch.unwrap_or(0), Ordering::Relaxed);
    let slots = cluster.slots.iter().zip(slots_began);
    let slots: Vec<_> =
        slots.map(|(slot, began)| (slot, began, epoch_of(cluster, process, &slot.dir))).collect();
    for (slot, _, epoch) in &slots {
        slot.assigned.fetch_max(epoch.unwrap_or(0), Ordering::Relaxed);
    }
    let of = |dir: &Path| repaired.iter().find(|repaired| repaired.directory == dir);
    for (topic, began) in cluster.topics.iter().zip(began) {
        heard(cluster, process, topic, began, of(&topic.dir));
    }
    if process.is_dead() {
        if accepted.loss {
            // Nobody has heard what it has given up.
            cluster.slots.iter().for_each(|slot| slot.history.lock().harm.told());
            data_dir.settings.iter().for_each(|(_, history)| history.lock().told());
        }
        return None;
    }
    cluster.scheduler.note(&format_args!("repaired {}: {repaired:?}", target.display()));
    for (slot, began, epoch) in slots {
        let Some(repaired) = of(&slot.dir) else { continue };
        let mut history = slot.history.lock();
        if !repaired.given_up.is_empty() {
            if !history.harm.state_hit && repaired.outcome == Outcome::Repaired {
                let text = format!("given up: {:?}; nothing of it was damaged", repaired.given_up);
                cluster.scheduler.report(Problem::Repair(text));
            }
            history.harm.told();
        }
        if repaired.outcome != Outcome::Repaired {
            continue;
        }
        history.repaired += 1;
        if let Some(epoch) = epoch {
            history.harm.met.repaired(began, epoch);
        }
    }
    for (setting, history) in data_dir.settings.iter().filter(|(setting, _)| !setting.is_producer_ids()) {
        let given_up = of(&setting.dir).map(|repaired| repaired.given_up.join("; ")).unwrap_or_default();
        if !given_up.is_empty() {
            let mut history = history.lock();
            if of(&setting.dir).is_some_and(|repaired| repaired.outcome == Outcome::Repaired) {
                cluster.check(history.check_given_up(&given_up));
            }
            history.told();
        }
    }
    let is_done = |repaired: &Repaired| repaired.outcome == Outcome::Repaired && repaired.left.is_empty();
    if let Some(epoch) = epoch.filter(|_| target.as_os_str().is_empty() && repaired.iter().all(is_done)) {
        data_dir.met.lock().repaired(home_began, epoch);
    }
    Some(repaired)
}

/// Repairs everything, which nobody leads, until there is nothing to be done. Then nothing is wrong, and nobody meets damage any more.
pub fn mend(cluster: &Arc<Cluster>, data_dir: &DataDir) {
    let process = cluster.start_beside(cluster.auditor());
    let mut last = None;
    for _ in 0..REPAIRS_MAX {
        last = repair(cluster, &process, data_dir, Path::new(""), AT_THE_END);
        if last.as_ref().is_none_or(Vec::is_empty) {
            break;
        }
    }
    if last.as_ref().is_some_and(|last| !last.is_empty()) {
        let text = format!("repairs do not come to an end: {last:?}");
        return cluster.scheduler.report(Problem::Repair(text));
    }
    let volume = cluster.storage.mount(cluster.auditor());
    match verify(&*volume, Path::new(""), &options(data_dir, AT_THE_END), &Progress::default()) {
        Ok(report) => {
            for finding in report.findings.iter().filter(|finding| finding.severity > Severity::Info) {
                cluster.scheduler.report(Problem::Repair(format!("left by a repair: {finding:?}")));
            }
        }
        Err(error) => cluster.scheduler.report(Problem::Repair(error.to_string())),
    }
    let highest = |dir: &Path| leadership::highest(&*volume, dir).map_or(0, |epoch| epoch.get());
    for topic in &cluster.topics {
        let highest = highest(&topic.dir);
        topic.assigned.fetch_max(highest, Ordering::Relaxed);
        topic.history.lock().harm.repaired_for_good(highest);
    }
    for slot in &cluster.slots {
        let highest = highest(&slot.dir);
        slot.assigned.fetch_max(highest, Ordering::Relaxed);
        slot.history.lock().harm.met.repaired_for_good(highest);
    }
    let highest = highest(&controller_dir());
    data_dir.assigned.fetch_max(highest, Ordering::Relaxed);
    data_dir.met.lock().repaired_for_good(highest);
}

/// Repairs everything, which nobody leads, in a process that dies at its nth call to the volume; whether it has come so far.
pub fn mend_dying_at(cluster: &Arc<Cluster>, data_dir: &DataDir, nth: u64) -> bool {
    let process = cluster.start_beside(cluster.auditor());
    process.die_at_call(nth);
    let _ = repair(cluster, &process, data_dir, Path::new(""), AT_THE_END);
    process.is_dead()
}

/// What is known of damage, to go back to together with the volume.
pub struct Keep {
    topics: Vec<Harm>,
    slots: Vec<SlotHarm>,
    settings: Vec<SettingsHistory>,
    met: Met,
}

impl Keep {
    /// As it is now.
    pub fn of(cluster: &Cluster, data_dir: &DataDir) -> Self {
        Self {
            topics: cluster.topics.iter().map(|topic| topic.history.lock().harm.clone()).collect(),
            slots: cluster.slots.iter().map(|slot| slot.history.lock().harm.clone()).collect(),
            settings: data_dir.settings.iter().map(|(_, history)| history.lock().clone()).collect(),
            met: *data_dir.met.lock(),
        }
    }

    /// As it was then.
    pub fn back(self, cluster: &Cluster, data_dir: &DataDir) {
        for (topic, harm) in cluster.topics.iter().zip(self.topics) {
            topic.history.lock().harm = harm;
        }
        for (slot, harm) in cluster.slots.iter().zip(self.slots) {
            slot.history.lock().harm = harm;
        }
        for ((_, history), kept) in data_dir.settings.iter().zip(self.settings) {
            *history.lock() = kept;
        }
        *data_dir.met.lock() = self.met;
    }
}
