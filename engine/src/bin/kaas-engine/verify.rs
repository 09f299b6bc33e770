//! `kaas-engine verify`: arguments, the report, the repair if one was asked for, the exit code.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use kaas_engine::layout::{CLUSTER_DIR, CONTROLLER_DIR, META_FILE};
use kaas_engine::leadership::Claimant;
use kaas_engine::verify::repair::{Mode, repair};
use kaas_engine::verify::repair::{Outcome, Repaired};
use kaas_engine::verify::{
    Options, Progress, Report, VerifyError, render, render_losses, render_question, render_repairs, verify,
};
use kaas_substrate::probing::peak_memory_bytes;
use kaas_substrate::recognise::{self, Choice, OpenError, open_to_read};
use kaas_substrate::{ErrorClass, Mounted, Substrate, printable};

use crate::interrupt::{self, Then};
use crate::shown::Shown;
use crate::terminal;
use crate::{COULD_NOT_RUN, FOUND, complain, print_text, write_out};

/// Checks that everything in a directory is as it should be: records, manifests, indexes, fences, and all else.
///
/// Reads only, unless asked to repair, and may run beside a live broker.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kaas-engine verify /data
  kaas-engine verify /data/topics/orders /data/topics/payments/3
  kaas-engine verify --json /data |
      jq '.findings[] | select(.severity == \"error\")'
  kaas-engine verify --dry-run /data        # what a repair would do
  kaas-engine verify --repair /data/topics/orders/0

A repair keeps every record that can be read. It claims the next epoch of each partition or slot in which it has found
something, so a broker that leads it is fenced out, and leads it again at a higher epoch. What cannot be read, and what
does not belong there, goes to quarantine/ in the same directory. It can be cut off and started again. Topics' own files
and cluster/ are repaired only while no broker runs.

Exit codes: 0 nothing is wrong (any more), and nothing was lost; 1 there are warnings or errors, or something was lost in
this repair; 2 it could not run; 130 after Ctrl-C, 143 after SIGTERM.

The fields of the JSON object, and what each finding means, are in docs/operating/verify.md.")]
pub struct VerifyArgs {
    /// Directories: partitions, topics, the directory of topics, slots, whole data directories
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Repair the directories in which something is wrong; asks before it does
    #[arg(long)]
    repair: bool,
    /// Show what a repair would do; nothing is written
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    /// Do not ask before a repair
    #[arg(long, requires = "repair")]
    yes: bool,
    /// With --repair or --dry-run: give up what was acknowledged and cannot be read any more (changes of configs, committed
    /// offsets of groups), so that what is left can be used; what is given up is told. Records that cannot be read do not need it; a segment in whose
    /// place there is another one, which may be another partition's, does
    #[arg(long)]
    accept_loss: bool,
    /// With --repair or --dry-run: every broker that may have led what is repaired is stopped. A fence that is gone can be
    /// made anew then
    #[arg(long)]
    brokers_stopped: bool,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Show what is in order but worth knowing, too (always part of the JSON)
    #[arg(long)]
    all: bool,
    /// Partitions that are read side by side, up to 64
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// The brokers' producer.id.expiration.ms: older producers may be missing from snapshots
    #[arg(long, value_name = "MS", default_value_t = Options::default().producer_id_expiration_ms)]
    producer_id_expiration_ms: i64,
}

/// How far a partition is below its data directory.
const LEVELS: usize = 3;

/// A directory that is looked at.
struct Target {
    substrate: Arc<dyn Substrate>,
    dir: PathBuf,
    report: Report,
}

/// Runs the command.
pub fn run(args: &VerifyArgs) -> ExitCode {
    match outcome(args) {
        Ok(code) => code,
        Err((problem, hint)) => {
            complain(&problem, hint);
            ExitCode::from(COULD_NOT_RUN)
        }
    }
}

