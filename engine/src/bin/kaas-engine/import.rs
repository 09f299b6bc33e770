//! `kaas-engine import`: arguments, progress on a terminal, the report, the exit code.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use clap::Args;
use kaas_engine::import::{
    CARRIED_CONFIGS, ImportError, Options, Progress, Report, ServerProperties, Source, is_partition_dir, plan,
};
use kaas_substrate::recognise::{self, OpenError, check_access, nearest_existing, open_to_read};
use kaas_substrate::{ErrorClass, Substrate, read_named};

use crate::interrupt::{self, Then};
use crate::shown::Shown;
use crate::substrate_kind::SubstrateKind;
use crate::{COULD_NOT_RUN, FOUND, complain, places, print, terminal};

/// Takes over the topics of an Apache Kafka 4: its log directories become topics of a data directory.
///
/// Consumers read the same records at the same offsets. Topic ids, topic configs and the brokers' defaults of them, leader
/// epochs, idempotent producers, aborted transactions and the committed offsets of groups are carried over. Kafka must be
/// stopped; nothing is written to its directories. Everything is read and checked first: if anything cannot be carried over,
/// or is missing, all of it is told and nothing is written. Topics appear whole; an import that was interrupted is simply
/// begun again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kaas-engine import --dry-run /var/lib/kafka/data /data
  kaas-engine import --server-properties /etc/kafka/server.properties \\
      /var/lib/kafka/data /data
  kaas-engine import --topic orders --topic payments /kafka1 /kafka2 /data
  kaas-engine import --config retention.ms=-1 /var/lib/kafka/data/orders-0 /data

Exit codes: 0 all is imported (or can be, with --dry-run), 1 something cannot be, 2 it could not run; 130 after
Ctrl-C, 143 after SIGTERM.")]
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
    /// The server.properties of Kafka's broker: topics without configs of their own get the defaults that they had there
    #[arg(long, value_name = "FILE")]
    server_properties: Option<PathBuf>,
    /// A config for every imported topic, whatever Kafka says
    #[arg(long = "config", value_name = "NAME=VALUE", value_parser = config)]
    configs: Vec<(String, String)>,
    /// This topic may have gaps: it was compacted once; may be given several times
    #[arg(long, value_name = "NAME")]
    gaps: Vec<String>,
    /// Kafka was killed: cut off what it had not finished writing, as it would itself when started
    #[arg(long)]
    after_crash: bool,
    /// The node id of a data directory that is made now (as of `kaas --node-id`)
    #[arg(long, value_name = "ID", default_value_t = 1, allow_negative_numbers = true,
          value_parser = clap::value_parser!(i32).range(0..))]
    node_id: i32,
    /// Leave the committed offsets of consumer groups behind
    #[arg(long)]
    no_groups: bool,
    /// What DIR is on
    #[arg(long, value_name = "KIND", default_value = "auto")]
    substrate: SubstrateKind,
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

