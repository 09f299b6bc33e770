//! The last word on a run: everything that was acknowledged or served is there, `verify` finds nothing wrong, producers are
//! still recognised, and recovery converges even if it is cut off at any of its steps.

mod steps;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kaas_engine::batch::Marker;
use kaas_engine::manifest::versioned::read_highest;
use kaas_engine::manifest::{MANIFEST, Manifest};
use kaas_engine::types::{Epoch, ProducerId};
use kaas_engine::verify::{Expected, Finding, Kind, Options, Progress, Severity, verify_partition};
use kaas_engine::{AppendError, AppendOptions, Isolation, Partition, Status};
use kaas_substrate::OpenMode;

use self::steps::{damage_all, die_at_every_step_of_a_repair, lose_power_at_every_step, mend};
use crate::clients::{Batch, check_sequences};
use crate::cluster::{Cluster, Topic};
use crate::compaction;
use crate::data_dir;
use crate::journals;
use crate::leader::{open, wait};
use crate::problem::Problem;
use crate::process::{Faults, Process, START};
use crate::reading::{Reading, read_all};
use crate::records::{Fetched, decode};
use crate::replay::Replay;
use crate::scheduler::Dead;

/// Whether `verify` may find this, beside what is harmless: work that a kill or a loss of power cut off. Everything else is a
/// problem, so that no kind of damage passes because somebody thinks less of it later.
fn may_be_found(cluster: &Cluster, kind: Kind) -> bool {
    match kind {
        Kind::TornTail | Kind::ClaimDamaged => true,
        // Its claimant found a later one, which has come to nothing since, and took its file back.
        Kind::ClaimMissing => true,
        // Taken back, as there was no room.
        Kind::SegmentBehindRelease => cluster.gets_full,
        // Half written by a claimant; where a later one is done already, nobody writes it again.
        Kind::FenceRecordTorn | Kind::FenceRecordDamaged => cluster.storage.has_torn_fences(),
        // After a loss of power, whole batches may stand behind a hole: unsynced ones, whose sectors arrived in any order.
        // `verify` cannot know that nobody was told of them; here that is checked.
        Kind::DamagedTail => cluster.storage.may_have_holes(),
        _ => false,
    }
}

/// Reports what `verify` has found and may not find.
pub fn report_findings(cluster: &Cluster, findings: &[Finding]) {
    let bad = |finding: &&Finding| finding.severity > Severity::Info && !may_be_found(cluster, finding.kind);
    for finding in findings.iter().filter(bad) {
        cluster.scheduler.report(Problem::Verify(format!("{finding:?}")));
    }
}

/// How the end of a run is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Processes are killed.
    Killed,
    /// The volume loses power.
    LostPower,
    /// As that, and again at every step of the recovery, each time from the same beginning.
    RecoveryLosesPower,
    /// As that, and again at every step of a round of compaction.
    CompactionLosesPower,
    /// Processes are killed, or the volume loses power, and what was damaged is repaired.
    Mended { loses_power: bool },
    /// As that, after more damage, and by a repair that loses power, or dies, at its first step, at its second, and so on.
    RepairDies { loses_power: bool },
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
            lose_power_at_every_step(cluster, false);
        }
        Ending::CompactionLosesPower => {
            cluster.lose_power();
            lose_power_at_every_step(cluster, true);
        }
        Ending::Mended { loses_power } => {
            stop(cluster, loses_power);
            mend(cluster);
        }
        Ending::RepairDies { loses_power } => {
            stop(cluster, loses_power);
            damage_all(cluster);
            die_at_every_step_of_a_repair(cluster, loses_power);
            mend(cluster);
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
        for slot in &cluster.slots {
            if cluster.scheduler.has_problems() {
                return;
            }
            journals::verify(cluster, slot);
            journals::look(cluster, slot);
        }
        if let Some(data_dir) = cluster.data_dir.as_ref().filter(|_| !cluster.scheduler.has_problems()) {
            data_dir::look(cluster, data_dir);
        }
        let loses_power = match ending {
            Ending::Killed => false,
            Ending::LostPower | Ending::RecoveryLosesPower | Ending::CompactionLosesPower => true,
            Ending::Mended { loses_power } | Ending::RepairDies { loses_power } => loses_power,
        };
        stop(cluster, loses_power);
    }
}

fn stop(cluster: &Cluster, loses_power: bool) {
    if loses_power { cluster.lose_power() } else { cluster.kill_all() }
}

