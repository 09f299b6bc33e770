//! Requests about records, against the real binary: what Kafka's clients rely on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod raw;

use std::time::{Duration, Instant};

use kaas_protocol::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use kaas_protocol::messages::fetch::{FetchPartition, FetchTopic, ForgottenTopic};
use kaas_protocol::messages::list_offsets::{
    ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsTopic,
};
use kaas_protocol::messages::offset_for_leader_epoch::{OffsetForLeaderPartition, OffsetForLeaderTopic};
use kaas_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use kaas_protocol::{
    DeleteRecordsRequest, ErrorCode, FetchRequest, FetchResponse, InitProducerIdRequest, ListOffsetsRequest,
    MetadataRequest, OffsetForLeaderEpochRequest, ProduceRequest, Uuid,
};
use raw::{
    Broker, Client, batch, batch_at, fetch_request, idempotent_batch, now, produce_request, record_bytes,
};

fn topic_id(client: &mut Client, name: &str) -> Uuid {
    let response = client.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() });
    let topic = response.topics.iter().find(|topic| topic.name.as_deref() == Some(name)).unwrap();
    topic.topic_id
}

fn leader_epoch(client: &mut Client, name: &str) -> i32 {
    let response = client.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() });
    let topic = response.topics.iter().find(|topic| topic.name.as_deref() == Some(name)).unwrap();
    topic.partitions[0].leader_epoch
}

fn list_offset(
    client: &mut Client,
    version: i16,
    topic: &str,
    timestamp: i64,
) -> ListOffsetsPartitionResponse {
    let partition = ListOffsetsPartition { timestamp, ..ListOffsetsPartition::default() };
    let topic = ListOffsetsTopic { name: topic.into(), partitions: vec![partition] };
    let request = ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..ListOffsetsRequest::default() };
    client.call(version, &request).topics[0].partitions[0].clone()
}

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
fn a_fetch_waits_for_records_and_not_longer() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 2, &[]);
    let began = Instant::now();
    let empty = client.call(12, &fetch_request("t", 0, 0, 400));
    assert!(began.elapsed() >= Duration::from_millis(390), "{:?}", began.elapsed());
    assert_eq!(record_bytes(&empty.responses[0].partitions[0]).len(), 0);

    let mut request = fetch_request("t", 0, 0, 20_000);
    let other = FetchPartition { partition: 1, ..request.topics[0].partitions[0].clone() };
    request.topics[0].partitions.push(other);
    client.send(12, &request);
    std::thread::sleep(Duration::from_millis(200));
    let began = Instant::now();
    broker.connect().produce("t", 1, batch(&[b"news"]));
    let (_, response) = client.receive::<FetchResponse>(12);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(record_bytes(&response.responses[0].partitions[0]).len(), 0);
    assert!(!record_bytes(&response.responses[0].partitions[1]).is_empty());

    // Less than min_bytes is not enough to wake it for good.
    let mut request = fetch_request("t", 0, 0, 1_000);
    request.min_bytes = 10_000;
    client.send(12, &request);
    std::thread::sleep(Duration::from_millis(100));
    let began = Instant::now();
    broker.connect().produce("t", 0, batch(&[b"little"]));
    let (_, response) = client.receive::<FetchResponse>(12);
    assert!(began.elapsed() >= Duration::from_millis(600), "{:?}", began.elapsed());
    assert!(!record_bytes(&response.responses[0].partitions[0]).is_empty(), "but it is given in the end");
}

#[test]
fn limits_of_a_fetch_and_the_one_batch_that_always_fits() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 2, &[]);
    let one = batch(&[&[5; 10_000]]);
    for partition in [0, 0, 0, 1] {
        client.produce("t", partition, one.clone());
    }
    let bytes_of = |client: &mut Client, max_bytes: i32, partition_max_bytes: i32| -> Vec<usize> {
        let mut request = fetch_request("t", 0, 0, 0);
        request.max_bytes = max_bytes;
        request.topics[0].partitions[0].partition_max_bytes = partition_max_bytes;
        let other = FetchPartition { partition: 1, ..request.topics[0].partitions[0].clone() };
        request.topics[0].partitions.push(other);
        let response = client.call(12, &request);
        response.responses[0].partitions.iter().map(|data| record_bytes(data).len()).collect()
    };
    let size = one.len();
    assert_eq!(bytes_of(&mut client, 1 << 20, 1 << 20), [3 * size, size]);
    assert_eq!(bytes_of(&mut client, 1 << 20, i32::try_from(2 * size + 5).unwrap()), [2 * size, size]);
    // One byte: the first batch all the same, and nothing else.
    assert_eq!(bytes_of(&mut client, 1 << 20, 1), [size, 0]);
    assert_eq!(bytes_of(&mut client, 1, 1 << 20), [size, 0]);
    assert_eq!(bytes_of(&mut client, i32::try_from(3 * size + 5).unwrap(), 1 << 20), [3 * size, 0]);
}

