//! Creating topics and adding partitions: built aside, made durable, renamed into place.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(super) use kaas_engine::layout::NEW_PREFIX;
use kaas_engine::layout::write_new;
use kaas_engine::manifest::versioned;
use kaas_substrate::remove_tree;
use parking_lot::Mutex;

use super::super::{MetadataStore, NewTopic, TOPICS_DIR, Topic, TopicId};
use super::configs::{CONFIG, ConfigFile};
use super::scan::{self, TOPIC_ID_FILE, TOPIC_ID_FORMAT, TopicIdFile};
use super::{FileStore, topic_dir, version_after};
use crate::ControlError;

/// Keeps a sweep away from a directory that is being built.
struct Building<'a> {
    store: &'a FileStore,
    dir: PathBuf,
}

impl<'a> Building<'a> {
    fn begin(store: &'a FileStore, dir: PathBuf) -> Self {
        store.state.lock().building.insert(dir.clone());
        Self { store, dir }
    }

    /// Removes what was built; what cannot be removed is left to the next start.
    fn give_up(&self) {
        if let Err(left) = remove_tree(self.store.substrate.as_ref(), &self.dir) {
            tracing::warn!(dir = %self.dir.display(), %left, "unfinished directory left behind");
        }
    }
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        self.store.state.lock().building.remove(&self.dir);
    }
}

/// Creates a topic whose name is free. The caller is alone with that name.
pub(super) fn create_topic(store: &FileStore, new: &NewTopic) -> Result<Arc<Topic>, ControlError> {
    let topic = Arc::new(Topic {
        name: new.name.as_str().into(),
        id: TopicId::random(),
        partitions: new.partitions,
        config: Arc::new(new.config.clone()),
    });
    let building =
        Building::begin(store, Path::new(TOPICS_DIR).join(format!("{NEW_PREFIX}{}", uuid::Uuid::new_v4())));
    if let Err(error) = build_topic(store, &building.dir, &topic) {
        building.give_up();
        return Err(error);
    }
    match store.substrate.rename(&building.dir, &topic_dir(&topic.name)) {
        Ok(()) => {}
        Err(error) => {
            building.give_up();
            if error.is_exists() {
                return Err(adopt(store, &topic.name)?);
            }
            return Err(error.into());
        }
    }
    store.substrate.sync_dir(Path::new(TOPICS_DIR))?;
    store.fence.check()?;
    if !topic.config.is_empty() {
        let version = version_after(None, store.fence.epoch());
        store.state.lock().config_versions.insert(topic.id, version);
    }
    store.publish(&topic);
    Ok(topic)
}

/// Writes the whole directory and makes it durable, with one call however many partitions there are.
fn build_topic(store: &FileStore, dir: &Path, topic: &Topic) -> Result<(), ControlError> {
    let substrate = store.substrate.as_ref();
    substrate.create_dir(dir)?;
    let id_path = dir.join(TOPIC_ID_FILE);
    let identity = TopicIdFile { topic: topic.name.to_string(), topic_id: topic.id };
    write_new(substrate, &id_path, &versioned::encode(&id_path, TOPIC_ID_FORMAT, &identity)?)?;
    if !topic.config.is_empty() {
        let version = version_after(None, store.fence.epoch());
        let path = dir.join(CONFIG.file_name(version));
        let file = ConfigFile { config: (*topic.config).clone() };
        write_new(substrate, &path, &versioned::encode(&path, CONFIG.format(), &file)?)?;
    }
    for partition in 0..topic.partitions {
        let partition_dir = dir.join(partition.to_string());
        substrate.create_dir(&partition_dir)?;
        store.keeper.write_new(&partition_dir, topic, partition)?;
    }
    Ok(substrate.sync_tree(dir)?)
}

/// Adds the partitions from `topic.partitions` up to `partitions`. The caller is alone with the topic.
pub(super) fn grow_topic(
    store: &FileStore,
    topic: &Arc<Topic>,
    partitions: u32,
) -> Result<Arc<Topic>, ControlError> {
    let dir = topic_dir(&topic.name);
    let grown = Arc::new(Topic { partitions, ..(**topic).clone() });
    let built: Vec<(u32, Building<'_>)> = (topic.partitions..partitions)
        .map(|partition| {
            let name = format!("{NEW_PREFIX}{partition}-{}", uuid::Uuid::new_v4());
            (partition, Building::begin(store, dir.join(name)))
        })
        .collect();
    if let Err(error) = build_partitions(store, &grown, &built) {
        built.iter().for_each(|(_, building)| building.give_up());
        return Err(error);
    }
    // Ascending, so that whatever a crash leaves has no gap.
    for (position, (partition, building)) in built.iter().enumerate() {
        match store.substrate.rename(&building.dir, &dir.join(partition.to_string())) {
            Ok(()) => {}
            // An earlier attempt got this far; that partition is whole as well.
            Err(error) if error.is_exists() => building.give_up(),
            Err(error) => {
                built.iter().skip(position).for_each(|(_, building)| building.give_up());
                return Err(error.into());
            }
        }
    }
    store.substrate.sync_dir(&dir)?;
    store.fence.check()?;
    store.publish(&grown);
    Ok(grown)
}

/// Builds several partitions, each durable on return. A volume answers many syncs at once in little more time than
/// one, so they are spread over a few threads. Fails with the first error; the others end first.
fn build_partitions(
    store: &FileStore,
    topic: &Topic,
    built: &[(u32, Building<'_>)],
) -> Result<(), ControlError> {
    let threads = store.settings.birth_threads_max.clamp(1, built.len().max(1));
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let work = || {
        while let Some((partition, building)) = built.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = build_partition(store, &building.dir, topic, *partition) {
                next.store(built.len(), Ordering::Relaxed);
                failure.lock().get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Without another thread this one does it all.
            if std::thread::Builder::new().name("kaas-birth".to_owned()).spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    failure.into_inner().map_or(Ok(()), Err)
}

fn build_partition(store: &FileStore, dir: &Path, topic: &Topic, partition: u32) -> Result<(), ControlError> {
    store.substrate.create_dir(dir)?;
    store.keeper.write_new(dir, topic, partition)?;
    Ok(store.substrate.sync_tree(dir)?)
}

/// The name is taken on the volume but not known here: an earlier attempt of this process renamed it into place and
/// then could not tell whether it was still the controller, or another process created it. It is taken in as it is;
/// the answer is that the topic exists.
fn adopt(store: &FileStore, name: &str) -> Result<ControlError, ControlError> {
    let exists = ControlError::TopicExists { name: name.to_owned() };
    let mut litter = Vec::new();
    let Some((topic, version)) = scan::topic(store.substrate.as_ref(), name, &mut litter)? else {
        return Ok(exists);
    };
    store.substrate.sync_dir(Path::new(TOPICS_DIR))?;
    store.fence.check()?;
    let mut state = store.state.lock();
    state.litter.append(&mut litter);
    state.config_versions.extend(version.map(|version| (topic.id, version)));
    drop(state);
    if store.topics().get(name).is_none() {
        store.publish(&Arc::new(topic));
    }
    Ok(exists)
}
