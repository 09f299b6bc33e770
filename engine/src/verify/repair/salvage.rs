//! What can still be read of a partition's log: every whole, undamaged batch that counts, in the order of the offsets.
//!
//! Reads everything, and writes nothing. Where the manifest is there it says which segments count, and up to where.
//! Where it is not, the segments' names do: a leader's records go as far as the next segment of its own, or the first
//! one of a later leader.
//!
//! Base offset and leader epoch of a batch are outside of its CRC. Where they are wrong and the batches around leave no
//! choice, the batch is kept, to be stamped as it was; where they leave one, it is not (see [`super::placing`]).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use kaas_substrate::OpenMode;

use super::super::Context;
use super::super::view::{View, log_path};
use super::super::walk::{Epochs, Step, Walk, Wanted};
use super::reading::Reader;
use crate::log::{SegmentFile, SegmentName};
use crate::manifest::{BatchCrcs, LeaderEpoch, Manifest, SegmentEntry};
use crate::producer_state::{CompletedTransaction, ProducerStates};
use crate::types::{Epoch, Offset, Timestamp};

/// A segment that counts.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) name: SegmentName,
    /// The file in which its batches stand, by its name in the directory; `None`: what has its name is another segment.
    pub(super) file: Option<OsString>,
    /// Bytes that count at most.
    pub(super) bytes: u64,
    /// The offset that its records end below.
    pub(super) limit: Offset,
    /// The offset that they should end at, if that is known.
    pub(super) should_end: Option<Offset>,
    /// What the manifest says of it.
    pub(super) entry: Option<SegmentEntry>,
    /// Whether offsets may be missing in front of it.
    pub(super) gap_before: bool,
    /// It has no record: an earlier repair, whose manifest is not there, has put it in the place of offsets that are lost, up to
    /// this one.
    pub(super) fills_up_to: Option<Offset>,
}

impl Source {
    /// Whether its batches stand in the file that has its name.
    pub(super) fn has_own_file(&self) -> bool {
        self.file.as_ref().is_some_and(|file| *file == log_name(self.name))
    }
}

/// Batches that stand one behind the other in a segment.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) position: u64,
    pub(super) bytes: u64,
    pub(super) base_offset: Offset,
    pub(super) end_offset: Offset,
    pub(super) max_timestamp: Timestamp,
    pub(super) offset_of_max_timestamp: Offset,
    /// How many batches.
    pub(super) batches: usize,
    pub(super) batch_crcs: BatchCrcs,
    /// The leader epochs of its batches, ascending.
    pub(super) leader_epochs: Vec<LeaderEpoch>,
    /// Its one batch has another base offset or leader epoch in the file than it must have.
    pub(super) restamped: bool,
}

/// What of a segment can be read, and what cannot.
#[derive(Debug, Clone)]
pub(super) struct Salvaged {
    pub(super) source: Source,
    pub(super) runs: Vec<Run>,
    /// Bytes that cannot be read as batches that belong here: from, to.
    pub(super) damaged: Vec<(u64, u64)>,
    /// The file is there.
    pub(super) exists: bool,
}

/// Offsets that counted and are gone, and why.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Lost {
    /// The first one.
    pub from: i64,
    /// The one behind the last one.
    pub to: i64,
    /// Why.
    pub reason: String,
}

impl Lost {
    /// How many.
    pub fn offsets(&self) -> u64 {
        u64::try_from(self.to.saturating_sub(self.from)).unwrap_or(0)
    }

    /// "offset 7", "offsets 7 to 9".
    pub fn range(&self) -> String {
        match self.offsets() {
            1 => format!("offset {}", self.from),
            _ => format!("offsets {} to {}", self.from, self.to.saturating_sub(1)),
        }
    }
}

/// A log as far as it can be read.
#[derive(Debug)]
pub(super) struct Salvage {
    pub(super) segments: Vec<Salvaged>,
    /// Where the next record goes: never at an offset that may have been another's.
    pub(super) next_offset: Offset,
    pub(super) lost: Vec<Lost>,
    pub(super) producers: ProducerStates,
    /// Up to where the producers are known from a snapshot; `None`: from the batches alone.
    pub(super) producers_from: Option<Offset>,
    /// Transactions that markers in the log have aborted.
    pub(super) aborted: Vec<CompletedTransaction>,
}

/// The producers as of an offset, from a file that is in order.
#[derive(Debug)]
pub(super) struct KnownProducers {
    pub(super) offset: Offset,
    pub(super) states: ProducerStates,
}

