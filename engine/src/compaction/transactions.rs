//! Which batches belong to aborted transactions, and which markers nothing is left of, as a round walks through the log.
//!
//! A walk may begin anywhere, with the aborted transactions that end behind its beginning: one whose marker it does not
//! meet would seem to go on for ever.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::batch::{BatchHeader, EndMarker, Marker};
use crate::index::AbortedTransaction;
use crate::types::{Offset, ProducerId};

/// What becomes of a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MarkerUse {
    /// Batches of its transaction were met: it is needed. An aborted transaction goes into the transaction index.
    Needed(Option<AbortedTransaction>),
    /// Its transaction has nothing left.
    Unneeded,
}

/// The transactions at one place of the log.
#[derive(Debug, Default)]
pub(super) struct Transactions {
    /// Aborted ones that are still to begin, by their first offset.
    aborted: VecDeque<AbortedTransaction>,
    /// Aborted ones that have begun, and whether a batch of theirs was met.
    in_abort: HashMap<ProducerId, (AbortedTransaction, bool)>,
    /// Producers of which a batch was met whose transaction is not aborted.
    committing: HashSet<ProducerId>,
}

impl Transactions {
    /// `aborted` are all aborted transactions whose marker lies behind the beginning of the walk, in any order.
    pub(super) fn new(mut aborted: Vec<AbortedTransaction>) -> Self {
        aborted.sort_by_key(|transaction| transaction.first_offset);
        Self { aborted: aborted.into(), ..Self::default() }
    }

    /// A data batch; true if its transaction is aborted.
    pub(super) fn data(&mut self, header: &BatchHeader) -> bool {
        self.begin_up_to(header.last_offset());
        let Some(id) = header.producer_id.filter(|_| header.is_transactional()) else { return false };
        match self.in_abort.get_mut(&id) {
            Some((_, met)) => {
                *met = true;
                true
            }
            None => {
                self.committing.insert(id);
                false
            }
        }
    }

    /// A control batch and what is in it, if that ends a transaction.
    pub(super) fn control(&mut self, header: &BatchHeader, marker: Option<EndMarker>) -> MarkerUse {
        self.begin_up_to(header.last_offset());
        if header.record_count == 0 {
            // A round before this one has emptied it.
            return MarkerUse::Unneeded;
        }
        let (Some(id), Some(end)) = (header.producer_id, marker) else {
            // No kind of control record that is known.
            return MarkerUse::Needed(None);
        };
        match end.marker {
            Marker::Abort => match self.in_abort.remove(&id) {
                Some((aborted, true)) => MarkerUse::Needed(Some(aborted)),
                _ => MarkerUse::Unneeded,
            },
            Marker::Commit if self.committing.remove(&id) => MarkerUse::Needed(None),
            Marker::Commit => MarkerUse::Unneeded,
        }
    }

    fn begin_up_to(&mut self, offset: Offset) {
        while let Some(next) = self.aborted.pop_front_if(|next| next.first_offset <= offset) {
            self.in_abort.entry(next.producer_id).or_insert((next, false));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Attributes, Compression};

    fn header(id: i64, offset: i64, control: bool) -> BatchHeader {
        BatchHeader {
            attributes: Attributes::new(Compression::None, true, control),
            producer_id: Some(ProducerId(id)),
            producer_epoch: 0,
            base_sequence: 0,
            ..BatchHeader::plain(offset, 1)
        }
    }

    fn aborted(id: i64, first: i64, last: i64) -> AbortedTransaction {
        AbortedTransaction {
            producer_id: ProducerId(id),
            first_offset: Offset(first),
            last_offset: Offset(last),
            last_stable_offset: Offset(last + 1),
        }
    }

    #[test]
    fn interleaved_transactions_are_told_apart() {
        let (first, second) = (aborted(1, 0, 4), aborted(1, 7, 9));
        let mut transactions = Transactions::new(vec![second, first, aborted(3, 20, 30)]);
        let end = |marker| Some(EndMarker { marker, coordinator_epoch: 0 });
        assert!(transactions.data(&header(1, 0, false)));
        assert!(!transactions.data(&header(2, 1, false)));
        assert!(transactions.data(&header(1, 2, false)));
        let needed = transactions.control(&header(2, 3, true), end(Marker::Commit));
        assert_eq!(needed, MarkerUse::Needed(None));
        let needed = transactions.control(&header(1, 4, true), end(Marker::Abort));
        assert_eq!(needed, MarkerUse::Needed(Some(first)));
        // A committed one of the same producer in between, whose batches are gone.
        let unneeded = transactions.control(&header(1, 6, true), end(Marker::Commit));
        assert_eq!(unneeded, MarkerUse::Unneeded);
        // Nothing is left of the second aborted one.
        assert_eq!(transactions.control(&header(1, 9, true), end(Marker::Abort)), MarkerUse::Unneeded);
        assert!(!transactions.data(&header(1, 10, false)));
        assert_eq!(transactions.control(&header(1, 11, true), None), MarkerUse::Needed(None));
        let emptied = BatchHeader { record_count: 0, ..header(1, 12, true) };
        assert_eq!(transactions.control(&emptied, None), MarkerUse::Unneeded);
        assert!(!transactions.data(&BatchHeader { producer_id: None, ..header(3, 25, false) }));
    }
}
