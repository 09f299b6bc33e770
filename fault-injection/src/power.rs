//! A volume that can lose power: what was not synced may be gone, or there in part.
//!
//! It keeps two states of everything: as programs see it, and as it is on stable storage. [`Volatile::lose_power`]
//! makes a new volume of what a crash of the host could leave: of a file's unsynced bytes any sectors, of a
//! directory's unsynced changes any number from the first on (file systems keep their order, and a rename is one). What
//! `sync_data`, `sync_dir` and `sync_tree` covered, and records written in place, is always there.
//!
//! Everything is behind one lock, held for memory work only. Meant for small volumes: changes copy listings.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use kaas_substrate::{
    Adoption, Entry, EntryKind, Error, File, Kind, LockGuard, OpenMode, Operation, RECORD_BYTES, Record,
    RecordFile, Result, Sharing, Space, Substrate,
};
use parking_lot::Mutex;
use rustix::io::Errno;

/// Unit of tearing, in bytes.
const SECTOR_BYTES: usize = 512;

const NAME_BYTES_MAX: usize = 255;

const ROOT: usize = 0;

/// A volume that can lose power. A clone is another handle on the same volume.
#[derive(Debug, Clone)]
pub struct Volatile {
    disk: Arc<Mutex<Disk>>,
}

#[derive(Debug)]
struct Disk {
    /// By inode number; nothing is ever taken out.
    nodes: Vec<Node>,
    locked: HashSet<usize>,
}

#[derive(Debug, Clone)]
enum Node {
    File(Content),
    Dir(Listing),
}

#[derive(Debug, Clone, Default)]
struct Content {
    now: Vec<u8>,
    synced: Vec<u8>,
}

type Names = BTreeMap<OsString, usize>;

#[derive(Debug, Clone, Default)]
struct Listing {
    now: Names,
    synced: Names,
    /// How it was after each change since the last sync.
    changes: Vec<Names>,
}

type Outcome<T> = std::result::Result<T, Errno>;

impl Default for Volatile {
    fn default() -> Self {
        Self::new()
    }
}

impl Volatile {
    /// An empty volume.
    pub fn new() -> Self {
        let nodes = vec![Node::Dir(Listing::default())];
        Self { disk: Arc::new(Mutex::new(Disk { nodes, locked: HashSet::new() })) }
    }

    /// What is left after a loss of power at this moment, as a new volume. `choose` gives a number below its argument.
    pub fn lose_power(&self, choose: &mut dyn FnMut(u64) -> u64) -> Self {
        let mut nodes = self.disk.lock().nodes.clone();
        for node in &mut nodes {
            match node {
                Node::File(content) => {
                    let left = content.survivor(choose);
                    *content = Content { now: left.clone(), synced: left };
                }
                Node::Dir(listing) => {
                    let kept = below(choose, listing.changes.len() + 1);
                    let left = match kept.checked_sub(1) {
                        Some(last) => listing.changes.get(last).cloned().unwrap_or_default(),
                        None => std::mem::take(&mut listing.synced),
                    };
                    *listing = Listing { now: left.clone(), synced: left, changes: Vec::new() };
                }
            }
        }
        Self { disk: Arc::new(Mutex::new(Disk { nodes, locked: HashSet::new() })) }
    }

    /// Runs `act` with the number of the directory that holds `path`, and the name in it.
    fn in_parent<T>(
        &self,
        operation: Operation,
        path: &Path,
        act: impl FnOnce(&mut Disk, usize, &OsStr) -> Outcome<T>,
    ) -> Result<T> {
        let mut disk = self.disk.lock();
        let parts = parts(path);
        let outcome = parts.and_then(|parts| {
            let (name, parents) = parts.split_last().ok_or(Errno::INVAL)?;
            let dir = disk.descend(parents)?;
            act(&mut disk, dir, name)
        });
        outcome.map_err(|error| Error::new(operation, path, error.into()))
    }