#[test]
fn offsets_outside_and_epochs_that_differ() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[]);
    client.produce("t", 0, batch(&[b"a"]));
    client.produce("t", 0, batch(&[b"b"]));
    let old = leader_epoch(&mut client, "t");
    broker.process.terminate(raw::LONG).unwrap();
    broker.restart(&[]);
    let mut client = broker.connect();
    client.produce("t", 0, batch(&[b"c"]));
    let current = leader_epoch(&mut client, "t");
    assert!(current > old);
    let code = |client: &mut Client, offset, epoch, last| {
        let mut request = fetch_request("t", 0, offset, 0);
        request.topics[0].partitions[0].current_leader_epoch = epoch;
        request.topics[0].partitions[0].last_fetched_epoch = last;
        client.call(12, &request).responses[0].partitions[0].clone()
    };
    assert_eq!(code(&mut client, 3, -1, -1).error_code, ErrorCode::NONE);
    assert_eq!(code(&mut client, 4, -1, -1).error_code, ErrorCode::OFFSET_OUT_OF_RANGE);
    assert_eq!(code(&mut client, -1, -1, -1).error_code, ErrorCode::OFFSET_OUT_OF_RANGE);
    assert_eq!(code(&mut client, 0, old, -1).error_code, ErrorCode::FENCED_LEADER_EPOCH);
    assert_eq!(code(&mut client, 0, current + 1, -1).error_code, ErrorCode::UNKNOWN_LEADER_EPOCH);
    assert_eq!(code(&mut client, 0, current, -1).error_code, ErrorCode::NONE);
    // A reader that got offset 2 from the old leader read something that is no more.
    let diverging = code(&mut client, 3, current, old);
    assert_eq!((diverging.diverging_epoch.epoch, diverging.diverging_epoch.end_offset), (old, 2));
    assert_eq!(record_bytes(&diverging).len(), 0);
    assert_eq!(code(&mut client, 2, current, old).diverging_epoch.epoch, -1);

    let ask = |client: &mut Client, current_leader_epoch, leader_epoch| {
        let partition = OffsetForLeaderPartition { partition: 0, current_leader_epoch, leader_epoch };
        let topic = OffsetForLeaderTopic { topic: "t".into(), partitions: vec![partition] };
        let request = OffsetForLeaderEpochRequest { replica_id: -1, topics: vec![topic] };
        let answer = client.call(4, &request).topics[0].partitions[0].clone();
        (answer.error_code, answer.leader_epoch, answer.end_offset)
    };
    assert_eq!(ask(&mut client, -1, old), (ErrorCode::NONE, old, 2));
    assert_eq!(ask(&mut client, current, current), (ErrorCode::NONE, current, 3));
    assert_eq!(ask(&mut client, -1, current + 5), (ErrorCode::NONE, -1, -1));
    assert_eq!(ask(&mut client, old, old).0, ErrorCode::FENCED_LEADER_EPOCH);
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
fn topics_by_id() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[]);
    let id = topic_id(&mut client, "t");
    let produce = |client: &mut Client, id| {
        let data = PartitionProduceData { index: 0, records: Some(batch(&[b"by id"])) };
        let topic = TopicProduceData { topic_id: id, partition_data: vec![data], ..Default::default() };
        let request =
            ProduceRequest { acks: -1, timeout_ms: 9_000, topic_data: vec![topic], ..Default::default() };
        let response = client.call(13, &request);
        assert_eq!(response.responses[0].topic_id, id);
        response.responses[0].partition_responses[0].error_code
    };
    assert_eq!(produce(&mut client, id), ErrorCode::NONE);
    assert_eq!(produce(&mut client, Uuid([9; 16])), ErrorCode::UNKNOWN_TOPIC_ID);
    let fetch = |client: &mut Client, id| {
        let mut request = fetch_request("", 0, 0, 0);
        request.topics[0].topic_id = id;
        client.call(16, &request).responses[0].clone()
    };
    let known = fetch(&mut client, id);
    assert_eq!(known.topic_id, id);
    assert!(!record_bytes(&known.partitions[0]).is_empty());
    assert_eq!(fetch(&mut client, Uuid([9; 16])).partitions[0].error_code, ErrorCode::UNKNOWN_TOPIC_ID);
}

