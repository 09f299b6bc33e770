//! A process of a host: an engine whose jobs, time and volume are the scheduler's.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kaas_engine::io::IoPool;
use kaas_engine::leadership::Claimant;
use kaas_engine::types::{Epoch, Timestamp};
use kaas_engine::{Clock, Driver, Engine, EngineSettings, Job, Partition};
use kaas_fault_injection::faulty::{Faulty, Hook, Point, Verdict};
use kaas_substrate::{ErrorClass, RECORD_BYTES, Substrate};
use parking_lot::Mutex;

use crate::choices::Stream;
use crate::scheduler::{ProcessId, Scheduler, Until};
use crate::storage::Storage;

/// What the hosts' clocks show at the beginning, in milliseconds since 1970.
pub const START: Timestamp = Timestamp(1_700_000_000_000);

/// How often what fails, in a process: at one call in so many; 0: never.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// The process dies, perhaps in the middle of a write.
    pub kill: u64,
    /// A write of records finds the volume full, having written a part.
    pub full: u64,
    /// A sync fails; for good.
    pub sync: u64,
    /// The fence cannot be read or written.
    pub fence: u64,
    /// Any call fails, with or without its effect.
    pub any: u64,
    /// A record of the fence is written in two halves, between which anything may happen.
    pub halves: u64,
}

/// A process. Dropping it kills nothing: see [`Process::kill`].
pub struct Process {
    pub id: ProcessId,
    pub host: usize,
    pub engine: Engine,
    /// What slots' journals run on.
    pub journal_io: Arc<IoPool>,
    scheduler: Arc<Scheduler>,
    gate: Arc<Gate>,
    /// Partitions that it leads, or thinks it does.
    led: Mutex<Vec<Arc<Partition>>>,
    /// Epochs that it leads at, or tries to: directories and epochs.
    claimed: Mutex<BTreeSet<(PathBuf, u32)>>,
}

impl Process {
    /// Starts a process on a host, which mounts the volume.
    pub fn start(
        scheduler: &Arc<Scheduler>,
        storage: &Arc<Storage>,
        id: ProcessId,
        host: usize,
        settings: EngineSettings,
        faults: &Arc<Mutex<Faults>>,
    ) -> Arc<Self> {
        let gate = Arc::new(Gate {
            scheduler: Arc::clone(scheduler),
            storage: Arc::clone(storage),
            process: id,
            faults: Arc::clone(faults),
            calls_left: AtomicU64::new(u64::MAX),
        });
        let mounted = storage.mount_with(host, Arc::<Gate>::clone(&gate));
        let volume: Arc<dyn Substrate> = Arc::new(Faulty::new(mounted, Arc::<Gate>::clone(&gate)));
        let life = Life {
            scheduler: Arc::clone(scheduler),
            process: id,
            slept_ns: AtomicU64::new(0),
            // Hosts' clocks differ, by up to a minute either way.
            skew_ms: i64::from(id.wrapping_mul(7919) % 120_000) - 60_000,
        };
        let life = Arc::new(life);
        let driver: Arc<dyn Driver> = Arc::<Life>::clone(&life);
        let engine = Engine::driven(Arc::clone(&volume), settings, life, &driver);
        Arc::new(Self {
            id,
            host,
            engine,
            journal_io: Arc::new(IoPool::driven(&driver)),
            scheduler: Arc::clone(scheduler),
            gate,
            led: Mutex::default(),
            claimed: Mutex::default(),
        })
    }

    /// Who it is to claims.
    pub fn claimant(&self) -> Claimant {
        let broker_id = i32::try_from(self.host).unwrap_or(0);
        Claimant { broker_id, incarnation: format!("run {}", self.id), assignment_version: 0 }
    }

    /// Notes that it begins to lead a directory at an epoch; false if it does so already. A process uses an epoch of a
    /// directory once: see [`kaas_engine::leadership`].
    pub fn may_claim(&self, dir: &Path, epoch: Epoch) -> bool {
        self.claimed.lock().insert((dir.to_owned(), epoch.get()))
    }

    /// Takes that back: the claim has failed, and may be tried again.
    pub fn claim_failed(&self, dir: &Path, epoch: Epoch) {
        self.claimed.lock().remove(&(dir.to_owned(), epoch.get()));
    }

    /// Keeps a partition open for as long as the process lives.
    pub fn keep(&self, partition: &Arc<Partition>) {
        self.led.lock().push(Arc::clone(partition));
    }

    /// Ends it, as SIGKILL: nothing that it does from now on reaches the volume or anybody.
    pub fn kill(&self) {
        self.scheduler.kill(self.id);
        let led = std::mem::take(&mut *self.led.lock());
        drop(led);
    }

    /// Has it die at its nth call to the volume from now on, from 1.
    pub fn die_at_call(&self, nth: u64) {
        self.gate.calls_left.store(nth, Ordering::Relaxed);
    }

    /// True once it was killed.
    pub fn is_dead(&self) -> bool {
        self.scheduler.is_dead(self.id)
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("id", &self.id).field("host", &self.host).finish_non_exhaustive()
    }
}

