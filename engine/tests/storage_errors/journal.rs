//! The operations on a slot's journal.

use std::path::Path;
use std::sync::Arc;

use kaas_engine::io::{IoPool, IoPoolSettings};
use kaas_engine::journal::{Journal, JournalError, JournalSettings, OpenError, Replay, birth};
use kaas_engine::leadership::Claimant;
use kaas_engine::types::Epoch;
use kaas_fault_injection::faulty::{Effect, Faulty, Hook, Point, Rule, Verdict};
use kaas_substrate::{Memory, Substrate};

use super::harness::{Case, Fault, Outcome, case};

const SLOT: &str = "slots/07";

struct Bench {
    clean: Arc<dyn Substrate>,
    faulty: Arc<dyn Substrate>,
    acknowledged: Vec<u64>,
    epoch: u32,
}

fn numbers(replay: &Replay) -> Vec<u64> {
    let snapshot = replay.snapshot.iter().flat_map(|state| state.as_array().unwrap().iter());
    let entries = replay.entries.iter().map(|entry| &entry.value);
    snapshot.chain(entries).map(|value| value.as_u64().unwrap()).collect()
}

impl Bench {
    fn new(fault: &Fault) -> Self {
        let memory = Memory::new();
        memory.create_dir(Path::new("slots")).unwrap();
        birth(&memory, Path::new(SLOT), "1").unwrap();
        let clean: Arc<dyn Substrate> = Arc::new(memory);
        let hook: Arc<dyn Hook> = Arc::clone(&fault.rules) as _;
        let faulty = Arc::new(Faulty::new(Arc::clone(&clean), hook));
        Self { clean, faulty, acknowledged: Vec::new(), epoch: 0 }
    }

    fn open_on(&mut self, clean: bool) -> Result<(Journal, Replay), OpenError> {
        self.epoch += 1;
        let pool = IoPoolSettings { name: "test", max_threads: 1, idle_ms: 10, max_queued: 10 };
        let pool = Arc::new(IoPool::new(pool).unwrap());
        let incarnation = format!("run-{}", self.epoch);
        let claimant = Claimant { broker_id: 1, incarnation, assignment_version: 0 };
        let settings = JournalSettings { fence_limit_ms: 20, ..JournalSettings::default() };
        let substrate = if clean { &self.clean } else { &self.faulty };
        let epoch = Epoch::new(self.epoch).unwrap();
        Journal::open(substrate, Path::new(SLOT), epoch, &claimant, &pool, settings)
    }

    fn append(&mut self, journal: &Journal) -> Result<(), JournalError> {
        let value = self.acknowledged.len() as u64;
        journal.append(&[value]).wait()?;
        self.acknowledged.push(value);
        Ok(())
    }

    /// A journal with three acknowledged entries.
    fn opened(fault: &Fault) -> (Self, Journal) {
        let mut bench = Self::new(fault);
        let (journal, _) = bench.open_on(false).unwrap();
        for _ in 0..3 {
            bench.append(&journal).unwrap();
        }
        (bench, journal)
    }

    fn settle(mut self, fault: &Fault, journal: Option<Journal>, outcome: Outcome) -> Outcome {
        fault.mend();
        let journal = match (journal, outcome) {
            (Some(journal), Outcome::LedAnew) => {
                assert!(matches!(journal.failure(), Some(JournalError::Poisoned { .. })));
                assert!(matches!(journal.append(&[9]).wait(), Err(JournalError::Poisoned { .. })));
                None
            }
            (journal, _) => journal,
        };
        let journal = journal.unwrap_or_else(|| {
            let (journal, replay) = self.open_on(false).unwrap();
            let found = numbers(&replay);
            assert!(found.starts_with(&self.acknowledged), "{found:?} lacks of {:?}", self.acknowledged);
            // What was in doubt is settled now.
            self.acknowledged = found;
            journal
        });
        self.append(&journal).unwrap();
        drop(journal);
        let (_, replay) = self.open_on(true).unwrap();
        assert_eq!(numbers(&replay), self.acknowledged);
        outcome
    }
}

fn append(fault: &Fault) -> Outcome {
    let (mut bench, journal) = Bench::opened(fault);
    fault.arm();
    let outcome = append_under(&mut bench, &journal);
    bench.settle(fault, Some(journal), outcome)
}

