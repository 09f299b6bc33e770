//! A partition's log: opening, appending, reading, and what is known about it.

mod append;
pub(crate) mod ends;
pub(crate) mod index_files;
pub(crate) mod indexes;
pub(crate) mod names;
pub(crate) mod open;
pub(crate) mod partition;
mod query;
mod reader;
mod rebuild;
pub(crate) mod recovery;
mod reindex;
mod rewrite;
pub(crate) mod scan;
pub(crate) mod segment;
pub(crate) mod status;
pub(crate) mod tail;
mod watch;

pub use append::{Acks, AppendOptions, AppendTicket};
pub use names::{SegmentFile, SegmentFileName, SegmentName};
pub use open::OpenPartition;
pub use partition::{Maintained, Partition};
pub use query::{TimeQuery, TimestampOffset};
pub use reader::{BlockingRead, FetchedRecords, Isolation, Read, ReadRequest, RecordsPart};
pub use status::{State, Status};
pub use watch::{WatchGuard, Watcher};
