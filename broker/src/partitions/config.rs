//! What the engine is told of a topic's configs.

use kaas_engine::{LogConfig, TimestampPolicy};

use crate::config::{EffectiveTopicConfig, TimestampType};

/// The engine's settings for a topic with these configs.
pub fn log_config(topic: &EffectiveTopicConfig) -> LogConfig {
    LogConfig {
        segment_bytes: u64::from(topic.segment_bytes),
        segment_ms: signed(topic.segment_ms),
        segment_jitter_ms: signed(topic.segment_jitter_ms),
        segment_index_bytes: u64::from(topic.segment_index_bytes),
        index_interval_bytes: u64::from(topic.index_interval_bytes),
        delete: topic.cleanup_delete,
        compact: topic.cleanup_compact,
        min_cleanable_dirty_ratio: topic.min_cleanable_dirty_ratio,
        min_compaction_lag_ms: signed(topic.min_compaction_lag_ms),
        max_compaction_lag_ms: signed(topic.max_compaction_lag_ms),
        delete_retention_ms: signed(topic.delete_retention_ms),
        retention_ms: topic.retention_ms.map_or(-1, signed),
        retention_bytes: topic.retention_bytes.map_or(-1, signed),
        max_message_bytes: usize::try_from(topic.max_message_bytes).unwrap_or(usize::MAX),
        timestamps: match topic.timestamp_type {
            TimestampType::CreateTime => TimestampPolicy::CreateTime,
            TimestampType::LogAppendTime => TimestampPolicy::LogAppendTime,
        },
        timestamp_before_max_ms: signed(topic.timestamp_before_max_ms),
        timestamp_after_max_ms: signed(topic.timestamp_after_max_ms),
        flush_messages: topic.flush_messages,
        flush_ms: signed(topic.flush_ms),
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
