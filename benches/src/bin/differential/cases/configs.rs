//! Configs of topics and brokers: what is accepted, and how it is described.

use kaas_protocol::messages::alter_configs as plain;
use kaas_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig};
use kaas_protocol::messages::describe_configs::DescribeConfigsResource;
use kaas_protocol::messages::incremental_alter_configs as incremental;
use kaas_protocol::{
    AlterConfigsRequest, CreateTopicsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
};

use super::super::side::Side;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;

/// Values of each topic config: good, at the edges, bad.
const VALUES: &[(&str, &[&str])] = &[
    (
        "cleanup.policy",
        &[
            "delete",
            "compact",
            "compact,delete",
            "delete,compact",
            "delete,delete",
            "",
            "nothing",
            "DELETE",
            " delete ",
            "delete,",
        ],
    ),
    ("compression.type", &["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd", "none", "", "GZIP"]),
    ("compression.gzip.level", &["-1", "1", "9", "0", "10", "x"]),
    ("compression.lz4.level", &["9", "1", "17", "0", "18"]),
    ("compression.zstd.level", &["3", "-131072", "22", "-131073", "23", "0"]),
    (
        "delete.retention.ms",
        &["0", "-1", "86400000", "9223372036854775807", "9223372036854775808", "1.5", "", " 5 "],
    ),
    ("file.delete.delay.ms", &["0", "-1", "60000"]),
    ("flush.messages", &["1", "0", "-1", "9223372036854775807"]),
    ("flush.ms", &["0", "-1", "1", "9223372036854775807"]),
    ("follower.replication.throttled.replicas", &["", "*", "0:1,1:2", "none", "1", "a:b", "0:1:2", "0:1,*"]),
    ("leader.replication.throttled.replicas", &["", "*", "0:1,1:2", "x"]),
    ("index.interval.bytes", &["0", "-1", "4096", "2147483647", "2147483648"]),
    ("local.retention.bytes", &["-2", "-3", "-1", "0", "5"]),
    ("local.retention.ms", &["-2", "-3", "-1", "0", "5", "604800001"]),
    ("max.compaction.lag.ms", &["1", "0", "-1", "9223372036854775807"]),
    ("max.message.bytes", &["0", "-1", "1", "2147483647"]),
    ("message.timestamp.after.max.ms", &["0", "-1", "3600000", "9223372036854775807"]),
    ("message.timestamp.before.max.ms", &["0", "-1", "9223372036854775807"]),
    ("message.timestamp.difference.max.ms", &["0", "-1"]),
    ("message.timestamp.type", &["CreateTime", "LogAppendTime", "createtime", "", "x"]),
    ("message.format.version", &["3.0-IV1", "0.10.0", "2.8", "x", ""]),
    ("message.downconversion.enable", &["true", "false", "x"]),
    (
        "min.cleanable.dirty.ratio",
        &["0", "1", "0.5", "-0.1", "1.1", "x", "NaN", "1e-3", "Infinity", "0x1p-1", "0.5f"],
    ),
    ("min.compaction.lag.ms", &["0", "-1", "1"]),
    ("min.insync.replicas", &["1", "0", "-1", "2", "100", "x"]),
    ("preallocate", &["true", "false", "TRUE", "yes", "", "1", " true"]),
    ("remote.storage.enable", &["false", "true"]),
    ("remote.log.copy.disable", &["false", "true"]),
    ("remote.log.delete.on.disable", &["false", "true"]),
    ("retention.bytes", &["-1", "0", "-2", "-100", "9223372036854775807", "x"]),
    ("retention.ms", &["-1", "0", "-2", "1", "9223372036854775807", "1h"]),
    ("segment.bytes", &["14", "13", "1048576", "1048575", "0", "-1", "2147483647", "2147483648"]),
    ("segment.index.bytes", &["4", "3", "0", "-1", "10485760"]),
    ("segment.jitter.ms", &["0", "-1", "9223372036854775807"]),
    ("segment.ms", &["1", "0", "-1", "9223372036854775807"]),
    ("unclean.leader.election.enable", &["true", "false", "x"]),
    ("segment.bytes ", &["1048576"]),
    ("what.is.this", &["x", ""]),
    ("", &["x", ""]),
    ("Retention.ms", &["5"]),
    ("internal.segment.bytes", &["10", "1048576"]),
    ("errors.deadletterqueue.topic.name.enable", &["true"]),
    ("flush.offset.checkpoint.interval.ms", &["60000"]),
];

