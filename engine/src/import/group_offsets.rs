//! Committed offsets: out of Kafka's topic `__consumer_offsets`, into the slots of kaas' groups.
//!
//! Keys and values have a version (i16) first. A key of version 0 or 1 is (group, topic, partition); its value is an offset, a null
//! value takes it back. Keys of higher versions are about members of groups, who have to join anew. Values of version 4 (and
//! up) are "flexible": strings have compact lengths. Offsets that are part of a transaction count once its marker says so.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use kaas_substrate::{OpenMode, Substrate};
use serde::Serialize;

use super::kafka_files::{DirName, Fields, FileName};
use super::missing::{absent_partitions, check_absent, missing};
use super::source::{Checkpoints, Source, shown};
use super::{ImportError, Problem};
use crate::batch::{BatchHeader, DecodeLimits, Marker, decode_records, read_marker};
use crate::io::{IoPool, IoPoolSettings};
use crate::journal::{self, Journal, JournalSettings};
use crate::layout::{GROUP_SLOTS, group_slot_dir, slot_of};
use crate::leadership::{self, Claimant};
use crate::log::scan::{BatchScanner, Check, Scanned};
use crate::types::{Offset, ProducerId};

/// Kafka's topic.
pub(super) const TOPIC: &str = "__consumer_offsets";

/// The first version of keys that is not about an offset.
const MEMBERS_KEY: i16 = 2;

const WITHOUT: &str = "restore it from another replica, or import without committed offsets (--no-groups)";

/// Offsets of one group that one append of a journal holds.
const OFFSETS_PER_APPEND: usize = 1000;

/// A committed offset, as the journals of slots have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct CommittedOffset {
    partition: i32,
    offset: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader_epoch: Option<i32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    metadata: String,
    commit_timestamp_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    expire_timestamp_ms: Option<i64>,
}

/// An entry of a journal.
#[derive(Serialize)]
struct Entry<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    group: &'a str,
    topics: BTreeMap<&'a str, Vec<&'a CommittedOffset>>,
}

/// Group, topic, partition.
type Key = (String, String, i32);

/// Of one slot: by group, topics and offsets.
type SlotOffsets<'a> = BTreeMap<&'a str, Vec<(&'a str, &'a CommittedOffset)>>;

type Offsets = BTreeMap<Key, CommittedOffset>;

/// What was committed.
#[derive(Debug, Default)]
pub(super) struct GroupOffsets {
    offsets: Offsets,
}

/// What the records of one partition of the topic say so far.
#[derive(Debug, Default)]
struct State {
    offsets: Offsets,
    /// Of transactions that have not ended.
    pending: BTreeMap<i64, Vec<(Key, Option<CommittedOffset>)>>,
    /// The offset behind the last batch.
    end: Offset,
}

impl State {
    /// Takes a record in; `None` if it cannot be read.
    fn apply(&mut self, header: &BatchHeader, key: &[u8], value: Option<&[u8]>) -> Option<()> {
        let mut fields = Fields(key);
        if fields.i16()? >= MEMBERS_KEY {
            return Some(());
        }
        let key = (fields.string()??, fields.string()??, fields.i32()?);
        let value = match value {
            Some(value) => Some(committed(key.2, value)?),
            None => None,
        };
        match header.producer_id.filter(|_| header.is_transactional()) {
            Some(ProducerId(id)) => self.pending.entry(id).or_default().push((key, value)),
            None => self.set(key, value),
        }
        Some(())
    }

    fn set(&mut self, key: Key, value: Option<CommittedOffset>) {
        match value {
            Some(value) => self.offsets.insert(key, value),
            None => self.offsets.remove(&key),
        };
    }

    fn end(&mut self, producer: i64, marker: Marker) {
        let ended = self.pending.remove(&producer).unwrap_or_default();
        if marker == Marker::Commit {
            ended.into_iter().for_each(|(key, value)| self.set(key, value));
        }
    }
}

/// Reads the value of an offset.
fn committed(partition: i32, value: &[u8]) -> Option<CommittedOffset> {
    let mut fields = Fields(value);
    let version = fields.i16()?;
    let offset = fields.i64()?;
    let leader_epoch = if version >= 3 { Some(fields.i32()?).filter(|epoch| *epoch >= 0) } else { None };
    let metadata = if version >= 4 { fields.compact_string()? } else { fields.string()? };
    let commit_timestamp_ms = fields.i64()?;
    let expire_timestamp_ms = if version == 1 { Some(fields.i64()?).filter(|at| *at >= 0) } else { None };
    (version >= 0 && offset >= 0).then_some(CommittedOffset {
        partition,
        offset,
        leader_epoch,
        metadata: metadata.unwrap_or_default(),
        commit_timestamp_ms,
        expire_timestamp_ms,
    })
}

