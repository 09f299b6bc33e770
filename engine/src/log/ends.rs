//! Whether a log goes as far as its manifest says, and whether its segments are those that were written. A leader that found
//! out only when somebody reads there would have appended behind the hole, and readers would wait in front of it.
//!
//! A `.log` file does not say whose it is. The manifest (and the checkpoint) has the checksums of a segment's first and last
//! batch: a batch that stands there whole and has another one is of another segment, since damage leaves no batch whole.

use std::path::Path;

use kaas_substrate::{File, OpenMode, Substrate};

use super::names::SegmentFile;
use super::scan::{BatchScanner, Check, Scanned, header_at};
use super::segment::{Segment, SegmentState};
use crate::batch::BatchHeader;
use crate::error::EngineError;
use crate::index::OffsetIndex;

/// Most bytes of a segment that are walked through, headers only: as many as recovery scans behind a checkpoint by default.
const WALK_BYTES_MAX: u64 = 64 << 20;

/// An end of a segment's batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentEnd {
    First,
    Last,
}

/// What is to be said of a segment whose first or last batch is whole and has another CRC-32C than was written.
pub(crate) fn another_batch(end: SegmentEnd, found: u32, written: u32) -> String {
    let which = if end == SegmentEnd::First { "first" } else { "last" };
    format!(
        "its {which} batch has CRC-32C {found:08x}; {written:08x} was written there: it may be a segment of another partition"
    )
}

/// Whether the batch at `position`, which is the first or last one of a segment, is whole and another one than was written:
/// then what is to be said of it. One small read if it is not; damage is nobody's business here.
pub(super) fn other_content(
    file: &dyn File,
    position: u64,
    (end, written): (SegmentEnd, u32),
) -> Result<Option<String>, kaas_substrate::Error> {
    match header_at(file, position)? {
        Ok(header) if header.crc != written => {}
        _ => return Ok(None),
    }
    match BatchScanner::new(file, position, u64::MAX, Check::Crc).next()? {
        Scanned::Batch { header, .. } => Ok(Some(another_batch(end, header.crc, written))),
        Scanned::End | Scanned::Torn { .. } => Ok(None),
    }
}

fn check_content(
    file: &dyn File,
    path: &Path,
    position: u64,
    written: (SegmentEnd, u32),
) -> Result<(), EngineError> {
    match other_content(file, position, written)? {
        Some(reason) => Err(EngineError::Damaged { path: path.to_owned(), reason }),
        None => Ok(()),
    }
}

/// Checks that the segment whose state this is begins as it was written. One small read.
///
/// # Errors
///
/// [`EngineError::Damaged`], or what the volume fails with.
pub(super) fn check_beginning(file: &dyn File, path: &Path, state: &SegmentState) -> Result<(), EngineError> {
    check_content(file, path, 0, (SegmentEnd::First, state.batch_crcs.first))
}

/// Checks that the batch at `position`, which is the last one of the segment whose state this is, is the one that was written.
/// One small read.
///
/// # Errors
///
/// [`EngineError::Damaged`], or what the volume fails with.
pub(super) fn check_last(
    file: &dyn File,
    path: &Path,
    position: u64,
    state: &SegmentState,
) -> Result<(), EngineError> {
    check_content(file, path, position, (SegmentEnd::Last, state.batch_crcs.last))
}

/// Checks that the last segment that a manifest pins begins as it was written, is long enough, and that its last batch is the
/// one that was written and ends where the manifest says. A few small reads: from the last entry of the offset index, which is a hint, on. Without one a segment that is
/// larger than [`WALK_BYTES_MAX`] is asked for its length only.
///
/// # Errors
///
/// [`EngineError::Damaged`], or what the volume fails with.
pub(super) fn check_end(substrate: &dyn Substrate, segment: &Segment) -> Result<(), EngineError> {
    let path = segment.path(SegmentFile::Log);
    let state = segment.state();
    // This host may still have pages in its cache that the volume has lost.
    let file = substrate.open(&path, OpenMode::ReadUncached)?;
    check_beginning(&*file, &path, &state)?;
    let length = file.length()?;
    if length < state.bytes {
        let reason = format!("it has {length} bytes; {} were committed", state.bytes);
        return Err(EngineError::Damaged { path, reason });
    }
    let indexed = last_indexed(substrate, segment).filter(|position| *position < state.bytes);
    for start in indexed.into_iter().chain([0]) {
        if state.bytes - start > WALK_BYTES_MAX {
            return Ok(());
        }
        let last = last_from(&*file, start, &state)?;
        if let Some((position, _)) = last.filter(|(_, last)| last.next_offset() == state.end_offset) {
            return check_last(&*file, &path, position, &state);
        }
    }
    let SegmentState { bytes, end_offset, .. } = state;
    let reason = format!(
        "its first {bytes} bytes, which were committed, do not end with a batch up to offset {end_offset}"
    );
    Err(EngineError::Damaged { path, reason })
}

/// The position of the last entry of the offset index, if it can be read.
fn last_indexed(substrate: &dyn Substrate, segment: &Segment) -> Option<u64> {
    let length = segment.state().index_files?.lengths.offset_index_bytes;
    let at = length.checked_sub(OffsetIndex::ENTRY_BYTES as u64)?;
    let file = substrate.open(&segment.path(SegmentFile::OffsetIndex), OpenMode::Read).ok()?;
    let mut entry = [0; OffsetIndex::ENTRY_BYTES];
    let read = file.read_at(&mut entry, at).ok()?;
    let index = OffsetIndex::from_bytes(segment.base_offset(), entry.get(..read)?).ok()?;
    index.last().map(|last| last.position)
}

/// The last of the batches from `start` on, and its position, if they end where the segment's bytes do.
fn last_from(
    file: &dyn File,
    start: u64,
    state: &SegmentState,
) -> Result<Option<(u64, BatchHeader)>, kaas_substrate::Error> {
    let mut scanner = BatchScanner::new(file, start, state.bytes, Check::Headers);
    let mut last = None;
    loop {
        match scanner.next()? {
            Scanned::Batch { position, header } => last = Some((position, header)),
            Scanned::End => {
                let end = |(position, header): &(u64, BatchHeader)| position + header.batch_bytes as u64;
                return Ok(last.filter(|last| end(last) == state.bytes));
            }
            Scanned::Torn { .. } => return Ok(None),
        }
    }
}
