//! Requests about topics and the cluster, against the real binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod raw;

use std::time::{Duration, Instant};

use kaas_protocol::messages::create_partitions::CreatePartitionsTopic;
use kaas_protocol::messages::create_topics::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig, CreatableTopicResult,
};
use kaas_protocol::messages::delete_topics::DeleteTopicState;
use kaas_protocol::messages::describe_log_dirs::DescribableLogDirTopic;
use kaas_protocol::messages::describe_topic_partitions::{
    DescribeTopicPartitionsRequestCursor, TopicRequest,
};
use kaas_protocol::messages::metadata::{MetadataRequestTopic, MetadataResponseTopic};
use kaas_protocol::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, DescribeClusterRequest,
    DescribeLogDirsRequest, DescribeTopicPartitionsRequest, ErrorCode, FindCoordinatorRequest, KString,
    MetadataRequest, Uuid,
};
use raw::{Broker, Client, LONG, batch, topic};

fn create(
    client: &mut Client,
    topics: Vec<CreatableTopic>,
    validate_only: bool,
) -> Vec<CreatableTopicResult> {
    let request = CreateTopicsRequest { topics, timeout_ms: 10_000, validate_only };
    client.call(7, &request).topics
}

fn with_config(name: &str, config: &str, value: Option<&str>) -> CreatableTopic {
    let config = CreatableTopicConfig { name: config.into(), value: value.map(KString::from) };
    CreatableTopic { configs: vec![config], ..topic(name, 1, 1) }
}

fn metadata(client: &mut Client, version: i16, names: &[&str], create: bool) -> Vec<MetadataResponseTopic> {
    let asked = |name: &&str| MetadataRequestTopic { name: Some((*name).into()), ..Default::default() };
    let request = MetadataRequest {
        topics: Some(names.iter().map(asked).collect()),
        allow_auto_topic_creation: create,
        ..MetadataRequest::default()
    };
    client.call(version, &request).topics
}

#[test]
fn topics_are_created_as_kafka_would() {
    let broker = Broker::start(&["--set", "num.partitions=3"]);
    let mut client = broker.connect();
    let made = create(&mut client, vec![topic("a", 5, 3)], false).remove(0);
    assert_eq!((made.error_code, made.num_partitions, made.replication_factor), (ErrorCode::NONE, 5, 1));
    assert!(!made.topic_id.is_zero());
    let retention =
        made.configs.as_ref().unwrap().iter().find(|c| c.name.as_str() == "retention.ms").unwrap();
    assert_eq!(retention.value.as_deref(), Some("604800000"));
    let defaults = create(&mut client, vec![topic("b", -1, -1)], false).remove(0);
    assert_eq!(defaults.num_partitions, 3);
    let checked = create(&mut client, vec![topic("c", 2, 1)], true).remove(0);
    assert_eq!((checked.error_code, checked.num_partitions), (ErrorCode::NONE, 2));
    assert_eq!(metadata(&mut client, 12, &["c"], false)[0].error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);

    let assigned = |name: &str, ids: &[i32]| CreatableTopic {
        assignments: ids
            .iter()
            .map(|id| CreatableReplicaAssignment { partition_index: *id, broker_ids: vec![1] })
            .collect(),
        ..topic(name, -1, -1)
    };
    for (asked, code) in [
        (topic("a", 1, 1), ErrorCode::TOPIC_ALREADY_EXISTS),
        (topic("x", 0, 1), ErrorCode::INVALID_PARTITIONS),
        (topic("x", -2, 1), ErrorCode::INVALID_PARTITIONS),
        (topic("x", 1, 0), ErrorCode::INVALID_REPLICATION_FACTOR),
        (topic("", 1, 1), ErrorCode::INVALID_TOPIC_EXCEPTION),
        (topic("no spaces", 1, 1), ErrorCode::INVALID_TOPIC_EXCEPTION),
        (topic("..", 1, 1), ErrorCode::INVALID_TOPIC_EXCEPTION),
        (with_config("x", "no.such.config", Some("1")), ErrorCode::INVALID_CONFIG),
        (with_config("x", "retention.ms", Some("soon")), ErrorCode::INVALID_CONFIG),
        (with_config("x", "retention.ms", None), ErrorCode::INVALID_CONFIG),
        (assigned("x", &[0, 2]), ErrorCode::INVALID_REPLICA_ASSIGNMENT),
        (CreatableTopic { num_partitions: 2, ..assigned("x", &[0, 1]) }, ErrorCode::INVALID_REQUEST),
    ] {
        let result = create(&mut client, vec![asked], false).remove(0);
        assert_eq!(result.error_code, code, "{result:?}");
        assert!(result.error_message.is_some());
    }
    let twice = create(&mut client, vec![topic("d", 1, 1), topic("d", 1, 1)], false);
    assert_eq!((twice.len(), twice[0].error_code), (1, ErrorCode::INVALID_REQUEST));
    create(&mut client, vec![topic("with.dot", 1, 1)], false);
    let colliding = create(&mut client, vec![topic("with_dot", 1, 1)], false);
    assert_eq!(colliding[0].error_code, ErrorCode::INVALID_TOPIC_EXCEPTION);
    let manual = create(&mut client, vec![assigned("manual", &[1, 0])], false).remove(0);
    assert_eq!((manual.error_code, manual.num_partitions), (ErrorCode::NONE, 2));
}

