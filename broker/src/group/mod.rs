//! The group coordinator: Kafka's classic consumer groups and their committed offsets.
//!
//! [`state`] is the protocol as a pure state machine, [`coordinator`] drives it, [`log`] is what it needs stored.

pub mod coordinator;
pub mod log;
pub mod state;

pub use coordinator::GroupCoordinator;
