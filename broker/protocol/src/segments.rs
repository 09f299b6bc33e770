//! The output of encoding: small bytes in one scratch buffer, interleaved with slices and file ranges that are not
//! copied.
//!
//! Invariants: inserts are ordered by their position in the scratch buffer; none is empty; `len` is the sum of all parts.
//! A value belongs to one connection, which clears it after writing and so keeps using one allocation.

use bytes::{Bytes, BytesMut};

use crate::error::ExternalBytes;
use crate::records::{ExternalRange, Records, RecordsPart};

/// Encoded frames as a sequence of parts. Several frames may follow one another in one value.
#[derive(Debug, Default)]
pub struct Segments {
    scratch: BytesMut,
    inserts: Vec<Insert>,
    inserted: usize,
}

/// A part that stands before the scratch byte at `position`.
#[derive(Debug)]
struct Insert {
    position: usize,
    part: RecordsPart,
}

/// One part of the output, never empty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Part<'a> {
    /// Bytes in memory.
    Bytes(&'a [u8]),
    /// A range that the writer reads or sends from where it lies.
    External(&'a ExternalRange),
}

impl Part<'_> {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Part::Bytes(bytes) => bytes.len(),
            Part::External(range) => range.length,
        }
    }

    /// Never true for a part that [`Segments::parts`] gave.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How far the output had come; see [`Segments::rewind`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    scratch: usize,
    inserts: usize,
    inserted: usize,
}

impl Segments {
    /// An empty output.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty output that reuses the allocation of `scratch`, whose content is dropped.
    pub fn with_scratch(mut scratch: BytesMut) -> Self {
        scratch.clear();
        Segments { scratch, ..Self::default() }
    }

    /// The scratch buffer for another use; the content is dropped.
    pub fn into_scratch(mut self) -> BytesMut {
        self.scratch.clear();
        self.scratch
    }

    /// Total length of all parts in bytes.
    pub fn len(&self) -> usize {
        self.scratch.len() + self.inserted
    }

    /// True if nothing was encoded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the scratch buffer holds allocated.
    pub fn scratch_capacity_bytes(&self) -> usize {
        self.scratch.capacity()
    }

    /// Drops the content and keeps the allocations.
    pub fn clear(&mut self) {
        self.scratch.clear();
        self.inserts.clear();
        self.inserted = 0;
    }

    /// Drops the content, and the scratch buffer too if it grew beyond `max_scratch_bytes`: one large answer must not
    /// cost memory for as long as its connection lives.
    pub fn recycle(&mut self, max_scratch_bytes: usize) {
        self.clear();
        if self.scratch.capacity() > max_scratch_bytes {
            self.scratch = BytesMut::new();
            self.inserts = Vec::new();
        }
    }

    /// The parts in order.
    pub fn parts(&self) -> Parts<'_> {
        Parts { segments: self, position: 0, next_insert: 0 }
    }

    /// Everything in one buffer, by copying: for tests and for answers without records. Errors if a part is a range.
    pub fn to_bytes(&self) -> Result<Bytes, ExternalBytes> {
        let mut all = BytesMut::with_capacity(self.len());
        let mut external_bytes = 0;
        for part in self.parts() {
            match part {
                Part::Bytes(bytes) => all.extend_from_slice(bytes),
                Part::External(range) => external_bytes += range.length,
            }
        }
        if external_bytes == 0 {
            Ok(all.freeze())
        } else {
            Err(ExternalBytes { external_bytes, total_bytes: self.len() })
        }
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.scratch.extend_from_slice(bytes);
    }

    pub(crate) fn put_records(&mut self, records: &Records) {
        let position = self.scratch.len();
        for part in records.parts() {
            self.inserts.push(Insert { position, part: part.clone() });
        }
        self.inserted += records.len();
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark { scratch: self.scratch.len(), inserts: self.inserts.len(), inserted: self.inserted }
    }

    /// Forgets everything after the mark.
    pub(crate) fn rewind(&mut self, mark: Mark) {
        self.scratch.truncate(mark.scratch);
        self.inserts.truncate(mark.inserts);
        self.inserted = mark.inserted;
    }

    /// Bytes since the mark.
    pub(crate) fn len_since(&self, mark: Mark) -> usize {
        self.len() - mark.scratch - mark.inserted
    }

    /// Replaces bytes at the mark that were written before.
    pub(crate) fn overwrite(&mut self, mark: Mark, bytes: &[u8]) {
        let end = mark.scratch + bytes.len();
        if let Some(target) = self.scratch.get_mut(mark.scratch..end) {
            target.copy_from_slice(bytes);
        }
    }

    /// Moves the scratch bytes after the mark back to make room for `bytes` at the mark. Only for short values without
    /// records: tagged fields.
    pub(crate) fn insert_at(&mut self, mark: Mark, bytes: &[u8]) {
        debug_assert_eq!(mark.inserts, self.inserts.len(), "no records inside tagged fields");
        let end = self.scratch.len();
        self.scratch.extend_from_slice(bytes);
        if mark.scratch <= end {
            self.scratch.copy_within(mark.scratch..end, mark.scratch + bytes.len());
        }
        self.overwrite(mark, bytes);
    }
}

