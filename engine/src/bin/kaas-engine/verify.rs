//! `kaas-engine verify`: arguments, progress on a terminal, the report, the exit code.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kaas_engine::verify::{Options, Progress, Report, VerifyError, render, verify};
use kaas_substrate::recognise::open_to_read;
use kaas_substrate::{ErrorClass, Mounted, Substrate};

use crate::{COULD_NOT_RUN, FOUND, complain};

/// How often the progress is shown anew.
const TICK: Duration = Duration::from_millis(100);

/// Checks that everything in a directory is as it should be: records, manifests, indexes, fences, and all else.
///
/// Reads only, and may run beside a live broker. Exits with 0 if nothing is wrong, 1 if there are warnings or errors, 2
/// if it could not run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kaas-engine verify /data
  kaas-engine verify /data/topics/orders /data/topics/payments/3
  kaas-engine verify --json /data | jq '.findings[] | select(.severity == \"error\") | .file'

The JSON object has: format (1), verdict (clean or findings), topics, partitions, slots, segments, batches, records,
bytes, errors, warnings, infos, elapsed_ms, and findings: objects with severity, code, file, position and offset
where there is one, problem, meaning, action.")]
pub struct VerifyArgs {
    /// Directories: partitions, topics, the directory of topics, slots, whole data directories
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Show what is in order but worth knowing, too (always part of the JSON)
    #[arg(long)]
    all: bool,
    /// Partitions that are read side by side
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// The brokers' producer.id.expiration.ms: older producers may be missing from snapshots
    #[arg(long, value_name = "MS", default_value_t = Options::default().producer_id_expiration_ms)]
    producer_id_expiration_ms: i64,
}

/// Runs the command.
pub fn run(args: &VerifyArgs) -> ExitCode {
    let options = Options {
        threads: usize::from(args.threads),
        producer_id_expiration_ms: args.producer_id_expiration_ms,
        ..Options::default()
    };
    let began = Instant::now();
    let mut report = Report::default();
    for dir in &args.dirs {
        match run_one(dir, &options) {
            Ok(found) => report.merge(found),
            Err(error) => {
                complain(&format!("{}: {error}", dir.display()), Some(hint(&error)));
                return ExitCode::from(COULD_NOT_RUN);
            }
        }
    }
    let elapsed = began.elapsed();
    let text = if args.json {
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        match report.to_json(elapsed_ms) {
            Ok(json) => json + "\n",
            Err(error) => {
                complain(&error.to_string(), None);
                return ExitCode::from(COULD_NOT_RUN);
            }
        }
    } else {
        render(&report, elapsed, args.all)
    };
    match io::stdout().lock().write_all(text.as_bytes()) {
        // Whoever read our output has seen enough (`| head`).
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            complain(&format!("cannot write the report: {error}"), None);
            ExitCode::from(COULD_NOT_RUN)
        }
        _ if report.is_clean() => ExitCode::SUCCESS,
        _ => ExitCode::from(FOUND),
    }
}

fn run_one(dir: &Path, options: &Options) -> Result<Report, VerifyError> {
    let (substrate, target) = open(dir)?;
    let progress = Arc::new(Progress::default());
    let shown = Shown::begin(&progress);
    let report = verify(&substrate, &target, options, &progress);
    shown.end();
    Ok(report?.below(substrate.root()))
}

/// The directory above `dir` as a volume, since what surrounds a partition says what is expected of it; or `dir`
/// itself if that cannot be opened.
fn open(dir: &Path) -> Result<(Mounted, PathBuf), VerifyError> {
    let own = open_to_read(dir)?;
    let parent = own.root().parent().zip(own.root().file_name());
    let above = parent.and_then(|(parent, name)| Some((open_to_read(parent).ok()?, PathBuf::from(name))));
    Ok(above.unwrap_or_else(|| (own, PathBuf::new())))
}

fn hint(error: &VerifyError) -> &'static str {
    match error {
        VerifyError::Storage(error) => match error.class {
            ErrorClass::NotFound => "check the path; a data directory holds topics/<topic>/<partition>/",
            ErrorClass::Invalid => {
                "name a directory, and check who may read it: run this as the broker's user"
            }
            ErrorClass::Stale | ErrorClass::Retriable => "the volume did not answer; try again",
            _ => "check the volume and the kernel's log",
        },
        VerifyError::NothingThere { .. } => {
            "name a data directory (it holds topics/), a topic, or a partition (it holds partition.json)"
        }
    }
}

/// The progress bar, on a thread of its own; nothing without a terminal.
struct Shown {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Shown {
    fn begin(progress: &Arc<Progress>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (progress, stopped) = (Arc::clone(progress), Arc::clone(&stop));
        let thread = io::stderr().is_terminal().then(|| thread::spawn(move || show(&progress, &stopped)));
        Self { stop, thread }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread {
            // It only draws; what went wrong there is of no concern.
            let _ = thread.join();
        }
    }
}

fn show(progress: &Progress, stopped: &AtomicBool) {
    let template = "{spinner} {wide_bar} {pos}/{len} directories  {msg}  {elapsed}";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr()).with_style(style);
    let began = Instant::now();
    while !stopped.load(Ordering::Relaxed) {
        let bytes = progress.bytes.load(Ordering::Relaxed);
        bar.set_length(progress.directories_total.load(Ordering::Relaxed));
        bar.set_position(progress.directories.load(Ordering::Relaxed));
        let rate = bytes / u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX).max(1) / 1000;
        bar.set_message(format!("{}  {rate} MB/s", indicatif::HumanBytes(bytes)));
        bar.tick();
        thread::sleep(TICK);
    }
    bar.finish_and_clear();
}
