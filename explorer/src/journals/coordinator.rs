//! A coordinator's life, as a task: it takes a slot over, appends, answers reads and writes snapshots, and goes on after it
//! was deposed, without knowing.

use std::path::Path;
use std::sync::Arc;

use kaas_engine::journal::{Journal, JournalError, JournalTicket, OpenError, Sequence, birth};
use kaas_engine::layout::{GROUPS_DIR, SLOTS_DIR};
use kaas_engine::types::Epoch;
use kaas_substrate::ErrorClass;
use parking_lot::Mutex;
use serde_json::Value;

use super::audit::next_epoch;
use super::entries::{AppendId, View, entries, state};
use super::slot::Slot;
use crate::choices::Stream;
use crate::cluster::Cluster;
use crate::problem::Problem;
use crate::process::Process;
use crate::scheduler::{Dead, Until};

/// What groups ask for; the first is nothing.
#[derive(Debug, Clone, Copy)]
enum Request {
    Nothing,
    Append,
    /// A read, which is answered once the fence was asked.
    Read,
    Snapshot,
    Wait,
}

/// Some more often than others.
const REQUESTS: &[Request] = &[
    Request::Nothing,
    Request::Append,
    Request::Append,
    Request::Append,
    Request::Append,
    Request::Append,
    Request::Read,
    Request::Read,
    Request::Snapshot,
    Request::Wait,
    Request::Wait,
];

/// Bytes that make a line shorter than a sector, or longer.
const PADDING: &[usize] = &[0, 40, 700];

/// How often a coordinator takes its slot over anew after its journal has failed.
const ANEW_MAX: usize = 3;

/// What a coordinator has in memory.
#[derive(Debug, Default)]
struct Memory {
    /// The appends that count, in order.
    applied: Vec<AppendId>,
    /// Appends and reads whose outcome is not known.
    waiting: usize,
}

/// One coordinator.
struct Coordinator {
    cluster: Arc<Cluster>,
    process: Arc<Process>,
    slot: usize,
    script: Stream,
}

/// A term of a coordinator: one journal.
struct Term<'a> {
    coordinator: &'a Coordinator,
    slot: &'a Slot,
    journal: Journal,
    memory: Arc<Mutex<Memory>>,
    snapshots: Vec<JournalTicket>,
}

/// Assigns a slot to a process at an epoch, and lets it coordinate in a task of its own.
pub fn assign(cluster: &Arc<Cluster>, process: &Arc<Process>, slot: usize, epoch: Epoch) {
    let script = Stream::script(cluster.next_leader());
    let coordinator =
        Coordinator { cluster: Arc::clone(cluster), process: Arc::clone(process), slot, script };
    cluster.scheduler.spawn(process.id, "coordinator", move || {
        // A dead one just ends.
        let _ = coordinator.coordinate(epoch);
    });
}

/// Makes the slot if it is not there, as every coordinator does that comes to it.
fn make(process: &Process, slot: &Slot, epoch: Epoch) -> kaas_substrate::Result<()> {
    let substrate = process.engine.substrate().as_ref();
    let (slots, groups) = (Path::new(SLOTS_DIR), Path::new(SLOTS_DIR).join(GROUPS_DIR));
    for (dir, parent) in [(slots, Path::new("")), (groups.as_path(), slots)] {
        match substrate.create_dir(dir) {
            Err(error) if error.class != ErrorClass::Exists => return Err(error),
            _ => substrate.sync_dir(parent)?,
        }
    }
    // No other attempt has both: a process comes to an epoch once at a time.
    birth(substrate, &slot.dir, &format!("{}-{epoch}", process.id))
}

