//! Finding the end of a log: from the manifest and the checkpoint, by verifying what lies behind them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use kaas_substrate::{File, OpenMode, read_small};

use super::ends::{check_beginning, check_end, check_last};
use super::index_files::{read_index_files, write_index_files};
use super::indexes::LogIndexes;
use super::names::{SegmentFile, SegmentName};
use super::open::Listing;
use super::rewrite::Rewriter;
use super::scan::{BatchScanner, Check, Scanned};
use super::segment::{Segment, SegmentState};
use crate::batch::{BatchHeader, EndMarker, HEADER_BYTES, check_crc, read_marker};
use crate::engine::Shared;
use crate::error::EngineError;
use crate::identity::Identity;
use crate::manifest::versioned::{FileVersion, VersionedError};
use crate::manifest::{
    CHECKPOINT, Checkpoint, IndexFiles, IndexLengths, Manifest, PRODUCER_STATE, ProducerStateRef,
    SegmentEntry, owned,
};
use crate::planted::{Bug, planted};
use crate::producer_state::ProducerStates;
use crate::settings::LogConfig;
use crate::types::{Epoch, Offset, Timestamp};

/// Largest producer snapshot that is read.
const SNAPSHOT_BYTES_MAX: usize = 1 << 30;

/// Largest control batch that is looked into; markers have about 80 bytes.
const MARKER_BATCH_BYTES_MAX: usize = 64 << 10;

/// Bytes behind a log's end in which a whole batch is looked for.
const LOOKED_BEHIND_BYTES: usize = 1 << 20;

/// How many look-alikes are examined.
const CANDIDATES_MAX: usize = 100;

/// What to do where one is found. (A loss of power may keep what was written last, and lose what was written just before: none of it was
/// acknowledged.)
const MORE_FOLLOWS_HINT: &str = "if no loss of power explains it, acknowledged records may be among them: stop the broker, keep a copy \
                                 of the directory, and run `kaas-engine verify` on the copy";

/// What a partition's files say.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// All segments with records that count, in order.
    pub(crate) segments: Vec<Arc<Segment>>,
    /// Those of them that were scanned now, and are to be made durable.
    pub(crate) scanned: Vec<Arc<Segment>>,
    pub(crate) producers: ProducerStates,
    pub(crate) log_start: Offset,
    pub(crate) end: Offset,
}

/// Where a scan stands.
struct Cursor {
    expected: Offset,
    producers: ProducerStates,
}

/// Finds what counts in `dir`, for the leader of `leader`. Reads uncached; writes index files, which are derived, under
/// names of its own, and, where only that makes them durable, the batches that were found to count, as they are (see
/// [`super::rewrite`]).
pub(crate) fn recover(
    shared: &Shared,
    dir: &Path,
    identity: &Identity,
    leader: Epoch,
    listing: &Listing,
    manifest: Option<&Manifest>,
    config: &LogConfig,
) -> Result<Recovered, EngineError> {
    let empty = Manifest::default();
    let known = manifest.unwrap_or(&empty);
    let mut segments = pinned(dir, listing, known)?;
    if let Some(last) = segments.last() {
        check_end(&*shared.substrate, last)?;
    }
    let unpinned = unpinned(dir, listing, known)?;

    let producers = read_producers(shared, dir, identity, known.producer_state)?;
    let mut cursor = Cursor { expected: Offset(known.next_offset), producers };
    let mut scanned = Vec::new();
    let mut checkpoint = read_checkpoint(shared, dir, identity, known, unpinned.first())?;
    for (index, name) in unpinned.iter().enumerate() {
        let resume = checkpoint.take().and_then(|checkpoint| resume(shared, dir, *name, checkpoint, config));
        let found = scan_segment(shared, dir, *name, resume, known.epoch, config, &mut cursor)?;
        if let Some(next) = unpinned.get(index + 1)
            && next.base_offset != cursor.expected
        {
            let path = name.path(dir, SegmentFile::Log);
            let reason = format!(
                "it ends at offset {}, but the next segment begins at {}",
                cursor.expected, next.base_offset
            );
            return Err(EngineError::Damaged { path, reason });
        }
        if let Some((mut state, indexes)) = found {
            let (version, none) = (FileVersion { epoch: leader, number: 1 }, IndexLengths::default());
            // Derived, and checked when it is used: a failure costs a later reader a walk through the log.
            state.index_files =
                write_index_files(&*shared.substrate, dir, *name, Some(version), &indexes.images(), &none)
                    .inspect_err(|error| tracing::warn!(segment = %name, %error, "cannot write index files"))
                    .ok();
            let segment = Arc::new(Segment::closed(*name, dir, state));
            scanned.push(Arc::clone(&segment));
            segments.push(segment);
        }
    }
    if known.high_watermark > cursor.expected.0 {
        let reason = format!(
            "everything below offset {} was committed, and the log ends at {}",
            known.high_watermark, cursor.expected
        );
        return Err(EngineError::Damaged { path: dir.join("manifest"), reason });
    }
    let log_start = Offset(known.log_start_offset);
    let first = segments.first().map_or(cursor.expected, |segment| segment.base_offset());
    // In front of a rewritten segment offsets may be missing.
    let may_begin_later = known.segments.first().is_some_and(|entry| entry.generation > 0);
    if log_start > cursor.expected || (log_start < first && !may_begin_later) {
        let reason = format!(
            "its log start offset {log_start} is outside of the log, which goes from {first} to {}",
            cursor.expected
        );
        return Err(EngineError::Damaged { path: dir.join("manifest"), reason });
    }
    Ok(Recovered { segments, scanned, producers: cursor.producers, log_start, end: cursor.expected })
}

