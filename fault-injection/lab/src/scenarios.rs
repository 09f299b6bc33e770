//! What is done to a leader and its volume, on any [`Site`]. Every scenario ends with a fresh leader that reads everything,
//! on the host whose caches are the oldest, and with `verify` on the other.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::client::Actor;
use crate::history::{Checked, History};
use crate::protocol::{Call, Value};
use crate::site::Site;

/// The partition's directory, and the name of its topic.
pub const PARTITION: &str = "orders";

/// Acknowledgements that are waited for before something happens, and after it.
const SOME: usize = 25;

/// How long a host that was shut out is given to notice.
const SHUT_OUT: Duration = Duration::from_secs(60);

/// The leader's process is stopped in the middle of its work (SIGSTOP) and goes on when another has taken over.
pub fn paused_process(site: &dyn Site) {
    let mut scene = Scene::new(site, "paused-process");
    let old = scene.leader(1);
    site.pause(1, &old);
    let new = scene.leader(2);
    site.resume(1, &old);
    assert_deposed(&old);
    scene.finish(&[&old, &new], 1);
}

/// The leader's whole host stands still, kernel included, for `pause` longer than the takeover takes.
pub fn frozen_host(site: &dyn Site, pause: Duration) {
    let mut scene = Scene::new(site, "frozen-host");
    let old = scene.leader(1);
    site.freeze(1);
    let new = scene.leader(2);
    std::thread::sleep(pause);
    site.thaw(1);
    assert_out_of_touch(site, 1, &old);
    scene.finish(&[&old, &new], 1);
}

/// The leader's host is cut off from the server; what it has written arrives after the takeover.
pub fn cut_off(site: &dyn Site, pause: Duration) {
    let mut scene = Scene::new(site, "cut-off");
    let old = scene.leader(1);
    site.cut(1);
    let new = scene.leader(2);
    std::thread::sleep(pause);
    site.heal(1);
    assert_out_of_touch(site, 1, &old);
    new.until_acknowledged(SOME);
    scene.finish(&[&old, &new], 1);
}

/// The leader's host is shut out of the volume in the middle of its work, several times, so that each of its calls is the first to
/// be told of it once. It must stop by itself, before anybody else leads: what it has open there is of no use any more.
pub fn shut_out(site: &dyn Site) {
    const TIMES: usize = 4;
    let mut scene = Scene::new(site, "shut-out");
    let mut leaders = Vec::new();
    for _ in 0..TIMES {
        let leader = scene.leader(1);
        site.shut_out(1);
        let Some(reason) = leader.ended_within(SHUT_OUT) else {
            panic!("{}: it goes on: {:?}", leader.name(), leader.try_call(Call::Status));
        };
        assert!(reason.starts_with("Poisoned"), "{}: {reason}", leader.name());
        eprintln!("{}: {}: {reason}", site.name(), leader.name());
        leader.hang_up();
        site.remount(1);
        leaders.push(leader);
    }
    leaders.push(scene.leader(2));
    scene.finish(&leaders.iter().collect::<Vec<_>>(), 1);
}

/// The leader's host loses its power.
pub fn host_loses_power(site: &dyn Site) {
    let mut scene = Scene::new(site, "host-loses-power");
    let old = scene.leader(1);
    site.lose_power(1);
    old.hang_up();
    let new = scene.leader(2);
    site.restore(1);
    scene.finish(&[&old, &new], 1);
}

/// Server and leader's host lose their power at one moment.
pub fn all_lose_power(site: &dyn Site) {
    let mut scene = Scene::new(site, "all-lose-power");
    let old = scene.leader(1);
    site.lose_all_power(1);
    old.hang_up();
    site.start_server();
    let new = scene.leader(2);
    site.restore(1);
    scene.finish(&[&old, &new], 1);
}

/// The server is killed and started again while a leader works, which goes on. Then another takes over.
pub fn server_restarts(site: &dyn Site) {
    let mut scene = Scene::new(site, "server-restarts");
    let old = scene.leader(1);
    site.kill_server();
    std::thread::sleep(Duration::from_millis(500));
    site.start_server();
    old.until_acknowledged(SOME);
    let new = scene.leader(2);
    assert_deposed(&old);
    scene.finish(&[&old, &new], 1);
}

/// The server stands still; a takeover is asked for meanwhile, and both race when it goes on.
pub fn server_freezes(site: &dyn Site, pause: Duration) {
    let mut scene = Scene::new(site, "server-freezes");
    let old = scene.leader(1);
    let new = scene.actor(2);
    site.freeze_server();
    let opening = new.ask(Call::Open { dir: PARTITION.into(), epoch: scene.next_epoch() });
    std::thread::sleep(pause);
    site.thaw_server();
    opening.get();
    scene.work(&new);
    assert_deposed(&old);
    scene.finish(&[&old, &new], 1);
}

