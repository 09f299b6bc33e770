//! The leader's open files, and the calls that change them. Used by one thread at a time: the worker's.
//!
//! A [`Writer`] makes system calls and knows nothing of staging, waiters or locks; what it must not do on its own
//! (act before the fence was read) is the business of its callers in [`super::worker`] and [`super::housekeeping`].

use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::Arc;

use kaas_substrate::{OpenMode, Substrate};

use super::staging::Staged;
use crate::batch::BatchHeader;
use crate::error::EngineError;
use crate::identity::Identity;
use crate::log::index_files::write_index_files;
use crate::log::indexes::LogIndexes;
use crate::log::names::{SegmentFile, SegmentName};
use crate::log::segment::{OpenSegment, Segment};
use crate::manifest::versioned::{self, FileKind, FileVersion};
use crate::manifest::{
    CHECKPOINT, Checkpoint, IndexLengths, MANIFEST, Manifest, PRODUCER_STATE, ProducerStateRef, owned,
};
use crate::planted::{Bug, planted};
use crate::producer_state::ProducerStates;
use crate::settings::LogConfig;
use crate::sync::Mutex;
use crate::types::{Epoch, Offset, Timestamp};

/// The files of one leader of one partition.
pub(crate) struct Writer {
    pub(crate) substrate: Arc<dyn Substrate>,
    pub(crate) dir: PathBuf,
    /// Whose files these are.
    pub(crate) identity: Identity,
    pub(crate) epoch: Epoch,
    /// The segment that is appended to; made by the first append after an open or a roll.
    pub(crate) active: Option<Active>,
    /// Rolled segments whose index files and manifest are still to be written.
    pub(crate) unsealed: Vec<Arc<Segment>>,
    /// The producers as of `end`: what is written, and nothing that is only staged.
    pub(crate) producers: ProducerStates,
    /// The offset behind what is written.
    pub(crate) end: Offset,
    /// Bytes written since the last recovery checkpoint or manifest.
    pub(crate) unchecked_bytes: u64,
    /// Records written since the last sync.
    pub(crate) unsynced_records: u64,
    /// When the oldest of them was written, in milliseconds of the engine's own time.
    pub(crate) unsynced_since_ms: Option<u64>,
    /// A timer will ask for a flush.
    pub(crate) flush_armed: bool,
    /// A timer will ask for the sync that could not be tried.
    pub(crate) sync_armed: bool,
    /// What stands behind the active segment's end is not known: a write that failed may have left whole batches there. The
    /// file must not be written to again, nor cut; the next append begins another.
    pub(crate) tail_uncertain: bool,
    /// The producer snapshot of the recovery checkpoint in the active segment.
    pub(crate) checkpoint_state: Option<ProducerStateRef>,
    /// The producers where the unpinned segments begin: what the next manifest refers to.
    pub(crate) boundary: Boundary,
    /// Files that the durable manifest does not need; to be unlinked once the fence was read.
    pub(crate) garbage: Vec<PathBuf>,
    /// Files that are garbage once the next manifest is durable: the writing of an earlier one that names them has failed, and
    /// may have had its effect.
    pub(crate) pending_garbage: Vec<PathBuf>,
    /// The last manifest written.
    pub(crate) manifest: Manifest,
    pub(crate) numbers: Numbers,
    /// What appends are refused or wait for; the log was told.
    pub(crate) short_of: Option<Shortage>,
    /// What follows a commit has failed, and the log was told.
    pub(crate) is_behind: bool,
}

/// What there is none left of, for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// Of space on the volume.
    Space,
    /// Of file descriptors.
    Descriptors,
}

/// The producer snapshot at the offset where the unpinned segments begin.
pub(crate) enum Boundary {
    /// It is in a file, or there were no producers.
    Written(Option<ProducerStateRef>),
    /// Taken when the last segment was retired; to be written with the next manifest.
    Pending { offset: Offset, bytes: Vec<u8> },
}

/// The versions of each kind of file that a leader rewrites.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbers {
    manifest: Number,
    checkpoint: Number,
    producer_state: Number,
    index_files: Number,
}

impl Default for Numbers {
    fn default() -> Self {
        let (manifest, checkpoint, producer_state) = Default::default();
        // Recovery has used the first one.
        Self { manifest, checkpoint, producer_state, index_files: Number { tried: 1, written: 1 } }
    }
}

