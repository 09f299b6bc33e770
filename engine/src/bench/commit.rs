//! Append and commit beside a gathered write and fdatasync of the same bytes; and beside the same with a read of a fence,
//! which is the least that a commit takes.

use std::io::IoSlice;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use bytes::Bytes;
use kaas_substrate::{OpenMode, RECORD_BYTES};
use serde::Serialize;

use super::latency::{Latencies, Latency};
use super::place::{Place, append_while, batch_of, first_epoch};
use super::text::bytes_words;
use super::{BenchError, Options, Progress, Spread, path};
use crate::log::Partition;

/// Reads of the fence after each round.
const FENCE_READS: u32 = 100;

/// Records of a fence that a partition is born with.
const FENCE_RECORDS: u64 = 8;

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
    pub fenced_batches_per_second: f64,
    pub engine_batches_per_second: f64,
    pub raw_bytes_per_second: f64,
    pub engine_bytes_per_second: f64,
    /// Engine by raw, of each group of rounds.
    pub ratio: Spread,
    /// Engine by fenced, likewise.
    pub fenced_ratio: Spread,
    /// Of a write and fdatasync.
    pub raw: Latency,
    /// Of a write, fdatasync, and read of a fence.
    pub fenced: Latency,
    /// From append to acknowledgement.
    pub engine: Latency,
    /// One read of the fence, nothing else going on.
    pub fence: Latency,
    /// The median fence read, nothing else going on, by the median acknowledgement.
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
    let (mut raw, mut fenced) = (Latencies::default(), Latencies::default());
    let (mut engine, mut fence) = (Latencies::default(), Latencies::default());
    let (mut raw_rates, mut fenced_rates, mut engine_rates) = (Vec::new(), Vec::new(), Vec::new());
    let (mut ratios, mut fenced_ratios) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let Case { partitions, batch_bytes, in_flight } = case;
        let batch_words = bytes_words(batch_bytes as u64);
        progress.at(format!("commit: {partitions} x {batch_words}, {in_flight} in flight"));
        let raw_round = raw_round(place, case, &batch, options, Raw::Unfenced)?;
        let fenced_round = self::raw_round(place, case, &batch, options, Raw::Fenced)?;
        let engine_round = engine_round(place, case, &batch, options, &mut fence)?;
        raw_rates.push(raw_round.rate);
        fenced_rates.push(fenced_round.rate);
        engine_rates.push(engine_round.rate);
        ratios.push(engine_round.rate / raw_round.rate.max(f64::MIN_POSITIVE));
        fenced_ratios.push(engine_round.rate / fenced_round.rate.max(f64::MIN_POSITIVE));
        raw.add(raw_round.latencies);
        fenced.add(fenced_round.latencies);
        engine.add(engine_round.latencies);
        progress.done()?;
    }
    let (raw_rate, engine_rate) = (Spread::of(raw_rates).median, Spread::of(engine_rates).median);
    let (engine, fence) = (engine.summary(), fence.summary());
    Ok(Commits {
        case,
        raw_batches_per_second: raw_rate,
        fenced_batches_per_second: Spread::of(fenced_rates).median,
        engine_batches_per_second: engine_rate,
        raw_bytes_per_second: raw_rate * batch.len() as f64,
        engine_bytes_per_second: engine_rate * batch.len() as f64,
        ratio: Spread::of(ratios),
        fenced_ratio: Spread::of(fenced_ratios),
        raw: raw.summary(),
        fenced: fenced.summary(),
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

/// Whether raw writes are followed by a read of a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Raw {
    Unfenced,
    Fenced,
}

fn raw_round(
    place: &Arc<Place>,
    case: Case,
    batch: &Bytes,
    options: &Options,
    kind: Raw,
) -> Result<Round, BenchError> {
    let (mut names, mut files) = (Vec::new(), Vec::new());
    for number in 0..case.partitions {
        let name = format!("raw-{number}");
        let file = place.substrate.open(path(&name), OpenMode::CreateNew)?;
        names.push(name);
        let fence = if kind == Raw::Fenced {
            let name = format!("fence-{number}");
            place.substrate.create_records(path(&name), FENCE_RECORDS)?;
            let fence = place.substrate.open_records(path(&name))?;
            names.push(name);
            Some(fence)
        } else {
            None
        };
        files.push((file, fence));
    }
    place.substrate.sync_dir(path(""))?;
    let (batch, length) = (batch.clone(), options.round);
    let round = on_threads(files, move |(file, fence)| {
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
            if let Some(fence) = &fence {
                fence.read(1, &mut [[0; RECORD_BYTES]; 2])?;
            }
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
