//! The metadata store as files under the data directory.
//!
//! ```text
//! topics/<topic>/topic-id.json                     which incarnation of the name this is; written once
//! topics/<topic>/config.<epoch:08x>.<n>.json       the topic's own configs; the highest counts, none means empty
//! topics/<topic>/<partition>/                      the engine's
//! topics/~new-<uuid>/                              a topic that is being born
//! topics/<topic>/~new-<partition>-<uuid>/          a partition that is being born
//! topics/~deleted-<epoch>-<topic>-<uuid>/          a deleted topic whose files are being removed
//! cluster/broker-configs.<epoch:08x>.<n>.json      the dynamic broker configs
//! ```
//!
//! Topics and partitions are born whole: built under a name that no topic can have, made durable, renamed into
//! place. They go in one step too: renamed aside, then removed. So a crash leaves either, and litter that the
//! next start finds by its name.
//!
//! Every change runs alone for its topic (names that collide count as one), holds no lock while it is on the
//! volume, and ends with a look at the controller's fence before it is published and answered.

mod alone;
mod birth;
mod configs;
mod removal;
mod scan;
mod watchers;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use kaas_engine::MayBeNoSpace;
use kaas_engine::manifest::versioned::FileVersion;
use kaas_substrate::Substrate;
use parking_lot::Mutex;

use self::alone::OneAtATime;
use self::watchers::Watchers;
use super::{
    BrokerOverrides, BrokerScope, ConfigMap, Fence, MetadataStore, MetadataWatcher, NewTopic,
    PartitionKeeper, Subscription, TOPICS_DIR, Topic, TopicId, TopicsSnapshot, collision_key, validate_name,
};
use crate::{CLUSTER_DIR, ControlError};

/// Bounds of the store.
#[derive(Debug, Clone)]
pub struct FileStoreSettings {
    /// Most partitions that one topic may have.
    pub partitions_per_topic_max: u32,
    /// Most threads that build the partitions which a topic grows by, for as long as that takes.
    pub birth_threads_max: usize,
}

impl Default for FileStoreSettings {
    fn default() -> Self {
        Self { partitions_per_topic_max: 10_000, birth_threads_max: 16 }
    }
}

/// The store. Shared between threads; calls that change something block and belong on I/O threads.
pub struct FileStore {
    substrate: Arc<dyn Substrate>,
    fence: Arc<dyn Fence>,
    keeper: Arc<dyn PartitionKeeper>,
    settings: FileStoreSettings,
    topics: ArcSwap<TopicsSnapshot>,
    broker_overrides: ArcSwap<BrokerOverrides>,
    one_at_a_time: OneAtATime,
    watchers: Arc<Watchers>,
    state: Mutex<State>,
}

/// What only changes look at. Locked for memory work only.
#[derive(Debug, Default)]
struct State {
    /// The last version of each topic's config file that was written or tried.
    config_versions: HashMap<TopicId, FileVersion>,
    broker_config_version: Option<FileVersion>,
    /// Directories that are being built right now, which a sweep must leave alone.
    building: HashSet<PathBuf>,
    /// Unfinished directories within topics that the start found.
    litter: Vec<PathBuf>,
    /// Topics that could not be read, by name, and why. Their names stay taken.
    damaged: HashMap<String, String>,
}

impl FileStore {
    /// Reads what there is below the data directory `substrate`. Lists directories and reads two small files a
    /// topic; no partition is looked into.
    ///
    /// A topic that cannot be read is logged and left out, and its name stays taken; what is not a topic is
    /// logged and left alone. A file of a newer format fails the whole call. Nothing is removed; call
    /// [`MetadataStore::sweep`] afterwards.
    pub fn open(
        substrate: Arc<dyn Substrate>,
        fence: Arc<dyn Fence>,
        keeper: Arc<dyn PartitionKeeper>,
        settings: FileStoreSettings,
    ) -> Result<Self, ControlError> {
        scan::ensure_topics_dir(substrate.as_ref())?;
        let found = scan::topics(substrate.as_ref())?;
        substrate.sync_dir(cluster_dir())?;
        let (broker_config_version, overrides) = configs::read_broker_overrides(substrate.as_ref())?;
        let state = State {
            config_versions: found.config_versions,
            broker_config_version,
            building: HashSet::new(),
            litter: found.litter,
            damaged: found.damaged,
        };
        Ok(Self {
            substrate,
            fence,
            keeper,
            settings,
            topics: ArcSwap::from_pointee(TopicsSnapshot::of(found.topics)),
            broker_overrides: ArcSwap::from_pointee(overrides),
            one_at_a_time: OneAtATime::default(),
            watchers: Arc::default(),
            state: Mutex::new(state),
        })
    }

    fn topic(&self, name: &str) -> Result<Arc<Topic>, ControlError> {
        let topics = self.topics.load();
        topics.get(name).cloned().ok_or_else(|| ControlError::UnknownTopic { name: name.to_owned() })
    }

