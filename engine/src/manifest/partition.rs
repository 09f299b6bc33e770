//! What a partition's manifest and recovery checkpoint say.
//!
//! The manifest is the authority on which bytes count. A leader writes its own before it serves anything, and in
//! it *pins* every segment it inherited: from which offset to which, and how many bytes. What a deposed leader
//! writes afterwards, into its segments or as new ones, lies outside of every pinned range and is never seen.
//! Segments of the manifest's own epoch that are not in it yet (the active one, and those rolled since) follow its
//! last pinned one.
//!
//! The recovery checkpoint moves the start of the next unclean recovery forward inside the active segment.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::versioned::{FileKind, FileVersion};
use crate::batch::BatchHeader;
use crate::log::{SegmentFile, SegmentFileName, SegmentName};
use crate::types::{Epoch, Offset};

/// `manifest.<epoch>.<n>.json`.
pub const MANIFEST: FileKind = FileKind::json("manifest", 1);

/// `recovery-checkpoint.<epoch>.<n>.json`.
pub const CHECKPOINT: FileKind = FileKind::json("recovery-checkpoint", 1);

/// `producer-state.<epoch>.<n>.snapshot`.
pub const PRODUCER_STATE: FileKind = FileKind::bytes("producer-state", "snapshot");

/// `manifest.<epoch>.<n>.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The leader that wrote it.
    pub epoch: u32,
    /// First offset that readers may ask for.
    pub log_start_offset: i64,
    /// A lower bound of the high watermark.
    pub high_watermark: i64,
    /// Where the unpinned segments of this epoch begin: the end of the last pinned one, or behind it if that is a
    /// rewritten one.
    pub next_offset: i64,
    /// The leader closed cleanly: there is nothing behind `next_offset`.
    pub released: bool,
    /// The pinned segments, in the order of their offsets, without overlaps, and without gaps but before or behind
    /// rewritten ones.
    pub segments: Vec<SegmentEntry>,
    /// The producer snapshot to start from when behind `next_offset` is scanned.
    pub producer_state: Option<ProducerStateRef>,
    /// The log is compacted up to this offset: no key has an older record below it than its newest one below it.
    /// 0 (and left out) before the first compaction.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub first_dirty_offset: i64,
}

impl Manifest {
    /// The pinned segments by their names, but for impossible ones.
    pub fn by_name(&self) -> BTreeMap<SegmentName, &SegmentEntry> {
        self.segments.iter().filter_map(|entry| Some((entry.name()?, entry))).collect()
    }
}

/// A pinned segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentEntry {
    /// The leader that wrote it; part of its name.
    pub epoch: u32,
    /// Its first offset; part of its name. The first batch of a rewritten segment may lie behind it.
    pub base_offset: i64,
    /// Part of the name of a segment that was rewritten as a whole, from 1; 0 (and left out) for one that was
    /// appended to.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub generation: u32,
    /// The offset behind its last batch that counts.
    pub end_offset: i64,
    /// Bytes of it that count.
    pub bytes: u64,
    /// Largest timestamp of its records; -1 if none.
    pub max_timestamp: i64,
    /// Last offset of the batch with that timestamp.
    pub offset_of_max_timestamp: i64,
    /// Of the batches that count: by these its content is told from another segment's.
    pub batch_crcs: BatchCrcs,
    /// Its index files; `None`: there are none, they are to be rebuilt from the log.
    pub indexes: Option<IndexFiles>,
    /// The leader epochs of a rewritten segment's batches, ascending, the first from `base_offset` on. Empty (and left
    /// out) for a segment that was appended to: its leader's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leader_epochs: Vec<LeaderEpoch>,
}

impl SegmentEntry {
    /// The segment's name; `None` if the entry says something impossible.
    pub fn name(&self) -> Option<SegmentName> {
        let epoch = Epoch::new(self.epoch)?;
        let base_offset = Offset(self.base_offset);
        let ascending = self.leader_epochs.is_sorted_by(|first, second| {
            first.epoch < second.epoch && first.start_offset < second.start_offset
        });
        let within = self
            .leader_epochs
            .last()
            .is_none_or(|last| last.start_offset < self.end_offset && i32::try_from(last.epoch).is_ok());
        let first = self.leader_epochs.first().map(|first| first.start_offset);
        let expected = (self.generation > 0).then_some(self.base_offset);
        let possible = self.base_offset >= 0 && self.end_offset > self.base_offset;
        (possible && ascending && within && first == expected).then_some(SegmentName {
            epoch,
            base_offset,
            generation: self.generation,
        })
    }

