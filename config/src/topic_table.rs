//! Every topic config of Kafka, 3.7 and 4.x, and the broker configs that give each its default.
//!
//! Where the versions differ: defaults are those of 4.x, limits the wider ones of 3.7, and the names that 4.x
//! dropped are still understood. The one default of kaas's own is `flush.messages`: 1, since an acknowledged record
//! is on the volume here.

use super::definition::ConfigType::{Boolean, Double, Int, List, Long, String};
use super::definition::{Definition, Effect, Importance, Valid};

const MAX: &str = "9223372036854775807";

/// A broker config that is the default of a topic config.
#[derive(Debug, Clone, Copy)]
pub struct BrokerName {
    pub name: &'static str,
    /// One of it is this many of the topic config's.
    pub(super) factor: i64,
}

impl BrokerName {
    /// A value of the broker config as one of the topic config, as text: hours as milliseconds and the like. What is no number,
    /// or no limit (negative), stays as it is.
    pub fn in_topic_units(&self, text: &str) -> std::string::String {
        match text.trim().parse::<i64>() {
            Ok(number) if self.factor != 1 && number >= 0 => number.saturating_mul(self.factor).to_string(),
            _ => text.to_owned(),
        }
    }
}

const fn one(name: &'static str) -> BrokerName {
    BrokerName { name, factor: 1 }
}

const fn times(name: &'static str, factor: i64) -> BrokerName {
    BrokerName { name, factor }
}

const MINUTE: i64 = 60_000;
const HOUR: i64 = 3_600_000;

static BROKER_NAMES: &[(&str, &[BrokerName])] = &[
    ("segment.bytes", &[one("log.segment.bytes")]),
    ("segment.ms", &[one("log.roll.ms"), times("log.roll.hours", HOUR)]),
    ("segment.jitter.ms", &[one("log.roll.jitter.ms"), times("log.roll.jitter.hours", HOUR)]),
    ("segment.index.bytes", &[one("log.index.size.max.bytes")]),
    ("flush.messages", &[one("log.flush.interval.messages")]),
    ("flush.ms", &[one("log.flush.interval.ms"), one("log.flush.scheduler.interval.ms")]),
    ("retention.bytes", &[one("log.retention.bytes")]),
    (
        "retention.ms",
        &[
            one("log.retention.ms"),
            times("log.retention.minutes", MINUTE),
            times("log.retention.hours", HOUR),
        ],
    ),
    ("max.message.bytes", &[one("message.max.bytes")]),
    ("index.interval.bytes", &[one("log.index.interval.bytes")]),
    ("delete.retention.ms", &[one("log.cleaner.delete.retention.ms")]),
    ("min.compaction.lag.ms", &[one("log.cleaner.min.compaction.lag.ms")]),
    ("max.compaction.lag.ms", &[one("log.cleaner.max.compaction.lag.ms")]),
    ("file.delete.delay.ms", &[one("log.segment.delete.delay.ms")]),
    ("min.cleanable.dirty.ratio", &[one("log.cleaner.min.cleanable.ratio")]),
    ("cleanup.policy", &[one("log.cleanup.policy")]),
    ("unclean.leader.election.enable", &[one("unclean.leader.election.enable")]),
    ("min.insync.replicas", &[one("min.insync.replicas")]),
    ("compression.type", &[one("compression.type")]),
    ("compression.gzip.level", &[one("compression.gzip.level")]),
    ("compression.lz4.level", &[one("compression.lz4.level")]),
    ("compression.zstd.level", &[one("compression.zstd.level")]),
    ("preallocate", &[one("log.preallocate")]),
    ("message.format.version", &[one("log.message.format.version")]),
    ("message.timestamp.type", &[one("log.message.timestamp.type")]),
    ("message.timestamp.difference.max.ms", &[one("log.message.timestamp.difference.max.ms")]),
    ("message.timestamp.before.max.ms", &[one("log.message.timestamp.before.max.ms")]),
    ("message.timestamp.after.max.ms", &[one("log.message.timestamp.after.max.ms")]),
    ("message.downconversion.enable", &[one("log.message.downconversion.enable")]),
    ("local.retention.ms", &[one("log.local.retention.ms")]),
    ("local.retention.bytes", &[one("log.local.retention.bytes")]),
];

/// The broker configs behind a topic config; the first one that is set wins. None for the configs that only
/// topics have.
pub fn broker_names(topic_config: &str) -> &'static [BrokerName] {
    BROKER_NAMES.iter().find(|(name, _)| *name == topic_config).map_or(&[], |(_, names)| *names)
}

/// The topic config of this name.
pub fn topic_definition(name: &str) -> Option<&'static Definition> {
    TOPIC.iter().find(|definition| definition.name == name)
}

/// Every topic config, in the order of Kafka's documentation.
pub fn topic_definitions() -> &'static [Definition] {
    TOPIC
}

