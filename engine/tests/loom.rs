//! The commit queue, its waiters and what readers see, in every order of the threads' lock operations.
//!
//! It is the engine's own code that runs, on a volume in memory; only its locks and atomics are loom's
//! (`engine/src/sync.rs`). Run it with `cargo test -p kaas-engine --features loom --test loom`. Orders with more than
//! [`PREEMPTIONS`] forced changes of threads are left out, which is where the errors of practice are found; the variable
//! `LOOM_MAX_PREEMPTIONS` sets another bound.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::cast_possible_wrap)]

mod support;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kaas_engine::completion::{self, Abandoned};
use kaas_engine::io::IoPool;
use kaas_engine::journal::{self, Journal, JournalSettings};
use kaas_engine::leadership::Claimant;
use kaas_engine::types::{Epoch, Offset};
use kaas_engine::{
    AppendError, AppendOptions, AppendTicket, Driver, Engine, Isolation, Job, Partition, Read, ReadRequest,
    State, Watcher,
};
use kaas_fault_injection::faulty::{Faulty, Hook, Rules};
use kaas_substrate::{Memory, Substrate};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use support::{Volume, batch, decode_offsets};

/// Most changes of threads that are forced where a thread could go on.
const PREEMPTIONS: usize = 2;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(PREEMPTIONS));
    builder.max_branches = 20_000;
    builder.check(model);
}

/// The threads of the engine: queued jobs, taken by whoever calls [`Jobs::work`].
#[derive(Debug, Default)]
struct Jobs(Mutex<Queue>, Condvar);

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} jobs", self.jobs.len())
    }
}

impl Jobs {
    /// Runs jobs until there are none and the queue is closed.
    fn work(&self) {
        let mut queue = self.0.lock().unwrap();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                job();
                queue = self.0.lock().unwrap();
            } else if queue.closed {
                return;
            } else {
                queue = self.1.wait(queue).unwrap();
            }
        }
    }

    fn close(&self) {
        self.0.lock().unwrap().closed = true;
        self.1.notify_all();
    }
}

impl Driver for Jobs {
    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    fn run(&self, job: Job) {
        self.0.lock().unwrap().jobs.push_back(job);
        self.1.notify_one();
    }

    /// Nothing here waits for a time to come.
    fn run_at(&self, _: Duration, _: Job) {}

    fn sleep(&self, _: Duration) {
        thread::yield_now();
    }

    fn wait(&self, is_done: Box<dyn Fn() -> bool + Send>) {
        while !is_done() {
            thread::yield_now();
        }
    }
}

/// A new partition, and the threads of its pool: closing the queue lets them go.
struct Open {
    partition: Arc<Partition>,
    pool: Pool,
}

