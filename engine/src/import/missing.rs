//! What Kafka's small files prove to be missing. Pure code: values in, problems out.
//!
//! A Kafka that stops cleanly flushes every log, and then writes for each log directory, in this order: where each log ends
//! (`recovery-point-offset-checkpoint`), where it begins if that is behind the base of its first segment
//! (`log-start-offset-checkpoint`), and `.kafka_cleanshutdown`. So behind that marker:
//!
//! - a log that ends before its recovery point, or before a producer snapshot, has lost its end;
//! - a log whose first segment begins behind its checkpointed start has lost its beginning;
//! - an index without its segment is of one that somebody has removed, since Kafka renames them together;
//! - a log of which there is no directory has been taken away.
//!
//! Without the marker the recovery point still holds: what lies below it had been flushed. The others do not: starts are
//! checkpointed once a minute, after segments were removed, and a crash comes between any two files. A log may be longer
//! than any checkpoint says, and a log of which no checkpoint tells is one that was put there: Kafka takes both.
//!
//! Kafka itself does not look: it goes on with what it finds, and its next clean stop leaves checkpoints that fit.

use std::path::{Path, PathBuf};

use kaas_substrate::Substrate;

use super::Problem;
use super::kafka_files::{LOG_START_CHECKPOINT, RECOVERY_POINT_CHECKPOINT};
use super::read::ReadPartition;
use super::report::Doubt;
use super::source::{AbsentPartition, Checkpoints, SourcePartition, Sources, shown};
use crate::types::Offset;

const RESTORE: &str = "restore the segments, or take another replica; if they are gone for good, start Kafka and stop it \
                       cleanly: it goes on with what there is";

/// "offset 7 is missing" and the like; `end` is exclusive, and above `from`.
pub(super) fn missing(from: Offset, end: Offset) -> String {
    match end.0.saturating_sub(1) {
        last if last > from.0 => format!("offsets {from} to {last} are missing"),
        _ => format!("offset {from} is missing"),
    }
}

/// Segments whose indexes are still there. `indexes` are the base offsets that the index files have in their names, with
/// those names.
pub(super) fn check_indexes(
    partition: &SourcePartition,
    indexes: &[(Offset, String)],
    problems: &mut Vec<Problem>,
) {
    if !partition.is_clean {
        return;
    }
    let mut told = None;
    for (base, index) in indexes {
        if told == Some(*base) || partition.logs.binary_search(base).is_ok() {
            continue;
        }
        told = Some(*base);
        problems.push(Problem::new(
            shown(&*partition.volume, &partition.dir.join(format!("{:020}.log", base.0))),
            format!("the segment is missing: its {index} is there"),
            RESTORE,
        ));
    }
}

/// Whether all is there that Kafka's checkpoints tell of.
pub(super) fn check_bounds(partition: &SourcePartition, read: &ReadPartition, problems: &mut Vec<Problem>) {
    let checkpoint = |name: &str| shown(&*partition.volume, Path::new(name));
    let of = format!("{}-{}", partition.topic, partition.partition);
    let first = partition.logs.first().copied();
    if let Some((start, first)) = partition.checkpointed_start.zip(first)
        && (partition.is_clean || partition.is_tiered)
        && start < first
    {
        let problem = if partition.is_tiered {
            format!("{of}: offsets {start} to {} are in tiered storage", first.0 - 1)
        } else {
            format!(
                "{of}: {}: the log begins at {start}, and its first segment is {:020}.log",
                missing(start, first),
                first.0
            )
        };
        let hint = if partition.is_tiered {
            "turn tiered storage off for the topic and let Kafka bring its segments back"
        } else {
            RESTORE
        };
        problems.push(Problem::new(checkpoint(LOG_START_CHECKPOINT), problem, hint));
    }
    let end = read.end;
    if let Some(flushed) = partition.recovery_point.filter(|flushed| *flushed > end) {
        let said = if partition.is_clean { "the log ended at" } else { "the log was flushed up to" };
        let found = match partition.logs.last() {
            Some(last) => format!("its last segment, {:020}.log, ends at {end}", last.0),
            None => "there is no segment".to_owned(),
        };
        problems.push(Problem::new(
            checkpoint(RECOVERY_POINT_CHECKPOINT),
            format!("{of}: {}: {said} {flushed}, and {found}", missing(end, flushed)),
            RESTORE,
        ));
    } else if let Some(snapshot) = partition.snapshots.last().filter(|at| partition.is_clean && **at > end) {
        problems.push(Problem::new(
            shown(&*partition.volume, &partition.dir.join(format!("{:020}.snapshot", snapshot.0))),
            format!("{}: the log had reached {snapshot}, and ends at {end}", missing(end, *snapshot)),
            RESTORE,
        ));
    }
}