static TOPIC: &[Definition] = &[
    Definition::topic(
        "cleanup.policy",
        List,
        "delete",
        Valid::ListOf(&["compact", "delete"]),
        Effect::Acts,
        "What happens to segments behind the retention limits. \"delete\" removes them, \"compact\" keeps the last record of each key, both together do both; an empty list keeps everything.",
    ),
    Definition::topic(
        "compression.type",
        String,
        "producer",
        Valid::OneOf(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]),
        Effect::Acts,
        "How batches are stored. \"producer\" keeps the compression that the producer chose.",
    ),
    Definition::topic(
        "compression.gzip.level",
        Int,
        "-1",
        Valid::BetweenOr(1, 9, -1),
        Effect::Recompression,
        "The level at which the broker compresses with gzip.",
    ),
    Definition::topic(
        "compression.lz4.level",
        Int,
        "9",
        Valid::Between(1, 17),
        Effect::Recompression,
        "The level at which the broker compresses with lz4.",
    ),
    Definition::topic(
        "compression.zstd.level",
        Int,
        "3",
        Valid::Between(-131_072, 22),
        Effect::Recompression,
        "The level at which the broker compresses with zstd.",
    ),
    Definition::topic(
        "delete.retention.ms",
        Long,
        "86400000",
        Valid::AtLeast(0),
        Effect::Compaction,
        "How long in milliseconds a delete marker (tombstone) stays readable, so that a consumer that starts at the beginning sees it.",
    ),
    Definition::topic(
        "file.delete.delay.ms",
        Long,
        "60000",
        Valid::AtLeast(0),
        Effect::AtOnce,
        "How long in milliseconds the files of a removed segment stay on the volume before they are deleted.",
    ),
    Definition::topic(
        "flush.messages",
        Long,
        "1",
        Valid::AtLeast(1),
        Effect::Acts,
        "How many records may be acknowledged before the log is synced to stable storage. At 1 every acknowledged record is on stable storage; above 1 a crash of the host may lose up to that many. On a volume that several hosts share every commit is synced.",
    ),
    Definition::topic(
        "flush.ms",
        Long,
        MAX,
        Valid::AtLeast(0),
        Effect::Acts,
        "How long in milliseconds a record may be acknowledged before it is synced to stable storage. Matters only where flush.messages is above 1, on a volume of one host.",
    ),
    Definition::topic(
        "follower.replication.throttled.replicas",
        List,
        "",
        Valid::ThrottledReplicas,
        Effect::Replicas,
        "Replicas whose catching up is throttled on the follower's side, as partition:broker pairs, or \"*\" for all.",
    ),
    Definition::topic(
        "index.interval.bytes",
        Int,
        "4096",
        Valid::AtLeast(0),
        Effect::Acts,
        "How many bytes of records lie between two entries of the offset index. Smaller makes the index larger and finding an offset faster.",
    ),
    Definition::topic(
        "leader.replication.throttled.replicas",
        List,
        "",
        Valid::ThrottledReplicas,
        Effect::Replicas,
        "Replicas whose catching up is throttled on the leader's side, as partition:broker pairs, or \"*\" for all.",
    ),
    Definition::topic(
        "local.retention.bytes",
        Long,
        "-2",
        Valid::AtLeast(-2),
        Effect::TieredStorage,
        "How many bytes of a partition stay on local storage before they live in remote storage only; -2 means as retention.bytes.",
    ),
    Definition::topic(
        "local.retention.ms",
        Long,
        "-2",
        Valid::AtLeast(-2),
        Effect::TieredStorage,
        "How long in milliseconds a segment stays on local storage before it lives in remote storage only; -2 means as retention.ms.",
    ),
    Definition::topic(
        "max.compaction.lag.ms",
        Long,
        MAX,
        Valid::AtLeast(1),
        Effect::Compaction,
        "How long in milliseconds a record may at most stay uncompacted.",
    ),
    Definition::topic(
        "max.message.bytes",
        Int,
        "1048588",
        Valid::AtLeast(0),
        Effect::Acts,
        "The largest record batch in bytes that is accepted, after compression.",
    ),
    Definition::topic(
        "message.downconversion.enable",
        Boolean,
        "true",
        Valid::Any,
        Effect::OldFormats,
        "Whether records are converted for consumers that need an older record format.",
    )
    .importance(Importance::Low),
    Definition::topic(
        "message.format.version",
        String,
        "3.0-IV1",
        Valid::KafkaVersion,
        Effect::OldFormats,
        "Deprecated. The Kafka version whose record format is written; every version from 0.11 on means format v2.",
    ),
    Definition::topic(
        "message.timestamp.after.max.ms",
        Long,
        "3600000",
        Valid::AtLeast(0),
        Effect::Acts,
        "How far in milliseconds a record's timestamp may lie ahead of the broker's clock; a batch that is further ahead is refused. Does not apply with LogAppendTime.",
    ),
    Definition::topic(
        "message.timestamp.before.max.ms",
        Long,
        MAX,
        Valid::AtLeast(0),
        Effect::Acts,
        "How far in milliseconds a record's timestamp may lie behind the broker's clock; a batch that is further behind is refused. Does not apply with LogAppendTime.",
    ),
    Definition::topic(
        "message.timestamp.difference.max.ms",
        Long,
        MAX,
        Valid::AtLeast(0),
        Effect::Acts,
        "Deprecated. Where it is set, it stands for message.timestamp.before.max.ms and message.timestamp.after.max.ms, each unless that one is set itself.",
    ),
    Definition::topic(
        "message.timestamp.type",
        String,
        "CreateTime",
        Valid::OneOf(&["CreateTime", "LogAppendTime"]),
        Effect::Acts,
        "Whether a record carries the producer's timestamp (CreateTime) or that of the broker's clock when it was appended (LogAppendTime).",
    ),
    Definition::topic(
        "min.cleanable.dirty.ratio",
        Double,
        "0.5",
        Valid::Ratio,
        Effect::Compaction,
        "How large the uncompacted share of the log has to be before the log is compacted, from 0 to 1.",
    ),
    Definition::topic(
        "min.compaction.lag.ms",
        Long,
        "0",
        Valid::AtLeast(0),
        Effect::Compaction,
        "How long in milliseconds a record stays uncompacted at least.",
    ),
    Definition::topic(
        "min.insync.replicas",
        Int,
        "1",
        Valid::AtLeast(1),
        Effect::Replicas,
        "How many replicas have to have a record before a producer with acks=all is answered.",
    ),
    Definition::topic(
        "preallocate",
        Boolean,
        "false",
        Valid::Any,
        Effect::Acts,
        "Whether the file of a new segment is given its full size at once.",
    ),
    Definition::topic(
        "remote.log.copy.disable",
        Boolean,
        "false",
        Valid::Any,
        Effect::TieredStorage,
        "Whether segments are no longer copied to remote storage.",
    ),
    Definition::topic(
        "remote.log.delete.on.disable",
        Boolean,
        "false",
        Valid::Any,
        Effect::TieredStorage,
        "Whether what is in remote storage is deleted when tiered storage is switched off for the topic.",
    ),
    Definition::topic(
        "remote.storage.enable",
        Boolean,
        "false",
        Valid::Any,
        Effect::TieredStorage,
        "Whether the topic uses tiered storage.",
    ),
    Definition::topic(
        "retention.bytes",
        Long,
        "-1",
        Valid::Any,
        Effect::Acts,
        "How large a partition may grow in bytes before its oldest segments are removed, with the cleanup policy \"delete\". A negative number means no limit.",
    ),
    Definition::topic(
        "retention.ms",
        Long,
        "604800000",
        Valid::AtLeast(-1),
        Effect::Acts,
        "How long in milliseconds records are kept at least, with the cleanup policy \"delete\"; a segment is removed when its newest record is older. -1 means no limit.",
    ),
    Definition::topic(
        "segment.bytes",
        Int,
        "1073741824",
        Valid::AtLeast(14),
        Effect::Acts,
        "The size in bytes at which a new segment is begun. Retention works on whole segments.",
    ),
    Definition::topic(
        "segment.index.bytes",
        Int,
        "10485760",
        Valid::AtLeast(4),
        Effect::Acts,
        "The largest size in bytes of a segment's offset index; a full index begins a new segment.",
    ),
    Definition::topic(
        "segment.jitter.ms",
        Long,
        "0",
        Valid::AtLeast(0),
        Effect::Acts,
        "The largest random time in milliseconds that a segment begins before segment.ms is over, so that not all partitions do so at once.",
    ),
    Definition::topic(
        "segment.ms",
        Long,
        "604800000",
        Valid::AtLeast(1),
        Effect::Acts,
        "The age in milliseconds at which a new segment is begun, full or not, so that retention can remove the old one.",
    ),
    Definition::topic(
        "unclean.leader.election.enable",
        Boolean,
        "false",
        Valid::Any,
        Effect::Replicas,
        "Whether a replica that is not in sync may become the leader when no other is left.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_of_a_broker_are_milliseconds_of_a_topic() {
        let names = broker_names("retention.ms");
        let converted: Vec<_> = names
            .iter()
            .map(|name| (name.name, name.in_topic_units(" 2 "), name.in_topic_units("-1")))
            .collect();
        let expected = [
            ("log.retention.ms", " 2 ", "-1"),
            ("log.retention.minutes", "120000", "-1"),
            ("log.retention.hours", "7200000", "-1"),
        ];
        assert_eq!(converted, expected.map(|(name, two, none)| (name, two.to_owned(), none.to_owned())));
        assert_eq!(names[2].in_topic_units("soon"), "soon");
        assert_eq!(names[2].in_topic_units("9223372036854775807"), "9223372036854775807");
    }
}
