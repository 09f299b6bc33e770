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
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use durability_support::client::Client;
use durability_support::committer::{self, Committed};
use durability_support::history::{Acknowledged, History, Log};
use durability_support::producer::{self, Plan};
use durability_support::random::Random;
use durability_support::record::{LARGE_FROM, Tag, batch};
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
    /// How often its creation was attempted; its records say in which of these lives they were written.
    life: u32,
    /// Records that were acknowledged in this life.
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
    let mut producer_ids = BTreeSet::new();
    let (mut acts, mut kills) = (0, 0);
    let deadline = Instant::now() + 2 * PATIENCE;
    while kills < 15 || acts < 200 {
        assert!(Instant::now() < deadline, "{acts} acts between {kills} kills");
        kills += 1;
        let mut broker = command.start().unwrap();
        let mut client = Client::connect(broker.bootstrap()).unwrap();
        for (index, promise) in promised.iter_mut().enumerate() {
            settle(&broker, &mut client, index, promise);
        }
        let (id, _) = client.init_producer().unwrap();
        assert!(producer_ids.insert(id), "producer id {id} was given out twice");
        // One thread works until the broker is gone, the other kills it.
        let mut choices = random.fork();
        let mut worked = promised.clone();
        let worker = std::thread::spawn(move || {
            let mut acts = 0;
            while work(&mut client, &mut choices, &mut worked) {
                acts += 1;
            }
            (worked, acts)
        });
        std::thread::sleep(random.millis(20..400));
        broker.kill().unwrap();
        let (worked, done) = worker.join().unwrap();
        promised = worked;
        acts += done;
    }
    println!("{acts} acts between {kills} kills; at the end: {promised:?}");
}

fn topic_name(index: usize) -> String {
    format!("topic-{index}")
}

/// Who writes the records of a topic in one of its lives.
fn writer_of(index: usize, life: u32) -> u32 {
    LARGE_FROM + index as u32 * 1000 + life
}

/// Compares a topic with what was promised, and takes it as it is where nothing was.
fn settle(broker: &BrokerProcess, client: &mut Client, index: usize, promise: &mut Promised) {
    let name = topic_name(index);
    let end = client.list_offset(&name, 0, -1);
    let Ok(end) = end else {
        assert!(!promise.exists || promise.unsure, "{name} is gone: {end:?}, promised {promise:?}");
        *promise = Promised { life: promise.life, ..Promised::default() };
        return;
    };
    assert!(promise.exists || promise.unsure, "{name} is back, {end} records, promised {promise:?}");
    // Also where it is not known whether a deletion was done: if not, the topic is whole.
    let log = Log::read(broker.bootstrap(), &name, 1).unwrap();
    let start = log.starts[&0];
    assert!(end >= promise.end, "{name} ends at {end}, promised {promise:?}");
    assert!(start >= promise.start && start <= end, "{name} starts at {start}, promised {promise:?}");
    for (&offset, tag) in &log.partitions[&0] {
        let written = Tag { producer: writer_of(index, promise.life), partition: 0, n: offset as u64 };
        assert_eq!(*tag, written, "at {offset} of {name}, {promise:?}");
    }
    *promise = Promised { exists: true, unsure: false, end, start, life: promise.life };
}

/// One random act on one topic; false when the broker is gone.
fn work(client: &mut Client, random: &mut Random, promised: &mut [Promised]) -> bool {
    let index = random.below(0..promised.len() as u64) as usize;
    let name = topic_name(index);
    let promise = &mut promised[index];
    if !promise.exists {
        *promise = Promised { unsure: true, life: promise.life + 1, ..Promised::default() };
        if client.create_topic(&name, 1, &[("segment.bytes", "1048576")]).is_err() {
            return false;
        }
        *promise = Promised { exists: true, life: promise.life, ..Promised::default() };
        return true;
    }
    match random.below(0..30) {
        0 => {
            promise.unsure = true;
            if client.delete_topic(&name).is_err() {
                return false;
            }
            *promise = Promised { life: promise.life, ..Promised::default() };
        }
        1 => match client.delete_records(&name, 0, random.below(0..promise.end as u64 + 1) as i64) {
            Ok(start) => promise.start = start,
            Err(_) => return false,
        },
        _ => {
            let first = Tag { producer: writer_of(index, promise.life), partition: 0, n: promise.end as u64 };
            match client.produce(&name, 0, -1, batch(first, 60, None)) {
                Ok((ErrorCode::NONE, base)) => {
                    assert_eq!(base, promise.end, "{name}, promised {promise:?}");
                    promise.end = base + 60;
                }
                Ok((code, _)) => panic!("{name}: {code:?}"),
                Err(_) => return false,
            }
        }
    }
    true
}