impl GroupOffsets {
    /// Reads what Kafka's groups have committed, in all `sources` that are whole log directories. Of several replicas of a
    /// partition the longest counts. `expected` is how many partitions the topic has, if Kafka's metadata says it: a group whose
    /// partition is missing would begin anew without a word.
    pub(super) fn read(sources: &[Source], expected: Option<u32>, problems: &mut Vec<Problem>) -> Self {
        let mut longest: BTreeMap<u32, (Offset, Offsets)> = BTreeMap::new();
        let mut partitions_here = BTreeSet::new();
        let mut absent = Vec::new();
        for source in sources.iter().filter(|source| source.only.is_none()) {
            let volume = &*source.volume;
            let replicas = partitions_in(volume).and_then(|(checkpoints, partitions)| {
                partitions_here.extend(partitions.iter().copied());
                let is_gone = |topic: &str, number| topic == TOPIC && !partitions.contains(&number);
                absent.extend(absent_partitions(volume, &checkpoints, is_gone));
                let read = |partition| Ok((partition, read_dir(volume, partition, &checkpoints, problems)?));
                partitions.into_iter().map(read).collect::<Result<Vec<_>, kaas_substrate::Error>>()
            });
            match replicas {
                Ok(replicas) => {
                    for (partition, replica) in replicas {
                        let known = longest.entry(partition).or_default();
                        if known.0 <= replica.0 {
                            *known = replica;
                        }
                    }
                }
                Err(error) => problems.push(Problem::unreadable(volume, &error)),
            }
        }
        check_absent(&absent, |_, number| partitions_here.contains(&number), WITHOUT, problems);
        // Of which that is told.
        partitions_here.extend(absent.iter().map(|absent| absent.partition));
        let missing =
            (0..expected.unwrap_or(0)).filter(|partition| !partitions_here.contains(partition)).count();
        let whole = sources.iter().find(|source| source.only.is_none());
        if let Some(source) = whole.filter(|_| missing > 0) {
            let of = expected.unwrap_or(0);
            problems.push(Problem::new(
                source.volume.root().to_owned(),
                format!("{missing} of the {of} partitions of {TOPIC} are not here"),
                "give all log directories that hold some, or import without committed offsets (--no-groups)",
            ));
        }
        Self { offsets: longest.into_values().flat_map(|(_, offsets)| offsets).collect() }
    }

    /// Keeps those of the topics that `wanted` names.
    pub(super) fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        self.offsets.retain(|(_, topic, _), _| wanted(topic));
    }

    /// Number of groups, and of offsets.
    pub(super) fn counts(&self) -> (usize, usize) {
        let mut groups: Vec<&str> = self.offsets.keys().map(|(group, ..)| group.as_str()).collect();
        groups.dedup();
        (groups.len(), self.offsets.len())
    }

    /// Appends them to the journals of the groups' slots. Durable on return.
    pub(super) fn write(
        &self,
        substrate: &Arc<dyn Substrate>,
        claimant: &Claimant,
    ) -> Result<(), ImportError> {
        if self.offsets.is_empty() {
            return Ok(());
        }
        let mut slots: BTreeMap<usize, SlotOffsets<'_>> = BTreeMap::new();
        for ((group, topic, _), offset) in &self.offsets {
            let slot = slots.entry(slot_of(group, GROUP_SLOTS)).or_default();
            slot.entry(group).or_default().push((topic, offset));
        }
        let pool = IoPoolSettings { name: "kaas-import", max_threads: 1, ..IoPoolSettings::default() };
        let pool = Arc::new(IoPool::new(pool).map_err(|source| ImportError::Thread { source })?);
        for (slot, groups) in slots {
            let dir = group_slot_dir(slot);
            make_parents(&**substrate, &dir)?;
            journal::birth(&**substrate, &dir, &claimant.incarnation)?;
            let epoch = leadership::highest(&**substrate, &dir)?.next();
            let settings = JournalSettings::default();
            let (journal, _) = Journal::open(substrate, &dir, epoch, claimant, &pool, settings)?;
            for (group, offsets) in groups {
                for chunk in offsets.chunks(OFFSETS_PER_APPEND) {
                    let mut topics: BTreeMap<&str, Vec<&CommittedOffset>> = BTreeMap::new();
                    chunk.iter().for_each(|(topic, offset)| topics.entry(topic).or_default().push(offset));
                    journal.append(&[Entry { kind: "offsets", group, topics }]).wait()?;
                }
            }
            journal.close();
        }
        Ok(())
    }
}

