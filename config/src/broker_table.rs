//! Every broker config that kaas has.
//!
//! The configs behind topic configs (`log.*` and others) are derived from the topic table, so that the two cannot
//! disagree.

use std::borrow::Cow;
use std::sync::LazyLock;

use super::definition::ConfigType::{Boolean, Double, Int, List, Long, String};
use super::definition::{Definition, Effect, Importance, Valid};
use super::topic_table::{BrokerName, broker_names, topic_definitions};

/// The broker config of this name.
pub fn broker_definition(name: &str) -> Option<&'static Definition> {
    broker_definitions().iter().find(|definition| definition.name == name)
}

/// Every broker config, in the order of their names.
pub fn broker_definitions() -> &'static [Definition] {
    static ALL: LazyLock<Vec<Definition>> = LazyLock::new(|| {
        let mut all = OWN.to_vec();
        for topic in topic_definitions() {
            let names = broker_names(topic.name);
            for (position, name) in names.iter().enumerate() {
                all.push(derived(topic, name, position, names));
            }
        }
        all.sort_by_key(|definition| definition.name);
        all
    });
    &ALL
}

/// All names of the broker config that `name` belongs to, in the order in which they win.
pub(super) fn synonyms_of(name: &str) -> Vec<&'static str> {
    topic_definitions()
        .iter()
        .map(|topic| broker_names(topic.name))
        .find(|names| names.iter().any(|candidate| candidate.name == name))
        .map(|names| names.iter().map(|candidate| candidate.name).collect())
        .unwrap_or_else(|| broker_definition(name).map(|definition| definition.name).into_iter().collect())
}

/// The broker config that is the topic config's default under the name at `position` of `names`.
fn derived(topic: &Definition, name: &BrokerName, position: usize, names: &[BrokerName]) -> Definition {
    let is_last = position + 1 == names.len();
    let retention_time = topic.name == "retention.ms";
    let (kind, default, valid) = match name.name {
        "log.roll.hours" => (Int, Some("168"), Valid::AtLeast(1)),
        "log.roll.jitter.hours" => (Int, Some("0"), Valid::AtLeast(0)),
        "log.retention.hours" => (Int, Some("168"), Valid::UnlimitedOrAtLeastOne),
        "log.retention.minutes" => (Int, None, Valid::UnlimitedOrAtLeastOne),
        _ if retention_time => (topic.kind, None, Valid::UnlimitedOrAtLeastOne),
        _ if is_last => (topic.kind, topic.default, topic.valid),
        _ => (topic.kind, None, topic.valid),
    };
    let unit = match name.factor {
        1 => "",
        60_000 => ", in minutes",
        _ => ", in hours",
    };
    let rank = match names.get(position.wrapping_sub(1)) {
        Some(stronger) => format!(" Counts only where {} is not set.", stronger.name),
        None => std::string::String::new(),
    };
    Definition {
        name: name.name,
        kind,
        default,
        valid,
        importance: if topic.importance == Importance::Low { Importance::Low } else { Importance::High },
        effect: topic.effect,
        dynamic: position == 0 && topic.name != "message.format.version",
        summary: Cow::Owned(format!(
            "The default of the topic config {}{unit}.{rank} {}",
            topic.name, topic.summary
        )),
    }
}

