//! The standalone controller: this process, at an epoch claimed on the volume.
//!
//! The epoch is at once the controller's and, standalone, the one at which partitions are claimed: a partition that
//! is opened during this run is claimed at the epoch that is current then. Whenever a partition has to be led anew
//! (after a failed sync, or to take it away), the controller takes its next epoch first.
//!
//! A fence that does not say who leads (somebody has cut it, the volume had shut this host out, a handle that came to
//! nothing) is claimed anew at the next epoch, through fresh handles, as a partition's is. So is one that names this
//! controller's own next epoch, which it could not come to the end of claiming. Whoever owns all epochs after its own was
//! the controller all the while: nobody can have led in between.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use kaas_engine::layout::CONTROLLER_DIR;
use kaas_engine::leadership::{self, ClaimError, Claimant, FenceError, FenceRecord, Leadership, Standing};
use kaas_engine::types::Epoch;
use kaas_substrate::{LockGuard, Substrate};
use parking_lot::{Condvar, Mutex};

use super::{ClusterId, directory, lock};
use crate::metadata::Fence;
use crate::{CLUSTER_DIR, ControlError};

/// How often a start claims anew because another process took the epoch first.
const CLAIMS_AT_START_MAX: usize = 16;

/// How long a fence that may answer yet is only asked again, before it is claimed anew.
const UNKNOWN_MAX: Duration = Duration::from_secs(10);

/// How the controller is started.
#[derive(Debug, Clone)]
pub struct ControllerSettings {
    /// This broker's id. A data directory belongs to one.
    pub node_id: i32,
    /// The cluster's id; if absent, that of the directory, or a random one for a new directory.
    pub cluster_id: Option<ClusterId>,
    /// For tests only: does not take the lock. Safety does not depend on it; the claims still hold.
    pub ignore_lock: bool,
}

/// This process as the controller. Shared between threads.
#[derive(Debug)]
pub struct Controller {
    substrate: Arc<dyn Substrate>,
    cluster_id: ClusterId,
    claimant: Claimant,
    leadership: ArcSwap<Leadership>,
    /// True while a thread takes the next epoch. Locked for memory work only.
    advancing: Mutex<bool>,
    advanced: Condvar,
    /// Since when the fence does not say who leads. Locked for memory work only.
    unknown_since: Mutex<Option<Instant>>,
    /// Held as long as the controller lives.
    _lock: Option<Box<dyn LockGuard>>,
}

impl Controller {
    /// Becomes the controller of the data directory `substrate`, which is born if it is empty. The claim is durable
    /// on return; every earlier controller is deposed. Blocks.
    ///
    /// `Locked`, `NewerFormat`, `ForeignDirectory` and `MissingMeta` mean that nothing was touched.
    pub fn start(substrate: Arc<dyn Substrate>, settings: &ControllerSettings) -> Result<Self, ControlError> {
        let incarnation = uuid::Uuid::new_v4().to_string();
        let meta = directory::open(substrate.as_ref(), settings)?;
        let lock =
            if settings.ignore_lock { None } else { Some(lock::take(substrate.as_ref(), &incarnation)?) };
        let claimant = Claimant { broker_id: settings.node_id, incarnation, assignment_version: 0 };
        let leadership = claim_first(&substrate, &claimant)?;
        if let Err(error) = leadership.collect_old_claims() {
            tracing::warn!(%error, "old claims left behind");
        }
        tracing::info!(epoch = %leadership.epoch(), cluster_id = %meta.cluster_id, "controller");
        Ok(Self {
            substrate,
            cluster_id: meta.cluster_id,
            claimant,
            leadership: ArcSwap::from_pointee(leadership),
            advancing: Mutex::new(false),
            advanced: Condvar::new(),
            unknown_since: Mutex::new(None),
            _lock: lock,
        })
    }

    /// The cluster's id.
    pub fn cluster_id(&self) -> &ClusterId {
        &self.cluster_id
    }

    /// This broker's id.
    pub fn node_id(&self) -> i32 {
        self.claimant.broker_id
    }

