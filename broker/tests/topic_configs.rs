//! Configs of topics and brokers that are described, altered and take effect, against the real binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod raw;

use std::time::{Duration, Instant};

use kaas_protocol::messages::delete_topics::DeleteTopicState;
use kaas_protocol::messages::describe_configs::{DescribeConfigsResource, DescribeConfigsResult};
use kaas_protocol::messages::incremental_alter_configs::{AlterConfigsResource, AlterableConfig};
use kaas_protocol::{
    DeleteTopicsRequest, DescribeConfigsRequest, ErrorCode, IncrementalAlterConfigsRequest, KString,
    MetadataRequest,
};
use raw::{Broker, Client, LONG, batch};

fn describe(client: &mut Client, kind: i8, name: &str, keys: &[&str]) -> DescribeConfigsResult {
    let resource = DescribeConfigsResource {
        resource_type: kind,
        resource_name: name.into(),
        configuration_keys: Some(keys.iter().map(|key| KString::from(*key)).collect()),
    };
    let request = DescribeConfigsRequest {
        resources: vec![resource],
        include_synonyms: true,
        include_documentation: true,
    };
    client.call(4, &request).results.remove(0)
}

fn alter(
    client: &mut Client,
    kind: i8,
    resource: &str,
    name: &str,
    operation: i8,
    value: Option<&str>,
) -> ErrorCode {
    let config =
        AlterableConfig { name: name.into(), config_operation: operation, value: value.map(KString::from) };
    let resource =
        AlterConfigsResource { resource_type: kind, resource_name: resource.into(), configs: vec![config] };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
    client.call(1, &request).responses[0].error_code
}

#[test]
fn configs_are_described_altered_and_take_effect_at_once() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[]);
    assert_eq!(client.produce("t", 0, batch(&[&[0; 5_000]])).error_code, ErrorCode::NONE);
    let config = |client: &mut Client| describe(client, 2, "t", &["max.message.bytes"]).configs.remove(0);
    let before = config(&mut client);
    assert_eq!((before.value.as_deref(), before.config_source), (Some("1048588"), 5));
    assert!(before.documentation.is_some() && before.config_type == 3);
    assert_eq!(alter(&mut client, 2, "t", "max.message.bytes", 0, Some("1000")), ErrorCode::NONE);
    let after = config(&mut client);
    assert_eq!((after.value.as_deref(), after.config_source), (Some("1000"), 1));
    let refused = client.produce("t", 0, batch(&[&[0; 5_000]]));
    assert_eq!(refused.error_code, ErrorCode::MESSAGE_TOO_LARGE);
    // The broker's default for topics, changed while it runs.
    assert_eq!(alter(&mut client, 2, "t", "max.message.bytes", 1, None), ErrorCode::NONE);
    assert_eq!(alter(&mut client, 4, "", "message.max.bytes", 0, Some("2000")), ErrorCode::NONE);
    assert_eq!(config(&mut client).value.as_deref(), Some("2000"));
    assert_eq!(client.produce("t", 0, batch(&[&[0; 5_000]])).error_code, ErrorCode::MESSAGE_TOO_LARGE);
    assert_eq!(alter(&mut client, 4, "1", "message.max.bytes", 0, Some("9000")), ErrorCode::NONE);
    assert_eq!(client.produce("t", 0, batch(&[&[0; 5_000]])).error_code, ErrorCode::NONE);
    broker.process.kill().unwrap();
    broker.restart(&[]);
    let mut client = broker.connect();
    assert_eq!(config(&mut client).value.as_deref(), Some("9000"));

    assert_eq!(alter(&mut client, 2, "t", "no.such", 0, Some("1")), ErrorCode::INVALID_CONFIG);
    assert_eq!(alter(&mut client, 2, "t", "retention.ms", 0, Some("x")), ErrorCode::INVALID_CONFIG);
    assert_eq!(
        alter(&mut client, 2, "u", "retention.ms", 0, Some("1")),
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
    );
    assert_eq!(alter(&mut client, 4, "7", "message.max.bytes", 0, Some("1")), ErrorCode::INVALID_REQUEST);
    assert_eq!(describe(&mut client, 2, "u", &[]).error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    let all = describe(&mut client, 4, "1", &[]);
    assert!(all.configs.len() > 30, "{}", all.configs.len());
    let listeners = all.configs.iter().find(|config| config.name.as_str() == "listeners").unwrap();
    assert!(listeners.value.as_deref().unwrap().contains("127.0.0.1"), "{listeners:?}");
}

