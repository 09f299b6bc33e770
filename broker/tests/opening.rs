//! Partitions that are being opened while the world changes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kaas_broker::config::{BrokerConfigs, ConfigMap};
use kaas_broker::partitions::{Keeper, Partitions};
use kaas_control::election::{Controller, ControllerSettings};
use kaas_control::metadata::{FileStore, FileStoreSettings, MetadataStore, NewTopic, Topic};
use kaas_engine::batch::{BatchOptions, SimpleRecord, data_batch};
use kaas_engine::{AppendOptions, Engine, EngineSettings, SystemClock};
use kaas_fault_injection::faulty::{Faulty, Hook, Point, Stall, Verdict};
use kaas_substrate::{ErrorClass, Memory, Substrate};

/// What a broker has of partitions, on a volume in memory.
struct World {
    controller: Arc<Controller>,
    layers: BrokerConfigs,
    partitions: Arc<Partitions>,
    store: FileStore,
}

impl World {
    fn new(hook: Arc<dyn Hook>) -> Self {
        let substrate: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::new(Memory::new()), hook));
        let settings = ControllerSettings { node_id: 1, cluster_id: None, ignore_lock: false };
        let controller = Arc::new(Controller::start(Arc::clone(&substrate), &settings).unwrap());
        let engine =
            Engine::open(Arc::clone(&substrate), EngineSettings::default(), Arc::new(SystemClock)).unwrap();
        let layers = BrokerConfigs::new(1, ConfigMap::new()).unwrap();
        let partitions = Arc::new(Partitions::new(engine, Arc::clone(&controller), layers.clone(), 4));
        let store = FileStore::open(
            substrate,
            Arc::<Controller>::clone(&controller),
            Arc::new(Keeper::new(Arc::clone(&partitions))),
            FileStoreSettings::default(),
        )
        .unwrap();
        Self { controller, layers, partitions, store }
    }

    fn topic(&self) -> Arc<Topic> {
        let new = NewTopic { name: "orders".into(), partitions: 1, config: ConfigMap::new() };
        self.store.create_topic(&new).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn configs_that_change_while_a_partition_is_opened_hold_for_it() {
    let gate = Stall::new(Point::Open, "partition.json");
    let world = World::new(Arc::clone(&gate) as _);
    let topic = world.topic();
    let World { layers, partitions, store, .. } = world;

    gate.close();
    partitions.prepare(&topic, 0);
    assert!(gate.wait_until_held(1, Duration::from_secs(20)), "nobody opens the partition");
    let mut change = |_: &ConfigMap| Some(ConfigMap::from([("segment.ms".to_owned(), "12345".to_owned())]));
    store.alter_topic_config("orders", &mut change).unwrap();
    let topics = store.topics();
    partitions.apply_configs(&layers, |id| topics.get_by_id(id).cloned());
    gate.release(Verdict::Pass);
    let partition = partitions.get(&topic, 0).await.unwrap();
    assert_eq!(partition.config().segment_ms, 12_345);
}

/// Fails every sync of records.
#[derive(Debug)]
struct Failing;

impl Hook for Failing {
    fn before(&self, point: Point, path: &Path) -> Verdict {
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        if point == Point::SyncData && is_log { Verdict::Fail(ErrorClass::Io) } else { Verdict::Pass }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_fails_at_once_does_not_use_up_epochs() {
    let world = World::new(Arc::new(Failing));
    let topic = world.topic();
    let mut failures = 0;
    let until = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < until {
        if let Ok(partition) = world.partitions.get(&topic, 0).await {
            let batch = data_batch(&[SimpleRecord::of_value("lost")], &BatchOptions::default()).unwrap();
            let outcome = partition.append(&batch, AppendOptions::default()).unwrap().await.unwrap();
            outcome.unwrap_err();
            failures += 1;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!((2..=3).contains(&failures), "{failures} attempts");
    assert!(world.controller.current().get() <= 4, "epoch {}", world.controller.current());
}
