//! A topic's directory: its id, its configs, its partitions without a gap, and what does not belong there.

use std::path::Path;
use std::thread;

use kaas_substrate::{Entry, EntryKind, read_small};
use serde_json::Value;

use super::Context;
use super::finding::{Finding, Kind};
use super::identity::{self, TOPIC_CONFIG, TOPIC_ID_FILE, partition_number};
use super::repair::quarantine::QUARANTINE_DIR;
use super::strays::{self, SHOWN_MAX, Strays};
use super::tree::{NEW_PREFIX, file_name};
use super::view::{decode_as, unsealed};

/// What a topic's directory says of its partitions.
#[derive(Debug, Default)]
pub(super) struct Topic {
    pub(super) topic_id: Option<[u8; 16]>,
    /// In order.
    pub(super) partitions: Vec<u32>,
    /// It is no topic, and nothing of one.
    pub(super) is_stray: bool,
}

/// How often a topic that changes meanwhile is looked at.
const LOOKS_MAX: usize = 3;

/// Looks at a topic's directory; its partitions are not looked into. Again, if a deletion, or the creation of another topic of
/// that name, may be what was found.
pub(super) fn look(context: &Context<'_>, dir: &Path, findings: &mut Vec<Finding>) -> Topic {
    for _ in 0..LOOKS_MAX {
        let before = incarnation(context, dir);
        let mut found = Vec::new();
        let topic = look_once(context, dir, &mut found);
        let in_doubt = found.iter().any(Finding::is_bad);
        if in_doubt {
            thread::sleep(context.options.second_look_after);
        }
        if !in_doubt || (before.is_some() && incarnation(context, dir) == before) {
            strays::explain(context.substrate, dir, &mut found);
            findings.append(&mut found);
            return topic;
        }
    }
    findings.push(Finding::new(Kind::InProgress, dir, "the topic was deleted or created meanwhile"));
    Topic::default()
}

/// What tells a topic's directory from one that stands there later: what its id's file says, damaged or not. `None` if there
/// is no directory, as when a deletion has renamed it aside.
fn incarnation(context: &Context<'_>, dir: &Path) -> Option<Vec<u8>> {
    match context.substrate.list(dir) {
        Err(error) if error.is_not_found() => None,
        _ => {
            let path = dir.join(TOPIC_ID_FILE);
            Some(read_small(context.substrate, &path, identity::FILE_BYTES_MAX).unwrap_or_default())
        }
    }
}

fn look_once(context: &Context<'_>, dir: &Path, findings: &mut Vec<Finding>) -> Topic {
    let entries = match context.substrate.list(dir) {
        Ok(entries) => entries,
        Err(error) if error.is_not_found() => {
            findings.push(Finding::new(Kind::InProgress, dir, "the topic was deleted meanwhile"));
            return Topic::default();
        }
        Err(error) => {
            findings.push(Finding::new(Kind::Unreadable, dir, error.to_string()));
            return Topic::default();
        }
    };
    if !entries.iter().any(|entry| entry.name == TOPIC_ID_FILE)
        && let Some(stray) = strays::directory(context.substrate, dir, entries.is_empty())
    {
        findings.push(stray);
        return Topic { is_stray: true, ..Topic::default() };
    }
    let name = file_name(context.substrate, dir);
    let topic_id = identity::check_topic(context, dir, name.as_deref(), findings);
    check_config(context, dir, &entries, findings);
    let mut numbers = partitions(&entries);
    if has_gap(&numbers) {
        // Partitions that are being added may have been listed out of order.
        thread::sleep(context.options.second_look_after);
        numbers = context.substrate.list(dir).map_or(numbers, |entries| partitions(&entries));
        missing_partitions(dir, &numbers, findings);
    }
    topic_strays(dir, &entries, findings);
    Topic { topic_id, partitions: numbers, is_stray: false }
}