    fn publish(&self, topic: &Arc<Topic>) {
        self.topics.rcu(|topics| topics.with(Arc::clone(topic)));
        self.watchers.notify();
    }

    /// Runs `change`, and once more with a little room if the volume is full. Not for changes that add data.
    fn with_room<T>(&self, mut change: impl FnMut() -> Result<T, ControlError>) -> Result<T, ControlError> {
        match change() {
            Err(error) if error.is_no_space() && self.keeper.make_room() => change(),
            outcome => outcome,
        }
    }

    fn check_partitions(&self, name: &str, requested: u32) -> Result<(), ControlError> {
        let limit = self.settings.partitions_per_topic_max;
        if requested == 0 || requested > limit {
            return Err(ControlError::PartitionLimit { name: name.to_owned(), requested, limit });
        }
        Ok(())
    }
}

impl MetadataStore for FileStore {
    fn topics(&self) -> Arc<TopicsSnapshot> {
        self.topics.load_full()
    }

    fn broker_overrides(&self) -> Arc<BrokerOverrides> {
        self.broker_overrides.load_full()
    }

    fn check_new_topic(&self, topic: &NewTopic) -> Result<(), ControlError> {
        validate_name(&topic.name)?;
        if let Some(existing) = self.topics.load().colliding(&topic.name) {
            return Err(if **existing == *topic.name {
                ControlError::TopicExists { name: topic.name.clone() }
            } else {
                ControlError::TopicCollides { name: topic.name.clone(), existing: existing.to_string() }
            });
        }
        if let Some(reason) = self.state.lock().damaged.get(&topic.name) {
            let path = self.substrate.root().join(TOPICS_DIR).join(&topic.name);
            return Err(ControlError::Damaged { path, reason: reason.clone() });
        }
        self.check_partitions(&topic.name, topic.partitions)
    }

    fn create_topic(&self, topic: &NewTopic) -> Result<Arc<Topic>, ControlError> {
        validate_name(&topic.name)?;
        let _alone = self.one_at_a_time.enter(collision_key(&topic.name));
        self.check_new_topic(topic)?;
        birth::create_topic(self, topic)
    }

    fn check_growth(&self, name: &str, partitions: u32) -> Result<(), ControlError> {
        let topic = self.topic(name)?;
        if partitions <= topic.partitions {
            return Err(ControlError::PartitionCount {
                name: name.to_owned(),
                current: topic.partitions,
                requested: partitions,
            });
        }
        self.check_partitions(name, partitions)
    }

    fn grow_topic(&self, name: &str, partitions: u32) -> Result<Arc<Topic>, ControlError> {
        let _alone = self.one_at_a_time.enter(collision_key(name));
        self.check_growth(name, partitions)?;
        birth::grow_topic(self, &self.topic(name)?, partitions)
    }

    fn alter_topic_config(
        &self,
        name: &str,
        change: &mut dyn FnMut(&ConfigMap) -> Option<ConfigMap>,
    ) -> Result<Arc<Topic>, ControlError> {
        let _alone = self.one_at_a_time.enter(collision_key(name));
        // A shorter retention is a way out when the volume is full.
        self.with_room(|| configs::alter_topic(self, &self.topic(name)?, change))
    }

    fn alter_broker_config(
        &self,
        scope: BrokerScope,
        change: &mut dyn FnMut(&ConfigMap) -> Option<ConfigMap>,
    ) -> Result<Arc<BrokerOverrides>, ControlError> {
        // No topic has an empty name.
        let _alone = self.one_at_a_time.enter(String::new());
        self.with_room(|| configs::alter_broker(self, scope, change))
    }

    fn delete_topic(&self, id: TopicId) -> Result<(), ControlError> {
        let by_id = || self.topics.load().get_by_id(id).cloned().ok_or(ControlError::UnknownTopicId { id });
        let _alone = self.one_at_a_time.enter(collision_key(&by_id()?.name));
        self.with_room(|| removal::delete_topic(self, &by_id()?))
    }

    fn sweep(&self) -> Result<usize, ControlError> {
        removal::sweep(self)
    }

    fn subscribe(&self, watcher: Arc<dyn MetadataWatcher>) -> Subscription {
        Watchers::subscribe(&self.watchers, watcher)
    }
}

/// Where a topic's directory is.
fn topic_dir(name: &str) -> PathBuf {
    Path::new(TOPICS_DIR).join(name)
}

/// Where the broker configs are.
fn cluster_dir() -> &'static Path {
    Path::new(CLUSTER_DIR)
}

/// The version behind `last` for a writer at `epoch`.
fn version_after(last: Option<FileVersion>, epoch: kaas_engine::types::Epoch) -> FileVersion {
    match last {
        Some(last) if last.epoch == epoch => FileVersion { epoch, number: last.number.saturating_add(1) },
        _ => FileVersion { epoch, number: 1 },
    }
}