/// The segments that count, according to the manifest if there is one that can be relied upon. Blocks.
pub(super) fn sources(
    context: &Context<'_>,
    dir: &Path,
    view: &View,
    manifest: Option<&Manifest>,
) -> Result<Vec<Source>, kaas_substrate::Error> {
    let mut sources = match manifest {
        Some(manifest) => of_manifest(view, manifest, &strays(context, dir, view, manifest)?),
        None => of_names(view.names.logs.iter().copied()),
    };
    sources.sort_by_key(|source| (source.name.base_offset, source.name.is_rewritten()));
    Ok(sources)
}

/// Segments that are named after a later leader than the manifest's, begin below what it counts, and have no batch of that leader at
/// their beginning: empty files, copies. (If the manifest was written late by a leader that was deposed, those of its successor
/// begin below what it counts, too.)
fn strays(
    context: &Context<'_>,
    dir: &Path,
    view: &View,
    manifest: &Manifest,
) -> Result<BTreeSet<SegmentName>, kaas_substrate::Error> {
    let mut strays = BTreeSet::new();
    let contradicts = |name: &&SegmentName| {
        !name.is_rewritten() && name.epoch.get() > manifest.epoch && name.base_offset.0 < manifest.next_offset
    };
    for name in view.names.logs.iter().filter(contradicts) {
        let file = context.substrate.open(&log_path(dir, *name), OpenMode::ReadUncached)?;
        let first = Walk::new(&file, file.length()?, &context.progress.bytes).step()?;
        let is_its_leaders = matches!(first, Step::Batch { header, .. }
            if header.base_offset == name.base_offset
                && Epoch::from_wire(header.partition_leader_epoch) == Some(name.epoch));
        if !is_its_leaders {
            strays.insert(*name);
        }
    }
    Ok(strays)
}

/// The name of a segment's log.
pub(super) fn log_name(name: SegmentName) -> OsString {
    name.path(Path::new(""), SegmentFile::Log).into_os_string()
}

fn of_manifest(view: &View, manifest: &Manifest, strays: &BTreeSet<SegmentName>) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut previous: Option<&SegmentEntry> = None;
    for entry in &manifest.segments {
        let Some(name) = entry.name() else { continue };
        let gap_before =
            previous.replace(entry).map_or(name.is_rewritten(), |previous| previous.may_precede(entry));
        let end = Offset(entry.end_offset);
        let (bytes, entry) = (entry.bytes, Some(entry.clone()));
        let file = Some(log_name(name));
        sources.push(Source {
            name,
            file,
            bytes,
            limit: end,
            should_end: Some(end),
            entry,
            gap_before,
            fills_up_to: None,
        });
    }
    let pinned: BTreeSet<_> = sources.iter().map(|source| source.name).collect();
    let own = |name: &SegmentName| {
        name.epoch.get() == manifest.epoch && !manifest.released && name.base_offset.0 >= manifest.next_offset
    };
    // A later leader's segments without its manifest: it had inherited all that is below them.
    let counts = |name: &SegmentName| {
        !pinned.contains(name)
            && !strays.contains(name)
            && !name.is_rewritten()
            && (own(name) || name.epoch.get() > manifest.epoch)
    };
    sources.extend(of_names(view.names.logs.iter().copied().filter(counts)));
    sources
}

/// By their names alone: which offsets each segment may hold.
fn of_names(names: impl Iterator<Item = SegmentName>) -> Vec<Source> {
    let names: Vec<_> = names.collect();
    // What was appended has every record; what was rewritten counts where that is gone.
    let rank = |name: &SegmentName| (!name.is_rewritten(), name.epoch, name.generation);
    let source = |name: &SegmentName| {
        let over = |other: &&SegmentName| {
            let later = rank(other) > rank(name) || (other.epoch == name.epoch && !name.is_rewritten());
            later && rank(other).0 >= rank(name).0 && other.base_offset > name.base_offset
        };
        let above = |other: &SegmentName| !other.is_rewritten() && other.epoch > name.epoch;
        // A later leader began below: this one's records were never anybody else's.
        let dead = names.iter().any(|other| above(other) && other.base_offset <= name.base_offset);
        let next = names.iter().filter(over).map(|other| other.base_offset).min();
        (!dead || name.is_rewritten()).then(|| Source {
            name: *name,
            file: Some(log_name(*name)),
            bytes: u64::MAX,
            limit: next.unwrap_or(Offset(i64::MAX)),
            should_end: next,
            entry: None,
            gap_before: name.is_rewritten(),
            fills_up_to: None,
        })
    };
    names.iter().filter_map(source).collect()
}

