//! The volume of a run, the machines that mount it, and what happens to them.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kaas_engine::leadership::{self, FenceRecord};
use kaas_fault_injection::faulty::{Hook, Point, Verdict};
use kaas_fault_injection::simulated::{Broken, Choose, Park, Profile, Simulation};
use kaas_substrate::{ErrorClass, Substrate};
use parking_lot::Mutex;

use crate::choices::Stream;
use crate::process::Faults;
use crate::scheduler::{Scheduler, Until};

/// What the volume behaves as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSystem {
    /// A disk of one machine, on which every process runs.
    Local,
    Nfs,
    CephFs,
}

/// How often a call that does not return is tried again.
const PARKED: Duration = Duration::from_millis(500);

/// Before a call in so many, some machine sends a part of what it has dirty.
const WRITE_BACK_ONE_IN: u64 = 40;

/// Before a call in so many, some machine forgets what it can get again.
const FORGET_ONE_IN: u64 = 300;

/// The volume.
pub struct Storage {
    scheduler: Arc<Scheduler>,
    file_system: FileSystem,
    /// Machines that processes run on; one more looks at the end.
    hosts: usize,
    volume: Mutex<Simulation>,
    has_lost_power: AtomicBool,
    /// Fences of which a record was written in half.
    torn: Mutex<BTreeSet<PathBuf>>,
    torn_met: AtomicU64,
    has_torn: AtomicBool,
    has_torn_writes: AtomicBool,
}

fn choose(scheduler: &Arc<Scheduler>) -> Choose {
    let scheduler = Arc::clone(scheduler);
    Box::new(move |bound| scheduler.below(Stream::STORAGE, bound))
}

impl Storage {
    /// An empty volume.
    pub fn new(
        scheduler: &Arc<Scheduler>,
        file_system: FileSystem,
        hosts: usize,
        faults: &Arc<Mutex<Faults>>,
    ) -> Arc<Self> {
        let profile = match file_system {
            FileSystem::Local => Profile::local(),
            FileSystem::Nfs => Profile::nfs(),
            FileSystem::CephFs => Profile::cephfs(),
        };
        let volume = Simulation::new(profile, choose(scheduler));
        volume.park_with(Arc::new(Waiting { scheduler: Arc::clone(scheduler) }));
        volume.fail_syncs(Arc::new(Disk { scheduler: Arc::clone(scheduler), faults: Arc::clone(faults) }));
        Arc::new(Self {
            scheduler: Arc::clone(scheduler),
            file_system,
            hosts,
            volume: Mutex::new(volume),
            has_lost_power: AtomicBool::new(false),
            torn: Mutex::default(),
            torn_met: AtomicU64::new(0),
            has_torn: AtomicBool::new(false),
            has_torn_writes: AtomicBool::new(false),
        })
    }

    /// From now on it does not keep these properties.
    pub fn break_properties(&self, broken: Broken) {
        self.volume().change_profile(|profile| profile.broken = broken);
    }

    /// A handle on it.
    fn volume(&self) -> Simulation {
        self.volume.lock().clone()
    }

    /// The machine that a host's processes run on.
    fn machine(&self, host: usize) -> usize {
        if self.file_system == FileSystem::Local { 0 } else { host }
    }

    /// Hosts that go down when this one does.
    pub fn hosts_with(&self, host: usize) -> std::ops::RangeInclusive<usize> {
        if self.file_system == FileSystem::Local { 0..=self.hosts } else { host..=host }
    }

    /// The volume as it is seen on a host.
    pub fn mount(&self, host: usize) -> Arc<dyn Substrate> {
        self.volume().host(self.machine(host))
    }

    /// The same for a process, with its hook.
    pub fn mount_with(&self, host: usize, hook: Arc<dyn Hook>) -> Arc<dyn Substrate> {
        self.volume().host_with(self.machine(host), hook)
    }

    /// To be called before every call to the volume: its clock is the scheduler's, and what happens behind everybody's
    /// back happens.
    pub fn before_call(&self) {
        let now_ms = u64::try_from(self.scheduler.now().as_millis()).unwrap_or(u64::MAX);
        let volume = self.volume();
        volume.advance(now_ms.saturating_sub(volume.now_ms()));
        let machines = self.machine(self.hosts) as u64 + 1;
        let machine = || usize::try_from(self.scheduler.below(Stream::STORAGE, machines)).unwrap_or(0);
        if self.scheduler.one_in(Stream::STORAGE, WRITE_BACK_ONE_IN) {
            volume.write_back(machine());
        }
        if self.scheduler.one_in(Stream::STORAGE, FORGET_ONE_IN) {
            volume.drop_caches(machine());
        }
    }

