//! A directory of a file system of this host.
//!
//! The root is held as a descriptor and every path is resolved below it, so a root that is renamed or mounted over
//! stays the same directory. The page cache of one host is coherent: what one process wrote is what every later
//! read of this host returns. What it is not is honest after a failed sync, so an uncached open drops what is cached
//! of the file first. Safe from any thread; the only lock is held across `syncfs`, by design (see `sync_tree`).

mod file;
mod records;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{
    Advice, AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, fadvise, fdatasync, flock,
    fstat, fstatvfs, fsync, ftruncate, mkdirat, openat, renameat, renameat_with, statat, syncfs, unlinkat,
};
use rustix::io::{Errno, retry_on_intr};

use self::file::LocalFile;
use self::records::LocalRecords;
use crate::paths::{AtPath, check, check_named, check_rename, for_system, is_silly_rename};
use crate::{
    Adoption, Entry, EntryKind, Error, File, Kind, LockGuard, OpenMode, Operation, RECORD_BYTES, RecordFile,
    Result, Sharing, Space, Substrate,
};

/// Trees of up to this many files are synced file by file, larger ones with one `syncfs`.
const SYNC_ONE_BY_ONE: usize = 64;

/// Flags of every open: descriptors do not leak into child processes, links are not followed.
const OPEN_FLAGS: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW);

/// A volume on a file system of this host; see the module.
#[derive(Debug)]
pub struct Local {
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

impl Local {
    /// Opens an existing directory as a volume.
    pub fn open(root: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry_on_intr(|| rustix::fs::open(root, flags, Mode::empty())).at(Operation::Open, root)?;
        let path = std::fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
        Ok(Self { root: fd, path, whole_volume_sync: Mutex::new(WholeVolumeSync::Trusted) })
    }

    pub(crate) fn open_at(&self, operation: Operation, path: &Path, flags: OFlags) -> Result<OwnedFd> {
        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o644) } else { Mode::empty() };
        retry_on_intr(|| openat(&self.root, for_system(path), flags | OPEN_FLAGS, mode)).at(operation, path)
    }

    /// Opens a file that exists; a directory is an error here and not at the first read.
    fn open_file(&self, path: &Path, flags: OFlags) -> Result<OwnedFd> {
        check_named(Operation::Open, path)?;
        let fd = self.open_at(Operation::Open, path, flags)?;
        let found = fstat(&fd).at(Operation::Open, path)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => Ok(fd),
            FileType::Directory => Err(Error::new(Operation::Open, path, Errno::ISDIR.into())),
            _ => Err(Error::new(Operation::Open, path, Errno::INVAL.into())),
        }
    }

    fn create_file(&self, path: &Path) -> Result<OwnedFd> {
        check_named(Operation::Create, path)?;
        self.open_at(Operation::Create, path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    fn kind_of(&self, path: &Path) -> std::result::Result<EntryKind, Errno> {
        let found = retry_on_intr(|| statat(&self.root, for_system(path), AtFlags::SYMLINK_NOFOLLOW))?;
        Ok(entry_kind(FileType::from_raw_mode(found.st_mode)))
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
                    EntryKind::Other => {}
                }
            }
            next += 1;
        }
        dirs.reverse();
        Ok((files, dirs))
    }

    fn sync_volume(&self, dir: &Path) -> Result<bool> {
        let mut state = self.whole_volume_sync.lock();
        if *state == WholeVolumeSync::HasFailed {
            return Ok(false);
        }
        // The root's descriptor is as old as this substrate, so it is told of every write error since then.
        retry_on_intr(|| syncfs(&self.root)).at(Operation::SyncDir, dir).inspect_err(|_| {
            *state = WholeVolumeSync::HasFailed;
        })?;
        Ok(true)
    }
}

/// Makes later reads come from the disk, dirty pages excepted.
///
/// After a failed sync, of whomever, the kernel holds pages that are marked clean and are not on the disk: reads
/// return them, and a later sync of the file succeeds without having written them.
fn drop_cached_pages(fd: &OwnedFd, path: &Path) -> Result<()> {
    match fadvise(fd, 0, None, Advice::DontNeed) {
        // A file system that keeps no pages.
        Ok(()) | Err(Errno::INVAL | Errno::NOSYS) => Ok(()),
        Err(error) => Err(Error::new(Operation::Sync, path, error.into())),
    }
}

fn entry_kind(found: FileType) -> EntryKind {
    match found {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Dir,
        _ => EntryKind::Other,
    }
}

impl Substrate for Local {
    fn kind(&self) -> Kind {
        Kind::Local
    }

    fn sharing(&self) -> Sharing {
        Sharing::OneHost { reason: "the directory is on a file system of this host" }
    }

    fn adoption(&self) -> Adoption {
        // One kernel holds every page of the file, whoever wrote it.
        Adoption::Sync
    }