#[test]
fn a_fetch_session_tells_only_news() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 3, &[]);
    let partition = |partition, fetch_offset| FetchPartition {
        partition,
        fetch_offset,
        partition_max_bytes: 1 << 20,
        ..FetchPartition::default()
    };
    let topics = |partitions: Vec<FetchPartition>| match partitions.is_empty() {
        true => Vec::new(),
        false => vec![FetchTopic { topic: "t".into(), partitions, ..FetchTopic::default() }],
    };
    let request = |session_id, session_epoch, partitions| FetchRequest {
        session_id,
        session_epoch,
        topics: topics(partitions),
        max_wait_ms: 0,
        min_bytes: 1,
        ..FetchRequest::default()
    };
    let all = (0..3).map(|number| partition(number, 0)).collect();
    let opened = client.call(12, &request(0, 0, all));
    let session = opened.session_id;
    assert_ne!(session, 0);
    assert_eq!(opened.responses[0].partitions.len(), 3);
    let quiet = client.call(12, &request(session, 1, vec![]));
    assert_eq!((quiet.error_code, quiet.session_id, quiet.responses.len()), (ErrorCode::NONE, session, 0));
    client.produce("t", 1, batch(&[b"news"]));
    let news = client.call(12, &request(session, 2, vec![]));
    assert_eq!(news.responses[0].partitions.len(), 1);
    assert_eq!(news.responses[0].partitions[0].partition_index, 1);
    // The consumer has read it, and gives partition 2 up.
    let mut next = request(session, 3, vec![partition(1, 1)]);
    next.forgotten_topics_data =
        vec![ForgottenTopic { topic: "t".into(), partitions: vec![2], ..ForgottenTopic::default() }];
    assert!(client.call(12, &next).responses.is_empty());
    client.produce("t", 2, batch(&[b"nobody cares"]));
    assert!(client.call(12, &request(session, 4, vec![])).responses.is_empty());
    assert_eq!(
        client.call(12, &request(session, 4, vec![])).error_code,
        ErrorCode::INVALID_FETCH_SESSION_EPOCH
    );
    assert_eq!(client.call(12, &request(12345, 1, vec![])).error_code, ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
    let closed = client.call(12, &request(session, -1, vec![partition(0, 0)]));
    assert_eq!(closed.session_id, 0);
    assert_eq!(
        client.call(12, &request(session, 5, vec![])).error_code,
        ErrorCode::FETCH_SESSION_ID_NOT_FOUND
    );
}

