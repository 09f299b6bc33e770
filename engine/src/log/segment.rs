//! A segment: one `.log` file of one leader, with its indexes, as readers see it.
//!
//! The active segment's handle and indexes stay open, and its worker adds to them. Those of closed segments are
//! opened on demand and closed again when too many are open ([`OpenSegments`]): only the leader holds handles, and
//! it drops them before it unlinks, so that deletes free space on NFS too.
//!
//! Index files are derived from the log. What a lookup says is checked against the batch that stands there, and a
//! file that is missing, short or damaged is rebuilt in memory by walking the headers.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use kaas_substrate::{File, OpenMode, Substrate};

use super::ends::{SegmentEnd, other_content};
use super::index_files::read_index_files;
use super::indexes::LogIndexes;
use super::names::{SegmentFile, SegmentFileName, SegmentName};
use super::rebuild::rebuild_indexes;
use crate::batch::BatchHeader;
use crate::error::ReadError;
use crate::manifest::{BatchCrcs, IndexFiles, LeaderEpoch, SegmentEntry};
use crate::sync::{AtomicBool, AtomicI64, Mutex};
use crate::types::{Epoch, Offset, Timestamp};

/// A segment of the partition directory `dir`.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) name: SegmentName,
    dir: PathBuf,
    /// Of a rewritten segment's batches; empty for one that was appended to.
    leader_epochs: Vec<LeaderEpoch>,
    state: Mutex<SegmentState>,
    /// The one set of handle and indexes in use; kept here for the active segment, weakly through the cache for
    /// closed ones.
    open: Mutex<Option<Arc<OpenSegment>>>,
    /// When retention first met the segment, in milliseconds since 1970: it goes by that if no record has a timestamp.
    /// `i64::MIN` before.
    fallback_timestamp: AtomicI64,
    /// Its index files were found unusable or wrong.
    indexes_corrupt: AtomicBool,
}

/// What changes about a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentState {
    /// Bytes that count.
    pub(crate) bytes: u64,
    /// The offset behind the last record that counts.
    pub(crate) end_offset: Offset,
    pub(crate) max_timestamp: Timestamp,
    pub(crate) offset_of_max_timestamp: Offset,
    pub(crate) batch_crcs: BatchCrcs,
    /// The index files on the volume; `None` if there are none that are complete.
    pub(crate) index_files: Option<IndexFiles>,
}

/// A segment that was opened.
pub(crate) struct Opened {
    pub(crate) open: Arc<OpenSegment>,
    /// Its indexes were built from the log, since there are no index files, or not usable ones.
    pub(crate) rebuilt: Option<Unusable>,
}

/// Why a segment's index files are not used.
pub(crate) enum Unusable {
    /// There are none that are complete.
    Unwritten,
    /// They cannot be read, or say something impossible.
    Bad(String),
}

/// A segment's open file and its indexes in memory.
#[derive(Debug)]
pub(crate) struct OpenSegment {
    pub(crate) file: Arc<dyn File>,
    pub(crate) indexes: Mutex<LogIndexes>,
}

impl Segment {
    /// A segment of the leader itself, with nothing in it yet.
    pub(crate) fn new_active(name: SegmentName, dir: &Path, open: Arc<OpenSegment>) -> Self {
        let state = SegmentState::empty(name.base_offset);
        Self { open: Mutex::new(Some(open)), ..Self::closed(name, dir, state) }
    }

    /// A segment that somebody has closed.
    pub(crate) fn closed(name: SegmentName, dir: &Path, state: SegmentState) -> Self {
        Self {
            name,
            dir: dir.to_owned(),
            leader_epochs: Vec::new(),
            state: Mutex::new(state),
            open: Mutex::new(None),
            fallback_timestamp: AtomicI64::new(i64::MIN),
            indexes_corrupt: AtomicBool::new(false),
        }
    }

    /// A segment that was rewritten as a whole, with the leader epochs of its batches.
    pub(crate) fn rewritten(
        name: SegmentName,
        dir: &Path,
        state: SegmentState,
        leader_epochs: Vec<LeaderEpoch>,
    ) -> Self {
        Self { leader_epochs, ..Self::closed(name, dir, state) }
    }