/// The manifest's segments. Their files must be there; what is in them is not looked at, but for the end of the last one.
fn pinned(dir: &Path, listing: &Listing, manifest: &Manifest) -> Result<Vec<Arc<Segment>>, EngineError> {
    let mut segments: Vec<Arc<Segment>> = Vec::with_capacity(manifest.segments.len() + 1);
    let damaged = |reason: String| EngineError::Damaged { path: dir.join("manifest"), reason };
    let mut previous: Option<&SegmentEntry> = None;
    for entry in &manifest.segments {
        let segment = Segment::from_entry(entry, dir)
            .ok_or_else(|| damaged(format!("the segment at {} is impossible", entry.base_offset)))?;
        if previous.replace(entry).is_some_and(|previous| !previous.may_precede(entry)) {
            return Err(damaged(format!(
                "the segment at {} does not follow its predecessor",
                entry.base_offset
            )));
        }
        if !listing.logs.contains(&segment.name) {
            let path = segment.path(SegmentFile::Log);
            return Err(EngineError::Damaged {
                path,
                reason: "the manifest names it, but it is missing".into(),
            });
        }
        segments.push(Arc::new(segment));
    }
    if previous.is_some_and(|last| !last.may_end_before(manifest.next_offset)) {
        return Err(damaged(format!("its segments do not end at its next offset {}", manifest.next_offset)));
    }
    Ok(segments)
}

/// The segments behind the manifest's: those that its own epoch's leader appended to. What it was rewriting when it
/// ended counts for nothing.
fn unpinned(dir: &Path, listing: &Listing, manifest: &Manifest) -> Result<Vec<SegmentName>, EngineError> {
    // What was being rewritten there counted for nothing yet; but nobody rewrites anything before there is a first manifest.
    let is_first = manifest.epoch == Epoch::NONE.get();
    let is_later =
        |name: &&SegmentName| name.epoch.get() > manifest.epoch && (is_first || !name.is_rewritten());
    if let Some(later) = listing.logs.iter().find(is_later) {
        let path = later.path(dir, SegmentFile::Log);
        let reason =
            format!("its leader's manifest is missing; the highest one is of epoch {}", manifest.epoch);
        return Err(EngineError::Damaged { path, reason });
    }
    if manifest.released {
        return Ok(Vec::new());
    }
    let behind = |name: &&SegmentName| {
        let is_its_own = name.epoch.get() == manifest.epoch || planted(Bug::LateSegmentsCount);
        is_its_own && !name.is_rewritten() && name.base_offset.0 >= manifest.next_offset
    };
    let names: Vec<_> = listing.logs.iter().filter(behind).copied().collect();
    match names.first() {
        Some(first) if first.base_offset.0 != manifest.next_offset => {
            let path = first.path(dir, SegmentFile::Log);
            let reason =
                format!("a segment that begins at offset {} is missing before it", manifest.next_offset);
            Err(EngineError::Damaged { path, reason })
        }
        _ => Ok(names),
    }
}

