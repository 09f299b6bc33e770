//! What topics have from the defaults of Kafka's brokers, and how far their logs are compacted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, clippy::cast_possible_truncation)]

#[path = "support/kafka.rs"]
mod kafka;
mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_engine::LogConfig;
use kaas_engine::batch::SimpleRecord;
use kaas_engine::import::{Options, Report, ServerProperties};
use kaas_engine::layout::TOPIC_CONFIG;
use kaas_engine::manifest::versioned::{read_bytes, read_highest};
use kaas_engine::manifest::{MANIFEST, Manifest};
use kaas_substrate::{OpenMode, Substrate};

use kafka::{ID, Kafka, assert_clean, compact, empty, metadata_record, open_with, options, values};

const METADATA: &str = "00000000000000000000.log";
const TOPIC: u8 = 2;
const BROKER: u8 = 4;

fn config(kind: u8, of: &str, name: &str, value: &str) -> SimpleRecord {
    metadata_record(4, &[&[kind], &compact(of), &compact(name), &compact(value)])
}

/// A metadata log that has the topic, and these configs.
fn metadata(kafka: &Kafka, configs: &[SimpleRecord]) {
    let topic = [metadata_record(2, &[&compact("orders"), &ID]), metadata_record(3, &[&[0, 0, 0, 1], &ID])];
    kafka.metadata(METADATA, 0, &[&topic[..], configs].concat());
}

fn with_properties(text: &str) -> Options {
    let text = format!("node.id=1\n{text}");
    let file = ServerProperties::parse(Path::new("/etc/kafka/server.properties"), text.as_bytes());
    Options { server_properties: Some(file), ..options() }
}

fn imported(kafka: &Kafka, options: &Options) -> (Report, Arc<dyn Substrate>) {
    let target = empty();
    let report = kafka.import_with(&target, options).unwrap();
    assert!(report.is_done, "{:?}", report.problems);
    assert_clean(&target);
    (report, target)
}

fn policy(kafka: &Kafka, options: &Options) -> Option<String> {
    imported(kafka, options).0.topics[0].configs.get("cleanup.policy").cloned()
}

#[test]
fn a_topic_gets_the_dynamic_defaults_that_it_has_not_itself() {
    let kafka = Kafka::orders();
    let records = [
        config(BROKER, "", "log.cleanup.policy", "compact"),
        config(BROKER, "", "log.retention.ms", "5000"),
        config(BROKER, "", "message.max.bytes", "77777"),
        config(BROKER, "", "compression.type", "lz4"),
        config(BROKER, "", "num.io.threads", "9"),
        // Of the broker whose directory it is, and of another.
        config(BROKER, "1", "log.retention.ms", "6000"),
        config(BROKER, "2", "message.max.bytes", "88888"),
        config(TOPIC, "orders", "max.message.bytes", "99999"),
    ];
    metadata(&kafka, &records);
    let (report, target) = imported(&kafka, &options());
    let expected = [("cleanup.policy", "compact"), ("max.message.bytes", "99999"), ("retention.ms", "6000")];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(report.topics[0].configs, expected.into());
    let told = report.broker_defaults.iter().map(|default| (&*default.name, &*default.broker_config));
    let expected = [("cleanup.policy", "log.cleanup.policy"), ("retention.ms", "log.retention.ms")];
    assert_eq!(told.collect::<Vec<_>>(), expected);
    let (_, stored) = read_bytes(&*target, Path::new("topics/orders"), TOPIC_CONFIG).unwrap().unwrap();
    assert!(String::from_utf8_lossy(&stored).contains("\"cleanup.policy\": \"compact\""));
    let text = report.to_text(200);
    for line in [
        "  cleanup.policy=compact (log.cleanup.policy in ",
        "  not carried over: compression.type=lz4: ",
        "server.properties was not given: ",
    ] {
        assert!(text.contains(line), "{text}");
    }
    assert!(!text.contains("num.io.threads"), "{text}");
    // It is compacted, so it may have gaps.
    kafka.remove("orders-0/00000000000000000003.log");
    assert_eq!(policy(&kafka, &options()).as_deref(), Some("compact"));
    // It was taken back.
    let back = metadata_record(4, &[&[BROKER], &compact(""), &compact("log.cleanup.policy"), &[0]]);
    metadata(&kafka, &[&records[..], &[back]].concat());
    assert!(kafka.problems()[0].contains("offsets 3 to 5 are missing"));
}

