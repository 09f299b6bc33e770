//! The wire: what is no request, what is too large, what comes half, what is not read; and that nobody else notices.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod raw;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use kaas_protocol::{
    ApiVersionsRequest, ApiVersionsResponse, ErrorCode, MetadataRequest, MetadataResponse, ProduceResponse,
    decode_response_frame,
};
use raw::{Broker, Client, LONG, batch, fetch_request, produce_request};

/// A frame that says `key` and `version` and goes on with `rest`.
fn frame(key: i16, version: i16, rest: &[u8]) -> Vec<u8> {
    let mut frame = key.to_be_bytes().to_vec();
    frame.extend_from_slice(&version.to_be_bytes());
    frame.extend_from_slice(&77_i32.to_be_bytes());
    frame.extend_from_slice(rest);
    let mut out = i32::try_from(frame.len()).unwrap().to_be_bytes().to_vec();
    out.extend_from_slice(&frame);
    out
}

fn assert_closes(broker: &Broker, bytes: &[u8], what: &str) {
    let mut client = broker.connect();
    client.stream.write_all(bytes).unwrap();
    assert!(client.is_closed(), "{what}: answered instead of closed");
}

fn assert_serves(client: &mut Client) {
    let response = client.call(12, &MetadataRequest::default());
    assert_eq!(response.brokers.len(), 1);
}

#[test]
fn what_is_no_request_closes_its_connection_and_no_other() {
    let broker = Broker::start(&[]);
    let mut bystander = broker.connect();
    assert_serves(&mut bystander);
    let mut hostile_metadata = 0x7fff_ffff_i32.to_be_bytes().to_vec();
    hostile_metadata.insert(0, 0xff);
    hostile_metadata.insert(0, 0xff);
    let cases: &[(&str, Vec<u8>)] = &[
        ("a length of 0", vec![0, 0, 0, 0]),
        ("a length too short for a header", vec![0, 0, 0, 7]),
        ("a negative length", vec![0xff, 0xff, 0xff, 0xff]),
        ("the largest length", vec![0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 9]),
        ("5 MiB that are no Produce", vec![0, 0x50, 0, 0, 0, 3, 0, 9]),
        ("text", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
        ("an unknown key", frame(9999, 0, &[0xff, 0xff])),
        ("a negative key", frame(-1, 0, &[0xff, 0xff])),
        (
            "a Produce version that Kafka refuses too",
            frame(0, 2, &[0xff, 0xff, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
        ),
        ("a Metadata version from the future", frame(3, 99, &[0xff, 0xff])),
        ("a Fetch version from the past", frame(1, 3, &[0xff, 0xff])),
        ("2^31 topics in five bytes", frame(3, 0, &hostile_metadata)),
        ("a header without a client id", frame(3, 1, &[])),
    ];
    for (what, bytes) in cases {
        assert_closes(&broker, bytes, what);
    }
    assert_serves(&mut bystander);
}

/// What librdkafka sends to learn of all topics: a 32-bit zero where one byte says "null", then three more fields.
#[test]
fn a_request_that_is_longer_than_it_should_be_is_answered() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.stream.write_all(&frame(3, 13, &[0xff, 0xff, 0, 0, 0, 0, 0, 0, 1, 0])).unwrap();
    let answer = client.frame().unwrap();
    let (id, response): (i32, MetadataResponse) = decode_response_frame(13, &answer).unwrap();
    assert_eq!((id, response.brokers.len()), (77, 1));
    assert_serves(&mut client);
}

#[test]
fn arbitrary_bodies_of_every_request_never_bring_it_down() {
    let broker = Broker::start(&["--log-level", "error"]);
    let mut bystander = broker.connect();
    bystander.create_topic("t", 2, &[]);
    let advertised = bystander.call(0, &ApiVersionsRequest::default()).api_keys;
    // A fixed sequence, so that a failure can be repeated.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..40 {
        for api in &advertised {
            let span = u64::try_from(api.max_version - api.min_version + 1).unwrap();
            let version = api.min_version + i16::try_from(random() % span).unwrap();
            let mut body = vec![0xff, 0xff];
            let length = random() % 60;
            // Small numbers look most like lengths and counts.
            body.extend((0..length).map(|_| match random() % 4 {
                0 => 0,
                1 => u8::try_from(random() % 6).unwrap(),
                2 => b't',
                _ => u8::try_from(random() % 256).unwrap(),
            }));
            let mut client = broker.connect();
            client.stream.write_all(&frame(api.api_key, version, &body)).unwrap();
            client.stream.shutdown(Shutdown::Write).unwrap();
            // Answered or closed; a group request may wait longer than we do.
            client.stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            let _ = client.stream.read(&mut [0; 64]);
        }
        assert_serves(&mut bystander);
        assert!(!broker.process.said().contains("panicked"), "round {round}: {}", broker.process.said());
    }
    assert_eq!(bystander.produce("t", 0, batch(&[b"x"])).error_code, ErrorCode::NONE);
}

#[test]
fn an_unknown_version_of_api_versions_is_answered_in_version_0() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.stream.write_all(&frame(18, 99, &[0xff, 0xff, 1, 2, 3])).unwrap();
    let answer = client.frame().unwrap();
    let (id, response): (i32, ApiVersionsResponse) = decode_response_frame(0, &answer).unwrap();
    assert_eq!((id, response.error_code), (77, ErrorCode::UNSUPPORTED_VERSION));
    let range = |key| {
        let api = response.api_keys.iter().find(|api| api.api_key == key).unwrap();
        (api.min_version, api.max_version)
    };
    assert_eq!(range(18), (0, 4));
    // Older librdkafka does not compress unless Produce begins at 0.
    assert_eq!(range(0).0, 0);
    assert_serves(&mut client);
    let named =
        ApiVersionsRequest { client_software_name: "raw".into(), client_software_version: "1.0".into() };
    assert_eq!(client.call(4, &named).error_code, ErrorCode::NONE);
    let unnamed = client.call(3, &ApiVersionsRequest::default());
    assert_eq!(unnamed.error_code, ErrorCode::INVALID_REQUEST);
}

