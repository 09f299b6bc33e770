//! A journal as a coordinator sees it: append, replay, snapshots, bounds, close.

mod faults;
mod takeover;

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use kaas_fault_injection::faulty::{Faulty, Hook, Point, Rule, Rules, Verdict};
use kaas_substrate::{ErrorClass, Local, Memory, OpenMode, Substrate, read_small};
use serde_json::{Value, json};

use super::*;
use crate::io::IoPoolSettings;
use crate::leadership::{ClaimError, Claimant};
use crate::manifest::seal::seal_line;

const SLOT: &str = "slots/07";

fn pool() -> Arc<IoPool> {
    let settings = IoPoolSettings { name: "test", max_threads: 4, idle_ms: 100, max_queued: 100 };
    Arc::new(IoPool::new(settings).unwrap())
}

fn born(volume: impl Substrate + 'static) -> Arc<dyn Substrate> {
    volume.create_dir(Path::new("slots")).unwrap();
    birth(&volume, Path::new(SLOT), "1").unwrap();
    Arc::new(volume)
}

fn with_rules(volume: &Arc<dyn Substrate>) -> (Arc<dyn Substrate>, Arc<Rules>) {
    let rules = Rules::new([]);
    (Arc::new(Faulty::new(Arc::clone(volume), Arc::clone(&rules) as Arc<dyn Hook>)), rules)
}

fn epoch(value: u32) -> Epoch {
    Epoch::new(value).unwrap()
}

fn settings() -> JournalSettings {
    JournalSettings { fence_limit_ms: 200, ..JournalSettings::default() }
}

fn try_open(
    volume: &Arc<dyn Substrate>,
    value: u32,
    settings: JournalSettings,
) -> Result<(Journal, Replay), OpenError> {
    let run = Claimant { broker_id: 1, incarnation: format!("run-{value}"), assignment_version: 0 };
    Journal::open(volume, Path::new(SLOT), epoch(value), &run, &pool(), settings)
}

fn open(volume: &Arc<dyn Substrate>, value: u32) -> (Journal, Replay) {
    try_open(volume, value, settings()).unwrap()
}

fn values(replay: &Replay) -> Vec<Value> {
    replay.entries.iter().map(|entry| entry.value.clone()).collect()
}

fn numbers(replay: &Replay) -> Vec<u64> {
    let snapshot = replay.snapshot.iter().flat_map(|state| state.as_array().unwrap().iter());
    snapshot
        .chain(replay.entries.iter().map(|entry| &entry.value))
        .map(|value| value.as_u64().unwrap())
        .collect()
}

fn files(volume: &Arc<dyn Substrate>) -> Vec<String> {
    let mut names: Vec<_> = volume
        .list(Path::new(SLOT))
        .unwrap()
        .into_iter()
        .map(|entry| entry.name.into_string().unwrap())
        .filter(|name| name != "fence" && !name.starts_with("claim."))
        .collect();
    names.sort();
    names
}

#[test]
fn entries_come_back_in_order_on_every_substrate() {
    let dir = tempfile::tempdir().unwrap();
    let volumes = [born(Memory::new()), born(Local::open(dir.path()).unwrap())];
    for volume in volumes {
        let (journal, replay) = open(&volume, 1);
        assert_eq!(replay, Replay { snapshot: None, entries: vec![] });
        let first = journal.append(&[json!({"group": "a\n", "offset": 1}), json!(2)]).wait().unwrap();
        let second = journal.append(&["three"]).wait().unwrap();
        assert!(first < second);
        assert_eq!((journal.committed(), journal.appends_since_snapshot()), (second, 2));
        journal.close();
        let (journal, replay) = open(&volume, 2);
        assert_eq!(values(&replay), [json!({"group": "a\n", "offset": 1}), json!(2), json!("three")]);
        assert_eq!(replay.entries[0].sequence, replay.entries[1].sequence);
        assert!(journal.append(&[4]).wait().unwrap() > second);
        assert_eq!(files(&volume), ["journal.00000002.0.jsonl"]);
        assert_eq!(journal.appends_since_snapshot(), 3);
    }
}

