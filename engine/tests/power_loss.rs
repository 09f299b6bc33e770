//! A leader on a host that loses power again and again, at any call: also while it recovers from the last time, rolls,
//! deletes, or finds the volume full. What was acknowledged or read is there afterwards, whatever of the rest survived.
//!
//! A run is decided by its seed: see `interleavings.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, clippy::cast_possible_truncation)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use kaas_fault_injection::simulated::{Profile, Simulation, seeded};
use parking_lot::Mutex;
use support::Volume;
use support::actor::{Actor, History, Random, Unlucky, check, small_volume, try_seeds, verify};

/// One run; what went wrong in it.
fn run(seed: u64) -> Vec<String> {
    let mut random = Random(seed);
    let disk = Simulation::new(Profile::local(), seeded(random.next()));
    let volume = small_volume(&mut random, Volume::on(disk.host(0), None));
    let (epochs, history) = (Arc::new(AtomicU32::new(1)), Arc::new(Mutex::new(History::default())));
    let hook = Unlucky {
        stepper: None,
        random: Mutex::new(random.fork()),
        crash_one_in: [40, 150, 600][random.below(3) as usize],
        full_one_in: [0, 5][random.below(2) as usize],
    };
    let seen = volume.seen_through(disk.host(0));
    let (hook, ids, told) = (Arc::new(hook), Arc::clone(&epochs), Arc::clone(&history));
    let mut actor = Actor::new(0, seen, hook, random.fork(), ids, told);
    for _ in 0..2 + random.below(5) {
        actor.work();
        // Or only the process was killed.
        if random.below(3) > 0 {
            disk.crash_host(0);
        }
        actor.volume = volume.seen_through(disk.host(0));
    }
    drop(actor);
    let mut history = Arc::into_inner(history).unwrap().into_inner();
    // Twice: what is read after the first time must be there after the second.
    for _ in 0..2 {
        let epoch = epochs.fetch_add(1, Ordering::SeqCst);
        let volume = volume.seen_through(disk.host(0));
        verify(&volume, &mut history);
        match volume.open_at(epoch) {
            Ok(log) => check(&log, &mut history),
            Err(error) => history.problems.push(format!("open at epoch {epoch} failed: {error}")),
        }
        disk.crash_host(0);
    }
    history.problems
}

#[test]
fn whatever_survives_a_loss_of_power_what_was_seen_stays() {
    try_seeds(600, run);
}
