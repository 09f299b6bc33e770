//! The entries of DescribeConfigs: value, source, synonyms, type, documentation.

use super::ConfigMap;
use super::broker::BrokerConfigs;
use super::broker_table::{broker_definition, broker_definitions, synonyms_of};
use super::definition::{ConfigType, Definition};
use super::error::ConfigError;
use super::topic::Layers;
use super::topic_table::{broker_names, topic_definitions};
use super::value::Value;

/// Where a value comes from, with the codes of DescribeConfigs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConfigSource {
    Topic,
    DynamicBroker,
    DynamicDefaultBroker,
    StaticBroker,
    Default,
}

impl ConfigSource {
    /// The code on the wire.
    pub fn code(self) -> i8 {
        match self {
            Self::Topic => 1,
            Self::DynamicBroker => 2,
            Self::DynamicDefaultBroker => 3,
            Self::StaticBroker => 4,
            Self::Default => 5,
        }
    }
}

/// One name and layer in which a config is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Synonym {
    pub name: &'static str,
    /// `None` where the value is not shown.
    pub value: Option<String>,
    pub source: ConfigSource,
}

/// One described config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigEntry {
    pub name: &'static str,
    /// `None` where it is not set, or not shown.
    pub value: Option<String>,
    pub source: ConfigSource,
    pub read_only: bool,
    pub sensitive: bool,
    /// The strongest first; empty unless asked for.
    pub synonyms: Vec<Synonym>,
    pub kind: ConfigType,
    /// `None` unless asked for.
    pub documentation: Option<String>,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct DescribeOptions<'a> {
    /// These only; `None` (or none) means all. Names that are not known are left out, as in Kafka.
    pub names: Option<&'a [&'a str]>,
    pub synonyms: bool,
    pub documentation: bool,
}

impl DescribeOptions<'_> {
    fn wants(&self, definition: &Definition) -> bool {
        self.names.is_none_or(|names| names.is_empty() || names.contains(&definition.name))
    }
}

/// Describes a topic with these configs of its own.
pub fn describe_topic(
    overrides: &ConfigMap,
    broker: &BrokerConfigs,
    options: DescribeOptions<'_>,
) -> Result<Vec<ConfigEntry>, ConfigError> {
    let layers = Layers { overrides, broker };
    topic_definitions()
        .iter()
        .filter(|definition| options.wants(definition))
        .map(|definition| {
            let value = layers.value(definition.name)?.to_string();
            let mut synonyms = Vec::new();
            if overrides.contains_key(definition.name) {
                synonyms.push(Synonym {
                    name: definition.name,
                    value: Some(value.clone()),
                    source: ConfigSource::Topic,
                });
            }
            if let Some(first) = broker_names(definition.name).first() {
                synonyms.extend(broker_synonyms(first.name, broker));
            }
            Ok(entry(definition, Some(value), synonyms, false, options))
        })
        .collect()
}

/// Describes one broker: every config it has.
pub fn describe_broker(
    broker: &BrokerConfigs,
    options: DescribeOptions<'_>,
) -> Result<Vec<ConfigEntry>, ConfigError> {
    broker_definitions()
        .iter()
        .filter(|definition| options.wants(definition))
        .map(|definition| {
            let value = match definition.name {
                // The two names of one thing, which the layers need not have.
                "broker.id" | "node.id" => Some(broker.node_id().to_string()),
                name => broker.value(name)?.map(|value| value.to_string()),
            };
            let synonyms = broker_synonyms(definition.name, broker);
            Ok(entry(definition, value, synonyms, !definition.dynamic, options))
        })
        .collect()
}

/// Describes the resource with the empty name: the dynamic configs that are set for all brokers.
pub fn describe_all_brokers(
    broker: &BrokerConfigs,
    options: DescribeOptions<'_>,
) -> Result<Vec<ConfigEntry>, ConfigError> {
    let mut entries = Vec::new();
    for (name, text) in broker.all() {
        let Some(definition) = broker_definition(name).filter(|definition| options.wants(definition)) else {
            continue;
        };
        let value = Value::parse(definition, text)?.to_string();
        let synonyms = broker_synonyms(definition.name, broker)
            .into_iter()
            .filter(|synonym| synonym.source == ConfigSource::DynamicDefaultBroker)
            .collect();
        entries.push(entry(definition, Some(value), synonyms, !definition.dynamic, options));
    }
    Ok(entries)
}

/// All names and layers that a broker config is set in, from the first that has this very name.
fn broker_synonyms(name: &'static str, broker: &BrokerConfigs) -> Vec<Synonym> {
    let definitions: Vec<&'static Definition> =
        synonyms_of(name).into_iter().filter_map(broker_definition).collect();
    let mut synonyms = Vec::new();
    for (layer, source) in broker.layers() {
        for definition in &definitions {
            if let Some(text) = layer.get(definition.name) {
                let value = (!definition.is_sensitive()).then(|| text.clone());
                synonyms.push(Synonym { name: definition.name, value, source });
            }
        }
    }
    for definition in &definitions {
        if let Some(text) = definition.default {
            let value = (!definition.is_sensitive()).then(|| text.to_owned());
            synonyms.push(Synonym { name: definition.name, value, source: ConfigSource::Default });
        }
    }
    synonyms.into_iter().skip_while(|synonym| synonym.name != name).collect()
}

fn entry(
    definition: &'static Definition,
    value: Option<String>,
    synonyms: Vec<Synonym>,
    read_only: bool,
    options: DescribeOptions<'_>,
) -> ConfigEntry {
    let sensitive = definition.is_sensitive();
    ConfigEntry {
        name: definition.name,
        value: value.filter(|_| !sensitive),
        source: synonyms.first().map_or(ConfigSource::Default, |synonym| synonym.source),
        read_only,
        sensitive,
        synonyms: if options.synonyms { synonyms } else { Vec::new() },
        kind: definition.kind,
        documentation: options.documentation.then(|| definition.documentation()),
    }
}
