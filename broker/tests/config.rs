//! Configs as clients see them: what is accepted, what it comes to, how it is described and changed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use kaas_broker::config::alter::{self, Alteration, Operation};
use kaas_broker::config::{
    BrokerConfigs, ConfigEntry, ConfigError, ConfigMap, ConfigSource, ConfigType, DescribeOptions, Effect,
    TimestampType, TopicConfigs, broker_definition, broker_definitions, describe_all_brokers,
    describe_broker, describe_topic, topic_definition, topic_definitions,
};

const EVERYTHING: DescribeOptions<'static> =
    DescribeOptions { names: None, synonyms: true, documentation: true };

fn map(pairs: &[(&str, &str)]) -> ConfigMap {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn broker(fixed: &[(&str, &str)]) -> BrokerConfigs {
    BrokerConfigs::new(0, map(fixed)).unwrap()
}

fn check(pairs: &[(&str, &str)]) -> Result<TopicConfigs, ConfigError> {
    TopicConfigs::validate(&map(pairs), &broker(&[]))
}

fn find<'a>(entries: &'a [ConfigEntry], name: &str) -> &'a ConfigEntry {
    entries.iter().find(|entry| entry.name == name).unwrap_or_else(|| panic!("{name} is described"))
}

/// Kafka's topic configs, 3.7 and 4.x.
const KAFKA: [&str; 36] = [
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.downconversion.enable",
    "message.format.version",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.difference.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
];

#[test]
fn every_topic_config_of_kafka_is_known_and_its_default_is_valid() {
    let mut names: Vec<_> = topic_definitions().iter().map(|definition| definition.name).collect();
    names.sort_unstable();
    assert_eq!(names, KAFKA);
    let all: ConfigMap = topic_definitions()
        .iter()
        .map(|definition| (definition.name.to_owned(), definition.default.unwrap().to_owned()))
        .collect();
    let explicit = TopicConfigs::validate(&all, &broker(&[])).unwrap();
    // Setting every config to its default changes nothing, but that the older common timestamp limit is now set;
    // the two newer ones are too, and win.
    assert_eq!(explicit, check(&[]).unwrap());
    for definition in topic_definitions().iter().chain(broker_definitions()) {
        let text = definition.documentation();
        assert!(text.len() > 20 && text.ends_with('.'), "{}: {text}", definition.name);
        if definition.effect == Effect::Replicas {
            assert!(text.contains("No effect without replicas"), "{}: {text}", definition.name);
        }
    }
}

#[test]
fn defaults_come_to_kafkas_values_but_for_the_sync() {
    let config = check(&[]).unwrap().effective().clone();
    assert!(config.cleanup_delete && !config.cleanup_compact);
    assert_eq!(config.flush_messages, 1);
    assert_eq!(config.flush_ms, i64::MAX as u64);
    assert_eq!(config.retention_ms, Some(7 * 24 * 3_600_000));
    assert_eq!(config.retention_bytes, None);
    assert_eq!(config.segment_bytes, 1 << 30);
    assert_eq!(config.segment_ms, 7 * 24 * 3_600_000);
    assert_eq!(config.segment_jitter_ms, 0);
    assert_eq!(config.segment_index_bytes, 10 << 20);
    assert_eq!(config.index_interval_bytes, 4096);
    assert_eq!(config.max_message_bytes, 1_048_588);
    assert_eq!(config.timestamp_type, TimestampType::CreateTime);
    assert_eq!(config.timestamp_before_max_ms, i64::MAX as u64);
    assert_eq!(config.timestamp_after_max_ms, 3_600_000);
}

