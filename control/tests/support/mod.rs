//! What the tests of the control plane share: volumes, a substrate that writes down what it is asked, a fence and a
//! keeper that do as they are told.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use kaas_control::ControlError;
use kaas_control::metadata::{Fence, FileStore, FileStoreSettings, NewTopic, PartitionKeeper, Topic};
use kaas_engine::types::Epoch;
use kaas_substrate::{
    Adoption, Entry, File, Kind, Local, LockGuard, Memory, OpenMode, RecordFile, Result, Sharing, Space,
    Substrate, write_small,
};
use parking_lot::Mutex;

/// What happened, in order.
#[derive(Debug, Default)]
pub struct Events(Mutex<Vec<String>>);

impl Events {
    pub fn note(&self, event: impl Into<String>) {
        self.0.lock().push(event.into());
    }

    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

/// Runs a test on every kind of volume.
pub fn on_every_volume(test: impl Fn(Arc<dyn Substrate>)) {
    test(Arc::new(Memory::new()));
    let dir = tempfile::tempdir().unwrap();
    test(Arc::new(Local::open(dir.path()).unwrap()));
}

pub fn names(substrate: &dyn Substrate, dir: &str) -> Vec<String> {
    let mut names: Vec<_> = substrate
        .list(Path::new(dir))
        .unwrap()
        .into_iter()
        .map(|entry| entry.name.into_string().unwrap())
        .collect();
    names.sort();
    names
}

pub fn put(substrate: &dyn Substrate, path: &str, text: &str) {
    write_small(substrate, Path::new(path), text.as_bytes()).unwrap();
}

pub fn mkdir(substrate: &dyn Substrate, path: &str) {
    substrate.create_dir(Path::new(path)).unwrap();
}

/// What a fence is told to say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Say {
    Leading,
    Deposed,
    Unknown,
    /// Leading once, then unknown.
    UnknownNext,
}

#[derive(Debug)]
pub struct TestFence {
    pub epoch: AtomicU32,
    pub say: Mutex<Say>,
    pub events: Arc<Events>,
}

impl Fence for TestFence {
    fn epoch(&self) -> Epoch {
        Epoch::new(self.epoch.load(Ordering::SeqCst)).unwrap()
    }

    fn check(&self) -> std::result::Result<(), ControlError> {
        self.events.note("fence");
        let epoch = self.epoch();
        let mut say = self.say.lock();
        match *say {
            Say::UnknownNext => {
                *say = Say::Unknown;
                Ok(())
            }
            Say::Leading => Ok(()),
            Say::Deposed => Err(ControlError::Deposed { epoch, by: epoch.next() }),
            Say::Unknown => Err(ControlError::FenceUnknown { epoch, reason: "told so".to_owned() }),
        }
    }
}

/// Writes one file a partition; fails when told to.
#[derive(Debug)]
pub struct TestKeeper {
    pub substrate: Arc<dyn Substrate>,
    pub fail_birth_of: Mutex<Option<u32>>,
    pub fail_take_away: Mutex<bool>,
    pub events: Arc<Events>,
}

impl PartitionKeeper for TestKeeper {
    fn write_new(&self, dir: &Path, topic: &Topic, partition: u32) -> std::result::Result<(), ControlError> {
        if *self.fail_birth_of.lock() == Some(partition) {
            return Err(failed(topic, partition));
        }
        self.substrate.open(&dir.join("partition.json"), OpenMode::CreateNew)?;
        Ok(())
    }

    fn take_away(&self, topic: &Topic) -> std::result::Result<(), ControlError> {
        self.events.note(format!("take away {}", topic.name));
        if *self.fail_take_away.lock() { Err(failed(topic, 0)) } else { Ok(()) }
    }

    fn give_back(&self, topic: &Topic) {
        self.events.note(format!("give back {}", topic.name));
    }
}

