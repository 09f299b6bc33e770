//! Logs in memory that delay and fail when told to.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use crate::group::log::*;
use crate::group::state::{Record, SlotSnapshot};

#[derive(Debug, Default, Clone)]
pub struct Stored {
    pub epoch: u64,
    pub snapshot: Option<Value>,
    pub entries: Vec<Value>,
}

/// The volume; lives longer than a coordinator.
#[derive(Default)]
pub struct Volume {
    pub slots: Mutex<BTreeMap<usize, Stored>>,
    pub held: watch::Sender<bool>,
    pub no_space: AtomicBool,
    pub poison: AtomicBool,
    pub large: AtomicBool,
    pub refuse_open: AtomicBool,
    pub snapshots: AtomicU32,
    pub closed: AtomicU32,
}

pub struct MemoryLogs(pub Arc<Volume>);

struct MemoryLog {
    volume: Arc<Volume>,
    slot: usize,
    epoch: u64,
}

impl MemoryLog {
    fn write(
        &self,
        change: impl FnOnce(&mut Stored) + Send + 'static,
    ) -> impl Future<Output = Result<(), GroupLogError>> + Send + 'static {
        let (volume, slot, epoch) = (Arc::clone(&self.volume), self.slot, self.epoch);
        async move {
            let mut held = volume.held.subscribe();
            held.wait_for(|held| !held).await.unwrap();
            if volume.no_space.load(Ordering::Relaxed) {
                return Err(GroupLogError::NoSpace { slot, reason: "full".to_owned() });
            }
            if volume.poison.load(Ordering::Relaxed) {
                return Err(GroupLogError::Poisoned { slot, reason: "told to fail".into() });
            }
            let mut slots = volume.slots.lock();
            let stored = slots.get_mut(&slot).unwrap();
            if stored.epoch != epoch {
                return Err(GroupLogError::Deposed { slot });
            }
            change(stored);
            Ok(())
        }
    }
}

impl GroupLog for MemoryLog {
    fn append(&self, records: &[Record]) -> LogFuture<()> {
        let entries: Vec<Value> =
            records.iter().map(|record| serde_json::to_value(record).unwrap()).collect();
        Box::pin(self.write(move |stored| stored.entries.extend(entries)))
    }

    fn confirm(&self) -> LogFuture<()> {
        let (slot, epoch) = (self.slot, self.epoch);
        let answer = match self.volume.slots.lock().get(&slot) {
            Some(stored) if stored.epoch == epoch => Ok(()),
            _ => Err(GroupLogError::Deposed { slot }),
        };
        Box::pin(std::future::ready(answer))
    }

    fn wants_snapshot(&self) -> bool {
        self.volume.large.load(Ordering::Relaxed)
    }

    fn snapshot(&self, state: SlotSnapshot) -> LogFuture<()> {
        let state = serde_json::to_value(state).unwrap();
        let volume = Arc::clone(&self.volume);
        Box::pin(self.write(move |stored| {
            volume.snapshots.fetch_add(1, Ordering::Relaxed);
            volume.large.store(false, Ordering::Relaxed);
            stored.snapshot = Some(state);
            stored.entries.clear();
        }))
    }

    fn close(&self) -> LogFuture<()> {
        self.volume.closed.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(()) })
    }
}

impl GroupLogs for MemoryLogs {
    fn existing(&self) -> LogFuture<Vec<usize>> {
        let slots = self.0.slots.lock().keys().copied().collect();
        Box::pin(async { Ok(slots) })
    }

    fn open(&self, slot: usize) -> LogFuture<OpenedLog> {
        let volume = Arc::clone(&self.0);
        Box::pin(async move {
            let mut held = volume.held.subscribe();
            held.wait_for(|held| !held).await.unwrap();
            if volume.refuse_open.load(Ordering::Relaxed) {
                return Err(GroupLogError::Unavailable { slot, reason: "told to fail".into() });
            }
            let mut slots = volume.slots.lock();
            let stored = slots.entry(slot).or_default();
            stored.epoch += 1;
            let log = MemoryLog { volume: Arc::clone(&volume), slot, epoch: stored.epoch };
            Ok(OpenedLog {
                log: Arc::new(log),
                snapshot: stored.snapshot.clone(),
                entries: stored.entries.clone(),
            })
        })
    }

    fn damage_hint(&self, _: usize) -> Option<String> {
        None
    }
}
