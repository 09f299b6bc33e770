//! What can still be read of a partition's log: every whole, undamaged batch that counts, in the order of the offsets.
//!
//! Reads everything, and writes nothing. Where the manifest is there it says which segments count, and up to where.
//! Where it is not, the segments' names do: a leader's records go as far as the next segment of its own, or the first
//! one of a later leader.
//!
//! Base offset and leader epoch of a batch are outside of its CRC. Where they are wrong and the batches around leave no
//! choice, the batch is kept, to be stamped as it was; where they leave one, it is not.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use kaas_substrate::OpenMode;

use super::super::Context;
use super::super::view::{View, log_path};
use super::super::walk::{Step, Walk, Wanted};
use crate::batch::BatchHeader;
use crate::log::recovery::marker;
use crate::log::{SegmentFile, SegmentName};
use crate::manifest::{BatchCrcs, LeaderEpoch, Manifest, SegmentEntry};
use crate::planted::{Bug, planted};
use crate::producer_state::{CompletedTransaction, ProducerStates};
use crate::types::{Epoch, Offset, Timestamp};

/// A segment that counts.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) name: SegmentName,
    /// The file in which its batches stand, by its name in the directory; `None`: what has its name is another segment.
    pub(super) file: Option<OsString>,
    /// Bytes that count at most.
    bytes: u64,
    /// The offset that its records end below.
    limit: Offset,
    /// The offset that they should end at, if that is known.
    pub(super) should_end: Option<Offset>,
    /// What the manifest says of it.
    pub(super) entry: Option<SegmentEntry>,
    /// Whether offsets may be missing in front of it.
    gap_before: bool,
}

impl Source {
    /// Whether its batches stand in the file that has its name.
    pub(super) fn is_at_home(&self) -> bool {
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

/// The segments that count, according to the manifest if there is one that can be relied upon.
pub(super) fn sources(view: &View, manifest: Option<&Manifest>) -> Vec<Source> {
    let mut sources = match manifest {
        Some(manifest) => of_manifest(view, manifest),
        None => of_names(view.names.logs.iter().copied()),
    };
    sources.sort_by_key(|source| (source.name.base_offset, source.name.is_rewritten()));
    sources
}

/// The name of a segment's log.
pub(super) fn log_name(name: SegmentName) -> OsString {
    name.path(Path::new(""), SegmentFile::Log).into_os_string()
}

fn of_manifest(view: &View, manifest: &Manifest) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut previous: Option<&SegmentEntry> = None;
    for entry in &manifest.segments {
        let Some(name) = entry.name() else { continue };
        let gap_before =
            previous.replace(entry).map_or(name.is_rewritten(), |previous| previous.may_precede(entry));
        let end = Offset(entry.end_offset);
        let (bytes, entry) = (entry.bytes, Some(entry.clone()));
        let file = Some(log_name(name));
        sources.push(Source { name, file, bytes, limit: end, should_end: Some(end), entry, gap_before });
    }
    let pinned: BTreeSet<_> = sources.iter().map(|source| source.name).collect();
    let own = |name: &SegmentName| {
        name.epoch.get() == manifest.epoch && !manifest.released && name.base_offset.0 >= manifest.next_offset
    };
    // A later leader's segments without its manifest: it had inherited all that is below them.
    let counts = |name: &SegmentName| {
        !pinned.contains(name) && !name.is_rewritten() && (own(name) || name.epoch.get() > manifest.epoch)
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
    let mut reader = Reader {
        context,
        dir,
        next: start,
        last_epoch: 0,
        lost: Vec::new(),
        producers: ProducerStates::new(),
        known,
        producers_from: None,
        aborted: Vec::new(),
    };
    let sources = bounded(context, dir, sources)?;
    let mut segments = Vec::with_capacity(sources.len());
    let mut following = sources.iter().skip(1).map(|source| source.name).collect::<Vec<_>>().into_iter();
    for source in sources {
        segments.push(reader.segment(source, following.next())?);
    }
    if reader.next < floor {
        reader.lose(floor, "they were committed, and no file has them");
    }
    let next_offset = reader.next;
    reader.adopt(next_offset);
    let Reader { lost, producers, producers_from, aborted, .. } = reader;
    Ok(Salvage { segments, next_offset, lost, producers, producers_from, aborted })
}

/// Where only names say what counts, a rewritten segment may be all that is left of the appended ones that it was made from. A record
/// of a later leader in it says that an earlier leader's log ended there: what that one has appended behind it never counted.
fn bounded(
    context: &Context<'_>,
    dir: &Path,
    mut sources: Vec<Source>,
) -> Result<Vec<Source>, kaas_substrate::Error> {
    let mut begun = Vec::new();
    for source in sources.iter().filter(|source| source.entry.is_none() && source.name.is_rewritten()) {
        let file = match context.substrate.open(&log_path(dir, source.name), OpenMode::ReadUncached) {
            Err(error) if error.is_not_found() => continue,
            file => file?,
        };
        let first = Walk::new(&file, file.length()?, &context.progress.bytes).step()?;
        if let Step::Batch { header, .. } = first
            && let Some(epoch) = Epoch::from_wire(header.partition_leader_epoch)
        {
            begun.push((source.name.base_offset, epoch));
        }
    }
    for source in sources.iter_mut().filter(|source| source.entry.is_none() && !source.name.is_rewritten()) {
        let SegmentName { base_offset, epoch, .. } = source.name;
        let later = begun.iter().filter(|(base, first)| *base > base_offset && *first > epoch);
        if let Some(end) = later.map(|(base, _)| *base).min().filter(|end| *end < source.limit) {
            (source.limit, source.should_end) = (end, Some(end));
        }
    }
    Ok(sources)
}

struct Reader<'a> {
    context: &'a Context<'a>,
    dir: &'a Path,
    /// The offset behind what was read, or lost.
    next: Offset,
    last_epoch: u32,
    lost: Vec<Lost>,
    producers: ProducerStates,
    known: Vec<KnownProducers>,
    producers_from: Option<Offset>,
    aborted: Vec<CompletedTransaction>,
}

impl Reader<'_> {
    /// The offsets up to `to` are gone.
    fn lose(&mut self, to: Offset, reason: &str) {
        if to > self.next {
            self.lost.push(Lost { from: self.next.0, to: to.0, reason: reason.to_owned() });
            self.next = to;
        }
    }

