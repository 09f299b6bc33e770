//! What a round of compaction reads and writes in a second, beside reading and writing as many bytes, and how much memory it
//! takes.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kaas_substrate::OpenMode;
use serde::Serialize;

use super::place::{Place, append_while_made, first_epoch};
use super::text::bytes_words;
use super::{BenchError, Progress, Spread, path};
use crate::batch::{BatchOptions, SimpleRecord, data_batch};
use crate::{CleanerSettings, EngineSettings, LogConfig};

const NAME: &str = "compaction";
const RAW: &str = "compaction-raw";

/// Bytes of a record's value, and records of a batch.
const VALUE_BYTES: usize = 1000;
const BATCH_RECORDS: u64 = 64;
const IN_FLIGHT: usize = 8;

/// Records of each key: all but one of them go.
const RECORDS_OF_A_KEY: u64 = 4;

/// Segments that the log is divided into.
const SEGMENTS: u64 = 8;

/// Logs of each size.
pub(super) const TIMES: usize = 3;

/// How often the process's memory is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What was measured at one size.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Compaction {
    /// Bytes of the segments that were compacted. Each is read twice: for the map of keys, and to be copied.
    pub log_bytes: u64,
    /// Bytes of those in their place.
    pub left_bytes: u64,
    /// Different keys.
    pub keys: u64,
    /// A round, in milliseconds.
    pub round_ms: Spread,
    pub read_bytes_per_second: Spread,
    pub written_bytes_per_second: Spread,
    /// The time of a plain read, twice, and a write of as many bytes, by the time of the round.
    pub ratio: Spread,
    /// Bytes of the map of keys.
    pub map_bytes: u64,
    /// By how much the process's resident set grew in a round, at most. 0 where the system does not tell.
    pub memory_bytes: u64,
    /// What the settings allow a round: the map, and a buffer each for reading and writing.
    pub memory_bound_bytes: u64,
}

/// Compacts logs of each of these sizes.
pub fn measure(
    place: &Arc<Place>,
    sizes: &[u64],
    progress: &Progress,
) -> Result<Vec<Compaction>, BenchError> {
    let mut measured = Vec::new();
    for &size in sizes {
        measured.push(one_size(place, size, progress)?);
    }
    Ok(measured)
}

fn one_size(place: &Arc<Place>, size: u64, progress: &Progress) -> Result<Compaction, BenchError> {
    let cleaner: CleanerSettings = EngineSettings::default().cleaner;
    let mut compaction = Compaction {
        log_bytes: 0,
        left_bytes: 0,
        keys: 0,
        round_ms: Spread::of(Vec::new()),
        read_bytes_per_second: Spread::of(Vec::new()),
        written_bytes_per_second: Spread::of(Vec::new()),
        ratio: Spread::of(Vec::new()),
        map_bytes: 0,
        memory_bytes: 0,
        memory_bound_bytes: (cleaner.map_bytes() + 2 * cleaner.buffer_bytes()) as u64,
    };
    let (mut round_ms, mut ratio) = (Vec::new(), Vec::new());
    let (mut read, mut written) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        progress.at(format!("compaction: a log of {}", bytes_words(size)));
        place.birth(NAME)?;
        let engine = place.engine()?;
        let config = LogConfig {
            compact: true,
            delete: false,
            segment_bytes: (size / SEGMENTS).clamp(128 << 10, 1 << 30),
            ..LogConfig::default()
        };
        let partition = place.open_with(&engine, NAME, first_epoch(), config)?;
        let batches = (size / (VALUE_BYTES as u64 * BATCH_RECORDS)).max(2 * SEGMENTS);
        let mut keys = Keys::new(batches * BATCH_RECORDS / RECORDS_OF_A_KEY);
        append_while_made(&partition, || keys.batch(), IN_FLIGHT, |count| count < batches, |_| {})?;

        let raw_read = raw_read(place, cleaner.buffer_bytes())?;
        let memory = Memory::watch();
        let began = Instant::now();
        let compacted = partition.compact_now()?;
        let seconds = began.elapsed().as_secs_f64();
        compaction.memory_bytes = compaction.memory_bytes.max(memory.grown_by());
        let raw_write = raw_write(place, compacted.bytes_after, cleaner.buffer_bytes())?;
        compaction.log_bytes = compacted.bytes_before;
        compaction.left_bytes = compacted.bytes_after;
        compaction.keys = compacted.keys as u64;
        compaction.map_bytes = compacted.map_bytes as u64;
        round_ms.push(seconds * 1e3);
        read.push(per_second(2 * compacted.bytes_before, seconds));
        written.push(per_second(compacted.bytes_after, seconds));
        ratio.push((2.0 * raw_read + raw_write) / seconds);
        partition.close().wait().map_err(|_| BenchError::Ended)??;
        engine.close();
        drop((partition, engine));
        place.remove(NAME)?;
        progress.done()?;
    }
    compaction.round_ms = Spread::of(round_ms);
    compaction.read_bytes_per_second = Spread::of(read);
    compaction.written_bytes_per_second = Spread::of(written);
    compaction.ratio = Spread::of(ratio);
    Ok(compaction)
}

