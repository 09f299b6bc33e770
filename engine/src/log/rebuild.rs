//! Rebuilding a closed segment's indexes by walking through its log, where the index files are missing or damaged.
//!
//! The offset and the time index follow from the segment alone. The transaction index needs to know where aborted
//! transactions began, which may be in an earlier segment: those are walked backwards until a marker of the same
//! producer, or the start of the log, settles it. Slow, exact, and rare. Runs on I/O threads.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kaas_substrate::{File, OpenMode, Substrate};

use super::indexes::LogIndexes;
use super::names::SegmentFile;
use super::recovery::marker;
use super::scan::{BatchScanner, Check, Scanned};
use super::segment::Segment;
use crate::batch::{BatchHeader, Marker};
use crate::error::ReadError;
use crate::producer_state::CompletedTransaction;
use crate::types::{Offset, ProducerId};

/// The indexes of `segment`, whose log is `file`; `earlier` are the segments before it, in order.
pub(crate) fn rebuild_indexes(
    substrate: &dyn Substrate,
    segment: &Segment,
    file: &dyn File,
    earlier: &[Arc<Segment>],
    interval_bytes: u64,
) -> Result<LogIndexes, ReadError> {
    let mut indexes = LogIndexes::new(segment.base_offset(), interval_bytes);
    // Where each producer's open transaction has its first batch in this segment.
    let mut begun: HashMap<ProducerId, Offset> = HashMap::new();
    // Producers of which a transaction has ended here: a later one can only have begun here, too.
    let mut ended: HashSet<ProducerId> = HashSet::new();
    walk(segment, file, |position, header| {
        indexes.append(header, position);
        let Some(producer_id) = header.producer_id.filter(|_| header.is_transactional()) else {
            return Ok(());
        };
        if !header.is_control() {
            begun.entry(producer_id).or_insert(header.base_offset);
            return Ok(());
        }
        let Some(end) = marker(file, position, header)? else { return Ok(()) };
        let mut first_offset = begun.remove(&producer_id);
        if ended.insert(producer_id) && end.marker == Marker::Abort {
            first_offset = begun_in(substrate, earlier, producer_id)?.or(first_offset);
        }
        if let Some(first_offset) = first_offset
            && end.marker == Marker::Abort
        {
            indexes.append_aborted(&CompletedTransaction {
                producer_id,
                first_offset,
                last_offset: header.base_offset,
                aborted: true,
                // Not known, since transactions that began in earlier segments may have been open. With any higher
                // offset a search below it would end here, and miss those; so it goes on to the next segment.
                last_stable_offset: Offset::ZERO,
            });
        }
        Ok(())
    })?;
    indexes.finish();
    Ok(indexes)
}

/// Where a producer's transaction that is open behind `segments` has begun in them, if it has.
fn begun_in(
    substrate: &dyn Substrate,
    segments: &[Arc<Segment>],
    producer_id: ProducerId,
) -> Result<Option<Offset>, ReadError> {
    let mut begun = None;
    for segment in segments.iter().rev() {
        let file = substrate.open(&segment.path(SegmentFile::Log), OpenMode::Read)?;
        let (mut here, mut ended) = (None, false);
        walk(segment, &*file, |_, header| {
            if header.producer_id == Some(producer_id) && header.is_transactional() {
                if header.is_control() {
                    (here, ended) = (None, true);
                } else {
                    here.get_or_insert(header.base_offset);
                }
            }
            Ok(())
        })?;
        begun = here.or(begun);
        if ended {
            break;
        }
    }
    Ok(begun)
}

/// Shows every batch of a segment that counts, with its position.
fn walk(
    segment: &Segment,
    file: &dyn File,
    mut show: impl FnMut(u64, &BatchHeader) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let mut scanner = BatchScanner::new(file, 0, segment.bytes(), Check::Headers);
    loop {
        match scanner.next()? {
            Scanned::Batch { position, header } => show(position, &header)?,
            Scanned::End => return Ok(()),
            Scanned::Torn { position, reason } => {
                return Err(ReadError::Damaged { path: segment.path(SegmentFile::Log), position, reason });
            }
        }
    }
}
