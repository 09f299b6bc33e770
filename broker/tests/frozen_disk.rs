//! A volume that does not answer: writes wait for it, everything else goes on, and what was in hand is done when it is back.
//!
//! Needs root and a loop device; `KAAS_TEST_NO_LOOP=1` passes over these tests where there is none.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

mod durability_support;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use durability_support::client::{Client, Sent};
use durability_support::history::{Acknowledged, History, Log};
use durability_support::record::{Tag, batch};
use durability_support::small_disk::SmallDisk;
use durability_support::{PATIENCE, kaas, wait_until};
use kaas_protocol::{ErrorCode, MetadataRequest, ProduceRequest};

const TOPIC: &str = "patience";
/// More than the broker has threads that wait for the file system.
const PARTITIONS: i32 = 40;
/// A group whose commit waits for the volume, and one of another slot.
const WAITING: &str = "waiting";
const SETTLED: &str = "settled";
const RECORDS_PER_BATCH: u64 = 3;
/// How long the volume is silent, at least.
const SILENCE: Duration = Duration::from_secs(3);

#[test]
fn a_volume_that_does_not_answer_holds_up_writes_only() {
    let Some(disk) = SmallDisk::mount(64) else { return };
    let command = kaas(&disk.path().join("data"));
    let mut broker = command.start().unwrap();
    let address = broker.bootstrap();
    let mut client = Client::connect(address).unwrap();
    client.create_topic(TOPIC, PARTITIONS, &[]).unwrap();
    let history = History::default();
    for partition in 0..PARTITIONS {
        let (code, base_offset) =
            client.produce(TOPIC, partition, -1, batch(tag(partition, 0), RECORDS_PER_BATCH, None)).unwrap();
        assert_eq!(code, ErrorCode::NONE);
        acknowledge(&history, address, tag(partition, 0), base_offset);
    }
    for group in [WAITING, SETTLED] {
        let codes = client.commit(group, TOPIC, &BTreeMap::from([(0, 7)])).unwrap();
        assert!(codes[&0].is_none(), "{codes:?}");
    }

    let frozen = disk.freeze();
    // One connection whose produce requests wait, and one whose commit does.
    let mut writer = Client::connect(address).unwrap();
    let sent: Vec<Sent<ProduceRequest>> = (0..PARTITIONS)
        .map(|partition| {
            let records = batch(tag(partition, 1), RECORDS_PER_BATCH, None);
            let request = durability_support::calls::produce_request(TOPIC, partition, -1, records);
            writer.send(&request).unwrap()
        })
        .collect();
    let (done, answers) = mpsc::channel();
    let for_writer = done.clone();
    let writing = std::thread::spawn(move || {
        for sent in sent {
            let answer = writer.receive(sent).unwrap();
            for_writer.send(("produce", answer.responses[0].partition_responses[0].error_code)).unwrap();
        }
        writer
    });
    let committing = std::thread::spawn(move || {
        let mut client = Client::connect(address).unwrap();
        let codes = client.commit(WAITING, TOPIC, &BTreeMap::from([(0, 8)])).unwrap();
        done.send(("commit", codes[&0])).unwrap();
    });

    // Everything that needs no write is answered, to old connections and new ones.
    let until = Instant::now() + SILENCE;
    let mut rounds = 0;
    while Instant::now() < until || rounds < 5 {
        let mut client = Client::connect_with(address, PATIENCE).unwrap();
        let metadata = client.call(&MetadataRequest { topics: None, ..Default::default() }).unwrap();
        assert_eq!(metadata.topics.len(), 1);
        let partition = rounds % PARTITIONS;
        assert_eq!(client.list_offset(TOPIC, partition, -1).unwrap(), RECORDS_PER_BATCH as i64);
        let fetched = client.fetch(TOPIC, &BTreeMap::from([(partition, 0)]), 0).unwrap();
        assert_eq!(fetched[0].records.len(), RECORDS_PER_BATCH as usize);
        assert_eq!(client.committed(SETTLED, TOPIC, &[0]).unwrap()[&0], 7);
        client.find_coordinator(WAITING).unwrap();
        rounds += 1;
    }
    println!("{rounds} rounds of requests while the volume was silent");
    let early: Vec<_> = answers.try_iter().collect();
    assert!(early.is_empty(), "acknowledged although nothing can be written: {early:?}");

    drop(frozen);
    committing.join().unwrap();
    writing.join().unwrap();
    let answers: Vec<_> = answers.iter().collect();
    assert_eq!(answers.len(), PARTITIONS as usize + 1);
    assert!(answers.iter().all(|(_, code)| code.is_none()), "{answers:?}");
    for partition in 0..PARTITIONS {
        acknowledge(&history, address, tag(partition, 1), RECORDS_PER_BATCH as i64);
    }
    broker.kill().unwrap();
    let broker = command.start().unwrap();
    history.judge(&Log::read(broker.bootstrap(), TOPIC, PARTITIONS).unwrap(), &BTreeSet::from([1]));
    let mut client = Client::connect(broker.bootstrap()).unwrap();
    wait_until("the offset", || client.committed(WAITING, TOPIC, &[0]).unwrap()[&0] == 8);
}

/// Longer than it takes until a volume counts as one that does not answer, and until that is looked at.
const STALL: Duration = Duration::from_secs(36);

#[test]
fn the_log_says_that_a_volume_does_not_answer_and_when_it_does_again() {
    let Some(disk) = SmallDisk::mount(32) else { return };
    let broker = kaas(&disk.path().join("data")).start().unwrap();
    let mut client = Client::connect(broker.bootstrap()).unwrap();
    client.create_topic(TOPIC, 1, &[]).unwrap();
    let records = |n| batch(tag(0, n), RECORDS_PER_BATCH, None);
    assert_eq!(client.produce(TOPIC, 0, -1, records(0)).unwrap(), (ErrorCode::NONE, 0));

    let frozen = disk.freeze();
    let waiting = client.send(&durability_support::calls::produce_request(TOPIC, 0, -1, records(1))).unwrap();
    // One that is started meanwhile waits for the volume, too.
    let another = kaas(&disk.path().join("another")).ready_within(2 * STALL);
    let starting = std::thread::spawn(move || another.start().unwrap());
    std::thread::sleep(STALL);
    drop(frozen);
    let started = starting.join().unwrap();
    let code = client.receive(waiting).unwrap().responses[0].partition_responses[0].error_code;
    assert!(matches!(code, ErrorCode::NONE | ErrorCode::REQUEST_TIMED_OUT), "{code:?}");
    wait_until("the log to say that it is over", || broker.said().contains("the volume answers again"));
    for broker in [broker, started] {
        let said = broker.said();
        assert_eq!(said.matches("the volume does not answer").count(), 1, "{said}");
        assert!(said.contains("the volume answers again"), "{said}");
    }
}

/// The first record of the n-th batch of a partition.
fn tag(partition: i32, batch: u64) -> Tag {
    Tag { producer: 1, partition, n: batch * RECORDS_PER_BATCH }
}

fn acknowledge(history: &History, by: SocketAddr, first: Tag, base_offset: i64) {
    history.acknowledge(Acknowledged {
        first,
        count: RECORDS_PER_BATCH,
        base_offset,
        sent_at: Instant::now(),
        by,
    });
}
