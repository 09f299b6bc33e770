//! Partitions that are being opened while the world changes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kaas_broker::config::{BrokerConfigs, ConfigMap};
use kaas_broker::partitions::{Keeper, Partitions};
use kaas_control::ControlError;
use kaas_control::election::{Controller, ControllerSettings};
use kaas_control::metadata::{FileStore, FileStoreSettings, MetadataStore, NewTopic, Topic};
use kaas_engine::batch::{BatchOptions, SimpleRecord, data_batch};
use kaas_engine::{AppendOptions, Engine, EngineSettings, Partition, SystemClock};
use kaas_fault_injection::faulty::{Effect, Faulty, Hook, Point, Rule, Rules, Stall, Verdict};
use kaas_substrate::{ErrorClass, Memory, Substrate};

const PATIENCE: Duration = Duration::from_secs(30);

/// What a broker has of partitions, on a volume in memory.
struct World {
    controller: Arc<Controller>,
    layers: BrokerConfigs,
    partitions: Arc<Partitions>,
    store: FileStore,
}

impl World {
    fn new(hook: Arc<dyn Hook>) -> Self {
        Self::with(hook, EngineSettings::default())
    }

    fn with(hook: Arc<dyn Hook>, engine_settings: EngineSettings) -> Self {
        let substrate: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::new(Memory::new()), hook));
        let settings = ControllerSettings { node_id: 1, cluster_id: None, ignore_lock: false };
        let controller = Arc::new(Controller::start(Arc::clone(&substrate), &settings).unwrap());
        let engine = Engine::open(Arc::clone(&substrate), engine_settings, Arc::new(SystemClock)).unwrap();
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

    /// Appends to the partition until it takes a record; the offset it got, and the partition that took it.
    async fn append(&self, topic: &Arc<Topic>) -> (i64, Arc<Partition>) {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Ok(partition) = self.partitions.get(topic, 0).await {
                let batch = data_batch(&[SimpleRecord::of_value("x")], &BatchOptions::default()).unwrap();
                if let Ok(ticket) = partition.append(&batch, AppendOptions::default())
                    && let Ok(appended) = ticket.await.unwrap()
                {
                    return (appended.base_offset.0, partition);
                }
            }
            assert!(Instant::now() < until, "it takes no records");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
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

/// Every call that a client of CephFS makes which the cluster has shut out.
const CALLS: [Point; 19] = [
    Point::CreateDir,
    Point::List,
    Point::Rename,
    Point::RemoveFile,
    Point::SyncDir,
    Point::SyncTree,
    Point::Open,
    Point::Create,
    Point::MakeDurable,
    Point::CreateRecords,
    Point::OpenRecords,
    Point::Space,
    Point::Read,
    Point::Write,
    Point::SyncData,
    Point::Length,
    Point::ReadRecords,
    Point::WriteRecords,
    Point::ExtendRecords,
];

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_was_shut_out_of_its_volume_leads_again_once_it_is_let_in() {
    let rules = Rules::new([]);
    let world = World::new(Arc::clone(&rules) as _);
    let topic = world.topic();
    let (offset, before) = world.append(&topic).await;
    assert_eq!(offset, 0);
    for point in CALLS {
        rules.add(Rule::nth(point, 1, Verdict::Fail(ErrorClass::Fenced)).times(u64::MAX / 2));
    }
    let epoch = world.controller.current();
    let batch = data_batch(&[SimpleRecord::of_value("lost")], &BatchOptions::default()).unwrap();
    before.append(&batch, AppendOptions::default()).unwrap().await.unwrap().unwrap_err();
    for _ in 0..5 {
        world.partitions.get(&topic, 0).await.unwrap_err();
        let new = NewTopic { name: "refused".into(), partitions: 1, config: ConfigMap::new() };
        world.store.create_topic(&new).unwrap_err();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(world.controller.current(), epoch, "no epochs are used up meanwhile");

    rules.clear();
    let (offset, after) = world.append(&topic).await;
    assert_eq!(offset, 1);
    assert!(after.epoch() > before.epoch());
    let new = NewTopic { name: "created".into(), partitions: 1, config: ConfigMap::new() };
    world.store.create_topic(&new).unwrap();
}

/// What was open before is of no use any more, what is opened now works: a client of the volume that has come back by
/// itself after it was shut out.
#[derive(Debug)]
struct DeadHandles {
    /// Of the fences below it.
    dir: &'static str,
    are_dead: AtomicBool,
}

impl DeadHandles {
    fn below(dir: &'static str) -> Arc<Self> {
        Arc::new(Self { dir, are_dead: AtomicBool::new(false) })
    }
}

impl Hook for DeadHandles {
    fn before(&self, point: Point, path: &Path) -> Verdict {
        let is_fence = path.starts_with(self.dir) && path.ends_with("fence");
        match point {
            Point::OpenRecords if is_fence => self.are_dead.store(false, Ordering::SeqCst),
            Point::ReadRecords if is_fence && self.are_dead.load(Ordering::SeqCst) => {
                return Verdict::Errno { number: 9, effect: Effect::Nothing };
            }
            _ => {}
        }
        Verdict::Pass
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_fence_cannot_be_read_any_more_opens_it_anew() {
    let handles = DeadHandles::below("topics");
    let settings = EngineSettings { fence_limit_ms: 500, ..EngineSettings::default() };
    let world = World::with(Arc::clone(&handles) as _, settings);
    let topic = world.topic();
    let (_, before) = world.append(&topic).await;
    handles.are_dead.store(true, Ordering::SeqCst);
    let (offset, after) = world.append(&topic).await;
    // The one in doubt was on the volume.
    assert_eq!(offset, 2);
    assert!(after.epoch() > before.epoch());
}

#[test]
fn a_controller_whose_fence_cannot_be_read_any_more_opens_it_anew() {
    let handles = DeadHandles::below("cluster");
    let world = World::new(Arc::clone(&handles) as _);
    let epoch = world.controller.current();
    handles.are_dead.store(true, Ordering::SeqCst);
    let new = NewTopic { name: "orders".into(), partitions: 1, config: ConfigMap::new() };
    let until = Instant::now() + PATIENCE;
    let mut refusals = 0;
    // It is only asked again at first. What was refused may have been done.
    while let Err(error) = world.store.create_topic(&new) {
        if matches!(error, ControlError::TopicExists { .. }) {
            break;
        }
        assert!(matches!(error, ControlError::FenceUnknown { .. }), "{error}");
        assert!(Instant::now() < until, "{error}");
        refusals += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(refusals > 0);
    assert!(world.controller.current() > epoch);
    assert!(world.store.topics().get("orders").is_some());
}
