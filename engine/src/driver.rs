//! What an engine's threads and timers are in production, given from outside: for a simulation that decides which job
//! goes on when, and how much time passes meanwhile.
//!
//! An engine on its own threads ([`crate::Engine::open`]) knows nothing of this but a branch where it takes the time
//! or hands a job over.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::completion::{Abandoned, Ticket};

/// A piece of work. It may block: in calls to the substrate, and in [`Driver::sleep`].
pub type Job = Box<dyn FnOnce() + Send>;

/// Runs the jobs of an engine, and is its monotonic clock.
///
/// Jobs that were taken run in any order, interleaved in any way, as they would on threads. One that is never run stands
/// for a thread that never gets on, as in a process that was killed.
pub trait Driver: Send + Sync + fmt::Debug {
    /// Time since some beginning; never goes back.
    fn elapsed(&self) -> Duration;

    /// Takes a job that is to run on the I/O pool. Runs nothing within the call.
    fn run(&self, job: Job);

    /// Takes a job that is to run when [`Driver::elapsed`] has come to `at`: one that does not block. Runs nothing within
    /// the call.
    fn run_at(&self, at: Duration, job: Job);

    /// Returns when `time` has passed. Called within jobs only.
    fn sleep(&self, time: Duration);

    /// Returns once `is_done`, which other jobs see to; or before, if it never will be, as in a process that was killed.
    /// Called where the engine may block and no lock is held.
    fn wait(&self, is_done: Box<dyn Fn() -> bool + Send>);
}

/// Monotonic time: the system's, or a driver's.
#[derive(Debug, Clone)]
pub(crate) enum Time {
    System { since: Instant },
    Driven(Arc<dyn Driver>),
}

impl Time {
    /// The system's time, from now on.
    pub(crate) fn system() -> Self {
        Self::System { since: Instant::now() }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        match self {
            Self::System { since } => since.elapsed(),
            Self::Driven(driver) => driver.elapsed(),
        }
    }

    /// Blocks for `time`.
    pub(crate) fn sleep(&self, time: Duration) {
        match self {
            Self::System { .. } => std::thread::sleep(time),
            Self::Driven(driver) => driver.sleep(time),
        }
    }

    /// Blocks until a ticket is told.
    pub(crate) fn wait<T: Send + 'static>(&self, ticket: Ticket<T>) -> Result<T, Abandoned> {
        if let Self::Driven(driver) = self {
            driver.wait(ticket.told());
            if !ticket.is_told() {
                return Err(Abandoned);
            }
        }
        ticket.wait()
    }
}