/// What went wrong, and what to do about it.
type Failed = (String, Option<&'static str>);

/// Runs the command.
pub fn run(args: &ImportArgs) -> ExitCode {
    let outcome = options(args).and_then(|options| import(args, &options)).and_then(|report| {
        print(&report, args.json, |report| report.to_text(terminal::width()))
            .map(|()| report)
            .map_err(|problem| (problem, None))
    });
    match outcome {
        Ok(report) if report.problems.is_empty() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(FOUND),
        // It was told when it came.
        Err(_) if interrupt::code().is_some() => ExitCode::from(COULD_NOT_RUN),
        Err((problem, hint)) => {
            complain(&problem, hint);
            ExitCode::from(COULD_NOT_RUN)
        }
    }
}

fn options(args: &ImportArgs) -> Result<Options, Failed> {
    Ok(Options {
        topics: args.topics.clone(),
        server_properties: args.server_properties.as_deref().map(server_properties).transpose()?,
        configs: args.configs.iter().cloned().collect::<BTreeMap<_, _>>(),
        gaps: args.gaps.clone(),
        after_crash: args.after_crash,
        without_groups: args.no_groups,
        node_id: args.node_id,
    })
}

/// Largest `server.properties` that is read, in bytes.
const SERVER_PROPERTIES_BYTES_MAX: u64 = 1 << 20;

/// Reads the file that was named.
fn server_properties(path: &Path) -> Result<ServerProperties, Failed> {
    let bytes = read_named(path, SERVER_PROPERTIES_BYTES_MAX).map_err(|error| {
        (
            format!("{}: {error}", path.display()),
            Some("name the server.properties that Kafka is started with"),
        )
    })?;
    Ok(ServerProperties::parse(path, &bytes))
}

fn import(args: &ImportArgs, options: &Options) -> Result<Report, Failed> {
    let sources = args.kafka.iter().map(|dir| source(dir)).collect::<Result<Vec<_>, _>>()?;
    check_target(args, &sources)?;
    let existing = match open_to_read(&args.dir) {
        Ok(volume) => Some(volume),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(storage(&error, &args.dir)),
    };
    let progress = Arc::new(Progress::default());
    interrupt::watch(Then::Stop(Arc::clone(&progress.cancelled)), || {
        "interrupted; whole topics stay, and the import may be begun again (again: stop at once)".to_owned()
    });
    let checking =
        show("checking {bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec}, {eta} left", &progress);
    let existing = existing.as_ref().map(|volume| volume as &dyn Substrate);
    let plan = plan(&sources, existing, options, &progress);
    checking.end();
    let mut plan = plan.map_err(failed)?;
    // Of an absent directory that of the nearest one above it, on the same volume.
    let volume = nearest_existing(&args.dir).ok().and_then(|dir| open_to_read(&dir).ok());
    if let Some(space) = volume.and_then(|volume| volume.space().ok()) {
        plan.check_room(&args.dir, &space);
    }
    // The import itself takes the lock.
    if let Some(existing) = existing.filter(|_| args.dry_run) {
        plan.check_not_in_use(existing).map_err(failed)?;
    }
    if args.dry_run || !plan.report().problems.is_empty() {
        return Ok(plan.report().clone());
    }
    let target =
        recognise::open(&args.dir, args.substrate.into()).map_err(|error| mount(&error, &args.dir))?;
    let copying =
        show("copying  {bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec}, {eta} left", &progress);
    let report = plan.carry_out(&target, &progress);
    copying.end();
    report.map_err(failed)
}

/// Refuses a directory in which nothing could be written, or must not, before anything is read. Nothing is touched.
fn check_target(args: &ImportArgs, sources: &[Source]) -> Result<(), Failed> {
    let apart = places::check(sources, &args.dir)
        .map_err(|error| (format!("{}: {error}", args.dir.display()), Some("check the paths")))?;
    apart.map_err(|(problem, hint)| (problem, Some(hint)))?;
    recognise::check(&args.dir, args.substrate.into()).map_err(|error| mount(&error, &args.dir))?;
    check_access(&args.dir).map_err(|error| storage(&error, &args.dir))
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
fn source(dir: &Path) -> Result<Source, Failed> {
    let open = |dir: &Path| open_to_read(dir).map_err(|error| storage(&error, dir));
    let own = open(dir)?;
    let entries = own.list(Path::new("")).map_err(|error| storage(&error, dir))?;
    let above = own.root().parent().zip(own.root().file_name().and_then(|name| name.to_str()));
    match above {
        Some((parent, name)) if is_partition_dir(name, &entries) => {
            Ok(Source { volume: Arc::new(open(parent)?), only: Some(name.to_owned()) })
        }
        _ => Ok(Source { volume: Arc::new(own), only: None }),
    }
}

/// An error of a directory that was named.
fn storage(error: &kaas_substrate::Error, dir: &Path) -> Failed {
    (format!("{}: {}", dir.display(), error.source), Some(storage_hint(error.class)))
}

fn mount(error: &OpenError, dir: &Path) -> Failed {
    match error {
        OpenError::Storage(error) => storage(error, dir),
        _ => (error.to_string(), None),
    }
}

fn failed(error: ImportError) -> Failed {
    (error.to_string(), Some(hint(&error)))
}

fn storage_hint(class: ErrorClass) -> &'static str {
    match class {
        ErrorClass::NotFound => "check the paths",
        ErrorClass::Invalid => "check who may read and write there, and whether they are directories",
        ErrorClass::NoSpace => "make room, and begin the import again",
        _ => "the volume failed; begin the import again",
    }
}

fn hint(error: &ImportError) -> &'static str {
    match error {
        ImportError::Storage(error) => storage_hint(error.class),
        ImportError::NotADataDirectory { .. } => {
            "name an empty directory, or one that `kaas` has been started on; the last argument is where it goes"
        }
        ImportError::Locked { .. } => "stop the broker; it must not run during an import",
        ImportError::Deposed { .. } | ImportError::Fence(_) | ImportError::Claim(_) => {
            "see to it that no broker runs on the data directory, and begin the import again"
        }
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
