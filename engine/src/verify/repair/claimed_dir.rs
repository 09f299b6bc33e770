//! Leading the directory that is repaired: the next epoch, the claim of it, and a fence where there is none.

use std::path::Path;
use std::sync::Arc;

use kaas_substrate::{OpenMode, RECORD_BYTES, RECORD_ZERO_AT, Substrate};

use super::controller_guard::ControllerGuard;
use super::quarantine::{self, Quarantined};
use super::{Mode, said};
use crate::leadership::{self, ClaimError, Claimant, FENCE_NAME, Leadership, Standing};
use crate::planted::{Bug, planted};
use crate::types::Epoch;
use crate::verify::finding::{Finding, Kind};
use crate::verify::{Context, leaders};

/// How often an epoch that somebody else took meanwhile is followed by a higher one.
const CLAIMS_MAX: u32 = 8;

/// A directory with claims and a fence, and what is wrong with these.
pub(super) struct ClaimedDir<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) substrate: &'a Arc<dyn Substrate>,
    pub(super) dir: &'a Path,
    pub(super) guard: &'a ControllerGuard<'a>,
    /// There is no fence.
    fenceless: bool,
    /// The fence says that the directory is taken away, and it is not.
    taken_away: bool,
    /// Records of the fence are missing or damaged.
    full_of_holes: bool,
    /// That something has an epoch which no claim can go above.
    out_of_reach: Option<String>,
}

impl<'a> ClaimedDir<'a> {
    pub(super) fn new(
        context: &'a Context<'a>,
        substrate: &'a Arc<dyn Substrate>,
        dir: &'a Path,
        guard: &'a ControllerGuard<'a>,
        findings: &[Finding],
    ) -> Self {
        let has = |kinds: &[Kind]| findings.iter().any(|finding| kinds.contains(&finding.kind));
        let out_of_reach = findings.iter().find(|finding| finding.kind == Kind::EpochOutOfReach);
        Self {
            context,
            substrate,
            dir,
            guard,
            fenceless: has(&[Kind::FenceMissing]),
            taken_away: has(&[Kind::TakenAway]),
            full_of_holes: has(&[
                Kind::FenceGap,
                Kind::FenceBehind,
                Kind::FenceRecordTorn,
                Kind::FenceRecordDamaged,
                Kind::FenceDamaged,
            ]),
            out_of_reach: out_of_reach
                .map(|finding| format!("{}: {}. {}", finding.kind.code(), finding.problem, finding.action)),
        }
    }

    /// Why the directory cannot be led; `None` if it can.
    pub(super) fn refusal(&self) -> Option<String> {
        super::refusal(self.context.substrate, self.dir).or_else(|| self.in_place().err()).or_else(|| {
            if self.out_of_reach.is_some() {
                return self.out_of_reach.clone();
            }
            if self.fenceless && !self.context.options.brokers_stopped {
                return Some(format!(
                    "{}: whoever led here last may still have the old fence open, and a new one would not tell it that it is \
                     deposed. Stop every broker that may have led it, then repair with --brokers-stopped: a new fence is \
                     made, above every epoch that has left a trace",
                    Kind::FenceMissing.code()
                ));
            }
            self.needs_lock().then(|| self.guard.surroundings().err()).flatten()
        })
    }

    /// Whether what is done rests on nobody else doing anything here, which only the data directory's lock can tell.
    fn needs_lock(&self) -> bool {
        self.fenceless || self.taken_away
    }

