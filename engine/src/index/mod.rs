//! The three sparse indexes of a segment, with Kafka's files to the byte.
//!
//! All are derived from the log and hold nothing that a scan would not find; whoever doubts one rebuilds it. They
//! are kept in memory as they stand in the file (8, 12 and 34 bytes an entry), so an idle partition's indexes cost
//! next to nothing and a 1 GiB segment's about 5 MiB at Kafka's interval of 4 KiB.
//!
//! Pure code without I/O or locks; the log writes `bytes_from` and reads whole files. Since entries are only ever
//! added behind what a leader has synced, a file may be short or have a torn end: `valid_prefix` takes what is
//! good, [`SegmentIndexes::resume`] continues from there.

mod error;
mod offset;
mod packed;
mod segment;
mod time;
mod txn;

pub use error::{IndexError, Prefix};
pub use offset::{OffsetIndex, OffsetPosition};
pub use segment::{SegmentIndexes, may_answer};
pub use time::{TimeIndex, TimestampOffset};
pub use txn::{AbortedTransaction, TxnIndex};

#[cfg(test)]
mod tests;