    fn root(&self) -> &Path {
        &self.path
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        check_named(Operation::CreateDir, dir)?;
        retry_on_intr(|| mkdirat(&self.root, dir, Mode::from_raw_mode(0o755))).at(Operation::CreateDir, dir)
    }

    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        check(Operation::List, dir)?;
        let fd = self.open_at(Operation::List, dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut entries = Vec::new();
        for entry in Dir::new(fd).at(Operation::List, dir)? {
            use std::os::unix::ffi::OsStrExt;
            let entry = entry.at(Operation::List, dir)?;
            let bytes = entry.file_name().to_bytes();
            if bytes == b"." || bytes == b".." {
                continue;
            }
            let name = std::ffi::OsStr::from_bytes(bytes).to_owned();
            let kind = match entry.file_type() {
                FileType::Unknown => match self.kind_of(&dir.join(&name)) {
                    Ok(kind) => kind,
                    // Removed since the listing began.
                    Err(Errno::NOENT) => continue,
                    Err(error) => return Err(Error::new(Operation::List, dir, error.into())),
                },
                known => entry_kind(known),
            };
            if kind != EntryKind::Dir && is_silly_rename(bytes) {
                continue;
            }
            entries.push(Entry { name, kind });
        }
        Ok(entries)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        check_rename(from, to)?;
        if self.kind_of(from).at(Operation::Rename, from)? != EntryKind::Dir {
            return retry_on_intr(|| renameat(&self.root, from, &self.root, to)).at(Operation::Rename, from);
        }
        let kept = RenameFlags::NOREPLACE;
        match retry_on_intr(|| renameat_with(&self.root, from, &self.root, to, kept)) {
            // A file system that cannot refuse by itself: the name is looked at first. The system itself refuses
            // to replace anything but an empty directory.
            Err(Errno::INVAL | Errno::NOSYS) => match self.kind_of(to) {
                Err(Errno::NOENT) => retry_on_intr(|| renameat(&self.root, from, &self.root, to)),
                Ok(_) => Err(Errno::EXIST),
                Err(error) => Err(error),
            },
            outcome => outcome,
        }
        .at(Operation::Rename, from)
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        check_named(Operation::RemoveFile, path)?;
        retry_on_intr(|| unlinkat(&self.root, path, AtFlags::empty())).at(Operation::RemoveFile, path)
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        check_named(Operation::RemoveDir, dir)?;
        retry_on_intr(|| unlinkat(&self.root, dir, AtFlags::REMOVEDIR)).at(Operation::RemoveDir, dir)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        check(Operation::SyncDir, dir)?;
        let fd = self.open_at(Operation::SyncDir, dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        retry_on_intr(|| fsync(&fd)).at(Operation::SyncDir, dir)
    }

    fn sync_tree(&self, dir: &Path) -> Result<()> {
        check(Operation::SyncDir, dir)?;
        let (files, dirs) = self.walk(dir)?;
        if files.len() + dirs.len() > SYNC_ONE_BY_ONE && self.sync_volume(dir)? {
            return Ok(());
        }
        for file in &files {
            let fd = self.open_at(Operation::Sync, file, OFlags::RDONLY)?;
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
        let fd = match mode {
            OpenMode::Read => self.open_file(path, OFlags::RDONLY)?,
            OpenMode::ReadUncached => {
                let fd = self.open_file(path, OFlags::RDONLY)?;
                drop_cached_pages(&fd, path)?;
                fd
            }
            OpenMode::Write | OpenMode::Rewrite => self.open_file(path, OFlags::RDWR)?,
            OpenMode::CreateNew => self.create_file(path)?,
        };
        Ok(Arc::new(LocalFile::new(fd, path)))
    }

    fn make_durable(&self, path: &Path, _length: u64) -> Result<()> {
        let fd = self.open_file(path, OFlags::RDONLY)?;
        retry_on_intr(|| fdatasync(&fd)).at(Operation::Sync, path)?;
        drop_cached_pages(&fd, path)
    }

    fn create_records(&self, path: &Path, records: u64) -> Result<()> {
        let fd = self.create_file(path)?;
        let bytes = records.saturating_mul(RECORD_BYTES as u64);
        retry_on_intr(|| ftruncate(&fd, bytes)).at(Operation::SetLength, path)
    }

    fn open_records(&self, path: &Path) -> Result<Arc<dyn RecordFile>> {
        Ok(Arc::new(LocalRecords::new(self.open_file(path, OFlags::RDWR)?, path)))
    }

    fn space(&self) -> Result<Space> {
        let found = fstatvfs(&self.root).at(Operation::Space, Path::new(""))?;
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
        let fd = self.open_at(Operation::Lock, path, OFlags::RDWR | OFlags::CREATE)?;
        match retry_on_intr(|| flock(&fd, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => Ok(Some(Box::new(LocalLock { _held: fd }))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(Error::new(Operation::Lock, path, error.into())),
        }
    }
}

/// The lock goes with the descriptor.
#[derive(Debug)]
struct LocalLock {
    _held: OwnedFd,
}

impl LockGuard for LocalLock {}