/// What `kaas-engine verify` finds wrong with a partition that nobody leads.
fn verify(cluster: &Cluster, topic: &Topic) {
    let volume = cluster.storage.mount(cluster.auditor());
    let options = Options { now: START, second_look_after: Duration::ZERO, ..Options::default() };
    let report = verify_partition(&*volume, &topic.dir, &Expected::default(), &options, &Progress::default());
    report_findings(cluster, &report.findings);
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
    look_at_records(cluster, process, topic, &partition);
    if with_producers {
        // The audit is nobody's task, and never dies.
        let _ = try_producers(cluster, topic, &partition);
        let _ = end_transactions(cluster, topic, &partition);
        if cluster.config.compact {
            let number = cluster.topics.iter().position(|other| std::ptr::eq(other, topic)).unwrap_or(0);
            for _ in 0..2 {
                let _ = compaction::round(cluster, process, number, &partition);
            }
        }
        look_at_records(cluster, process, topic, &partition);
    }
}

/// The batches of the segments that the manifest names, read from their files.
fn compacted_batches(cluster: &Cluster, topic: &Topic) -> Vec<Fetched> {
    let volume = cluster.storage.mount(cluster.auditor());
    let manifest = read_highest::<Manifest>(&*volume, &topic.dir, MANIFEST).ok().flatten();
    let segments = manifest.map(|(_, manifest)| manifest.segments).unwrap_or_default();
    let mut batches = Vec::new();
    for entry in segments {
        let Some(name) = entry.name() else { continue };
        let path = topic.dir.join(format!("{name}.log"));
        let read = volume.open(&path, OpenMode::ReadUncached).and_then(|file| {
            let mut bytes = vec![0; usize::try_from(entry.bytes).unwrap_or(0)];
            let read = file.read_at(&mut bytes, 0)?;
            bytes.truncate(read);
            Ok(bytes)
        });
        match read
            .map_err(|error| error.to_string())
            .and_then(|bytes| decode(bytes.into(), topic.form).map_err(|error| error.to_string()))
        {
            Ok(found) => batches.extend(found),
            Err(error) => {
                cluster.scheduler.report(Problem::Damaged(format!("{}: {error}", path.display())));
            }
        }
    }
    batches
}

/// Reads all of a partition, in both ways, and compares it with what everybody was told, and with what its leader says.
fn look_at_records(cluster: &Arc<Cluster>, process: &Process, topic: &Topic, partition: &Arc<Partition>) {
    let status = partition.status();
    let mut records = BTreeMap::new();
    let mut replay = Replay::default();
    let isolation = Isolation::ReadUncommitted;
    let mut reading = Reading { from: None, max_bytes: 1 << 20, isolation, ranges_again_after: None };
    // Consumers are not shown what compaction has left without a record; it says who the producers are.
    let mut behind = i64::MIN;
    if cluster.config.compact {
        for batch in compacted_batches(cluster, topic) {
            behind = behind.max(batch.header.next_offset().0);
            if batch.header.last_offset() >= status.log_start {
                replay.batch(&batch);
            }
        }
    }
    let read = read_all(cluster, process, topic, partition, reading, |batch, _| {
        if batch.header.base_offset.0 >= behind {
            replay.batch(batch);
        }
        records.extend(batch.records.iter().filter(|(offset, _)| *offset >= status.log_start.0).cloned());
    });
    if let Err(error) = read {
        return cluster.scheduler.report(Problem::Damaged(format!("{}: {error}", topic.identity.topic)));
    }
    let compacts = topic.history.lock().promises().compacts;
    let is_damaged = topic.history.lock().harm.happened();
    let gap = (status.log_start.0..status.high_watermark.0).find(|offset| !records.contains_key(offset));
    // (What was known, and not damaged, is looked for below.)
    if let Some(offset) = gap.filter(|_| !compacts && !is_damaged) {
        let text =
            format!("offset {offset} of {} to {} holds nothing", status.log_start, status.high_watermark);
        cluster.scheduler.report(Problem::Records(text));
    }
    cluster.check(topic.history.lock().check_all(status.log_start.0, &records));
    // (Nor is it known who stands in front of a log start that was lost.)
    let deleted = topic.history.lock().deleted_for_good();
    records.retain(|offset, _| *offset >= deleted);
    cluster.check(check_sequences(&records, compacts || is_damaged).map_err(Problem::Producer));
    let is_known = status.log_start.0 >= deleted;
    let is_whole = |producer| is_known && !topic.history.lock().harm.has_hit_producer(producer);
    let producers = replay.check_producers(&partition.producers(), status.log_start, is_whole);
    cluster.check(producers.map_err(Problem::Producer));
    if !cluster.transactions {
        return;
    }
    let mut aborted = Vec::new();
    reading.isolation = Isolation::ReadCommitted;
    let read =
        read_all(cluster, process, topic, partition, reading, |_, told| aborted.extend_from_slice(told));
    if let Err(error) = read {
        return cluster.scheduler.report(Problem::Damaged(format!("{}: {error}", topic.identity.topic)));
    }
    let history = topic.history.lock();
    let told = replay.check_aborted(&aborted, &history, status.log_start, status.last_stable);
    cluster.check(told.map_err(Problem::Transaction));
}