/// Makes the directories above a slot's. Durable on return.
fn make_parents(substrate: &dyn Substrate, dir: &Path) -> Result<(), kaas_substrate::Error> {
    let mut above: Vec<&Path> = dir.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()).collect();
    above.reverse();
    for dir in above {
        match substrate.create_dir(dir) {
            Err(error) if !error.is_exists() => return Err(error),
            _ => substrate.sync_dir(dir.parent().unwrap_or(Path::new("")))?,
        }
    }
    Ok(())
}

/// The partitions of the topic in a log directory, and the directory's checkpoints.
fn partitions_in(volume: &dyn Substrate) -> Result<(Checkpoints, Vec<u32>), kaas_substrate::Error> {
    let entries = volume.list(Path::new(""))?;
    let partition = |entry: &kaas_substrate::Entry| match DirName::parse(entry.name.to_str()?) {
        DirName::Partition { topic, partition } => (topic == TOPIC).then_some(partition),
        _ => None,
    };
    let partitions = entries.iter().filter_map(partition).collect();
    // What is wrong with the checkpoints has been told.
    Ok((Checkpoints::read(volume, &entries, &mut Vec::new()), partitions))
}

/// Reads a partition: the offset behind its last record, and what was committed.
fn read_dir(
    volume: &dyn Substrate,
    partition: u32,
    checkpoints: &Checkpoints,
    problems: &mut Vec<Problem>,
) -> Result<(Offset, Offsets), kaas_substrate::Error> {
    let dir = &PathBuf::from(format!("{TOPIC}-{partition}"));
    let mut logs: Vec<_> = volume
        .list(dir)?
        .iter()
        .filter_map(|entry| match FileName::parse(&entry.name.to_string_lossy()) {
            FileName::Log(base) => Some(base),
            _ => None,
        })
        .collect();
    logs.sort_unstable();
    let recovery_point = checkpoints.recovery_point(&(TOPIC.to_owned(), partition)).unwrap_or(Offset::ZERO);
    let mut state = State::default();
    let mut tell = |path: &Path, reason: String| {
        let problem = format!("committed offsets cannot be read: {reason}");
        problems.push(Problem::new(shown(volume, path), problem, WITHOUT));
    };
    for base in logs {
        let path = dir.join(format!("{:020}.log", base.0));
        state.end = state.end.max(base);
        match read_file(volume, &path, &mut state)? {
            FileEnd::Whole => {}
            // A crash may have left it so, at the end of what was flushed.
            FileEnd::Torn(_) if !checkpoints.is_clean && state.end >= recovery_point => break,
            FileEnd::Torn(reason) | FileEnd::Unreadable(reason) => {
                tell(&path, reason);
                return Ok((state.end, state.offsets));
            }
        }
    }
    if state.end < recovery_point {
        tell(dir, format!("{}: the log ended at {recovery_point}", missing(state.end, recovery_point)));
    }
    if !state.pending.is_empty() {
        problems.push(Problem::new(
            shown(volume, dir),
            "offsets were committed in a transaction that has not ended",
            "start Kafka and let its coordinator end it, or import without committed offsets (--no-groups)",
        ));
    }
    Ok((state.end, state.offsets))
}

/// How the reading of a file ended.
enum FileEnd {
    Whole,
    /// At bytes that are no batch.
    Torn(String),
    /// At a batch that says what it cannot.
    Unreadable(String),
}

fn read_file(
    volume: &dyn Substrate,
    path: &Path,
    state: &mut State,
) -> Result<FileEnd, kaas_substrate::Error> {
    let file = volume.open(path, OpenMode::Read)?;
    let mut scanner = BatchScanner::new(&*file, 0, file.length()?, Check::Crc);
    loop {
        let (position, header) = match scanner.next()? {
            Scanned::Batch { position, header } => (position, header),
            Scanned::End => return Ok(FileEnd::Whole),
            Scanned::Torn { position, reason } => {
                return Ok(FileEnd::Torn(format!("at byte {position}: {reason}")));
            }
        };
        let Some(batch) = scanner.verified_batch(position, &header)?.map(Bytes::copy_from_slice) else {
            return Ok(FileEnd::Unreadable("it changes while it is read".to_owned()));
        };
        if let Err(reason) = read_batch(&batch, &header, state) {
            return Ok(FileEnd::Unreadable(format!("at offset {}: {reason}", header.base_offset)));
        }
        state.end = header.next_offset();
    }
}

