//! Two brokers on one directory: each under a load of its own, until the later has deposed the earlier.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kaas_fault_injection::process::{BrokerCommand, BrokerProcess};
use kaas_protocol::ErrorCode;

use super::client::Client;
use super::committer::{self, Committed};
use super::history::{Acknowledged, History, Log};
use super::producer::{self, Plan};
use super::random::Random;
use super::record::{Tag, batch};
use super::{Stop, Target, reader, wait_until};

pub const TOPIC: &str = "contested";
pub const PARTITIONS: i32 = 3;
pub const GROUP: &str = "contestants";

/// A broker that takes the directory whoever has it.
fn by_force(command: &BrokerCommand) -> BrokerProcess {
    command.clone().arg("--ignore-lock").start().unwrap()
}

/// A broker, and the load that only it gets.
pub struct Side {
    pub broker: BrokerProcess,
    pub load: Load,
    pub committed: Committed,
}

/// The threads of a side.
pub struct Load {
    stop: Stop,
    producers: Vec<JoinHandle<producer::Outcome>>,
    reader: JoinHandle<reader::Outcome>,
    committer: JoinHandle<committer::Outcome>,
}

/// Codes that requests were refused with, and how often.
pub struct Refused {
    pub produces: BTreeMap<i16, u64>,
    pub commits: BTreeMap<i16, u64>,
}

impl Side {
    /// Producers have numbers from `10 * number` on.
    pub fn start(broker: BrokerProcess, number: u32, history: &History, random: &mut Random) -> Self {
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

    pub fn acknowledged(&self, history: &History) -> u64 {
        history.acknowledged_by(self.broker.bootstrap())
    }
}

impl Load {
    pub fn end(self) -> Refused {
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
pub struct Takeover {
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

/// Brokers on one directory that depose each other, one after the other.
pub struct Chain<'a> {
    pub history: &'a History,
    /// The one that leads.
    pub earlier: Side,
    /// Producers that repeat what was not acknowledged.
    pub retrying: BTreeSet<u32>,
}

impl<'a> Chain<'a> {
    /// The first broker, under load; the topic is made.
    pub fn begin(broker: BrokerProcess, history: &'a History, random: &mut Random) -> Self {
        Client::connect(broker.bootstrap()).unwrap().create_topic(TOPIC, PARTITIONS, &[]).unwrap();
        let earlier = Side::start(broker, 1, history, random);
        Self { history, earlier, retrying: BTreeSet::from([10, 11]) }
    }

    /// Waits until the one that leads has acknowledged a lot, offsets of each partition too.
    pub fn wait_for_load(&self) {
        wait_until("acknowledgements", || {
            let bounds = self.earlier.committed.bounds();
            self.earlier.acknowledged(self.history) > 100
                && bounds.len() == PARTITIONS as usize
                && bounds.values().all(|bounds| bounds.acknowledged > 0)
        });
    }

    /// A later broker takes everything over, and gets a load of its own.
    pub fn take_over(
        &mut self,
        command: &BrokerCommand,
        number: u32,
        random: &mut Random,
    ) -> (Takeover, Side) {
        let broker = by_force(command);
        let takeover = take_over(&broker, self.history, number);
        self.retrying.extend([10 * number, 10 * number + 1]);
        (takeover, Side::start(broker, number, self.history, random))
    }

    /// The earlier one has refused what it could not promise any more, and is ended; `later` is the one that leads. What the
    /// earlier one refused.
    pub fn succeed(&mut self, later: Side, takeover: &Takeover) -> Refused {
        let Side { broker: mut deposed, load, committed } = std::mem::replace(&mut self.earlier, later);
        let refused = load.end();
        println!("refused produces {:?}, commits {:?}", refused.produces, refused.commits);
        check_acknowledged(&deposed, &committed, self.history, takeover);
        assert!(!refused.produces.is_empty(), "the deposed broker refused no produce");
        assert!(deposed.is_running(), "a deposed broker says so, it does not fall over:\n{}", deposed.said());
        deposed.kill().unwrap();
        refused
    }

    /// Ends the last one and its load, judges what it serves, and then what a broker of `command` does from the files alone.
    pub fn end(self, command: &BrokerCommand) {
        let Self { history, earlier: Side { broker, load, .. }, retrying } = self;
        load.end();
        let judge = |broker: &BrokerProcess| {
            history.judge(&Log::read(broker.bootstrap(), TOPIC, PARTITIONS).unwrap(), &retrying)
        };
        let records = judge(&broker);
        let (acknowledged, consumed) = (history.acknowledged_records(), history.consumed_records());
        println!("{records} records, {acknowledged} acknowledged, {consumed} consumed");
        drop(broker);
        judge(&command.start().unwrap());
    }
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
