//! What controllers were told of a setting, and what must follow from it.
//!
//! Each change is one version of a file, and holds a number that no other has. The rules, over all controllers of all epochs,
//! deposed ones included:
//!
//! - a controller of epoch e finds what the newest acknowledged change of all lower epochs has written, or something newer;
//! - what it finds somebody has written;
//! - producer ids are handed out once;
//! - damage takes the change that it hits, and nothing else but what that had replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use kaas_engine::manifest::versioned::FileVersion;

use crate::problem::Problem;

/// The history of one setting.
#[derive(Debug, Clone, Default)]
pub struct SettingsHistory {
    /// Which version a change was written as at first: a repair writes the same once more.
    written: BTreeMap<u64, FileVersion>,
    /// Acknowledged changes, none of which damage has taken.
    acknowledged: BTreeSet<FileVersion>,
    /// What each controller has found; none: nothing.
    found: BTreeMap<u32, Option<FileVersion>>,
    /// Versions that damage has taken.
    hit: BTreeSet<FileVersion>,
    /// Producer ids that were handed out.
    ids: BTreeSet<u64>,
    /// Repairs have said that something is given up, or nobody has heard whether they did.
    told: bool,
    /// An acknowledged change was hit.
    has_lost: bool,
}

fn problem(text: String) -> Result<(), Problem> {
    Err(Problem::Settings(text))
}

impl SettingsHistory {
    /// A change is about to be written.
    pub fn writes(&mut self, number: u64, version: FileVersion) {
        self.written.insert(number, version);
    }

    /// A change was acknowledged by the controller of an epoch.
    pub fn acknowledged(&mut self, version: FileVersion, epoch: u32, number: u64) -> Result<(), Problem> {
        if self.hit.contains(&version) {
            self.has_lost = true;
            return Ok(());
        }
        self.acknowledged.insert(version);
        let lost = self.found.range(epoch + 1..).find(|(_, found)| **found < Some(version));
        match lost.filter(|_| epoch > 0) {
            Some((later, found)) => problem(format!(
                "change {number} was acknowledged as {version}; the controller of epoch {later} has found {found:?}"
            )),
            None => Ok(()),
        }
    }

    /// The controller of an epoch finds a change; none: nothing is set.
    pub fn finds(&mut self, epoch: u32, number: Option<u64>) -> Result<(), Problem> {
        let origin = number.map(|number| self.written.get(&number).copied().ok_or(number)).transpose();
        let origin = match origin {
            Ok(origin) => origin,
            Err(number) => return problem(format!("epoch {epoch} finds {number}, which nobody has written")),
        };
        self.found.insert(epoch, origin);
        let lower = self.acknowledged.iter().rfind(|version| version.epoch.get() < epoch);
        match lower.filter(|version| Some(**version) > origin) {
            Some(version) => problem(format!(
                "{version} was acknowledged; the controller of epoch {epoch} finds {origin:?}"
            )),
            None => Ok(()),
        }
    }

    /// Ids from `ids` on were handed out.
    pub fn hands_out(&mut self, epoch: u32, ids: Range<u64>) -> Result<(), Problem> {
        // (Blocks of one size may overlap in part.)
        let taken = self.ids.range(ids.start.saturating_sub(ids.end - ids.start - 1)..ids.end).next();
        let taken = taken.copied();
        self.ids.insert(ids.start);
        match taken {
            Some(before) => problem(format!(
                "producer ids {} to {} are handed out at epoch {epoch}; those from {before} on were handed out before",
                ids.start, ids.end
            )),
            None => Ok(()),
        }
    }

    /// A version is damaged; the newest whole one beside it that stays is `next`.
    pub fn damaged(&mut self, version: FileVersion, next: Option<FileVersion>) {
        self.hit.insert(version);
        let gone = |acknowledged: &FileVersion| *acknowledged <= version && Some(*acknowledged) > next;
        self.has_lost |= self.acknowledged.iter().any(gone);
        self.acknowledged.retain(|acknowledged| !gone(acknowledged));
    }

    /// A repair has given something up, or nobody has heard whether it has.
    pub fn told(&mut self) {
        self.told = true;
    }

    /// Something is said to be given up.
    pub fn check_given_up(&self, what: &str) -> Result<(), Problem> {
        if self.hit.is_empty() {
            problem(format!("given up: {what}; nothing of it was damaged"))
        } else {
            Ok(())
        }
    }

    /// At the end: what is lost was told.
    pub fn check_told(&self, found: Option<u64>) -> Result<(), Problem> {
        let origin = found.and_then(|number| self.written.get(&number));
        // (A bit of the checksum's name makes a file without a checksum.)
        let is_newest = self.hit.iter().all(|hit| origin >= Some(hit));
        if self.has_lost && !self.told && !is_newest {
            return problem("an acknowledged change is lost, and no repair has said so".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kaas_engine::types::Epoch;

    use super::*;

    fn version(epoch: u32, number: u64) -> FileVersion {
        FileVersion { epoch: Epoch::new(epoch).unwrap(), number }
    }

    /// Change 1 was acknowledged at epoch 1, change 2 was written at epoch 2.
    fn history() -> SettingsHistory {
        let mut history = SettingsHistory::default();
        history.writes(1, version(1, 1));
        history.acknowledged(version(1, 1), 1, 1).unwrap();
        history.writes(2, version(2, 1));
        history
    }

    #[test]
    fn an_acknowledged_change_is_found_by_every_later_controller_whichever_is_known_first() {
        history().finds(2, Some(1)).unwrap();
        history().finds(3, Some(2)).unwrap();
        history().finds(2, None).unwrap_err();
        history().finds(2, Some(3)).unwrap_err();
        let mut history = history();
        history.finds(3, Some(1)).unwrap();
        history.acknowledged(version(2, 1), 2, 2).unwrap_err();
    }

    #[test]
    fn damage_takes_what_it_hits_and_what_that_had_replaced() {
        let mut history = history();
        history.acknowledged(version(2, 1), 2, 2).unwrap();
        history.damaged(version(2, 1), Some(version(1, 1)));
        history.finds(4, Some(1)).unwrap();
        history.finds(5, None).unwrap_err();
        history.check_told(Some(1)).unwrap_err();
        history.told();
        history.check_told(Some(1)).unwrap();
        history.damaged(version(1, 1), None);
        history.finds(6, None).unwrap();
        history.check_given_up("all").unwrap();
        self::history().check_given_up("all").unwrap_err();
    }

    #[test]
    fn ids_are_handed_out_once() {
        let mut history = history();
        history.hands_out(1, 1000..2000).unwrap();
        history.hands_out(1, 2000..3000).unwrap();
        history.hands_out(2, 2999..3999).unwrap_err();
        history.hands_out(2, 1..1001).unwrap_err();
    }
}
