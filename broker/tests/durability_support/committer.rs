//! Committers: threads that commit ever higher offsets for a group without members, and check at every turn that the group's
//! offsets are not older than what was acknowledged.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::client::{Client, Failure};
use super::history::History;
use super::random::Random;
use super::{Stop, Target};

const BACKOFF: Duration = Duration::from_millis(20);

/// The offsets of one group: highest that was attempted, highest that was acknowledged, per partition.
#[derive(Debug, Clone, Default)]
pub struct Committed(Arc<Mutex<BTreeMap<i32, Bounds>>>);

/// What a committed offset may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub acknowledged: i64,
    pub attempted: i64,
}

impl Default for Bounds {
    /// Nothing attempted: -1, as the wire says it.
    fn default() -> Self {
        Self { acknowledged: -1, attempted: -1 }
    }
}

/// What a committer did.
#[derive(Debug, Default)]
pub struct Outcome {
    pub acknowledged: u64,
    pub refused: BTreeMap<i16, u64>,
}

impl Committed {
    pub fn bounds(&self) -> BTreeMap<i32, Bounds> {
        self.0.lock().unwrap().clone()
    }

    fn attempt(&self, offsets: &BTreeMap<i32, i64>) {
        let mut bounds = self.0.lock().unwrap();
        for (&partition, &offset) in offsets {
            bounds.entry(partition).or_default().attempted = offset;
        }
    }

    fn acknowledge(&self, partition: i32, offset: i64) {
        self.0.lock().unwrap().entry(partition).or_default().acknowledged = offset;
    }

    /// What the broker says must lie within what `before` was when it was asked and what has been attempted since.
    pub fn check(&self, history: &History, before: &BTreeMap<i32, Bounds>, found: &BTreeMap<i32, i64>) {
        let now = self.bounds();
        for (partition, bounds) in before {
            let offset = found.get(partition).copied().unwrap_or(-1);
            let highest = now.get(partition).map_or(-1, |bounds| bounds.attempted);
            if offset < bounds.acknowledged || offset > highest {
                history.violation(format!(
                    "the group's offset of partition {partition} is {offset}, acknowledged was {}, attempted {highest}",
                    bounds.acknowledged
                ));
            }
        }
    }
}

/// Which offsets a committer commits.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub group: &'static str,
    pub topic: &'static str,
    pub partitions: i32,
}

/// Starts a committer; it ends when told to stop. One at a time for a group.
pub fn start(
    plan: Plan,
    target: &Target,
    committed: &Committed,
    history: &History,
    stop: &Stop,
    mut random: Random,
) -> JoinHandle<Outcome> {
    let (target, committed, history, stop) =
        (target.clone(), committed.clone(), history.clone(), stop.clone());
    std::thread::spawn(move || {
        let mut outcome = Outcome::default();
        while !stop.is_set() {
            let address = target.get();
            let session = Session { plan, committed: &committed, history: &history };
            if session.run(address, &stop, &mut random, &mut outcome).is_err() {
                std::thread::sleep(BACKOFF);
            }
        }
        outcome
    })
}

struct Session<'a> {
    plan: Plan,
    committed: &'a Committed,
    history: &'a History,
}

impl Session<'_> {
    fn run(
        &self,
        address: SocketAddr,
        stop: &Stop,
        random: &mut Random,
        outcome: &mut Outcome,
    ) -> Result<(), Failure> {
        let Plan { group, topic, partitions } = self.plan;
        let mut client = Client::connect(address)?;
        let all: Vec<i32> = (0..partitions).collect();
        let mut ask = true;
        while !stop.is_set() {
            if ask || random.below(0..20) == 0 {
                let before = self.committed.bounds();
                match client.find_coordinator(group).and_then(|()| client.committed(group, topic, &all)) {
                    Ok(found) => self.committed.check(self.history, &before, &found),
                    Err(Failure::Refused { code, .. }) => {
                        *outcome.refused.entry(code.code()).or_default() += 1;
                        std::thread::sleep(BACKOFF);
                        continue;
                    }
                    Err(failure) => return Err(failure),
                }
                ask = false;
            }
            let bounds = self.committed.bounds();
            let mut offsets = BTreeMap::new();
            for partition in 0..partitions {
                if random.below(0..3) != 0 {
                    let last = bounds.get(&partition).copied().unwrap_or_default().attempted;
                    offsets.insert(partition, last + 1 + random.below(0..5) as i64);
                }
            }
            if offsets.is_empty() {
                continue;
            }
            self.committed.attempt(&offsets);
            for (partition, code) in client.commit(group, topic, &offsets)? {
                if code.is_none() {
                    self.committed.acknowledge(partition, offsets[&partition]);
                    outcome.acknowledged += 1;
                } else {
                    *outcome.refused.entry(code.code()).or_default() += 1;
                    if !code.is_retriable() {
                        self.history.violation(format!("a commit got {code:?}"));
                    }
                    std::thread::sleep(BACKOFF);
                }
            }
        }
        Ok(())
    }
}
