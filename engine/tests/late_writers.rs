//! No two leaders write one file: a leader that goes on after it was deposed changes nothing that its successor refers to.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, clippy::cast_possible_truncation)]

#[path = "support/looking.rs"]
mod looking;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kaas_engine::batch::{BatchOptions, SimpleRecord, data_batch};
use kaas_engine::manifest::versioned::read_highest;
use kaas_engine::manifest::{MANIFEST, Manifest};
use kaas_engine::types::{Offset, Timestamp};
use kaas_engine::{AppendOptions, LogConfig, SegmentFileName};
use kaas_fault_injection::faulty::{Faulty, Hook, Point, Stall, Verdict};
use kaas_substrate::{OpenMode, Substrate};
use looking::{assert_clean, bad, look};
use parking_lot::Mutex;
use support::{Log, START, Volume};

/// Nothing takes so long that goes well.
const LONG: Duration = Duration::from_secs(20);

fn through(volume: &Volume, hook: Arc<dyn Hook>) -> Volume {
    let faulty: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::clone(&volume.substrate), hook));
    volume.seen_through(faulty)
}

/// Lets the held calls go when a test is over, also by a failure: the engine waits for its threads.
struct Held(Arc<Stall>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.release(Verdict::Pass);
    }
}

/// Segments of six batches, each batch with index entries.
fn volume() -> Volume {
    let mut volume = Volume::memory();
    let segment_bytes = 6 * record(0).len() as u64;
    volume.config = LogConfig { segment_bytes, index_interval_bytes: 50, ..LogConfig::default() };
    volume
}

/// One record, `n` milliseconds after the start.
fn record(n: i64) -> Bytes {
    let options = BatchOptions { base_timestamp: Timestamp(START.0 + n), ..Default::default() };
    data_batch(&[SimpleRecord::of_value("x".repeat(30))], &options).unwrap()
}

fn append(log: &Log, numbers: std::ops::Range<i64>) {
    for n in numbers {
        assert_eq!(log.append_batch(&record(n)).unwrap().base_offset, Offset(n));
    }
}

/// Closes a leader that may have been deposed, and waits until it does nothing more.
fn end(log: Log) {
    let _ = log.partition.close().wait().unwrap();
    log.engine.close();
}

fn manifest(volume: &Volume) -> Manifest {
    read_highest(&*volume.substrate, &volume.dir, MANIFEST).unwrap().unwrap().1
}

fn index_files(volume: &Volume) -> BTreeMap<PathBuf, Vec<u8>> {
    let names = volume.substrate.list(&volume.dir).unwrap().into_iter();
    let paths = names.map(|entry| volume.dir.join(entry.name));
    paths
        .filter(|path| {
            path.extension().is_some_and(|extension| extension.to_string_lossy().ends_with("index"))
        })
        .map(|path| {
            let file = volume.substrate.open(&path, OpenMode::Read).unwrap();
            let mut bytes = vec![0; file.length().unwrap() as usize];
            file.read_at(&mut bytes, 0).unwrap();
            (path, bytes)
        })
        .collect()
}

fn is_named(manifest: &Manifest, index: &Path) -> bool {
    let file = SegmentFileName::parse(index.file_name().unwrap().to_str().unwrap()).unwrap();
    manifest.segments.iter().any(|entry| entry.refers_to(&file))
}

