//! Requests: one file each, which decodes nothing and knows no socket: it takes a decoded request and gives the
//! answer. [`registry`] says which exist, in which versions; [`error`] alone picks Kafka's error codes.

mod api_versions;
mod configs;
mod create_partitions;
mod create_topics;
mod delete_topics;
mod describe_cluster;
mod describe_topic_partitions;
pub mod error;
mod find_coordinator;
mod metadata;
pub mod operations;
pub mod registry;
mod service;
pub mod topics;

use std::sync::Arc;

use kaas_protocol::KString;

use crate::net::Peer;
use crate::server::Broker;

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
    /// The client id as text; empty if there is none.
    pub fn client_id(&self) -> &str {
        self.client_id.as_deref().unwrap_or_default()
    }
}