#[test]
fn a_topic_gets_the_static_defaults_if_the_file_is_given() {
    let kafka = Kafka::orders();
    metadata(&kafka, &[config(BROKER, "", "log.retention.ms", "5000")]);
    let file = "log.retention.hours=1\nlog.roll.hours = 2\nlog.cleanup.policy: compact,delete\nlog.dirs=/x\n";
    let (report, _) = imported(&kafka, &with_properties(file));
    let expected =
        [("cleanup.policy", "compact,delete"), ("retention.ms", "5000"), ("segment.ms", "7200000")];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(report.topics[0].configs, expected.into());
    assert!(report.has_server_properties && !report.to_text(200).contains("was not given"));
    // What is given for all topics is stronger.
    let mut options = with_properties(file);
    options.configs.insert("retention.ms".to_owned(), "7".to_owned());
    let (report, _) = imported(&kafka, &options);
    assert_eq!(report.topics[0].configs["retention.ms"], "7");
    assert!(report.broker_defaults.iter().all(|default| default.name != "retention.ms"));
    // No broker's file, that of another broker, and one with a value that kaas refuses.
    let path = Path::new("/var/log/kafka.log");
    let no_file =
        Options { server_properties: Some(ServerProperties::parse(path, b"x: y")), ..Options::default() };
    assert_eq!(kafka.problems_with(&no_file), ["it has no node.id, as each broker's has"]);
    let told = "it is that of node 2, and the log directories are of node 1";
    assert_eq!(kafka.problems_with(&with_properties("node.id=2")), [told]);
    let told =
        "log.segment.bytes=3: Invalid value 3 for configuration segment.bytes: Value must be at least 14";
    assert_eq!(kafka.problems_with(&with_properties("log.segment.bytes=3")), [told]);
    metadata(&kafka, &[config(TOPIC, "orders", "segment.bytes", "1000")]);
    assert_eq!(kafka.problems_with(&with_properties("log.segment.bytes=3")), Vec::<String>::new());
}

#[test]
fn a_compacted_topic_whose_policy_is_not_known_is_refused() {
    let kafka = Kafka::orders();
    kafka.checkpoint("cleaner-offset", &["orders 0 3"]);
    metadata(&kafka, &[]);
    let told =
        "\"orders\" has been compacted, as this file says, and nothing else here tells its cleanup.policy";
    let refused = |options: &Options| assert_eq!(kafka.problems_with(options), [told], "{options:?}");
    refused(&options());
    // Without the metadata log the file tells only what the topic may have.
    kafka.volume.remove_file(&PathBuf::from("__cluster_metadata-0").join(METADATA)).unwrap();
    kafka.volume.remove_dir(Path::new("__cluster_metadata-0")).unwrap();
    refused(&options());
    refused(&with_properties("log.cleanup.policy=delete"));
    assert_eq!(policy(&kafka, &with_properties("log.cleanup.policy=compact")).as_deref(), Some("compact"));
    metadata(&kafka, &[]);
    assert_eq!(policy(&kafka, &with_properties("log.cleanup.policy=compact")).as_deref(), Some("compact"));
    // Kafka's own default.
    assert_eq!(policy(&kafka, &with_properties("")), None);
    // Who imports says it.
    for value in ["compact", "delete"] {
        let configs = [("cleanup.policy".to_owned(), value.to_owned())].into();
        assert_eq!(policy(&kafka, &Options { configs, ..options() }).as_deref(), Some(value));
    }
    assert_eq!(policy(&kafka, &Options { gaps: vec!["orders".into()], ..options() }), None);
    // Kafka's metadata says that it is not compacted any more.
    metadata(&kafka, &[config(TOPIC, "orders", "cleanup.policy", "delete")]);
    assert_eq!(policy(&kafka, &options()).as_deref(), Some("delete"));
    metadata(&kafka, &[config(BROKER, "", "log.cleanup.policy", "delete")]);
    assert_eq!(policy(&kafka, &options()).as_deref(), Some("delete"));
}

