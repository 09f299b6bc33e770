//! What topics without configs of their own have from Kafka's brokers: dynamic configs of one broker and of all, out of the
//! metadata log, and static ones, out of `server.properties`. Pure code.
//!
//! Kafka's precedence: topic, dynamic of the broker, dynamic of all brokers, static, Kafka's default. A stronger layer that has one
//! of a config's names (`log.retention.ms`, `.minutes`, `.hours`) hides all of them in a weaker one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kaas_config::{ConfigMap, Definition, Value, broker_names, topic_definitions};

use super::properties;
use super::report::{ConfigReport, DefaultReport, Report};
use super::{CARRIED_CONFIGS, Problem};

/// Configs that are carried over only if a topic has them itself, and why.
const LEFT: &[&str] = &["flush.messages", "flush.ms"];
const LEFT_REASON: &str = "kaas syncs every acknowledged record, unless a topic's own config says otherwise";

const OVERRIDE: &str = "set another value with --config NAME=VALUE, or change it there";

/// What Kafka has without a word. Clusters of Kafka 4.1 and later set `min.insync.replicas` themselves, to that.
fn own_default(definition: &Definition) -> Option<Value> {
    definition.default.and_then(|text| Value::parse(definition, text).ok())
}

/// A broker's `server.properties`.
#[derive(Debug, Clone, Default)]
pub struct ServerProperties {
    /// Where it is.
    path: PathBuf,
    configs: ConfigMap,
}

impl ServerProperties {
    /// Reads the bytes of the file at `path`; whatever they are, they are a properties file.
    pub fn parse(path: &Path, bytes: &[u8]) -> Self {
        Self { path: path.to_owned(), configs: properties::parse(bytes) }
    }

    /// Which broker's it is.
    pub(super) fn node_id(&self) -> Option<i32> {
        let id = self.configs.get("node.id").or_else(|| self.configs.get("broker.id"));
        id.and_then(|id| id.trim().parse().ok())
    }

    /// Tells of a file that is no broker's, or that of one that has none of the log directories, those of `nodes`.
    pub(super) fn check(&self, nodes: &BTreeSet<i32>, problems: &mut Vec<Problem>) {
        let problem = match self.node_id() {
            None => "it has no node.id, as each broker's has".to_owned(),
            Some(id) if !nodes.is_empty() && !nodes.contains(&id) => {
                let of = nodes.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
                format!("it is that of node {id}, and the log directories are of node {of}")
            }
            Some(_) => return,
        };
        let hint = "give the server.properties of a broker whose log directories are imported";
        problems.push(Problem::new(self.path.clone(), problem, hint));
    }
}

/// What may give a topic a default.
#[derive(Debug, Default)]
pub(super) struct Layers<'a> {
    /// Where the metadata log is.
    pub(super) metadata: PathBuf,
    /// Dynamic configs of the brokers whose log directories are imported.
    pub(super) own: Vec<ConfigMap>,
    /// Dynamic configs of all brokers.
    pub(super) all: ConfigMap,
    pub(super) fixed: Option<&'a ServerProperties>,
}

/// A broker's default of a topic config.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BrokerDefault {
    /// In the topic config's unit.
    value: String,
    /// As the broker has it.
    name: &'static str,
    text: String,
    path: PathBuf,
}

/// The brokers' defaults, by topic config.
#[derive(Debug, Default)]
pub(super) struct Defaults {
    carried: BTreeMap<&'static str, BrokerDefault>,
    /// Not carried over, by topic config, with the reason.
    left: BTreeMap<&'static str, ConfigReport>,
    problems: BTreeMap<&'static str, Problem>,
}

