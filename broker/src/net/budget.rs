//! The bytes of requests that all connections together may hold.
//!
//! A frame is reserved as a whole before its body is read, so two half-read frames never wait for each other;
//! a frame larger than the whole budget reserves all of it. Waiters are served in order. May be called from
//! any task.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::BoxFuture;

/// A bounded number of bytes.
#[derive(Debug, Clone)]
pub struct Budget {
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
        let total = u32::try_from(total_bytes).unwrap_or(u32::MAX).max(1);
        Self { semaphore: Arc::new(Semaphore::new(total as usize)), total }
    }

    /// Reserves `bytes` if they are free now and nobody waits.
    pub fn try_reserve(&self, bytes: usize) -> Option<Reservation> {
        let permit = Arc::clone(&self.semaphore).try_acquire_many_owned(self.amount(bytes)).ok()?;
        Some(Reservation { _permit: permit })
    }

    /// Reserves `bytes` when they become free. `None` never happens while the budget is alive.
    pub fn reserve(&self, bytes: usize) -> BoxFuture<Option<Reservation>> {
        let semaphore = Arc::clone(&self.semaphore);
        let amount = self.amount(bytes);
        Box::pin(async move {
            let permit = semaphore.acquire_many_owned(amount).await.ok()?;
            Some(Reservation { _permit: permit })
        })
    }

    /// Bytes that are free now.
    pub fn free_bytes(&self) -> usize {
        self.semaphore.available_permits()
    }

    fn amount(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_frame_larger_than_the_budget_takes_all_of_it_and_gives_it_back() {
        let budget = Budget::new(100);
        let all = budget.reserve(5_000).await.unwrap();
        assert_eq!(budget.free_bytes(), 0);
        assert!(budget.try_reserve(1).is_none());
        drop(all);
        assert_eq!(budget.free_bytes(), 100);
    }

    #[tokio::test]
    async fn a_waiter_is_served_when_bytes_come_back() {
        let budget = Budget::new(10);
        let held = budget.try_reserve(8).unwrap();
        let waiter = tokio::spawn(budget.reserve(5));
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        drop(held);
        assert!(waiter.await.unwrap().is_some());
    }
}