type Problem = (String, Option<&'static str>);

fn outcome(args: &VerifyArgs) -> Result<ExitCode, Problem> {
    if (args.accept_loss || args.brokers_stopped) && !args.repair && !args.dry_run {
        return Err(("--accept-loss and --brokers-stopped are for --repair and --dry-run".to_owned(), None));
    }
    if args.repair && !args.yes && !args.dry_run && !can_ask() {
        let hint = "there is no terminal to ask on: say --yes, or look with --dry-run first";
        return Err(("a repair must be confirmed".to_owned(), Some(hint)));
    }
    let options = Options {
        threads: usize::from(args.threads),
        producer_id_expiration_ms: args.producer_id_expiration_ms,
        accept_loss: args.accept_loss,
        brokers_stopped: args.brokers_stopped,
        ..Options::default()
    };
    let [repairing, repaired] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let (is_repairing, has_repaired) = (Arc::clone(&repairing), Arc::clone(&repaired));
    interrupt::watch(Then::Exit, move || {
        match (is_repairing.load(Ordering::Relaxed), has_repaired.load(Ordering::Relaxed)) {
            (true, _) => "interrupted in the middle of the repair: what counted still does, begin it again",
            (false, true) => "interrupted after a repair, while looking at what is there now",
            (false, false) => "interrupted; nothing was changed",
        }
        .to_owned()
    });
    let began = Instant::now();
    let mut targets = Vec::new();
    for dir in &args.dirs {
        targets.push(look(dir, &options)?);
    }
    let bad = targets.iter().any(|target| !target.report.is_clean());
    if bad && args.dry_run {
        for target in &mut targets {
            target.report.repairs = repair_one(target, &options, &Mode::DryRun);
        }
    } else if bad && args.repair {
        for target in &targets {
            check_mount(target.substrate.root())?;
        }
        if !args.yes {
            show_findings(&targets, args, began.elapsed());
            for target in &mut targets {
                target.report.repairs = repair_one(target, &options, &Mode::DryRun);
            }
            if !is_confirmed(&targets) {
                return Err(("nothing was changed".to_owned(), None));
            }
        }
        for target in &mut targets {
            repairing.store(true, Ordering::Relaxed);
            let repairs = repair_one(target, &options, &Mode::Repair(claimant()));
            repaired.store(true, Ordering::Relaxed);
            repairing.store(false, Ordering::Relaxed);
            // What is there now is what counts.
            target.report = look_again(target, &options)?;
            target.report.repairs = repairs;
        }
    }
    let mut report = Report::default();
    for Target { substrate, report: found, .. } in targets {
        report.merge(found.below(substrate.root()));
    }
    report.peak_memory_bytes = peak_memory_bytes();
    show(args, &report, began.elapsed())
}

fn show(args: &VerifyArgs, report: &Report, elapsed: Duration) -> Result<ExitCode, Problem> {
    let printed = if args.json {
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        write_out(&(report.to_json(elapsed_ms).map_err(|error| (error.to_string(), None))? + "\n"))
    } else {
        let width = terminal::width();
        print_text(&(render_repairs(&report.repairs, width) + &render(report, elapsed, args.all, width)))
    };
    printed.map_err(|problem| (problem, None))?;
    let lost = args.repair && !args.dry_run && (report.lost_offsets() > 0 || report.given_up() > 0);
    Ok(if report.is_clean() && !lost { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

fn look(dir: &Path, options: &Options) -> Result<Target, Problem> {
    let problem = |error: VerifyError| (format!("{}: {error}", printable(dir)), Some(hint(&error)));
    let (substrate, dir) = open(dir).map_err(problem)?;
    let mut target = Target { substrate: Arc::new(substrate), dir, report: Report::default() };
    target.report = look_again(&target, options)?;
    Ok(target)
}

fn look_again(target: &Target, options: &Options) -> Result<Report, Problem> {
    let progress = Arc::new(Progress::default());
    let shown = show_progress("looking", &progress);
    let options = Options { measure: shown.is_visible(), ..options.clone() };
    let report = verify(target.substrate.as_ref(), &target.dir, &options, &progress);
    shown.end();
    report.map_err(|error| {
        let dir = target.substrate.root().join(&target.dir);
        (format!("{}: {error}", printable(&dir)), Some(hint(&error)))
    })
}

fn repair_one(target: &Target, options: &Options, mode: &Mode) -> Vec<Repaired> {
    let progress = Arc::new(Progress::default());
    let what = if *mode == Mode::DryRun { "planning" } else { "repairing" };
    let shown = show_progress(what, &progress);
    let repairs = repair(&target.substrate, &target.report, options, mode, &progress);
    shown.end();
    repairs
}

/// Shows how far it is, on a terminal: by bytes, since directories differ too much in size.
fn show_progress(what: &str, progress: &Arc<Progress>) -> Shown {
    let progress = Arc::clone(progress);
    let template = format!(
        "{what} {{wide_bar}} {{bytes}}/{{total_bytes}} {{binary_bytes_per_sec}}, {{eta}} left  {{msg}}"
    );
    Shown::begin(template, move |bar| {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (bytes, total) = (of(&progress.bytes), of(&progress.bytes_total));
        bar.set_length(total.max(bytes));
        bar.set_position(bytes);
        let (directories, all) = (of(&progress.directories), of(&progress.directories_total));
        bar.set_message(format!("{directories}/{all} directories"));
    })
}

/// A mount that a broker refuses to write on, a repair refuses too.
fn check_mount(root: &Path) -> Result<(), Problem> {
    match recognise::open(root, Choice::default()) {
        Err(error @ OpenError::Refused { .. }) => Err((error.to_string(), None)),
        _ => Ok(()),
    }
}

/// Who claims what is repaired: no broker, and another one each time.
fn claimant() -> Claimant {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let incarnation = format!("kaas-engine-repair-{}-{now}", std::process::id());
    Claimant { broker_id: -1, incarnation, assignment_version: 0 }
}

fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Shows what was found, before it is asked about.
fn show_findings(targets: &[Target], args: &VerifyArgs, elapsed: Duration) {
    for target in targets {
        let report = target.report.clone().below(target.substrate.root());
        tell(&render(&report, elapsed, args.all, terminal::error_width()));
    }
}

/// Says what will be done and what will be lost, as a dry run has found it, and asks. False, too, if nothing can be done.
fn is_confirmed(targets: &[Target]) -> bool {
    let width = terminal::error_width();
    let plans: Vec<_> = targets
        .iter()
        .flat_map(|target| target.report.clone().below(target.substrate.root()).repairs)
        .collect();
    let (planned, refused): (Vec<_>, Vec<_>) =
        plans.into_iter().partition(|plan| plan.outcome == Outcome::WouldRepair);
    tell("\n");
    tell(&render_repairs(&refused, width));
    if planned.is_empty() {
        tell("Nothing of what was found can be repaired.\n");
        return false;
    }
    tell(&render_losses(&planned, width));
    let asked = tell(&format!("\n{}Go on? [y/N] ", render_question(planned.len(), width)));
    let mut answer = String::new();
    asked && io::stdin().read_line(&mut answer).is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// Says something on standard error; false if it cannot be.
fn tell(text: &str) -> bool {
    let mut err = io::stderr().lock();
    err.write_all(text.as_bytes()).and_then(|()| err.flush()).is_ok()
}

/// The data directory that `dir` is in as a volume, since what surrounds a directory says what is expected of it and who
/// writes there; or the directory above `dir`, or `dir` itself if nothing else can be opened.
fn open(dir: &Path) -> Result<(Mounted, PathBuf), VerifyError> {
    let own = open_to_read(dir)?;
    let path = own.root().to_owned();
    let mut above = None;
    for (depth, ancestor) in path.ancestors().take(LEVELS + 1).enumerate() {
        let Ok(volume) = open_to_read(ancestor) else { break };
        let is_data = volume.list(&Path::new(CLUSTER_DIR).join(CONTROLLER_DIR)).is_ok()
            || volume
                .list(Path::new(CLUSTER_DIR))
                .is_ok_and(|entries| entries.iter().any(|entry| entry.name == META_FILE));
        if is_data || depth == 1 {
            let below = path.strip_prefix(ancestor).map(Path::to_owned).unwrap_or_default();
            above = Some((volume, below));
        }
        if is_data {
            break;
        }
    }
    Ok(above.unwrap_or_else(|| (own, PathBuf::new())))
}

fn hint(error: &VerifyError) -> &'static str {
    match error {
        VerifyError::Storage(error) => match error.class {
            ErrorClass::NotFound => "check the path; a data directory holds topics/<topic>/<partition>/",
            ErrorClass::Invalid => {
                "name a directory, and check who may read it: run this as the broker's user"
            }
            ErrorClass::NoDescriptors => "raise the limit of open files (ulimit -n)",
            ErrorClass::Stale | ErrorClass::Retriable => "the volume did not answer; try again",
            _ => "check the volume and the kernel's log",
        },
        VerifyError::NothingThere { .. } => {
            "name a data directory (it holds topics/), a topic, or a partition (it holds partition.json)"
        }
    }
}
