//! `kaas-engine import`: arguments, progress on a terminal, the report, the exit code.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use clap::Args;
use kaas_engine::import::{CARRIED_CONFIGS, ImportError, Options, Progress, Report, Source, plan};
use kaas_substrate::{ErrorClass, Local, Substrate, create_root};

use crate::interrupt::{self, Then};
use crate::shown::Shown;
use crate::{COULD_NOT_RUN, FOUND, complain, print};

/// Takes over the topics of an Apache Kafka 4: its log directories become topics of a data directory.
///
/// Consumers read the same records at the same offsets. Topic ids, topic configs, leader epochs, idempotent producers,
/// aborted transactions and the committed offsets of groups are carried over. Kafka must be stopped; nothing is written to its directories. Everything is read and
/// checked first: if anything cannot be carried over, all of it is told and nothing is written. Topics appear whole; an
/// import that was interrupted is simply begun again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kaas-engine import --dry-run /var/lib/kafka/data /data
  kaas-engine import /var/lib/kafka/data /data
  kaas-engine import --topic orders --topic payments /disk1/kafka /disk2/kafka /data
  kaas-engine import --config retention.ms=-1 /var/lib/kafka/data/orders-0 /data

Exits with 0 if all is imported (or can be, with --dry-run), 1 if something cannot be, 2 if it could not run.")]
pub struct ImportArgs {
    /// Kafka's log directories (all of log.dirs), or directories of single partitions in them
    #[arg(required = true, value_name = "KAFKA_LOG_DIR")]
    kafka: Vec<PathBuf>,
    /// The data directory of kaas; made if it is not there
    #[arg(required = true, value_name = "DIR")]
    dir: PathBuf,
    /// Only this topic; may be given several times
    #[arg(long = "topic", value_name = "NAME")]
    topics: Vec<String>,
    /// A config for every imported topic, whatever Kafka's metadata says
    #[arg(long = "config", value_name = "NAME=VALUE", value_parser = config)]
    configs: Vec<(String, String)>,
    /// Kafka was killed: cut off what it had not finished writing, as it would itself when started
    #[arg(long)]
    after_crash: bool,
    /// The node id of a data directory that is made now (as of `kaas --node-id`)
    #[arg(long, value_name = "ID", default_value_t = 1)]
    node_id: i32,
    /// Leave the committed offsets of consumer groups behind
    #[arg(long)]
    no_groups: bool,
    /// Only read, check and report
    #[arg(long)]
    dry_run: bool,
    /// The report as one JSON object
    #[arg(long)]
    json: bool,
}

fn config(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    if !CARRIED_CONFIGS.contains(&name) {
        return Err(format!("{name} is not one of {}", CARRIED_CONFIGS.join(", ")));
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Runs the command.
pub fn run(args: &ImportArgs) -> ExitCode {
    let options = Options {
        topics: args.topics.clone(),
        configs: args.configs.iter().cloned().collect::<BTreeMap<_, _>>(),
        after_crash: args.after_crash,
        without_groups: args.no_groups,
        node_id: args.node_id,
    };
    let report = match import(args, &options) {
        Ok(report) => report,
        // It was told when it came.
        Err(_) if interrupt::code().is_some() => return ExitCode::from(COULD_NOT_RUN),
        Err(error) => {
            complain(&error.to_string(), Some(hint(&error)));
            return ExitCode::from(COULD_NOT_RUN);
        }
    };
    if let Err(problem) = print(&report, args.json, Report::to_text) {
        complain(&problem, None);
        return ExitCode::from(COULD_NOT_RUN);
    }
    if report.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FOUND) }
}

fn import(args: &ImportArgs, options: &Options) -> Result<Report, ImportError> {
    let sources = args.kafka.iter().map(|dir| source(dir)).collect::<Result<Vec<_>, _>>()?;
    let existing = match Local::open(&args.dir) {
        Ok(volume) => Some(Arc::new(volume)),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error.into()),
    };
    let progress = Arc::new(Progress::default());
    interrupt::watch(Then::Stop(Arc::clone(&progress.cancelled)), || {
        "interrupted; topics that are whole stay, and the import may be begun again (again: stop at once)"
            .to_owned()
    });
    let checking =
        show("checking {bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec}, {eta} left", &progress);
    let plan = plan(&sources, existing.as_deref().map(|volume| volume as &dyn Substrate), options, &progress);
    checking.end();
    let plan = plan?;
    if args.dry_run || !plan.report().problems.is_empty() {
        return Ok(plan.report().clone());
    }
    let target: Arc<dyn Substrate> = match existing {
        Some(volume) => volume,
        None => {
            create_root(&args.dir)?;
            Arc::new(Local::open(&args.dir)?)
        }
    };
    let copying =
        show("copying  {bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec}, {eta} left", &progress);
    let report = plan.carry_out(&target, &progress);
    copying.end();
    report
}

/// Shows how far it is, on a terminal.
fn show(template: &'static str, progress: &Arc<Progress>) -> Shown {
    let progress = Arc::clone(progress);
    Shown::begin(template, move |bar| {
        bar.set_length(progress.total.load(Ordering::Relaxed));
        bar.set_position(progress.read.load(Ordering::Relaxed));
    })
}

/// A log directory, or the one above a partition's directory.
fn source(dir: &Path) -> Result<Source, ImportError> {
    let own = Local::open(dir)?;
    let is_partition = own
        .list(Path::new(""))?
        .iter()
        .any(|entry| entry.name == "partition.metadata" || entry.name.to_string_lossy().ends_with(".log"));
    let above = own.root().parent().zip(own.root().file_name().and_then(|name| name.to_str()));
    match above {
        Some((parent, name)) if is_partition => {
            Ok(Source { volume: Arc::new(Local::open(parent)?), only: Some(name.to_owned()) })
        }
        _ => Ok(Source { volume: Arc::new(own), only: None }),
    }
}

fn hint(error: &ImportError) -> &'static str {
    match error {
        ImportError::Storage(error) => match error.class {
            ErrorClass::NotFound => "check the paths",
            ErrorClass::Invalid => "check who may read and write there, and whether both are directories",
            ErrorClass::NoSpace => "make room, and begin the import again",
            _ => "the volume failed; begin the import again",
        },
        ImportError::NotADataDirectory { .. } => {
            "name an empty directory, or one that `kaas` has been started on; the last argument is where it goes"
        }
        ImportError::Locked { .. } => "stop the broker; it must not run during an import",
        ImportError::Deposed { .. } | ImportError::Fence(_) | ImportError::Claim(_) => {
            "see to it that no broker runs on the data directory, and begin the import again"
        }
        ImportError::NoRoom { .. } => "make room, or import some topics with --topic",
        ImportError::Changed { .. } => "stop Kafka, and begin the import again",
        ImportError::EpochsExhausted { .. } => {
            "copy the topic to a new one with Kafka's tools, and import that"
        }
        ImportError::Thread { .. } => "the system has no thread to spare; begin the import again",
        ImportError::Versioned(_)
        | ImportError::Engine(_)
        | ImportError::Slot(_)
        | ImportError::Journal(_) => "`kaas-engine verify` on the data directory tells more",
    }
}
