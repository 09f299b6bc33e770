//! What of a data directory belongs to no partition or slot, and what is known of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use kaas_engine::EngineError;
use kaas_engine::layout::{
    CLUSTER_DIR, CONTROLLER_DIR, Meta, PRODUCER_IDS, PRODUCER_IDS_BLOCK, TOPIC_CONFIG, TOPIC_ID_FILE,
    TOPIC_ID_FORMAT, TOPICS_DIR, TopicIdFile, bear_cluster, write_new,
};
use kaas_engine::leadership::{Claimant, claim};
use kaas_engine::manifest::versioned::{self, FileKind, FileVersion, VersionedError};
use kaas_engine::types::Epoch;
use kaas_substrate::Substrate;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::history::SettingsHistory;
use crate::problem::Problem;
use crate::repair::Met;

/// The id of every topic.
pub const TOPIC_ID: [u8; 16] = [7; 16];

/// The same as files have it.
const TOPIC_ID_TEXT: &str = "BwcHBwcHBwcHBwcHBwcHBw";

/// `broker-configs.<epoch>.<n>.json` of the cluster.
const BROKER_CONFIGS: FileKind = FileKind::json("broker-configs", 1);

/// A file that only the controller writes, a version after the other.
#[derive(Debug, Clone)]
pub struct Setting {
    pub dir: PathBuf,
    pub kind: FileKind,
}

impl Setting {
    /// Ids that are handed out, instead of something that is set.
    pub fn is_producer_ids(&self) -> bool {
        self.kind == PRODUCER_IDS
    }

    /// The content that holds a number: which change it is, or where the next block of ids begins.
    pub fn content(&self, number: u64) -> Value {
        if self.is_producer_ids() {
            json!({ "next_block_start": number })
        } else if self.kind == TOPIC_CONFIG {
            json!({ "config": { "retention.ms": number.to_string() } })
        } else {
            json!({ "all": { "max.connections": number.to_string() }, "brokers": {} })
        }
    }

    /// The number in a content; `None` if nothing is set.
    ///
    /// # Errors
    ///
    /// The content, if nobody has written it so.
    pub fn number(&self, content: &Value) -> Result<Option<u64>, String> {
        let found = if self.is_producer_ids() {
            content.get("next_block_start").and_then(Value::as_u64)
        } else {
            let set = content.get("config").or_else(|| content.get("all")).and_then(Value::as_object);
            if set.is_some_and(serde_json::Map::is_empty) {
                return Ok(None);
            }
            let value = set.and_then(|set| set.values().next());
            value.and_then(Value::as_str).and_then(|text| text.parse().ok())
        };
        let is_that = |number: &u64| {
            self.content(*number)
                .as_object()
                .is_some_and(|written| written.iter().all(|(name, value)| content.get(name) == Some(value)))
        };
        found.filter(is_that).map(Some).ok_or_else(|| content.to_string())
    }
}

/// The files around partitions and slots.
#[derive(Debug)]
pub struct DataDir {
    pub topics: Vec<PathBuf>,
    /// What controllers change, and what is known of each.
    pub settings: Vec<(Setting, Mutex<SettingsHistory>)>,
    /// The last epoch that was assigned to a controller.
    pub assigned: AtomicU32,
    /// Changes that were made or tried.
    changes: AtomicU32,
    /// Repairs that have begun.
    pub repairs: AtomicU32,
    /// What damage of the controller's directory, `cluster/` and topics' files has led to.
    pub met: Mutex<Met>,
}

/// The directory of a topic.
pub fn topic_dir(number: usize) -> PathBuf {
    Path::new(TOPICS_DIR).join(format!("topic-{number}"))
}

/// The directory of the controller's claims and fence.
pub fn controller_dir() -> PathBuf {
    Path::new(CLUSTER_DIR).join(CONTROLLER_DIR)
}

/// What `topic-id.json` of a topic holds.
fn topic_id_file(dir: &Path) -> TopicIdFile<String> {
    let topic = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    TopicIdFile { topic, topic_id: TOPIC_ID_TEXT.to_owned() }
}

