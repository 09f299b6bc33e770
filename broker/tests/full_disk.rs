//! A full disk: appends fail with Kafka's code, everything else goes on, and space back means appends back.
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
use std::time::Instant;

use durability_support::client::{Client, Failure};
use durability_support::history::{Acknowledged, History, Log};
use durability_support::record::{LARGE_FROM, Tag, batch};
use durability_support::small_disk::SmallDisk;
use durability_support::{PATIENCE, kaas, wait_until};
use kaas_engine::batch::Producer;
use kaas_engine::layout::{GROUP_SLOTS, slot_of};
use kaas_engine::types::ProducerId;
use kaas_fault_injection::process::BrokerProcess;
use kaas_protocol::ErrorCode;

const DISK_MIB: u64 = 24;
const TOPIC: &str = "hoard";
const SPARE: &str = "spare";
const PARTITIONS: i32 = 2;
const GROUP: &str = "hoarders";
/// One that has never committed, of another slot.
const NEWCOMER: &str = "newcomer";
const PRODUCER: u32 = LARGE_FROM;
const OTHER_PRODUCER: u32 = LARGE_FROM + 1;
/// About 40 KiB.
const RECORDS_PER_BATCH: u64 = 40;
/// More commits than fit into a block.
const COMMITS_MAX: i64 = 500;
/// More batches than the disk can hold.
const BATCHES_MAX: u64 = 1000;

/// One producer for each partition, one batch at a time.
struct Writer {
    client: Client,
    identity: (i64, i16),
    next: BTreeMap<i32, u64>,
    history: History,
    broker: std::net::SocketAddr,
}

impl Writer {
    fn new(broker: &BrokerProcess) -> Self {
        let mut client = Client::connect(broker.bootstrap()).unwrap();
        let identity = client.init_producer().unwrap();
        let next = (0..PARTITIONS).map(|partition| (partition, 0)).collect();
        Self { client, identity, next, history: History::default(), broker: broker.bootstrap() }
    }

    /// The same producer, with a broker that was started anew.
    fn reconnect(&mut self, broker: &BrokerProcess) {
        self.client = Client::connect(broker.bootstrap()).unwrap();
        self.broker = broker.bootstrap();
    }

    /// Produces the next batch of a partition; the same again if it was refused the last time.
    fn write(&mut self, partition: i32) -> ErrorCode {
        let first = Tag { producer: PRODUCER, partition, n: self.next[&partition] };
        let (id, epoch) = self.identity;
        let producer = Producer { id: ProducerId(id), epoch, base_sequence: first.n as i32 };
        let sent_at = Instant::now();
        let records = batch(first, RECORDS_PER_BATCH, Some(producer));
        let (code, base_offset) = self.client.produce(TOPIC, partition, -1, records).unwrap();
        if code.is_none() {
            self.next.insert(partition, first.n + RECORDS_PER_BATCH);
            let by = self.broker;
            self.history.acknowledge(Acknowledged {
                first,
                count: RECORDS_PER_BATCH,
                base_offset,
                sent_at,
                by,
            });
        }
        code
    }

    /// Writes until no partition takes any more; the number of batches that went in.
    fn write_until_full(&mut self) -> u64 {
        // All are open before the disk is full; opening one later would use what the broker has put aside for that.
        self.expect_appends();
        let mut written = 0;
        for partition in 0..PARTITIONS {
            for _ in 0..BATCHES_MAX {
                match self.write(partition) {
                    ErrorCode::NONE => written += 1,
                    code => {
                        assert_eq!(code, ErrorCode::KAFKA_STORAGE_ERROR);
                        break;
                    }
                }
            }
        }
        assert!(written < BATCHES_MAX, "the disk is too large for this test");
        written
    }

    /// The refusal of a full disk, in every partition and more than once.
    fn expect_refusals(&mut self) {
        for _ in 0..3 {
            for partition in 0..PARTITIONS {
                assert_eq!(self.write(partition), ErrorCode::KAFKA_STORAGE_ERROR, "partition {partition}");
            }
        }
    }

    /// Waits until both partitions take batches again.
    fn expect_appends(&mut self) {
        for partition in 0..PARTITIONS {
            wait_until("appends to succeed again", || {
                let code = self.write(partition);
                assert!(code.is_none() || code.is_retriable(), "{code:?}");
                code.is_none()
            });
            assert_eq!(self.write(partition), ErrorCode::NONE);
        }
    }

    /// All that was acknowledged is there, in partitions that nobody deleted from.
    fn judge(&self) {
        let log = Log::read(self.broker, TOPIC, PARTITIONS).unwrap();
        assert!(self.history.judge(&log, &BTreeSet::from([PRODUCER])) > 0);
    }
}

