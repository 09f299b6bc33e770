//! The metadata store: which topics exist, and what is configured.
//!
//! One trait, [`MetadataStore`], with one implementation a mode: [`FileStore`] keeps files under the data
//! directory (standalone and shared volume); Kubernetes will keep custom resources. What is known is published as
//! immutable snapshots, so that readers never wait: [`TopicsSnapshot`] and [`BrokerOverrides`].
//!
//! Configs are text here: names and values that somebody else has validated.

/// The directory of topics, relative to the data directory; also the root of the engine.
pub use kaas_engine::layout::TOPICS_DIR;

mod files;
mod name;
mod snapshot;
mod store;
mod topic_id;

pub use files::{FileStore, FileStoreSettings};
pub use name::{MAX_NAME_BYTES, NameError, collision_key, is_internal, validate_name};
pub use snapshot::{BrokerOverrides, Topic, TopicsSnapshot};
pub use store::{
    BrokerScope, ConfigMap, Fence, MetadataStore, MetadataWatcher, NewTopic, PartitionKeeper, Subscription,
};
pub use topic_id::TopicId;
