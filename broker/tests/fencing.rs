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

use durability_support::client::{Client, Failure};
use durability_support::contest::{Chain, TOPIC};
use durability_support::history::History;
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
    let mut chain = Chain::begin(command.start().unwrap(), &history, &mut random);
    for number in 2..TAKEOVERS + 2 {
        chain.wait_for_load();
        std::thread::sleep(random.millis(0..200));
        if pauses {
            chain.earlier.broker.pause().unwrap();
        }
        let (takeover, later) = chain.take_over(&command, number, &mut random);
        if pauses {
            // The later one has written more by the time the earlier goes on.
            wait_until("acknowledgements", || later.acknowledged(&history) > 50);
            chain.earlier.broker.resume().unwrap();
        }
        // Both are under load for a while; what the earlier one had in hand comes to an end.
        std::thread::sleep(random.millis(300..900));
        wait_until("acknowledgements", || later.acknowledged(&history) > 100);
        check_admin(&chain.earlier.broker, &later.broker);
        println!("takeover {number}");
        let refused = chain.succeed(later, &takeover);
        assert!(!refused.commits.is_empty(), "the deposed broker refused no commit");
    }
    chain.end(&command);
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