    /// Whether a file is one of the segment's that count: its log, or one of its index files.
    pub fn refers_to(&self, file: &SegmentFileName) -> bool {
        let is_current = |files: IndexFiles| files.version == file.version;
        self.name() == Some(file.segment)
            && (file.file == SegmentFile::Log || self.indexes.is_some_and(is_current))
    }

    /// Whether the segment `next` may stand behind this one: at its end, or, if either was rewritten, behind that.
    pub fn may_precede(&self, next: &Self) -> bool {
        self.may_end_before(next.base_offset) || (next.generation > 0 && self.end_offset < next.base_offset)
    }

    /// Whether what was appended behind this segment may begin at `offset`.
    pub fn may_end_before(&self, offset: i64) -> bool {
        self.end_offset == offset || (self.generation > 0 && self.end_offset < offset)
    }
}

/// The CRC-32C fields of a segment's batches; all 0 while there is none. A leader knows them without reading anything. The ends
/// also tell a damaged segment from another one. In JSON they are 8 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BatchCrcs {
    /// Of its first batch.
    #[serde(with = "hex_digits")]
    pub first: u32,
    /// Of its last one.
    #[serde(with = "hex_digits")]
    pub last: u32,
    /// The CRC-32C of all of them, big-endian, one behind the other.
    #[serde(with = "hex_digits")]
    pub all: u32,
}

impl BatchCrcs {
    /// Takes in the batch at byte `position` of the segment, which is behind all that were taken in before.
    pub(crate) fn add(&mut self, position: u64, header: &BatchHeader) {
        if position == 0 {
            self.first = header.crc;
        }
        self.last = header.crc;
        self.all = crc32c::crc32c_append(self.all, &header.crc.to_be_bytes());
    }

    /// Takes in those of `batches` batches, from 1, behind these.
    pub(crate) fn append(&mut self, position: u64, behind: &Self, batches: usize) {
        if position == 0 {
            *self = *behind;
            return;
        }
        self.last = behind.last;
        self.all = crc32c::crc32c_combine(self.all, behind.all, batches.saturating_mul(size_of::<u32>()));
    }
}

mod hex_digits {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(crc: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{crc:08x}"))
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<u32, D::Error> {
        let text = String::deserialize(deserializer)?;
        let crc = u32::from_str_radix(&text, 16).ok().filter(|crc| format!("{crc:08x}") == text);
        crc.ok_or_else(|| D::Error::custom("a checksum is not 8 hexadecimal digits"))
    }
}

/// Where the batches of a leader epoch begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderEpoch {
    pub epoch: u32,
    pub start_offset: i64,
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A pinned segment's index files: whose they are, and how many bytes of each are complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct IndexFiles {
    /// Part of their names: who wrote them. `None` (and left out): the segment's own leader, as it wrote the segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<FileVersion>,
    #[serde(flatten)]
    pub lengths: IndexLengths,
}

/// Bytes of a segment's index files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct IndexLengths {
    pub offset_index_bytes: u64,
    pub time_index_bytes: u64,
    pub txn_index_bytes: u64,
}

/// A producer snapshot, by its file's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProducerStateRef {
    pub epoch: u32,
    pub number: u64,
    /// Everything below this offset is in it.
    pub offset: i64,
}

/// `recovery-checkpoint.<epoch>.<n>.json`: synced up to `position` of this segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The leader that wrote it; also the segment's epoch.
    pub epoch: u32,
    /// The segment, by its base offset.
    pub base_offset: i64,
    /// Bytes of the segment that are synced.
    pub position: u64,
    /// The offset behind them.
    pub offset: i64,
    /// Largest timestamp up to there; -1 if none.
    pub max_timestamp: i64,
    /// Last offset of the batch with that timestamp.
    pub offset_of_max_timestamp: i64,
    /// Of the batches up to there.
    pub batch_crcs: BatchCrcs,
    /// Index files that its leader wrote cover that part of the segment.
    pub indexes: IndexLengths,
    /// The producer snapshot at `offset`.
    pub producer_state: Option<ProducerStateRef>,
}
