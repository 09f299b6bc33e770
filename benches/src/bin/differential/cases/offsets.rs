//! ListOffsets, OffsetForLeaderEpoch, DeleteRecords.

use kaas_protocol::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use kaas_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use kaas_protocol::messages::offset_for_leader_epoch::{OffsetForLeaderPartition, OffsetForLeaderTopic};
use kaas_protocol::{DeleteRecordsRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest};

use super::super::batches::{batch_at, compressed, now};
use super::super::side::Side;
use super::produce::produce_request;

pub fn list(side: &mut Side) {
    let t = side.topic("t", 2, &[]);
    let unknown = side.name("unknown");
    for n in 0..3 {
        side.ask(9, &produce_request(&t, 0, -1, batch_at(now() + n * 1_000, &["a", "b", "c"]))).unwrap();
    }
    // A batch that is older than those before it.
    side.ask(9, &produce_request(&t, 0, -1, batch_at(now() - 5_000, &["old", "older"]))).unwrap();
    side.ask(
        9,
        &produce_request(&t, 0, -1, compressed(kaas_engine::batch::Compression::Gzip, &["z1", "z2"])),
    )
    .unwrap();
    let request =
        |name: &str, partitions: &[(i32, i64, i32)], replica_id, isolation_level| ListOffsetsRequest {
            replica_id,
            isolation_level,
            topics: vec![ListOffsetsTopic {
                name: name.into(),
                partitions: partitions
                    .iter()
                    .map(|(partition_index, timestamp, current_leader_epoch)| ListOffsetsPartition {
                        partition_index: *partition_index,
                        timestamp: *timestamp,
                        current_leader_epoch: *current_leader_epoch,
                    })
                    .collect(),
            }],
            timeout_ms: 1_000,
        };
    let times: Vec<(String, i64)> = [-1, -2, -3, -4, -5, -6, -7, -100, i64::MIN, 0, 1, i64::MAX]
        .iter()
        .map(|t| (t.to_string(), *t))
        .chain(
            [-5_001, -5_000, -4_999, -1, 0, 1, 2, 3, 999, 1_000, 1_001, 2_002, 2_003]
                .iter()
                .map(|d| (format!("base {d}"), now() + d)),
        )
        .collect();
    for (note, timestamp) in &times {
        for partition in [0, 1] {
            for isolation in [0, 1] {
                side.note(format!("time {note}, partition {partition}, isolation {isolation}"));
                side.every(|_, version| {
                    let isolation = if version >= 2 { isolation } else { 0 };
                    request(&t, &[(partition, *timestamp, -1)], -1, isolation)
                });
            }
        }
    }
    let epoch = side.epoch;
    for (note, asked) in [("current", epoch), ("next", epoch + 1), ("-2", -2)] {
        for timestamp in [-1, -2, 0] {
            side.note(format!("epoch {note}, time {timestamp}"));
            side.every(|_, _| request(&t, &[(0, timestamp, asked)], -1, 0));
        }
    }
    for replica in [-2, -3, 1, 2] {
        for timestamp in [-1, -2, -4] {
            side.note(format!("replica {replica}, time {timestamp}"));
            side.every(|_, _| request(&t, &[(0, timestamp, -1)], replica, 0));
        }
    }
    for isolation in [2, -1] {
        side.note(format!("isolation {isolation}"));
        side.every(|_, version| request(&t, &[(0, -1, -1)], -1, if version >= 2 { isolation } else { 0 }));
    }
    for (note, name, partitions) in [
        ("unknown topic", unknown.as_str(), &[(0, -1, -1)][..]),
        ("unknown topic, special", unknown.as_str(), &[(0, -3, -1), (0, 5, -1)]),
        ("bad topic", "a b", &[(0, -1, -1)]),
        ("empty topic", "", &[(0, -1, -1)]),
        ("unknown partitions", t.as_str(), &[(2, -1, -1), (-1, -1, -1), (0, -1, -1)]),
        ("partition twice", t.as_str(), &[(0, -1, -1), (0, -2, -1)]),
        ("partition twice and another", t.as_str(), &[(0, -1, -1), (1, -1, -1), (0, -2, -1)]),
        ("no partitions", t.as_str(), &[]),
    ] {
        side.note(note);
        side.every(|_, _| request(name, partitions, -1, 0));
    }
    side.note("no topics");
    side.every(|_, _| ListOffsetsRequest { replica_id: -1, ..Default::default() });
}