    fn handle(&self, inode: usize, path: &Path, writable: bool) -> Handle {
        Handle { disk: Arc::clone(&self.disk), inode, path: path.to_owned(), writable }
    }

    fn find(&self, operation: Operation, path: &Path) -> Result<usize> {
        self.in_parent(operation, path, |disk, dir, name| {
            let inode = *disk.dir(dir)?.now.get(name).ok_or(Errno::NOENT)?;
            disk.file(inode).map(|_| inode)
        })
    }

    fn create(&self, path: &Path, content: Content) -> Result<usize> {
        self.in_parent(Operation::Create, path, |disk, dir, name| {
            if disk.dir(dir)?.now.contains_key(name) {
                return Err(Errno::EXIST);
            }
            disk.add(dir, name, Node::File(content))
        })
    }
}

/// The parts of a path, which must be relative and without `..`.
fn parts(path: &Path) -> Outcome<Vec<&OsStr>> {
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(part)
                if part.len() <= NAME_BYTES_MAX && !part.as_encoded_bytes().contains(&0) =>
            {
                parts.push(part);
            }
            Component::CurDir => {}
            _ => return Err(Errno::INVAL),
        }
    }
    Ok(parts)
}

fn below(choose: &mut dyn FnMut(u64) -> u64, bound: usize) -> usize {
    usize::try_from(choose(bound.max(1) as u64)).unwrap_or(0)
}

impl Content {
    fn sync(&mut self) {
        self.synced.clone_from(&self.now);
    }

    fn write(bytes: &mut Vec<u8>, part: &[u8], at: usize) {
        let end = at.saturating_add(part.len());
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        if let Some(target) = bytes.get_mut(at..end) {
            target.copy_from_slice(part);
        }
    }

    fn survivor(&self, choose: &mut dyn FnMut(u64) -> u64) -> Vec<u8> {
        if self.now == self.synced {
            return self.synced.clone();
        }
        let (short, long) = (self.now.len().min(self.synced.len()), self.now.len().max(self.synced.len()));
        let length = match choose(3) {
            0 => self.synced.len(),
            1 => self.now.len(),
            _ => short + below(choose, long - short + 1),
        };
        let mut left = vec![0; length];
        for (sector, target) in left.chunks_mut(SECTOR_BYTES).enumerate() {
            let source = if choose(2) == 0 { &self.synced } else { &self.now };
            let from = source.get(sector * SECTOR_BYTES..).unwrap_or_default();
            let count = from.len().min(target.len());
            if let (Some(target), Some(from)) = (target.get_mut(..count), from.get(..count)) {
                target.copy_from_slice(from);
            }
        }
        left
    }
}

impl Listing {
    fn change(&mut self, act: impl FnOnce(&mut Names)) {
        act(&mut self.now);
        self.changes.push(self.now.clone());
    }

    fn sync(&mut self) {
        self.synced.clone_from(&self.now);
        self.changes.clear();
    }
}

