//! Produce and InitProducerId: every error that a batch can earn.

use bytes::Bytes;
use kaas_engine::batch::Compression;
use kaas_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use kaas_protocol::{ErrorCode, InitProducerIdRequest, MetadataRequest, ProduceRequest, Uuid};

use super::super::batches::{self, batch, batch_at, damaged, idempotent as sequenced, now, patched};
use super::super::side::Side;

pub fn produce_request(topic: &str, partition: i32, acks: i16, records: Bytes) -> ProduceRequest {
    let data = PartitionProduceData { index: partition, records: Some(records) };
    let topic = TopicProduceData { name: topic.into(), partition_data: vec![data], ..Default::default() };
    ProduceRequest { acks, timeout_ms: 5_000, topic_data: vec![topic], ..Default::default() }
}

/// One batch to partition 0 in the version, by name or id.
fn send(side: &mut Side, version: i16, topic: &(String, Uuid), records: Option<Bytes>) {
    side.call(version, &addressed(version, topic, 0, -1, records));
}

fn addressed(
    version: i16,
    topic: &(String, Uuid),
    partition: i32,
    acks: i16,
    records: Option<Bytes>,
) -> ProduceRequest {
    let mut request = produce_request(&topic.0, partition, acks, Bytes::new());
    request.topic_data[0].partition_data[0].records = records;
    if version >= 13 {
        request.topic_data[0].topic_id = topic.1;
    }
    request
}

fn fresh(side: &mut Side, suffix: &str, partitions: i32, configs: &[(&str, &str)]) -> (String, Uuid) {
    let name = side.topic(suffix, partitions, configs);
    let id = side.topic_id(&name);
    (name, id)
}

pub fn happy(side: &mut Side) {
    let t = fresh(side, "t", 2, &[]);
    for version in side.versions::<ProduceRequest>().into_iter().filter(|version| *version >= 3) {
        for acks in [-1, 1] {
            side.note(format!("acks {acks}"));
            side.call(version, &addressed(version, &t, 0, acks, Some(batch(&["a", "b"]))));
        }
        for compression in [Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd] {
            side.note(format!("{compression:?}"));
            send(side, version, &t, Some(batches::compressed(compression, &["hello hello hello hello"])));
        }
        side.note("no topics");
        side.call(version, &ProduceRequest { acks: -1, timeout_ms: 5_000, ..Default::default() });
        side.note("no partitions");
        let mut request = addressed(version, &t, 0, -1, None);
        request.topic_data[0].partition_data.clear();
        side.call(version, &request);
        // Kafka keeps the last of two entries for one partition: each on a topic of its own.
        let twice = fresh(side, &format!("twice{version}"), 2, &[]);
        side.note("topic twice");
        let mut request = addressed(version, &twice, 0, -1, Some(batch(&["x"])));
        let mut again = request.topic_data[0].clone();
        again.partition_data[0].index = 1;
        request.topic_data.push(again);
        side.call(version, &request);
        side.note("partition twice");
        let mut request = addressed(version, &twice, 0, -1, Some(batch(&["x"])));
        let again = request.topic_data[0].partition_data[0].clone();
        request.topic_data[0].partition_data.push(again);
        side.call(version, &request);
        side.note("timeout 0");
        let mut request = addressed(version, &t, 0, 1, Some(batch(&["x"])));
        request.timeout_ms = 0;
        side.call(version, &request);
    }
}