fn incremental_request(
    kind: i8,
    name: &str,
    changes: &[(&str, i8, Option<&str>)],
    validate_only: bool,
) -> IncrementalAlterConfigsRequest {
    let resource = incremental::AlterConfigsResource {
        resource_type: kind,
        resource_name: name.into(),
        configs: changes
            .iter()
            .map(|(name, config_operation, value)| incremental::AlterableConfig {
                name: (*name).into(),
                config_operation: *config_operation,
                value: value.map(Into::into),
            })
            .collect(),
    };
    IncrementalAlterConfigsRequest { resources: vec![resource], validate_only }
}

fn described(kind: i8, name: &str, keys: Option<&[&str]>) -> DescribeConfigsResource {
    DescribeConfigsResource {
        resource_type: kind,
        resource_name: name.into(),
        configuration_keys: keys.map(|keys| keys.iter().map(|key| (*key).into()).collect()),
    }
}

fn describe_request(
    resources: Vec<DescribeConfigsResource>,
    synonyms: bool,
    documentation: bool,
) -> DescribeConfigsRequest {
    DescribeConfigsRequest { resources, include_synonyms: synonyms, include_documentation: documentation }
}

/// Dynamic configs take a moment to be seen.
fn settle() {
    std::thread::sleep(std::time::Duration::from_millis(150));
}

/// Every value set on a topic, and how it reads back.
pub fn values(side: &mut Side) {
    let name = side.topic("t", 1, &[]);
    for (config, values) in VALUES {
        for value in *values {
            side.note(format!("{config}='{value}'"));
            side.call(1, &incremental_request(TOPIC, &name, &[(config, 0, Some(value))], true));
            side.call(1, &incremental_request(TOPIC, &name, &[(config, 0, Some(value))], false));
            settle();
            side.call(4, &describe_request(vec![described(TOPIC, &name, Some(&[config]))], true, false));
            side.note(format!("{config} deleted"));
            side.call(1, &incremental_request(TOPIC, &name, &[(config, 1, None)], false));
        }
    }
}

/// Every value in CreateTopics.
pub fn create_with(side: &mut Side) {
    let mut number = 0;
    for (config, values) in VALUES {
        for value in *values {
            number += 1;
            let configs = vec![CreatableTopicConfig { name: (*config).into(), value: Some((*value).into()) }];
            let name = side.name(&format!("t{number}"));
            let topic = CreatableTopic {
                name: name.as_str().into(),
                num_partitions: 1,
                replication_factor: 1,
                configs,
                ..Default::default()
            };
            side.note(format!("{config}='{value}'"));
            side.call(
                7,
                &CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, validate_only: true },
            );
        }
    }
    let pairs: &[&[(&str, &str)]] = &[
        &[("segment.ms", "1000"), ("segment.jitter.ms", "2000")],
        &[("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "5")],
        &[("local.retention.ms", "10"), ("retention.ms", "5")],
        &[("local.retention.bytes", "10"), ("retention.bytes", "5")],
        &[("segment.bytes", "1048576"), ("segment.index.bytes", "4")],
        &[("retention.bytes", "5"), ("local.retention.bytes", "-1")],
    ];
    for (index, pair) in pairs.iter().enumerate() {
        let configs = pair
            .iter()
            .map(|(name, value)| CreatableTopicConfig { name: (*name).into(), value: Some((*value).into()) });
        let name = side.name(&format!("p{index}"));
        let topic = CreatableTopic {
            name: name.as_str().into(),
            num_partitions: 1,
            replication_factor: 1,
            configs: configs.collect(),
            ..Default::default()
        };
        side.note(format!("{pair:?}"));
        side.call(7, &CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, validate_only: true });
    }
}

