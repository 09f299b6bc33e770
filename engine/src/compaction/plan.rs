//! Which segments a round may touch, whether it is due, and which segments become one. Pure: Kafka's rules
//! (`LogCleanerManager`, `LogToClean`, `groupSegmentsBySize`).

use std::ops::Range;
use std::sync::Arc;

use crate::log::segment::Segment;
use crate::planted::{Bug, planted};
use crate::settings::LogConfig;
use crate::types::{Offset, Timestamp};

/// What a round would find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dirtiness {
    /// Bytes of the segments that are compacted already.
    pub clean_bytes: u64,
    /// Bytes of the segments behind them that a round may compact.
    pub dirty_bytes: u64,
    /// By how many milliseconds the oldest record that is not compacted yet is older than `max.compaction.lag.ms`; 0: by
    /// none.
    pub overdue_ms: i64,
}

impl Dirtiness {
    /// The uncompacted share, from 0 to 1: what `min.cleanable.dirty.ratio` is compared with.
    #[allow(clippy::cast_precision_loss)]
    pub fn ratio(&self) -> f64 {
        let total = self.clean_bytes.saturating_add(self.dirty_bytes);
        if total == 0 { 0.0 } else { self.dirty_bytes as f64 / total as f64 }
    }

    /// Whether a round is due.
    pub fn is_due(&self, config: &LogConfig) -> bool {
        self.dirty_bytes > 0 && (self.overdue_ms > 0 || self.ratio() > config.min_cleanable_dirty_ratio)
    }
}

/// A partition's closed segments and where it stands, as one of its moments.
#[derive(Debug)]
pub(crate) struct Compactable {
    /// All that are closed and that a manifest pins, from the beginning of the log on.
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) log_start: Offset,
    pub(crate) last_stable: Offset,
    /// Everything below is compacted.
    pub(crate) first_dirty: Offset,
}

impl Compactable {
    /// Where the part that is not compacted begins.
    pub(crate) fn first_dirty(&self) -> Offset {
        self.first_dirty.max(self.log_start)
    }

    /// The segments that a round may compact: whole below the last stable offset, and in front of the first dirty one
    /// with a record that is younger than `min.compaction.lag.ms`.
    pub(crate) fn cleanable(&self, config: &LogConfig, now: Timestamp) -> &[Arc<Segment>] {
        let first_dirty = self.first_dirty();
        let may = |segment: &&Arc<Segment>| {
            let young = config.min_compaction_lag_ms > 0
                && segment.end_offset() > first_dirty
                && segment.retention_timestamp(now).0 > now.0.saturating_sub(config.min_compaction_lag_ms);
            let stable = segment.end_offset() <= self.last_stable || planted(Bug::CompactPastStable);
            stable && !young
        };
        let count = self.segments.iter().take_while(may).count();
        self.segments.get(..count).unwrap_or_default()
    }

    /// The part of the log that is not compacted yet, as far as it is closed.
    pub(crate) fn dirty(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.segments.iter().filter(|segment| segment.end_offset() > self.first_dirty())
    }

    /// How dirty it is; `first_timestamps` are those of the dirty segments' first batches.
    pub(crate) fn dirtiness(
        &self,
        config: &LogConfig,
        now: Timestamp,
        first_timestamps: impl Iterator<Item = Timestamp>,
    ) -> Dirtiness {
        let mut dirtiness = Dirtiness::default();
        for segment in self.cleanable(config, now) {
            if segment.end_offset() > self.first_dirty() {
                dirtiness.dirty_bytes += segment.bytes();
            } else {
                dirtiness.clean_bytes += segment.bytes();
            }
        }
        let until = now.0.saturating_sub(config.max_compaction_lag_ms);
        let oldest = first_timestamps.filter(|timestamp| timestamp.0 > 0).min();
        dirtiness.overdue_ms = oldest.map_or(0, |oldest| until.saturating_sub(oldest.0).max(0));
        dirtiness
    }
}