/// The version numbers of one kind of file; a leader counts from 1. None is used twice: a write that failed may have had
/// its effect, and on NFS a name that is replaced may go on leading to what it led to.
#[derive(Debug, Clone, Copy, Default)]
struct Number {
    tried: u64,
    /// The last one that is durable; 0 for none.
    written: u64,
}

impl Number {
    fn next(&mut self, epoch: Epoch) -> FileVersion {
        self.tried += 1;
        FileVersion { epoch, number: self.tried }
    }

    fn wrote(&mut self, version: FileVersion) {
        self.written = version.number;
    }
}

/// The segment that is appended to.
pub(crate) struct Active {
    pub(crate) segment: Arc<Segment>,
    pub(crate) open: Arc<OpenSegment>,
    /// False until the directory was synced after the file's creation.
    pub(crate) name_durable: bool,
    /// When it was created.
    pub(crate) created: Timestamp,
    /// The max timestamp of its first batch, which Kafka measures `segment.ms` from.
    pub(crate) first_timestamp: Option<Timestamp>,
    /// By how much earlier it rolls than `segment.ms` says.
    pub(crate) jitter_ms: i64,
    /// What of the index files is written.
    pub(crate) index_files: IndexLengths,
}

impl Active {
    pub(crate) fn position(&self) -> u64 {
        self.segment.bytes()
    }

    /// Whether `batch` must go into a new segment; the rules are Kafka's.
    pub(crate) fn is_full_for(
        &self,
        batch: &BatchHeader,
        position: u64,
        config: &LogConfig,
        now: Timestamp,
    ) -> bool {
        if position == 0 {
            return false;
        }
        let base = self.segment.base_offset().0;
        let relative = batch.last_offset().0.saturating_sub(base);
        let waited = match self.first_timestamp {
            Some(first) if first >= Timestamp(0) => elapsed_ms(first, batch.max_timestamp),
            _ => elapsed_ms(self.created, now),
        };
        position + batch.batch_bytes as u64 > config.segment_bytes
            || relative > i64::from(i32::MAX)
            || waited > self.roll_after_ms(config)
            || self.open.indexes.lock().is_full(config.segment_index_bytes)
    }

    /// Whether it has become too old to be appended to.
    pub(crate) fn is_expired(&self, now: Timestamp, config: &LogConfig) -> bool {
        self.position() > 0 && now.0.saturating_sub(self.created.0) > self.roll_after_ms(config)
    }

    /// By the configuration as it is now, so that a change counts for the segment that is appended to as well.
    fn roll_after_ms(&self, config: &LogConfig) -> i64 {
        config.roll_ms().saturating_sub(self.jitter_ms)
    }
}

impl Writer {
    /// Creates the segment that the batch at `base_offset` begins. Its name is durable only after [`Self::sync`].
    pub(crate) fn create_segment(
        &mut self,
        base_offset: Offset,
        now: Timestamp,
        config: &LogConfig,
    ) -> Result<Arc<Segment>, kaas_substrate::Error> {
        let name = SegmentName::appended(self.epoch, base_offset);
        let path = name.path(&self.dir, SegmentFile::Log);
        let file = self.substrate.open(&path, OpenMode::CreateNew)?;
        let indexes = LogIndexes::new(base_offset, config.index_interval_bytes);
        let open = Arc::new(OpenSegment { file, indexes: Mutex::new(indexes) });
        let segment = Arc::new(Segment::new_active(name, &self.dir, Arc::clone(&open)));
        self.active = Some(Active {
            segment: Arc::clone(&segment),
            open,
            name_durable: false,
            created: now,
            first_timestamp: None,
            jitter_ms: jitter_ms(base_offset, config),
            index_files: IndexLengths::default(),
        });
        Ok(segment)
    }

    /// Writes batches at the end of the active segment with one gathered write. Not durable on return.
    pub(crate) fn write(&mut self, batches: &[Staged]) -> Result<(), kaas_substrate::Error> {
        let Some(active) = &self.active else { return Ok(()) };
        let parts: Vec<IoSlice<'_>> = batches
            .iter()
            .flat_map(|staged| [IoSlice::new(staged.stamped.bytes()), IoSlice::new(&staged.body)])
            .collect();
        active.open.file.write_all_at(&parts, active.position())
    }

