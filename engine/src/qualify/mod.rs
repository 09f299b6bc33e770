//! Is a mount fit for kaas? `kaas-engine qualify`.
//!
//! Two processes try on the mount what kaas relies on (the four properties of a volume), and what it copes with, and measure
//! what single calls cost. They may work through one mount, two mounts of one volume, or on two hosts; the coordinator,
//! here, speaks to both through pipes and touches the volume never, so that one that hangs is reported and not waited for.
//!
//! Everything happens in a directory of its own, `~qualify-<random>`, which is removed at the end, after an interruption, and
//! after a crash by the next run.

mod agent;
mod check;
mod content;
mod html;
mod latency;
mod mount;
mod pair;
mod peer;
mod probes;
mod protocol;
mod report;
mod restart;
mod text;
mod witness;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

pub use self::check::{Basis, Check, Outcome};
pub use self::html::render as render_html;
pub use self::latency::{LatencyRow, Throughput};
pub use self::pair::Clients;
pub use self::peer::Trouble;
pub use self::protocol::{Family, Host, Volume};
pub use self::report::{Report, Verdict};
pub(crate) use self::text::micros_words;
pub use self::text::render;

use self::latency::Latencies;
use self::pair::Pair;

/// What is to be done.
#[derive(Debug, Clone)]
pub struct Options {
    /// An absolute path.
    pub dir: String,
    /// Another mount of the same volume on this host, for the second process.
    pub second_mount: Option<String>,
    /// A shell command that runs `kaas-engine` elsewhere; ` qualify-agent` is put behind it.
    pub peer: Option<String>,
    /// What the directory is called there, if not as here.
    pub peer_dir: Option<String>,
    /// Passes are repeated until this time is up; one is always made.
    pub duration: Duration,
    /// How long a single call may take before the volume counts as hanging.
    pub timeout: Duration,
    /// Whether latencies and throughput are measured.
    pub latencies: bool,
    /// A shell command that restarts the volume as a loss of power does.
    pub restart_command: Option<String>,
    /// How long that may take.
    pub restart_timeout: Duration,
    /// This program: `PROGRAM qualify-agent` speaks the protocol.
    pub program: PathBuf,
    /// Set by whoever wants it to end: nothing is waited for any more, and the directory is removed.
    pub cancelled: Arc<AtomicBool>,
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub enum QualifyError {
    /// A process or the volume.
    #[error(transparent)]
    Trouble(#[from] Trouble),
    /// The peer did not come up.
    #[error("{trouble}; its command: {command}")]
    NoPeer { command: String, trouble: Trouble },
    /// The second process does not see the directory of the first.
    #[error(
        "the second process does not see {name}, which the first one has made: it is not the same volume; here: {here}; \
         there: {there}"
    )]
    NotTheSameVolume { name: String, here: String, there: String },
    /// The run's directory was removed from under it.
    #[error(
        "{name} was removed while this run worked in it: nothing that it found says anything of the volume"
    )]
    Removed { name: String },
    /// The other `kaas-engine` is of another version.
    #[error("the peer's kaas-engine is version {theirs} and speaks another protocol than this one, version {}", env!("CARGO_PKG_VERSION"))]
    AnotherVersion { theirs: String },
    /// The command that restarts the volume.
    #[error(
        "the restart command {problem}{}",
        left.as_ref().map(|left| format!("; {left} is left on the volume, the next run removes it")).unwrap_or_default()
    )]
    Restart { problem: String, left: Option<String> },
}

/// How far a run is.
#[derive(Debug, Default)]
pub struct Progress {
    /// What is being done.
    pub step: Mutex<String>,
    /// Steps done, and all of the current pass.
    pub done: AtomicU64,
    pub total: AtomicU64,
}

impl Progress {
    fn at(&self, step: &str) {
        step.clone_into(&mut self.step.lock());
    }

    fn done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Serves as the process that touches the mount, until `input` ends.
pub fn serve_agent<W: Write + Send + 'static>(input: impl Read, output: W) {
    agent::serve(input, output);
}

/// Tries everything. The directory is as it was on return, unless the volume hangs.
pub fn qualify(options: &Options, progress: &Progress) -> Result<Report, QualifyError> {
    let began = Instant::now();
    let began_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    progress.at("starting both processes");
    let pair = Pair::open(options)?;
    let (facts, reads_directly) = (pair.facts.clone(), pair.direct());
    let mut findings = Findings::default();
    let until = began + options.duration;
    findings.checks.push(mount::judge(&facts.volume_a, &facts.volume_b));
    loop {
        findings.pass(&pair, options, progress)?;
        if Instant::now() >= until {
            break;
        }
    }
    let durable = match &options.restart_command {
        None => {
            pair.end()?;
            probes::not_asked_for()
        }
        Some(command) => {
            progress.at("restart of the volume");
            restart::survives(pair, options, command)?
        }
    };
    findings.after_required(durable);
    let (verdict, reasons) = report::judge(&facts, &findings.checks);
    Ok(Report {
        format: report::FORMAT,
        version: env!("CARGO_PKG_VERSION"),
        verdict,
        reasons,
        dir: options.dir.clone(),
        began_ms: u64::try_from(began_ms).unwrap_or(u64::MAX),
        elapsed_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        passes: findings.passes,
        clients: facts.clients,
        host: facts.host_a,
        volume: facts.volume_a,
        second_host: facts.host_b,
        second_volume: facts.volume_b,
        checks: findings.checks,
        latencies: findings.latencies.rows(reads_directly),
        throughput: findings.latencies.throughput(),
        leftovers_removed: facts.begun.removed,
        leftovers_left: facts.begun.left,
    })
}

/// What passes have found so far.
#[derive(Default)]
struct Findings {
    checks: Vec<Check>,
    latencies: Latencies,
    passes: u32,
}

impl Findings {
    fn pass(&mut self, pair: &Pair, options: &Options, progress: &Progress) -> Result<(), QualifyError> {
        let tried = self.try_all(pair, options, progress);
        if matches!(&tried, Ok(()) | Err(Trouble::Refused { .. })) && pair.is_gone()? {
            return Err(QualifyError::Removed { name: pair.name().to_owned() });
        }
        Ok(tried?)
    }

    fn try_all(&mut self, pair: &Pair, options: &Options, progress: &Progress) -> Result<(), Trouble> {
        let noted = if self.passes == 0 { probes::NOTED } else { &[] };
        let measured = if options.latencies { Latencies::steps().count() } else { 0 };
        let total = probes::REQUIRED.len() + noted.len() + measured;
        progress.total.store(total as u64, Ordering::Relaxed);
        progress.done.store(0, Ordering::Relaxed);
        self.passes += 1;
        for (step, run) in probes::REQUIRED.iter().chain(noted) {
            progress.at(step);
            let check = run(pair)?;
            match self.checks.iter_mut().find(|known| known.name == check.name) {
                Some(known) => known.merge(check),
                None => self.checks.push(check),
            }
            progress.done();
        }
        if options.latencies {
            let mut first = true;
            self.latencies.pass(pair, |step| {
                if !std::mem::take(&mut first) {
                    progress.done();
                }
                progress.at(step);
            })?;
            progress.done();
        }
        Ok(())
    }

    /// Puts a check behind the others that kaas relies on.
    fn after_required(&mut self, check: Check) {
        let noted = self.checks.iter().position(|known| known.basis == Basis::Nothing);
        self.checks.insert(noted.unwrap_or(self.checks.len()), check);
    }
}