fn read_batch(batch: &Bytes, header: &BatchHeader, state: &mut State) -> Result<(), String> {
    if header.is_control() {
        let marker = read_marker(batch).map_err(|error| error.to_string())?;
        if let Some((marker, ProducerId(id))) = marker.zip(header.producer_id) {
            state.end(id, marker.marker);
        }
        return Ok(());
    }
    for record in decode_records(batch, &DecodeLimits::default()).map_err(|error| error.to_string())? {
        let record = record.map_err(|error| error.to_string())?;
        let applied = match &record.key {
            Some(key) => state.apply(header, key, record.value.as_deref()),
            None => Some(()),
        };
        applied.ok_or_else(|| format!("the record at offset {}", record.offset))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{BatchOptions, Producer, SimpleRecord, data_batch};

    fn key(group: &str, topic: &str, partition: i32) -> Vec<u8> {
        let mut bytes = vec![0, 1];
        for text in [group, topic] {
            bytes.extend_from_slice(&i16::try_from(text.len()).unwrap().to_be_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
        bytes.extend_from_slice(&partition.to_be_bytes());
        bytes
    }

    fn value(version: i16, offset: i64) -> Vec<u8> {
        let mut bytes = version.to_be_bytes().to_vec();
        bytes.extend_from_slice(&offset.to_be_bytes());
        if version >= 3 {
            bytes.extend_from_slice(&7_i32.to_be_bytes());
        }
        if version >= 4 {
            bytes.extend_from_slice(&[2, b'm'])
        } else {
            bytes.extend_from_slice(&[0, 1, b'm'])
        };
        bytes.extend_from_slice(&1000_i64.to_be_bytes());
        if version == 1 {
            bytes.extend_from_slice(&2000_i64.to_be_bytes());
        }
        bytes
    }

    fn apply(state: &mut State, transaction: Option<i64>, key: Vec<u8>, value: Option<Vec<u8>>) {
        let producer = transaction.map(|id| Producer { id: ProducerId(id), epoch: 0, base_sequence: 0 });
        let options =
            BatchOptions { producer, transactional: transaction.is_some(), ..BatchOptions::default() };
        let record = SimpleRecord {
            key: Some(key.into()),
            value: value.map(Into::into),
            ..SimpleRecord::of_value("")
        };
        let batch = data_batch(&[record], &options).unwrap();
        read_batch(&batch, &BatchHeader::parse(&batch).unwrap(), state).unwrap();
    }

    #[test]
    fn every_version_of_a_value_is_read() {
        for version in 0..=4 {
            let read = committed(3, &value(version, 42)).unwrap();
            assert_eq!(
                (read.offset, read.metadata.as_str(), read.commit_timestamp_ms),
                (42, "m", 1000),
                "{version}"
            );
            assert_eq!(read.leader_epoch, (version >= 3).then_some(7));
            assert_eq!(read.expire_timestamp_ms, (version == 1).then_some(2000));
        }
        assert_eq!(committed(3, &[0, 3, 0]), None);
    }

    #[test]
    fn later_commits_win_and_tombstones_take_back() {
        let mut state = State::default();
        apply(&mut state, None, key("g", "t", 0), Some(value(3, 1)));
        apply(&mut state, None, key("g", "t", 0), Some(value(3, 5)));
        apply(&mut state, None, key("g", "t", 1), Some(value(3, 1)));
        apply(&mut state, None, key("g", "t", 1), None);
        apply(&mut state, None, vec![0, 2, 0, 1, b'g'], Some(vec![9]));
        assert_eq!(state.offsets.len(), 1);
        assert_eq!(state.offsets[&("g".into(), "t".into(), 0)].offset, 5);
    }

    #[test]
    fn a_transactions_offsets_count_with_its_commit() {
        let mut state = State::default();
        apply(&mut state, Some(1), key("g", "t", 0), Some(value(3, 1)));
        apply(&mut state, Some(2), key("g", "t", 1), Some(value(3, 1)));
        apply(&mut state, Some(3), key("g", "t", 2), Some(value(3, 1)));
        assert!(state.offsets.is_empty());
        state.end(1, Marker::Commit);
        state.end(2, Marker::Abort);
        assert_eq!(state.offsets.len(), 1);
        assert_eq!(state.pending.len(), 1);
    }
}
