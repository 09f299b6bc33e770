//! The names in a topic's directory: its partitions, without a gap, and what does not belong there.

use std::path::Path;

use kaas_substrate::{Entry, EntryKind, TEMPORARY_PREFIX};

use super::finding::{Finding, Kind};
use super::identity::{TOPIC_CONFIG, TOPIC_ID_FILE, partition_number};
use super::tree::{NEW_PREFIX, SHOWN_MAX};

/// Kafka's rules for topic names.
pub(super) fn is_topic_name(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=249).contains(&name.len()) && name != "." && name != ".." && name.bytes().all(legal)
}

pub(super) fn partitions(entries: &[Entry]) -> Vec<u32> {
    let dirs = entries.iter().filter(|entry| entry.kind == EntryKind::Dir);
    let mut numbers: Vec<u32> =
        dirs.filter_map(|entry| entry.name.to_str().and_then(partition_number)).collect();
    numbers.sort_unstable();
    numbers
}

pub(super) fn has_gap(numbers: &[u32]) -> bool {
    numbers.last().is_none_or(|last| u64::from(*last) + 1 != numbers.len() as u64)
}

pub(super) fn missing_partitions(dir: &Path, numbers: &[u32], findings: &mut Vec<Finding>) {
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

pub(super) fn topic_strays(dir: &Path, entries: &[Entry], findings: &mut Vec<Finding>) {
    let newest = entries.iter().filter_map(|entry| TOPIC_CONFIG.parse(&entry.name)).max();
    let mut unknown = 0;
    for entry in entries {
        let path = dir.join(&entry.name);
        let name = entry.name.to_string_lossy();
        let version = TOPIC_CONFIG.parse(&entry.name);
        match entry.kind {
            EntryKind::Dir if partition_number(&name).is_some() => {}
            EntryKind::Dir if name.starts_with(NEW_PREFIX) => {
                findings.push(Finding::new(Kind::Unfinished, &path, "a partition that is not whole"));
            }
            EntryKind::File if name == TOPIC_ID_FILE => {}
            EntryKind::File if version.is_some() => {
                if version != newest {
                    findings.push(Finding::new(Kind::Replaced, &path, "an older config"));
                }
            }
            EntryKind::File if name.starts_with(TEMPORARY_PREFIX) => {
                findings.push(Finding::new(Kind::Temporary, &path, "a temporary file"));
            }
            _ => {
                unknown += 1;
                if unknown <= SHOWN_MAX {
                    let problem = "the name is not one of kaas";
                    findings.push(Finding::new(Kind::UnknownFile, &path, problem));
                }
            }
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

    #[test]
    fn topic_names() {
        for name in ["a", "A.b_c-9", ".hidden", "__consumer_offsets", &"x".repeat(249)] {
            assert!(is_topic_name(name), "{name}");
        }
        for name in ["", ".", "..", "a b", "~new-x", &"x".repeat(250)] {
            assert!(!is_topic_name(name), "{name}");
        }
    }
}
