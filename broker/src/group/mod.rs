//! The group coordinator: Kafka's classic consumer groups and their committed offsets.
//!
//! [`state`] is the protocol as a pure state machine, [`coordinator`] drives it, [`log`] is what it needs stored,
//! [`journal_logs`] stores that in the journals of a data directory.

pub mod coordinator;
pub mod journal_logs;
pub mod log;
pub mod state;

pub use coordinator::GroupCoordinator;
pub use journal_logs::JournalLogs;