pub fn errors(side: &mut Side) {
    let t = fresh(side, "t", 1, &[]);
    let unknown = (side.name("unknown"), Uuid::from_u128(0x1234_5678_9abc_def0_1234_5678_9abc_def0));
    for version in side.versions::<ProduceRequest>().into_iter().filter(|version| *version >= 3) {
        let good = || Some(batch(&["x"]));
        side.note("unknown topic");
        side.call(version, &addressed(version, &unknown, 0, -1, good()));
        side.note("zero id, empty name");
        side.call(version, &addressed(version, &(String::new(), Uuid::ZERO), 0, -1, good()));
        side.note("bad name");
        side.call(version, &addressed(version, &("a b".to_owned(), Uuid::ZERO), 0, -1, good()));
        for partition in [1, -1, i32::MAX] {
            side.note(format!("partition {partition}"));
            side.call(version, &addressed(version, &t, partition, -1, good()));
        }
        for acks in [2, -2, 100, i16::MIN] {
            side.note(format!("acks {acks}"));
            side.call(version, &addressed(version, &t, 0, acks, good()));
            side.note(format!("acks {acks} and an unknown topic"));
            side.call(version, &addressed(version, &unknown, 0, acks, good()));
        }
        // Null records of a topic that exists: Kafka meets an exception and never answers.
        side.note("null records of an unknown topic");
        side.call(version, &addressed(version, &unknown, 0, -1, None));
        side.note("no records");
        send(side, version, &t, Some(Bytes::new()));
        side.note("two batches");
        send(side, version, &t, Some([batch(&["a"]), batch(&["b"])].concat().into()));
        side.note("good, unknown partition, unknown topic");
        let mut request = addressed(version, &t, 0, -1, good());
        request.topic_data[0].partition_data.push(PartitionProduceData { index: 7, records: good() });
        request.topic_data.push(addressed(version, &unknown, 0, -1, good()).topic_data.remove(0));
        side.call(version, &request);
        side.note("transactional id without a transaction");
        let mut request = addressed(version, &t, 0, -1, good());
        request.transactional_id = Some("tx".into());
        side.call(version, &request);
        side.note("internal topic");
        side.call(
            version,
            &addressed(version, &("__consumer_offsets".to_owned(), Uuid::ZERO), 0, -1, good()),
        );
    }
    side.note("what is there");
    side.call(12, &super::fetch::fetch_request(&t.0, 0, 0));
}

/// Damage of every kind to one batch.
pub fn batches(side: &mut Side) {
    let whole = batch(&["a", "b", "c"]);
    let length = whole.len();
    let i32_at = |at: usize, value: i32| patched(&whole, at, &value.to_be_bytes());
    let i16_at = |at: usize, value: i16| patched(&whole, at, &value.to_be_bytes());
    let i64_at = |at: usize, value: i64| patched(&whole, at, &value.to_be_bytes());
    let cut = |at: usize| whole.slice(..at);
    let compressed = batches::compressed(Compression::Gzip, &["hello hello"]);
    let mut cases: Vec<(String, Bytes)> = vec![
        ("bad crc".into(), damaged(&whole, 17, &[1, 2, 3, 4])),
        ("damaged record".into(), damaged(&whole, length - 1, &[0xff])),
        ("base offset 5".into(), i64_at(0, 5)),
        ("base offset -1".into(), i64_at(0, -1)),
        ("base offset huge".into(), i64_at(0, i64::MAX)),
        ("leader epoch 77".into(), damaged(&whole, 12, &77_i32.to_be_bytes())),
        ("magic 3".into(), damaged(&whole, 16, &[3])),
        ("magic -1".into(), damaged(&whole, 16, &[0xff])),
        ("length 0".into(), damaged(&whole, 8, &0_i32.to_be_bytes())),
        ("length -1".into(), damaged(&whole, 8, &(-1_i32).to_be_bytes())),
        ("length small".into(), damaged(&whole, 8, &13_i32.to_be_bytes())),
        ("length 48".into(), damaged(&whole, 8, &48_i32.to_be_bytes())),
        ("length too large".into(), damaged(&whole, 8, &(length as i32).to_be_bytes())),
        ("length huge".into(), damaged(&whole, 8, &i32::MAX.to_be_bytes())),
        ("count 2".into(), i32_at(57, 2)),
        ("count 4".into(), i32_at(57, 4)),
        ("count 0".into(), i32_at(57, 0)),
        ("count -1".into(), i32_at(57, -1)),
        ("count huge".into(), i32_at(57, i32::MAX)),
        ("last delta 1".into(), i32_at(23, 1)),
        ("last delta 3".into(), i32_at(23, 3)),
        ("last delta -1".into(), i32_at(23, -1)),
        ("last delta huge".into(), i32_at(23, i32::MAX)),
        ("count 5, last delta 4".into(), patched(&i32_at(23, 4), 57, &5_i32.to_be_bytes())),
        ("count 2, last delta 1".into(), patched(&i32_at(23, 1), 57, &2_i32.to_be_bytes())),
        ("control".into(), i16_at(21, 0x20)),
        ("transactional".into(), i16_at(21, 0x10)),
        ("transactional control".into(), i16_at(21, 0x30)),
        ("log append time".into(), i16_at(21, 0x08)),
        ("delete horizon".into(), i16_at(21, 0x40)),
        ("unknown attribute".into(), i16_at(21, 0x100)),
        ("compression 5".into(), i16_at(21, 5)),
        ("compression 7".into(), i16_at(21, 7)),
        ("says gzip, is none".into(), i16_at(21, 1)),
        ("says none, is gzip".into(), patched(&compressed, 21, &0_i16.to_be_bytes())),
        ("producer id 5 without epoch".into(), i64_at(43, 5)),
        ("producer epoch 5 without id".into(), i16_at(51, 5)),
        ("sequence 5 without id".into(), i32_at(53, 5)),
        ("producer id -2".into(), i64_at(43, -2)),
        ("producer epoch -2".into(), i16_at(51, -2)),
        ("max timestamp -1".into(), i64_at(35, -1)),
        ("max timestamp lower".into(), i64_at(35, now() - 5)),
        ("max timestamp higher".into(), i64_at(35, now() + 5)),
        ("base timestamp -1".into(), i64_at(27, -1)),
        ("base timestamp -2".into(), i64_at(27, -2)),
        ("bytes behind".into(), [&whole[..], &[0; 5]].concat().into()),
        ("many bytes behind".into(), [&whole[..], &[0; 100]].concat().into()),
        ("half a batch behind".into(), [&whole[..], &whole[..40]].concat().into()),
        (
            "batch and a bad batch".into(),
            [&whole[..], &damaged(&whole, 17, &[1, 2, 3, 4])[..]].concat().into(),
        ),
        (
            "bad batch and a batch".into(),
            [&damaged(&whole, 17, &[1, 2, 3, 4])[..], &whole[..]].concat().into(),
        ),
        ("first record longer".into(), patched(&whole, 61, &[0x7e])),
        ("first record shorter".into(), patched(&whole, 61, &[0x02])),
        ("first record of negative length".into(), patched(&whole, 61, &[0x01])),
        ("record offset delta 5".into(), patched(&whole, 64, &[10])),
        ("record attribute".into(), patched(&whole, 62, &[1])),
    ];
    for at in [1, 11, 12, 16, 17, 20, 60, 61, 62, length - 1] {
        cases.push((format!("cut at {at}"), cut(at)));
    }
    for version in [3, 8, 13] {
        for (index, (note, records)) in cases.iter().enumerate() {
            // A topic each: what one broker takes and the other does not would shift all offsets behind it.
            let t = fresh(side, &format!("t{version}-{index}"), 1, &[]);
            side.note(note.as_str());
            send(side, version, &t, Some(records.clone()));
            side.note(format!("{note}: what is there"));
            side.call(12, &super::fetch::fetch_request(&t.0, 0, 0));
        }
    }
}

