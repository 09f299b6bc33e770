//! A thousand partitions of a topic, and a thousand topics: created, found at a start, deleted. How long each takes is
//! printed (`--nocapture`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use kaas_control::ControlError;
use kaas_control::election::{Controller, ControllerSettings};
use kaas_control::metadata::{Fence, FileStore, FileStoreSettings, MetadataStore, PartitionKeeper, Topic};
use kaas_engine::identity::{Identity, write_partition};
use kaas_engine::types::Epoch;
use kaas_substrate::{Local, Substrate};

use support::new_topic;

/// Writes partitions as the broker does.
struct Keeper(Arc<dyn Substrate>);

impl PartitionKeeper for Keeper {
    fn write_new(&self, dir: &Path, topic: &Topic, partition: u32) -> Result<(), ControlError> {
        let identity = Identity { topic: topic.name.to_string(), partition, topic_id: topic.id.0 };
        write_partition(self.0.as_ref(), dir, &identity, Epoch::NONE).unwrap();
        Ok(())
    }

    fn take_away(&self, _topic: &Topic) -> Result<(), ControlError> {
        Ok(())
    }

    fn give_back(&self, _topic: &Topic) {}
}

/// Prints how long it took; no test depends on it.
fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let outcome = work();
    println!("{what}: {:?}", start.elapsed());
    outcome
}

fn open(substrate: &Arc<dyn Substrate>, controller: &Arc<Controller>) -> FileStore {
    FileStore::open(
        Arc::clone(substrate),
        Arc::clone(controller) as Arc<dyn Fence>,
        Arc::new(Keeper(Arc::clone(substrate))),
        FileStoreSettings::default(),
    )
    .unwrap()
}

#[test]
fn a_thousand_of_each() {
    let base = std::env::var_os("KAAS_TEST_DIR").map_or_else(std::env::temp_dir, Into::into);
    let dir = tempfile::tempdir_in(base).unwrap();
    let substrate: Arc<dyn Substrate> = Arc::new(Local::open(dir.path()).unwrap());
    let settings = ControllerSettings { node_id: 0, cluster_id: None, ignore_lock: false };
    let controller = timed("controller on an empty directory", || {
        Arc::new(Controller::start(Arc::clone(&substrate), &settings).unwrap())
    });
    let store = open(&substrate, &controller);
    timed("500 partitions created", || {
        store.create_topic(&new_topic("wide", 500, &[])).unwrap();
    });
    timed("500 partitions more", || store.grow_topic("wide", 1000).unwrap());
    timed("1,000 topics created, 16 at a time", || {
        std::thread::scope(|scope| {
            for thread in 0..16 {
                let store = &store;
                scope.spawn(move || {
                    for number in (thread..1000).step_by(16) {
                        let topic = new_topic(&format!("t{number}"), 1, &[("retention.ms", "1")]);
                        store.create_topic(&topic).unwrap();
                    }
                });
            }
        });
    });
    drop((store, controller));
    let controller =
        timed("controller again", || Arc::new(Controller::start(Arc::clone(&substrate), &settings).unwrap()));
    let store = timed("1,001 topics with 2,000 partitions found", || open(&substrate, &controller));
    assert_eq!((store.topics().len(), store.topics().partitions()), (1001, 2000));
    let id = store.topics().get("wide").unwrap().id;
    timed("1,000 partitions renamed aside", || store.delete_topic(id).unwrap());
    timed("1,000 partitions removed", || assert_eq!(store.sweep().unwrap(), 0));
}
