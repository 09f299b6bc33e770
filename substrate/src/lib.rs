//! The storage seam of kaas: the only crate that makes file system calls.
