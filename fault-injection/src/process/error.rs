//! What can go wrong with a process under test, with what the process said last.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// A process could not be started, steered or observed.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The program could not be run at all.
    #[error("{} could not be started", binary.display())]
    Spawn {
        binary: PathBuf,
        #[source]
        source: io::Error,
    },
    /// It ended before it said that it is ready.
    #[error("the broker ended ({status}) before it was ready; it said:\n{said}")]
    EndedEarly { status: ExitStatus, said: String },
    /// It did not say that it is ready in time. It has been killed.
    #[error("the broker was not ready after {waited:?}; it said:\n{said}")]
    NotReady { waited: Duration, said: String },
    /// It said that it is ready, but not where.
    #[error("the broker announced itself without an address: {line:?}")]
    NoAddress { line: String },
    /// It is still running.
    #[error("process {pid} has not ended after {waited:?}; it said:\n{said}")]
    StillRunning { pid: u32, waited: Duration, said: String },
    /// A signal could not be sent, the process not be waited for, or its figures not be read.
    #[error("process {pid}: {doing}")]
    System {
        pid: u32,
        doing: &'static str,
        #[source]
        source: io::Error,
    },
}
