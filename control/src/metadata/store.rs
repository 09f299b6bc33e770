//! The store trait, and what a store asks of those around it.
//!
//! Everything that changes something blocks: it is durable, and this process was still the controller
//! afterwards, when it returns `Ok`. After an error the change may or may not have happened; asking again is safe.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::{BrokerOverrides, Topic, TopicId, TopicsSnapshot};
use crate::ControlError;

/// Config names and values.
pub type ConfigMap = BTreeMap<String, String>;

/// A topic to be created. Its name is checked by the store; its config has been validated by the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTopic {
    pub name: String,
    pub partitions: u32,
    pub config: ConfigMap,
}

/// Whose dynamic configs are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerScope {
    /// Every broker: the resource with the empty name.
    All,
    /// The broker with this id.
    Broker(i32),
}

/// Where topics and dynamic configs are kept.
pub trait MetadataStore: Send + Sync {
    /// The topics as of now. Answers from memory.
    fn topics(&self) -> Arc<TopicsSnapshot>;

    /// The dynamic broker configs as of now. Answers from memory.
    fn broker_overrides(&self) -> Arc<BrokerOverrides>;

    /// What [`MetadataStore::create_topic`] would refuse, without doing anything. Answers from memory.
    fn check_new_topic(&self, topic: &NewTopic) -> Result<(), ControlError>;

    /// Creates a topic with a new random id. Errors: name rules, `TopicExists`, `TopicCollides`,
    /// `PartitionLimit`.
    fn create_topic(&self, topic: &NewTopic) -> Result<Arc<Topic>, ControlError>;

    /// What [`MetadataStore::grow_topic`] would refuse, without doing anything. Answers from memory.
    fn check_growth(&self, name: &str, partitions: u32) -> Result<(), ControlError>;

    /// Adds partitions up to the number `partitions`. Errors: `UnknownTopic`, `PartitionCount` unless the number
    /// grows, `PartitionLimit`.
    fn grow_topic(&self, name: &str, partitions: u32) -> Result<Arc<Topic>, ControlError>;

    /// Replaces the topic's own configs by what `change` makes of them. `change` runs alone for that topic, on the
    /// configs that are current then, so that concurrent increments are not lost. `None` leaves everything as it
    /// is (the caller keeps its own reason). Errors: `UnknownTopic`.
    fn alter_topic_config(
        &self,
        name: &str,
        change: &mut dyn FnMut(&ConfigMap) -> Option<ConfigMap>,
    ) -> Result<Arc<Topic>, ControlError>;

    /// As [`MetadataStore::alter_topic_config`], for the configs of one broker or of all brokers.
    fn alter_broker_config(
        &self,
        scope: BrokerScope,
        change: &mut dyn FnMut(&ConfigMap) -> Option<ConfigMap>,
    ) -> Result<Arc<BrokerOverrides>, ControlError>;

    /// Deletes the topic with this id: its partitions are taken away from their leaders, the name is free
    /// again, and the topic is gone for good when this returns. The files are removed later, by
    /// [`MetadataStore::sweep`]. Errors: `UnknownTopicId`.
    fn delete_topic(&self, id: TopicId) -> Result<(), ControlError>;

    /// Removes what deleted topics and failed creations left behind. Blocks as long as that takes; to be called
    /// after the start, after deletions, and every few minutes. The number of directories that are left because
    /// removing them failed (logged; the next sweep tries again).
    fn sweep(&self) -> Result<usize, ControlError>;

    /// Has `watcher` called after every change, until the subscription is dropped.
    fn subscribe(&self, watcher: Arc<dyn MetadataWatcher>) -> Subscription;
}

/// Told of changes. Called on the thread that made the change, without locks held; it must return at once (wake a
/// task, and let that look at the snapshots).
pub trait MetadataWatcher: Send + Sync {
    /// The snapshots have changed.
    fn changed(&self);
}

/// Unregisters its watcher when dropped.
#[must_use = "the watcher is unregistered when this is dropped"]
pub struct Subscription {
    pub(super) unsubscribe: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(unsubscribe) = self.unsubscribe.take() {
            unsubscribe();
        }
    }
}

/// The controller's fence, as the store needs it.
pub trait Fence: Send + Sync {
    /// The epoch to write files at.
    fn epoch(&self) -> kaas_engine::types::Epoch;

    /// One uncached look: `Ok` if this process still is the controller. Blocks.
    fn check(&self) -> Result<(), ControlError>;
}

/// What the store asks of whoever runs partitions. Called on the threads that change topics; may block.
pub trait PartitionKeeper: Send + Sync {
    /// Writes the first files of a partition into the existing empty directory `dir` (relative to the data
    /// directory). Nothing needs to be durable on return: the store syncs the tree, then renames it into place.
    fn write_new(&self, dir: &Path, topic: &Topic, partition: u32) -> Result<(), ControlError>;

    /// Takes all partitions of `topic` away from whoever leads them: closes those that are open here, keeps them
    /// from being opened again, and claims each at an epoch above every leader's. On return nothing can be
    /// acknowledged into them any more. Called again for the same topic if a later step failed.
    fn take_away(&self, topic: &Topic) -> Result<(), ControlError>;

    /// Lets the partitions of `topic` be opened again: they could not be taken away, or their directory stayed where
    /// it was.
    fn give_back(&self, topic: &Topic);

    /// Makes a little room on a full volume for something that helps to clean it up. True if it is worth trying again.
    fn make_room(&self) -> bool {
        false
    }
}