/// The last checkpoint, if it is about the segment where the scan would begin.
fn read_checkpoint(
    shared: &Shared,
    dir: &Path,
    identity: &Identity,
    manifest: &Manifest,
    first: Option<&SegmentName>,
) -> Result<Option<(Checkpoint, ProducerStates)>, EngineError> {
    let Some(first) = first else { return Ok(None) };
    // An optimisation: without it the scan begins further back.
    let read = match owned::read_highest::<Checkpoint>(&*shared.substrate, dir, CHECKPOINT, identity) {
        Err(error @ VersionedError::Damaged { .. }) => {
            tracing::warn!(dir = %dir.display(), %error, "scanning without the recovery checkpoint");
            return Ok(None);
        }
        read => read?,
    };
    let checkpoint = read.map(|(_, checkpoint)| checkpoint).filter(|checkpoint| {
        checkpoint.epoch == manifest.epoch && checkpoint.base_offset == first.base_offset.0
    });
    let Some(checkpoint) = checkpoint else { return Ok(None) };
    match read_producers(shared, dir, identity, checkpoint.producer_state) {
        Err(EngineError::Damaged { path, reason }) => {
            tracing::warn!(path = %path.display(), reason, "scanning without the recovery checkpoint");
            Ok(None)
        }
        producers => Ok(Some((checkpoint, producers?))),
    }
}

fn read_producers(
    shared: &Shared,
    dir: &Path,
    identity: &Identity,
    reference: Option<ProducerStateRef>,
) -> Result<ProducerStates, EngineError> {
    let Some(reference) = reference else { return Ok(ProducerStates::new()) };
    let damaged = |path: PathBuf, reason: String| EngineError::Damaged { path, reason };
    let epoch = Epoch::new(reference.epoch).ok_or_else(|| {
        damaged(dir.join("manifest"), format!("producer state of epoch {}", reference.epoch))
    })?;
    let path = dir.join(PRODUCER_STATE.file_name(FileVersion { epoch, number: reference.number }));
    let bytes = read_small(&*shared.substrate, &path, SNAPSHOT_BYTES_MAX)?;
    let (found, producers) =
        ProducerStates::from_snapshot(&bytes).map_err(|error| damaged(path.clone(), error.to_string()))?;
    if let Some(reason) = identity.differs_from(&found) {
        return Err(damaged(path, reason));
    }
    if producers.end_offset().0 != reference.offset {
        let reason = format!("it ends at offset {}, not at {}", producers.end_offset(), reference.offset);
        return Err(damaged(path, reason));
    }
    Ok(producers)
}

/// Where the scan of a segment resumes.
struct Resume {
    state: SegmentState,
    indexes: LogIndexes,
    /// From where on the batches still have to be shown to the indexes.
    indexed_bytes: u64,
    producers: ProducerStates,
}

/// A checkpoint's place, if its index files are usable; else the segment is scanned from its beginning.
fn resume(
    shared: &Shared,
    dir: &Path,
    name: SegmentName,
    (checkpoint, producers): (Checkpoint, ProducerStates),
    config: &LogConfig,
) -> Option<Resume> {
    let interval = config.index_interval_bytes;
    let files = IndexFiles { version: None, lengths: checkpoint.indexes };
    let (indexes, indexed_bytes) = read_index_files(&*shared.substrate, dir, name, &files)
        .and_then(|images| {
            LogIndexes::resume(name.base_offset, interval, &images, checkpoint.position)
                .map_err(|error| error.to_string())
        })
        .inspect_err(|reason| {
            tracing::warn!(segment = %name, dir = %dir.display(), reason,
                "the checkpoint's index files are not usable; scanning the segment from its beginning");
        })
        .ok()?;
    let state = SegmentState {
        bytes: checkpoint.position,
        end_offset: Offset(checkpoint.offset),
        max_timestamp: Timestamp(checkpoint.max_timestamp),
        offset_of_max_timestamp: Offset(checkpoint.offset_of_max_timestamp),
        batch_crcs: checkpoint.batch_crcs,
        index_files: None,
    };
    Some(Resume { state, indexes, indexed_bytes, producers })
}

