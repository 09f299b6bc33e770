//! Reading a log from its start beside reading the same file.

use std::sync::Arc;
use std::time::Instant;

use kaas_substrate::{EntryKind, OpenMode};
use serde::Serialize;

use super::latency::{Latencies, Latency};
use super::place::{Place, append_while, batch_of, first_epoch};
use super::{BenchError, Options, Progress, Spread, path};
use crate::log::{Isolation, Partition, Read, ReadRequest};
use crate::types::Offset;

const NAME: &str = "reads";

/// Bytes of the log, of a batch in it, and of one read.
const LOG_BYTES: u64 = 64 << 20;
const BATCH_BYTES: usize = 64 << 10;
const READ_BYTES: usize = 1 << 20;

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Reads {
    /// Bytes of the log that each round reads, from what the caches have of it.
    pub log_bytes: u64,
    /// Medians of the rounds.
    pub raw_bytes_per_second: f64,
    pub engine_bytes_per_second: f64,
    /// Engine by raw, of each pair of rounds.
    pub ratio: Spread,
    /// Of a read of 1 MiB.
    pub raw: Latency,
    pub engine: Latency,
}

/// Writes a log and reads it by turns.
pub fn measure(place: &Arc<Place>, options: &Options, progress: &Progress) -> Result<Reads, BenchError> {
    progress.at("writing a log to be read".to_owned());
    let engine = place.engine()?;
    place.birth(NAME)?;
    let partition = place.open(&engine, NAME, first_epoch())?;
    let batch = batch_of(BATCH_BYTES)?;
    let most = LOG_BYTES / batch.len() as u64;
    append_while(&partition, &batch, 16, |count| count < most && !progress.is_cancelled(), |_| {})?;
    let (mut raw, mut through) = (Latencies::default(), Latencies::default());
    let (mut raw_rates, mut engine_rates, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut log_bytes = 0;
    for round in 0..=options.rounds {
        progress.at("read".to_owned());
        let (bytes, raw_rate) = read_raw(place, &mut raw)?;
        let engine_rate = read_engine(&partition, batch.len(), &mut through)?;
        // The first round fills the caches.
        if round == 0 {
            (raw, through) = (Latencies::default(), Latencies::default());
            continue;
        }
        log_bytes = bytes;
        raw_rates.push(raw_rate);
        engine_rates.push(engine_rate);
        ratios.push(engine_rate / raw_rate.max(f64::MIN_POSITIVE));
        progress.done()?;
    }
    partition.close().wait().map_err(|_| BenchError::Ended)??;
    engine.close();
    drop((partition, engine));
    place.remove(NAME)?;
    Ok(Reads {
        log_bytes,
        raw_bytes_per_second: Spread::of(raw_rates).median,
        engine_bytes_per_second: Spread::of(engine_rates).median,
        ratio: Spread::of(ratios),
        raw: raw.summary(),
        engine: through.summary(),
    })
}

/// Reads the segments' files; the bytes, and bytes a second.
fn read_raw(place: &Place, latencies: &mut Latencies) -> Result<(u64, f64), BenchError> {
    let mut memory = vec![0; READ_BYTES];
    let began = Instant::now();
    let mut bytes = 0;
    for entry in place.substrate.list(path(NAME))? {
        let name = path(NAME).join(&entry.name);
        if entry.kind != EntryKind::File || name.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let file = place.substrate.open(&name, OpenMode::Read)?;
        let mut position = 0;
        loop {
            let one = Instant::now();
            let read = file.read_at(&mut memory, position)? as u64;
            if read == 0 {
                break;
            }
            latencies.note(one.elapsed());
            position += read;
        }
        bytes += position;
    }
    Ok((bytes, bytes as f64 / began.elapsed().as_secs_f64()))
}

/// Reads all records through the engine; bytes a second.
fn read_engine(
    partition: &Arc<Partition>,
    batch_bytes: usize,
    latencies: &mut Latencies,
) -> Result<f64, BenchError> {
    let began = Instant::now();
    let (mut bytes, mut from) = (0, 0);
    let end = partition.status().high_watermark.0;
    while from < end {
        let one = Instant::now();
        let request = ReadRequest {
            from: Offset(from),
            max_bytes: READ_BYTES,
            at_least_one: true,
            isolation: Isolation::ReadUncommitted,
            file_ranges: false,
        };
        let fetched = match partition.read(request)? {
            Read::Ready(fetched) => fetched,
            Read::Blocking(read) => read.run()?,
        };
        latencies.note(one.elapsed());
        // Every batch holds one record, and all are of one size.
        let batches = i64::try_from(fetched.bytes / batch_bytes.max(1)).unwrap_or(0);
        if batches == 0 {
            return Err(BenchError::Ended);
        }
        from += batches;
        bytes += fetched.bytes;
    }
    Ok(bytes as f64 / began.elapsed().as_secs_f64())
}