impl Layers<'_> {
    /// What one broker has for a topic config.
    fn of(&self, own: Option<&ConfigMap>, config: &str) -> Option<BrokerDefault> {
        let dynamic = own.into_iter().chain([&self.all]).map(|layer| (layer, &self.metadata));
        let fixed = self.fixed.map(|fixed| (&fixed.configs, &fixed.path));
        dynamic.chain(fixed).find_map(|(layer, path)| {
            broker_names(config).iter().find_map(|name| {
                let text = layer.get(name.name)?.trim();
                let value = name.in_topic_units(text);
                Some(BrokerDefault { value, name: name.name, text: text.to_owned(), path: path.clone() })
            })
        })
    }

    /// The same of all brokers; those that have it differently are a problem.
    fn of_all(&self, config: &str) -> (Option<BrokerDefault>, Option<Problem>) {
        let mut owns = self.own.iter().map(Some).collect::<Vec<_>>();
        if owns.is_empty() {
            owns.push(None);
        }
        let mut found: Vec<_> = owns.into_iter().map(|own| self.of(own, config)).collect();
        found.dedup_by(|a, b| a.as_ref().map(|a| &a.value) == b.as_ref().map(|b| &b.value));
        let problem = (found.len() > 1).then(|| {
            let values = found.iter().map(|one| one.as_ref().map_or("not set", |one| one.text.as_str()));
            let values = values.collect::<Vec<_>>().join(" and ");
            let name = found.iter().flatten().next().map_or(config, |one| one.name);
            Problem::new(
                self.metadata.clone(),
                format!("the brokers' defaults differ: {name} is {values}"),
                "set one value with --config NAME=VALUE, or give the brokers one",
            )
        });
        (found.into_iter().flatten().next(), problem)
    }
}

impl Defaults {
    /// Puts the layers together, but for the configs in `overridden`, which every topic is given another value of.
    pub(super) fn resolve(layers: &Layers<'_>, overridden: &ConfigMap) -> Self {
        let mut defaults = Self::default();
        for definition in topic_definitions().iter().filter(|one| !overridden.contains_key(one.name)) {
            let (Some(found), differing) = layers.of_all(definition.name) else { continue };
            if CARRIED_CONFIGS.contains(&definition.name) && !LEFT.contains(&definition.name) {
                let wrong = Value::parse(definition, &found.value).err().map(|error| {
                    let problem = format!("{}={}: {error}", found.name, found.text);
                    Problem::new(found.path.clone(), problem, OVERRIDE)
                });
                match differing.or(wrong) {
                    Some(problem) => drop(defaults.problems.insert(definition.name, problem)),
                    None => drop(defaults.carried.insert(definition.name, found)),
                }
            } else if Value::parse(definition, &found.value).ok() != own_default(definition) {
                let mut report = ConfigReport::new((definition.name.to_owned(), found.value));
                if LEFT.contains(&definition.name) {
                    report.reason = LEFT_REASON.to_owned();
                }
                (report.name, report.value) = (found.name.to_owned(), found.text);
                defaults.left.insert(definition.name, report);
            }
        }
        defaults
    }

    /// Gives a topic what it does not have itself.
    pub(super) fn apply(&self, configs: &mut ConfigMap) {
        for (name, default) in &self.carried {
            configs.entry((*name).to_owned()).or_insert_with(|| default.value.clone());
        }
    }

