//! Carrying a plan out, as the leader that the repair has become.
//!
//! # The order, and a crash at any step
//!
//! 1. What is needed no more, or will be written anew, is copied to `quarantine/`.
//! 2. Segments that are written anew, index files, the producer snapshot, `partition.json`: each durable before the next step.
//! 3. The manifest: from here on it says what counts. Until then nothing of what counted has been changed.
//! 4. The fence: if somebody has claimed a higher epoch meanwhile, the repair ends here.
//! 5. What belongs to nobody is moved to `quarantine/`, and what is not needed any more removed.
//!
//! Each step may be done twice. A crash leaves copies, and files of an epoch without a manifest, which nobody counts;
//! the next repair does everything again.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use kaas_substrate::{OpenMode, Substrate, write_small};

use super::super::view::{View, log_path};
use super::layout::Rewritten;
use super::plan::{Plan, Reindexed};
use super::quarantine;
use crate::batch::{HEADER_BYTES, Marker};
use crate::error::EngineError;
use crate::identity::{self, PARTITION_FILE};
use crate::index::{AbortedTransaction, TxnIndex};
use crate::leadership::{Leadership, Standing};
use crate::log::index_files::write_index_files;
use crate::log::indexes::LogIndexes;
use crate::log::recovery::marker;
use crate::log::scan::{BatchScanner, Check, Scanned};
use crate::log::{SegmentFile, SegmentFileName, SegmentName};
use crate::manifest::versioned;
use crate::manifest::{CHECKPOINT, IndexFiles, IndexLengths, MANIFEST, PRODUCER_STATE, owned};
use crate::planted::{Bug, planted};
use crate::settings::LogConfig;
use crate::types::Offset;

/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// Carries out `plan` in `dir`. On return everything is durable, and the partition may be led by the next epoch. Blocks.
pub(super) fn act(
    substrate: &Arc<dyn Substrate>,
    dir: &Path,
    view: &View,
    plan: &mut Plan,
    leadership: &Leadership,
) -> Result<(), EngineError> {
    let volume = substrate.as_ref();
    // Nothing refers to what is made until the manifest does, and another repair makes it again.
    prepare(volume, dir, plan, leadership).inspect_err(|_| discard(volume, dir, plan))?;
    let version = plan.version;
    if planted(Bug::RepairRemovesFirst) {
        remove_unneeded(volume, dir, view, plan)?;
    }
    owned::write(volume, dir, MANIFEST, version, &plan.identity, &plan.manifest)?;
    if !planted(Bug::RepairWithoutFence) {
        still_leads(leadership)?;
    }
    for moved in plan.quarantine.iter().filter(|quarantined| quarantined.remove) {
        quarantine::take(volume, dir, &moved.name, leadership.epoch())?;
    }
    remove_unneeded(volume, dir, view, plan)?;
    for kind in [MANIFEST, CHECKPOINT, PRODUCER_STATE] {
        versioned::remove_below(volume, dir, kind, version)?;
    }
    leadership.collect_old_claims()?;
    Ok(volume.sync_dir(dir)?)
}

/// All that the new manifest rests on, durably.
fn prepare(
    volume: &dyn Substrate,
    dir: &Path,
    plan: &mut Plan,
    leadership: &Leadership,
) -> Result<(), EngineError> {
    quarantine::copy_all(volume, dir, &plan.quarantine, leadership.epoch())?;
    for segment in &plan.salvage.segments {
        if segment.exists && segment.source.entry.is_none() {
            // Nobody has pinned it: its leader may have died before it was durable.
            volume.make_durable(&log_path(dir, segment.source.name), u64::MAX)?;
        }
    }
    for rewritten in &plan.rewritten {
        write_segment(volume, dir, rewritten)?;
    }
    for filler in &plan.fillers {
        let file = volume.open(&log_path(dir, filler.name), OpenMode::CreateNew)?;
        file.write_all_at(&[IoSlice::new(&filler.batch)], 0)?;
        file.sync_data()?;
    }
    volume.sync_dir(dir)?;
    for reindexed in plan.reindexed.clone() {
        let files = build_indexes(volume, dir, plan, reindexed)?;
        if let Some(entry) = plan.manifest.segments.get_mut(reindexed.at) {
            entry.indexes = Some(files);
        }
    }
    if let Some(bytes) = &plan.producers {
        versioned::write_bytes(volume, dir, PRODUCER_STATE, plan.version, bytes)?;
    }
    if plan.identity_is_wrong {
        // The one name that a later leader's repair has, too.
        still_leads(leadership)?;
        let path = dir.join(PARTITION_FILE);
        write_small(volume, &path, &identity::encode(&path, &plan.identity)?)?;
    }
    Ok(())
}

/// Removes what [`prepare`] has made of this epoch, as far as that can be: on a full volume it is in the way of the next try.
fn discard(volume: &dyn Substrate, dir: &Path, plan: &Plan) {
    let made = plan.rewritten.iter().map(|rewritten| rewritten.to);
    let made = made.chain(plan.fillers.iter().map(|filler| filler.name));
    for name in made {
        for file in SegmentFile::ALL {
            let _ = volume.remove_file(&name.path(dir, file));
        }
    }
    let reindexed =
        plan.reindexed.iter().filter_map(|reindexed| plan.manifest.segments.get(reindexed.at)?.name());
    for (segment, file) in reindexed.flat_map(|name| SegmentFile::INDEXES.map(|file| (name, file))) {
        let _ = volume.remove_file(&SegmentFileName { segment, file, version: Some(plan.version) }.path(dir));
    }
    if plan.producers.is_some() {
        let _ = volume.remove_file(&dir.join(PRODUCER_STATE.file_name(plan.version)));
    }
}

