//! Starting: from options to a broker that serves.
//!
//! In this order, so that a mistake touches nothing: the configs are checked, the addresses bound, the data
//! directory opened (lock, format, identity), then the rest. Nobody is answered before everything is there.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use kaas_control::election::{Controller, ControllerSettings};
use kaas_control::metadata::{FileStore, FileStoreSettings, MetadataStore};
use kaas_control::producer_ids::ProducerIds;
use kaas_engine::io::{IoPool, IoPoolSettings};
use kaas_engine::journal::JournalSettings;
use kaas_engine::layout::{CLUSTER_DIR, SLOTS_DIR, TOPICS_DIR};
use kaas_engine::{CleanerSettings, Engine, EngineSettings, Reserve, SystemClock};
use kaas_substrate::recognise::{self, Choice, Family, Mount};
use kaas_substrate::{Memory, Operation, Substrate};
use tokio::sync::Notify;
use tracing::{info, warn};

use super::silence::tell_silence;
use super::watched::{Calls, Watched};
use super::{Broker, Configs, HostPort, Options, StartError, SubstrateKind};
use crate::api::Sessions;
use crate::config::{BrokerConfigs, ConfigMap, EffectiveBrokerConfig};
use crate::group::state::GroupConfig;
use crate::group::{GroupCoordinator, JournalLogs};
use crate::net::{self, Bound, ConnectionLimits, ListenerError, Shutdown};
use crate::partitions::{Keeper, Partitions};

/// Threads for changes of metadata.
const METADATA_THREADS: usize = 4;
/// Threads for the journals of the groups. Apart from the engine's, so that busy partitions do not hold up commits.
const GROUP_THREADS: usize = 8;
/// Configs that flags of their own decide.
const DECIDED_BY_FLAGS: [(&str, &str); 5] = [
    ("listeners", "--listen"),
    ("advertised.listeners", "--advertised"),
    ("log.dirs", "--data-dir"),
    ("node.id", "--node-id"),
    ("broker.id", "--node-id"),
];

/// A broker that is ready to serve, with its sockets bound and its data directory open.
#[derive(Debug)]
pub struct Started {
    pub(super) broker: Arc<Broker>,
    pub(super) bound: Vec<Bound>,
    pub(super) settings: Arc<net::Settings>,
    /// What clients on this machine connect to first.
    pub bootstrap: HostPort,
}

