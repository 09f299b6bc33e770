//! Requests that write, delete and look up records, against the real binary: what Kafka's clients rely on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod raw;

use kaas_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use kaas_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use kaas_protocol::{ErrorCode, InitProducerIdRequest, ListOffsetsRequest, ProduceRequest};
use raw::{
    Broker, Client, batch, batch_at, delete_records, fetch_request, idempotent_batch, list_offset, now,
    produce_request, record_bytes,
};

#[test]
fn what_is_refused_and_how() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[("max.message.bytes", "1000")]);
    let unknown = client.produce("nowhere", 0, batch(&[b"x"]));
    assert_eq!(unknown.error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(client.produce("t", 1, batch(&[b"x"])).error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(client.produce("t", -1, batch(&[b"x"])).error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    let large = client.produce("t", 0, batch(&[&[0; 1_000]]));
    assert_eq!(large.error_code, ErrorCode::MESSAGE_TOO_LARGE);
    assert!(large.error_message.is_some());
    let mut damaged = batch(&[b"hello"]).to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(client.produce("t", 0, damaged.into()).error_code, ErrorCode::CORRUPT_MESSAGE);
    assert_eq!(client.produce("t", 0, bytes::Bytes::new()).error_code, ErrorCode::INVALID_RECORD);
    let two = [batch(&[b"a"]), batch(&[b"b"])].concat();
    assert_eq!(client.produce("t", 0, two.into()).error_code, ErrorCode::INVALID_RECORD);
    let future = client.produce("t", 0, batch_at(now() + 7_200_000, &[b"x"]));
    assert_eq!(future.error_code, ErrorCode::INVALID_TIMESTAMP);
    let acks = client.call(9, &produce_request("t", 0, 2, batch(&[b"x"])));
    assert_eq!(acks.responses[0].partition_responses[0].error_code, ErrorCode::INVALID_REQUIRED_ACKS);
    // One bad partition does not take the others along.
    let mut request = produce_request("t", 0, -1, batch(&[b"good"]));
    request.topic_data[0]
        .partition_data
        .push(PartitionProduceData { index: 9, records: Some(batch(&[b"x"])) });
    let response = client.call(9, &request);
    let answers = &response.responses[0].partition_responses;
    assert_eq!((answers[0].error_code, answers[0].base_offset), (ErrorCode::NONE, 0));
    assert_eq!(answers[1].error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(client.fetch("t", 0, 0).high_watermark, 1);
}

#[test]
fn an_idempotent_producer_may_repeat_itself() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[]);
    let plain = InitProducerIdRequest { transactional_id: None, ..Default::default() };
    let first = client.call(4, &plain);
    let second = client.call(4, &plain);
    assert_eq!((first.error_code, first.producer_epoch), (ErrorCode::NONE, 0));
    assert_ne!(first.producer_id, second.producer_id);
    let id = first.producer_id;
    assert_eq!(client.produce("t", 0, idempotent_batch(id, 0, 0, &[b"a", b"b"])).base_offset, 0);
    assert_eq!(client.produce("t", 0, idempotent_batch(id, 0, 2, &[b"c"])).base_offset, 2);
    let again = client.produce("t", 0, idempotent_batch(id, 0, 0, &[b"a", b"b"]));
    assert_eq!(
        (again.error_code, again.base_offset),
        (ErrorCode::NONE, 0),
        "a repeated batch is not appended"
    );
    let gap = client.produce("t", 0, idempotent_batch(id, 0, 7, &[b"x"]));
    assert_eq!(gap.error_code, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    broker.process.kill().unwrap();
    broker.restart(&[]);
    let mut client = broker.connect();
    let again = client.produce("t", 0, idempotent_batch(id, 0, 2, &[b"c"]));
    assert_eq!((again.error_code, again.base_offset), (ErrorCode::NONE, 2), "also after a crash");
    assert_eq!(client.fetch("t", 0, 0).high_watermark, 3);
    let third = client.call(4, &plain);
    assert!(third.producer_id > second.producer_id, "ids are never given twice");
    for (producer_id, producer_epoch) in [(5, -1), (-1, 5), (-5, -1)] {
        let half = InitProducerIdRequest { producer_id, producer_epoch, ..plain.clone() };
        assert_eq!(client.call(4, &half).error_code, ErrorCode::INVALID_REQUEST);
    }
    let transactional = InitProducerIdRequest { transactional_id: Some("tx".into()), ..Default::default() };
    assert_eq!(client.call(4, &transactional).error_code, ErrorCode::INVALID_REQUEST);
}

#[test]
fn offsets_by_time_and_of_the_ends() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[]);
    client.create_topic("empty", 1, &[]);
    let start = now() - 10_000;
    for n in [0, 1, 5, 3] {
        client.produce("t", 0, batch_at(start + n * 1_000, &[b"x"]));
    }
    let at = |client: &mut Client, timestamp| {
        let found = list_offset(client, 9, "t", timestamp);
        (found.error_code, found.offset, found.timestamp)
    };
    assert_eq!(at(&mut client, -1), (ErrorCode::NONE, 4, -1));
    assert_eq!(at(&mut client, -2), (ErrorCode::NONE, 0, -1));
    assert_eq!(at(&mut client, -3), (ErrorCode::NONE, 2, start + 5_000));
    assert_eq!(at(&mut client, -4), (ErrorCode::NONE, 0, -1));
    assert_eq!(at(&mut client, -5), (ErrorCode::NONE, -1, -1));
    assert_eq!(at(&mut client, -77).0, ErrorCode::UNSUPPORTED_VERSION);
    assert_eq!(at(&mut client, start + 500), (ErrorCode::NONE, 1, start + 1_000));
    assert_eq!(at(&mut client, start + 2_000), (ErrorCode::NONE, 2, start + 5_000));
    assert_eq!(at(&mut client, start + 9_000), (ErrorCode::NONE, -1, -1));
    assert_eq!(list_offset(&mut client, 6, "t", -3).error_code, ErrorCode::UNSUPPORTED_VERSION);
    let empty = list_offset(&mut client, 9, "empty", -3);
    assert_eq!((empty.error_code, empty.offset), (ErrorCode::NONE, -1));
    let unknown = list_offset(&mut client, 9, "nowhere", -1);
    assert_eq!((unknown.error_code, unknown.offset), (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, -1));
    let both = ListOffsetsPartition { timestamp: -1, ..ListOffsetsPartition::default() };
    let topic = ListOffsetsTopic { name: "t".into(), partitions: vec![both.clone(), both] };
    let request = ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..ListOffsetsRequest::default() };
    let answers = &client.call(9, &request).topics[0].partitions;
    assert!(answers.iter().all(|answer| answer.error_code == ErrorCode::INVALID_REQUEST));
}