/// Leadership goes to and fro, while everybody works: each leader finds what the others left, whatever it has in its caches.
pub fn to_and_fro(site: &dyn Site, rounds: u8) {
    let mut scene = Scene::new(site, "to-and-fro");
    let mut leaders = Vec::new();
    for round in 0..rounds {
        leaders.push(scene.leader(1 + round % 2));
    }
    let leaders: Vec<_> = leaders.iter().collect();
    for deposed in &leaders[..leaders.len() - 1] {
        assert_deposed(deposed);
    }
    scene.finish(&leaders, 1 + rounds % 2);
}

/// One partition on one volume in one test.
pub struct Scene<'a> {
    site: &'a dyn Site,
    name: &'static str,
    /// Of this scene alone, on whatever volume.
    dir: String,
    started: Instant,
    epoch: u32,
}

impl<'a> Scene<'a> {
    /// A new partition.
    pub fn new(site: &'a dyn Site, name: &'static str) -> Self {
        static SCENES: AtomicU32 = AtomicU32::new(1);
        let dir = format!("{name}-{}", SCENES.fetch_add(1, Ordering::Relaxed));
        let scene = Self { site, name, dir, started: Instant::now(), epoch: 0 };
        scene.actor(2).call(Call::Make { dir: PARTITION.into() });
        scene
    }

    /// An actor on a host that leads nothing yet.
    pub fn actor(&self, host: u8) -> Actor {
        self.site.actor(host, &self.dir)
    }

    /// Whoever leads is replaced by the one who asks for this epoch.
    pub fn next_epoch(&mut self) -> u32 {
        self.epoch += 1;
        self.epoch
    }

    /// A new leader on a host, after its first acknowledgements.
    pub fn leader(&mut self, host: u8) -> Actor {
        let actor = self.actor(host);
        actor.open(PARTITION, self.next_epoch());
        self.work(&actor);
        actor
    }

    /// Sets an actor that leads to work.
    pub fn work(&self, actor: &Actor) {
        actor.lead(&format!("{}-{}", self.name, self.epoch));
        actor.until_acknowledged(SOME);
    }

    /// The last leader of `actors` is replaced once more, by a fresh reader on `host`: everything that anybody was told
    /// must be there.
    pub fn finish(mut self, actors: &[&Actor], host: u8) {
        let (reader, log) = self.read(host);
        let checked = self.compare(actors, &log);
        checked.assert_kept();
        // The one who led until now finds out, too.
        let last = actors.last().unwrap();
        assert_deposed(last);
        let other = self.actor(3 - host);
        let Value::Findings(findings) = other.call(Call::Verify { dir: PARTITION.into() }) else { panic!() };
        assert_eq!(findings, Vec::<String>::new(), "{}: {}", self.site.name(), self.name);
        reader.call(Call::Append { tag: "last-1".into() });
        reader.call(Call::Close);
        let seconds = self.started.elapsed().as_secs();
        eprintln!("{}: {}: {checked}; {seconds} s", self.site.name(), self.name);
    }

    /// A fresh leader on a host, and every record that it finds.
    pub fn read(&mut self, host: u8) -> (Actor, Vec<(i64, String)>) {
        let reader = self.actor(host);
        reader.open(PARTITION, self.next_epoch());
        let Value::Records(log) = reader.call(Call::Read) else { panic!("no records") };
        (reader, log)
    }

    /// What actors were told beside what is in the log.
    pub fn compare(&self, actors: &[&Actor], log: &[(i64, String)]) -> Checked {
        let mut history = History::default();
        for actor in actors {
            history.add(actor);
        }
        history.check(log)
    }
}

/// A leader that was replaced must notice, and stop by that and nothing else.
fn assert_deposed(actor: &Actor) {
    let reason = actor.until_ended();
    assert!(reason.starts_with("Deposed"), "{}: {reason}", actor.name());
}

/// The same for one whose host was silent for long. Where that is shut out, the leader learns no more than that, or not even that if
/// a call of its own never returns; its host needs a new mount.
fn assert_out_of_touch(site: &dyn Site, host: u8, actor: &Actor) {
    if !site.evicts() {
        return assert_deposed(actor);
    }
    match actor.ended_within(SHUT_OUT) {
        Some(reason) if reason.starts_with("Deposed") => return,
        Some(reason) => assert!(reason.starts_with("Poisoned"), "{}: {reason}", actor.name()),
        None => {
            let state = actor.try_call(Call::Status);
            eprintln!("{}: {}: it learns nothing: {state:?}", site.name(), actor.name());
        }
    }
    actor.hang_up();
    site.remount(host);
}
