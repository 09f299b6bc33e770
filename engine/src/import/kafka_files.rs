//! The small files of an Apache Kafka log directory, and the names in it. Pure code: bytes in, values out; what is not as
//! Kafka writes it is an error that says why.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::types::{Offset, ProducerId, Timestamp};

/// Exists while Kafka is stopped, if it was stopped cleanly.
pub(super) const CLEAN_SHUTDOWN: &str = ".kafka_cleanshutdown";
pub(super) const META_PROPERTIES: &str = "meta.properties";
pub(super) const LOG_START_CHECKPOINT: &str = "log-start-offset-checkpoint";
pub(super) const CLEANER_CHECKPOINT: &str = "cleaner-offset-checkpoint";
pub(super) const RECOVERY_POINT_CHECKPOINT: &str = "recovery-point-offset-checkpoint";
pub(super) const LEADER_EPOCHS: &str = "leader-epoch-checkpoint";
pub(super) const PARTITION_METADATA: &str = "partition.metadata";

/// Kafka's own topics. They are not imported as topics.
pub(super) const INTERNAL_TOPICS: [&str; 5] = [
    "__cluster_metadata",
    "__consumer_offsets",
    "__remote_log_metadata",
    "__share_group_state",
    "__transaction_state",
];

/// What a directory of a log directory is, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DirName {
    Partition {
        topic: String,
        partition: u32,
    },
    /// Not a partition that Kafka serves from here, by the suffix that it gave it.
    Transient(Transient),
    Other,
}

/// Directories that Kafka was done with, or not yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transient {
    /// `-delete`: of a deleted topic, or a partition that was moved away.
    Deleted,
    /// `-future`: a copy that was being made, from one log directory to another.
    Future,
    /// `-stray`: of a partition that Kafka's metadata does not give this broker.
    Stray,
}

impl Transient {
    pub(super) const ALL: [Self; 3] = [Self::Deleted, Self::Future, Self::Stray];

    /// What Kafka has put behind the name.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Deleted => "-delete",
            Self::Future => "-future",
            Self::Stray => "-stray",
        }
    }

    /// Why there is nothing to import in it.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Deleted => "Kafka was deleting it",
            Self::Future => "a copy that Kafka had not finished, of a partition in another log directory",
            Self::Stray => "Kafka's metadata does not have it on this broker",
        }
    }
}

impl DirName {
    pub(super) fn parse(name: &str) -> Self {
        let transient = Transient::ALL.into_iter().find(|kind| name.ends_with(kind.suffix()));
        if let Some(kind) = transient.filter(|_| name.contains('.')) {
            return Self::Transient(kind);
        }
        match name.rsplit_once('-') {
            Some((topic, number)) if !topic.is_empty() => match number.parse::<u32>() {
                Ok(partition) if partition.to_string() == number => {
                    Self::Partition { topic: topic.to_owned(), partition }
                }
                _ => Self::Other,
            },
            _ => Self::Other,
        }
    }
}

/// What a file of a partition is, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileName {
    Log(Offset),
    /// A producer snapshot at this offset.
    Snapshot(Offset),
    /// An index of the segment at this offset.
    Index(Offset),
    /// The result of a compaction that was being put into place.
    Swap,
    /// Derived, or of no use any more.
    Ignored,
    /// Something that belongs to tiered storage or that is not known.
    Other,
}

impl FileName {
    pub(super) fn parse(name: &str) -> Self {
        // A crash leaves small files under the names that they have while they are written.
        if [".deleted", ".cleaned"].iter().any(|suffix| name.ends_with(suffix))
            || [LEADER_EPOCHS, PARTITION_METADATA].contains(&name.strip_suffix(".tmp").unwrap_or(name))
        {
            return Self::Ignored;
        }
        if name.ends_with(".swap") {
            return Self::Swap;
        }
        match name.rsplit_once('.') {
            Some((stem, "log")) => offset_name(stem).map_or(Self::Other, Self::Log),
            Some((stem, "snapshot")) => offset_name(stem).map_or(Self::Other, Self::Snapshot),
            Some((stem, "index" | "timeindex" | "txnindex")) => {
                offset_name(stem).map_or(Self::Ignored, Self::Index)
            }
            _ => Self::Other,
        }
    }
}

/// Twenty decimal digits.
pub(super) fn offset_name(stem: &str) -> Option<Offset> {
    let digits = stem.len() == 20 && stem.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| stem.parse().ok().map(Offset)).flatten()
}