#[test]
fn only_where_all_that_is_done_is_compaction_no_records_are_deleted() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    for (topic, policy, answer) in [
        ("compacted", "compact", (ErrorCode::POLICY_VIOLATION, -1)),
        ("both", "compact,delete", (ErrorCode::NONE, 0)),
        // Nothing goes by itself, so it is all the more the user's to delete.
        ("neither", "", (ErrorCode::NONE, 0)),
    ] {
        client.create_topic(topic, 1, &[("cleanup.policy", policy)]);
        assert_eq!(delete_records(&mut client, topic, 0), answer, "{topic}");
    }
}

#[test]
fn deleted_records_are_gone_for_good() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[]);
    for _ in 0..10 {
        client.produce("t", 0, batch(&[b"x"]));
    }
    let delete = |client: &mut Client, offset| delete_records(client, "t", offset);
    assert_eq!(delete(&mut client, 4), (ErrorCode::NONE, 4));
    assert_eq!(delete(&mut client, 2), (ErrorCode::NONE, 4), "never backwards");
    assert_eq!(delete(&mut client, 11), (ErrorCode::OFFSET_OUT_OF_RANGE, -1));
    assert_eq!(client.fetch("t", 0, 3).error_code, ErrorCode::OFFSET_OUT_OF_RANGE);
    assert_eq!(client.fetch("t", 0, 4).log_start_offset, 4);
    broker.process.kill().unwrap();
    broker.restart(&[]);
    let mut client = broker.connect();
    assert_eq!(list_offset(&mut client, 9, "t", -2).offset, 4);
    assert_eq!(delete(&mut client, -1), (ErrorCode::NONE, 10));
    assert_eq!(list_offset(&mut client, 9, "t", -2).offset, 10);
}

