//! The data directory around what is repaired: its lock, which says that no broker runs, and its controller.
//!
//! What belongs to no partition or slot (topics' own files, `cluster/`) is written by the controller alone, so a repair that
//! writes there is the controller of the next epoch: a deposed one acknowledges nothing more, and whatever it still
//! writes has a lower name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_substrate::{EntryKind, LockGuard, Substrate};
use parking_lot::Mutex;

use super::claimed_dir::{ClaimedDir, still_leads};
use super::{Mode, said};
use crate::layout::{CLUSTER_DIR, CONTROLLER_DIR, LOCK_FILE, TOPIC_CONFIG, TOPICS_DIR};
use crate::leadership::{self, FENCE_NAME, Leadership};
use crate::manifest::versioned;
use crate::types::Epoch;
use crate::verify::view::Names;
use crate::verify::{Context, cluster, slots};

/// Holds what a repair needs of the data directory; shared by the threads of one repair.
pub(super) struct ControllerGuard<'a> {
    context: &'a Context<'a>,
    substrate: &'a Arc<dyn Substrate>,
    mode: &'a Mode,
    lock: Mutex<Option<Box<dyn LockGuard>>>,
    controller: Mutex<Option<Arc<Leadership>>>,
}

impl<'a> ControllerGuard<'a> {
    pub(super) fn new(context: &'a Context<'a>, substrate: &'a Arc<dyn Substrate>, mode: &'a Mode) -> Self {
        Self { context, substrate, mode, lock: Mutex::default(), controller: Mutex::default() }
    }

    /// Where the controller's claims and fence are.
    pub(super) fn controller_dir() -> PathBuf {
        Path::new(CLUSTER_DIR).join(CONTROLLER_DIR)
    }

    /// Whether the substrate is a whole data directory.
    fn has_cluster(&self) -> bool {
        self.context.substrate.list(Path::new(CLUSTER_DIR)).is_ok()
    }

    /// That there is a data directory, with a lock that says whether a broker runs.
    pub(super) fn surroundings(&self) -> Result<(), String> {
        if self.has_cluster() {
            return Ok(());
        }
        Err(format!(
            "there is no {CLUSTER_DIR}/ beside it, so nothing says whether a broker runs: name a directory within a whole data \
             directory"
        ))
    }

    /// Takes the data directory's lock until the repair is over, if there is a data directory: so no broker runs on it, as
    /// far as a lock can tell. Nothing is taken in a dry run.
    pub(super) fn lock(&self) -> Result<(), String> {
        let mut held = self.lock.lock();
        if held.is_some() || *self.mode == Mode::DryRun || !self.has_cluster() {
            return Ok(());
        }
        let path = Path::new(CLUSTER_DIR).join(LOCK_FILE);
        match self.context.substrate.try_lock(&path) {
            Ok(Some(lock)) => {
                *held = Some(lock);
                Ok(())
            }
            Ok(None) => Err(format!(
                "a broker runs on this data directory (it holds {}; lock-holder.json beside it says who): stop it first",
                path.display()
            )),
            Err(error) => Err(said(&error)),
        }
    }

    /// The highest epoch of the controller that its directory knows; partitions and slots are claimed at no higher one but by
    /// repairs. [`Epoch::NONE`] if there is none.
    pub(super) fn controller_epoch(&self) -> Epoch {
        leadership::highest(self.context.substrate, &Self::controller_dir()).unwrap_or(Epoch::NONE)
    }

    /// Becomes the controller of the next epoch, once in a repair, and holds the lock from then on. In a dry run only the
    /// epoch is told.
    pub(super) fn controller(&self) -> Result<(Epoch, Option<Arc<Leadership>>), String> {
        self.surroundings()?;
        self.lock()?;
        let mut held = self.controller.lock();
        if let Some(controller) = &*held {
            return Ok((controller.epoch(), Some(Arc::clone(controller))));
        }
        let dir = Self::controller_dir();
        let findings = slots::examine_controller(self.context, &dir).findings;
        let claimed = ClaimedDir::new(self.context, self.substrate, &dir, self, &findings);
        if let Some(reason) = claimed.refusal() {
            return Err(reason);
        }
        let (epoch, controller) = claimed.epoch(self.mode, self.written())?;
        let Some(controller) = controller else { return Ok((epoch, None)) };
        claimed.fill(&controller).map_err(|error| said(&error))?;
        still_leads(&controller)?;
        let controller = Arc::new(controller);
        *held = Some(Arc::clone(&controller));
        Ok((epoch, Some(controller)))
    }

    /// The highest epoch that is in the name of anything a controller writes, or a leader at one of its epochs. Looks into
    /// every partition's directory only if the controller's fence is gone.
    pub(super) fn written(&self) -> Epoch {
        let volume = self.context.substrate;
        let configs = |dir: &Path| {
            let versions = versioned::list(volume, dir, TOPIC_CONFIG).unwrap_or_default();
            versions.last().map_or(Epoch::NONE, |version| version.epoch)
        };
        let dirs = |dir: &Path| {
            let entries = volume.list(dir).unwrap_or_default().into_iter();
            let found =
                entries.filter(|entry| entry.kind == EntryKind::Dir).map(|entry| dir.join(entry.name));
            found.collect::<Vec<_>>()
        };
        let mut highest = cluster::written(volume, Path::new(CLUSTER_DIR)).unwrap_or(Epoch::NONE);
        let has_fence = volume.list(&Self::controller_dir()).is_ok_and(|entries| {
            entries.iter().any(|entry| entry.kind == EntryKind::File && entry.name == FENCE_NAME)
        });
        for topic in dirs(Path::new(TOPICS_DIR)) {
            highest = highest.max(configs(&topic));
            for partition in dirs(&topic).into_iter().filter(|_| !has_fence) {
                let names = Names::read(volume, &partition).unwrap_or_default();
                let claimed = names.claims.last().copied().max(names.written());
                highest = highest.max(claimed.unwrap_or(Epoch::NONE));
            }
        }
        highest
    }
}