pub fn describe_topic(side: &mut Side) {
    let name = side.topic("t", 1, &[("retention.ms", "5000"), ("max.message.bytes", "2000")]);
    let other = side.topic("u", 1, &[]);
    settle();
    for synonyms in [false, true] {
        for documentation in [false, true] {
            side.note(format!("synonyms {synonyms} documentation {documentation}"));
            for version in side.versions::<DescribeConfigsRequest>() {
                let request = describe_request(
                    vec![described(TOPIC, &name, None)],
                    synonyms,
                    documentation && version >= 3,
                );
                let Some(mut response) = side.ask(version, &request) else { continue };
                side.present_documentation(&mut response);
                side.write_noted("DescribeConfigs", version, "topic", &response);
            }
        }
    }
    for (note, keys) in [
        ("some", &["retention.ms", "segment.bytes", "retention.ms"][..]),
        ("unknown", &["what"]),
        ("unknown and known", &["what", "segment.ms"]),
        ("none", &[]),
    ] {
        side.note(note);
        side.every(|_, _| {
            describe_request(
                vec![described(TOPIC, &name, Some(keys)), described(TOPIC, &other, Some(keys))],
                true,
                false,
            )
        });
    }
}

pub fn describe_broker(side: &mut Side) {
    for (note, id) in [("this broker", "1"), ("all brokers", "")] {
        for version in side.versions::<DescribeConfigsRequest>() {
            let request = describe_request(vec![described(BROKER, id, None)], true, version >= 3);
            let Some(mut response) = side.ask(version, &request) else { continue };
            let known = side.broker_configs_of_kaas();
            for result in &mut response.results {
                result.configs.retain(|config| known.contains(config.name.as_str()));
            }
            side.present_documentation(&mut response);
            side.write_noted("DescribeConfigs", version, note, &response);
        }
    }
}

pub fn describe_errors(side: &mut Side) {
    let name = side.topic("t", 1, &[]);
    let unknown = side.name("unknown");
    let kinds: &[(i8, &str)] = &[
        (TOPIC, &unknown),
        (TOPIC, ""),
        (TOPIC, "a b"),
        (TOPIC, "."),
        (BROKER, "2"),
        (BROKER, "x"),
        (BROKER, "-1"),
        (BROKER, " 1"),
        (BROKER, "01"),
        (0, "x"),
        (1, "x"),
        (3, "x"),
        (8, "kafka.server"),
        (8, "1"),
        (8, ""),
        (16, "x"),
        (16, ""),
        (32, "x"),
        (32, ""),
        (64, "x"),
        (-1, ""),
        (127, "x"),
    ];
    for (kind, resource) in kinds {
        side.note(format!("type {kind} name '{}'", resource.replace(&unknown, "unknown")));
        side.every(|_, _| describe_request(vec![described(*kind, resource, None)], true, false));
    }
    side.note("nothing");
    side.every(|_, _| describe_request(vec![], true, false));
    side.note("one twice");
    let keys = Some(&["segment.ms"][..]);
    side.every(|_, _| {
        describe_request(vec![described(TOPIC, &name, keys), described(TOPIC, &name, keys)], false, false)
    });
    side.note("good and bad");
    side.every(|_, _| {
        describe_request(vec![described(TOPIC, &unknown, keys), described(TOPIC, &name, keys)], false, false)
    });
}

fn read_back(side: &mut Side, name: &str) {
    settle();
    side.note("read back");
    let keys = [
        "retention.ms",
        "segment.ms",
        "cleanup.policy",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    ];
    side.call(4, &describe_request(vec![described(TOPIC, name, Some(&keys))], true, false));
}

