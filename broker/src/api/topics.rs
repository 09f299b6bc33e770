//! What several requests need of topics: finding them by name or id, ids between wire and store, creating one
//! that a client asked for without saying so.

use std::collections::BTreeMap;
use std::sync::Arc;

use kaas_control::ControlError;
use kaas_control::metadata::{NewTopic, Topic, TopicId};
use kaas_protocol::{ErrorCode, Uuid};

use super::error::Failure;
use crate::server::Broker;

/// The id as the store has it.
pub fn topic_id(id: Uuid) -> TopicId {
    TopicId(id.0)
}

/// The id as the wire has it.
pub fn wire_id(id: TopicId) -> Uuid {
    Uuid(id.0)
}

/// The topic a request means: by name, or by id where the version has ids instead.
pub fn find(broker: &Broker, name: &str, id: Uuid, by_id: bool) -> Result<Arc<Topic>, Failure> {
    let topics = broker.store.topics();
    let found = if by_id { topics.get_by_id(topic_id(id)) } else { topics.get(name) };
    found.cloned().ok_or_else(|| unknown(by_id))
}

/// The failure for a topic that does not exist.
pub fn unknown(by_id: bool) -> Failure {
    Failure::bare(if by_id { ErrorCode::UNKNOWN_TOPIC_ID } else { ErrorCode::UNKNOWN_TOPIC_OR_PARTITION })
}

/// The partition of a topic that a request means.
pub fn partition(topic: &Topic, index: i32) -> Result<u32, Failure> {
    u32::try_from(index)
        .ok()
        .filter(|index| *index < topic.partitions)
        .ok_or_else(|| Failure::bare(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION))
}

/// Fails while what room the volume has is for cleaning up: partitions would take it, and leave none for deletions or a
/// start of the broker.
pub fn room_for_partitions(broker: &Broker) -> Result<(), Failure> {
    if broker.engine.reserve().is_in_use() {
        let words = "The volume is full: no partitions are created until there is room.";
        return Err(Failure::new(ErrorCode::KAFKA_STORAGE_ERROR, words));
    }
    Ok(())
}

/// Creates `name` with the broker's defaults, or finds that somebody just did.
pub async fn auto_create(broker: &Arc<Broker>, name: &str) -> Result<Arc<Topic>, Failure> {
    room_for_partitions(broker)?;
    let topic = NewTopic {
        name: name.to_owned(),
        partitions: broker.configs().effective.num_partitions,
        config: BTreeMap::new(),
    };
    let store = Arc::clone(&broker.store);
    let created = broker.blocking(move || {
        let created = store.create_topic(&topic);
        match created {
            Err(ControlError::TopicExists { name }) => {
                let existing = store.topics().get(&name).cloned();
                existing.ok_or(ControlError::UnknownTopic { name })
            }
            created => created,
        }
    });
    Ok(created.await??)
}