    /// Takes note of batches that were written: indexes, producers, end.
    pub(crate) fn wrote(&mut self, batches: &[Staged], now_ms: u64) {
        let Some(active) = &mut self.active else { return };
        let mut indexes = active.open.indexes.lock();
        for staged in batches {
            let header = &staged.header;
            indexes.append(header, active.segment.bytes());
            if let Some(ended) = self.producers.replay(header, staged.marker)
                && ended.aborted
                && !planted(Bug::AbortedNotIndexed)
            {
                indexes.append_aborted(&ended);
            }
            active.segment.wrote(header);
            active.first_timestamp.get_or_insert(header.max_timestamp);
            self.end = header.next_offset();
            self.unchecked_bytes += header.batch_bytes as u64;
            self.unsynced_records += u64::try_from(header.record_count).unwrap_or(0);
        }
        self.unsynced_since_ms.get_or_insert(now_ms);
    }

    /// Makes everything written durable, the active segment's name included. An error is final for the file.
    pub(crate) fn sync(&mut self) -> Result<(), kaas_substrate::Error> {
        if let Some(active) = &mut self.active {
            if self.unsynced_records > 0 || !active.name_durable {
                active.open.file.sync_data()?;
            }
            if !active.name_durable && !planted(Bug::NoDirectorySync) {
                self.substrate.sync_dir(&self.dir)?;
                active.name_durable = true;
            }
        }
        self.unsynced_records = 0;
        self.unsynced_since_ms = None;
        Ok(())
    }

    /// Closes the active segment to appends. It must have been synced.
    pub(crate) fn retire_active(&mut self) {
        if let Some(active) = self.active.take() {
            active.open.indexes.lock().finish();
            self.unsealed.push(active.segment);
            // The next manifest pins the segment, and nobody resumes inside it any more.
            self.checkpoint_state = None;
            self.take_boundary();
        }
    }

    /// Remembers the producers as they are now, where the next segment will begin.
    pub(crate) fn take_boundary(&mut self) {
        self.boundary = if self.producers.is_empty() {
            Boundary::Written(None)
        } else {
            Boundary::Pending { offset: self.end, bytes: self.producers.to_snapshot(&self.identity) }
        };
    }

    /// Writes the index files of the active segment as far as it goes, for a checkpoint.
    pub(crate) fn extend_index_files(&mut self) -> Result<IndexLengths, kaas_substrate::Error> {
        let Some(active) = &mut self.active else { return Ok(IndexLengths::default()) };
        let images = active.open.indexes.lock().images();
        let name = active.segment.name;
        let files = write_index_files(&*self.substrate, &self.dir, name, None, &images, &active.index_files)?;
        active.index_files = files.lengths;
        Ok(files.lengths)
    }

    /// Writes the index files of the rolled segments. They are derived data: a later reader that finds them short
    /// or damaged walks through the log.
    pub(crate) fn write_unsealed_indexes(&self) -> Result<(), kaas_substrate::Error> {
        for segment in &self.unsealed {
            let Some(open) = segment.opened() else { continue };
            let images = open.indexes.lock().images();
            let none = IndexLengths::default();
            let files = write_index_files(&*self.substrate, &self.dir, segment.name, None, &images, &none)?;
            segment.set_index_files(files);
        }
        Ok(())
    }

    /// Whose index files those are that are to be written anew.
    pub(crate) fn next_index_version(&mut self) -> FileVersion {
        self.numbers.index_files.next(self.epoch)
    }

    /// Writes a producer snapshot. Durable on return.
    fn write_producer_state(
        &mut self,
        offset: Offset,
        bytes: &[u8],
    ) -> Result<ProducerStateRef, EngineError> {
        let version = self.numbers.producer_state.next(self.epoch);
        versioned::write_bytes(&*self.substrate, &self.dir, PRODUCER_STATE, version, bytes)?;
        self.numbers.producer_state.wrote(version);
        Ok(ProducerStateRef { epoch: version.epoch.get(), number: version.number, offset: offset.0 })
    }

    /// The producer snapshot for the next manifest, written if it is not yet.
    fn boundary_ref(&mut self) -> Result<Option<ProducerStateRef>, EngineError> {
        match std::mem::replace(&mut self.boundary, Boundary::Written(None)) {
            Boundary::Written(reference) => {
                self.boundary = Boundary::Written(reference);
                Ok(reference)
            }
            Boundary::Pending { offset, bytes } => match self.write_producer_state(offset, &bytes) {
                Ok(reference) => {
                    self.boundary = Boundary::Written(Some(reference));
                    Ok(Some(reference))
                }
                Err(error) => {
                    self.boundary = Boundary::Pending { offset, bytes };
                    Err(error)
                }
            },
        }
    }

