//! The clients of a partition: idempotent producers that send again until they are told, and what they were told.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use kaas_engine::batch::{BatchError, Producer as Stamp};
use kaas_engine::types::{ProducerId, Timestamp};

use crate::names::Sender;
use crate::records::{Form, encode};

/// Most batches that a producer has under way, as Kafka's clients (and as a leader remembers of each producer).
pub const IN_FLIGHT_MAX: usize = 5;

/// A batch of a producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub producer: i64,
    pub base_sequence: i32,
    pub records: i32,
    /// Which of the producer's transactions it belongs to, if any.
    pub transaction: Option<u32>,
}

impl Batch {
    /// The names of its records.
    pub fn names(&self) -> impl Iterator<Item = String> + '_ {
        let Self { producer, transaction, .. } = *self;
        let sequences = (0..self.records).map(|at| self.base_sequence + at);
        sequences.map(move |sequence| Sender { producer, sequence, transaction }.name())
    }

    /// As it is sent.
    pub fn encode(&self, form: Form, timestamp: Timestamp) -> Result<Bytes, BatchError> {
        let stamp = Stamp { id: ProducerId(self.producer), epoch: 0, base_sequence: self.base_sequence };
        encode(self.names(), form, timestamp, Some(stamp), self.transaction.is_some())
    }
}

/// An idempotent producer.
#[derive(Debug, Default)]
pub struct Producer {
    id: i64,
    next_sequence: i32,
    /// Sent, perhaps, and not known to be appended; in order.
    unacknowledged: VecDeque<Batch>,
    /// The last ones that were acknowledged, and where; in order.
    acknowledged: VecDeque<(Batch, i64)>,
}

impl Producer {
    pub fn new(id: i64) -> Self {
        Self { id, ..Self::default() }
    }

    pub fn id(&self) -> i64 {
        self.id
    }

    /// Another batch to be sent, of so many records; nothing while too many are under way.
    pub fn make(&mut self, records: i32) {
        self.make_in(records, None);
    }

    /// The same, in a transaction; whether there is another.
    pub fn make_in(&mut self, records: i32, transaction: Option<u32>) -> bool {
        let has_room = self.unacknowledged.len() < IN_FLIGHT_MAX;
        if has_room {
            let base_sequence = self.next_sequence;
            self.unacknowledged.push_back(Batch { producer: self.id, base_sequence, records, transaction });
            self.next_sequence += records;
        }
        has_room
    }

    /// What is to be sent, again perhaps; in order.
    pub fn to_send(&self) -> Vec<Batch> {
        self.unacknowledged.iter().cloned().collect()
    }

    /// A batch was acknowledged. One that was sent before it and was not is known to be appended, too: a leader takes them
    /// in order only.
    pub fn acknowledged(&mut self, batch: &Batch, base_offset: i64) {
        let Some(at) = self.unacknowledged.iter().position(|other| other == batch) else { return };
        self.unacknowledged.drain(..=at);
        self.acknowledged.push_back((batch.clone(), base_offset));
        while self.acknowledged.len() > IN_FLIGHT_MAX {
            self.acknowledged.pop_front();
        }
    }

    /// Acknowledged batches that a leader must still recognise: at most [`IN_FLIGHT_MAX`] batches were sent since.
    pub fn recognisable(&self) -> Vec<(Batch, i64)> {
        let keep = IN_FLIGHT_MAX.saturating_sub(self.unacknowledged.len());
        let skip = self.acknowledged.len().saturating_sub(keep);
        self.acknowledged.iter().skip(skip).cloned().collect()
    }
}

/// Every producer's records must be in the log in the order of their sequence numbers; without a gap, unless some were
/// compacted away.
pub fn check_sequences(records: &BTreeMap<i64, String>, may_have_gaps: bool) -> Result<(), String> {
    let mut last: BTreeMap<i64, i32> = BTreeMap::new();
    for (offset, name) in records {
        let Some(Sender { producer, sequence, .. }) = Sender::of(name) else {
            if name.contains('-') {
                return Err(format!("offset {offset} holds {name:?}, which nobody has sent"));
            }
            continue;
        };
        if let Some(before) = last.insert(producer, sequence)
            && (sequence <= before || (before + 1 != sequence && !may_have_gaps))
        {
            return Err(format!("producer {producer}: {sequence} follows {before} at offset {offset}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_producer_sends_again_what_it_does_not_know_to_be_appended() {
        let mut producer = Producer::new(7);
        (0..9).for_each(|_| producer.make(2));
        let sent = producer.to_send();
        assert_eq!(sent.iter().map(|batch| batch.base_sequence).collect::<Vec<_>>(), [0, 2, 4, 6, 8]);
        producer.acknowledged(&sent[0], 100);
        producer.acknowledged(&sent[2], 104);
        assert_eq!(producer.to_send(), sent[3..]);
        producer.acknowledged(&sent[1], 102);
        assert_eq!(producer.recognisable(), [(sent[0].clone(), 100), (sent[2].clone(), 104)]);
        assert_eq!(sent[1].names().collect::<Vec<_>>(), ["7-2", "7-3"]);
    }

    #[test]
    fn a_gap_or_a_repetition_in_a_producers_records_is_found() {
        let log =
            |values: &[&str]| values.iter().zip(0..).map(|(value, at)| (at, (*value).to_owned())).collect();
        check_sequences(&log(&["1-5", "plain", "2-0", "1-6t1", "2-1", "abort:1:1"]), false).unwrap();
        check_sequences(&log(&["1-5", "1-7"]), true).unwrap();
        for wrong in [&["1-5", "1-7"][..], &["1-5", "1-5"], &["1-5", "1-4"], &["1-x"]] {
            assert!(check_sequences(&log(wrong), false).is_err(), "{wrong:?}");
        }
        for wrong in [&["1-5", "1-5"][..], &["1-5", "1-4"], &["1-x"]] {
            assert!(check_sequences(&log(wrong), true).is_err(), "{wrong:?}");
        }
    }
}
