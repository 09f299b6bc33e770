//! `kaas-engine qualify`: arguments, progress on a terminal, the report, the exit code; and `kaas-engine qualify-agent`, the
//! process that touches the mount for it.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use kaas_engine::qualify::{
    Options, Progress, QualifyError, Report, Trouble, Verdict, qualify, render, render_html, serve_agent,
};
use kaas_substrate::{EntryKind, Local, Mounted, OpenMode, Substrate, write_small};

use crate::interrupt::{self, Then};
use crate::shown::Shown;
use crate::{COULD_NOT_RUN, complain, print, units};

const FIT_FOR_ONE_BROKER: u8 = 10;
const UNFIT: u8 = 11;

/// Finds out whether a mount is fit for kaas: tries what kaas relies on with two processes, and measures.
///
/// Works in a directory of its own below DIR, `~qualify-<random>`, and removes it; touches nothing else. Give it a second
/// client of the volume, --peer or --second-mount: what one client sees of itself says little about two.
///
/// Exits with 0 if the mount is fit for several brokers, 10 if for one broker, 11 if it is unfit, 2 if it could not run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kaas-engine qualify /mnt/shared --peer 'ssh other-host kaas-engine'
  kaas-engine qualify /mnt/shared --second-mount /mnt/again --html report.html
  kaas-engine qualify /data --peer 'kubectl exec -i kaas-1 -- kaas-engine' \\
      --duration 1h --json | jq .verdict
  kaas-engine qualify /mnt/shared --restart-command 'ssh server power-cycle'

The peer's command gets ` qualify-agent` put behind it and is spoken to through its standard input and output, so it
needs neither a port nor a login of its own. Both sides must be the same version.

Exit codes: 0 fit for several brokers, 10 fit for one broker, 11 unfit, 2 it could not run; 130 after Ctrl-C, 143 after
SIGTERM.

The JSON object is described in docs/operating/qualify.md.")]
pub struct QualifyArgs {
    /// A directory on the mount
    dir: PathBuf,
    /// Another mount of the same volume on this host, for the second process
    #[arg(long, value_name = "DIR2", conflicts_with = "peer")]
    second_mount: Option<PathBuf>,
    /// A shell command that runs kaas-engine on another host, for the second process
    #[arg(long, value_name = "COMMAND")]
    peer: Option<String>,
    /// DIR as the peer knows it, if it is called otherwise there
    #[arg(long, value_name = "DIR", requires = "peer")]
    peer_dir: Option<PathBuf>,
    /// Try again and again for so long (90s, 10m, 1h); one pass is always made
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    duration: Duration,
    /// How long one call may take before the volume counts as hanging
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = duration)]
    timeout: Duration,
    /// Do not measure latencies and throughput
    #[arg(long)]
    no_latencies: bool,
    /// A shell command that restarts the volume as a loss of power does, and ends when it is mounted again
    #[arg(long, value_name = "COMMAND")]
    restart_command: Option<String>,
    /// How long that may take
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    restart_timeout: Duration,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Write a report with plots, too: one HTML file that stands alone
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Serves another `kaas-engine qualify`, on standard input and output.
#[derive(Debug, Args)]
pub struct AgentArgs {}

/// Runs the command.
pub fn run(args: &QualifyArgs) -> ExitCode {
    let options = match options(args) {
        Ok(options) => options,
        Err(problem) => {
            complain(&problem, None);
            return ExitCode::from(COULD_NOT_RUN);
        }
    };
    // Found out now, and not after an hour.
    let html = match args.html.as_deref().map(HtmlFile::at).transpose() {
        Ok(html) => html,
        Err(problem) => {
            complain(
                &problem,
                Some("--html takes the name of a file, in a directory that this user may write in"),
            );
            return ExitCode::from(COULD_NOT_RUN);
        }
    };
    let progress = Arc::new(Progress::default());
    interrupt::watch(Then::Stop(Arc::clone(&options.cancelled)), || {
        "interrupted; removing the directory (again: stop at once, the next run removes it)".to_owned()
    });
    let shown = {
        let progress = Arc::clone(&progress);
        Shown::begin("{spinner} {wide_bar} {pos}/{len}  {msg}  {elapsed}", move |bar| {
            use std::sync::atomic::Ordering;
            bar.set_length(progress.total.load(Ordering::Relaxed));
            bar.set_position(progress.done.load(Ordering::Relaxed));
            bar.set_message(progress.step.lock().clone());
        })
    };
    let outcome = qualify(&options, &progress);
    shown.end();
    match outcome {
        Ok(report) => {
            let code = tell(&report, args);
            match html.map(|html| html.write(&render_html(&report))) {
                Some(Err(problem)) => {
                    complain(&problem, None);
                    ExitCode::from(COULD_NOT_RUN)
                }
                Some(Ok(path)) => {
                    complain(&format!("report with plots: {}", path.display()), None);
                    code
                }
                None => code,
            }
        }
        // It was told when it came.
        Err(_) if interrupt::code().is_some() => ExitCode::from(COULD_NOT_RUN),
        Err(error) => {
            complain(&error.to_string(), hint(&error));
            ExitCode::from(COULD_NOT_RUN)
        }
    }
}

/// Serves as the process that touches the mount.
pub fn run_agent(_: &AgentArgs) -> ExitCode {
    serve_agent(io::stdin().lock(), io::stdout());
    // A thread may be held by the volume; it does not hold the process.
    ExitCode::SUCCESS
}

