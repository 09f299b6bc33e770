//! Who may lead a directory: claims, the fence, and the question "still leading?".
//!
//! A directory has one claim file an epoch (`claim.<epoch:08x>`, created exclusively, so an epoch has one owner) and
//! a `fence` with one record an epoch. Whoever leads at epoch e and wants to act on what it made durable reads the
//! record of e+1 first: zeros, and it still leads. A successor fills that record, its own or a skipped one, before
//! it looks at what there is to inherit; so what was durable before the leader's look is seen by every successor.
//!
//! Rules for callers:
//!
//! - **Make it durable, then ask [`Leadership::standing`], then act** (acknowledge, advance, unlink). In this order.
//! - [`Standing::Unknown`] means nothing: stop acting and ask again, unless that is of no use
//!   ([`FenceError::is_final`]): then the leadership is over. [`Standing::Deposed`] is for good.
//! - One process uses an epoch of a directory once: a second [`claim`] of one epoch by one incarnation succeeds (it
//!   is how a half-done claim is finished), and both would lead. Close the first before.
//! - All functions block on the volume; call them from I/O threads. A [`Leadership`] may be shared between threads.

mod claim;
mod fence;
mod record;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kaas_substrate::{EntryKind, ErrorClass, RecordFile, Substrate};

pub(crate) use self::claim::parse_name as claim_epoch;
pub use self::claim::{ClaimError, claim, claimed_by_another};
use self::fence::index;
pub use self::fence::{FENCE_NAME, birth, give_back, highest, records, take_away};
pub(crate) use self::fence::{FenceContent, fill_gaps, is_out_of_reach, records_needed, recreate_fence};
pub use self::record::{Damage, FenceRecord};
use crate::driver::Time;
use crate::planted::{Bug, planted};
use crate::sync::{AtomicU32, Mutex};
use crate::types::Epoch;

/// How often a damaged fence is looked at before it is called so.
const LOOKS_MAX: u32 = 5;

/// Time between those looks; a record is written in much less.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// Who claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimant {
    pub broker_id: i32,
    /// New at each start of the process; at most 128 bytes, not empty.
    pub incarnation: String,
    /// Version of the assignment that the claim follows; for people.
    pub assignment_version: u64,
}

impl Claimant {
    /// True if both are one run of one broker.
    pub fn is_same_run(&self, other: &Self) -> bool {
        self.broker_id == other.broker_id && self.incarnation == other.incarnation
    }
}

/// Whether a leader still leads.
#[derive(Debug)]
pub enum Standing {
    /// It led at the moment of the read, which was after the call.
    Leading,
    /// It does not, and never will again at this epoch.
    Deposed { by: Epoch },
    /// It cannot be told now. Nothing may be acknowledged; ask again, unless [`FenceError::is_final`].
    Unknown(FenceError),
}

/// Why the fence does not say who leads.
#[derive(Debug, thiserror::Error)]
pub enum FenceError {
    /// The volume failed.
    #[error(transparent)]
    Storage(#[from] kaas_substrate::Error),
    /// The fence's content is damaged; a claim of a higher epoch heals it.
    #[error("{}: record of epoch {epoch}: {damage}", path.display())]
    Damaged { path: PathBuf, epoch: Epoch, damage: Damage },
}

impl FenceError {
    /// Whether asking again is of no use, and the leadership is over: the volume has shut this host out, and nothing that
    /// this process has open there will ever be written again; or the fence holds what no leader writes, and only the
    /// claim of a higher epoch puts that right. A record whose end is missing may be one that is being written.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Storage(error) => error.class == ErrorClass::Fenced,
            Self::Damaged { damage, .. } => *damage != Damage::Unfinished,
        }
    }
}

/// The leadership of a directory at an epoch, as long as nobody claimed a higher one.
#[derive(Debug)]
pub struct Leadership {
    substrate: Arc<dyn Substrate>,
    dir: PathBuf,
    epoch: Epoch,
    claimant: Claimant,
    /// Replaced when its handle is found stale.
    fence: Mutex<Arc<dyn RecordFile>>,
    time: Time,
    /// The epoch that deposed this one; 0 while it is not known to be deposed.
    deposed_by: AtomicU32,
}

impl Leadership {
    fn new(
        substrate: &Arc<dyn Substrate>,
        dir: &Path,
        epoch: Epoch,
        claimant: &Claimant,
        fence: Arc<dyn RecordFile>,
    ) -> Self {
        Self {
            substrate: Arc::clone(substrate),
            dir: dir.to_owned(),
            epoch,
            claimant: claimant.clone(),
            fence: Mutex::new(fence),
            time: Time::system(),
            deposed_by: AtomicU32::new(Epoch::NONE.get()),
        }
    }

