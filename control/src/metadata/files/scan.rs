//! Finding out what there is, at the start: one listing and at most two small files a topic.
//!
//! A process that was killed may have made changes that are not durable yet. They are made durable before they are
//! looked at: what is seen now is served and built upon, and must not go with the power.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_engine::layout;
pub(super) use kaas_engine::layout::{TOPIC_ID_FILE, TOPIC_ID_FORMAT};
use kaas_engine::manifest::versioned::{self, FileVersion};
use kaas_substrate::{EntryKind, Substrate, read_small};

use super::super::{TOPICS_DIR, Topic, TopicId, validate_name};
use super::birth::NEW_PREFIX;
use super::configs::{CONFIG, ConfigFile};
use super::removal::DELETED_PREFIX;
use super::topic_dir;
use crate::ControlError;

/// Longest metadata file that is read.
pub(super) const FILE_BYTES_MAX: usize = 16 << 20;

/// `topic-id.json`.
pub(super) type TopicIdFile = layout::TopicIdFile<TopicId>;

/// What the start found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub topics: Vec<Topic>,
    pub config_versions: HashMap<TopicId, FileVersion>,
    pub litter: Vec<PathBuf>,
    pub damaged: HashMap<String, String>,
}

/// Creates the directory of topics if there is none. Durable on return, like everything else beside it.
pub(super) fn ensure_topics_dir(substrate: &dyn Substrate) -> Result<(), ControlError> {
    let root = substrate.list(Path::new(""))?;
    if !root.iter().any(|entry| entry.name == TOPICS_DIR) {
        match substrate.create_dir(Path::new(TOPICS_DIR)) {
            Err(error) if !error.is_exists() => return Err(error.into()),
            _ => {}
        }
    }
    Ok(substrate.sync_dir(Path::new(""))?)
}

/// Everything below the directory of topics.
pub(super) fn topics(substrate: &dyn Substrate) -> Result<Found, ControlError> {
    let mut found = Found::default();
    substrate.sync_dir(Path::new(TOPICS_DIR))?;
    for entry in substrate.list(Path::new(TOPICS_DIR))? {
        let Some(name) = entry.name.to_str().filter(|_| entry.kind == EntryKind::Dir) else {
            stranger(&entry.name);
            continue;
        };
        if name.starts_with(NEW_PREFIX) || name.starts_with(DELETED_PREFIX) {
            continue; // A sweep looks for these itself.
        }
        if validate_name(name).is_err() {
            stranger(&entry.name);
            continue;
        }
        match topic(substrate, name, &mut found.litter) {
            Ok(Some((topic, version))) => {
                found.config_versions.extend(version.map(|version| (topic.id, version)));
                found.topics.push(topic);
            }
            Ok(None) => stranger(&entry.name),
            Err(error @ (ControlError::Damaged { .. } | ControlError::ForeignDirectory { .. })) => {
                tracing::error!(topic = name, %error, "topic left out");
                found.damaged.insert(name.to_owned(), error.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Reads one topic; `None` if the directory is not one. Unfinished partitions are added to `litter`.
pub(super) fn topic(
    substrate: &dyn Substrate,
    name: &str,
    litter: &mut Vec<PathBuf>,
) -> Result<Option<(Topic, Option<FileVersion>)>, ControlError> {
    let dir = topic_dir(name);
    let mut has_id = false;
    let mut config_version = None;
    let mut partitions = Vec::new();
    substrate.sync_dir(&dir)?;
    for entry in substrate.list(&dir)? {
        let Some(entry_name) = entry.name.to_str() else { continue };
        match entry.kind {
            EntryKind::Dir if entry_name.starts_with(NEW_PREFIX) => litter.push(dir.join(entry_name)),
            EntryKind::Dir => partitions.extend(partition_number(entry_name)),
            EntryKind::File if entry_name == TOPIC_ID_FILE => has_id = true,
            EntryKind::File => config_version = config_version.max(CONFIG.parse(&entry.name)),
            _ => {}
        }
    }
    if !has_id {
        return Ok(None);
    }
    let id_path = dir.join(TOPIC_ID_FILE);
    let bytes = read_small(substrate, &id_path, FILE_BYTES_MAX)?;
    let identity: TopicIdFile = versioned::decode(&id_path, TOPIC_ID_FORMAT, &bytes)?;
    if identity.topic != name {
        return Err(ControlError::ForeignDirectory {
            dir: substrate.root().join(dir),
            what: "topic",
            found: identity.topic,
            expected: name.to_owned(),
        });
    }
    let config = match config_version {
        Some(version) => {
            let path = dir.join(CONFIG.file_name(version));
            let bytes = read_small(substrate, &path, FILE_BYTES_MAX)?;
            versioned::decode::<ConfigFile>(&path, CONFIG.format(), &bytes)?.config
        }
        None => super::ConfigMap::new(),
    };
    let count = complete(&mut partitions, &dir)?;
    let topic =
        Topic { name: name.into(), id: identity.topic_id, partitions: count, config: Arc::new(config) };
    Ok(Some((topic, config_version)))
}

/// The number of partitions, if they are 0 up to some number without a gap.
fn complete(partitions: &mut [u32], dir: &Path) -> Result<u32, ControlError> {
    partitions.sort_unstable();
    let damaged = |reason| ControlError::Damaged { path: dir.to_owned(), reason };
    if partitions.is_empty() {
        return Err(damaged("the topic has no partition".to_owned()));
    }
    let mut expected = 0;
    for partition in partitions {
        if *partition != expected {
            return Err(damaged(format!("partition {expected} is missing")));
        }
        expected += 1;
    }
    Ok(expected)
}

/// The partition that a directory's name stands for. Only the canonical spelling counts.
pub(super) fn partition_number(name: &str) -> Option<u32> {
    name.parse::<u32>().ok().filter(|number| number.to_string() == name)
}

fn stranger(name: &std::ffi::OsStr) {
    tracing::warn!(name = %name.to_string_lossy(), "not a topic; left alone");
}
