//! Consumers: they read from some offset to the end, and what they are shown is checked record by record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use kaas_engine::batch::Marker;
use kaas_engine::index::AbortedTransaction;
use kaas_engine::types::{Offset, ProducerId};
use kaas_engine::{FetchedRecords, Isolation, Partition, Read, ReadError, ReadRequest, RecordsPart, Status};

use crate::cluster::{Cluster, Topic};
use crate::history::History;
use crate::names::aborts;
use crate::problem::Problem;
use crate::process::Process;
use crate::records::{Fetched, decode};
use crate::scheduler::Until;
use crate::transactions::Fate;

/// How to read.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// `None`: from the log start.
    pub from: Option<Offset>,
    /// Bytes that are asked for at a time.
    pub max_bytes: usize,
    pub isolation: Isolation,
    /// `None`: everything is read into memory. Else ranges of files are taken where there are any: they are looked at at once,
    /// and again after so many steps, as a slow connection would.
    pub ranges_again_after: Option<u64>,
}

/// Reads a partition up to the high watermark, or to the last stable offset, and checks what is read. `show` gets every batch, and
/// the aborted transactions that were told of with it.
pub fn read_all(
    cluster: &Cluster,
    process: &Process,
    topic: &Topic,
    partition: &Arc<Partition>,
    reading: Reading,
    mut show: impl FnMut(&Fetched, &[AbortedTransaction]),
) -> Result<(), ReadError> {
    let Reading { max_bytes, isolation, ranges_again_after, .. } = reading;
    let file_ranges = ranges_again_after.is_some();
    let epoch = partition.epoch().get();
    let start = reading.from.unwrap_or_else(|| partition.status().log_start);
    let mut from = start;
    let mut found = BTreeMap::new();
    loop {
        let request = ReadRequest { from, max_bytes, at_least_one: true, isolation, file_ranges };
        let fetched = match partition.read(request)? {
            Read::Ready(fetched) => fetched,
            Read::Blocking(read) => read.run()?,
        };
        if process.is_dead() {
            return Ok(());
        }
        let Some(bytes) = bytes_of(cluster, process, topic, &fetched, ranges_again_after) else {
            return Ok(());
        };
        let batches = match decode(bytes, topic.form) {
            Ok(batches) => batches,
            Err(error) if topic.may_meet_damage(epoch) => {
                cluster.scheduler.note(&format_args!("fetched from offset {from}: {error}"));
                return Ok(());
            }
            Err(error) => {
                cluster.scheduler.report(Problem::Damaged(format!(
                    "fetched from offset {from} at epoch {epoch}: {error}"
                )));
                return Ok(());
            }
        };
        if topic.may_meet_damage(epoch) && topic.history.lock().has_hit_any(&batches) {
            // Where they belong, and what stands behind them, is not known here.
            return Ok(());
        }
        let Some(last) = batches.last() else {
            if !topic.may_meet_damage(epoch) {
                cluster.check(has_come_to_the_end(from, isolation, &fetched));
            }
            // What was deleted meanwhile need not have been there.
            let start = start.max(partition.status().log_start);
            let mut history = topic.history.lock();
            let Status { last_stable, log_start, .. } = fetched.status;
            cluster.check(history.saw_stable(epoch, last_stable, log_start));
            cluster.check(history.check_missing(start.0, from.0, &found));
            return Ok(());
        };
        let next = last.header.next_offset();
        {
            let mut history = topic.history.lock();
            let Status { last_stable, log_start, .. } = fetched.status;
            cluster.check(history.saw_stable(epoch, last_stable, log_start));
            if isolation == Isolation::ReadCommitted {
                cluster.check(check_transactions(&history, &batches, &fetched.aborted));
            }
            for (offset, name) in batches.iter().flat_map(|batch| &batch.records) {
                if *offset >= from.0 {
                    history.read += 1;
                    cluster.check(history.saw(epoch, *offset, name, "read"));
                    found.insert(*offset, name.clone());
                }
            }
        }
        for batch in &batches {
            show(batch, &fetched.aborted);
        }
        from = next;
    }
}

