//! What everybody was told of a partition, and what must follow from it.
//!
//! The rules, over all leaders of all epochs, deposed ones included:
//!
//! - an offset holds one record, for ever, and a record stands at one offset;
//! - what a leader of epoch e acknowledged or served lies below the end of what every leader of a higher epoch found;
//! - the log start that a leader of epoch e told is not below any that a leader of a higher epoch begins with; the same holds
//!   for the last stable offset;
//! - a record that is known and not there any more was compacted away as it may be ([`Promises`]).

mod missing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use kaas_engine::types::Offset;

pub use self::missing::Promises;

use crate::names::is_tombstone;
use crate::problem::Problem;
use crate::records::Fetched;
use crate::repair::Harm;
use crate::transactions::Outcomes;

/// The history of one partition.
#[derive(Debug, Default)]
pub struct History {
    /// What stands at an offset, and who was told first.
    seen: BTreeMap<i64, (String, String)>,
    /// Where a record stands.
    places: BTreeMap<String, i64>,
    /// What each leader found: log start and end.
    found: BTreeMap<u32, (i64, i64)>,
    /// Of each epoch: the offset behind everything that was acknowledged, served or called committed.
    committed: BTreeMap<u32, i64>,
    /// Of each epoch: the highest log start that was told.
    log_starts: BTreeMap<u32, i64>,
    /// What each leader found to be stable.
    found_stable: BTreeMap<u32, i64>,
    /// Of each epoch: the highest last stable offset that was told.
    stable: BTreeMap<u32, i64>,
    /// What became of transactions.
    pub outcomes: Outcomes,
    promises: Promises,
    /// What damage may have cost.
    pub harm: Harm,
    /// Records that somebody has acknowledged: they are not sent again.
    told: BTreeSet<String>,
    /// How often a record was sent without an acknowledgement since: it may still arrive so often.
    under_way: BTreeMap<String, u32>,
    /// Tombstones that were sent, whether they arrived or not.
    tombstones: BTreeSet<String>,
    /// The highest log start that anybody asked for.
    pub log_start_asked: i64,
    /// Retention may raise it further.
    retention: bool,
    /// For the statistics.
    pub acknowledged: u64,
    pub read: u64,
    /// Ranges of files that were handed out to readers.
    pub ranges: u64,
    /// Segments that compaction replaced.
    pub compacted: u64,
    /// Repairs that have come to their end.
    pub repaired: u64,
}

impl History {
    /// Of a partition that was just made. With `retention`, the log start is raised without anybody asking.
    pub fn new(promises: Promises, retention: bool) -> Self {
        Self { promises, retention, ..Self::default() }
    }

    pub fn promises(&self) -> Promises {
        self.promises
    }

    /// A record is about to be sent.
    pub fn sends(&mut self, name: &str) {
        *self.under_way.entry(name.to_owned()).or_default() += 1;
        if self.promises.tombstones_go && is_tombstone(name) {
            self.tombstones.insert(name.to_owned());
        }
    }

    /// A record was acknowledged by, or read from, a leader.
    pub fn saw(&mut self, epoch: u32, offset: i64, value: &str, how: &str) -> Result<(), Problem> {
        if self.is_lost_since(epoch, offset, value) {
            self.harm.takes_from_producer_of(value);
            return Ok(());
        }
        let told = || format!("{how} at epoch {epoch}");
        self.forget_what_was_hit(offset, value);
        if how.starts_with("acknowledged") {
            let under_way = self.under_way.entry(value.to_owned()).or_default();
            *under_way = under_way.saturating_sub(1);
            if *under_way == 0 {
                self.told.insert(value.to_owned());
            }
        }
        // (A retry may be recognised though what it repeats is lost.)
        if !self.harm.may_be_met_at(epoch) && how == "read" {
            self.harm.is_whole(value);
        }
        let (known, by) = self.seen.entry(offset).or_insert_with(|| (value.to_owned(), told()));
        if known != value {
            let by = by.clone();
            return Err(Problem::Records(format!(
                "offset {offset}: {known} ({by}), then {value} ({})",
                told()
            )));
        }
        let place = *self.places.entry(value.to_owned()).or_insert(offset);
        if place != offset {
            return Err(Problem::Records(format!(
                "{value}: at offset {place}, then at {offset} ({})",
                told()
            )));
        }
        self.outcomes.saw(offset, value);
        self.saw_committed(epoch, offset + 1, how)
    }

