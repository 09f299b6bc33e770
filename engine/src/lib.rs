//! The log engine of kaas: record logs on a shared volume, one writer per partition.
//!
//! An [`Engine`] serves the partitions below one root directory of a [`kaas_substrate::Substrate`]. A [`Partition`]
//! is a log of record batches (Kafka's format 2, byte for byte as on the wire) that this process leads at an epoch it
//! has claimed. The engine knows files, batches and offsets; it knows no requests, no network and no runtime: it can
//! be embedded without the broker.
//!
//! # What it promises
//!
//! An append that was told [`Appended`] under [`Acks::Committed`] is on stable storage, at that offset, for every
//! later leader, however long an earlier one was paused. Readers see committed records only. The order that gives
//! this is the rule of the house: *make it durable, then check the fence, then act*. [`leadership`] is the
//! protocol, [`Partition::append`] the way of a record, and opening a partition ([`Engine::open_partition`]) the
//! only recovery there is.
//!
//! # Example
//!
//! Append, read, crash, reopen:
//!
//! ```
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! use kaas_engine::batch::{BatchOptions, DecodeLimits, SimpleRecord, data_batch, decode_records};
//! use kaas_engine::identity::{Identity, write_partition};
//! use kaas_engine::leadership::Claimant;
//! use kaas_engine::types::{Epoch, Offset};
//! use kaas_engine::*;
//! use kaas_substrate::{Memory, Substrate};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A volume; `Local::open(path)` is one on disk.
//! let volume: Arc<dyn Substrate> = Arc::new(Memory::new());
//!
//! // A partition is born once: a directory with its identity and its fence.
//! let identity = Identity { topic: "orders".into(), partition: 0, topic_id: [1; 16] };
//! volume.create_dir(Path::new("orders-0"))?;
//! write_partition(&*volume, Path::new("orders-0"), &identity, Epoch::NONE)?;
//! volume.sync_tree(Path::new("orders-0"))?;
//!
//! // Whoever leads it claims an epoch that nobody had before.
//! let open = |epoch: u32| -> Result<(Engine, Arc<Partition>), Box<dyn std::error::Error>> {
//!     let engine = Engine::open(Arc::clone(&volume), EngineSettings::default(), Arc::new(SystemClock))?;
//!     let partition = engine.open_partition(OpenPartition {
//!         dir: "orders-0".into(),
//!         identity: identity.clone(),
//!         epoch: Epoch::new(epoch).ok_or("epoch out of range")?,
//!         claimant: Claimant { broker_id: 0, incarnation: format!("run {epoch}"), assignment_version: 0 },
//!         config: LogConfig::default(),
//!     })?;
//!     Ok((engine, partition))
//! };
//!
//! let (_engine, partition) = open(1)?;
//! let batch = data_batch(&[SimpleRecord::of_value("first")], &BatchOptions::default())?;
//! // A ticket is a future; without a runtime, wait for it. `Ok` means durable, and still the leader.
//! let appended = partition.append(&batch, AppendOptions::default())?.wait()??;
//! assert_eq!(appended.base_offset, Offset(0));
//!
//! // A crash: the process goes away without closing anything. The next one claims a higher epoch.
//! drop(partition);
//! let (_engine, partition) = open(2)?;
//! let read = partition.read(ReadRequest {
//!     from: Offset(0),
//!     max_bytes: 1 << 20,
//!     at_least_one: true,
//!     isolation: Isolation::ReadUncommitted,
//!     file_ranges: false,
//! })?;
//! let fetched = match read {
//!     Read::Ready(fetched) => fetched,
//!     // Not in memory: a blocking read, for an I/O thread.
//!     Read::Blocking(read) => read.run()?,
//! };
//! let RecordsPart::Bytes(bytes) = &fetched.parts[0] else { unreachable!("no file ranges were asked for") };
//! let record = decode_records(bytes, &DecodeLimits::default())?.next().ok_or("no record")??;
//! assert_eq!(record.value.as_deref(), Some(&b"first"[..]));
//!
//! // A clean close writes what lets the next open begin without a scan.
//! partition.close().wait()??;
//! # Ok(())
//! # }
//! ```

pub mod batch;
#[cfg(feature = "cli")]
pub mod bench;
mod clock;
mod commit;
mod compaction;
pub mod completion;
mod driver;
pub mod dump;
mod engine;
mod error;
mod fold;
pub mod identity;
pub mod import;
pub mod index;
pub mod io;
pub mod journal;
pub mod layout;
pub mod leadership;
mod log;
pub mod manifest;
#[cfg(not(feature = "planted-bugs"))]
mod planted;
#[cfg(feature = "planted-bugs")]
pub mod planted;
mod printable;
pub mod producer_state;
#[cfg(feature = "cli")]
pub mod qualify;
mod reserve;
#[cfg(feature = "cli")]
mod scratch;
mod settings;
mod sync;
mod timer;
pub mod types;
pub mod verify;

pub use clock::{Clock, ManualClock, SystemClock};
pub use commit::{AppendOutcome, Appended};
pub use compaction::{CleanerSettings, Compacted, Dirtiness};
pub use driver::{Driver, Job};
pub use engine::Engine;
pub use error::{AppendError, EngineError, ReadError};
pub use log::{
    Acks, AppendOptions, AppendTicket, BlockingRead, FetchedRecords, Isolation, Maintained, OpenPartition,
    Partition, Read, ReadRequest, RecordsPart, SegmentFile, SegmentFileName, SegmentName, State, Status,
    TimeQuery, TimestampOffset, WatchGuard, Watcher,
};
pub use reserve::{MayBeNoSpace, RESERVE_FILE, Reserve, SPARE_DIR};
pub use settings::{EngineSettings, LogConfig, TimestampPolicy};
