//! Wall-clock time as an input, so that retention and time-based rolls can be tested without waiting.
//!
//! No safety property depends on what a clock says.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::types::Timestamp;

/// Where the engine learns what time it is.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Milliseconds since 1970 UTC.
    fn now(&self) -> Timestamp;
}

/// The system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX))
    }
}

/// A clock that stands still until it is told otherwise; for tests and simulations.
#[derive(Debug)]
pub struct ManualClock(Mutex<Timestamp>);

impl ManualClock {
    /// A clock that says `now`.
    pub fn new(now: Timestamp) -> Self {
        Self(Mutex::new(now))
    }

    /// Moves the clock on by `ms` milliseconds.
    pub fn advance_ms(&self, ms: i64) {
        let mut now = self.0.lock();
        now.0 = now.0.saturating_add(ms);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}