/// Iterator over the parts of [`Segments`].
#[derive(Debug, Clone)]
pub struct Parts<'a> {
    segments: &'a Segments,
    position: usize,
    next_insert: usize,
}

impl<'a> Iterator for Parts<'a> {
    type Item = Part<'a>;

    fn next(&mut self) -> Option<Part<'a>> {
        let insert = self.segments.inserts.get(self.next_insert);
        let until = insert.map_or(self.segments.scratch.len(), |insert| insert.position);
        if let Some(bytes) = self.segments.scratch.get(self.position..until).filter(|bytes| !bytes.is_empty())
        {
            self.position = until;
            return Some(Part::Bytes(bytes));
        }
        self.next_insert += 1;
        insert.map(|insert| match &insert.part {
            RecordsPart::Bytes(bytes) => Part::Bytes(bytes),
            RecordsPart::External(range) => Part::External(range),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn range(length: usize) -> ExternalRange {
        ExternalRange { handle: Arc::new(7_u8), offset: 40, length }
    }

    #[test]
    fn parts_come_in_order_and_none_is_empty() {
        let mut segments = Segments::new();
        assert_eq!(segments.parts().count(), 0);
        let slice = Bytes::from_static(b"records");
        let mut records = Records::from(slice.clone());
        records.push_bytes(Bytes::new());
        records.push_external(range(5));
        segments.put_records(&records);
        segments.put(b"ab");
        segments.put_records(&Records::from(range(3)));
        let parts: Vec<_> = segments.parts().collect();
        assert_eq!(parts.iter().map(Part::len).collect::<Vec<_>>(), [7, 5, 2, 3]);
        let Part::Bytes(first) = parts[0] else { panic!("{parts:?}") };
        assert_eq!(first.as_ptr(), slice.as_ptr());
        assert_eq!(segments.len(), 17);
        assert_eq!(segments.to_bytes(), Err(ExternalBytes { external_bytes: 8, total_bytes: 17 }));
        segments.clear();
        assert!(segments.is_empty());
        assert_eq!(segments.parts().count(), 0);
    }

    #[test]
    fn rewinding_forgets_slices_too() {
        let mut segments = Segments::new();
        segments.put(b"keep");
        let mark = segments.mark();
        segments.put(b"drop");
        segments.put_records(&Records::from(Bytes::from_static(b"records")));
        assert_eq!(segments.len_since(mark), 11);
        segments.rewind(mark);
        assert_eq!(segments.to_bytes().unwrap(), "keep");
    }

    #[test]
    fn inserting_moves_what_follows() {
        let mut segments = Segments::new();
        segments.put(b"ab");
        let mark = segments.mark();
        segments.put(b"cdef");
        segments.insert_at(mark, b"123");
        assert_eq!(segments.to_bytes().unwrap(), "ab123cdef");
        let mark = segments.mark();
        segments.insert_at(mark, b"4");
        assert_eq!(segments.to_bytes().unwrap(), "ab123cdef4");
    }

    #[test]
    fn a_large_scratch_buffer_is_not_kept() {
        let mut segments = Segments::new();
        segments.put(&[0; 10_000]);
        segments.recycle(20_000);
        assert!(segments.scratch_capacity_bytes() >= 10_000);
        segments.recycle(4_096);
        assert!(segments.scratch_capacity_bytes() <= 4_096);
    }
}
