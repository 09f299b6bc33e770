//! `docs/storage-errors.md`, the rows about what the controller keeps: starting, topics, configs, producer ids. See
//! `engine/tests/storage_errors`, which has the rows about partitions and slots.
//!
//! What must hold whatever the row says: what was answered as done is there after a restart; what was not can be asked for again
//! once the error has gone, without a restart; and a restart finds what is known here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../../engine/tests/storage_errors/harness.rs"]
mod harness;

use std::path::Path;
use std::sync::Arc;

use harness::{Case, Fault, Outcome, walk};
use kaas_control::ControlError;
use kaas_control::election::{Controller, ControllerSettings};
use kaas_control::metadata::{
    BrokerScope, ConfigMap, Fence, FileStore, FileStoreSettings, MetadataStore, NewTopic, PartitionKeeper,
    Topic,
};
use kaas_control::producer_ids::ProducerIds;
use kaas_engine::identity::{Identity, write_partition};
use kaas_engine::types::Epoch;
use kaas_fault_injection::faulty::{Faulty, Hook, Point};
use kaas_substrate::{Memory, Substrate};

#[derive(Debug)]
struct Keeper(Arc<dyn Substrate>);

impl PartitionKeeper for Keeper {
    fn write_new(&self, dir: &Path, topic: &Topic, partition: u32) -> Result<(), ControlError> {
        let identity = Identity { topic: topic.name.to_string(), partition, topic_id: topic.id.0 };
        write_partition(&*self.0, dir, &identity, Epoch::NONE).map_err(|error| ControlError::Partition {
            topic: topic.name.to_string(),
            partition,
            source: Box::new(error),
        })
    }

    fn take_away(&self, _: &Topic) -> Result<(), ControlError> {
        Ok(())
    }

    fn give_back(&self, _: &Topic) {}
}

struct World {
    store: FileStore,
    producer_ids: ProducerIds,
}

fn start(substrate: &Arc<dyn Substrate>) -> Result<World, ControlError> {
    // A start after a crash: nobody has let the lock go.
    let settings = ControllerSettings { node_id: 1, cluster_id: None, ignore_lock: false };
    let controller = Arc::new(Controller::start(Arc::clone(substrate), &settings)?);
    let fence: Arc<dyn Fence> = Arc::clone(&controller) as _;
    let keeper = Arc::new(Keeper(Arc::clone(substrate)));
    let settings = FileStoreSettings { birth_threads_max: 1, ..FileStoreSettings::default() };
    let store = FileStore::open(Arc::clone(substrate), Arc::clone(&fence), keeper, settings)?;
    let producer_ids = ProducerIds::open(Arc::clone(substrate), fence)?;
    Ok(World { store, producer_ids })
}

struct Bench {
    clean: Arc<dyn Substrate>,
    faulty: Arc<dyn Substrate>,
    world: Option<World>,
}

fn map(entries: &[(&str, &str)]) -> ConfigMap {
    entries.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn new_topic(name: &str) -> NewTopic {
    NewTopic { name: name.to_owned(), partitions: 2, config: map(&[("retention.ms", "1")]) }
}

impl Bench {
    /// A broker with one topic and some producer ids.
    fn new(fault: &Fault) -> Self {
        let clean: Arc<dyn Substrate> = Arc::new(Memory::new());
        let hook: Arc<dyn Hook> = Arc::clone(&fault.rules) as _;
        let faulty: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::clone(&clean), hook));
        let world = start(&faulty).unwrap();
        world.store.create_topic(&new_topic("kept")).unwrap();
        world.producer_ids.next().unwrap();
        Self { clean, faulty, world: Some(world) }
    }

    fn store(&self) -> &FileStore {
        &self.world.as_ref().unwrap().store
    }

    /// A restart finds what is known here.
    fn settle(mut self, fault: &Fault, outcome: Outcome) -> Outcome {
        fault.mend();
        let topics =
            |store: &FileStore| store.topics().iter().map(|topic| (**topic).clone()).collect::<Vec<_>>();
        let known = self.world.take().map(|world| (topics(&world.store), world.store.broker_overrides()));
        let again = start(&self.clean).unwrap();
        if let Some((known, overrides)) = known {
            assert_eq!(topics(&again.store), known);
            assert_eq!(again.store.broker_overrides(), overrides);
        }
        assert_eq!(again.store.sweep().unwrap(), 0);
        let left = self.clean.list(Path::new("topics")).unwrap();
        assert!(left.iter().all(|entry| !entry.name.to_string_lossy().starts_with('~')), "{left:?}");
        outcome
    }
}

fn outcome_of<T>(done: &Result<T, ControlError>) -> Outcome {
    match done {
        Ok(_) => Outcome::GoesOn,
        Err(
            ControlError::Storage(_) | ControlError::FenceUnknown { .. } | ControlError::Partition { .. },
        ) => Outcome::RequestFails,
        Err(error) => panic!("{error}"),
    }
}

