//! The time index of a segment: from a timestamp to an offset from which to scan.
//!
//! Kafka's layout, 12 bytes an entry, big endian: timestamp i64, relative offset i32. An entry says "up to the batch
//! that ends with this offset no timestamp is larger than this one, and that batch has it". Timestamps and offsets
//! both increase strictly. The last entry of a closed segment is its largest timestamp.

use super::error::{IndexError, Prefix};
use super::packed::{part, put, read, relative};
use crate::types::{Offset, Timestamp};

const KIND: &str = "time";
const ENTRY_BYTES: usize = 12;

/// A timestamp and the batch that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimestampOffset {
    pub timestamp: Timestamp,
    /// Last offset of the first batch with that max timestamp.
    pub offset: Offset,
}

/// The sparse time index of one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeIndex {
    base_offset: Offset,
    entries: Vec<[u8; ENTRY_BYTES]>,
}

impl TimeIndex {
    /// Bytes of an entry in the file.
    pub const ENTRY_BYTES: usize = ENTRY_BYTES;

    /// An empty index of the segment that begins at `base_offset`.
    pub fn new(base_offset: Offset) -> Self {
        Self { base_offset, entries: Vec::new() }
    }

    /// Reads an index file in whole.
    ///
    /// # Errors
    ///
    /// Disorder, a negative field, zero padding, or an entry that is not all there.
    pub fn from_bytes(base_offset: Offset, bytes: &[u8]) -> Result<Self, IndexError> {
        let Prefix { index, damage } = Self::valid_prefix(base_offset, bytes);
        damage.map_or(Ok(index), Err)
    }

    /// Reads an index file up to the first thing that is wrong with it.
    pub fn valid_prefix(base_offset: Offset, bytes: &[u8]) -> Prefix<Self> {
        let Prefix { index: entries, damage } = read(KIND, bytes, |previous, entry, number| {
            let (timestamp, offset) = raw(entry);
            if timestamp < 0 || offset < 0 {
                return Err(IndexError::Impossible { kind: KIND, entry: number });
            }
            let follows =
                previous.map(raw).is_none_or(|previous| previous.0 < timestamp && previous.1 < offset);
            if follows { Ok(()) } else { Err(IndexError::Disorder { kind: KIND, entry: number }) }
        });
        Prefix { index: Self { base_offset, entries }, damage }
    }

    /// The file's contents.
    pub fn as_bytes(&self) -> &[u8] {
        self.entries.as_flattened()
    }

    /// The file's contents from entry number `entry` on, to be written at byte `entry * 12`.
    pub fn bytes_from(&self, entry: usize) -> &[u8] {
        self.entries.get(entry..).unwrap_or_default().as_flattened()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = TimestampOffset> + ExactSizeIterator {
        self.entries.iter().map(|entry| self.resolve(entry))
    }

    /// The last entry; no timestamp at the base offset if there is none.
    pub fn last(&self) -> TimestampOffset {
        self.entries.last().map_or(self.none(), |entry| self.resolve(entry))
    }

    /// The entry with the largest timestamp not above `target`, else no timestamp at the base offset.
    ///
    /// No record in front of that entry's batch has a timestamp of `target` or more.
    pub fn lookup(&self, target: Timestamp) -> TimestampOffset {
        let above = self.entries.partition_point(|entry| raw(entry).0 <= target.0);
        let floor = above.checked_sub(1).and_then(|floor| self.entries.get(floor));
        floor.map_or(self.none(), |entry| self.resolve(entry))
    }

    /// Adds an entry if its timestamp is above the last one's. Returns whether it did.
    ///
    /// # Errors
    ///
    /// If a larger timestamp comes with an offset that does not follow, or does not fit the layout.
    pub fn maybe_append(&mut self, entry: TimestampOffset) -> Result<bool, IndexError> {
        let last = self.entries.last().map(raw);
        if entry.timestamp.0 <= last.map_or(Timestamp::NONE.0, |last| last.0) {
            return Ok(false);
        }
        let relative = relative(self.base_offset, entry.offset)?;
        if last.is_some_and(|last| last.1 >= relative) {
            return Err(IndexError::Disorder { kind: KIND, entry: self.entries.len() });
        }
        let mut bytes = [0; ENTRY_BYTES];
        put(&mut bytes, 0, entry.timestamp.0.to_be_bytes());
        put(&mut bytes, 8, relative.to_be_bytes());
        self.entries.push(bytes);
        Ok(true)
    }

    /// Drops the entries of batches that end at or behind `offset`.
    pub fn truncate_to_offset(&mut self, offset: Offset) {
        let relative = offset.0.saturating_sub(self.base_offset.0);
        let keep = self.entries.partition_point(|entry| i64::from(raw(entry).1) < relative);
        self.entries.truncate(keep);
    }

    /// Gives back memory held for further entries.
    pub fn shrink(&mut self) {
        self.entries.shrink_to_fit();
    }

    fn none(&self) -> TimestampOffset {
        TimestampOffset { timestamp: Timestamp::NONE, offset: self.base_offset }
    }

    fn resolve(&self, entry: &[u8; ENTRY_BYTES]) -> TimestampOffset {
        let (timestamp, relative) = raw(entry);
        TimestampOffset {
            timestamp: Timestamp(timestamp),
            offset: self.base_offset.plus(i64::from(relative)),
        }
    }
}

/// Timestamp and relative offset of an entry.
fn raw(entry: &[u8; ENTRY_BYTES]) -> (i64, i32) {
    (i64::from_be_bytes(part(entry, 0)), i32::from_be_bytes(part(entry, 8)))
}
