//! Creating, deleting, growing topics; their metadata.

use kaas_protocol::messages::create_partitions::{CreatePartitionsAssignment, CreatePartitionsTopic};
use kaas_protocol::messages::create_topics::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig,
};
use kaas_protocol::messages::delete_topics::DeleteTopicState;
use kaas_protocol::messages::describe_topic_partitions::{
    DescribeTopicPartitionsRequestCursor, TopicRequest,
};
use kaas_protocol::messages::metadata::MetadataRequestTopic;
use kaas_protocol::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, DescribeTopicPartitionsRequest,
    MetadataRequest, Uuid,
};

use super::super::side::Side;

fn create_request(topics: Vec<CreatableTopic>, validate_only: bool) -> CreateTopicsRequest {
    CreateTopicsRequest { topics, timeout_ms: 10_000, validate_only }
}

fn topic(name: &str, num_partitions: i32, replication_factor: i16) -> CreatableTopic {
    CreatableTopic { name: name.into(), num_partitions, replication_factor, ..Default::default() }
}

/// Sends it as it is and as a question; ids of what came to be get names.
fn both(side: &mut Side, version: i16, topics: &[CreatableTopic]) {
    // Very many partitions are only asked about.
    let heavy = topics.iter().any(|topic| topic.num_partitions > 1_000);
    for validate_only in [true, false].into_iter().filter(|validate_only| *validate_only || !heavy) {
        if let Ok(mut response) = side.try_ask(version, &create_request(topics.to_vec(), validate_only)) {
            for topic in &response.topics {
                if !topic.topic_id.is_zero() {
                    side.alias(topic.topic_id, &format!("id of {}", topic.name.as_str()));
                }
            }
            use super::super::side::Sorted;
            response.sort(side);
            side.write_noted("CreateTopics", version, &format!("validate_only {validate_only}"), &response);
        } else {
            side.write_noted("CreateTopics", version, &format!("validate_only {validate_only}"), &"closed");
        }
    }
}

pub fn create(side: &mut Side) {
    for version in side.versions::<CreateTopicsRequest>() {
        let mut number = 0;
        for partitions in [1, 3, 0, -1, -2, 10_001, i32::MIN] {
            for factor in [1, -1, 0, -2, 2, 3, i16::MAX] {
                number += 1;
                let name = side.name(&format!("v{version}-{number}"));
                side.note(format!("{partitions} partitions, factor {factor}"));
                both(side, version, &[topic(&name, partitions, factor)]);
            }
        }
        side.note("no topics");
        both(side, version, &[]);
        let name = side.name(&format!("v{version}-exists"));
        side.note("first time");
        both(side, version, &[topic(&name, 2, 1)]);
        side.note("second time");
        both(side, version, &[topic(&name, 2, 1)]);
        side.note("second time with errors");
        both(side, version, &[topic(&name, 0, 1)]);
        let other = side.name(&format!("v{version}-other"));
        side.note("one good, one bad, one there");
        both(side, version, &[topic(&other, 1, 1), topic("bad name", 1, 1), topic(&name, 1, 1)]);
    }
}

pub fn names(side: &mut Side) {
    let dotted = side.name("a.b_c");
    let version = side.max::<CreateTopicsRequest>();
    side.note("dots and underscores");
    both(side, version, &[topic(&dotted, 1, 1)]);
    for collision in ["a_b_c", "a.b.c", "a_b.c"] {
        let name = side.name(collision);
        side.note(format!("collides {collision}"));
        both(side, version, &[topic(&name, 1, 1)]);
    }
    let (one, two) = (side.name("x.y"), side.name("x_y"));
    side.note("collision inside one request");
    both(side, version, &[topic(&one, 1, 1), topic(&two, 1, 1)]);
    let long = "l".repeat(250);
    let longest = format!("{:l<249}", side.name("longest"));
    let bad = [
        "",
        ".",
        "..",
        "...",
        "a b",
        "a/b",
        "a:b",
        "é",
        "a\u{0}b",
        "a,b",
        "a\"b",
        "a=b",
        long.as_str(),
        longest.as_str(),
        "__consumer_offsets",
        "__cluster_metadata",
        "__transaction_state",
        "__share_group_state",
    ];
    let dots = format!("...{}", side.name(""));
    let bad = bad.iter().map(|name| if *name == "..." { dots.as_str() } else { name });
    for (index, name) in bad.enumerate() {
        side.note(format!("name {index} '{}'", name.chars().take(20).collect::<String>()));
        if name.starts_with("__") {
            side.call(version, &create_request(vec![topic(name, 1, 1)], true));
        } else {
            both(side, version, &[topic(name, 1, 1)]);
        }
    }
    side.note("mixed case is another name");
    let name = side.name("A.B_C");
    both(side, version, &[topic(&name, 1, 1)]);
}

