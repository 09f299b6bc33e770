//! Telling others that a partition has moved on: fetches that wait for records, metrics.

use std::fmt;
use std::sync::{Arc, Weak};

use super::partition::Partition;
use crate::sync::Mutex;

/// Is told, on an I/O thread or the thread that changed the state, whenever the high watermark or the state of a
/// partition has changed. Must be quick and must not block.
pub trait Watcher: Send + Sync {
    /// Something has changed; ask [`Partition::status`].
    fn advanced(&self);
}

/// The watchers of a partition.
#[derive(Default)]
pub(crate) struct Watchers(Mutex<Registered>);

#[derive(Default)]
struct Registered {
    next_id: u64,
    watchers: Vec<(u64, Arc<dyn Watcher>)>,
}

/// Keeps a watcher registered until it is dropped.
pub struct WatchGuard {
    partition: Weak<Partition>,
    id: u64,
}

impl Watchers {
    pub(crate) fn notify(&self) {
        let watchers: Vec<_> = {
            let registered = self.0.lock();
            registered.watchers.iter().map(|(_, watcher)| Arc::clone(watcher)).collect()
        };
        for watcher in watchers {
            watcher.advanced();
        }
    }
}

impl Partition {
    /// Registers a watcher. Register first and look at the status afterwards, or an advance in between is missed.
    pub fn watch(self: &Arc<Self>, watcher: Arc<dyn Watcher>) -> WatchGuard {
        let mut registered = self.watchers.0.lock();
        registered.next_id += 1;
        let id = registered.next_id;
        registered.watchers.push((id, watcher));
        WatchGuard { partition: Arc::downgrade(self), id }
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        let Some(partition) = self.partition.upgrade() else { return };
        let mut registered = partition.watchers.0.lock();
        if let Some(at) = registered.watchers.iter().position(|(id, _)| *id == self.id) {
            registered.watchers.swap_remove(at);
        }
    }
}

impl fmt::Debug for WatchGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchGuard").field("id", &self.id).finish_non_exhaustive()
    }
}