fn half_written_append(fault: &Fault) -> Outcome {
    let (mut bench, journal) = Bench::opened(fault);
    let effect = Effect::Part { bytes: 20 };
    fault.rules.add(Rule::nth(Point::Write, 1, Verdict::Errno { number: 28, effect }).on("journal"));
    fault.arm();
    let outcome = append_under(&mut bench, &journal);
    bench.settle(fault, Some(journal), outcome)
}

fn append_under(bench: &mut Bench, journal: &Journal) -> Outcome {
    match bench.append(journal) {
        Ok(()) => Outcome::GoesOn,
        Err(JournalError::NoSpace { .. }) => Outcome::Refused,
        Err(JournalError::Poisoned { .. }) => Outcome::LedAnew,
        Err(error) => panic!("{error}"),
    }
}

fn snapshot(fault: &Fault) -> Outcome {
    let (bench, journal) = Bench::opened(fault);
    fault.arm();
    let outcome = match journal.write_snapshot(journal.committed(), &bench.acknowledged).wait() {
        Ok(_) => Outcome::GoesOn,
        Err(JournalError::NoSpace { .. }) => Outcome::RequestFails,
        Err(JournalError::Poisoned { .. }) => Outcome::LedAnew,
        Err(error) => panic!("{error}"),
    };
    bench.settle(fault, Some(journal), outcome)
}

/// An opening after a crash, of a journal that builds on a snapshot.
fn open(fault: &Fault) -> Outcome {
    let (mut bench, journal) = Bench::opened(fault);
    journal.write_snapshot(journal.committed(), &bench.acknowledged).wait().unwrap();
    bench.append(&journal).unwrap();
    drop(journal);
    fault.arm();
    match bench.open_on(false) {
        Ok((journal, replay)) => {
            assert_eq!(numbers(&replay), bench.acknowledged);
            bench.settle(fault, Some(journal), Outcome::GoesOn)
        }
        Err(OpenError::Storage(_) | OpenError::Claim(_) | OpenError::Fence(_)) => {
            bench.settle(fault, None, Outcome::DoesNotOpen)
        }
        Err(error) => panic!("{error}"),
    }
}

pub const CASES: &[Case] = &[
    case("append: write the lines", Point::Write, "journal", 1, append),
    case("append: sync them", Point::SyncData, "journal", 1, append),
    case("append: read the fence", Point::ReadRecords, "fence", 1, append),
    case("append: cut off a half-written line", Point::SetLength, "journal", 1, half_written_append),
    case("snapshot: write it", Point::Write, "snapshot", 1, snapshot),
    case("snapshot: sync it", Point::SyncData, "snapshot", 1, snapshot),
    case("snapshot: rename it into place", Point::Rename, "snapshot", 1, snapshot),
    case("snapshot: read the journal", Point::Read, "journal", 1, snapshot),
    case("snapshot: write the next journal", Point::Write, "journal", 1, snapshot),
    case("snapshot: sync the next journal", Point::SyncData, "journal", 1, snapshot),
    case("snapshot: rename the next journal into place", Point::Rename, "journal", 1, snapshot),
    case("snapshot: sync the names", Point::SyncDir, "", 2, snapshot),
    case("snapshot: open the next journal", Point::Open, "journal", 1, snapshot),
    case("snapshot: read the fence", Point::ReadRecords, "fence", 1, snapshot),
    case("snapshot: remove the last journal", Point::RemoveFile, "journal", 1, snapshot),
    case("open: open the fence", Point::OpenRecords, "fence", 1, open),
    case("open: create the claim", Point::Create, "claim", 1, open),
    case("open: write the fence", Point::WriteRecords, "fence", 1, open),
    case("open: list the directory", Point::List, "", 1, open),
    case("open: make the journal durable", Point::MakeDurable, "journal", 1, open),
    case("open: read the journal", Point::Read, "journal", 1, open),
    case("open: read the snapshot", Point::Read, "snapshot", 1, open),
    case("open: write a journal of its own", Point::Write, "journal", 1, open),
    case("open: rename the journal into place", Point::Rename, "journal", 1, open),
    case("open: sync the names", Point::SyncDir, "", 2, open),
    case("open: read the fence at last", Point::ReadRecords, "fence", 3, open),
    case("open: remove the last journal", Point::RemoveFile, "journal", 1, open),
];