impl DataDir {
    /// One with so many topics.
    pub fn new(topics: usize) -> Self {
        let topics: Vec<_> = (0..topics).map(topic_dir).collect();
        let cluster = |kind| Setting { dir: PathBuf::from(CLUSTER_DIR), kind };
        let mut settings = vec![cluster(PRODUCER_IDS), cluster(BROKER_CONFIGS)];
        settings.extend(topics.iter().map(|dir| Setting { dir: dir.clone(), kind: TOPIC_CONFIG }));
        let settings = settings.into_iter().map(|setting| (setting, Mutex::default())).collect();
        Self {
            topics,
            settings,
            assigned: AtomicU32::new(0),
            changes: AtomicU32::new(0),
            repairs: AtomicU32::new(0),
            met: Mutex::default(),
        }
    }

    /// Makes the directories and files, as the first controller.
    pub fn birth(&self, volume: &Arc<dyn Substrate>) -> Result<(), EngineError> {
        let substrate = &**volume;
        let meta = Meta { cluster_id: "explored".to_owned(), node_id: 0 };
        let failed = |error: VersionedError| EngineError::from(error);
        bear_cluster(substrate, "0", &meta).map_err(failed)?;
        let claimant = Claimant { broker_id: 0, incarnation: "birth".to_owned(), assignment_version: 0 };
        let epoch = Epoch::new(1).unwrap_or(Epoch::NONE);
        claim(volume, &controller_dir(), epoch, &claimant)?;
        self.assigned.store(1, Ordering::Relaxed);
        substrate.create_dir(Path::new(TOPICS_DIR))?;
        for dir in &self.topics {
            substrate.create_dir(dir)?;
            let path = dir.join(TOPIC_ID_FILE);
            let bytes = versioned::encode(&path, TOPIC_ID_FORMAT, &topic_id_file(dir)).map_err(failed)?;
            write_new(substrate, &path, &bytes)?;
        }
        for (setting, history) in &self.settings {
            let number = if setting.is_producer_ids() {
                PRODUCER_IDS_BLOCK.unsigned_abs()
            } else {
                self.next_change()
            };
            let version = FileVersion { epoch, number: 1 };
            versioned::write(substrate, &setting.dir, setting.kind, version, &setting.content(number))
                .map_err(failed)?;
            let mut history = history.lock();
            history.writes(number, version);
            // Of what was just made nobody can have known anything else.
            let _ = history.acknowledged(version, 0, number);
        }
        substrate.sync_tree(Path::new(TOPICS_DIR))?;
        Ok(substrate.sync_tree(Path::new(CLUSTER_DIR))?)
    }

    /// A number that no other change has.
    pub fn next_change(&self) -> u64 {
        u64::from(self.changes.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// What is wrong with a topic's id, which nobody ever changes.
    pub fn check_topic_id(
        &self,
        volume: &dyn Substrate,
        dir: &Path,
    ) -> Result<Result<(), Problem>, VersionedError> {
        let path = dir.join(TOPIC_ID_FILE);
        let bytes = kaas_substrate::read_small(volume, &path, 4096)?;
        let found: TopicIdFile<String> = versioned::decode(&path, TOPIC_ID_FORMAT, &bytes)?;
        let expected = topic_id_file(dir);
        let is_that = (&found.topic, &found.topic_id) == (&expected.topic, &expected.topic_id);
        Ok(if is_that {
            Ok(())
        } else {
            Err(Problem::Settings(format!("{} says {found:?}", path.display())))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_say_which_change_they_are() {
        for (setting, _) in &DataDir::new(2).settings {
            assert_eq!(setting.number(&setting.content(17)), Ok(Some(17)));
            setting.number(&json!({ "other": 1 })).unwrap_err();
        }
        let data = DataDir::new(1);
        let none = [json!({ "all": {}, "brokers": {} }), json!({ "config": {} })];
        for ((setting, _), none) in data.settings.iter().skip(1).zip(none) {
            assert_eq!(setting.number(&none), Ok(None));
        }
    }

    #[test]
    fn a_data_directory_is_born_without_anything_wrong() {
        let volume: Arc<dyn Substrate> = Arc::new(kaas_substrate::Memory::new());
        let data = DataDir::new(1);
        data.birth(&volume).unwrap();
        data.check_topic_id(&*volume, &topic_dir(0)).unwrap().unwrap();
        assert_eq!(kaas_engine::leadership::highest(&*volume, &controller_dir()).unwrap().get(), 1);
    }
}
