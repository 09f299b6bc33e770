//! What can go wrong with a lab.

use std::io;
use std::time::Duration;

/// A lab could not be brought up or steered.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A script could not be run at all.
    #[error("{command} could not be run")]
    Spawn {
        command: String,
        #[source]
        source: io::Error,
    },
    /// A script failed.
    #[error("{command} failed ({status}); it said:\n{said}")]
    Failed { command: String, status: std::process::ExitStatus, said: String },
    /// A script was not done in time, and has been killed.
    #[error("{command} was not done after {limit:?}")]
    TooLong { command: String, limit: Duration },
    /// The holder ended before its labs were up.
    #[error("the labs did not come up; the holder said:\n{said}")]
    NotUp { said: String },
    /// The test's thread cannot be moved into the lab's network.
    #[error("the lab's network cannot be entered")]
    Network(#[source] io::Error),
}
