//! The volume as the processes of one host see it: the traits.

use std::io;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kaas_substrate::{
    Adoption, Entry, Error, File, Kind, LockGuard, OpenMode, Operation, RECORD_BYTES, Record, RecordFile,
    Result, Sharing, Space, Substrate,
};
use rustix::io::Errno;

use super::Shared;
use super::data::Access;
use super::server::Inode;
use super::world::{Outcome, Stop, Who, World};
use crate::faulty::{Hook, Point};

/// Bytes of so many records; more than any file holds, if that is too many.
fn record_bytes(records: u64) -> u64 {
    records.saturating_mul(RECORD_BYTES as u64)
}

/// A mount of the volume on one boot of a host.
#[derive(Debug, Clone)]
pub(super) struct Mount {
    pub shared: Arc<Shared>,
    pub who: Who,
    /// Asked between the steps of calls that take several.
    pub hook: Option<Arc<dyn Hook>>,
}

impl Mount {
    /// Makes a call. One that would not return parks, and is made again.
    fn call<T>(
        &self,
        operation: Operation,
        path: &Path,
        mut act: impl FnMut(&mut World, Who) -> Outcome<T>,
    ) -> Result<T> {
        loop {
            // The lock goes before the caller is parked.
            let outcome = act(&mut self.shared.world.lock(), self.who);
            let errno = match outcome {
                Ok(done) => return Ok(done),
                Err(Stop::Errno(errno)) => errno,
                Err(Stop::Blocked) if self.shared.park(self.who.host) => continue,
                Err(Stop::Blocked) => Errno::TIMEDOUT,
            };
            return Err(Error::new(operation, path, io::Error::from(errno)));
        }
    }

    /// Between two steps of a call: fails if its process has died there.
    fn between_steps(&self, operation: Operation, path: &Path) -> Result<()> {
        match &self.hook {
            Some(hook) if !hook.between_steps(path) => Err(Error::new(operation, path, Errno::IO.into())),
            _ => Ok(()),
        }
    }

    fn handle(&self, inode: Inode, path: &Path, access: Access, is_writable: bool) -> Handle {
        let failed_syncs = AtomicU64::new(self.shared.world.lock().failed_syncs(self.who, inode).0);
        Handle { mount: self.clone(), inode, path: path.to_owned(), access, is_writable, failed_syncs }
    }
}

impl Substrate for Mount {
    fn kind(&self) -> Kind {
        Kind::Simulated
    }

    fn sharing(&self) -> Sharing {
        self.shared.world.lock().profile.sharing
    }

    fn adoption(&self) -> Adoption {
        // A commit at the server covers what its own client sent.
        if self.shared.world.lock().profile.unstable_writes { Adoption::Rewrite } else { Adoption::Sync }
    }

    fn root(&self) -> &Path {
        Path::new("(simulated)")
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        self.call(Operation::CreateDir, dir, |world, who| world.create_dir(who, dir))
    }

    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        self.call(Operation::List, dir, |world, who| world.list(who, dir))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.call(Operation::Rename, from, |world, who| world.rename(who, from, to))
    }

    /// As on every mount: a second name that is durable, and then the former one goes.
    fn move_file(&self, from: &Path, to: &Path) -> Result<()> {
        let (between, dir_of) = (
            || self.between_steps(Operation::Rename, from),
            |path: &Path| path.parent().unwrap_or(Path::new("")).to_owned(),
        );
        self.call(Operation::Rename, from, |world, who| world.link(who, from, to))?;
        between()?;
        self.sync_dir(&dir_of(to))?;
        between()?;
        self.remove_file(from)?;
        between()?;
        self.sync_dir(&dir_of(from))
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        self.call(Operation::RemoveFile, path, |world, who| world.remove_file(who, path))
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.call(Operation::RemoveDir, dir, |world, who| world.remove_dir(who, dir))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.call(Operation::SyncDir, dir, |world, who| {
            let dir = world.find_dir(who, dir)?;
            world.sync_dir(who, dir)
        })
    }

    fn sync_tree(&self, dir: &Path) -> Result<()> {
        self.call(Operation::SyncDir, dir, |world, who| {
            let top = world.find_dir(who, dir)?;
            for inode in world.below(top) {
                if world.server.is_dir(inode) {
                    world.sync_dir(who, inode)?;
                } else {
                    world.sync(who, inode, Point::SyncTree, dir)?;
                }
            }
            let parent = world.find_dir(who, dir.parent().unwrap_or(Path::new("")))?;
            world.sync_dir(who, parent)
        })
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        let (operation, access, is_writable) = match mode {
            OpenMode::Read => (Operation::Open, Access::Cached, false),
            OpenMode::ReadUncached => (Operation::Open, Access::Uncached, false),
            OpenMode::Write => (Operation::Open, Access::Cached, true),
            OpenMode::Rewrite => (Operation::Open, Access::Uncached, true),
            OpenMode::CreateNew => (Operation::Create, Access::Cached, true),
        };
        let inode = self.call(operation, path, |world, who| {
            let inode = match mode {
                OpenMode::CreateNew => world.create(who, path)?,
                _ => world.find(who, path)?,
            };
            world.open(who, inode, access)?;
            Ok(inode)
        })?;
        Ok(Arc::new(self.handle(inode, path, access, is_writable)))
    }

    fn make_durable(&self, path: &Path, _length: u64) -> Result<()> {
        self.call(Operation::Sync, path, |world, who| {
            let inode = world.find(who, path)?;
            world.recall(who, inode)?;
            world.sync(who, inode, Point::MakeDurable, path)?;
            world.drop_clean(who, inode)
        })
    }

    fn create_records(&self, path: &Path, records: u64) -> Result<()> {
        self.call(Operation::Create, path, |world, who| {
            let inode = world.create(who, path)?;
            world.set_length(who, inode, record_bytes(records))
        })
    }

    fn open_records(&self, path: &Path) -> Result<Arc<dyn RecordFile>> {
        let inode = self.call(Operation::Open, path, |world, who| {
            let inode = world.find(who, path)?;
            world.open(who, inode, Access::Uncached)?;
            Ok(inode)
        })?;
        Ok(Arc::new(self.handle(inode, path, Access::Uncached, true)))
    }

    fn space(&self) -> Result<Space> {
        Ok(Space { total_bytes: None, available_bytes: None })
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        let taken = self.call(Operation::Lock, path, |world, who| world.try_lock(who, path))?;
        Ok(taken.map(|inode| Box::new(Lock { mount: self.clone(), inode }) as Box<dyn LockGuard>))
    }
}