    /// A host loses power. Its processes must be dead.
    pub fn crash_host(&self, host: usize) {
        self.has_lost_power.store(true, Ordering::Relaxed);
        self.volume().crash_host(self.machine(host));
    }

    /// Everything loses power. Every process must be dead.
    pub fn lose_power(&self) {
        self.has_lost_power.store(true, Ordering::Relaxed);
        self.volume().lose_power();
    }

    pub fn cut_off(&self, host: usize) {
        self.volume().cut_off(self.machine(host));
    }

    pub fn heal(&self, host: usize) {
        self.volume().heal(self.machine(host));
    }

    /// Whether any host does not reach the server.
    pub fn is_any_cut_off(&self) -> bool {
        (0..=self.hosts).any(|host| self.volume().would_block(self.machine(host)))
    }

    pub fn crash_server(&self) {
        self.has_lost_power.store(true, Ordering::Relaxed);
        self.volume().crash_server();
    }

    pub fn start_server(&self) {
        self.volume().start_server();
    }

    /// Everybody reaches the server again.
    pub fn settle(&self) {
        self.start_server();
        (0..=self.hosts).for_each(|host| self.heal(host));
    }

    /// True once any power was lost.
    pub fn has_lost_power(&self) -> bool {
        self.has_lost_power.load(Ordering::Relaxed)
    }

    /// Any sectors of a write are written, and its process is dead.
    pub fn tore_a_write(&self) {
        self.has_torn_writes.store(true, Ordering::Relaxed);
    }

    /// True once any write was cut off with a hole in it, by a loss of power or as if by one.
    pub fn may_have_holes(&self) -> bool {
        self.has_lost_power() || self.has_torn_writes.load(Ordering::Relaxed)
    }

    /// Half of a record of this fence is written.
    pub fn torn(&self, fence: &Path) {
        self.has_torn.store(true, Ordering::Relaxed);
        self.torn.lock().insert(fence.to_owned());
    }

    /// True once half of a record of a fence was written.
    pub fn has_torn_fences(&self) -> bool {
        self.has_torn.load(Ordering::Relaxed)
    }

    /// Somebody is about to read this fence: counts it if there is a torn record in it.
    pub fn look_at_torn(&self, fence: &Path) {
        if !self.torn.lock().contains(fence) {
            return;
        }
        // Another volume, so that the look changes nothing.
        let volume = self.volume().fork(Box::new(|_| 0));
        volume.start_server();
        (0..=self.hosts).for_each(|host| volume.heal(self.machine(host)));
        let dir = fence.parent().unwrap_or(Path::new(""));
        let records = leadership::records(&*volume.host(self.machine(self.hosts)), dir);
        if records
            .is_ok_and(|records| records.iter().any(|(_, record)| matches!(record, FenceRecord::Damaged(_))))
        {
            self.torn_met.fetch_add(1, Ordering::Relaxed);
        } else {
            self.torn.lock().remove(fence);
        }
    }

    /// How often somebody has read a fence with a torn record in it.
    pub fn torn_fences_met(&self) -> u64 {
        self.torn_met.load(Ordering::Relaxed)
    }

    /// The volume as it is now, once more.
    pub fn fork(&self) -> Simulation {
        self.volume().fork(self.choices())
    }

    /// Choices for another volume.
    pub fn choices(&self) -> Choose {
        choose(&self.scheduler)
    }

    /// Goes on with another. Every process must be dead.
    pub fn replace(&self, volume: Simulation) {
        *self.volume.lock() = volume;
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Storage").field("file_system", &self.file_system).finish_non_exhaustive()
    }
}

/// Calls that do not return wait as tasks.
#[derive(Debug)]
struct Waiting {
    scheduler: Arc<Scheduler>,
}

impl Park for Waiting {
    fn park(&self, _host: usize) -> bool {
        let again = self.scheduler.now().saturating_add(PARKED);
        self.scheduler.leave(Until::Time(again)).is_ok()
    }
}

/// Syncs that fail.
#[derive(Debug)]
struct Disk {
    scheduler: Arc<Scheduler>,
    faults: Arc<Mutex<Faults>>,
}

impl Hook for Disk {
    fn before(&self, _point: Point, _path: &Path) -> Verdict {
        let one_in = self.faults.lock().sync;
        if self.scheduler.one_in(Stream::STORAGE, one_in) {
            Verdict::Fail(ErrorClass::Io)
        } else {
            Verdict::Pass
        }
    }
}