/// The bytes of a fetch. Ranges of files are read twice. `None` if that fails for a reason that may be: the connection ends, and
/// the reader comes back.
fn bytes_of(
    cluster: &Cluster,
    process: &Process,
    topic: &Topic,
    fetched: &FetchedRecords,
    ranges_again_after: Option<u64>,
) -> Option<Bytes> {
    let scheduler = &cluster.scheduler;
    let mut all = Vec::with_capacity(fetched.bytes);
    for part in &fetched.parts {
        let (file, position, length) = match part {
            RecordsPart::Bytes(bytes) => {
                all.extend_from_slice(bytes);
                continue;
            }
            RecordsPart::FileRange { file, position, length } => (file, *position, *length),
        };
        let look = || {
            let mut bytes = vec![0; length];
            let read = file.read_at(&mut bytes, position);
            let read = read.inspect_err(|error| scheduler.note(&format_args!("of a range: {error}"))).ok()?;
            bytes.truncate(read);
            (!process.is_dead()).then_some(bytes)
        };
        let first = look()?;
        scheduler.leave(Until::Step(scheduler.steps() + ranges_again_after.unwrap_or(0))).ok()?;
        let second = look()?;
        if (first.len() < length || first != second) && topic.may_meet_damage(fetched.status.epoch.get()) {
            return None;
        }
        if first.len() < length || first != second {
            let (firsts, seconds) = (first.len(), second.len());
            let is_same = first.iter().zip(&second).all(|(first, second)| first == second);
            scheduler.report(Problem::Records(format!(
                "{length} bytes from {position} on were handed out, with {:?}: {firsts} were there at first, {seconds} then, \
                 {} bytes",
                fetched.status,
                if is_same { "the same" } else { "other" },
            )));
            return None;
        }
        scheduler.note(&format_args!("a range of {length} bytes from {position} on"));
        topic.history.lock().ranges += 1;
        all.extend_from_slice(&first);
    }
    Some(all.into())
}

/// A read that is shown nothing stands at the end of what there is for it.
fn has_come_to_the_end(from: Offset, isolation: Isolation, fetched: &FetchedRecords) -> Result<(), Problem> {
    let end = match isolation {
        Isolation::ReadUncommitted => fetched.status.high_watermark,
        Isolation::ReadCommitted => fetched.status.last_stable,
    };
    if from >= end {
        return Ok(());
    }
    Err(Problem::Records(format!(
        "a read from offset {from} finds nothing, though there is more up to {end}"
    )))
}

/// Leaves out what a consumer of committed records leaves out, and checks that it is shown what is committed, and nothing else.
fn check_transactions(
    history: &History,
    batches: &[Fetched],
    aborted: &[AbortedTransaction],
) -> Result<(), Problem> {
    for transaction in aborted {
        let AbortedTransaction { producer_id, last_offset, .. } = *transaction;
        if history.name_at(last_offset.0).is_some_and(|name| !aborts(name, producer_id)) {
            let text = format!("{transaction:?} is said to be aborted; at its end there is no such marker");
            return Err(Problem::Transaction(text));
        }
    }
    let mut pending: Vec<_> = aborted.to_vec();
    pending.sort_by_key(|transaction| std::cmp::Reverse(transaction.first_offset));
    let mut hidden: BTreeSet<ProducerId> = BTreeSet::new();
    for Fetched { header, marker, records } in batches {
        while let Some(next) = pending.pop_if(|next| next.first_offset <= header.last_offset()) {
            hidden.insert(next.producer_id);
        }
        let Some(producer) = header.producer_id.filter(|_| header.is_transactional()) else { continue };
        if marker.is_some_and(|end| end.marker == Marker::Abort) {
            hidden.remove(&producer);
        }
        for (offset, name) in records.iter().filter(|_| !header.is_control()) {
            let is_hidden = hidden.contains(&producer);
            let what = match (history.outcomes.fate(name), is_hidden) {
                (Fate::Stays, false) | (Fate::Aborted, true) => continue,
                (Fate::Stays, true) => "is committed, and hidden from consumers",
                (Fate::Aborted, false) => "is aborted, and shown to consumers of committed records",
                (Fate::Open, _) => "belongs to an open transaction, and is stable",
            };
            return Err(Problem::Transaction(format!("{name} at offset {offset} {what}")));
        }
    }
    Ok(())
}
