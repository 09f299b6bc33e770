//! What an import found and did, for people and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kaas_config::{ConfigError, Value, topic_definition};
use serde::Serialize;

use super::read::ReadPartition;
use super::{PlannedTopic, Problem};
use crate::verify::{counted, grouped};

/// What an import found, and did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Of this JSON.
    pub format: u32,
    /// Everything is imported; false after a dry run, or with problems.
    pub is_done: bool,
    pub topics: Vec<TopicReport>,
    /// Topics that an earlier import has carried over already.
    pub already_there: Vec<String>,
    /// Directories that hold nothing to import.
    #[serde(serialize_with = "crate::printable::serialize_paths")]
    pub passed_over: Vec<PathBuf>,
    /// Kafka's cluster id is left behind: the data directory has another one already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_id_left: Option<ClusterIdReport>,
    /// Whether the topics' configs were there to be read.
    pub has_metadata: bool,
    pub partitions: usize,
    pub records: u64,
    /// Bytes of records.
    pub bytes: u64,
    /// Groups, and their committed offsets.
    pub groups: usize,
    pub committed_offsets: usize,
    /// What keeps it from being imported. Nothing was written if there are any.
    pub problems: Vec<Problem>,
}

/// A topic of it.
#[derive(Debug, Clone, Serialize)]
pub struct TopicReport {
    pub name: String,
    /// As Kafka's tools show it.
    pub topic_id: String,
    /// Kafka's files did not say the id (no `partition.metadata`), so it is a new one, made of the cluster's id and the
    /// topic's name.
    pub has_new_topic_id: bool,
    /// Configs as they are set in kaas.
    pub configs: BTreeMap<String, String>,
    /// Configs that Kafka had and that are left behind.
    pub configs_not_carried: Vec<ConfigReport>,
    pub partitions: Vec<PartitionReport>,
}

/// A config that is left behind.
#[derive(Debug, Clone, Serialize)]
pub struct ConfigReport {
    pub name: String,
    pub value: String,
    /// Why.
    pub reason: String,
}

impl ConfigReport {
    pub(super) fn new((name, value): (String, String)) -> Self {
        let reason = match topic_definition(&name) {
            None => "kaas does not know it",
            Some(definition) => match Value::parse(definition, &value) {
                Err(ConfigError::Unsupported { reason, .. }) => reason,
                _ => definition.effect.note().unwrap_or("kaas does so anyway"),
            },
        };
        Self { name, value, reason: reason.to_owned() }
    }
}

/// The cluster id of a data directory that had one before the import.
#[derive(Debug, Clone, Serialize)]
pub struct ClusterIdReport {
    /// Kafka's, which is not carried over.
    pub kafka: String,
    /// The data directory's, which stays.
    pub kept: String,
}

/// A partition of it.
#[derive(Debug, Clone, Serialize)]
pub struct PartitionReport {
    pub partition: u32,
    pub log_start_offset: i64,
    /// The offset that the next record gets.
    pub log_end_offset: i64,
    pub segments: usize,
    pub batches: u64,
    pub records: u64,
    pub bytes: u64,
    /// Kafka's highest leader epoch; those of kaas begin above it.
    pub highest_leader_epoch: u32,
    /// Idempotent producers whose retries are still recognised.
    pub producers: usize,
    /// What a crash of Kafka left unfinished, and was cut off: from this offset on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<CutReport>,
}

/// An unfinished tail.
#[derive(Debug, Clone, Serialize)]
pub struct CutReport {
    pub offset: i64,
    pub bytes: u64,
    pub reason: String,
}

impl PartitionReport {
    fn new(partition: u32, read: &ReadPartition) -> Self {
        Self {
            partition,
            log_start_offset: read.log_start.0,
            log_end_offset: read.end.0,
            segments: read.segments.len(),
            batches: read.segments.iter().map(|segment| segment.batches).sum(),
            records: read.segments.iter().map(|segment| segment.records).sum(),
            bytes: read.segments.iter().map(|segment| segment.bytes).sum(),
            highest_leader_epoch: read.highest_epoch,
            producers: read.producers.len(),
            cut: read.cut.as_ref().map(|cut| CutReport {
                offset: cut.at.0,
                bytes: cut.bytes,
                reason: cut.reason.clone(),
            }),
        }
    }
}

impl Report {
    pub(super) fn new(passed_over: Vec<PathBuf>, has_metadata: bool) -> Self {
        Self { format: 1, passed_over, has_metadata, ..Self::default() }
    }

