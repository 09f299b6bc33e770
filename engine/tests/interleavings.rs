//! Several leaders of one partition on one volume, interleaved call by call: pauses at every step, crashes, full
//! volumes, deletions. Whatever the order: what was acknowledged or read stays where it was, for ever.
//!
//! A run is decided by its seed, which is printed when it fails; `KAAS_SEED=<n>` runs that one only, and
//! `KAAS_SCHEDULES=<n>` so many. All calls of a leader come from the one thread of its engine's pool, so that a seed
//! gives the same run again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, clippy::cast_possible_truncation)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use kaas_fault_injection::stepping::{Stepper, Turnstile};
use parking_lot::Mutex;
use support::Volume;
use support::actor::{Actor, History, Random, Unlucky, check, small_volume, try_seeds, verify};

/// Whose turn it is, step by step: runs of one actor, of random lengths.
fn choices(random: &mut Random) -> Vec<u8> {
    let longest = 1 + random.below(60);
    let mut choices = Vec::new();
    while choices.len() < 600 {
        let (actor, length) = (random.below(3) as u8, 1 + random.below(longest));
        choices.extend(std::iter::repeat_n(actor, length as usize));
    }
    choices
}

/// One run; what went wrong in it.
fn run(seed: u64) -> Vec<String> {
    let mut random = Random(seed);
    let actors = 2 + random.below(2) as usize;
    let volume = small_volume(&mut random, Volume::memory());
    let turnstile = Turnstile::new(actors, choices(&mut random));
    let history = Arc::new(Mutex::new(History::default()));
    let epochs = Arc::new(AtomicU32::new(1));
    let (crash_one_in, full_one_in) =
        ([0, 0, 150][random.below(3) as usize], [0, 4][random.below(2) as usize]);
    let threads: Vec<_> = (0..actors)
        .map(|number| {
            let (stepper, alive) = Stepper::new(number, &turnstile);
            let hook = Unlucky {
                stepper: Some(stepper),
                random: Mutex::new(random.fork()),
                crash_one_in,
                full_one_in,
            };
            let volume = volume.seen_through(Arc::clone(&volume.substrate));
            let (epochs, history) = (Arc::clone(&epochs), Arc::clone(&history));
            let mut actor = Actor::new(number, volume, Arc::new(hook), random.fork(), epochs, history);
            std::thread::spawn(move || {
                let _alive = alive;
                actor.work();
            })
        })
        .collect();
    for thread in threads {
        if thread.join().is_err() {
            history.lock().problems.push("an actor panicked".to_owned());
        }
    }
    let mut history = Arc::into_inner(history).unwrap().into_inner();
    verify(&volume, &mut history);
    match volume.open_at(epochs.load(Ordering::SeqCst)) {
        Ok(log) => check(&log, &mut history),
        Err(error) => history.problems.push(format!("the last open failed: {error}")),
    }
    history.problems
}

#[test]
fn whatever_the_interleaving_what_was_seen_stays() {
    try_seeds(600, run);
}