    /// That the directory is still where it was found: a claim in a topic that was deleted would bring it back.
    fn in_place(&self) -> Result<(), String> {
        match leaders::is_in_place(self.context.substrate, self.dir) {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err("what it was in is not there any more under this name: it was deleted".to_owned())
            }
            Err(error) => Err(said(&error)),
        }
    }

    /// The fence as it was found.
    fn fence() -> Quarantined {
        Quarantined::whole(FENCE_NAME, false)
    }

    /// What is done to lead at `epoch`, for people.
    pub(super) fn steps(&self, epoch: Epoch) -> Vec<String> {
        let mut steps = Vec::new();
        if self.full_of_holes {
            steps.push(Self::fence().step());
        }
        if self.fenceless {
            let born = Epoch::new(epoch.get().saturating_sub(1)).unwrap_or(Epoch::NONE);
            steps.push(format!("make a fence, in which no epoch up to {born} can be claimed"));
        }
        if self.taken_away {
            steps.push("take back in the fence that the directory was taken away".to_owned());
        }
        steps.push(format!("claim epoch {epoch}: whoever leads now is fenced out"));
        if self.full_of_holes {
            steps.push("fill what is missing or damaged in the fence".to_owned());
        }
        steps
    }

    /// The epoch behind every one that anybody has claimed, or has left a file of: `written` is the highest of these.
    pub(super) fn next_epoch(&self, written: Epoch) -> Result<Epoch, String> {
        let volume = self.context.substrate;
        if self.fenceless {
            let claims = match volume.list(self.dir) {
                Err(error) if error.is_not_found() => Vec::new(),
                entries => entries.map_err(|error| said(&error))?,
            };
            let controller = self.guard.controller_epoch();
            let led = Some(controller).filter(|controller| *controller > Epoch::NONE).unwrap_or(written);
            if leadership::is_out_of_reach(written, led) {
                return Err(format!(
                    "a file here has epoch {written} in its name, and the controller has come to {controller} only: a fence \
                     that is made for it is of no use to any broker. Find out how it came here, move it out of the data \
                     directory, and repair again"
                ));
            }
            let highest = written.max(controller);
            let claimed = claims.iter().filter_map(|entry| leadership::claim_epoch(&entry.name));
            let claimed = claimed.filter(|epoch| !leadership::is_out_of_reach(*epoch, highest)).max();
            return Ok(claimed.map_or(highest, |claimed| claimed.max(highest)).next());
        }
        let claimed = leadership::highest(volume, self.dir).map_err(|error| said(&error))?;
        let next = claimed.max(written).next();
        // A piece of a record at the fence's end would be damage to whoever leads below it: it is claimed, and written over.
        let fence = volume.open(&self.dir.join(FENCE_NAME), OpenMode::ReadUncached);
        let bytes = fence.and_then(|fence| fence.length()).map_err(|error| said(&error))?;
        let piece = ![0, RECORD_ZERO_AT as u64 + 1].contains(&(bytes % RECORD_BYTES as u64));
        let at = u32::try_from(bytes / RECORD_BYTES as u64).ok().and_then(Epoch::new).filter(|_| piece);
        Ok(next.max(at.unwrap_or(next)))
    }

    /// Claims the next epoch as `claimant`. On return whoever led before is fenced out, durably.
    pub(super) fn claim(&self, written: Epoch, claimant: &Claimant) -> Result<Leadership, String> {
        let volume = self.context.substrate;
        if self.needs_lock() {
            self.guard.surroundings()?;
            self.guard.lock()?;
            // With the lock, no deletion and no other repair is under way; one may have been since it was looked at.
            self.in_place()?;
        }
        let mut epoch = self.next_epoch(written)?;
        if self.full_of_holes {
            // A claim mends some of it.
            quarantine::copy_all(volume, self.dir, &[Self::fence()], epoch).map_err(|error| said(&error))?;
        }
        if self.fenceless {
            self.make_dir().map_err(|error| said(&error))?;
            let entries = volume.list(self.dir).map_err(|error| said(&error))?;
            if entries.iter().any(|entry| entry.name == FENCE_NAME) {
                return Err("the fence is there now; run verify again".to_owned());
            }
            let born = Epoch::new(epoch.get().saturating_sub(1)).unwrap_or(Epoch::NONE);
            leadership::recreate_fence(volume, self.dir, born).map_err(|error| said(&error))?;
        }
        if self.taken_away {
            leadership::give_back(volume, self.dir).map_err(|error| said(&error))?;
        }
        for _ in 0..CLAIMS_MAX {
            match leadership::claim(self.substrate, self.dir, epoch, claimant) {
                Ok(leadership) => return Ok(leadership),
                Err(ClaimError::Refused { highest, .. }) => epoch = highest.max(epoch).next(),
                Err(error) => return Err(said(&error)),
            }
        }
        Err("other claims keep coming: somebody else is leading it again and again".to_owned())
    }

    /// Without a fence the directory may be missing, too: the controller's holds nothing else.
    fn make_dir(&self) -> Result<(), kaas_substrate::Error> {
        let volume = self.context.substrate;
        match volume.create_dir(self.dir) {
            Err(error) if !error.is_exists() => Err(error),
            _ => volume.sync_dir(self.dir.parent().unwrap_or(Path::new(""))),
        }
    }

    /// Fills what is missing or damaged in the fence, if anything is. Durable on return.
    pub(super) fn fill(&self, leadership: &Leadership) -> Result<(), kaas_substrate::Error> {
        if self.full_of_holes {
            leadership::fill_gaps(self.context.substrate, self.dir, leadership.epoch())?;
        }
        Ok(())
    }

    /// The epoch that a repair has, or would have.
    pub(super) fn epoch(&self, mode: &Mode, written: Epoch) -> Result<(Epoch, Option<Leadership>), String> {
        match mode {
            Mode::DryRun => Ok((self.next_epoch(written)?, None)),
            Mode::Repair(claimant) => {
                let leadership = self.claim(written, claimant)?;
                Ok((leadership.epoch(), Some(leadership)))
            }
        }
    }
}

/// Whether the repair still leads what it has claimed: asked after what it wrote is durable, before anything is removed.
pub(super) fn still_leads(leadership: &Leadership) -> Result<(), String> {
    if planted(Bug::RepairWithoutFence) {
        return Ok(());
    }
    match leadership.standing() {
        Standing::Leading => Ok(()),
        Standing::Deposed { by } => Err(format!("deposed by epoch {by}: somebody else leads it now")),
        Standing::Unknown(error) => Err(format!("the fence cannot be read: {error}")),
    }
}