    pub(super) fn add(&mut self, topic: &PlannedTopic) {
        let partitions: Vec<_> = topic
            .partitions
            .iter()
            .map(|(source, read)| PartitionReport::new(source.partition, read))
            .collect();
        self.partitions += partitions.len();
        self.records += partitions.iter().map(|partition| partition.records).sum::<u64>();
        self.bytes += partitions.iter().map(|partition| partition.bytes).sum::<u64>();
        self.topics.push(TopicReport {
            name: topic.name.clone(),
            topic_id: URL_SAFE_NO_PAD.encode(topic.id),
            has_new_topic_id: topic.has_new_id,
            configs: topic.configs.clone(),
            configs_not_carried: topic.not_carried.clone(),
            partitions,
        });
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let mut line = |words: String| {
            let _ = writeln!(text, "{words}");
        };
        let width = self.topics.iter().map(|topic| topic.name.len()).max().unwrap_or(0).max(5);
        if !self.topics.is_empty() {
            line(format!("{:width$}  {:>10}  {:>12}  {:>16}", "topic", "partitions", "records", "bytes"));
        }
        for topic in &self.topics {
            let records: u64 = topic.partitions.iter().map(|partition| partition.records).sum();
            let bytes: u64 = topic.partitions.iter().map(|partition| partition.bytes).sum();
            line(format!(
                "{:width$}  {:>10}  {:>12}  {:>16}",
                topic.name,
                topic.partitions.len(),
                grouped(records),
                grouped(bytes)
            ));
            if topic.has_new_topic_id {
                line(format!(
                    "  no topic id in Kafka's files (partition.metadata): it gets {}",
                    topic.topic_id
                ));
            }
            for ConfigReport { name, value, reason } in &topic.configs_not_carried {
                line(format!("  not carried over: {name}={value}: {reason}"));
            }
            for partition in &topic.partitions {
                if let Some(cut) = &partition.cut {
                    line(format!(
                        "  partition {}: cut off at offset {}, {}: {}",
                        partition.partition,
                        cut.offset,
                        counted(cut.bytes, "byte", "bytes"),
                        cut.reason
                    ));
                }
            }
        }
        for name in &self.already_there {
            line(format!("{name}: already there"));
        }
        for path in &self.passed_over {
            line(format!("{}: passed over, Kafka was deleting or moving it", path.display()));
        }
        if !self.has_metadata && !self.topics.is_empty() {
            line("no topic configs: there is no __cluster_metadata-0 here (--config sets them)".to_owned());
        }
        if let Some(ClusterIdReport { kafka, kept }) = &self.cluster_id_left {
            line(format!(
                "Kafka's cluster id {kafka} is not carried over: the data directory has {kept} already; clients see another cluster"
            ));
        }
        for problem in &self.problems {
            line(format!(
                "problem: {}: {}\n  hint: {}",
                problem.path.display(),
                problem.problem,
                problem.hint
            ));
        }
        if self.groups > 0 {
            line(format!(
                "{} with {}",
                counted(self.groups as u64, "group", "groups"),
                counted(self.committed_offsets as u64, "committed offset", "committed offsets")
            ));
        }
        line(match (self.problems.len(), self.is_done) {
            (0, true) => format!(
                "imported: {}, {}, {}",
                counted(self.topics.len() as u64, "topic", "topics"),
                counted(self.partitions as u64, "partition", "partitions"),
                counted(self.records, "record", "records")
            ),
            (0, false) => format!(
                "can be imported: {}, {}, {}, {}",
                counted(self.topics.len() as u64, "topic", "topics"),
                counted(self.partitions as u64, "partition", "partitions"),
                counted(self.records, "record", "records"),
                counted(self.bytes, "byte", "bytes")
            ),
            (count, _) => {
                format!(
                    "cannot be imported, nothing was written: {}",
                    counted(count as u64, "problem", "problems")
                )
            }
        });
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_behind_has_a_reason() {
        let reason = |name: &str, value: &str| ConfigReport::new((name.to_owned(), value.to_owned())).reason;
        assert!(reason("compression.type", "lz4").contains("never compresses again"));
        assert_eq!(reason("compression.type", "producer"), "kaas does so anyway");
        assert!(reason("min.insync.replicas", "2").contains("without replicas"));
        assert_eq!(reason("x.y", "1"), "kaas does not know it");
    }
}
