//! Deleting topics: taken away from their leaders, renamed aside in one step, then removed until nothing is left.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_substrate::{EntryKind, remove_tree};

use super::super::{TOPICS_DIR, Topic};
use super::birth::NEW_PREFIX;
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
    if substrate.list(topics_dir)?.iter().any(|entry| entry.name == *topic.name) {
        let aside = topics_dir.join(deleted_name(&topic.name));
        let taken = store
            .keeper
            .take_away(topic)
            .and_then(|()| store.fence.check())
            .and_then(|()| Ok(substrate.rename(&topic_dir(&topic.name), &aside)?))
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

fn deleted_name(topic: &str) -> String {
    let kept = topic.get(..NAME_BYTES_KEPT).unwrap_or(topic);
    format!("{DELETED_PREFIX}{kept}-{}", uuid::Uuid::new_v4())
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