    /// Whether a leader of `epoch` tells of a record that damage has taken since: a later leader has found the log to end before it;
    /// or of one that may be back where others were deleted.
    fn is_lost_since(&self, epoch: u32, offset: i64, value: &str) -> bool {
        if offset < self.deleted_for_good() {
            return true;
        }
        let is_lost = || self.found.range(epoch + 1..).any(|(_, (_, end))| *end <= offset);
        offset >= self.harm.cut_above(epoch) || self.harm.has_hit(value) && is_lost()
    }

    /// Where the log was said to start, if the manifest that said so was damaged. What stands in front of it is anybody's: what was
    /// deleted, or dead.
    pub fn deleted_for_good(&self) -> i64 {
        if self.harm.manifest_lost { self.told_log_start().max(self.harm.lost_log_start) } else { i64::MIN }
    }

    /// The highest log start that anybody was told.
    fn told_log_start(&self) -> i64 {
        self.log_starts.values().max().copied().unwrap_or(0)
    }

    /// Damage may have taken what stood at `offset`, and given its place to `value`; or taken `value`, or what is known of those who
    /// sent it, before anybody was told who would not send it again. Without a manifest, one that never counted may be taken for it.
    fn forget_what_was_hit(&mut self, offset: i64, value: &str) {
        let known = self.seen.get(&offset).map(|(known, _)| known);
        let other = known.filter(|known| *known != value && self.harm.has_hit(known));
        if let Some(known) = other.filter(|_| self.harm.may_be_anothers(offset)) {
            self.places.remove(known);
            self.seen.remove(&offset);
        }
        let start = self.told_log_start();
        let may_be_gone = |place: i64| self.harm.has_hit(value) || self.harm.happened() && place < start;
        let place = self.places.get(value).copied().filter(|place| *place != offset);
        if let Some(place) = place
            .filter(|place| may_be_gone(*place) && (self.harm.manifest_lost || !self.told.contains(value)))
        {
            self.places.remove(value);
            self.seen.remove(&place);
        }
    }

    /// A leader has said that everything below `end` is committed.
    pub fn saw_committed(&mut self, epoch: u32, end: i64, how: &str) -> Result<(), Problem> {
        let end = end.min(self.harm.cut_above(epoch));
        let later = self.found.range(epoch + 1..).map(|(later, (_, found))| (*later, *found));
        let lost = later.filter(|(_, found)| *found < end).min_by_key(|(_, found)| *found);
        let known = self.committed.entry(epoch).or_insert(0);
        *known = end.max(*known);
        match lost {
            Some((later, found)) if self.may_end(found) => {
                self.cut(later, found);
                Ok(())
            }
            Some((later, found)) => Err(Problem::Records(format!(
                "everything below offset {end} was committed ({how} at epoch {epoch}); the leader of epoch {later} \
                 has found the log to end at {found}"
            ))),
            None => Ok(()),
        }
    }

    /// Whether a leader may find the log to end at `end`, though there was more: damage has hit what stood there, and all behind it,
    /// or a leader has met it before any repair.
    fn may_end(&self, end: i64) -> bool {
        let is_hit = |name: &str| self.harm.has_hit(name);
        let mut rest = self.seen.range(end..);
        let all_hit = rest.all(|(_, (name, _))| is_hit(name));
        let at_end = self.harm.has_hit_at(end) || self.name_at(end).is_some_and(is_hit);
        at_end && (all_hit && self.harm.may_be_anothers(end) || self.harm.may_be_cut())
    }

    /// A leader has ended the log at `end`: what stood behind it is gone.
    fn cut(&mut self, epoch: u32, end: i64) {
        let lost = self.seen.split_off(&end);
        for (name, _) in lost.values() {
            self.places.remove(name);
        }
        self.harm.cut(epoch, end, lost.into_values().map(|(name, _)| name));
        for told in [&mut self.committed, &mut self.stable] {
            told.range_mut(..epoch).for_each(|(_, told)| *told = end.min(*told));
        }
    }

