//! A little space put aside, so that a full volume can be cleaned up: deleting records needs a new manifest first.
//!
//! The reserve is a file of zeros at the root. When a small write that frees space finds the volume full, the
//! reserve is given up and the write tried again; maintenance puts it back when there is room.

use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::Arc;

use kaas_substrate::{OpenMode, Substrate};
use parking_lot::Mutex;

use crate::error::EngineError;

/// Bytes put aside.
const RESERVE_BYTES: usize = 1 << 20;

/// The reserve of one engine.
#[derive(Debug)]
pub(crate) struct Reserve {
    substrate: Arc<dyn Substrate>,
    path: PathBuf,
    /// Whether the space is there.
    held: Mutex<bool>,
}

impl Reserve {
    /// The reserve in the file `path`; put aside with the first [`Reserve::replenish`].
    pub(crate) fn new(substrate: Arc<dyn Substrate>, path: PathBuf) -> Self {
        Self { substrate, path, held: Mutex::new(false) }
    }

    /// Runs `write`; if the volume is full, gives the reserve up and runs it once more. Blocks.
    pub(crate) fn with<T>(
        &self,
        mut write: impl FnMut() -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        match write() {
            Err(error) if error.is_no_space() && self.give_up() => write(),
            outcome => outcome,
        }
    }

    /// Frees the reserve. True if there was one.
    pub(crate) fn give_up(&self) -> bool {
        let held = std::mem::replace(&mut *self.held.lock(), false);
        if !held {
            return false;
        }
        tracing::warn!("the volume is full: giving up the reserve so that records can be deleted");
        let freed = self.substrate.open(&self.path, OpenMode::Write).and_then(|file| {
            file.set_length(0)?;
            file.sync_data()
        });
        if let Err(error) = &freed {
            tracing::warn!(%error, "cannot free the reserve");
        }
        freed.is_ok()
    }

    /// Puts the reserve aside if it is not there. Blocks. A full volume is no error.
    pub(crate) fn replenish(&self) -> Result<(), EngineError> {
        if *self.held.lock() {
            return Ok(());
        }
        let file = match self.substrate.open(&self.path, OpenMode::Write) {
            Err(error) if error.is_not_found() => self.substrate.open(&self.path, OpenMode::CreateNew)?,
            other => other?,
        };
        if file.length()? < RESERVE_BYTES as u64 {
            let zeros = vec![0; RESERVE_BYTES];
            let written = file.write_all_at(&[IoSlice::new(&zeros)], 0).and_then(|()| file.sync_data());
            if let Err(error) = written.map_err(EngineError::from) {
                file.set_length(0)?;
                return if error.is_no_space() { Ok(()) } else { Err(error) };
            }
        }
        *self.held.lock() = true;
        Ok(())
    }
}
