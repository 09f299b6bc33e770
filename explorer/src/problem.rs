//! What can be wrong with a run.

use std::fmt;

/// Something that must not happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// A record that was acknowledged or read is not there, stands elsewhere, or another one stands in its place.
    Records(String),
    /// An offset that was told (log start, high watermark) is not true for a later leader.
    Bounds(String),
    /// An idempotent producer's batch was refused, or appended twice.
    Producer(String),
    /// A record of an open or aborted transaction is shown as if it were committed, or one that is committed is not.
    Transaction(String),
    /// The state of a slot is not what its coordinators acknowledged.
    Journal(String),
    /// A setting, or a producer id, is not what controllers acknowledged.
    Settings(String),
    /// A leader could not open, or read, what no fault has damaged.
    Damaged(String),
    /// `verify` has found an error.
    Verify(String),
    /// `verify --repair` has not done what it is for, or more.
    Repair(String),
    /// Two leaders had one epoch.
    Epoch(String),
    /// Nothing goes on, and these tasks still wait.
    Hangs { waiting: Vec<String> },
    /// The run does not come to an end.
    Endless { steps: u64 },
    /// The engine panicked.
    Panic { message: String },
}

impl Problem {
    /// Which kind it is: a failure that is shrunk keeps its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Records(_) => "records",
            Self::Bounds(_) => "bounds",
            Self::Producer(_) => "producer",
            Self::Transaction(_) => "transaction",
            Self::Journal(_) => "journal",
            Self::Settings(_) => "settings",
            Self::Damaged(_) => "damaged",
            Self::Verify(_) => "verify",
            Self::Repair(_) => "repair",
            Self::Epoch(_) => "epoch",
            Self::Hangs { .. } => "hangs",
            Self::Endless { .. } => "endless",
            Self::Panic { .. } => "panic",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.kind())?;
        match self {
            Self::Records(text)
            | Self::Bounds(text)
            | Self::Producer(text)
            | Self::Transaction(text)
            | Self::Journal(text)
            | Self::Settings(text)
            | Self::Damaged(text)
            | Self::Verify(text)
            | Self::Repair(text)
            | Self::Epoch(text)
            | Self::Panic { message: text } => f.write_str(text),
            Self::Hangs { waiting } => write!(f, "nothing goes on, and these wait: {}", waiting.join(", ")),
            Self::Endless { steps } => write!(f, "no end after {steps} steps"),
        }
    }
}