#[test]
fn a_person_can_read_the_file() {
    let volume = born(Memory::new());
    let (journal, _) = open(&volume, 1);
    journal.append(&[json!({"key": "k", "value": 1})]).wait().unwrap();
    let bytes =
        read_small(volume.as_ref(), &Path::new(SLOT).join("journal.00000001.0.jsonl"), 10_000).unwrap();
    let lines: Vec<Value> = bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[0]["format"], &lines[0]["epoch"]), (&json!(1), &json!(1)));
    assert_eq!(lines[1]["entries"], json!([{"key": "k", "value": 1}]));
}

#[test]
fn one_cycle_serves_all_that_is_staged() {
    #[derive(Debug, Default)]
    struct SlowSyncs {
        syncs: AtomicU64,
        fence_reads: AtomicU64,
    }
    impl Hook for SlowSyncs {
        fn before(&self, point: Point, _: &Path) -> Verdict {
            match point {
                Point::SyncData => {
                    self.syncs.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(20));
                }
                Point::ReadRecords => {
                    self.fence_reads.fetch_add(1, Ordering::SeqCst);
                }
                _ => {}
            }
            Verdict::Pass
        }
    }
    let hook = Arc::new(SlowSyncs::default());
    let volume: Arc<dyn Substrate> =
        Arc::new(Faulty::new(born(Memory::new()), Arc::clone(&hook) as Arc<dyn Hook>));
    let (journal, _) = open(&volume, 1);
    let before = hook.syncs.load(Ordering::SeqCst);
    let reads_before = hook.fence_reads.load(Ordering::SeqCst);
    let tickets: Vec<_> = (0..500).map(|n| journal.append(&[n])).collect();
    for ticket in tickets {
        ticket.wait().unwrap();
    }
    let syncs = hook.syncs.load(Ordering::SeqCst) - before;
    assert!((1..=10).contains(&syncs), "{syncs} syncs for 500 appends");
    assert_eq!(
        hook.fence_reads.load(Ordering::SeqCst) - reads_before,
        syncs,
        "each cycle asks the fence once"
    );
    drop(journal);
    assert_eq!(numbers(&open(&volume, 2).1), (0..500).collect::<Vec<_>>());
}

#[test]
fn a_snapshot_replaces_what_it_covers_and_keeps_the_rest() {
    let volume = born(Memory::new());
    let (journal, _) = open(&volume, 1);
    let mut sequences = Vec::new();
    for n in 1..=6 {
        sequences.push(journal.append(&[n]).wait().unwrap());
    }
    // Staged around the snapshot: before it and behind it in the same moment.
    let staged = journal.append(&[7]);
    let snapshot = journal.write_snapshot(sequences[3], &[1, 2, 3, 4]);
    let behind = journal.append(&[8]);
    assert_eq!(snapshot.wait(), Ok(sequences[3]));
    staged.wait().unwrap();
    behind.wait().unwrap();
    assert_eq!(journal.appends_since_snapshot(), 4);
    assert_eq!(files(&volume), ["journal.00000001.1.jsonl", "snapshot.00000001.1.json"]);
    drop(journal);
    let (journal, replay) = open(&volume, 2);
    assert_eq!(replay.snapshot, Some(json!([1, 2, 3, 4])));
    assert_eq!(values(&replay), [5, 6, 7, 8]);
    assert_eq!(journal.appends_since_snapshot(), 4);
    assert_eq!(files(&volume), ["journal.00000002.0.jsonl", "snapshot.00000001.1.json"]);
    // The next one of another epoch, covering everything.
    journal.write_snapshot(journal.committed(), &numbers(&replay)).wait().unwrap();
    assert_eq!(journal.appends_since_snapshot(), 0);
    let last = journal.append(&[9]).wait().unwrap();
    assert_eq!(files(&volume), ["journal.00000002.1.jsonl", "snapshot.00000002.1.json"]);
    drop(journal);
    let (journal, replay) = open(&volume, 3);
    assert_eq!(numbers(&replay), (1..=9).collect::<Vec<_>>());
    assert_eq!(journal.committed(), last);
}

#[test]
fn sequence_numbers_never_go_back_behind_an_empty_journal() {
    let volume = born(Memory::new());
    let (journal, _) = open(&volume, 1);
    let last = journal.append(&[1]).wait().unwrap();
    journal.write_snapshot(last, &[1]).wait().unwrap();
    drop(journal);
    drop(open(&volume, 2));
    let (journal, _) = open(&volume, 3);
    assert!(journal.append(&[2]).wait().unwrap() > last);
}