    /// Writes the next manifest: `segments` are pinned, and what lies behind them is this leader's. Durable on
    /// return.
    pub(crate) fn write_manifest(
        &mut self,
        segments: &[Arc<Segment>],
        log_start: Offset,
        high_watermark: Offset,
        released: bool,
    ) -> Result<(), EngineError> {
        let producer_state = self.boundary_ref()?;
        let entries: Vec<_> = segments.iter().map(|segment| segment.to_entry()).collect();
        let next_offset = match &self.active {
            Some(active) => active.segment.base_offset(),
            None => self.end,
        };
        // What is committed without a sync may be lost with the host, and a lower bound must stay one.
        let high_watermark =
            if self.unsynced_records > 0 { high_watermark.min(next_offset) } else { high_watermark };
        let manifest = Manifest {
            epoch: self.epoch.get(),
            log_start_offset: log_start.0,
            high_watermark: high_watermark.0,
            next_offset: next_offset.0,
            released,
            segments: entries,
            producer_state,
            first_dirty_offset: self.manifest.first_dirty_offset,
        };
        let version = self.numbers.manifest.next(self.epoch);
        owned::write(&*self.substrate, &self.dir, MANIFEST, version, &self.identity, &manifest)?;
        self.numbers.manifest.wrote(version);
        self.manifest = manifest;
        self.garbage.append(&mut self.pending_garbage);
        Ok(())
    }

    /// Writes a recovery checkpoint at `end`, which must be synced, and what it refers to. Durable on return.
    pub(crate) fn write_checkpoint(&mut self) -> Result<(), EngineError> {
        let Some(active) = &self.active else { return Ok(()) };
        let (base_offset, state) = (active.segment.base_offset().0, active.segment.state());
        let indexes = self.extend_index_files()?;
        let producer_state = if self.producers.is_empty() {
            None
        } else {
            let bytes = self.producers.to_snapshot(&self.identity);
            Some(self.write_producer_state(self.end, &bytes)?)
        };
        let checkpoint = Checkpoint {
            epoch: self.epoch.get(),
            base_offset,
            position: state.bytes,
            offset: self.end.0,
            max_timestamp: state.max_timestamp.0,
            offset_of_max_timestamp: state.offset_of_max_timestamp.0,
            batch_crcs: state.batch_crcs,
            indexes,
            producer_state,
        };
        let version = self.numbers.checkpoint.next(self.epoch);
        owned::write(&*self.substrate, &self.dir, CHECKPOINT, version, &self.identity, &checkpoint)?;
        self.numbers.checkpoint.wrote(version);
        self.checkpoint_state = producer_state;
        self.unchecked_bytes = 0;
        Ok(())
    }

    /// Removes files of a kind that a later one has replaced. Only after the fence was read; failures are left to
    /// the next round.
    pub(crate) fn remove_replaced(&self) {
        let keep = |kind: FileKind, keep: FileVersion| {
            if let Err(error) = versioned::remove_below(&*self.substrate, &self.dir, kind, keep) {
                tracing::debug!(dir = %self.dir.display(), ?kind, %error, "old files stay for now");
            }
        };
        let epoch = self.epoch;
        keep(MANIFEST, FileVersion { epoch, number: self.numbers.manifest.written });
        keep(CHECKPOINT, FileVersion { epoch, number: self.numbers.checkpoint.written.max(1) });
        // The manifest and the checkpoint may each need one.
        let version = |used: ProducerStateRef| {
            Epoch::new(used.epoch).map(|epoch| FileVersion { epoch, number: used.number })
        };
        let used = [self.manifest.producer_state, self.checkpoint_state];
        if let Some(oldest) = used.into_iter().flatten().filter_map(version).min() {
            keep(PRODUCER_STATE, oldest);
        }
    }
}

/// Milliseconds from one timestamp to another; 0 if either is none.
pub(crate) fn elapsed_ms(from: Timestamp, to: Timestamp) -> i64 {
    if from < Timestamp(0) || to < Timestamp(0) { 0 } else { to.0.saturating_sub(from.0) }
}

/// How much earlier a segment rolls: spread over `segment.jitter.ms` by its offset, so that restarts agree.
fn jitter_ms(base_offset: Offset, config: &LogConfig) -> i64 {
    if config.segment_jitter_ms <= 0 {
        return 0;
    }
    let spread = base_offset.0.wrapping_mul(0x5851_F42D_4C95_7F2D).rotate_left(29);
    spread.rem_euclid(config.segment_jitter_ms.saturating_add(1))
}