/// Reads what counts. `known` are producers as of offsets; `log_start` is where the log begins, if that is known; `floor` is
/// an offset that was given out for certain. Blocks for as long as reading takes.
pub(super) fn salvage(
    context: &Context<'_>,
    dir: &Path,
    sources: Vec<Source>,
    known: Vec<KnownProducers>,
    log_start: Option<Offset>,
    floor: Offset,
) -> Result<Salvage, kaas_substrate::Error> {
    let first = sources.first().map(|source| source.name.base_offset);
    let start = first.into_iter().chain(log_start).min().unwrap_or(floor);
    let sources = bounded(context, dir, sources)?;
    let mut reader = Reader::new(context, dir, start, known);
    let mut segments = Vec::with_capacity(sources.len());
    let mut following = sources.iter().skip(1).map(|source| source.name).collect::<Vec<_>>().into_iter();
    for source in sources {
        segments.push(reader.segment(source, following.next())?);
    }
    Ok(reader.finish(segments, floor))
}

/// Where only names say what counts, a rewritten segment may be all that is left of the appended ones that it was made from. A record
/// of a later leader in it says that an earlier leader's log ended there: what that one has appended behind it never counted.
fn bounded(
    context: &Context<'_>,
    dir: &Path,
    mut sources: Vec<Source>,
) -> Result<Vec<Source>, kaas_substrate::Error> {
    let mut begun = Vec::new();
    for source in sources.iter_mut().filter(|source| source.entry.is_none() && source.name.is_rewritten()) {
        let file = match context.substrate.open(&log_path(dir, source.name), OpenMode::ReadUncached) {
            Err(error) if error.is_not_found() => continue,
            file => file?,
        };
        let length = file.length()?;
        let mut walk = Walk::new(&file, length, &context.progress.bytes);
        let first = match walk.step()? {
            Step::Batch { position, header } => Some((position, header)),
            Step::Damaged { position, .. } => {
                let epochs = Epochs::UpTo(source.name.epoch);
                walk.find(
                    position + 1,
                    &Wanted { epochs, from: source.name.base_offset, end: Offset(i64::MAX) },
                )?
            }
            Step::End => None,
        };
        let Some((position, header)) = first else { continue };
        let is_alone = position == 0
            && header.batch_bytes as u64 == length
            && header.base_offset == source.name.base_offset;
        if is_alone && header.record_count == 0 && header.producer_id.is_none() {
            source.fills_up_to = Some(header.next_offset());
        } else if let Some(epoch) = Epoch::from_wire(header.partition_leader_epoch) {
            begun.push((source.name.base_offset, header.base_offset, epoch));
        }
    }
    for source in sources.iter_mut().filter(|source| source.entry.is_none() && !source.name.is_rewritten()) {
        let SegmentName { base_offset, epoch, .. } = source.name;
        // One that begins where this one does has nothing in front if its first record stands there.
        let later = begun.iter().filter(|(base, first, by)| {
            *by > epoch && (*base > base_offset || *base == base_offset && first == base)
        });
        if let Some(end) = later.map(|(base, ..)| *base).min().filter(|end| *end < source.limit) {
            (source.limit, source.should_end) = (end, Some(end));
        }
    }
    // Whoever led after such a repair, and began in front of what it found lost, had found it.
    let appended: Vec<_> =
        sources.iter().map(|source| source.name).filter(|name| !name.is_rewritten()).collect();
    sources.retain(|source| {
        let found = |name: &SegmentName| {
            name.epoch > source.name.epoch && name.base_offset <= source.name.base_offset
        };
        source.fills_up_to.is_none() || !appended.iter().any(found)
    });
    Ok(sources)
}

/// The leader epochs that a segment's batches can have.
pub(super) fn epochs(source: &Source) -> Vec<Epoch> {
    let listed = source.entry.iter().flat_map(|entry| &entry.leader_epochs);
    let listed: Vec<_> = listed.filter_map(|from| Epoch::new(from.epoch)).collect();
    if listed.is_empty() { vec![source.name.epoch] } else { listed }
}

/// The leader epoch of a batch at `offset`; `None` if that is not known.
pub(super) fn epoch_at(source: &Source, offset: Offset) -> Option<Epoch> {
    if !source.name.is_rewritten() {
        return Some(source.name.epoch);
    }
    let listed = source.entry.iter().flat_map(|entry| &entry.leader_epochs);
    let begun = listed.take_while(|from| from.start_offset <= offset.0).last();
    begun.and_then(|from| Epoch::new(from.epoch))
}
