//! How long a takeover takes, by the size of the log: from the claim to the first acknowledged record of the new leader, after
//! one that closed nothing and left a tail to be scanned.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use super::place::{Place, append_while, batch_of, first_epoch};
use super::text::bytes_words;
use super::{BenchError, Progress, Spread};
use crate::log::{AppendOptions, Partition};

const NAME: &str = "takeover";

/// Bytes of a batch that the log is filled with, and how many are in flight.
const BATCH_BYTES: usize = 1 << 20;
const IN_FLIGHT: usize = 8;

/// Bytes that each leader appends before it goes: a takeover of a log to which nothing was added has nothing to scan, whatever
/// the size.
pub(super) const TAIL_BYTES: u64 = 8 << 20;

/// Takeovers at each size.
const TIMES: usize = 5;

/// What is appended beyond the largest size.
pub(super) const ADDED_BYTES: u64 = TIMES as u64 * TAIL_BYTES;

/// What was measured at one size.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Takeover {
    /// Bytes of the log at the first takeover; at each later one there are [`TAIL_BYTES`] more.
    pub log_bytes: u64,
    /// Claim to serving, in milliseconds.
    pub open_ms: Spread,
    /// Claim to the first acknowledged record, in milliseconds.
    pub first_acknowledged_ms: Spread,
}

/// Lets one log grow through `sizes` and takes it over at each of them.
pub fn measure(place: &Arc<Place>, sizes: &[u64], progress: &Progress) -> Result<Vec<Takeover>, BenchError> {
    let mut takeovers = Vec::new();
    if sizes.is_empty() {
        return Ok(takeovers);
    }
    place.birth(NAME)?;
    let (large, small) = (batch_of(BATCH_BYTES)?, batch_of(1024)?);
    let mut epoch = first_epoch();
    let mut engine = place.engine()?;
    let mut partition = place.open(&engine, NAME, epoch)?;
    for &size in sizes {
        progress.at(format!("takeover: a log of {}", bytes_words(size)));
        let append = |partition: &Arc<Partition>, bytes: u64| {
            let most = (bytes + large.len() as u64 / 2) / large.len() as u64;
            append_while(
                partition,
                &large,
                IN_FLIGHT,
                |count| count < most && !progress.is_cancelled(),
                |_| {},
            )
        };
        append(&partition, size.saturating_sub(partition.size_bytes() + TAIL_BYTES))?;
        let (mut log_bytes, mut open_ms, mut first_ms) = (0, Vec::new(), Vec::new());
        for time in 0..TIMES {
            append(&partition, TAIL_BYTES)?;
            if time == 0 {
                log_bytes = partition.size_bytes();
            }
            // A leader that goes without closing anything; what it has appended since the last checkpoint is scanned.
            partition.abandon().wait().map_err(|_| BenchError::Ended)??;
            engine.close();
            engine = place.engine()?;
            epoch = epoch.next();
            let began = Instant::now();
            partition = place.open(&engine, NAME, epoch)?;
            open_ms.push(began.elapsed().as_secs_f64() * 1e3);
            partition.append_and_wait(&small, AppendOptions::default())?;
            first_ms.push(began.elapsed().as_secs_f64() * 1e3);
        }
        takeovers.push(Takeover {
            log_bytes,
            open_ms: Spread::of(open_ms),
            first_acknowledged_ms: Spread::of(first_ms),
        });
        progress.done()?;
    }
    partition.close().wait().map_err(|_| BenchError::Ended)??;
    engine.close();
    drop((partition, engine));
    place.remove(NAME)?;
    Ok(takeovers)
}