fn assigned(name: &str, partitions: i32, factor: i16, assignments: &[(i32, &[i32])]) -> CreatableTopic {
    let assignments = assignments.iter().map(|(partition_index, broker_ids)| CreatableReplicaAssignment {
        partition_index: *partition_index,
        broker_ids: broker_ids.to_vec(),
    });
    CreatableTopic { assignments: assignments.collect(), ..topic(name, partitions, factor) }
}

pub fn assignments(side: &mut Side) {
    let version = side.max::<CreateTopicsRequest>();
    let cases: &[(&str, i32, i16, &[(i32, &[i32])])] = &[
        ("good", -1, -1, &[(0, &[1]), (1, &[1])]),
        ("unordered", -1, -1, &[(1, &[1]), (0, &[1])]),
        ("with partitions", 2, -1, &[(0, &[1]), (1, &[1])]),
        ("with factor", -1, 1, &[(0, &[1])]),
        ("with both", 1, 1, &[(0, &[1])]),
        ("gap", -1, -1, &[(0, &[1]), (2, &[1])]),
        ("from 1", -1, -1, &[(1, &[1])]),
        ("negative", -1, -1, &[(-1, &[1])]),
        ("twice", -1, -1, &[(0, &[1]), (0, &[1])]),
        ("empty list", -1, -1, &[(0, &[])]),
        ("unknown broker", -1, -1, &[(0, &[99])]),
        ("negative broker", -1, -1, &[(0, &[-1])]),
        ("broker twice", -1, -1, &[(0, &[1, 1])]),
        ("two brokers", -1, -1, &[(0, &[1, 2])]),
        ("different factors", -1, -1, &[(0, &[1]), (1, &[1, 2])]),
    ];
    for (index, (note, partitions, factor, assignments)) in cases.iter().enumerate() {
        let name = side.name(&format!("t{index}"));
        side.note(*note);
        both(side, version, &[assigned(&name, *partitions, *factor, assignments)]);
    }
}

pub fn duplicates(side: &mut Side) {
    let (a, b) = (side.name("a"), side.name("b"));
    let config = |name: &str, value: Option<&str>| CreatableTopicConfig {
        name: name.into(),
        value: value.map(Into::into),
    };
    for version in side.versions::<CreateTopicsRequest>() {
        side.note("one name twice");
        both(side, version, &[topic(&a, 1, 1), topic(&a, 2, 1)]);
        side.note("one name twice, another once");
        let third = side.name(&format!("c{version}"));
        both(side, version, &[topic(&a, 1, 1), topic(&third, 1, 1), topic(&a, 2, 1)]);
        side.note("one config twice");
        let name = side.name(&format!("d{version}"));
        let configs = vec![config("retention.ms", Some("1000")), config("retention.ms", Some("2000"))];
        both(side, version, &[CreatableTopic { configs, ..topic(&name, 1, 1) }]);
        side.note("null config");
        let configs = vec![config("retention.ms", None)];
        both(side, version, &[CreatableTopic { configs, ..topic(&b, 1, 1) }]);
        side.note("two null configs and an unknown one");
        let configs =
            vec![config("retention.ms", None), config("retention.bytes", None), config("what", Some("x"))];
        both(side, version, &[CreatableTopic { configs, ..topic(&b, 1, 1) }]);
        side.note("unknown config");
        both(
            side,
            version,
            &[CreatableTopic { configs: vec![config("what", Some("x"))], ..topic(&b, 1, 1) }],
        );
    }
}

