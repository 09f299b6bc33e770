//! What stands in a data directory beside its topics: `cluster/` with its settings, the slots, and what does not belong.

use std::path::Path;

use kaas_substrate::{Entry, EntryKind, Substrate, read_small};
use serde_json::Value;

use super::Context;
use super::finding::{Finding, Kind};
use super::identity::FILE_BYTES_MAX;
use super::repair::quarantine::QUARANTINE_DIR;
use super::strays::{self, Strays};
use super::tree::{CLUSTER_DIR, CONTROLLER_DIR, NEW_PREFIX, SLOTS_DIR, TOPICS_DIR};
use super::view::{decode_as, unsealed};
pub(super) use crate::layout::META_FILE;
use crate::layout::{PRODUCER_IDS, is_cluster_id};
use crate::manifest::versioned::{self, FileKind};
use crate::reserve::{RESERVE_FILE, SPARE_DIR};
use crate::types::{Epoch, ProducerId};

/// Against two brokers that are started by mistake; empty, or for people.
const LOCK_FILES: [&str; 2] = ["lock", "lock-holder.json"];

/// What is wrong with a file's content.
pub(super) type Problem = fn(&Value) -> Option<&'static str>;

/// The settings of the cluster: versioned files, and what must be true of them.
pub(super) const SETTINGS: [(FileKind, Problem); 2] =
    [(FileKind::json("broker-configs", 1), broker_configs_problem), (PRODUCER_IDS, producer_ids_problem)];

fn is_strings(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.values().all(Value::is_string))
}

fn broker_configs_problem(value: &Value) -> Option<&'static str> {
    let brokers = value.get("brokers").and_then(Value::as_object);
    let by_id = brokers.is_some_and(|brokers| {
        brokers.iter().all(|(id, configs)| id.parse::<i32>().is_ok() && is_strings(configs))
    });
    let whole = value.get("all").is_some_and(is_strings) && by_id;
    (!whole).then_some("it has no objects `all` and `brokers` of strings")
}

fn next_block_start(value: &Value) -> Option<i64> {
    value.get("next_block_start").and_then(Value::as_i64).filter(|start| *start >= 0)
}

fn producer_ids_problem(value: &Value) -> Option<&'static str> {
    next_block_start(value).is_none().then_some("it has no number `next_block_start` from 0 on")
}

fn meta_problem(value: &Value) -> Option<&'static str> {
    let id = value.get("cluster_id").and_then(Value::as_str).unwrap_or_default();
    let node = value.get("node_id").and_then(Value::as_i64).and_then(|id| i32::try_from(id).ok());
    (!is_cluster_id(id) || node.is_none()).then_some("it has no `cluster_id` and `node_id`")
}

/// Looks at the files of `cluster/`; the controller's directory is not looked into.
pub(super) fn examine(context: &Context<'_>, dir: &Path, findings: &mut Vec<Finding>) {
    match context.substrate.list(dir) {
        Ok(mut entries) => {
            entries.sort_unstable();
            check_files(context, dir, &entries, findings);
        }
        Err(error) => findings.push(Finding::new(Kind::Unreadable, dir, error.to_string())),
    }
    strays::explain(context.substrate, dir, findings);
}

fn check_files(context: &Context<'_>, dir: &Path, entries: &[Entry], findings: &mut Vec<Finding>) {
    check_json(context, &dir.join(META_FILE), Kind::ClusterMetaDamaged, meta_problem, findings);
    for (kind, problem) in SETTINGS {
        let newest = entries.iter().filter_map(|entry| kind.parse(&entry.name)).max();
        if let Some(newest) = newest {
            let path = dir.join(kind.file_name(newest));
            check_json(context, &path, Kind::SettingsDamaged, problem, findings);
        }
    }
    let mut strays = Strays::new(dir, findings);
    for entry in entries {
        let name = entry.name.to_string_lossy();
        let newer = |kind: FileKind| {
            let version = kind.parse(&entry.name)?;
            Some(entries.iter().any(|other| kind.parse(&other.name) > Some(version)))
        };
        let replaced = SETTINGS.iter().find_map(|(kind, _)| newer(*kind));
        match entry.kind {
            EntryKind::Dir if name == CONTROLLER_DIR => {}
            EntryKind::Dir if name == QUARANTINE_DIR => {
                strays.tell(Kind::Quarantine, &entry.name, "a repair has put something aside");
            }
            // What is wrong with these two was told when they were opened.
            _ if name == CONTROLLER_DIR || name == META_FILE || replaced == Some(false) => {}
            EntryKind::File if LOCK_FILES.contains(&&*name) => {}
            kind if LOCK_FILES.contains(&&*name) => strays.wrong_type(&entry.name, kind, EntryKind::File),
            EntryKind::File if replaced.is_some() => {
                if replaced == Some(true) {
                    strays.tell(Kind::Replaced, &entry.name, "an older version of a setting");
                }
            }
            _ => strays.other(entry),
        }
    }
}