/// Of these files those that the volume still has, or that are gone from it, with another content.
fn changed(volume: &Volume, before: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<PathBuf> {
    let now = index_files(volume);
    before
        .iter()
        .filter(|(path, bytes)| now.get(*path) != Some(*bytes))
        .map(|(path, _)| path.clone())
        .collect()
}

/// At each of the calls by which a leader writes index files as it seals a segment.
#[test]
fn a_leader_deposed_in_its_seal_leaves_the_index_files_of_its_successor_alone() {
    for (point, part) in [
        (Point::Create, ".index"),
        (Point::Write, ".index"),
        (Point::Create, ".timeindex"),
        (Point::Write, ".timeindex"),
        (Point::SetLength, ".timeindex"),
        (Point::SyncData, ".timeindex"),
    ] {
        let context = format!("{point:?} of {part}");
        let mut volume = volume();
        volume.config.index_interval_bytes = 250;
        let gate = Stall::new(point, part);
        let paused = through(&volume, Arc::clone(&gate) as _);
        let old = paused.open();
        gate.close();
        let _held = Held(Arc::clone(&gate));
        // The last one rolls. It is acknowledged, and the segment before it is being sealed.
        append(&old, 0..6);
        let acknowledged = old.partition.append(&record(6), AppendOptions::default()).unwrap();
        assert_eq!(acknowledged.wait().unwrap().unwrap().base_offset, Offset(6), "{context}");
        assert!(gate.wait_until_held(1, LONG), "{context}");

        let mut volume = volume.after(&paused);
        // Its indexes have more entries.
        volume.config.index_interval_bytes = 1;
        let new = volume.open();
        assert_eq!(new.records().len(), 7, "{context}");
        let refers = manifest(&volume);
        assert_eq!(refers.segments.len(), 2, "{context}");
        let before = index_files(&volume);
        let before: BTreeMap<_, _> = before.into_iter().filter(|(path, _)| is_named(&refers, path)).collect();
        assert!(before.len() >= 3, "{context}: {:?}", before.keys());
        assert_clean(&volume, &context);

        gate.release(Verdict::Pass);
        end(old);
        assert_eq!(changed(&volume, &before), Vec::<PathBuf>::new(), "{context}");
        assert_eq!(manifest(&volume), refers, "{context}");
        assert_clean(&volume, &context);

        // What the late one left is removed by the next leader.
        new.crash();
        let last = volume.open();
        last.partition.maintain().wait().unwrap().unwrap();
        let left: Vec<_> = index_files(&volume).into_keys().collect();
        assert_eq!(left, before.into_keys().collect::<Vec<_>>(), "{context}");
        assert_eq!(look(&volume).findings, [], "{context}");
        assert_eq!(last.records().len(), 7, "{context}");
    }
}

/// What it wrote behind what its successor counts is in its own index files only.
#[test]
fn a_late_checkpoint_leaves_the_index_files_of_its_successor_alone() {
    let mut volume = volume();
    volume.settings.checkpoint_distance_bytes = 3 * record(0).len() as u64;
    let gate = Stall::new(Point::Write, ".log");
    let paused = through(&volume, Arc::clone(&gate) as _);
    let old = paused.open();
    append(&old, 0..2);
    gate.close();
    let _held = Held(Arc::clone(&gate));
    let late = old.partition.append(&record(1000), AppendOptions::default()).unwrap();
    assert!(gate.wait_until_held(1, LONG));
    let volume = volume.after(&paused);
    let new = volume.open();
    let refers = manifest(&volume);
    let before: BTreeMap<_, _> =
        index_files(&volume).into_iter().filter(|(path, _)| is_named(&refers, path)).collect();
    gate.release(Verdict::Pass);
    assert!(late.wait().unwrap().is_err());
    end(old);
    let calls = gate.calls();
    let wrote = |(point, path): &(Point, PathBuf)| {
        *point == Point::Write && path.to_string_lossy().ends_with(".timeindex")
    };
    assert!(calls.iter().any(wrote), "the deposed leader was to write a checkpoint's index files");
    assert_eq!(changed(&volume, &before), Vec::<PathBuf>::new());
    assert!(bad(&look(&volume)).is_empty(), "{:#?}", look(&volume).findings);
    assert_eq!(new.records().len(), 2);
}

/// The paths of files that were made, written to, cut, or put into place.
#[derive(Debug, Default)]
struct Written(Mutex<BTreeSet<PathBuf>>);

impl Hook for Written {
    fn before(&self, point: Point, path: &Path) -> Verdict {
        if matches!(point, Point::Create | Point::Write | Point::SetLength | Point::Rename) {
            self.0.lock().insert(path.to_owned());
        }
        Verdict::Pass
    }
}

/// Two leaders that do everything a leader does, the first one on and on after it was deposed.
#[test]
fn no_two_leaders_write_one_file() {
    let mut volume = volume();
    volume.settings.checkpoint_distance_bytes = 1;
    let written: Vec<Arc<Written>> = (0..2).map(|_| Arc::default()).collect();
    let life = |log: &Log, from: i64| {
        append(log, from..from + 20);
        log.partition.delete_records(Some(Offset(from + 2))).wait().unwrap().unwrap();
        log.partition.maintain().wait().unwrap().unwrap();
    };
    let first = through(&volume, Arc::clone(&written[0]) as _);
    let old = first.open();
    life(&old, 0);
    let second = through(&volume, Arc::clone(&written[1]) as _);
    let second = second.after(&first);
    let new = second.open();
    life(&new, 20);
    // Deposed, and not told yet: what it has in hand it writes.
    let late = old.partition.append(&record(20), AppendOptions::default()).unwrap();
    assert!(late.wait().unwrap().is_err());
    end(old);
    new.close();
    let [old, new] = [&written[0], &written[1]].map(|written| written.0.lock().clone());
    let both: Vec<_> = old.intersection(&new).collect();
    assert_eq!(both, Vec::<&PathBuf>::new());
    for what in [".log", ".timeindex", "manifest.", "recovery-checkpoint."] {
        let wrote =
            |paths: &BTreeSet<PathBuf>| paths.iter().any(|path| path.to_string_lossy().contains(what));
        assert!(wrote(&old) && wrote(&new), "{what}: {old:?} {new:?}");
    }
}
