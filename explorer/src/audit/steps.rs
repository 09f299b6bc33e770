//! A recovery, a round of compaction, or a repair that is cut off at its first step, at its second, and so on, each time from the same
//! volume.

use std::sync::Arc;

use super::{look, next_epoch, stop, verify};
use crate::choices::Stream;
use crate::cluster::Cluster;
use crate::compaction;
use crate::data_dir::{self, DataDir, Keep, When};
use crate::journals;
use crate::leader::open;
use crate::repair;

/// Most steps at which a recovery is cut off.
const RECOVERY_STEPS_MAX: u64 = 400;

/// After so many steps of the run no round of compaction is cut off any more: the first of its groups of segments stand for the
/// others; and no repair.
const COMPACTION_STEPS_MAX: u64 = 60_000;

/// Repairs everything, which nobody leads.
pub(super) fn mend(cluster: &Arc<Cluster>) {
    match &cluster.data_dir {
        Some(data_dir) => data_dir::mend(cluster, data_dir),
        None => cluster.topics.iter().for_each(|topic| repair::mend(cluster, topic)),
    }
}

/// Damages every partition, or what is around them, which nobody leads, in a few places.
pub(super) fn damage_all(cluster: &Cluster) {
    if let Some(data_dir) = &cluster.data_dir {
        for _ in 0..=cluster.scheduler.below(Stream::EVENTS, 3) {
            data_dir::damage(cluster, data_dir, When::AtTheEnd);
        }
        return;
    }
    for topic in &cluster.topics {
        for _ in 0..=cluster.scheduler.below(Stream::EVENTS, 3) {
            repair::damage(cluster, topic, false);
        }
    }
}

/// Lets a repair die, or power be lost, at its first call, and at later ones, some of which are left out, each time from the volume as it is now, and looks
/// at what the next repair makes of it.
pub(super) fn die_at_every_step_of_a_repair(cluster: &Arc<Cluster>, loses_power: bool) {
    let beginning = cluster.storage.fork();
    let mut nth = 1;
    while nth <= RECOVERY_STEPS_MAX && cluster.scheduler.steps() < COMPACTION_STEPS_MAX {
        let have_died = match &cluster.data_dir {
            Some(data_dir) => a_repair_of_all_dies_at(cluster, data_dir, nth, loses_power),
            None => repairs_die_at(cluster, nth, loses_power),
        };
        if cluster.scheduler.has_problems() {
            return;
        }
        cluster.storage.replace(beginning.fork(cluster.storage.choices()));
        if !have_died {
            return;
        }
        nth += 1 + cluster.scheduler.below(Stream::EVENTS, 4);
    }
}

/// Lets the repair of each partition die at its nth call; whether any has come so far.
fn repairs_die_at(cluster: &Arc<Cluster>, nth: u64, loses_power: bool) -> bool {
    let mut have_died = false;
    for topic in &cluster.topics {
        if cluster.scheduler.has_problems() {
            break;
        }
        let before = topic.history.lock().harm.clone();
        if repair::mend_dying_at(cluster, topic, nth) {
            have_died = true;
            stop(cluster, loses_power);
            repair::mend(cluster, topic);
            look(cluster, topic, false);
        }
        cluster.kill_all();
        topic.history.lock().harm = before;
    }
    have_died
}

/// The same of one repair of a whole data directory.
fn a_repair_of_all_dies_at(cluster: &Arc<Cluster>, data_dir: &DataDir, nth: u64, loses_power: bool) -> bool {
    let before = Keep::of(cluster, data_dir);
    let has_died = data_dir::mend_dying_at(cluster, data_dir, nth);
    if has_died {
        stop(cluster, loses_power);
        data_dir::mend(cluster, data_dir);
        cluster.topics.iter().for_each(|topic| look(cluster, topic, false));
        cluster.slots.iter().for_each(|slot| journals::look(cluster, slot));
        data_dir::look(cluster, data_dir);
    }
    cluster.kill_all();
    if !cluster.scheduler.has_problems() {
        before.back(cluster, data_dir);
    }
    has_died
}

/// Lets power be lost at the first call of the recovery, or of a round of compaction behind it, at its second, and so on, each
/// time from the volume as it is now, and looks at what the next recovery makes of it.
pub(super) fn lose_power_at_every_step(cluster: &Arc<Cluster>, of_compaction: bool) {
    let beginning = cluster.storage.fork();
    for nth in 1..=RECOVERY_STEPS_MAX {
        let is_enough = of_compaction && cluster.scheduler.steps() > COMPACTION_STEPS_MAX;
        if is_enough || cluster.scheduler.has_problems() {
            return;
        }
        let process = cluster.process(cluster.auditor());
        if !of_compaction {
            process.die_at_call(nth);
        }
        for (number, topic) in cluster.topics.iter().enumerate() {
            let Some(epoch) = next_epoch(topic) else { continue };
            let opened = open(cluster, &process, topic, epoch);
            if let Some(partition) = opened.filter(|_| of_compaction) {
                process.die_at_call(nth);
                // The audit is nobody's task, and never dies.
                let _ = compaction::round(cluster, &process, number, &partition);
            }
        }
        for slot in &cluster.slots {
            if let Some(epoch) = journals::next_epoch(slot) {
                let _ = journals::open(cluster, &process, slot, epoch);
            }
        }
        // Else it was done before.
        let has_died = process.is_dead();
        cluster.lose_power();
        if has_died {
            for topic in &cluster.topics {
                verify(cluster, topic);
                look(cluster, topic, false);
            }
            for slot in &cluster.slots {
                journals::verify(cluster, slot);
                journals::look(cluster, slot);
            }
            cluster.kill_all();
        }
        cluster.storage.replace(beginning.fork(cluster.storage.choices()));
        if !has_died {
            return;
        }
    }
}
