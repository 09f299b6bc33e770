//! The transaction index of a segment: the aborted transactions whose marker lies in it (KIP-98).
//!
//! Kafka's layout, 34 bytes an entry, big endian: version i16 (0), producer id i64, first offset i64, last offset
//! i64 (the marker's), last stable offset i64 (once the marker was in). Ordered by last offset. A segment without
//! aborted transactions has no such file.

use super::error::{IndexError, Prefix};
use super::packed::{part, put, read};
use crate::producer_state::CompletedTransaction;
use crate::types::{Offset, ProducerId};

const KIND: &str = "transaction";
const ENTRY_BYTES: usize = 34;
const VERSION: i16 = 0;

/// An aborted transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbortedTransaction {
    pub producer_id: ProducerId,
    /// Offset of its first record.
    pub first_offset: Offset,
    /// Offset of its marker.
    pub last_offset: Offset,
    /// The last stable offset once the marker was in.
    pub last_stable_offset: Offset,
}

impl From<&CompletedTransaction> for AbortedTransaction {
    fn from(completed: &CompletedTransaction) -> Self {
        Self {
            producer_id: completed.producer_id,
            first_offset: completed.first_offset,
            last_offset: completed.last_offset,
            last_stable_offset: completed.last_stable_offset,
        }
    }
}

/// The transaction index of one segment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TxnIndex {
    entries: Vec<[u8; ENTRY_BYTES]>,
}

impl TxnIndex {
    /// Bytes of an entry in the file.
    pub const ENTRY_BYTES: usize = ENTRY_BYTES;

    /// No aborted transactions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the index file of the segment that begins at `base_offset` in whole.
    ///
    /// # Errors
    ///
    /// Disorder, an impossible range, an unknown version, or an entry that is not all there.
    pub fn from_bytes(base_offset: Offset, bytes: &[u8]) -> Result<Self, IndexError> {
        let Prefix { index, damage } = Self::valid_prefix(base_offset, bytes);
        damage.map_or(Ok(index), Err)
    }

    /// Reads an index file up to the first thing that is wrong with it.
    pub fn valid_prefix(base_offset: Offset, bytes: &[u8]) -> Prefix<Self> {
        let Prefix { index: entries, damage } = read(KIND, bytes, |previous, entry, number| {
            let found = i16::from_be_bytes(part(entry, 0));
            if found != VERSION {
                return Err(IndexError::Version { entry: number, found, supported: VERSION });
            }
            let aborted = resolve(entry);
            let impossible = aborted.producer_id.0 < 0
                || aborted.first_offset.0 < 0
                || aborted.first_offset >= aborted.last_offset
                || aborted.last_offset < base_offset;
            if impossible {
                return Err(IndexError::Impossible { kind: KIND, entry: number });
            }
            let follows =
                previous.map(resolve).is_none_or(|previous| previous.last_offset < aborted.last_offset);
            if follows { Ok(()) } else { Err(IndexError::Disorder { kind: KIND, entry: number }) }
        });
        Prefix { index: Self { entries }, damage }
    }

    /// The file's contents.
    pub fn as_bytes(&self) -> &[u8] {
        self.entries.as_flattened()
    }

    /// The file's contents from entry number `entry` on, to be written at byte `entry * 34`.
    pub fn bytes_from(&self, entry: usize) -> &[u8] {
        self.entries.get(entry..).unwrap_or_default().as_flattened()
    }

    /// Number of aborted transactions.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without aborted transactions.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The aborted transactions by the offset of their marker.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = AbortedTransaction> + ExactSizeIterator {
        self.entries.iter().map(resolve)
    }

    /// Adds an aborted transaction.
    ///
    /// # Errors
    ///
    /// [`IndexError::Disorder`] if its marker does not follow the last one's.
    pub fn append(&mut self, aborted: &AbortedTransaction) -> Result<(), IndexError> {
        let last = self.entries.last().map(resolve);
        if last.is_some_and(|last| last.last_offset >= aborted.last_offset) {
            return Err(IndexError::Disorder { kind: KIND, entry: self.entries.len() });
        }
        let mut entry = [0; ENTRY_BYTES];
        put(&mut entry, 0, VERSION.to_be_bytes());
        put(&mut entry, 2, aborted.producer_id.0.to_be_bytes());
        put(&mut entry, 10, aborted.first_offset.0.to_be_bytes());
        put(&mut entry, 18, aborted.last_offset.0.to_be_bytes());
        put(&mut entry, 26, aborted.last_stable_offset.0.to_be_bytes());
        self.entries.push(entry);
        Ok(())
    }

    /// Adds to `found` the aborted transactions that a `read_committed` fetch of `[from, up_to)` has to know.
    ///
    /// Returns true if no later segment can have more of them; until then the caller goes on with the next one.
    pub fn collect(&self, from: Offset, up_to: Offset, found: &mut Vec<AbortedTransaction>) -> bool {
        // Ordered by last offset: what ended before `from` is a prefix.
        let first = self.entries.partition_point(|entry| resolve(entry).last_offset < from);
        for aborted in self.entries.iter().skip(first).map(resolve) {
            if aborted.first_offset < up_to {
                found.push(aborted);
            }
            if aborted.last_stable_offset >= up_to {
                return true;
            }
        }
        false
    }

    /// Drops the transactions whose marker lies at or behind `offset`.
    pub fn truncate_to_offset(&mut self, offset: Offset) {
        let keep = self.entries.partition_point(|entry| resolve(entry).last_offset < offset);
        self.entries.truncate(keep);
    }
}

fn resolve(entry: &[u8; ENTRY_BYTES]) -> AbortedTransaction {
    AbortedTransaction {
        producer_id: ProducerId(i64::from_be_bytes(part(entry, 2))),
        first_offset: Offset(i64::from_be_bytes(part(entry, 10))),
        last_offset: Offset(i64::from_be_bytes(part(entry, 18))),
        last_stable_offset: Offset(i64::from_be_bytes(part(entry, 26))),
    }
}
