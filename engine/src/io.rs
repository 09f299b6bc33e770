//! The I/O pool: the threads that blocking file system calls run on.
//!
//! Threads are started when work has no thread to run on, up to `max_threads`, and leave after `idle_ms` without
//! work; one stays, so that queued work always has a thread even when the system refuses new ones. Jobs start in
//! the order of their submission. Submitting never waits for a thread or for the volume, so async code may do it.
//!
//! The queue is bounded by `max_queued` for [`IoPool::submit`] and [`IoPool::run`], which refuse beyond it.
//! [`IoPool::schedule`] is never refused: it is for work whose number is bounded by its source (a fixed number of
//! jobs a partition or a journal), which has nobody who could be told "later".
//!
//! A job that panics costs its own completion, not the thread or the pool.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::completion::{self, Ticket};
use crate::driver::{Driver, Job, Time};

/// Bounds of an [`IoPool`].
#[derive(Debug, Clone)]
pub struct IoPoolSettings {
    /// Prefix of the threads' names (Linux shows the first 15 bytes).
    pub name: &'static str,
    /// Most threads at once; at least 1.
    pub max_threads: usize,
    /// How long a thread without work stays, in milliseconds.
    pub idle_ms: u64,
    /// Most jobs that wait for a thread before [`IoPool::submit`] refuses.
    pub max_queued: usize,
}

impl Default for IoPoolSettings {
    fn default() -> Self {
        Self { name: "kaas-io", max_threads: 16, idle_ms: 10_000, max_queued: 4096 }
    }
}

/// The queue is full, or the pool is closed. The job was not taken and will not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the I/O pool has {queued} jobs waiting and takes no more")]
pub struct Saturated {
    /// Jobs that waited at that moment.
    pub queued: usize,
}

/// What a pool is doing; for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IoPoolStatus {
    pub threads: usize,
    pub idle_threads: usize,
    pub queued: usize,
}

/// A bounded pool of threads for blocking calls. Dropping it lets the queued jobs run and the threads leave.
///
/// In a simulation it has no threads: see [`Driver`].
pub struct IoPool {
    workers: Workers,
    time: Time,
}

enum Workers {
    Threads(Arc<Shared>),
    Driven { driver: Arc<dyn Driver>, closed: AtomicBool },
}

struct Shared {
    settings: IoPoolSettings,
    state: Mutex<State>,
    work: Condvar,
    left: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    /// Threads that exist, those just being started included.
    threads: usize,
    /// Threads that wait for work.
    idle: usize,
    /// Threads that have been asked for but have not looked at the queue yet.
    starting: usize,
    started_ever: u64,
    closed: bool,
}

impl IoPool {
    /// A pool with its first thread running; an error if the system does not give even that one.
    pub fn new(settings: IoPoolSettings) -> io::Result<Self> {
        let settings = IoPoolSettings { max_threads: settings.max_threads.max(1), ..settings };
        let shared = Arc::new(Shared {
            settings,
            state: Mutex::new(State { threads: 1, starting: 1, ..State::default() }),
            work: Condvar::new(),
            left: Condvar::new(),
        });
        Shared::start_thread(&shared)?;
        Ok(Self { workers: Workers::Threads(shared), time: Time::system() })
    }

    /// A pool without threads, whose jobs `driver` runs. Its queue is the driver's, and has no bound.
    pub fn driven(driver: &Arc<dyn Driver>) -> Self {
        let workers = Workers::Driven { driver: Arc::clone(driver), closed: AtomicBool::new(false) };
        Self { workers, time: Time::Driven(Arc::clone(driver)) }
    }

