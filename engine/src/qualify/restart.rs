//! A restart of the volume in the middle of a run: what was fsynced before must be there after it.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::check::Check;
use super::pair::{Pair, random_name};
use super::probes::plant;
use super::protocol::Ask;
use super::witness::Witness;
use super::{Options, QualifyError};

/// Plants, lets both processes go (nothing of this run holds the mount while `command` runs), and looks with new ones.
pub fn survives(pair: Pair, options: &Options, command: &str) -> Result<Check, QualifyError> {
    let planted = plant(&pair)?;
    let witness = Witness::of(&pair)?;
    let (name, facts) = (pair.name().to_owned(), pair.facts.clone());
    pair.leave();
    if let Err(problem) = run(command, options.restart_timeout) {
        let removed = Pair::reopen(options, &name, &facts).and_then(|(pair, _)| remove(pair));
        let left = removed.is_err().then_some(name);
        return Err(QualifyError::Restart { problem, left });
    }
    let (pair, is_there) = Pair::reopen(options, &name, &facts)?;
    let check = if is_there { planted.judge(&pair)? } else { planted.all_gone() };
    let check = witness.testify(&pair, check)?;
    remove(pair)?;
    Ok(check)
}

/// Removes the directory, which has had no owner since its process left, as any later run would: by beginning one.
fn remove(pair: Pair) -> Result<(), QualifyError> {
    pair.a.begun(Ask::Begin { name: random_name() })?;
    Ok(pair.end()?)
}

/// Runs a shell command, its output on standard error; what went wrong.
fn run(command: &str, limit: Duration) -> Result<(), String> {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).stdin(Stdio::null()).stdout(std::io::stderr());
    let mut child = shell.spawn().map_err(|error| format!("cannot be started: {error}"))?;
    let until = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("failed ({status})")),
            Ok(None) => {}
            Err(error) => return Err(format!("cannot be waited for: {error}")),
        }
        if Instant::now() >= until {
            let _ = child.kill();
            return Err(format!("did not end within {} s", limit.as_secs()));
        }
        thread::sleep(Duration::from_millis(50));
    }
}