/// Opens a slot's journal in a process and checks what it is shown. `None` if that fails for a reason that may be.
pub fn open(
    cluster: &Cluster,
    process: &Process,
    slot: &Slot,
    epoch: Epoch,
) -> Option<(Journal, Vec<AppendId>)> {
    if !process.may_claim(&slot.dir, epoch) {
        return None;
    }
    let (substrate, settings) = (process.engine.substrate(), cluster.journal_settings.clone());
    // It may have been damaged, and repaired, meanwhile.
    let may_meet = || slot.history.lock().harm.met.may_be_met_at(epoch.get());
    let met_before = may_meet();
    let opened = make(process, slot, epoch).map_err(OpenError::from).and_then(|()| {
        Journal::open(substrate, &slot.dir, epoch, &process.claimant(), &process.journal_io, settings)
    });
    if process.is_dead() {
        return None;
    }
    match opened {
        Ok((journal, replay)) => {
            let view = View::of(&replay).map_err(|problem| {
                cluster.scheduler.report(Problem::Journal(format!("epoch {epoch} is shown: {problem}")));
            });
            let view = view.ok()?;
            cluster
                .scheduler
                .note(&format_args!("slot {} opened at epoch {epoch}: {:?}", slot.number, view.appends));
            cluster.check(slot.history.lock().opened(epoch.get(), &view));
            Some((journal, view.appends))
        }
        Err(error) => {
            process.claim_failed(&slot.dir, epoch);
            let is_damage = matches!(
                error,
                OpenError::Damaged { .. }
                    | OpenError::SnapshotMissing { .. }
                    | OpenError::JournalMissing { .. }
                    | OpenError::Foreign { .. }
                    | OpenError::NewerFormat { .. }
            );
            let text = format!("slot {} is not opened at epoch {epoch}: {error}", slot.number);
            if is_damage && !met_before && !may_meet() {
                cluster.scheduler.report(Problem::Damaged(text));
            } else {
                cluster.scheduler.note(&text);
            }
            None
        }
    }
}

impl Coordinator {
    fn coordinate(&self, first: Epoch) -> Result<(), Dead> {
        let scheduler = &self.cluster.scheduler;
        let Some(slot) = self.cluster.slots.get(self.slot) else { return Ok(()) };
        let mut epoch = first;
        for _ in 0..ANEW_MAX {
            let Some((journal, applied)) = open(&self.cluster, &self.process, slot, epoch) else {
                return Ok(());
            };
            let memory = Arc::new(Mutex::new(Memory { applied, waiting: 0 }));
            let term = Term { coordinator: self, slot, journal, memory, snapshots: Vec::new() };
            let failure = term.serve()?;
            // Whoever coordinates when its volume has failed takes the slot over anew, at an epoch of its own.
            let is_anew = matches!(failure, Some(JournalError::Poisoned { .. }))
                && scheduler.below(self.script, 2) == 1;
            match next_epoch(slot) {
                Some(next) if is_anew => epoch = next,
                _ => return Ok(()),
            }
        }
        Ok(())
    }
}

