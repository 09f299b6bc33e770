//! A leader's life, as a task: it opens a partition, serves clients that ask for this and that, and goes on after it was
//! deposed, without knowing.

use std::sync::Arc;

use kaas_engine::batch::Marker;
use kaas_engine::completion::Ticket;
use kaas_engine::identity::PARTITION_FILE;
use kaas_engine::types::{Epoch, Offset, ProducerId};
use kaas_engine::{
    Acks, AppendError, AppendOptions, AppendOutcome, EngineError, Isolation, OpenPartition, Partition,
    ReadError, State,
};
use parking_lot::Mutex;

use crate::choices::Stream;
use crate::clients::Batch;
use crate::cluster::{Cluster, Topic};
use crate::compaction;
use crate::names::of_marker;
use crate::problem::Problem;
use crate::process::Process;
use crate::reading::{Reading, read_all};
use crate::records::plain;
use crate::requests::{Request, requests};
use crate::scheduler::{Dead, Until};

/// An append whose outcome is not known yet.
struct Pending {
    what: Sent,
    ticket: Ticket<AppendOutcome>,
}

enum Sent {
    Batch(Batch),
    Plain { value: String, acks: Acks },
    Marker { producer: i64, transaction: u32, name: String },
}

type PendingList = Arc<Mutex<Vec<Pending>>>;

/// One leader.
pub struct Leader {
    cluster: Arc<Cluster>,
    process: Arc<Process>,
    topic: usize,
    epoch: Epoch,
    script: Stream,
    pending: PendingList,
}

/// Assigns the partition to a process at an epoch, and lets it lead in a task of its own.
pub fn assign(cluster: &Arc<Cluster>, process: &Arc<Process>, topic: usize, epoch: Epoch) {
    let script = Stream::script(cluster.next_leader());
    let leader = Leader {
        cluster: Arc::clone(cluster),
        process: Arc::clone(process),
        topic,
        epoch,
        script,
        pending: PendingList::default(),
    };
    cluster.scheduler.spawn(process.id, "leader", move || {
        // A dead one just ends.
        let _ = leader.lead();
    });
}

/// Opens the partition in a process and checks what was found. `None` if that fails for a reason that may be.
pub fn open(cluster: &Cluster, process: &Process, topic: &Topic, epoch: Epoch) -> Option<Arc<Partition>> {
    let request = OpenPartition {
        dir: topic.dir.clone(),
        identity: topic.identity.clone(),
        epoch,
        claimant: process.claimant(),
        config: cluster.config.clone(),
    };
    if !process.may_claim(&topic.dir, epoch) {
        return None;
    }
    // It may have been damaged, and repaired, meanwhile.
    let met_before = topic.history.lock().harm.opens(epoch.get());
    let outcome = process.engine.open_partition(request);
    let may_meet_damage = topic.history.lock().harm.opens(epoch.get()) || met_before;
    if process.is_dead() {
        return None;
    }
    if outcome.is_err() {
        process.claim_failed(&topic.dir, epoch);
    }
    match outcome {
        Ok(partition) => {
            let status = partition.status();
            cluster.scheduler.note(&format_args!(
                "{} opened at epoch {epoch}: {} to {}",
                topic.identity.topic, status.log_start, status.high_watermark
            ));
            let found = topic.history.lock().opened(epoch.get(), status.log_start.0, status.high_watermark.0);
            cluster.check(found);
            let found = topic.history.lock().found_stable(epoch.get(), status.last_stable.0);
            cluster.check(found);
            process.keep(&partition);
            Some(partition)
        }
        Err(
            error @ (EngineError::Damaged { .. }
            | EngineError::NewerFormat { .. }
            | EngineError::Foreign { .. }),
        ) if !may_meet_damage && !is_old_identity(topic, &error) => {
            let text = format!("{} at epoch {epoch}: {error}", topic.identity.topic);
            cluster.scheduler.report(Problem::Damaged(text));
            None
        }
        Err(error) => {
            cluster.scheduler.note(&format_args!("not opened at epoch {epoch}: {error}"));
            None
        }
    }
}

