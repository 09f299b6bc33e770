//! What a qualification asks of the process that touches the mount, and what that answers: one JSON object a line.
//!
//! Requests and answers carry a number; answers come in any order, since every request runs on a thread of its own.
//! Paths are relative to the directory that was attached, and all but those of [`Ask::Begin`] lie below the run's own.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::content::Seen;

/// Version of this protocol: both sides must be of one.
pub const PROTOCOL: u32 = 2;

/// Longest line either side accepts, in bytes.
pub const MAX_LINE_BYTES: u64 = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    pub id: u64,
    pub ask: Ask,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Response {
    pub id: u64,
    #[serde(flatten)]
    pub outcome: Outcome,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Answer(Answer),
    Error(Failure),
}

/// A call that the file system refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub class: FailureClass,
    pub message: String,
}

/// What matters of the substrate's classes here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    NotFound,
    Exists,
    NoSpace,
    Stale,
    Other,
}

/// One request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// -> `Host`
    Hello,
    /// Opens a directory -> `Volume`
    Attach {
        dir: String,
    },
    /// Removes what crashed runs left, creates `name` and takes its lock -> `Begun`
    Begin {
        name: String,
    },
    /// Works in `name`, which another process began -> `Flag`: whether it is seen
    Join {
        name: String,
    },
    /// Closes everything; removes `name` if this process began it -> `Done`
    End,
    /// Closes everything and goes, leaving the directory as it is -> no answer
    Leave,
    CreateDir {
        path: String,
    },
    /// -> `Names`, those of the client (`.nfsXXXX`) too
    List {
        path: String,
    },
    Rename {
        from: String,
        to: String,
    },
    Remove {
        path: String,
    },
    SyncDir {
        path: String,
    },
    /// Looks at a name without opening it -> `Length`
    Look {
        path: String,
    },
    /// Opens `path` as number `file`
    Open {
        file: u32,
        path: String,
        access: Opening,
        direct: bool,
    },
    Close {
        file: u32,
    },
    /// Writes `length` bytes of `version`, and syncs if told to
    Write {
        file: u32,
        version: u64,
        offset: u64,
        length: u64,
        sync: bool,
    },
    /// -> `Seen`
    Read {
        file: u32,
        offset: u64,
        length: u64,
    },
    /// Cuts or extends, and syncs
    Cut {
        file: u32,
        length: u64,
    },
    /// Opens afresh, asks for the length, reads from `offset` on, closes -> `Glance`
    Glance {
        path: String,
        direct: bool,
        offset: u64,
        length: u64,
    },
    /// -> `Flag`: whether it was to be had
    Lock {
        file: u32,
        kind: Locking,
    },
    /// Creates names `prefix` and a number in `from..to`, exclusively -> `Won`: which were new
    RaceCreate {
        prefix: String,
        from: u32,
        to: u32,
        dirs: bool,
    },
    /// Renames `prefix` and a number to the same and `suffix` -> `Won`: which succeeded
    RaceRename {
        prefix: String,
        from: u32,
        to: u32,
        suffix: String,
    },
    /// Does one thing over and over until [`Ask::Stop`] -> `Spun`
    Spin(Spin),
    /// Ends the spinning of request `id`
    Stop {
        id: u64,
    },
    /// -> `Samples`
    Measure(Measure),
    /// Delegations the NFS client gave back so far -> `Number`
    Delegations,
    /// Microseconds since 1970 by this host's clock -> `Number`
    Clock,
    /// The mount that the directory is on -> `Mounting`
    Mounting,
}

/// As [`kaas_substrate::probing::Access`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Opening {
    Read,
    ReadWrite,
    CreateNew,
}

/// As [`kaas_substrate::probing::LockKind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Locking {
    Whole,
    Posix,
}

/// What is done over and over.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spin {
    /// Opens `path`, reads `length` bytes, closes
    File { path: String, length: u64 },
    /// Reads a record of an open file
    Record { file: u32, offset: u64, length: u64 },
    /// Lists `dir`; whatever directory is new there must hold `children` whole files, named by number
    Births { dir: String, children: u32, length: u64 },
}

/// What was seen while doing it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spun {
    /// Times it was done.
    pub looks: u64,
    /// Looks that found nothing under the name.
    pub absent: u64,
    /// Looks that found a mixture, or something short, and the first of them.
    pub torn: u64,
    pub first_torn: Option<Seen>,
    /// Looks that found something older than the look before.
    pub backwards: u64,
    /// Stale handles: the name led to a file that was removed meanwhile.
    pub stale: u64,
    /// Other failures, and the first of them.
    pub failed: u64,
    pub first_failure: Option<String>,
    /// The highest version found, or the number of births.
    pub newest: u64,
}