pub fn delete(side: &mut Side) {
    for version in 1..=5 {
        let (a, b) = (side.topic(&format!("a{version}"), 1, &[]), side.topic(&format!("b{version}"), 2, &[]));
        let unknown = side.name("unknown");
        let mut ask = |note: &str, names: &[&str]| {
            side.note(note);
            let topic_names = names.iter().map(|name| (*name).into()).collect();
            side.call(
                version,
                &DeleteTopicsRequest { topic_names, timeout_ms: 10_000, ..Default::default() },
            );
        };
        ask("nothing", &[]);
        ask("unknown", &[&unknown]);
        ask("bad names", &["", "a b", ".", &"x".repeat(300)]);
        ask("one twice", &[&a, &a]);
        ask("unknown twice", &[&unknown, &unknown]);
        ask("two and an unknown one", &[&a, &unknown, &b]);
        ask("again", &[&a, &b]);
    }
    let id = |topic_id: Uuid| DeleteTopicState { name: None, topic_id };
    let name = |name: &str| DeleteTopicState { name: Some(name.into()), topic_id: Uuid::ZERO };
    let names: Vec<String> = (0..8).map(|n| side.topic(&format!("t{n}"), 1, &[])).collect();
    let ids: Vec<Uuid> = names.iter().map(|name| side.topic_id(name)).collect();
    let unknown_id = Uuid::from_u128(0x1234_5678_9abc_def0_1234_5678_9abc_def0);
    let unknown = side.name("unknown");
    let mut ask = |note: &str, topics: Vec<DeleteTopicState>| {
        side.note(note);
        side.call(6, &DeleteTopicsRequest { topics, timeout_ms: 10_000, ..Default::default() });
    };
    ask("nothing", vec![]);
    ask("neither", vec![DeleteTopicState { name: None, topic_id: Uuid::ZERO }]);
    ask("both", vec![DeleteTopicState { name: Some(names[0].as_str().into()), topic_id: ids[0] }]);
    ask(
        "both, of different topics",
        vec![DeleteTopicState { name: Some(names[0].as_str().into()), topic_id: ids[1] }],
    );
    ask("unknown id", vec![id(unknown_id)]);
    ask("unknown id twice", vec![id(unknown_id), id(unknown_id)]);
    ask("unknown name", vec![name(&unknown)]);
    ask("id twice", vec![id(ids[0]), id(ids[0])]);
    ask("name twice", vec![name(&names[0]), name(&names[0])]);
    ask("id and name of one", vec![id(ids[0]), name(&names[0])]);
    ask("still there", vec![name(&names[0])]);
    ask("id of one, name of another", vec![id(ids[1]), name(&names[2])]);
    ask("ids and names with unknown ones", vec![id(ids[3]), name(&unknown), id(unknown_id), name(&names[4])]);
    ask("zero id", vec![id(Uuid::ZERO), name(&names[5])]);
    ask("timeout 0", vec![name(&names[6])]);
    side.note("negative timeout");
    side.call(
        6,
        &DeleteTopicsRequest { topics: vec![name(&names[7])], timeout_ms: -1, ..Default::default() },
    );
}