#[test]
fn appends_fail_reads_go_on_and_space_back_means_appends_back() {
    let Some(disk) = SmallDisk::mount(DISK_MIB) else { return };
    disk.take(4 << 20);
    let command = kaas(&disk.path().join("data"));
    let mut broker = command.start().unwrap();
    let mut writer = Writer::new(&broker);
    writer.client.create_topic(TOPIC, PARTITIONS, &[("segment.bytes", "1048576")]).unwrap();
    let offsets = BTreeMap::from([(0, 1), (1, 2)]);
    let commit =
        |client: &mut Client, offsets: &BTreeMap<i32, i64>| client.commit(GROUP, TOPIC, offsets).unwrap();
    assert!(commit(&mut writer.client, &offsets).values().all(|code| code.is_none()));

    let written = writer.write_until_full();
    assert!(written > 100, "only {written} batches");
    disk.fill();
    writer.expect_refusals();
    writer.judge();

    // Neither are offsets accepted that cannot be kept; those that were are there.
    let mut offsets = offsets;
    let mut refused = 0;
    for higher in 3..COMMITS_MAX {
        // The last block of the journal may have room for a few.
        let next = BTreeMap::from([(0, higher), (1, higher + 1)]);
        let codes = commit(&mut writer.client, &next);
        if codes.values().all(|code| code.is_none()) {
            assert_eq!(refused, 0, "no space came back");
            offsets = next;
            continue;
        }
        assert!(codes.values().all(|code| !code.is_none() && code.is_retriable()), "{codes:?}");
        refused += 1;
        if refused == 3 {
            break;
        }
    }
    assert_eq!(refused, 3, "a full disk takes commits for ever");
    assert_eq!(writer.client.committed(GROUP, TOPIC, &[0, 1]).unwrap(), offsets);
    expect_refused(&mut writer.client, NEWCOMER);
    let created = writer.client.create_topic("one-more", 1, &[]);
    assert!(matches!(created, Err(Failure::Refused { .. })), "{created:?}");

    // A crash makes nothing worse: the broker starts on the full disk and reads what is there.
    broker.kill().unwrap();
    broker = command.start().unwrap();
    writer.reconnect(&broker);
    writer.judge();
    assert_eq!(writer.client.committed(GROUP, TOPIC, &[0, 1]).unwrap(), offsets);
    writer.expect_refusals();
    // What was freed for the start is not for new partitions, or the next start would have none.
    let created = writer.client.create_topic("one-more", 1, &[]);
    assert!(matches!(created, Err(Failure::Refused { .. })), "{created:?}");

    // Space back.
    let later = BTreeMap::from([(0, COMMITS_MAX), (1, COMMITS_MAX)]);
    disk.free();
    writer.expect_appends();
    wait_until("commits to succeed again", || {
        commit(&mut writer.client, &later).values().all(|code| code.is_none())
    });
    expect_committed(&mut writer.client, NEWCOMER);
    writer.client.create_topic("one-more", 1, &[]).unwrap();
    writer.judge();

    broker.kill().unwrap();
    broker = command.start().unwrap();
    writer.reconnect(&broker);
    writer.judge();
    assert_eq!(writer.client.committed(GROUP, TOPIC, &[0, 1]).unwrap(), later);
}

#[test]
fn a_disk_that_fills_up_again_and_again_serves_whenever_there_is_space() {
    let Some(disk) = SmallDisk::mount(DISK_MIB) else { return };
    disk.take(4 << 20);
    let broker = kaas(&disk.path().join("data")).start().unwrap();
    let mut writer = Writer::new(&broker);
    writer.client.create_topic(TOPIC, PARTITIONS, &[("segment.bytes", "1048576")]).unwrap();
    for less in 1..4 {
        writer.write_until_full();
        disk.fill();
        writer.expect_refusals();
        disk.free();
        writer.expect_appends();
        disk.take((4 - less) << 20);
    }
    writer.judge();
}