/// The highest epoch of a controller that has left settings behind.
pub(super) fn written(substrate: &dyn Substrate, dir: &Path) -> Option<Epoch> {
    let entries = substrate.list(dir).ok()?;
    let versions = entries.iter().flat_map(|entry| SETTINGS.map(|(kind, _)| kind.parse(&entry.name)));
    versions.flatten().map(|version| version.epoch).max()
}

/// Whether a producer id that the logs have, `highest` being the highest, may be handed out again. Called after the logs
/// were read: whatever they have was handed out before.
pub(super) fn check_producer_ids(context: &Context<'_>, dir: &Path, highest: ProducerId) -> Option<Finding> {
    let reserved = versioned::read_highest::<Value>(context.substrate, dir, PRODUCER_IDS);
    let (path, start) = match &reserved {
        Ok(None) => (dir.to_owned(), 0),
        Ok(Some((version, value))) => (dir.join(PRODUCER_IDS.file_name(*version)), next_block_start(value)?),
        // Told already.
        Err(_) => return None,
    };
    (highest.0 >= start).then(|| {
        let problem = format!(
            "producer id {highest} is known to a partition; ids below {start} are said to be handed out"
        );
        Finding::new(Kind::ProducerIdsBehind, &path, problem)
    })
}

/// What lies in a data directory beside what belongs there.
pub(super) fn data_strays(dir: &Path, entries: &[Entry], findings: &mut Vec<Finding>) {
    let mut strays = Strays::new(dir, findings);
    for entry in entries {
        let name = entry.name.to_string_lossy();
        match entry.kind {
            // What is wrong with one that is no directory was told when it was listed.
            _ if [CLUSTER_DIR, TOPICS_DIR, SLOTS_DIR].contains(&&*name) => {}
            EntryKind::Dir if name.starts_with(NEW_PREFIX) => {
                strays.tell(Kind::Unfinished, &entry.name, "a cluster that is not whole");
            }
            EntryKind::File if name == RESERVE_FILE => {}
            kind if name == RESERVE_FILE => strays.wrong_type(&entry.name, kind, EntryKind::File),
            EntryKind::Dir if name == SPARE_DIR => {}
            kind if name == SPARE_DIR => strays.wrong_type(&entry.name, kind, EntryKind::Dir),
            // Where `mkfs` puts what `fsck` finds, if the data directory is a volume's root.
            EntryKind::Dir if name == "lost+found" => {}
            _ => strays.other(entry),
        }
    }
}

/// A JSON file of format 1; a version that vanishes has been replaced.
fn check_json(
    context: &Context<'_>,
    path: &Path,
    damage: Kind,
    problem: Problem,
    findings: &mut Vec<Finding>,
) {
    let bytes = match read_small(context.substrate, path, FILE_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => {
            if damage == Kind::ClusterMetaDamaged {
                findings.push(Finding::new(damage, path, "it is not there"));
            }
            return;
        }
        Err(error) => {
            let kind = if error.is_too_long() { damage } else { Kind::Unreadable };
            findings.push(Finding::new(kind, path, error.to_string()));
            return;
        }
    };
    match decode_as::<Value>(path, &bytes, damage) {
        Ok(value) => {
            findings.extend(problem(&value).map(|problem| Finding::new(damage, path, problem)));
            findings.extend(unsealed(path, &bytes));
        }
        Err(finding) => findings.push(finding),
    }
}
