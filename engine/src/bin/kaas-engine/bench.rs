//! `kaas-engine bench`: arguments, progress on a terminal, the report, the exit code.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use kaas_engine::bench::{
    BenchError, COMPACTION_BYTES_MIN, Options, Progress, ROUNDS_MIN, TAKEOVER_BYTES_MIN, bench, render,
};
use kaas_substrate::recognise::OpenError;

use crate::interrupt::{self, Then};
use crate::shown::Shown;
use crate::substrate_kind::SubstrateKind;
use crate::{COULD_NOT_RUN, complain, print, units};

/// Most writers, and batches that each of them has in flight.
const MOST: usize = 1024;

/// Most rounds.
const MOST_ROUNDS: u16 = 1000;

/// Largest batch, in bytes.
const LARGEST_BATCH: u64 = 64 << 20;

/// Measures the engine on a mount beside the raw limit of the same writes and reads.
///
/// Rounds of both alternate: the ratios are the result, absolute figures are indications. Works in a directory of its own
/// below DIR, `~bench-<random>`, and removes it. Measure with a release build, and nothing else going on.
///
/// Exits with 0 if it has measured, 2 if it could not.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kaas-engine bench /mnt/shared
  kaas-engine bench /data --partitions 1,16 --batch-bytes 4KiB,1MiB --rounds 7
  kaas-engine bench /data --no-commits --no-reads --takeover 10MiB,1GiB
  kaas-engine bench /data --no-commits --no-reads --compaction 1GiB
  kaas-engine bench /data --json | jq '.commits[].ratio.median'

Ratio: what the engine appends and commits, by what a gathered write and fdatasync of the same bytes does. Share: a
read of the fence, which each commit makes, by the time until a batch is acknowledged. --takeover: from the claim to
the first acknowledged record, after a leader that closed nothing, by the size of the log. --compaction: a round over a
log of 1,000-byte records, four of each key.

Exit codes: 0 it was measured, 2 it could not run; 130 after Ctrl-C, 143 after SIGTERM.")]
pub struct BenchArgs {
    /// A directory on the mount
    dir: PathBuf,
    /// Partitions, each with a writer of its own
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,16", value_parser = count)]
    partitions: Vec<usize>,
    /// Bytes of a batch
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "4KiB,64KiB,1MiB", value_parser = batch)]
    batch_bytes: Vec<usize>,
    /// Batches that each writer has in flight
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1", value_parser = count)]
    in_flight: Vec<usize>,
    /// Rounds of each side of each case, 3 at least: medians are told
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = rounds)]
    rounds: u16,
    /// Milliseconds of a round
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=600_000))]
    round_ms: u32,
    /// Do not measure commits
    #[arg(long)]
    no_commits: bool,
    /// Do not measure reads
    #[arg(long)]
    no_reads: bool,
    /// Measure takeovers of a log of these sizes, 8MiB at least
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', value_parser = takeover)]
    takeover: Vec<u64>,
    /// Measure compaction of a log of these sizes, 1MiB at least
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', value_parser = compaction)]
    compaction: Vec<u64>,
    /// What DIR is on
    #[arg(long, value_name = "KIND", default_value = "auto")]
    substrate: SubstrateKind,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> ExitCode {
    let progress = Arc::new(Progress::default());
    interrupt::watch(Then::Stop(Arc::clone(&progress.cancelled)), || {
        "interrupted; removing the directory (again: stop at once, the next run removes it)".to_owned()
    });
    let shown = {
        let progress = Arc::clone(&progress);
        Shown::begin("{spinner} {wide_bar} {pos}/{len}  {msg}  {elapsed}", move |bar| {
            bar.set_length(progress.total.load(Ordering::Relaxed));
            bar.set_position(progress.done.load(Ordering::Relaxed));
            bar.set_message(progress.step.lock().clone());
        })
    };
    let outcome = bench(&options(args), &progress);
    shown.end();
    let printed = outcome
        .map_err(|error| (error.to_string(), hint(&error)))
        .and_then(|report| print(&report, args.json, render).map_err(|problem| (problem, None)));
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        // It was told when it came.
        Err(_) if interrupt::code().is_some() => ExitCode::from(COULD_NOT_RUN),
        Err((problem, hint)) => {
            complain(&problem, hint);
            ExitCode::from(COULD_NOT_RUN)
        }
    }
}

fn options(args: &BenchArgs) -> Options {
    let mut takeover_bytes = args.takeover.clone();
    takeover_bytes.sort_unstable();
    Options {
        dir: args.dir.clone(),
        choice: args.substrate.into(),
        partitions: args.partitions.clone(),
        batch_bytes: args.batch_bytes.clone(),
        in_flight: args.in_flight.clone(),
        commits: !args.no_commits,
        rounds: usize::from(args.rounds),
        round: Duration::from_millis(u64::from(args.round_ms)),
        reads: !args.no_reads,
        takeover_bytes,
        compaction_bytes: args.compaction.clone(),
    }
}

fn count(text: &str) -> Result<usize, String> {
    let number: usize = text.parse().map_err(|error| format!("{error}"))?;
    if (1..=MOST).contains(&number) { Ok(number) } else { Err(format!("1 to {MOST}")) }
}

fn batch(text: &str) -> Result<usize, String> {
    let bytes = bytes(text)?;
    if !(100..=LARGEST_BATCH).contains(&bytes) {
        return Err("100 bytes to 64 MiB".to_owned());
    }
    usize::try_from(bytes).map_err(|error| error.to_string())
}

fn rounds(text: &str) -> Result<u16, String> {
    let number: u16 = text.parse().map_err(|error| format!("{error}"))?;
    if (ROUNDS_MIN..=MOST_ROUNDS).contains(&number) {
        Ok(number)
    } else {
        Err(format!("{ROUNDS_MIN} to {MOST_ROUNDS}: fewer have no median"))
    }
}

fn takeover(text: &str) -> Result<u64, String> {
    let bytes = bytes(text)?;
    if bytes < TAKEOVER_BYTES_MIN {
        return Err(format!(
            "{} MiB at least: what each leader appends before it goes",
            TAKEOVER_BYTES_MIN >> 20
        ));
    }
    Ok(bytes)
}

fn compaction(text: &str) -> Result<u64, String> {
    let bytes = bytes(text)?;
    if bytes < COMPACTION_BYTES_MIN {
        return Err(format!("{} MiB at least", COMPACTION_BYTES_MIN >> 20));
    }
    Ok(bytes)
}

fn bytes(text: &str) -> Result<u64, String> {
    units::parse(text, units::BYTES)
}

fn hint(error: &BenchError) -> Option<&'static str> {
    Some(match error {
        BenchError::Open(OpenError::Storage(_)) | BenchError::Storage(_) => {
            "name an existing directory that this user may write in, with room for what is measured"
        }
        BenchError::Open(_) => "kaas-engine qualify says more about the mount",
        BenchError::NoRoom { .. } => "ask for smaller logs, or make room",
        BenchError::NotRemoved { .. } => "the next run removes it",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_and_counts_have_limits() {
        assert_eq!(batch("4KiB"), Ok(4096));
        assert!(
            batch("10").is_err() && batch("1GiB").is_err() && count("0").is_err() && count("5000").is_err()
        );
        assert_eq!((rounds("3"), takeover("8MiB"), compaction("1MiB")), (Ok(3), Ok(8 << 20), Ok(1 << 20)));
        assert!(rounds("2").is_err() && rounds("1001").is_err());
        assert!(takeover("0").is_err() && takeover("8191KiB").is_err() && compaction("0").is_err());
    }
}
