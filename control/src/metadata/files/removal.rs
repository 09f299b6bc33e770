//! Deleting topics: taken away from their leaders, renamed aside in one step, then removed until nothing is left.
//!
//! A controller may be paused right before the rename, and another one take its place meanwhile: it leads partitions of
//! this topic at higher epochs, and acknowledges. So what was renamed aside is removed only after each of its fences was
//! told that the directory is taken away, and none of them was claimed above the epoch that stands in its name. Else the
//! topic is put back. The decision to remove is made by removing [`TOPIC_ID_FILE`]: from then on there is no way back.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_engine::leadership::{give_back, take_away};
use kaas_engine::manifest::versioned;
use kaas_engine::types::Epoch;
use kaas_substrate::{Entry, EntryKind, Substrate, read_small, remove_tree};

use super::super::{TOPICS_DIR, Topic};
use super::birth::NEW_PREFIX;
use super::scan::{self, FILE_BYTES_MAX, TOPIC_ID_FILE, TOPIC_ID_FORMAT, TopicIdFile, partition_number};
use super::{FileStore, topic_dir};
use crate::ControlError;

/// Prefix of directories whose topic is gone.
pub(super) const DELETED_PREFIX: &str = "~deleted-";

/// Most bytes of a topic's name that its deleted directory carries: file names end at 255 bytes, and this one has a
/// prefix and a uuid besides.
const NAME_BYTES_KEPT: usize = 200;

/// Deletes a topic. The caller is alone with it.
pub(super) fn delete_topic(store: &FileStore, topic: &Arc<Topic>) -> Result<(), ControlError> {
    let substrate = store.substrate.as_ref();
    let topics_dir = Path::new(TOPICS_DIR);
    // An earlier attempt may have got as far as the rename.
    if is_in_place(store, topic)? {
        let taken = store
            .keeper
            .take_away(topic)
            .and_then(|()| store.fence.check())
            .and_then(|()| {
                // All partitions were claimed at this epoch or below it.
                let aside = topics_dir.join(deleted_name(&topic.name, store.fence.epoch()));
                Ok(substrate.rename(&topic_dir(&topic.name), &aside)?)
            })
            // The topic is as it was, and is served.
            .inspect_err(|_| store.keeper.give_back(topic));
        taken?;
    }
    substrate.sync_dir(topics_dir)?;
    store.fence.check()?;
    store.state.lock().config_versions.remove(&topic.id);
    store.topics.rcu(|topics| topics.without(&topic.name));
    store.watchers.notify();
    Ok(())
}

/// Whether the topic's directory has its name, if need be after putting it back.
fn is_in_place(store: &FileStore, topic: &Topic) -> Result<bool, ControlError> {
    let has_name = || -> Result<bool, ControlError> {
        let entries = store.substrate.list(Path::new(TOPICS_DIR))?;
        Ok(entries.iter().any(|entry| entry.name == *topic.name))
    };
    if has_name()? {
        return Ok(true);
    }
    // Renamed aside by an earlier attempt, or by a controller that was deposed before: that one's must come back first,
    // or it would come back after this deletion.
    for dir in aside(store)? {
        // One that cannot be read is left to the sweep.
        if read_topic_id(&*store.substrate, &dir).is_ok_and(|found| found.topic_id == topic.id) {
            may_be_removed(store, &dir)?;
        }
    }
    has_name()
}

fn deleted_name(topic: &str, by: Epoch) -> String {
    let kept = topic.get(..NAME_BYTES_KEPT).unwrap_or(topic);
    format!("{DELETED_PREFIX}{:08x}-{kept}-{}", by.get(), uuid::Uuid::new_v4())
}

/// The epoch of the controller that renamed a directory aside.
fn deleted_by(dir: &Path) -> Option<Epoch> {
    let name = dir.file_name()?.to_str()?.strip_prefix(DELETED_PREFIX)?;
    let (epoch, _) = name.split_once('-').filter(|(epoch, _)| epoch.len() == 8)?;
    Epoch::new(u32::from_str_radix(epoch, 16).ok()?)
}