    /// A leader has said that the log starts at `start`.
    pub fn saw_log_start(&mut self, epoch: u32, start: i64) -> Result<(), Problem> {
        let known = self.log_starts.entry(epoch).or_insert(0);
        *known = start.max(*known);
        let asked = self.log_start_asked;
        let mut between = self.seen.range(asked..start.max(asked));
        if self.harm.happened() && between.all(|(_, (name, _))| self.harm.has_hit(name)) {
            // The log starts where there is something to be read.
            self.log_start_asked = start.max(asked);
        } else if start > asked && !self.retention {
            return Err(Problem::Bounds(format!(
                "the log starts at {start} at epoch {epoch}; at most {asked} was asked for"
            )));
        }
        match self.found.range(epoch + 1..).find(|(_, (found, _))| *found < start && !self.harm.manifest_lost)
        {
            Some((later, (found, _))) => Err(Problem::Bounds(format!(
                "the log started at {start} at epoch {epoch}, and then at {found} at epoch {later}"
            ))),
            None => Ok(()),
        }
    }

    /// A leader has opened the log and found it to go from `start` to `end`.
    pub fn opened(&mut self, epoch: u32, start: i64, end: i64) -> Result<(), Problem> {
        if self.found.insert(epoch, (start, end)).is_some() {
            return Err(Problem::Epoch(format!("epoch {epoch} has had two leaders")));
        }
        if self.harm.has_hit_at(end) && self.may_end(end) {
            // What earlier leaders have told, or tell later, of what stood there is over.
            self.cut(epoch, end);
        }
        let lost = self.committed.range(..epoch).find(|(_, committed)| **committed > end);
        if let Some((earlier, committed)) = lost {
            if self.may_end(end) {
                self.cut(epoch, end);
                return self.opened_from(epoch, start);
            }
            return Err(Problem::Records(format!(
                "everything below offset {committed} was committed at epoch {earlier}; the leader of epoch {epoch} \
                 finds the log to end at {end}"
            )));
        }
        self.opened_from(epoch, start)
    }

    /// A leader has found the log to start at `start`.
    fn opened_from(&mut self, epoch: u32, start: i64) -> Result<(), Problem> {
        let back = self.log_starts.range(..epoch).find(|(_, told)| **told > start);
        if let Some((earlier, told)) = back.filter(|_| !self.harm.manifest_lost) {
            return Err(Problem::Bounds(format!(
                "the log started at {told} at epoch {earlier}, and at epoch {epoch} it starts at {start}"
            )));
        }
        self.saw_log_start(epoch, start)
    }

    /// The name of what is known to have stood at an offset.
    pub fn name_at(&self, offset: i64) -> Option<&str> {
        self.seen.get(&offset).map(|(name, _)| name.as_str())
    }

    /// A leader has opened the log and found everything below `stable` to be stable.
    pub fn found_stable(&mut self, epoch: u32, stable: i64) -> Result<(), Problem> {
        self.found_stable.insert(epoch, stable);
        match self.stable.range(..epoch).find(|(_, told)| **told > stable) {
            Some(_) if self.may_end(stable) => {
                self.cut(epoch, stable);
                Ok(())
            }
            Some((earlier, told)) => Err(stable_went_back(*earlier, *told, epoch, stable)),
            None => Ok(()),
        }
    }

    /// A leader has said that everything below `stable` is stable.
    pub fn saw_stable(&mut self, epoch: u32, stable: Offset, log_start: Offset) -> Result<(), Problem> {
        self.outcomes.check_stable(stable, log_start)?;
        let stable = stable.0.min(self.harm.cut_above(epoch));
        let known = self.stable.entry(epoch).or_insert(0);
        *known = stable.max(*known);
        let later = self.found_stable.range(epoch + 1..).map(|(later, found)| (*later, *found));
        let lost = later.filter(|(_, found)| *found < stable).min_by_key(|(_, found)| *found);
        match lost {
            Some((later, found)) if self.may_end(found) => {
                self.cut(later, found);
                Ok(())
            }
            Some((later, found)) => Err(stable_went_back(epoch, stable, later, found)),
            None => Ok(()),
        }
    }

    /// Whether damage has hit any of the records in these batches.
    pub fn has_hit_any(&self, batches: &[Fetched]) -> bool {
        batches.iter().flat_map(|batch| &batch.records).any(|(_, name)| self.harm.has_hit(name))
    }

    /// How many leaders there were.
    pub fn leaders(&self) -> usize {
        self.found.len()
    }
}

fn stable_went_back(earlier: u32, told: i64, later: u32, found: i64) -> Problem {
    Problem::Transaction(format!(
        "everything below offset {told} was stable at epoch {earlier}; the leader of epoch {later} has found only what is \
         below {found} to be"
    ))
}