fn failed(topic: &Topic, partition: u32) -> ControlError {
    ControlError::Partition { topic: topic.name.to_string(), partition, source: "told to fail".into() }
}

/// A store with all that it needs.
pub struct World {
    pub substrate: Arc<dyn Substrate>,
    pub events: Arc<Events>,
    pub fence: Arc<TestFence>,
    pub keeper: Arc<TestKeeper>,
    pub store: FileStore,
}

impl World {
    pub fn new(substrate: Arc<dyn Substrate>) -> Self {
        Self::at_epoch(substrate, 1).unwrap()
    }

    pub fn at_epoch(substrate: Arc<dyn Substrate>, epoch: u32) -> std::result::Result<Self, ControlError> {
        let events: Arc<Events> = Arc::default();
        let fence = Arc::new(TestFence {
            epoch: AtomicU32::new(epoch),
            say: Mutex::new(Say::Leading),
            events: Arc::clone(&events),
        });
        let substrate: Arc<dyn Substrate> =
            Arc::new(Recording { inner: substrate, events: Arc::clone(&events) });
        if !substrate.list(Path::new(""))?.iter().any(|entry| entry.name == "cluster") {
            mkdir(substrate.as_ref(), "cluster");
        }
        let keeper = Arc::new(TestKeeper {
            substrate: Arc::clone(&substrate),
            fail_birth_of: Mutex::new(None),
            fail_take_away: Mutex::new(false),
            events: Arc::clone(&events),
        });
        let store = FileStore::open(
            Arc::clone(&substrate),
            Arc::clone(&fence) as Arc<dyn Fence>,
            Arc::clone(&keeper) as Arc<dyn PartitionKeeper>,
            FileStoreSettings::default(),
        )?;
        events.take();
        Ok(Self { substrate, events, fence, keeper, store })
    }

    /// The same volume after a restart.
    pub fn again(&self) -> Self {
        Self::at_epoch(Arc::clone(&self.substrate), self.fence.epoch.load(Ordering::SeqCst) + 1).unwrap()
    }

    pub fn say(&self, say: Say) {
        *self.fence.say.lock() = say;
    }
}

pub fn new_topic(name: &str, partitions: u32, config: &[(&str, &str)]) -> NewTopic {
    let config = config.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    NewTopic { name: name.to_owned(), partitions, config }
}

/// Passes everything on, and writes down what matters for durability.
#[derive(Debug)]
pub struct Recording {
    pub inner: Arc<dyn Substrate>,
    pub events: Arc<Events>,
}

/// A path without its uuid.
fn shown(path: &Path) -> String {
    let text = path.display().to_string();
    let is_uuid = |candidate: &str| {
        candidate.len() == 36
            && candidate.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
            && candidate.contains('-')
    };
    match text.len().checked_sub(36).and_then(|at| text.split_at_checked(at)) {
        Some((start, end)) if is_uuid(end) => format!("{start}UUID"),
        _ => text,
    }
}

impl Substrate for Recording {
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
        self.inner.create_dir(dir)
    }
    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        self.inner.list(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.events.note(format!("rename {} -> {}", shown(from), shown(to)));
        self.inner.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> Result<()> {
        self.events.note(format!("remove {}", shown(path)));
        self.inner.remove_file(path)
    }
    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.events.note(format!("remove dir {}", shown(dir)));
        self.inner.remove_dir(dir)
    }
    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.events.note(format!("sync dir {}", shown(dir)));
        self.inner.sync_dir(dir)
    }
    fn sync_tree(&self, dir: &Path) -> Result<()> {
        self.events.note(format!("sync tree {}", shown(dir)));
        self.inner.sync_tree(dir)
    }
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        self.inner.open(path, mode)
    }
    fn make_durable(&self, path: &Path, length: u64) -> Result<()> {
        self.inner.make_durable(path, length)
    }
    fn create_records(&self, path: &Path, records: u64) -> Result<()> {
        self.inner.create_records(path, records)
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