    /// Who claims, for partitions and slots too: this broker, in this run of its process.
    pub fn claimant(&self) -> &Claimant {
        &self.claimant
    }

    /// The volume.
    pub fn substrate(&self) -> &Arc<dyn Substrate> {
        &self.substrate
    }

    /// The epoch of the controller, at which partitions are claimed. Answers from memory.
    pub fn current(&self) -> Epoch {
        self.leadership.load().epoch()
    }

    /// Takes an epoch above `above` for this controller, unless it has one already. Durable on return. Blocks.
    /// `Deposed` if another process is the controller by now.
    ///
    /// Threads that ask at the same time, because of the same epoch, share one new epoch.
    pub fn advance_above(&self, above: Epoch) -> Result<Epoch, ControlError> {
        let mut advancing = self.advancing.lock();
        loop {
            let current = self.current();
            if current > above {
                return Ok(current);
            }
            if !*advancing {
                break;
            }
            self.advanced.wait(&mut advancing);
        }
        *advancing = true;
        drop(advancing);
        let outcome = self.claim_above(above);
        if let Ok(leadership) = &outcome {
            self.leadership.store(Arc::clone(leadership));
        }
        *self.advancing.lock() = false;
        self.advanced.notify_all();
        let leadership = outcome?;
        if let Err(error) = leadership.collect_old_claims() {
            tracing::warn!(%error, "old claims left behind");
        }
        Ok(leadership.epoch())
    }

    /// Takes the next epoch. As [`Controller::advance_above`] the current one.
    pub fn advance(&self) -> Result<Epoch, ControlError> {
        self.advance_above(self.current())
    }

    fn claim_above(&self, above: Epoch) -> Result<Arc<Leadership>, ControlError> {
        let current = self.leadership.load_full();
        let above = current.epoch().max(above);
        let claimed = match self.standing_of(&current) {
            Standing::Leading => self.claim(&current, above.next())?,
            Standing::Deposed { by } if self.has_deposed_itself(&current)? => {
                self.claim_anew(&current, above, &format!("the claim of epoch {by} was not finished"))?
            }
            // For good: a controller must not take the place back.
            Standing::Deposed { by } => return Err(deposed(&current, by)),
            Standing::Unknown(reason) if self.is_beyond_asking(&reason) => {
                self.claim_anew(&current, above, &reason)?
            }
            Standing::Unknown(error) => return Err(unknown(&current, &error)),
        };
        // One that came in between, below the epoch claimed, was deposed by this claim, and may have acted before.
        self.check_others(&current)?;
        Ok(Arc::new(claimed))
    }

    /// Claims an epoch above `above`, the fence of `current` naming no successor. `Deposed` if somebody else has claimed
    /// one meanwhile, which the claim files tell without the fence: that of the highest claim stays.
    fn claim_anew(
        &self,
        current: &Leadership,
        above: Epoch,
        reason: &dyn Display,
    ) -> Result<Leadership, ControlError> {
        self.check_others(current)?;
        let substrate = self.substrate.as_ref();
        let highest = leadership::highest(substrate, &controller_dir())?;
        let claimed = self.claim(current, above.max(highest).next())?;
        *self.unknown_since.lock() = None;
        tracing::warn!(
            epoch = %claimed.epoch(), %reason,
            hint = format!("kaas-engine verify {}", substrate.root().display()),
            "the controller's fence did not say who leads: claimed anew"
        );
        Ok(claimed)
    }

    /// Whether nobody but this controller has claimed an epoch above that of `current`: it has begun to, and an error of the volume
    /// came between.
    fn has_deposed_itself(&self, current: &Leadership) -> Result<bool, ControlError> {
        let records = leadership::records(self.substrate.as_ref(), &controller_dir())?;
        let mut above = records.into_iter().filter(|(epoch, _)| *epoch > current.epoch());
        Ok(above.all(|(_, record)| match record {
            FenceRecord::Claimed { owner } => owner.is_same_run(&self.claimant),
            // Whoever skips has a claim file, which is looked for.
            FenceRecord::Skipped { .. } => true,
            _ => false,
        }))
    }

