//! What was acknowledged is there after a crash: records, committed offsets, topics, deletions.
//!
//! The broker is killed with SIGKILL at random moments and started again, while producers, consumers and committers go on. At
//! the end every record that was acknowledged must be there once, in order, at its acknowledged offset, and so must
//! every record that any consumer was given. `KAAS_TEST_SEED` repeats the choices of a run, though not its timing.
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
use std::time::Duration;

use durability_support::client::Client;
use durability_support::committer::{self, Committed};
use durability_support::history::{History, Log};
use durability_support::producer::{self, Plan};
use durability_support::random::Random;
use durability_support::record::{Tag, batch};
use durability_support::{PATIENCE, Stop, Target, kaas, reader, wait_until};
use kaas_fault_injection::process::BrokerProcess;
use kaas_protocol::ErrorCode;

const TOPIC: &str = "ledger";
const PARTITIONS: i32 = 3;
const GROUPS: [&str; 2] = ["accountants", "auditors"];
const KILLS: usize = 20;
const CLEAN_RESTARTS: usize = 6;

/// Everything that runs against the broker at once.
struct Load {
    target: Target,
    history: History,
    stop: Stop,
    producers: Vec<JoinHandle<producer::Outcome>>,
    readers: Vec<JoinHandle<reader::Outcome>>,
    committers: Vec<JoinHandle<committer::Outcome>>,
    committed: BTreeMap<&'static str, Committed>,
    retrying: BTreeSet<u32>,
}

impl Load {
    /// Creates the topic, with small segments, and starts the load.
    fn start(broker: &BrokerProcess, random: &mut Random) -> Self {
        let mut client = Client::connect(broker.bootstrap()).unwrap();
        client.create_topic(TOPIC, PARTITIONS, &[("segment.bytes", "1048576")]).unwrap();
        let plans = [
            Plan::idempotent(1, TOPIC, PARTITIONS),
            Plan { pace: Duration::ZERO, ..Plan::idempotent(2, TOPIC, PARTITIONS) },
            Plan { records_per_batch_max: 200, ..Plan::idempotent(3, TOPIC, PARTITIONS) },
            Plan::plain(4, TOPIC, PARTITIONS),
        ];
        let retrying = plans.iter().filter(|plan| plan.idempotent).map(|plan| plan.id).collect();
        let (target, history, stop) = (Target::new(broker.bootstrap()), History::default(), Stop::default());
        let producers = plans
            .into_iter()
            .map(|plan| producer::start(plan, &target, &history, &stop, random.fork()))
            .collect();
        let readers = (0..2).map(|_| reader::start(TOPIC, PARTITIONS, &target, &history, &stop)).collect();
        let committed: BTreeMap<_, _> = GROUPS.map(|group| (group, Committed::default())).into();
        let committers = committed
            .iter()
            .map(|(group, committed)| {
                let random = random.fork();
                let plan = committer::Plan { group, topic: TOPIC, partitions: PARTITIONS };
                committer::start(plan, &target, committed, &history, &stop, random)
            })
            .collect();
        Self { target, history, stop, producers, readers, committers, committed, retrying }
    }

    /// Waits until so many more records have been acknowledged.
    fn wait_for_more(&self, records: u64) {
        let goal = self.history.acknowledged_records() + records;
        wait_until("acknowledgements", || self.history.acknowledged_records() >= goal);
    }

    /// Ends the load and compares what was promised with what `broker` has, before and after another crash.
    fn judge(self, mut broker: BrokerProcess, restart: impl Fn() -> BrokerProcess) {
        self.stop.stop();
        for producer in self.producers {
            let outcome = producer.join().unwrap();
            println!("{outcome:?}");
            assert!(outcome.acknowledged_batches > 0, "a producer that got nothing through");
        }
        for reader in self.readers {
            let outcome = reader.join().unwrap();
            println!("{outcome:?}");
            assert!(outcome.records > 0, "a reader that got nothing");
        }
        for committer in self.committers {
            let outcome = committer.join().unwrap();
            println!("{outcome:?}");
            assert!(outcome.acknowledged > 0, "a committer that got nothing through");
        }
        for round in ["before", "after"] {
            let log = Log::read(broker.bootstrap(), TOPIC, PARTITIONS).unwrap();
            let mut client = Client::connect(broker.bootstrap()).unwrap();
            let all: Vec<i32> = (0..PARTITIONS).collect();
            for (group, committed) in &self.committed {
                let found = client.committed(group, TOPIC, &all).unwrap();
                committed.check(&self.history, &committed.bounds(), &found);
            }
            let records = self.history.judge(&log, &self.retrying);
            println!(
                "{round} the last crash: {records} records, {} acknowledged, {} consumed",
                self.history.acknowledged_records(),
                self.history.consumed_records(),
            );
            broker.kill().unwrap();
            broker = restart();
        }
    }
}

