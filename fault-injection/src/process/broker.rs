//! A running broker.
//!
//! Invariant: the process is a child that has not been reaped as long as a `BrokerProcess` holds it, so its id cannot
//! have been given to another process, and a signal hits nobody else.

use std::io;
use std::net::SocketAddr;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::error::ProcessError;
use super::output::Output;

/// What a broker says on its standard output when it serves; the address follows.
const READY: &str = "kaas is ready: bootstrap.servers=";

/// Pause between two looks at a process that should end.
const POLL: Duration = Duration::from_millis(2);

/// How long a killed process may take to be gone. It is long only if it hangs in the file system.
const GONE_WITHIN: Duration = Duration::from_secs(20);

/// A broker process, killed when dropped. If that is because a test fails, what it said is printed.
#[derive(Debug)]
pub struct BrokerProcess {
    child: Child,
    /// Port 0 until it is known, which is before anybody else gets to see this.
    bootstrap: SocketAddr,
    stdout: Output,
    stderr: Output,
    ended: Option<ExitStatus>,
}

impl BrokerProcess {
    pub(super) fn adopt(child: Child, stdout: Output, stderr: Output) -> Self {
        Self { child, bootstrap: SocketAddr::from(([0, 0, 0, 0], 0)), stdout, stderr, ended: None }
    }

    /// Waits for the line that says where the broker listens.
    pub(super) fn until_ready(
        mut self,
        lines: &Receiver<String>,
        limit: Duration,
    ) -> Result<Self, ProcessError> {
        let deadline = Instant::now() + limit;
        loop {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let Some(address) = line.split_once(READY).map(|(_, address)| address.trim()) else {
                        continue;
                    };
                    let Ok(address) = address.parse() else { return Err(ProcessError::NoAddress { line }) };
                    self.bootstrap = address;
                    return Ok(self);
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(ProcessError::NotReady { waited: limit, said: self.said() });
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.wait_for_end(GONE_WITHIN)?;
                    return Err(ProcessError::EndedEarly { status, said: self.said() });
                }
            }
        }
    }

    /// Where it listens.
    pub fn bootstrap(&self) -> SocketAddr {
        self.bootstrap
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it at once, as a crash of the process would, and reaps it. What it had given to the kernel stays.
    ///
    /// # Errors
    ///
    /// If it does not go away; a process that hangs in the file system cannot be killed.
    pub fn kill(&mut self) -> Result<ExitStatus, ProcessError> {
        self.signal(Signal::KILL)?;
        self.wait_for_end(GONE_WITHIN)
    }

    /// Stops all its threads where they are (SIGSTOP), until [`resume`](Self::resume). On return it runs no more.
    pub fn pause(&mut self) -> Result<(), ProcessError> {
        self.signal(Signal::STOP)?;
        let deadline = Instant::now() + GONE_WITHIN;
        // The signal is delivered when a thread next enters the kernel: wait until the last one has stopped.
        while !self.all_threads_stopped()? {
            if Instant::now() > deadline {
                return Err(self.system("is not paused", io::ErrorKind::TimedOut.into()));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Lets a paused process go on (SIGCONT).
    pub fn resume(&mut self) -> Result<(), ProcessError> {
        self.signal(Signal::CONT)
    }

    /// Asks it to end in order (SIGTERM), and waits at most `limit` until it has.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus, ProcessError> {
        self.signal(Signal::TERM)?;
        self.wait_for_end(limit)
    }

    /// Waits at most `limit` for its end, and reaps it.
    pub fn wait_for_end(&mut self, limit: Duration) -> Result<ExitStatus, ProcessError> {
        if let Some(status) = self.ended {
            return Ok(status);
        }
        match wait_at_most(&mut self.child, limit)? {
            Some(status) => {
                self.ended = Some(status);
                // From now on everything it said can be asked for.
                self.stdout.finish();
                self.stderr.finish();
                Ok(status)
            }
            None => Err(ProcessError::StillRunning { pid: self.pid(), waited: limit, said: self.said() }),
        }
    }

    /// Whether it has not ended. A paused process runs, in this sense.
    pub fn is_running(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended.is_none()
    }

    /// Its resident memory in bytes.
    pub fn rss_bytes(&self) -> Result<u64, ProcessError> {
        let status = self.proc_file("status")?;
        let kib = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|value| value.trim().strip_suffix("kB"))
            .and_then(|value| value.trim().parse::<u64>().ok());
        // A process that has ended but is not reaped has no such line.
        kib.map(|kib| kib * 1024)
            .ok_or_else(|| self.system("has no memory figure", io::ErrorKind::NotFound.into()))
    }

    /// What it has said so far, standard output and the last lines of standard error, for the report of a failure.
    pub fn said(&self) -> String {
        self.stdout.text() + &self.stderr.text()
    }

    fn signal(&mut self, signal: Signal) -> Result<(), ProcessError> {
        if !self.is_running() {
            return Ok(());
        }
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| self.system("has no id", io::ErrorKind::InvalidInput.into()))?;
        kill_process(pid, signal).map_err(|errno| self.system("could not be signalled", errno.into()))
    }

    fn all_threads_stopped(&self) -> Result<bool, ProcessError> {
        let doing = "its threads could not be listed";
        let path = format!("/proc/{}/task", self.pid());
        for task in std::fs::read_dir(path).map_err(|source| self.system(doing, source))? {
            let task = task.map_err(|source| self.system(doing, source))?;
            // "pid (name) state ...", and the name may hold anything. A thread that is gone does not run either.
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            if !matches!(state, None | Some('T' | 't' | 'Z' | 'X')) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A file of procfs about the process. Not of a volume, so it does not go through the substrate.
    fn proc_file(&self, name: &str) -> Result<String, ProcessError> {
        std::fs::read_to_string(format!("/proc/{}/{name}", self.pid()))
            .map_err(|source| self.system("its figures could not be read", source))
    }

    fn system(&self, doing: &'static str, source: io::Error) -> ProcessError {
        ProcessError::System { pid: self.pid(), doing, source }
    }
}

impl Drop for BrokerProcess {
    fn drop(&mut self) {
        // Nothing can be done about a process that does not die.
        let _ = self.kill();
        if std::thread::panicking() {
            eprintln!("--- what the broker {} said:\n{}---", self.pid(), self.said());
        }
    }
}

/// Waits for the end of a child; `None` if it is still running after `limit`.
pub(super) fn wait_at_most(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>, ProcessError> {
    let deadline = Instant::now() + limit;
    loop {
        let ended = child.try_wait().map_err(|source| ProcessError::System {
            pid: child.id(),
            doing: "could not be waited for",
            source,
        })?;
        if ended.is_some() || Instant::now() >= deadline {
            return Ok(ended);
        }
        std::thread::sleep(POLL);
    }
}