pub fn grow(side: &mut Side) {
    let unknown = side.name("unknown");
    let assign = |lists: &[&[i32]]| {
        Some(
            lists
                .iter()
                .map(|list| CreatePartitionsAssignment { broker_ids: list.to_vec() })
                .collect::<Vec<_>>(),
        )
    };
    for version in side.versions::<CreatePartitionsRequest>() {
        let a = side.topic(&format!("a{version}"), 2, &[]);
        let b = side.topic(&format!("b{version}"), 2, &[]);
        let of = |name: &str, count, assignments: Option<Vec<CreatePartitionsAssignment>>| {
            CreatePartitionsTopic { name: name.into(), count, assignments }
        };
        let mut ask = |note: &str, topics: Vec<CreatePartitionsTopic>| {
            for validate_only in [true, false] {
                if !validate_only && note == "very many" {
                    continue;
                }
                side.note(format!("{note}, validate_only {validate_only}"));
                side.call(
                    version,
                    &CreatePartitionsRequest { topics: topics.clone(), timeout_ms: 10_000, validate_only },
                );
            }
        };
        ask("nothing", vec![]);
        ask("unknown", vec![of(&unknown, 3, None)]);
        ask("bad name", vec![of("a b", 3, None)]);
        ask("no name", vec![of("", 3, None)]);
        ask("same", vec![of(&a, 2, None)]);
        ask("fewer", vec![of(&a, 1, None)]);
        ask("zero", vec![of(&a, 0, None)]);
        ask("negative", vec![of(&a, -1, None)]);
        ask("more", vec![of(&a, 3, None)]);
        ask("twice", vec![of(&a, 4, None), of(&a, 5, None)]);
        ask("twice and another", vec![of(&a, 4, None), of(&a, 5, None), of(&b, 3, None)]);
        ask("two, one bad", vec![of(&a, 4, None), of(&b, 1, None)]);
        ask("very many", vec![of(&a, 20_000, None)]);
        ask("assigned", vec![of(&a, 5, assign(&[&[1]]))]);
        ask("too few assigned", vec![of(&a, 7, assign(&[&[1]]))]);
        ask("too many assigned", vec![of(&a, 6, assign(&[&[1], &[1]]))]);
        ask("none assigned", vec![of(&a, 6, assign(&[]))]);
        ask("empty assigned", vec![of(&a, 6, assign(&[&[]]))]);
        ask("unknown broker", vec![of(&a, 6, assign(&[&[99]]))]);
        ask("broker twice", vec![of(&a, 6, assign(&[&[1, 1]]))]);
        ask("two brokers", vec![of(&a, 6, assign(&[&[1, 2]]))]);
        ask("different factors", vec![of(&a, 7, assign(&[&[1], &[1, 2]]))]);
    }
}

