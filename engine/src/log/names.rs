//! Names of segment files: `<epoch:08x>-<base offset:020d>.<what>`, and for rewritten segments
//! `<epoch:08x>-<base offset:020d>-<generation:08x>.<what>`.
//!
//! A segment is named by the leader that wrote it and its first offset, so no two leaders ever write one file.
//! The generation keeps what a leader rewrites apart from what it appended, and from what it rewrote before.

use std::path::{Path, PathBuf};

use crate::types::{Epoch, Offset};

/// Which file of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SegmentFile {
    Log,
    OffsetIndex,
    TimeIndex,
    TxnIndex,
}

impl SegmentFile {
    /// Every kind, the log first.
    pub const ALL: [Self; 4] = [Self::Log, Self::OffsetIndex, Self::TimeIndex, Self::TxnIndex];

    fn extension(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::OffsetIndex => "index",
            Self::TimeIndex => "timeindex",
            Self::TxnIndex => "txnindex",
        }
    }
}

/// A segment's name: who wrote it and where it begins. Ordered by epoch, then offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName {
    pub epoch: Epoch,
    pub base_offset: Offset,
    /// 0 for a segment that records were appended to; else it was rewritten as a whole, by the cleaner or an import,
    /// and its leader gave it a number (from 1) that it gives once.
    pub generation: u32,
}

impl SegmentName {
    /// A segment that a leader appends to.
    pub fn appended(epoch: Epoch, base_offset: Offset) -> Self {
        Self { epoch, base_offset, generation: 0 }
    }

    /// Whether it was rewritten as a whole. Such a segment counts only where a manifest names it; offsets may be
    /// missing in it, and its batches may be of several leader epochs.
    pub fn is_rewritten(self) -> bool {
        self.generation > 0
    }

    /// The path of one of its files in the partition directory `dir`.
    pub fn path(self, dir: &Path, file: SegmentFile) -> PathBuf {
        dir.join(format!("{self}.{}", file.extension()))
    }

    /// Reads a file name; `None` if it is not a segment's.
    pub fn parse(name: &str) -> Option<(Self, SegmentFile)> {
        let (stem, extension) = name.split_once('.')?;
        let file = SegmentFile::ALL.into_iter().find(|file| file.extension() == extension)?;
        let (epoch, base) = stem.split_once('-')?;
        let (base, generation) = match base.split_once('-') {
            Some((base, generation)) => (base, Some(generation)),
            None => (base, None),
        };
        if base.len() != 20 || !base.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let epoch = Epoch::new(hex(epoch)?)?;
        let base_offset = Offset(base.parse().ok()?);
        let generation = match generation {
            // Only the canonical spelling: 0 is not written.
            Some(generation) => hex(generation).filter(|number| *number > 0)?,
            None => 0,
        };
        Some((Self { epoch, base_offset, generation }, file))
    }
}

impl std::fmt::Display for SegmentName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08x}-{:020}", self.epoch.get(), self.base_offset.0)?;
        if self.is_rewritten() { write!(f, "-{:08x}", self.generation) } else { Ok(()) }
    }
}

/// Eight lower-case hexadecimal digits.
fn hex(digits: &str) -> Option<u32> {
    let digits_only = digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    (digits.len() == 8 && digits_only).then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_a_round_trip() {
        let name = SegmentName::appended(Epoch::new(0x1f).unwrap(), Offset(1234));
        let rewritten = SegmentName { generation: 10, ..name };
        for name in [name, rewritten] {
            for file in SegmentFile::ALL {
                let path = name.path(Path::new("d"), file);
                let text = path.file_name().unwrap().to_str().unwrap();
                assert_eq!(SegmentName::parse(text), Some((name, file)));
            }
        }
        assert_eq!(name.to_string(), "0000001f-00000000000000001234");
        assert_eq!(rewritten.to_string(), "0000001f-00000000000000001234-0000000a");
    }

    #[test]
    fn other_names_are_not_segments() {
        for text in [
            "0000001F-00000000000000001234.log",
            "0000001f-0000000000000001234.log",
            "0000001f-00000000000000001234.log.tmp",
            "0000001f-00000000000000001234",
            "ffffffff-00000000000000001234.log",
            "0000001f-99999999999999999999.log",
            "fence",
            "0000001f-00000000000000001234-00000000.log",
            "0000001f-00000000000000001234-1.log",
            "0000001f-00000000000000001234-0000000A.log",
            "0000001f-00000000000000001234-00000001-00000001.log",
            "+000001f-00000000000000001234.log",
        ] {
            assert_eq!(SegmentName::parse(text), None, "{text}");
        }
    }
}