/// A name that was renamed over, and that a host finds where it was for some time, as on NFS: whoever opens tries again.
fn is_old_identity(topic: &Topic, error: &EngineError) -> bool {
    let is_identity = matches!(error, EngineError::Damaged { path, .. } if path.ends_with(PARTITION_FILE));
    is_identity && topic.history.lock().harm.happened()
}

impl Leader {
    fn topic(&self) -> Option<&Topic> {
        self.cluster.topics.get(self.topic)
    }

    fn lead(&self) -> Result<(), Dead> {
        let scheduler = &self.cluster.scheduler;
        let Some(topic) = self.topic() else { return Ok(()) };
        let Some(partition) = open(&self.cluster, &self.process, topic, self.epoch) else { return Ok(()) };
        // It takes some records, and some rounds, until something is compacted away.
        let (least, more) = if self.cluster.config.compact { (8, 32) } else { (4, 12) };
        for _ in 0..least + scheduler.below(self.script, more) {
            if scheduler.has_problems() {
                return Ok(());
            }
            let request = scheduler.pick(self.script, requests(&self.cluster)).unwrap_or(Request::Nothing);
            scheduler.step(&format_args!("client: {request:?}"))?;
            self.serve(topic, &partition, request)?;
            self.take_answers(topic)?;
        }
        match scheduler.below(self.script, 3) {
            // It goes on leading, with nobody to serve.
            0 => self.wait_for_answers(topic)?,
            1 => {
                let ticket = partition.close();
                self.wait(ticket)?;
            }
            _ => {
                let ticket = partition.abandon();
                self.wait(ticket)?;
            }
        }
        self.wait_for_answers(topic)
    }

    fn serve(&self, topic: &Topic, partition: &Arc<Partition>, request: Request) -> Result<(), Dead> {
        match request {
            Request::Nothing => {}
            Request::Produce => self.produce(topic, partition),
            Request::ProducePlain(acks) => {
                let value = topic.unique_value();
                topic.history.lock().sends(&value);
                if let Ok(batch) = plain(&value, topic.form, self.cluster.client_time()) {
                    let options = AppendOptions { acks, ..AppendOptions::default() };
                    if let Ok(ticket) = partition.append(&batch, options) {
                        self.pending.lock().push(Pending { what: Sent::Plain { value, acks }, ticket });
                    }
                }
            }
            Request::Fetch => self.fetch(topic, partition, None, Isolation::ReadUncommitted)?,
            Request::FetchFrom(isolation) => {
                let status = partition.status();
                let span = u64::try_from(status.high_watermark.0 - status.log_start.0).unwrap_or(0);
                let skipped = self.cluster.scheduler.below(self.script, span + 1);
                let from = status.log_start.plus(i64::try_from(skipped).unwrap_or(0));
                // From the beginning, as often as not.
                let from = self.cluster.scheduler.pick(self.script, &[None, Some(from)]).flatten();
                self.fetch(topic, partition, from, isolation)?;
            }
            Request::Transact => self.transact(topic, partition),
            Request::EndTransaction => self.end_transaction(topic, partition),
            Request::Compact => {
                // Not waited for.
                drop(compaction::begin(&self.cluster, &self.process, self.topic, partition));
            }
            Request::Status => self.look(topic, partition),
            Request::DeleteRecords => self.delete(topic, partition)?,
            Request::Maintain => {
                let outcome = self.wait(partition.maintain())?;
                if let Some(Ok(maintained)) = outcome {
                    self.saw_log_start(topic, maintained.log_start);
                }
            }
            Request::Wait => self.wait_for_answers(topic)?,
        }
        Ok(())
    }

