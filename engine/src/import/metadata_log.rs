//! What there is to know of topics in KRaft's metadata log (KIP-500): `__cluster_metadata-0`, its newest snapshot and the
//! segments.
//!
//! Of the many kinds of records five matter here: a topic is created (2), and a partition of it (3), a config of a topic or a
//! broker is set or taken back (4), a topic is removed (9), producer ids are given to a broker (15). Each value is framed by three varints:
//! frame version (1), kind, version of the kind. All of them are "flexible": strings have compact lengths.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use kaas_config::ConfigMap;
use kaas_substrate::{OpenMode, Substrate};

use super::Problem;
use super::kafka_files::{Fields, offset_name};
use super::missing::missing;
use super::source::shown;
use crate::batch::{DecodeLimits, decode_records};
use crate::log::scan::{BatchScanner, Check, Scanned};
use crate::types::Offset;

pub(super) const DIR: &str = "__cluster_metadata-0";

const FRAME_VERSION: u32 = 1;
const TOPIC_RECORD: u32 = 2;
const PARTITION_RECORD: u32 = 3;
const CONFIG_RECORD: u32 = 4;
const REMOVE_TOPIC_RECORD: u32 = 9;
const PRODUCER_IDS_RECORD: u32 = 15;
/// The type of a control record.
const SNAPSHOT_FOOTER: i16 = 4;

const TOPIC_RESOURCE: i8 = 2;
const BROKER_RESOURCE: i8 = 4;

/// The broker that stands for all.
const ALL_BROKERS: &str = "";

const RESTORE: &str = "restore it from another node of Kafka, or give a copy of the log directory without \
                       __cluster_metadata-0 and name with --config what the topics need";

/// A topic that has not been removed.
#[derive(Debug, Default)]
struct KnownTopic {
    name: String,
    partitions: u32,
}

/// What the records say.
#[derive(Debug, Default)]
pub(super) struct State {
    topics: BTreeMap<[u8; 16], KnownTopic>,
    configs: BTreeMap<String, ConfigMap>,
    /// Dynamic configs, by broker.
    brokers: BTreeMap<String, ConfigMap>,
    next_producer_id: i64,
    end: Offset,
}

impl State {
    /// The offset behind the last record: of two replicas the one with the higher one is newer.
    pub(super) fn end(&self) -> Offset {
        self.end
    }

    /// A topic's own configs.
    pub(super) fn configs(&self, topic: &str) -> ConfigMap {
        self.configs.get(topic).cloned().unwrap_or_default()
    }

    /// The dynamic configs of one broker.
    pub(super) fn configs_of_broker(&self, id: i32) -> ConfigMap {
        self.brokers.get(&id.to_string()).cloned().unwrap_or_default()
    }

    /// The dynamic configs of all brokers.
    pub(super) fn configs_of_all_brokers(&self) -> ConfigMap {
        self.brokers.get(ALL_BROKERS).cloned().unwrap_or_default()
    }

    /// Whether segments of a topic may be in tiered storage.
    pub(super) fn is_tiered(&self, topic: &str) -> bool {
        let enabled = self.configs.get(topic).and_then(|configs| configs.get("remote.storage.enable"));
        enabled.is_some_and(|enabled| enabled == "true")
    }

    /// How many partitions the topic with an id has; `None` if there is no such topic.
    pub(super) fn partitions(&self, id: [u8; 16]) -> Option<u32> {
        self.topics.get(&id).map(|topic| topic.partitions)
    }

    /// How many partitions the topic of that name has; `None` if there is no such topic.
    pub(super) fn partitions_of(&self, name: &str) -> Option<u32> {
        self.topics.values().find(|topic| topic.name == name).map(|topic| topic.partitions)
    }

    /// The names of all topics.
    pub(super) fn topics(&self) -> impl Iterator<Item = &str> {
        self.topics.values().map(|topic| topic.name.as_str())
    }

    /// The first producer id that Kafka has not given to a broker.
    pub(super) fn next_producer_id(&self) -> i64 {
        self.next_producer_id
    }

