//! A slot's journal on a host that loses power, or whose process is killed, at any call: what was acknowledged, and what a
//! coordinator was shown when it took over, is the beginning of what every later one is shown.
//!
//! A run is decided by its seed: see `interleavings.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation)]

mod support;

use std::path::Path;
use std::sync::Arc;

use kaas_engine::io::{IoPool, IoPoolSettings};
use kaas_engine::journal::{Journal, JournalSettings, OpenError, Replay, birth};
use kaas_engine::leadership::Claimant;
use kaas_engine::types::Epoch;
use kaas_fault_injection::faulty::Faulty;
use kaas_fault_injection::simulated::{Profile, Simulation, seeded};
use kaas_substrate::Substrate;
use parking_lot::Mutex;
use support::actor::{Random, Unlucky, try_seeds};

fn numbers(replay: &Replay) -> Vec<u64> {
    let snapshot = replay.snapshot.iter().flat_map(|state| state.as_array().unwrap().iter());
    let entries = replay.entries.iter().map(|entry| &entry.value);
    snapshot.chain(entries).map(|value| value.as_u64().unwrap()).collect()
}

fn open(substrate: &Arc<dyn Substrate>, epoch: u32) -> Result<(Journal, Replay), OpenError> {
    let pool = IoPoolSettings { name: "test", max_threads: 1, idle_ms: 10, max_queued: 10 };
    let claimant = Claimant { broker_id: 1, incarnation: format!("run-{epoch}"), assignment_version: 0 };
    let settings = JournalSettings { fence_limit_ms: 5, ..JournalSettings::default() };
    let pool = Arc::new(IoPool::new(pool).unwrap());
    Journal::open(substrate, Path::new("slots/00"), Epoch::new(epoch).unwrap(), &claimant, &pool, settings)
}

/// Takes the slot over and works until something fails.
fn coordinate(
    substrate: &Arc<dyn Substrate>,
    epoch: u32,
    random: &mut Random,
    known: &mut Vec<u64>,
) -> Result<(), String> {
    if birth(&**substrate, Path::new("slots/00"), &epoch.to_string()).is_err() {
        return Ok(());
    }
    let (journal, replay) = match open(substrate, epoch) {
        Ok(opened) => opened,
        Err(error @ (OpenError::Damaged { .. } | OpenError::SnapshotMissing { .. })) => {
            return Err(format!("epoch {epoch}: {error}"));
        }
        Err(_) => return Ok(()),
    };
    let view = numbers(&replay);
    if !view.starts_with(known) {
        return Err(format!("epoch {epoch} is shown {view:?}, which does not begin with {known:?}"));
    }
    *known = view;
    for n in 0..random.below(20) {
        let value = u64::from(epoch) * 100 + n;
        match journal.append(&[value]).wait() {
            Ok(_) => known.push(value),
            Err(kaas_engine::journal::JournalError::NoSpace { .. }) => {}
            Err(_) => break,
        }
        if random.one_in(4) {
            let _ = journal.write_snapshot(journal.committed(), &*known).wait();
        }
    }
    journal.close();
    Ok(())
}

fn run(seed: u64) -> Vec<String> {
    let mut random = Random(seed);
    let disk = Simulation::new(Profile::local(), seeded(random.next()));
    disk.host(0).create_dir(Path::new("slots")).unwrap();
    disk.host(0).sync_dir(Path::new("")).unwrap();
    let (mut known, mut problems) = (Vec::new(), Vec::new());
    for epoch in 1..3 + random.below(6) as u32 {
        let hook = Unlucky {
            stepper: None,
            random: Mutex::new(random.fork()),
            crash_one_in: [15, 60, 300][random.below(3) as usize],
            full_one_in: [0, 4][random.below(2) as usize],
        };
        let seen: Arc<dyn Substrate> = Arc::new(Faulty::new(disk.host(0), Arc::new(hook)));
        problems.extend(coordinate(&seen, epoch, &mut random, &mut known).err());
        // Or only the process was killed.
        if random.below(3) > 0 {
            disk.crash_host(0);
        }
    }
    disk.crash_host(0);
    let last = coordinate(&disk.host(0), 100, &mut random, &mut known);
    problems.extend(last.err());
    problems
}

#[test]
fn whatever_survives_a_loss_of_power_the_journal_goes_on_from_what_it_told() {
    try_seeds(1000, run);
}
