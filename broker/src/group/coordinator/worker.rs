//! The task of an open slot: hears of completed appends in order, fires timers, writes snapshots, looks for expired
//! offsets, and closes the slot when its log fails or the process stops.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use super::super::log::{GroupLog, GroupLogError, LogFuture};
use super::super::state::{Effects, GroupError, Now, PersistId, SlotState};
use super::cell::{Append, Cell, Open, Status};
use super::{Failure, REOPEN_AFTER, Shared};

pub(super) struct Worker {
    shared: Arc<Shared>,
    slot: usize,
    log: Arc<dyn GroupLog>,
    appends: mpsc::UnboundedReceiver<Append>,
    wake: Arc<Notify>,
    stop: watch::Receiver<bool>,
    next_check: Instant,
    next_confirm: Instant,
    no_snapshot_before: Instant,
}

/// How long a snapshot that could not be written is put off.
const SNAPSHOT_AGAIN_AFTER: Duration = Duration::from_secs(10);

impl Worker {
    pub fn new(
        shared: Arc<Shared>,
        open: &Open,
        appends: mpsc::UnboundedReceiver<Append>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let next_check = Instant::now() + shared.check_interval();
        Self {
            slot: open.slot,
            log: Arc::clone(&open.log),
            wake: Arc::clone(&open.wake),
            shared,
            appends,
            stop,
            next_check,
            next_confirm: Instant::now(),
            no_snapshot_before: Instant::now(),
        }
    }

    pub async fn run(mut self) {
        let mut append: Option<Append> = None;
        let mut snapshot: Option<LogFuture<()>> = None;
        let mut confirm: Option<LogFuture<()>> = None;
        loop {
            if let Some(error) = self.with(|open| open.failure.take()).flatten() {
                return self.failed(error).await;
            }
            if confirm.is_none() {
                confirm = self.confirm_if_due();
            }
            if snapshot.is_none() {
                snapshot = self.snapshot_if_due();
            }
            let deadline = self.sleep(confirm.is_none());
            tokio::select! {
                outcome = optional(append.as_mut().map(|(_, append)| append)) => {
                    if let Some((id, _)) = append.take()
                        && let Err(error) = self.completed(id, outcome)
                    {
                        return self.failed(error).await;
                    }
                }
                next = self.appends.recv(), if append.is_none() => match next {
                    Some(next) => append = Some(next),
                    None => return,
                },
                outcome = optional(snapshot.as_mut()) => {
                    snapshot = None;
                    if let Err(error) = self.snapshot_written(outcome) {
                        return self.failed(error).await;
                    }
                }
                outcome = optional(confirm.as_mut()) => {
                    confirm = None;
                    if let Err(error) = outcome
                        && error.is_final()
                    {
                        return self.failed(error).await;
                    }
                }
                () = sleep_until(deadline) => self.fire(),
                () = self.wake.notified() => {}
                _ = self.stop.changed() => return self.stop(append, snapshot).await,
            }
        }
    }

    fn cell(&self) -> Option<&Cell> {
        self.shared.cells.get(self.slot)
    }

    fn with<T>(&self, f: impl FnOnce(&mut Open) -> T) -> Option<T> {
        self.cell().and_then(|cell| cell.with_open(f))
    }

    /// Runs the machine and carries out what it asks for.
    fn run_machine(&self, f: impl FnOnce(&mut SlotState, Now, &mut Effects)) {
        let now = self.shared.now();
        self.with(|open| {
            let mut effects = Effects::new();
            f(&mut open.machine, now, &mut effects);
            open.execute(effects);
        });
    }

    /// When to wake next; tells the slot, so that an earlier timer wakes us.
    fn sleep(&self, may_confirm: bool) -> Instant {
        let deadline = self.with(|open| {
            open.sleeping_until = open.machine.next_deadline();
            open.sleeping_until
        });
        let deadline = deadline.flatten().map(|ms| self.shared.instant(ms));
        let mut own = self.next_check;
        if may_confirm {
            own = own.min(self.next_confirm);
        }
        deadline.map_or(own, |deadline| deadline.min(own))
    }

    /// Asks from time to time whether this broker still leads the slot: members and readers must not be served by a
    /// coordinator that has been replaced without noticing.
    fn confirm_if_due(&mut self) -> Option<LogFuture<()>> {
        let now = Instant::now();
        if now < self.next_confirm {
            return None;
        }
        self.next_confirm = now + Duration::from_millis(self.shared.config.leadership_check_interval_ms);
        let any = self.with(|open| open.machine.has_groups()).unwrap_or(false);
        any.then(|| self.log.confirm())
    }