#[test]
fn bounds_are_kept() {
    let volume = born(Memory::new());
    let small =
        JournalSettings { max_staged_bytes: 1000, max_append_bytes: 400, max_file_bytes: 1200, ..settings() };
    let (journal, _) = try_open(&volume, 1, small).unwrap();
    let outcome = journal.append(&["x".repeat(500)]).wait();
    assert_eq!(outcome, Err(JournalError::TooLarge { bytes: 504, max_bytes: 400 }));
    let outcomes: Vec<_> =
        (0..50).map(|_| journal.append(&["x".repeat(300)])).map(JournalTicket::wait).collect();
    let full = outcomes.iter().filter(|outcome| matches!(outcome, Err(JournalError::Full { .. }))).count();
    let made = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert_eq!((made, full), (3, 47), "{outcomes:?}");
    assert!(journal.file_bytes() <= 1200);
    // A snapshot makes room.
    journal.write_snapshot(journal.committed(), &json!({})).wait().unwrap();
    journal.append(&[1]).wait().unwrap();
    drop(journal);
    assert_eq!(values(&open(&volume, 2).1), [1]);
}

#[test]
fn staged_bytes_are_bounded() {
    #[derive(Debug)]
    struct Gate(parking_lot::Mutex<()>);
    impl Hook for Gate {
        fn before(&self, point: Point, path: &Path) -> Verdict {
            if point == Point::Write && path.to_string_lossy().contains("/journal.") {
                drop(self.0.lock());
            }
            Verdict::Pass
        }
    }
    let gate = Arc::new(Gate(parking_lot::Mutex::new(())));
    let volume: Arc<dyn Substrate> =
        Arc::new(Faulty::new(born(Memory::new()), Arc::clone(&gate) as Arc<dyn Hook>));
    let (journal, _) =
        try_open(&volume, 1, JournalSettings { max_staged_bytes: 1000, ..settings() }).unwrap();
    let held = gate.0.lock();
    let tickets: Vec<_> = (0..10).map(|_| journal.append(&["x".repeat(200)])).collect();
    assert!(journal.staged_bytes() <= 1000);
    drop(held);
    let outcomes: Vec<_> = tickets.into_iter().map(JournalTicket::wait).collect();
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 3);
    assert_eq!(
        outcomes.iter().filter(|outcome| matches!(outcome, Err(JournalError::Busy { .. }))).count(),
        7
    );
    journal.append(&[1]).wait().unwrap();
    journal.close();
    assert_eq!(journal.staged_bytes(), 0);
}

#[test]
fn a_ticket_is_a_future() {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let volume = born(Memory::new());
    let (journal, _) = open(&volume, 1);
    let mut ticket = journal.append(&[1]);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let outcome = loop {
        match Pin::new(&mut ticket).poll(&mut context) {
            Poll::Ready(outcome) => break outcome,
            Poll::Pending => std::thread::park(),
        }
    };
    assert_eq!(outcome, Ok(journal.committed()));
}

#[test]
fn closing_finishes_what_is_staged_and_takes_no_more() {
    let volume = born(Memory::new());
    let (journal, _) = open(&volume, 1);
    let tickets: Vec<_> = (0..100).map(|n| journal.append(&[n])).collect();
    journal.close();
    for ticket in tickets {
        assert!(ticket.ticket.is_told());
        ticket.wait().unwrap();
    }
    assert_eq!(journal.append(&[1]).wait(), Err(JournalError::Closed));
    assert_eq!(numbers(&open(&volume, 2).1).len(), 100);
}

#[test]
fn a_closed_pool_or_a_panicking_callback_does_not_hang_anybody() {
    let volume = born(Memory::new());
    let pool = pool();
    let run = Claimant { broker_id: 1, incarnation: "r".to_owned(), assignment_version: 0 };
    let (journal, _) =
        Journal::open(&volume, Path::new(SLOT), epoch(1), &run, &pool, JournalSettings::default()).unwrap();
    journal.append_with(&[1], |_| assert_eq!(1, 2, "on purpose"));
    journal.append(&[2]).wait().unwrap();
    pool.close();
    assert!(matches!(journal.append(&[3]).wait(), Err(JournalError::Poisoned { .. })));
    journal.close();
    assert_eq!(numbers(&open(&volume, 2).1), [1, 2]);
}
