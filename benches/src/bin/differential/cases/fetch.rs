//! Fetch: positions, limits, epochs, sessions.

use kaas_protocol::messages::fetch::{FetchPartition, FetchTopic, ForgottenTopic};
use kaas_protocol::{FetchRequest, Uuid};

use super::super::batches::batch;
use super::super::side::Side;
use super::produce::produce_request;

pub fn fetch_request(topic: &str, partition: i32, offset: i64) -> FetchRequest {
    let partition = FetchPartition {
        partition,
        fetch_offset: offset,
        partition_max_bytes: 1 << 20,
        ..Default::default()
    };
    let topic = FetchTopic { topic: topic.into(), partitions: vec![partition], ..Default::default() };
    FetchRequest {
        max_wait_ms: 0,
        min_bytes: 0,
        max_bytes: 1 << 20,
        topics: vec![topic],
        ..Default::default()
    }
}

/// The request as the version says it: the topic by name or by id.
fn addressed(version: i16, mut request: FetchRequest, id: Uuid) -> FetchRequest {
    if version >= 13 {
        for topic in &mut request.topics {
            topic.topic_id = id;
        }
    }
    request
}

fn filled(side: &mut Side, suffix: &str, partitions: i32, configs: &[(&str, &str)]) -> (String, Uuid) {
    let name = side.topic(suffix, partitions, configs);
    let id = side.topic_id(&name);
    for round in 0..4 {
        let value = "v".repeat(100 * (round + 1));
        side.ask(9, &produce_request(&name, 0, -1, batch(&[&value, "b", "c"]))).unwrap();
    }
    (name, id)
}

const UNKNOWN: Uuid = Uuid::from_u128(0x1234_5678_9abc_def0_1234_5678_9abc_def0);

pub fn happy(side: &mut Side) {
    let (name, id) = filled(side, "t", 2, &[]);
    for offset in [0, 1, 2, 3, 5, 11, 12] {
        for isolation_level in [0, 1] {
            side.note(format!("from {offset}, isolation {isolation_level}"));
            side.every(|_, version| {
                let mut request = addressed(version, fetch_request(&name, 0, offset), id);
                request.isolation_level = isolation_level;
                request
            });
        }
    }
    side.note("empty partition");
    side.every(|_, version| addressed(version, fetch_request(&name, 1, 0), id));
    side.note("nothing");
    side.every(|_, _| FetchRequest { max_wait_ms: 0, min_bytes: 0, ..Default::default() });
    side.note("no partitions");
    side.every(|_, version| {
        let mut request = addressed(version, fetch_request(&name, 0, 0), id);
        request.topics[0].partitions.clear();
        request
    });
    side.note("waits for nothing");
    side.every(|_, version| {
        let mut request = addressed(version, fetch_request(&name, 0, 12), id);
        (request.max_wait_ms, request.min_bytes) = (50, 1);
        request
    });
    side.note("waits for too much");
    side.every(|_, version| {
        let mut request = addressed(version, fetch_request(&name, 0, 3), id);
        (request.max_wait_ms, request.min_bytes) = (50, 1 << 20);
        request
    });
}

pub fn errors(side: &mut Side) {
    let (name, id) = filled(side, "t", 2, &[]);
    let unknown = side.name("unknown");
    for offset in [13, 100, -1, -2, -3, i64::MAX, i64::MIN] {
        side.note(format!("from {offset}"));
        side.every(|_, version| addressed(version, fetch_request(&name, 0, offset), id));
    }
    for partition in [2, -1, i32::MAX] {
        side.note(format!("partition {partition}"));
        side.every(|_, version| addressed(version, fetch_request(&name, partition, 0), id));
    }
    side.note("unknown topic");
    side.every(|_, version| addressed(version, fetch_request(&unknown, 0, 0), UNKNOWN));
    side.note("zero id, empty name");
    side.every(|_, version| addressed(version, fetch_request("", 0, 0), Uuid::ZERO));
    side.note("bad name");
    side.every(|_, version| addressed(version, fetch_request("a b", 0, 0), UNKNOWN));
    for isolation in [2, -1, 127] {
        side.note(format!("isolation {isolation}"));
        side.every(|_, version| {
            let mut request = addressed(version, fetch_request(&name, 0, 0), id);
            request.isolation_level = isolation;
            request
        });
    }
    for (note, offset, with_unknown) in [
        ("out of range", 100, false),
        ("one out of range and an unknown partition", 100, true),
        ("at the end and an unknown partition", 12, true),
        ("at the end", 12, false),
    ] {
        side.note(note);
        for version in [4, 12, 17] {
            let mut request = addressed(version, fetch_request(&name, 0, offset), id);
            (request.max_wait_ms, request.min_bytes) = (600, 1);
            if with_unknown {
                let other = FetchPartition { partition: 9, ..request.topics[0].partitions[0].clone() };
                request.topics[0].partitions.push(other);
            }
            let began = std::time::Instant::now();
            side.call(version, &request);
            side.write_noted("Fetch", version, "waited", &(began.elapsed().as_millis() >= 500));
        }
    }
    side.note("partition twice");
    side.every(|_, version| {
        let mut request = addressed(version, fetch_request(&name, 0, 3), id);
        let again = FetchPartition { fetch_offset: 6, ..request.topics[0].partitions[0].clone() };
        request.topics[0].partitions.push(again);
        request
    });
    side.note("topic twice");
    side.every(|_, version| {
        let mut request = addressed(version, fetch_request(&name, 0, 3), id);
        let mut again = request.topics[0].clone();
        again.partitions[0].partition = 1;
        again.partitions[0].fetch_offset = 0;
        request.topics.push(again);
        request
    });
    side.note("follower");
    for replica in [1, 2, -2, -3] {
        side.note(format!("replica {replica}"));
        side.every(|_, version| {
            let mut request = addressed(version, fetch_request(&name, 0, 0), id);
            if version >= 15 {
                request.replica_state.replica_id = replica;
            } else {
                request.replica_id = replica;
            }
            request
        });
    }
}