pub fn metadata(side: &mut Side) {
    let a = side.topic("a", 3, &[]);
    let b = side.topic("b", 1, &[]);
    let id = side.topic_id(&a);
    let unknown_id = Uuid::from_u128(0x1234_5678_9abc_def0_1234_5678_9abc_def0);
    let unknown = side.name("unknown");
    let by = |name: Option<&str>, topic_id| MetadataRequestTopic { topic_id, name: name.map(Into::into) };
    let long = "x".repeat(300);
    let lists: Vec<(&str, Vec<MetadataRequestTopic>)> = vec![
        ("one", vec![by(Some(&a), Uuid::ZERO)]),
        ("two", vec![by(Some(&b), Uuid::ZERO), by(Some(&a), Uuid::ZERO)]),
        ("twice", vec![by(Some(&b), Uuid::ZERO), by(Some(&b), Uuid::ZERO)]),
        ("unknown", vec![by(Some(&unknown), Uuid::ZERO)]),
        ("unknown and known", vec![by(Some(&unknown), Uuid::ZERO), by(Some(&b), Uuid::ZERO)]),
        ("bad", vec![by(Some("a b"), Uuid::ZERO)]),
        ("empty name", vec![by(Some(""), Uuid::ZERO)]),
        ("dot", vec![by(Some("."), Uuid::ZERO)]),
        ("long", vec![by(Some(&long), Uuid::ZERO)]),
        ("by id", vec![by(None, id)]),
        ("by id and name", vec![by(Some(&a), id)]),
        ("by unknown id", vec![by(None, unknown_id)]),
        ("by unknown id, twice", vec![by(None, unknown_id), by(None, unknown_id)]),
        ("by zero id", vec![by(None, Uuid::ZERO)]),
        ("id, unknown id", vec![by(None, id), by(None, unknown_id)]),
        ("id and a name", vec![by(None, id), by(Some(&b), Uuid::ZERO)]),
    ];
    for (note, topics) in lists {
        for operations in [false, true] {
            side.note(format!("{note}, operations {operations}"));
            // Versions below 4 create what they ask for; kaas has it at once, Kafka a moment later.
            let creates = |version: i16| version < 4 && note.contains("unknown");
            let versions = side.versions::<MetadataRequest>();
            for version in versions.into_iter().filter(|version| !creates(*version)) {
                let request = MetadataRequest {
                    topics: Some(topics.clone()),
                    allow_auto_topic_creation: version < 4,
                    include_cluster_authorized_operations: operations && (8..=10).contains(&version),
                    include_topic_authorized_operations: operations && version >= 8,
                };
                side.call(version, &request);
            }
        }
    }
    side.note("no topics");
    side.every(|_, version| MetadataRequest {
        topics: if version == 0 { None } else { Some(vec![]) },
        ..Default::default()
    });
    let before = side.versions::<MetadataRequest>();
    for version in before {
        let request =
            MetadataRequest { topics: if version == 0 { Some(vec![]) } else { None }, ..Default::default() };
        if let Some(mut response) = side.ask(version, &request) {
            let prefix = side.name("");
            response.topics.retain(|topic| topic.name.as_ref().is_some_and(|name| name.starts_with(&prefix)));
            response.topics.sort_by_key(|topic| format!("{:?}", topic.name));
            for topic in &mut response.topics {
                topic.partitions.sort_by_key(|partition| partition.partition_index);
            }
            side.write_noted("Metadata", version, "all topics", &response);
        }
    }
    for version in [0, 1, 4, 9, 12] {
        let fresh = side.name(&format!("auto{version}"));
        side.note("creates a topic");
        for _ in 0..2 {
            let request =
                MetadataRequest { topics: Some(vec![by(Some(&fresh), Uuid::ZERO)]), ..Default::default() };
            if let Some(response) = side.ask(version, &request) {
                side.write_noted(
                    "Metadata",
                    version,
                    "creates a topic: code",
                    &response.topics[0].error_code,
                );
            }
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
    }
    side.note("auto create of bad names");
    let request = MetadataRequest {
        topics: Some(vec![by(Some("a b"), Uuid::ZERO), by(Some(&long), Uuid::ZERO)]),
        ..Default::default()
    };
    side.call(12, &request);
    side.note("auto create of a collision");
    let dotted = side.topic("p.q", 1, &[]).replace("p.q", "p_q");
    let request = MetadataRequest { topics: Some(vec![by(Some(&dotted), Uuid::ZERO)]), ..Default::default() };
    side.call(12, &request);
}

pub fn describe_partitions(side: &mut Side) {
    let a = side.topic("a", 3, &[]);
    let b = side.topic("b", 2, &[]);
    let unknown = side.name("unknown");
    let mut ask = |note: &str, names: &[&str], limit: i32, cursor: Option<(&str, i32)>| {
        side.note(note);
        let request = DescribeTopicPartitionsRequest {
            topics: names.iter().map(|name| TopicRequest { name: (*name).into() }).collect(),
            response_partition_limit: limit,
            cursor: cursor.map(|(name, partition_index)| DescribeTopicPartitionsRequestCursor {
                topic_name: name.into(),
                partition_index,
            }),
        };
        side.call(0, &request);
    };
    ask("two", &[&b, &a], 2000, None);
    ask("twice", &[&b, &b], 2000, None);
    ask("unknown", &[&unknown, &a], 2000, None);
    ask("bad", &["a b", "", "."], 2000, None);
    ask("limit 1", &[&a, &b], 1, None);
    ask("limit 3", &[&a, &b], 3, None);
    ask("limit 4", &[&a, &b], 4, None);
    ask("limit 0", &[&a, &b], 0, None);
    ask("limit -1", &[&a, &b], -1, None);
    ask("limit huge", &[&a, &b], i32::MAX, None);
    ask("cursor", &[&a, &b], 2000, Some((&a, 1)));
    ask("cursor and limit", &[&a, &b], 2, Some((&a, 1)));
    ask("cursor at the second", &[&a, &b], 2, Some((&b, 1)));
    ask("cursor beyond", &[&a, &b], 2, Some((&b, 9)));
    ask("cursor on an unknown topic", &[&a, &b], 2, Some((&unknown, 0)));
    ask("cursor negative", &[&a, &b], 2, Some((&a, -1)));
    ask("cursor not asked for", &[&b], 2, Some((&a, 0)));
}