/// Ends the transactions that are open. Then everything is stable.
fn end_transactions(cluster: &Arc<Cluster>, topic: &Topic, partition: &Arc<Partition>) -> Result<(), Dead> {
    let ends: Vec<_> = topic
        .transactional
        .lock()
        .iter_mut()
        .filter_map(|open| open.end(|| Marker::Commit).map(|end| (open.producer.id(), end)))
        .collect();
    for (producer, (transaction, end)) in ends {
        topic.history.lock().outcomes.decide(producer, transaction, end.marker);
        let ended = match partition.append_marker(ProducerId(producer), 0, end) {
            Ok(ticket) => wait(cluster, ticket)?.unwrap_or(Err(NO_ANSWER)),
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            let text = format!("transaction {transaction} of {producer} cannot be ended: {error}");
            cluster.scheduler.report(Problem::Transaction(text));
        }
        topic.ended(producer, transaction);
    }
    let Status { last_stable, high_watermark, .. } = partition.status();
    if last_stable != high_watermark {
        let text = format!("no transaction is open, and of {high_watermark} only {last_stable} is stable");
        cluster.scheduler.report(Problem::Transaction(text));
    }
    Ok(())
}

/// What was acknowledged is recognised when it is sent again, and what comes next is taken.
fn try_producers(cluster: &Arc<Cluster>, topic: &Topic, partition: &Arc<Partition>) -> Result<(), Dead> {
    let mut producers = Vec::new();
    topic.for_each_producer(|producer| {
        producers.push((producer.id(), producer.recognisable(), producer.to_send()));
    });
    // Of what was deleted nothing may be left that damage could spare.
    let found_start = partition.status().log_start.0;
    let (is_damaged, deleted, is_refused) = {
        let history = topic.history.lock();
        let is_refused = history.harm.kept_behind_unseen;
        (history.harm.happened(), history.deleted_for_good(), is_refused)
    };
    if found_start < deleted {
        return Ok(());
    }
    let log_start = if is_damaged { found_start } else { 0 };
    for (producer, recognisable, unacknowledged) in producers {
        if topic.history.lock().harm.has_hit_producer(producer) {
            continue;
        }
        for (batch, offset) in recognisable.into_iter().filter(|(_, offset)| *offset >= log_start) {
            match send(cluster, topic, partition, &batch)? {
                Ok(found) if found == offset => {}
                other => {
                    let text =
                        format!("{batch:?} was acknowledged at offset {offset}; sent again: {other:?}");
                    cluster.scheduler.report(Problem::Producer(text));
                }
            }
        }
        // (Nor can a retry of what was deleted be told from something new.)
        for batch in unacknowledged.into_iter().filter(|_| log_start == 0 && !is_refused) {
            match send(cluster, topic, partition, &batch)? {
                Ok(offset) => {
                    topic.for_each_producer(|producer| producer.acknowledged(&batch, offset));
                    for (value, offset) in batch.names().zip(offset..) {
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

const NO_ANSWER: AppendError = AppendError::NotLeader { reason: "no answer" };

fn send(
    cluster: &Arc<Cluster>,
    topic: &Topic,
    partition: &Arc<Partition>,
    batch: &Batch,
) -> Result<Result<i64, AppendError>, Dead> {
    batch.names().for_each(|name| topic.history.lock().sends(&name));
    let Ok(bytes) = batch.encode(topic.form, cluster.client_time()) else { return Ok(Err(NO_ANSWER)) };
    let ticket = match partition.append(&bytes, AppendOptions::default()) {
        Ok(ticket) => ticket,
        Err(error) => return Ok(Err(error)),
    };
    let outcome = wait(cluster, ticket)?.unwrap_or(Err(NO_ANSWER));
    Ok(outcome.map(|appended| appended.base_offset.0))
}