pub fn limits(side: &mut Side) {
    let (name, id) = filled(side, "t", 2, &[]);
    side.ask(9, &produce_request(&name, 1, -1, batch(&[&"w".repeat(300)]))).unwrap();
    for partition_max in [-1, 0, 1, 200, 400, 600, i32::MAX] {
        for max in [-1, 0, 1, 300, 500, 1000, i32::MAX] {
            for wait in [0, 20] {
                side.note(format!("partition {partition_max}, all {max}, wait {wait}"));
                for version in [4, 11, 12, 17] {
                    let mut request = addressed(version, fetch_request(&name, 0, 0), id);
                    request.max_bytes = max;
                    (request.max_wait_ms, request.min_bytes) = (wait, 1);
                    request.topics[0].partitions[0].partition_max_bytes = partition_max;
                    let other = FetchPartition { partition: 1, ..request.topics[0].partitions[0].clone() };
                    request.topics[0].partitions.push(other);
                    side.call(version, &request);
                }
            }
        }
    }
    for (wait, min) in [(-1, 1), (0, -1), (i32::MIN, i32::MIN), (10, i32::MAX)] {
        side.note(format!("wait {wait}, min {min}"));
        let mut request = fetch_request(&name, 0, 12);
        (request.max_wait_ms, request.min_bytes) = (wait, min);
        side.call(12, &request);
    }
}

pub fn epochs(side: &mut Side) {
    let (name, id) = filled(side, "t", 1, &[]);
    let epoch = side.epoch;
    let mut ask = |note: String, current: i32, last: i32, offset: i64| {
        for version in [9, 11, 12, 15, 16, 17] {
            side.note(note.as_str());
            let mut request = addressed(version, fetch_request(&name, 0, offset), id);
            request.topics[0].partitions[0].current_leader_epoch = current;
            if version >= 12 {
                request.topics[0].partitions[0].last_fetched_epoch = last;
            }
            side.call(version, &request);
        }
    };
    for (note, current) in
        [("current", epoch), ("none", -1), ("next", epoch + 1), ("-2", -2), ("last", i32::MAX)]
    {
        ask(format!("current epoch: {note}"), current, -1, 3);
        ask(format!("current epoch: {note}, out of range"), current, -1, 300);
    }
    for (note, last) in
        [("current", epoch), ("none", -1), ("next", epoch + 1), ("-2", -2), ("last", i32::MAX)]
    {
        for offset in [0, 3, 12, 13, 300, -1] {
            ask(format!("last fetched epoch: {note}, from {offset}"), epoch, last, offset);
        }
    }
}