/// DeleteRecords in the first partition of a topic: the answer's error and new log start.
fn delete_records(client: &mut Client, topic: &str, offset: i64) -> (ErrorCode, i64) {
    let partition = DeleteRecordsPartition { partition_index: 0, offset };
    let topic = DeleteRecordsTopic { name: topic.into(), partitions: vec![partition] };
    let request = DeleteRecordsRequest { topics: vec![topic], timeout_ms: 10_000 };
    let answer = client.call(2, &request).topics[0].partitions[0].clone();
    (answer.error_code, answer.low_watermark)
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

#[test]
fn a_partition_that_does_not_exist_does_not_cut_the_wait_of_others_short() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[]);
    let mut request = fetch_request("t", 0, 0, 600);
    let unknown = FetchPartition { partition: 9, ..request.topics[0].partitions[0].clone() };
    request.topics[0].partitions.push(unknown);
    let began = Instant::now();
    let response = client.call(12, &request);
    assert!(began.elapsed() >= Duration::from_millis(590), "{:?}", began.elapsed());
    let partitions = &response.responses[0].partitions;
    assert_eq!(partitions[1].error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    // With nothing else to wait for, and for an offset out of range, the answer is there at once.
    request.max_wait_ms = 10_000;
    let began = Instant::now();
    request.topics[0].partitions.remove(0);
    client.call(12, &request);
    let mut request = fetch_request("t", 0, 7, 10_000);
    let empty = FetchPartition { fetch_offset: 0, ..request.topics[0].partitions[0].clone() };
    request.topics[0].partitions.push(empty);
    client.call(12, &request);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn epochs_below_all_and_the_epoch_of_the_earliest_offset() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[]);
    client.produce("t", 0, batch(&[b"a", b"b"]));
    let first = leader_epoch(&mut client, "t");
    broker.process.kill().unwrap();
    broker.restart(&[]);
    let mut client = broker.connect();
    let second = leader_epoch(&mut client, "t");
    assert!(first < second);
    client.produce("t", 0, batch(&[b"c"]));
    assert_eq!(list_offset(&mut client, 9, "t", -2).leader_epoch, first);
    assert_eq!(list_offset(&mut client, 9, "t", -1).leader_epoch, second);
    let mut request = fetch_request("t", 0, 0, 0);
    for (asked, expected) in [
        (second, ErrorCode::NONE),
        (-1, ErrorCode::NONE),
        (-2, ErrorCode::NONE),
        (first, ErrorCode::FENCED_LEADER_EPOCH),
        (second + 1, ErrorCode::UNKNOWN_LEADER_EPOCH),
    ] {
        request.topics[0].partitions[0].current_leader_epoch = asked;
        let response: FetchResponse = client.call(12, &request);
        assert_eq!(response.responses[0].partitions[0].error_code, expected, "{asked}");
    }
    for (asked, expected) in [
        (second, ErrorCode::NONE),
        (-1, ErrorCode::NONE),
        (-2, ErrorCode::FENCED_LEADER_EPOCH),
        (first, ErrorCode::FENCED_LEADER_EPOCH),
        (second + 1, ErrorCode::UNKNOWN_LEADER_EPOCH),
    ] {
        let partition =
            ListOffsetsPartition { timestamp: -1, current_leader_epoch: asked, ..Default::default() };
        let topic = ListOffsetsTopic { name: "t".into(), partitions: vec![partition] };
        let request =
            ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..ListOffsetsRequest::default() };
        assert_eq!(client.call(9, &request).topics[0].partitions[0].error_code, expected, "{asked}");
    }
    for (asked, expected) in [(-1, (-1, -1)), (-2, (-2, 0)), (first, (first, 2)), (second, (second, 3))] {
        let partition = OffsetForLeaderPartition { leader_epoch: asked, ..Default::default() };
        let topic = OffsetForLeaderTopic { topic: "t".into(), partitions: vec![partition] };
        let request = OffsetForLeaderEpochRequest { topics: vec![topic], ..Default::default() };
        let answer = client.call(4, &request).topics[0].partitions[0].clone();
        assert_eq!((answer.leader_epoch, answer.end_offset), expected, "{asked}");
    }
    assert_eq!(delete_records(&mut client, "t", 2), (ErrorCode::NONE, 2));
    assert_eq!(list_offset(&mut client, 9, "t", -2).leader_epoch, second);
}

#[test]
fn a_partition_that_a_session_adds_and_forgets_at_once_is_forgotten() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 2, &[]);
    let mut request = fetch_request("t", 0, 0, 0);
    request.session_epoch = 0;
    let opened: FetchResponse = client.call(12, &request);
    assert_ne!(opened.session_id, 0);
    client.produce("t", 1, batch(&[b"x"]));
    let mut request = fetch_request("t", 1, 0, 0);
    (request.session_id, request.session_epoch) = (opened.session_id, 1);
    let forgotten = ForgottenTopic { topic: "t".into(), partitions: vec![1], ..ForgottenTopic::default() };
    request.forgotten_topics_data.push(forgotten);
    let response: FetchResponse = client.call(12, &request);
    assert_eq!((response.error_code, response.responses), (ErrorCode::NONE, vec![]));
}
