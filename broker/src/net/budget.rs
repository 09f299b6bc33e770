//! The bytes of requests that all connections together may hold.
//!
//! A frame is reserved as a whole before its body is read, so two half-read frames never wait for each other;
//! a frame larger than the whole budget reserves all of it. Waiters are served in order. Small frames have a share
//! of their own, so that heartbeats do not wait behind megabytes of records. May be called from any task.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::BoxFuture;

/// Largest frame that the share for small ones serves.
const SMALL_FRAME_BYTES: usize = 16 << 10;
/// Part of the budget that is set aside for small frames.
const SMALL_SHARE: u32 = 8;

/// A bounded number of bytes.
#[derive(Debug, Clone)]
pub struct Budget {
    small: Share,
    large: Share,
}

#[derive(Debug, Clone)]
struct Share {
    semaphore: Arc<Semaphore>,
    total: u32,
}

/// Reserved bytes; given back on drop.
#[derive(Debug)]
pub struct Reservation {
    _permit: OwnedSemaphorePermit,
}

impl Budget {
    /// A budget of `total_bytes`, at most 4 GiB.
    pub fn new(total_bytes: usize) -> Self {
        let total = u32::try_from(total_bytes).unwrap_or(u32::MAX);
        let small = total / SMALL_SHARE;
        Self { small: Share::new(small), large: Share::new(total.saturating_sub(small)) }
    }

    /// Reserves `bytes` if they are free now and nobody waits.
    pub fn try_reserve(&self, bytes: usize) -> Option<Reservation> {
        let share = self.share(bytes);
        let permit = Arc::clone(&share.semaphore).try_acquire_many_owned(share.amount(bytes)).ok()?;
        Some(Reservation { _permit: permit })
    }

    /// Reserves `bytes` when they become free. `None` never happens while the budget is alive.
    pub fn reserve(&self, bytes: usize) -> BoxFuture<Option<Reservation>> {
        let share = self.share(bytes);
        let semaphore = Arc::clone(&share.semaphore);
        let amount = share.amount(bytes);
        Box::pin(async move {
            let permit = semaphore.acquire_many_owned(amount).await.ok()?;
            Some(Reservation { _permit: permit })
        })
    }

    /// Bytes that are free now.
    pub fn free_bytes(&self) -> usize {
        self.small.semaphore.available_permits().saturating_add(self.large.semaphore.available_permits())
    }

    fn share(&self, bytes: usize) -> &Share {
        if bytes <= SMALL_FRAME_BYTES { &self.small } else { &self.large }
    }
}

impl Share {
    fn new(total: u32) -> Self {
        let total = total.max(1);
        Self { semaphore: Arc::new(Semaphore::new(usize::try_from(total).unwrap_or(1))), total }
    }

    fn amount(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[tokio::test]
    async fn a_frame_larger_than_the_budget_takes_all_of_it_and_gives_it_back() {
        let budget = Budget::new(8 * MIB);
        let all = budget.reserve(500 * MIB).await.unwrap();
        assert_eq!(budget.free_bytes(), MIB, "all but the share for small frames");
        assert!(budget.try_reserve(MIB).is_none());
        drop(all);
        assert_eq!(budget.free_bytes(), 8 * MIB);
    }

    #[tokio::test]
    async fn a_waiter_is_served_when_bytes_come_back_and_small_frames_do_not_wait_behind_it() {
        let budget = Budget::new(8 * MIB);
        let held = budget.try_reserve(5 * MIB).unwrap();
        let waiter = tokio::spawn(budget.reserve(4 * MIB));
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        assert!(budget.try_reserve(MIB).is_none(), "nobody overtakes it");
        assert!(budget.try_reserve(100).is_some());
        drop(held);
        assert!(waiter.await.unwrap().is_some());
    }
}
