//! Waiting until any of several partitions has moved on: what a parked fetch does.

use std::sync::Arc;

use kaas_engine::{Partition, WatchGuard, Watcher};
use tokio::sync::Notify;

/// Woken by any of the partitions it watches. Register first and look at the partitions afterwards; a change in
/// between ends the next wait at once.
#[derive(Debug, Default)]
pub struct Wake {
    notify: Arc<Bell>,
    guards: Vec<WatchGuard>,
}

#[derive(Debug, Default)]
struct Bell(Notify);

impl Watcher for Bell {
    fn advanced(&self) {
        self.0.notify_one();
    }
}

impl Wake {
    /// Has `partition` wake this from now on, until it is dropped.
    pub fn watch(&mut self, partition: &Arc<Partition>) {
        let bell: Arc<dyn Watcher> = Arc::clone(&self.notify) as Arc<dyn Watcher>;
        self.guards.push(partition.watch(bell));
    }

    /// Waits until a partition has changed since the last wait.
    pub async fn wait(&self) {
        self.notify.0.notified().await;
    }
}
