//! A topic's own configs over a broker's: checked, and resolved to what the engine is told.

use super::ConfigMap;
use super::broker::BrokerConfigs;
use super::definition::Definition;
use super::error::ConfigError;
use super::topic_table::{broker_names, topic_definition};
use super::value::Value;

/// A topic's own configs, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct TopicConfigs {
    effective: EffectiveTopicConfig,
}

impl TopicConfigs {
    /// Checks a topic's own configs: names, types, ranges, and what they come to together over the broker's.
    pub fn validate(overrides: &ConfigMap, broker: &BrokerConfigs) -> Result<Self, ConfigError> {
        for (name, text) in overrides {
            let definition = topic_definition(name)
                .ok_or_else(|| ConfigError::UnknownTopicConfig { name: name.clone() })?;
            Value::parse(definition, text)?;
        }
        Ok(Self { effective: EffectiveTopicConfig::resolve(overrides, broker)? })
    }

    /// What they come to.
    pub fn effective(&self) -> &EffectiveTopicConfig {
        &self.effective
    }
}

/// Whose clock a record's timestamp comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestampType {
    /// The producer's.
    CreateTime,
    /// The broker's, when the batch was appended.
    LogAppendTime,
}

/// What a topic's configs come to, typed. Times in milliseconds, sizes in bytes; `None` means no limit.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectiveTopicConfig {
    pub cleanup_compact: bool,
    pub cleanup_delete: bool,
    pub delete_retention_ms: u64,
    /// At least 1.
    pub flush_messages: u64,
    pub flush_ms: u64,
    pub index_interval_bytes: u32,
    pub max_compaction_lag_ms: u64,
    pub max_message_bytes: u32,
    pub min_cleanable_dirty_ratio: f64,
    pub min_compaction_lag_ms: u64,
    pub retention_bytes: Option<u64>,
    pub retention_ms: Option<u64>,
    /// At least 14.
    pub segment_bytes: u32,
    /// At least 4.
    pub segment_index_bytes: u32,
    pub segment_jitter_ms: u64,
    /// At least 1.
    pub segment_ms: u64,
    /// How far a timestamp may lie ahead of the clock; `u64::MAX >> 1` is the largest.
    pub timestamp_after_max_ms: u64,
    /// How far a timestamp may lie behind the clock.
    pub timestamp_before_max_ms: u64,
    pub timestamp_type: TimestampType,
}

impl EffectiveTopicConfig {
    /// Resolves a topic's own configs over a broker's. Fails only where a text is invalid, or two contradict each
    /// other.
    pub fn resolve(overrides: &ConfigMap, broker: &BrokerConfigs) -> Result<Self, ConfigError> {
        let layers = Layers { overrides, broker };
        let (lower, upper) =
            (layers.number("min.compaction.lag.ms")?, layers.number("max.compaction.lag.ms")?);
        if lower > upper {
            return Err(ConfigError::Conflict {
                lower_name: "min.compaction.lag.ms",
                lower,
                upper_name: "max.compaction.lag.ms",
                upper,
            });
        }
        let policy = layers.value("cleanup.policy")?;
        let has = |wanted: &str| policy.list().iter().any(|one| one == wanted);
        let timestamp_type = match layers.value("message.timestamp.type")? {
            Value::Text(text) if text == "LogAppendTime" => TimestampType::LogAppendTime,
            _ => TimestampType::CreateTime,
        };
        Ok(Self {
            cleanup_compact: has("compact"),
            cleanup_delete: has("delete"),
            delete_retention_ms: layers.long("delete.retention.ms")?,
            flush_messages: layers.long("flush.messages")?,
            flush_ms: layers.long("flush.ms")?,
            index_interval_bytes: layers.int("index.interval.bytes")?,
            max_compaction_lag_ms: layers.long("max.compaction.lag.ms")?,
            max_message_bytes: layers.int("max.message.bytes")?,
            min_cleanable_dirty_ratio: match layers.value("min.cleanable.dirty.ratio")? {
                Value::Double(ratio) => ratio,
                _ => 0.0,
            },
            min_compaction_lag_ms: layers.long("min.compaction.lag.ms")?,
            retention_bytes: u64::try_from(layers.number("retention.bytes")?).ok(),
            retention_ms: u64::try_from(layers.number("retention.ms")?).ok(),
            segment_bytes: layers.int("segment.bytes")?,
            segment_index_bytes: layers.int("segment.index.bytes")?,
            segment_jitter_ms: layers.long("segment.jitter.ms")?,
            segment_ms: layers.long("segment.ms")?,
            timestamp_after_max_ms: layers.timestamp_limit("message.timestamp.after.max.ms")?,
            timestamp_before_max_ms: layers.timestamp_limit("message.timestamp.before.max.ms")?,
            timestamp_type,
        })
    }
}

/// A topic's configs and those of the broker below them.
pub(super) struct Layers<'a> {
    pub overrides: &'a ConfigMap,
    pub broker: &'a BrokerConfigs,
}

impl Layers<'_> {
    /// The value of a topic config.
    pub fn value(&self, name: &str) -> Result<Value, ConfigError> {
        let definition = topic_definition(name)
            .ok_or_else(|| ConfigError::UnknownTopicConfig { name: name.to_owned() })?;
        if let Some(text) = self.overrides.get(name) {
            return Value::parse(definition, text);
        }
        for broker_name in broker_names(name) {
            if let Some(value) = self.broker.value(broker_name.name)? {
                return Ok(converted(value, broker_name.factor));
            }
        }
        Value::parse(definition, definition.default.unwrap_or_default())
    }

    fn number(&self, name: &str) -> Result<i64, ConfigError> {
        Ok(self.value(name)?.number())
    }

    // The table's bounds keep the two within range; the fallbacks are never taken.
    fn long(&self, name: &str) -> Result<u64, ConfigError> {
        Ok(u64::try_from(self.number(name)?).unwrap_or_default())
    }

    fn int(&self, name: &str) -> Result<u32, ConfigError> {
        Ok(u32::try_from(self.number(name)?).unwrap_or_default())
    }

    /// A timestamp limit: its own value if it is set on the topic or the broker, else the older common one if
    /// that is set, else the default.
    fn timestamp_limit(&self, name: &str) -> Result<u64, ConfigError> {
        const COMMON: &str = "message.timestamp.difference.max.ms";
        if !self.is_set(name) && self.is_set(COMMON) { self.long(COMMON) } else { self.long(name) }
    }

    fn is_set(&self, name: &str) -> bool {
        self.overrides.contains_key(name)
            || broker_names(name).iter().any(|broker_name| {
                self.broker.layers().any(|(layer, _)| layer.contains_key(broker_name.name))
            })
    }
}

/// A broker's value in the topic config's unit. "No limit" (-1) stays what it is.
fn converted(value: Value, factor: i64) -> Value {
    match value {
        Value::Number(number) if factor != 1 && number >= 0 => Value::Number(number.saturating_mul(factor)),
        other => other,
    }
}

/// Whether a config is a list, so that APPEND and SUBTRACT make sense.
pub(super) fn is_list(definition: &Definition) -> bool {
    definition.kind == super::definition::ConfigType::List
}
