//! One slot as the coordinator holds it: closed, opening, open, stopped; and what an open one consists of.
//!
//! The lock of a cell is held for memory work only. While a slot is open, one worker task owns its journal's
//! completions and timers; request tasks call the state machine under the lock and carry out its effects there,
//! so that appends are staged in the order in which the machine made them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::super::log::{GroupLog, GroupLogError, LogFuture};
use super::super::state::{Effect, Effects, GroupError, PersistId, Record, Response, SlotState, Token};

/// A slot.
pub(super) struct Cell {
    pub status: Mutex<Status>,
    /// Counts changes of the status.
    pub changed: watch::Sender<u64>,
}

/// Whether a slot is served.
pub(super) enum Status {
    /// Not loaded; with the reason and the time before which it is not tried again, if loading has failed.
    Closed { failed: Option<(GroupError, Instant)> },
    /// Being loaded.
    Opening,
    /// Served.
    Open(Box<Open>),
    /// Never served again: the process is stopping.
    Stopped,
}

impl Cell {
    pub fn new() -> Self {
        Self { status: Mutex::new(Status::Closed { failed: None }), changed: watch::Sender::new(0) }
    }

    pub fn set(&self, status: Status) {
        *self.status.lock() = status;
        self.announce();
    }

    pub fn announce(&self) {
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Runs `f` on the slot if it is open.
    pub fn with_open<T>(&self, f: impl FnOnce(&mut Open) -> T) -> Option<T> {
        match &mut *self.status.lock() {
            Status::Open(open) => Some(f(open)),
            _ => None,
        }
    }
}

/// An append with its place in the order.
pub(super) type Append = (PersistId, LogFuture<()>);

/// A slot that is served.
pub(super) struct Open {
    pub slot: usize,
    pub machine: SlotState,
    pub log: Arc<dyn GroupLog>,
    waiting: HashMap<Token, oneshot::Sender<Response>>,
    next_token: u64,
    appends: mpsc::UnboundedSender<Append>,
    /// While a snapshot is written, appends wait here; otherwise `None`.
    held: Option<VecDeque<(PersistId, Vec<Record>)>>,
    /// Number of appends that the machine has made; and that have completed.
    pub made: u64,
    pub completed: watch::Sender<u64>,
    pub entries_since_snapshot: u64,
    /// When the worker wakes by itself, in the machine's monotonic milliseconds.
    pub sleeping_until: Option<u64>,
    pub wake: Arc<Notify>,
    /// A final error of the log that somebody else than the worker has met.
    pub failure: Option<GroupLogError>,
}

impl Open {
    pub fn new(
        slot: usize,
        machine: SlotState,
        log: Arc<dyn GroupLog>,
        appends: mpsc::UnboundedSender<Append>,
    ) -> Self {
        Self {
            slot,
            machine,
            log,
            waiting: HashMap::new(),
            next_token: 0,
            appends,
            held: None,
            made: 0,
            completed: watch::Sender::new(0),
            entries_since_snapshot: 0,
            sleeping_until: None,
            wake: Arc::new(Notify::new()),
            failure: None,
        }
    }

    /// A token whose answer comes through the receiver.
    pub fn wait(&mut self) -> (Token, oneshot::Receiver<Response>) {
        let token = Token(self.next_token);
        self.next_token = self.next_token.wrapping_add(1);
        let (sender, receiver) = oneshot::channel();
        self.waiting.insert(token, sender);
        (token, receiver)
    }

    /// Whether `max_appends_in_flight` is reached.
    pub fn is_overloaded(&self) -> bool {
        self.machine.appends_in_flight() >= self.machine.config().max_appends_in_flight
    }

    /// Carries out what the machine asks for.
    pub fn execute(&mut self, effects: Effects) {
        for effect in effects {
            match effect {
                Effect::Reply { token, response } => {
                    if let Some(sender) = self.waiting.remove(&token) {
                        // Whoever asked may be gone; then nobody needs the answer.
                        let _ = sender.send(response);
                    }
                }
                Effect::Persist { id, records } => self.append(id, records),
            }
        }
        let deadline = self.machine.next_deadline();
        if deadline.is_some_and(|deadline| self.sleeping_until.is_none_or(|until| deadline < until)) {
            self.wake.notify_one();
        }
    }

    fn append(&mut self, id: PersistId, records: Vec<Record>) {
        self.made = self.made.saturating_add(1);
        match &mut self.held {
            Some(held) => held.push_back((id, records)),
            None => self.stage(id, &records),
        }
    }

    fn stage(&mut self, id: PersistId, records: &[Record]) {
        let count = u64::try_from(records.len()).unwrap_or(u64::MAX);
        self.entries_since_snapshot = self.entries_since_snapshot.saturating_add(count);
        // Without a worker the slot is being closed, and everybody who waits is told so.
        let _ = self.appends.send((id, self.log.append(records)));
    }

    /// Keeps appends back until [`Open::release`].
    pub fn hold(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Whether everything that was handed to the log has completed.
    pub fn log_is_quiet(&self) -> bool {
        let held = self.held.as_ref().map_or(0, VecDeque::len);
        self.machine.appends_in_flight() == held
    }

    /// Stages what was kept back.
    pub fn release(&mut self) {
        for (id, records) in self.held.take().unwrap_or_default() {
            self.stage(id, &records);
        }
    }
}
