//! A slot, and what is known of it.

use std::path::PathBuf;
use std::sync::atomic::AtomicU32;

use kaas_engine::journal::JournalSettings;
use kaas_engine::layout::group_slot_dir;
use parking_lot::Mutex;

use super::history::SlotHistory;
use crate::choices::Stream;
use crate::scheduler::Scheduler;

/// A slot, and what is known of it.
pub struct Slot {
    pub number: usize,
    /// Not there before the first coordinator makes it.
    pub dir: PathBuf,
    pub history: Mutex<SlotHistory>,
    /// The last epoch that was assigned.
    pub assigned: AtomicU32,
}

impl Slot {
    pub fn new(number: usize) -> Self {
        Self {
            number,
            dir: group_slot_dir(number),
            history: Mutex::new(SlotHistory::default()),
            assigned: AtomicU32::new(0),
        }
    }
}

/// Bounds that a run chooses, some of them so small that they are met.
pub fn settings(scheduler: &Scheduler) -> JournalSettings {
    let plain = JournalSettings::default();
    let pick = |options: &[u64]| scheduler.pick(Stream::SETUP, options);
    let staged = pick(&[plain.max_staged_bytes as u64, 400]).and_then(|bytes| usize::try_from(bytes).ok());
    JournalSettings {
        max_staged_bytes: staged.unwrap_or(plain.max_staged_bytes),
        max_file_bytes: pick(&[plain.max_file_bytes, 1500]).unwrap_or(plain.max_file_bytes),
        fence_limit_ms: pick(&[plain.fence_limit_ms, 20]).unwrap_or(plain.fence_limit_ms),
        ..plain
    }
}
