//! The log engine of kaas: record logs on a shared volume, one writer per partition.

pub mod completion;
pub mod io;
pub mod batch;
pub mod types;