fn create(fault: &Fault) -> Outcome {
    let bench = Bench::new(fault);
    fault.arm();
    let outcome = outcome_of(&bench.store().create_topic(&new_topic("orders")));
    fault.mend();
    if outcome == Outcome::RequestFails {
        match bench.store().create_topic(&new_topic("orders")) {
            Ok(_) => {}
            // The failed attempt got as far as its name.
            Err(ControlError::TopicExists { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(bench.store().topics().get("orders").unwrap().partitions, 2);
    bench.settle(fault, outcome)
}

fn grow(fault: &Fault) -> Outcome {
    let bench = Bench::new(fault);
    fault.arm();
    let outcome = outcome_of(&bench.store().grow_topic("kept", 4));
    fault.mend();
    if outcome == Outcome::RequestFails {
        bench.store().grow_topic("kept", 4).unwrap();
    }
    assert_eq!(bench.store().topics().get("kept").unwrap().partitions, 4);
    bench.settle(fault, outcome)
}

fn alter(fault: &Fault) -> Outcome {
    let bench = Bench::new(fault);
    let alter = || bench.store().alter_topic_config("kept", &mut |_| Some(map(&[("retention.ms", "2")])));
    fault.arm();
    let outcome = outcome_of(&alter());
    fault.mend();
    alter().unwrap();
    assert_eq!(*bench.store().topics().get("kept").unwrap().config, map(&[("retention.ms", "2")]));
    bench.settle(fault, outcome)
}

fn alter_broker(fault: &Fault) -> Outcome {
    let bench = Bench::new(fault);
    let alter = || bench.store().alter_broker_config(BrokerScope::All, &mut |_| Some(map(&[("a", "2")])));
    fault.arm();
    let outcome = outcome_of(&alter());
    fault.mend();
    alter().unwrap();
    bench.settle(fault, outcome)
}

fn delete(fault: &Fault) -> Outcome {
    let bench = Bench::new(fault);
    let id = bench.store().topics().get("kept").unwrap().id;
    fault.arm();
    let outcome = outcome_of(&bench.store().delete_topic(id));
    fault.mend();
    if outcome == Outcome::RequestFails {
        bench.store().delete_topic(id).unwrap();
    }
    assert!(bench.store().topics().get("kept").is_none());
    bench.settle(fault, outcome)
}

fn sweep(fault: &Fault) -> Outcome {
    let bench = Bench::new(fault);
    let id = bench.store().topics().get("kept").unwrap().id;
    bench.store().delete_topic(id).unwrap();
    fault.arm();
    let outcome = outcome_of(&bench.store().sweep());
    fault.mend();
    assert_eq!(bench.store().sweep().unwrap(), 0);
    bench.settle(fault, outcome)
}

fn producer_ids(fault: &Fault) -> Outcome {
    let bench = Bench::new(fault);
    let ids = &bench.world.as_ref().unwrap().producer_ids;
    // The block is used up.
    let mut last = ids.next().unwrap();
    while let Some(next) = ids.try_next() {
        last = next;
    }
    fault.arm();
    let outcome = outcome_of(&ids.next());
    fault.mend();
    assert!(ids.next().unwrap() > last);
    bench.settle(fault, outcome)
}

fn first_start(fault: &Fault) -> Outcome {
    let clean: Arc<dyn Substrate> = Arc::new(Memory::new());
    let hook: Arc<dyn Hook> = Arc::clone(&fault.rules) as _;
    let faulty: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::clone(&clean), hook));
    fault.arm();
    started(fault, Bench { clean, faulty, world: None })
}

fn restart(fault: &Fault) -> Outcome {
    let mut bench = Bench::new(fault);
    bench.world = None;
    fault.arm();
    started(fault, bench)
}

fn started(fault: &Fault, mut bench: Bench) -> Outcome {
    let outcome = match start(&bench.faulty) {
        Ok(world) => {
            bench.world = Some(world);
            Outcome::GoesOn
        }
        Err(ControlError::Storage(_) | ControlError::FenceUnknown { .. } | ControlError::Claim { .. }) => {
            Outcome::DoesNotStart
        }
        Err(error) => panic!("{error}"),
    };
    fault.mend();
    if outcome == Outcome::DoesNotStart {
        bench.world = Some(start(&bench.faulty).unwrap());
    }
    bench.settle(fault, outcome)
}

const fn case(
    name: &'static str,
    point: Point,
    path: &'static str,
    nth: u64,
    run: fn(&Fault) -> Outcome,
) -> Case {
    Case { name, point, path, nth, run }
}

const CASES: &[Case] = &[
    case("first start: create the directory", Point::CreateDir, "~new-cluster", 1, first_start),
    case("first start: write `meta.json`", Point::Write, "meta.json", 1, first_start),
    case("first start: create the controller's fence", Point::CreateRecords, "fence", 1, first_start),
    case("first start: sync the tree", Point::SyncTree, "~new-cluster", 1, first_start),
    case("first start: rename the directory into place", Point::Rename, "~new-cluster", 1, first_start),
    case("first start: create `topics/`", Point::CreateDir, "topics", 1, first_start),
    case("start: list the data directory", Point::List, "", 1, restart),
    case("start: read `meta.json`", Point::Read, "meta.json", 1, restart),
    case("start: take the lock", Point::TryLock, "lock", 1, restart),
    case("start: write who has it", Point::Write, "lock-holder", 1, restart),
    case("start: create the claim", Point::Create, "claim", 1, restart),
    case("start: sync the claim", Point::SyncData, "claim", 1, restart),
    case("start: open the fence", Point::OpenRecords, "fence", 1, restart),
    case("start: read the fence", Point::ReadRecords, "fence", 1, restart),
    case("start: write the fence", Point::WriteRecords, "fence", 1, restart),
    case("start: remove an old claim", Point::RemoveFile, "claim", 1, restart),
    case("start: sync the topics' names", Point::SyncDir, "topics", 1, restart),
    case("start: list the topics", Point::List, "topics", 1, restart),
    case("start: read a topic's id", Point::Read, "topic-id.json", 1, restart),
    case("start: read a topic's configs", Point::Read, "config.", 1, restart),
    case("start: read the producer ids", Point::Read, "producer-ids", 1, restart),
    case("create topic: create the directory", Point::CreateDir, "~new-", 1, create),
    case("create topic: write its id", Point::Write, "topic-id.json", 1, create),
    case("create topic: write its configs", Point::Write, "config.", 1, create),
    case("create topic: create a partition", Point::CreateDir, "/1", 1, create),
    case("create topic: create a fence", Point::CreateRecords, "fence", 1, create),
    case("create topic: write `partition.json`", Point::Write, "partition.json", 1, create),
    case("create topic: sync the tree", Point::SyncTree, "~new-", 1, create),
    case("create topic: rename it into place", Point::Rename, "~new-", 1, create),
    case("create topic: sync its name", Point::SyncDir, "topics", 1, create),
    case("create topic: read the fence", Point::ReadRecords, "controller/fence", 1, create),
    case("grow topic: create a partition", Point::CreateDir, "~new-", 2, grow),
    case("grow topic: sync the tree", Point::SyncTree, "~new-", 1, grow),
    case("grow topic: rename a partition into place", Point::Rename, "~new-", 2, grow),
    case("grow topic: sync the names", Point::SyncDir, "topics/kept", 1, grow),
    case("grow topic: read the fence", Point::ReadRecords, "controller/fence", 1, grow),
    case("alter configs: write them", Point::Write, "config.", 1, alter),
    case("alter configs: sync them", Point::SyncData, "config.", 1, alter),
    case("alter configs: rename them into place", Point::Rename, "config.", 1, alter),
    case("alter configs: sync the name", Point::SyncDir, "topics/kept", 1, alter),
    case("alter configs: read the fence", Point::ReadRecords, "controller/fence", 1, alter),
    case("alter configs: remove the last ones", Point::RemoveFile, "config.", 1, alter),
    case("alter broker configs: write them", Point::Write, "broker-configs.", 1, alter_broker),
    case("alter broker configs: rename them into place", Point::Rename, "broker-configs.", 1, alter_broker),
    case("delete topic: list the topics", Point::List, "topics", 1, delete),
    case("delete topic: rename it aside", Point::Rename, "kept", 1, delete),
    case("delete topic: sync the names", Point::SyncDir, "topics", 1, delete),
    case("delete topic: read the fence", Point::ReadRecords, "controller/fence", 1, delete),
    case("sweep: list the topics", Point::List, "topics", 1, sweep),
    case("sweep: read the fence", Point::ReadRecords, "controller/fence", 1, sweep),
    case("sweep: remove a file", Point::RemoveFile, "", 1, sweep),
    case("sweep: remove a directory", Point::RemoveDir, "", 1, sweep),
    case("producer ids: write the next block", Point::Write, "producer-ids", 1, producer_ids),
    case("producer ids: sync it", Point::SyncData, "producer-ids", 1, producer_ids),
    case("producer ids: rename it into place", Point::Rename, "producer-ids", 1, producer_ids),
    case("producer ids: sync the name", Point::SyncDir, "cluster", 1, producer_ids),
    case("producer ids: read the fence", Point::ReadRecords, "controller/fence", 1, producer_ids),
];

#[test]
fn the_controller_does_what_the_document_says() {
    walk("The controller", CASES);
}
