//! Taking an epoch of a directory.
//!
//! The order is what makes it safe:
//!
//! 1. the claim file, exclusively, durable: an epoch has one owner;
//! 2. every record below the epoch is made used and durable: whoever leads at a lower epoch finds out;
//! 3. the own record, durable: from now on it vouches for all below it;
//! 4. a look above: if a higher epoch is claimed, this one is refused; and a look whether the directory was taken away.
//!
//! A crash after 1 leaves an epoch that nobody leads; the next one works. A failed claim may be repeated by the same
//! run of the same broker; everything is done again.

use std::ffi::OsStr;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use kaas_substrate::{OpenMode, RECORD_BYTES, RecordFile, Substrate, read_small};
use serde::{Deserialize, Serialize};

use super::fence::{
    EPOCHS_SKIPPED_MAX, FENCE_NAME, fill_below, fill_from, highest, highest_used, index, is_out_of_reach,
    records_needed, taken_away_by,
};
use super::record::{FenceRecord, MAX_INCARNATION_BYTES};
use super::{Claimant, Leadership};
use crate::planted::{Bug, planted};
use crate::types::Epoch;

/// Largest claim file that is read.
const MAX_CLAIM_BYTES: usize = 64 * 1024;

/// What to do where an epoch is wild.
const LOOK: &str = "`kaas-engine verify` tells which file is wrong and what to do about it";

/// Why a claim failed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The epoch is somebody else's, or a higher one was claimed. Claim an epoch above `highest`.
    #[error("epoch {epoch} of {} is refused: epoch {highest} is taken", dir.display())]
    Refused { dir: PathBuf, epoch: Epoch, highest: Epoch },
    /// The epoch is 0, the highest number, or so far above the last one that the fence would grow by gigabytes. Some file
    /// names an epoch that no leader can have had.
    #[error("epoch {epoch} of {} cannot be claimed: the last one is {highest}, and a claim skips at most {EPOCHS_SKIPPED_MAX}; {LOOK}", dir.display())]
    OutOfRange { dir: PathBuf, epoch: Epoch, highest: Epoch },
    /// The fence, or the name of a file, has an epoch that no claim can come to from this one. Claiming above it is of no use: one
    /// of them is damaged, or another cluster's.
    #[error("epoch {epoch} of {} is refused: something there has epoch {highest}, and a claim skips at most {EPOCHS_SKIPPED_MAX}; {LOOK}", dir.display())]
    OutOfReach { dir: PathBuf, epoch: Epoch, highest: Epoch },
    /// The directory was taken away: its topic is deleted. No epoch of it can be claimed.
    #[error("{} was taken away by the controller of epoch {by}: its topic is deleted", dir.display())]
    TakenAway { dir: PathBuf, by: Epoch },
    /// The incarnation is empty or too long.
    #[error("an incarnation has 1 to {MAX_INCARNATION_BYTES} bytes, this one {bytes}")]
    Incarnation { bytes: usize },
    /// The volume failed. The same claim may be made again.
    #[error(transparent)]
    Storage(#[from] kaas_substrate::Error),
}

/// What a claim file says; for people, and to recognise a claim of one's own.
#[derive(Debug, Serialize, Deserialize)]
struct ClaimFile {
    format: u32,
    epoch: u32,
    broker_id: i32,
    incarnation: String,
    assignment_version: u64,
    /// When, by the claimant's clock, in milliseconds since 1970. Nothing depends on it.
    claimed_at_ms: u64,
}

pub(super) fn claim_name(epoch: Epoch) -> String {
    format!("claim.{:08x}", epoch.get())
}

/// The epoch that a claim file's name stands for.
pub(crate) fn parse_name(name: &OsStr) -> Option<Epoch> {
    let name = name.to_str()?;
    let epoch = Epoch::new(u32::from_str_radix(name.strip_prefix("claim.")?, 16).ok()?)?;
    (name == claim_name(epoch)).then_some(epoch)
}