pub fn old_formats(side: &mut Side) {
    let t = fresh(side, "t", 1, &[]);
    for version in side.versions::<ProduceRequest>().into_iter().filter(|version| *version >= 3) {
        for magic in [0, 1] {
            side.note(format!("magic {magic}"));
            send(side, version, &t, Some(batches::old_message(magic)));
            side.note(format!("a batch, then magic {magic}"));
            send(side, version, &t, Some([batch(&["a"]), batches::old_message(magic)].concat().into()));
        }
    }
    side.note("what is there");
    side.call(12, &super::fetch::fetch_request(&t.0, 0, 0));
}

pub fn limits(side: &mut Side) {
    for limit in [200_i32, 0, 1] {
        let limit_text = limit.to_string();
        let t = fresh(side, &format!("m{limit}"), 1, &[("max.message.bytes", &limit_text)]);
        let overhead = batch(&[""]).len();
        for size in [200 - overhead - 1, 200 - overhead, 200 - overhead + 1, 200 - overhead - 2] {
            let value = "x".repeat(size);
            let records = batch(&[&value]);
            for version in [3, 8, 13] {
                side.note(format!("limit {limit}, batch of {}", records.len()));
                send(side, version, &t, Some(records.clone()));
            }
            side.note("two of them");
            send(side, 8, &t, Some([records.clone(), records.clone()].concat().into()));
        }
    }
    let t = fresh(side, "segment", 1, &[("segment.bytes", "1048576"), ("max.message.bytes", "5000000")]);
    for size in [1_048_000, 1_048_576, 2_000_000] {
        side.note(format!("{size} bytes into a segment of 1 MiB"));
        send(side, 8, &t, Some(batch(&[&"x".repeat(size)])));
    }
    let t = fresh(side, "default", 1, &[]);
    for size in [1_048_588 - 71, 1_048_588, 1_048_500] {
        side.note(format!("{size} bytes by default"));
        send(side, 8, &t, Some(batch(&[&"x".repeat(size)])));
    }
}

