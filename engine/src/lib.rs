//! The log engine of kaas: record logs on a shared volume, one writer per partition.

pub mod batch;
mod clock;
mod commit;
pub mod completion;
pub mod dump;
mod engine;
mod error;
pub mod identity;
pub mod index;
pub mod io;
pub mod journal;
pub mod leadership;
mod log;
pub mod manifest;
pub mod producer_state;
mod reserve;
mod settings;
mod timer;
pub mod types;

pub use clock::{Clock, ManualClock, SystemClock};
pub use commit::{AppendOutcome, Appended};
pub use engine::{Engine, RESERVE_FILE};
pub use error::{AppendError, EngineError, ReadError};
pub use log::{
    Acks, AppendOptions, AppendTicket, BlockingRead, FetchedRecords, Isolation, Maintained, OpenPartition,
    Partition, Read, ReadRequest, RecordsPart, SegmentFile, SegmentName, State, Status, TimeQuery,
    TimestampOffset, WatchGuard, Watcher,
};
pub use settings::{EngineSettings, LogConfig, TimestampPolicy};