/// Opens everything. Blocks; not to be called on a runtime's thread.
pub fn start(options: &Options) -> Result<Started, StartError> {
    let configs = Configs::of(static_configs(options)?)?;
    let settings = Arc::new(net_settings(options, &configs));
    let (bound, bootstrap) = bind(options, &settings)?;
    let Volume { substrate, dir: data_dir, first_start_on } = open_volume(options)?;
    let failed = |source| StartError::Data { dir: data_dir.clone(), source };

    let controller_settings = ControllerSettings {
        node_id: options.node_id,
        cluster_id: options.cluster_id.clone(),
        ignore_lock: options.ignore_lock,
    };
    let start = || Controller::start(Arc::clone(&substrate), &controller_settings);
    // A full volume must not keep the broker from starting: how else would records be deleted?
    let controller = Arc::new(Reserve::new(Arc::clone(&substrate)).with(start).map_err(failed)?);
    if let Some(mount) = first_start_on {
        warn!(
            data_dir = %data_dir.display(), cluster_id = %controller.cluster_id(), file_system = mount.file_system,
            mounted_on = %mount.point.display(), device = mount.source,
            hint = "if there should be data, stop kaas and mount its volume; --require-data refuses to start without data",
            "the data directory was empty: this is a new cluster"
        );
    }
    let engine_settings = engine_settings(&configs);
    let io_threads = engine_settings.io.max_threads;
    let engine = Engine::open(Arc::clone(&substrate), engine_settings, Arc::new(SystemClock))
        .map_err(StartError::Threads)?;
    if !options.memory
        && let Err(error) = engine.reserve().replenish()
    {
        warn!(%error, "no space is put aside for when the volume is full");
    }
    let partitions =
        Partitions::new(engine.clone(), Arc::clone(&controller), configs.layers.clone(), io_threads);
    let partitions = Arc::new(partitions);
    let keeper = Arc::new(Keeper::new(Arc::clone(&partitions)));
    let store = FileStore::open(
        Arc::clone(&substrate),
        Arc::<Controller>::clone(&controller),
        keeper,
        FileStoreSettings::default(),
    );
    let store: Arc<dyn MetadataStore> = Arc::new(store.map_err(failed)?);
    let groups_pool =
        IoPoolSettings { name: "kaas-groups", max_threads: GROUP_THREADS, ..IoPoolSettings::default() };
    let groups = JournalLogs::new(
        Arc::clone(&substrate),
        Arc::<Controller>::clone(&controller),
        Arc::new(IoPool::new(groups_pool).map_err(StartError::Threads)?),
        JournalSettings::default(),
        Arc::clone(engine.reserve()),
    );
    let groups = GroupCoordinator::new(group_config(&configs), Arc::new(groups))?;
    let producer_ids = ProducerIds::open(substrate, Arc::<Controller>::clone(&controller)).map_err(failed)?;
    let pool =
        IoPoolSettings { name: "kaas-meta", max_threads: METADATA_THREADS, ..IoPoolSettings::default() };
    let cleaner_pool = IoPoolSettings {
        name: "kaas-cleaner",
        max_threads: usize::try_from(configs.effective.log_cleaner_threads).unwrap_or(usize::MAX),
        ..IoPoolSettings::default()
    };
    let broker = Broker {
        node_id: options.node_id,
        advertised: advertised(options, &bootstrap),
        data_dir: data_dir.display().to_string(),
        controller,
        store,
        producer_ids: Arc::new(producer_ids),
        engine,
        partitions,
        groups,
        fetch_sessions: Sessions::default(),
        metadata_io: IoPool::new(pool).map_err(StartError::Threads)?,
        cleaner_io: IoPool::new(cleaner_pool).map_err(StartError::Threads)?,
        connection_limits: Arc::new(ConnectionLimits::default()),
        shutdown: Shutdown::default(),
        sweep: Notify::new(),
        configs: ArcSwap::from_pointee(configs),
    };
    broker.apply_configs();
    let topics = broker.store.topics();
    info!(
        data_dir = %broker.data_dir, cluster_id = %broker.cluster_id(), node_id = broker.node_id,
        epoch = %broker.controller.current(), topics = topics.len(), partitions = topics.partitions(),
        "data directory opened"
    );
    Ok(Started { broker: Arc::new(broker), bound, settings, bootstrap })
}

fn static_configs(options: &Options) -> Result<BrokerConfigs, StartError> {
    let mut fixed = ConfigMap::new();
    for setting in &options.set {
        if let Some((name, flag)) = DECIDED_BY_FLAGS.iter().find(|(name, _)| *name == setting.name) {
            return Err(StartError::DecidedByFlag { name, flag });
        }
        fixed.insert(setting.name.clone(), setting.value.clone());
    }
    let dir = if options.memory { "memory".to_owned() } else { options.data_dir.display().to_string() };
    fixed.insert("listeners".to_owned(), format!("PLAINTEXT://{}", options.listen));
    fixed.insert("log.dirs".to_owned(), dir);
    fixed.insert("node.id".to_owned(), options.node_id.to_string());
    fixed.insert("broker.id".to_owned(), options.node_id.to_string());
    if let Some(advertised) = &options.advertised {
        fixed.insert("advertised.listeners".to_owned(), format!("PLAINTEXT://{advertised}"));
    }
    Ok(BrokerConfigs::new(options.node_id, fixed)?)
}

fn net_settings(options: &Options, configs: &Configs) -> net::Settings {
    let effective = &configs.effective;
    let size = |bytes: u32| usize::try_from(bytes).unwrap_or(usize::MAX);
    let defaults = net::Settings::default();
    net::Settings {
        request_max_bytes: size(effective.socket_request_max_bytes),
        queued_request_bytes: size(options.request_memory_mib).saturating_mul(1 << 20),
        idle: effective
            .connections_max_idle_ms
            .map_or(std::time::Duration::MAX, std::time::Duration::from_millis),
        ..defaults
    }
}

