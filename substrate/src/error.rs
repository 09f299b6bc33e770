//! Errors of the substrate: which operation, on which path, and one class that says what a caller may do.
//!
//! The class is decided here, once. Nothing above this crate looks at an errno.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::printable;

/// Result of a substrate call.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed substrate call.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {}: {class}: {source}", printable(path))]
pub struct Error {
    /// What was attempted.
    pub operation: Operation,
    /// The path, relative to the substrate's root.
    pub path: PathBuf,
    /// What the caller may do about it.
    pub class: ErrorClass,
    /// The system's own words.
    #[source]
    pub source: io::Error,
}

/// What a caller may do about a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// There is no such name. On NFS a name that was looked up too early stays absent for a while: list the
    /// directory instead of probing.
    NotFound,
    /// The name exists already (exclusive create, create of a directory).
    Exists,
    /// No space, or a quota is exhausted. Nothing is broken; space may come back.
    NoSpace,
    /// The handle is stale: the file was removed or the server lost it. Reopen by name, once.
    Stale,
    /// The volume refuses this host for good (CephFS blocklist). Do not retry.
    Fenced,
    /// As many files are open as this process, or the host, may have open. A call that opens or creates one has done nothing,
    /// and works again when others were closed.
    NoDescriptors,
    /// Interrupted, timed out, or short of memory: the same call may be made again, after a pause.
    Retriable,
    /// An I/O error. On a sync it is final for the open file: the kernel may have dropped the dirty pages.
    Io,
    /// The caller or the mount is at fault (permission, read-only volume, a name that is a directory, ...).
    Invalid,
    /// Anything else.
    Other,
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "not found",
            Self::Exists => "exists already",
            Self::NoSpace => "no space",
            Self::Stale => "stale handle",
            Self::Fenced => "this host is fenced from the volume",
            Self::NoDescriptors => "no file descriptor is left",
            Self::Retriable => "may be tried again",
            Self::Io => "I/O error",
            Self::Invalid => "invalid",
            Self::Other => "failed",
        })
    }
}

/// A substrate operation, as named in errors and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    CreateDir,
    List,
    Rename,
    RemoveFile,
    RemoveDir,
    SyncDir,
    Open,
    Create,
    Read,
    Write,
    Sync,
    Length,
    SetLength,
    Space,
    Lock,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CreateDir => "create directory",
            Self::List => "list",
            Self::Rename => "rename",
            Self::RemoveFile => "remove",
            Self::RemoveDir => "remove directory",
            Self::SyncDir => "sync directory",
            Self::Open => "open",
            Self::Create => "create",
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Length => "get length of",
            Self::SetLength => "set length of",
            Self::Space => "get free space of",
            Self::Lock => "lock",
        })
    }
}

impl Error {
    /// An error of `operation` on `path`, classed from the system's error.
    pub fn new(operation: Operation, path: &Path, source: io::Error) -> Self {
        Self { operation, path: path.to_owned(), class: ErrorClass::of(&source), source }
    }

    /// True when the name does not exist.
    pub fn is_not_found(&self) -> bool {
        self.class == ErrorClass::NotFound
    }

    /// True for a file that is longer than whoever reads it takes ([`crate::read_small`]).
    pub fn is_too_long(&self) -> bool {
        self.source.raw_os_error() == Some(rustix::io::Errno::FBIG.raw_os_error())
    }

    /// True when no file could be opened because too many are open: the call has done nothing, and what it was called for
    /// is as it was.
    pub fn is_no_descriptors(&self) -> bool {
        let opens = matches!(
            self.operation,
            Operation::Open | Operation::Create | Operation::List | Operation::SyncDir | Operation::Lock
        );
        opens && self.class == ErrorClass::NoDescriptors
    }

    /// True when the name exists already.
    pub fn is_exists(&self) -> bool {
        self.class == ErrorClass::Exists
    }
}

