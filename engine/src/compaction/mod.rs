//! Log compaction: of every key, the newest record stays (KIP-58, KIP-354, KIP-534). Kafka's `LogCleaner` is the
//! specification.
//!
//! A round ([`Partition::compact_now`]) reads the part of the log that is not compacted yet, notes the newest offset of
//! each key in a map of bounded size ([`offset_map`]), and copies every closed segment from the beginning of the log to
//! the end of what the map covers, without the records that the map makes obsolete ([`filter`]). Neighbours that have
//! become small are copied into one ([`plan`]). Offsets, timestamps and leader epochs stay as they are.
//!
//! # Who does what
//!
//! The round runs on the caller's thread, beside appends and reads, and holds no lock while it reads or writes: its
//! inputs are closed segments, which nobody changes, and its outputs are files under names that nobody else uses
//! ([`crate::SegmentName`], the generation). Only the exchange of a finished output for its inputs is done by the
//! partition's worker, in the order of the house: outputs durable, the manifest that names them durable, fence, unlink
//! ([`swap`]). What a crash or a deposition leaves behind is either in no manifest, so garbage, or replaces its
//! inputs in all of them.
//!
//! A round that fails leaves the log as it is, and the partition serves on. It is not tried again for a while
//! ([`CleanerSettings::retry_ms`]).
//!
//! [`Partition::compact_now`]: crate::Partition::compact_now

mod filter;
mod offset_map;
mod output;
mod plan;
mod read;
mod round;
pub(crate) mod swap;
mod throttle;
mod transactions;

use parking_lot::Mutex;

pub use plan::Dirtiness;
pub use round::Compacted;
pub(crate) use throttle::Throttle;

/// Bounds of compaction, shared by all partitions of an engine. Named as Kafka's `log.cleaner.*`.
#[derive(Debug, Clone, PartialEq)]
pub struct CleanerSettings {
    /// Rounds that run at once, at least 1. The caller keeps to it; it is what the buffers and the map are divided by.
    pub threads: usize,
    /// Bytes for the maps of keys of all rounds that run at once (`dedupe.buffer.size`).
    pub dedupe_buffer_bytes: usize,
    /// How full a map may become, above 0 and at most 1 (`io.buffer.load.factor`).
    pub load_factor: f64,
    /// Bytes for reading and writing of all rounds that run at once (`io.buffer.size`). A batch that is larger is held
    /// as a whole all the same.
    pub io_buffer_bytes: usize,
    /// Bytes that all rounds together read and write in a second (`io.max.bytes.per.second`); `None`: no limit.
    pub max_bytes_per_second: Option<u64>,
    /// How long a partition is left alone after a round that failed, in milliseconds.
    pub retry_ms: u64,
}

impl Default for CleanerSettings {
    /// Kafka's defaults; ten minutes after a failure.
    fn default() -> Self {
        Self {
            threads: 1,
            dedupe_buffer_bytes: 128 << 20,
            load_factor: 0.9,
            io_buffer_bytes: 512 << 10,
            max_bytes_per_second: None,
            retry_ms: 600_000,
        }
    }
}

impl CleanerSettings {
    /// Bytes of one round's map.
    pub(crate) fn map_bytes(&self) -> usize {
        self.dedupe_buffer_bytes / self.threads.max(1)
    }

    /// Bytes of one round's buffer for reading, and as many for writing.
    pub(crate) fn buffer_bytes(&self) -> usize {
        (self.io_buffer_bytes / self.threads.max(1) / 2).max(4 << 10)
    }
}

/// What a partition knows about its compaction.
#[derive(Debug, Default)]
pub(crate) struct CleanerState(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    running: bool,
    /// After a failure: when it may be tried again, in milliseconds of the engine's own time.
    not_before_ms: Option<u64>,
    /// The last number given to a rewritten segment.
    generation: u32,
}

/// Marks a round as running until it is dropped.
pub(crate) struct Running<'a>(&'a CleanerState);

impl CleanerState {
    /// Begins a round, if none is running.
    pub(crate) fn begin(&self) -> Option<Running<'_>> {
        let was_running = std::mem::replace(&mut self.0.lock().running, true);
        // Made only if it is to be: dropping one ends the round.
        (!was_running).then(|| Running(self))
    }

    /// Whether a round is under way.
    pub(crate) fn is_running(&self) -> bool {
        self.0.lock().running
    }

    /// Whether a round may begin on its own account.
    pub(crate) fn is_idle(&self, now_ms: u64) -> bool {
        let state = self.0.lock();
        !state.running && state.not_before_ms.is_none_or(|not_before| now_ms >= not_before)
    }

    /// Takes note of how a round ended.
    pub(crate) fn ended(&self, not_before_ms: Option<u64>) {
        self.0.lock().not_before_ms = not_before_ms;
    }

    /// A number for a rewritten segment that this leader has given to no other. `None` once there are no more.
    pub(crate) fn next_generation(&self) -> Option<u32> {
        let mut state = self.0.lock();
        state.generation = state.generation.checked_add(1)?;
        Some(state.generation)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.0.lock().running = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_round_at_a_time() {
        let cleaner = CleanerState::default();
        let first = cleaner.begin();
        assert!(first.is_some());
        assert!(cleaner.begin().is_none());
        assert!(!cleaner.is_idle(0) && cleaner.is_running(), "the refused one has not ended the first");
        drop(first);
        assert!(cleaner.is_idle(0) && !cleaner.is_running());
        cleaner.ended(Some(10));
        assert!(!cleaner.is_idle(9) && cleaner.is_idle(10));
        assert!(cleaner.begin().is_some());
    }
}
