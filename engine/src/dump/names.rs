//! What a file of a data directory is, told by its name.

use crate::log::SegmentFileName;
use crate::types::Offset;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// Record batches.
    Log,
    OffsetIndex {
        base_offset: Offset,
    },
    TimeIndex {
        base_offset: Offset,
    },
    TxnIndex {
        base_offset: Offset,
    },
    ProducerSnapshot,
    /// One JSON document.
    Json,
    /// A JSON document a line.
    JsonLines,
    Fence,
    /// Not ours, or nothing to show.
    Other,
}

impl FileKind {
    /// Tells by the name. Files of segments have the names of kaas ([`SegmentFileName`]), or only a base offset as Kafka's.
    pub fn of(name: &str) -> Self {
        let (stem, extension) = name.rsplit_once('.').unwrap_or((name, ""));
        let kafkas = (stem.len() == 20).then(|| stem.parse().ok()).flatten().map(Offset);
        let base_offset = SegmentFileName::parse(name).map(|file| file.segment.base_offset).or(kafkas);
        match (extension, base_offset) {
            ("log", Some(_)) => Self::Log,
            ("index", Some(base_offset)) => Self::OffsetIndex { base_offset },
            ("timeindex", Some(base_offset)) => Self::TimeIndex { base_offset },
            ("txnindex", Some(base_offset)) => Self::TxnIndex { base_offset },
            // Kafka's snapshots have only an offset for a name, and another format.
            ("snapshot", None) => Self::ProducerSnapshot,
            ("json", _) => Self::Json,
            ("jsonl", _) => Self::JsonLines,
            _ if name == "fence" => Self::Fence,
            _ if stem == "claim" => Self::Json,
            _ => Self::Other,
        }
    }

    /// For the heading.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Log => "record batches",
            Self::OffsetIndex { .. } => "offset index",
            Self::TimeIndex { .. } => "time index",
            Self::TxnIndex { .. } => "aborted transactions",
            Self::ProducerSnapshot => "producer snapshot",
            Self::Json => "JSON",
            Self::JsonLines => "JSON lines",
            Self::Fence => "fence",
            Self::Other => "not shown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let base_offset = Offset(1234);
        assert_eq!(FileKind::of("0000001f-00000000000000001234.log"), FileKind::Log);
        assert_eq!(FileKind::of("0000001f-00000000000000001234-00000001.log"), FileKind::Log);
        assert_eq!(FileKind::of("00000000000000001234.index"), FileKind::OffsetIndex { base_offset });
        assert_eq!(
            FileKind::of("0000001f-00000000000000001234.timeindex"),
            FileKind::TimeIndex { base_offset }
        );
        assert_eq!(
            FileKind::of("0000001f-00000000000000001234.00000020.1.timeindex"),
            FileKind::TimeIndex { base_offset }
        );
        assert_eq!(FileKind::of("00000000000000001234.txnindex"), FileKind::TxnIndex { base_offset });
        assert_eq!(FileKind::of("producer-state.00000001.3.snapshot"), FileKind::ProducerSnapshot);
        assert_eq!(FileKind::of("manifest.00000001.3.json"), FileKind::Json);
        assert_eq!(FileKind::of("journal.00000001.3.jsonl"), FileKind::JsonLines);
        assert_eq!(FileKind::of("claim.0000001f"), FileKind::Json);
        assert_eq!(FileKind::of("fence"), FileKind::Fence);
        for other in ["server.log", "x.index", "00000000000000001234.snapshot", "lock", ""] {
            assert_eq!(FileKind::of(other), FileKind::Other, "{other}");
        }
    }
}