#[test]
fn deletions_work_on_a_full_disk_and_make_room() {
    let Some(disk) = SmallDisk::mount(DISK_MIB) else { return };
    let command = kaas(&disk.path().join("data"));
    let mut broker = command.start().unwrap();
    let mut writer = Writer::new(&broker);
    writer.client.create_topic(TOPIC, PARTITIONS, &[("segment.bytes", "1048576")]).unwrap();
    writer.client.create_topic(SPARE, 1, &[]).unwrap();
    for n in 0..50 {
        let first = Tag { producer: OTHER_PRODUCER, partition: 0, n: n * RECORDS_PER_BATCH };
        let answer = writer.client.produce(SPARE, 0, -1, batch(first, RECORDS_PER_BATCH, None)).unwrap();
        assert_eq!(answer, (ErrorCode::NONE, first.n as i64));
    }
    writer.write_until_full();
    disk.fill();
    writer.expect_refusals();

    // Records go, and with them segments; the room is used without a restart.
    let end = writer.client.list_offset(TOPIC, 0, -1).unwrap();
    assert_eq!(writer.client.delete_records(TOPIC, 0, end / 2).unwrap(), end / 2);
    writer.expect_appends();

    // The same with a topic, once it is full again.
    writer.write_until_full();
    disk.fill();
    writer.expect_refusals();
    writer.client.delete_topic(SPARE).unwrap();
    writer.expect_appends();

    // And on a disk that was full at the start, and when the broker before stopped in order.
    writer.write_until_full();
    disk.fill();
    let status = broker.terminate(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(0), "{}", broker.said());
    broker = command.start().unwrap();
    writer.reconnect(&broker);
    let gone = writer.client.list_offset(SPARE, 0, -1);
    assert!(matches!(gone, Err(Failure::Refused { .. })), "{gone:?}");
    let (start, end) =
        (writer.client.list_offset(TOPIC, 0, -2).unwrap(), writer.client.list_offset(TOPIC, 0, -1).unwrap());
    let middle = start + (end - start) / 2;
    assert_eq!(writer.client.delete_records(TOPIC, 0, middle).unwrap(), middle);
    writer.expect_appends();
    let log = Log::read(writer.broker, TOPIC, PARTITIONS).unwrap();
    assert!(writer.history.judge_what_is_left(&log, &BTreeSet::from([PRODUCER])) > 0);
}

#[test]
fn a_disk_without_inodes_takes_appends_and_deletions_and_restarts() {
    let Some(disk) = SmallDisk::mount_with_inodes(DISK_MIB, 192) else { return };
    let command = kaas(&disk.path().join("data"));
    let mut broker = command.start().unwrap();
    let mut writer = Writer::new(&broker);
    // Nothing is rolled here: appends need no new file.
    writer.client.create_topic(TOPIC, PARTITIONS, &[]).unwrap();
    writer.client.create_topic(SPARE, 1, &[]).unwrap();
    let offsets = BTreeMap::from([(0, 1), (1, 2)]);
    let codes = writer.client.commit(GROUP, TOPIC, &offsets).unwrap();
    assert!(codes.values().all(|code| code.is_none()), "{codes:?}");
    writer.expect_appends();

    disk.take_inodes();
    writer.expect_appends();
    // A group goes on committing where there are files for it.
    expect_committed(&mut writer.client, GROUP);
    expect_refused(&mut writer.client, NEWCOMER);
    let created = writer.client.create_topic("one-more", 1, &[]);
    assert!(matches!(created, Err(Failure::Refused { .. })), "{created:?}");
    writer.client.delete_topic(SPARE).unwrap();
    writer.expect_appends();

    // What was used for that is put aside again when there is room, and a start has it. Records wait, since their segments would be new files.
    disk.free_inodes();
    wait_until("names to be put aside", || broker.said().contains("there is room on the volume again"));
    disk.take_inodes();
    broker.kill().unwrap();
    broker = command.start().unwrap();
    writer.reconnect(&broker);
    writer.judge();
    writer.expect_refusals();
    assert_eq!(writer.client.committed(GROUP, TOPIC, &[0, 1]).unwrap(), offsets);
    let said = broker.said();
    assert_eq!(said.matches("takes no more files").count(), 1, "{said}");
    assert!(!said.contains("there is room on the volume again"), "{said}");

    disk.free_inodes();
    writer.expect_appends();
    expect_committed(&mut writer.client, GROUP);
    expect_committed(&mut writer.client, NEWCOMER);
    writer.judge();
}

/// The group's offset is not taken, and the group may ask again.
fn expect_refused(client: &mut Client, group: &str) {
    assert_ne!(slot_of(NEWCOMER, GROUP_SLOTS), slot_of(GROUP, GROUP_SLOTS));
    let codes = client.commit(group, TOPIC, &BTreeMap::from([(0, 1), (1, 2)])).unwrap();
    assert!(codes.values().all(|code| !code.is_none() && code.is_retriable()), "{codes:?}");
}

/// The group's offset is taken, at the latest when the broker has seen that there is room.
fn expect_committed(client: &mut Client, group: &str) {
    let offsets = BTreeMap::from([(0, 1), (1, 2)]);
    wait_until("the commit to succeed", || {
        client.commit(group, TOPIC, &offsets).unwrap().values().all(|code| code.is_none())
    });
    assert_eq!(client.committed(group, TOPIC, &[0, 1]).unwrap(), offsets);
}