/// Scans a segment to its end and moves the cursor there: what counts of it, and its indexes; `None` if nothing does.
fn scan_segment(
    shared: &Shared,
    dir: &Path,
    name: SegmentName,
    resume: Option<Resume>,
    epoch: u32,
    config: &LogConfig,
    cursor: &mut Cursor,
) -> Result<Option<(SegmentState, LogIndexes)>, EngineError> {
    let path = name.path(dir, SegmentFile::Log);
    // What its leader wrote and did not sync is on the volume before it is looked at: bytes that are only in memory
    // may read differently afterwards. (What is still being written now is made durable after the scan.)
    if !planted(Bug::InheritedNotDurable) {
        shared.substrate.make_durable(&path, u64::MAX)?;
    }
    let file = shared.substrate.open(&path, OpenMode::ReadUncached)?;
    let length = file.length()?;
    let resume = match resume {
        Some(resume) if length < resume.state.bytes => {
            let reason = format!("it has {length} bytes; {} were committed", resume.state.bytes);
            return Err(EngineError::Damaged { path, reason });
        }
        Some(resume) => {
            check_beginning(&*file, &path, &resume.state)?;
            resume.shown(&*file, &path, name)?
        }
        None => None,
    };
    let (mut state, mut indexes) = match resume {
        Some(resume) => {
            cursor.expected = resume.state.end_offset;
            cursor.producers = resume.producers;
            (resume.state, resume.indexes)
        }
        None => {
            let indexes = LogIndexes::new(name.base_offset, config.index_interval_bytes);
            (SegmentState::empty(name.base_offset), indexes)
        }
    };
    let mut scanner = BatchScanner::new(&*file, state.bytes, length, Check::Crc);
    let mut rewriter = Rewriter::new(&*shared.substrate, &path);
    loop {
        let (position, header) = match scanner.next()? {
            Scanned::Batch { position, header } => (position, header),
            Scanned::End => break,
            Scanned::Torn { position, reason } => {
                let dir = dir.display();
                match whole_batch_behind(&*file, position, cursor.expected, epoch) {
                    None => tracing::info!(segment = %name, %dir, position, reason, "the log ends here"),
                    Some((behind, offset)) => tracing::warn!(
                        segment = %name, %dir, position, reason, behind, %offset, hint = MORE_FOLLOWS_HINT,
                        "the log ends here, though whole batches follow"
                    ),
                }
                break;
            }
        };
        let is_its_leaders = u32::try_from(header.partition_leader_epoch) == Ok(epoch);
        if header.base_offset != cursor.expected || !(is_its_leaders || planted(Bug::LateSegmentsCount)) {
            tracing::info!(segment = %name, dir = %dir.display(), position, "the log ends here: what follows is not in sequence");
            break;
        }
        if rewriter.is_needed() {
            let Some(batch) = scanner.verified_batch(position, &header)? else {
                let reason = format!("the batch at byte {position} changed while it was read");
                return Err(EngineError::Damaged { path, reason });
            };
            rewriter.add(position, batch)?;
        }
        let marker = marker(&*file, position, &header)?;
        indexes.append(&header, position);
        if let Some(ended) = cursor.producers.replay(&header, marker)
            && ended.aborted
        {
            indexes.append_aborted(&ended);
        }
        state.add(&header);
        cursor.expected = header.next_offset();
    }
    rewriter.finish()?;
    if state.bytes == 0 {
        return Ok(None);
    }
    indexes.finish();
    Ok(Some((state, indexes)))
}