    /// Takes over what is known of the producers at or before `offset`.
    fn adopt(&mut self, offset: Offset) {
        self.known.sort_by_key(|known| known.offset);
        let due = self.known.partition_point(|known| known.offset <= offset);
        if let Some(known) = self.known.drain(..due).next_back()
            && known.offset >= self.producers.end_offset()
        {
            self.producers = known.states;
            self.producers_from = Some(known.offset);
        }
    }

    /// Reads a segment; `following` is the one behind it.
    fn segment(
        &mut self,
        source: Source,
        following: Option<SegmentName>,
    ) -> Result<Salvaged, kaas_substrate::Error> {
        let name = source.name;
        if source.gap_before {
            self.next = self.next.max(name.base_offset);
        } else {
            self.lose(name.base_offset, "the segment that had them is gone");
        }
        let path = source.file.as_ref().map(|file| self.dir.join(file));
        let mut salvaged = Salvaged { source, runs: Vec::new(), damaged: Vec::new(), exists: true };
        match path.map(|path| self.context.substrate.open(&path, OpenMode::ReadUncached)) {
            Some(Ok(file)) => self.batches(&file, &mut salvaged)?,
            Some(Err(error)) if error.is_not_found() => salvaged.exists = false,
            Some(Err(error)) => return Err(error),
            None => {}
        }
        // What is left of it, as far as it was appended elsewhere, may be in a rewritten one, and is lost only behind that.
        let elsewhere = following.filter(|next| salvaged.source.entry.is_none() && next.is_rewritten());
        let end = salvaged.source.should_end;
        if let Some(end) = end.filter(|end| elsewhere.is_none_or(|next| next.base_offset >= *end)) {
            let reason = if salvaged.source.file.is_none() {
                format!("what is there is another segment than was written as {name}.log")
            } else if salvaged.exists {
                format!("they cannot be read in {name}.log")
            } else {
                format!("the file is gone: {name}.log")
            };
            self.lose(end, &reason);
        }
        Ok(salvaged)
    }

    fn batches(
        &mut self,
        file: &Arc<dyn kaas_substrate::File>,
        salvaged: &mut Salvaged,
    ) -> Result<(), kaas_substrate::Error> {
        let source = salvaged.source.clone();
        let end = file.length()?.min(source.bytes);
        let mut walk = Walk::new(file, end, &self.context.progress.bytes);
        let epochs = epochs(&source);
        loop {
            let position = match walk.step()? {
                Step::End => return Ok(()),
                Step::Batch { position, header } => {
                    let following = walk.peek()?;
                    if let Some((taken, restamped)) = self.place(&source, &header, following.as_ref()) {
                        if taken.base_offset > self.next && !source.name.is_rewritten() {
                            self.lose(taken.base_offset, &format!("they are not in {}.log", source.name));
                        }
                        self.take(&**file, position, &taken, restamped, salvaged)?;
                        continue;
                    }
                    // It belongs somewhere else, and so may what follows; the next one that fits goes on.
                    position
                }
                Step::Damaged { position, .. } => position,
            };
            if planted(Bug::RepairStopsAtDamage) {
                salvaged.damaged.push((position, end));
                return Ok(());
            }
            let wanted = Wanted { epochs: &epochs, from: self.next, end: source.limit };
            let found = walk.find(position + 1, &wanted)?;
            let to = found.map_or(end, |(at, _)| at);
            salvaged.damaged.push((position, to));
            let Some((_, header)) = found else { return Ok(()) };
            // Of a compacted segment these are more than there were: offsets may have been missing.
            let at_most = if source.name.is_rewritten() { "at most: " } else { "" };
            let reason = format!("{at_most}bytes {position} to {to} of {}.log cannot be read", source.name);
            self.lose(header.base_offset, &reason);
        }
    }

