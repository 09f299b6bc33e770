//! Faults at random, decided by a seed.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use kaas_substrate::ErrorClass;
use parking_lot::Mutex;

use super::{Hook, Point, Verdict};
use crate::choice::{Choose, seeded};

/// How often what happens: to one call in so many; 0 is never. Of several that are due, the first here happens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Odds {
    /// Crashes; of a write, the first bytes or some sectors may still be made.
    pub crashes: u64,
    /// Calls that fail with an I/O error: without an effect, after it, or (writes) after a part of it.
    pub errors: u64,
    /// Writes that find the volume full after some of their bytes.
    pub full: u64,
    /// Syncs that say that they have succeeded, and have no effect.
    pub lost_syncs: u64,
    /// Calls that take longer, by up to 5 ms.
    pub delays: u64,
}

/// The hook. The same calls in the same order get the same verdicts.
pub struct Seeded {
    odds: Odds,
    choose: Mutex<Choose>,
}

impl fmt::Debug for Seeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seeded").field("odds", &self.odds).finish_non_exhaustive()
    }
}

impl Seeded {
    pub fn new(seed: u64, odds: Odds) -> Arc<Self> {
        Arc::new(Self { odds, choose: Mutex::new(seeded(seed)) })
    }
}

/// Longest part of a short write.
const SHORT_BYTES_MAX: u64 = 300;

fn short(choose: &mut Choose) -> usize {
    usize::try_from(choose(SHORT_BYTES_MAX)).unwrap_or(0)
}

impl Hook for Seeded {
    fn before(&self, point: Point, _: &Path) -> Verdict {
        let choose = &mut *self.choose.lock();
        let writes = matches!(point, Point::Write | Point::WriteRecords);
        let syncs = matches!(point, Point::SyncData | Point::SyncDir | Point::SyncTree | Point::MakeDurable);
        let class = ErrorClass::Io;
        let mut is_due = |one_in: u64| one_in > 0 && choose(one_in) == 0;
        let Odds { crashes, errors, full, lost_syncs, delays } = self.odds;
        if is_due(crashes) {
            return match choose(3) {
                0 if writes => Verdict::CrashShort { bytes: short(choose) },
                1 if writes => Verdict::CrashTorn { kept: choose(u64::MAX) },
                _ => Verdict::Crash,
            };
        }
        if is_due(errors) {
            return match choose(4) {
                0 if writes => Verdict::Short { bytes: short(choose), class },
                1 if writes => Verdict::Torn { kept: choose(u64::MAX), class },
                2 => Verdict::FailAfter(class),
                _ => Verdict::Fail(class),
            };
        }
        if writes && is_due(full) {
            return Verdict::Short { bytes: short(choose), class: ErrorClass::NoSpace };
        }
        if syncs && is_due(lost_syncs) {
            return Verdict::Lost;
        }
        if is_due(delays) {
            return Verdict::Delay { ms: choose(6) };
        }
        Verdict::Pass
    }
}
