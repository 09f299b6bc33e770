//! A segment that a round writes: its log, its indexes, and what a manifest says of it.
//!
//! The file has a name that nobody else uses, and no manifest names it before it is durable; whatever happens to it
//! until then concerns nobody.

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use kaas_substrate::{File, OpenMode, Substrate};

use super::Throttle;
use crate::batch::BatchHeader;
use crate::error::EngineError;
use crate::index::AbortedTransaction;
use crate::log::index_files::write_index_files;
use crate::log::indexes::LogIndexes;
use crate::log::names::{SegmentFile, SegmentName};
use crate::log::segment::{Segment, SegmentState};
use crate::manifest::{IndexLengths, LeaderEpoch};
use crate::planted::{Bug, planted};

/// Where a round writes to, and how.
#[derive(Clone, Copy)]
pub(super) struct Volume<'a> {
    pub(super) substrate: &'a dyn Substrate,
    pub(super) dir: &'a Path,
    pub(super) buffer_bytes: usize,
    pub(super) throttle: &'a Throttle,
    pub(super) goes_on: &'a dyn Fn() -> bool,
}

/// A segment being written.
pub(super) struct Output<'a> {
    volume: Volume<'a>,
    name: SegmentName,
    file: Arc<dyn File>,
    indexes: LogIndexes,
    state: SegmentState,
    /// Batches that are not written yet, and where they go.
    buffer: Vec<Bytes>,
    buffered_bytes: usize,
    written: u64,
}

impl<'a> Output<'a> {
    /// Creates the file.
    pub(super) fn create(
        volume: Volume<'a>,
        name: SegmentName,
        index_interval_bytes: u64,
    ) -> Result<Self, EngineError> {
        let file = volume.substrate.open(&name.path(volume.dir, SegmentFile::Log), OpenMode::CreateNew)?;
        Ok(Self {
            volume,
            name,
            file,
            indexes: LogIndexes::new(name.base_offset, index_interval_bytes),
            state: SegmentState::empty(name.base_offset),
            buffer: Vec::new(),
            buffered_bytes: 0,
            written: 0,
        })
    }

    /// Adds a batch.
    pub(super) fn add(&mut self, header: &BatchHeader, batch: Bytes) -> Result<(), EngineError> {
        self.indexes.append(header, self.state.bytes);
        self.state.add(header);
        self.buffered_bytes += batch.len();
        self.buffer.push(batch);
        if self.buffered_bytes >= self.volume.buffer_bytes { self.flush() } else { Ok(()) }
    }

    /// Adds an aborted transaction whose marker is the batch added last.
    pub(super) fn add_aborted(&mut self, aborted: &AbortedTransaction) {
        self.indexes.append_aborted_transaction(aborted);
    }

    fn flush(&mut self) -> Result<(), EngineError> {
        let parts: Vec<_> = self.buffer.iter().map(|batch| IoSlice::new(batch)).collect();
        self.file.write_all_at(&parts, self.written)?;
        self.written += self.buffered_bytes as u64;
        self.volume.throttle.spent(self.buffered_bytes, self.volume.goes_on);
        self.buffer.clear();
        self.buffered_bytes = 0;
        Ok(())
    }

    /// Writes the rest and the index files. Everything is durable on return, the names too.
    pub(super) fn finish(mut self, leader_epochs: Vec<LeaderEpoch>) -> Result<Arc<Segment>, EngineError> {
        self.flush()?;
        self.indexes.finish();
        if !planted(Bug::NoSyncOfRewritten) {
            self.file.sync_data()?;
        }
        let images = self.indexes.images();
        let Volume { substrate, dir, .. } = self.volume;
        let files = write_index_files(substrate, dir, self.name, None, &images, &IndexLengths::default())?;
        substrate.sync_dir(dir)?;
        let state = SegmentState { index_files: Some(files), ..self.state };
        Ok(Arc::new(Segment::rewritten(self.name, dir, state, leader_epochs)))
    }
}

/// Removes what there is of an output that no manifest has named. What cannot be removed is left to the next leader.
pub(super) fn discard(volume: &Volume<'_>, name: SegmentName) {
    for file in SegmentFile::ALL {
        match volume.substrate.remove_file(&name.path(volume.dir, file)) {
            Err(error) if !error.is_not_found() => {
                tracing::debug!(segment = %name, %error, "an unfinished rewritten segment stays for now");
            }
            _ => {}
        }
    }
}
