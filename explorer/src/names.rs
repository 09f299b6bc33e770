//! What records are called. A name says who sent a record, and as which; in a topic with keys it also decides the record's
//! key, and whether it is a tombstone, so that a record which is read can be compared with what was sent under its name.

use kaas_engine::batch::{EndMarker, Marker};
use kaas_engine::types::ProducerId;

/// Keys that there are. So few that most records are superseded soon.
const KEYS: u64 = 6;

/// One record in so many is a tombstone.
const TOMBSTONE_ONE_IN: u64 = 4;

/// Who sent a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sender {
    pub producer: i64,
    pub sequence: i32,
    /// Which of the producer's transactions, if it has any.
    pub transaction: Option<u32>,
}

impl Sender {
    /// The record's name.
    pub fn name(&self) -> String {
        let Self { producer, sequence, transaction } = self;
        match transaction {
            Some(transaction) => format!("{producer}-{sequence}t{transaction}"),
            None => format!("{producer}-{sequence}"),
        }
    }

    /// Who sent the record of that name. `None`: nobody that numbers its records, or it is a marker.
    pub fn of(name: &str) -> Option<Self> {
        let (producer, rest) = name.split_once('-')?;
        let (sequence, transaction) = match rest.split_once('t') {
            Some((sequence, transaction)) => (sequence, Some(transaction.parse().ok()?)),
            None => (rest, None),
        };
        Some(Self { producer: producer.parse().ok()?, sequence: sequence.parse().ok()?, transaction })
    }
}

/// The name of a marker. Every attempt to end a transaction has a coordinator epoch of its own.
pub fn of_marker(producer: ProducerId, end: EndMarker) -> String {
    let kind = match end.marker {
        Marker::Abort => "abort",
        Marker::Commit => "commit",
    };
    format!("{kind}:{producer}:{}", end.coordinator_epoch)
}

/// Whether that is the name of a marker.
pub fn is_marker(name: &str) -> bool {
    name.contains(':')
}

/// Whether that is the name of a marker that aborts a transaction of the producer.
pub fn aborts(name: &str, producer: ProducerId) -> bool {
    name.starts_with(&format!("abort:{producer}:"))
}

/// FNV-1a, and its bits spread over the word.
fn hash(name: &str) -> u64 {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
    let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325, fold);
    hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24
}

/// The key of the record of that name.
pub fn key(name: &str) -> String {
    format!("k{}", hash(name) % KEYS)
}

/// Whether the record of that name deletes its key.
pub fn is_tombstone(name: &str) -> bool {
    (hash(name) >> 20).is_multiple_of(TOMBSTONE_ONE_IN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_who_sent_the_record() {
        for sender in [
            Sender { producer: 7, sequence: 12, transaction: None },
            Sender { producer: 11, sequence: 0, transaction: Some(3) },
        ] {
            assert_eq!(Sender::of(&sender.name()), Some(sender));
        }
        let end = EndMarker { marker: Marker::Abort, coordinator_epoch: 4 };
        let marker = of_marker(ProducerId(7), end);
        for name in ["plain17", marker.as_str(), "7-x", "7-1tx"] {
            assert_eq!(Sender::of(name), None, "{name}");
        }
        assert!(is_marker(&marker) && !is_marker("7-1t2"));
        assert!(aborts(&marker, ProducerId(7)) && !aborts(&marker, ProducerId(70)));
    }

    #[test]
    fn there_are_some_keys_and_some_tombstones() {
        let names: Vec<_> =
            (0..200).map(|sequence| Sender { producer: 1, sequence, transaction: None }.name()).collect();
        let keys: std::collections::BTreeSet<_> = names.iter().map(|name| key(name)).collect();
        assert_eq!(keys.len() as u64, KEYS);
        let tombstones = names.iter().filter(|name| is_tombstone(name)).count();
        assert!((20..80).contains(&tombstones), "{tombstones}");
    }
}
