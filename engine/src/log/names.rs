//! Names of segment files: `<epoch:08x>-<base offset:020d>.<what>`, and for rewritten segments
//! `<epoch:08x>-<base offset:020d>-<generation:08x>.<what>`.
//!
//! A segment is named by the leader that wrote it and its first offset, so no two leaders ever write one file.
//! The generation keeps what a leader rewrites apart from what it appended, and from what it rewrote before.
//!
//! Index files that another leader writes for it, or that are written anew, have their writer's epoch and a number in their
//! names too: `<segment>.<epoch:08x>.<number>.<what>`. So a leader that was deposed while it closed a segment cannot
//! write over those of its successor.

use std::path::{Path, PathBuf};

use crate::manifest::versioned::FileVersion;
use crate::types::{Epoch, Offset};

/// Which file of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SegmentFile {
    Log,
    OffsetIndex,
    TimeIndex,
    TxnIndex,
}

impl SegmentFile {
    /// Every kind, the log first.
    pub const ALL: [Self; 4] = [Self::Log, Self::OffsetIndex, Self::TimeIndex, Self::TxnIndex];

    /// The kinds that are derived from the log.
    pub const INDEXES: [Self; 3] = [Self::OffsetIndex, Self::TimeIndex, Self::TxnIndex];

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

    /// The path of its log, or of an index file as the segment's own leader writes it, in the partition directory `dir`.
    pub fn path(self, dir: &Path, file: SegmentFile) -> PathBuf {
        SegmentFileName { segment: self, file, version: None }.path(dir)
    }

    /// Reads the part of a file name in front of the first dot; `None` if it is not a segment's.
    fn parse(stem: &str) -> Option<Self> {
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
        Some(Self { epoch, base_offset, generation })
    }
}

/// The name of a segment's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentFileName {
    pub segment: SegmentName,
    pub file: SegmentFile,
    /// Who wrote an index file, unless the segment's own leader did as it wrote the segment; never of a log.
    pub version: Option<FileVersion>,
}

impl SegmentFileName {
    /// The file's path in the partition directory `dir`.
    pub fn path(self, dir: &Path) -> PathBuf {
        dir.join(self.to_string())
    }

    /// Reads a file name; `None` if it is not that of a segment's file.
    pub fn parse(name: &str) -> Option<Self> {
        let (stem, rest) = name.split_once('.')?;
        let (version, extension) = match rest.rsplit_once('.') {
            Some((version, extension)) => (Some(parse_version(version)?), extension),
            None => (None, rest),
        };
        let file = SegmentFile::ALL.into_iter().find(|file| file.extension() == extension)?;
        let is_possible = file != SegmentFile::Log || version.is_none();
        let segment = SegmentName::parse(stem)?;
        is_possible.then_some(Self { segment, file, version })
    }
}

impl std::fmt::Display for SegmentFileName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.", self.segment)?;
        if let Some(FileVersion { epoch, number }) = self.version {
            write!(f, "{:08x}.{number}.", epoch.get())?;
        }
        f.write_str(self.file.extension())
    }
}

/// `<epoch:08x>.<number>`, in the canonical spelling only: two names must not stand for one file.
fn parse_version(text: &str) -> Option<FileVersion> {
    let (epoch, digits) = text.split_once('.')?;
    let number: u64 = digits.parse().ok()?;
    let epoch = Epoch::new(hex(epoch)?)?;
    (number.to_string() == digits).then_some(FileVersion { epoch, number })
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
                let expected = SegmentFileName { segment: name, file, version: None };
                assert_eq!(SegmentFileName::parse(text), Some(expected));
            }
            for file in SegmentFile::INDEXES {
                let version = Some(FileVersion { epoch: Epoch::new(0x20).unwrap(), number: 10 });
                let expected = SegmentFileName { segment: name, file, version };
                assert_eq!(SegmentFileName::parse(&expected.to_string()), Some(expected));
            }
        }
        let version = Some(FileVersion { epoch: Epoch::new(0x20).unwrap(), number: 10 });
        let file = SegmentFileName { segment: name, file: SegmentFile::TimeIndex, version };
        assert_eq!(file.to_string(), "0000001f-00000000000000001234.00000020.10.timeindex");
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
            "0000001f-00000000000000001234.00000020.1.log",
            "0000001f-00000000000000001234.00000020.01.index",
            "0000001f-00000000000000001234.00000020.+1.index",
            "0000001f-00000000000000001234.00000020.index",
            "0000001f-00000000000000001234.20.1.index",
            "0000001f-00000000000000001234.00000020.1.1.index",
            "0000001f-00000000000000001234..index",
        ] {
            assert_eq!(SegmentFileName::parse(text), None, "{text}");
        }
    }
}
