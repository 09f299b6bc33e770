//! Fetches, sessions and the epochs of leaders, against the real binary: what Kafka's consumers rely on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod raw;

use std::time::{Duration, Instant};

use kaas_protocol::messages::fetch::{FetchPartition, FetchTopic, ForgottenTopic};
use kaas_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use kaas_protocol::messages::offset_for_leader_epoch::{OffsetForLeaderPartition, OffsetForLeaderTopic};
use kaas_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use kaas_protocol::{
    ErrorCode, FetchRequest, FetchResponse, ListOffsetsRequest, MetadataRequest, OffsetForLeaderEpochRequest,
    ProduceRequest, Uuid,
};
use raw::{Broker, Client, batch, delete_records, fetch_request, list_offset, record_bytes};

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
