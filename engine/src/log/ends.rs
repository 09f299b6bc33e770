//! Whether a log goes as far as its manifest says. A leader that found out only when somebody reads there would have
//! appended behind the hole, and readers would wait in front of it.

use kaas_substrate::{File, OpenMode, Substrate};

use super::names::SegmentFile;
use super::scan::{BatchScanner, Check, Scanned};
use super::segment::{Segment, SegmentState};
use crate::error::EngineError;
use crate::index::OffsetIndex;
use crate::types::Offset;

/// Most bytes of a segment that are walked through, headers only: as many as recovery scans behind a checkpoint by default.
const WALK_BYTES_MAX: u64 = 64 << 20;

/// Checks that the last segment that a manifest pins is long enough, and that its last batch ends where the manifest
/// says. A few small reads: from the last entry of the offset index, which is a hint, on. Without one a segment that is
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
    let length = file.length()?;
    if length < state.bytes {
        let reason = format!("it has {length} bytes; {} were committed", state.bytes);
        return Err(EngineError::Damaged { path, reason });
    }
    let indexed = last_indexed(substrate, segment).filter(|position| *position < state.bytes);
    for start in indexed.into_iter().chain([0]) {
        if state.bytes - start > WALK_BYTES_MAX || end_from(&*file, start, &state)? == Some(state.end_offset)
        {
            return Ok(());
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
    let length = segment.state().index_files?.offset_index_bytes;
    let at = length.checked_sub(OffsetIndex::ENTRY_BYTES as u64)?;
    let file = substrate.open(&segment.path(SegmentFile::OffsetIndex), OpenMode::Read).ok()?;
    let mut entry = [0; OffsetIndex::ENTRY_BYTES];
    let read = file.read_at(&mut entry, at).ok()?;
    let index = OffsetIndex::from_bytes(segment.base_offset(), entry.get(..read)?).ok()?;
    index.last().map(|last| last.position)
}

/// The offset behind the last of the batches from `start` on, if they end where the segment's bytes do.
fn end_from(
    file: &dyn File,
    start: u64,
    state: &SegmentState,
) -> Result<Option<Offset>, kaas_substrate::Error> {
    let mut scanner = BatchScanner::new(file, start, state.bytes, Check::Headers);
    let mut end = (start, None);
    loop {
        match scanner.next()? {
            Scanned::Batch { position, header } => {
                end = (position + header.batch_bytes as u64, Some(header.next_offset()));
            }
            Scanned::End => return Ok(end.1.filter(|_| end.0 == state.bytes)),
            Scanned::Torn { .. } => return Ok(None),
        }
    }
}
