//! The rate at which all rounds together read and write.

use std::time::Duration;

use parking_lot::Mutex;

use crate::driver::Time;

/// A wait is cut into pieces of this length, so that a round can be ended meanwhile.
const PIECE: Duration = Duration::from_millis(100);

/// Makes rounds wait when they are ahead of their rate. For any number of threads.
#[derive(Debug)]
pub(crate) struct Throttle {
    bytes_per_second: Option<u64>,
    time: Time,
    /// When everything that was done so far is paid for.
    paid: Mutex<Duration>,
}

impl Throttle {
    pub(crate) fn new(bytes_per_second: Option<u64>, time: Time) -> Self {
        Self { bytes_per_second: bytes_per_second.map(|rate| rate.max(1)), time, paid: Mutex::default() }
    }

    /// Takes note of `bytes` that were read or written, and blocks until they are paid for, or `goes_on` says no.
    pub(crate) fn spent(&self, bytes: usize, goes_on: impl Fn() -> bool) {
        let Some(rate) = self.bytes_per_second else { return };
        let nanos = u128::try_from(bytes).unwrap_or(0) * 1_000_000_000 / u128::from(rate);
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let until = {
            let mut paid = self.paid.lock();
            *paid = (*paid).max(self.time.elapsed()).saturating_add(cost);
            *paid
        };
        while let Some(left) = until.checked_sub(self.time.elapsed()).filter(|left| !left.is_zero()) {
            if !goes_on() {
                return;
            }
            self.time.sleep(left.min(PIECE));
        }
    }
}