/// Needs a client that `./test` installs; `./test --quick` leaves this module out by its name.
mod real_clients {
    use super::*;

    /// A program under librdkafka, and the thread that writes down what it says.
    struct Program {
        child: Child,
        listener: JoinHandle<BTreeMap<i32, i64>>,
    }

    impl Program {
        fn start(address: SocketAddr, history: &History) -> Self {
            let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/run");
            let mut child = Command::new(run)
                .args(["confluent-crash", "--topic", TOPIC, "--group", GROUPS[0], "--producer", "1"])
                .args(["--partitions", &PARTITIONS.to_string(), "--bootstrap", &address.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let (stdout, history) = (child.stdout.take().unwrap(), history.clone());
            let listener = std::thread::spawn(move || {
                let mut committed = BTreeMap::new();
                for line in BufReader::new(stdout).lines() {
                    note(&line.unwrap(), address, &history, &mut committed);
                }
                committed
            });
            Self { child, listener }
        }

        /// Lets it come to its end; the offsets that it was told are committed.
        fn end(mut self) -> BTreeMap<i32, i64> {
            drop(self.child.stdin.take());
            let mut status = None;
            wait_until("the program to end", || {
                status = self.child.try_wait().unwrap();
                status.is_some()
            });
            assert!(status.unwrap().success(), "{status:?}");
            self.listener.join().unwrap()
        }
    }

    fn note(line: &str, by: SocketAddr, history: &History, committed: &mut BTreeMap<i32, i64>) {
        let words: Vec<&str> = line.split(' ').collect();
        let (partition, offset) = (words[1].parse().unwrap(), words[2].parse().unwrap());
        match words[0] {
            "acknowledged" => history.acknowledge(Acknowledged {
                first: Tag { producer: 1, partition, n: words[3].parse().unwrap() },
                count: 1,
                base_offset: offset,
                sent_at: Instant::now(),
                by,
            }),
            "consumed" => {
                let hex = words[3].as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
                let value: Vec<u8> = hex.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
                match Tag::of_value(&value) {
                    Some(tag) => history.consume(offset, partition, tag),
                    None => history.violation(format!("a strange record: {line}")),
                }
            }
            "committed" => {
                committed.insert(partition, offset);
            }
            _ => panic!("{line}"),
        }
    }

    #[test]
    fn librdkafka_loses_nothing_when_its_broker_is_killed() {
        let mut random = Random::for_test("librdkafka");
        let dir = tempfile::tempdir().unwrap();
        let command = kaas(dir.path()).arg("--set").arg("group.initial.rebalance.delay.ms=0");
        let mut broker = command.start().unwrap();
        // It knows one address, and comes back to it.
        let address = broker.bootstrap();
        let command = command.listen(address.to_string());
        Client::connect(address).unwrap().create_topic(TOPIC, PARTITIONS, &[]).unwrap();
        let history = History::default();
        let program = Program::start(address, &history);
        for _ in 0..10 {
            let (acknowledged, consumed) = (history.acknowledged_records(), history.consumed_records());
            wait_until("librdkafka to go on", || {
                history.acknowledged_records() > acknowledged + 100 && history.consumed_records() > consumed
            });
            std::thread::sleep(random.millis(0..400));
            broker.kill().unwrap();
            broker = command.start().unwrap();
        }
        let acknowledged = history.acknowledged_records();
        wait_until("librdkafka to go on", || history.acknowledged_records() > acknowledged + 100);
        let committed = program.end();
        assert_eq!(committed.len(), PARTITIONS as usize, "{committed:?}");

        let records = history.judge(&Log::read(address, TOPIC, PARTITIONS).unwrap(), &BTreeSet::from([1]));
        let all: Vec<i32> = (0..PARTITIONS).collect();
        let mut client = Client::connect(address).unwrap();
        let found = client.committed_by_anybody(GROUPS[0], TOPIC, &all).unwrap();
        for (partition, offset) in committed {
            let (found, _) = found[&partition];
            assert!(found >= offset, "partition {partition}: {found} where {offset} was promised");
        }
        println!(
            "{records} records, {} acknowledged, {} consumed",
            history.acknowledged_records(),
            history.consumed_records()
        );
    }
}
