//! Opening a slot whose files say anything.
//!
//! Asserted: it opens or says why not; it takes an append; and the next open shows what this one showed, and the append.

use std::path::Path;
use std::sync::Arc;

use kaas_engine::io::{IoPool, IoPoolSettings};
use kaas_engine::journal::{Journal, JournalSettings, OpenError, Replay};
use kaas_engine::leadership::{self, ClaimError, Claimant};
use kaas_engine::types::Epoch;
use kaas_substrate::Substrate;

use crate::Archive;

/// Where the slot is in the archive.
pub const DIR: &str = "00";

/// A slot's directory as an archive.
pub fn journal(data: &[u8]) {
    let volume: Arc<dyn Substrate> = Arc::new(Archive::unpack(data).volume());
    let Ok((journal, before)) = open(&volume) else { return };
    let appended = journal.append(&["next"]).wait();
    journal.close();
    drop(journal);
    // Sequence numbers may be used up, the volume full.
    if appended.is_err() {
        return;
    }
    let again = open(&volume);
    let (_journal, after) =
        again.unwrap_or_else(|error| panic!("it opened, took an append, and opens no more: {error}"));
    assert_eq!(after.snapshot, before.snapshot);
    let (last, inherited) = after.entries.split_last().expect("the append is gone");
    assert_eq!(last.value, "next");
    assert_eq!(inherited, before.entries);
}

/// At the next epoch that can be claimed; the one that the fence offers may turn out to be taken.
fn open(volume: &Arc<dyn Substrate>) -> Result<(Journal, Replay), OpenError> {
    let highest = leadership::highest(&**volume, Path::new(DIR)).map_err(ClaimError::from)?;
    match open_at(volume, highest.next()) {
        Err(OpenError::Claim(ClaimError::Refused { highest, .. })) => open_at(volume, highest.next()),
        outcome => outcome,
    }
}

fn open_at(volume: &Arc<dyn Substrate>, epoch: Epoch) -> Result<(Journal, Replay), OpenError> {
    let pool = IoPoolSettings { name: "fuzz", max_threads: 1, idle_ms: 10, max_queued: 10 };
    let pool = Arc::new(IoPool::new(pool).expect("a thread"));
    let claimant = Claimant { broker_id: 1, incarnation: format!("run-{epoch}"), assignment_version: 0 };
    let settings = JournalSettings { fence_limit_ms: 5, ..JournalSettings::default() };
    Journal::open(volume, Path::new(DIR), epoch, &claimant, &pool, settings)
}
