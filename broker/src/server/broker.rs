//! Everything a request may need, in one place. Shared by all connections; nothing in it is replaced while the
//! process runs, what changes lies behind snapshots.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use kaas_control::election::Controller;
use kaas_control::metadata::{MetadataStore, Topic};
use kaas_control::producer_ids::ProducerIds;
use kaas_engine::Engine;
use kaas_engine::io::IoPool;
use kaas_engine::types::Epoch;
use tokio::sync::Notify;

use super::HostPort;
use crate::api::Sessions;
use crate::config::{BrokerConfigs, ConfigError, EffectiveBrokerConfig};
use crate::group::GroupCoordinator;
use crate::net::{ConnectionLimits, Peer, Shutdown};
use crate::partitions::Partitions;

/// The state of a broker.
pub struct Broker {
    /// Number of this broker.
    pub node_id: i32,
    /// What clients are told to connect to; `None`: the address that they reached us at.
    pub advertised: Option<HostPort>,
    /// Where the data is, for people and tools.
    pub data_dir: String,
    /// The controller: this process.
    pub controller: Arc<Controller>,
    /// Topics and dynamic configs.
    pub store: Arc<dyn MetadataStore>,
    /// Ids for idempotent producers.
    pub producer_ids: Arc<ProducerIds>,
    /// The log engine.
    pub engine: Engine,
    /// The partitions that are open.
    pub partitions: Arc<Partitions>,
    /// The groups that this broker coordinates.
    pub groups: GroupCoordinator,
    /// Who reads what, said once.
    pub fetch_sessions: Sessions,
    /// Threads for changes of metadata. Apart from the engine's, whose work they wait for.
    pub metadata_io: IoPool,
    /// Threads that compact logs.
    pub cleaner_io: IoPool,
    /// Limits of connections that may change while the process runs.
    pub connection_limits: Arc<ConnectionLimits>,
    /// Whether the process is about to stop.
    pub shutdown: Shutdown,
    /// Wakes the task that removes what deleted topics left behind.
    pub sweep: Notify,
    /// The configs in force.
    pub configs: ArcSwap<Configs>,
}

/// The broker's configs, as layers and as what they come to.
#[derive(Debug)]
pub struct Configs {
    /// Where each value comes from.
    pub layers: BrokerConfigs,
    /// What they come to.
    pub effective: EffectiveBrokerConfig,
}

impl Configs {
    /// What these layers come to.
    pub fn of(layers: BrokerConfigs) -> Result<Self, ConfigError> {
        let effective = layers.effective()?;
        Ok(Self { layers, effective })
    }
}

/// A blocking call could not be made: too many wait already, or the process is stopping, or the call died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many calls wait for the file system")]
pub struct Overloaded;

impl Broker {
    /// The configs in force.
    pub fn configs(&self) -> Arc<Configs> {
        self.configs.load_full()
    }

    /// The id of the cluster, the same for all brokers of a data directory, and for ever.
    pub fn cluster_id(&self) -> String {
        self.controller.cluster_id().to_string()
    }

    /// Puts into force what the store says about dynamic configs, of topics and brokers. Memory work only; to be
    /// called after every change.
    pub fn apply_configs(&self) {
        let overrides = self.store.broker_overrides();
        let own = overrides.brokers.get(&self.node_id).cloned().unwrap_or_default();
        let current = self.configs();
        match current.layers.with_overrides(overrides.all.clone(), own).and_then(Configs::of) {
            Ok(next) => self.configs.store(Arc::new(next)),
            // They were checked before they were stored; a file edited by hand may still say anything.
            Err(error) => {
                tracing::error!(%error, "the stored broker configs are invalid; keeping those in force")
            }
        }
        let configs = self.configs();
        self.connection_limits.set(
            usize::try_from(configs.effective.max_connections).unwrap_or(usize::MAX),
            usize::try_from(configs.effective.max_connections_per_ip).unwrap_or(usize::MAX),
        );
        let topics = self.store.topics();
        self.partitions.apply_configs(&configs.layers, |id| topics.get_by_id(id).cloned());
    }

    /// Runs a change of metadata on a thread for such changes.
    pub async fn blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Overloaded> {
        let ticket = self.metadata_io.run(call).map_err(|_| Overloaded)?;
        ticket.await.map_err(|_| Overloaded)
    }

    /// The epoch that `partition` of `topic` is led at, or will be when it is opened. Costs no I/O.
    pub fn leader_epoch(&self, topic: &Topic, partition: u32) -> Epoch {
        self.partitions.leader_epoch(topic.id, partition)
    }

    /// Has what deleted topics left behind removed soon.
    pub fn sweep_later(&self) {
        self.sweep.notify_one();
    }

    /// Host and port that `peer` is told to connect to.
    pub fn endpoint(&self, peer: &Peer) -> (String, i32) {
        match &self.advertised {
            Some(advertised) => (advertised.host.clone(), i32::from(advertised.port)),
            None => (peer.local.ip().to_canonical().to_string(), i32::from(peer.local.port())),
        }
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").field("node_id", &self.node_id).field("data_dir", &self.data_dir).finish()
    }
}
