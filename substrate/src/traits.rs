//! The traits a volume implements.
//!
//! Every path is relative to the substrate's root; an absolute path or one with `..` is an `Invalid` error. The
//! root itself is the empty path, or `.`. Symbolic links are not followed. Implementations are used from many threads at
//! once; one file may be read while another thread appends to it.

use std::ffi::OsString;
use std::fmt;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use crate::{Error, Operation, Result};

/// Size in bytes of a record of a [`RecordFile`]; also its alignment in the file.
pub const RECORD_BYTES: usize = 512;

/// The byte of a record that is always zero: extending a file may write a zero there at any time, over whatever stands
/// there.
pub const RECORD_ZERO_AT: usize = RECORD_BYTES - 5;

/// One record of a [`RecordFile`]. All zeros means "never written".
pub type Record = [u8; RECORD_BYTES];

/// A volume, bound to one root directory.
pub trait Substrate: Send + Sync + fmt::Debug {
    /// Which implementation this is.
    fn kind(&self) -> Kind;

    /// Whether brokers on several hosts may share the volume.
    fn sharing(&self) -> Sharing;

    /// What makes bytes durable that somebody else wrote and may not have synced.
    fn adoption(&self) -> Adoption;

    /// The root directory for messages to people; a made-up name when there is none.
    fn root(&self) -> &Path;

    /// Creates one directory. Exclusive: `Exists` if the name is taken. Relies on P2 between hosts.
    ///
    /// Durable only after [`Substrate::sync_dir`] of the parent.
    fn create_dir(&self, dir: &Path) -> Result<()>;

    /// The entries of a directory, in no order, without `.` and `..`. Always asks the volume, never a cache.
    /// Names that belong to the client (`.nfsXXXX`) are left out.
    fn list(&self, dir: &Path) -> Result<Vec<Entry>>;

    /// Renames within one directory, replacing a file of that name. Relies on P1. `Invalid` across directories.
    ///
    /// A directory replaces nothing: `Exists` if the new name is taken. A file does not replace a directory.
    /// Durable only after [`Substrate::sync_dir`].
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Gives a file another name, in any directory, and then takes the former one away: nothing of it is copied. `Exists` if the
    /// new name is taken.
    ///
    /// After an error or a crash it may have both names. Not every volume can (one without hard links, a directory with a
    /// quota of its own): any other error than `NotFound`, `Exists`, or `NoSpace` may mean that, and the caller copies. Durable
    /// on return; the new name is before the former one goes.
    fn move_file(&self, from: &Path, _to: &Path) -> Result<()> {
        Err(Error::new(Operation::Rename, from, Errno::XDEV.into()))
    }

    /// Removes a file's name. Handles on it stay usable. `Invalid` for a directory.
    fn remove_file(&self, path: &Path) -> Result<()>;

    /// Removes an empty directory. `Invalid` for a file, and for a directory that is not empty.
    fn remove_dir(&self, dir: &Path) -> Result<()>;

    /// Makes creations, renames and removals in `dir` durable. Does nothing where the volume does so itself.
    fn sync_dir(&self, dir: &Path) -> Result<()>;

    /// Makes everything below `dir` durable: data, lengths and names, and the name of `dir` in its parent.
    ///
    /// For trees of many small files; an implementation may sync the whole volume in one call.
    fn sync_tree(&self, dir: &Path) -> Result<()>;

    /// Opens a file. What a fresh open sees of what other hosts wrote relies on P4.
    ///
    /// A new file's name is durable only after [`Substrate::sync_dir`] of its directory.
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>>;

    /// Makes the first `length` bytes of `path` durable, whoever wrote them, including a process of this host that
    /// was killed between its write and its sync.
    ///
    /// Call it *before* reading what is then relied upon: bytes that the kernel holds in memory after a failed
    /// sync of somebody else, and that never reached the volume, may read differently afterwards. On return a
    /// fresh read of these bytes returns what is on stable storage. Bytes behind `length` may be included.
    ///
    /// Where [`Substrate::adoption`] says [`Adoption::Rewrite`], it covers only what was written on this host.
    fn make_durable(&self, path: &Path, length: u64) -> Result<()>;

    /// Creates a record file of `records` zero records. Exclusive. Relies on P2. Not yet durable on return.
    fn create_records(&self, path: &Path, records: u64) -> Result<()>;

    /// Opens a record file for uncached reads and writes.
    fn open_records(&self, path: &Path) -> Result<Arc<dyn RecordFile>>;

    /// Space of the volume.
    fn space(&self) -> Result<Space>;

    /// Takes an advisory lock that guards against two processes started on one directory by mistake; creates
    /// the file if absent. `None` if another process of this host holds it. Safety never depends on it.
    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>>;
}

/// An open file. Positioned access only; there is no hidden position.
pub trait File: Send + Sync + fmt::Debug {
    /// Reads at `offset` until `buf` is full or the file ends; the number of bytes read. What is behind them in `buf`
    /// may have changed too.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize>;

