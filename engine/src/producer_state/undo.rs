//! Taking back appends that could not be written (no space), the latest first.

use super::{BatchMetadata, ProducerEntry, ProducerStates};
use crate::types::{Offset, ProducerId, Timestamp};

/// What an append has changed. Dropped once the batch is durable.
#[derive(Debug)]
pub struct Undo {
    pub(super) previous_end: Offset,
    pub(super) change: Change,
}

#[derive(Debug)]
pub(super) enum Change {
    /// No producer id.
    Nothing,
    /// The usual case, without an allocation: one more batch of the same epoch.
    Pushed {
        id: ProducerId,
        evicted: Option<BatchMetadata>,
        last_timestamp: Timestamp,
        began: Option<Offset>,
    },
    /// A new producer, a new epoch, or a marker.
    Replaced {
        id: ProducerId,
        previous: Option<Box<ProducerEntry>>,
        /// First offset of the transaction that this append began.
        began: Option<Offset>,
        /// First offset of the transaction that this append ended.
        ended: Option<Offset>,
    },
}

impl ProducerStates {
    /// Takes back one append. Tokens must come in the reverse order of their appends, and none may be left out.
    pub fn undo(&mut self, undo: Undo) {
        self.end_offset = undo.previous_end;
        drop(self.staged_markers.split_off(&undo.previous_end));
        match undo.change {
            Change::Nothing => {}
            Change::Pushed { id, evicted, last_timestamp, began } => {
                // It may have expired in the meantime: then there is nothing to restore.
                if let Some(entry) = self.producers.get_mut(&id) {
                    entry.batches.unpush(evicted);
                    entry.last_timestamp = last_timestamp;
                    if began.is_some() {
                        entry.transaction_first_offset = None;
                    }
                }
                self.close(began);
            }
            Change::Replaced { id, previous, began, ended } => {
                match previous {
                    Some(previous) => self.producers.insert(id, *previous),
                    None => self.producers.remove(&id),
                };
                self.close(began);
                if let Some(first_offset) = ended {
                    self.ended.remove(&first_offset);
                    self.open.insert(first_offset, id);
                }
            }
        }
    }

    fn close(&mut self, began: Option<Offset>) {
        if let Some(first_offset) = began {
            self.open.remove(&first_offset);
        }
    }
}
