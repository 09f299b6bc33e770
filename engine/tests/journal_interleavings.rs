//! A slot's journal under interleavings chosen step by step.
//!
//! Several coordinators take one slot over, append, snapshot, and go on after they were deposed; every call to the
//! volume is one step, and the choices decide whose is next. What must hold, whatever the order: an entry that was
//! acknowledged is in the view of every later coordinator, at the same place; and a view that a coordinator served
//! is the beginning of the view of every later one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use kaas_engine::io::{IoPool, IoPoolSettings};
use kaas_engine::journal::{Journal, JournalSettings, OpenError, Replay, birth};
use kaas_engine::leadership::{Claimant, highest};
use kaas_engine::types::Epoch;
use kaas_fault_injection::faulty::Faulty;
use kaas_fault_injection::stepping::{Stepper, Turnstile};
use kaas_substrate::{Memory, Substrate};
use parking_lot::Mutex;
use proptest::prelude::*;

const SLOT: &str = "slot";

/// What happened, by epoch.
#[derive(Debug, Default)]
struct History {
    /// What each coordinator found when it took over.
    views: BTreeMap<u32, Vec<u64>>,
    /// What each got acknowledged, in order.
    acknowledged: BTreeMap<u32, Vec<u64>>,
}

fn numbers(replay: &Replay) -> Vec<u64> {
    let snapshot = replay.snapshot.iter().flat_map(|state| state.as_array().unwrap().iter());
    snapshot
        .chain(replay.entries.iter().map(|entry| &entry.value))
        .map(|value| value.as_u64().unwrap())
        .collect()
}

fn open(volume: &Arc<dyn Substrate>, epoch: Epoch, name: &str) -> Result<(Journal, Replay), OpenError> {
    let pool = IoPoolSettings { name: "test", max_threads: 1, idle_ms: 10, max_queued: 10 };
    let run = Claimant { broker_id: 0, incarnation: name.to_owned(), assignment_version: 0 };
    let pool = Arc::new(IoPool::new(pool).unwrap());
    Journal::open(volume, Path::new(SLOT), epoch, &run, &pool, JournalSettings::default())
}

/// A coordinator's life: six appends, no, one or two snapshots after each.
fn coordinate(volume: &Arc<dyn Substrate>, epoch: Epoch, name: &str, history: &Mutex<History>) {
    let (journal, replay) = match open(volume, epoch, name) {
        Ok(opened) => opened,
        Err(OpenError::Claim(_) | OpenError::Deposed { .. }) => return,
        // The files that it reads may be pruned by a successor, and by nobody else.
        Err(error @ (OpenError::Storage(_) | OpenError::SnapshotMissing { .. })) => {
            let highest = highest(volume.as_ref(), Path::new(SLOT)).unwrap();
            assert!(highest > epoch, "epoch {epoch} was not deposed: {error}");
            return;
        }
        Err(error) => panic!("epoch {epoch}: {error}"),
    };
    let mut state = numbers(&replay);
    let before = history.lock().views.insert(epoch.get(), state.clone());
    assert!(before.is_none(), "epoch {epoch} has two coordinators");
    for n in 1..=6 {
        let value = u64::from(epoch.get()) * 100 + n;
        if journal.append(&[value]).wait().is_ok() {
            state.push(value);
            history.lock().acknowledged.entry(epoch.get()).or_default().push(value);
        }
        for _ in 0..n % 3 {
            let _ = journal.write_snapshot(journal.committed(), &state).wait();
        }
    }
    journal.close();
}

fn run(epochs: &[u32], choices: Vec<u8>) -> History {
    let memory = Memory::new();
    birth(&memory, Path::new(SLOT), "1").unwrap();
    let turnstile = Turnstile::new(epochs.len(), choices);
    let history = Arc::new(Mutex::new(History::default()));
    let threads: Vec<_> = epochs
        .iter()
        .enumerate()
        .map(|(actor, epoch)| {
            let (hook, alive) = Stepper::new(actor, &turnstile);
            let volume: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::new(memory.clone()), hook));
            let history = Arc::clone(&history);
            let epoch = Epoch::new(*epoch).unwrap();
            thread::spawn(move || {
                let _alive = alive;
                coordinate(&volume, epoch, &format!("run-{actor}"), &history);
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let volume: Arc<dyn Substrate> = Arc::new(memory);
    let last = highest(volume.as_ref(), Path::new(SLOT)).unwrap().next();
    let (_journal, replay) = open(&volume, last, "last").unwrap();
    history.lock().views.insert(last.get(), numbers(&replay));
    Arc::into_inner(history).unwrap().into_inner()
}

fn check(history: &History) -> Result<(), TestCaseError> {
    for (epoch, view) in &history.views {
        let mut sorted = view.clone();
        sorted.sort_unstable();
        sorted.dedup();
        prop_assert_eq!(view, &sorted, "the view of epoch {} is in order and has no entry twice", epoch);
        for (_, earlier) in history.views.range(..epoch) {
            prop_assert!(
                view.starts_with(earlier),
                "epoch {epoch} has {view:?}, an earlier one had {earlier:?}"
            );
        }
        for (by, acknowledged) in history.acknowledged.range(..epoch) {
            let own = history.views[by].iter().chain(acknowledged).copied().collect::<Vec<_>>();
            prop_assert!(
                view.starts_with(&own),
                "epoch {epoch} has {view:?}, epoch {by} had acknowledged {acknowledged:?} on top of its view"
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_acknowledged_entry_has_one_history(
        epochs in prop::collection::vec(1u32..=6, 2..=3),
        bursts in prop::collection::vec((any::<u8>(), 1usize..=30), 8..=40),
    ) {
        // Bursts of steps of one actor reach further into a life than single steps do.
        let choices = bursts.into_iter().flat_map(|(choice, steps)| std::iter::repeat_n(choice, steps)).collect();
        check(&run(&epochs, choices))?;
    }
}

/// A look at the outcomes, so that the property above is not true for want of any.
#[test]
fn coordinators_do_acknowledge_and_do_inherit() {
    let history = run(&[1, 2], vec![0; 10_000]);
    assert_eq!(history.acknowledged[&1].len(), 6);
    assert_eq!(history.views[&2].len(), 6);
    assert_eq!(history.views[&3].len(), 12);
    check(&history).unwrap();
}
