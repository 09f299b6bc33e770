//! The engine's append and commit beside a raw gathered write and fdatasync of the same bytes.
//!
//! Rounds of both alternate in one run, so that a drift of the machine meets both alike; the ratio of each pair of
//! rounds is what counts. A writer appends a batch, waits until it is committed, and appends the next one; with
//! several writers, each has a partition (or a raw file) of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Parser;
use kaas_engine::batch::{BatchOptions, SimpleRecord, data_batch};
use kaas_engine::identity::{Identity, write_partition};
use kaas_engine::leadership::Claimant;
use kaas_engine::types::Epoch;
use kaas_engine::{AppendOptions, Engine, EngineSettings, LogConfig, OpenPartition, SystemClock};
use kaas_substrate::{Local, OpenMode, Substrate};

/// Measures append and commit beside the same writes done raw.
#[derive(Debug, Parser)]
struct Options {
    /// A directory on the disk to be measured; a subdirectory is made in it and removed.
    dir: PathBuf,
    /// Partitions (and raw files), each with a writer of its own.
    #[arg(long, default_value_t = 1)]
    partitions: usize,
    /// Bytes of a batch.
    #[arg(long, default_value_t = 65_536)]
    batch_bytes: usize,
    /// Seconds of a round.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Pairs of rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

fn main() {
    let options = Options::parse();
    let root = options.dir.join(format!("kaas-bench-{}", std::process::id()));
    kaas_substrate::create_root(&root).unwrap();
    let substrate: Arc<dyn Substrate> = Arc::new(Local::open(&root).unwrap());
    let value = vec![b'x'; options.batch_bytes.saturating_sub(80)];
    let batch = data_batch(&[SimpleRecord::of_value(value)], &BatchOptions::default()).unwrap();
    println!("partitions {}, batch {} bytes", options.partitions, batch.len());

    let (mut engine_rates, mut raw_rates, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..options.rounds {
        let raw = raw_round(&substrate, round, &batch, &options);
        let engine = engine_round(&substrate, round, &batch, &options);
        println!(
            "round {round}: raw {:8.1} MB/s {:7.0} syncs/s   engine {:8.1} MB/s {:7.0} commits/s   ratio {:.3}",
            raw * batch.len() as f64 / 1e6,
            raw,
            engine * batch.len() as f64 / 1e6,
            engine,
            engine / raw
        );
        raw_rates.push(raw);
        engine_rates.push(engine);
        ratios.push(engine / raw);
    }
    println!(
        "median: raw {:.0}/s, engine {:.0}/s, ratio {:.3} (min {:.3}, max {:.3})",
        median(&mut raw_rates),
        median(&mut engine_rates),
        median(&mut ratios),
        ratios.first().unwrap(),
        ratios.last().unwrap()
    );
    let left = kaas_substrate::remove_tree(&*substrate, Path::new("rounds"));
    drop(left);
    // What was measured is of no further use.
    let parent: Arc<dyn Substrate> = Arc::new(Local::open(&options.dir).unwrap());
    drop(kaas_substrate::remove_tree(&*parent, Path::new(root.file_name().unwrap())));
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs `write` on one thread a partition until the time is up; operations a second of all together.
fn rate(options: &Options, write: impl Fn(usize) -> Box<dyn FnMut() + Send>) -> f64 {
    let deadline = Duration::from_secs_f64(options.seconds);
    let start = Instant::now();
    let threads: Vec<_> = (0..options.partitions)
        .map(|partition| {
            let mut write = write(partition);
            thread::spawn(move || {
                let mut count = 0_u64;
                while start.elapsed() < deadline {
                    write();
                    count += 1;
                }
                count
            })
        })
        .collect();
    let count: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    count as f64 / start.elapsed().as_secs_f64()
}

fn raw_round(substrate: &Arc<dyn Substrate>, round: usize, batch: &Bytes, options: &Options) -> f64 {
    let rate = rate(options, |partition| {
        let path = PathBuf::from(format!("raw-{round}-{partition}"));
        let file = substrate.open(&path, OpenMode::CreateNew).unwrap();
        substrate.sync_dir(Path::new("")).unwrap();
        let batch = batch.clone();
        let mut position = 0;
        Box::new(move || {
            let (header, body) = batch.split_at(61);
            file.write_all_at(&[IoSlice::new(header), IoSlice::new(body)], position).unwrap();
            file.sync_data().unwrap();
            position += batch.len() as u64;
        })
    });
    for partition in 0..options.partitions {
        substrate.remove_file(Path::new(&format!("raw-{round}-{partition}"))).unwrap();
    }
    rate
}

fn engine_round(substrate: &Arc<dyn Substrate>, round: usize, batch: &Bytes, options: &Options) -> f64 {
    let settings = EngineSettings::default();
    let engine = Engine::open(Arc::clone(substrate), settings, Arc::new(SystemClock)).unwrap();
    let partitions: Vec<_> = (0..options.partitions)
        .map(|partition| {
            let dir = PathBuf::from(format!("engine-{round}-{partition}"));
            let number = u32::try_from(partition).unwrap();
            let identity = Identity { topic: "bench".into(), partition: number, topic_id: [1; 16] };
            substrate.create_dir(&dir).unwrap();
            write_partition(&**substrate, &dir, &identity, Epoch::NONE).unwrap();
            substrate.sync_tree(&dir).unwrap();
            engine
                .open_partition(OpenPartition {
                    dir,
                    identity,
                    epoch: Epoch::new(1).unwrap(),
                    claimant: Claimant { broker_id: 0, incarnation: "bench".into(), assignment_version: 0 },
                    config: LogConfig { max_message_bytes: usize::MAX, ..LogConfig::default() },
                })
                .unwrap()
        })
        .collect();
    let rate = rate(options, |partition| {
        let partition = Arc::clone(&partitions[partition]);
        let batch = batch.clone();
        Box::new(move || {
            partition.append_and_wait(&batch, AppendOptions::default()).unwrap();
        })
    });
    for (number, partition) in partitions.iter().enumerate() {
        partition.close().wait().unwrap().unwrap();
        drop(kaas_substrate::remove_tree(&**substrate, Path::new(&format!("engine-{round}-{number}"))));
    }
    rate
}
