//! The run's own directory: one process begins it, the other joins.

use std::path::Path;
use std::sync::atomic::Ordering;

use super::{Agent, other};
use crate::qualify::pair::PREFIX;
use crate::qualify::protocol::{Begun, Failure};
use crate::scratch::{self, Scratch, ScratchError};

/// The directory that this process works in.
#[derive(Debug)]
pub enum Own {
    /// Made by this process.
    Begun(Scratch),
    /// Made by another.
    Joined { name: String },
}

impl Own {
    pub fn name(&self) -> &str {
        match self {
            Self::Begun(scratch) => scratch.name(),
            Self::Joined { name } => name,
        }
    }
}

impl From<ScratchError> for Failure {
    fn from(error: ScratchError) -> Self {
        match error {
            ScratchError::Storage(error) => error.into(),
            ScratchError::TakenAway { .. } => other(error.to_string()),
        }
    }
}

fn check_name(name: &str) -> Result<(), Failure> {
    if scratch::is_name(PREFIX, name) {
        Ok(())
    } else {
        Err(other(format!("{name} is no name for a run's directory")))
    }
}

impl Agent {
    pub fn begin(&self, name: &str) -> Result<Begun, Failure> {
        check_name(name)?;
        let scratch::Begun { scratch, removed, left } = scratch::begin(self.dir()?.volume(), PREFIX, name)?;
        *self.own.lock() = Some(Own::Begun(scratch));
        Ok(Begun { removed, left })
    }

    pub fn join(&self, name: &str) -> Result<bool, Failure> {
        check_name(name)?;
        let seen = self.dir()?.volume().list(Path::new(""))?.iter().any(|found| found.name == name);
        if seen {
            *self.own.lock() = Some(Own::Joined { name: name.to_owned() });
        }
        Ok(seen)
    }

    /// Ends what is spinning, closes every file, and removes the directory if this process made it.
    pub fn end(&self) -> Result<(), Failure> {
        for stop in self.spinning.lock().values() {
            stop.store(true, Ordering::Relaxed);
        }
        // A file that is open while it is removed would leave a name of the client in the directory (NFS).
        self.files.lock().clear();
        let Some(Own::Begun(scratch)) = self.own.lock().take() else { return Ok(()) };
        scratch.end(self.dir()?.volume()).map_err(|error| other(error.to_string()))
    }
}
