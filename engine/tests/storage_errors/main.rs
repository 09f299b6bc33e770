//! `docs/storage-errors.md`, row by row: every file operation of the engine fails with every error, and what then happens is what
//! the document says.
//!
//! The document is the table: its rows are read from it, each names a [`Case`], and each case has a row. A case is run with every
//! error number, without and with the effect of the failed call, and halfway through a write. What must hold in all of them, whatever
//! the row says: what was acknowledged is there, at its offset, after a crash; what was refused is not; and the partition
//! (slot) works again once the error has gone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, clippy::cast_possible_truncation)]

#[path = "../support/compacting.rs"]
mod compacting;
mod compaction;
mod harness;
mod journal;
mod partition;
mod reserve;
#[path = "../support/mod.rs"]
mod support;

use harness::walk;

#[test]
fn partitions_do_what_the_document_says() {
    walk("Partitions", partition::CASES);
}

#[test]
fn compaction_does_what_the_document_says() {
    walk("Compaction", compaction::CASES);
}

#[test]
fn slots_do_what_the_document_says() {
    walk("Slots", journal::CASES);
}

#[test]
fn the_reserve_does_what_the_document_says() {
    walk("The reserve", reserve::CASES);
}