pub fn alter(side: &mut Side) {
    for version in side.versions::<AlterConfigsRequest>() {
        let name = side.topic(&format!("t{version}"), 1, &[("retention.ms", "5000")]);
        let unknown = side.name("unknown");
        let resource = |kind: i8, name: &str, configs: &[(&str, Option<&str>)]| plain::AlterConfigsResource {
            resource_type: kind,
            resource_name: name.into(),
            configs: configs
                .iter()
                .map(|(name, value)| plain::AlterableConfig {
                    name: (*name).into(),
                    value: value.map(Into::into),
                })
                .collect(),
        };
        let cases: Vec<(&str, Vec<plain::AlterConfigsResource>)> = vec![
            ("nothing", vec![]),
            ("unknown topic", vec![resource(TOPIC, &unknown, &[("retention.ms", Some("5"))])]),
            ("bad topic", vec![resource(TOPIC, "a b", &[("retention.ms", Some("5"))])]),
            ("empty topic", vec![resource(TOPIC, "", &[])]),
            ("replaces", vec![resource(TOPIC, &name, &[("segment.ms", Some("7000"))])]),
            ("null", vec![resource(TOPIC, &name, &[("segment.ms", None)])]),
            ("twice", vec![resource(TOPIC, &name, &[("segment.ms", Some("1")), ("segment.ms", Some("2"))])]),
            ("unknown config", vec![resource(TOPIC, &name, &[("what", Some("1"))])]),
            ("bad value", vec![resource(TOPIC, &name, &[("segment.ms", Some("x"))])]),
            // Not a resource twice: Kafka never answers that.
            (
                "good and bad",
                vec![
                    resource(TOPIC, &unknown, &[]),
                    resource(TOPIC, &name, &[("retention.ms", Some("8000"))]),
                ],
            ),
            ("clears", vec![resource(TOPIC, &name, &[])]),
            // Not kinds that do not exist: Kafka never answers that.
            ("loggers", vec![resource(8, "1", &[("kafka", Some("INFO"))])]),
            ("metrics", vec![resource(16, "x", &[("interval.ms", Some("x"))])]),
            ("groups", vec![resource(32, "x", &[("what", Some("x"))])]),
            ("another broker", vec![resource(BROKER, "2", &[("log.retention.ms", Some("5000"))])]),
            ("no broker", vec![resource(BROKER, "x", &[("log.retention.ms", Some("5000"))])]),
            ("read-only broker config", vec![resource(BROKER, "1", &[("node.id", Some("5"))])]),
            ("unknown broker config", vec![resource(BROKER, "", &[("what", Some("5"))])]),
        ];
        for (note, resources) in cases {
            for validate_only in [true, false] {
                side.note(format!("{note}, validate_only {validate_only}"));
                side.call(version, &AlterConfigsRequest { resources: resources.clone(), validate_only });
            }
            read_back(side, &name);
        }
    }
}

