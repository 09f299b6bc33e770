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

use std::collections::{BTreeMap, BTreeSet};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use durability_support::client::{Client, Failure};
use durability_support::committer::{self, Committed};
use durability_support::history::{Acknowledged, History, Log};
use durability_support::producer::{self, Plan};
use durability_support::random::Random;
use durability_support::record::{Tag, batch};
use durability_support::{PATIENCE, Stop, Target, kaas, reader, wait_until};
use kaas_fault_injection::process::{BrokerCommand, BrokerProcess};
use kaas_protocol::ErrorCode;

const TOPIC: &str = "contested";
const PARTITIONS: i32 = 3;
const GROUP: &str = "contestants";
const TAKEOVERS: u32 = 6;

/// A broker that takes the directory whoever has it.
fn by_force(command: &BrokerCommand) -> BrokerProcess {
    command.clone().arg("--ignore-lock").start().unwrap()
}

/// A broker, and the load that only it gets.
struct Side {
    broker: BrokerProcess,
    load: Load,
    committed: Committed,
}

/// The threads of a side.
struct Load {
    stop: Stop,
    producers: Vec<JoinHandle<producer::Outcome>>,
    reader: JoinHandle<reader::Outcome>,
    committer: JoinHandle<committer::Outcome>,
}

/// Codes that requests were refused with, and how often.
struct Refused {
    produces: BTreeMap<i16, u64>,
    commits: BTreeMap<i16, u64>,
}

impl Side {
    /// Producers have numbers from `10 * number` on.
    fn start(broker: BrokerProcess, number: u32, history: &History, random: &mut Random) -> Self {
        let (target, stop) = (Target::new(broker.bootstrap()), Stop::default());
        let id = 10 * number;
        let once = |plan: Plan| Plan { flush: false, ..plan };
        let plans = [
            once(Plan::idempotent(id, TOPIC, PARTITIONS)),
            once(Plan { pace: Duration::ZERO, ..Plan::idempotent(id + 1, TOPIC, PARTITIONS) }),
            once(Plan::plain(id + 2, TOPIC, PARTITIONS)),
            // Its records may vanish, but not once a consumer has seen them.
            once(Plan { acks: 1, ..Plan::plain(id + 3, TOPIC, PARTITIONS) }),
        ];
        let start = |plan| producer::start(plan, &target, history, &stop, random.fork());
        let producers = plans.map(start).into_iter().collect();
        let reader = reader::start(TOPIC, PARTITIONS, &target, history, &stop);
        let committed = Committed::default();
        let plan = committer::Plan { group: GROUP, topic: TOPIC, partitions: PARTITIONS };
        let committer = committer::start(plan, &target, &committed, history, &stop, random.fork());
        Self { broker, load: Load { stop, producers, reader, committer }, committed }
    }

    fn acknowledged(&self, history: &History) -> u64 {
        history.acknowledged_by(self.broker.bootstrap())
    }
}

impl Load {
    fn end(self) -> Refused {
        self.stop.stop();
        let mut produces = BTreeMap::new();
        for producer in self.producers {
            for (code, count) in producer.join().unwrap().refused {
                *produces.entry(code).or_default() += count;
            }
        }
        self.reader.join().unwrap();
        Refused { produces, commits: self.committer.join().unwrap().refused }
    }
}

/// When the later broker was known to lead each partition, and what it said of the group then.
struct Takeover {
    leads_since: BTreeMap<i32, Instant>,
    offsets: BTreeMap<i32, i64>,
}

/// Takes every partition and the group over, by using them.
fn take_over(broker: &BrokerProcess, history: &History, number: u32) -> Takeover {
    let mut client = Client::connect(broker.bootstrap()).unwrap();
    let mut leads_since = BTreeMap::new();
    for partition in 0..PARTITIONS {
        let first = Tag { producer: 10 * number + 9, partition, n: 0 };
        wait_until("the later broker to serve", || {
            let sent_at = Instant::now();
            match client.produce(TOPIC, partition, -1, batch(first, 1, None)).unwrap() {
                (ErrorCode::NONE, base_offset) => {
                    history.acknowledge(Acknowledged {
                        first,
                        count: 1,
                        base_offset,
                        sent_at,
                        by: broker.bootstrap(),
                    });
                    true
                }
                (code, _) => {
                    assert!(code.is_retriable(), "{code:?}");
                    false
                }
            }
        });
        leads_since.insert(partition, Instant::now());
    }
    let all: Vec<i32> = (0..PARTITIONS).collect();
    let mut offsets = BTreeMap::new();
    wait_until("the later broker to know the group", || match client.committed(GROUP, TOPIC, &all) {
        Ok(found) => {
            offsets = found;
            true
        }
        Err(failure) => {
            println!("{failure}");
            false
        }
    });
    Takeover { leads_since, offsets }
}

/// Nothing that was sent to `deposed` after the takeover may have been acknowledged, and no offset of the group that its
/// successor did not find.
fn check_acknowledged(
    deposed: &BrokerProcess,
    committed: &Committed,
    history: &History,
    takeover: &Takeover,
) {
    for a in history.acknowledged().iter().filter(|a| a.by == deposed.bootstrap()) {
        if a.sent_at > takeover.leads_since[&a.first.partition] {
            history.violation(format!("the deposed broker acknowledged {:?} at {}", a.first, a.base_offset));
        }
    }
    for (partition, bounds) in committed.bounds() {
        let found = takeover.offsets.get(&partition).copied().unwrap_or(-1);
        if bounds.acknowledged > found {
            history.violation(format!(
                "offset {} of partition {partition} was acknowledged by the deposed broker, its successor found {found}",
                bounds.acknowledged
            ));
        }
    }
}

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
