//! A volume in the memory of this process, for tests and the memory mode. It behaves as [`crate::Local`] does, handles on
//! removed files included; what it cannot do is survive the process. Every call is memory work: nothing blocks for
//! long, and everything "durable" is so at once.

mod content;
mod tree;

use std::ffi::OsStr;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;

use self::content::{Content, Store};
use self::tree::{Dir, Node};
use crate::paths::{AtPath, check, check_named, check_rename};
use crate::{
    Adoption, Entry, EntryKind, Error, File, Kind, LockGuard, OpenMode, Operation, RECORD_BYTES, Record,
    RecordFile, Result, Sharing, Space, Substrate,
};

/// A volume in memory; see the module. Clones are handles on the same volume.
#[derive(Debug, Clone)]
pub struct Memory {
    volume: Arc<Volume>,
}

#[derive(Debug)]
struct Volume {
    tree: Mutex<Dir>,
    store: Arc<Store>,
}

/// A file, named or not, for as long as somebody holds it.
#[derive(Debug)]
struct Inode {
    content: RwLock<Content>,
    locked: AtomicBool,
}

/// The directory that holds `path`, and the name in it.
fn place(operation: Operation, path: &Path) -> Result<(&Path, &OsStr)> {
    check_named(operation, path)?;
    let name = path.file_name().ok_or(Errno::INVAL).at(operation, path)?;
    tree::check_name(name).at(operation, path)?;
    Ok((path.parent().unwrap_or(Path::new("")), name))
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// An empty volume as large as the process's memory.
    pub fn new() -> Self {
        Self::with_store(Store::unlimited())
    }

    /// An empty volume that holds at most `bytes` bytes of file content; beyond that it has no space. Bytes of
    /// removed files are free again when their last handle goes.
    pub fn with_capacity(bytes: u64) -> Self {
        Self::with_store(Store::limited(bytes))
    }

    /// A second handle on the same volume, as another process or host would have it.
    pub fn another_handle(&self) -> Self {
        self.clone()
    }

    fn with_store(store: Store) -> Self {
        Self { volume: Arc::new(Volume { tree: Mutex::new(Dir::default()), store: Arc::new(store) }) }
    }

    /// Runs `act` on the directory that holds `path`, with the name in it.
    fn in_parent<T>(
        &self,
        operation: Operation,
        path: &Path,
        act: impl FnOnce(&mut Dir, &OsStr) -> std::result::Result<T, Errno>,
    ) -> Result<T> {
        let (parent, name) = place(operation, path)?;
        let mut root = self.volume.tree.lock();
        root.descend(parent).and_then(|dir| act(dir, name)).at(operation, path)
    }

    fn new_inode(&self) -> Arc<Inode> {
        Arc::new(Inode {
            content: RwLock::new(Content::new(Arc::clone(&self.volume.store))),
            locked: AtomicBool::new(false),
        })
    }

    fn find_file(&self, operation: Operation, path: &Path) -> Result<Arc<Inode>> {
        self.in_parent(operation, path, |dir, name| match dir.get(name) {
            Some(Node::File(inode)) => Ok(Arc::clone(inode)),
            Some(Node::Dir(_)) => Err(Errno::ISDIR),
            None => Err(Errno::NOENT),
        })
    }

    fn create_file(&self, path: &Path) -> Result<Arc<Inode>> {
        let inode = self.new_inode();
        self.in_parent(Operation::Create, path, |dir, name| {
            dir.insert_new(name, Node::File(Arc::clone(&inode)))?;
            Ok(inode)
        })
    }
}

impl Substrate for Memory {
    fn kind(&self) -> Kind {
        Kind::Memory
    }

    fn sharing(&self) -> Sharing {
        Sharing::OneHost { reason: "the volume lives in the memory of one process" }
    }

    fn adoption(&self) -> Adoption {
        Adoption::Sync
    }

    fn root(&self) -> &Path {
        Path::new("(memory)")
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        self.in_parent(Operation::CreateDir, dir, |parent, name| {
            parent.insert_new(name, Node::Dir(Dir::default()))
        })
    }

    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        check(Operation::List, dir)?;
        let mut root = self.volume.tree.lock();
        root.descend(dir).map(|dir| dir.entries()).at(Operation::List, dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        check_rename(from, to)?;
        let to = to.file_name().ok_or(Errno::INVAL).at(Operation::Rename, from)?;
        tree::check_name(to).at(Operation::Rename, from)?;
        self.in_parent(Operation::Rename, from, |dir, name| dir.rename(name, to))
    }

    fn move_file(&self, from: &Path, to: &Path) -> Result<()> {
        let (from_dir, from_name) = place(Operation::Rename, from)?;
        let (to_dir, to_name) = place(Operation::Rename, to)?;
        let mut root = self.volume.tree.lock();
        let mut act = || {
            let moved = match root.descend(from_dir)?.get(from_name) {
                Some(Node::File(inode)) => Arc::clone(inode),
                Some(Node::Dir(_)) => return Err(Errno::PERM),
                None => return Err(Errno::NOENT),
            };
            root.descend(to_dir)?.insert_new(to_name, Node::File(moved))?;
            root.descend(from_dir)?.remove_file(from_name)
        };
        act().at(Operation::Rename, from)
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        self.in_parent(Operation::RemoveFile, path, |dir, name| dir.remove_file(name))
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.in_parent(Operation::RemoveDir, dir, |parent, name| parent.remove_dir(name))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        check(Operation::SyncDir, dir)?;
        self.volume.tree.lock().descend(dir).map(|_| ()).at(Operation::SyncDir, dir)
    }

