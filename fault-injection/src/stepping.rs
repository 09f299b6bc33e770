//! Interleavings chosen step by step: several actors on one volume, each call of theirs is one step, and a list of
//! choices decides whose step is next.
//!
//! An actor is everything that uses one [`Stepper`] (through a [`crate::faulty::Faulty`]); it makes one call at a time.
//! The next step is granted when every living actor waits for one, so a run depends on the choices only. An actor
//! that waits for another outside its calls would stop everything; actors share nothing but the volume.

use std::path::Path;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::faulty::{Hook, Point, Verdict};

/// Lets one actor at a time make one step.
#[derive(Debug)]
pub struct Turnstile {
    state: Mutex<Turns>,
    changed: Condvar,
}

#[derive(Debug)]
struct Turns {
    waiting: Vec<usize>,
    alive: usize,
    /// Whose step it is; taken by that actor.
    granted: Option<usize>,
    choices: Vec<u8>,
    steps: usize,
}

impl Turnstile {
    /// For `actors` actors, numbered from 0. The choices are used again and again, shifted by one each time round;
    /// without any, the lowest waiting actor is next.
    pub fn new(actors: usize, choices: Vec<u8>) -> Arc<Self> {
        let choices = if choices.is_empty() { vec![0] } else { choices };
        let turns = Turns { waiting: Vec::new(), alive: actors, granted: None, choices, steps: 0 };
        Arc::new(Self { state: Mutex::new(turns), changed: Condvar::new() })
    }

    /// Steps made so far.
    pub fn steps(&self) -> usize {
        self.state.lock().steps
    }

    fn schedule(&self, turns: &mut Turns) {
        if turns.granted.is_some() || turns.waiting.is_empty() || turns.waiting.len() < turns.alive {
            return;
        }
        turns.waiting.sort_unstable();
        let round = turns.steps / turns.choices.len();
        let choice =
            turns.choices.get(turns.steps % turns.choices.len()).map_or(0, |choice| usize::from(*choice));
        turns.steps += 1;
        let chosen = turns.waiting.remove((choice + round) % turns.waiting.len());
        turns.granted = Some(chosen);
        self.changed.notify_all();
    }

    /// Waits for the actor's turn.
    fn step(&self, actor: usize) {
        let mut turns = self.state.lock();
        turns.waiting.push(actor);
        self.schedule(&mut turns);
        while turns.granted != Some(actor) {
            self.changed.wait(&mut turns);
        }
        turns.granted = None;
    }

    /// An actor is done, and is not waited for any more. Dropping an [`Alive`] does it.
    fn leave(&self) {
        let mut turns = self.state.lock();
        turns.alive = turns.alive.saturating_sub(1);
        self.schedule(&mut turns);
    }
}

/// The hook of an actor.
#[derive(Debug)]
pub struct Stepper {
    actor: usize,
    turnstile: Arc<Turnstile>,
}

impl Stepper {
    /// The hook of `actor`, and the guard that its thread holds for as long as it makes calls.
    pub fn new(actor: usize, turnstile: &Arc<Turnstile>) -> (Arc<Self>, Alive) {
        let alive = Alive { turnstile: Arc::clone(turnstile) };
        (Arc::new(Self { actor, turnstile: Arc::clone(turnstile) }), alive)
    }
}

impl Hook for Stepper {
    fn before(&self, _: Point, _: &Path) -> Verdict {
        self.turnstile.step(self.actor);
        Verdict::Pass
    }
}

/// Held by an actor; dropped when it makes no more calls, also when it panics.
#[derive(Debug)]
pub struct Alive {
    turnstile: Arc<Turnstile>,
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.turnstile.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use kaas_substrate::{Memory, OpenMode, Substrate};

    use super::*;
    use crate::faulty::Faulty;

    /// Two actors create three files each; the order of creations, as the steps were granted.
    fn order(choices: Vec<u8>) -> Vec<String> {
        let memory = Memory::new();
        let made = Arc::new(Mutex::new(Vec::new()));
        let turnstile = Turnstile::new(2, choices);
        let threads: Vec<_> = (0..2)
            .map(|actor| {
                let (hook, alive) = Stepper::new(actor, &turnstile);
                let volume = Faulty::new(Arc::new(memory.clone()), hook);
                let made = Arc::clone(&made);
                thread::spawn(move || {
                    let _alive = alive;
                    for n in 0..3 {
                        let name = format!("{actor}-{n}");
                        volume.open(Path::new(&name), OpenMode::CreateNew).unwrap();
                        made.lock().push(name);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(turnstile.steps(), 6);
        Arc::into_inner(made).unwrap().into_inner()
    }

    #[test]
    fn the_choices_decide_the_order() {
        assert_eq!(order(vec![0, 0, 0, 0, 0, 0]), ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]);
        assert_eq!(order(vec![1, 0, 1, 0, 1, 0]), ["1-0", "0-0", "1-1", "0-1", "1-2", "0-2"]);
        assert_eq!(order(vec![1, 1, 1, 0, 0, 0]), ["1-0", "1-1", "1-2", "0-0", "0-1", "0-2"]);
    }
}
