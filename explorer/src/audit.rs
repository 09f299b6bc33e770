//! The last word on a run: everything that was acknowledged or served is there, `verify` finds nothing wrong, producers are
//! still recognised, and recovery converges even if it is cut off at any of its steps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kaas_engine::types::Epoch;
use kaas_engine::verify::{Expected, Finding, Kind, Options, Progress, Severity, verify_partition};
use kaas_engine::{AppendError, AppendOptions, Partition};

use crate::clients::{Batch, check_sequences};
use crate::cluster::{Cluster, Topic};
use crate::leader::{open, read_all, wait};
use crate::problem::Problem;
use crate::process::{Faults, START};
use crate::scheduler::Dead;

/// Most steps at which a recovery is cut off.
const RECOVERY_STEPS_MAX: u64 = 400;

/// How the end of a run is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Processes are killed.
    Killed,
    /// The volume loses power.
    LostPower,
    /// As that, and again at every step of the recovery, each time from the same beginning.
    RecoveryLosesPower,
}

/// Looks at the end of a run, as a task. Faults are over, and every leader is done.
pub fn audit(cluster: &Arc<Cluster>, ending: Ending) {
    *cluster.faults.lock() = Faults::default();
    cluster.storage.settle();
    match ending {
        Ending::Killed => cluster.kill_all(),
        Ending::LostPower => cluster.lose_power(),
        Ending::RecoveryLosesPower => {
            cluster.lose_power();
            lose_power_at_every_step(cluster);
        }
    }
    // Twice: what is found the first time must be there the second time.
    for round in 0..2 {
        for topic in &cluster.topics {
            if cluster.scheduler.has_problems() {
                return;
            }
            verify(cluster, topic);
            look(cluster, topic, round == 1);
        }
        match ending {
            Ending::Killed => cluster.kill_all(),
            Ending::LostPower | Ending::RecoveryLosesPower => cluster.lose_power(),
        }
    }
}

/// What `kaas-engine verify` finds wrong with a partition that nobody leads.
fn verify(cluster: &Cluster, topic: &Topic) {
    let volume = cluster.storage.mount(cluster.auditor());
    let options = Options { now: START, second_look_after: Duration::ZERO, ..Options::default() };
    let report = verify_partition(&*volume, &topic.dir, &Expected::default(), &options, &Progress::default());
    // After a loss of power, whole batches may stand behind a hole: unsynced ones, whose sectors arrived in any order.
    // `verify` cannot know that nobody was told of them; here that is checked.
    let is_expected =
        |finding: &Finding| finding.kind == Kind::DamagedTail && cluster.storage.has_lost_power();
    let errors = report.findings.iter().filter(|finding| finding.severity == Severity::Error);
    for finding in errors.filter(|finding| !is_expected(finding)) {
        cluster.scheduler.report(Problem::Verify(format!("{finding:?}")));
    }
}

fn next_epoch(topic: &Topic) -> Option<Epoch> {
    Epoch::new(topic.assigned.fetch_add(1, Ordering::Relaxed) + 1)
}

/// Opens a partition and looks at all of it.
fn look(cluster: &Arc<Cluster>, topic: &Topic, with_producers: bool) {
    let process = &cluster.process(cluster.auditor());
    let Some(epoch) = next_epoch(topic) else { return };
    let Some(partition) = open(cluster, process, topic, epoch) else {
        return cluster
            .scheduler
            .report(Problem::Damaged(format!("nobody can open {}", topic.identity.topic)));
    };
    let status = partition.status();
    let mut records = BTreeMap::new();
    let read = read_all(cluster, process, topic, &partition, 1 << 20, |offset, value| {
        records.insert(offset, value);
    });
    if let Err(error) = read {
        return cluster.scheduler.report(Problem::Damaged(format!("{}: {error}", topic.identity.topic)));
    }
    let gap = (status.log_start.0..status.high_watermark.0).find(|offset| !records.contains_key(offset));
    if let Some(offset) = gap {
        let text =
            format!("offset {offset} of {} to {} holds nothing", status.log_start, status.high_watermark);
        cluster.scheduler.report(Problem::Records(text));
    }
    cluster.check(topic.history.lock().check_all(status.log_start.0, &records));
    cluster.check(check_sequences(&records).map_err(Problem::Producer));
    if with_producers {
        let _ = try_producers(cluster, topic, &partition);
    }
}

/// What was acknowledged is recognised when it is sent again, and what comes next is taken.
fn try_producers(cluster: &Arc<Cluster>, topic: &Topic, partition: &Arc<Partition>) -> Result<(), Dead> {
    let producers: Vec<_> =
        topic.producers.lock().iter().map(|producer| (producer.recognisable(), producer.to_send())).collect();
    for (recognisable, unacknowledged) in producers {
        for (batch, offset) in recognisable {
            match send(cluster, partition, &batch)? {
                Ok(found) if found == offset => {}
                other => {
                    let text =
                        format!("{batch:?} was acknowledged at offset {offset}; sent again: {other:?}");
                    cluster.scheduler.report(Problem::Producer(text));
                }
            }
        }
        for batch in unacknowledged {
            match send(cluster, partition, &batch)? {
                Ok(offset) => {
                    for (value, offset) in batch.values().zip(offset..) {
                        let saw = topic.history.lock().saw(
                            partition.epoch().get(),
                            offset,
                            &value,
                            "acknowledged at last",
                        );
                        cluster.check(saw);
                    }
                }
                Err(error) => {
                    let text = format!("{batch:?}, sent again in order: {error}");
                    cluster.scheduler.report(Problem::Producer(text));
                }
            }
        }
    }
    Ok(())
}

fn send(
    cluster: &Arc<Cluster>,
    partition: &Arc<Partition>,
    batch: &Batch,
) -> Result<Result<i64, AppendError>, Dead> {
    let nothing = AppendError::NotLeader { reason: "no answer" };
    let Ok(bytes) = batch.encode(cluster.client_time()) else { return Ok(Err(nothing)) };
    let ticket = match partition.append(&bytes, AppendOptions::default()) {
        Ok(ticket) => ticket,
        Err(error) => return Ok(Err(error)),
    };
    let outcome = wait(cluster, ticket)?.unwrap_or(Err(nothing));
    Ok(outcome.map(|appended| appended.base_offset.0))
}

/// Lets power be lost at the first call of the recovery, at its second, and so on, each time from the volume as it is
/// now, and looks at what the next recovery makes of it.
fn lose_power_at_every_step(cluster: &Arc<Cluster>) {
    let beginning = cluster.storage.fork();
    for nth in 1..=RECOVERY_STEPS_MAX {
        if cluster.scheduler.has_problems() {
            return;
        }
        let process = cluster.process(cluster.auditor());
        process.die_at_call(nth);
        for topic in &cluster.topics {
            if let Some(epoch) = next_epoch(topic) {
                let _ = open(cluster, &process, topic, epoch);
            }
        }
        // Else the recovery was done before.
        let has_died = process.is_dead();
        cluster.lose_power();
        if has_died {
            for topic in &cluster.topics {
                verify(cluster, topic);
                look(cluster, topic, false);
            }
            cluster.kill_all();
        }
        cluster.storage.replace(beginning.fork(cluster.storage.choices()));
        if !has_died {
            return;
        }
    }
}
