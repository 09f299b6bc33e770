//! Who is told of changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::super::{MetadataWatcher, Subscription};

/// The registered watchers; as many as the process has parts that subscribe.
#[derive(Default)]
pub(super) struct Watchers {
    next: AtomicU64,
    registered: Mutex<Vec<(u64, Arc<dyn MetadataWatcher>)>>,
}

impl Watchers {
    pub fn subscribe(this: &Arc<Self>, watcher: Arc<dyn MetadataWatcher>) -> Subscription {
        let key = this.next.fetch_add(1, Ordering::Relaxed);
        this.registered.lock().push((key, watcher));
        let watchers = Arc::clone(this);
        let unsubscribe = move || watchers.registered.lock().retain(|(other, _)| *other != key);
        Subscription { unsubscribe: Some(Box::new(unsubscribe)) }
    }

    /// Calls every watcher, without the lock.
    pub fn notify(&self) {
        let watchers: Vec<_> =
            self.registered.lock().iter().map(|(_, watcher)| Arc::clone(watcher)).collect();
        for watcher in watchers {
            watcher.changed();
        }
    }
}
