//! What the batches of a log say about producers and transactions, beside what the leader says.

use std::collections::BTreeMap;

use kaas_engine::batch::Marker;
use kaas_engine::index::AbortedTransaction;
use kaas_engine::producer_state::ProducerStates;
use kaas_engine::types::{Offset, ProducerId};

use crate::history::History;
use crate::names::aborts;
use crate::records::Fetched;

/// Takes the batches of a log in, one after the other.
#[derive(Debug, Default)]
pub struct Replay {
    producers: ProducerStates,
    /// Where the transactions that are open begin.
    open: BTreeMap<ProducerId, Offset>,
    /// Aborted transactions: producer, first offset, offset of the marker.
    aborted: Vec<(ProducerId, Offset, Offset)>,
}

impl Replay {
    pub fn batch(&mut self, batch: &Fetched) {
        let Fetched { header, marker, .. } = batch;
        if !header.is_control() || marker.is_some() {
            self.producers.replay(header, *marker);
        }
        let Some(id) = header.producer_id.filter(|_| header.is_transactional()) else { return };
        match marker {
            None if header.is_control() => {}
            None => {
                self.open.entry(id).or_insert(header.base_offset);
            }
            Some(end) => {
                if let Some(first) = self.open.remove(&id).filter(|_| end.marker == Marker::Abort) {
                    self.aborted.push((id, first, header.base_offset));
                }
            }
        }
    }

    /// Compares with what a leader knows of the producers, whose log starts at `log_start`: their last batches and open
    /// transactions. The batches before the last may be compacted away. Only of producers that `is_whole` says it of.
    pub fn check_producers(
        &self,
        states: &ProducerStates,
        log_start: Offset,
        is_whole: impl Fn(i64) -> bool,
    ) -> Result<(), String> {
        for (id, entry) in states.producers().filter(|(id, _)| is_whole(id.0)) {
            let replayed = self.producers.producer(id);
            let Some(last) = entry.batches.last().filter(|last| last.last_offset >= log_start) else {
                continue;
            };
            let same = replayed.is_some_and(|replayed| {
                let opens = |offset: Option<Offset>| offset.filter(|offset| *offset >= log_start);
                replayed.epoch == entry.epoch
                    && replayed.batches.last() == Some(last)
                    && (opens(replayed.transaction_first_offset) == opens(entry.transaction_first_offset)
                        || entry.transaction_first_offset.is_some_and(|offset| offset < log_start))
            });
            if !same {
                return Err(format!("of producer {id} the leader knows {entry:?}, the log {replayed:?}"));
            }
        }
        for (id, replayed) in self.producers.producers().filter(|(id, _)| is_whole(id.0)) {
            if states.producer(id).is_none() {
                return Err(format!("of producer {id} the leader knows nothing, the log {replayed:?}"));
            }
        }
        Ok(())
    }

    /// Compares with the aborted transactions that consumers of committed records were told of, which read everything from
    /// `log_start` to `last_stable`.
    pub fn check_aborted(
        &self,
        told: &[AbortedTransaction],
        history: &History,
        log_start: Offset,
        last_stable: Offset,
    ) -> Result<(), String> {
        let is_told = |(id, first, last): &(ProducerId, Offset, Offset)| {
            told.iter().any(|told| {
                // Of the first batches nothing may be left.
                let same_first = told.first_offset == *first
                    || told.first_offset < *first
                        && (told.first_offset < log_start || history.promises().compacts);
                told.producer_id == *id && told.last_offset == *last && same_first
            })
        };
        // What is not read is not told of: nothing at all, where an open transaction began before the log does.
        let is_read = log_start < last_stable;
        let stable = self.aborted.iter().filter(|(_, first, _)| is_read && *first < last_stable);
        if let Some(missing) = stable.clone().find(|aborted| !is_told(aborted)) {
            return Err(format!("{missing:?} was aborted, which consumers are not told: {told:?}"));
        }
        let is_true = |told: &&AbortedTransaction| {
            let marker = history.name_at(told.last_offset.0);
            marker.is_none_or(|name| aborts(name, told.producer_id))
                && (history.promises().compacts
                    || told.first_offset < log_start
                    || stable.clone().any(|(id, first, last)| {
                        (*id, *first, *last) == (told.producer_id, told.first_offset, told.last_offset)
                    }))
        };
        match told.iter().find(|told| !is_true(told)) {
            Some(wrong) => Err(format!("consumers are told that {wrong:?} was aborted, which it was not")),
            None => Ok(()),
        }
    }
}
