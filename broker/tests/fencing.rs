//! Two brokers on one directory, by force: the one that claims later wins, and the other can do no harm.
//!
//! Whatever the earlier broker acknowledged is there on the later one; once the later one serves a partition, the earlier
//! acknowledges nothing there; and what any consumer got from either stays. Also when the earlier is paused in the
//! middle of its work and goes on after it was deposed. The same for the offsets of groups.
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

use std::collections::BTreeSet;

use durability_support::client::{Client, Failure};
use durability_support::contest::{PARTITIONS, Side, TOPIC, by_force, check_acknowledged, take_over};
use durability_support::history::{History, Log};
use durability_support::random::Random;
use durability_support::record::{Tag, batch};
use durability_support::{PATIENCE, kaas, wait_until};
use kaas_fault_injection::process::BrokerProcess;
use kaas_protocol::ErrorCode;

const TAKEOVERS: u32 = 6;

#[test]
fn without_force_a_second_broker_is_refused_and_the_first_undisturbed() {
    let dir = tempfile::tempdir().unwrap();
    let command = kaas(dir.path());
    let first = command.start().unwrap();
    let mut client = Client::connect(first.bootstrap()).unwrap();
    client.create_topic(TOPIC, 1, &[]).unwrap();
    let ended = command.run_to_end(PATIENCE).unwrap();
    assert_ne!(ended.status.code(), Some(0));
    assert!(ended.status.code().is_some(), "{:?}", ended.status);
    let pid = first.pid().to_string();
    assert!(ended.stderr.contains(&pid), "no word about who has the directory:\n{}", ended.stderr);
    let tag = Tag { producer: 1, partition: 0, n: 0 };
    assert_eq!(client.produce(TOPIC, 0, -1, batch(tag, 1, None)).unwrap(), (ErrorCode::NONE, 0));
}

#[test]
fn a_later_broker_deposes_an_earlier_one_that_goes_on() {
    chain_of_takeovers("takeovers", false);
}

#[test]
fn a_broker_that_was_paused_while_it_was_deposed_does_no_harm_when_it_goes_on() {
    chain_of_takeovers("takeovers of the paused", true);
}

/// A chain of brokers on one directory, each deposing the one before while that is under load; with `pauses` the earlier
/// is stopped before the later comes, and goes on when that has written.
fn chain_of_takeovers(name: &str, pauses: bool) {
    let mut random = Random::for_test(name);
    let dir = tempfile::tempdir().unwrap();
    let command = kaas(dir.path());
    let history = History::default();
    let broker = command.start().unwrap();
    Client::connect(broker.bootstrap()).unwrap().create_topic(TOPIC, PARTITIONS, &[]).unwrap();
    let mut earlier = Side::start(broker, 1, &history, &mut random);
    let mut retrying = BTreeSet::from([10, 11]);
    for number in 2..TAKEOVERS + 2 {
        wait_until("acknowledgements", || {
            let bounds = earlier.committed.bounds();
            earlier.acknowledged(&history) > 100
                && bounds.len() == PARTITIONS as usize
                && bounds.values().all(|bounds| bounds.acknowledged > 0)
        });
        std::thread::sleep(random.millis(0..200));
        if pauses {
            earlier.broker.pause().unwrap();
        }
        let broker = by_force(&command);
        let takeover = take_over(&broker, &history, number);
        let later = Side::start(broker, number, &history, &mut random);
        retrying.extend([10 * number, 10 * number + 1]);
        if pauses {
            // The later one has written more by the time the earlier goes on.
            wait_until("acknowledgements", || later.acknowledged(&history) > 50);
            earlier.broker.resume().unwrap();
        }
        // Both are under load for a while; what the earlier one had in hand comes to an end.
        std::thread::sleep(random.millis(300..900));
        wait_until("acknowledgements", || later.acknowledged(&history) > 100);
        check_admin(&earlier.broker, &later.broker);

        let Side { broker: mut deposed, load, committed } = earlier;
        let refused = load.end();
        println!("takeover {number}: refused produces {:?}, commits {:?}", refused.produces, refused.commits);
        check_acknowledged(&deposed, &committed, &history, &takeover);
        assert!(!refused.produces.is_empty(), "the deposed broker refused no produce");
        assert!(!refused.commits.is_empty(), "the deposed broker refused no commit");
        assert!(deposed.is_running(), "a deposed broker says so, it does not fall over:\n{}", deposed.said());
        deposed.kill().unwrap();
        earlier = later;
    }
    let Side { broker, load, .. } = earlier;
    load.end();
    let log = Log::read(broker.bootstrap(), TOPIC, PARTITIONS).unwrap();
    let records = history.judge(&log, &retrying);
    println!(
        "{records} records, {} acknowledged, {} consumed",
        history.acknowledged_records(),
        history.consumed_records()
    );
    drop(broker);
    // And once more from the files alone.
    let broker = command.start().unwrap();
    history.judge(&Log::read(broker.bootstrap(), TOPIC, PARTITIONS).unwrap(), &retrying);
}

/// The deposed broker promises nothing about topics either.
fn check_admin(deposed: &BrokerProcess, successor: &BrokerProcess) {
    let mut client = Client::connect(deposed.bootstrap()).unwrap();
    let created = client.create_topic("too-late", 1, &[]);
    assert!(matches!(created, Err(Failure::Refused { .. })), "{created:?}");
    let deleted = client.delete_topic(TOPIC);
    assert!(matches!(deleted, Err(Failure::Refused { .. })), "{deleted:?}");
    let deleted = client.delete_records(TOPIC, 0, 1);
    assert!(matches!(deleted, Err(Failure::Refused { .. })), "{deleted:?}");
    let mut client = Client::connect(successor.bootstrap()).unwrap();
    assert_eq!(client.list_offset(TOPIC, 0, -2).unwrap(), 0);
}
