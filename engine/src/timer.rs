//! One thread that runs short jobs at given times: flush deadlines, repeated questions, the stall watchdog.
//!
//! Jobs only hand work to the I/O pool or take a lock for memory work; they never make a system call on a volume.
//! The number of pending jobs is bounded by their sources: at most a fixed number a partition.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::driver::{Driver, Job};

/// Runs jobs at given times until it is dropped; jobs pending then do not run.
pub(crate) enum Timer {
    Thread(Arc<Shared>),
    Driven(Arc<dyn Driver>),
}

pub(crate) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    pending: BinaryHeap<Reverse<Pending>>,
    sequence: u64,
    closed: bool,
}

struct Pending {
    at: Instant,
    sequence: u64,
    job: Job,
}

impl Timer {
    /// A timer with its thread running; an error if the system gives no thread.
    pub(crate) fn new() -> std::io::Result<Self> {
        let shared = Arc::new(Shared { state: Mutex::new(State::default()), changed: Condvar::new() });
        let worker = Arc::clone(&shared);
        thread::Builder::new().name("kaas-timer".into()).spawn(move || worker.serve())?;
        Ok(Self::Thread(shared))
    }

    /// A timer whose jobs `driver` runs.
    pub(crate) fn driven(driver: &Arc<dyn Driver>) -> Self {
        Self::Driven(Arc::clone(driver))
    }

    /// Runs `job` when `delay` has passed.
    pub(crate) fn after(&self, delay: Duration, job: impl FnOnce() + Send + 'static) {
        match self {
            Self::Thread(shared) => shared.at(Instant::now() + delay, Box::new(job)),
            Self::Driven(driver) => driver.run_at(driver.elapsed().saturating_add(delay), Box::new(job)),
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let Self::Thread(shared) = self else { return };
        let pending = {
            let mut state = shared.state.lock();
            state.closed = true;
            std::mem::take(&mut state.pending)
        };
        shared.changed.notify_one();
        drop(pending);
    }
}

impl Shared {
    fn at(&self, at: Instant, job: Job) {
        let mut state = self.state.lock();
        state.sequence += 1;
        let sequence = state.sequence;
        state.pending.push(Reverse(Pending { at, sequence, job }));
        self.changed.notify_one();
    }

    fn serve(&self) {
        while let Some(job) = self.next_due() {
            job();
        }
    }

    fn next_due(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            match state.pending.peek() {
                None => self.changed.wait(&mut state),
                Some(Reverse(first)) if first.at <= Instant::now() => {
                    return state.pending.pop().map(|Reverse(pending)| pending.job);
                }
                Some(Reverse(first)) => {
                    let at = first.at;
                    self.changed.wait_until(&mut state, at);
                }
            }
        }
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Timer");
        if let Self::Thread(shared) = self {
            debug.field("pending", &shared.state.lock().pending.len());
        }
        debug.finish()
    }
}

impl PartialEq for Pending {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pending {}

impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Pending {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn jobs_run_in_the_order_of_their_times() {
        let timer = Timer::new().unwrap();
        let (sender, receiver) = mpsc::channel();
        for (delay_ms, name) in [(60, "late"), (0, "now"), (30, "soon")] {
            let sender = sender.clone();
            timer.after(Duration::from_millis(delay_ms), move || sender.send(name).unwrap());
        }
        let order: Vec<_> = (0..3).map(|_| receiver.recv_timeout(Duration::from_secs(10)).unwrap()).collect();
        assert_eq!(order, ["now", "soon", "late"]);
    }

    #[test]
    fn a_dropped_timer_forgets_its_jobs() {
        let (sender, receiver) = mpsc::channel::<()>();
        let timer = Timer::new().unwrap();
        timer.after(Duration::from_secs(3600), move || sender.send(()).unwrap());
        drop(timer);
        assert!(receiver.recv_timeout(Duration::from_secs(10)).is_err());
    }
}
