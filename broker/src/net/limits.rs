//! How many connections there may be: in all, and from one address. Shared by all listeners; the limits may be
//! changed at any time, and hold for connections that come then.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The limits, and the connections that count towards them.
#[derive(Debug)]
pub struct ConnectionLimits {
    state: Mutex<State>,
    changed: Notify,
    ids: AtomicU64,
}

#[derive(Debug)]
struct State {
    max_connections: usize,
    max_connections_per_ip: usize,
    connections: usize,
    per_ip: HashMap<IpAddr, usize>,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self::new(usize::MAX, usize::MAX)
    }
}

impl ConnectionLimits {
    /// `max.connections` and `max.connections.per.ip`.
    pub fn new(max_connections: usize, max_connections_per_ip: usize) -> Self {
        let state = State { max_connections, max_connections_per_ip, connections: 0, per_ip: HashMap::new() };
        Self { state: Mutex::new(state), changed: Notify::new(), ids: AtomicU64::new(0) }
    }

    /// Changes the limits.
    pub fn set(&self, max_connections: usize, max_connections_per_ip: usize) {
        let mut state = self.state.lock();
        state.max_connections = max_connections;
        state.max_connections_per_ip = max_connections_per_ip;
        drop(state);
        self.changed.notify_waiters();
    }

    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.state.lock().connections
    }

    /// Waits until there is room for one more connection.
    pub(super) async fn room(&self) {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state.lock();
                if state.connections < state.max_connections {
                    return;
                }
            }
            changed.await;
        }
    }

    /// A place for a connection from `ip`; `None` if that address has too many.
    pub(super) fn take(self: &Arc<Self>, ip: IpAddr) -> Option<Slot> {
        let mut state = self.state.lock();
        let limit = state.max_connections_per_ip;
        let count = state.per_ip.entry(ip).or_default();
        if *count >= limit {
            if *count == 0 {
                state.per_ip.remove(&ip);
            }
            return None;
        }
        *count += 1;
        state.connections += 1;
        Some(Slot { ip, limits: Arc::clone(self) })
    }

    /// A number for a new connection.
    pub(super) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}

/// A connection's place among the limits; given back on drop.
#[derive(Debug)]
pub(super) struct Slot {
    ip: IpAddr,
    limits: Arc<ConnectionLimits>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.limits.state.lock();
        state.connections = state.connections.saturating_sub(1);
        if let Some(count) = state.per_ip.get_mut(&self.ip) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                state.per_ip.remove(&self.ip);
            }
        }
        drop(state);
        self.limits.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn places_are_limited_by_address_and_in_all_and_come_back() {
        let limits = Arc::new(ConnectionLimits::new(3, 2));
        let (one, two) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let first = limits.take(one).unwrap();
        let _second = limits.take(one).unwrap();
        assert!(limits.take(one).is_none());
        let _third = limits.take(two).unwrap();
        let waiting = Arc::clone(&limits);
        let waiter = tokio::spawn(async move { waiting.room().await });
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        drop(first);
        waiter.await.unwrap();
        assert!(limits.take(one).is_some());
    }

    #[tokio::test]
    async fn limits_may_be_raised_while_somebody_waits() {
        let limits = Arc::new(ConnectionLimits::new(0, 1));
        let waiting = Arc::clone(&limits);
        let waiter = tokio::spawn(async move { waiting.room().await });
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        limits.set(1, 1);
        waiter.await.unwrap();
        assert!(limits.state.lock().per_ip.is_empty());
    }
}
