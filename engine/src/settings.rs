//! Settings of the engine (per process) and of a log (per topic).

use crate::compaction::CleanerSettings;
use crate::io::IoPoolSettings;

/// Bounds and limits of one engine, shared by its partitions.
#[derive(Debug, Clone)]
pub struct EngineSettings {
    /// The threads that blocking calls run on.
    pub io: IoPoolSettings,
    /// Most bytes of one partition that are staged and not yet committed; producers wait beyond it. At least one
    /// batch is always taken.
    pub staged_bytes_max: usize,
    /// Most bytes that one commit cycle writes; at least one batch is always taken.
    pub cycle_bytes_max: usize,
    /// Most bytes of one partition's tail that are kept in memory for readers.
    pub tail_bytes_max: usize,
    /// Most bytes of all tails together. Beyond it each partition keeps only `tail_bytes_min`.
    pub tail_total_bytes_max: usize,
    /// What a partition may keep of its tail when all tails together are over their bound.
    pub tail_bytes_min: usize,
    /// Tails that nothing was appended to for this long are dropped by `maintain`, in milliseconds.
    pub tail_idle_ms: i64,
    /// Most closed segments whose handle and indexes are held open, over all partitions.
    pub open_segments_max: usize,
    /// File ranges smaller than this are read into memory instead, where a reader can send ranges: a send of their own
    /// would cost more.
    pub file_range_bytes_min: usize,
    /// Bytes between recovery checkpoints: the most that an unclean open has to scan.
    pub checkpoint_distance_bytes: u64,
    /// An fdatasync (or any other call of a commit cycle) that takes longer marks the partition as stalled.
    pub stall_limit_ms: u64,
    /// Producers without a batch for this long are forgotten (`producer.id.expiration.ms`).
    pub producer_id_expiration_ms: i64,
    /// How often an unknown leadership is asked for again, in milliseconds.
    pub fence_retry_ms: u64,
    /// For how long it is: then the leadership is given up, and the partition is to be led anew, in milliseconds.
    pub fence_limit_ms: u64,
    /// Bounds of compaction.
    pub cleaner: CleanerSettings,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            io: IoPoolSettings::default(),
            staged_bytes_max: 16 << 20,
            cycle_bytes_max: 8 << 20,
            tail_bytes_max: 4 << 20,
            tail_total_bytes_max: 64 << 20,
            tail_bytes_min: 64 << 10,
            tail_idle_ms: 30_000,
            open_segments_max: 256,
            file_range_bytes_min: 64 << 10,
            checkpoint_distance_bytes: 64 << 20,
            stall_limit_ms: 30_000,
            producer_id_expiration_ms: 86_400_000,
            fence_retry_ms: 100,
            fence_limit_ms: 30_000,
            cleaner: CleanerSettings::default(),
        }
    }
}

/// Which timestamp records get (`message.timestamp.type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimestampPolicy {
    /// The producer's.
    #[default]
    CreateTime,
    /// The broker's, at the append.
    LogAppendTime,
}

/// Settings of one log, named as Kafka's topic configs. Changes take effect at once.
#[derive(Debug, Clone, PartialEq)]
pub struct LogConfig {
    /// A segment is rolled before it grows past this many bytes.
    pub segment_bytes: u64,
    /// A segment is rolled when its first record is older than this, in milliseconds.
    pub segment_ms: i64,
    /// Most milliseconds that a time-based roll is brought forward, chosen anew for each segment, so that many
    /// partitions do not roll together.
    pub segment_jitter_ms: i64,
    /// Most bytes of one segment's offset index; the segment is rolled when it is full.
    pub segment_index_bytes: u64,
    /// Bytes of records between entries of the offset index.
    pub index_interval_bytes: u64,
    /// Whether old segments are deleted at all (`cleanup.policy` contains `delete`).
    pub delete: bool,
    /// Whether older records of a key are removed (`cleanup.policy` contains `compact`). Every record that is appended
    /// needs a key then.
    pub compact: bool,
    /// A round of compaction is due when a larger share of the log is not compacted yet, from 0 to 1.
    pub min_cleanable_dirty_ratio: f64,
    /// Records younger than this are not compacted, in milliseconds.
    pub min_compaction_lag_ms: i64,
    /// A round is due when a record that is not compacted yet is older than this, in milliseconds; such segments are
    /// rolled, too. `i64::MAX`: whenever.
    pub max_compaction_lag_ms: i64,
    /// How long tombstones, and markers of transactions with nothing left, stay after they were compacted, in
    /// milliseconds.
    pub delete_retention_ms: i64,
    /// Segments whose newest record is older are deleted; negative: never.
    pub retention_ms: i64,
    /// Oldest segments are deleted while the rest is at least this large; negative: never.
    pub retention_bytes: i64,
    /// Largest batch in bytes.
    pub max_message_bytes: usize,
    /// Whose timestamps count.
    pub timestamps: TimestampPolicy,
    /// How far a producer's timestamp may lie in the past, in milliseconds.
    pub timestamp_before_max_ms: i64,
    /// How far a producer's timestamp may lie in the future, in milliseconds.
    pub timestamp_after_max_ms: i64,
    /// Records between fdatasyncs. 1: every commit cycle is synced before it is acknowledged. Larger: a commit
    /// skips the sync, but not the fence, until so many records are unsynced; only on a volume of one host, since
    /// another host may not see what was only written.
    pub flush_messages: u64,
    /// Longest time that written records stay unsynced when `flush_messages` allows it, in milliseconds.
    pub flush_ms: i64,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 1 << 30,
            segment_ms: 7 * 86_400_000,
            segment_jitter_ms: 0,
            segment_index_bytes: 10 << 20,
            index_interval_bytes: 4096,
            delete: true,
            compact: false,
            min_cleanable_dirty_ratio: 0.5,
            min_compaction_lag_ms: 0,
            max_compaction_lag_ms: i64::MAX,
            delete_retention_ms: 86_400_000,
            retention_ms: 7 * 86_400_000,
            retention_bytes: -1,
            max_message_bytes: 1_048_588,
            timestamps: TimestampPolicy::CreateTime,
            timestamp_before_max_ms: i64::MAX,
            timestamp_after_max_ms: 3_600_000,
            flush_messages: 1,
            flush_ms: i64::MAX,
        }
    }
}

impl LogConfig {
    /// How old a segment's first record may become before another one is begun, in milliseconds: what is still
    /// appended to is never compacted.
    pub(crate) fn roll_ms(&self) -> i64 {
        if self.compact && self.max_compaction_lag_ms > 0 {
            self.segment_ms.min(self.max_compaction_lag_ms)
        } else {
            self.segment_ms
        }
    }
}
