//! Requests: one file each, which decodes nothing and knows no socket: it takes a decoded request and gives the
//! answer. [`registry`] says which exist, in which versions; [`error`] alone picks Kafka's error codes.

mod api_versions;
mod configs;
mod create_partitions;
mod create_topics;
mod delete_groups;
mod delete_records;
mod delete_topics;
mod describe_cluster;
mod describe_groups;
mod describe_log_dirs;
mod describe_topic_partitions;
pub mod error;
mod fetch;
mod find_coordinator;
mod heartbeat;
mod init_producer_id;
mod join_group;
mod leave_group;
mod list_groups;
mod list_offsets;
mod metadata;
mod offset_commit;
mod offset_delete;
mod offset_fetch;
mod offset_for_leader_epoch;
pub mod operations;
mod produce;
pub mod registry;
mod service;
mod sync_group;
pub mod topics;

use std::sync::Arc;

use kaas_control::metadata::Topic;
use kaas_engine::Partition;
use kaas_protocol::{ErrorCode, KString};

use self::error::Failure;
use crate::net::Peer;
use crate::server::Broker;

pub use fetch::{SessionLimits, Sessions};
pub use service::Requests;

/// A request's surroundings.
#[derive(Debug, Clone)]
pub struct Context {
    /// Everything this process has.
    pub broker: Arc<Broker>,
    /// Who asks, and on which listener.
    pub peer: Arc<Peer>,
    /// Version of the request and of its answer; within what the registry serves.
    pub version: i16,
    /// What the client calls itself. Keeps the frame alive: copy what outlives the request.
    pub client_id: Option<KString>,
}

impl Context {
    /// The client's address, as Kafka shows it in descriptions of groups.
    pub fn client_host(&self) -> String {
        format!("/{}", self.peer.address.ip().to_canonical())
    }

    /// The client id as text; empty if there is none.
    pub fn client_id(&self) -> &str {
        self.client_id.as_deref().unwrap_or_default()
    }

    /// A partition, opened if it is not.
    pub async fn open(&self, topic: &Arc<Topic>, index: i32) -> Result<Arc<Partition>, Failure> {
        let partition = topics::partition(topic, index)?;
        self.broker.partitions.get(topic, partition).await.map_err(|e| error::open(&e))
    }

    /// Has partitions opened side by side, if there are several and some are not open, before they are asked for one
    /// by one.
    pub fn prepare(&self, topic: &Arc<Topic>, indexes: impl ExactSizeIterator<Item = i32>) {
        if indexes.len() > 1 {
            for partition in indexes.filter_map(|index| topics::partition(topic, index).ok()) {
                self.broker.partitions.prepare(topic, partition);
            }
        }
    }

    /// Runs a blocking read on the engine's I/O threads. It must not wait for other work of theirs.
    pub async fn read_blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let busy = || Failure::bare(ErrorCode::KAFKA_STORAGE_ERROR);
        let ticket = self.broker.engine.io().run(read).map_err(|_| busy())?;
        ticket.await.map_err(|_| busy())
    }
}
