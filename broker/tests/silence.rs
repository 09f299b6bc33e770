//! Calls that do not return are known, whoever waits for them: the controller's claim, the metadata store, the opening of a
//! partition, the slots of groups. `frozen_disk` has what the log of a broker says of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kaas_broker::config::{BrokerConfigs, ConfigMap};
use kaas_broker::group::JournalLogs;
use kaas_broker::group::log::GroupLogs;
use kaas_broker::partitions::{Keeper, Partitions};
use kaas_broker::server::{Calls, Watched};
use kaas_control::election::{Controller, ControllerSettings};
use kaas_control::metadata::{FileStore, FileStoreSettings, MetadataStore, NewTopic};
use kaas_engine::io::{IoPool, IoPoolSettings};
use kaas_engine::journal::JournalSettings;
use kaas_engine::{Engine, EngineSettings, Reserve, SystemClock};
use kaas_fault_injection::faulty::{Faulty, Point, Stall, Verdict};
use kaas_substrate::{Memory, Operation, Substrate};

const LONG: Duration = Duration::from_secs(20);

/// A volume on which calls of one kind can be held, and the calls on it.
struct Volume {
    gate: Arc<Stall>,
    calls: Arc<Calls>,
    substrate: Arc<dyn Substrate>,
}

impl Volume {
    fn new(point: Point, part: &str) -> Self {
        let gate = Stall::new(point, part);
        let calls = Arc::new(Calls::default());
        let faulty = Arc::new(Faulty::new(Arc::new(Memory::new()), Arc::clone(&gate) as _));
        let substrate = Arc::new(Watched::new(faulty, Arc::clone(&calls)));
        Self { gate, calls, substrate }
    }

    fn controller(&self) -> Arc<Controller> {
        let settings = ControllerSettings { node_id: 1, cluster_id: None, ignore_lock: true };
        Arc::new(Controller::start(Arc::clone(&self.substrate), &settings).unwrap())
    }

    fn engine(&self) -> Engine {
        Engine::open(Arc::clone(&self.substrate), EngineSettings::default(), Arc::new(SystemClock)).unwrap()
    }

    /// `work` is held at the call, which is known while it lasts, and not any more after that.
    fn holds<T: Send>(&self, operation: Operation, path: &str, work: impl FnOnce() -> T + Send) -> T {
        assert_eq!(self.calls.waiting(Duration::ZERO), None);
        self.gate.close();
        let done = std::thread::scope(|scope| {
            let working = scope.spawn(work);
            assert!(self.gate.wait_until_held(1, LONG), "{path} is not reached");
            let waiting = self.calls.waiting(Duration::ZERO);
            let waiting_long = self.calls.waiting(LONG);
            // Before anything is judged: a test that fails must not hang.
            self.gate.release(Verdict::Pass);
            let found = waiting.map(|waiting| (waiting.operation, waiting.path));
            assert_eq!(found, Some((operation, PathBuf::from(path))));
            assert_eq!(waiting_long, None);
            working.join().unwrap()
        });
        assert_eq!(self.calls.waiting(Duration::ZERO), None);
        done
    }
}

#[test]
fn the_claim_of_the_controller() {
    let volume = Volume::new(Point::OpenRecords, "controller/fence");
    volume.holds(Operation::Open, "cluster/controller/fence", || volume.controller());
}

#[test]
fn the_metadata_store_and_the_opening_of_a_partition() {
    let volume = Volume::new(Point::Open, "orders/0/partition.json");
    let (controller, engine) = (volume.controller(), volume.engine());
    let layers = BrokerConfigs::new(1, ConfigMap::new()).unwrap();
    let partitions = Arc::new(Partitions::new(engine, Arc::clone(&controller), layers, 4));
    let keeper = Arc::new(Keeper::new(Arc::clone(&partitions)));
    let store =
        FileStore::open(Arc::clone(&volume.substrate), controller, keeper, FileStoreSettings::default())
            .unwrap();
    let new = NewTopic { name: "orders".into(), partitions: 1, config: ConfigMap::new() };
    let topic = store.create_topic(&new).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    volume.holds(Operation::Open, "topics/orders/0/partition.json", || {
        runtime.block_on(partitions.get(&topic, 0)).unwrap();
    });

    let volume = Volume::new(Point::SyncDir, "topics");
    let (controller, engine) = (volume.controller(), volume.engine());
    let layers = BrokerConfigs::new(1, ConfigMap::new()).unwrap();
    let partitions = Arc::new(Partitions::new(engine, Arc::clone(&controller), layers, 4));
    let keeper = Arc::new(Keeper::new(partitions));
    let store =
        FileStore::open(Arc::clone(&volume.substrate), controller, keeper, FileStoreSettings::default())
            .unwrap();
    volume.holds(Operation::SyncDir, "topics", || store.create_topic(&new).unwrap());
}

#[test]
fn a_slot_of_groups() {
    let volume = Volume::new(Point::OpenRecords, "groups/03/fence");
    let io = Arc::new(IoPool::new(IoPoolSettings::default()).unwrap());
    let reserve = Arc::new(Reserve::new(Arc::clone(&volume.substrate)));
    let logs = JournalLogs::new(
        Arc::clone(&volume.substrate),
        volume.controller(),
        io,
        JournalSettings::default(),
        reserve,
    );
    let runtime = tokio::runtime::Runtime::new().unwrap();
    volume.holds(Operation::Open, "slots/groups/03/fence", || {
        runtime.block_on(logs.open(3)).map(|_| ()).unwrap();
    });
}