#[test]
fn what_is_advertised_is_what_is_dispatched() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    let advertised = client.call(0, &ApiVersionsRequest::default()).api_keys;
    assert!(advertised.len() >= 19, "{advertised:?}");
    for api in advertised {
        let lowest = if api.api_key == 0 { 3 } else { api.min_version };
        for version in lowest..=api.max_version {
            assert!(kaas_broker::api::registry::find(api.api_key).unwrap().versions.contains(version));
        }
        let (key, next) = (api.api_key, api.max_version + 1);
        if key != 18 {
            assert_closes(&broker, &frame(key, next, &[0xff, 0xff]), "one version too many");
        }
    }
}

#[test]
fn frames_may_come_in_pieces_and_several_at_once() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    let (id, bytes) = client.encode(9, &MetadataRequest::default());
    for byte in bytes.iter() {
        client.stream.write_all(&[*byte]).unwrap();
    }
    assert_eq!(client.receive::<MetadataResponse>(9).0, id);
    let mut all = Vec::new();
    let ids: Vec<i32> = (0..40)
        .map(|_| {
            let (id, bytes) = client.encode(9, &MetadataRequest::default());
            all.extend_from_slice(&bytes);
            id
        })
        .collect();
    client.stream.write_all(&all).unwrap();
    for id in ids {
        assert_eq!(client.receive::<MetadataResponse>(9).0, id);
    }
}

#[test]
fn pipelined_produce_requests_keep_their_order() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("ordered", 1, &[]);
    let mut wire = Vec::new();
    let count = 300;
    let ids: Vec<i32> = (0..count)
        .map(|n: i64| {
            let value = n.to_be_bytes();
            let (id, bytes) = client.encode(9, &produce_request("ordered", 0, -1, batch(&[&value])));
            wire.extend_from_slice(&bytes);
            id
        })
        .collect();
    // A request of another kind behind them sees all of them.
    let (fetch_id, fetch) = client.encode(12, &fetch_request("ordered", 0, count - 1, 0));
    wire.extend_from_slice(&fetch);
    let mut writer = client.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || writer.write_all(&wire).unwrap());
    for (n, id) in ids.into_iter().enumerate() {
        let (got, response): (i32, ProduceResponse) = client.receive(9);
        let answer = &response.responses[0].partition_responses[0];
        assert_eq!((got, answer.error_code), (id, ErrorCode::NONE));
        assert_eq!(answer.base_offset, i64::try_from(n).unwrap());
    }
    sender.join().unwrap();
    let (got, response) = client.receive::<kaas_protocol::FetchResponse>(12);
    assert_eq!(got, fetch_id);
    let records = raw::record_bytes(&response.responses[0].partitions[0]);
    assert!(records.ends_with(&[&(count - 1).to_be_bytes()[..], &[0]].concat()), "{records:?}");
}