#[test]
fn topics_grow() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 2, &[]);
    let mut grow = |name: &str, count| {
        let topic = CreatePartitionsTopic { name: name.into(), count, assignments: None };
        let request =
            CreatePartitionsRequest { topics: vec![topic], timeout_ms: 10_000, validate_only: false };
        client.call(3, &request).results[0].error_code
    };
    assert_eq!(grow("t", 4), ErrorCode::NONE);
    assert_eq!(grow("t", 4), ErrorCode::INVALID_PARTITIONS);
    assert_eq!(grow("t", 3), ErrorCode::INVALID_PARTITIONS);
    assert_eq!(grow("t", -1), ErrorCode::INVALID_PARTITIONS);
    assert_eq!(grow("u", 4), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(client.produce("t", 3, batch(&[b"x"])).error_code, ErrorCode::NONE);
    assert_eq!(metadata(&mut client, 12, &["t"], false)[0].partitions.len(), 4);
}

#[test]
fn a_deleted_topic_is_gone_and_its_name_begins_anew() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 2, &[]);
    client.create_topic("kept", 1, &[]);
    client.produce("t", 0, batch(&[b"old"]));
    let old = metadata(&mut client, 12, &["t"], false)[0].topic_id;
    let mut delete = |state: DeleteTopicState| {
        let request = DeleteTopicsRequest { topics: vec![state], timeout_ms: 10_000, ..Default::default() };
        client.call(6, &request).responses[0].error_code
    };
    let named = |name: &str| DeleteTopicState { name: Some(name.into()), ..Default::default() };
    assert_eq!(delete(named("nowhere")), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    let by_id = DeleteTopicState { name: None, topic_id: Uuid([7; 16]) };
    assert_eq!(delete(by_id), ErrorCode::UNKNOWN_TOPIC_ID);
    assert_eq!(delete(DeleteTopicState { topic_id: old, ..named("t") }), ErrorCode::INVALID_REQUEST);
    assert_eq!(delete(named("t")), ErrorCode::NONE);
    assert_eq!(client.produce("t", 0, batch(&[b"x"])).error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    client.create_topic("t", 1, &[]);
    let new = metadata(&mut client, 12, &["t"], false)[0].topic_id;
    assert_ne!(old, new);
    assert_eq!(client.fetch("t", 0, 0).high_watermark, 0, "no record of the old topic");
    assert_eq!(client.produce("t", 0, batch(&[b"new"])).base_offset, 0);
    let by_id = DeleteTopicsRequest {
        topics: vec![DeleteTopicState { name: None, topic_id: new }],
        timeout_ms: 10_000,
        ..Default::default()
    };
    let deleted = client.call(6, &by_id).responses.remove(0);
    assert_eq!((deleted.error_code, deleted.name.as_deref()), (ErrorCode::NONE, Some("t")));
    // The files go soon, and the rest stays, also over a restart.
    let topics = broker.dir.path().join("topics");
    let deadline = Instant::now() + LONG;
    while std::fs::read_dir(&topics).unwrap().count() > 1 {
        assert!(Instant::now() < deadline, "the files of deleted topics stay");
        std::thread::sleep(Duration::from_millis(50));
    }
    broker.process.kill().unwrap();
    broker.restart(&[]);
    let all = MetadataRequest { topics: None, ..MetadataRequest::default() };
    let names: Vec<_> = broker.connect().call(12, &all).topics.into_iter().map(|topic| topic.name).collect();
    assert_eq!(names, [Some(KString::from("kept"))]);
}

#[test]
fn metadata_by_version_and_creation_on_demand() {
    let broker = Broker::start(&["--set", "num.partitions=2"]);
    let mut client = broker.connect();
    client.create_topic("a", 1, &[]);
    let request = MetadataRequest { topics: Some(Vec::new()), ..MetadataRequest::default() };
    assert_eq!(client.call(0, &request).topics.len(), 1, "version 0: an empty list means all");
    assert_eq!(client.call(12, &request).topics.len(), 0);
    assert_eq!(metadata(&mut client, 12, &["b"], false)[0].error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    let made = metadata(&mut client, 12, &["b", "b", "a"], true);
    assert_eq!(made.len(), 2);
    assert_eq!((made[0].error_code, made[0].partitions.len()), (ErrorCode::NONE, 2));
    assert_eq!(
        metadata(&mut client, 12, &["no good"], true)[0].error_code,
        ErrorCode::INVALID_TOPIC_EXCEPTION
    );
    let by_id = MetadataRequest {
        topics: Some(vec![
            MetadataRequestTopic { name: None, topic_id: made[0].topic_id },
            MetadataRequestTopic { name: None, topic_id: Uuid([3; 16]) },
        ]),
        ..MetadataRequest::default()
    };
    let answers = client.call(12, &by_id).topics;
    assert_eq!(answers[0].name.as_deref(), Some("b"));
    assert_eq!(answers[1].error_code, ErrorCode::UNKNOWN_TOPIC_ID);
    let operations =
        MetadataRequest { topics: None, include_topic_authorized_operations: true, ..Default::default() };
    assert_eq!(client.call(12, &operations).topics[0].topic_authorized_operations, 3576);

    let strict = Broker::start(&["--set", "auto.create.topics.enable=false"]);
    let mut client = strict.connect();
    assert_eq!(metadata(&mut client, 12, &["b"], true)[0].error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
}

#[test]
fn the_cluster_its_directory_and_its_coordinators() {
    let broker = Broker::start(&["--advertised", "broker.example.org:1234", "--set", "broker.rack=r1"]);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[]);
    client.produce("t", 0, batch(&[&[1; 10_000]]));
    let cluster = client.call(1, &DescribeClusterRequest::default());
    let this = &cluster.brokers[0];
    assert_eq!(
        (this.host.as_str(), this.port, this.rack.as_deref()),
        ("broker.example.org", 1234, Some("r1"))
    );
    assert_eq!(cluster.controller_id, this.broker_id);
    assert_eq!(cluster.cluster_id.len(), 22);
    let controllers = DescribeClusterRequest { endpoint_type: 2, ..DescribeClusterRequest::default() };
    assert_eq!(client.call(1, &controllers).error_code, ErrorCode::MISMATCHED_ENDPOINT_TYPE);

    let dirs = client.call(4, &DescribeLogDirsRequest { topics: None }).results;
    let dir = std::fs::canonicalize(broker.dir.path()).unwrap();
    assert_eq!(std::fs::canonicalize(dirs[0].log_dir.as_str()).unwrap(), dir);
    assert!(dirs[0].total_bytes > dirs[0].usable_bytes && dirs[0].usable_bytes > 0);
    assert!(dirs[0].topics[0].partitions[0].partition_size > 10_000);

    let groups = FindCoordinatorRequest {
        coordinator_keys: vec!["g".into(), "h".into()],
        ..FindCoordinatorRequest::default()
    };
    let found = client.call(4, &groups).coordinators;
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|one| one.error_code.is_none() && one.port == 1234));
    let transactions = FindCoordinatorRequest { key: "x".into(), key_type: 1, ..Default::default() };
    let refused = client.call(3, &transactions);
    assert_eq!(refused.error_code, ErrorCode::INVALID_REQUEST);
    assert!(refused.error_message.unwrap().contains("ransactions"));
}

