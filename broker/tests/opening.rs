//! Partitions that are being opened while the world changes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kaas_broker::config::{BrokerConfigs, ConfigMap};
use kaas_broker::partitions::{Keeper, Partitions};
use kaas_control::election::{Controller, ControllerSettings};
use kaas_control::metadata::{FileStore, FileStoreSettings, MetadataStore, NewTopic};
use kaas_engine::{Engine, EngineSettings, SystemClock};
use kaas_fault_injection::faulty::{Faulty, Hook, Point, Verdict};
use kaas_substrate::{Memory, Substrate};
use parking_lot::{Condvar, Mutex};

/// Holds the opening of partitions while it is closed.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Hook for Gate {
    fn before(&self, point: Point, path: &Path) -> Verdict {
        if point == Point::Open && path.ends_with("partition.json") {
            let mut state = self.state.lock();
            state.1 += 1;
            while state.0 {
                self.changed.wait(&mut state);
            }
        }
        Verdict::Pass
    }
}

impl Gate {
    fn close(&self) {
        self.state.lock().0 = true;
    }

    fn open(&self) {
        self.state.lock().0 = false;
        self.changed.notify_all();
    }

    fn wait_until_held(&self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.state.lock().1 == 0 {
            assert!(Instant::now() < deadline, "nobody opens the partition");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn configs_that_change_while_a_partition_is_opened_hold_for_it() {
    let gate = Arc::new(Gate::default());
    let hook: Arc<dyn Hook> = Arc::clone(&gate) as _;
    let substrate: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::new(Memory::new()), hook));
    let settings = ControllerSettings { node_id: 1, cluster_id: None, ignore_lock: false };
    let controller = Arc::new(Controller::start(Arc::clone(&substrate), &settings).unwrap());
    let engine =
        Engine::open(Arc::clone(&substrate), EngineSettings::default(), Arc::new(SystemClock)).unwrap();
    let layers = BrokerConfigs::new(1, ConfigMap::new()).unwrap();
    let partitions = Arc::new(Partitions::new(engine, Arc::clone(&controller), layers.clone(), 4));
    let store = FileStore::open(
        Arc::clone(&substrate),
        Arc::<Controller>::clone(&controller),
        Arc::new(Keeper::new(Arc::clone(&partitions))),
        FileStoreSettings::default(),
    )
    .unwrap();
    let new = NewTopic { name: "orders".into(), partitions: 1, config: ConfigMap::new() };
    let topic = store.create_topic(&new).unwrap();

    gate.close();
    partitions.prepare(&topic, 0);
    gate.wait_until_held();
    let mut change = |_: &ConfigMap| Some(ConfigMap::from([("segment.ms".to_owned(), "12345".to_owned())]));
    store.alter_topic_config("orders", &mut change).unwrap();
    let topics = store.topics();
    partitions.apply_configs(&layers, |id| topics.get_by_id(id).cloned());
    gate.open();
    let partition = partitions.get(&topic, 0).await.unwrap();
    assert_eq!(partition.config().segment_ms, 12_345);
}
