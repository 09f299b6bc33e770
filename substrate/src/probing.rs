//! Raw looks at a mount: what the file system does, before any implementation of [`crate::Substrate`] trusts it.
//!
//! For `kaas-engine qualify`. Opens any directory, of whatever kind of volume, and offers the calls that kaas's
//! implementations are made of, each in the flavours that they use: through the page cache or with `O_DIRECT`. Nothing
//! here hides what the file system does: no retry, no fallback, names of the client (`.nfsXXXX`) included.
//! Every call may block for as long as the volume does not answer.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    Advice, AtFlags, Dir, FlockOperation, OFlags, fadvise, fcntl_lock, fdatasync, flock, fstat, ftruncate,
    statat,
};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};

pub use crate::mountstats::{Mounting, delegations_returned, mounting};
use crate::paths::{AtPath, check, check_named};
use crate::{Error, Local, Mounted, Operation, Result, Space, Substrate};

/// What memory, positions and lengths of direct reads and writes are multiples of; enough for every volume known.
pub const DIRECT_ALIGNMENT: usize = 4096;

/// A directory on a volume that is being looked at.
#[derive(Debug)]
pub struct ProbeDir {
    local: Mounted,
}

/// An open file of a [`ProbeDir`].
#[derive(Debug)]
pub struct ProbeFile {
    fd: OwnedFd,
    path: PathBuf,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeOpen {
    /// Whether it may be written, and whether it is created.
    pub access: Access,
    /// With `O_DIRECT`: past the page cache, and on NFS without a delegation.
    pub direct: bool,
}

/// What an open file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    ReadWrite,
    /// Creates exclusively, for reading and writing.
    CreateNew,
}

/// What a look at a name shows; it may come from a cache of this client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameFacts {
    pub length: u64,
    pub inode: u64,
}

/// A kind of advisory lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// `flock(2)`.
    Whole,
    /// `fcntl(2)`, POSIX, on the whole file.
    Posix,
}

/// Memory that direct reads and writes accept.
#[derive(Debug)]
pub struct AlignedBuffer {
    memory: Vec<u8>,
    begin: usize,
    length: usize,
}

impl AlignedBuffer {
    /// `length` zero bytes, at an address that is a multiple of [`DIRECT_ALIGNMENT`].
    pub fn new(length: usize) -> Self {
        let memory = vec![0; length.saturating_add(DIRECT_ALIGNMENT)];
        // Never beyond the alignment for bytes, and so within what was allocated.
        let begin = memory.as_ptr().align_offset(DIRECT_ALIGNMENT).min(DIRECT_ALIGNMENT);
        Self { memory, begin, length }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.memory.get(self.begin..self.begin + self.length).unwrap_or_default()
    }

    /// The bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.begin..self.begin + self.length).unwrap_or_default()
    }
}

impl ProbeDir {
    /// Opens an existing directory.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self { local: Local::open(path)? })
    }

    /// Where it is, without links.
    pub fn path(&self) -> &Path {
        self.local.root()
    }

    /// The number of the mounted file system on this host: two mounts that share it share the client's caches.
    pub fn device(&self) -> Result<u64> {
        let fd = self.local.open_dir(Operation::Open, Path::new(""))?;
        Ok(fstat(&fd).at(Operation::Open, Path::new(""))?.st_dev)
    }

    /// Creates one directory, exclusively.
    pub fn create_dir(&self, dir: &Path) -> Result<()> {
        self.local.create_dir(dir)
    }

    /// Every name in a directory, those of the client too.
    pub fn list(&self, dir: &Path) -> Result<Vec<String>> {
        check(Operation::List, dir)?;
        let fd = self.local.open_dir(Operation::List, dir)?;
        let mut names = Vec::new();
        for entry in Dir::new(fd).at(Operation::List, dir)? {
            let name = entry.at(Operation::List, dir)?.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Renames a file or directory within one directory.
    pub fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.local.rename(from, to)
    }

    /// Removes a file's name.
    pub fn remove_file(&self, path: &Path) -> Result<()> {
        self.local.remove_file(path)
    }

    /// fsync of a directory.
    pub fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.local.sync_dir(dir)
    }

    /// Space of the volume.
    pub fn space(&self) -> Result<Space> {
        self.local.space()
    }

    /// The directory as a volume of this host, for what is done around the looks.
    pub fn volume(&self) -> &dyn Substrate {
        &self.local
    }

    /// Looks at a name, without opening it.
    pub fn look(&self, path: &Path) -> Result<NameFacts> {
        check_named(Operation::Length, path)?;
        let dir = self.local.open_dir(Operation::Length, Path::new(""))?;
        let found = statat(&dir, path, AtFlags::SYMLINK_NOFOLLOW).at(Operation::Length, path)?;
        Ok(NameFacts { length: u64::try_from(found.st_size).unwrap_or(0), inode: found.st_ino })
    }

    /// Opens or creates a file.
    pub fn open_file(&self, path: &Path, how: ProbeOpen) -> Result<ProbeFile> {
        let operation = if how.access == Access::CreateNew { Operation::Create } else { Operation::Open };
        check_named(operation, path)?;
        let flags = match how.access {
            Access::Read => OFlags::RDONLY,
            Access::ReadWrite => OFlags::RDWR,
            Access::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        };
        let flags = if how.direct { flags | OFlags::DIRECT } else { flags };
        Ok(ProbeFile { fd: self.local.open_name(path, flags).at(operation, path)?, path: path.to_owned() })
    }
}