fn options(args: &QualifyArgs) -> Result<Options, String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    Ok(Options {
        dir: absolute(&args.dir)?,
        second_mount: args.second_mount.as_deref().map(absolute).transpose()?,
        peer: args.peer.clone(),
        peer_dir: args.peer_dir.as_deref().map(text).transpose()?,
        duration: args.duration,
        timeout: args.timeout,
        latencies: !args.no_latencies,
        restart_command: args.restart_command.clone(),
        restart_timeout: args.restart_timeout,
        program,
        cancelled: Arc::default(),
    })
}

/// Where the HTML goes.
struct HtmlFile {
    dir: Mounted,
    name: PathBuf,
}

impl HtmlFile {
    /// Tries now whether it can be written. Nothing is at `path` yet, or what was there before.
    fn at(path: &Path) -> Result<Self, String> {
        let says = |error: &dyn std::fmt::Display| format!("--html {}: {error}", path.display());
        let name = path.file_name().ok_or_else(|| says(&"not the name of a file"))?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let dir = Local::open(parent).map_err(|error| says(&error))?;
        let known = dir.list(Path::new("")).map_err(|error| says(&error))?;
        if known.iter().any(|entry| entry.name == name && entry.kind == EntryKind::Dir) {
            return Err(says(&"a directory"));
        }
        let html = Self { dir, name: PathBuf::from(name) };
        let mut tried = OsString::from("~");
        tried.push(name);
        tried.push(format!(".{}", std::process::id()));
        let tried = Path::new(&tried);
        html.dir
            .open(tried, OpenMode::CreateNew)
            .and_then(|_| html.dir.remove_file(tried))
            .map_err(|error| says(&error))?;
        Ok(html)
    }

    /// Where it is then.
    fn write(&self, html: &str) -> Result<PathBuf, String> {
        let path = self.dir.root().join(&self.name);
        write_small(&self.dir, &self.name, html.as_bytes())
            .map_err(|error| format!("--html {}: {error}", path.display()))?;
        Ok(path)
    }
}

fn absolute(path: &Path) -> Result<String, String> {
    text(&std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?)
}

fn text(path: &Path) -> Result<String, String> {
    path.to_str().map(str::to_owned).ok_or_else(|| format!("{}: not UTF-8", path.display()))
}

/// The longest time that can be asked for.
const LONGEST_MS: u64 = 30 * 24 * 3_600_000;

fn duration(text: &str) -> Result<Duration, String> {
    let millis = units::parse(text, units::MILLIS)?;
    if millis > LONGEST_MS {
        return Err("longer than 30 days".to_owned());
    }
    Ok(Duration::from_millis(millis))
}

fn tell(report: &Report, args: &QualifyArgs) -> ExitCode {
    if let Err(problem) = print(report, args.json, render) {
        complain(&problem, None);
        return ExitCode::from(COULD_NOT_RUN);
    }
    match report.verdict {
        Verdict::Fit => ExitCode::SUCCESS,
        Verdict::FitForOneBroker => ExitCode::from(FIT_FOR_ONE_BROKER),
        Verdict::Unfit => ExitCode::from(UNFIT),
    }
}

fn hint(error: &QualifyError) -> Option<&'static str> {
    Some(match error {
        QualifyError::Trouble(Trouble::Hung { .. }) => {
            "look at the kernel's log, the server and the connection; --timeout waits longer"
        }
        QualifyError::Trouble(Trouble::Gone { .. } | Trouble::Garbled { .. }) => {
            "it was killed, or the connection to it broke; look at its host, and try again"
        }
        QualifyError::Trouble(Trouble::Refused { .. }) => {
            "name an existing directory that this user may write in (--peer-dir: as its host has it)"
        }
        QualifyError::Trouble(Trouble::NotStarted { .. }) => "check the command",
        QualifyError::Trouble(Trouble::Interrupted) => return None,
        QualifyError::NoPeer { .. } => {
            "by hand, with ` qualify-agent </dev/null` behind it, the command must end at once with 0"
        }
        QualifyError::NotTheSameVolume { .. } => {
            "name the same directory on both sides (--peer-dir, --second-mount)"
        }
        QualifyError::Removed { .. } => {
            "run it again, and let nothing remove directories that begin with ~qualify-"
        }
        QualifyError::AnotherVersion { .. } => "install the same version on both hosts",
        QualifyError::Restart { .. } => {
            "it must restart what holds the volume, mount it again if need be, and exit with 0"
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_fit_a_line() {
        let trouble = || Trouble::Gone { who: "x".into(), what: "y".into(), how: "z".into() };
        let refused = Trouble::NotStarted { who: "x".into(), source: io::ErrorKind::NotFound.into() };
        let hung = Trouble::Hung { who: "x".into(), what: "y".into(), seconds: 1 };
        for error in [
            QualifyError::Trouble(trouble()),
            QualifyError::Trouble(refused),
            QualifyError::Trouble(hung),
            QualifyError::NoPeer { command: "x".into(), trouble: trouble() },
            QualifyError::Removed { name: "x".into() },
            QualifyError::AnotherVersion { theirs: "x".into() },
            QualifyError::Restart { problem: "x".into(), left: None },
        ] {
            assert!(hint(&error).unwrap().chars().count() <= 100 - "  hint: ".len(), "{error}");
        }
    }

    #[test]
    fn durations_have_a_limit() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1000h"), Err("longer than 30 days".to_owned()));
    }
}
