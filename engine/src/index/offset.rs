//! The offset index of a segment: from an offset to a position from which to scan.
//!
//! Kafka's layout, 8 bytes an entry, big endian: relative offset i32, position i32. An entry says "the batch that
//! begins at this position ends with this offset". Offsets and positions both increase strictly. The first batch of
//! a segment has no entry, so an index may be empty; lookups then answer with the segment's start.

use super::error::{IndexError, Prefix};
use super::packed::{part, put, read, relative};
use crate::types::Offset;

const KIND: &str = "offset";
const ENTRY_BYTES: usize = 8;

/// An offset and where to find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffsetPosition {
    /// Last offset of the batch at `position`.
    pub offset: Offset,
    /// Byte in the segment at which a batch begins.
    pub position: u64,
}

/// The sparse offset index of one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffsetIndex {
    base_offset: Offset,
    entries: Vec<[u8; ENTRY_BYTES]>,
}

impl OffsetIndex {
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
            let (offset, position) = raw(entry);
            // The first batch is never indexed, so neither field can be 0.
            if offset <= 0 || position <= 0 {
                return Err(IndexError::Impossible { kind: KIND, entry: number });
            }
            let follows =
                previous.map(raw).is_none_or(|previous| previous.0 < offset && previous.1 < position);
            if follows { Ok(()) } else { Err(IndexError::Disorder { kind: KIND, entry: number }) }
        });
        Prefix { index: Self { base_offset, entries }, damage }
    }

    /// The file's contents.
    pub fn as_bytes(&self) -> &[u8] {
        self.entries.as_flattened()
    }

    /// The file's contents from entry number `entry` on, to be written at byte `entry * 8`.
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
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = OffsetPosition> + ExactSizeIterator {
        self.entries.iter().map(|entry| self.resolve(entry))
    }

    /// The last entry.
    pub fn last(&self) -> Option<OffsetPosition> {
        self.entries.last().map(|entry| self.resolve(entry))
    }

    /// The entry with the largest offset not above `target`, else the segment's start (base offset, position 0).
    ///
    /// A scan from there meets the batch with `target`, if the segment has it.
    pub fn lookup(&self, target: Offset) -> OffsetPosition {
        let relative = target.0.saturating_sub(self.base_offset.0);
        let above = self.entries.partition_point(|entry| i64::from(raw(entry).0) <= relative);
        let floor = above.checked_sub(1).and_then(|floor| self.entries.get(floor));
        floor.map_or(OffsetPosition { offset: self.base_offset, position: 0 }, |entry| self.resolve(entry))
    }

    /// The last entry that lies at or before byte `position` and has an offset below `limit`.
    pub fn last_below(&self, position: u64, limit: Offset) -> Option<OffsetPosition> {
        let above = self.entries.partition_point(|entry| {
            let entry = self.resolve(entry);
            entry.position <= position && entry.offset < limit
        });
        let last = above.checked_sub(1).and_then(|last| self.entries.get(last));
        last.map(|entry| self.resolve(entry))
    }

    /// The first entry at or behind byte `position`: an offset that a read ending there does not reach (Kafka's
    /// `fetchUpperBoundOffset`). `None` if no entry lies that far.
    pub fn at_or_behind(&self, position: u64) -> Option<OffsetPosition> {
        let first = self.entries.partition_point(|entry| self.resolve(entry).position < position);
        self.entries.get(first).map(|entry| self.resolve(entry))
    }

    /// Adds an entry.
    ///
    /// # Errors
    ///
    /// If it does not follow the last one, or does not fit the layout.
    pub fn append(&mut self, offset: Offset, position: u64) -> Result<(), IndexError> {
        let relative = relative(self.base_offset, offset)?;
        let position = i32::try_from(position).map_err(|_| IndexError::PositionOutOfRange { position })?;
        let number = self.entries.len();
        if relative == 0 || position == 0 {
            return Err(IndexError::Impossible { kind: KIND, entry: number });
        }
        let last = self.entries.last().map_or((0, 0), raw);
        if last.0 >= relative || last.1 >= position {
            return Err(IndexError::Disorder { kind: KIND, entry: number });
        }
        let mut entry = [0; ENTRY_BYTES];
        put(&mut entry, 0, relative.to_be_bytes());
        put(&mut entry, 4, position.to_be_bytes());
        self.entries.push(entry);
        Ok(())
    }

    /// Drops the entries of batches that end at or behind `offset`.
    pub fn truncate_to_offset(&mut self, offset: Offset) {
        let relative = offset.0.saturating_sub(self.base_offset.0);
        let keep = self.entries.partition_point(|entry| i64::from(raw(entry).0) < relative);
        self.entries.truncate(keep);
    }

    /// Drops the entries of batches that begin at or behind byte `position`.
    pub fn truncate_to_position(&mut self, position: u64) {
        let keep = self.entries.partition_point(|entry| u64::from(raw(entry).1.unsigned_abs()) < position);
        self.entries.truncate(keep);
    }

    /// Gives back memory held for further entries.
    pub fn shrink(&mut self) {
        self.entries.shrink_to_fit();
    }

    fn resolve(&self, entry: &[u8; ENTRY_BYTES]) -> OffsetPosition {
        let (relative, position) = raw(entry);
        OffsetPosition {
            offset: self.base_offset.plus(i64::from(relative)),
            position: u64::from(position.unsigned_abs()),
        }
    }
}

/// Relative offset and position of an entry.
fn raw(entry: &[u8; ENTRY_BYTES]) -> (i32, i32) {
    (i32::from_be_bytes(part(entry, 0)), i32::from_be_bytes(part(entry, 4)))
}