    fn fire(&mut self) {
        self.run_machine(SlotState::fire);
        if Instant::now() >= self.next_check {
            self.next_check = Instant::now() + self.shared.check_interval();
            self.run_machine(SlotState::expire_offsets);
        }
    }

    /// Tells the machine how an append has ended. An error is final.
    fn completed(&self, id: PersistId, outcome: Result<(), GroupLogError>) -> Result<(), GroupLogError> {
        let outcome = match outcome {
            Err(error) if error.is_final() => return Err(error),
            Err(error) => {
                warn!(slot = self.slot, %error, "could not store group state; clients will retry");
                Err(error.answer())
            }
            Ok(()) => Ok(()),
        };
        self.run_machine(|machine, now, effects| machine.persisted(id, outcome, now, effects));
        self.with(|open| open.completed.send_modify(|count| *count = count.saturating_add(1)));
        Ok(())
    }

    /// Begins a snapshot when enough entries have gathered and the log is quiet; holds appends back for it.
    fn snapshot_if_due(&self) -> Option<LogFuture<()>> {
        if Instant::now() < self.no_snapshot_before {
            return None;
        }
        let state = self.with(|open| {
            let many = open.entries_since_snapshot >= open.machine.config().snapshot_after_entries;
            if !many && !open.log.wants_snapshot() {
                return None;
            }
            open.hold();
            open.log_is_quiet().then(|| open.machine.snapshot())
        });
        state.flatten().map(|state| self.log.snapshot(state))
    }

    fn snapshot_written(&mut self, outcome: Result<(), GroupLogError>) -> Result<(), GroupLogError> {
        match outcome {
            Err(error) if error.is_final() => return Err(error),
            Err(error) => {
                warn!(slot = self.slot, %error, "could not write a snapshot of the groups; tried again later");
                self.no_snapshot_before = Instant::now() + SNAPSHOT_AGAIN_AFTER;
            }
            Ok(()) => {
                self.with(|open| open.entries_since_snapshot = 0);
            }
        }
        self.with(Open::release);
        Ok(())
    }

    /// The log is of no further use: everybody who waits is told, and the next request opens the slot anew.
    async fn failed(self, error: GroupLogError) {
        if let Some(times) = self.shared.failures.failed((self.slot, Failure::Serving), &error.to_string()) {
            warn!(slot = self.slot, %error, times, "the slot's log has failed; its groups are unloaded");
        }
        let answer = error.answer();
        self.unload(answer, Status::Closed { failed: Some((answer, Instant::now() + REOPEN_AFTER)) });
        // The log has failed already; what its closing says adds nothing.
        let _ = self.log.close().await;
    }

    fn unload(&self, why: GroupError, next: Status) {
        let Some(cell) = self.cell() else { return };
        let was = std::mem::replace(&mut *cell.status.lock(), next);
        cell.announce();
        if let Status::Open(mut open) = was {
            let mut effects = Effects::new();
            open.machine.unload(why, self.shared.now(), &mut effects);
            open.execute(effects);
        }
    }

    /// Lets appends on their way finish, within a limit, answers everybody, leaves a snapshot.
    async fn stop(mut self, append: Option<Append>, snapshot: Option<LogFuture<()>>) {
        let limit = Duration::from_millis(self.shared.config.offsets_commit_timeout_ms);
        let quiet = match timeout(limit, self.drain(append, snapshot)).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                warn!(slot = self.slot, %error, "the slot's log has failed while stopping");
                false
            }
            Err(_) => {
                warn!(slot = self.slot, "appends have not finished while stopping");
                false
            }
        };
        let state = self
            .with(|open| (quiet && open.entries_since_snapshot > 0).then(|| open.machine.snapshot()))
            .flatten();
        self.unload(GroupError::NotCoordinator, Status::Stopped);
        if let Some(state) = state {
            let written = timeout(limit, self.log.snapshot(state)).await;
            if !matches!(written, Ok(Ok(()))) {
                info!(slot = self.slot, "no snapshot while stopping; the journal will be replayed");
            }
        }
        let _ = timeout(limit, self.log.close()).await;
    }

    async fn drain(
        &mut self,
        append: Option<Append>,
        snapshot: Option<LogFuture<()>>,
    ) -> Result<(), GroupLogError> {
        if let Some((id, append)) = append {
            let outcome = append.await;
            self.completed(id, outcome)?;
        }
        if let Some(snapshot) = snapshot {
            let outcome = snapshot.await;
            self.snapshot_written(outcome)?;
        }
        self.with(Open::release);
        while let Ok((id, append)) = self.appends.try_recv() {
            let outcome = append.await;
            self.completed(id, outcome)?;
        }
        Ok(())
    }
}

/// The future's outcome, or never.
async fn optional(future: Option<&mut LogFuture<()>>) -> Result<(), GroupLogError> {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
