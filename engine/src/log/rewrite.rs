//! Making inherited batches durable where a sync from here does not: by writing them again.
//!
//! On NFS a server may hold in its memory what another client wrote and never had committed; everybody reads it, and it
//! goes with the server's power. A sync on this client commits what this client wrote. So a new leader that is about to
//! serve such bytes writes them again, in place, and syncs that (see [`Adoption::Rewrite`]).
//!
//! # Why a late write of these bytes harms nobody
//!
//! The leader that does this may be paused in it, be deposed, and its writes land at any time later. Each of them writes
//! a whole batch, exactly as it was verified (CRC, offset, leader epoch), to the place where it was found, and nothing
//! beside it ([`OpenMode::Rewrite`] does not go through cached pages). If a later leader counts bytes of this segment
//! there, it has found a whole batch of the same offset and epoch at the same place, so the same one: the segment's
//! only author, the leader of its epoch, puts a second batch where a whole one stood only after a manifest has said that
//! the first does not count and the fence was read after that, and whoever claimed later does not scan the segment any
//! more, or finds it under a file of its own. If a later leader does not count these bytes, nobody ever will.
//!
//! What was not verified, such as a torn batch at the end, is never written: its author may still be writing it.

use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_substrate::{Adoption, File, OpenMode, Result, Substrate};

use crate::planted::{Bug, planted};

/// Bytes that are written with one call.
const WRITE_BYTES: usize = 1 << 20;

/// The batches of one segment that are written again. Does nothing where a sync is enough. Used by one thread.
pub(crate) struct Rewriter<'a> {
    substrate: &'a dyn Substrate,
    path: PathBuf,
    needed: bool,
    /// Opened when the first bytes are written.
    file: Option<Arc<dyn File>>,
    /// Batches that follow one another, from `at` on.
    pending: Vec<u8>,
    at: u64,
}

impl<'a> Rewriter<'a> {
    /// For the segment file `path`.
    pub(crate) fn new(substrate: &'a dyn Substrate, path: &Path) -> Self {
        let needed = substrate.adoption() == Adoption::Rewrite && !planted(Bug::InheritedNotDurable);
        Self { substrate, path: path.to_owned(), needed, file: None, pending: Vec::new(), at: 0 }
    }

    /// Whether there is anything to do at all.
    pub(crate) fn is_needed(&self) -> bool {
        self.needed
    }

    /// Takes a verified batch that stands at `position`. Blocks.
    pub(crate) fn add(&mut self, position: u64, batch: &[u8]) -> Result<()> {
        let follows = position == self.at + self.pending.len() as u64;
        if !follows || self.pending.len() + batch.len() > WRITE_BYTES {
            self.write()?;
        }
        if self.pending.is_empty() {
            self.at = position;
        }
        self.pending.extend_from_slice(batch);
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(self.substrate.open(&self.path, OpenMode::Rewrite)?),
        };
        file.write_all_at(&[IoSlice::new(&self.pending)], self.at)?;
        self.pending.clear();
        Ok(())
    }

    /// Writes what is left. All batches that were added are durable on return. An error is final: nothing of them may be
    /// served by this attempt.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.write()?;
        self.file.map_or(Ok(()), |file| file.sync_data())
    }
}
