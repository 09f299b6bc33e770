//! The engine on a mount beside the raw limit of the same writes and reads: `kaas-engine bench`.
//!
//! Rounds of both alternate in one run, so that a drift of the machine meets both alike: the ratio of each pair of rounds is
//! the result, absolute figures are indications. A writer keeps so many batches in flight; with several writers, each has a
//! partition (or a raw file) of its own. Everything happens in a directory of its own, `~bench-<random>`, which is removed at
//! the end, and after a crash by the next run.

mod commit;
mod compaction;
mod fetch;
mod latency;
mod place;
mod takeover;
mod text;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kaas_substrate::recognise::{self, Choice, OpenError};
use kaas_substrate::{Kind, NotRemoved};
use parking_lot::Mutex;
use serde::Serialize;

use crate::error::{AppendError, EngineError, ReadError};
use crate::scratch::{self, ScratchError};

pub use self::commit::Commits;
pub use self::compaction::Compaction;
pub use self::fetch::Reads;
pub use self::latency::Latency;
pub use self::takeover::Takeover;
pub use self::text::render;

use self::place::Place;
use self::text::bytes_words;

/// Version of the JSON.
pub const FORMAT: u32 = 1;

const PREFIX: &str = "~bench-";

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct Options {
    pub dir: PathBuf,
    /// What the operator says the volume is.
    pub choice: Choice,
    /// Cases: each number of partitions with each batch size and each number of batches in flight.
    pub partitions: Vec<usize>,
    pub batch_bytes: Vec<usize>,
    pub in_flight: Vec<usize>,
    /// Whether commits are measured, and with them the cases.
    pub commits: bool,
    /// Rounds of each side of each case, and of reads: a median of fewer than [`ROUNDS_MIN`] says nothing; and how long a round takes.
    pub rounds: usize,
    pub round: Duration,
    /// Whether reads are measured.
    pub reads: bool,
    /// Sizes of the log in bytes, ascending, at which a takeover is measured; none: not at all.
    pub takeover_bytes: Vec<u64>,
    /// Sizes of the log in bytes at which a round of compaction is measured; none: not at all.
    pub compaction_bytes: Vec<u64>,
}

/// Fewest rounds of which a median is told.
pub const ROUNDS_MIN: u16 = 3;

/// Smallest log whose takeover is measured, in bytes: what a leader appends before it goes.
pub const TAKEOVER_BYTES_MIN: u64 = takeover::TAIL_BYTES;

