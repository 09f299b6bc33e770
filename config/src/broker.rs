//! The config layers of one broker, and what they come to.
//!
//! A value is taken from the first layer that has it: dynamic for this broker, dynamic for all brokers, static (flags
//! and environment), default.

use super::ConfigMap;
use super::broker_table::broker_definition;
use super::definition::Definition;
use super::describe::ConfigSource;
use super::error::ConfigError;
use super::topic::EffectiveTopicConfig;
use super::value::Value;

/// The layers of one broker. Always valid: what it is made from is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerConfigs {
    node_id: i32,
    /// From flags and environment.
    fixed: ConfigMap,
    /// Dynamic, for all brokers.
    all: ConfigMap,
    /// Dynamic, for this broker.
    own: ConfigMap,
}

impl BrokerConfigs {
    /// The layers of the broker `node_id` with nothing but static configs, which are checked.
    pub fn new(node_id: i32, fixed: ConfigMap) -> Result<Self, ConfigError> {
        for (name, text) in &fixed {
            Value::parse(known(name)?, text)?;
        }
        let configs = Self { node_id, fixed, all: ConfigMap::new(), own: ConfigMap::new() };
        configs.check_together()?;
        Ok(configs)
    }

    /// The same broker with these dynamic configs instead of those it had. They are checked, by themselves and
    /// together with the static ones.
    pub fn with_overrides(&self, all: ConfigMap, own: ConfigMap) -> Result<Self, ConfigError> {
        for (name, text) in all.iter().chain(&own) {
            let definition = known(name)?;
            if !definition.dynamic {
                return Err(ConfigError::NotDynamic { name: name.clone() });
            }
            Value::parse(definition, text)?;
        }
        let configs = Self { node_id: self.node_id, fixed: self.fixed.clone(), all, own };
        configs.check_together()?;
        Ok(configs)
    }

    /// The id of the broker.
    pub fn node_id(&self) -> i32 {
        self.node_id
    }

    /// The text of a config and the layer it comes from. `None` if it is not set anywhere and has no default, or
    /// is not known.
    pub fn text(&self, name: &str) -> Option<(&str, ConfigSource)> {
        self.layers().find_map(|(layer, source)| layer.get(name).map(|text| (text.as_str(), source))).or_else(
            || {
                let default = broker_definition(name)?.default?;
                Some((default, ConfigSource::Default))
            },
        )
    }

    /// The value of a config; `None` as in [`BrokerConfigs::text`].
    pub fn value(&self, name: &str) -> Result<Option<Value>, ConfigError> {
        self.text(name).map(|(text, _)| Value::parse(known(name)?, text)).transpose()
    }

    /// The dynamic configs for all brokers.
    pub fn all(&self) -> &ConfigMap {
        &self.all
    }

    /// The dynamic configs for this broker.
    pub fn own(&self) -> &ConfigMap {
        &self.own
    }

    /// The layers above the defaults, the strongest first.
    pub(super) fn layers(&self) -> impl Iterator<Item = (&ConfigMap, ConfigSource)> {
        [
            (&self.own, ConfigSource::DynamicBroker),
            (&self.all, ConfigSource::DynamicDefaultBroker),
            (&self.fixed, ConfigSource::StaticBroker),
        ]
        .into_iter()
    }

    /// What the layers come to.
    pub fn effective(&self) -> Result<EffectiveBrokerConfig, ConfigError> {
        EffectiveBrokerConfig::of(self)
    }

    fn check_together(&self) -> Result<(), ConfigError> {
        // What topics without configs of their own would get.
        EffectiveTopicConfig::resolve(&ConfigMap::new(), self)?;
        let effective = self.effective()?;
        let (lower, upper) = (effective.group_min_session_timeout_ms, effective.group_max_session_timeout_ms);
        if lower > upper {
            return Err(ConfigError::Conflict {
                lower_name: "group.min.session.timeout.ms",
                lower: i64::from(lower),
                upper_name: "group.max.session.timeout.ms",
                upper: i64::from(upper),
            });
        }
        let (bytes, threads) = (effective.log_cleaner_dedupe_buffer_size, effective.log_cleaner_threads);
        if bytes / u64::from(threads.max(1)) < DEDUPE_BYTES_PER_THREAD {
            return Err(ConfigError::OutOfRange {
                name: "log.cleaner.dedupe.buffer.size".to_owned(),
                value: bytes.to_string(),
                rule: format!(
                    "Value must be at least {DEDUPE_BYTES_PER_THREAD} for each of log.cleaner.threads ({threads})"
                ),
            });
        }
        Ok(())
    }
}

/// As in Kafka: less would take few keys in a round.
const DEDUPE_BYTES_PER_THREAD: u64 = 1 << 20;