/// The lines of a checkpoint file behind its version (0) and its count, which must be right. A file without a byte has none:
/// so Kafka reads it, and so it makes `cleaner-offset-checkpoint`, until something is compacted.
fn checkpoint_lines(text: &str) -> Result<Vec<Vec<&str>>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut lines = text.lines();
    let mut number = |what: &str| -> Result<usize, String> {
        let line = lines.next().ok_or_else(|| format!("it ends before its {what}"))?;
        line.trim().parse().map_err(|_| format!("its {what} is {line:?}"))
    };
    let version = number("version")?;
    if version != 0 {
        return Err(format!("its version is {version}, not 0"));
    }
    let count = number("number of lines")?;
    let found: Vec<Vec<&str>> =
        lines.filter(|line| !line.trim().is_empty()).map(|line| line.split_whitespace().collect()).collect();
    if found.len() != count {
        return Err(format!("it has {} lines instead of {count}", found.len()));
    }
    Ok(found)
}

/// `log-start-offset-checkpoint` and the like: topic and partition to an offset.
pub(super) fn offset_checkpoint(text: &str) -> Result<BTreeMap<(String, u32), i64>, String> {
    let mut offsets = BTreeMap::new();
    for line in checkpoint_lines(text)? {
        let entry = match line[..] {
            [topic, partition, offset] => {
                partition.parse().ok().zip(offset.parse().ok()).map(|pair| (topic, pair))
            }
            _ => None,
        };
        let (topic, (partition, offset)) =
            entry.ok_or_else(|| format!("a line says {:?}", line.join(" ")))?;
        offsets.insert((topic.to_owned(), partition), offset);
    }
    Ok(offsets)
}

/// `leader-epoch-checkpoint`: epochs and the offsets they begin at, ascending.
pub(super) fn leader_epochs(text: &str) -> Result<Vec<(u32, i64)>, String> {
    let mut epochs: Vec<(u32, i64)> = Vec::new();
    for line in checkpoint_lines(text)? {
        let entry = match line[..] {
            [epoch, start] => epoch.parse::<u32>().ok().zip(start.parse::<i64>().ok()),
            _ => None,
        };
        let entry = entry.filter(|(epoch, _)| i32::try_from(*epoch).is_ok());
        let entry = entry.ok_or_else(|| format!("a line says {:?}", line.join(" ")))?;
        if epochs.last().is_some_and(|last| last.0 >= entry.0 || last.1 > entry.1) {
            return Err(format!("epoch {} does not follow its predecessor", entry.0));
        }
        epochs.push(entry);
    }
    Ok(epochs)
}

/// The topic id in `partition.metadata`.
pub(super) fn topic_id(text: &str) -> Result<[u8; 16], String> {
    let id = text.lines().find_map(|line| line.strip_prefix("topic_id:"));
    let id = id.ok_or("it has no topic_id")?.trim();
    let bytes = URL_SAFE_NO_PAD.decode(id).ok().and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
    bytes.ok_or_else(|| format!("its topic_id {id:?} is no id"))
}

/// One producer of a Kafka producer snapshot: its last batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SnapshotProducer {
    pub(super) id: ProducerId,
    pub(super) epoch: i16,
    pub(super) last_sequence: i32,
    pub(super) last_offset: Offset,
    pub(super) offset_delta: i32,
    pub(super) timestamp: Timestamp,
    pub(super) coordinator_epoch: i32,
    /// Where its open transaction begins.
    pub(super) transaction_first_offset: Option<Offset>,
}

