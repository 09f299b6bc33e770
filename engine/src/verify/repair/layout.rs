//! How the batches that can be read become segments of the new manifest: what stays in its file, and what is written anew.

use std::ffi::OsString;

use bytes::Bytes;

use super::salvage::{Run, Salvage, Salvaged, Source};
use crate::batch::{StampedHeader, empty_batch};
use crate::log::SegmentName;
use crate::manifest::{BatchCrcs, IndexFiles, LeaderEpoch, SegmentEntry};
use crate::types::{Epoch, Offset, Timestamp};

/// A segment that is written anew, from what of another one can be read.
#[derive(Debug)]
pub(super) struct Rewritten {
    /// The file they stand in, by its name in the directory.
    pub(super) from: OsString,
    pub(super) to: SegmentName,
    pub(super) runs: Vec<Run>,
}

/// Most segments that take up what is lost at the end, of 2^31 offsets each. No log is lost that far: it is the manifest
/// that is wrong.
const FILLERS_MAX: usize = 64;

/// Offsets that one batch takes up at most: the last one's distance from the first is a positive `i32`.
const BATCH_OFFSETS_MAX: i64 = 1 << 31;

/// A segment that takes up offsets that are lost at the end of the log, with one empty batch, as compaction would
/// leave one: readers come past them, and do not wait for what is gone.
#[derive(Debug)]
pub(super) struct Filler {
    pub(super) name: SegmentName,
    /// Behind the last of the offsets.
    pub(super) end: Offset,
    pub(super) batch: Bytes,
}

/// The segments of the new manifest.
#[derive(Debug)]
pub(super) struct Layout {
    /// In order.
    pub(super) entries: Vec<SegmentEntry>,
    /// For each of them the segment that its batches stand in now.
    pub(super) from: Vec<SegmentName>,
    /// Those of them that are written anew.
    pub(super) rewritten: Vec<Rewritten>,
    /// The last of them, if offsets are lost at the end.
    pub(super) fillers: Vec<Filler>,
}

/// Lays out what can be read for a manifest of `epoch`. If `adopts` is false, what no manifest has pinned is written anew.
pub(super) fn lay_out(salvage: &Salvage, epoch: Epoch, adopts: bool) -> Layout {
    let lost_from =
        salvage.segments.iter().flat_map(|salvaged| &salvaged.runs).next_back().map(|run| run.end_offset);
    let fillers = lost_from.map_or_else(Vec::new, |from| fill(from, salvage.next_offset, epoch));
    let placed = place(salvage, adopts, !fillers.is_empty());
    let mut layout =
        Layout { entries: Vec::new(), from: Vec::new(), rewritten: Vec::new(), fillers: Vec::new() };
    let mut generation = 0;
    for here in &placed {
        let Source { name, file, .. } = &here.salvaged.source;
        let name = *name;
        if let Some(run) = here.in_place {
            let mut kept = entry(name, &[run]);
            // Of index files that are in order, and go as far, nothing is to be done.
            let before = here.salvaged.source.entry.as_ref();
            kept.indexes =
                before.filter(|before| before.bytes == kept.bytes).and_then(|before| before.indexes);
            layout.entries.push(kept);
            layout.from.push(name);
        }
        if let Some(first) = here.anew.first() {
            generation += 1;
            // Where nothing of the segment stays it takes over its beginning, too: no earlier leader's log goes on there.
            let base_offset = if here.in_place.is_some() { first.base_offset } else { name.base_offset };
            let before = layout.entries.last().map_or(Offset::ZERO, |before| Offset(before.end_offset));
            let to = SegmentName {
                epoch,
                base_offset: base_offset.max(before).min(first.base_offset),
                generation,
            };
            layout.entries.push(entry(to, &here.anew));
            layout.from.push(name);
            let runs = here.anew.iter().map(|run| (*run).clone()).collect();
            let from = file.clone().unwrap_or_default();
            layout.rewritten.push(Rewritten { from, to, runs });
        }
    }
    for (mut filler, mut filled) in fillers {
        generation += 1;
        filler.name.generation = generation;
        filled.generation = generation;
        layout.entries.push(filled);
        layout.from.push(filler.name);
        layout.fillers.push(filler);
    }
    layout
}

/// What takes up the offsets from `from` to `to`, if there are any, and what the manifest says of it. Nothing if there are more than
/// any log loses: then the log ends in front of them, and readers wait there for the next record.
fn fill(from: Offset, to: Offset, epoch: Epoch) -> Vec<(Filler, SegmentEntry)> {
    let mut fillers = Vec::new();
    let mut next = from;
    while next < to {
        let end = next.plus(BATCH_OFFSETS_MAX).min(to);
        match filler(next, end, epoch) {
            Some(filler) if fillers.len() < FILLERS_MAX => fillers.push(filler),
            _ => return Vec::new(),
        }
        next = end;
    }
    fillers
}