/// Claims `epoch` of `dir`. On success the claim is durable, every lower epoch is deposed, and the caller may look at
/// what it inherits; it acts only after [`Leadership::standing`] has said so. Blocks.
pub fn claim(
    substrate: &Arc<dyn Substrate>,
    dir: &Path,
    epoch: Epoch,
    claimant: &Claimant,
) -> Result<Leadership, ClaimError> {
    let attempt = Attempt { substrate: substrate.as_ref(), dir, epoch, claimant };
    attempt.check()?;
    let fence = substrate.open_records(&dir.join(FENCE_NAME))?;
    attempt.check_distance(fence.as_ref())?;
    let created = attempt.own_the_epoch()?;
    match attempt.take(fence.as_ref()) {
        Ok(()) => Ok(Leadership::new(substrate, dir, epoch, claimant, fence)),
        Err(error) => {
            if created && matches!(error, ClaimError::Refused { .. } | ClaimError::OutOfReach { .. }) {
                // Litter of an epoch that can never be led. It may stay.
                let _ = substrate.remove_file(&attempt.claim_path());
            }
            Err(error)
        }
    }
}

/// The highest epoch above `above` that somebody else than `claimant` has claimed in `dir`, by the claim files: what tells of a
/// successor when the fence is damaged, since the file of the highest claim is removed by nobody. `None` if there is none; files that
/// are out of reach of `above` are nobody's. An error for one that cannot be read as a claim: it may be one that is being made.
/// Blocks.
pub fn claimed_by_another(
    substrate: &dyn Substrate,
    dir: &Path,
    above: Epoch,
    claimant: &Claimant,
) -> kaas_substrate::Result<Option<Epoch>> {
    let entries = substrate.list(dir)?;
    let epochs = entries.iter().filter_map(|entry| parse_name(&entry.name));
    let mut epochs: Vec<_> =
        epochs.filter(|epoch| *epoch > above && !is_out_of_reach(*epoch, above)).collect();
    epochs.sort_unstable();
    for epoch in epochs.into_iter().rev() {
        let path = dir.join(claim_name(epoch));
        let bytes = match read_small(substrate, &path, MAX_CLAIM_BYTES) {
            // Refused and removed since it was listed.
            Err(error) if error.is_not_found() => continue,
            bytes => bytes?,
        };
        match claimant_of(&bytes, epoch) {
            Some(found) if found.is_same_run(claimant) => {}
            Some(_) => return Ok(Some(epoch)),
            None => {
                let source =
                    std::io::Error::new(std::io::ErrorKind::InvalidData, format!("no claim; {LOOK}"));
                return Err(kaas_substrate::Error::new(kaas_substrate::Operation::Read, &path, source));
            }
        }
    }
    Ok(None)
}

/// Whose claim of `epoch` a file is; `None` if it cannot be read as one.
fn claimant_of(bytes: &[u8], epoch: Epoch) -> Option<Claimant> {
    let found: ClaimFile = serde_json::from_slice(bytes).ok()?;
    (found.epoch == epoch.get()).then_some(Claimant {
        broker_id: found.broker_id,
        incarnation: found.incarnation,
        assignment_version: found.assignment_version,
    })
}

/// One attempt to claim.
struct Attempt<'a> {
    substrate: &'a dyn Substrate,
    dir: &'a Path,
    epoch: Epoch,
    claimant: &'a Claimant,
}

