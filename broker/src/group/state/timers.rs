//! Timers of a slot: at most one per key, fired in the order of their deadlines.
//!
//! Pure: nothing sleeps here. The driver asks for the next deadline and calls back when it has passed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// What a timer belongs to; arming one again replaces it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimerKey {
    /// The join phase of a group.
    Join(Arc<str>),
    /// The members of a group that have not yet sent SyncGroup.
    Sync(Arc<str>),
    /// The session of a member: group, member.
    Session(Arc<str>, Arc<str>),
}

/// What happens when a timer fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimerAction {
    /// End the initial delay of an empty group, or extend it by the time that remains.
    InitialJoin { delay_ms: u64, remaining_ms: u64 },
    /// End the join phase; whoever has not joined is out.
    CompleteJoin,
    /// Remove members that have not sent SyncGroup in this generation.
    ExpireSync { generation_id: i32 },
    /// Remove the member unless it waits for an answer.
    ExpireSession,
}

/// The armed timers. Deadlines are monotonic milliseconds.
#[derive(Debug, Default)]
pub struct Timers {
    armed: HashMap<TimerKey, (u64, TimerAction)>,
    order: BTreeSet<(u64, TimerKey)>,
}

impl Timers {
    /// Arms the timer of `key`, replacing the one that is armed.
    pub fn arm(&mut self, key: TimerKey, deadline_ms: u64, action: TimerAction) {
        if let Some((old, _)) = self.armed.insert(key.clone(), (deadline_ms, action)) {
            self.order.remove(&(old, key.clone()));
        }
        self.order.insert((deadline_ms, key));
    }

    /// Disarms the timer of `key`, if it is armed.
    pub fn cancel(&mut self, key: &TimerKey) {
        if let Some((deadline, _)) = self.armed.remove(key) {
            self.order.remove(&(deadline, key.clone()));
        }
    }

    /// The earliest deadline.
    pub fn next_deadline(&self) -> Option<u64> {
        self.order.first().map(|(deadline, _)| *deadline)
    }

    /// Takes the earliest timer that is due at `now_ms`.
    pub fn take_due(&mut self, now_ms: u64) -> Option<(TimerKey, TimerAction)> {
        if self.next_deadline()? > now_ms {
            return None;
        }
        let (_, key) = self.order.pop_first()?;
        let (_, action) = self.armed.remove(&key)?;
        Some((key, action))
    }
}