#[test]
fn invalid_topic_configs_are_refused_in_kafkas_words() {
    let refused = |name: &str, value: &str| check(&[(name, value)]).unwrap_err().to_string();
    assert_eq!(refused("retention.m", "1"), "Unknown topic config name: retention.m");
    assert_eq!(
        refused("retention.ms", "soon"),
        "Invalid value soon for configuration retention.ms: Not a number of type LONG"
    );
    assert_eq!(
        refused("segment.bytes", "2147483648"),
        "Invalid value 2147483648 for configuration segment.bytes: Not a number of type INT"
    );
    assert_eq!(
        refused("retention.ms", "-2"),
        "Invalid value -2 for configuration retention.ms: Value must be at least -1"
    );
    assert_eq!(
        refused("segment.bytes", "13"),
        "Invalid value 13 for configuration segment.bytes: Value must be at least 14"
    );
    assert_eq!(
        refused("preallocate", "yes"),
        "Invalid value yes for configuration preallocate: Expected value to be either true or false"
    );
    assert_eq!(
        refused("message.timestamp.type", "createtime"),
        "Invalid value createtime for configuration message.timestamp.type: String must be one of: CreateTime, LogAppendTime"
    );
    for (name, value, part) in [
        ("cleanup.policy", "delete,purge", "String must be one of: compact, delete"),
        ("compression.type", "brotli", "String must be one of"),
        ("compression.gzip.level", "0", "between 1 and 9 or equal to -1"),
        ("compression.lz4.level", "18", "no more than 17"),
        ("compression.zstd.level", "23", "no more than 22"),
        ("min.cleanable.dirty.ratio", "1.1", "no more than 1"),
        ("min.cleanable.dirty.ratio", "NaN", "Not a number of type DOUBLE"),
        ("min.insync.replicas", "0", "at least 1"),
        ("local.retention.ms", "-3", "at least -2"),
        ("leader.replication.throttled.replicas", "0:1,x", "must be the literal '*' or a list of replicas"),
        ("message.format.version", "new", "is not a valid version"),
    ] {
        assert!(refused(name, value).contains(part), "{}", refused(name, value));
    }
    let conflict = check(&[("min.compaction.lag.ms", "5"), ("max.compaction.lag.ms", "4")]).unwrap_err();
    assert_eq!(
        conflict.to_string(),
        "conflict topic config setting min.compaction.lag.ms (5) > max.compaction.lag.ms (4)"
    );
}