fn check_config(context: &Context<'_>, dir: &Path, entries: &[Entry], findings: &mut Vec<Finding>) {
    let Some(newest) = entries.iter().filter_map(|entry| TOPIC_CONFIG.parse(&entry.name)).max() else {
        return;
    };
    let path = dir.join(TOPIC_CONFIG.file_name(newest));
    let bytes = match read_small(context.substrate, &path, identity::FILE_BYTES_MAX) {
        Ok(bytes) => bytes,
        // Replaced meanwhile.
        Err(error) if error.is_not_found() => return,
        Err(error) => {
            let kind = if error.is_too_long() { Kind::TopicConfigDamaged } else { Kind::Unreadable };
            findings.push(Finding::new(kind, &path, error.to_string()));
            return;
        }
    };
    match decode_as::<Value>(&path, &bytes, Kind::TopicConfigDamaged) {
        Ok(value) => {
            let problem = config_problem(&value);
            findings.extend(problem.map(|problem| Finding::new(Kind::TopicConfigDamaged, &path, problem)));
            findings.extend(unsealed(&path, &bytes));
        }
        Err(finding) => findings.push(finding),
    }
}

/// What is wrong with the content of a topic's config file.
pub(super) fn config_problem(value: &Value) -> Option<&'static str> {
    let config = value.get("config").and_then(Value::as_object);
    let whole = config.is_some_and(|config| config.values().all(Value::is_string));
    (!whole).then_some("it has no object `config` of strings")
}

pub(super) fn partitions(entries: &[Entry]) -> Vec<u32> {
    let dirs = entries.iter().filter(|entry| entry.kind == EntryKind::Dir);
    let mut numbers: Vec<u32> =
        dirs.filter_map(|entry| entry.name.to_str().and_then(partition_number)).collect();
    numbers.sort_unstable();
    numbers
}

fn has_gap(numbers: &[u32]) -> bool {
    numbers.last().is_none_or(|last| u64::from(*last) + 1 != numbers.len() as u64)
}

fn missing_partitions(dir: &Path, numbers: &[u32], findings: &mut Vec<Finding>) {
    if numbers.is_empty() {
        findings.push(Finding::new(Kind::PartitionMissing, dir, "the topic has no partition"));
    }
    let mut expected = 0;
    let mut shown = 0;
    for number in numbers {
        if *number > expected && shown < SHOWN_MAX {
            shown += 1;
            let problem = match number - expected {
                1 => format!("partition {expected} is missing"),
                _ => format!("partitions {expected} to {} are missing", number - 1),
            };
            findings.push(Finding::new(Kind::PartitionMissing, &dir.join(expected.to_string()), problem));
        }
        expected = number.saturating_add(1);
    }
}

fn topic_strays(dir: &Path, entries: &[Entry], findings: &mut Vec<Finding>) {
    let newest = entries.iter().filter_map(|entry| TOPIC_CONFIG.parse(&entry.name)).max();
    let mut strays = Strays::new(dir, findings);
    for entry in entries {
        let name = entry.name.to_string_lossy();
        let version = TOPIC_CONFIG.parse(&entry.name);
        match entry.kind {
            EntryKind::Dir if partition_number(&name).is_some() => {}
            kind if partition_number(&name).is_some() => {
                strays.wrong_type(&entry.name, kind, EntryKind::Dir);
            }
            EntryKind::Dir if name.starts_with(NEW_PREFIX) => {
                strays.tell(Kind::Unfinished, &entry.name, "a partition that is not whole");
            }
            EntryKind::Dir if name == QUARANTINE_DIR => {
                strays.tell(Kind::Quarantine, &entry.name, "a repair has put something aside");
            }
            // What is wrong with it, and with the newest config, was told when it was opened.
            _ if name == TOPIC_ID_FILE || (version.is_some() && version == newest) => {}
            EntryKind::File if version.is_some() => {
                strays.tell(Kind::Replaced, &entry.name, "an older config");
            }
            kind if version.is_some() => strays.wrong_type(&entry.name, kind, EntryKind::File),
            _ => strays.other(entry),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps() {
        assert!(!has_gap(&[0, 1, 2]));
        for numbers in [&[][..], &[1], &[0, 2], &[0, u32::MAX]] {
            assert!(has_gap(numbers), "{numbers:?}");
        }
        let mut findings = Vec::new();
        missing_partitions(Path::new("t"), &[1, 2, 5], &mut findings);
        let problems: Vec<_> = findings.iter().map(|finding| finding.problem.as_str()).collect();
        assert_eq!(problems, ["partition 0 is missing", "partitions 3 to 4 are missing"]);
    }
}