fn engine_settings(configs: &Configs) -> EngineSettings {
    let defaults = EngineSettings::default();
    let max_threads = usize::try_from(configs.effective.num_io_threads).unwrap_or(usize::MAX);
    EngineSettings {
        io: IoPoolSettings { max_threads, ..defaults.io },
        producer_id_expiration_ms: i64::from(configs.effective.producer_id_expiration_ms),
        cleaner: cleaner_settings(&configs.effective),
        ..defaults
    }
}

fn cleaner_settings(effective: &EffectiveBrokerConfig) -> CleanerSettings {
    let size = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    CleanerSettings {
        threads: size(effective.log_cleaner_threads.into()),
        dedupe_buffer_bytes: size(effective.log_cleaner_dedupe_buffer_size),
        load_factor: effective.log_cleaner_io_buffer_load_factor,
        io_buffer_bytes: size(effective.log_cleaner_io_buffer_size.into()),
        max_bytes_per_second: bytes_per_second(effective.log_cleaner_io_max_bytes_per_second),
        ..CleanerSettings::default()
    }
}

/// A rate in whole bytes; `None` for one that nothing reaches.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
fn bytes_per_second(rate: f64) -> Option<u64> {
    // The cast saturates, and is 0 below it.
    (rate < u64::MAX as f64).then_some(rate as u64)
}

fn group_config(configs: &Configs) -> GroupConfig {
    let effective = &configs.effective;
    let defaults = GroupConfig::default();
    let size = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
    let timeout = |ms: u32| i32::try_from(ms).unwrap_or(i32::MAX);
    GroupConfig {
        initial_rebalance_delay_ms: effective.group_initial_rebalance_delay_ms,
        min_session_timeout_ms: timeout(effective.group_min_session_timeout_ms),
        max_session_timeout_ms: timeout(effective.group_max_session_timeout_ms),
        max_size: size(effective.group_max_size),
        offset_metadata_max_bytes: size(effective.offset_metadata_max_bytes),
        offsets_retention_ms: i64::from(effective.offsets_retention_minutes).saturating_mul(60_000),
        offsets_retention_check_interval_ms: effective.offsets_retention_check_interval_ms,
        ..defaults
    }
}

/// Binds every address of the host to one port.
fn bind(options: &Options, settings: &net::Settings) -> Result<(Vec<Bound>, HostPort), StartError> {
    let listen = &options.listen;
    let resolved = (listen.host.as_str(), listen.port).to_socket_addrs();
    let resolved = resolved.map_err(|source| StartError::Resolve { listen: listen.clone(), source })?;
    let mut addresses: Vec<SocketAddr> = resolved.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    addresses.dedup();
    let mut bound: Vec<Bound> = Vec::new();
    let mut port = listen.port;
    for mut address in addresses {
        address.set_port(port);
        match net::bind(address, settings) {
            Ok(socket) => {
                port = socket.address().port();
                bound.push(socket);
            }
            // A host name may have addresses that this machine has not (::1 without IPv6); one is enough. A port
            // that is taken on any of them would lead clients astray.
            Err(ListenerError::Bind { address, source }) if !bound.is_empty() => {
                info!(%address, %source, "not listening there");
            }
            Err(error) => return Err(error.into()),
        }
    }
    if bound.is_empty() {
        let source = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(StartError::Resolve { listen: listen.clone(), source });
    }
    let host = if is_wildcard(&listen.host) { "localhost" } else { &listen.host };
    Ok((bound, HostPort { host: host.to_owned(), port }))
}

fn is_wildcard(host: &str) -> bool {
    host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_unspecified())
}

fn advertised(options: &Options, bootstrap: &HostPort) -> Option<HostPort> {
    match &options.advertised {
        Some(advertised) => Some(advertised.clone()),
        None if is_wildcard(&options.listen.host) => None,
        None => Some(bootstrap.clone()),
    }
}

/// What the data is on.
struct Volume {
    substrate: Arc<dyn Substrate>,
    dir: PathBuf,
    /// The mount, if there is no data there yet.
    first_start_on: Option<Mount>,
}