    /// Queues `job`; refuses when `max_queued` jobs wait already. Never blocks.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Saturated> {
        let max_queued = match &self.workers {
            Workers::Threads(shared) => shared.settings.max_queued,
            Workers::Driven { .. } => usize::MAX,
        };
        self.push(Box::new(job), max_queued)
    }

    /// As [`IoPool::submit`], with a ticket for the job's result.
    pub fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Ticket<T>, Saturated> {
        let (completion, ticket) = completion::pair();
        self.submit(move || completion.complete(job()))?;
        Ok(ticket)
    }

    /// Queues `job` whatever the length of the queue. Only for work whose number its source bounds. Never blocks.
    ///
    /// Refused only by a closed pool.
    pub fn schedule(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Saturated> {
        self.push(Box::new(job), usize::MAX)
    }

    /// Threads and queue at this moment; zeros for a pool without threads.
    pub fn status(&self) -> IoPoolStatus {
        let Workers::Threads(shared) = &self.workers else { return IoPoolStatus::default() };
        let state = shared.state.lock();
        IoPoolStatus { threads: state.threads, idle_threads: state.idle, queued: state.queue.len() }
    }

    /// Takes no more jobs, runs the queued ones, and returns when the last thread has left. Blocks; not to be
    /// called from a job of this pool. A pool without threads only takes no more jobs.
    pub fn close(&self) {
        let shared = match &self.workers {
            Workers::Threads(shared) => shared,
            Workers::Driven { closed, .. } => return closed.store(true, Ordering::Release),
        };
        let mut state = shared.state.lock();
        state.closed = true;
        shared.work.notify_all();
        while state.threads > 0 {
            shared.left.wait(&mut state);
        }
    }

    /// The time that the pool's jobs live in.
    pub(crate) fn time(&self) -> &Time {
        &self.time
    }

    fn push(&self, job: Job, max_queued: usize) -> Result<(), Saturated> {
        match &self.workers {
            Workers::Threads(shared) => Shared::push(shared, job, max_queued),
            Workers::Driven { closed, .. } if closed.load(Ordering::Acquire) => Err(Saturated { queued: 0 }),
            Workers::Driven { driver, .. } => {
                driver.run(job);
                Ok(())
            }
        }
    }
}

impl Drop for IoPool {
    fn drop(&mut self) {
        if let Workers::Threads(shared) = &self.workers {
            shared.state.lock().closed = true;
            shared.work.notify_all();
        }
    }
}