    /// The batch as it must be stamped to stand next, and whether that is another stamp; `None` if it does not belong.
    fn place(
        &self,
        source: &Source,
        header: &BatchHeader,
        following: Option<&BatchHeader>,
    ) -> Option<(BatchHeader, bool)> {
        let found = header.base_offset;
        let fits =
            |header: &BatchHeader| header.base_offset >= self.next && header.next_offset() <= source.limit;
        let epoch = Epoch::from_wire(header.partition_leader_epoch);
        let right_epoch = epoch.is_some_and(|epoch| {
            let said = epoch_at(source, found);
            epoch.get() >= self.last_epoch && said.is_none_or(|said| said == epoch)
        });
        if source.name.is_rewritten() {
            if fits(header) && right_epoch {
                return Some((*header, false));
            }
            // Another epoch than the manifest says of this offset, which is the right one: what stands around it says so.
            let said = epoch_at(source, found).filter(|said| said.get() >= self.last_epoch);
            let follows = following.is_some_and(|following| following.base_offset == header.next_offset());
            let in_place = fits(header) && (found == self.next || follows);
            let stamped = |said: Epoch| BatchHeader { partition_leader_epoch: said.to_wire(), ..*header };
            return said.filter(|_| in_place).map(|said| (stamped(said), true));
        }
        let stamped = BatchHeader {
            base_offset: self.next,
            partition_leader_epoch: source.name.epoch.to_wire(),
            ..*header
        };
        // Whatever stands behind it says where it ends, unless that is out of place too.
        let end = following.map(|following| following.base_offset).or(source.should_end);
        if found == self.next {
            return fits(&stamped).then_some((stamped, !right_epoch));
        }
        // What a leader appends stands one behind the other, so the last one has the offset that its place gives it.
        if end.is_none_or(|end| end == stamped.next_offset()) && fits(&stamped) {
            return Some((stamped, true));
        }
        let follows = end == Some(header.next_offset());
        (fits(header) && right_epoch && follows).then_some((*header, false))
    }

    fn take(
        &mut self,
        file: &dyn kaas_substrate::File,
        position: u64,
        header: &BatchHeader,
        restamped: bool,
        salvaged: &mut Salvaged,
    ) -> Result<(), kaas_substrate::Error> {
        // Only in a rewritten segment may offsets be missing.
        let gaps = salvaged.source.name.is_rewritten();
        let runs = &mut salvaged.runs;
        self.adopt(header.base_offset);
        let marker = marker(file, position, header)?;
        if let Some(ended) = self.producers.replay(header, marker) {
            self.producers.on_high_watermark(header.next_offset());
            if ended.aborted {
                self.aborted.push(ended);
            }
        }
        let epoch = u32::try_from(header.partition_leader_epoch).unwrap_or(0);
        let begins = LeaderEpoch { epoch, start_offset: header.base_offset.0 };
        let bytes = header.batch_bytes as u64;
        let follows = |run: &&mut Run| {
            run.position + run.bytes == position && (gaps || run.end_offset == header.base_offset)
        };
        let continued = runs.last_mut().filter(|run| !restamped && !run.restamped).filter(follows);
        let run = match continued {
            Some(run) => {
                if self.last_epoch != epoch {
                    run.leader_epochs.push(begins);
                }
                run
            }
            None => {
                runs.push(Run {
                    position,
                    bytes: 0,
                    base_offset: header.base_offset,
                    end_offset: header.base_offset,
                    max_timestamp: Timestamp::NONE,
                    offset_of_max_timestamp: header.base_offset,
                    batches: 0,
                    batch_crcs: BatchCrcs::default(),
                    leader_epochs: vec![begins],
                    restamped,
                });
                let Some(run) = runs.last_mut() else { return Ok(()) };
                run
            }
        };
        run.batches += 1;
        run.batch_crcs.add(run.bytes, header);
        run.bytes += bytes;
        run.end_offset = header.next_offset();
        if header.max_timestamp > run.max_timestamp {
            run.max_timestamp = header.max_timestamp;
            run.offset_of_max_timestamp = header.last_offset();
        }
        self.last_epoch = epoch;
        self.next = header.next_offset();
        Ok(())
    }
}

/// The leader epochs that a segment's batches can have.
fn epochs(source: &Source) -> Vec<Epoch> {
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
