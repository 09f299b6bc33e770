//! Names of segment files: `<epoch:08x>-<base offset:020d>.<what>`.
//!
//! A segment is named by the leader that wrote it and its first offset, so no two leaders ever write one file.

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
}

impl SegmentName {
    /// The path of one of its files in the partition directory `dir`.
    pub fn path(self, dir: &Path, file: SegmentFile) -> PathBuf {
        dir.join(format!("{:08x}-{:020}.{}", self.epoch.get(), self.base_offset.0, file.extension()))
    }

    /// Reads a file name; `None` if it is not a segment's.
    pub fn parse(name: &str) -> Option<(Self, SegmentFile)> {
        let (stem, extension) = name.split_once('.')?;
        let file = SegmentFile::ALL.into_iter().find(|file| file.extension() == extension)?;
        let (epoch, base) = stem.split_once('-')?;
        let hex_digits = epoch.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if epoch.len() != 8 || base.len() != 20 || !hex_digits || !base.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let epoch = Epoch::new(u32::from_str_radix(epoch, 16).ok()?)?;
        let base_offset = Offset(base.parse().ok()?);
        Some((Self { epoch, base_offset }, file))
    }
}

impl std::fmt::Display for SegmentName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08x}-{:020}", self.epoch.get(), self.base_offset.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_a_round_trip() {
        let name = SegmentName { epoch: Epoch::new(0x1f).unwrap(), base_offset: Offset(1234) };
        for file in SegmentFile::ALL {
            let path = name.path(Path::new("d"), file);
            let text = path.file_name().unwrap().to_str().unwrap();
            assert_eq!(SegmentName::parse(text), Some((name, file)));
        }
        assert_eq!(name.to_string(), "0000001f-00000000000000001234");
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
            "+000001f-00000000000000001234.log",
        ] {
            assert_eq!(SegmentName::parse(text), None, "{text}");
        }
    }
}