impl ProbeFile {
    /// Reads at `offset` until `buffer` is full or the file ends; the bytes read. With `O_DIRECT`, `offset` is a
    /// multiple of [`DIRECT_ALIGNMENT`].
    pub fn read_at(&self, buffer: &mut AlignedBuffer, offset: u64) -> Result<usize> {
        let bytes = buffer.bytes_mut();
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let position = offset.saturating_add(filled as u64);
            let read =
                retry_on_intr(|| pread(&self.fd, &mut *rest, position)).at(Operation::Read, &self.path)?;
            filled += read;
            // A direct read that stops at an odd place has come to the end.
            if read == 0 || filled % DIRECT_ALIGNMENT != 0 {
                break;
            }
        }
        Ok(filled)
    }

    /// Writes all of `buffer` at `offset`. Not durable on return.
    pub fn write_all_at(&self, buffer: &AlignedBuffer, offset: u64) -> Result<()> {
        let mut rest = buffer.bytes();
        let mut position = offset;
        while !rest.is_empty() {
            let step = retry_on_intr(|| pwrite(&self.fd, rest, position)).at(Operation::Write, &self.path)?;
            if step == 0 {
                return Err(Error::new(Operation::Write, &self.path, std::io::ErrorKind::WriteZero.into()));
            }
            rest = rest.get(step..).unwrap_or_default();
            position = position.saturating_add(step as u64);
        }
        Ok(())
    }

    /// fdatasync.
    pub fn sync_data(&self) -> Result<()> {
        retry_on_intr(|| fdatasync(&self.fd)).at(Operation::Sync, &self.path)
    }

    /// Length in bytes, by this descriptor.
    pub fn length(&self) -> Result<u64> {
        let found = fstat(&self.fd).at(Operation::Length, &self.path)?;
        Ok(u64::try_from(found.st_size).unwrap_or(0))
    }

    /// Cuts or extends to `length` bytes.
    pub fn set_length(&self, length: u64) -> Result<()> {
        retry_on_intr(|| ftruncate(&self.fd, length)).at(Operation::SetLength, &self.path)
    }

    /// Asks the kernel to forget what it holds of this file, dirty pages excepted.
    pub fn drop_cached(&self) -> Result<()> {
        match fadvise(&self.fd, 0, None, Advice::DontNeed) {
            Ok(()) | Err(Errno::INVAL | Errno::NOSYS) => Ok(()),
            Err(error) => Err(Error::new(Operation::Sync, &self.path, error.into())),
        }
    }

    /// Takes an exclusive lock without waiting; false if somebody else has it. It goes with the file's last close.
    pub fn try_lock(&self, kind: LockKind) -> Result<bool> {
        let exclusive = FlockOperation::NonBlockingLockExclusive;
        let outcome = match kind {
            LockKind::Whole => retry_on_intr(|| flock(&self.fd, exclusive)),
            LockKind::Posix => retry_on_intr(|| fcntl_lock(&self.fd, exclusive)),
        };
        match outcome {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK | Errno::ACCESS) => Ok(false),
            Err(error) => Err(Error::new(Operation::Lock, &self.path, error.into())),
        }
    }
}

