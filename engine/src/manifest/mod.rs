//! Files that say what a directory holds.

pub mod versioned;
