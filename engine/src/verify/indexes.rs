//! A segment's index files against its batches, entry by entry as the walk comes along.
//!
//! The files are read in step with the log, a piece at a time, so that an index of any size costs no memory. Which
//! batches have entries is the leader's choice (its interval may have changed); that each entry is true is not.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_substrate::{File, OpenMode, Substrate};

use super::finding::{Finding, Kind};
use crate::batch::BatchHeader;
use crate::index::{AbortedTransaction, OffsetIndex, OffsetPosition, TimeIndex, TimestampOffset, TxnIndex};
use crate::log::{SegmentFile, SegmentFileName, SegmentName};
use crate::manifest::versioned::FileVersion;
use crate::manifest::{IndexFiles, IndexLengths};
use crate::types::{Offset, Timestamp};

/// Entries that are read at once.
const ENTRIES_PER_READ: usize = 4096;

/// What the three kinds of entries have in common.
pub(super) trait Entry: Copy {
    const BYTES: usize;
    const FILE: SegmentFile;

    /// The entries of a piece of a file; what is wrong with it.
    fn decode(base: Offset, bytes: &[u8]) -> Result<Vec<Self>, String>;

    /// Whether it may stand behind `previous`.
    fn follows(&self, previous: &Self) -> bool;
}

impl Entry for OffsetPosition {
    const BYTES: usize = OffsetIndex::ENTRY_BYTES;
    const FILE: SegmentFile = SegmentFile::OffsetIndex;

    fn decode(base: Offset, bytes: &[u8]) -> Result<Vec<Self>, String> {
        Ok(OffsetIndex::from_bytes(base, bytes).map_err(|error| error.to_string())?.iter().collect())
    }

    fn follows(&self, previous: &Self) -> bool {
        self.offset > previous.offset && self.position > previous.position
    }
}

impl Entry for TimestampOffset {
    const BYTES: usize = TimeIndex::ENTRY_BYTES;
    const FILE: SegmentFile = SegmentFile::TimeIndex;

    fn decode(base: Offset, bytes: &[u8]) -> Result<Vec<Self>, String> {
        Ok(TimeIndex::from_bytes(base, bytes).map_err(|error| error.to_string())?.iter().collect())
    }

    fn follows(&self, previous: &Self) -> bool {
        self.offset > previous.offset && self.timestamp > previous.timestamp
    }
}

impl Entry for AbortedTransaction {
    const BYTES: usize = TxnIndex::ENTRY_BYTES;
    const FILE: SegmentFile = SegmentFile::TxnIndex;

    fn decode(base: Offset, bytes: &[u8]) -> Result<Vec<Self>, String> {
        Ok(TxnIndex::from_bytes(base, bytes).map_err(|error| error.to_string())?.iter().collect())
    }

    fn follows(&self, previous: &Self) -> bool {
        self.last_offset > previous.last_offset
    }
}

/// The entries of one index file, in order.
pub(super) struct Entries<E> {
    path: PathBuf,
    base: Offset,
    file: Option<Arc<dyn File>>,
    /// Bytes of the file that are complete, according to the manifest or checkpoint.
    length: u64,
    position: u64,
    piece: std::vec::IntoIter<E>,
    next: Option<E>,
    previous: Option<E>,
    /// Something was wrong with it; nothing more is said about it.
    stopped: bool,
}

impl<E: Entry> Entries<E> {
    fn open(
        substrate: &dyn Substrate,
        dir: &Path,
        (segment, version): (SegmentName, Option<FileVersion>),
        length: u64,
        findings: &mut Vec<Finding>,
    ) -> Self {
        let path = SegmentFileName { segment, file: E::FILE, version }.path(dir);
        let file = match substrate.open(&path, OpenMode::ReadUncached) {
            _ if length == 0 => None,
            Ok(file) => Some(file),
            Err(error) => {
                let (kind, problem) = if error.is_not_found() {
                    (
                        Kind::IndexMissing,
                        format!("{length} bytes of it are said to be complete, and it is not there"),
                    )
                } else {
                    (Kind::Unreadable, error.to_string())
                };
                findings.push(Finding::new(kind, &path, problem));
                None
            }
        };
        let base = segment.base_offset;
        let (piece, next, previous) = (Vec::new().into_iter(), None, None);
        let stopped = length > 0 && file.is_none();
        let mut entries = Self { path, base, file, length, position: 0, piece, next, previous, stopped };
        entries.check_length(findings);
        entries.advance(findings);
        entries
    }