    /// A segment that a manifest pins; `None` if the manifest says something impossible.
    pub(crate) fn from_entry(entry: &SegmentEntry, dir: &Path) -> Option<Self> {
        let name = entry.name()?;
        let state = SegmentState {
            bytes: entry.bytes,
            end_offset: Offset(entry.end_offset),
            max_timestamp: Timestamp(entry.max_timestamp),
            offset_of_max_timestamp: Offset(entry.offset_of_max_timestamp),
            batch_crcs: entry.batch_crcs,
            index_files: entry.indexes,
        };
        Some(Self::rewritten(name, dir, state, entry.leader_epochs.clone()))
    }

    /// What a manifest says of it.
    pub(crate) fn to_entry(&self) -> SegmentEntry {
        let state = self.state();
        SegmentEntry {
            epoch: self.name.epoch.get(),
            base_offset: self.name.base_offset.0,
            generation: self.name.generation,
            end_offset: state.end_offset.0,
            bytes: state.bytes,
            max_timestamp: state.max_timestamp.0,
            offset_of_max_timestamp: state.offset_of_max_timestamp.0,
            batch_crcs: state.batch_crcs,
            indexes: state.index_files,
            leader_epochs: self.leader_epochs.clone(),
        }
    }

    /// The leader epochs of its batches and where each begins, ascending.
    pub(crate) fn leader_epochs(&self) -> impl Iterator<Item = (Epoch, Offset)> {
        let own = self.leader_epochs.is_empty().then_some((self.name.epoch, self.name.base_offset));
        let rewritten = self
            .leader_epochs
            .iter()
            .filter_map(|from| Epoch::new(from.epoch).map(|epoch| (epoch, Offset(from.start_offset))));
        own.into_iter().chain(rewritten)
    }

    pub(crate) fn base_offset(&self) -> Offset {
        self.name.base_offset
    }