#[test]
fn partitions_are_described_in_pages() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("a", 3, &[]);
    client.create_topic("b", 3, &[]);
    let mut seen = Vec::new();
    let mut cursor = None;
    for _ in 0..5 {
        let request = DescribeTopicPartitionsRequest {
            topics: vec![TopicRequest { name: "b".into() }, TopicRequest { name: "a".into() }],
            response_partition_limit: 2,
            cursor: cursor.take(),
        };
        let response = client.call(0, &request);
        for topic in response.topics {
            let name = topic.name.unwrap();
            seen.extend(topic.partitions.iter().map(|p| (name.to_string(), p.partition_index)));
        }
        match response.next_cursor {
            Some(next) => {
                cursor = Some(DescribeTopicPartitionsRequestCursor {
                    topic_name: next.topic_name,
                    partition_index: next.partition_index,
                });
            }
            None => break,
        }
    }
    let expected: Vec<_> = ["a", "b"].iter().flat_map(|t| (0..3).map(|p| ((*t).to_owned(), p))).collect();
    assert_eq!(seen, expected);
    // A cursor has to point to something that was asked for.
    for (name, partition_index) in [("a", -1), ("b", 0), ("nowhere", 0)] {
        let request = DescribeTopicPartitionsRequest {
            topics: vec![TopicRequest { name: "a".into() }],
            response_partition_limit: 2,
            cursor: Some(DescribeTopicPartitionsRequestCursor { topic_name: name.into(), partition_index }),
        };
        let response = client.call(0, &request);
        assert_eq!(response.topics.len(), 1);
        assert_eq!(response.topics[0].error_code, ErrorCode::INVALID_REQUEST, "{name} {partition_index}");
    }
}

