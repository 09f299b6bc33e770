//! Leadership under interleavings chosen step by step.
//!
//! Several claimants run the leader's life (claim, scan, append, ask the fence, acknowledge) on one volume. Every
//! call to the volume is one step, and a seeded scheduler decides whose step is next, so that claims overlap with
//! each other and with commits in every order. The property is the one everything rests on: what was acknowledged at
//! a lower epoch is seen by the scan of every later leader.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use kaas_engine::leadership::{Claimant, Leadership, Standing, birth, claim, highest, take_away};
use kaas_engine::types::Epoch;
use kaas_fault_injection::faulty::Faulty;
use kaas_fault_injection::stepping::{Stepper, Turnstile};
use kaas_substrate::{Memory, OpenMode, Substrate};
use parking_lot::Mutex;
use proptest::prelude::*;

const DIR: &str = "d";

/// What a claimant did, in the order of the steps it was given.
#[derive(Debug, Default)]
struct History {
    /// Acknowledged records: epoch and name.
    acknowledged: Vec<(Epoch, String)>,
    /// What each leader found when it took over, by its epoch.
    inherited: BTreeMap<Epoch, Vec<String>>,
}

fn records_on(volume: &dyn Substrate) -> Vec<String> {
    let names = volume.list(Path::new(DIR)).unwrap();
    names
        .into_iter()
        .filter_map(|entry| entry.name.into_string().ok())
        .filter(|name| name.starts_with("record"))
        .collect()
}

/// A leader's life: appends three records at most, acknowledging each by the rule of the house.
fn lead(volume: &Arc<dyn Substrate>, leadership: &Leadership, history: &Mutex<History>) {
    let epoch = leadership.epoch();
    let found = records_on(volume.as_ref());
    let before = history.lock().inherited.insert(epoch, found);
    assert!(before.is_none(), "epoch {epoch} has two leaders");
    for n in 0..3 {
        let name = format!("record-{}-{n}", epoch.get());
        volume.open(&Path::new(DIR).join(&name), OpenMode::CreateNew).unwrap();
        match leadership.standing() {
            Standing::Leading => history.lock().acknowledged.push((epoch, name)),
            Standing::Deposed { .. } => return,
            Standing::Unknown(error) => panic!("{error}"),
        }
    }
}

fn run(first_epochs: &[u32], choices: Vec<u8>) -> History {
    let memory = Memory::new();
    memory.create_dir(Path::new(DIR)).unwrap();
    birth(&memory, Path::new(DIR), Epoch::NONE).unwrap();
    let turnstile = Turnstile::new(first_epochs.len(), choices);
    let history = Arc::new(Mutex::new(History::default()));
    let threads: Vec<_> = first_epochs
        .iter()
        .enumerate()
        .map(|(claimant, first)| {
            let (hook, alive) = Stepper::new(claimant, &turnstile);
            let volume: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::new(memory.clone()), hook));
            let history = Arc::clone(&history);
            let first = Epoch::new(*first).unwrap();
            thread::spawn(move || {
                let _alive = alive;
                let name = format!("claimant-{claimant}");
                let run = Claimant { broker_id: 0, incarnation: name, assignment_version: 0 };
                if let Ok(leadership) = claim(&volume, Path::new(DIR), first, &run) {
                    lead(&volume, &leadership, &history);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    // Whoever comes after all of them finds everything that was acknowledged.
    let volume: Arc<dyn Substrate> = Arc::new(memory);
    let next = highest(volume.as_ref(), Path::new(DIR)).unwrap().next();
    let last = Claimant { broker_id: 9, incarnation: "last".to_owned(), assignment_version: 0 };
    let leadership = claim(&volume, Path::new(DIR), next, &last).unwrap();
    history.lock().inherited.insert(leadership.epoch(), records_on(volume.as_ref()));
    Arc::into_inner(history).unwrap().into_inner()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    /// Epochs are close together or far apart, equal ones included (two controllers assigned the same).
    #[test]
    fn what_was_acknowledged_is_seen_by_every_later_leader(
        epochs in prop::collection::vec(1u32..=12, 2..=4),
        bursts in prop::collection::vec((any::<u8>(), 1usize..=8), 8..=40),
    ) {
        let choices = bursts.into_iter().flat_map(|(choice, steps)| std::iter::repeat_n(choice, steps)).collect();
        let history = run(&epochs, choices);
        for (leader, found) in &history.inherited {
            for (epoch, record) in history.acknowledged.iter().filter(|(epoch, _)| epoch < leader) {
                prop_assert!(
                    found.contains(record),
                    "the leader of epoch {leader} does not see {record}, acknowledged at epoch {epoch}"
                );
            }
        }
    }
}

/// A claim beside somebody who takes the directory away, claimed at epoch 1: whether each went well.
fn claim_beside_taking_away(choices: Vec<u8>) -> (bool, bool) {
    let memory = Memory::new();
    memory.create_dir(Path::new(DIR)).unwrap();
    birth(&memory, Path::new(DIR), Epoch::NONE).unwrap();
    let run = |name: &str| Claimant { broker_id: 0, incarnation: name.to_owned(), assignment_version: 0 };
    let volume: Arc<dyn Substrate> = Arc::new(memory.clone());
    let first = Epoch::new(1).unwrap();
    claim(&volume, Path::new(DIR), first, &run("deleter")).unwrap();
    let turnstile = Turnstile::new(2, choices);
    let actor = |number: usize| {
        let (hook, alive) = Stepper::new(number, &turnstile);
        let volume: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::new(memory.clone()), hook));
        (volume, alive)
    };
    let ((claiming, claimant), (removing, remover)) = (actor(0), actor(1));
    let claimant = thread::spawn(move || {
        let _alive = claimant;
        claim(&claiming, Path::new(DIR), Epoch::new(2).unwrap(), &run("late")).is_ok()
    });
    let remover = thread::spawn(move || {
        let _alive = remover;
        take_away(&*removing, Path::new(DIR), first).unwrap().is_none()
    });
    (claimant.join().unwrap(), remover.join().unwrap())
}

#[test]
fn a_directory_is_led_or_taken_away_but_not_both() {
    // Taking away writes, and looks; a claim has a good twenty steps. Each of the two between any of those.
    let mut outcomes = std::collections::BTreeSet::new();
    for write in 0..24 {
        for look in write..24 {
            let steps = |from: usize, to: usize| std::iter::repeat_n(0, to - from);
            let choices =
                steps(0, write).chain([1, 1]).chain(steps(write, look)).chain([1, 1]).chain(steps(0, 24));
            outcomes.insert(claim_beside_taking_away(choices.collect()));
        }
    }
    assert!(!outcomes.contains(&(true, true)), "led, and removed");
    assert!(outcomes.contains(&(true, false)) && outcomes.contains(&(false, true)), "{outcomes:?}");
}

/// A look at the acknowledgements, so that the property above is not true for want of any.
#[test]
fn leaders_do_acknowledge_and_do_inherit() {
    let alone = run(&[1], vec![0]);
    assert_eq!(alone.acknowledged.len(), 3);
    assert_eq!(alone.inherited[&Epoch::new(2).unwrap()].len(), 3);
    // One after the other: the first claimant's steps come first.
    let two = run(&[3, 7], vec![0]);
    assert!(two.acknowledged.len() >= 3, "{two:?}");
}