/// Smallest log whose compaction is measured, in bytes.
pub const COMPACTION_BYTES_MIN: u64 = 1 << 20;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Scratch(#[from] ScratchError),
    #[error(transparent)]
    Storage(#[from] kaas_substrate::Error),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Batch(#[from] crate::batch::BatchError),
    #[error("no threads: {0}")]
    Threads(#[from] std::io::Error),
    /// Found out before anything is measured.
    #[error("{what} of {} needs {} of space, and the volume has {}", bytes_words(*log), bytes_words(*needs), bytes_words(*has))]
    NoRoom { what: &'static str, log: u64, needs: u64, has: u64 },
    #[error("the partition ended in the middle of a round")]
    Ended,
    /// [`Progress::cancelled`] was set.
    #[error("interrupted")]
    Interrupted,
    #[error("{name} cannot be removed: {source}")]
    NotRemoved { name: String, source: NotRemoved },
}

/// How far a run is.
#[derive(Debug, Default)]
pub struct Progress {
    /// What is being measured.
    pub step: Mutex<String>,
    /// Rounds done, and all of them.
    pub done: AtomicU64,
    pub total: AtomicU64,
    /// Set by whoever wants it to end: it does so at the end of the round, as after an error.
    pub cancelled: Arc<AtomicBool>,
}

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub format: u32,
    pub version: &'static str,
    pub dir: String,
    /// `local`, `nfs`, `cephfs`.
    pub substrate: &'static str,
    pub rounds: usize,
    pub round_ms: u64,
    pub commits: Vec<Commits>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reads: Option<Reads>,
    pub takeovers: Vec<Takeover>,
    pub compactions: Vec<Compaction>,
}

/// The lowest, the middle and the highest of the ratios of all pairs of rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

impl Spread {
    /// Of at least one value; zeros of none. With an even number of them, the median lies halfway between the two in the middle.
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(0.0);
        let last = values.len().saturating_sub(1);
        Self { min: at(0), median: f64::midpoint(at(last / 2), at(last.div_ceil(2))), max: at(last) }
    }
}

/// Measures. The directory is as it was on return, if the volume lets it.
pub fn bench(options: &Options, progress: &Progress) -> Result<Report, BenchError> {
    // Opening would make it, and the mount that was meant may be somewhere else.
    recognise::open_to_read(&options.dir)?;
    let root = recognise::open(&options.dir, options.choice)?;
    check_room(options, root.space()?.available_bytes)?;
    let begun = scratch::begin(&*root, PREFIX, &scratch::random_name(PREFIX))?;
    let name = begun.scratch.name().to_owned();
    let measured = recognise::open(&options.dir.join(&name), options.choice)
        .map_err(BenchError::from)
        .and_then(|substrate| measure(options, Place { substrate }, progress));
    let removed = begun.scratch.end(&*root).map_err(|source| BenchError::NotRemoved { name, source });
    let report = measured?;
    removed?;
    Ok(report)
}

/// Whether the largest logs fit into so many bytes; a volume that does not tell has room.
fn check_room(options: &Options, available: Option<u64>) -> Result<(), BenchError> {
    let largest = [
        ("a takeover", &options.takeover_bytes, 1, takeover::ADDED_BYTES),
        // The log, what is left of it, and the same once more, raw.
        ("compaction", &options.compaction_bytes, 3, 0),
    ];
    for (what, sizes, times, more) in largest {
        let log = sizes.iter().copied().max().unwrap_or_default();
        let needs = log.saturating_mul(times).saturating_add(more);
        if let Some(has) = available.filter(|has| log > 0 && needs > *has) {
            return Err(BenchError::NoRoom { what, log, needs, has });
        }
    }
    Ok(())
}

fn measure(options: &Options, place: Place, progress: &Progress) -> Result<Report, BenchError> {
    let place = Arc::new(place);
    let mut cases = Vec::new();
    let partitions = if options.commits { &options.partitions[..] } else { &[] };
    for &partitions in partitions {
        for &batch_bytes in &options.batch_bytes {
            for &in_flight in &options.in_flight {
                cases.push(commit::Case { partitions, batch_bytes, in_flight });
            }
        }
    }
    let rounds = cases.len() * options.rounds
        + if options.reads { options.rounds } else { 0 }
        + options.takeover_bytes.len()
        + options.compaction_bytes.len() * compaction::TIMES;
    progress.total.store(rounds as u64, Ordering::Relaxed);
    let mut report = Report {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION"),
        dir: options.dir.display().to_string(),
        substrate: match place.substrate.kind() {
            Kind::Local => "local",
            Kind::Nfs => "nfs",
            Kind::CephFs => "cephfs",
            Kind::Memory => "memory",
            Kind::Simulated => "simulated",
        },
        rounds: options.rounds,
        round_ms: u64::try_from(options.round.as_millis()).unwrap_or(u64::MAX),
        commits: Vec::new(),
        reads: None,
        takeovers: Vec::new(),
        compactions: Vec::new(),
    };
    for case in cases {
        report.commits.push(commit::measure(&place, case, options, progress)?);
    }
    if options.reads {
        report.reads = Some(fetch::measure(&place, options, progress)?);
    }
    report.takeovers = takeover::measure(&place, &options.takeover_bytes, progress)?;
    report.compactions = compaction::measure(&place, &options.compaction_bytes, progress)?;
    Ok(report)
}

impl Progress {
    fn at(&self, step: String) {
        *self.step.lock() = step;
    }

    /// A round is done; the error if it is to be the last one.
    fn done(&self) -> Result<(), BenchError> {
        self.done.fetch_add(1, Ordering::Relaxed);
        if self.is_cancelled() { Err(BenchError::Interrupted) } else { Ok(()) }
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// The path of something in the run's directory.
fn path(name: &str) -> &Path {
    Path::new(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_that_do_not_fit_are_refused_before_anything_is_measured() {
        let options = |takeover_bytes: &[u64], compaction_bytes: &[u64]| Options {
            dir: PathBuf::new(),
            choice: Choice::Recognise,
            commits: true,
            partitions: Vec::new(),
            batch_bytes: Vec::new(),
            in_flight: Vec::new(),
            rounds: 3,
            round: Duration::ZERO,
            reads: true,
            takeover_bytes: takeover_bytes.to_vec(),
            compaction_bytes: compaction_bytes.to_vec(),
        };
        let gib = 1 << 30;
        let refusal = |options: &Options, has| check_room(options, has).err().map(|error| error.to_string());
        let takeover = options(&[gib, 7 * gib], &[]);
        assert_eq!(refusal(&takeover, Some(8 * gib)), None);
        assert_eq!(refusal(&takeover, None), None);
        let told = "a takeover of 7 GiB needs 7 GiB of space, and the volume has 6.5 GiB";
        assert_eq!(refusal(&takeover, Some(13 * gib / 2)), Some(told.to_owned()));
        assert!(refusal(&takeover, Some(7 * gib + takeover::ADDED_BYTES - 1)).is_some());
        assert_eq!(refusal(&takeover, Some(7 * gib + takeover::ADDED_BYTES)), None);
        assert_eq!(refusal(&options(&[], &[gib]), Some(3 * gib)), None);
        assert!(refusal(&options(&[], &[gib]), Some(3 * gib - 1)).is_some());
        assert_eq!(refusal(&options(&[], &[]), Some(0)), None);
    }

    #[test]
    fn a_spread_is_of_sorted_values() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0]);
        assert_eq!(spread, Spread { min: 1.0, median: 2.0, max: 3.0 });
        let spread = Spread::of(vec![9.0, 1.0, 2.0, 4.0]);
        assert_eq!(spread, Spread { min: 1.0, median: 3.0, max: 9.0 });
        assert_eq!(Spread::of(vec![5.0]), Spread { min: 5.0, median: 5.0, max: 5.0 });
        assert_eq!(Spread::of(Vec::new()), Spread { min: 0.0, median: 0.0, max: 0.0 });
    }
}