#[test]
fn log_append_time_is_the_brokers() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[("message.timestamp.type", "LogAppendTime")]);
    let before = now();
    let answer = client.produce("t", 0, batch_at(1_000, &[b"x"]));
    assert!((before..=now()).contains(&answer.log_append_time_ms), "{answer:?}");
    let found = list_offset(&mut client, 9, "t", -3);
    assert_eq!(found.timestamp, answer.log_append_time_ms);
    let data = client.fetch("t", 0, 0);
    kaas_engine::batch::check_crc(&record_bytes(&data)).unwrap();
}

#[test]
fn all_acks_levels_and_many_partitions_in_one_request() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 20, &[]);
    for acks in [-1, 1] {
        let data = |index| PartitionProduceData { index, records: Some(batch(&[b"x"])) };
        let topic = TopicProduceData {
            name: "t".into(),
            partition_data: (0..20).map(data).collect(),
            ..Default::default()
        };
        let request =
            ProduceRequest { acks, timeout_ms: 9_000, topic_data: vec![topic], ..Default::default() };
        let response = client.call(9, &request);
        let answers = &response.responses[0].partition_responses;
        assert_eq!(answers.len(), 20);
        assert!(answers.iter().all(|answer| answer.error_code == ErrorCode::NONE), "{answers:?}");
    }
    // acks=1 does not wait for the commit; a consumer does.
    for partition in 0..20 {
        client.call(12, &fetch_request("t", partition, 1, 10_000));
        assert_eq!(client.fetch("t", partition, 0).high_watermark, 2);
    }
}

/// A message of format 1, which was before record batches.
fn old_message() -> Vec<u8> {
    let mut message = vec![0; 8];
    message.extend(27_i32.to_be_bytes());
    message.extend([0, 0, 0, 0, 1, 0]);
    message.extend(now().to_be_bytes());
    message.extend((-1_i32).to_be_bytes());
    message.extend(5_i32.to_be_bytes());
    message.extend(b"hello");
    message
}

#[test]
fn anything_but_one_whole_batch_has_kafkas_codes() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[("max.message.bytes", "200")]);
    let good = batch(&[b"hello"]);
    let mut damaged = good.to_vec();
    damaged[20] ^= 1;
    let mut magic_3 = good.to_vec();
    magic_3[16] = 3;
    let large = batch(&[&[0; 300]]);
    for (records, expected) in [
        (old_message(), ErrorCode::INVALID_RECORD),
        ([&good[..], &old_message()].concat(), ErrorCode::INVALID_RECORD),
        (magic_3, ErrorCode::CORRUPT_MESSAGE),
        (damaged.clone(), ErrorCode::CORRUPT_MESSAGE),
        // That there are two is seen before what they hold.
        ([&damaged[..], &good].concat(), ErrorCode::INVALID_RECORD),
        ([&large[..], &large].concat(), ErrorCode::INVALID_RECORD),
        (good[..11].to_vec(), ErrorCode::INVALID_RECORD),
        (good[..good.len() - 1].to_vec(), ErrorCode::INVALID_RECORD),
        // Kafka drops what is behind a batch without a word.
        ([&good[..], b"rest"].concat(), ErrorCode::CORRUPT_MESSAGE),
    ] {
        let answer = client.produce("t", 0, records.clone().into());
        assert_eq!(answer.error_code, expected, "{} bytes", records.len());
    }
    // Whether there is such a partition, and whether the batch is one, comes before the question of acks.
    let mut code = |topic: &str, records: &[u8]| {
        let request = produce_request(topic, 0, 2, records.to_vec().into());
        client.call(9, &request).responses[0].partition_responses[0].error_code
    };
    assert_eq!(code("nowhere", &good), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(code("t", b""), ErrorCode::INVALID_RECORD);
    assert_eq!(code("t", &good), ErrorCode::INVALID_REQUIRED_ACKS);
    assert_eq!(client.fetch("t", 0, 0).high_watermark, 0);
}