#[test]
fn what_is_said_of_topics_beside_an_error() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[]);
    // That the topic exists comes before what else is wrong.
    for validate_only in [true, false] {
        let answers = create(&mut client, vec![topic("t", 0, 0)], validate_only);
        assert_eq!(answers[0].error_code, ErrorCode::TOPIC_ALREADY_EXISTS);
    }
    let id = metadata(&mut client, 12, &["t"], false)[0].topic_id;
    let ask = |client: &mut Client, version: i16, name: Option<&str>, topic_id| {
        let asked = MetadataRequestTopic { topic_id, name: name.map(Into::into) };
        let request = MetadataRequest {
            topics: Some(vec![asked]),
            allow_auto_topic_creation: false,
            include_topic_authorized_operations: true,
            ..MetadataRequest::default()
        };
        client.call(version, &request)
    };
    // Operations are told of every name, of no unknown id.
    for (name, expected) in
        [("nowhere", ErrorCode::UNKNOWN_TOPIC_OR_PARTITION), ("a b", ErrorCode::INVALID_TOPIC_EXCEPTION)]
    {
        let answer = ask(&mut client, 12, Some(name), Uuid::ZERO).topics.remove(0);
        assert_eq!(answer.error_code, expected);
        assert!(answer.topic_authorized_operations > 0, "{answer:?}");
    }
    let answer = ask(&mut client, 12, None, Uuid::from_u128(7)).topics.remove(0);
    assert_eq!(
        (answer.error_code, answer.topic_authorized_operations),
        (ErrorCode::UNKNOWN_TOPIC_ID, i32::MIN)
    );
    // Versions 10 and 11 have ids, which may not be used yet: then there is nothing but the error.
    for version in [10, 11] {
        let response = ask(&mut client, version, None, id);
        assert_eq!((response.brokers.len(), response.controller_id), (0, -1));
        assert_eq!(response.topics[0].error_code, ErrorCode::INVALID_REQUEST);
        let response = ask(&mut client, version, Some("t"), Uuid::ZERO);
        assert_eq!((response.brokers.len(), response.topics[0].error_code), (1, ErrorCode::NONE));
    }
    // A directory tells nothing of topics of which no partition was asked for.
    let nothing = DescribableLogDirTopic { topic: "t".into(), partitions: vec![5] };
    let response = client.call(4, &DescribeLogDirsRequest { topics: Some(vec![nothing]) });
    assert_eq!(response.results[0].topics, vec![]);
}