/// The position and the base offset of a whole batch of the leader of `epoch` behind byte `end`, where the log ends at offset
/// `expected`; `None` if there is none within [`LOOKED_BEHIND_BYTES`], or if they cannot be read: nothing depends on it.
fn whole_batch_behind(file: &dyn File, end: u64, expected: Offset, epoch: u32) -> Option<(u64, Offset)> {
    let mut bytes = vec![0; LOOKED_BEHIND_BYTES];
    let read = file.read_at(&mut bytes, end).ok()?;
    bytes.truncate(read);
    let mut left = CANDIDATES_MAX;
    let whole_at = |at: usize| {
        let rest = bytes.get(at..)?;
        let header = BatchHeader::parse(rest).ok()?;
        let batch = rest.get(..header.batch_bytes)?;
        let is_its_leaders = u32::try_from(header.partition_leader_epoch) == Ok(epoch);
        if !is_its_leaders || header.base_offset < expected || left == 0 {
            return None;
        }
        left -= 1;
        check_crc(batch).ok().map(|()| (end + at as u64, header.base_offset))
    };
    (1..bytes.len().saturating_sub(HEADER_BYTES - 1)).find_map(whole_at)
}

impl Resume {
    /// Shows the batches between the last index entry and the checkpoint to the indexes: what an index interval
    /// holds, at most. `None` if they do not end where the checkpoint says, which then cannot be relied upon.
    ///
    /// # Errors
    ///
    /// [`EngineError::Damaged`] if the checkpoint is of a segment with another last batch, or what the volume fails with.
    fn shown(mut self, file: &dyn File, path: &Path, name: SegmentName) -> Result<Option<Self>, EngineError> {
        let mut end = (self.indexed_bytes, None);
        let mut last = 0;
        let mut scanner = BatchScanner::new(file, self.indexed_bytes, self.state.bytes, Check::Headers);
        while let Scanned::Batch { position, header } = scanner.next()? {
            self.indexes.append(&header, position);
            end = (position + header.batch_bytes as u64, Some(header.next_offset()));
            last = position;
        }
        if end == (self.state.bytes, Some(self.state.end_offset)) {
            check_last(file, path, last, &self.state)?;
            return Ok(Some(self));
        }
        tracing::warn!(segment = %name, position = self.state.bytes,
            "the recovery checkpoint is not at the end of a batch; scanning the segment from its beginning");
        Ok(None)
    }
}

/// What a control batch says; its CRC has been checked.
pub(crate) fn marker(
    file: &dyn File,
    position: u64,
    header: &BatchHeader,
) -> Result<Option<EndMarker>, kaas_substrate::Error> {
    if !header.is_control() || header.batch_bytes > MARKER_BATCH_BYTES_MAX {
        return Ok(None);
    }
    let mut bytes = vec![0; header.batch_bytes];
    let read = file.read_at(&mut bytes, position)?;
    bytes.truncate(read);
    Ok(read_marker(&Bytes::from(bytes)).ok().flatten())
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use kaas_substrate::{Memory, Substrate};

    use super::*;
    use crate::batch::{BatchOptions, SimpleRecord, data_batch};

    #[test]
    fn whole_batches_behind_damage_are_found_if_they_are_the_leaders() {
        let volume = Memory::new();
        let file = volume.open(Path::new("log"), OpenMode::CreateNew).unwrap();
        let mut batch =
            data_batch(&[SimpleRecord::of_value("x")], &BatchOptions::default()).unwrap().to_vec();
        batch[..8].copy_from_slice(&7_i64.to_be_bytes());
        batch[12..16].copy_from_slice(&3_i32.to_be_bytes());
        file.write_all_at(&[IoSlice::new(&[0xff; 100]), IoSlice::new(&batch)], 0).unwrap();
        let found = |expected, epoch| whole_batch_behind(&*file, 40, Offset(expected), epoch);
        assert_eq!(found(5, 3), Some((100, Offset(7))));
        assert_eq!(found(5, 4), None, "another leader's");
        assert_eq!(found(8, 3), None, "from below the log's end");
        file.write_all_at(&[IoSlice::new(b"!")], 165).unwrap();
        assert_eq!(found(5, 3), None, "damaged as well");
    }
}