pub fn timestamps(side: &mut Side) {
    let real_now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
    let day = 86_400_000;
    let kinds: &[(&str, &[(&str, &str)])] = &[
        ("default", &[]),
        ("before", &[("message.timestamp.before.max.ms", "86400000")]),
        ("after", &[("message.timestamp.after.max.ms", "172800000")]),
        ("append", &[("message.timestamp.type", "LogAppendTime")]),
        (
            "append-before",
            &[("message.timestamp.type", "LogAppendTime"), ("message.timestamp.before.max.ms", "86400000")],
        ),
    ];
    for (suffix, configs) in kinds {
        let t = fresh(side, suffix, 1, configs);
        for (note, timestamp) in [
            ("now", real_now),
            ("in half a day", real_now + day / 2),
            ("in a day and a half", real_now + day * 3 / 2),
            ("in three days", real_now + 3 * day),
            ("half a day ago", real_now - day / 2),
            ("two days ago", real_now - 2 * day),
            ("in 1970", 1),
            ("none", -1),
            ("before 1970", -1000),
            ("last", i64::MAX - 10),
        ] {
            for version in [3, 8, 13] {
                side.note(format!("{suffix}: {note}"));
                send(side, version, &t, Some(batch_at(timestamp, &["a", "b"])));
            }
        }
        side.note(format!("{suffix}: only the last record is too late"));
        let whole = batch_at(real_now, &["a", "b", "c"]);
        // The last record's timestamp delta, and the largest timestamp with it.
        send(side, 8, &t, Some(patched(&whole, 35, &(real_now + 3 * day).to_be_bytes())));
    }
}