impl ErrorClass {
    /// The class of a system error.
    pub fn of(error: &io::Error) -> Self {
        use rustix::io::Errno;
        let Some(errno) = error.raw_os_error().map(Errno::from_raw_os_error) else {
            return match error.kind() {
                io::ErrorKind::NotFound => Self::NotFound,
                io::ErrorKind::AlreadyExists => Self::Exists,
                io::ErrorKind::InvalidInput => Self::Invalid,
                io::ErrorKind::UnexpectedEof | io::ErrorKind::WriteZero => Self::Io,
                _ => Self::Other,
            };
        };
        match errno {
            Errno::NOENT => Self::NotFound,
            Errno::EXIST => Self::Exists,
            Errno::NOSPC | Errno::DQUOT => Self::NoSpace,
            Errno::STALE => Self::Stale,
            Errno::SHUTDOWN => Self::Fenced,
            Errno::MFILE | Errno::NFILE => Self::NoDescriptors,
            Errno::INTR | Errno::AGAIN | Errno::TIMEDOUT | Errno::BUSY | Errno::NOMEM => Self::Retriable,
            Errno::IO | Errno::NXIO | Errno::NODEV | Errno::REMOTEIO | Errno::UCLEAN | Errno::BADMSG => {
                Self::Io
            }
            Errno::PERM
            | Errno::ACCESS
            | Errno::ROFS
            | Errno::ISDIR
            | Errno::NOTDIR
            | Errno::NAMETOOLONG
            | Errno::INVAL
            | Errno::BADF
            | Errno::XDEV
            | Errno::LOOP
            | Errno::FBIG
            | Errno::NOTEMPTY => Self::Invalid,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn system_errors_are_classed() {
        let expected = [
            (Errno::NOENT, ErrorClass::NotFound),
            (Errno::EXIST, ErrorClass::Exists),
            (Errno::NOSPC, ErrorClass::NoSpace),
            (Errno::DQUOT, ErrorClass::NoSpace),
            (Errno::STALE, ErrorClass::Stale),
            (Errno::SHUTDOWN, ErrorClass::Fenced),
            (Errno::INTR, ErrorClass::Retriable),
            (Errno::AGAIN, ErrorClass::Retriable),
            (Errno::TIMEDOUT, ErrorClass::Retriable),
            (Errno::MFILE, ErrorClass::NoDescriptors),
            (Errno::NFILE, ErrorClass::NoDescriptors),
            (Errno::IO, ErrorClass::Io),
            (Errno::UCLEAN, ErrorClass::Io),
            (Errno::BADMSG, ErrorClass::Io),
            (Errno::ACCESS, ErrorClass::Invalid),
            (Errno::PERM, ErrorClass::Invalid),
            (Errno::ROFS, ErrorClass::Invalid),
            (Errno::ISDIR, ErrorClass::Invalid),
            (Errno::NOTDIR, ErrorClass::Invalid),
            (Errno::NOTEMPTY, ErrorClass::Invalid),
            (Errno::NAMETOOLONG, ErrorClass::Invalid),
            (Errno::PIPE, ErrorClass::Other),
        ];
        for (errno, class) in expected {
            assert_eq!(ErrorClass::of(&errno.into()), class, "{errno:?}");
        }
    }

    #[test]
    fn errors_without_an_errno_are_classed_by_kind() {
        let expected = [
            (io::ErrorKind::NotFound, ErrorClass::NotFound),
            (io::ErrorKind::AlreadyExists, ErrorClass::Exists),
            (io::ErrorKind::InvalidInput, ErrorClass::Invalid),
            (io::ErrorKind::UnexpectedEof, ErrorClass::Io),
            (io::ErrorKind::WriteZero, ErrorClass::Io),
            (io::ErrorKind::BrokenPipe, ErrorClass::Other),
        ];
        for (kind, class) in expected {
            assert_eq!(ErrorClass::of(&io::Error::from(kind)), class, "{kind:?}");
        }
    }

    #[test]
    fn a_message_names_operation_path_and_class() {
        let error = Error::new(Operation::Sync, Path::new("t/0/x.log"), Errno::IO.into());
        assert_eq!(error.to_string(), "sync t/0/x.log: I/O error: Input/output error (os error 5)");
    }
}
