//! What a test and an actor say to each other.
//!
//! The test writes one [`Request`] a line; the actor answers each with one [`Said::Answer`], in whichever order they get done,
//! and tells [`Event`]s in between. Bytes and names travel in base64.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kaas_engine::EngineError;
use kaas_substrate::{Error, ErrorClass, Operation};
use serde::{Deserialize, Serialize};

/// From the test.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the test; the answer has it too.
    pub id: u64,
    pub call: Call,
}

/// From the actor.
#[derive(Debug, Serialize, Deserialize)]
pub enum Said {
    /// The first line: which process this is, and on what.
    Hello {
        pid: u32,
        root: PathBuf,
        volume: VolumeIs,
    },
    Answer {
        id: u64,
        outcome: Result<Value, Failure>,
    },
    Event(Event),
}

/// What an actor's substrate says of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VolumeIs {
    /// The name of its `Kind`.
    pub kind: String,
    pub many_hosts: bool,
    /// Whether its `Adoption` is to write again.
    pub rewrites: bool,
}

/// What an actor can do. Paths are below the actor's root.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Call {
    /// Creates a partition, durable on return.
    Make {
        dir: String,
    },
    /// Claims the partition and opens it. An actor leads one at a time.
    Open {
        dir: String,
        epoch: u32,
    },
    /// Appends batches and reads, in the background, until [`Call::Halt`] or until the engine says that it is over.
    /// Values begin with `tag`, which no other call may use.
    Lead {
        tag: String,
    },
    /// Ends [`Call::Lead`] after what is in flight; the answer comes when it has ended.
    Halt,
    /// Appends one batch and waits for its commit.
    Append {
        tag: String,
    },
    /// All committed records.
    Read,
    Status,
    /// A clean close.
    Close,
    /// Leaves the files as they are.
    Abandon,
    /// Findings of `verify` that are errors.
    Verify {
        dir: String,
    },
    /// Opens a directory below the root, created if absent, as a volume of its own; its number. The root is number 0.
    Volume {
        dir: String,
    },
    /// One call to the substrate of a volume.
    On {
        volume: u64,
        call: VolumeCall,
    },
}

/// An answer's content.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Value {
    Nothing,
    Number(u64),
    Bytes(Data),
    Maybe(Option<u64>),
    /// First byte, and the one behind the last.
    Range(Option<(u64, u64)>),
    Entries(Vec<(Data, EntryIs)>),
    Space {
        total: Option<u64>,
        available: Option<u64>,
    },
    /// The offset of an appended batch.
    Offset(i64),
    /// Offset and tag of each record.
    Records(Vec<(i64, String)>),
    Status {
        state: String,
        log_start: i64,
        high_watermark: i64,
        log_end: i64,
    },
    Findings(Vec<String>),
}

/// What an actor tells by itself. It is told when it is true, and not before.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Event {
    /// `Appended` under `Acks::Committed`: the first record's offset, and the tags of all.
    Acknowledged { offset: i64, tags: Vec<String> },
    /// Returned by a read.
    Read { offset: i64, tag: String },
    /// An append that was not acknowledged: nobody knows whether its records are there.
    Refused { tags: Vec<String>, reason: String },
    /// [`Call::Lead`] has come to its end.
    Ended { reason: String },
    /// A record that is not as it was appended, or any other thing that must not be.
    Wrong { what: String },
}

/// A call to the substrate. Open files are known by numbers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum VolumeCall {
    CreateDir { dir: Data },
    List { dir: Data },
    Rename { from: Data, to: Data },
    MoveFile { from: Data, to: Data },
    RemoveFile { path: Data },
    RemoveDir { dir: Data },
    SyncDir { dir: Data },
    SyncTree { dir: Data },
    Open { path: Data, mode: Mode },
    MakeDurable { path: Data, length: u64 },
    CreateRecords { path: Data, records: u64 },
    OpenRecords { path: Data },
    Space,
    TryLock { path: Data },
    Release { handle: u64 },
    ReadAt { handle: u64, length: usize, offset: u64 },
    ReadAtNoWait { handle: u64, length: usize, offset: u64 },
    WriteAllAt { handle: u64, bytes: Data, offset: u64 },
    SyncData { handle: u64 },
    Length { handle: u64 },
    NextData { handle: u64, from: u64 },
    SetLength { handle: u64, length: u64 },
    Records { handle: u64 },
    ReadRecords { handle: u64, first_index: u64, count: usize },
    WriteRecords { handle: u64, first_index: u64, bytes: Data },
    ExtendRecords { handle: u64, records: u64 },
}

