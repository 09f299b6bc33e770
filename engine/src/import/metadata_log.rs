//! Topic configs, out of KRaft's metadata log (KIP-500): `__cluster_metadata-0`, its newest snapshot and the segments.
//!
//! Of the many kinds of records four matter here: a topic is created (2), a config is set or taken back (4), a topic is
//! removed (9), producer ids are given to a broker (15). Each value is framed by three varints: frame version (1), kind, version of the kind. All of them are
//! "flexible": strings have compact lengths.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use kaas_substrate::{OpenMode, Substrate};

use super::Problem;
use super::kafka_files::{Fields, offset_name};
use super::source::shown;
use crate::batch::{DecodeLimits, decode_records};
use crate::log::scan::{BatchScanner, Check, Scanned};
use crate::types::Offset;

pub(super) const DIR: &str = "__cluster_metadata-0";

/// A topic's own configs.
pub(super) type TopicConfigs = BTreeMap<String, String>;

const FRAME_VERSION: u32 = 1;
const TOPIC_RECORD: u32 = 2;
const CONFIG_RECORD: u32 = 4;
const REMOVE_TOPIC_RECORD: u32 = 9;
const PRODUCER_IDS_RECORD: u32 = 15;
const TOPIC_RESOURCE: i8 = 2;

/// What the records say.
#[derive(Debug, Default)]
pub(super) struct State {
    names: BTreeMap<[u8; 16], String>,
    pub(super) configs: BTreeMap<String, TopicConfigs>,
    /// The first producer id that Kafka has not given to a broker.
    pub(super) next_producer_id: i64,
}

impl State {
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
                self.names.insert(fields.take()?, name);
            }
            CONFIG_RECORD => {
                let resource = fields.i8()?;
                let (topic, name, value) =
                    (fields.compact_string()??, fields.compact_string()??, fields.compact_string()?);
                if resource == TOPIC_RESOURCE {
                    let configs = self.configs.entry(topic).or_default();
                    match value {
                        Some(value) => configs.insert(name, value),
                        None => configs.remove(&name),
                    };
                }
            }
            REMOVE_TOPIC_RECORD => {
                if let Some(name) = self.names.remove(&fields.take()?) {
                    self.configs.remove(&name);
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

/// Reads the metadata log.
pub(super) fn read(
    volume: &dyn Substrate,
    dir: &Path,
    problems: &mut Vec<Problem>,
) -> Result<State, kaas_substrate::Error> {
    let (mut logs, mut snapshot) = (Vec::new(), None);
    for entry in volume.list(dir)? {
        let name = entry.name.to_string_lossy().into_owned();
        match name.rsplit_once('.') {
            Some((stem, "log")) => logs.extend(offset_name(stem).map(|base| (base, name.clone()))),
            // `<end offset>-<epoch>.checkpoint`
            Some((stem, "checkpoint")) => {
                let end = stem.split_once('-').and_then(|(end, _)| offset_name(end));
                snapshot = snapshot.max(end.map(|end| (end, name.clone())));
            }
            _ => {}
        }
    }
    logs.sort_unstable();
    let mut state = State::default();
    let mut from = Offset::ZERO;
    if let Some((end, name)) = snapshot {
        read_file(volume, &dir.join(name), Offset::ZERO, &mut state, problems)?;
        from = end;
    }
    for (_, name) in logs {
        read_file(volume, &dir.join(name), from, &mut state, problems)?;
    }
    Ok(state)
}

/// Reads the records of a file from `from` on. A torn end is where Kafka would cut it.
fn read_file(
    volume: &dyn Substrate,
    path: &Path,
    from: Offset,
    state: &mut State,
    problems: &mut Vec<Problem>,
) -> Result<(), kaas_substrate::Error> {
    let file = volume.open(path, OpenMode::Read)?;
    let mut scanner = BatchScanner::new(&*file, 0, file.length()?, Check::Crc);
    let mut unreadable = |reason: String| {
        problems.push(Problem::new(
            shown(volume, path),
            format!("the metadata log cannot be read: {reason}"),
            "name what the topics need with --config, and give a copy of the log directory without __cluster_metadata-0",
        ));
    };
    while let Scanned::Batch { position, header } = scanner.next()? {
        if header.is_control() || header.last_offset() < from {
            continue;
        }
        let Some(batch) = scanner.verified_batch(position, &header)?.map(Bytes::copy_from_slice) else {
            break;
        };
        let records = match decode_records(&batch, &DecodeLimits::default()) {
            Ok(records) => records,
            Err(error) => {
                unreadable(error.to_string());
                break;
            }
        };
        for record in records {
            let read = record.map_err(|error| error.to_string()).and_then(|record| {
                let is_new = record.offset >= from;
                let value = record.value.filter(|_| is_new);
                value
                    .map_or(Some(()), |value| state.apply(&value))
                    .ok_or_else(|| format!("at offset {}", record.offset))
            });
            if let Err(reason) = read {
                unreadable(reason);
                return Ok(());
            }
        }
    }
    Ok(())
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
        let broker = record(4, &[&[4], &compact("1"), &compact("log.retention.ms"), &compact("7")]);
        for value in [
            record(2, &[&compact("orders"), &[9; 16]]),
            config("orders", "retention.ms", Some("5")),
            config("orders", "segment.bytes", Some("6")),
            config("orders", "segment.bytes", None),
            record(2, &[&compact("gone"), &[8; 16]]),
            config("gone", "retention.ms", Some("5")),
            record(9, &[&[8; 16]]),
            broker,
            record(27, &[&[1, 2, 3]]),
        ] {
            state.apply(&value).unwrap();
        }
        assert_eq!(state.configs.len(), 1);
        assert_eq!(state.configs["orders"], TopicConfigs::from([("retention.ms".into(), "5".into())]));
        assert_eq!(state.apply(&[1, 4, 0, 2, 200]), None);
        assert_eq!(state.apply(&[0, 4, 0]), None);
    }
}