    /// Takes a record in; `None` if it cannot be read.
    fn apply(&mut self, value: &[u8]) -> Option<()> {
        let mut fields = Fields(value);
        if fields.uvarint()? != FRAME_VERSION {
            return None;
        }
        let (kind, _version) = (fields.uvarint()?, fields.uvarint()?);
        match kind {
            TOPIC_RECORD => {
                let name = fields.compact_string()??;
                self.topics.insert(fields.take()?, KnownTopic { name, partitions: 0 });
            }
            PARTITION_RECORD => {
                let partition = u32::try_from(fields.i32()?).ok()?;
                if let Some(topic) = self.topics.get_mut(&fields.take()?) {
                    topic.partitions = topic.partitions.max(partition.checked_add(1)?);
                }
            }
            CONFIG_RECORD => {
                let resource = fields.i8()?;
                let (of, name, value) =
                    (fields.compact_string()??, fields.compact_string()??, fields.compact_string()?);
                let resources = match resource {
                    TOPIC_RESOURCE => &mut self.configs,
                    BROKER_RESOURCE => &mut self.brokers,
                    _ => return Some(()),
                };
                let configs = resources.entry(of).or_default();
                match value {
                    Some(value) => configs.insert(name, value),
                    None => configs.remove(&name),
                };
            }
            REMOVE_TOPIC_RECORD => {
                if let Some(topic) = self.topics.remove(&fields.take()?) {
                    self.configs.remove(&topic.name);
                }
            }
            PRODUCER_IDS_RECORD => {
                let (_broker, _broker_epoch) = (fields.i32()?, fields.i64()?);
                self.next_producer_id = self.next_producer_id.max(fields.i64()?);
            }
            _ => {}
        }
        Some(())
    }
}

/// Reads the metadata log; `None` if it cannot be read whole, which is a problem. If Kafka was not stopped cleanly, its last
/// segment may have a torn end, which is where Kafka would cut it.
pub(super) fn read(
    volume: &dyn Substrate,
    dir: &Path,
    is_clean: bool,
    problems: &mut Vec<Problem>,
) -> Option<State> {
    let mut reader = Reader { volume, state: State::default(), is_ended: false, expected: None };
    match reader.run(dir, is_clean) {
        Ok(Ok(())) => return Some(reader.state),
        Ok(Err((path, reason))) => {
            let problem = format!("the metadata log cannot be read: {reason}");
            problems.push(Problem::new(shown(volume, &path), problem, RESTORE));
        }
        Err(error) => problems.push(Problem::unreadable(volume, &error)),
    }
    None
}

/// Whether a control batch is the last of a snapshot (KIP-630): the key of its record is a version and a type.
fn is_snapshot_footer(batch: &Bytes) -> bool {
    let record = decode_records(batch, &DecodeLimits::default()).ok().and_then(|mut records| records.next());
    let key = record.and_then(Result::ok).and_then(|record| record.key).unwrap_or_default();
    let mut fields = Fields(&key);
    fields.i16().is_some() && fields.i16() == Some(SNAPSHOT_FOOTER)
}

struct Reader<'a> {
    volume: &'a dyn Substrate,
    state: State,
    /// The last batch was the footer of a snapshot.
    is_ended: bool,
    /// The offset behind the last batch of the segments, or the snapshot's end.
    expected: Option<Offset>,
}

/// The outer error is the volume's, the inner one says what of a file cannot be read.
type Outcome<E> = Result<Result<(), E>, kaas_substrate::Error>;

