//! What everybody was told of a partition, and what must follow from it.
//!
//! The rules, over all leaders of all epochs, deposed ones included:
//!
//! - an offset holds one record, for ever, and a record stands at one offset;
//! - what a leader of epoch e acknowledged or served lies below the end of what every leader of a higher epoch found;
//! - the log start that a leader of epoch e told is not below any that a leader of a higher epoch begins with.

use std::collections::BTreeMap;

use crate::problem::Problem;

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
    /// The highest log start that anybody asked for.
    pub log_start_asked: i64,
    /// Retention may raise it further.
    pub retention: bool,
    /// For the statistics.
    pub acknowledged: u64,
    pub read: u64,
}

impl History {
    /// A record was acknowledged by, or read from, a leader.
    pub fn saw(&mut self, epoch: u32, offset: i64, value: &str, how: &str) -> Result<(), Problem> {
        let told = || format!("{how} at epoch {epoch}");
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
        self.saw_committed(epoch, offset + 1, how)
    }

    /// A leader has said that everything below `end` is committed.
    pub fn saw_committed(&mut self, epoch: u32, end: i64, how: &str) -> Result<(), Problem> {
        let known = self.committed.entry(epoch).or_insert(0);
        *known = end.max(*known);
        match self.found.range(epoch + 1..).find(|(_, (_, found))| *found < end) {
            Some((later, (_, found))) => Err(Problem::Records(format!(
                "everything below offset {end} was committed ({how} at epoch {epoch}); the leader of epoch {later} \
                 has found the log to end at {found}"
            ))),
            None => Ok(()),
        }
    }

    /// A leader has said that the log starts at `start`.
    pub fn saw_log_start(&mut self, epoch: u32, start: i64) -> Result<(), Problem> {
        let known = self.log_starts.entry(epoch).or_insert(0);
        *known = start.max(*known);
        if start > self.log_start_asked && !self.retention {
            let asked = self.log_start_asked;
            return Err(Problem::Bounds(format!(
                "the log starts at {start} at epoch {epoch}; at most {asked} was asked for"
            )));
        }
        match self.found.range(epoch + 1..).find(|(_, (found, _))| *found < start) {
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
        let lost = self.committed.range(..epoch).find(|(_, committed)| **committed > end);
        if let Some((earlier, committed)) = lost {
            return Err(Problem::Records(format!(
                "everything below offset {committed} was committed at epoch {earlier}; the leader of epoch {epoch} \
                 finds the log to end at {end}"
            )));
        }
        let back = self.log_starts.range(..epoch).find(|(_, told)| **told > start);
        if let Some((earlier, told)) = back {
            return Err(Problem::Bounds(format!(
                "the log started at {told} at epoch {earlier}, and at epoch {epoch} it starts at {start}"
            )));
        }
        self.saw_log_start(epoch, start)
    }

    /// The last word: `records` is the whole log, which starts at `start`.
    pub fn check_all(&self, start: i64, records: &BTreeMap<i64, String>) -> Result<(), Problem> {
        for (offset, (value, by)) in self.seen.range(start..) {
            let found = records.get(offset);
            if found != Some(value) {
                return Err(Problem::Records(format!(
                    "offset {offset} held {value} ({by}); at last {found:?}"
                )));
            }
        }
        Ok(())
    }

    /// How many leaders there were.
    pub fn leaders(&self) -> usize {
        self.found.len()
    }
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
}