    /// Reports what one of the topics with these configs of their own gets, or would have had, and what is wrong with it.
    pub(super) fn tell(&self, own: &[ConfigMap], report: &mut Report, problems: &mut Vec<Problem>) {
        let is_inherited = |name: &str| own.iter().any(|own| !own.contains_key(name));
        let carried = self.carried.iter().filter(|(name, _)| is_inherited(name));
        report.broker_defaults.extend(carried.map(|(name, default)| DefaultReport {
            name: (*name).to_owned(),
            value: default.value.clone(),
            broker_config: default.name.to_owned(),
            path: default.path.clone(),
        }));
        let left = self.left.iter().filter(|(name, _)| is_inherited(name));
        report.broker_defaults_not_carried.extend(left.map(|(_, left)| left.clone()));
        let wrong = self.problems.iter().filter(|(name, _)| is_inherited(name));
        problems.extend(wrong.map(|(_, problem)| problem.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configs(of: &[(&str, &str)]) -> ConfigMap {
        of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// What a topic without configs gets, and the problems.
    fn resolved(layers: &Layers<'_>, overridden: &ConfigMap) -> (ConfigMap, Vec<String>) {
        let (mut problems, mut got) = (Vec::new(), ConfigMap::new());
        let defaults = Defaults::resolve(layers, overridden);
        defaults.apply(&mut got);
        defaults.tell(&[ConfigMap::new()], &mut Report::default(), &mut problems);
        (got, problems.into_iter().map(|problem| problem.problem).collect())
    }

    #[test]
    fn the_strongest_layer_wins_whatever_name_it_has_the_config_by() {
        let text =
            b"log.retention.hours=2\nlog.roll.hours=3\nlog.cleanup.policy=compact\nmessage.max.bytes=77\n";
        let fixed = ServerProperties::parse(Path::new("server.properties"), text);
        let mut layers = Layers { fixed: Some(&fixed), ..Layers::default() };
        let retention = |layers: &Layers<'_>| resolved(layers, &ConfigMap::new()).0["retention.ms"].clone();
        assert_eq!(retention(&layers), "7200000");
        layers.all = configs(&[("log.retention.ms", "5"), ("message.max.bytes", "88")]);
        assert_eq!(retention(&layers), "5");
        layers.own = vec![configs(&[("log.retention.ms", "6")])];
        assert_eq!(retention(&layers), "6");
        let expected = [
            ("cleanup.policy", "compact"),
            ("max.message.bytes", "88"),
            ("retention.ms", "6"),
            ("segment.ms", "10800000"),
        ];
        assert_eq!(resolved(&layers, &ConfigMap::new()), (configs(&expected), vec![]));
        let mut topic = configs(&[("cleanup.policy", "delete")]);
        Defaults::resolve(&layers, &ConfigMap::new()).apply(&mut topic);
        assert_eq!(topic["cleanup.policy"], "delete");
    }

    #[test]
    fn brokers_that_differ_and_values_that_kaas_refuses_are_problems_unless_they_are_overridden() {
        let fixed = ServerProperties::parse(Path::new("f"), b"log.retention.hours=soon\nlog.segment.bytes=3");
        let own = vec![configs(&[("log.cleanup.policy", "compact")]), ConfigMap::new()];
        let layers = Layers { fixed: Some(&fixed), own, ..Layers::default() };
        let (_, problems) = resolved(&layers, &ConfigMap::new());
        assert_eq!(problems[0], "the brokers' defaults differ: log.cleanup.policy is compact and not set");
        assert!(problems[1].starts_with("log.retention.hours=soon: Invalid value soon"), "{problems:?}");
        assert!(problems[2].starts_with("log.segment.bytes=3: Invalid value 3"), "{problems:?}");
        let overridden =
            configs(&[("cleanup.policy", "delete"), ("retention.ms", "1"), ("segment.bytes", "99")]);
        assert_eq!(resolved(&layers, &overridden), (ConfigMap::new(), vec![]));
    }

    #[test]
    fn what_is_left_behind_is_told_by_the_brokers_name_if_a_topic_would_have_had_it() {
        let text = b"log.flush.interval.messages=10000\ncompression.type=lz4\nmin.insync.replicas=1\nlog.dirs=/x\npassword=secret\n";
        let fixed = ServerProperties::parse(Path::new("f"), text);
        let layers = Layers { fixed: Some(&fixed), ..Layers::default() };
        let defaults = Defaults::resolve(&layers, &ConfigMap::new());
        assert!(defaults.carried.is_empty());
        let left = |own: &[(&str, &str)]| {
            let mut report = Report::default();
            defaults.tell(&[configs(own)], &mut report, &mut Vec::new());
            let left = report.broker_defaults_not_carried.into_iter().map(|left| (left.name, left.value));
            left.collect::<ConfigMap>()
        };
        let expected = [("compression.type", "lz4"), ("log.flush.interval.messages", "10000")];
        assert_eq!(left(&[]), configs(&expected));
        assert_eq!(left(&[("compression.type", "gzip"), ("flush.messages", "1")]), ConfigMap::new());
    }

    #[test]
    fn the_file_of_another_broker_is_told() {
        let of = |text: &str, nodes: &[i32]| {
            let mut problems = Vec::new();
            let file = ServerProperties::parse(Path::new("f"), text.as_bytes());
            file.check(&nodes.iter().copied().collect(), &mut problems);
            problems.len()
        };
        assert_eq!(of("node.id=3", &[1, 2]), 1);
        assert_eq!(of("broker.id=3", &[1]), 1);
        assert_eq!((of("x=1", &[]), of("node.id=x", &[1])), (1, 1));
        assert_eq!(of("node.id=2", &[1, 2]) + of("node.id=3", &[]), 0);
    }
}