/// `kaas_substrate::OpenMode`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Mode {
    Read,
    ReadUncached,
    Write,
    Rewrite,
    CreateNew,
}

/// `kaas_substrate::EntryKind`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum EntryIs {
    File,
    Dir,
    Other,
}

/// Bytes, or a name, as base64.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Data(String);

impl Data {
    pub fn of(bytes: &[u8]) -> Self {
        Self(STANDARD.encode(bytes))
    }

    pub fn name(name: &OsStr) -> Self {
        Self::of(name.as_bytes())
    }

    pub fn path(path: &Path) -> Self {
        Self::name(path.as_os_str())
    }

    pub fn bytes(&self) -> Vec<u8> {
        STANDARD.decode(&self.0).expect("both sides are of one build")
    }

    pub fn to_path(&self) -> PathBuf {
        PathBuf::from(std::ffi::OsString::from_vec(self.bytes()))
    }
}

/// Why a call failed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Failure {
    pub text: String,
    /// For a failed call to the substrate.
    pub storage: Option<Box<StorageFailure>>,
    /// The file of which the engine said that it is damaged.
    pub damaged: Option<PathBuf>,
}

/// A `kaas_substrate::Error`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StorageFailure {
    operation: String,
    path: Data,
    class: String,
    errno: Option<i32>,
    words: String,
}

impl Failure {
    pub fn of(error: impl std::fmt::Display) -> Self {
        Self { text: error.to_string(), storage: None, damaged: None }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let text = error.to_string();
        let damaged = match error {
            EngineError::Damaged { path, .. } => Some(path),
            _ => None,
        };
        Self { text, storage: None, damaged }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let storage = StorageFailure {
            operation: format!("{:?}", error.operation),
            path: Data::path(&error.path),
            class: format!("{:?}", error.class),
            errno: error.source.raw_os_error(),
            words: error.source.to_string(),
        };
        Self { text: error.to_string(), storage: Some(Box::new(storage)), damaged: None }
    }
}

impl Failure {
    /// The substrate's error again. What the substrate cannot have said is an I/O error of the class "failed".
    pub fn into_error(self) -> Error {
        use ErrorClass as C;
        use Operation as O;
        let Some(failure) = self.storage else {
            return Error::new(O::Open, Path::new(""), io::Error::other(self.text));
        };
        let operations = [
            O::CreateDir,
            O::List,
            O::Rename,
            O::RemoveFile,
            O::RemoveDir,
            O::SyncDir,
            O::Open,
            O::Create,
            O::Read,
            O::Write,
            O::Sync,
            O::Length,
            O::SetLength,
            O::Space,
            O::Lock,
        ];
        let classes = [
            C::NotFound,
            C::Exists,
            C::NoSpace,
            C::Stale,
            C::Fenced,
            C::NoDescriptors,
            C::Retriable,
            C::Io,
            C::Invalid,
            C::Other,
        ];
        Error {
            operation: named(&operations, &failure.operation),
            path: failure.path.to_path(),
            class: named(&classes, &failure.class),
            source: failure
                .errno
                .map_or_else(|| io::Error::other(failure.words), io::Error::from_raw_os_error),
        }
    }
}

fn named<T: Copy + std::fmt::Debug>(all: &[T], name: &str) -> T {
    *all.iter().find(|one| format!("{one:?}") == name).unwrap_or_else(|| panic!("not known here: {name}"))
}