/// A reader of big-endian integers.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(super) fn slice(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn i8(&mut self) -> Option<i8> {
        self.take().map(i8::from_be_bytes)
    }

    pub(super) fn i16(&mut self) -> Option<i16> {
        self.take().map(i16::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Option<i32> {
        self.take().map(i32::from_be_bytes)
    }

    pub(super) fn i64(&mut self) -> Option<i64> {
        self.take().map(i64::from_be_bytes)
    }

    /// An unsigned varint of up to 32 bits.
    pub(super) fn uvarint(&mut self) -> Option<u32> {
        let mut value = 0_u32;
        for shift in (0..35).step_by(7) {
            let [byte] = self.take()?;
            let bits = u32::from(byte & 0x7f);
            value |= bits.checked_shl(shift).filter(|shifted| shifted >> shift == bits)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// A string whose length plus one comes first as a varint; `Some(None)` is null.
    pub(super) fn compact_string(&mut self) -> Option<Option<String>> {
        match self.uvarint()?.checked_sub(1) {
            None => Some(None),
            Some(length) => {
                let bytes = self.slice(usize::try_from(length).ok()?)?;
                Some(Some(String::from_utf8(bytes.to_vec()).ok()?))
            }
        }
    }

    /// A string whose length comes first in two bytes; `Some(None)` is null.
    pub(super) fn string(&mut self) -> Option<Option<String>> {
        match usize::try_from(self.i16()?) {
            Err(_) => Some(None),
            Ok(length) => Some(Some(String::from_utf8(self.slice(length)?.to_vec()).ok()?)),
        }
    }
}

/// Reads a `.snapshot` file, version 1 (the only one that Kafka has written since 0.11).
pub(super) fn producer_snapshot(bytes: &[u8]) -> Result<Vec<SnapshotProducer>, String> {
    let mut fields = Fields(bytes);
    let version = fields.i16().ok_or("it is too short")?;
    if version != 1 {
        return Err(format!("its version is {version}, not 1"));
    }
    let stored = fields.take().map(u32::from_be_bytes).ok_or("it is too short")?;
    let computed = crc32c::crc32c(fields.0);
    if stored != computed {
        return Err(format!("its checksum is {stored:08x}, its contents give {computed:08x}"));
    }
    let count = fields.i32().and_then(|count| usize::try_from(count).ok()).ok_or("it has no count")?;
    let mut producers = Vec::new();
    for _ in 0..count {
        producers.push(snapshot_producer(&mut fields).ok_or("it ends before its last producer")?);
    }
    Ok(producers)
}

fn snapshot_producer(fields: &mut Fields<'_>) -> Option<SnapshotProducer> {
    Some(SnapshotProducer {
        id: ProducerId(fields.i64()?),
        epoch: fields.i16()?,
        last_sequence: fields.i32()?,
        last_offset: Offset(fields.i64()?),
        offset_delta: fields.i32()?,
        timestamp: Timestamp(fields.i64()?),
        coordinator_epoch: fields.i32()?,
        transaction_first_offset: Some(Offset(fields.i64()?)).filter(|offset| *offset >= Offset::ZERO),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_names() {
        let partition = |topic: &str, partition| DirName::Partition { topic: topic.to_owned(), partition };
        for (name, expected) in [
            ("orders-0", partition("orders", 0)),
            ("a-b.c_d-12", partition("a-b.c_d", 12)),
            ("orders-00", DirName::Other),
            ("orders--1", partition("orders-", 1)),
            ("-1", DirName::Other),
            ("orders", DirName::Other),
            ("orders-0.8d5b0b1a3c5f4c8a9e6f.1234-delete", DirName::Transient(Transient::Deleted)),
            ("orders-0.8d5b0b1a3c5f4c8a9e6f-future", DirName::Transient(Transient::Future)),
            ("my.topic-stray", DirName::Transient(Transient::Stray)),
        ] {
            assert_eq!(DirName::parse(name), expected, "{name}");
        }
    }

    #[test]
    fn file_names() {
        for (name, expected) in [
            ("00000000000000000012.log", FileName::Log(Offset(12))),
            ("00000000000000000012.snapshot", FileName::Snapshot(Offset(12))),
            ("00000000000000000012.timeindex", FileName::Index(Offset(12))),
            ("00000000000000000012.index.deleted", FileName::Ignored),
            ("00000000000000000012.log.deleted", FileName::Ignored),
            ("00000000000000000012.log.cleaned", FileName::Ignored),
            ("00000000000000000012.log.swap", FileName::Swap),
            ("leader-epoch-checkpoint", FileName::Ignored),
            ("leader-epoch-checkpoint.tmp", FileName::Ignored),
            ("partition.metadata.tmp", FileName::Ignored),
            ("remote.tmp", FileName::Other),
            ("12.log", FileName::Other),
            ("remote_log_snapshot", FileName::Other),
        ] {
            assert_eq!(FileName::parse(name), expected, "{name}");
        }
    }

    #[test]
    fn checkpoints() {
        let found = offset_checkpoint("0\n2\norders 0 15\na-b 3 0\n").unwrap();
        assert_eq!(found[&("orders".to_owned(), 0)], 15);
        assert_eq!(found.len(), 2);
        assert_eq!(leader_epochs("0\n2\n0 0\n2 420\n").unwrap(), [(0, 0), (2, 420)]);
        assert!(offset_checkpoint("").unwrap().is_empty() && leader_epochs("").unwrap().is_empty());
        for bad in ["\n", "0", "0\n", "1\n0\n", "0\n2\na 0 1\n", "0\n1\na 0\n", "0\nx\n", "0\n1\na b 1\n"] {
            assert!(offset_checkpoint(bad).is_err(), "{bad:?}");
        }
        for bad in ["0\n2\n2 0\n1 5\n", "0\n2\n1 9\n2 5\n", "0\n1\n-1 0\n"] {
            assert!(leader_epochs(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn topic_ids() {
        assert_eq!(topic_id("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ").unwrap()[15], 1);
        assert!(topic_id("version: 0\n").is_err());
        assert!(topic_id("topic_id: short").is_err());
    }

    #[test]
    fn no_bytes_make_a_snapshot_panic() {
        assert!(producer_snapshot(&[]).is_err());
        let mut bytes = vec![0, 1, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff];
        let crc = crc32c::crc32c(&bytes[6..]);
        bytes[2..6].copy_from_slice(&crc.to_be_bytes());
        assert_eq!(producer_snapshot(&bytes).unwrap_err(), "it ends before its last producer");
        bytes[9] = 0;
        assert!(producer_snapshot(&bytes).unwrap_err().contains("checksum"));
    }
}