    pub(crate) fn state(&self) -> SegmentState {
        *self.state.lock()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    pub(crate) fn end_offset(&self) -> Offset {
        self.state.lock().end_offset
    }

    /// Goes on with the fallback timestamp of `other`, whose place it takes: it does not become younger by it.
    pub(crate) fn inherit_fallback_timestamp(&self, other: &Self) {
        self.fallback_timestamp.store(other.fallback_timestamp.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// What retention by time goes by: the largest timestamp of its records or, if they have none, the time of the first call,
    /// whose `now` it was.
    pub(crate) fn retention_timestamp(&self, now: Timestamp) -> Timestamp {
        let largest = self.state().max_timestamp;
        if largest.0 >= 0 {
            return largest;
        }
        let unset =
            self.fallback_timestamp.compare_exchange(i64::MIN, now.0, Ordering::Relaxed, Ordering::Relaxed);
        Timestamp(unset.err().unwrap_or(now.0))
    }

    /// The path of its log, or of an index file as it is now.
    pub(crate) fn path(&self, file: SegmentFile) -> PathBuf {
        let version = match file {
            SegmentFile::Log => None,
            _ => self.state().index_files.and_then(|files| files.version),
        };
        SegmentFileName { segment: self.name, file, version }.path(&self.dir)
    }

    /// Whether a file is its log, or one of its index files as they are now.
    pub(crate) fn has_file(&self, file: &SegmentFileName) -> bool {
        let is_current = |files: IndexFiles| files.version == file.version;
        self.name == file.segment
            && (file.file == SegmentFile::Log || self.state().index_files.is_some_and(is_current))
    }

    /// The paths of all its files.
    pub(crate) fn paths(&self) -> [PathBuf; 4] {
        SegmentFile::ALL.map(|file| self.path(file))
    }

    /// Takes note of a batch that was written at the end of the active segment.
    pub(crate) fn wrote(&self, header: &BatchHeader) {
        self.state.lock().add(header);
    }

    /// False only if it is known that no transaction was aborted by a marker in this segment.
    pub(crate) fn may_have_aborted(&self) -> bool {
        match self.open.lock().as_ref() {
            Some(open) => open.indexes.lock().has_aborted(),
            None => self.state().index_files.is_none_or(|files| files.lengths.txn_index_bytes > 0),
        }
    }

    pub(crate) fn set_index_files(&self, files: IndexFiles) {
        self.state.lock().index_files = Some(files);
    }

    /// Marks its index files as corrupt: they cannot be read, or lead to the wrong place. True the first time, when the caller
    /// has to have them built anew; false if somebody did so before.
    pub(crate) fn mark_indexes_corrupt(&self) -> bool {
        !self.indexes_corrupt.swap(true, Ordering::Relaxed)
    }

    /// Opens it, if it is not open yet; `earlier` are the segments before it. With the indexes as they are in its files, or,
    /// if they are not whole, as the log says. Blocks.
    pub(crate) fn open(
        self: &Arc<Self>,
        substrate: &dyn Substrate,
        cache: &OpenSegments,
        interval_bytes: u64,
        earlier: &[Arc<Segment>],
    ) -> Result<Opened, ReadError> {
        if let Some(open) = self.open.lock().clone() {
            return Ok(Opened { open, rebuilt: None });
        }
        let path = self.path(SegmentFile::Log);
        let file = substrate.open(&path, OpenMode::Read)?;
        let state = self.state();
        if state.bytes > 0
            && let Some(reason) = other_content(&*file, 0, (SegmentEnd::First, state.batch_crcs.first))?
        {
            return Err(ReadError::Damaged { path, position: 0, reason });
        }
        let (indexes, rebuilt) = match self.load_indexes(substrate, interval_bytes) {
            Ok(indexes) => (indexes, None),
            Err(why) => (rebuild_indexes(substrate, self, &*file, earlier, interval_bytes)?, Some(why)),
        };
        let fresh = Arc::new(OpenSegment { file, indexes: Mutex::new(indexes) });
        let kept = {
            let mut slot = self.open.lock();
            Arc::clone(slot.get_or_insert(fresh))
        };
        cache.opened(self);
        Ok(Opened { open: kept, rebuilt })
    }

    /// The open file and indexes, if they are open now.
    pub(crate) fn opened(&self) -> Option<Arc<OpenSegment>> {
        self.open.lock().clone()
    }

    /// Forgets the open file; readers under way keep theirs until they are done.
    pub(crate) fn close(&self) {
        let open = self.open.lock().take();
        drop(open);
    }

    /// The indexes as the index files have them, if they are whole.
    fn load_indexes(&self, substrate: &dyn Substrate, interval_bytes: u64) -> Result<LogIndexes, Unusable> {
        let SegmentState { end_offset, bytes, index_files, .. } = self.state();
        let files = index_files.ok_or(Unusable::Unwritten)?;
        let images = read_index_files(substrate, &self.dir, self.name, &files).map_err(Unusable::Bad)?;
        LogIndexes::closed(self.name.base_offset, interval_bytes, &images, end_offset, bytes)
            .map_err(|error| Unusable::Bad(error.to_string()))
    }
}

impl SegmentState {
    /// Of a segment without a batch.
    pub(crate) fn empty(base_offset: Offset) -> Self {
        Self {
            bytes: 0,
            end_offset: base_offset,
            max_timestamp: Timestamp::NONE,
            offset_of_max_timestamp: base_offset,
            batch_crcs: BatchCrcs::default(),
            index_files: None,
        }
    }

    /// Counts a batch in that stands at its end.
    pub(crate) fn add(&mut self, header: &BatchHeader) {
        self.batch_crcs.add(self.bytes, header);
        self.bytes += header.batch_bytes as u64;
        self.end_offset = header.next_offset();
        if header.max_timestamp > self.max_timestamp {
            self.max_timestamp = header.max_timestamp;
            self.offset_of_max_timestamp = header.last_offset();
        }
    }
}

/// The closed segments that are open now, over all partitions of an engine: the oldest is closed when there are
/// too many.
#[derive(Debug)]
pub(crate) struct OpenSegments {
    max: usize,
    open: Mutex<VecDeque<Weak<Segment>>>,
}

impl OpenSegments {
    pub(crate) fn new(max: usize) -> Self {
        Self { max: max.max(1), open: Mutex::new(VecDeque::new()) }
    }

    /// Counts a segment as open; closes the oldest one if there are too many.
    pub(crate) fn opened(&self, segment: &Arc<Segment>) {
        let mut closing = Vec::new();
        {
            let mut open = self.open.lock();
            open.push_back(Arc::downgrade(segment));
            while open.len() > self.max {
                closing.extend(open.pop_front());
            }
        }
        for segment in closing.iter().filter_map(Weak::upgrade) {
            segment.close();
        }
    }
}