/// Removes what no later leader needs, but for what is replaced by name.
fn remove_unneeded(
    volume: &dyn Substrate,
    dir: &Path,
    view: &View,
    plan: &Plan,
) -> Result<(), kaas_substrate::Error> {
    for path in plan.unneeded(dir, view) {
        match volume.remove_file(&path) {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn still_leads(leadership: &Leadership) -> Result<(), EngineError> {
    match leadership.standing() {
        Standing::Leading => Ok(()),
        Standing::Deposed { by } => Err(EngineError::Deposed { by }),
        Standing::Unknown(error) => {
            Err(EngineError::Poisoned { reason: format!("the fence cannot be read: {error}") })
        }
    }
}

/// Writes what can be read of one segment as another one. Durable on return but for its name.
fn write_segment(
    substrate: &dyn Substrate,
    dir: &Path,
    rewritten: &Rewritten,
) -> Result<(), kaas_substrate::Error> {
    let from = substrate.open(&dir.join(&rewritten.from), OpenMode::ReadUncached)?;
    let to = substrate.open(&log_path(dir, rewritten.to), OpenMode::CreateNew)?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut written = 0;
    for run in &rewritten.runs {
        let (mut at, end) = (run.position, run.position + run.bytes);
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(COPY_BYTES).min(COPY_BYTES);
            let Some(piece) = buffer.get_mut(..want) else { break };
            let read = from.read_at(piece, at)?;
            let Some(piece) = piece.get_mut(..read).filter(|piece| !piece.is_empty()) else { break };
            if run.restamped && at == run.position && piece.len() >= HEADER_BYTES {
                let epoch = run.leader_epochs.first().map_or(0, |from| from.epoch);
                stamp(piece, run.base_offset.0, epoch);
            }
            to.write_all_at(&[IoSlice::new(piece)], written)?;
            (at, written) = (at + read as u64, written + read as u64);
        }
    }
    if planted(Bug::RepairNotDurable) { Ok(()) } else { to.sync_data() }
}

/// Puts a base offset and a leader epoch into a batch's header.
fn stamp(batch: &mut [u8], base_offset: i64, epoch: u32) {
    let fields =
        base_offset.to_be_bytes().into_iter().zip(0..).chain(epoch.to_be_bytes().into_iter().zip(12..));
    for (byte, at) in fields {
        if let Some(place) = batch.get_mut::<usize>(at) {
            *place = byte;
        }
    }
}

/// Builds the index files of the segment at a place of the new manifest from its log.
fn build_indexes(
    substrate: &dyn Substrate,
    dir: &Path,
    plan: &Plan,
    reindexed: Reindexed,
) -> Result<IndexFiles, EngineError> {
    let entry = plan.manifest.segments.get(reindexed.at);
    let Some((entry, name)) = entry.and_then(|entry| Some((entry, entry.name()?))) else {
        return Ok(IndexFiles::default());
    };
    let SegmentName { base_offset, .. } = name;
    let path = name.path(dir, SegmentFile::Log);
    let file = substrate.open(&path, OpenMode::ReadUncached)?;
    let mut indexes = LogIndexes::new(base_offset, LogConfig::default().index_interval_bytes);
    let known = reindexed.txn_index.and_then(|(from, bytes)| txn_index(substrate, dir, from, bytes));
    let known: BTreeMap<_, _> =
        known.iter().flat_map(TxnIndex::iter).map(|aborted| (aborted.last_offset, aborted)).collect();
    let replayed = &plan.salvage.aborted;
    let replayed = |marker: Offset| {
        let found = replayed.binary_search_by_key(&marker, |ended| ended.last_offset).ok()?;
        replayed.get(found).map(AbortedTransaction::from)
    };
    let mut scanner = BatchScanner::new(&*file, 0, entry.bytes, Check::Headers);
    loop {
        let (position, header) = match scanner.next()? {
            Scanned::Batch { position, header } => (position, header),
            Scanned::End => break,
            Scanned::Torn { position, reason } => {
                return Err(EngineError::Damaged { path, reason: format!("at byte {position}: {reason}") });
            }
        };
        indexes.append(&header, position);
        let aborts = marker(&*file, position, &header)?.is_some_and(|marker| marker.marker == Marker::Abort);
        if aborts {
            // What was in order knows of transactions that began where nothing can be read any more.
            let known = known.get(&header.base_offset).copied();
            let known = known.filter(|aborted| Some(aborted.producer_id) == header.producer_id);
            if let Some(aborted) = known.or_else(|| replayed(header.base_offset)) {
                indexes.append_aborted_transaction(&aborted);
            }
        }
    }
    indexes.finish();
    // Another leader's segment keeps the index files that it has until the manifest names these.
    let version = (name.epoch != plan.version.epoch).then_some(plan.version);
    let none = IndexLengths::default();
    Ok(write_index_files(substrate, dir, name, version, &indexes.images(), &none)?)
}

/// A transaction index that was found in order.
fn txn_index(substrate: &dyn Substrate, dir: &Path, name: SegmentFileName, bytes: u64) -> Option<TxnIndex> {
    if bytes == 0 {
        return Some(TxnIndex::new());
    }
    let file = substrate.open(&name.path(dir), OpenMode::ReadUncached).ok()?;
    let mut image = vec![0; usize::try_from(bytes.min(file.length().ok()?)).ok()?];
    let read = file.read_at(&mut image, 0).ok()?;
    TxnIndex::from_bytes(name.segment.base_offset, image.get(..read)?).ok()
}