    fn check_length(&mut self, findings: &mut Vec<Finding>) {
        let Some(file) = &self.file else { return };
        let problem = match file.length() {
            Ok(found) if found < self.length => {
                format!("it has {found} bytes; {} are said to be complete", self.length)
            }
            Ok(_) => return,
            Err(error) => error.to_string(),
        };
        findings.push(Finding::new(Kind::IndexDamaged, &self.path, problem));
        self.stop();
    }

    /// Moves on to the next entry.
    fn advance(&mut self, findings: &mut Vec<Finding>) {
        self.previous = self.next.or(self.previous);
        self.next = self.piece.next();
        if self.next.is_none() && self.position < self.length && self.file.is_some() {
            let began = self.position;
            match self.read_piece() {
                Ok(piece) => {
                    self.piece = piece.into_iter();
                    self.next = self.piece.next();
                    let disorder =
                        self.next.zip(self.previous).is_some_and(|(next, last)| !next.follows(&last));
                    if disorder {
                        self.give_up(began, "an entry does not follow its predecessor".into(), findings);
                    }
                }
                Err(problem) => self.give_up(began, problem, findings),
            }
        }
    }

    fn read_piece(&mut self) -> Result<Vec<E>, String> {
        let Some(file) = &self.file else { return Ok(Vec::new()) };
        let left = usize::try_from(self.length - self.position).unwrap_or(usize::MAX);
        let mut bytes = vec![0; left.min(ENTRIES_PER_READ * E::BYTES)];
        let read = file.read_at(&mut bytes, self.position).map_err(|error| error.to_string())?;
        bytes.truncate(read);
        self.position = self.position.saturating_add(read as u64);
        if read == 0 {
            return Err("the file ends before what is said to be complete".into());
        }
        E::decode(self.base, &bytes)
    }

    fn give_up(&mut self, position: u64, problem: String, findings: &mut Vec<Finding>) {
        findings.push(Finding::new(Kind::IndexDamaged, &self.path, problem).at(position));
        self.stop();
    }

    fn stop(&mut self) {
        self.stopped = true;
        self.file = None;
        self.next = None;
        self.piece = Vec::new().into_iter();
    }

    /// Tells of a wrong entry; one is enough for a file.
    fn wrong(&mut self, kind: Kind, offset: Offset, problem: String, findings: &mut Vec<Finding>) {
        findings.push(Finding::new(kind, &self.path, problem).offset(offset));
        self.stop();
    }
}

/// The three index files of a segment, checked along a walk.
pub(super) struct IndexCheck {
    offsets: Entries<OffsetPosition>,
    times: Entries<TimestampOffset>,
    txn: Entries<AbortedTransaction>,
    largest: Timestamp,
    /// Where the replay began; transactions may have begun before.
    replay_start: Offset,
}

impl IndexCheck {
    pub(super) fn open(
        substrate: &dyn Substrate,
        dir: &Path,
        name: SegmentName,
        files: &IndexFiles,
        replay_start: Offset,
        findings: &mut Vec<Finding>,
    ) -> Self {
        let IndexLengths { offset_index_bytes, time_index_bytes, txn_index_bytes } = files.lengths;
        let name = (name, files.version);
        Self {
            offsets: Entries::open(substrate, dir, name, offset_index_bytes, findings),
            times: Entries::open(substrate, dir, name, time_index_bytes, findings),
            txn: Entries::open(substrate, dir, name, txn_index_bytes, findings),
            largest: Timestamp::NONE,
            replay_start,
        }
    }

    /// A batch at `position`; entries that lie before it and were not met are wrong.
    pub(super) fn batch(&mut self, position: u64, header: &BatchHeader, findings: &mut Vec<Finding>) {
        let last_offset = header.last_offset();
        if let Some(entry) = self.offsets.next
            && entry.position <= position
        {
            if entry.position < position {
                let problem = format!("an entry points to byte {}, where no batch begins", entry.position);
                self.offsets.wrong(Kind::IndexWrong, entry.offset, problem, findings);
            } else if entry.offset != last_offset {
                let problem = format!(
                    "the entry of byte {position} says offset {}; the batch there ends with {last_offset}",
                    entry.offset
                );
                self.offsets.wrong(Kind::IndexWrong, entry.offset, problem, findings);
            } else {
                self.offsets.advance(findings);
            }
        }
        let grown = header.max_timestamp > self.largest;
        self.largest = self.largest.max(header.max_timestamp);
        if let Some(entry) = self.times.next
            && entry.offset <= last_offset
        {
            if entry.offset == last_offset && grown && entry.timestamp == header.max_timestamp {
                self.times.advance(findings);
            } else {
                let problem = format!(
                    "an entry says that timestamp {} is the largest up to offset {}; the log says otherwise",
                    entry.timestamp, entry.offset
                );
                self.times.wrong(Kind::IndexWrong, entry.offset, problem, findings);
            }
        }
    }