/// An open file, or record file.
#[derive(Debug)]
struct Handle {
    mount: Mount,
    inode: Inode,
    path: PathBuf,
    access: Access,
    is_writable: bool,
    /// Of the file, as far as this handle was told.
    failed_syncs: AtomicU64,
}

impl Handle {
    fn call<T>(
        &self,
        operation: Operation,
        mut act: impl FnMut(&mut World, Who, Inode) -> Outcome<T>,
    ) -> Result<T> {
        self.mount.call(operation, &self.path, |world, who| act(world, who, self.inode))
    }

    fn check_writable(&self, operation: Operation, refusal: Errno) -> Result<()> {
        if self.is_writable { Ok(()) } else { Err(Error::new(operation, &self.path, refusal.into())) }
    }

    fn length_in_bytes(&self) -> Result<u64> {
        let access = self.access;
        self.call(Operation::Length, |world, who, inode| world.length(who, inode, access))
            .map(|length| length as u64)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.mount.shared.world.lock().close(self.mount.who, self.inode, self.is_writable);
    }
}

impl File for Handle {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let access = self.access;
        self.call(Operation::Read, |world, who, inode| world.read(who, inode, access, buf, offset))
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>> {
        let access = self.access;
        self.call(Operation::Read, |world, who, inode| world.read_nowait(who, inode, access, buf, offset))
    }

    fn write_all_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.check_writable(Operation::Write, Errno::BADF)?;
        let access = self.access;
        self.call(Operation::Write, |world, who, inode| world.write(who, inode, access, parts, offset))
    }

    fn sync_data(&self) -> Result<()> {
        self.call(Operation::Sync, |world, who, inode| {
            world.enter(who)?;
            let outcome = world.sync(who, inode, Point::SyncData, &self.path);
            // One that failed through another handle since this one was opened is told here, too.
            let (failed, errno) = world.failed_syncs(who, inode);
            let told = self.failed_syncs.swap(failed, Ordering::Relaxed);
            match errno.filter(|_| outcome.is_ok() && told < failed) {
                Some(errno) => Err(errno.into()),
                None => outcome,
            }
        })
    }

    fn length(&self) -> Result<u64> {
        self.length_in_bytes()
    }

    fn set_length(&self, length: u64) -> Result<()> {
        self.check_writable(Operation::SetLength, Errno::INVAL)?;
        self.call(Operation::SetLength, |world, who, inode| world.set_length(who, inode, length))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl RecordFile for Handle {
    fn records(&self) -> Result<u64> {
        self.length_in_bytes().map(|length| length / RECORD_BYTES as u64)
    }

    fn read(&self, first_index: u64, records: &mut [Record]) -> Result<()> {
        let (bytes, access) = (records.as_flattened_mut(), self.access);
        bytes.fill(0);
        let offset = record_bytes(first_index);
        self.call(Operation::Read, |world, who, inode| world.read(who, inode, access, bytes, offset))?;
        Ok(())
    }

    fn write(&self, first_index: u64, records: &[Record]) -> Result<()> {
        let (bytes, offset) = (records.as_flattened(), record_bytes(first_index));
        self.call(Operation::Write, |world, who, inode| world.write_record(who, inode, bytes, offset))
    }

    fn extend(&self, records: u64) -> Result<()> {
        self.call(Operation::SetLength, |world, who, inode| world.extend(who, inode, record_bytes(records)))
    }
}

/// The lock goes with the guard.
#[derive(Debug)]
struct Lock {
    mount: Mount,
    inode: Inode,
}

impl Drop for Lock {
    fn drop(&mut self) {
        let mut world = self.mount.shared.world.lock();
        if world.locks.get(&self.inode) == Some(&self.mount.who.client) {
            world.locks.remove(&self.inode);
        }
    }
}

impl LockGuard for Lock {}