#[allow(clippy::cast_precision_loss)]
fn per_second(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / seconds
}

/// Seconds that it takes to read all of the partition's logs once.
fn raw_read(place: &Place, buffer_bytes: usize) -> Result<f64, BenchError> {
    let mut buffer = vec![0; buffer_bytes];
    let began = Instant::now();
    for entry in place.substrate.list(path(NAME))? {
        let name = path(NAME).join(&entry.name);
        if name.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let file = place.substrate.open(&name, OpenMode::Read)?;
        let mut position = 0;
        loop {
            let read = file.read_at(&mut buffer, position)?;
            if read == 0 {
                break;
            }
            position += read as u64;
        }
    }
    Ok(began.elapsed().as_secs_f64())
}

/// Seconds that it takes to write a file of so many bytes, and to sync it.
fn raw_write(place: &Place, bytes: u64, buffer_bytes: usize) -> Result<f64, BenchError> {
    let buffer = vec![b'x'; buffer_bytes];
    let began = Instant::now();
    let file = place.substrate.open(path(RAW), OpenMode::CreateNew)?;
    let mut position = 0;
    while position < bytes {
        let left = usize::try_from(bytes - position).unwrap_or(usize::MAX);
        let piece = buffer.get(..left.min(buffer.len())).unwrap_or_default();
        file.write_all_at(&[IoSlice::new(piece)], position)?;
        position += piece.len() as u64;
    }
    file.sync_data()?;
    let seconds = began.elapsed().as_secs_f64();
    drop(file);
    place.substrate.remove_file(path(RAW))?;
    Ok(seconds)
}

/// Batches of records whose keys are drawn from so many, evenly.
struct Keys {
    keys: u64,
    state: u64,
}

impl Keys {
    fn new(keys: u64) -> Self {
        Self { keys: keys.max(1), state: 0x9E37_79B9_7F4A_7C15 }
    }

    /// Xorshift.
    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % self.keys
    }

    fn batch(&mut self) -> Result<Bytes, BenchError> {
        let value = Bytes::from(vec![b'x'; VALUE_BYTES]);
        let record = |_| SimpleRecord::of(format!("key-{:012}", self.next()), value.clone());
        let records: Vec<_> = (0..BATCH_RECORDS).map(record).collect();
        Ok(data_batch(&records, &BatchOptions::default())?)
    }
}

/// Watches the process's resident set from a thread.
struct Memory {
    before: u64,
    largest: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Memory {
    fn watch() -> Self {
        let before = resident_bytes();
        let largest = Arc::new(AtomicU64::new(before));
        let done = Arc::new(AtomicBool::new(false));
        let (seen, ended) = (Arc::clone(&largest), Arc::clone(&done));
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                seen.fetch_max(resident_bytes(), Ordering::Relaxed);
                thread::sleep(LOOK_EVERY);
            }
        });
        Self { before, largest, done, thread }
    }

    /// By how much it grew at most.
    fn grown_by(self) -> u64 {
        self.done.store(true, Ordering::Relaxed);
        // It does not panic; and if it did, what it has seen counts.
        let _ = self.thread.join();
        self.largest.load(Ordering::Relaxed).max(resident_bytes()).saturating_sub(self.before)
    }
}

/// The process's resident set; 0 where the system does not say it.
fn resident_bytes() -> u64 {
    kaas_substrate::probing::resident_memory_bytes().unwrap_or(0)
}