impl Disk {
    fn dir(&mut self, inode: usize) -> Outcome<&mut Listing> {
        match self.nodes.get_mut(inode) {
            Some(Node::Dir(listing)) => Ok(listing),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn file(&mut self, inode: usize) -> Outcome<&mut Content> {
        match self.nodes.get_mut(inode) {
            Some(Node::File(content)) => Ok(content),
            _ => Err(Errno::ISDIR),
        }
    }

    fn is_dir(&self, inode: usize) -> bool {
        matches!(self.nodes.get(inode), Some(Node::Dir(_)))
    }

    fn descend(&mut self, parts: &[&OsStr]) -> Outcome<usize> {
        parts.iter().try_fold(ROOT, |dir, part| {
            let inode = *self.dir(dir)?.now.get(*part).ok_or(Errno::NOENT)?;
            if self.is_dir(inode) { Ok(inode) } else { Err(Errno::NOTDIR) }
        })
    }

    fn add(&mut self, dir: usize, name: &OsStr, node: Node) -> Outcome<usize> {
        let inode = self.nodes.len();
        self.nodes.push(node);
        self.dir(dir)?.change(|names| {
            names.insert(name.to_owned(), inode);
        });
        Ok(inode)
    }

    fn rename(&mut self, dir: usize, from: &OsStr, to: &OsStr) -> Outcome<()> {
        let names = &self.dir(dir)?.now;
        let inode = *names.get(from).ok_or(Errno::NOENT)?;
        if let Some(replaced) = names.get(to).copied().filter(|replaced| *replaced != inode) {
            if self.is_dir(inode) {
                return Err(Errno::EXIST);
            }
            if self.is_dir(replaced) {
                return Err(Errno::ISDIR);
            }
        }
        self.dir(dir)?.change(|names| {
            names.remove(from);
            names.insert(to.to_owned(), inode);
        });
        Ok(())
    }

    fn sync_below(&mut self, inode: usize) {
        let children: Vec<usize> = match self.nodes.get_mut(inode) {
            Some(Node::File(content)) => return content.sync(),
            Some(Node::Dir(listing)) => {
                listing.sync();
                listing.now.values().copied().collect()
            }
            None => return,
        };
        children.into_iter().for_each(|child| self.sync_below(child));
    }
}

impl Substrate for Volatile {
    fn kind(&self) -> Kind {
        Kind::Simulated
    }

    fn sharing(&self) -> Sharing {
        Sharing::OneHost { reason: "the volume lives in the memory of one process" }
    }

    fn adoption(&self) -> Adoption {
        Adoption::Sync
    }

    fn root(&self) -> &Path {
        Path::new("(volatile)")
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        self.in_parent(Operation::CreateDir, dir, |disk, parent, name| {
            if disk.dir(parent)?.now.contains_key(name) {
                return Err(Errno::EXIST);
            }
            disk.add(parent, name, Node::Dir(Listing::default())).map(|_| ())
        })
    }

    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        let mut disk = self.disk.lock();
        let names = parts(dir)
            .and_then(|parts| disk.descend(&parts))
            .and_then(|dir| disk.dir(dir).map(|listing| listing.now.clone()))
            .map_err(|error| Error::new(Operation::List, dir, error.into()))?;
        let entries = names.into_iter().map(|(name, inode)| Entry {
            name,
            kind: if disk.is_dir(inode) { EntryKind::Dir } else { EntryKind::File },
        });
        let is_visible = |entry: &Entry| {
            // What NFS clients call files that were removed while open.
            let digits = entry.name.as_encoded_bytes().strip_prefix(b".nfs").unwrap_or_default();
            entry.kind == EntryKind::Dir || digits.len() < 16 || !digits.iter().all(u8::is_ascii_hexdigit)
        };
        Ok(entries.filter(is_visible).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let same_dir = parts(from).and_then(|from| parts(to).map(|to| (from, to))).is_ok_and(|(from, to)| {
            from.split_last().map(|(_, dir)| dir) == to.split_last().map(|(_, dir)| dir)
        });
        self.in_parent(Operation::Rename, from, |disk, dir, name| {
            let to = to.file_name().filter(|_| same_dir).ok_or(Errno::INVAL)?;
            disk.rename(dir, name, to)
        })
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        self.in_parent(Operation::RemoveFile, path, |disk, dir, name| {
            let inode = *disk.dir(dir)?.now.get(name).ok_or(Errno::NOENT)?;
            disk.file(inode)?;
            disk.dir(dir)?.change(|names| {
                names.remove(name);
            });
            Ok(())
        })
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.in_parent(Operation::RemoveDir, dir, |disk, parent, name| {
            let inode = *disk.dir(parent)?.now.get(name).ok_or(Errno::NOENT)?;
            if !disk.dir(inode)?.now.is_empty() {
                return Err(Errno::NOTEMPTY);
            }
            disk.dir(parent)?.change(|names| {
                names.remove(name);
            });
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let mut disk = self.disk.lock();
        parts(dir)
            .and_then(|parts| disk.descend(&parts))
            .and_then(|dir| disk.dir(dir).map(Listing::sync))
            .map_err(|error| Error::new(Operation::SyncDir, dir, error.into()))
    }

    fn sync_tree(&self, dir: &Path) -> Result<()> {
        let mut disk = self.disk.lock();
        let inode = parts(dir)
            .and_then(|parts| disk.descend(&parts))
            .map_err(|error| Error::new(Operation::SyncDir, dir, error.into()))?;
        disk.sync_below(inode);
        drop(disk);
        dir.parent().map_or(Ok(()), |parent| self.sync_dir(parent))
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        let (inode, writable) = match mode {
            OpenMode::Read | OpenMode::ReadUncached => (self.find(Operation::Open, path)?, false),
            OpenMode::Write | OpenMode::Rewrite => (self.find(Operation::Open, path)?, true),
            OpenMode::CreateNew => (self.create(path, Content::default())?, true),
        };
        Ok(Arc::new(self.handle(inode, path, writable)))
    }

    fn make_durable(&self, path: &Path, _length: u64) -> Result<()> {
        let inode = self.find(Operation::Open, path)?;
        self.handle(inode, path, false).sync_data()
    }

    fn create_records(&self, path: &Path, records: u64) -> Result<()> {
        let bytes = usize::try_from(records).unwrap_or(0).saturating_mul(RECORD_BYTES);
        self.create(path, Content { now: vec![0; bytes], synced: Vec::new() }).map(|_| ())
    }

    fn open_records(&self, path: &Path) -> Result<Arc<dyn RecordFile>> {
        let inode = self.find(Operation::Open, path)?;
        Ok(Arc::new(self.handle(inode, path, true)))
    }

    fn space(&self) -> Result<Space> {
        Ok(Space { total_bytes: None, available_bytes: None })
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        let inode = match self.create(path, Content::default()) {
            Err(error) if error.is_exists() => self.find(Operation::Lock, path)?,
            created => created?,
        };
        let taken = self.disk.lock().locked.insert(inode);
        Ok(taken.then(|| Box::new(Lock { disk: Arc::clone(&self.disk), inode }) as Box<dyn LockGuard>))
    }
}

/// An open file, or record file.
#[derive(Debug)]
struct Handle {
    disk: Arc<Mutex<Disk>>,
    inode: usize,
    path: PathBuf,
    writable: bool,
}

impl Handle {
    fn with<T>(&self, operation: Operation, act: impl FnOnce(&mut Content) -> Outcome<T>) -> Result<T> {
        let mut disk = self.disk.lock();
        disk.file(self.inode)
            .and_then(act)
            .map_err(|error| Error::new(operation, &self.path, io::Error::from(error)))
    }

    fn check_writable(&self, refusal: Errno) -> Outcome<()> {
        if self.writable { Ok(()) } else { Err(refusal) }
    }
}

fn place(offset: u64) -> Outcome<usize> {
    usize::try_from(offset).map_err(|_| Errno::FBIG)
}

fn copy_from(bytes: &[u8], target: &mut [u8], at: usize) -> usize {
    let from = bytes.get(at..).unwrap_or_default();
    let count = from.len().min(target.len());
    if let (Some(target), Some(from)) = (target.get_mut(..count), from.get(..count)) {
        target.copy_from_slice(from);
    }
    count
}

impl File for Handle {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.with(Operation::Read, |content| Ok(copy_from(&content.now, buf, place(offset)?)))
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>> {
        self.read_at(buf, offset).map(Some)
    }

    fn write_all_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.with(Operation::Write, |content| {
            self.check_writable(Errno::BADF)?;
            let mut at = place(offset)?;
            for part in parts.iter().filter(|part| !part.is_empty()) {
                Content::write(&mut content.now, part, at);
                at += part.len();
            }
            Ok(())
        })
    }

    fn sync_data(&self) -> Result<()> {
        self.with(Operation::Sync, |content| {
            content.sync();
            Ok(())
        })
    }

    fn length(&self) -> Result<u64> {
        self.with(Operation::Length, |content| Ok(content.now.len() as u64))
    }

    fn set_length(&self, length: u64) -> Result<()> {
        self.with(Operation::SetLength, |content| {
            self.check_writable(Errno::INVAL)?;
            content.now.resize(place(length)?, 0);
            Ok(())
        })
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl RecordFile for Handle {
    fn records(&self) -> Result<u64> {
        self.length().map(|length| length / RECORD_BYTES as u64)
    }

    fn read(&self, first_index: u64, records: &mut [Record]) -> Result<()> {
        self.with(Operation::Read, |content| {
            let bytes = records.as_flattened_mut();
            bytes.fill(0);
            copy_from(&content.now, bytes, place(first_index.saturating_mul(RECORD_BYTES as u64))?);
            Ok(())
        })
    }

    fn write(&self, first_index: u64, records: &[Record]) -> Result<()> {
        self.with(Operation::Write, |content| {
            let (bytes, at) =
                (records.as_flattened(), place(first_index.saturating_mul(RECORD_BYTES as u64))?);
            if at.saturating_add(bytes.len()) > content.now.len() {
                return Err(Errno::INVAL);
            }
            Content::write(&mut content.now, bytes, at);
            Content::write(&mut content.synced, bytes, at);
            Ok(())
        })
    }

    fn extend(&self, records: u64) -> Result<()> {
        self.with(Operation::SetLength, |content| {
            let bytes = place(records.saturating_mul(RECORD_BYTES as u64))?;
            for state in [&mut content.now, &mut content.synced] {
                if state.len() < bytes {
                    state.resize(bytes, 0);
                }
            }
            Ok(())
        })
    }
}

/// The lock goes with the guard.
#[derive(Debug)]
struct Lock {
    disk: Arc<Mutex<Disk>>,
    inode: usize,
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.disk.lock().locked.remove(&self.inode);
    }
}

impl LockGuard for Lock {}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "f";

    fn written(volume: &Volatile, byte: u8, length: usize) -> Arc<dyn File> {
        let file = volume.open(Path::new(FILE), OpenMode::CreateNew).unwrap();
        file.write_all_at(&[IoSlice::new(&vec![byte; length])], 0).unwrap();
        file
    }

    fn content(volume: &Volatile) -> Option<Vec<u8>> {
        kaas_substrate::read_small(volume, Path::new(FILE), 1 << 20).ok()
    }

    #[test]
    fn what_was_synced_is_always_there() {
        for seed in 0..50 {
            let volume = Volatile::new();
            let file = written(&volume, 1, 1500);
            file.sync_data().unwrap();
            volume.sync_dir(Path::new("")).unwrap();
            file.write_all_at(&[IoSlice::new(&[2; 600])], 1500).unwrap();
            let mut state = seed;
            let left = volume.lose_power(&mut |bound| {
                state = state * 31 + 7;
                (state >> 3) % bound
            });
            assert_eq!(content(&left).unwrap()[..1500], [1; 1500]);
        }
    }

    #[test]
    fn what_was_not_synced_may_be_lost_whole_or_in_part() {
        let volume = Volatile::new();
        let file = written(&volume, 1, 1024);
        assert_eq!(content(&volume.lose_power(&mut |_| 0)), None, "its name");
        volume.sync_dir(Path::new("")).unwrap();
        assert_eq!(content(&volume.lose_power(&mut |_| 0)), Some(Vec::new()), "its bytes");
        let mut calls = 0;
        let left = volume.lose_power(&mut |bound| {
            calls += 1;
            // All of the length; the first sector is lost, the second one is not.
            if bound == 3 { 1 } else { u64::from(calls == 4) }
        });
        let bytes = content(&left).unwrap();
        assert_eq!((bytes.len(), bytes[0], bytes[1023]), (1024, 0, 1));
        drop(file);
    }
}
