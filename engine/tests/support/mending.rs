//! Partitions that are damaged and repaired, and what must be true of them then.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use kaas_engine::batch::{BatchHeader, DecodeLimits, check_crc, decode_records};
use kaas_engine::leadership::{self, Claimant};
use kaas_engine::verify::Progress;
use kaas_engine::verify::repair::{Mode, Outcome, Repaired, repair_partition};
use kaas_substrate::Substrate;

use crate::looking::{bad, counted, expected, look, options};
use crate::support::{Log, Volume};

pub fn claimant() -> Claimant {
    Claimant { broker_id: -1, incarnation: "repair".into(), assignment_version: 0 }
}

pub fn repair(volume: &Volume) -> Option<Repaired> {
    repair_through(volume, &volume.substrate)
}

pub fn repair_through(volume: &Volume, substrate: &Arc<dyn Substrate>) -> Option<Repaired> {
    let mode = Mode::Repair(claimant());
    repair_partition(substrate, &volume.dir, &expected(), &options(), &mode, &Progress::default())
}

pub fn dry_run(volume: &Volume) -> Option<Repaired> {
    let substrate = &volume.substrate;
    repair_partition(substrate, &volume.dir, &expected(), &options(), &Mode::DryRun, &Progress::default())
}

/// Repairs; nothing is wrong afterwards, and another repair has nothing to do.
#[track_caller]
pub fn mend(volume: &Volume) -> Repaired {
    let repaired = repair(volume).expect("something is wrong");
    assert_eq!(repaired.outcome, Outcome::Repaired, "{repaired:#?}");
    let report = look(volume);
    assert!(bad(&report).is_empty(), "{:#?}\nafter {repaired:#?}", bad(&report));
    assert_eq!(repair(volume), None);
    repaired
}

/// Opens at an epoch that nobody has claimed.
pub fn open(volume: &Volume) -> Log {
    let highest = leadership::highest(&*volume.substrate, &volume.dir).unwrap();
    volume.open_at(highest.next().get()).unwrap()
}

/// Offset and value of the records of every batch that counts, with the place of the batch: file, first byte, byte
/// behind it. Control batches have no records here.
pub type Placed = BTreeMap<i64, (String, (String, u64, u64))>;

/// What stands in the logs, as far as they count.
pub fn placed(volume: &Volume) -> Placed {
    let mut placed = Placed::new();
    for (path, bytes) in counted(volume) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let all = bytes::Bytes::from(std::fs::read(&path).unwrap()).slice(..bytes as usize);
        let mut at = 0;
        while at < all.len() {
            let batch = all.slice(at..);
            let Ok(header) = BatchHeader::parse(&batch) else { break };
            if header.batch_bytes > batch.len() || check_crc(&batch).is_err() {
                break;
            }
            let place = (name.clone(), at as u64, (at + header.batch_bytes) as u64);
            if !header.is_control() {
                for record in decode_records(&batch, &DecodeLimits::default()).unwrap() {
                    let record = record.unwrap();
                    let value = String::from_utf8(record.value.unwrap_or_default().to_vec()).unwrap();
                    placed.insert(record.offset.0, (value, place.clone()));
                }
            }
            at += header.batch_bytes;
        }
    }
    placed
}

/// The records that the engine serves, control records left out.
pub fn served(log: &Log) -> BTreeMap<i64, String> {
    let mut from = log.partition.status().log_start.0;
    let end = log.partition.status().high_watermark.0;
    let mut records = BTreeMap::new();
    while from < end {
        let fetched = log.read(from).unwrap();
        let mut bytes = crate::support::bytes_of(&fetched);
        assert!(!bytes.is_empty(), "a reader would wait at offset {from}, and the log ends at {end}");
        while !bytes.is_empty() {
            check_crc(&bytes).unwrap();
            let header = BatchHeader::parse(&bytes).unwrap();
            if !header.is_control() {
                for record in decode_records(&bytes, &DecodeLimits::default()).unwrap() {
                    let record = record.unwrap();
                    let value = String::from_utf8(record.value.unwrap_or_default().to_vec()).unwrap();
                    records.insert(record.offset.0, value);
                }
            }
            from = header.next_offset().0;
            bytes = bytes.slice(header.batch_bytes..);
        }
    }
    records
}

/// The repaired partition opens, serves exactly `expected`, takes a record, and gives it an offset that was nobody's.
#[track_caller]
pub fn assert_serves(volume: &Volume, expected: &BTreeMap<i64, String>, given: i64) {
    let log = open(volume);
    assert_eq!(served(&log), *expected);
    let appended = log.append(&["behind it all"]).unwrap();
    assert!(appended.base_offset.0 >= given, "{appended:?} was given out before: {given}");
    log.close();
    let log = open(volume);
    let mut again = expected.clone();
    again.insert(appended.base_offset.0, "behind it all".into());
    assert_eq!(served(&log), again);
    log.close();
    let report = look(volume);
    assert!(bad(&report).is_empty(), "{:#?}", bad(&report));
}

/// The values without their places.
pub fn values(placed: &Placed) -> BTreeMap<i64, String> {
    placed.iter().map(|(offset, (value, _))| (*offset, value.clone())).collect()
}

/// Without the records of batches that have one of these bytes of a file.
pub fn without(placed: &Placed, file: &Path, from: u64, to: u64) -> BTreeMap<i64, String> {
    let file = file.file_name().unwrap().to_str().unwrap();
    let hit = |place: &(String, u64, u64)| place.0 == file && place.1 < to && from < place.2;
    let kept = placed.iter().filter(|(_, (_, place))| !hit(place));
    kept.map(|(offset, (value, _))| (*offset, value.clone())).collect()
}

/// The offset behind everything that was given out.
pub fn end(volume: &Volume) -> i64 {
    let log = open(volume);
    let end = log.partition.status().log_end.0;
    log.crash();
    end
}

/// Every file below a directory, and what is in it.
pub fn contents(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut contents = BTreeMap::new();
    let mut dirs = BTreeSet::from([root.to_owned()]);
    while let Some(dir) = dirs.pop_first() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let name = entry.path().strip_prefix(root).unwrap().to_string_lossy().into_owned();
            if entry.file_type().unwrap().is_dir() {
                dirs.insert(entry.path());
                contents.insert(name, Vec::new());
            } else if entry.file_type().unwrap().is_symlink() {
                let target = std::fs::read_link(entry.path()).unwrap();
                contents.insert(name, target.into_os_string().into_encoded_bytes());
            } else {
                contents.insert(name, std::fs::read(entry.path()).unwrap());
            }
        }
    }
    contents
}