#[test]
fn broker_configs_act() {
    let broker = Broker::start(&[
        "--set",
        "socket.request.max.bytes=100000",
        "--set",
        "fetch.max.bytes=20000",
        "--set",
        "max.incremental.fetch.session.cache.slots=0",
        "--set",
        "delete.topic.enable=false",
        "--set",
        "num.io.threads=2",
        "--set",
        "max.connections=3",
    ]);
    let mut client = broker.connect();
    client.create_topic("t", 4, &[]);
    for partition in [0, 0, 0, 1, 2, 3] {
        let answer = client.produce("t", partition, batch(&[&[1; 9_000]]));
        assert_eq!(answer.error_code, ErrorCode::NONE);
    }
    let mut large = broker.connect();
    large.send(9, &raw::produce_request("t", 0, -1, batch(&[&[1; 120_000]])));
    assert!(large.is_closed(), "socket.request.max.bytes");
    let fetched = raw::record_bytes(&client.fetch("t", 0, 0)).len();
    assert!(fetched > 9_000 && fetched <= 20_000, "fetch.max.bytes: {fetched}");
    let mut session = raw::fetch_request("t", 0, 0, 0);
    session.session_epoch = 0;
    assert_eq!(client.call(12, &session).session_id, 0, "max.incremental.fetch.session.cache.slots");
    let delete = |version| {
        let topic = DeleteTopicState { name: Some("t".into()), ..Default::default() };
        let (topics, topic_names) =
            if version >= 6 { (vec![topic], vec![]) } else { (vec![], vec![KString::from("t")]) };
        (version, DeleteTopicsRequest { topics, topic_names, timeout_ms: 5_000 })
    };
    for (version, code) in [(6, ErrorCode::TOPIC_DELETION_DISABLED), (2, ErrorCode::INVALID_REQUEST)] {
        let (version, request) = delete(version);
        assert_eq!(client.call(version, &request).responses[0].error_code, code);
    }
    let tasks = std::fs::read_dir(format!("/proc/{}/task", broker.process.pid())).unwrap();
    let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap());
    let io = names.filter(|name| name.starts_with("kaas-io")).count();
    assert!((1..=2).contains(&io), "num.io.threads: {io}");
    // The fourth connection waits until another one has gone.
    drop(large);
    let (second, third) = (broker.connect(), broker.connect());
    let mut fourth = broker.connect();
    fourth.send(12, &MetadataRequest::default());
    fourth.stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let early = fourth.stream.peek(&mut [0]);
    assert!(early.is_err(), "max.connections");
    drop(second);
    fourth.stream.set_read_timeout(Some(LONG)).unwrap();
    assert!(fourth.frame().is_some());
    drop(third);
}

#[test]
fn retention_deletes_old_segments_by_itself() {
    let broker = Broker::start(&["--set", "log.retention.check.interval.ms=200"]);
    let mut client = broker.connect();
    let configs = [("segment.bytes", "20000"), ("retention.bytes", "40000")];
    client.create_topic("t", 1, &configs);
    for _ in 0..20 {
        client.produce("t", 0, batch(&[&[1; 10_000]]));
    }
    let deadline = Instant::now() + LONG;
    while client.fetch("t", 0, 19).log_start_offset < 10 {
        assert!(Instant::now() < deadline, "nothing is deleted");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn retention_is_owed_to_topics_that_nobody_uses() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("old", 1, &[("segment.bytes", "20000")]);
    client.create_topic("young", 1, &[]);
    for _ in 0..10 {
        client.produce("old", 0, batch(&[&[1; 10_000]]));
    }
    client.produce("young", 0, batch(&[b"x"]));
    assert_eq!(alter(&mut client, 2, "old", "retention.bytes", 0, Some("40000")), ErrorCode::NONE);
    broker.process.terminate(LONG).unwrap();
    let logs = |broker: &Broker, topic: &str| {
        let dir = broker.dir.path().join("topics").join(topic).join("0");
        let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".log")).count()
    };
    let before = logs(&broker, "old");
    broker.restart(&["--set", "log.retention.check.interval.ms=200"]);
    let deadline = Instant::now() + LONG;
    while logs(&broker, "old") >= before {
        assert!(Instant::now() < deadline, "nothing is deleted");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(500));
    let claims = |topic: &str| {
        let dir = broker.dir.path().join("topics").join(topic).join("0");
        let names =
            std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("claim.")).collect::<Vec<_>>()
    };
    assert!(claims("old").iter().any(|name| name != "claim.00000001"), "{:?}", claims("old"));
    assert_eq!(claims("young"), ["claim.00000001"], "what has nothing to delete is not opened");
}

#[test]
fn what_flags_decide_is_described_as_static() {
    const STATIC: i8 = 4;
    let broker = Broker::start(&["--node-id", "7", "--advertised", "example.org:99"]);
    let mut client = broker.connect();
    let result = describe(&mut client, 4, "7", &["node.id", "broker.id", "advertised.listeners", "log.dirs"]);
    assert_eq!((result.error_code, result.error_message.as_deref()), (ErrorCode::NONE, Some("")));
    let mut found: Vec<_> =
        result.configs.iter().map(|c| (c.name.as_str(), c.value.as_deref().unwrap())).collect();
    found.sort_unstable();
    let dir = broker.dir.path().display().to_string();
    let expected = [
        ("advertised.listeners", "PLAINTEXT://example.org:99"),
        ("broker.id", "7"),
        ("log.dirs", dir.as_str()),
        ("node.id", "7"),
    ];
    assert_eq!(found, expected);
    assert!(
        result.configs.iter().all(|config| config.config_source == STATIC && config.read_only),
        "{result:?}"
    );
    assert!(result.configs.iter().all(|config| config.synonyms[0].source == STATIC), "{result:?}");
    // Topics have no resource that stands for all of them.
    let resource = AlterConfigsResource { resource_type: 2, ..AlterConfigsResource::default() };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
    assert_eq!(client.call(1, &request).responses[0].error_code, ErrorCode::INVALID_REQUEST);
}