/// Which neighbours are copied into one: as long as their logs come to `segment.bytes` at most, their indexes to
/// `segment.index.bytes`, and their offsets fit the 31 bits of an index entry.
pub(crate) fn groups(segments: &[Arc<Segment>], config: &LogConfig) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let (mut bytes, mut offset_index, mut time_index, mut base) = (0_u64, 0_u64, 0_u64, 0_i64);
    for (at, segment) in segments.iter().enumerate() {
        let state = segment.state();
        let lengths = state.index_files.unwrap_or_default().lengths;
        bytes = bytes.saturating_add(state.bytes);
        offset_index = offset_index.saturating_add(lengths.offset_index_bytes);
        time_index = time_index.saturating_add(lengths.time_index_bytes);
        let fits = bytes <= config.segment_bytes
            && offset_index.max(time_index) <= config.segment_index_bytes
            && state.end_offset.0.saturating_sub(1).saturating_sub(base) <= i64::from(i32::MAX);
        match groups.last_mut().filter(|_| fits) {
            Some(group) => group.end = at + 1,
            None => {
                groups.push(at..at + 1);
                (bytes, base) = (state.bytes, segment.base_offset().0);
                (offset_index, time_index) = (lengths.offset_index_bytes, lengths.time_index_bytes);
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::log::names::SegmentName;
    use crate::log::segment::SegmentState;
    use crate::types::Epoch;

    /// Segments of ten offsets, with these bytes and largest timestamps.
    fn segments(of: &[(u64, i64)]) -> Vec<Arc<Segment>> {
        let segment = |(at, (bytes, newest)): (i64, &(u64, i64))| {
            let name = SegmentName::appended(Epoch::new(1).unwrap(), Offset(at * 10));
            let state = SegmentState {
                bytes: *bytes,
                end_offset: Offset(at * 10 + 10),
                max_timestamp: Timestamp(*newest),
                offset_of_max_timestamp: Offset(at * 10),
                ..SegmentState::empty(Offset(at * 10))
            };
            Arc::new(Segment::closed(name, Path::new("d"), state))
        };
        (0..).zip(of).map(segment).collect()
    }

    fn compactable(of: &[(u64, i64)], first_dirty: i64, last_stable: i64) -> Compactable {
        Compactable {
            segments: segments(of),
            log_start: Offset(0),
            last_stable: Offset(last_stable),
            first_dirty: Offset(first_dirty),
        }
    }

    #[test]
    fn a_round_ends_at_the_last_stable_offset_and_before_young_records() {
        let log = compactable(&[(100, 1), (100, 2), (100, 900), (100, 3)], 10, 40);
        let now = Timestamp(1000);
        let cleanable = |log: &Compactable, min_lag: i64| {
            let config = LogConfig { min_compaction_lag_ms: min_lag, ..LogConfig::default() };
            log.cleanable(&config, now).len()
        };
        assert_eq!(cleanable(&log, 0), 4);
        assert_eq!(cleanable(&log, 99), 4);
        assert_eq!(cleanable(&log, 101), 2);
        assert_eq!(cleanable(&log, 999), 1, "what is clean may be copied however young it is");
        assert_eq!(cleanable(&compactable(&[(100, 1), (100, 2)], 0, 19), 0), 1);
        assert_eq!(cleanable(&compactable(&[(100, 1), (100, 2)], 0, 9), 0), 0);
    }

    #[test]
    fn due_by_ratio_or_by_age() {
        let config = LogConfig { max_compaction_lag_ms: 500, ..LogConfig::default() };
        let of = |first_dirty: i64, oldest: i64| {
            let log = compactable(&[(100, 1), (100, 2), (200, 3)], first_dirty, 30);
            log.dirtiness(&config, Timestamp(1000), [Timestamp(-1), Timestamp(oldest)].into_iter())
        };
        let found = of(20, 501);
        assert_eq!(found, Dirtiness { clean_bytes: 200, dirty_bytes: 200, overdue_ms: 0 });
        assert!(!found.is_due(&config), "half is not more than half");
        assert!(of(15, 501).is_due(&config));
        assert_eq!(of(20, 499).overdue_ms, 1);
        assert!(of(20, 499).is_due(&config));
        assert!(!of(30, 499).is_due(&config), "there is nothing to do");
        assert!(!Dirtiness::default().is_due(&config));
    }

    #[test]
    fn neighbours_are_put_together_up_to_the_size_of_a_segment() {
        let config = LogConfig { segment_bytes: 250, ..LogConfig::default() };
        let of = |of: &[(u64, i64)]| groups(&segments(of), &config);
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[(100, 0), (100, 0), (50, 0), (10, 0)]), [0..3, 3..4]);
        assert_eq!(of(&[(300, 0), (10, 0), (240, 0), (1, 0)]), [0..1, 1..3, 3..4]);
        let mut far = segments(&[(10, 0), (10, 0)]);
        let name = SegmentName::appended(Epoch::new(1).unwrap(), Offset(20));
        let state = SegmentState { end_offset: Offset(i64::from(i32::MAX) + 2), ..far[0].state() };
        far.push(Arc::new(Segment::closed(name, Path::new("d"), state)));
        assert_eq!(groups(&far, &config), [0..2, 2..3]);
    }
}