impl Attempt<'_> {
    fn claim_path(&self) -> PathBuf {
        self.dir.join(claim_name(self.epoch))
    }

    fn check(&self) -> Result<(), ClaimError> {
        let bytes = self.claimant.incarnation.len();
        if bytes == 0 || bytes > MAX_INCARNATION_BYTES {
            return Err(ClaimError::Incarnation { bytes });
        }
        // The highest number has no next one to be deposed by.
        if self.epoch == Epoch::NONE || self.epoch.next() == self.epoch {
            return Err(self.out_of_range(Epoch::NONE));
        }
        Ok(())
    }

    /// Checked before the claim file exists, so that a wild epoch leaves nothing behind.
    fn check_distance(&self, fence: &dyn RecordFile) -> Result<(), ClaimError> {
        let is_too_high = is_out_of_reach(self.epoch, self.epoch);
        if is_too_high || index(self.epoch) - fill_from(fence, self.epoch)? > EPOCHS_SKIPPED_MAX {
            return Err(self.out_of_range(highest(self.substrate, self.dir)?));
        }
        Ok(())
    }

    fn refused(&self) -> ClaimError {
        match highest(self.substrate, self.dir) {
            Ok(highest) => {
                let (dir, epoch, highest) = (self.dir.to_owned(), self.epoch, highest.max(self.epoch));
                if is_out_of_reach(highest, epoch) {
                    ClaimError::OutOfReach { dir, epoch, highest }
                } else {
                    ClaimError::Refused { dir, epoch, highest }
                }
            }
            Err(error) => error.into(),
        }
    }

    fn out_of_range(&self, highest: Epoch) -> ClaimError {
        ClaimError::OutOfRange { dir: self.dir.to_owned(), epoch: self.epoch, highest }
    }

    /// Creates the claim file, or finds that it is this run's own; true if it was created now. Durable on return.
    fn own_the_epoch(&self) -> Result<bool, ClaimError> {
        let path = self.claim_path();
        let file = match self.substrate.open(&path, OpenMode::CreateNew) {
            Ok(file) => file,
            Err(error) if error.is_exists() => {
                if !planted(Bug::ReuseEpoch) && !self.is_ours(&path)? {
                    return Err(self.refused());
                }
                // Whether an earlier attempt got as far as making it durable is not known.
                self.substrate.make_durable(&path, MAX_CLAIM_BYTES as u64)?;
                self.substrate.sync_dir(self.dir)?;
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        };
        let written =
            file.write_all_at(&[IoSlice::new(&self.claim_file())], 0).and_then(|()| file.sync_data());
        if let Err(error) = written {
            // This attempt is over, so its name may go: the next one creates it anew, or finds another's.
            let _ = self.substrate.remove_file(&path);
            return Err(error.into());
        }
        self.substrate.sync_dir(self.dir)?;
        Ok(true)
    }

    fn claim_file(&self) -> Vec<u8> {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let content = ClaimFile {
            format: 1,
            epoch: self.epoch.get(),
            broker_id: self.claimant.broker_id,
            incarnation: self.claimant.incarnation.clone(),
            assignment_version: self.claimant.assignment_version,
            claimed_at_ms: u64::try_from(since_1970.as_millis()).unwrap_or(0),
        };
        // Plain numbers and a string always serialise.
        let mut bytes = serde_json::to_vec(&content).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// True if the claim file is this run's. One that cannot be read as a claim is nobody's: its creator died.
    fn is_ours(&self, path: &Path) -> Result<bool, ClaimError> {
        let bytes = match read_small(self.substrate, path, MAX_CLAIM_BYTES) {
            Err(error) if error.is_not_found() => return Ok(false),
            outcome => outcome?,
        };
        Ok(claimant_of(&bytes, self.epoch).is_some_and(|found| found.is_same_run(self.claimant)))
    }

    /// Steps 2 to 4: the fence.
    fn take(&self, fence: &dyn RecordFile) -> Result<(), ClaimError> {
        // Refused before anything is written, if it can be told already.
        self.check_taken_away(fence)?;
        self.check_above(fence)?;
        let mut own = [[0; RECORD_BYTES]];
        fence.read(index(self.epoch), &mut own)?;
        let [own] = own;
        match FenceRecord::decode(&own, self.epoch) {
            FenceRecord::Claimed { .. } if planted(Bug::ReuseEpoch) => {}
            FenceRecord::Claimed { owner } if !owner.is_same_run(self.claimant) => return Err(self.refused()),
            FenceRecord::Skipped { .. } | FenceRecord::Born => return Err(self.refused()),
            // Damage at the own epoch is a torn write of a claimant that is gone, or is about to be seen above.
            FenceRecord::Claimed { .. }
            | FenceRecord::Unclaimed
            | FenceRecord::TakenAway { .. }
            | FenceRecord::Damaged(_) => {}
        }
        let from = fill_from(fence, self.epoch)?;
        fence.extend(records_needed(self.epoch))?;
        fill_below(fence, from, self.epoch)?;
        let owner = self.claimant.clone();
        fence.write(index(self.epoch), &[FenceRecord::Claimed { owner }.encode(self.epoch)])?;
        self.check_above(fence)?;
        self.check_taken_away(fence)
    }

    /// After the own record is written, this and [`super::take_away`] cannot both go well: one of them sees what the other
    /// has written. A record that is half written is of somebody who has yet to look.
    fn check_taken_away(&self, fence: &dyn RecordFile) -> Result<(), ClaimError> {
        match taken_away_by(fence)? {
            Some(by) => Err(ClaimError::TakenAway { dir: self.dir.to_owned(), by }),
            None => Ok(()),
        }
    }

    fn check_above(&self, fence: &dyn RecordFile) -> Result<(), ClaimError> {
        match highest_used(fence, index(self.epoch) + 1)? {
            Some(_) => Err(self.refused()),
            None => Ok(()),
        }
    }
}
