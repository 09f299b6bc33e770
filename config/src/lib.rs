//! Configs: every name kaas knows, its rules, where its value comes from, and how it is changed and described.
//!
//! Pure: nothing here does I/O, waits or logs. The stored text lives in the metadata store ([`kaas_control`]); this
//! module gives it meaning.
//!
//! - [`Definition`]: name, type, default, valid values, importance, documentation, and what acts on it. One table
//!   for topics ([`topic_definitions`]) and one for brokers ([`broker_definitions`]).
//! - [`BrokerConfigs`]: the layers of one broker (dynamic for it, dynamic for all, static, default).
//! - [`TopicConfigs`]: checks a topic's overrides and resolves them over a broker's layers.
//! - [`describe_topic`], [`describe_broker`], [`describe_all_brokers`]: the entries of DescribeConfigs.
//! - [`broker_names`]: the broker configs that a topic config has its default from.
//! - [`alter`]: SET, DELETE, APPEND and SUBTRACT (KIP-339).
//!
//! Every value that is accepted has an effect, or says in its documentation why it cannot have one here. What kaas
//! would have to ignore is refused ([`ConfigError::Unsupported`]).

pub mod alter;
mod broker;
mod broker_table;
mod definition;
mod describe;
mod error;
mod topic;
mod topic_table;
mod unsupported;
mod value;

pub use broker::{BrokerConfigs, EffectiveBrokerConfig};
pub use broker_table::{broker_definition, broker_definitions};
pub use definition::{ConfigType, Definition, Effect, Importance, Valid};
pub use describe::{
    ConfigEntry, ConfigSource, DescribeOptions, Synonym, describe_all_brokers, describe_broker,
    describe_topic,
};
pub use error::ConfigError;
pub use topic::{EffectiveTopicConfig, TimestampType, TopicConfigs};
pub use topic_table::{BrokerName, broker_names, topic_definition, topic_definitions};
pub use value::Value;

/// Config names and values as text.
pub type ConfigMap = std::collections::BTreeMap<String, String>;