    /// The same, living in `time`.
    pub(crate) fn timed(self, time: &Time) -> Self {
        Self { time: time.clone(), ..self }
    }

    /// The epoch that was claimed.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The directory, relative to the substrate's root.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Asks the fence: one uncached read of the own record and the next one.
    pub fn standing(&self) -> Standing {
        if let Some(by) = self.known_deposed() {
            return Standing::Deposed { by };
        }
        if planted(Bug::NoFence) {
            return Standing::Leading;
        }
        if planted(Bug::FenceByName) {
            return self.standing_by_name();
        }
        let mut looks = 0;
        loop {
            looks += 1;
            let standing = match self.read_records() {
                Ok([own, next]) => self.judge(own, next),
                Err(error) => Standing::Unknown(error.into()),
            };
            match standing {
                // A record that somebody is writing at this moment may read half written.
                Standing::Unknown(FenceError::Damaged { .. }) if looks < LOOKS_MAX => {
                    self.time.sleep(BETWEEN_LOOKS);
                }
                standing => return standing,
            }
        }
    }

    /// [`Bug::FenceByName`].
    fn standing_by_name(&self) -> Standing {
        let next = self.dir.join(claim::claim_name(self.epoch.next()));
        match self.substrate.open(&next, kaas_substrate::OpenMode::Read) {
            Ok(_) => self.deposed(self.epoch.next()),
            Err(error) if error.is_not_found() => Standing::Leading,
            Err(error) => Standing::Unknown(error.into()),
        }
    }

    /// The epoch that deposed this one, if an earlier [`Leadership::standing`] found it. No I/O.
    pub fn known_deposed(&self) -> Option<Epoch> {
        Epoch::new(self.deposed_by.load(Ordering::Acquire)).filter(|by| *by != Epoch::NONE)
    }

    fn judge(&self, own: FenceRecord, next: FenceRecord) -> Standing {
        let after = self.epoch.next();
        match next {
            FenceRecord::Claimed { .. } => return self.deposed(after),
            FenceRecord::Skipped { by } => return self.deposed(by),
            FenceRecord::Born => return self.deposed(after),
            FenceRecord::TakenAway { .. } => return self.unknown(after, Damage::Field),
            FenceRecord::Damaged(damage) => return self.unknown(after, damage),
            FenceRecord::Unclaimed => {}
        }
        match own {
            FenceRecord::Claimed { owner } if owner.is_same_run(&self.claimant) => Standing::Leading,
            FenceRecord::Skipped { by } => self.deposed(by),
            FenceRecord::Claimed { .. } | FenceRecord::Born => {
                self.unknown(self.epoch, Damage::OwnRecordForeign)
            }
            FenceRecord::Unclaimed => self.unknown(self.epoch, Damage::OwnRecordMissing),
            FenceRecord::TakenAway { .. } => self.unknown(self.epoch, Damage::Field),
            FenceRecord::Damaged(damage) => self.unknown(self.epoch, damage),
        }
    }

    fn deposed(&self, by: Epoch) -> Standing {
        self.deposed_by.store(by.get(), Ordering::Release);
        Standing::Deposed { by }
    }

    fn unknown(&self, epoch: Epoch, damage: Damage) -> Standing {
        Standing::Unknown(FenceError::Damaged { path: self.dir.join(FENCE_NAME), epoch, damage })
    }

    /// The records of this epoch and the next, read through a fresh handle if the one held is stale.
    fn read_records(&self) -> kaas_substrate::Result<[FenceRecord; 2]> {
        let fence = Arc::clone(&self.fence.lock());
        let mut read = [[0; kaas_substrate::RECORD_BYTES]; 2];
        match fence.read(index(self.epoch), &mut read) {
            Err(error) if error.class == ErrorClass::Stale => {
                let fresh = self.substrate.open_records(&self.dir.join(FENCE_NAME))?;
                fresh.read(index(self.epoch), &mut read)?;
                *self.fence.lock() = fresh;
            }
            outcome => outcome?,
        }
        let [own, next] = read;
        Ok([FenceRecord::decode(&own, self.epoch), FenceRecord::decode(&next, self.epoch.next())])
    }

    /// Unlinks the claim files of lower epochs, which nobody needs once the fence has this epoch. Call it after
    /// [`Leadership::standing`] said leading. The number of files removed.
    pub fn collect_old_claims(&self) -> kaas_substrate::Result<usize> {
        let mut removed = 0;
        for entry in self.substrate.list(&self.dir)? {
            let is_old = claim::parse_name(&entry.name).is_some_and(|epoch| epoch < self.epoch);
            if entry.kind != EntryKind::File || !is_old {
                continue;
            }
            match self.substrate.remove_file(&self.dir.join(&entry.name)) {
                Ok(()) => removed += 1,
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(removed)
    }
}

#[cfg(test)]
mod tests;