#[test]
fn what_would_be_ignored_is_refused_with_the_reason() {
    for (name, value, part) in [
        ("compression.type", "zstd", "never compresses again"),
        ("preallocate", "true", "does not preallocate"),
        ("remote.storage.enable", "TRUE", "Tiered Storage functionality is disabled"),
        ("message.format.version", "0.10.2", "before v2"),
    ] {
        let error = check(&[(name, value)]).unwrap_err();
        assert!(matches!(error, ConfigError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    let statically = BrokerConfigs::new(0, map(&[("log.preallocate", "true")]));
    assert!(matches!(statically, Err(ConfigError::Unsupported { .. })));
}

#[test]
fn accepted_values_have_their_effect() {
    let base = check(&[]).unwrap();
    // Everything that says it acts, changes what the engine is told.
    for definition in topic_definitions()
        .iter()
        .filter(|definition| matches!(definition.effect, Effect::Acts | Effect::Compaction))
    {
        let value = match definition.name {
            "cleanup.policy" => "",
            "compression.type" | "preallocate" => continue, // Each has one value.
            "message.timestamp.type" => "LogAppendTime",
            "min.cleanable.dirty.ratio" => "0.25",
            _ => " 4097 ",
        };
        let changed = check(&[(definition.name, value)]).unwrap();
        assert_ne!(changed, base, "{} has no effect", definition.name);
    }
    let kept = check(&[("retention.ms", "-1"), ("retention.bytes", "-7"), ("cleanup.policy", "")]).unwrap();
    assert_eq!((kept.effective().retention_ms, kept.effective().retention_bytes), (None, None));
    assert!(!kept.effective().cleanup_delete);
}

#[test]
fn the_older_common_timestamp_limit_yields_to_the_newer_ones() {
    let limits = |pairs: &[(&str, &str)]| {
        let config = check(pairs).unwrap().effective().clone();
        (config.timestamp_before_max_ms, config.timestamp_after_max_ms)
    };
    assert_eq!(limits(&[("message.timestamp.difference.max.ms", "9")]), (9, 9));
    assert_eq!(
        limits(&[("message.timestamp.difference.max.ms", "9"), ("message.timestamp.before.max.ms", "3")]),
        (3, 9)
    );
    let over_broker = TopicConfigs::validate(
        &map(&[("message.timestamp.difference.max.ms", "9")]),
        &broker(&[("log.message.timestamp.after.max.ms", "5")]),
    );
    assert_eq!(over_broker.unwrap().effective().timestamp_after_max_ms, 5);
}

#[test]
fn broker_configs_are_the_defaults_of_topics_in_their_order_and_unit() {
    let retention = |broker: &BrokerConfigs| {
        TopicConfigs::validate(&ConfigMap::new(), broker).unwrap().effective().retention_ms
    };
    let hours = broker(&[("log.retention.hours", "2")]);
    assert_eq!(retention(&hours), Some(7_200_000));
    let minutes = broker(&[("log.retention.hours", "2"), ("log.retention.minutes", "3")]);
    assert_eq!(retention(&minutes), Some(180_000));
    let forever = broker(&[("log.retention.hours", "-1")]);
    assert_eq!(retention(&forever), None);
    let dynamic = minutes.with_overrides(map(&[("log.retention.ms", "77")]), ConfigMap::new()).unwrap();
    assert_eq!(retention(&dynamic), Some(77));
    let own = dynamic
        .with_overrides(map(&[("log.retention.ms", "77")]), map(&[("log.retention.ms", "55")]))
        .unwrap();
    assert_eq!(retention(&own), Some(55));
    assert_eq!(
        TopicConfigs::validate(&map(&[("retention.ms", "11")]), &own).unwrap().effective().retention_ms,
        Some(11)
    );
}

#[test]
fn broker_configs_are_validated_and_only_dynamic_ones_are_changed() {
    let error = |fixed: &[(&str, &str)]| BrokerConfigs::new(0, map(fixed)).unwrap_err().to_string();
    assert_eq!(error(&[("no.such", "1")]), "Unknown broker config name: no.such");
    assert!(error(&[("num.partitions", "0")]).contains("at least 1"));
    assert!(error(&[("log.retention.ms", "0")]).contains("unlimited (-1) or at least 1"));
    assert!(
        error(&[("group.min.session.timeout.ms", "9"), ("group.max.session.timeout.ms", "8")])
            .contains("conflict")
    );

    let base = broker(&[]);
    let dynamic = |name: &str, value: &str| base.with_overrides(map(&[(name, value)]), ConfigMap::new());
    assert_eq!(
        dynamic("log.retention.hours", "3").unwrap_err().to_string(),
        "Cannot update these configs dynamically: log.retention.hours"
    );
    for name in ["num.partitions", "listeners", "socket.request.max.bytes", "log.message.format.version"] {
        assert!(matches!(dynamic(name, "1"), Err(ConfigError::NotDynamic { .. })), "{name}");
    }
    assert!(matches!(dynamic("nope", "1"), Err(ConfigError::UnknownBrokerConfig { .. })));
    assert!(matches!(dynamic("max.connections", "-1"), Err(ConfigError::OutOfRange { .. })));
    let changed = dynamic("max.connections", "5").unwrap().effective().unwrap();
    assert_eq!(changed.max_connections, 5);
    // A broker-wide value that contradicts another one is found, too.
    assert!(matches!(
        dynamic("log.cleaner.max.compaction.lag.ms", "1").unwrap().with_overrides(
            map(&[("log.cleaner.max.compaction.lag.ms", "1"), ("log.cleaner.min.compaction.lag.ms", "2")]),
            ConfigMap::new()
        ),
        Err(ConfigError::Conflict { .. })
    ));
    for (name, value, part) in [
        // No limit is what there is without the config.
        ("log.cleaner.io.max.bytes.per.second", "-1", "above 0"),
        ("log.cleaner.io.max.bytes.per.second", "0", "above 0"),
        ("log.cleaner.io.buffer.load.factor", "0", "above 0"),
        ("log.cleaner.io.buffer.load.factor", "1.5", "no more than 1"),
        ("log.cleaner.threads", "129", "at least 1048576 for each of log.cleaner.threads (129)"),
    ] {
        let error = error(&[(name, value)]);
        assert!(error.contains(part), "{error}");
    }
    for valid in [("log.cleaner.threads", "128"), ("log.cleaner.io.buffer.load.factor", "1")] {
        BrokerConfigs::new(0, map(&[valid])).unwrap();
    }
}

#[test]
fn every_acting_broker_config_reaches_its_typed_view() {
    let base = broker(&[]);
    let elsewhere = ["advertised.listeners", "broker.id", "listeners", "log.dirs", "node.id"];
    for definition in broker_definitions() {
        if definition.effect != Effect::Acts || elsewhere.contains(&definition.name) {
            continue;
        }
        let value = match (definition.name, definition.kind) {
            ("compression.type" | "log.preallocate", _) => continue,
            ("log.cleanup.policy", _) => "",
            ("log.message.timestamp.type", _) => "LogAppendTime",
            (_, ConfigType::Boolean) if definition.default == Some("true") => "false",
            (_, ConfigType::Boolean) => "true",
            (_, ConfigType::String) => "a",
            _ => "7001",
        };
        let changed = broker(&[(definition.name, value)]);
        let topic = |broker: &BrokerConfigs| TopicConfigs::validate(&ConfigMap::new(), broker).unwrap();
        assert!(
            changed.effective().unwrap() != base.effective().unwrap() || topic(&changed) != topic(&base),
            "{} has no effect",
            definition.name
        );
    }
}

#[test]
fn topics_are_described_as_kafka_describes_them() {
    let broker = broker(&[("log.segment.bytes", "1048576")])
        .with_overrides(map(&[("log.segment.bytes", "2097152")]), map(&[("log.segment.bytes", "4194304")]))
        .unwrap();
    let overrides = map(&[("retention.ms", " 1000 "), ("cleanup.policy", " delete ")]);
    let entries = describe_topic(&overrides, &broker, EVERYTHING).unwrap();
    assert_eq!(entries.len(), KAFKA.len());

    let retention = find(&entries, "retention.ms");
    assert_eq!(retention.value.as_deref(), Some("1000"));
    assert_eq!((retention.source, retention.source.code()), (ConfigSource::Topic, 1));
    assert_eq!(retention.kind.code(), 5);
    assert!(!retention.read_only && !retention.sensitive);
    assert!(retention.documentation.as_deref().unwrap().contains("newest record is older"));
    // log.retention.hours has a default, but another name than the first synonym: Kafka drops it.
    assert_eq!(retention.synonyms.len(), 1);
    assert_eq!(retention.synonyms[0].name, "retention.ms");

    let segment = find(&entries, "segment.bytes");
    assert_eq!((segment.value.as_deref(), segment.source), (Some("4194304"), ConfigSource::DynamicBroker));
    let layers: Vec<_> = segment
        .synonyms
        .iter()
        .map(|synonym| (synonym.name, synonym.value.as_deref().unwrap(), synonym.source.code()))
        .collect();
    assert_eq!(
        layers,
        [
            ("log.segment.bytes", "4194304", 2),
            ("log.segment.bytes", "2097152", 3),
            ("log.segment.bytes", "1048576", 4),
            ("log.segment.bytes", "1073741824", 5),
        ]
    );

    assert_eq!(find(&entries, "cleanup.policy").value.as_deref(), Some("delete"));
    assert_eq!(find(&entries, "min.cleanable.dirty.ratio").value.as_deref(), Some("0.5"));
    assert_eq!(find(&entries, "segment.ms").value.as_deref(), Some("604800000"));
    assert_eq!(find(&entries, "segment.ms").source, ConfigSource::Default);
    let replicas = find(&entries, "min.insync.replicas");
    assert!(replicas.documentation.as_deref().unwrap().contains("No effect without replicas"));

    let some = DescribeOptions { names: Some(&["retention.ms", "nope"]), ..Default::default() };
    let entries = describe_topic(&overrides, &broker, some).unwrap();
    assert_eq!(entries.len(), 1);
    assert!(entries[0].synonyms.is_empty() && entries[0].documentation.is_none());
}

#[test]
fn brokers_are_described_as_kafka_describes_them() {
    let broker = BrokerConfigs::new(3, map(&[("num.partitions", "4")]))
        .unwrap()
        .with_overrides(map(&[("max.connections", "9")]), map(&[("message.max.bytes", "10")]))
        .unwrap();
    let entries = describe_broker(&broker, EVERYTHING).unwrap();
    assert_eq!(entries.len(), broker_definitions().len());
    let partitions = find(&entries, "num.partitions");
    assert_eq!((partitions.value.as_deref(), partitions.source.code()), (Some("4"), 4));
    assert!(partitions.read_only);
    assert_eq!(partitions.synonyms.len(), 2);
    let connections = find(&entries, "max.connections");
    assert_eq!((connections.value.as_deref(), connections.source.code()), (Some("9"), 3));
    assert!(!connections.read_only);
    assert_eq!(find(&entries, "message.max.bytes").source.code(), 2);
    assert_eq!(find(&entries, "node.id").value.as_deref(), Some("3"));
    let unset = find(&entries, "log.retention.ms");
    assert_eq!((unset.value.as_deref(), unset.source.code(), unset.synonyms.len()), (None, 5, 0));

    let all = describe_all_brokers(&broker, EVERYTHING).unwrap();
    assert_eq!(all.len(), 1);
    assert_eq!(
        (all[0].name, all[0].value.as_deref(), all[0].source.code()),
        ("max.connections", Some("9"), 3)
    );
    assert_eq!(all[0].synonyms.len(), 1);
}

#[test]
fn increments_are_kafkas() {
    let change = |current: &[(&str, &str)], operation, name: &str, value: Option<&str>| {
        alter::incremental(&map(current), &[Alteration { name, operation, value }], topic_definition)
    };
    assert_eq!(
        change(&[("retention.ms", "1")], Operation::Set, "retention.ms", Some("2")).unwrap(),
        map(&[("retention.ms", "2")])
    );
    assert_eq!(change(&[("retention.ms", "1")], Operation::Delete, "retention.ms", None).unwrap(), map(&[]));
    assert_eq!(change(&[], Operation::Delete, "retention.ms", None).unwrap(), map(&[]));
    // APPEND and SUBTRACT begin at the default.
    assert_eq!(
        change(&[], Operation::Append, "cleanup.policy", Some("compact")).unwrap(),
        map(&[("cleanup.policy", "delete,compact")])
    );
    assert_eq!(
        change(&[], Operation::Append, "cleanup.policy", Some("delete")).unwrap(),
        map(&[("cleanup.policy", "delete")])
    );
    let both = [("cleanup.policy", "delete,compact")];
    assert_eq!(
        change(&both, Operation::Subtract, "cleanup.policy", Some("delete")).unwrap(),
        map(&[("cleanup.policy", "compact")])
    );
    assert_eq!(change(&both, Operation::Subtract, "cleanup.policy", Some("nope")).unwrap(), map(&both));
    assert_eq!(
        change(&[], Operation::Append, "retention.ms", Some("1")).unwrap_err().to_string(),
        "Can't APPEND to key retention.ms because its type is not LIST."
    );
    let null = change(&[], Operation::Set, "retention.ms", None).unwrap_err();
    assert!(
        null.is_request_error() && null.to_string().contains("Null value not supported for : retention.ms")
    );
    let twice = Alteration { name: "retention.ms", operation: Operation::Set, value: Some("1") };
    let error = alter::incremental(&ConfigMap::new(), &[twice, twice], topic_definition).unwrap_err();
    assert!(error.is_request_error() && error.to_string().contains("duplicate config keys"));
    assert!(Operation::from_code(4).unwrap_err().is_request_error());
    // Broker configs with list types work the same.
    let change =
        Alteration { name: "log.cleanup.policy", operation: Operation::Append, value: Some("compact") };
    let next = alter::incremental(&ConfigMap::new(), &[change], broker_definition).unwrap();
    assert_eq!(next, map(&[("log.cleanup.policy", "delete,compact")]));

    assert_eq!(alter::replacement([("a", Some("1"))]).unwrap(), map(&[("a", "1")]));
    assert!(alter::replacement([("a", None)]).unwrap_err().is_request_error());
    assert!(alter::replacement([("a", Some("1")), ("a", Some("2"))]).unwrap_err().is_request_error());
}
