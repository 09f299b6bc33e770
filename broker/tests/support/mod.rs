//! A real `kaas` process for integration tests: started on a directory and a free port of its own, awaited, watched, ended.
//!
//! Owns the process and, unless the test brought one, the data directory. Its standard error is collected (the last
//! `LOG_BYTES`) and printed when the test fails. Every wait has a bound. Used from any test thread; one `Broker` is one
//! process.
//!
//! With `KAAS_TEST_BOOTSTRAP=HOST:PORT` in the environment, `Broker::start` gives that broker instead: the way in which
//! the client programs are held against Apache Kafka itself.
#![allow(dead_code, reason = "each test file uses its own part of the harness")]

use std::{
    collections::VecDeque,
    io::{BufRead as _, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

/// The line on standard output that says the broker accepts connections, up to its address.
const READY: &str = "kaas is ready: bootstrap.servers=";
/// A broker that is not ready by then is a failure. Generous: the machine may be compiling something.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// How long a broker may take to end after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// How much of a broker's log is kept for a failure's report.
const LOG_BYTES: usize = 64 * 1024;

/// A broker to test against; ends when dropped.
pub struct Broker {
    bootstrap: String,
    process: Option<Child>,
    data_dir: PathBuf,
    _own_dir: Option<tempfile::TempDir>,
    log: Arc<Mutex<VecDeque<u8>>>,
    args: Vec<String>,
}

impl Broker {
    /// A broker on a fresh directory (or the external one of `KAAS_TEST_BOOTSTRAP`).
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Like `start`, with further command line arguments. An external broker does not get them.
    pub fn start_with(args: &[&str]) -> Self {
        if let Ok(bootstrap) = std::env::var("KAAS_TEST_BOOTSTRAP") {
            return Self {
                bootstrap,
                process: None,
                data_dir: PathBuf::new(),
                _own_dir: None,
                log: Arc::default(),
                args: Vec::new(),
            };
        }
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut broker = Self::start_in(dir.path(), args);
        broker._own_dir = Some(dir);
        broker
    }

    /// A broker on a directory that outlives it.
    pub fn start_in(data_dir: &Path, args: &[&str]) -> Self {
        let mut broker = Self {
            bootstrap: String::new(),
            process: None,
            data_dir: data_dir.to_owned(),
            _own_dir: None,
            log: Arc::default(),
            args: args.iter().map(|a| (*a).to_owned()).collect(),
        };
        broker.launch("127.0.0.1:0");
        broker
    }

    fn launch(&mut self, listen: &str) {
        let binary = env!("CARGO_BIN_EXE_kaas");
        let mut child = Command::new(binary)
            .args(["--listen", listen, "--data-dir"])
            .arg(&self.data_dir)
            // As Kafka's own tests: nothing is gained by waiting 3 s for a group's first members.
            .args(["--set", "group.initial.rebalance.delay.ms=0"])
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{binary} does not start: {e}"));
        let log = Arc::clone(&self.log);
        let stderr = child.stderr.take().expect("piped");
        thread::spawn(move || collect(stderr, &log));
        let (ready, wait) = mpsc::channel();
        let stdout = child.stdout.take().expect("piped");
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(address) = line.strip_prefix(READY) {
                    // The receiver is gone when this came too late.
                    let _ = ready.send(address.trim().to_owned());
                }
            }
        });
        self.process = Some(child);
        match wait.recv_timeout(READY_LIMIT) {
            Ok(address) => self.bootstrap = address,
            Err(e) => panic!("kaas did not say that it is ready ({e})"),
        }
    }

    /// HOST:PORT for clients.
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// Where the broker keeps its data.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The process id, of a broker that this harness started.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("an own broker").id()
    }

    /// Whether this harness started the broker, so that it can be killed and its files read.
    pub fn is_own(&self) -> bool {
        self.process.is_some()
    }

    /// SIGKILL: the broker ends between two instructions.
    pub fn kill(&mut self) {
        let process = self.process.as_mut().expect("an own broker");
        process.kill().expect("kill");
        process.wait().expect("wait");
    }

    /// SIGTERM, and waits for the clean end.
    pub fn stop(&mut self) -> ExitStatus {
        signal(self.pid(), "TERM");
        let process = self.process.as_mut().expect("an own broker");
        let deadline = Instant::now() + STOP_LIMIT;
        loop {
            if let Some(status) = process.try_wait().expect("wait") {
                return status;
            }
            assert!(Instant::now() < deadline, "kaas did not end within {STOP_LIMIT:?} of SIGTERM");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts the broker again after `kill` or `stop`: same directory, same address, same arguments.
    pub fn restart(&mut self) {
        let address = self.bootstrap.clone();
        self.launch(&address);
    }

    /// The end of what the broker wrote to standard error.
    pub fn log(&self) -> String {
        let log = self.log.lock().expect("log");
        String::from_utf8_lossy(&log.iter().copied().collect::<Vec<u8>>()).into_owned()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // Both fail only when the process has ended before.
            let _ = process.kill();
            let _ = process.wait();
        }
        if thread::panicking() && self.process.is_some() {
            eprintln!("--- the end of the broker's log ---\n{}\n--- end ---", self.log());
        }
    }
}

/// Sends a signal by its name, through the system's `kill`.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args(["-s", name, &pid.to_string()]).status().expect("kill runs");
    assert!(status.success(), "kill -s {name} {pid}");
}

fn collect(mut from: impl Read, log: &Mutex<VecDeque<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let mut log = log.lock().expect("log");
        log.extend(&buffer[..read]);
        let excess = log.len().saturating_sub(LOG_BYTES);
        log.drain(..excess);
    }
}