/// Decides on a directory beside the topics, or on litter within one: true if it may be removed, false if it was a topic
/// that was put back, since somebody has led one of its partitions after it was claimed for deletion.
fn may_be_removed(store: &FileStore, dir: &Path) -> Result<bool, ControlError> {
    let substrate = &*store.substrate;
    let Some(by) = deleted_by(dir) else {
        // Never was a topic.
        return Ok(true);
    };
    let entries = substrate.list(dir)?;
    if !entries.iter().any(|entry| entry.name == TOPIC_ID_FILE) {
        return Ok(true);
    }
    let is_partition =
        |entry: &&Entry| entry.name.to_str().is_some_and(|name| partition_number(name).is_some());
    let partitions: Vec<_> = entries.iter().filter(is_partition).map(|entry| dir.join(&entry.name)).collect();
    let mut led_since = None;
    for partition in &partitions {
        match take_away(substrate, partition, by) {
            // Nobody can have claimed it.
            Err(error) if error.is_not_found() => {}
            highest => led_since = led_since.max(highest?),
        }
    }
    // This controller may be the one that was deposed.
    store.fence.check()?;
    let Some(since) = led_since else {
        substrate.remove_file(&dir.join(TOPIC_ID_FILE))?;
        substrate.sync_dir(dir)?;
        return Ok(true);
    };
    let name = read_topic_id(substrate, dir)?.topic;
    tracing::warn!(topic = name, %by, %since,
        "another controller had taken over before the deletion came about: the topic is put back");
    for partition in &partitions {
        give_back(substrate, partition)?;
    }
    substrate.rename(dir, &topic_dir(&name))?;
    substrate.sync_dir(Path::new(TOPICS_DIR))?;
    publish_again(store, &name)?;
    Ok(false)
}

fn read_topic_id(substrate: &dyn Substrate, dir: &Path) -> Result<TopicIdFile, ControlError> {
    let path = dir.join(TOPIC_ID_FILE);
    let bytes = read_small(substrate, &path, FILE_BYTES_MAX)?;
    Ok(versioned::decode(&path, TOPIC_ID_FORMAT, &bytes)?)
}

/// A topic that was put back is served again, also by a controller that started while it was away.
fn publish_again(store: &FileStore, name: &str) -> Result<(), ControlError> {
    let mut litter = Vec::new();
    if let Some((topic, version)) = scan::topic(&*store.substrate, name, &mut litter)? {
        let mut state = store.state.lock();
        state.litter.append(&mut litter);
        state.config_versions.extend(version.map(|version| (topic.id, version)));
        drop(state);
        store.publish(&Arc::new(topic));
    }
    Ok(())
}

/// Removes all that deletions and unfinished births left. One directory that cannot be removed does not hold up the
/// others. The number of directories that are left.
pub(super) fn sweep(store: &FileStore) -> Result<usize, ControlError> {
    let mut dirs = aside(store)?;
    dirs.append(&mut std::mem::take(&mut store.state.lock().litter));
    if dirs.is_empty() {
        return Ok(0);
    }
    // Removal cannot be taken back, so the fence comes first.
    if let Err(error) = store.fence.check() {
        keep_for_later(store, dirs);
        return Err(error);
    }
    let mut left = Vec::new();
    for dir in dirs {
        match may_be_removed(store, &dir) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(error) => {
                tracing::warn!(dir = %dir.display(), %error, "not removed; the next sweep tries again");
                left.push(dir);
                continue;
            }
        }
        if let Err(report) = remove_tree(store.substrate.as_ref(), &dir) {
            tracing::warn!(dir = %dir.display(), %report, "not removed; the next sweep tries again");
            left.push(dir);
        }
    }
    let count = left.len();
    keep_for_later(store, left);
    Ok(count)
}

/// The directories beside the topics that nobody needs.
fn aside(store: &FileStore) -> Result<Vec<PathBuf>, ControlError> {
    let entries = store.substrate.list(Path::new(TOPICS_DIR))?;
    let state = store.state.lock();
    Ok(entries
        .into_iter()
        .filter(|entry| entry.kind == EntryKind::Dir)
        .filter(|entry| {
            entry
                .name
                .to_str()
                .is_some_and(|name| name.starts_with(NEW_PREFIX) || name.starts_with(DELETED_PREFIX))
        })
        .map(|entry| Path::new(TOPICS_DIR).join(entry.name))
        .filter(|dir| !state.building.contains(dir))
        .collect())
}

/// Remembers what lies within topics; what lies beside them is found again by its name.
fn keep_for_later(store: &FileStore, dirs: Vec<PathBuf>) {
    let within = dirs.into_iter().filter(|dir| dir.parent() != Some(Path::new(TOPICS_DIR)));
    store.state.lock().litter.extend(within);
}
