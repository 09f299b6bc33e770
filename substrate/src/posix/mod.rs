//! A directory of a mounted file system: what [`crate::Local`], [`crate::Nfs`] and [`crate::CephFs`] have in common, and
//! [`Rules`], what they differ in.
//!
//! The root is held as a descriptor and every path is resolved below it, so a root that is renamed or mounted over
//! stays the same directory. Safe from any thread; the only lock is held across `syncfs`, by design (see `sync_tree`).

mod file;
mod names;
mod records;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{
    Advice, FileType, FlockOperation, Mode, OFlags, fadvise, fcntl_getfl, fcntl_setfl, fdatasync, flock,
    fstat, fstatvfs, fsync, syncfs,
};
use rustix::io::{Errno, retry_on_intr};

use self::file::MountedFile;
use self::records::MountedRecords;
use crate::paths::{AtPath, check, check_named, check_rename};
use crate::{
    Adoption, Entry, EntryKind, Error, File, Kind, LockGuard, OpenMode, Operation, RecordFile, Result,
    Sharing, Space, Substrate,
};

/// Trees of up to this many files are synced file by file, larger ones of one host's file system with one `syncfs`.
const SYNC_ONE_BY_ONE: usize = 64;

/// Flags of every open: descriptors do not leak into child processes, links are not followed.
const OPEN_FLAGS: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW);

/// What a kind of file system asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) kind: Kind,
    /// What the volume can carry.
    pub(crate) sharing: Sharing,
    pub(crate) adoption: Adoption,
    /// Other hosts have the volume too: what this one holds of names, lengths and bytes may be old.
    pub(crate) shared: bool,
    /// The server hands out delegations with opens, and a host that is cut off makes everybody wait who needs them back;
    /// one that is opened uncached gets none.
    pub(crate) delegations: bool,
    /// What is cached of a file is checked when it is opened. If not, what others may have written is never read from
    /// the cache.
    pub(crate) checked_cache: bool,
}

/// A directory of a mounted file system, as a volume; see the module.
#[derive(Debug)]
pub struct Mounted {
    rules: Rules,
    root: OwnedFd,
    path: PathBuf,
    /// Held across `syncfs`: a write error of the volume is told to one caller only, so callers take turns, and
    /// once one of them was told, nobody relies on `syncfs` any more.
    whole_volume_sync: Mutex<WholeVolumeSync>,
}

#[derive(Debug, PartialEq, Eq)]
enum WholeVolumeSync {
    Trusted,
    HasFailed,
}

/// Whether a descriptor goes past the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cache {
    Used,
    Passed,
}

/// Creates `root` and its missing parents, durably. Leaves an existing directory as it is.
pub fn create_root(root: &Path) -> Result<()> {
    let mut missing = Vec::new();
    let mut next = Some(root);
    while let Some(dir) = next.filter(|dir| !dir.as_os_str().is_empty()) {
        match std::fs::metadata(dir) {
            Ok(found) if found.is_dir() => break,
            Ok(_) => return Err(Error::new(Operation::CreateDir, dir, Errno::NOTDIR.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(dir),
            Err(error) => return Err(Error::new(Operation::CreateDir, dir, error)),
        }
        next = dir.parent();
    }
    for dir in missing.into_iter().rev() {
        match std::fs::create_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::new(Operation::CreateDir, dir, error));
            }
            _ => {}
        }
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::File::open(parent).and_then(|parent| parent.sync_all()).at(Operation::SyncDir, parent)?;
    }
    Ok(())
}

