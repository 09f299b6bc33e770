//! Config files: read at the start, rewritten as new versions.

use std::sync::Arc;

pub(super) use kaas_engine::layout::TOPIC_CONFIG as CONFIG;
use kaas_engine::layout::TopicConfigFile;
use kaas_engine::manifest::versioned::{self, FileKind, FileVersion};
use kaas_substrate::Substrate;

use super::super::{BrokerOverrides, BrokerScope, ConfigMap, Topic};
use super::{FileStore, cluster_dir, topic_dir, version_after};
use crate::ControlError;

/// `broker-configs.<epoch>.<n>.json` of the cluster.
const BROKER_CONFIGS: FileKind = FileKind::json("broker-configs", 1);

/// What a topic's config file says.
pub(super) type ConfigFile = TopicConfigFile<ConfigMap>;

/// The dynamic broker configs and the version of their file.
pub(super) fn read_broker_overrides(
    substrate: &dyn Substrate,
) -> Result<(Option<FileVersion>, BrokerOverrides), ControlError> {
    match versioned::read_highest(substrate, cluster_dir(), BROKER_CONFIGS)? {
        Some((version, overrides)) => Ok((Some(version), overrides)),
        None => Ok((None, BrokerOverrides::default())),
    }
}

/// Changes a topic's own configs. The caller is alone with the topic.
pub(super) fn alter_topic(
    store: &FileStore,
    topic: &Arc<Topic>,
    change: &mut dyn FnMut(&ConfigMap) -> Option<ConfigMap>,
) -> Result<Arc<Topic>, ControlError> {
    let Some(config) = change(&topic.config).filter(|config| *config != *topic.config) else {
        return Ok(Arc::clone(topic));
    };
    let dir = topic_dir(&topic.name);
    let epoch = store.fence.epoch();
    let version = {
        let mut state = store.state.lock();
        let version = version_after(state.config_versions.get(&topic.id).copied(), epoch);
        // Before it is tried: what fails half-way may be there, and its name is not used again.
        state.config_versions.insert(topic.id, version);
        version
    };
    let file = ConfigFile { config };
    versioned::write(store.substrate.as_ref(), &dir, CONFIG, version, &file)?;
    store.fence.check()?;
    let changed = Arc::new(Topic { config: Arc::new(file.config), ..(**topic).clone() });
    store.publish(&changed);
    collect(store, &dir, CONFIG, version);
    Ok(changed)
}

/// Changes the configs of one broker or of all. The caller is alone with them.
pub(super) fn alter_broker(
    store: &FileStore,
    scope: BrokerScope,
    change: &mut dyn FnMut(&ConfigMap) -> Option<ConfigMap>,
) -> Result<Arc<BrokerOverrides>, ControlError> {
    let current = store.broker_overrides.load_full();
    let before = current.scope(scope);
    let Some(config) = change(&before).filter(|config| *config != before) else {
        return Ok(current);
    };
    let mut next = (*current).clone();
    match scope {
        BrokerScope::All => next.all = config,
        BrokerScope::Broker(id) if config.is_empty() => {
            next.brokers.remove(&id);
        }
        BrokerScope::Broker(id) => {
            next.brokers.insert(id, config);
        }
    }
    let epoch = store.fence.epoch();
    let version = {
        let mut state = store.state.lock();
        let version = version_after(state.broker_config_version, epoch);
        state.broker_config_version = Some(version);
        version
    };
    versioned::write(store.substrate.as_ref(), cluster_dir(), BROKER_CONFIGS, version, &next)?;
    store.fence.check()?;
    let next = Arc::new(next);
    store.broker_overrides.store(Arc::clone(&next));
    store.watchers.notify();
    collect(store, cluster_dir(), BROKER_CONFIGS, version);
    Ok(next)
}

/// Removes older versions, after the fence was found in order. What stays is removed by the next change.
fn collect(store: &FileStore, dir: &std::path::Path, kind: FileKind, keep: FileVersion) {
    if let Err(error) = versioned::remove_below(store.substrate.as_ref(), dir, kind, keep) {
        tracing::warn!(dir = %dir.display(), %error, "older config versions left behind");
    }
}
