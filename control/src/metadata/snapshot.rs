//! What is known, as immutable snapshots. Lookups only; nothing here touches the volume.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::store::ConfigMap;
use super::{TopicId, is_internal};

/// One topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    pub name: Arc<str>,
    pub id: TopicId,
    /// Partitions 0 up to this number exist.
    pub partitions: u32,
    /// The topic's own configs (overrides), validated when they were set.
    pub config: Arc<ConfigMap>,
}

impl Topic {
    /// Whether Kafka calls a topic of this name internal.
    pub fn is_internal(&self) -> bool {
        is_internal(&self.name)
    }

    /// The partition's directory, relative to the data directory.
    pub fn partition_dir(&self, partition: u32) -> PathBuf {
        Path::new(super::TOPICS_DIR).join(&*self.name).join(partition.to_string())
    }
}

/// All topics at one moment.
#[derive(Debug, Clone, Default)]
pub struct TopicsSnapshot {
    version: u64,
    by_name: BTreeMap<Arc<str>, Arc<Topic>>,
    by_id: HashMap<TopicId, Arc<Topic>>,
    by_collision_key: HashMap<String, Arc<str>>,
}

impl TopicsSnapshot {
    /// Grows by one with every change of any topic.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The topic of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Topic>> {
        self.by_name.get(name)
    }

    /// The topic with this id.
    pub fn get_by_id(&self, id: TopicId) -> Option<&Arc<Topic>> {
        self.by_id.get(&id)
    }

    /// An existing topic that `name` equals or collides with ('.' against '_').
    pub fn colliding(&self, name: &str) -> Option<&Arc<str>> {
        self.by_collision_key.get(&super::collision_key(name))
    }

    /// All topics in the order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<Topic>> {
        self.by_name.values()
    }

    /// Number of topics.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there is no topic.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Number of partitions of all topics.
    pub fn partitions(&self) -> u64 {
        self.by_name.values().map(|topic| u64::from(topic.partitions)).sum()
    }

    /// A snapshot of `topics`, version 0.
    pub(super) fn of(topics: impl IntoIterator<Item = Topic>) -> Self {
        let mut snapshot = Self::default();
        for topic in topics {
            snapshot.insert(Arc::new(topic));
        }
        snapshot
    }

    /// The next version, with `topic` added or replaced.
    pub(super) fn with(&self, topic: Arc<Topic>) -> Self {
        let mut next = self.next();
        next.insert(topic);
        next
    }

    /// The next version, without the topic of this name.
    pub(super) fn without(&self, name: &str) -> Self {
        let mut next = self.next();
        if let Some(topic) = next.by_name.remove(name) {
            next.by_id.remove(&topic.id);
            next.by_collision_key.remove(&super::collision_key(name));
        }
        next
    }

    fn next(&self) -> Self {
        Self { version: self.version.saturating_add(1), ..self.clone() }
    }

    fn insert(&mut self, topic: Arc<Topic>) {
        self.by_collision_key.insert(super::collision_key(&topic.name), Arc::clone(&topic.name));
        self.by_id.insert(topic.id, Arc::clone(&topic));
        self.by_name.insert(Arc::clone(&topic.name), topic);
    }
}

/// Dynamic broker configs, as set by admin requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerOverrides {
    /// For every broker (the resource with the empty name).
    pub all: ConfigMap,
    /// For one broker, by its id. Wins over [`BrokerOverrides::all`].
    pub brokers: BTreeMap<i32, ConfigMap>,
}

impl BrokerOverrides {
    /// The configs of one scope; empty if none are set.
    pub fn scope(&self, scope: super::BrokerScope) -> ConfigMap {
        match scope {
            super::BrokerScope::All => self.all.clone(),
            super::BrokerScope::Broker(id) => self.brokers.get(&id).cloned().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str) -> Topic {
        Topic { name: name.into(), id: TopicId::random(), partitions: 2, config: Arc::default() }
    }

    #[test]
    fn lookups_follow_every_change() {
        let first = TopicsSnapshot::of([topic("a.b"), topic("c")]);
        assert_eq!((first.version(), first.len(), first.partitions()), (0, 2, 4));
        assert_eq!(first.colliding("a_b").map(|name| &**name), Some("a.b"));

        let grown = Topic { partitions: 5, ..(**first.get("c").unwrap()).clone() };
        let second = first.with(Arc::new(grown));
        assert_eq!((second.version(), second.len(), second.partitions()), (1, 2, 7));
        let id = second.get("c").unwrap().id;
        assert_eq!(second.get_by_id(id).unwrap().partitions, 5);

        let third = second.without("a.b");
        assert_eq!((third.version(), third.len()), (2, 1));
        assert!(third.get("a.b").is_none() && third.colliding("a_b").is_none());
        assert!(third.get_by_id(first.get("a.b").unwrap().id).is_none());
        assert_eq!(first.len(), 2, "older snapshots stay as they were");
    }
}