/// Something to be measured: at most `most` times, no longer than `at_most_ms`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measure {
    pub what: Measured,
    pub dir: String,
    pub most: u32,
    pub at_most_ms: u64,
    /// Whether records are read and written with `O_DIRECT`.
    pub direct: bool,
}

/// What is measured. The files are made, and left, in [`Measure::dir`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measured {
    /// Exclusive create and close
    Create,
    /// Open for reading and close
    Open,
    Rename,
    /// Append so many bytes, fdatasync
    WriteSync {
        bytes: u32,
    },
    /// Read one record past the caches
    RecordRead,
    /// Write one record, fdatasync
    RecordWrite,
    /// Write blocks of a MiB; the last sample is the fdatasync
    SequentialWrite,
    /// Read what `SequentialWrite` wrote, in blocks of a MiB, after the cache was dropped
    SequentialRead,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Done,
    Flag(bool),
    Number(Option<u64>),
    Names(Vec<String>),
    Length(u64),
    Seen(Seen),
    Glance(Glance),
    Won(Vec<bool>),
    Spun(Spun),
    /// Nanoseconds, one an operation.
    Samples(Vec<u64>),
    Host(Host),
    Volume(Volume),
    Begun(Begun),
    Mounting(Mounting),
}

/// As [`kaas_substrate::probing::Mounting`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mounting {
    pub unique_id: Option<u64>,
    pub age_s: Option<u64>,
    pub connections: Option<u64>,
}

/// A file as a fresh open shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Glance {
    pub length: u64,
    pub seen: Seen,
}

/// The process that answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    pub protocol: u32,
    pub version: String,
    pub name: String,
    pub boot_id: String,
    pub kernel: String,
}

/// The volume that a directory is on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// `local`, `nfs`, `cephfs` or `unknown`.
    pub family: Family,
    /// Name of the file system in the mount table.
    pub file_system: String,
    pub source: String,
    pub mounted_on: String,
    pub options: Vec<String>,
    /// Why a broker would refuse it for how it is mounted, and what to do about that.
    pub refused: Option<String>,
    /// Number of the mounted file system on its host.
    pub device: u64,
    pub total_bytes: Option<u64>,
    pub available_bytes: Option<u64>,
}

/// As [`kaas_substrate::recognise::Family`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    Local,
    Nfs,
    CephFs,
    Unknown,
}

/// The run's own directory is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    /// Directories of crashed runs that were removed.
    pub removed: Vec<String>,
    /// Such that could not be, or whose run is still going on.
    pub left: Vec<String>,
}

impl fmt::Display for Ask {
    /// For people: what did not return, or failed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hello => f.write_str("the first greeting"),
            Self::Attach { dir } => write!(f, "opening {dir} and looking at its mount"),
            Self::Begin { name } => write!(f, "creating {name}"),
            Self::Join { name } => write!(f, "looking for {name}"),
            Self::End => f.write_str("removing the run's own directory"),
            Self::Leave => f.write_str("leaving"),
            Self::CreateDir { path } => write!(f, "mkdir of {path}"),
            Self::List { path } => write!(f, "listing {path}"),
            Self::Rename { from, .. } => write!(f, "rename of {from}"),
            Self::Remove { path } => write!(f, "unlink of {path}"),
            Self::SyncDir { path } => write!(f, "fsync of the directory {path}"),
            Self::Look { path } => write!(f, "stat of {path}"),
            Self::Open { path, access: Opening::CreateNew, .. } => write!(f, "exclusive create of {path}"),
            Self::Open { path, .. } => write!(f, "open of {path}"),
            Self::Close { .. } => f.write_str("close"),
            Self::Write { sync: true, length, .. } => write!(f, "write and fdatasync of {length} bytes"),
            Self::Write { length, .. } => write!(f, "write of {length} bytes"),
            Self::Read { .. } => f.write_str("read of an open file"),
            Self::Cut { .. } => f.write_str("ftruncate and fdatasync"),
            Self::Glance { path, .. } => write!(f, "open and read of {path}"),
            Self::Lock { .. } => f.write_str("lock"),
            Self::RaceCreate { prefix, .. } => write!(f, "raced creates of {prefix}*"),
            Self::RaceRename { prefix, .. } => write!(f, "raced renames of {prefix}*"),
            Self::Spin(Spin::File { path, .. }) => write!(f, "repeated open and read of {path}"),
            Self::Spin(Spin::Record { .. }) => f.write_str("repeated reads of a record"),
            Self::Spin(Spin::Births { dir, .. }) => write!(f, "repeated listing of {dir}"),
            Self::Stop { .. } => f.write_str("stopping"),
            Self::Measure(measure) => write!(f, "measuring {:?}", measure.what),
            Self::Delegations => f.write_str("reading /proc/self/mountstats"),
            Self::Clock => f.write_str("reading the clock"),
            Self::Mounting => f.write_str("a look at the mount"),
        }
    }
}
