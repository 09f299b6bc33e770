//! The group coordinator of this broker: carries the state machine of every slot, its journal and its timers.
//!
//! Slots are opened on first use; until a slot is loaded its requests wait a while and are then told that it is
//! loading. All methods may be called from any task. Answers about offsets come when the journal has made them
//! durable. Dropping a call's future gives up the answer, not what was asked for.

mod cell;
mod offsets;
mod worker;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{error, info};
use uuid::Uuid;

use super::log::{GroupLogError, GroupLogs, OpenedLog};
use super::state::{
    DescribedGroup, Effects, GroupConfig, GroupConfigError, GroupError, HeartbeatRequest, JoinRequest,
    JoinResponse, LeaveRequest, LeaveResponse, ListedGroup, Now, Record, Response, SlotSnapshot, SlotState,
    SyncRequest, SyncResponse, Token, slot_of,
};
use crate::repeated::Repeated;
use cell::{Cell, Open, Status};
use worker::Worker;

/// How long a slot is left alone after its log has failed, or could not be loaded.
const REOPEN_AFTER: Duration = Duration::from_secs(1);

/// The coordinator of the groups of all slots.
pub struct GroupCoordinator {
    shared: Arc<Shared>,
}

/// What the coordinator and its tasks share.
struct Shared {
    config: Arc<GroupConfig>,
    logs: Arc<dyn GroupLogs>,
    cells: Vec<Cell>,
    started: Instant,
    stop: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// Slots that could not be loaded, and slots whose log has failed.
    failures: Repeated<(usize, Failure)>,
}

/// What a slot has failed at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Failure {
    Loading,
    Serving,
}

impl Shared {
    fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            monotonic_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            wall_ms: i64::try_from(wall.as_millis()).unwrap_or(i64::MAX),
        }
    }

    /// The moment of a deadline of the state machine; rounded up, so that it has passed by then.
    fn instant(&self, monotonic_ms: u64) -> Instant {
        self.started
            .checked_add(Duration::from_millis(monotonic_ms))
            .unwrap_or_else(|| Instant::now() + self.check_interval())
    }

    fn check_interval(&self) -> Duration {
        Duration::from_millis(self.config.offsets_retention_check_interval_ms)
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(self.config.offsets_commit_timeout_ms)
    }

    /// Starts loading the slot unless it is loaded, loading, stopped, or has just failed to load.
    fn kick(self: &Arc<Self>, slot: usize) -> Result<(), GroupError> {
        let cell = self.cells.get(slot).ok_or(GroupError::UnknownServerError)?;
        let mut status = cell.status.lock();
        match &*status {
            Status::Stopped => Err(GroupError::CoordinatorNotAvailable),
            _ if *self.stop.borrow() => Err(GroupError::CoordinatorNotAvailable),
            Status::Open(_) | Status::Opening => Ok(()),
            Status::Closed { failed: Some((error, until)) } if Instant::now() < *until => Err(*error),
            Status::Closed { .. } => {
                *status = Status::Opening;
                let task = tokio::spawn(Arc::clone(self).open(slot));
                let mut tasks = self.tasks.lock();
                tasks.retain(|task| !task.is_finished());
                tasks.push(task);
                Ok(())
            }
        }
    }

    /// Waits until the slot is loaded.
    async fn ready(self: &Arc<Self>, slot: usize) -> Result<&Cell, GroupError> {
        let cell = self.cells.get(slot).ok_or(GroupError::UnknownServerError)?;
        let deadline = Instant::now() + self.patience();
        let mut changed = cell.changed.subscribe();
        loop {
            self.kick(slot)?;
            if cell.with_open(|_| ()).is_some() {
                return Ok(cell);
            }
            match timeout_at(deadline, changed.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Err(GroupError::CoordinatorLoadInProgress),
            }
        }
    }

    /// Loads a slot, then works for it until it is closed.
    async fn open(self: Arc<Self>, slot: usize) {
        let Some(cell) = self.cells.get(slot) else { return };
        let loaded = match self.logs.open(slot).await {
            Ok(opened) => self.load(slot, opened).await,
            Err(error) => Err(error),
        };
        let (mut open, appends) = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                if let Some(times) = self.failures.failed((slot, Failure::Loading), &error.to_string()) {
                    let hint = error.is_damage().then(|| self.logs.damage_hint(slot)).flatten();
                    error!(slot, %error, hint, times, "cannot load the groups of a slot");
                }
                cell.set(Status::Closed { failed: Some((error.answer(), Instant::now() + REOPEN_AFTER)) });
                return;
            }
        };
        let stop = self.stop.subscribe();
        let mut effects = Effects::new();
        open.machine.loaded(self.now(), &mut effects);
        open.execute(effects);
        let worker = Worker::new(Arc::clone(&self), &open, appends, stop.clone());
        let stopping = *stop.borrow();
        if stopping {
            cell.set(Status::Stopped);
            // Nothing has been appended; the next process reads what this one read.
            let _ = open.log.close().await;
            return;
        }
        cell.set(Status::Open(Box::new(open)));
        worker.run().await;
    }

    async fn load(
        self: &Arc<Self>,
        slot: usize,
        opened: OpenedLog,
    ) -> Result<(Open, mpsc::UnboundedReceiver<cell::Append>), GroupLogError> {
        let (shared, began) = (Arc::clone(self), Instant::now());
        let OpenedLog { log, snapshot, entries } = opened;
        let count = u64::try_from(entries.len()).unwrap_or(u64::MAX);
        let replay = move || replay(slot, Arc::clone(&shared.config), shared.now(), snapshot, entries);
        let machine = tokio::task::spawn_blocking(replay)
            .await
            .map_err(|error| GroupLogError::Unavailable { slot, reason: error.to_string() })??;
        self.failures.works(&(slot, Failure::Loading));
        info!(slot, entries = count, ms = began.elapsed().as_millis(), "loaded the groups of a slot");
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut open = Open::new(slot, machine, log, sender);
        open.entries_since_snapshot = count;
        Ok((open, receiver))
    }
}