pub fn incremental(side: &mut Side) {
    let name = side.topic("t", 1, &[("retention.ms", "5000")]);
    let unknown = side.name("unknown");
    let list = "leader.replication.throttled.replicas";
    let cases: &[(&str, i8, &str, &[(&str, i8, Option<&str>)])] = &[
        ("nothing", TOPIC, &name, &[]),
        ("unknown topic", TOPIC, &unknown, &[("retention.ms", 0, Some("5"))]),
        ("bad topic", TOPIC, "a b", &[("retention.ms", 0, Some("5"))]),
        ("set", TOPIC, &name, &[("segment.ms", 0, Some("7000"))]),
        ("set null", TOPIC, &name, &[("segment.ms", 0, None)]),
        ("delete with a value", TOPIC, &name, &[("segment.ms", 1, Some("5"))]),
        ("delete what is not set", TOPIC, &name, &[("segment.ms", 1, None)]),
        ("delete unknown", TOPIC, &name, &[("what", 1, None)]),
        ("append to a number", TOPIC, &name, &[("segment.ms", 2, Some("5"))]),
        ("subtract from a number", TOPIC, &name, &[("segment.ms", 3, Some("5"))]),
        ("append unknown", TOPIC, &name, &[("what", 2, Some("5"))]),
        ("append", TOPIC, &name, &[(list, 2, Some("0:1"))]),
        ("append two, one there", TOPIC, &name, &[(list, 2, Some("0:1,1:1"))]),
        ("append null", TOPIC, &name, &[(list, 2, None)]),
        ("append nothing", TOPIC, &name, &[(list, 2, Some(""))]),
        ("append bad", TOPIC, &name, &[(list, 2, Some("x"))]),
        ("append one twice", TOPIC, &name, &[(list, 2, Some("2:1,2:1"))]),
        ("append with spaces", TOPIC, &name, &[(list, 2, Some(" 3:1 , 4:1 "))]),
        ("subtract", TOPIC, &name, &[(list, 3, Some("0:1"))]),
        ("subtract what is not there", TOPIC, &name, &[(list, 3, Some("9:9"))]),
        ("subtract all", TOPIC, &name, &[(list, 3, Some("1:1,2:1,3:1,4:1,3:1 "))]),
        ("subtract from cleanup.policy", TOPIC, &name, &[("cleanup.policy", 3, Some("delete"))]),
        ("append to cleanup.policy", TOPIC, &name, &[("cleanup.policy", 2, Some("delete"))]),
        ("delete cleanup.policy", TOPIC, &name, &[("cleanup.policy", 1, None)]),
        ("unknown operation", TOPIC, &name, &[("segment.ms", 4, Some("5"))]),
        ("negative operation", TOPIC, &name, &[("segment.ms", -1, Some("5"))]),
        ("twice", TOPIC, &name, &[("segment.ms", 0, Some("5")), ("segment.ms", 0, Some("6"))]),
        ("set and delete one", TOPIC, &name, &[("segment.ms", 0, Some("5")), ("segment.ms", 1, None)]),
        ("good and bad", TOPIC, &name, &[("segment.ms", 0, Some("5000")), ("retention.ms", 0, Some("x"))]),
        ("unknown type", 0, "x", &[("a", 0, Some("b"))]),
        ("type 3", 3, "x", &[("a", 0, Some("b"))]),
        ("another broker", BROKER, "2", &[("log.retention.ms", 0, Some("5000"))]),
        ("not a broker", BROKER, "x", &[("log.retention.ms", 0, Some("5000"))]),
        ("read-only broker config", BROKER, "1", &[("node.id", 0, Some("5"))]),
        ("read-only broker config of all", BROKER, "", &[("node.id", 0, Some("5"))]),
        ("unknown broker config", BROKER, "1", &[("what", 0, Some("5"))]),
        ("bad broker config", BROKER, "1", &[("log.retention.ms", 0, Some("x"))]),
        ("per broker only, for all", BROKER, "", &[("advertised.listeners", 0, Some("PLAINTEXT://h:1"))]),
    ];
    for (note, kind, resource, changes) in cases {
        for version in [0, 1] {
            for validate_only in [true, false] {
                side.note(format!("{note}, validate_only {validate_only}"));
                side.call(version, &incremental_request(*kind, resource, changes, validate_only));
            }
        }
        if *kind == TOPIC {
            read_back(side, &name);
        }
    }
    side.note("resource twice");
    let mut request = incremental_request(TOPIC, &name, &[("segment.ms", 0, Some("5"))], false);
    let resource = request.resources[0].clone();
    request.resources.push(resource);
    let another = side.topic("u", 1, &[]);
    request.resources.push(
        incremental_request(TOPIC, &another, &[("segment.ms", 0, Some("5"))], false).resources[0].clone(),
    );
    side.call(1, &request);
}

