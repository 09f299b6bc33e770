//! What happens to the cluster: who is told to lead, who is killed or paused, when power is lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kaas_engine::types::Epoch;

use crate::choices::Stream;
use crate::cluster::{Cluster, Topic};
use crate::data_dir::When;
use crate::process::Faults;
use crate::scheduler::{NOBODY, Until};
use crate::{data_dir, journals, leader, repair};

/// An event; the first is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Nothing,
    /// A process is told to lead a partition or a slot: mostly at the next epoch, now and then at a later one, or at one that was
    /// assigned before.
    Assign,
    /// A process is killed; the next assignment to its host starts another.
    Kill,
    /// A process is paused for long.
    Pause,
    /// A host loses power, and its processes die.
    CrashHost,
    /// A host does not reach the server for some time.
    CutOff,
    /// The server loses power, and is there again after some time.
    CrashServer,
    /// Everything loses power, and every process dies.
    LosePower,
    /// A file of a partition is damaged, while whoever leads it goes on.
    Damage,
    /// Every process dies, and a file of a partition is damaged.
    DamageStopped,
    /// A partition is repaired, by a process of its own.
    Repair,
}

/// Lets `count` of `events` happen, as a task.
pub fn direct(cluster: &Arc<Cluster>, events: &[Event], count: u64) {
    let scheduler = &cluster.scheduler;
    for _ in 0..count {
        if scheduler.has_problems() {
            return;
        }
        let event = scheduler.pick(Stream::EVENTS, events).unwrap_or(Event::Nothing);
        scheduler.note(&format_args!("event: {event:?}"));
        let host = usize::try_from(scheduler.below(Stream::EVENTS, cluster.hosts() as u64)).unwrap_or(0);
        match event {
            Event::Nothing => {}
            Event::Assign => assign(cluster, host),
            Event::Kill => cluster.process(host).kill(),
            Event::Pause => {
                let steps = 1 << (6 + scheduler.below(Stream::EVENTS, 7));
                scheduler.pause(cluster.process(host).id, steps);
            }
            Event::CrashHost => cluster.crash_host(host),
            Event::CutOff => {
                cluster.storage.cut_off(host);
                heal_later(cluster, host);
            }
            Event::CrashServer => {
                cluster.storage.crash_server();
                cluster.wait_steps(scheduler.below(Stream::EVENTS, 200));
                cluster.storage.start_server();
            }
            Event::LosePower => cluster.lose_power(),
            Event::Damage => damage(cluster, true),
            Event::DamageStopped => {
                cluster.kill_all();
                damage(cluster, false);
            }
            Event::Repair if cluster.data_dir.is_some() => data_dir::begin(cluster, host),
            Event::Repair => {
                let topics = cluster.topics.len() as u64;
                let number = usize::try_from(scheduler.below(Stream::EVENTS, topics)).unwrap_or(0);
                repair::begin(cluster, host, number);
            }
        }
        let longest = [30, 300, 1500];
        let longest = scheduler.pick(Stream::EVENTS, &longest).unwrap_or(1);
        cluster.wait_steps(scheduler.below(Stream::EVENTS, longest));
    }
    let is_damaged = |topic: &Topic| topic.history.lock().harm.happened();
    let is_around = cluster.data_dir.is_some();
    if cluster.faults.lock().halves > 0 || is_around || cluster.topics.iter().any(is_damaged) {
        succeed(cluster);
    }
}

/// Damages one of the partitions, or what is around them. Nothing if some host is cut off: what it has, nobody could look at.
fn damage(cluster: &Cluster, is_led: bool) {
    if let Some(data_dir) = &cluster.data_dir {
        let when = if is_led { When::Led } else { When::Stopped };
        if !cluster.storage.is_any_cut_off() {
            data_dir::damage(cluster, data_dir, when);
        }
        return;
    }
    let chosen = cluster.scheduler.below(Stream::EVENTS, cluster.topics.len() as u64);
    let topic = usize::try_from(chosen).ok().and_then(|chosen| cluster.topics.get(chosen));
    if let Some(topic) = topic.filter(|_| !cluster.storage.is_any_cut_off()) {
        repair::damage(cluster, topic, is_led);
    }
}

/// Ends a cut after some steps, or some time.
fn heal_later(cluster: &Arc<Cluster>, host: usize) {
    let scheduler = &cluster.scheduler;
    let steps = scheduler.steps() + scheduler.below(Stream::EVENTS, 1500);
    let cluster = Arc::clone(cluster);
    scheduler.spawn(NOBODY, "network", move || {
        // Tasks of no process never die.
        let _ = cluster.scheduler.leave(Until::Step(steps));
        cluster.scheduler.note(&format_args!("host {host} reaches the server again"));
        cluster.storage.heal(host);
    });
}

fn assign(cluster: &Arc<Cluster>, host: usize) {
    let scheduler = &cluster.scheduler;
    let count = cluster.led();
    let chosen = usize::try_from(scheduler.below(Stream::EVENTS, count as u64)).unwrap_or(0);
    // As controllers that disagree would: the same epoch twice, epochs left out.
    let way = scheduler.below(Stream::EVENTS, 8);
    tell_to_lead(cluster, host, chosen, |last| match way {
        1 => last.max(1),
        2 => last + 3,
        _ => last + 1,
    });
}

/// Has a process on a host lead: one of the topics, behind them one of the slots, or behind these the cluster.
fn tell_to_lead(cluster: &Arc<Cluster>, host: usize, chosen: usize, epoch: impl FnOnce(u32) -> u32) {
    let (topics, slots) = (cluster.topics.len(), cluster.slots.len());
    let (what, number, assigned) = if let Some(topic) = cluster.topics.get(chosen) {
        ("topic", chosen, &topic.assigned)
    } else if let Some(slot) = cluster.slots.get(chosen - topics) {
        ("slot", chosen - topics, &slot.assigned)
    } else if let Some(data_dir) = &cluster.data_dir {
        ("cluster", 0, &data_dir.assigned)
    } else {
        return;
    };
    let epoch = epoch(assigned.load(Ordering::Relaxed));
    assigned.fetch_max(epoch, Ordering::Relaxed);
    let Some(epoch) = Epoch::new(epoch) else { return };
    let process = cluster.process(host);
    cluster
        .scheduler
        .note(&format_args!("{what} {number} is to be led by process {} at epoch {epoch}", process.id));
    if chosen < topics {
        leader::assign(cluster, &process, chosen, epoch);
    } else if chosen < topics + slots {
        journals::assign(cluster, &process, number, epoch);
    } else {
        data_dir::assign(cluster, &process, epoch);
    }
}

/// A leader that finds a torn or damaged record behind its own can neither go on nor end: whoever assigns leaders gives the epoch after
/// that to another, which comes to its end. What is damaged is repaired: nobody else may be able to open it.
fn succeed(cluster: &Arc<Cluster>) {
    *cluster.faults.lock() = Faults::default();
    if cluster.data_dir.is_some() {
        data_dir::begin(cluster, 0);
    }
    for chosen in 0..cluster.led() {
        let is_damaged = |topic: &Topic| topic.history.lock().harm.happened();
        if cluster.data_dir.is_none() && cluster.topics.get(chosen).is_some_and(is_damaged) {
            repair::begin(cluster, 0, chosen);
        }
        tell_to_lead(cluster, 0, chosen, |last| last + 1);
    }
}