/// The process's threads and clocks.
struct Life {
    scheduler: Arc<Scheduler>,
    process: ProcessId,
    /// What a dead process has slept without waiting, so that its loops end.
    slept_ns: AtomicU64,
    skew_ms: i64,
}

impl Driver for Life {
    fn elapsed(&self) -> Duration {
        self.scheduler.now().saturating_add(Duration::from_nanos(self.slept_ns.load(Ordering::Relaxed)))
    }

    fn run(&self, job: Job) {
        self.scheduler.spawn(self.process, "job", job);
    }

    fn run_at(&self, at: Duration, job: Job) {
        self.scheduler.spawn_at(at, self.process, "timer", job);
    }

    fn sleep(&self, time: Duration) {
        let until = self.scheduler.now().saturating_add(time);
        if self.scheduler.leave(Until::Time(until)).is_err() {
            let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            self.slept_ns.fetch_add(ns, Ordering::Relaxed);
        }
    }

    fn wait(&self, is_done: Box<dyn Fn() -> bool + Send>) {
        // In a dead process nothing is done any more.
        let _ = self.scheduler.leave(Until::True(is_done));
    }
}

impl Clock for Life {
    fn now(&self) -> Timestamp {
        let ms = i64::try_from(self.scheduler.now().as_millis()).unwrap_or(i64::MAX);
        Timestamp(START.0.saturating_add(ms).saturating_add(self.skew_ms))
    }
}

impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Life").field("process", &self.process).finish_non_exhaustive()
    }
}

/// Stands between a process and its volume: a step before every call and after it, and the faults.
struct Gate {
    scheduler: Arc<Scheduler>,
    storage: Arc<Storage>,
    process: ProcessId,
    faults: Arc<Mutex<Faults>>,
    /// The last of these is not made any more.
    calls_left: AtomicU64,
}

fn is_record_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "log" || extension == "jsonl")
}

impl Gate {
    /// Whether the process dies now.
    fn dies(&self) -> bool {
        let one_in = self.faults.lock().kill;
        let is_last = self.calls_left.fetch_sub(1, Ordering::Relaxed) == 1;
        let dies = is_last || self.scheduler.one_in(Stream::faults(self.process), one_in);
        if dies {
            self.scheduler.kill(self.process);
        }
        dies
    }

    fn fault(&self, point: Point, path: &Path) -> Verdict {
        let faults = *self.faults.lock();
        let stream = Stream::faults(self.process);
        let below = |bound: u64| usize::try_from(self.scheduler.below(stream, bound)).unwrap_or(0);
        if self.dies() {
            return match (point, below(2)) {
                (Point::Write, 0) => Verdict::CrashShort { bytes: below(400) },
                (Point::Write, _) => {
                    self.storage.tore_a_write();
                    Verdict::CrashTorn { kept: self.scheduler.below(stream, 1 << 8) }
                }
                _ => Verdict::Crash,
            };
        }
        let class = match point {
            Point::Write if is_record_file(path) && self.scheduler.one_in(stream, faults.full) => {
                return Verdict::Short { bytes: below(400), class: ErrorClass::NoSpace };
            }
            Point::ReadRecords | Point::WriteRecords if self.scheduler.one_in(stream, faults.fence) => {
                ErrorClass::Io
            }
            _ if self.scheduler.one_in(stream, faults.any) => self
                .scheduler
                .pick(stream, &[ErrorClass::Io, ErrorClass::Retriable, ErrorClass::Stale])
                .unwrap_or(ErrorClass::Io),
            Point::WriteRecords if faults.halves > 0 && self.scheduler.one_in(stream, faults.halves) => {
                return Verdict::Halves { bytes: 1 + below(RECORD_BYTES as u64 - 1) };
            }
            _ => return Verdict::Pass,
        };
        if below(2) == 0 { Verdict::Fail(class) } else { Verdict::FailAfter(class) }
    }
}

impl Hook for Gate {
    fn before(&self, point: Point, path: &Path) -> Verdict {
        if self.scheduler.step(&format_args!("{point:?} {}", path.display())).is_err() {
            return Verdict::Crash;
        }
        self.storage.before_call();
        if point == Point::ReadRecords {
            self.storage.look_at_torn(path);
        }
        let verdict = self.fault(point, path);
        if verdict != Verdict::Pass {
            self.scheduler.note(&format_args!("  -> {verdict:?}"));
        }
        verdict
    }

    fn between_halves(&self, path: &Path) -> bool {
        self.storage.torn(path);
        self.scheduler.note(&format_args!("  half of {} is written", path.display()));
        self.scheduler.leave_at_critical_point().is_ok()
    }

    fn between_steps(&self, path: &Path) -> bool {
        if self.scheduler.step(&format_args!("... {}", path.display())).is_err() {
            return false;
        }
        self.storage.before_call();
        !self.dies()
    }

    fn after(&self, point: Point, path: &Path) {
        // Between the effect and what the engine makes of it. Whether the process still lives is the next call's affair.
        let is_critical = point == Point::ReadRecords
            || is_record_file(path) && matches!(point, Point::Write | Point::SyncData);
        let _ = if is_critical {
            self.scheduler.leave_at_critical_point()
        } else {
            self.scheduler.leave(Until::Now)
        };
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("process", &self.process).finish_non_exhaustive()
    }
}