/// What may be missing, and cannot be told: the first segments of a log, if retention has not removed them. Kafka trims its
/// leader epochs to where a log begins, but writes them a moment later, and a crash may have come before that.
pub(super) fn doubt_about_start(partition: &SourcePartition) -> Option<Doubt> {
    let first = partition.logs.first().copied()?;
    let (epoch, start) = partition.leader_epochs.first().copied()?;
    let unexplained = partition.checkpointed_start.is_none() && Offset(start) < first;
    unexplained.then(|| Doubt {
        path: shown(&*partition.volume, &partition.dir),
        doubt: format!(
            "leader epoch {epoch} begins at offset {start}, the first segment at {first}: what lies between is missing, \
             if retention has not removed it"
        ),
    })
}

/// Partitions from 0 on, each once, of one topic id, and as many as Kafka's metadata says.
pub(super) fn check_partitions(
    topic: &str,
    partitions: &[SourcePartition],
    sources: &Sources,
    problems: &mut Vec<Problem>,
) {
    // Of which it is known that they were here, that is told.
    let are_absent = |from: u32, end: u32| {
        (from..end).all(|number| {
            sources.absent.iter().any(|absent| absent.topic == topic && absent.partition == number)
        })
    };
    let mut expected = 0;
    let mut id = None;
    for partition in partitions {
        let path = || shown(&*partition.volume, &partition.dir);
        if partition.partition < expected {
            problems.push(Problem::new(
                path(),
                "the partition is there twice",
                "give each partition once: the log directories of one replica",
            ));
            continue;
        }
        if partition.partition > expected && !are_absent(expected, partition.partition) {
            let why = format!("the next one here is {}", partition.partition);
            problems.push(no_partitions(path(), topic, expected, partition.partition, &why));
        }
        expected = partition.partition.saturating_add(1);
        if partition.topic_id.zip(id).is_some_and(|(own, first)| own != first) {
            problems.push(Problem::new(
                path(),
                "its topic id is not that of the topic's first partition",
                "it is a leftover of a deleted topic: take it away",
            ));
        }
        id = id.or(partition.topic_id);
    }
    let Some((path, metadata)) = &sources.metadata else { return };
    let Some(id) = id else { return };
    match metadata.partitions(id) {
        Some(count) if count > expected && !are_absent(expected, count) => {
            let why = format!("Kafka's metadata has {count} in all");
            problems.push(no_partitions(path.clone(), topic, expected, count, &why));
        }
        Some(_) => {}
        None => {
            let path = partitions.first().map(|first| shown(&*first.volume, &first.dir)).unwrap_or_default();
            problems.push(Problem::new(
                path,
                format!("Kafka's metadata has no topic {topic:?} with its id: it was deleted"),
                "take its directories away, or name the topics to import with --topic",
            ));
        }
    }
}

fn no_partitions(path: PathBuf, topic: &str, from: u32, end: u32, why: &str) -> Problem {
    let problem = match end.saturating_sub(1) {
        last if last > from => format!("partitions {from} to {last} of {topic:?} are missing: {why}"),
        _ => format!("partition {from} of {topic:?} is missing: {why}"),
    };
    Problem::new(path, problem, "give all log directories that hold partitions of the topic")
}

/// The logs that Kafka had in a log directory when it stopped cleanly, by the directory's checkpoints, and of which `is_gone` says
/// that they are not in it.
pub(super) fn absent_partitions(
    volume: &dyn Substrate,
    checkpoints: &Checkpoints,
    is_gone: impl Fn(&str, u32) -> bool,
) -> Vec<AbsentPartition> {
    if !checkpoints.is_clean {
        return Vec::new();
    }
    let gone =
        checkpoints.recovery_points.iter().filter(|((topic, partition), _)| is_gone(topic, *partition));
    gone.map(|((topic, partition), end)| AbsentPartition {
        topic: topic.clone(),
        partition: *partition,
        checkpoint: shown(volume, Path::new(RECOVERY_POINT_CHECKPOINT)),
        end: Offset(*end),
    })
    .collect()
}

/// Logs that a log directory had when Kafka stopped, and that are in none of the sources, as `is_here` knows.
pub(super) fn check_absent(
    absent: &[AbsentPartition],
    is_here: impl Fn(&str, u32) -> bool,
    hint: &'static str,
    problems: &mut Vec<Problem>,
) {
    let missing = absent.iter().filter(|absent| !is_here(&absent.topic, absent.partition));
    problems.extend(missing.map(|AbsentPartition { topic, partition, checkpoint, end }| {
        let problem = format!("there is no directory {topic}-{partition}, whose log ended at {end}");
        Problem::new(checkpoint.clone(), problem, hint)
    }));
}