/// Dynamic broker configs, set and read back at every level, and taken away again.
pub fn broker(side: &mut Side) {
    let name = side.topic("t", 1, &[]);
    let values: &[(&str, &[&str], &str)] = &[
        ("log.retention.ms", &["5000", "-1", "0", "-2", "x"], "retention.ms"),
        ("log.segment.bytes", &["1048576", "14", "13", "0"], "segment.bytes"),
        ("log.roll.ms", &["5000", "0"], "segment.ms"),
        ("message.max.bytes", &["5000", "-1", "0"], "max.message.bytes"),
        ("log.cleanup.policy", &["delete", "x", ""], "cleanup.policy"),
        ("log.flush.interval.messages", &["5", "0"], "flush.messages"),
        ("log.flush.interval.ms", &["5", "-1"], "flush.ms"),
        ("log.index.interval.bytes", &["5", "-1"], "index.interval.bytes"),
        ("log.message.timestamp.type", &["LogAppendTime", "x"], "message.timestamp.type"),
        ("log.message.timestamp.after.max.ms", &["5", "-1"], "message.timestamp.after.max.ms"),
        ("log.retention.bytes", &["5", "-5"], "retention.bytes"),
        ("compression.type", &["producer", "x"], "compression.type"),
        ("log.segment.delete.delay.ms", &["5", "-1"], "file.delete.delay.ms"),
        ("unclean.leader.election.enable", &["true", "x"], "unclean.leader.election.enable"),
        ("max.connections", &["1000", "-1", "x"], "x"),
        ("max.connections.per.ip", &["1000", "-1"], "x"),
        ("num.io.threads", &["9", "0", "100"], "x"),
        ("num.network.threads", &["4", "0"], "x"),
        ("log.retention.hours", &["5"], "retention.ms"),
        ("log.retention.minutes", &["5"], "retention.ms"),
        ("log.roll.hours", &["5"], "segment.ms"),
        ("num.partitions", &["5"], "x"),
        ("auto.create.topics.enable", &["false"], "x"),
        ("group.initial.rebalance.delay.ms", &["5"], "x"),
        ("offsets.retention.minutes", &["5"], "x"),
        ("max.incremental.fetch.session.cache.slots", &["5"], "x"),
        ("background.threads", &["9"], "x"),
        ("producer.id.expiration.ms", &["5000", "0"], "x"),
    ];
    for (config, values, topic_config) in values {
        for value in *values {
            for broker in ["", "1"] {
                side.note(format!("{config}='{value}' of '{broker}'"));
                let request = incremental_request(BROKER, broker, &[(config, 0, Some(value))], false);
                side.call(1, &request);
                std::thread::sleep(std::time::Duration::from_millis(250));
                side.note(format!("{config}='{value}' of '{broker}' read back"));
                let resources = vec![
                    described(BROKER, "1", Some(&[config])),
                    described(BROKER, "", Some(&[config])),
                    described(TOPIC, &name, Some(&[topic_config])),
                ];
                side.call(4, &describe_request(resources, true, false));
            }
            for broker in ["", "1"] {
                side.note(format!("{config} of '{broker}' deleted"));
                side.call(1, &incremental_request(BROKER, broker, &[(config, 1, None)], false));
            }
            std::thread::sleep(std::time::Duration::from_millis(250));
        }
    }
}

pub fn list(side: &mut Side) {
    side.topic("t", 1, &[]);
    for kinds in [&[][..], &[2], &[4], &[2, 4], &[8], &[16], &[32], &[2, 2], &[0], &[99], &[-1], &[2, 99]] {
        side.note(format!("kinds {kinds:?}"));
        side.every(|_, version| ListConfigResourcesRequest {
            resource_types: if version >= 1 { kinds.to_vec() } else { Vec::new() },
        });
    }
}
