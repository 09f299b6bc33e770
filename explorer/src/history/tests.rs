//! Each rule holds, and is missed where it is broken.

use super::*;
use crate::names::key;

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
    assert!(history.check_missing(0, 1, &left(&[])).is_err(), "what supersedes it lies behind what was read");
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