#[test]
fn a_topic_that_is_named_twice_is_not_deleted() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[]);
    client.create_topic("u", 1, &[]);
    let id = metadata(&mut client, 12, &["t"], false)[0].topic_id;
    let by_name = |name: &str| DeleteTopicState { name: Some(name.into()), ..DeleteTopicState::default() };
    let by_id = |topic_id| DeleteTopicState { name: None, topic_id };
    for asked in [
        vec![by_name("t"), by_name("t")],
        vec![by_id(id), by_id(id)],
        vec![by_id(id), by_name("t")],
        vec![by_name("t"), by_id(id), by_name("t")],
        vec![DeleteTopicState { name: Some("t".into()), topic_id: id }],
        vec![by_name("nowhere"), by_name("nowhere")],
        vec![by_id(Uuid::from_u128(7)), by_id(Uuid::from_u128(7))],
    ] {
        let request = DeleteTopicsRequest { topics: asked, timeout_ms: 10_000, ..Default::default() };
        let answers = client.call(6, &request).responses;
        assert_eq!(answers.len(), 1, "{answers:?}");
        assert_eq!(answers[0].error_code, ErrorCode::INVALID_REQUEST, "{answers:?}");
        assert_eq!(metadata(&mut client, 12, &["t"], false)[0].topic_id, id);
    }
    // One that contradicts itself does not take the others along.
    let asked = vec![by_name("t"), by_name("u"), by_name("t")];
    let request = DeleteTopicsRequest { topics: asked, timeout_ms: 10_000, ..Default::default() };
    let answers = client.call(6, &request).responses;
    let codes: Vec<_> = answers.iter().map(|answer| answer.error_code).collect();
    assert_eq!(codes, [ErrorCode::INVALID_REQUEST, ErrorCode::NONE]);
    let names = ["a".into(), "a".into()];
    let request =
        DeleteTopicsRequest { topic_names: names.to_vec(), timeout_ms: 10_000, ..Default::default() };
    assert_eq!(client.call(5, &request).responses[0].error_code, ErrorCode::INVALID_REQUEST);
}

#[test]
fn one_request_creates_at_most_ten_thousand_partitions() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    let answers = create(&mut client, vec![topic("a", 10_000, 1), topic("b", 1, 1)], true);
    assert!(answers.iter().all(|answer| answer.error_code == ErrorCode::POLICY_VIOLATION), "{answers:?}");
    let answers = create(&mut client, vec![topic("a", 9_999, 1), topic("b", 1, 1)], true);
    assert!(answers.iter().all(|answer| answer.error_code == ErrorCode::NONE), "{answers:?}");
}