struct Pool {
    jobs: Arc<Jobs>,
    driver: Arc<dyn Driver>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Pool {
    fn new(threads: usize) -> Self {
        let jobs = Arc::new(Jobs::default());
        let driver: Arc<dyn Driver> = Arc::clone(&jobs) as _;
        let threads = (0..threads).map(|_| Arc::clone(&jobs)).map(|jobs| thread::spawn(move || jobs.work()));
        Self { threads: threads.collect(), driver, jobs }
    }

    /// Returns when nothing is left to do.
    fn end(self) {
        self.jobs.close();
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

impl Open {
    fn on(volume: &Volume, threads: usize) -> Self {
        let pool = Pool::new(threads);
        let (substrate, clock) = (Arc::clone(&volume.substrate), Arc::clone(&volume.clock));
        let engine = Engine::driven(substrate, volume.settings.clone(), clock, &pool.driver);
        Self { partition: volume.open_with(engine, 1).unwrap().partition, pool }
    }

    /// Returns when the pool has nothing left to do; then all `count` records are there.
    fn end_with(self, count: i64) {
        self.pool.end();
        let status = self.partition.status();
        assert_eq!((status.high_watermark, status.log_end), (Offset(count), Offset(count)));
        assert_eq!(offsets(&self.partition, 0), (0..count).collect::<Vec<_>>());
    }
}

fn append(partition: &Arc<Partition>, value: &str) -> AppendTicket {
    partition.append(&batch(&[value]), AppendOptions::default()).unwrap()
}

fn append_and_wait(partition: &Arc<Partition>, value: &str) -> i64 {
    partition.append_and_wait(&batch(&[value]), AppendOptions::default()).unwrap().base_offset.0
}

/// A volume where asking the fence costs a round trip, so that another thread does it.
fn far_volume() -> Volume {
    let rules: Arc<dyn Hook> = Rules::new([]);
    Volume::on(Arc::new(Faulty::new(Arc::new(Memory::new()), rules)), None)
}

/// Offsets of the committed records from `from` on.
fn offsets(partition: &Arc<Partition>, from: i64) -> Vec<i64> {
    let mut found = Vec::new();
    let end = partition.status().high_watermark.0;
    while from + (found.len() as i64) < end {
        let request = ReadRequest {
            from: Offset(from + found.len() as i64),
            max_bytes: 1 << 20,
            at_least_one: true,
            isolation: Isolation::ReadUncommitted,
            file_ranges: false,
        };
        let fetched = match partition.read(request).unwrap() {
            Read::Ready(fetched) => fetched,
            Read::Blocking(read) => read.run().unwrap(),
        };
        let read = decode_offsets(&fetched);
        assert!(
            !read.is_empty(),
            "nothing at offset {} below the high watermark {end}",
            from + found.len() as i64
        );
        found.extend(read);
    }
    found
}

#[test]
fn threads_that_wait_commit_for_one_another() {
    check(|| {
        let open = Open::on(&Volume::memory(), 1);
        let partition = Arc::clone(&open.partition);
        let other = thread::spawn(move || append_and_wait(&partition, "b"));
        let mine = append_and_wait(&open.partition, "a");
        // What was acknowledged to this thread it can read, whoever committed it.
        assert!(offsets(&open.partition, mine).contains(&mine));
        assert_eq!(mine + other.join().unwrap(), 1);
        open.end_with(2);
    });
}

#[test]
fn no_append_is_left_behind_by_a_worker_that_stops() {
    check(|| {
        let open = Open::on(&Volume::memory(), 1);
        let first = append(&open.partition, "a");
        let second = append(&open.partition, "b");
        second.wait().unwrap().unwrap();
        assert!(first.is_told(), "they are told in order");
        append(&open.partition, "c").wait().unwrap().unwrap();
        open.end_with(3);
    });
}

#[test]
fn the_fence_is_read_beside_the_next_commit() {
    check(|| {
        let open = Open::on(&far_volume(), 2);
        let tickets = ["a", "b"].map(|value| append(&open.partition, value));
        for (ticket, offset) in tickets.into_iter().zip(0..) {
            ticket.wait().unwrap().unwrap();
            assert!(open.partition.status().high_watermark > Offset(offset));
        }
        open.end_with(2);
    });
}

#[test]
fn readers_find_everything_below_the_high_watermark_while_segments_change() {
    check(|| {
        let mut volume = Volume::memory();
        // A segment for each batch, and no batch kept in memory.
        volume.config.segment_bytes = 1;
        volume.settings.tail_bytes_max = 0;
        let open = Open::on(&volume, 1);
        let partition = Arc::clone(&open.partition);
        let reader = thread::spawn(move || (offsets(&partition, 0), offsets(&partition, 0)));
        for value in ["a", "b"] {
            append_and_wait(&open.partition, value);
        }
        let (before, after) = reader.join().unwrap();
        assert!(after.starts_with(&before));
        assert!([0, 1].starts_with(&after));
        open.end_with(2);
    });
}

#[test]
fn whoever_watches_first_and_looks_then_misses_nothing() {
    #[derive(Default)]
    struct Bell(Mutex<bool>, Condvar);

    impl Watcher for Bell {
        fn advanced(&self) {
            *self.0.lock().unwrap() = true;
            self.1.notify_all();
        }
    }

    check(|| {
        let open = Open::on(&Volume::memory(), 1);
        let partition = Arc::clone(&open.partition);
        let fetch = thread::spawn(move || {
            let bell = Arc::new(Bell::default());
            let _guard = partition.watch(Arc::clone(&bell) as _);
            while partition.status().high_watermark == Offset(0) {
                let mut rung = bell.0.lock().unwrap();
                while !std::mem::take(&mut *rung) {
                    rung = bell.1.wait(rung).unwrap();
                }
            }
        });
        append_and_wait(&open.partition, "a");
        fetch.join().unwrap();
        open.end_with(1);
    });
}

#[test]
fn a_producer_that_had_to_wait_is_told_when_there_is_space() {
    check(|| {
        let mut volume = Volume::memory();
        volume.settings.staged_bytes_max = 1;
        let open = Open::on(&volume, 1);
        let first = append(&open.partition, "a");
        let second = loop {
            match open.partition.append(&batch(&["b"]), AppendOptions::default()) {
                Ok(ticket) => break ticket,
                Err(AppendError::Busy { .. }) => open.partition.staging_space().wait().unwrap(),
                Err(error) => panic!("{error}"),
            }
        };
        first.wait().unwrap().unwrap();
        second.wait().unwrap().unwrap();
        open.end_with(2);
    });
}

#[test]
fn an_append_beside_a_close_is_there_or_is_refused() {
    check(|| {
        let volume = Volume::memory();
        let open = Open::on(&volume, 1);
        let partition = Arc::clone(&open.partition);
        let closing = thread::spawn(move || partition.close().wait().unwrap().unwrap());
        let outcome = open.partition.append(&batch(&["a"]), AppendOptions::default());
        let appended = match outcome.map(|ticket| ticket.wait().unwrap()) {
            Ok(Ok(_)) => 1,
            Ok(Err(AppendError::NotLeader { .. })) | Err(AppendError::NotLeader { .. }) => 0,
            Ok(Err(error)) | Err(error) => panic!("{error}"),
        };
        closing.join().unwrap();
        open.pool.end();
        assert_eq!(open.partition.status().state, State::Closed);
        let pool = Pool::new(0);
        let (substrate, clock) = (Arc::clone(&volume.substrate), Arc::clone(&volume.clock));
        let engine = Engine::driven(substrate, volume.settings.clone(), clock, &pool.driver);
        let later = volume.open_with(engine, 2).unwrap();
        assert_eq!(later.partition.status().high_watermark, Offset(appended));
    });
}

#[test]
fn an_append_beside_a_takeover_that_is_acknowledged_is_found() {
    check(|| {
        let volume = Volume::memory();
        let open = Open::on(&volume, 1);
        let partition = Arc::clone(&open.partition);
        let writer = thread::spawn(move || {
            partition.append_and_wait(&batch(&["a"]), AppendOptions::default()).is_ok()
        });
        let (substrate, clock) = (Arc::clone(&volume.substrate), Arc::clone(&volume.clock));
        let engine = Engine::driven(substrate, volume.settings.clone(), clock, &open.pool.driver);
        let later = volume.open_with(engine, 2).unwrap();
        let found = later.partition.status().high_watermark;
        assert!(!writer.join().unwrap() || found == Offset(1), "acknowledged, and not found");
        open.pool.end();
    });
}

#[test]
fn a_ticket_is_told_once_or_abandoned() {
    check(|| {
        let (completion, ticket) = completion::pair();
        let teller = thread::spawn(move || completion.complete(1));
        let (dropped, abandoned) = completion::pair::<()>();
        let dropper = thread::spawn(move || drop(dropped));
        assert_eq!(ticket.wait(), Ok(1));
        assert_eq!(abandoned.wait(), Err(Abandoned));
        teller.join().unwrap();
        dropper.join().unwrap();
    });
}

#[test]
fn entries_of_a_journal_are_committed_in_order() {
    check(|| {
        let volume: Arc<dyn Substrate> = Arc::new(Memory::new());
        let (slot, epoch) = (Path::new("slot"), Epoch::new(1).unwrap());
        journal::birth(&*volume, slot, "1").unwrap();
        let run = Claimant { broker_id: 1, incarnation: "run".into(), assignment_version: 0 };
        let pool = Pool::new(1);
        let io = Arc::new(IoPool::driven(&pool.driver));
        let (journal, _) =
            Journal::open(&volume, slot, epoch, &run, &io, JournalSettings::default()).unwrap();
        let journal = Arc::new(journal);
        let other = {
            let journal = Arc::clone(&journal);
            thread::spawn(move || journal.append(&["b"]).wait().unwrap())
        };
        let mine = journal.append(&["a"]).wait().unwrap();
        assert!(journal.committed() >= mine);
        let theirs = other.join().unwrap();
        assert_ne!(mine, theirs);
        assert_eq!(journal.committed(), mine.max(theirs));
        pool.end();
    });
}
