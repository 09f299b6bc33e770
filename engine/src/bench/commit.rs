//! Append and commit beside a gathered write and fdatasync of the same bytes; and the fence, which is what a commit costs
//! more.

use std::io::IoSlice;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use bytes::Bytes;
use kaas_substrate::{OpenMode, RECORD_BYTES};
use serde::Serialize;

use super::latency::{Latencies, Latency};
use super::place::{Place, append_while, batch_of, first_epoch};
use super::{BenchError, Options, Progress, Spread, path};
use crate::log::Partition;

/// Reads of the fence after each round.
const FENCE_READS: u32 = 100;

/// Bytes of a batch's header, which the engine writes from another place than the rest.
const HEADER_BYTES: usize = 61;

/// One case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Case {
    pub partitions: usize,
    pub batch_bytes: usize,
    /// Batches that each writer has in flight; raw: that one write and fdatasync cover.
    pub in_flight: usize,
}

/// What was measured of one case.
#[derive(Debug, Clone, Serialize)]
pub struct Commits {
    #[serde(flatten)]
    pub case: Case,
    /// Batches a second of all writers together; medians of the rounds.
    pub raw_batches_per_second: f64,
    pub engine_batches_per_second: f64,
    pub raw_bytes_per_second: f64,
    pub engine_bytes_per_second: f64,
    /// Engine by raw, of each pair of rounds.
    pub ratio: Spread,
    /// Of a write and fdatasync.
    pub raw: Latency,
    /// From append to acknowledgement.
    pub engine: Latency,
    /// One read of the fence, nothing else going on.
    pub fence: Latency,
    /// The median fence read by the median acknowledgement.
    pub fence_share: f64,
}

#[derive(Default)]
struct Round {
    batches: u64,
    rate: f64,
    latencies: Latencies,
}

/// Measures one case.
pub fn measure(
    place: &Arc<Place>,
    case: Case,
    options: &Options,
    progress: &Progress,
) -> Result<Commits, BenchError> {
    let batch = batch_of(case.batch_bytes)?;
    let (mut raw, mut engine, mut fence) = (Latencies::default(), Latencies::default(), Latencies::default());
    let (mut raw_rates, mut engine_rates, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let Case { partitions, batch_bytes, in_flight } = case;
        progress.at(format!("commit: {partitions} x {batch_bytes} B, {in_flight} in flight"));
        let raw_round = raw_round(place, case, &batch, options)?;
        let engine_round = engine_round(place, case, &batch, options, &mut fence)?;
        raw_rates.push(raw_round.rate);
        engine_rates.push(engine_round.rate);
        ratios.push(engine_round.rate / raw_round.rate.max(f64::MIN_POSITIVE));
        raw.add(raw_round.latencies);
        engine.add(engine_round.latencies);
        progress.done();
    }
    let (raw_rate, engine_rate) = (Spread::of(raw_rates).median, Spread::of(engine_rates).median);
    let (engine, fence) = (engine.summary(), fence.summary());
    Ok(Commits {
        case,
        raw_batches_per_second: raw_rate,
        engine_batches_per_second: engine_rate,
        raw_bytes_per_second: raw_rate * batch.len() as f64,
        engine_bytes_per_second: engine_rate * batch.len() as f64,
        ratio: Spread::of(ratios),
        raw: raw.summary(),
        fence_share: fence.p50_us / engine.p50_us.max(f64::MIN_POSITIVE),
        engine,
        fence,
    })
}

/// Runs one writer a partition, all at once.
fn on_threads<T: Send + 'static>(
    writers: Vec<T>,
    write: impl Fn(T) -> Result<(u64, Latencies), BenchError> + Clone + Send + 'static,
) -> Result<Round, BenchError> {
    let began = Instant::now();
    let threads: Vec<_> = writers
        .into_iter()
        .map(|writer| {
            let write = write.clone();
            thread::Builder::new().spawn(move || write(writer))
        })
        .collect();
    let mut round = Round::default();
    let mut failed = None;
    for thread in threads {
        // A thread that panicked has ended its round like one that failed.
        let outcome = thread
            .map_err(BenchError::from)
            .and_then(|thread| thread.join().unwrap_or(Err(BenchError::Ended)));
        match outcome {
            Ok((batches, latencies)) => {
                round.batches += batches;
                round.latencies.add(latencies);
            }
            Err(error) => failed = Some(error),
        }
    }
    round.rate = round.batches as f64 / began.elapsed().as_secs_f64();
    failed.map_or(Ok(round), Err)
}

fn raw_round(place: &Arc<Place>, case: Case, batch: &Bytes, options: &Options) -> Result<Round, BenchError> {
    let names: Vec<_> = (0..case.partitions).map(|number| format!("raw-{number}")).collect();
    let mut files = Vec::new();
    for name in &names {
        files.push(place.substrate.open(path(name), OpenMode::CreateNew)?);
    }
    place.substrate.sync_dir(path(""))?;
    let (batch, length) = (batch.clone(), options.round);
    let round = on_threads(files, move |file| {
        let (header, body) = batch.split_at(HEADER_BYTES.min(batch.len()));
        let parts: Vec<_> =
            (0..case.in_flight).flat_map(|_| [IoSlice::new(header), IoSlice::new(body)]).collect();
        let bytes = (batch.len() * case.in_flight) as u64;
        let (mut position, mut batches, mut latencies) = (0, 0, Latencies::default());
        let began = Instant::now();
        while began.elapsed() < length {
            let one = Instant::now();
            file.write_all_at(&parts, position)?;
            file.sync_data()?;
            latencies.note(one.elapsed());
            position += bytes;
            batches += case.in_flight as u64;
        }
        Ok((batches, latencies))
    })?;
    for name in &names {
        place.substrate.remove_file(path(name))?;
    }
    Ok(round)
}

fn engine_round(
    place: &Arc<Place>,
    case: Case,
    batch: &Bytes,
    options: &Options,
    fence: &mut Latencies,
) -> Result<Round, BenchError> {
    let engine = place.engine()?;
    let names: Vec<_> = (0..case.partitions).map(|number| format!("engine-{number}")).collect();
    let mut partitions: Vec<Arc<Partition>> = Vec::new();
    for name in &names {
        place.birth(name)?;
        partitions.push(place.open(&engine, name, first_epoch())?);
    }
    let (batch, length, in_flight) = (batch.clone(), options.round, case.in_flight);
    let round = on_threads(partitions.clone(), move |partition: Arc<Partition>| {
        let mut latencies = Latencies::default();
        let began = Instant::now();
        let more = |_| began.elapsed() < length;
        let count = append_while(&partition, &batch, in_flight, more, |took| latencies.note(took))?;
        Ok((count, latencies))
    })?;
    if let Some(name) = names.first() {
        read_fence(place, name, fence)?;
    }
    for partition in partitions {
        partition.close().wait().map_err(|_| BenchError::Ended)??;
    }
    engine.close();
    drop(engine);
    for name in &names {
        place.remove(name)?;
    }
    Ok(round)
}

/// Reads the record that a leader of the first epoch asks for.
fn read_fence(place: &Place, name: &str, latencies: &mut Latencies) -> Result<(), BenchError> {
    let fence = place.substrate.open_records(&path(name).join(crate::leadership::FENCE_NAME))?;
    let mut record = [[0; RECORD_BYTES]];
    for _ in 0..FENCE_READS {
        let began = Instant::now();
        fence.read(2, &mut record)?;
        latencies.note(began.elapsed());
    }
    Ok(())
}
