//! Every step fails once. Whatever step it is: what was answered as done is there after a restart, what was not is
//! done by asking again, and no litter stays.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use kaas_control::ControlError;
use kaas_control::metadata::{BrokerScope, ConfigMap, MetadataStore, TopicsSnapshot};
use kaas_substrate::{
    Adoption, Entry, Error, File, Kind, LockGuard, Memory, OpenMode, Operation, RecordFile, Result, Sharing,
    Space, Substrate,
};

use support::{World, names, new_topic};

/// Fails the call with a given number, counting all that may fail; `after`: once it has had its effect.
#[derive(Debug)]
struct FailOnce {
    inner: Memory,
    calls: AtomicI64,
    fail_at: AtomicI64,
    after: bool,
}

impl FailOnce {
    fn new(fail_at: i64, after: bool) -> Self {
        // Not armed yet.
        Self {
            inner: Memory::new(),
            calls: AtomicI64::new(i64::MIN / 2),
            fail_at: AtomicI64::new(fail_at),
            after,
        }
    }

    fn begin(&self) {
        self.calls.store(0, Ordering::SeqCst);
    }

    fn has_failed(&self) -> bool {
        self.fail_at.load(Ordering::SeqCst) < 0
    }

    fn step<T>(&self, operation: Operation, path: &Path, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let failed = || Err(Error::new(operation, path, std::io::Error::from_raw_os_error(5)));
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        if number != self.fail_at.load(Ordering::SeqCst) {
            return call();
        }
        self.fail_at.store(-1, Ordering::SeqCst);
        if self.after {
            call()?;
        }
        failed()
    }
}

impl Substrate for FailOnce {
    fn kind(&self) -> Kind {
        self.inner.kind()
    }
    fn sharing(&self) -> Sharing {
        self.inner.sharing()
    }
    fn adoption(&self) -> Adoption {
        self.inner.adoption()
    }
    fn root(&self) -> &Path {
        self.inner.root()
    }
    fn create_dir(&self, dir: &Path) -> Result<()> {
        self.step(Operation::CreateDir, dir, || self.inner.create_dir(dir))
    }
    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        self.step(Operation::List, dir, || self.inner.list(dir))
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.step(Operation::Rename, from, || self.inner.rename(from, to))
    }
    fn remove_file(&self, path: &Path) -> Result<()> {
        self.step(Operation::RemoveFile, path, || self.inner.remove_file(path))
    }
    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.step(Operation::RemoveDir, dir, || self.inner.remove_dir(dir))
    }
    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.step(Operation::SyncDir, dir, || self.inner.sync_dir(dir))
    }
    fn sync_tree(&self, dir: &Path) -> Result<()> {
        self.step(Operation::SyncDir, dir, || self.inner.sync_tree(dir))
    }
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        self.step(Operation::Open, path, || self.inner.open(path, mode))
    }
    fn make_durable(&self, path: &Path, length: u64) -> Result<()> {
        self.inner.make_durable(path, length)
    }
    fn create_records(&self, path: &Path, records: u64) -> Result<()> {
        self.step(Operation::Create, path, || self.inner.create_records(path, records))
    }
    fn open_records(&self, path: &Path) -> Result<Arc<dyn RecordFile>> {
        self.inner.open_records(path)
    }
    fn space(&self) -> Result<Space> {
        self.inner.space()
    }
    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        self.inner.try_lock(path)
    }
}

/// What a restart would find, without the fault.
fn restarted(volume: &FailOnce) -> World {
    World::at_epoch(Arc::new(volume.inner.another_handle()), 2).unwrap()
}

fn same_topics(one: &TopicsSnapshot, other: &TopicsSnapshot) {
    let all = |topics: &TopicsSnapshot| topics.iter().map(|topic| (**topic).clone()).collect::<Vec<_>>();
    assert_eq!(all(one), all(other));
}

/// Asks until it is done; at most once more than there are faults. A restart in between must agree with what is
/// known here, but for what has just failed.
fn done<T>(mut ask: impl FnMut() -> std::result::Result<T, ControlError>) -> T {
    match ask() {
        Ok(done) => done,
        Err(ControlError::Storage(_)) => ask().unwrap(),
        Err(error) => panic!("{error}"),
    }
}

fn life(volume: &Arc<FailOnce>) {
    let substrate: Arc<dyn Substrate> = Arc::clone(volume) as _;
    let world = World::new(substrate);
    volume.begin();
    let store = &world.store;
    let create =
        |name: &str, partitions| match store.create_topic(&new_topic(name, partitions, &[("k", "v")])) {
            // The first attempt got as far as its name; this one found it.
            Err(ControlError::TopicExists { .. }) => Ok(store.topics().get(name).cloned().unwrap()),
            outcome => outcome,
        };
    let kept = done(|| create("kept", 2));
    let doomed = done(|| create("doomed", 1));
    same_topics(&restarted(volume).store.topics(), &store.topics());
    done(|| store.grow_topic("kept", 4));
    same_topics(&restarted(volume).store.topics(), &store.topics());
    let insert = |current: &ConfigMap, name: &str| {
        let mut next = current.clone();
        next.insert(name.to_owned(), "x".to_owned());
        Some(next)
    };
    done(|| store.alter_topic_config("kept", &mut |current| insert(current, "a")));
    done(|| store.alter_topic_config("kept", &mut |current| insert(current, "b")));
    done(|| store.alter_broker_config(BrokerScope::All, &mut |current| insert(current, "c")));
    same_topics(&restarted(volume).store.topics(), &store.topics());
    done(|| match store.delete_topic(doomed.id) {
        Err(ControlError::UnknownTopicId { .. }) => Ok(()),
        outcome => outcome,
    });
    assert!(store.topics().get("doomed").is_none());
    same_topics(&restarted(volume).store.topics(), &store.topics());
    // A sweep reports what it could not remove, or why it did not try.
    if done(|| store.sweep()) > 0 {
        assert_eq!(store.sweep().unwrap(), 0);
    }

    let again = restarted(volume);
    again.store.sweep().unwrap();
    same_topics(&again.store.topics(), &store.topics());
    let topics = again.store.topics();
    assert_eq!(topics.len(), 1);
    let topic = topics.get("kept").unwrap();
    assert_eq!((topic.id, topic.partitions), (kept.id, 4));
    assert_eq!(topic.config.keys().collect::<Vec<_>>(), ["a", "b", "k"]);
    assert_eq!(again.store.broker_overrides().all.len(), 1);
    assert_eq!(names(again.substrate.as_ref(), "topics"), ["kept"]);
    let within = names(again.substrate.as_ref(), "topics/kept");
    assert_eq!(within[..4], ["0", "1", "2", "3"], "{within:?}");
    assert!(!within.iter().any(|name| name.starts_with("~new-")), "{within:?}");
}

fn every_step_fails_once(after: bool) {
    let mut steps = 0;
    loop {
        let volume = Arc::new(FailOnce::new(steps, after));
        life(&volume);
        if !volume.has_failed() {
            break;
        }
        steps += 1;
    }
    println!("{steps} steps");
    assert!(steps > 40, "{steps}");
}

#[test]
fn every_step_fails_once_before_its_effect() {
    every_step_fails_once(false);
}

#[test]
fn every_step_fails_once_after_its_effect() {
    every_step_fails_once(true);
}