#[test]
fn requests_take_effect_in_their_order_whatever_their_kind() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    let topic = |name: &str| kaas_protocol::messages::create_topics::CreatableTopic {
        name: name.into(),
        num_partitions: 1,
        replication_factor: 1,
        ..Default::default()
    };
    // Created, written and read in one go, ten times, before any answer is read.
    let mut wire = Vec::new();
    for n in 0..10 {
        let name = format!("t{n}");
        let create = kaas_protocol::CreateTopicsRequest {
            topics: vec![topic(&name)],
            timeout_ms: 10_000,
            ..Default::default()
        };
        wire.extend_from_slice(&client.encode(7, &create).1);
        wire.extend_from_slice(&client.encode(9, &produce_request(&name, 0, -1, batch(&[b"x"]))).1);
        wire.extend_from_slice(&client.encode(12, &fetch_request(&name, 0, 0, 0)).1);
    }
    client.stream.write_all(&wire).unwrap();
    for n in 0..10 {
        let (id, created) = client.receive::<kaas_protocol::CreateTopicsResponse>(7);
        assert_eq!((id, created.topics[0].error_code), (3 * n + 1, ErrorCode::NONE));
        let (_, produced) = client.receive::<ProduceResponse>(9);
        assert_eq!(produced.responses[0].partition_responses[0].error_code, ErrorCode::NONE);
        let (_, fetched) = client.receive::<kaas_protocol::FetchResponse>(12);
        assert_eq!(fetched.responses[0].partitions[0].high_watermark, 1);
    }
}

#[test]
fn acks_0_gets_no_answer_and_is_carried_out_even_if_the_client_leaves_at_once() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("quiet", 1, &[]);
    client.send(9, &produce_request("quiet", 0, 0, batch(&[b"one"])));
    // The next answer on the connection belongs to the next request.
    assert_serves(&mut client);
    let mut hasty = broker.connect();
    for _ in 0..50 {
        hasty.send(9, &produce_request("quiet", 0, 0, batch(&[b"more"])));
    }
    hasty.stream.shutdown(Shutdown::Write).unwrap();
    drop(hasty);
    let deadline = Instant::now() + LONG;
    while client.fetch("quiet", 0, 0).high_watermark < 51 {
        assert!(Instant::now() < deadline, "{:?}", client.fetch("quiet", 0, 0).high_watermark);
        std::thread::sleep(Duration::from_millis(20));
    }
    // What is refused can only be told by closing.
    let mut refused = broker.connect();
    refused.send(9, &produce_request("no-such-topic", 0, 0, batch(&[b"x"])));
    assert!(refused.is_closed());
}

#[test]
fn a_client_that_stops_in_the_middle_of_a_frame_holds_up_nobody() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[]);
    let (_, bytes) = client.encode(9, &produce_request("t", 0, -1, batch(&[&[7; 100_000]])));
    let half: Vec<Client> = (0..50)
        .map(|_| {
            let mut half = broker.connect();
            half.stream.write_all(&bytes[..bytes.len() / 2]).unwrap();
            half
        })
        .collect();
    assert_eq!(client.produce("t", 0, batch(&[b"x"])).error_code, ErrorCode::NONE);
    for mut half in half {
        half.stream.shutdown(Shutdown::Write).unwrap();
        assert!(half.is_closed());
    }
    assert_eq!(client.fetch("t", 0, 0).high_watermark, 1, "half a request changes nothing");
}

#[test]
fn requests_wait_for_memory_and_are_served_then() {
    let broker = Broker::start(&["--request-memory-mib", "1"]);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[]);
    let value = vec![9_u8; 700 << 10];
    // Half a request holds the memory for all of it.
    let (mut first, mut second) = (broker.connect(), broker.connect());
    let (_, bytes) = first.encode(9, &produce_request("t", 0, -1, batch(&[&value])));
    let (begin, rest) = bytes.split_at(bytes.len() / 2);
    first.stream.write_all(begin).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let (id, bytes) = second.encode(9, &produce_request("t", 0, -1, batch(&[&value])));
    let mut writer = second.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || writer.write_all(&bytes).unwrap());
    second.stream.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    let early = second.stream.peek(&mut [0]);
    assert!(early.is_err(), "served beyond the limit");
    // Small requests go on.
    assert_serves(&mut client);
    first.stream.write_all(rest).unwrap();
    assert_eq!(first.receive::<ProduceResponse>(9).1.responses[0].partition_responses[0].base_offset, 0);
    second.stream.set_read_timeout(Some(LONG)).unwrap();
    let (got, response) = second.receive::<ProduceResponse>(9);
    assert_eq!((got, response.responses[0].partition_responses[0].base_offset), (id, 1));
    sender.join().unwrap();
    let threads: Vec<_> = (0..40)
        .map(|_| {
            let mut client = broker.connect();
            let records = batch(&[&value]);
            std::thread::spawn(move || client.produce("t", 0, records).error_code)
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), ErrorCode::NONE);
    }
    assert_eq!(client.fetch("t", 0, 41).high_watermark, 42);
}

