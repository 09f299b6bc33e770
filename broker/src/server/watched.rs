//! A volume whose calls are watched: which of them have not returned, and since when.
//!
//! Wraps the substrate that everything in the process uses (claims, topics, partitions, slots of groups), so no call is
//! missed; a call costs a short lock and a look at the clock. Safe from any thread.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kaas_substrate::{
    Adoption, Entry, File, Kind, LockGuard, OpenMode, Operation, Record, RecordFile, Result, Sharing, Space,
    Substrate,
};
use parking_lot::Mutex;

/// The calls that are being made. As many as threads make them.
#[derive(Debug, Default)]
pub struct Calls {
    calls: Mutex<Vec<Option<Call>>>,
}

#[derive(Debug, Clone)]
struct Call {
    operation: Operation,
    path: Arc<Path>,
    began: Instant,
}

/// The calls that have not returned for some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// How many there are.
    pub calls: usize,
    /// The oldest: what it is,
    pub operation: Operation,
    /// of which path, relative to the volume's root,
    pub path: PathBuf,
    /// and how long it has been waiting.
    pub waited: Duration,
}

impl Calls {
    /// Makes a call, which is watched until it returns.
    pub fn watch<T>(&self, operation: Operation, path: &Arc<Path>, call: impl FnOnce() -> T) -> T {
        let _being_made = self.enter(operation, path);
        call()
    }

    /// The calls that were begun `at_least` so long ago and have not returned; `None` if there are none.
    pub fn waiting(&self, at_least: Duration) -> Option<Waiting> {
        let now = Instant::now();
        let waited = |call: &Call| now.duration_since(call.began);
        let calls = self.calls.lock();
        let waiting: Vec<&Call> = calls.iter().flatten().filter(|call| waited(call) >= at_least).collect();
        let oldest = waiting.iter().min_by_key(|call| call.began)?;
        Some(Waiting {
            calls: waiting.len(),
            operation: oldest.operation,
            path: oldest.path.to_path_buf(),
            waited: waited(oldest),
        })
    }

    fn enter(&self, operation: Operation, path: &Arc<Path>) -> BeingMade<'_> {
        let call = Call { operation, path: Arc::clone(path), began: Instant::now() };
        let mut calls = self.calls.lock();
        let free = calls.iter().position(Option::is_none);
        let at = free.unwrap_or(calls.len());
        match calls.get_mut(at) {
            Some(place) => *place = Some(call),
            None => calls.push(Some(call)),
        }
        BeingMade { calls: self, at }
    }
}

struct BeingMade<'a> {
    calls: &'a Calls,
    at: usize,
}

impl Drop for BeingMade<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.calls.calls.lock().get_mut(self.at) {
            *place = None;
        }
    }
}

/// The wrapper.
#[derive(Debug)]
pub struct Watched {
    inner: Arc<dyn Substrate>,
    calls: Arc<Calls>,
}

impl Watched {
    /// `inner`, with its calls noted in `calls`.
    pub fn new(inner: Arc<dyn Substrate>, calls: Arc<Calls>) -> Self {
        Self { inner, calls }
    }

    fn watch<T>(&self, operation: Operation, path: &Path, call: impl FnOnce() -> T) -> T {
        self.calls.watch(operation, &Arc::from(path), call)
    }
}

impl Substrate for Watched {
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
        self.watch(Operation::CreateDir, dir, || self.inner.create_dir(dir))
    }

    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        self.watch(Operation::List, dir, || self.inner.list(dir))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.watch(Operation::Rename, from, || self.inner.rename(from, to))
    }

    fn move_file(&self, from: &Path, to: &Path) -> Result<()> {
        self.watch(Operation::Rename, from, || self.inner.move_file(from, to))
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        self.watch(Operation::RemoveFile, path, || self.inner.remove_file(path))
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.watch(Operation::RemoveDir, dir, || self.inner.remove_dir(dir))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.watch(Operation::SyncDir, dir, || self.inner.sync_dir(dir))
    }

    fn sync_tree(&self, dir: &Path) -> Result<()> {
        self.watch(Operation::SyncDir, dir, || self.inner.sync_tree(dir))
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        let operation = if mode == OpenMode::CreateNew { Operation::Create } else { Operation::Open };
        let path: Arc<Path> = Arc::from(path);
        let inner = self.calls.watch(operation, &path, || self.inner.open(&path, mode))?;
        Ok(Arc::new(WatchedFile { inner, path, calls: Arc::clone(&self.calls) }))
    }

    fn make_durable(&self, path: &Path, length: u64) -> Result<()> {
        self.watch(Operation::Sync, path, || self.inner.make_durable(path, length))
    }

    fn create_records(&self, path: &Path, records: u64) -> Result<()> {
        self.watch(Operation::Create, path, || self.inner.create_records(path, records))
    }

    fn open_records(&self, path: &Path) -> Result<Arc<dyn RecordFile>> {
        let path: Arc<Path> = Arc::from(path);
        let inner = self.calls.watch(Operation::Open, &path, || self.inner.open_records(&path))?;
        Ok(Arc::new(WatchedRecords { inner, path, calls: Arc::clone(&self.calls) }))
    }

    fn space(&self) -> Result<Space> {
        self.watch(Operation::Space, Path::new(""), || self.inner.space())
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        self.watch(Operation::Lock, path, || self.inner.try_lock(path))
    }
}

#[derive(Debug)]
struct WatchedFile {
    inner: Arc<dyn File>,
    path: Arc<Path>,
    calls: Arc<Calls>,
}

impl File for WatchedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.calls.watch(Operation::Read, &self.path, || self.inner.read_at(buf, offset))
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>> {
        self.inner.read_at_nowait(buf, offset)
    }

    fn write_all_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.calls.watch(Operation::Write, &self.path, || self.inner.write_all_at(parts, offset))
    }

    fn sync_data(&self) -> Result<()> {
        self.calls.watch(Operation::Sync, &self.path, || self.inner.sync_data())
    }

    fn length(&self) -> Result<u64> {
        self.calls.watch(Operation::Length, &self.path, || self.inner.length())
    }

    fn next_data(&self, from: u64) -> Result<Option<(u64, u64)>> {
        self.calls.watch(Operation::Read, &self.path, || self.inner.next_data(from))
    }

    fn set_length(&self, length: u64) -> Result<()> {
        self.calls.watch(Operation::SetLength, &self.path, || self.inner.set_length(length))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }
}

#[derive(Debug)]
struct WatchedRecords {
    inner: Arc<dyn RecordFile>,
    path: Arc<Path>,
    calls: Arc<Calls>,
}

impl RecordFile for WatchedRecords {
    fn records(&self) -> Result<u64> {
        self.calls.watch(Operation::Length, &self.path, || self.inner.records())
    }

    fn read(&self, first_index: u64, records: &mut [Record]) -> Result<()> {
        self.calls.watch(Operation::Read, &self.path, || self.inner.read(first_index, records))
    }

    fn write(&self, first_index: u64, records: &[Record]) -> Result<()> {
        self.calls.watch(Operation::Write, &self.path, || self.inner.write(first_index, records))
    }

    fn extend(&self, records: u64) -> Result<()> {
        self.calls.watch(Operation::SetLength, &self.path, || self.inner.extend(records))
    }
}
