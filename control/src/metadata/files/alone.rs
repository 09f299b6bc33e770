//! Changes of one topic run one at a time; those of different topics at once.

use std::collections::HashSet;

use parking_lot::{Condvar, Mutex};

/// Keys that are being changed. The lock is held for memory work only; whoever has to wait for another change sleeps
/// on the condition. Callers are I/O threads, whose number bounds the waiters.
#[derive(Debug, Default)]
pub(super) struct OneAtATime {
    busy: Mutex<HashSet<String>>,
    left: Condvar,
}

/// The right to change what stands behind one key, until it is dropped.
#[derive(Debug)]
pub(super) struct Alone<'a> {
    all: &'a OneAtATime,
    key: String,
}

impl OneAtATime {
    /// Waits until nobody else changes what stands behind `key`.
    pub fn enter(&self, key: String) -> Alone<'_> {
        let mut busy = self.busy.lock();
        while busy.contains(&key) {
            self.left.wait(&mut busy);
        }
        busy.insert(key.clone());
        drop(busy);
        Alone { all: self, key }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.all.busy.lock().remove(&self.key);
        self.all.left.notify_all();
    }
}
