//! Failures that come again as often as clients try: said at once, then rarely.

use std::collections::HashMap;
use std::hash::Hash;
use std::path::Path;
use std::time::Duration;

use kaas_substrate::Substrate;
use parking_lot::Mutex;
use tokio::time::Instant;

/// How often a failure that goes on is said again.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// What has been said of the failures of each thing. Of a thing that fails, it is to be said at once that it does, again
/// when the reason changes, and otherwise once a minute. Any thread may call it; the lock is held for memory work only.
#[derive(Debug)]
pub struct Repeated<K> {
    said: Mutex<HashMap<K, Said>>,
}

#[derive(Debug)]
struct Said {
    reason: String,
    at: Instant,
    /// Failures since then.
    unsaid: u64,
}

impl<K> Default for Repeated<K> {
    fn default() -> Self {
        Self { said: Mutex::default() }
    }
}

impl<K: Eq + Hash> Repeated<K> {
    /// Takes note of a failure. `Some` if it is to be said now: how often it was met since it was said last, this time
    /// included. Reasons that differ in numbers only (an epoch, a time) are the same one.
    pub fn failed(&self, key: K, reason: &str) -> Option<u64> {
        let (reason, now) = (without_numbers(reason), Instant::now());
        let mut said = self.said.lock();
        let Some(last) = said.get_mut(&key) else {
            said.insert(key, Said { reason, at: now, unsaid: 0 });
            return Some(1);
        };
        last.unsaid += 1;
        let is_due = last.reason != reason || now.duration_since(last.at) >= AGAIN_AFTER;
        is_due.then(|| {
            let times = last.unsaid;
            *last = Said { reason, at: now, unsaid: 0 };
            times
        })
    }

    /// It works: the next failure is said at once.
    pub fn works(&self, key: &K) {
        self.said.lock().remove(key);
    }

    /// Forgets the things that exist no more.
    pub fn retain(&self, exists: impl Fn(&K) -> bool) {
        self.said.lock().retain(|key, _| exists(key));
    }
}

/// What to do about damage in a directory of the volume, in a line of the log.
pub fn verify_hint(substrate: &dyn Substrate, dir: &Path) -> String {
    format!("kaas-engine verify {}", substrate.root().join(dir).display())
}

fn without_numbers(reason: &str) -> String {
    reason.chars().filter(|char| !char.is_ascii_digit()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_said_at_once_then_once_a_minute_with_how_often() {
        let repeated = Repeated::default();
        assert_eq!(repeated.failed("a", "no manifest"), Some(1));
        for _ in 0..10 {
            tokio::time::advance(Duration::from_millis(250)).await;
            assert_eq!(repeated.failed("a", "no manifest"), None);
        }
        assert_eq!(repeated.failed("b", "no manifest"), Some(1), "each thing for itself");
        tokio::time::advance(AGAIN_AFTER).await;
        assert_eq!(repeated.failed("a", "no manifest"), Some(11));
        assert_eq!(repeated.failed("a", "no manifest"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn another_reason_is_said_at_once_and_another_number_is_none() {
        let repeated = Repeated::default();
        assert_eq!(repeated.failed("a", "deposed by epoch 7"), Some(1));
        assert_eq!(repeated.failed("a", "deposed by epoch 18"), None);
        assert_eq!(repeated.failed("a", "no manifest"), Some(2));
        assert_eq!(repeated.failed("a", "deposed by epoch 19"), Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_worked_meanwhile_fails_anew() {
        let repeated = Repeated::default();
        assert_eq!(repeated.failed("a", "no manifest"), Some(1));
        assert_eq!(repeated.failed("a", "no manifest"), None);
        repeated.works(&"a");
        assert_eq!(repeated.failed("a", "no manifest"), Some(1));
        repeated.retain(|_| false);
        assert_eq!(repeated.failed("a", "no manifest"), Some(1));
    }
}