pub fn for_leader_epoch(side: &mut Side) {
    let t = side.topic("t", 2, &[]);
    let unknown = side.name("unknown");
    side.ask(9, &produce_request(&t, 0, -1, batch_at(now(), &["a", "b", "c"]))).unwrap();
    let epoch = side.epoch;
    let of = |name: &str, partition, current_leader_epoch, leader_epoch| OffsetForLeaderTopic {
        topic: name.into(),
        partitions: vec![OffsetForLeaderPartition { partition, current_leader_epoch, leader_epoch }],
    };
    for replica in [-1, -2, 1, 2] {
        for (note, topics) in [
            ("current", vec![of(&t, 0, epoch, epoch)]),
            ("no current", vec![of(&t, 0, -1, epoch)]),
            ("next", vec![of(&t, 0, -1, epoch + 1)]),
            ("last", vec![of(&t, 0, -1, i32::MAX)]),
            ("-1", vec![of(&t, 0, -1, -1)]),
            ("-2", vec![of(&t, 0, -1, -2)]),
            ("current is next", vec![of(&t, 0, epoch + 1, epoch)]),
            ("current -2", vec![of(&t, 0, -2, epoch)]),
            ("empty partition", vec![of(&t, 1, -1, epoch)]),
            ("empty partition, next", vec![of(&t, 1, -1, epoch + 1)]),
            ("unknown partition", vec![of(&t, 2, -1, epoch)]),
            ("negative partition", vec![of(&t, -1, -1, epoch)]),
            ("unknown topic", vec![of(&unknown, 0, -1, epoch)]),
            ("bad topic", vec![of("a b", 0, -1, epoch)]),
            ("empty topic", vec![of("", 0, -1, epoch)]),
            ("twice", vec![of(&t, 0, -1, epoch), of(&t, 0, -1, epoch)]),
            ("nothing", vec![]),
        ] {
            side.note(format!("{note}, replica {replica}"));
            side.every(|_, version| OffsetForLeaderEpochRequest {
                replica_id: if version >= 3 { replica } else { -2 },
                topics: topics.clone(),
            });
        }
    }
}

pub fn delete_records(side: &mut Side) {
    for version in side.versions::<DeleteRecordsRequest>() {
        let t = side.topic(&format!("t{version}"), 2, &[]);
        let compacted = side.topic(&format!("forever{version}"), 1, &[("retention.ms", "-1")]);
        let unknown = side.name("unknown");
        for n in 0..4 {
            side.ask(9, &produce_request(&t, 0, -1, batch_at(now() + n * 1_000, &["a", "b", "c"]))).unwrap();
        }
        let mut ask = |note: &str, topics: &[(&str, &[(i32, i64)])]| {
            side.note(note);
            let topics = topics.iter().map(|(name, partitions)| DeleteRecordsTopic {
                name: (*name).into(),
                partitions: partitions
                    .iter()
                    .map(|(partition_index, offset)| DeleteRecordsPartition {
                        partition_index: *partition_index,
                        offset: *offset,
                    })
                    .collect(),
            });
            side.call(version, &DeleteRecordsRequest { topics: topics.collect(), timeout_ms: 5_000 });
        };
        ask("nothing", &[]);
        ask("no partitions", &[(&t, &[])]);
        ask("unknown topic", &[(&unknown, &[(0, 1)])]);
        ask("bad topic", &[("a b", &[(0, 1)])]);
        ask("unknown partitions", &[(&t, &[(2, 1), (-1, 1)])]);
        ask("to 0", &[(&t, &[(0, 0)])]);
        ask("inside a batch", &[(&t, &[(0, 4)])]);
        ask("back", &[(&t, &[(0, 2)])]);
        ask("too far", &[(&t, &[(0, 13)])]);
        ask("much too far", &[(&t, &[(0, i64::MAX)])]);
        ask("-2", &[(&t, &[(0, -2)])]);
        ask("least", &[(&t, &[(0, i64::MIN)])]);
        ask("empty partition to 0", &[(&t, &[(1, 0)])]);
        ask("empty partition to 1", &[(&t, &[(1, 1)])]);
        ask("empty partition to the end", &[(&t, &[(1, -1)])]);
        ask("twice", &[(&t, &[(0, 5), (0, 6)])]);
        ask("topic twice", &[(&t, &[(0, 7)]), (&t, &[(0, 8), (1, 0)])]);
        ask("good and bad", &[(&t, &[(0, 9), (7, 1)]), (&unknown, &[(0, 0)]), (&compacted, &[(0, 0)])]);
        side.note("where it begins");
        side.call(12, &super::fetch::fetch_request(&t, 0, 9));
        side.call(12, &super::fetch::fetch_request(&t, 0, 8));
        let mut ask = |note: &str, topics: &[(&str, &[(i32, i64)])]| {
            side.note(note);
            let topics = topics.iter().map(|(name, partitions)| DeleteRecordsTopic {
                name: (*name).into(),
                partitions: partitions
                    .iter()
                    .map(|(partition_index, offset)| DeleteRecordsPartition {
                        partition_index: *partition_index,
                        offset: *offset,
                    })
                    .collect(),
            });
            side.call(version, &DeleteRecordsRequest { topics: topics.collect(), timeout_ms: 5_000 });
        };
        ask("to the end", &[(&t, &[(0, -1)])]);
        ask("to the end again", &[(&t, &[(0, -1)])]);
        ask("internal", &[("__consumer_offsets", &[(0, 0)])]);
    }
}