#[test]
fn acknowledged_records_and_offsets_survive_twenty_kills() {
    let mut random = Random::for_test("kills");
    let dir = tempfile::tempdir().unwrap();
    let command = kaas(&dir.path().join("data"));
    let mut broker = command.start().unwrap();
    let load = Load::start(&broker, &mut random);
    load.wait_for_more(100);
    for kill in 0..KILLS {
        // Some kills hit the broker while it recovers from the one before.
        if kill % 4 != 3 {
            load.wait_for_more(100);
            std::thread::sleep(random.millis(0..400));
        } else {
            std::thread::sleep(random.millis(0..30));
        }
        broker.kill().unwrap();
        broker = command.start().unwrap();
        load.target.set(broker.bootstrap());
    }
    load.wait_for_more(100);
    load.judge(broker, || command.start().unwrap());
}

#[test]
fn a_clean_restart_loses_nothing_and_interrupts_nobody_for_good() {
    let mut random = Random::for_test("clean restarts");
    let dir = tempfile::tempdir().unwrap();
    let command = kaas(&dir.path().join("data"));
    let mut broker = command.start().unwrap();
    let load = Load::start(&broker, &mut random);
    for _ in 0..CLEAN_RESTARTS {
        load.wait_for_more(100);
        std::thread::sleep(random.millis(0..300));
        let status = broker.terminate(PATIENCE).unwrap();
        assert_eq!(status.code(), Some(0), "{}", broker.said());
        // Busy clients do not hold up the end.
        assert!(!broker.said().contains("still in flight"), "{}", broker.said());
        broker = command.start().unwrap();
        load.target.set(broker.bootstrap());
    }
    load.wait_for_more(100);
    load.judge(broker, || command.start().unwrap());
}

/// What was answered about a topic.
#[derive(Debug, Default, Clone)]
struct Promised {
    /// A creation was acknowledged, no deletion since.
    exists: bool,
    /// Something was asked and not answered: either state is right.
    unsure: bool,
    /// Records that were acknowledged in this incarnation.
    end: i64,
    /// Log start that was acknowledged.
    start: i64,
}

#[test]
fn topics_deletions_and_log_starts_survive_kills() {
    let mut random = Random::for_test("topics");
    let dir = tempfile::tempdir().unwrap();
    let command = kaas(&dir.path().join("data")).arg("--set").arg("auto.create.topics.enable=false");
    let mut promised = vec![Promised::default(); 6];
    let name = |index: usize| format!("topic-{index}");
    for _ in 0..12 {
        let mut broker = command.start().unwrap();
        let mut client = Client::connect(broker.bootstrap()).unwrap();
        for (index, promise) in promised.iter_mut().enumerate() {
            settle(&mut client, &name(index), promise);
        }
        // One thread works until the broker is gone, the other kills it.
        let mut choices = random.fork();
        let mut worked = promised.clone();
        let worker = std::thread::spawn(move || {
            while work(&mut client, &mut choices, &mut worked) {}
            worked
        });
        std::thread::sleep(random.millis(20..250));
        broker.kill().unwrap();
        promised = worker.join().unwrap();
    }
    assert!(promised.iter().any(|promise| promise.exists), "{promised:?}");
}

/// Compares a topic with what was promised, and takes it as it is where nothing was.
fn settle(client: &mut Client, name: &str, promise: &mut Promised) {
    let end = client.list_offset(name, 0, -1);
    let Ok(end) = end else {
        assert!(!promise.exists || promise.unsure, "{name} is gone: {end:?}, promised {promise:?}");
        *promise = Promised::default();
        return;
    };
    assert!(promise.exists || promise.unsure, "{name} is back, {end} records");
    let start = client.list_offset(name, 0, -2).unwrap();
    if !promise.unsure {
        assert!(end >= promise.end, "{name} ends at {end}, promised {promise:?}");
        assert!(start >= promise.start && start <= end, "{name} starts at {start}, promised {promise:?}");
    }
    *promise = Promised { exists: true, unsure: false, end, start };
}

/// One random act on one topic; false when the broker is gone.
fn work(client: &mut Client, random: &mut Random, promised: &mut [Promised]) -> bool {
    let index = random.below(0..promised.len() as u64) as usize;
    let name = format!("topic-{index}");
    let promise = &mut promised[index];
    if !promise.exists {
        promise.unsure = true;
        if client.create_topic(&name, 1, &[]).is_err() {
            return false;
        }
        *promise = Promised { exists: true, ..Default::default() };
        return true;
    }
    match random.below(0..8) {
        0 => {
            promise.unsure = true;
            if client.delete_topic(&name).is_err() {
                return false;
            }
            *promise = Promised::default();
        }
        1 => match client.delete_records(&name, 0, promise.end) {
            Ok(start) => promise.start = start,
            Err(_) => return false,
        },
        _ => {
            let first = Tag { producer: index as u32, partition: 0, n: promise.end as u64 };
            match client.produce(&name, 0, -1, batch(first, 3, None)) {
                Ok((ErrorCode::NONE, base)) => {
                    assert!(base >= promise.end, "{name}: {base} again, promised {promise:?}");
                    promise.end = base + 3;
                }
                Ok((code, _)) => panic!("{name}: {code:?}"),
                Err(_) => return false,
            }
        }
    }
    true
}
