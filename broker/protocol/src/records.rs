//! Records of a response: slices and file ranges that are sent as they are.
//!
//! This crate knows no files. A range carries a handle of the caller's choice, which comes out again with the parts of
//! the encoded frame.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// A range of something outside memory, usually of an open segment file.
#[derive(Clone)]
pub struct ExternalRange {
    /// What the range is of; the writer of the frame downcasts it.
    pub handle: Arc<dyn Any + Send + Sync>,
    /// First byte.
    pub offset: u64,
    /// Number of bytes. The caller promises that they are there.
    pub length: usize,
}

/// Same handle (by identity), same range.
impl PartialEq for ExternalRange {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle) && self.offset == other.offset && self.length == other.length
    }
}

impl fmt::Debug for ExternalRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExternalRange({} + {})", self.offset, self.length)
    }
}

/// One piece of the records of a partition.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordsPart {
    /// Bytes in memory, sent without a copy.
    Bytes(Bytes),
    /// Bytes elsewhere.
    External(ExternalRange),
}

/// The records of one partition in a response, in pieces; on the wire they are one byte string.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Records {
    parts: Vec<RecordsPart>,
    length: usize,
}

impl Records {
    /// No record: a byte string of length 0 (which is not null).
    pub const fn new() -> Self {
        Records { parts: Vec::new(), length: 0 }
    }

    /// Total length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True if there is no byte.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Adds bytes at the end; nothing if they are empty.
    pub fn push_bytes(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.length += bytes.len();
            self.parts.push(RecordsPart::Bytes(bytes));
        }
    }

    /// Adds a range at the end; nothing if it is empty.
    pub fn push_external(&mut self, range: ExternalRange) {
        if range.length != 0 {
            self.length += range.length;
            self.parts.push(RecordsPart::External(range));
        }
    }

    /// The pieces in order; none is empty.
    pub fn parts(&self) -> &[RecordsPart] {
        &self.parts
    }
}

impl From<Bytes> for Records {
    fn from(bytes: Bytes) -> Self {
        let mut records = Records::new();
        records.push_bytes(bytes);
        records
    }
}

impl From<ExternalRange> for Records {
    fn from(range: ExternalRange) -> Self {
        let mut records = Records::new();
        records.push_external(range);
        records
    }
}