/// Rebuilds a slot's state.
fn replay(
    slot: usize,
    config: Arc<GroupConfig>,
    now: Now,
    snapshot: Option<serde_json::Value>,
    entries: Vec<serde_json::Value>,
) -> Result<SlotState, GroupLogError> {
    let unreadable = |entry: String, error: serde_json::Error| GroupLogError::Unreadable {
        slot,
        entry,
        reason: error.to_string(),
    };
    let mut machine = SlotState::new(slot, config);
    if let Some(snapshot) = snapshot {
        // The version first: a newer format should be named as what it is, not as a missing field.
        let snapshot: SlotSnapshot =
            serde_json::from_value(snapshot).map_err(|error| unreadable("snapshot".to_owned(), error))?;
        machine.restore(snapshot, now).map_err(|source| GroupLogError::Replay { slot, source })?;
    }
    for (index, entry) in entries.into_iter().enumerate() {
        let record: Record =
            serde_json::from_value(entry).map_err(|error| unreadable(index.to_string(), error))?;
        machine.replay(record, now).map_err(|source| GroupLogError::Replay { slot, source })?;
    }
    Ok(machine)
}

impl GroupCoordinator {
    /// A coordinator over these logs. Loads nothing yet. To be called within a tokio runtime.
    ///
    /// # Errors
    /// A setting is out of range.
    pub fn new(config: GroupConfig, logs: Arc<dyn GroupLogs>) -> Result<Self, GroupConfigError> {
        config.check()?;
        let shared = Shared {
            cells: (0..config.slots).map(|_| Cell::new()).collect(),
            config: Arc::new(config),
            logs,
            started: Instant::now(),
            stop: watch::Sender::new(false),
            tasks: Mutex::new(Vec::new()),
            failures: Repeated::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The settings.
    pub fn config(&self) -> &GroupConfig {
        &self.shared.config
    }

    /// Loads the slots that are stored, so that sessions and retention run from now on. Returns when all are loaded or
    /// have been given up on.
    ///
    /// # Errors
    /// The first slot's that could not be loaded; the others are loaded nevertheless.
    pub async fn load_existing(&self) -> Result<(), GroupError> {
        self.existing().await.map(|_| ())
    }

    /// The loaded cells of all slots that are stored.
    async fn existing(&self) -> Result<Vec<&Cell>, GroupError> {
        let shared = &self.shared;
        let listed = timeout(shared.patience(), shared.logs.existing()).await;
        let mut slots = match listed {
            Ok(Ok(slots)) => slots,
            Ok(Err(error)) => {
                error!(%error, "cannot list the slots of the group coordinator");
                return Err(error.answer());
            }
            Err(_) => return Err(GroupError::CoordinatorLoadInProgress),
        };
        // What is open now may be too young to be listed.
        slots.extend(
            shared
                .cells
                .iter()
                .enumerate()
                .filter(|(_, c)| c.with_open(|_| ()).is_some())
                .map(|(slot, _)| slot),
        );
        slots.retain(|slot| *slot < shared.cells.len());
        slots.sort_unstable();
        slots.dedup();
        let kicked: Vec<(usize, Result<(), GroupError>)> =
            slots.into_iter().map(|slot| (slot, shared.kick(slot))).collect();
        let mut cells = Vec::new();
        let mut failed = None;
        for (slot, kicked) in kicked {
            match kicked {
                Ok(()) => match shared.ready(slot).await {
                    Ok(cell) => cells.push(cell),
                    Err(error) => failed = failed.or(Some(error)),
                },
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(cells), Err)
    }

    /// Stops: no further requests, appends on their way finish (within `offsets.commit.timeout.ms`), everybody who
    /// waits is told to find the coordinator anew.
    pub async fn shutdown(&self) {
        self.shared.stop.send_replace(true);
        for cell in &self.shared.cells {
            let mut status = cell.status.lock();
            if matches!(*status, Status::Closed { .. }) {
                *status = Status::Stopped;
            }
        }
        let tasks = std::mem::take(&mut *self.shared.tasks.lock());
        for task in tasks {
            if let Err(error) = task.await {
                error!(%error, "a slot's task has failed");
            }
        }
    }

    /// Runs `f` on the loaded slot of a group and gives its effects to the slot.
    async fn run<T>(
        &self,
        group_id: &str,
        f: impl FnOnce(&mut SlotState, Now, &mut Effects) -> T,
    ) -> Result<T, GroupError> {
        let slot = slot_of(group_id, self.shared.cells.len());
        let mut f = Some(f);
        loop {
            let cell = self.shared.ready(slot).await?;
            let done = cell.with_open(|open| {
                let mut effects = Effects::new();
                let answer = f.take().map(|f| f(&mut open.machine, self.shared.now(), &mut effects));
                open.execute(effects);
                answer
            });
            // The slot may have been closed between the two; then it is opened again.
            if let Some(Some(answer)) = done {
                return Ok(answer);
            }
        }
    }

    /// As `run`, for an answer that comes later.
    async fn deferred(
        &self,
        slot: usize,
        f: impl FnOnce(&mut SlotState, Token, Now, &mut Effects),
    ) -> Result<oneshot::Receiver<Response>, GroupError> {
        let mut f = Some(f);
        loop {
            let cell = self.shared.ready(slot).await?;
            let waiting = cell.with_open(|open| {
                if open.is_overloaded() {
                    return Err(GroupError::CoordinatorNotAvailable);
                }
                let Some(f) = f.take() else { return Err(GroupError::UnknownServerError) };
                let (token, receiver) = open.wait();
                let mut effects = Effects::new();
                f(&mut open.machine, token, self.shared.now(), &mut effects);
                open.execute(effects);
                Ok(receiver)
            });
            if let Some(waiting) = waiting {
                return waiting;
            }
        }
    }

    fn slot_of(&self, group_id: &str) -> usize {
        slot_of(group_id, self.shared.cells.len())
    }

    /// JoinGroup. Answers when the rebalance lets it. Fills in `fresh_id`.
    pub async fn join_group(&self, mut request: JoinRequest) -> JoinResponse {
        request.fresh_id = Uuid::new_v4().to_string();
        let (slot, member_id) = (self.slot_of(&request.group_id), request.member_id.clone());
        let waiting = self
            .deferred(slot, |machine, token, now, effects| machine.join(request, token, now, effects))
            .await;
        match waiting {
            Ok(receiver) => match receiver.await {
                Ok(Response::Join(response)) => response,
                Ok(_) => JoinResponse::failed(&member_id, GroupError::UnknownServerError),
                Err(_) => JoinResponse::failed(&member_id, GroupError::NotCoordinator),
            },
            Err(error) => JoinResponse::failed(&member_id, error),
        }
    }

    /// SyncGroup. Answers when the leader's assignment is durable.
    pub async fn sync_group(&self, request: SyncRequest) -> SyncResponse {
        let slot = self.slot_of(&request.group_id);
        let waiting = self
            .deferred(slot, |machine, token, now, effects| machine.sync(request, token, now, effects))
            .await;
        match waiting {
            Ok(receiver) => match receiver.await {
                Ok(Response::Sync(response)) => response,
                Ok(_) => SyncResponse::failed(GroupError::UnknownServerError),
                Err(_) => SyncResponse::failed(GroupError::NotCoordinator),
            },
            Err(error) => SyncResponse::failed(error),
        }
    }

    /// Heartbeat.
    ///
    /// # Errors
    /// What the member has to be told.
    pub async fn heartbeat(&self, request: &HeartbeatRequest) -> Result<(), GroupError> {
        let answer = self
            .run(&request.group_id, |machine, now, effects| machine.heartbeat(request, now, effects))
            .await;
        match answer {
            Ok(answer) => answer,
            // A member need not know that its group is being loaded: its session starts anew anyway.
            Err(GroupError::CoordinatorLoadInProgress) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// LeaveGroup.
    pub async fn leave_group(&self, request: &LeaveRequest) -> LeaveResponse {
        self.run(&request.group_id, |machine, now, effects| machine.leave(request, now, effects))
            .await
            .unwrap_or_else(|error| LeaveResponse { error: Some(error), members: Vec::new() })
    }

    /// DescribeGroups, in the order asked for.
    pub async fn describe_groups(&self, group_ids: &[String]) -> Vec<DescribedGroup> {
        let mut described = Vec::with_capacity(group_ids.len().min(1_000));
        for group_id in group_ids {
            let group = self.run(group_id, |machine, _, _| machine.describe(group_id)).await;
            described.push(group.unwrap_or_else(|error| DescribedGroup {
                group_id: group_id.clone(),
                error: Some(error),
                state: "",
                found: false,
                protocol_type: String::new(),
                protocol: String::new(),
                members: Vec::new(),
            }));
        }
        described
    }

    /// ListGroups: all groups that this broker coordinates, sorted by slot and id. Filters as in
    /// [`SlotState::list`].
    ///
    /// # Errors
    /// A slot cannot be loaded; as in Kafka there is no partial answer.
    pub async fn list_groups(
        &self,
        states: &[String],
        types: &[String],
    ) -> Result<Vec<ListedGroup>, GroupError> {
        let mut groups = Vec::new();
        for cell in self.existing().await? {
            let listed = cell.with_open(|open| open.machine.list(states, types));
            groups.extend(listed.ok_or(GroupError::CoordinatorLoadInProgress)?);
        }
        Ok(groups)
    }
}
