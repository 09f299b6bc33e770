//! Transactional producers, and what became of their transactions.

use std::collections::BTreeMap;

use kaas_engine::batch::{EndMarker, Marker};
use kaas_engine::types::Offset;

use crate::clients::Producer;
use crate::names::Sender;
use crate::problem::Problem;

/// A transactional producer and its coordinator: one transaction after the other, each of which is ended once all its batches are
/// acknowledged, by markers that are sent until one is.
#[derive(Debug)]
pub struct Transactional {
    pub producer: Producer,
    /// The transaction under way.
    number: u32,
    is_empty: bool,
    /// How it ends, once that is decided.
    ending: Option<Marker>,
    /// Markers sent so far, of all transactions: the coordinator's epoch.
    attempts: i32,
}

impl Transactional {
    pub fn new(id: i64) -> Self {
        let producer = Producer::new(id);
        Self { producer, number: 1, is_empty: true, ending: None, attempts: 0 }
    }

    /// Another batch of the transaction under way, unless that is ending.
    pub fn make(&mut self, records: i32) {
        if self.ending.is_none() {
            self.is_empty &= !self.producer.make_in(records, Some(self.number));
        }
    }

    /// Ends the transaction under way, if there is one whose batches are all acknowledged: its number, and the marker to be
    /// sent now. How it ends is decided once, by `choose`.
    pub fn end(&mut self, choose: impl FnOnce() -> Marker) -> Option<(u32, EndMarker)> {
        if self.is_empty || !self.producer.to_send().is_empty() {
            return None;
        }
        let marker = *self.ending.get_or_insert_with(choose);
        self.attempts += 1;
        Some((self.number, EndMarker { marker, coordinator_epoch: self.attempts }))
    }

    /// A marker of a transaction was acknowledged.
    pub fn ended(&mut self, number: u32) {
        if number == self.number && self.ending.take().is_some() {
            self.number += 1;
            self.is_empty = true;
        }
    }
}

/// What is to be seen of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It belongs to no transaction, or to one that is committed.
    Stays,
    Aborted,
    /// Nobody has asked for its transaction to end.
    Open,
}

/// What became of the transactions of a partition.
#[derive(Debug, Default)]
pub struct Outcomes {
    decided: BTreeMap<(i64, u32), Marker>,
    /// The first offset that is known of those that are not decided.
    open: BTreeMap<(i64, u32), i64>,
}

impl Outcomes {
    /// A marker of the transaction is about to be sent for the first time, or again.
    pub fn decide(&mut self, producer: i64, transaction: u32, marker: Marker) {
        self.decided.insert((producer, transaction), marker);
        self.open.remove(&(producer, transaction));
    }

    /// A record stands at an offset.
    pub fn saw(&mut self, offset: i64, name: &str) {
        let Some(Sender { producer, transaction: Some(number), .. }) = Sender::of(name) else { return };
        if !self.decided.contains_key(&(producer, number)) {
            let first = self.open.entry((producer, number)).or_insert(offset);
            *first = offset.min(*first);
        }
    }

    /// What is to be seen of the record of that name.
    pub fn fate(&self, name: &str) -> Fate {
        let Some(Sender { producer, transaction: Some(number), .. }) = Sender::of(name) else {
            return Fate::Stays;
        };
        match self.decided.get(&(producer, number)) {
            Some(Marker::Commit) => Fate::Stays,
            Some(Marker::Abort) => Fate::Aborted,
            None => Fate::Open,
        }
    }

    /// Nothing at or behind the first record of an open transaction is stable, unless the log begins behind it.
    pub fn check_stable(&self, last_stable: Offset, log_start: Offset) -> Result<(), Problem> {
        let passed = |first: &i64| *first < last_stable.0 && log_start < last_stable;
        match self.open.iter().find(|(_, first)| passed(first)) {
            Some(((producer, number), first)) => Err(Problem::Transaction(format!(
                "the last stable offset is {last_stable}, though transaction {number} of producer {producer} \
                 has begun at offset {first} and nobody has ended it"
            ))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_ends_once_all_of_it_is_acknowledged() {
        let mut transactional = Transactional::new(7);
        assert_eq!(transactional.end(|| Marker::Commit), None, "there is none");
        transactional.make(2);
        assert_eq!(transactional.end(|| Marker::Commit), None, "its batch is under way");
        let batch = transactional.producer.to_send().remove(0);
        assert_eq!(batch.names().collect::<Vec<_>>(), ["7-0t1", "7-1t1"]);
        transactional.producer.acknowledged(&batch, 100);
        let end = |marker, coordinator_epoch| Some((1, EndMarker { marker, coordinator_epoch }));
        assert_eq!(transactional.end(|| Marker::Abort), end(Marker::Abort, 1));
        transactional.make(1);
        assert!(transactional.producer.to_send().is_empty(), "it is ending");
        assert_eq!(transactional.end(|| Marker::Commit), end(Marker::Abort, 2), "decided once");
        transactional.ended(1);
        transactional.ended(1);
        transactional.make(1);
        assert_eq!(transactional.producer.to_send()[0].names().next().unwrap(), "7-2t2");
    }

    #[test]
    fn nothing_behind_an_open_transaction_is_stable() {
        let mut outcomes = Outcomes::default();
        outcomes.saw(5, "7-1t1");
        outcomes.saw(4, "7-0t1");
        outcomes.saw(3, "1-0");
        assert_eq!(outcomes.fate("7-1t1"), Fate::Open);
        outcomes.check_stable(Offset(4), Offset(0)).unwrap();
        outcomes.check_stable(Offset(6), Offset(6)).unwrap();
        assert_eq!(outcomes.check_stable(Offset(5), Offset(0)).unwrap_err().kind(), "transaction");
        outcomes.decide(7, 1, Marker::Abort);
        outcomes.check_stable(Offset(9), Offset(0)).unwrap();
        assert_eq!(outcomes.fate("7-1t1"), Fate::Aborted);
        assert_eq!(outcomes.fate("1-0"), Fate::Stays);
    }
}