    fn sync_tree(&self, dir: &Path) -> Result<()> {
        self.sync_dir(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        let (inode, writable) = match mode {
            OpenMode::Read | OpenMode::ReadUncached => (self.find_file(Operation::Open, path)?, false),
            OpenMode::Write | OpenMode::Rewrite => (self.find_file(Operation::Open, path)?, true),
            OpenMode::CreateNew => (self.create_file(path)?, true),
        };
        Ok(Arc::new(MemoryFile { inode, path: path.to_owned(), writable }))
    }

    fn make_durable(&self, path: &Path, _length: u64) -> Result<()> {
        self.find_file(Operation::Open, path).map(|_| ())
    }

    fn create_records(&self, path: &Path, records: u64) -> Result<()> {
        let inode = self.create_file(path)?;
        let bytes = records.saturating_mul(RECORD_BYTES as u64);
        inode.content.write().set_length(bytes).at(Operation::SetLength, path)
    }

    fn open_records(&self, path: &Path) -> Result<Arc<dyn RecordFile>> {
        let inode = self.find_file(Operation::Open, path)?;
        Ok(Arc::new(MemoryRecords { inode, path: path.to_owned() }))
    }

    fn space(&self) -> Result<Space> {
        Ok(self.volume.store.space())
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        let created = self.new_inode();
        let inode = self.in_parent(Operation::Lock, path, |dir, name| match dir.get(name) {
            Some(Node::File(inode)) => Ok(Arc::clone(inode)),
            Some(Node::Dir(_)) => Err(Errno::ISDIR),
            None => {
                dir.insert_new(name, Node::File(Arc::clone(&created)))?;
                Ok(created)
            }
        })?;
        if inode.locked.swap(true, Ordering::AcqRel) {
            return Ok(None);
        }
        Ok(Some(Box::new(MemoryLock { inode })))
    }
}

#[derive(Debug)]
struct MemoryFile {
    inode: Arc<Inode>,
    path: PathBuf,
    writable: bool,
}

impl MemoryFile {
    fn check_writable(&self, operation: Operation, refusal: Errno) -> Result<()> {
        if self.writable { Ok(()) } else { Err(Error::new(operation, &self.path, refusal.into())) }
    }
}

impl File for MemoryFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        Ok(self.inode.content.read().read_at(buf, offset))
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>> {
        self.read_at(buf, offset).map(Some)
    }

    fn write_all_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.check_writable(Operation::Write, Errno::BADF)?;
        let mut content = self.inode.content.write();
        let mut position = offset;
        for part in parts {
            content.write_at(part, position).at(Operation::Write, &self.path)?;
            position = position.saturating_add(part.len() as u64);
        }
        Ok(())
    }

    fn sync_data(&self) -> Result<()> {
        Ok(())
    }

    fn length(&self) -> Result<u64> {
        Ok(self.inode.content.read().length())
    }

    fn set_length(&self, length: u64) -> Result<()> {
        self.check_writable(Operation::SetLength, Errno::INVAL)?;
        self.inode.content.write().set_length(length).at(Operation::SetLength, &self.path)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[derive(Debug)]
struct MemoryRecords {
    inode: Arc<Inode>,
    path: PathBuf,
}

impl RecordFile for MemoryRecords {
    fn records(&self) -> Result<u64> {
        Ok(self.inode.content.read().length() / RECORD_BYTES as u64)
    }

    fn read(&self, first_index: u64, records: &mut [Record]) -> Result<()> {
        let bytes = records.as_flattened_mut();
        let offset = first_index.saturating_mul(RECORD_BYTES as u64);
        let read = self.inode.content.read().read_at(bytes, offset);
        if let Some(behind) = bytes.get_mut(read..) {
            behind.fill(0);
        }
        Ok(())
    }

    fn write(&self, first_index: u64, records: &[Record]) -> Result<()> {
        let bytes = records.as_flattened();
        let offset = first_index.saturating_mul(RECORD_BYTES as u64);
        let mut content = self.inode.content.write();
        if offset.saturating_add(bytes.len() as u64) > content.length() {
            return Err(Error::new(Operation::Write, &self.path, Errno::INVAL.into()));
        }
        content.write_at(bytes, offset).at(Operation::Write, &self.path)
    }

    fn extend(&self, records: u64) -> Result<()> {
        let bytes = records.saturating_mul(RECORD_BYTES as u64);
        let mut content = self.inode.content.write();
        if content.length() >= bytes {
            return Ok(());
        }
        content.set_length(bytes).at(Operation::SetLength, &self.path)
    }
}

/// The lock goes with the guard.
#[derive(Debug)]
struct MemoryLock {
    inode: Arc<Inode>,
}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        self.inode.locked.store(false, Ordering::Release);
    }
}

impl LockGuard for MemoryLock {}

impl Dir {
    fn entries(&self) -> Vec<Entry> {
        self.iter()
            .map(|(name, node)| Entry {
                name: name.clone(),
                kind: match node {
                    Node::File(_) => EntryKind::File,
                    Node::Dir(_) => EntryKind::Dir,
                },
            })
            .filter(|entry| {
                entry.kind == EntryKind::Dir || !crate::paths::is_silly_rename(entry.name.as_encoded_bytes())
            })
            .collect()
    }
}
