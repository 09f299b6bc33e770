//! The conformance suite: what every implementation of the traits must do, as named checks.
//!
//! A check gets two handles on one empty volume, as two hosts (or two processes) have them, and reports the rule that
//! does not hold. The suite runs against every implementation, and against real mounts through two of them. What it
//! cannot see (honest fdatasync, power loss) is for qualification and the simulated volume.

mod files;
mod hosts;
mod names;
mod records;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::{Error, ErrorClass, File, OpenMode, Result as SubstrateResult, Substrate};

/// Two handles on one empty volume.
#[derive(Debug, Clone)]
pub struct Hosts {
    pub first: Arc<dyn Substrate>,
    pub second: Arc<dyn Substrate>,
}

/// A rule and how it is checked.
#[derive(Clone, Copy)]
pub struct Check {
    /// The rule, as a sentence.
    pub name: &'static str,
    run: fn(&Hosts) -> Outcome,
}

/// What a check found.
#[derive(Debug)]
pub struct Report {
    pub name: &'static str,
    /// The rule that does not hold, and how.
    pub failure: Option<Failure>,
}

/// How a rule does not hold.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A call failed that must succeed.
    #[error("unexpected error: {0}")]
    Call(#[from] Error),
    /// Something else is not as it must be.
    #[error("{0}")]
    Rule(String),
}

type Outcome = Result<(), Failure>;

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Check").field(&self.name).finish()
    }
}

impl Check {
    /// Runs the check on an empty volume.
    pub fn run(&self, hosts: &Hosts) -> Report {
        Report { name: self.name, failure: (self.run)(hosts).err() }
    }
}

/// All checks.
pub fn checks() -> Vec<Check> {
    [names::CHECKS, files::CHECKS, records::CHECKS, hosts::CHECKS].concat()
}

/// Runs all checks, each on a volume of its own; the reports of those that failed.
pub fn run(mut volume: impl FnMut() -> Hosts) -> Vec<Report> {
    checks().iter().map(|check| check.run(&volume())).filter(|report| report.failure.is_some()).collect()
}

/// Fails the check with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::conformance::Failure::Rule(format!($($message)+)));
        }
    };
}
use ensure;

/// Fails unless the call failed with this class.
fn ensure_fails<T>(what: &str, outcome: SubstrateResult<T>, class: ErrorClass) -> Outcome {
    match outcome {
        Ok(_) => Err(Failure::Rule(format!("{what}: succeeded instead of failing as \"{class}\""))),
        Err(error) if error.class == class => Ok(()),
        Err(error) => {
            Err(Failure::Rule(format!("{what}: failed as \"{}\" instead of \"{class}\"", error.class)))
        }
    }
}

fn path(name: &str) -> &Path {
    Path::new(name)
}

/// Creates a file with this content.
fn put(volume: &dyn Substrate, name: &str, bytes: &[u8]) -> SubstrateResult<Arc<dyn File>> {
    let file = volume.open(path(name), OpenMode::CreateNew)?;
    file.write_all_at(&[std::io::IoSlice::new(bytes)], 0)?;
    file.sync_data()?;
    Ok(file)
}

/// The content of a file, through a fresh uncached open.
fn get(volume: &dyn Substrate, name: &str) -> SubstrateResult<Vec<u8>> {
    crate::read_small(volume, path(name), 1 << 26)
}

/// Sorted names of a directory.
fn names_in(volume: &dyn Substrate, dir: &str) -> SubstrateResult<Vec<String>> {
    let mut names: Vec<_> =
        volume.list(path(dir))?.into_iter().map(|entry| entry.name.to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

/// Runs the jobs on a thread each, and returns their results in order.
fn at_once<T: Send>(jobs: Vec<Box<dyn FnOnce() -> T + Send + '_>>) -> Vec<Option<T>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = jobs.into_iter().map(|job| scope.spawn(job)).collect();
        threads.into_iter().map(|thread| thread.join().ok()).collect()
    })
}
