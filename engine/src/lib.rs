//! The log engine of kaas: record logs on a shared volume, one writer per partition.

pub mod batch;
pub mod completion;
pub mod index;
pub mod io;
pub mod leadership;
pub mod manifest;
pub mod producer_state;
pub mod types;