impl Mounted {
    /// Opens an existing directory as a volume.
    pub(crate) fn open_root(root: &Path, rules: Rules) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry_on_intr(|| rustix::fs::open(root, flags, Mode::empty())).at(Operation::Open, root)?;
        let path = std::fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
        Ok(Self { rules, root: fd, path, whole_volume_sync: Mutex::new(WholeVolumeSync::Trusted) })
    }

    /// Opens or creates a file; past the cache, or at least so that no delegation comes with it.
    fn open_at(&self, operation: Operation, path: &Path, flags: OFlags, cache: Cache) -> Result<OwnedFd> {
        let passed = self.rules.shared && cache == Cache::Passed;
        let direct = if passed || self.rules.delegations { OFlags::DIRECT } else { OFlags::empty() };
        let fd = self.open_name(path, flags | direct).at(operation, path)?;
        if !passed && self.rules.delegations {
            let flags = fcntl_getfl(&fd).at(operation, path)?;
            fcntl_setfl(&fd, flags - OFlags::DIRECT).at(operation, path)?;
        }
        Ok(fd)
    }

    /// Opens a file that exists; a directory is an error here and not at the first read.
    fn open_file(&self, path: &Path, flags: OFlags, cache: Cache) -> Result<OwnedFd> {
        check_named(Operation::Open, path)?;
        let fd = self.open_at(Operation::Open, path, flags, cache)?;
        let found = fstat(&fd).at(Operation::Open, path)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => Ok(fd),
            FileType::Directory => Err(Error::new(Operation::Open, path, Errno::ISDIR.into())),
            _ => Err(Error::new(Operation::Open, path, Errno::INVAL.into())),
        }
    }

    fn create_file(&self, path: &Path, cache: Cache) -> Result<OwnedFd> {
        check_named(Operation::Create, path)?;
        self.open_at(Operation::Create, path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, cache)
    }

    pub(crate) fn open_dir(&self, operation: Operation, dir: &Path) -> Result<OwnedFd> {
        self.open_name(dir, OFlags::RDONLY | OFlags::DIRECTORY).at(operation, dir)
    }

    /// Everything below `dir` that must be synced: files first, then directories, deepest first.
    fn walk(&self, dir: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
        let mut files = Vec::new();
        let mut dirs = vec![dir.to_owned()];
        let mut next = 0;
        while let Some(dir) = dirs.get(next).cloned() {
            for entry in self.list(&dir)? {
                match entry.kind {
                    EntryKind::File => files.push(dir.join(entry.name)),
                    EntryKind::Dir => dirs.push(dir.join(entry.name)),
                    _ => {}
                }
            }
            next += 1;
        }
        dirs.reverse();
        Ok((files, dirs))
    }

    /// Syncs the whole volume; false if that says nothing. On a network `syncfs` is not a promise of the server's.
    fn sync_volume(&self, dir: &Path) -> Result<bool> {
        let mut state = self.whole_volume_sync.lock();
        if self.rules.shared || *state == WholeVolumeSync::HasFailed {
            return Ok(false);
        }
        // The root's descriptor is as old as this substrate, so it is told of every write error since then.
        retry_on_intr(|| syncfs(&self.root)).at(Operation::SyncDir, dir).inspect_err(|_| {
            *state = WholeVolumeSync::HasFailed;
        })?;
        Ok(true)
    }
}

/// Makes later reads of the file, through whatever descriptor, come from the volume, dirty pages excepted.
///
/// After a failed sync, of whomever, the kernel holds pages that are marked clean and are not on the disk: reads return
/// them, and a later sync of the file succeeds without having written them.
fn drop_cached_pages(fd: &OwnedFd, path: &Path) -> Result<()> {
    match fadvise(fd, 0, None, Advice::DontNeed) {
        // A file system that keeps no pages.
        Ok(()) | Err(Errno::INVAL | Errno::NOSYS) => Ok(()),
        Err(error) => Err(Error::new(Operation::Sync, path, error.into())),
    }
}

impl Substrate for Mounted {
    fn kind(&self) -> Kind {
        self.rules.kind
    }

    fn sharing(&self) -> Sharing {
        self.rules.sharing
    }

    fn adoption(&self) -> Adoption {
        self.rules.adoption
    }

    fn root(&self) -> &Path {
        &self.path
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        check_named(Operation::CreateDir, dir)?;
        self.make_dir(dir).at(Operation::CreateDir, dir)
    }

    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        check(Operation::List, dir)?;
        let fd = self.open_dir(Operation::List, dir)?;
        self.entries(fd, dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        check_rename(from, to)?;
        self.rename_within(from, to).at(Operation::Rename, from)
    }