/// One segment for these offsets, at most [`BATCH_OFFSETS_MAX`].
fn filler(from: Offset, to: Offset, epoch: Epoch) -> Option<(Filler, SegmentEntry)> {
    let batch = empty_batch(from, to).ok()?;
    let stamped = StampedHeader::new(&batch, from, epoch).ok()?;
    let name = SegmentName { epoch, base_offset: from, generation: 1 };
    let mut batch_crcs = BatchCrcs::default();
    batch_crcs.add(0, &stamped.header().ok()?);
    let filled = SegmentEntry {
        end_offset: to.0,
        bytes: batch.len() as u64,
        batch_crcs,
        indexes: Some(IndexFiles::default()),
        leader_epochs: vec![LeaderEpoch { epoch: epoch.get(), start_offset: from.0 }],
        ..entry(name, &[])
    };
    Some((Filler { name, end: to, batch: Bytes::copy_from_slice(stamped.bytes()) }, filled))
}

/// What of a source segment stays where it is, and what is written anew.
struct Placed<'a> {
    salvaged: &'a Salvaged,
    in_place: Option<&'a Run>,
    anew: Vec<&'a Run>,
}

/// Decides which batches stay where they are: the first ones of their file, if offsets are missing behind them
/// only in front of a rewritten segment. Everything else is written anew.
fn place(salvage: &Salvage, adopts: bool, has_filler: bool) -> Vec<Placed<'_>> {
    let mut end = Offset(i64::MIN);
    let mut placed: Vec<_> = salvage
        .segments
        .iter()
        .filter(|salvaged| !salvaged.runs.is_empty())
        .map(|salvaged| {
            let stays = |run: &&Run| {
                let at_base = run.base_offset == salvaged.source.name.base_offset
                    || salvaged.source.name.is_rewritten();
                let pinned = salvaged.source.entry.is_some() || adopts;
                let in_own_file = salvaged.source.has_own_file();
                run.position == 0 && !run.restamped && at_base && pinned && in_own_file
            };
            // A segment that was renamed may have a name below where its batches begin, and the one before it end.
            let overlaps = salvaged.source.name.base_offset < end;
            end = salvaged.runs.last().map_or(end, |run| run.end_offset);
            let in_place = salvaged.runs.first().filter(stays).filter(|_| !overlaps);
            let anew = salvaged.runs.iter().skip(usize::from(in_place.is_some())).collect();
            Placed { salvaged, in_place, anew }
        })
        .collect();
    // From the last one on: whether something follows without a gap depends on what follows.
    let mut following: Option<(Offset, bool)> = Some((salvage.next_offset, has_filler));
    let mut at = placed.len();
    while let Some(index) = at.checked_sub(1) {
        at = index;
        let Some(here) = placed.get_mut(index) else { break };
        let own = here.salvaged.source.name.is_rewritten();
        if let Some(first) = here.anew.first() {
            following = Some((first.base_offset, true));
        }
        if let Some(run) = here.in_place {
            let may_follow =
                following.is_none_or(|(offset, rewritten)| own || rewritten || offset == run.end_offset);
            if may_follow {
                following = Some((here.salvaged.source.name.base_offset, own));
            } else {
                here.in_place = None;
                here.anew.insert(0, run);
                following = Some((run.base_offset, true));
            }
        }
    }
    placed
}

/// What the manifest says of a segment of these batches.
fn entry(name: SegmentName, runs: &[&Run]) -> SegmentEntry {
    let mut entry = SegmentEntry {
        epoch: name.epoch.get(),
        base_offset: name.base_offset.0,
        generation: name.generation,
        end_offset: name.base_offset.0,
        bytes: 0,
        max_timestamp: Timestamp::NONE.0,
        offset_of_max_timestamp: name.base_offset.0,
        batch_crcs: BatchCrcs::default(),
        indexes: None,
        leader_epochs: Vec::new(),
    };
    for run in runs {
        entry.batch_crcs.append(entry.bytes, &run.batch_crcs, run.batches);
        entry.end_offset = run.end_offset.0;
        entry.bytes += run.bytes;
        if run.max_timestamp.0 > entry.max_timestamp {
            entry.max_timestamp = run.max_timestamp.0;
            entry.offset_of_max_timestamp = run.offset_of_max_timestamp.0;
        }
        for from in run.leader_epochs.iter().filter(|_| name.is_rewritten()) {
            let start_offset =
                if entry.leader_epochs.is_empty() { name.base_offset.0 } else { from.start_offset };
            if entry.leader_epochs.last().is_none_or(|last| last.epoch < from.epoch) {
                entry.leader_epochs.push(LeaderEpoch { epoch: from.epoch, start_offset });
            }
        }
    }
    entry
}