/// The most memory that this process has had at a time, in bytes, without what is swapped out; `None` where the system does
/// not say it.
pub fn peak_memory_bytes() -> Option<u64> {
    memory_in(&std::fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// The memory that this process has now; as [`peak_memory_bytes`].
pub fn resident_memory_bytes() -> Option<u64> {
    memory_in(&std::fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

fn memory_in(status: &str, field: &str) -> Option<u64> {
    let memory = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = memory.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Who this host is: its name, the id of this boot (equal for two processes of one running kernel), its kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    pub name: String,
    pub boot_id: String,
    pub kernel: String,
}

/// Looks them up in `/proc`; empty where it does not say.
pub fn host_facts() -> HostFacts {
    let read = |path| std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    HostFacts {
        name: read("/proc/sys/kernel/hostname"),
        boot_id: read("/proc/sys/kernel/random/boot_id"),
        kernel: read("/proc/sys/kernel/osrelease"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(access: Access, direct: bool) -> ProbeOpen {
        ProbeOpen { access, direct }
    }

    #[test]
    fn plain_and_direct_files_hold_what_was_written() {
        let parent = tempfile::tempdir().unwrap();
        let dir = ProbeDir::open(parent.path()).unwrap();
        for direct in [false, true] {
            let name = PathBuf::from(format!("file-{direct}"));
            let file = match dir.open_file(&name, open(Access::CreateNew, direct)) {
                // A file system without direct reads and writes.
                Err(error) if direct && error.class == crate::ErrorClass::Invalid => continue,
                outcome => outcome.unwrap(),
            };
            let mut buffer = AlignedBuffer::new(8192);
            assert_eq!(buffer.bytes().as_ptr().align_offset(DIRECT_ALIGNMENT), 0);
            buffer.bytes_mut().fill(7);
            file.write_all_at(&buffer, 4096).unwrap();
            file.sync_data().unwrap();
            assert_eq!(file.length().unwrap(), 12_288);
            assert_eq!(dir.look(&name).unwrap().length, 12_288);
            file.drop_cached().unwrap();
            let again = dir.open_file(&name, open(Access::Read, direct)).unwrap();
            let mut all = AlignedBuffer::new(16_384);
            assert_eq!(again.read_at(&mut all, 0).unwrap(), 12_288);
            assert!(all.bytes()[..4096].iter().all(|byte| *byte == 0));
            assert!(all.bytes()[4096..12_288].iter().all(|byte| *byte == 7));
            assert!(dir.open_file(&name, open(Access::CreateNew, direct)).unwrap_err().is_exists());
            file.set_length(4096).unwrap();
            assert_eq!(again.length().unwrap(), 4096);
        }
    }

    #[test]
    fn a_lock_excludes_another_descriptor() {
        let parent = tempfile::tempdir().unwrap();
        let dir = ProbeDir::open(parent.path()).unwrap();
        let one = dir.open_file(Path::new("lock"), open(Access::CreateNew, false)).unwrap();
        let two = dir.open_file(Path::new("lock"), open(Access::ReadWrite, false)).unwrap();
        assert!(one.try_lock(LockKind::Whole).unwrap());
        assert!(!two.try_lock(LockKind::Whole).unwrap());
        drop(one);
        assert!(two.try_lock(LockKind::Whole).unwrap());
        // A POSIX lock is the process's, so only that it can be had is seen here.
        assert!(two.try_lock(LockKind::Posix).unwrap());
    }

    #[test]
    fn names_of_the_client_are_listed_too() {
        let parent = tempfile::tempdir().unwrap();
        let dir = ProbeDir::open(parent.path()).unwrap();
        let silly = ".nfs00000000000a1b2c00000001";
        for name in [silly, "plain"] {
            dir.open_file(Path::new(name), open(Access::CreateNew, false)).unwrap();
        }
        dir.create_dir(Path::new("d")).unwrap();
        let mut names = dir.list(Path::new("")).unwrap();
        names.sort();
        assert_eq!(names, [silly, "d", "plain"]);
    }

    #[test]
    fn the_most_memory_of_a_process() {
        let status = "VmPeak:\t  9 kB\nVmHWM:\t    5120 kB\nVmRSS:\t 1 kB\n";
        assert_eq!(memory_in(status, "VmHWM:"), Some(5120 * 1024));
        assert_eq!(memory_in(status, "VmRSS:"), Some(1024));
        assert_eq!(memory_in("VmPeak:\t  9 kB\n", "VmHWM:"), None);
        assert!(peak_memory_bytes().is_none_or(|bytes| bytes > 1 << 20));
    }
}