    fn move_file(&self, from: &Path, to: &Path) -> Result<()> {
        check_named(Operation::Rename, from)?;
        check_named(Operation::Rename, to)?;
        let parent = |path: &Path| path.parent().unwrap_or(Path::new("")).to_owned();
        self.link(from, to).at(Operation::Rename, from)?;
        // A crash may undo what was done in one directory and not what was done in another.
        self.sync_dir(&parent(to))?;
        self.remove_file(from)?;
        self.sync_dir(&parent(from))
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        check_named(Operation::RemoveFile, path)?;
        self.unlink(path, EntryKind::File).at(Operation::RemoveFile, path)
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        check_named(Operation::RemoveDir, dir)?;
        self.unlink(dir, EntryKind::Dir).at(Operation::RemoveDir, dir)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        check(Operation::SyncDir, dir)?;
        let fd = self.open_dir(Operation::SyncDir, dir)?;
        retry_on_intr(|| fsync(&fd)).at(Operation::SyncDir, dir)
    }

    fn sync_tree(&self, dir: &Path) -> Result<()> {
        check(Operation::SyncDir, dir)?;
        let (files, dirs) = self.walk(dir)?;
        if files.len() + dirs.len() > SYNC_ONE_BY_ONE && self.sync_volume(dir)? {
            return Ok(());
        }
        for file in &files {
            let fd = self.open_at(Operation::Sync, file, OFlags::RDONLY, Cache::Used)?;
            retry_on_intr(|| fdatasync(&fd)).at(Operation::Sync, file)?;
        }
        for dir in &dirs {
            self.sync_dir(dir)?;
        }
        match dir.parent() {
            Some(parent) => self.sync_dir(parent),
            None => Ok(()),
        }
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        let cache = match mode {
            OpenMode::Read if self.rules.checked_cache => Cache::Used,
            OpenMode::Read | OpenMode::ReadUncached | OpenMode::Rewrite => Cache::Passed,
            OpenMode::Write | OpenMode::CreateNew => Cache::Used,
        };
        let fd = match mode {
            OpenMode::Read | OpenMode::ReadUncached => self.open_file(path, OFlags::RDONLY, cache)?,
            OpenMode::Write | OpenMode::Rewrite => self.open_file(path, OFlags::RDWR, cache)?,
            OpenMode::CreateNew => self.create_file(path, cache)?,
        };
        if mode == OpenMode::ReadUncached {
            drop_cached_pages(&fd, path)?;
        }
        let cached = !self.rules.shared || cache == Cache::Used;
        Ok(Arc::new(MountedFile::new(fd, path, cached)))
    }

    fn make_durable(&self, path: &Path, _length: u64) -> Result<()> {
        let fd = self.open_file(path, OFlags::RDONLY, Cache::Used)?;
        retry_on_intr(|| fdatasync(&fd)).at(Operation::Sync, path)?;
        drop_cached_pages(&fd, path)
    }

    fn create_records(&self, path: &Path, records: u64) -> Result<()> {
        let fd = self.create_file(path, Cache::Passed)?;
        records::extend(&fd, path, 0, records)
    }

    fn open_records(&self, path: &Path) -> Result<Arc<dyn RecordFile>> {
        Ok(Arc::new(MountedRecords::new(self.open_file(path, OFlags::RDWR, Cache::Passed)?, path)))
    }

    fn space(&self) -> Result<Space> {
        let found = fstatvfs(&self.root).at(Operation::Space, Path::new(""))?;
        // A volume that does not know (CephFS without a manager daemon) is not full.
        if found.f_blocks == 0 {
            return Ok(Space { total_bytes: None, available_bytes: None });
        }
        Ok(Space {
            total_bytes: Some(found.f_blocks.saturating_mul(found.f_frsize)),
            available_bytes: Some(found.f_bavail.saturating_mul(found.f_frsize)),
        })
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        check_named(Operation::Lock, path)?;
        let fd = self.open_at(Operation::Lock, path, OFlags::RDWR | OFlags::CREATE, Cache::Used)?;
        match retry_on_intr(|| flock(&fd, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => Ok(Some(Box::new(Locked { _held: fd }))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(Error::new(Operation::Lock, path, error.into())),
        }
    }
}

/// The lock goes with the descriptor.
#[derive(Debug)]
struct Locked {
    _held: OwnedFd,
}

impl LockGuard for Locked {}