static OWN: &[Definition] = &[
    Definition::fixed(
        "advertised.listeners",
        String,
        None,
        Valid::Any,
        "Where clients are told to connect, if not where the broker listens.",
    ),
    Definition::fixed(
        "auto.create.topics.enable",
        Boolean,
        Some("true"),
        Valid::Any,
        "Whether a topic that a producer or consumer names is created if it does not exist.",
    ),
    Definition::fixed(
        "broker.id",
        Int,
        Some("1"),
        Valid::AtLeast(0),
        "The id of this broker; the older name of node.id.",
    ),
    Definition::fixed(
        "broker.rack",
        String,
        None,
        Valid::Any,
        "The rack or zone of this broker, as clients are told.",
    )
    .importance(Importance::Medium),
    Definition::fixed(
        "connections.max.idle.ms",
        Long,
        Some("600000"),
        Valid::UnlimitedOrAtLeastOne,
        "How long in milliseconds a connection may be idle before it is closed; -1 means for ever.",
    )
    .importance(Importance::Medium),
    Definition::fixed(
        "default.replication.factor",
        Int,
        Some("1"),
        Valid::AtLeast(1),
        "The replication factor of topics that are created without one.",
    )
    .importance(Importance::Medium)
    .effect(Effect::Replicas),
    Definition::fixed(
        "delete.topic.enable",
        Boolean,
        Some("true"),
        Valid::Any,
        "Whether topics can be deleted.",
    ),
    Definition::fixed(
        "fetch.max.bytes",
        Int,
        Some("57671680"),
        Valid::AtLeast(1024),
        "The most bytes that the answer to one fetch request holds, one whole batch always being allowed.",
    )
    .importance(Importance::Medium),
    Definition::fixed(
        "follower.replication.throttled.rate",
        Long,
        Some("9223372036854775807"),
        Valid::AtLeast(0),
        "The rate in bytes a second to which catching up is throttled on the follower's side.",
    )
    .importance(Importance::Medium)
    .effect(Effect::Replicas)
    .dynamic(),
    Definition::fixed(
        "group.initial.rebalance.delay.ms",
        Int,
        Some("3000"),
        Valid::AtLeast(0),
        "How long in milliseconds the first rebalance of a new group waits for more members.",
    )
    .importance(Importance::Medium),
    Definition::fixed(
        "group.max.session.timeout.ms",
        Int,
        Some("1800000"),
        Valid::AtLeast(1),
        "The longest session timeout in milliseconds that a member of a group may ask for.",
    )
    .importance(Importance::Medium),
    Definition::fixed(
        "group.max.size",
        Int,
        Some("2147483647"),
        Valid::AtLeast(1),
        "The most members that a group may have.",
    )
    .importance(Importance::Medium),
    Definition::fixed(
        "group.min.session.timeout.ms",
        Int,
        Some("6000"),
        Valid::AtLeast(1),
        "The shortest session timeout in milliseconds that a member of a group may ask for.",
    )
    .importance(Importance::Medium),
    Definition::fixed(
        "leader.replication.throttled.rate",
        Long,
        Some("9223372036854775807"),
        Valid::AtLeast(0),
        "The rate in bytes a second to which catching up is throttled on the leader's side.",
    )
    .importance(Importance::Medium)
    .effect(Effect::Replicas)
    .dynamic(),
    Definition::fixed(
        "listeners",
        List,
        Some("PLAINTEXT://localhost:9092"),
        Valid::Any,
        "Where the broker listens, as name://host:port.",
    ),
    Definition::fixed(
        "log.cleaner.backoff.ms",
        Long,
        Some("15000"),
        Valid::AtLeast(0),
        "How long in milliseconds the cleaner waits before it looks again whether a log is to be compacted, when none was.",
    )
    .importance(Importance::Medium)
    .effect(Effect::Compaction)
    .dynamic(),
    Definition::fixed(
        "log.cleaner.dedupe.buffer.size",
        Long,
        Some("134217728"),
        Valid::AtLeast(1_048_576),
        "The bytes of memory that all cleaner threads together have for the keys of the logs that they compact; a key takes 24 bytes, and a fifth is left for growing. More keys take more rounds. 1 MiB a thread at least.",
    )
    .importance(Importance::Medium)
    .effect(Effect::Compaction),
    Definition::fixed(
        "log.cleaner.enable",
        Boolean,
        Some("true"),
        Valid::Any,
        "Whether logs are compacted at all.",
    )
    .importance(Importance::Medium)
    .effect(Effect::Compaction),
    Definition::fixed(
        "log.cleaner.io.buffer.load.factor",
        Double,
        Some("0.9"),
        Valid::Share,
        "How full the memory for keys may become, as a share. A higher one takes more keys and more time for each.",
    )
    .importance(Importance::Medium)
    .effect(Effect::Compaction),
    Definition::fixed(
        "log.cleaner.io.buffer.size",
        Int,
        Some("524288"),
        Valid::AtLeast(0),
        "The bytes of memory that all cleaner threads together have for reading and writing; 8 KiB a thread at least, and whatever the largest batch takes.",
    )
    .importance(Importance::Medium)
    .effect(Effect::Compaction),
    Definition::fixed(
        "log.cleaner.io.max.bytes.per.second",
        Double,
        Some("1.7976931348623157E308"),
        Valid::Positive,
        "The rate in bytes a second at which all cleaner threads together read and write.",
    )
    .importance(Importance::Medium)
    .effect(Effect::Compaction),
    Definition::fixed(
        "log.cleaner.threads",
        Int,
        Some("1"),
        Valid::AtLeast(1),
        "How many logs are compacted at once.",
    )
    .importance(Importance::Medium)
    .effect(Effect::Compaction),
    Definition::fixed(
        "log.dirs",
        List,
        Some("./kaas-data"),
        Valid::Any,
        "The data directory; kaas has exactly one.",
    ),
    Definition::fixed(
        "log.retention.check.interval.ms",
        Long,
        Some("300000"),
        Valid::AtLeast(1),
        "How often in milliseconds retention and the age of segments are looked at.",
    )
    .importance(Importance::Medium),
    Definition::fixed(
        "max.connections",
        Int,
        Some("2147483647"),
        Valid::AtLeast(0),
        "The most connections that are open at once; more wait until one is closed.",
    )
    .importance(Importance::Medium)
    .dynamic(),
    Definition::fixed(
        "max.connections.per.ip",
        Int,
        Some("2147483647"),
        Valid::AtLeast(0),
        "The most connections that one address may have open at once; more are closed as they come.",
    )
    .importance(Importance::Medium)
    .dynamic(),
    Definition::fixed(
        "max.incremental.fetch.session.cache.slots",
        Int,
        Some("1000"),
        Valid::AtLeast(0),
        "How many incremental fetch sessions are kept.",
    )
    .importance(Importance::Medium),
    Definition::fixed("node.id", Int, Some("1"), Valid::AtLeast(0), "The id of this broker in its cluster."),
    Definition::fixed(
        "num.io.threads",
        Int,
        Some("8"),
        Valid::AtLeast(1),
        "How many threads make blocking calls on the volume.",
    ),
    Definition::fixed(
        "num.partitions",
        Int,
        Some("1"),
        Valid::AtLeast(1),
        "How many partitions a topic has that is created without a number.",
    )
    .importance(Importance::Medium),
    Definition::fixed(
        "offset.metadata.max.bytes",
        Int,
        Some("4096"),
        Valid::AtLeast(0),
        "The most bytes of metadata that may be committed with an offset.",
    ),
    Definition::fixed(
        "offsets.retention.check.interval.ms",
        Long,
        Some("600000"),
        Valid::AtLeast(1),
        "How often in milliseconds committed offsets are checked for their age.",
    ),
    Definition::fixed(
        "offsets.retention.minutes",
        Int,
        Some("10080"),
        Valid::AtLeast(1),
        "How long in minutes committed offsets are kept after their group has become empty.",
    ),
    Definition::fixed(
        "producer.id.expiration.ms",
        Int,
        Some("86400000"),
        Valid::AtLeast(1),
        "How long in milliseconds a partition remembers an idempotent producer after its last batch.",
    )
    .importance(Importance::Low),
    Definition::fixed(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        Long,
        Some("9223372036854775807"),
        Valid::AtLeast(0),
        "The rate in bytes a second at which replicas move between directories.",
    )
    .importance(Importance::Medium)
    .effect(Effect::Replicas)
    .dynamic(),
    Definition::fixed(
        "socket.request.max.bytes",
        Int,
        Some("104857600"),
        Valid::AtLeast(1),
        "The largest request in bytes that is read.",
    ),
];