impl fmt::Debug for IoPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoPool").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl Shared {
    fn push(shared: &Arc<Self>, job: Job, max_queued: usize) -> Result<(), Saturated> {
        let start = {
            let mut state = shared.state.lock();
            if state.closed || state.queue.len() >= max_queued {
                return Err(Saturated { queued: state.queue.len() });
            }
            state.queue.push_back(job);
            let unserved = state.queue.len() > state.idle + state.starting;
            let start = unserved && state.threads < shared.settings.max_threads;
            if start {
                state.threads += 1;
                state.starting += 1;
            }
            start
        };
        if start {
            if let Err(error) = Self::start_thread(shared) {
                // The job stays queued; the threads that exist will come to it.
                tracing::warn!(pool = shared.settings.name, %error, "cannot start another I/O thread");
            }
        } else {
            shared.work.notify_one();
        }
        Ok(())
    }

    /// Starts a thread that `threads` and `starting` count already; takes the counts back if that fails.
    fn start_thread(shared: &Arc<Self>) -> io::Result<()> {
        let number = {
            let mut state = shared.state.lock();
            state.started_ever += 1;
            state.started_ever
        };
        let worker = Arc::clone(shared);
        let started = thread::Builder::new()
            .name(format!("{}-{number}", shared.settings.name))
            .spawn(move || worker.serve());
        if let Err(error) = started {
            let mut state = shared.state.lock();
            state.threads -= 1;
            state.starting -= 1;
            return Err(error);
        }
        Ok(())
    }

    fn serve(&self) {
        self.state.lock().starting -= 1;
        while let Some(job) = self.next_job() {
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!(pool = self.settings.name, "a job of the I/O pool panicked");
            }
        }
        self.left.notify_all();
    }

    /// The next job; `None` when this thread is to leave (it is uncounted by then).
    fn next_job(&self) -> Option<Job> {
        let mut deadline = Instant::now() + Duration::from_millis(self.settings.idle_ms);
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                return Some(job);
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let timed_out = self.work.wait_until(&mut state, deadline).timed_out();
            state.idle -= 1;
            if timed_out && state.queue.is_empty() {
                if state.threads > 1 {
                    break;
                }
                deadline = Instant::now() + Duration::from_millis(self.settings.idle_ms.max(1000));
            }
        }
        state.threads -= 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    fn pool(max_threads: usize, idle_ms: u64, max_queued: usize) -> IoPool {
        IoPool::new(IoPoolSettings { name: "test-io", max_threads, idle_ms, max_queued }).unwrap()
    }

    fn until(what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !condition() {
            assert!(Instant::now() < deadline, "waited too long until {what}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn every_job_runs_once_and_threads_stay_within_the_bound() {
        let pool = pool(3, 1000, 10_000);
        let done = Arc::new(AtomicUsize::new(0));
        let running = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        for _ in 0..500 {
            let (done, running, most) = (Arc::clone(&done), Arc::clone(&running), Arc::clone(&most));
            pool.submit(move || {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::sleep(Duration::from_micros(200));
                running.fetch_sub(1, Ordering::SeqCst);
                done.fetch_add(1, Ordering::SeqCst);
            })
            .unwrap();
        }
        pool.close();
        assert_eq!(done.load(Ordering::SeqCst), 500);
        assert_eq!(most.load(Ordering::SeqCst), 3);
        assert_eq!(pool.submit(|| ()), Err(Saturated { queued: 0 }));
    }

    #[test]
    fn a_blocked_job_does_not_hold_up_the_next_one() {
        let pool = pool(4, 1000, 100);
        let (release, blocked) = mpsc::channel::<()>();
        let (entered, is_blocked) = mpsc::channel::<()>();
        pool.submit(move || {
            entered.send(()).unwrap();
            blocked.recv().unwrap();
        })
        .unwrap();
        is_blocked.recv().unwrap();
        assert_eq!(pool.run(|| 5).unwrap().wait(), Ok(5));
        release.send(()).unwrap();
    }

    #[test]
    fn a_full_queue_refuses_submit_but_not_schedule() {
        let pool = pool(1, 1000, 2);
        let (release, blocked) = mpsc::channel::<()>();
        let (entered, is_blocked) = mpsc::channel::<()>();
        pool.submit(move || {
            entered.send(()).unwrap();
            blocked.recv().unwrap();
        })
        .unwrap();
        is_blocked.recv().unwrap();
        let first = pool.run(|| 1).unwrap();
        let second = pool.run(|| 2).unwrap();
        assert!(matches!(pool.run(|| 3), Err(Saturated { queued: 2 })));
        let ran = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&ran);
        pool.schedule(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
        release.send(()).unwrap();
        assert_eq!((first.wait(), second.wait()), (Ok(1), Ok(2)));
        pool.close();
        assert_eq!(ran.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn idle_threads_leave_and_one_stays() {
        let pool = pool(8, 30, 100);
        let gate = Arc::new(std::sync::Barrier::new(8));
        let tickets: Vec<_> = (0..8)
            .map(|_| {
                let gate = Arc::clone(&gate);
                pool.run(move || {
                    gate.wait();
                })
                .unwrap()
            })
            .collect();
        for ticket in tickets {
            ticket.wait().unwrap();
        }
        until("the idle threads have left", || pool.status().threads == 1);
        assert_eq!(pool.run(|| "still here").unwrap().wait(), Ok("still here"));
    }

    #[test]
    fn a_panicking_job_costs_only_its_own_ticket() {
        let pool = pool(1, 1000, 100);
        let ticket = pool.run(|| assert_eq!(1, 2, "on purpose")).unwrap();
        assert_eq!(ticket.wait(), Err(completion::Abandoned));
        assert_eq!(pool.run(|| 4).unwrap().wait(), Ok(4));
    }

    #[test]
    fn a_dropped_pool_still_runs_what_was_queued() {
        let pool = pool(2, 1000, 100);
        let tickets: Vec<_> = (0..50).map(|n| pool.run(move || n).unwrap()).collect();
        drop(pool);
        for (n, ticket) in tickets.into_iter().enumerate() {
            assert_eq!(ticket.wait(), Ok(n));
        }
    }
}