    /// One of several, by a decision.
    fn one_of<'a, T>(&self, several: &'a mut [T]) -> Option<&'a mut T> {
        let chosen = self.cluster.scheduler.below(self.script, several.len() as u64);
        several.get_mut(usize::try_from(chosen).unwrap_or(0))
    }

    /// A producer sends what it does not know to be appended, or something new.
    fn produce(&self, topic: &Topic, partition: &Arc<Partition>) {
        let scheduler = &self.cluster.scheduler;
        let mut producers = topic.producers.lock();
        let Some(producer) = self.one_of(&mut producers) else { return };
        let fresh = scheduler.below(self.script, 4);
        if producer.to_send().is_empty() || fresh > 1 {
            for _ in 0..1 + fresh {
                let records = 1 + i32::try_from(scheduler.below(self.script, 3)).unwrap_or(0);
                producer.make(records);
            }
        }
        let sent = producer.to_send();
        drop(producers);
        self.send(topic, partition, sent);
    }

    /// The same, by a transactional one.
    fn transact(&self, topic: &Topic, partition: &Arc<Partition>) {
        let scheduler = &self.cluster.scheduler;
        let mut transactional = topic.transactional.lock();
        let Some(producer) = self.one_of(&mut transactional) else { return };
        for _ in 0..1 + scheduler.below(self.script, 2) {
            producer.make(1 + i32::try_from(scheduler.below(self.script, 3)).unwrap_or(0));
        }
        let sent = producer.producer.to_send();
        drop(transactional);
        self.send(topic, partition, sent);
    }

    /// A coordinator ends a transaction, if there is one to be ended.
    fn end_transaction(&self, topic: &Topic, partition: &Arc<Partition>) {
        let scheduler = &self.cluster.scheduler;
        let mut transactional = topic.transactional.lock();
        let Some(producer) = self.one_of(&mut transactional) else { return };
        let markers = [Marker::Commit, Marker::Abort];
        let choose = || scheduler.pick(self.script, &markers).unwrap_or(Marker::Commit);
        let Some((transaction, end)) = producer.end(choose) else { return };
        let id = producer.producer.id();
        topic.history.lock().outcomes.decide(id, transaction, end.marker);
        let name = of_marker(ProducerId(id), end);
        match partition.append_marker(ProducerId(id), 0, end) {
            Ok(ticket) => {
                let what = Sent::Marker { producer: id, transaction, name };
                self.pending.lock().push(Pending { what, ticket });
            }
            Err(error) => scheduler.note(&format_args!("{name}: {error}")),
        }
    }

    fn send(&self, topic: &Topic, partition: &Arc<Partition>, batches: Vec<Batch>) {
        for batch in batches {
            batch.names().for_each(|name| topic.history.lock().sends(&name));
            let Ok(bytes) = batch.encode(topic.form, self.cluster.client_time()) else { return };
            match partition.append(&bytes, AppendOptions::default()) {
                Ok(ticket) => self.pending.lock().push(Pending { what: Sent::Batch(batch), ticket }),
                Err(error) => return self.cluster.scheduler.note(&format_args!("{batch:?}: {error}")),
            }
        }
    }

    fn take_answers(&self, topic: &Topic) -> Result<(), Dead> {
        // What a dead process was told, nobody hears.
        if self.process.is_dead() {
            return Err(Dead);
        }
        let told: Vec<Pending> = {
            let mut pending = self.pending.lock();
            let (told, rest) =
                std::mem::take(&mut *pending).into_iter().partition(|one| one.ticket.is_told());
            *pending = rest;
            told
        };
        for Pending { what, ticket } in told {
            match ticket.wait() {
                Ok(Ok(appended)) => self.acknowledged(topic, &what, appended.base_offset.0),
                Ok(Err(error)) => self.refused(&what, &error),
                Err(abandoned) => self.cluster.scheduler.note(&abandoned),
            }
        }
        Ok(())
    }

    fn acknowledged(&self, topic: &Topic, what: &Sent, base_offset: i64) {
        let epoch = self.epoch.get();
        let values: Vec<String> = match what {
            // Written, no more: it may be lost.
            Sent::Plain { acks: Acks::Written | Acks::None, .. } => return,
            Sent::Plain { value, .. } => vec![value.clone()],
            Sent::Batch(batch) => batch.names().collect(),
            Sent::Marker { name, .. } => vec![name.clone()],
        };
        self.cluster.scheduler.note(&format_args!("acknowledged at {base_offset}: {values:?}"));
        for (value, offset) in values.iter().zip(base_offset..) {
            let mut history = topic.history.lock();
            history.acknowledged += 1;
            let saw = history.saw(epoch, offset, value, "acknowledged");
            drop(history);
            self.cluster.check(saw);
        }
        match what {
            Sent::Batch(batch) => {
                topic.for_each_producer(|producer| producer.acknowledged(batch, base_offset));
            }
            Sent::Marker { producer, transaction, .. } => topic.ended(*producer, *transaction),
            Sent::Plain { .. } => {}
        }
    }

    fn refused(&self, what: &Sent, error: &AppendError) {
        let what = match what {
            Sent::Batch(batch) => format!("{batch:?}"),
            Sent::Plain { value: name, .. } | Sent::Marker { name, .. } => name.clone(),
        };
        self.cluster.scheduler.note(&format_args!("refused: {what}: {error}"));
    }

    fn fetch(
        &self,
        topic: &Topic,
        partition: &Arc<Partition>,
        from: Option<Offset>,
        isolation: Isolation,
    ) -> Result<(), Dead> {
        let max_bytes = self.cluster.scheduler.pick(self.script, &[1 << 20, 1, 300]).unwrap_or(1);
        // Later, as over a slow connection.
        let ranges_again_after =
            self.cluster.scheduler.pick(self.script, &[None, Some(0), Some(300)]).flatten();
        let reading = Reading { from, max_bytes, isolation, ranges_again_after };
        match read_all(&self.cluster, &self.process, topic, partition, reading, |_, _| {}) {
            Err(error @ ReadError::Damaged { .. })
                if !self.process.is_dead() && !topic.may_meet_damage(self.epoch.get()) =>
            {
                let text = format!("{} at epoch {}: {error}", topic.identity.topic, self.epoch);
                self.cluster.scheduler.report(Problem::Damaged(text));
            }
            Err(error) => self.cluster.scheduler.note(&error),
            Ok(()) => {}
        }
        if self.process.is_dead() { Err(Dead) } else { Ok(()) }
    }

    fn look(&self, topic: &Topic, partition: &Arc<Partition>) {
        let status = partition.status();
        if status.state != State::Leading {
            return;
        }
        self.saw_log_start(topic, status.log_start);
        let saw = topic.history.lock().saw_committed(self.epoch.get(), status.high_watermark.0, "status");
        self.cluster.check(saw);
        let saw = topic.history.lock().saw_stable(self.epoch.get(), status.last_stable, status.log_start);
        self.cluster.check(saw);
    }

    fn saw_log_start(&self, topic: &Topic, log_start: Offset) {
        let saw = topic.history.lock().saw_log_start(self.epoch.get(), log_start.0);
        self.cluster.check(saw);
    }

    fn delete(&self, topic: &Topic, partition: &Arc<Partition>) -> Result<(), Dead> {
        let status = partition.status();
        let span = u64::try_from(status.high_watermark.0 - status.log_start.0).unwrap_or(0);
        let chosen = i64::try_from(self.cluster.scheduler.below(self.script, span + 1)).unwrap_or(0);
        let before = status.log_start.0 + chosen;
        {
            let mut history = topic.history.lock();
            history.log_start_asked = history.log_start_asked.max(before);
        }
        match self.wait(partition.delete_records(Some(Offset(before))))? {
            Some(Ok(log_start)) => self.saw_log_start(topic, log_start),
            Some(Err(error)) => self.cluster.scheduler.note(&error),
            None => {}
        }
        Ok(())
    }

    fn wait_for_answers(&self, topic: &Topic) -> Result<(), Dead> {
        let pending = Arc::clone(&self.pending);
        let all_told = move || pending.lock().iter().all(|one| one.ticket.is_told());
        self.cluster.scheduler.leave(Until::True(Box::new(all_told)))?;
        self.take_answers(topic)
    }

    /// Waits for a ticket; `None` if it was abandoned.
    fn wait<T: Send + 'static>(&self, ticket: Ticket<T>) -> Result<Option<T>, Dead> {
        wait(&self.cluster, ticket)
    }
}

/// Waits for a ticket; `None` if it was abandoned.
pub fn wait<T: Send + 'static>(cluster: &Cluster, ticket: Ticket<T>) -> Result<Option<T>, Dead> {
    let ticket = Arc::new(Mutex::new(Some(ticket)));
    let watched = Arc::clone(&ticket);
    let is_told = move || watched.lock().as_ref().is_none_or(Ticket::is_told);
    cluster.scheduler.leave(Until::True(Box::new(is_told)))?;
    let taken = ticket.lock().take();
    // Told by now: no waiting.
    Ok(taken.and_then(|ticket| ticket.wait().ok()))
}