impl Term<'_> {
    /// Serves for some requests; why the journal has failed, if it has.
    fn serve(mut self) -> Result<Option<JournalError>, Dead> {
        let (scheduler, script) = (&self.coordinator.cluster.scheduler, self.coordinator.script);
        for _ in 0..4 + scheduler.below(script, 12) {
            if scheduler.has_problems() {
                return Ok(None);
            }
            let request = scheduler.pick(script, REQUESTS).unwrap_or(Request::Nothing);
            scheduler.step(&format_args!("group: {request:?}"))?;
            match request {
                Request::Nothing => {}
                // Some share a write.
                Request::Append => (0..=scheduler.below(script, 3)).for_each(|_| self.append()),
                Request::Read => self.read(),
                Request::Snapshot => self.snapshot(),
                Request::Wait => self.wait()?,
            }
        }
        match scheduler.below(script, 3) {
            // It goes on coordinating, with nobody to serve.
            0 => self.wait()?,
            1 => {
                // A clean stop.
                self.wait()?;
                self.snapshot();
                self.wait()?;
                if !scheduler.has_problems() {
                    // Everything is told, so it waits for nobody.
                    self.journal.close();
                }
            }
            // Nobody holds it any more, and what is staged goes on.
            _ => {}
        }
        let (failure, memory) = (self.journal.failure(), Arc::clone(&self.memory));
        drop(self);
        scheduler.leave(Until::True(Box::new(move || memory.lock().waiting == 0)))?;
        Ok(failure)
    }

    /// What the outcome of something is told to, once: never to a dead process.
    fn told(
        &self,
        tell: impl FnOnce(&Cluster, &Slot, u32, &mut Memory, Result<Sequence, JournalError>) + Send + 'static,
    ) -> impl FnOnce(Result<Sequence, JournalError>) + Send + 'static {
        self.memory.lock().waiting += 1;
        let (cluster, process) =
            (Arc::clone(&self.coordinator.cluster), Arc::clone(&self.coordinator.process));
        let (memory, slot, epoch) =
            (Arc::clone(&self.memory), self.coordinator.slot, self.journal.epoch().get());
        move |outcome| {
            let mut memory = memory.lock();
            memory.waiting -= 1;
            if let Some(slot) = cluster.slots.get(slot).filter(|_| !process.is_dead()) {
                tell(&cluster, slot, epoch, &mut memory, outcome);
            }
        }
    }

    fn append(&self) {
        let (scheduler, script) = (&self.coordinator.cluster.scheduler, self.coordinator.script);
        let id = self.slot.history.lock().next();
        let (count, padding) = (1 + scheduler.below(script, 3), scheduler.pick(script, PADDING).unwrap_or(0));
        let told = self.told(move |cluster, slot, epoch, memory, outcome| {
            let mut history = slot.history.lock();
            let checked = match &outcome {
                Ok(sequence) => {
                    memory.applied.push(id);
                    history.acknowledge(epoch, id, sequence.0)
                }
                // Of these nothing was written.
                Err(JournalError::Busy { .. } | JournalError::Full { .. } | JournalError::Closed) => {
                    history.refuse(id)
                }
                Err(_) => Ok(()),
            };
            drop(history);
            cluster.scheduler.note(&format_args!("append {id} at epoch {epoch}: {outcome:?}"));
            cluster.check(checked);
        });
        self.journal.append_with(&entries(id, count, padding), told);
    }

    fn read(&self) {
        let began = self.slot.history.lock().acknowledged();
        let told = self.told(move |cluster, slot, epoch, memory, outcome| {
            cluster.scheduler.note(&format_args!("read at epoch {epoch}: {outcome:?}"));
            if outcome.is_ok() {
                cluster.check(slot.history.lock().served(epoch, began, &memory.applied));
            }
        });
        self.journal.append_with::<Value>(&[], told);
    }

    fn snapshot(&mut self) {
        // In this order, so that the state holds everything that it covers. Less may be said to be covered.
        let committed = self.journal.committed();
        let chosen = self.coordinator.cluster.scheduler.below(self.coordinator.script, 4);
        let covers = match chosen {
            1 => Sequence(0),
            2 => Sequence(committed.0.saturating_sub(1)),
            _ => committed,
        };
        let state = state(&self.memory.lock().applied);
        self.snapshots.push(self.journal.write_snapshot(covers, &state));
    }

    /// Waits until everything has its outcome.
    fn wait(&mut self) -> Result<(), Dead> {
        let scheduler = &self.coordinator.cluster.scheduler;
        let snapshots = Arc::new(Mutex::new(std::mem::take(&mut self.snapshots)));
        let (waiting, memory) = (Arc::clone(&snapshots), Arc::clone(&self.memory));
        let all_told =
            move || memory.lock().waiting == 0 && waiting.lock().iter().all(JournalTicket::is_told);
        scheduler.leave(Until::True(Box::new(all_told)))?;
        for ticket in snapshots.lock().drain(..) {
            scheduler.note(&format_args!("snapshot: {:?}", ticket.wait()));
        }
        Ok(())
    }
}
