//! What an import found and did; as JSON by its fields, for people in `text`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kaas_config::{ConfigError, Value, topic_definition};
use serde::Serialize;

use super::read::ReadPartition;
use super::{PlannedTopic, Problem};

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
    /// Topics that Kafka's metadata has, and of which there is no partition in the directories: they are on other brokers, or
    /// in log directories that were not given.
    pub not_here: Vec<String>,
    /// Directories of which nothing is imported.
    pub passed_over: Vec<PassedOver>,
    /// What may be missing, and cannot be told from what retention has removed.
    pub doubts: Vec<Doubt>,
    /// Kafka's cluster id is left behind: the data directory has another one already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_id_left: Option<ClusterIdReport>,
    /// Whether the topics' configs were there to be read.
    pub has_metadata: bool,
    /// Whether the static defaults of Kafka's brokers were there to be read.
    pub has_server_properties: bool,
    /// Defaults of Kafka's brokers that topics are given which have none of their own.
    pub broker_defaults: Vec<DefaultReport>,
    /// Defaults of Kafka's brokers that are left behind, by the names that they have there.
    pub broker_defaults_not_carried: Vec<ConfigReport>,
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

/// A directory of which nothing is imported.
#[derive(Debug, Clone, Serialize)]
pub struct PassedOver {
    #[serde(serialize_with = "crate::printable::serialize_path")]
    pub path: PathBuf,
    /// Why.
    pub reason: &'static str,
}

/// A partition that may not be whole.
#[derive(Debug, Clone, Serialize)]
pub struct Doubt {
    /// Its directory.
    #[serde(serialize_with = "crate::printable::serialize_path")]
    pub path: PathBuf,
    pub doubt: String,
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

/// A default of Kafka's brokers, as a config of topics.
#[derive(Debug, Clone, Serialize)]
pub struct DefaultReport {
    /// The topic config.
    pub name: String,
    /// In the topic config's unit.
    pub value: String,
    /// The broker config that says it.
    pub broker_config: String,
    /// Where: Kafka's metadata log, or the broker's `server.properties`.
    #[serde(serialize_with = "crate::printable::serialize_path")]
    pub path: PathBuf,
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
    /// Up to here Kafka has compacted it, so that kaas need not begin anew; none if it never was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_dirty_offset: Option<i64>,
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
            first_dirty_offset: read.first_dirty.map(|offset| offset.0),
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
    pub(super) fn new(passed_over: Vec<PassedOver>, has_metadata: bool, has_server_properties: bool) -> Self {
        Self { format: 1, passed_over, has_metadata, has_server_properties, ..Self::default() }
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
