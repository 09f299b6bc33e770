//! The process that holds a lab, and running scripts with a limit.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use super::{LabError, scripts};

/// How long `down` may take. What is not down then is left for the next lab's sweep.
const DOWN_WITHIN: Duration = Duration::from_secs(60);

/// A running `hold`.
#[derive(Debug)]
pub(super) struct Keeper {
    child: Child,
    /// Its end is what makes the holder take everything down. The kernel closes it, however this process ends.
    stdin: Option<ChildStdin>,
    work_dir: PathBuf,
}

impl Keeper {
    pub(super) fn start(labs: &[&str]) -> Result<Self, LabError> {
        let mut command = Command::new(scripts().join("hold"));
        // In a group of its own: a key that ends the test at the terminal must not end this one half way.
        command
            .args(labs)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = command
            .spawn()
            .map_err(|source| LabError::Spawn { command: "fault-injection/lab/hold".into(), source })?;
        let stdin = child.stdin.take();
        let mut said = String::new();
        if let Some(stdout) = child.stdout.take() {
            let mut lines = BufReader::new(stdout).lines();
            while let Some(Ok(line)) = lines.next() {
                if let Some(work_dir) = line.strip_prefix("ready ") {
                    return Ok(Self { child, stdin, work_dir: PathBuf::from(work_dir) });
                }
                said += &line;
                said.push('\n');
            }
        }
        if let Some(mut stderr) = child.stderr.take() {
            // What cannot be read is not in the report.
            let _ = stderr.read_to_string(&mut said);
        }
        // It has ended already.
        let _ = child.wait();
        Err(LabError::NotUp { said })
    }

    pub(super) fn work_dir(&self) -> &Path {
        &self.work_dir
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stdin = None;
        // It may go on by itself if it takes longer.
        let _ = wait_at_most(&mut self.child, DOWN_WITHIN);
    }
}

/// Runs a command to its end; what it printed.
pub(super) fn run(command: &mut Command, limit: Duration) -> Result<String, LabError> {
    let name = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|source| LabError::Spawn { command: name.clone(), source })?;
    let outputs = [pipe_reader(child.stdout.take()), pipe_reader(child.stderr.take())];
    let Some(status) = wait_at_most(&mut child, limit) else {
        // Its children too: it is the leader of its group. Gone already is as good.
        if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = child.wait();
        return Err(LabError::TooLong { command: name, limit });
    };
    let [printed, complained] = outputs.map(|reader| reader.join().unwrap_or_default());
    if status.success() {
        Ok(printed)
    } else {
        Err(LabError::Failed { command: name, status, said: printed + &complained })
    }
}

fn pipe_reader(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // Whatever came is the report.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn wait_at_most(child: &mut Child, limit: Duration) -> Option<std::process::ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            _ if Instant::now() >= deadline => return None,
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}