/// Opens the volume. The log is told if that, or any later call, does not return.
fn open_volume(options: &Options) -> Result<Volume, StartError> {
    if options.memory {
        let (substrate, dir) = (Arc::new(Memory::new()), PathBuf::from("memory"));
        return Ok(Volume { substrate, dir, first_start_on: None });
    }
    let dir = std::path::absolute(&options.data_dir).unwrap_or_else(|_| options.data_dir.clone());
    let calls = Arc::new(Calls::default());
    tell_silence(&calls, &dir).map_err(StartError::Threads)?;
    let opened = calls.watch(Operation::Open, &Arc::from(dir.as_path()), || open_directory(options, &dir));
    let (substrate, first_start_on) = opened?;
    Ok(Volume { substrate: Arc::new(Watched::new(substrate, calls)), dir, first_start_on })
}

/// Where there is one of these, there is data, even if what says which cluster it is of is gone.
const DATA_DIRS: [&str; 3] = [CLUSTER_DIR, TOPICS_DIR, SLOTS_DIR];

/// The data directory as a substrate, and the mount if there is no data there.
fn open_directory(options: &Options, dir: &Path) -> Result<(Arc<dyn Substrate>, Option<Mount>), StartError> {
    let failed = |source| StartError::Directory { dir: dir.to_owned(), source };
    let mount = recognise::recognise(dir).map_err(failed)?;
    if recognise::is_in_memory(&mount.file_system) {
        warn!(
            file_system = %mount.file_system, mounted_on = %mount.point.display(),
            "this file system is in memory: nothing survives a restart of the host"
        );
    }
    let choice = match options.substrate {
        SubstrateKind::Auto if mount.family == Family::Unknown => {
            warn!(
                file_system = %mount.file_system, mounted_on = %mount.point.display(),
                "this file system is not known to keep what kaas needs; it is taken for one of this host"
            );
            Choice::Local
        }
        SubstrateKind::Auto => Choice::Recognise,
        SubstrateKind::Local => Choice::Local,
        SubstrateKind::Nfs => Choice::Nfs,
        SubstrateKind::Cephfs => Choice::CephFs,
    };
    // Not opened for writing yet, which makes the directory. Other errors come up again then.
    let names = recognise::open_to_read(dir).and_then(|volume| volume.list(Path::new("")));
    let has_no_data = match names {
        Ok(entries) => !entries.iter().any(|entry| DATA_DIRS.iter().any(|dir| entry.name == *dir)),
        Err(error) => error.is_not_found(),
    };
    if has_no_data && options.require_data {
        let Mount { file_system, point: mounted_on, .. } = mount;
        return Err(StartError::NoData { dir: dir.to_owned(), file_system, mounted_on });
    }
    let substrate = recognise::open(dir, choice).map_err(|error| match error {
        recognise::OpenError::Storage(source) => failed(source),
        refused => StartError::Volume(refused),
    })?;
    Ok((substrate, has_no_data.then_some(mount)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_is_refused_is_a_matter_of_the_data_directory() {
        let error = StartError::Volume(recognise::OpenError::Refused {
            path: "/mnt/shared/kaas".into(),
            family: Family::Nfs,
            point: "/mnt/shared".into(),
            refusal: recognise::Refusal {
                reason: "it is mounted soft".to_owned(),
                remedy: "mount it with hard",
            },
        });
        assert_eq!(error.exit_code(), 3);
        let expected = "cannot use data directory: /mnt/shared/kaas is on NFS, mounted on /mnt/shared: it is mounted \
                        soft; mount it with hard";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn configs_that_flags_decide_have_the_flags_defaults() {
        let options = Options::read(["kaas"]).unwrap();
        let configs = static_configs(&options).unwrap();
        let definitions = crate::config::broker_definitions();
        for (name, flag) in DECIDED_BY_FLAGS {
            let definition = definitions.iter().find(|definition| definition.name == name).unwrap();
            assert_eq!(definition.default, configs.text(name).map(|(text, _)| text), "{name}, {flag}");
        }
    }

    #[test]
    fn a_directory_is_not_taken_for_what_it_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("data");
        for kind in ["nfs", "cephfs"] {
            let arguments = ["kaas", "--substrate", kind, "--data-dir"]
                .map(str::to_owned)
                .into_iter()
                .chain([data_dir.display().to_string()]);
            let options = <Options as clap::Parser>::try_parse_from(arguments).unwrap();
            let error = open_volume(&options).map(|_| ()).unwrap_err();
            assert_eq!(error.exit_code(), 3);
            assert!(error.to_string().contains("leave --substrate out"), "{error}");
        }
        assert!(!data_dir.exists(), "nothing is touched");
    }
}