    /// A marker that aborts: `expected` is the transaction as the replay knows it, if it does.
    pub(super) fn aborted(
        &mut self,
        header: &BatchHeader,
        expected: Option<AbortedTransaction>,
        replay_is_complete: bool,
        findings: &mut Vec<Finding>,
    ) {
        let marker = header.base_offset;
        self.unmatched_below(marker, findings);
        let entry = self.txn.next.filter(|entry| entry.last_offset == marker);
        let problem = match (entry, expected) {
            (None, Some(expected)) if !self.txn.stopped => Some(format!(
                "the transaction of producer {} that began at {} and was aborted at {marker} is missing",
                expected.producer_id, expected.first_offset
            )),
            (None, _) => None,
            (Some(entry), expected) => {
                self.txn.advance(findings);
                self.mismatch(&entry, expected, header, replay_is_complete)
            }
        };
        if let Some(problem) = problem {
            self.txn.wrong(Kind::TxnIndexWrong, marker, problem, findings);
        }
    }

    fn mismatch(
        &self,
        entry: &AbortedTransaction,
        expected: Option<AbortedTransaction>,
        header: &BatchHeader,
        replay_is_complete: bool,
    ) -> Option<String> {
        let marker = header.base_offset;
        if header.producer_id != Some(entry.producer_id) {
            let found = header.producer_id.map_or("nobody".to_owned(), |id| id.to_string());
            return Some(format!(
                "the entry of marker {marker} names producer {}, the marker {found}",
                entry.producer_id
            ));
        }
        if !replay_is_complete || entry.first_offset < self.replay_start {
            return None;
        }
        let Some(expected) = expected else {
            return Some(format!("marker {marker} ends no transaction, and has an entry"));
        };
        if expected.first_offset < self.replay_start {
            // Its end was among what is gone, and another one has begun since.
            return None;
        }
        if entry.first_offset != expected.first_offset {
            return Some(format!(
                "the transaction aborted at {marker} began at {}, not at {}",
                expected.first_offset, entry.first_offset
            ));
        }
        // Other transactions that were open then may have begun before the replay; and 0 stands for not known, in an index that
        // was built anew.
        let exact = self.replay_start == Offset::ZERO && entry.last_stable_offset != Offset::ZERO;
        (exact && entry.last_stable_offset != expected.last_stable_offset).then(|| {
            format!(
                "the last stable offset at marker {marker} was {}, not {}",
                expected.last_stable_offset, entry.last_stable_offset
            )
        })
    }

    fn unmatched_below(&mut self, limit: Offset, findings: &mut Vec<Finding>) {
        if let Some(entry) = self.txn.next.filter(|entry| entry.last_offset < limit) {
            let problem =
                format!("an entry says that a transaction was aborted at {}; none was", entry.last_offset);
            self.txn.wrong(Kind::TxnIndexWrong, entry.last_offset, problem, findings);
        }
    }

    /// Behind the last batch that they cover; `whole` if every batch up to there was met. What is left over is wrong.
    pub(super) fn finish(mut self, end_offset: Offset, whole: bool, findings: &mut Vec<Finding>) {
        if whole {
            self.unmatched_below(Offset(i64::MAX), findings);
            if let Some(entry) = self.offsets.next {
                let problem = format!("an entry points to byte {}, where no batch begins", entry.position);
                self.offsets.wrong(Kind::IndexWrong, entry.offset, problem, findings);
            }
            if let Some(entry) = self.times.next {
                let problem = format!("an entry is of offset {}; the log ends at {end_offset}", entry.offset);
                self.times.wrong(Kind::IndexWrong, entry.offset, problem, findings);
            }
            return;
        }
        self.unmatched_below(end_offset, findings);
        // Read to their ends, for what does not parse.
        while self.offsets.next.is_some() {
            self.offsets.advance(findings);
        }
        while self.times.next.is_some() {
            self.times.advance(findings);
        }
        while self.txn.next.is_some() {
            self.txn.advance(findings);
        }
    }

    /// The walk met damage at the offset `from`, and goes on at `position` and `offset`: entries of what was passed over prove
    /// nothing any more.
    pub(super) fn skip(&mut self, from: Offset, position: u64, offset: Offset, findings: &mut Vec<Finding>) {
        self.unmatched_below(from, findings);
        while self.offsets.next.is_some_and(|entry| entry.position < position) {
            self.offsets.advance(findings);
        }
        // The largest timestamp may have been among what was lost.
        self.times.stop();
        while self.txn.next.is_some_and(|entry| entry.last_offset < offset) {
            self.txn.advance(findings);
        }
    }
}