    /// `Deposed` if somebody else has claimed an epoch above that of `current`.
    fn check_others(&self, current: &Leadership) -> Result<(), ControlError> {
        let substrate = self.substrate.as_ref();
        let by =
            leadership::claimed_by_another(substrate, &controller_dir(), current.epoch(), &self.claimant)?;
        by.map_or(Ok(()), |by| Err(deposed(current, by)))
    }

    /// Claims `epoch`, above that of `current`.
    fn claim(&self, current: &Leadership, epoch: Epoch) -> Result<Leadership, ControlError> {
        match leadership::claim(&self.substrate, &controller_dir(), epoch, &self.claimant) {
            Err(ClaimError::Refused { highest, .. }) => Err(deposed(current, highest)),
            outcome => outcome.map_err(|source| ControlError::Claim { epoch, source: Box::new(source) }),
        }
    }

    /// Asks the fence, and takes note of since when it does not answer.
    fn standing_of(&self, leadership: &Leadership) -> Standing {
        let standing = leadership.standing();
        let mut since = self.unknown_since.lock();
        match standing {
            Standing::Unknown(_) => _ = since.get_or_insert_with(Instant::now),
            _ => *since = None,
        }
        drop(since);
        standing
    }

    /// Whether a fence that does not say who leads is to be claimed anew: asking again is of no use, or was of none for long.
    fn is_beyond_asking(&self, error: &FenceError) -> bool {
        error.is_final() || self.unknown_since.lock().is_some_and(|since| since.elapsed() >= UNKNOWN_MAX)
    }

    /// Waits until no thread is taking the next epoch.
    fn settle(&self) {
        let mut advancing = self.advancing.lock();
        while *advancing {
            self.advanced.wait(&mut advancing);
        }
    }
}

impl Fence for Controller {
    fn epoch(&self) -> Epoch {
        self.current()
    }

    fn check(&self) -> Result<(), ControlError> {
        let mut is_claimed_anew = false;
        loop {
            let asked = self.leadership.load_full();
            match self.standing_of(&asked) {
                Standing::Leading => return Ok(()),
                Standing::Deposed { by } => {
                    // Whoever took the next epoch may be this very process.
                    self.settle();
                    if self.current() == asked.epoch() {
                        if is_claimed_anew {
                            return Err(deposed(&asked, by));
                        }
                        is_claimed_anew = true;
                        self.advance_above(asked.epoch())?;
                    }
                }
                // What was done before is this controller's, if it could have the next epoch.
                Standing::Unknown(error) if !is_claimed_anew && self.is_beyond_asking(&error) => {
                    is_claimed_anew = true;
                    self.advance_above(asked.epoch())?;
                }
                Standing::Unknown(error) => return Err(unknown(&asked, &error)),
            }
        }
    }
}

fn deposed(leadership: &Leadership, by: Epoch) -> ControlError {
    ControlError::Deposed { epoch: leadership.epoch(), by }
}

fn unknown(leadership: &Leadership, error: &FenceError) -> ControlError {
    ControlError::FenceUnknown { epoch: leadership.epoch(), reason: error.to_string() }
}

fn claim_first(substrate: &Arc<dyn Substrate>, claimant: &Claimant) -> Result<Leadership, ControlError> {
    let dir = controller_dir();
    let claim_error =
        |epoch| move |source: ClaimError| ControlError::Claim { epoch, source: Box::new(source) };
    let mut epoch = leadership::highest(substrate.as_ref(), &dir)?.next();
    for _ in 0..CLAIMS_AT_START_MAX {
        match leadership::claim(substrate, &dir, epoch, claimant) {
            Err(ClaimError::Refused { highest, .. }) => epoch = highest.next(),
            outcome => return outcome.map_err(claim_error(epoch)),
        }
    }
    leadership::claim(substrate, &dir, epoch, claimant).map_err(claim_error(epoch))
}

fn controller_dir() -> PathBuf {
    Path::new(CLUSTER_DIR).join(CONTROLLER_DIR)
}