#[test]
fn a_reader_that_does_not_read_costs_little_and_holds_up_nobody() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("big", 1, &[]);
    let value = vec![1_u8; 900_000];
    for _ in 0..40 {
        assert_eq!(client.produce("big", 0, batch(&[&value])).error_code, ErrorCode::NONE);
    }
    let before = broker.process.rss_bytes().unwrap();
    // Twenty readers ask for 36 MB ten times each, and read nothing.
    let readers: Vec<Client> = (0..20)
        .map(|_| {
            let mut reader = broker.connect();
            for _ in 0..10 {
                reader.send(12, &fetch_request("big", 0, 0, 0));
            }
            reader
        })
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(client.produce("big", 0, batch(&[b"x"])).base_offset, 40);
    let grown = broker.process.rss_bytes().unwrap().saturating_sub(before);
    assert!(grown < 64 << 20, "slow readers cost {} MiB", grown >> 20);
    // One of them reads after all, and gets everything whole.
    let mut reader = readers.into_iter().next().unwrap();
    for _ in 0..10 {
        let (_, response) = reader.receive::<kaas_protocol::FetchResponse>(12);
        let data = &response.responses[0].partitions[0];
        assert!(raw::record_bytes(data).len() >= 39 * 900_000);
    }
}

#[test]
fn two_thousand_idle_connections_cost_little() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    assert_serves(&mut client);
    let before = broker.process.rss_bytes().unwrap();
    let mut idle: Vec<TcpStream> = (0..2_000)
        .map(|_| {
            let mut idle = broker.connect();
            // Each has said something once.
            idle.call(
                3,
                &ApiVersionsRequest {
                    client_software_name: "raw".into(),
                    client_software_version: "1".into(),
                },
            );
            idle.stream
        })
        .collect();
    assert_serves(&mut client);
    let each = broker.process.rss_bytes().unwrap().saturating_sub(before) / 2_000;
    println!("{each} bytes a connection");
    assert!(each < 16 << 10, "an idle connection costs {each} bytes");
    for stream in idle.iter_mut().step_by(97) {
        let (_, bytes) = client.encode(9, &MetadataRequest::default());
        stream.write_all(&bytes).unwrap();
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
    }
}

#[test]
fn idle_connections_are_closed_and_busy_ones_are_not() {
    let broker = Broker::start(&["--set", "connections.max.idle.ms=700"]);
    let mut idle = broker.connect();
    assert_serves(&mut idle);
    let mut parked = broker.connect();
    parked.create_topic("t", 1, &[]);
    parked.send(12, &fetch_request("t", 0, 0, 2_000));
    let began = Instant::now();
    assert!(idle.is_closed());
    assert!(began.elapsed() >= Duration::from_millis(500), "{:?}", began.elapsed());
    // Waiting for records is not idling.
    parked.receive::<kaas_protocol::FetchResponse>(12);
    assert!(began.elapsed() >= Duration::from_millis(1_900));
}

#[test]
fn connection_limits_hold_and_may_be_changed() {
    let broker = Broker::start(&["--set", "max.connections.per.ip=3"]);
    let mut clients: Vec<Client> = (0..3).map(|_| broker.connect()).collect();
    clients.iter_mut().for_each(assert_serves);
    assert!(broker.connect().is_closed(), "a fourth connection from one address");
    clients.pop();
    let deadline = Instant::now() + LONG;
    loop {
        let mut next = broker.connect();
        next.send(9, &MetadataRequest::default());
        if next.frame().is_some() {
            break;
        }
        assert!(Instant::now() < deadline, "a place is not given back");
    }
}
