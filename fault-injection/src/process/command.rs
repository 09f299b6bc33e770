//! How a broker is started.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::broker::{self, BrokerProcess};
use super::error::ProcessError;
use super::output::Output;

/// How long a broker may take until it is ready, if nothing else is said. Generous: a time is never what a test
/// is about.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// A broker program with its data directory, flags and environment; starts any number of processes.
///
/// The environment of the test is inherited, except variables that begin with `KAAS_`: they would change what a flag
/// left out means.
#[derive(Debug, Clone)]
pub struct BrokerCommand {
    binary: PathBuf,
    data_dir: PathBuf,
    listen: String,
    flags: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    ready_within: Duration,
}

/// A process that has ended.
#[derive(Debug)]
pub struct Ended {
    /// With which code or signal.
    pub status: ExitStatus,
    /// What it wrote to its standard output.
    pub stdout: String,
    /// The last lines of its standard error.
    pub stderr: String,
}

impl BrokerCommand {
    /// The program `binary` on `data_dir`, listening on a free port of the loopback address.
    pub fn new(binary: impl Into<PathBuf>, data_dir: impl Into<PathBuf>) -> Self {
        Self {
            binary: binary.into(),
            data_dir: data_dir.into(),
            listen: "127.0.0.1:0".to_owned(),
            flags: Vec::new(),
            env: Vec::new(),
            ready_within: READY_WITHIN,
        }
    }

    /// Listens on `address` (`HOST:PORT`) instead.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = address.into();
        self
    }

    /// Adds a flag or an argument.
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.flags.push(argument.into());
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Waits so long for the broker to be ready.
    pub fn ready_within(mut self, limit: Duration) -> Self {
        self.ready_within = limit;
        self
    }

    /// The data directory.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Starts a broker and waits until it says that it is ready.
    ///
    /// # Errors
    ///
    /// If it cannot be run, ends, or is not ready in time; then no process is left behind.
    pub fn start(&self) -> Result<BrokerProcess, ProcessError> {
        let mut child = self.spawn()?;
        let (stdout, announced) = piped(&mut child.stdout);
        let (stderr, _) = piped(&mut child.stderr);
        BrokerProcess::adopt(child, stdout, stderr).until_ready(&announced, self.ready_within)
    }

    /// Starts a broker that is expected to end by itself, and waits at most `limit` for that.
    ///
    /// # Errors
    ///
    /// [`ProcessError::StillRunning`] if it does not; then it has been killed.
    pub fn run_to_end(&self, limit: Duration) -> Result<Ended, ProcessError> {
        let mut child = self.spawn()?;
        let (mut stdout, _) = piped(&mut child.stdout);
        let (mut stderr, _) = piped(&mut child.stderr);
        let ended = broker::wait_at_most(&mut child, limit);
        if !matches!(ended, Ok(Some(_))) {
            // Already gone is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
        stdout.finish();
        stderr.finish();
        match ended? {
            Some(status) => Ok(Ended { status, stdout: stdout.text(), stderr: stderr.text() }),
            None => {
                let said = stdout.text() + &stderr.text();
                Err(ProcessError::StillRunning { pid: child.id(), waited: limit, said })
            }
        }
    }

    fn spawn(&self) -> Result<Child, ProcessError> {
        let mut command = Command::new(&self.binary);
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("KAAS_")) {
                command.env_remove(name);
            }
        }
        command
            .arg("--data-dir")
            .arg(&self.data_dir)
            .args(["--listen", &self.listen])
            .args(&self.flags)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| ProcessError::Spawn { binary: self.binary.clone(), source })
    }
}

/// Collects a pipe of a child; an absent one is empty.
fn piped<S>(stream: &mut Option<S>) -> (Output, std::sync::mpsc::Receiver<String>)
where
    S: std::io::Read + Send + 'static,
{
    match stream.take() {
        Some(stream) => Output::collect(stream),
        None => Output::collect(std::io::empty()),
    }
}