impl Reader<'_> {
    fn run(&mut self, dir: &Path, is_clean: bool) -> Outcome<(PathBuf, String)> {
        let (mut logs, mut snapshot, mut reached) = (Vec::new(), None, None);
        for entry in self.volume.list(dir)? {
            let name = entry.name.to_string_lossy().into_owned();
            match name.rsplit_once('.') {
                Some((stem, "log")) => logs.extend(offset_name(stem).map(|base| (base, name.clone()))),
                // Of the producers, of which there are none, written where the log ends when Kafka stops.
                Some((stem, "snapshot")) => reached = reached.max(offset_name(stem)),
                // `<end offset>-<epoch>.checkpoint`
                Some((stem, "checkpoint")) => {
                    let end = stem.split_once('-').and_then(|(end, _)| offset_name(end));
                    snapshot = snapshot.max(end.map(|end| (end, name.clone())));
                }
                _ => {}
            }
        }
        logs.sort_unstable();
        let mut from = Offset::ZERO;
        if let Some((end, name)) = snapshot {
            // Its own offsets begin at 0.
            let path = dir.join(name);
            if let Err(reason) = self.file(&path, Offset::ZERO, false)? {
                return Ok(Err((path, reason)));
            }
            if !self.is_ended {
                return Ok(Err((path, "the snapshot has no end".to_owned())));
            }
            from = end;
        }
        self.expected = Some(from);
        for (index, (_, name)) in logs.iter().enumerate() {
            // Below the snapshot's end nothing is needed any more, and there may be older segments.
            if logs.get(index + 1).is_some_and(|(next, _)| *next <= from) {
                continue;
            }
            let may_be_torn = !is_clean && index + 1 == logs.len();
            let path = dir.join(name);
            if let Err(reason) = self.file(&path, from, may_be_torn)? {
                return Ok(Err((path, reason)));
            }
        }
        self.state.end = self.expected.unwrap_or(from);
        match reached.filter(|reached| is_clean && *reached > self.state.end) {
            Some(reached) => {
                let reason = format!("{}: the log had reached {reached}", missing(self.state.end, reached));
                Ok(Err((dir.to_owned(), reason)))
            }
            None => Ok(Ok(())),
        }
    }

    /// Reads the records of a file from `from` on.
    fn file(&mut self, path: &Path, from: Offset, may_be_torn: bool) -> Outcome<String> {
        let file = self.volume.open(path, OpenMode::Read)?;
        let mut scanner = BatchScanner::new(&*file, 0, file.length()?, Check::Crc);
        loop {
            let (position, header) = match scanner.next()? {
                Scanned::Batch { position, header } => (position, header),
                Scanned::End => return Ok(Ok(())),
                Scanned::Torn { .. } if may_be_torn => return Ok(Ok(())),
                Scanned::Torn { position, reason } => {
                    return Ok(Err(format!("at byte {position}: {reason}")));
                }
            };
            if header.last_offset() < from {
                continue;
            }
            if let Some(expected) = self.expected.replace(header.next_offset())
                && header.base_offset > expected
            {
                return Ok(Err(missing(expected, header.base_offset)));
            }
            let Some(batch) = scanner.verified_batch(position, &header)?.map(Bytes::copy_from_slice) else {
                return Ok(Err(format!("at byte {position}: it changes while it is read")));
            };
            self.is_ended = header.is_control() && is_snapshot_footer(&batch);
            if header.is_control() {
                continue;
            }
            if let Err(reason) = self.batch(&batch, from) {
                return Ok(Err(format!("at offset {}: {reason}", header.base_offset)));
            }
        }
    }

    fn batch(&mut self, batch: &Bytes, from: Offset) -> Result<(), String> {
        for record in decode_records(batch, &DecodeLimits::default()).map_err(|error| error.to_string())? {
            let record = record.map_err(|error| error.to_string())?;
            let Some(value) = record.value.filter(|_| record.offset >= from) else { continue };
            self.state.apply(&value).ok_or_else(|| format!("the record at offset {}", record.offset))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compact(text: &str) -> Vec<u8> {
        let mut bytes = vec![u8::try_from(text.len() + 1).unwrap()];
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }

    fn record(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
        let mut bytes = vec![1, kind, 0];
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        bytes.push(0);
        bytes
    }

    #[test]
    fn configs_are_set_taken_back_and_go_with_their_topic() {
        let mut state = State::default();
        let config = |topic: &str, name: &str, value: Option<&str>| {
            let value = value.map_or(vec![0], compact);
            record(4, &[&[2], &compact(topic), &compact(name), &value])
        };
        let broker = |id: &str, value: &str| {
            record(4, &[&[4], &compact(id), &compact("log.retention.ms"), &compact(value)])
        };
        for value in [
            record(2, &[&compact("orders"), &[9; 16]]),
            record(3, &[&[0, 0, 0, 2], &[9; 16]]),
            record(3, &[&[0, 0, 0, 0], &[9; 16]]),
            config("orders", "remote.storage.enable", Some("true")),
            config("orders", "remote.storage.enable", Some("false")),
            config("orders", "retention.ms", Some("5")),
            config("orders", "segment.bytes", Some("6")),
            config("orders", "segment.bytes", None),
            record(2, &[&compact("gone"), &[8; 16]]),
            config("gone", "retention.ms", Some("5")),
            record(9, &[&[8; 16]]),
            broker("1", "7"),
            broker("", "8"),
            record(27, &[&[1, 2, 3]]),
        ] {
            state.apply(&value).unwrap();
        }
        assert_eq!(state.configs.len(), 1);
        let expected = [("retention.ms", "5"), ("remote.storage.enable", "false")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(state.configs("orders"), ConfigMap::from(expected));
        assert_eq!((state.partitions([9; 16]), state.partitions([8; 16])), (Some(3), None));
        assert_eq!(state.configs_of_broker(1)["log.retention.ms"], "7");
        assert_eq!(state.configs_of_all_brokers()["log.retention.ms"], "8");
        assert!(state.configs_of_broker(2).is_empty());
        assert!(!state.is_tiered("orders"));
        assert_eq!(state.apply(&[1, 4, 0, 2, 200]), None);
        assert_eq!(state.apply(&[0, 4, 0]), None);
    }
}
