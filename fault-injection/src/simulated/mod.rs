//! A volume that several hosts share, simulated in one process: what each host's kernel remembers, what the server has in
//! its memory, and what is on stable storage are kept apart, and time, crashes and partitions are the test's.
//!
//! A [`Simulation`] is made with a [`Profile`] (local disk, NFS, CephFS; every cache and every property can be switched)
//! and a source of choices; the same choices and the same calls make the same run. [`Simulation::host`] is the volume as
//! processes on one host see it; wrap it in [`crate::faulty::Faulty`] to fail, step or stop their calls.
//!
//! Everything is behind one lock, held for memory work only; no call waits, and no thread is started. A call that would
//! not return (its host is cut off, the server is down) is given to the [`Park`] that the test has set, without the lock;
//! if there is none, it fails as `Retriable`. What a host has dirty is sent when its processes sync or close, when the
//! clock moves past its age, and whenever the test says so with [`Simulation::write_back`]: also after the host was cut
//! off and another has taken over.
//!
//! `docs/fault-model.md` says what is modelled after what, and what is not modelled.

mod cache;
mod data;
mod names;
mod profile;
mod server;
mod volume;
mod world;

use std::fmt;
use std::sync::Arc;

use kaas_substrate::Substrate;
use parking_lot::Mutex;

pub use self::profile::{Broken, Profile};
pub use crate::choice::{Choose, seeded};

use self::volume::Mount;
use self::world::World;
use crate::choice::Choice;
use crate::faulty::Hook;

/// What becomes of a call that does not return.
pub trait Park: Send + Sync + fmt::Debug {
    /// Called from within a call on `host`, without a lock. Returns when something has changed for which the call may go
    /// on: `true`, and the call is made again; or `false`, and the call fails (its process was killed).
    fn park(&self, host: usize) -> bool;
}

/// What all hosts share.
#[derive(Debug)]
struct Shared {
    world: Mutex<World>,
    park: Mutex<Option<Arc<dyn Park>>>,
}

impl Shared {
    fn park(&self, host: usize) -> bool {
        let park = self.park.lock().clone();
        park.is_some_and(|park| park.park(host))
    }
}

/// A volume and its hosts; see the module. A clone is the same simulation.
#[derive(Debug, Clone)]
pub struct Simulation {
    shared: Arc<Shared>,
}

impl Simulation {
    /// An empty volume. `choose` is asked for everything that is open; see [`Choose`].
    pub fn new(profile: Profile, choose: Choose) -> Self {
        let world = World::new(profile, Choice(choose));
        Self { shared: Arc::new(Shared { world: Mutex::new(world), park: Mutex::new(None) }) }
    }

    /// The volume and its hosts as they are now, once more: what happens to one does not happen to the other. Handles go
    /// on to belong to this one.
    pub fn fork(&self, choose: Choose) -> Self {
        let world = self.shared.world.lock().fork(Choice(choose));
        let park = self.shared.park.lock().clone();
        Self { shared: Arc::new(Shared { world: Mutex::new(world), park: Mutex::new(park) }) }
    }

    /// The volume as it is seen on a host (numbered from 0), for any number of processes on it: they share its caches. The
    /// host starts if it does not run; what was opened before its crash fails as `Io` for ever.
    pub fn host(&self, number: usize) -> Arc<dyn Substrate> {
        self.mount(number, None)
    }

    /// The same for one process, with a hook that is asked between the steps of a call that takes several
    /// ([`Hook::between_steps`]).
    pub fn host_with(&self, number: usize, hook: Arc<dyn Hook>) -> Arc<dyn Substrate> {
        self.mount(number, Some(hook))
    }

    fn mount(&self, number: usize, hook: Option<Arc<dyn Hook>>) -> Arc<dyn Substrate> {
        let who = self.shared.world.lock().boot(number);
        Arc::new(Mount { shared: Arc::clone(&self.shared), who, hook })
    }

    /// Changes how the volume behaves from now on, such as breaking a property once everything is set up.
    pub fn change_profile(&self, change: impl FnOnce(&mut Profile)) {
        change(&mut self.shared.world.lock().profile);
    }

    /// Milliseconds since the beginning.
    pub fn now_ms(&self) -> u64 {
        self.shared.world.lock().clock_ms
    }

    /// Moves the clock: what hosts remember grows old, old dirty pages are sent.
    pub fn advance(&self, ms: u64) {
        self.shared.world.lock().advance(ms);
    }

    /// A loss of power of one host. Of what it had not sent, any sectors may have arrived at the server (none, if it was
    /// cut off). With a profile of one host its disk loses what was not synced at the same moment.
    pub fn crash_host(&self, number: usize) {
        self.shared.world.lock().crash_host(number);
    }

    /// A loss of power of the server: what no host has committed is there in part or not at all. Calls that need the server
    /// do not return until it is started; hosts that run send again what they had not committed.
    pub fn crash_server(&self) {
        self.shared.world.lock().crash_server();
    }

    /// The server is there again.
    pub fn start_server(&self) {
        self.shared.world.lock().start_server();
    }

    /// A loss of power of everything at once; the server is there again afterwards.
    pub fn lose_power(&self) {
        let mut world = self.shared.world.lock();
        (0..world.hosts.len()).for_each(|number| world.crash_host(number));
        world.crash_server();
        world.start_server();
    }

    /// Parts a host from the server: its calls do not return, except those that its caches answer; what it has dirty stays
    /// with it.
    pub fn cut_off(&self, number: usize) {
        self.shared.world.lock().cut_off(number);
    }

    /// Ends that.
    pub fn heal(&self, number: usize) {
        self.shared.world.lock().heal(number);
    }

    /// True if a call on this host that needs the server would not return now.
    pub fn would_block(&self, number: usize) -> bool {
        self.shared.world.lock().is_cut_off(number)
    }

    /// Who is given the calls that do not return.
    pub fn park_with(&self, park: Arc<dyn Park>) {
        *self.shared.park.lock() = Some(park);
    }

    /// Asked before every sync of a file, under the lock (so it must not wait): with [`crate::faulty::Verdict::Fail`] the
    /// sync fails and leaves the host's dirty pages of the file marked clean, as Linux does. They read well on that host
    /// and are nowhere else. Every other handle that was open is told by its next sync, which fails; later ones succeed.
    pub fn fail_syncs(&self, disk: Arc<dyn Hook>) {
        self.shared.world.lock().disk = Some(disk);
    }

    /// Lets a host send one piece of one file that it has dirty; false if there is none, or it is cut off.
    pub fn write_back(&self, number: usize) -> bool {
        self.shared.world.lock().write_back(number)
    }

    /// Lets a host forget what it can get again: clean pages and names (memory pressure).
    pub fn drop_caches(&self, number: usize) {
        self.shared.world.lock().drop_caches(number);
    }
}
