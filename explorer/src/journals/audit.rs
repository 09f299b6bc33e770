//! The last word on a slot.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kaas_engine::types::Epoch;
use kaas_engine::verify::{Options, verify_slot};

use super::coordinator::open;
use super::slot::Slot;
use crate::audit::report_findings;
use crate::cluster::Cluster;
use crate::problem::Problem;
use crate::process::START;

/// The next epoch of a slot.
pub fn next_epoch(slot: &Slot) -> Option<Epoch> {
    Epoch::new(slot.assigned.fetch_add(1, Ordering::Relaxed) + 1)
}

/// What `kaas-engine verify` finds wrong with a slot that nobody leads, if it is there; whether it may be missing is
/// for who opens it to say.
pub fn verify(cluster: &Cluster, slot: &Slot) {
    let volume = cluster.storage.mount(cluster.auditor());
    if volume.list(&slot.dir).is_err_and(|error| error.is_not_found()) {
        // Nobody has come so far as to make it.
        return;
    }
    let options = Options { now: START, second_look_after: Duration::ZERO, ..Options::default() };
    let report = verify_slot(&*volume, &slot.dir, &options);
    report_findings(cluster, &report.findings);
}

/// Opens a slot: the checker looks at what is found.
pub fn look(cluster: &Arc<Cluster>, slot: &Slot) {
    let process = &cluster.process(cluster.auditor());
    let Some(epoch) = next_epoch(slot) else { return };
    if open(cluster, process, slot, epoch).is_none() {
        return cluster.scheduler.report(Problem::Damaged(format!("nobody can open {}", slot.dir.display())));
    }
    cluster.check(slot.history.lock().check_told());
}
