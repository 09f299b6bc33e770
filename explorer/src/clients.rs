//! The clients of a partition: idempotent producers that send again until they are told, and what they were told.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use kaas_engine::batch::{
    BatchError, BatchHeader, BatchOptions, DecodeLimits, Producer as Stamp, SimpleRecord, check_crc,
    data_batch, decode_records,
};
use kaas_engine::types::{ProducerId, Timestamp};
use kaas_engine::{FetchedRecords, RecordsPart};

/// Most batches that a producer has under way, as Kafka's clients (and as a leader remembers of each producer).
pub const IN_FLIGHT_MAX: usize = 5;

/// A batch of a producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub producer: i64,
    pub base_sequence: i32,
    pub records: i32,
}

/// The value of a record: who sent it, and as which.
fn value(producer: i64, sequence: i32) -> String {
    format!("{producer}-{sequence}")
}

impl Batch {
    /// The values of its records.
    pub fn values(&self) -> impl Iterator<Item = String> + '_ {
        (0..self.records).map(|at| value(self.producer, self.base_sequence + at))
    }

    /// As it is sent.
    pub fn encode(&self, timestamp: Timestamp) -> Result<Bytes, BatchError> {
        let stamp = Stamp { id: ProducerId(self.producer), epoch: 0, base_sequence: self.base_sequence };
        encode(self.values(), timestamp, Some(stamp))
    }
}

fn encode(
    values: impl Iterator<Item = String>,
    base_timestamp: Timestamp,
    producer: Option<Stamp>,
) -> Result<Bytes, BatchError> {
    let records: Vec<_> = values.map(SimpleRecord::of_value).collect();
    data_batch(&records, &BatchOptions { base_timestamp, producer, ..BatchOptions::default() })
}

/// A batch of one record by nobody.
pub fn plain(value: &str, timestamp: Timestamp) -> Result<Bytes, BatchError> {
    encode(std::iter::once(value.to_owned()), timestamp, None)
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

    /// Another batch to be sent, of so many records; nothing while too many are under way.
    pub fn make(&mut self, records: i32) {
        if self.unacknowledged.len() < IN_FLIGHT_MAX {
            let batch = Batch { producer: self.id, base_sequence: self.next_sequence, records };
            self.next_sequence += records;
            self.unacknowledged.push_back(batch);
        }
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

/// What is wrong with fetched bytes.
#[derive(Debug, thiserror::Error)]
pub enum FetchProblem {
    #[error(transparent)]
    Batch(#[from] BatchError),
    #[error(transparent)]
    Read(#[from] kaas_substrate::Error),
}

/// The records of a fetch: offset and value.
pub fn decode(fetched: &FetchedRecords) -> Result<Vec<(i64, String)>, FetchProblem> {
    let mut all = Vec::with_capacity(fetched.bytes);
    for part in &fetched.parts {
        match part {
            RecordsPart::Bytes(bytes) => all.extend_from_slice(bytes),
            RecordsPart::FileRange { file, position, length } => {
                let mut bytes = vec![0; *length];
                let read = file.read_at(&mut bytes, *position)?;
                all.extend_from_slice(bytes.get(..read).unwrap_or_default());
            }
        }
    }
    let mut rest = Bytes::from(all);
    let mut records = Vec::new();
    while !rest.is_empty() {
        check_crc(&rest)?;
        let length = BatchHeader::parse(&rest)?.batch_bytes;
        for record in decode_records(&rest, &DecodeLimits::default())? {
            let record = record?;
            let value = String::from_utf8_lossy(&record.value.unwrap_or_default()).into_owned();
            records.push((record.offset.0, value));
        }
        rest = rest.slice(length.min(rest.len())..);
    }
    Ok(records)
}

/// Every producer's records must be in the log in the order of their sequence numbers, without a gap.
pub fn check_sequences(records: &BTreeMap<i64, String>) -> Result<(), String> {
    let mut last: BTreeMap<i64, i32> = BTreeMap::new();
    for (offset, value) in records {
        let Some((producer, sequence)) = value.split_once('-') else { continue };
        let (Ok(producer), Ok(sequence)) = (producer.parse(), sequence.parse()) else {
            return Err(format!("offset {offset} holds {value:?}, which nobody has sent"));
        };
        if let Some(before) = last.insert(producer, sequence)
            && before + 1 != sequence
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
        assert_eq!(sent[1].values().collect::<Vec<_>>(), ["7-2", "7-3"]);
    }

    #[test]
    fn a_gap_or_a_repetition_in_a_producers_records_is_found() {
        let log =
            |values: &[&str]| values.iter().zip(0..).map(|(value, at)| (at, (*value).to_owned())).collect();
        check_sequences(&log(&["1-5", "plain", "2-0", "1-6", "2-1"])).unwrap();
        for wrong in [&["1-5", "1-7"][..], &["1-5", "1-5"], &["1-5", "1-4"], &["1-x"]] {
            assert!(check_sequences(&log(wrong)).is_err(), "{wrong:?}");
        }
    }
}
