//! What everybody was told of a partition, and what must follow from it.
//!
//! The rules, over all leaders of all epochs, deposed ones included:
//!
//! - an offset holds one record, for ever, and a record stands at one offset;
//! - what a leader of epoch e acknowledged or served lies below the end of what every leader of a higher epoch found;
//! - the log start that a leader of epoch e told is not below any that a leader of a higher epoch begins with; the same holds
//!   for the last stable offset;
//! - a record that is known and not there any more was compacted away as it may be ([`Promises`]).

use std::collections::{BTreeMap, BTreeSet};

use kaas_engine::types::Offset;

use crate::names::{is_marker, is_tombstone, key};
use crate::problem::Problem;
use crate::records::Fetched;
use crate::repair::Harm;
use crate::transactions::{Fate, Outcomes};

/// What compaction may do to a partition.
#[derive(Debug, Clone, Copy, Default)]
pub struct Promises {
    /// Superseded records go, and those of aborted transactions.
    pub compacts: bool,
    /// Tombstones, and markers with nothing left of their transaction, go when they have been compacted twice. Else they stay
    /// for longer than a run takes.
    pub tombstones_go: bool,
}

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
            self.told.insert(value.to_owned());
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
        if self.harm.manifest_lost { self.told_log_start() } else { i64::MIN }
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

    /// The last word: `records` is the whole log, which starts at `start`.
    pub fn check_all(&self, start: i64, records: &BTreeMap<i64, String>) -> Result<(), Problem> {
        self.check_missing(start, i64::MAX, records)?;
        // What is lost is told, unless it is an end that may as well be what a crash left.
        let hit = |offset: &i64, name: &String| {
            !records.contains_key(offset) && self.harm.has_hit(name) && !self.harm.may_be_anothers(*offset)
        };
        let lost = self.seen.range(start..).find(|(offset, (name, _))| hit(offset, name));
        match lost.filter(|(offset, _)| !self.harm.is_told(**offset)) {
            Some((offset, (name, _))) => {
                Err(Problem::Repair(format!("{name} at offset {offset} is lost, and no repair has said so")))
            }
            None => Ok(()),
        }
    }

    /// A repair has said that these offsets are lost: from, to.
    pub fn check_lost(&self, lost: &[(i64, i64)]) -> Result<(), Problem> {
        // (Where the manifest was lost, what was being deleted may have been back, and gone.)
        let asked = if self.harm.manifest_lost { self.log_start_asked } else { 0 };
        let start = self.told_log_start().max(asked);
        for (from, to) in lost {
            let from = (*from).max(start);
            let mut known = self.seen.range(from..(*to).max(from));
            if let Some((offset, (name, by))) = known.find(|(_, (name, _))| !self.harm.has_hit(name)) {
                return Err(Problem::Repair(format!(
                    "offsets {from} to {to} are said to be lost; {name} at {offset} ({by}) was not damaged"
                )));
            }
        }
        Ok(())
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

    /// `found` is everything that a reader was shown from `start` to `end`.
    pub fn check_missing(&self, start: i64, end: i64, found: &BTreeMap<i64, String>) -> Result<(), Problem> {
        let start = start.max(self.deleted_for_good());
        if start >= end {
            return Ok(());
        }
        let known = self.seen.range(start..end);
        let mut newest = BTreeMap::new();
        if self.promises.compacts {
            let data = known.clone().filter(|(_, (name, _))| !is_marker(name));
            let stays = data.filter(|(_, (name, _))| self.outcomes.fate(name) == Fate::Stays);
            newest.extend(stays.map(|(offset, (name, _))| (key(name), *offset)));
        }
        for (offset, (name, by)) in known.filter(|(offset, _)| !found.contains_key(offset)) {
            if !self.may_be_gone(*offset, name, &newest) {
                let newest = newest.get(&key(name)).filter(|_| !is_marker(name));
                return Err(Problem::Records(format!(
                    "offset {offset} held {name} ({by}); there is nothing now, from {start} to {end} \
                     (the newest of its key: {newest:?})"
                )));
            }
        }
        Ok(())
    }

    /// Whether damage may have taken a record, or compaction removed it; `newest` are the newest offsets of all keys.
    fn may_be_gone(&self, offset: i64, name: &str, newest: &BTreeMap<String, i64>) -> bool {
        if self.harm.has_hit(name) {
            return true;
        }
        let Promises { compacts, tombstones_go } = self.promises;
        if !compacts {
            return false;
        }
        if is_marker(name) {
            return tombstones_go;
        }
        match self.outcomes.fate(name) {
            Fate::Open => return false,
            Fate::Aborted => return true,
            Fate::Stays => {}
        }
        let key = key(name);
        // One that nobody was told of may have superseded it, and gone.
        let unknown =
            |tombstone: &String| !self.places.contains_key(tombstone) && crate::names::key(tombstone) == key;
        newest.get(&key).is_some_and(|newest| *newest > offset)
            || tombstones_go && (is_tombstone(name) || self.tombstones.iter().any(unknown))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn history() -> History {
        let mut history = History { log_start_asked: 10, ..History::default() };
        history.opened(1, 0, 0).unwrap();
        history.saw(1, 0, "a", "acknowledged").unwrap();
        history.saw(1, 1, "b", "acknowledged").unwrap();
        history
    }

    #[test]
    fn one_record_an_offset_and_one_offset_a_record() {
        let mut history = history();
        history.opened(2, 0, 2).unwrap();
        history.saw(2, 0, "a", "read").unwrap();
        assert_eq!(history.saw(2, 1, "c", "read").unwrap_err().kind(), "records");
        assert_eq!(history.saw(2, 2, "a", "read").unwrap_err().kind(), "records");
    }

    #[test]
    fn what_was_committed_is_found_by_later_leaders_whichever_is_known_first() {
        assert_eq!(history().opened(2, 0, 1).unwrap_err().kind(), "records");
        let mut history = history();
        history.opened(2, 0, 2).unwrap();
        assert_eq!(history.saw(1, 2, "late", "acknowledged").unwrap_err().kind(), "records");
        assert_eq!(history.saw_committed(1, 3, "status").unwrap_err().kind(), "records");
    }

    #[test]
    fn the_log_start_never_goes_back() {
        let mut history = history();
        history.saw_log_start(1, 1).unwrap();
        assert_eq!(history.opened(2, 0, 2).unwrap_err().kind(), "bounds");
        let mut history = self::history();
        history.opened(2, 0, 2).unwrap();
        assert_eq!(history.saw_log_start(1, 1).unwrap_err().kind(), "bounds");
        assert_eq!(history.saw_log_start(2, 11).unwrap_err().kind(), "bounds");
    }

    #[test]
    fn an_epoch_has_one_leader_and_at_last_everything_is_there() {
        let mut history = history();
        assert_eq!(history.opened(1, 0, 2).unwrap_err().kind(), "epoch");
        let all = BTreeMap::from([(0, "a".to_owned()), (1, "b".to_owned())]);
        history.check_all(0, &all).unwrap();
        let some = BTreeMap::from([(1, "b".to_owned())]);
        history.check_all(1, &some).unwrap();
        assert_eq!(history.check_all(0, &some).unwrap_err().kind(), "records");
    }

    /// Names of one key: a value, another value, a tombstone.
    fn of_one_key() -> (String, String, String) {
        let names: Vec<String> = (0..500).map(|n| format!("1-{n}")).collect();
        let tombstone = names.iter().find(|name| is_tombstone(name)).unwrap();
        let mut values = names.iter().filter(|name| key(name) == key(tombstone) && !is_tombstone(name));
        (values.next().unwrap().clone(), values.next().unwrap().clone(), tombstone.clone())
    }

    fn compacted(tombstones_go: bool, seen: &[&str]) -> History {
        let promises = Promises { compacts: true, tombstones_go };
        let mut history = History::new(promises, false);
        history.opened(1, 0, 0).unwrap();
        for (name, offset) in seen.iter().zip(0..) {
            history.saw(1, offset, name, "acknowledged").unwrap();
        }
        history
    }

    fn left(offsets: &[(i64, &str)]) -> BTreeMap<i64, String> {
        offsets.iter().map(|(offset, name)| (*offset, (*name).to_owned())).collect()
    }

    #[test]
    fn what_compaction_may_remove_was_superseded() {
        let (first, second, tombstone) = of_one_key();
        let history = compacted(false, &[&first, &second]);
        history.check_missing(0, 2, &left(&[(1, &second)])).unwrap();
        history.check_missing(1, 2, &left(&[(1, &second)])).unwrap();
        assert!(history.check_missing(0, 2, &left(&[(0, &first)])).is_err(), "the newest is gone");
        assert!(
            history.check_missing(0, 1, &left(&[])).is_err(),
            "what supersedes it lies behind what was read"
        );
        let history = compacted(false, &[&first, &tombstone]);
        assert!(history.check_missing(0, 2, &left(&[])).is_err(), "the tombstone was to stay");
        compacted(true, &[&first, &tombstone]).check_missing(0, 2, &left(&[])).unwrap();
        // Nobody was told of the tombstone.
        let mut history = compacted(true, &[&first]);
        assert!(history.check_missing(0, 1, &left(&[])).is_err());
        history.sends(&tombstone);
        history.check_missing(0, 1, &left(&[])).unwrap();
        let history = History { promises: Promises::default(), ..compacted(true, &[&first, &second]) };
        assert!(history.check_missing(0, 2, &left(&[(1, &second)])).is_err(), "nothing is compacted");
    }

    #[test]
    fn records_of_aborted_transactions_supersede_nothing_and_go() {
        let (first, second, _) = of_one_key();
        // The same key, in a transaction.
        let aborted = (0..500).map(|n| format!("7-{n}t1")).find(|name| key(name) == key(&first)).unwrap();
        let mut history = compacted(false, &[&first, &second, &aborted, "abort:7:1"]);
        let without = |offset: i64| {
            let mut left = left(&[(1, &second), (2, &aborted), (3, "abort:7:1")]);
            left.remove(&offset);
            left
        };
        history.check_missing(0, 4, &without(0)).unwrap();
        assert!(history.check_missing(0, 4, &without(2)).is_err(), "its transaction is open");
        history.outcomes.decide(7, 1, kaas_engine::batch::Marker::Abort);
        history.check_missing(0, 4, &without(2)).unwrap();
        assert!(history.check_missing(0, 4, &without(1)).is_err(), "an aborted record supersedes nothing");
        assert!(history.check_missing(0, 4, &without(3)).is_err(), "the marker was to stay");
        history.promises.tombstones_go = true;
        history.check_missing(0, 4, &without(3)).unwrap();
    }

    #[test]
    fn what_was_stable_stays_stable() {
        let mut history = history();
        history.saw_stable(1, Offset(2), Offset(0)).unwrap();
        assert_eq!(history.found_stable(2, 1).unwrap_err().kind(), "transaction");
        let mut history = self::history();
        history.found_stable(2, 1).unwrap();
        assert_eq!(history.saw_stable(1, Offset(2), Offset(0)).unwrap_err().kind(), "transaction");
        history.saw_stable(3, Offset(2), Offset(0)).unwrap();
    }
}
