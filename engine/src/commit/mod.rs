//! Group commit: what is staged, the worker that writes it, and everything else that changes files.

pub(crate) mod housekeeping;
pub(crate) mod staging;
mod worker;
pub(crate) mod writer;

pub use staging::{AppendOutcome, Appended};
