//! The storage seam of kaas: the only crate that makes file system calls.
//!
//! Everything above this crate sees a shared volume through two traits: [`Substrate`] (names) and [`File`]
//! (bytes), plus [`RecordFile`] for the small records that several hosts read and write in place. All calls
//! block; the engine makes them on its I/O threads only.
//!
//! # The four properties
//!
//! Safety of leadership rests on four properties of the volume, and on nothing else (no clocks, locks, leases,
//! directory caches or notifications). Operations that other hosts may observe say which of them they rely on:
//!
//! - **P1**: a rename within one directory is atomic.
//! - **P2**: an exclusive create has one winner.
//! - **P3**: a record written uncached and synced in place by one host is what a later uncached read by any
//!   host returns.
//! - **P4**: fdatasync is honest: what it covered is on stable storage, and a later fresh open on another host
//!   sees it, length included.

mod cephfs;
pub mod conformance;
mod error;
mod local;
pub mod memory;
mod mountstats;
mod nfs;
mod paths;
mod posix;
mod printable;
pub mod probing;
pub mod recognise;
mod send;
mod small_files;
mod traits;
mod trees;

pub use cephfs::{CephClient, CephFs};
pub use error::{Error, ErrorClass, Operation, Result};
pub use local::Local;
pub use memory::Memory;
pub use nfs::Nfs;
pub use posix::{Mounted, create_root};
pub use printable::{harmless, is_harmful, printable};
pub use send::send_file;
pub use small_files::{TEMPORARY_PREFIX, read_named, read_small, write_small};
pub use traits::{
    Adoption, Entry, EntryKind, File, Kind, LockGuard, OpenMode, RECORD_BYTES, RECORD_ZERO_AT, Record,
    RecordFile, Sharing, Space, Substrate,
};
pub use trees::{NotRemoved, remove_tree};