fn known(name: &str) -> Result<&'static Definition, ConfigError> {
    broker_definition(name).ok_or_else(|| ConfigError::UnknownBrokerConfig { name: name.to_owned() })
}

/// The broker configs that the broker itself acts on, typed. Those behind topic configs are in
/// [`EffectiveTopicConfig`].
#[derive(Debug, Clone, PartialEq)]
pub struct EffectiveBrokerConfig {
    pub auto_create_topics_enable: bool,
    /// `None`: never.
    pub connections_max_idle_ms: Option<u64>,
    pub delete_topic_enable: bool,
    pub fetch_max_bytes: u32,
    pub group_initial_rebalance_delay_ms: u32,
    pub group_max_session_timeout_ms: u32,
    pub group_max_size: u32,
    pub group_min_session_timeout_ms: u32,
    pub log_cleaner_backoff_ms: u64,
    pub log_cleaner_dedupe_buffer_size: u64,
    pub log_cleaner_enable: bool,
    /// Above 0, at most 1.
    pub log_cleaner_io_buffer_load_factor: f64,
    pub log_cleaner_io_buffer_size: u32,
    pub log_cleaner_io_max_bytes_per_second: f64,
    /// At least 1.
    pub log_cleaner_threads: u32,
    pub log_retention_check_interval_ms: u64,
    pub max_connections: u32,
    pub max_connections_per_ip: u32,
    pub max_incremental_fetch_session_cache_slots: u32,
    pub num_io_threads: u32,
    pub num_partitions: u32,
    pub offset_metadata_max_bytes: u32,
    pub offsets_retention_check_interval_ms: u64,
    pub offsets_retention_minutes: u32,
    pub producer_id_expiration_ms: u32,
    pub rack: Option<String>,
    pub socket_request_max_bytes: u32,
}

impl EffectiveBrokerConfig {
    fn of(configs: &BrokerConfigs) -> Result<Self, ConfigError> {
        let number = |name: &str| Ok(configs.value(name)?.map_or(0, |value| value.number()));
        // The table's bounds keep these within range; the fallbacks are never taken.
        let count = |name: &str| Ok(u32::try_from(number(name)?).unwrap_or_default());
        let long = |name: &str| Ok(u64::try_from(number(name)?).unwrap_or_default());
        let double = |name: &str| match configs.value(name)? {
            Some(Value::Double(number)) => Ok(number),
            _ => Ok(0.0),
        };
        let flag = |name: &str| Ok(configs.value(name)? == Some(Value::Boolean(true)));
        Ok(Self {
            auto_create_topics_enable: flag("auto.create.topics.enable")?,
            connections_max_idle_ms: u64::try_from(number("connections.max.idle.ms")?).ok(),
            delete_topic_enable: flag("delete.topic.enable")?,
            fetch_max_bytes: count("fetch.max.bytes")?,
            group_initial_rebalance_delay_ms: count("group.initial.rebalance.delay.ms")?,
            group_max_session_timeout_ms: count("group.max.session.timeout.ms")?,
            group_max_size: count("group.max.size")?,
            group_min_session_timeout_ms: count("group.min.session.timeout.ms")?,
            log_cleaner_backoff_ms: long("log.cleaner.backoff.ms")?,
            log_cleaner_dedupe_buffer_size: long("log.cleaner.dedupe.buffer.size")?,
            log_cleaner_enable: flag("log.cleaner.enable")?,
            log_cleaner_io_buffer_load_factor: double("log.cleaner.io.buffer.load.factor")?,
            log_cleaner_io_buffer_size: count("log.cleaner.io.buffer.size")?,
            log_cleaner_io_max_bytes_per_second: double("log.cleaner.io.max.bytes.per.second")?,
            log_cleaner_threads: count("log.cleaner.threads")?,
            log_retention_check_interval_ms: long("log.retention.check.interval.ms")?,
            max_connections: count("max.connections")?,
            max_connections_per_ip: count("max.connections.per.ip")?,
            max_incremental_fetch_session_cache_slots: count("max.incremental.fetch.session.cache.slots")?,
            num_io_threads: count("num.io.threads")?,
            num_partitions: count("num.partitions")?,
            offset_metadata_max_bytes: count("offset.metadata.max.bytes")?,
            offsets_retention_check_interval_ms: long("offsets.retention.check.interval.ms")?,
            offsets_retention_minutes: count("offsets.retention.minutes")?,
            producer_id_expiration_ms: count("producer.id.expiration.ms")?,
            rack: configs.value("broker.rack")?.map(|value| value.to_string()),
            socket_request_max_bytes: count("socket.request.max.bytes")?,
        })
    }
}