pub fn idempotent(side: &mut Side) {
    let t = fresh(side, "t", 2, &[]);
    let request = InitProducerIdRequest {
        transactional_id: None,
        transaction_timeout_ms: 60_000,
        ..Default::default()
    };
    let mut given = || {
        // A Kafka that has just started has no ids yet.
        for _ in 0..50 {
            let response = side.ask(4, &request).unwrap();
            if response.error_code.is_none() {
                return response.producer_id;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        panic!("no producer id");
    };
    let (id, other) = (given(), given());
    let version = 9;
    let mut go = |note: &str, id: i64, epoch: i16, sequence: i32, values: &[&str]| {
        side.note(note);
        send(side, version, &t, Some(sequenced(id, epoch, sequence, values)));
    };
    go("unknown producer, sequence 5", other, 0, 5, &["a"]);
    go("first", id, 0, 0, &["a", "b"]);
    go("again", id, 0, 0, &["a", "b"]);
    go("second", id, 0, 2, &["c"]);
    go("first again", id, 0, 0, &["a", "b"]);
    go("part of the first", id, 0, 0, &["a"]);
    go("other part", id, 0, 1, &["b"]);
    go("overlap", id, 0, 2, &["c", "d"]);
    go("gap", id, 0, 5, &["x"]);
    go("third", id, 0, 3, &["d"]);
    for n in 4..10 {
        go("on", id, 0, n, &["e"]);
    }
    go("within the last five", id, 0, 5, &["e"]);
    go("older than the last five", id, 0, 4, &["e"]);
    go("much older", id, 0, 0, &["a", "b"]);
    go("next epoch, sequence 0", id, 1, 0, &["f"]);
    go("next epoch again", id, 1, 0, &["f"]);
    go("old epoch", id, 0, 10, &["g"]);
    go("old epoch, known batch", id, 0, 9, &["e"]);
    go("far epoch, sequence 3", id, 5, 3, &["h"]);
    go("far epoch, sequence 0", id, 5, 0, &["h"]);
    go("epoch -1", id, -1, 0, &["h"]);
    go("sequence -1", id, 5, -1, &["h"]);
    go("sequence -2", id, 5, -2, &["h"]);
    go("never given id", 9_000_000, 0, 0, &["i"]);
    go("never given id, epoch 7", 9_000_001, 7, 0, &["i"]);
    go("never given id, sequence 9", 9_000_002, 0, 9, &["i"]);
    go("sequence to the end", 9_000_003, 0, i32::MAX, &["i"]);
    go("wraps", 9_000_003, 0, 0, &["j"]);
    go("across the end", 9_000_004, 0, i32::MAX - 1, &["1", "2", "3", "4"]);
    go("behind the end", 9_000_004, 0, 2, &["5"]);
    go("across the end again", 9_000_004, 0, i32::MAX - 1, &["1", "2", "3", "4"]);
    side.note("two idempotent batches");
    send(
        side,
        version,
        &t,
        Some([sequenced(other, 0, 0, &["a"]), sequenced(other, 0, 1, &["b"])].concat().into()),
    );
    for version in [3, 7, 8, 11, 13] {
        side.note("transactional, no transaction");
        send(side, version, &t, Some(batches::transactional(other, 0, 0, &["a"])));
        side.note("transactional, no transaction, with its id");
        let mut request = addressed(version, &t, 0, -1, Some(batches::transactional(other, 0, 0, &["a"])));
        request.transactional_id = Some("tx-none".into());
        side.call(version, &request);
        side.note("gap in all versions");
        send(side, version, &t, Some(sequenced(id, 5, 77, &["a"])));
        side.note("old epoch in all versions");
        send(side, version, &t, Some(sequenced(id, 2, 0, &["a"])));
        side.note("duplicate in all versions");
        send(side, version, &t, Some(sequenced(id, 5, 0, &["h"])));
    }
    side.note("idempotent and acks 1");
    side.call(9, &addressed(9, &t, 0, 1, Some(sequenced(id, 5, 1, &["k"]))));
    side.note("mixed: idempotent to one partition, plain to the other");
    let mut request = addressed(9, &t, 0, -1, Some(sequenced(id, 5, 2, &["k"])));
    request.topic_data[0]
        .partition_data
        .push(PartitionProduceData { index: 1, records: Some(batch(&["p"])) });
    side.call(9, &request);
    side.note("what is there");
    side.call(12, &super::fetch::fetch_request(&t.0, 0, 0));
}

pub fn acks_0(side: &mut Side) {
    let t = fresh(side, "t", 1, &[]);
    let cases: Vec<(&str, i32, Option<Bytes>)> = vec![
        ("good", 0, Some(batch(&["x"]))),
        ("unknown partition", 5, Some(batch(&["x"]))),
        ("bad crc", 0, Some(damaged(&batch(&["x"]), 17, &[1, 2, 3, 4]))),
        // Kafka forgets to go on after null records with acks 0: that connection hangs.
    ];
    for version in [3, 7, 9, 12, 13] {
        for (note, partition, records) in &cases {
            let request = addressed(version, &t, *partition, 0, records.clone());
            side.send(version, &request);
            side.note(format!("after acks 0, {note}, version {version}"));
            // Whatever it was, the next request is answered or the connection is closed.
            side.call(1, &MetadataRequest { topics: Some(vec![]), ..Default::default() });
        }
    }
    side.note("what is there");
    side.call(12, &super::fetch::fetch_request(&t.0, 0, 0));
}

pub fn init_producer_id(side: &mut Side) {
    let mut ask =
        |note: &str, version: i16, transactional_id: Option<&str>, timeout: i32, id: i64, epoch: i16| {
            side.note(note);
            let request = InitProducerIdRequest {
                transactional_id: transactional_id.map(Into::into),
                transaction_timeout_ms: timeout,
                producer_id: id,
                producer_epoch: epoch,
                ..Default::default()
            };
            for _ in 0..20 {
                // Kafka's coordinators take a moment at first.
                let Ok(response) = side.try_ask(version, &request) else { break };
                if response.error_code != ErrorCode::NOT_COORDINATOR
                    && response.error_code != ErrorCode::COORDINATOR_LOAD_IN_PROGRESS
                {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            side.call(version, &request);
        };
    for version in 0..=5 {
        ask("plain", version, None, 60_000, -1, -1);
        ask("timeout 0", version, None, 0, -1, -1);
        ask("timeout -1", version, None, -1, -1, -1);
        ask("timeout of a year", version, None, i32::MAX, -1, -1);
        ask("empty id", version, Some(""), 60_000, -1, -1);
        if version >= 3 {
            ask("id without epoch", version, None, 60_000, 5, -1);
            ask("epoch without id", version, None, 60_000, -1, 5);
            ask("id and epoch", version, None, 60_000, 5, 5);
            ask("negative id", version, None, 60_000, -5, -1);
            ask("negative id and epoch", version, None, 60_000, -5, -5);
        }
    }
}