pub fn sessions(side: &mut Side) {
    let (name, id) = filled(side, "t", 3, &[]);
    let (other, other_id) = filled(side, "u", 1, &[]);
    let unknown = side.name("unknown");
    for version in [7, 12, 13, 17] {
        let session = |session_id, session_epoch, topics: Vec<FetchTopic>| FetchRequest {
            max_wait_ms: 0,
            min_bytes: 0,
            max_bytes: 1 << 20,
            session_id,
            session_epoch,
            topics,
            ..Default::default()
        };
        let of = |name: &str, id: Uuid, partitions: &[(i32, i64)]| FetchTopic {
            topic: name.into(),
            topic_id: if version >= 13 { id } else { Uuid::ZERO },
            partitions: partitions
                .iter()
                .map(|(partition, fetch_offset)| FetchPartition {
                    partition: *partition,
                    fetch_offset: *fetch_offset,
                    partition_max_bytes: 1 << 20,
                    ..Default::default()
                })
                .collect(),
        };
        let forget = |name: &str, id: Uuid, partitions: &[i32]| ForgottenTopic {
            topic: name.into(),
            topic_id: if version >= 13 { id } else { Uuid::ZERO },
            partitions: partitions.to_vec(),
        };
        for (note, id_asked, epoch_asked) in [
            ("id 0, epoch -1", 0, -1),
            ("id 0, epoch 5", 0, 5),
            ("unknown id, epoch 0", 77, 0),
            ("unknown id, epoch 1", 77, 1),
            ("unknown id, epoch -1", 77, -1),
            ("negative id", -5, 3),
            ("epoch -2", 0, -2),
            ("unknown id, epoch -2", 77, -2),
        ] {
            side.note(note);
            side.call(version, &session(id_asked, epoch_asked, vec![of(&name, id, &[(0, 9)])]));
        }
        side.note("opens");
        let first = session(0, 0, vec![of(&name, id, &[(0, 9), (1, 0)]), of(&other, other_id, &[(0, 12)])]);
        let opened = side.call(version, &first).unwrap().session_id;
        let mut epoch = 0;
        let mut next =
            |side: &mut Side, note: &str, topics: Vec<FetchTopic>, forgotten: Vec<ForgottenTopic>| {
                epoch += 1;
                side.note(note);
                let request =
                    FetchRequest { forgotten_topics_data: forgotten, ..session(opened, epoch, topics) };
                side.call(version, &request);
            };
        next(side, "same again", vec![], vec![]);
        next(side, "moves on", vec![of(&name, id, &[(0, 12)])], vec![]);
        next(side, "nothing new", vec![], vec![]);
        side.ask(9, &produce_request(&name, 1, -1, batch(&["n"]))).unwrap();
        next(side, "news", vec![], vec![]);
        next(side, "news again", vec![], vec![]);
        next(side, "moves on again", vec![of(&name, id, &[(1, 1)])], vec![]);
        next(side, "adds", vec![of(&name, id, &[(2, 0)])], vec![]);
        next(side, "adds one out of range", vec![of(&name, id, &[(2, 50)])], vec![]);
        next(side, "still out of range", vec![], vec![]);
        next(side, "forgets it", vec![], vec![forget(&name, id, &[2])]);
        next(
            side,
            "forgets what is not there",
            vec![],
            vec![forget(&name, id, &[2, 9]), forget(&unknown, UNKNOWN, &[0])],
        );
        next(side, "adds an unknown topic", vec![of(&unknown, UNKNOWN, &[(0, 0)])], vec![]);
        next(side, "and again", vec![], vec![]);
        next(side, "adds an unknown partition", vec![of(&name, id, &[(9, 0)])], vec![]);
        next(side, "and again", vec![], vec![]);
        next(side, "adds and forgets one", vec![of(&name, id, &[(9, 0)])], vec![forget(&name, id, &[9])]);
        next(
            side,
            "forgets all",
            vec![],
            vec![
                forget(&name, id, &[0, 1, 9]),
                forget(&other, other_id, &[0]),
                forget(&unknown, UNKNOWN, &[0]),
            ],
        );
        next(side, "nothing left", vec![], vec![]);
        side.note("wrong epoch");
        side.call(version, &session(opened, 1, vec![]));
        side.note("far epoch");
        side.call(version, &session(opened, 1000, vec![]));
        side.note("closes");
        side.call(version, &session(opened, -1, vec![of(&name, id, &[(0, 12)])]));
        side.note("closed");
        side.call(version, &session(opened, epoch + 1, vec![]));
        side.note("opens again, with an error");
        let opened = side.call(version, &session(0, 0, vec![of(&name, id, &[(0, 99)])])).unwrap().session_id;
        side.note("the error again");
        side.call(version, &session(opened, 1, vec![]));
        side.note("replaced by a new one");
        let replaced =
            side.call(version, &session(opened, 0, vec![of(&name, id, &[(0, 12)])])).unwrap().session_id;
        side.note("the old one");
        side.call(version, &session(opened, 2, vec![]));
        side.note("the new one");
        side.call(version, &session(replaced, 1, vec![]));
        // The partition that news go to starts anew for the next version.
        let topics = vec![kaas_protocol::messages::delete_records::DeleteRecordsTopic {
            name: name.as_str().into(),
            partitions: vec![kaas_protocol::messages::delete_records::DeleteRecordsPartition {
                partition_index: 1,
                offset: -1,
            }],
        }];
        side.ask(2, &kaas_protocol::DeleteRecordsRequest { topics, timeout_ms: 5_000 });
        if version < 13 {
            side.note("version changes inside a session");
            let opened =
                side.call(version, &session(0, 0, vec![of(&name, id, &[(0, 12)])])).unwrap().session_id;
            side.call(13, &session(opened, 1, vec![]));
        }
    }
}