    /// As [`File::read_at`], but only what is in memory already: `None` if it would have to wait for the
    /// volume, or if that cannot be told. May read less than asked for.
    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>>;

    /// Writes all `parts`, one behind the other, at `offset`. Not durable on return.
    ///
    /// On an error any part of the bytes may have been written. The error may also be that of an earlier write which
    /// was not synced (NFS sends later what it has accepted); it is told once.
    fn write_all_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<()>;

    /// fdatasync: what was written to this file, and its length, is on stable storage on return. Relies on P4.
    ///
    /// An error, of whatever class, is final for this handle: whoever holds it must close it and read the volume
    /// afresh.
    fn sync_data(&self) -> Result<()>;

    /// Length in bytes.
    fn length(&self) -> Result<u64>;

    /// The next bytes from `from` on that may be other than zeros, as the volume knows it: first, and behind the last; `None` if
    /// zeros are all that follows. Where a volume cannot tell, everything may be. Call it after a sync of the file.
    fn next_data(&self, from: u64) -> Result<Option<(u64, u64)>> {
        let length = self.length()?;
        Ok((from < length).then_some((from, length)))
    }

    /// Cuts or extends (with zeros) to `length` bytes. Not durable on return.
    fn set_length(&self, length: u64) -> Result<()>;

    /// The descriptor for file-to-socket sends, where there is one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// A file of 512-byte records that several hosts read and write in place, uncached. Relies on P3.
pub trait RecordFile: Send + Sync + fmt::Debug {
    /// Number of records the file holds now.
    fn records(&self) -> Result<u64>;

    /// Fills `records` with those from `first_index` on, from the volume, not from a cache. Zeros behind the end
    /// of the file. One record may be torn if it is written at the same moment; records carry checksums.
    fn read(&self, first_index: u64, records: &mut [Record]) -> Result<()>;

    /// Writes `records` in place from `first_index` on. Durable, and visible to later reads of any host, on
    /// return. `Invalid` if the file is not long enough. The byte [`RECORD_ZERO_AT`] of each must be zero. After an error any of them may have been written, and
    /// may vanish again: write them anew, through a fresh open, before relying on any.
    fn write(&self, first_index: u64, records: &[Record]) -> Result<()>;

    /// Extends the file with zero records to at least `records`; never shortens it. Durable on return.
    fn extend(&self, records: u64) -> Result<()>;
}

/// Released on drop.
pub trait LockGuard: Send + Sync + fmt::Debug {}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpenMode {
    /// Reads; may be served from the client's cache.
    Read,
    /// Reads that see what other hosts have synced; never a cached page or length, nor bytes that this host's
    /// kernel still holds after their sync has failed. May see bytes that are not durable yet (see
    /// [`Substrate::make_durable`]).
    ReadUncached,
    /// Reads and writes an existing file of ours.
    Write,
    /// Writes bytes again, where they are, in a file whose writer may still be alive somewhere: exactly these bytes
    /// go to the volume, never what a cached page holds beside them. For [`Adoption::Rewrite`].
    Rewrite,
    /// Creates exclusively (`Exists` if the name is taken), for reading and writing. Relies on P2.
    CreateNew,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub name: OsString,
    pub kind: EntryKind,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntryKind {
    File,
    Dir,
    /// The rest kaas never makes: a symbolic link, which it does not follow,
    Link,
    /// a named pipe,
    Pipe,
    Socket,
    /// a block or character device,
    Device,
    /// and what the system has no name for.
    Other,
}

impl EntryKind {
    /// For people, as in "it is ...".
    pub fn describe(self) -> &'static str {
        match self {
            Self::File => "a file",
            Self::Dir => "a directory",
            Self::Link => "a symbolic link",
            Self::Pipe => "a named pipe",
            Self::Socket => "a socket",
            Self::Device => "a device",
            Self::Other => "neither a file nor a directory",
        }
    }
}

/// Which implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Local,
    Memory,
    Nfs,
    CephFs,
    /// A wrapper or a simulation, used by tests.
    Simulated,
}

/// Whether brokers on several hosts may share the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// One host only, and why.
    OneHost { reason: &'static str },
    /// Several hosts.
    ManyHosts,
}

/// What makes bytes durable that another process or host wrote, and perhaps never synced.
///
/// A leader serves nothing that it inherits before it is durable. Reading it proves nothing: a file server may answer from
/// its memory what its disk does not have yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Adoption {
    /// A sync of the file from here: [`Substrate::make_durable`].
    Sync,
    /// Only writing them again, through [`OpenMode::Rewrite`], and syncing that: a sync covers what this host wrote,
    /// and nothing else. Bytes may be written again only if they have been found to count, since whoever wrote them may
    /// go on writing what follows.
    Rewrite,
}

/// Space of a volume in bytes; `None` where the volume does not say (unknown is not full).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    pub total_bytes: Option<u64>,
    pub available_bytes: Option<u64>,
}
