//! The last batches of a partition, kept in memory so that consumers at the tail cost no system call.
//!
//! Batches enter once they are written and are read only below the high watermark. The whole engine shares one
//! budget; a partition over it keeps a small share. Called under a short lock, memory work only.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::settings::EngineSettings;
use crate::sync::AtomicUsize;
use crate::types::{Offset, Timestamp};

/// Bytes of all tails of an engine.
#[derive(Debug, Default)]
pub(crate) struct TailBudget(AtomicUsize);

impl TailBudget {
    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A batch as it stands in the log: the stamped header, and the body as it came from the producer.
#[derive(Debug, Clone)]
pub(crate) struct TailBatch {
    pub(crate) base_offset: Offset,
    /// Exclusive.
    pub(crate) end_offset: Offset,
    pub(crate) header: Bytes,
    pub(crate) body: Bytes,
}

impl TailBatch {
    pub(crate) fn bytes(&self) -> usize {
        self.header.len() + self.body.len()
    }
}

/// The tail of one partition.
#[derive(Debug)]
pub(crate) struct Tail {
    batches: VecDeque<TailBatch>,
    bytes: usize,
    last_append: Timestamp,
    budget: Arc<TailBudget>,
}

impl Tail {
    pub(crate) fn new(budget: Arc<TailBudget>) -> Self {
        Self { batches: VecDeque::new(), bytes: 0, last_append: Timestamp::NONE, budget }
    }

    /// Adds batches behind the ones it has and drops old ones until it is within its bounds again.
    pub(crate) fn push(
        &mut self,
        batches: impl Iterator<Item = TailBatch>,
        now: Timestamp,
        settings: &EngineSettings,
    ) {
        self.last_append = now;
        for batch in batches {
            if self.batches.back().is_some_and(|last| last.end_offset != batch.base_offset) {
                self.clear();
            }
            self.bytes += batch.bytes();
            self.budget.0.fetch_add(batch.bytes(), Ordering::Relaxed);
            self.batches.push_back(batch);
        }
        while self.bytes > settings.tail_bytes_max && self.pop_front() {}
        while self.bytes > settings.tail_bytes_min
            && self.budget.bytes() > settings.tail_total_bytes_max
            && self.pop_front()
        {}
    }

    fn pop_front(&mut self) -> bool {
        let Some(batch) = self.batches.pop_front() else { return false };
        self.bytes -= batch.bytes();
        self.budget.0.fetch_sub(batch.bytes(), Ordering::Relaxed);
        true
    }

    /// Forgets what has been compacted meanwhile: the batches that end at `end` or before.
    pub(crate) fn forget_below(&mut self, end: Offset) {
        while self.batches.front().is_some_and(|first| first.end_offset <= end) && self.pop_front() {}
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.budget.0.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = 0;
        self.batches = VecDeque::new();
    }

    /// Forgets everything if nothing was appended for `idle_ms`.
    pub(crate) fn clear_if_idle(&mut self, now: Timestamp, idle_ms: i64) {
        if !self.batches.is_empty() && now.0.saturating_sub(self.last_append.0) >= idle_ms {
            self.clear();
        }
    }

    /// Whole batches from the one that holds `from` on, below `limit`: as many as fit into `max_bytes`, and the
    /// first one in any case if `at_least_one`. `None` if the tail does not reach back to `from`.
    pub(crate) fn read(
        &self,
        from: Offset,
        limit: Offset,
        max_bytes: usize,
        at_least_one: bool,
    ) -> Option<Vec<TailBatch>> {
        if self.batches.front().is_none_or(|first| from < first.base_offset) {
            return None;
        }
        let start = self.batches.partition_point(|batch| batch.end_offset <= from);
        let mut taken = Vec::new();
        let mut bytes = 0;
        for batch in self.batches.range(start..).take_while(|batch| batch.end_offset <= limit) {
            let first = taken.is_empty() && at_least_one;
            if bytes + batch.bytes() > max_bytes && !first {
                break;
            }
            bytes += batch.bytes();
            taken.push(batch.clone());
        }
        Some(taken)
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(base: i64, count: i64, bytes: usize) -> TailBatch {
        TailBatch {
            base_offset: Offset(base),
            end_offset: Offset(base + count),
            header: Bytes::from(vec![0; 61]),
            body: Bytes::from(vec![0; bytes - 61]),
        }
    }

    fn settings() -> EngineSettings {
        EngineSettings {
            tail_bytes_max: 1000,
            tail_total_bytes_max: 1500,
            tail_bytes_min: 200,
            ..EngineSettings::default()
        }
    }

    fn bases(read: Option<Vec<TailBatch>>) -> Option<Vec<i64>> {
        read.map(|batches| batches.iter().map(|batch| batch.base_offset.0).collect())
    }

    #[test]
    fn reads_whole_batches_below_the_limit() {
        let mut tail = Tail::new(Arc::default());
        tail.push(
            [batch(10, 5, 100), batch(15, 5, 100), batch(20, 5, 100)].into_iter(),
            Timestamp(0),
            &settings(),
        );
        assert_eq!(bases(tail.read(Offset(9), Offset(25), 1000, true)), None);
        assert_eq!(bases(tail.read(Offset(10), Offset(25), 1000, true)), Some(vec![10, 15, 20]));
        assert_eq!(bases(tail.read(Offset(17), Offset(25), 1000, true)), Some(vec![15, 20]));
        assert_eq!(bases(tail.read(Offset(17), Offset(20), 1000, true)), Some(vec![15]));
        assert_eq!(bases(tail.read(Offset(10), Offset(25), 250, true)), Some(vec![10, 15]));
        assert_eq!(bases(tail.read(Offset(10), Offset(25), 50, true)), Some(vec![10]));
        assert_eq!(bases(tail.read(Offset(10), Offset(25), 50, false)), Some(vec![]));
        assert_eq!(bases(tail.read(Offset(25), Offset(25), 50, true)), Some(vec![]));
    }

    #[test]
    fn keeps_within_its_own_and_the_shared_bound() {
        let budget = Arc::new(TailBudget::default());
        let mut first = Tail::new(Arc::clone(&budget));
        let mut second = Tail::new(Arc::clone(&budget));
        first.push((0..20).map(|n| batch(n, 1, 100)), Timestamp(0), &settings());
        assert_eq!(budget.bytes(), 1000);
        second.push((0..20).map(|n| batch(n, 1, 100)), Timestamp(0), &settings());
        assert_eq!(
            budget.bytes(),
            1500,
            "the second one is over the shared bound and keeps what is left of it"
        );
        first.push((20..40).map(|n| batch(n, 1, 100)), Timestamp(0), &settings());
        assert_eq!(budget.bytes(), 1500);
        drop(second);
        assert_eq!(budget.bytes(), 1000);
        first.clear_if_idle(Timestamp(5), 10);
        assert_eq!(budget.bytes(), 1000);
        first.clear_if_idle(Timestamp(10), 10);
        assert_eq!(budget.bytes(), 0);
        assert_eq!(bases(first.read(Offset(19), Offset(20), 1000, true)), None);
    }

    #[test]
    fn a_gap_empties_it_first() {
        let mut tail = Tail::new(Arc::default());
        tail.push([batch(0, 5, 100)].into_iter(), Timestamp(0), &settings());
        tail.push([batch(7, 5, 100)].into_iter(), Timestamp(0), &settings());
        assert_eq!(bases(tail.read(Offset(0), Offset(12), 1000, true)), None);
        assert_eq!(bases(tail.read(Offset(7), Offset(12), 1000, true)), Some(vec![7]));
    }
}
