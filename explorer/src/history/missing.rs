//! Records that are known and not there: what damage may have taken, and compaction removed.

use std::collections::BTreeMap;

use super::History;
use crate::names::{is_marker, is_tombstone, key};
use crate::problem::Problem;
use crate::transactions::Fate;

/// What compaction may do to a partition.
#[derive(Debug, Clone, Copy, Default)]
pub struct Promises {
    /// Superseded records go, and those of aborted transactions.
    pub compacts: bool,
    /// Tombstones, and markers with nothing left of their transaction, go when they have been compacted twice. Else they stay
    /// for longer than a run takes.
    pub tombstones_go: bool,
}

/// Records of a batch that clients send at most.
const BATCH_RECORDS_MAX: i64 = 3;

impl History {
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
    pub fn check_lost(&mut self, lost: &[(i64, i64)]) -> Result<(), Problem> {
        let start = self.told_log_start().max(self.deleted_for_good());
        for (from, to) in lost {
            let from = (*from).max(start);
            let known = self.seen.range(from..(*to).max(from));
            let mut spared = known.filter(|(_, (name, _))| !self.harm.has_hit(name));
            let Some((offset, (name, by))) = spared.next() else { continue };
            // The last batch, alone behind damage: nothing but itself says which offset it had, and that may have been hit.
            let is_batch = spared.next_back().map_or(0, |(last, _)| last - offset) < BATCH_RECORDS_MAX;
            let is_alone =
                is_batch && self.harm.has_hit_at(offset - 1) && self.seen.range(*to..).next().is_none();
            if !is_alone {
                return Err(Problem::Repair(format!(
                    "offsets {from} to {to} are said to be lost; {name} at {offset} ({by}) was not damaged"
                )));
            }
            let alone: Vec<_> = self.seen.range(*offset..*to).map(|(_, (name, _))| name.clone()).collect();
            alone.into_iter().for_each(|name| self.harm.hit(name));
        }
        Ok(())
    }

    /// Whether somebody has seen a record at every one of these offsets: from, to.
    pub fn has_seen_all(&self, offsets: &[(i64, i64)]) -> bool {
        let count = |from: i64, to: i64| self.seen.range(from..to.max(from)).count();
        offsets.iter().all(|(from, to)| i64::try_from(count(*from, *to)) == Ok(to - from))
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
}