#[test]
fn batches_that_lack_records_were_compacted() {
    let kafka = Kafka::orders();
    let mut batch = values(3, 0, &["v3"]);
    // The offset of the last record is 5, and there is one.
    batch[23..27].copy_from_slice(&2_i32.to_be_bytes());
    let crc = crc32c::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    kafka.log("orders-0", 3, &[batch]);
    let told = "\"orders\" has been compacted, since batches lack records, and nothing else here tells its \
                cleanup.policy";
    assert_eq!(kafka.problems(), [told]);
    metadata(&kafka, &[]);
    assert_eq!(policy(&kafka, &with_properties("")), None);
}

#[test]
fn what_kafka_has_compacted_need_not_be_compacted_again() {
    let kafka = Kafka::orders();
    let compact_it = config(TOPIC, "orders", "cleanup.policy", "compact");
    metadata(&kafka, &[compact_it]);
    kafka.starts(&["orders 0 1"]);
    // Below the log start it means nothing; behind the log's end it is not to be trusted, and Kafka begins at the log start.
    for (checkpointed, expected) in [
        ("0", 1),
        ("-5", 1),
        ("1", 1),
        ("2", 2),
        ("3", 3),
        ("6", 6),
        ("7", 7),
        ("8", 1),
        ("9223372036854775807", 1),
    ] {
        kafka.checkpoint("cleaner-offset", &[&format!("orders 0 {checkpointed}")]);
        let (report, target) = imported(&kafka, &options());
        let dir = Path::new("topics/orders/0");
        let (_, manifest) = read_highest::<Manifest>(&*target, dir, MANIFEST).unwrap().unwrap();
        assert_eq!(manifest.first_dirty_offset, expected, "{checkpointed}");
        let partitions = &report.topics[0].partitions;
        assert_eq!(
            (partitions[0].first_dirty_offset, partitions[1].first_dirty_offset),
            (Some(expected), None)
        );
    }
    // A crash may have brought back what the cleaner had replaced.
    kafka.checkpoint("cleaner-offset", &["orders 0 6"]);
    kafka.remove(".kafka_cleanshutdown");
    let (report, _) = imported(&kafka, &Options { after_crash: true, ..options() });
    assert_eq!(report.topics[0].partitions[0].first_dirty_offset, Some(1));
    kafka.put(".kafka_cleanshutdown", b"");
    let dirty = |checkpoint: &[&str]| {
        kafka.checkpoint("cleaner-offset", checkpoint);
        let (report, target) = imported(&kafka, &options());
        let config = LogConfig { compact: true, delete: false, ..LogConfig::default() };
        let log = open_with(&target, 0, 4, config);
        let dirtiness = log.partition.dirtiness().unwrap().unwrap();
        log.close();
        let bytes = report.topics[0].partitions[0].bytes;
        assert_eq!(dirtiness.clean_bytes + dirtiness.dirty_bytes, bytes);
        dirtiness.dirty_bytes
    };
    let (all, behind) = (dirty(&[]), dirty(&["orders 0 6"]));
    assert_eq!(
        behind,
        kafka
            .volume
            .open(Path::new("orders-0/00000000000000000006.log"), OpenMode::Read)
            .unwrap()
            .length()
            .unwrap()
    );
    assert!(all > behind, "{all} {behind}");
    assert_eq!(dirty(&["orders 0 7"]), 0);
}
