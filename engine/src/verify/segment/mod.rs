//! One segment's batches: every byte that counts, in order, with everything that refers to a place in it.

mod ends;

use std::path::{Path, PathBuf};
use std::thread;

use kaas_substrate::{File, OpenMode};

use super::Context;
use super::finding::{Finding, Kind};
use super::indexes::IndexCheck;
use super::producers::{Expiry, Replay};
use super::view::log_path;
use super::walk::{Epochs, Step, Walk, Wanted};
use crate::batch::{BatchHeader, Marker};
use crate::index::AbortedTransaction;
use crate::log::SegmentName;
use crate::log::ends::{SegmentEnd, another_batch};
use crate::log::recovery::marker;
use crate::manifest::{BatchCrcs, Checkpoint, IndexFiles, LeaderEpoch, SegmentEntry};
use crate::types::{Epoch, Offset, ProducerId, Timestamp};

/// After so many findings the rest of a segment is left alone.
const FINDINGS_PER_SEGMENT_MAX: usize = 1000;

/// A segment that counts, and how far.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    pub(super) name: SegmentName,
    pub(super) extent: Extent,
    /// The checkpoint inside of it.
    pub(super) checkpoint: Option<Checkpoint>,
}

/// How far a segment counts.
#[derive(Debug, Clone)]
pub(super) enum Extent {
    /// The manifest says it.
    Pinned(SegmentEntry),
    /// All of it: its leader has begun another one behind it.
    Whole,
    /// As far as its batches are whole and in sequence: the last one.
    Tail,
}

/// What a walk through a segment has come to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outcome {
    /// The offset behind the last record.
    pub(super) end: Offset,
    /// False if nothing behind this segment can be put in order with it.
    pub(super) whole: bool,
}

/// Counts of what was looked at.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) segments: u64,
    pub(super) batches: u64,
    pub(super) records: u64,
    pub(super) bytes: u64,
    /// The highest producer id.
    pub(super) highest_producer: Option<ProducerId>,
    /// The newest time that a record or a claim carries.
    pub(super) newest: Option<Timestamp>,
}

/// A walk through one segment.
pub(super) struct SegmentCheck<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) dir: &'a Path,
    pub(super) planned: &'a Planned,
    /// What the manifest promises to be committed.
    pub(super) committed: Offset,
    pub(super) replay: &'a mut Replay,
    pub(super) counts: &'a mut Counts,
    pub(super) findings: &'a mut Vec<Finding>,
}

/// Where the walk stands.
struct Place {
    /// The offset that the next batch must have, or be behind in a rewritten segment.
    expected: Offset,
    /// Another one that would do, behind a batch that did not fit.
    alternative: Option<Offset>,
    max_timestamp: Timestamp,
    offset_of_max_timestamp: Offset,
    /// Something was wrong: what is derived from all batches says nothing.
    damaged: bool,
    checkpoint_met: bool,
    /// Of the batches met so far.
    batch_crcs: BatchCrcs,
    /// How many findings there were before this segment was looked at.
    findings_before: usize,
}

/// Bytes that a disk writes as one.
const SECTOR_BYTES: u64 = 512;

/// Whether `found` is what is left of the base offset `expected` of the batch at `position`, if a crash has lost the sector that
/// it begins in and kept the next one: no checksum of a batch covers its base offset.
fn is_torn_offset(position: u64, expected: Offset, found: Offset) -> bool {
    let lost = SECTOR_BYTES - position % SECTOR_BYTES;
    let kept = u64::MAX.checked_shr(u32::try_from(lost * 8).unwrap_or(u32::MAX)).unwrap_or(0);
    (1..=8).contains(&lost) && found.0.cast_unsigned() == expected.0.cast_unsigned() & kept
}

impl SegmentCheck<'_> {
    fn path(&self) -> PathBuf {
        log_path(self.dir, self.planned.name)
    }

    fn finding(&self, kind: Kind, problem: impl Into<String>) -> Finding {
        Finding::new(kind, &self.path(), problem)
    }

    /// Walks through the segment; `expected` is where it must begin.
    pub(super) fn run(mut self, expected: Offset) -> Outcome {
        match self.walk(expected) {
            Ok(outcome) => outcome,
            Err(error) => {
                let finding = if error.is_not_found() {
                    self.finding(Kind::MissingSegment, "it is needed, but it is not there")
                } else {
                    self.finding(Kind::Unreadable, error.to_string())
                };
                self.findings.push(finding);
                self.lost("a segment could not be read")
            }
        }
    }

    /// Nothing is known of the rest of the segment.
    fn lost(&mut self, reason: &str) -> Outcome {
        self.replay.break_off(reason);
        match &self.planned.extent {
            Extent::Pinned(entry) => Outcome { end: Offset(entry.end_offset), whole: true },
            Extent::Whole | Extent::Tail => Outcome { end: self.planned.name.base_offset, whole: false },
        }
    }

    fn index_files(&self) -> Option<IndexFiles> {
        let of_checkpoint = |found: &Checkpoint| IndexFiles { version: None, lengths: found.indexes };
        match &self.planned.extent {
            Extent::Pinned(entry) => entry.indexes,
            Extent::Whole | Extent::Tail => self.planned.checkpoint.as_ref().map(of_checkpoint),
        }
    }

    fn walk(&mut self, expected: Offset) -> Result<Outcome, kaas_substrate::Error> {
        let path = self.path();
        let context = self.context;
        let file = context.substrate.open(&path, OpenMode::ReadUncached)?;
        let length = file.length()?;
        self.counts.segments += 1;
        let findings_before = self.findings.len();
        let end = match &self.planned.extent {
            Extent::Pinned(entry) => self.pinned_end(&entry.clone(), length),
            Extent::Whole | Extent::Tail => length,
        };
        if let Extent::Pinned(entry) = &self.planned.extent
            && self.planned.name.is_rewritten()
        {
            self.replay.rewritten_up_to(Offset(entry.end_offset));
        }
        let start = self.replay.known_from();
        let mut indexes = self.index_files().map(|files| {
            let name = self.planned.name;
            IndexCheck::open(context.substrate, self.dir, name, &files, start, self.findings)
        });
        let mut walk = Walk::new(&file, end, &context.progress.bytes);
        let mut place = Place {
            expected,
            alternative: None,
            max_timestamp: Timestamp::NONE,
            offset_of_max_timestamp: self.planned.name.base_offset,
            damaged: false,
            checkpoint_met: false,
            batch_crcs: BatchCrcs::default(),
            findings_before,
        };
        let mut torn_at = None;
        let findings_before = self.findings.len();
        loop {
            if self.findings.len() - findings_before > FINDINGS_PER_SEGMENT_MAX {
                self.findings.push(self.finding(Kind::NotShown, "the rest of the segment was not looked at"));
                self.replay.break_off("a segment has too much damage");
                place.damaged = true;
                break;
            }
            self.boundary(walk.position(), &mut place);
            self.indexes_end(walk.position(), &place, &mut indexes);
            let (position, header) = match walk.step()? {
                Step::Batch { position, header } => (position, header),
                Step::End => break,
                Step::Damaged { position, reason } => {
                    if matches!(self.planned.extent, Extent::Tail) {
                        if torn_at.is_none() {
                            // A leader may be writing just here: give it a moment.
                            torn_at = Some(position);
                            thread::sleep(context.options.second_look_after);
                            walk.restart(position, file.length()?);
                            continue;
                        }
                        return self.tear(walk, position, (Kind::TornTail, reason), place, indexes);
                    }
                    if self.pass_over(&mut walk, position, reason, &mut place, indexes.as_mut())? {
                        continue;
                    }
                    break;
                }
            };
            if torn_at == Some(position) {
                let problem = "a batch was being written here";
                self.findings.push(self.finding(Kind::InProgress, problem).at(position));
            }
            if let Some(reason) = self.other_content(position, &header) {
                return Ok(self.foreign(&place, reason));
            }
            self.gap(&header, &place);
            let misfit = self.misfit(&header, &place);
            if let Some(reason) = &misfit {
                if matches!(self.planned.extent, Extent::Tail) {
                    // Any other batch that is whole and does not belong here is nothing that a crash leaves.
                    let torn = is_torn_offset(position, place.expected, header.base_offset);
                    let kind = if torn { Kind::TornTail } else { Kind::DamagedTail };
                    return self.tear(walk, position, (kind, reason.clone()), place, indexes);
                }
                let finding = self.finding(Kind::OutOfSequence, reason.as_str());
                self.findings.push(finding.at(position).offset(place.expected).certain());
                self.replay.break_off("a batch is out of sequence");
                place.damaged = true;
            }
            // What refers to a batch that is out of place proves nothing.
            let before = place.expected;
            let indexes_of_it = if misfit.is_none() { indexes.as_mut() } else { None };
            self.take(&*file, position, &header, &mut place, indexes_of_it)?;
            if let Some(indexes) = indexes.as_mut().filter(|_| misfit.is_some()) {
                indexes.skip(before, walk.position(), place.expected, self.findings);
            }
            if matches!(self.planned.extent, Extent::Tail) && walk.position() >= length {
                // What a live leader adds behind the length found at first is not looked at.
                self.boundary(walk.position(), &mut place);
                self.indexes_end(walk.position(), &place, &mut indexes);
                break;
            }
        }
        let whole = !place.damaged
            && matches!(&self.planned.extent, Extent::Pinned(entry) if entry.bytes == walk.position());
        if let Some(indexes) = indexes {
            indexes.finish(place.expected, whole, self.findings);
        }
        self.finish(walk.position(), length, place)
    }

    /// Whether a batch, which is whole, is the first or the last one that counts, and another one than was written there. Damage
    /// leaves no batch whole, so the file is not the one that was here.
    fn other_content(&self, position: u64, header: &BatchHeader) -> Option<String> {
        let (written, end) = match (&self.planned.extent, &self.planned.checkpoint) {
            (Extent::Pinned(entry), _) => (entry.batch_crcs, entry.bytes),
            (_, Some(checkpoint)) => (checkpoint.batch_crcs, checkpoint.position),
            _ => return None,
        };
        let is_last = position + header.batch_bytes as u64 == end;
        let first = (position == 0).then_some((SegmentEnd::First, written.first));
        let last = is_last.then_some((SegmentEnd::Last, written.last));
        let (end, written) = first.into_iter().chain(last).find(|(_, written)| *written != header.crc)?;
        Some(another_batch(end, header.crc, written))
    }

    /// The file is of another segment: whatever else was found in it says nothing.
    fn foreign(&mut self, place: &Place, reason: String) -> Outcome {
        let found = self.findings.split_off(place.findings_before);
        self.findings.extend(found.into_iter().filter(|finding| finding.kind == Kind::Unreadable));
        let finding = self.finding(Kind::ForeignSegment, reason).offset(self.planned.name.base_offset);
        self.findings.push(finding.certain());
        self.lost("a segment is not the one that was written")
    }

    /// Index files of a segment that is not pinned are good up to the checkpoint.
    fn is_behind_indexes(&self, position: u64) -> bool {
        let checkpoint = self.planned.checkpoint.as_ref();
        checkpoint.is_some_and(|checkpoint| position >= checkpoint.position)
    }

    /// Where the index files end: what is left over of them is wrong.
    fn indexes_end(&mut self, position: u64, place: &Place, indexes: &mut Option<IndexCheck>) {
        if self.is_behind_indexes(position)
            && let Some(indexes) = indexes.take()
        {
            indexes.finish(place.expected, !place.damaged, self.findings);
        }
    }

    /// At the beginning of each batch, and at the end: whatever refers to this place is compared.
    fn boundary(&mut self, position: u64, place: &mut Place) {
        if place.damaged {
            return;
        }
        self.replay.between(place.expected, place.expected, self.expiry(), self.findings);
        let Some(checkpoint) = self.planned.checkpoint.as_ref().filter(|found| found.position == position)
        else {
            return;
        };
        place.checkpoint_met = true;
        if checkpoint.offset != place.expected.0 {
            let problem = format!(
                "it says that byte {position} of {} is offset {}; it is {}",
                self.planned.name, checkpoint.offset, place.expected
            );
            self.findings.push(Finding::new(Kind::CheckpointWrong, self.dir, problem).offset(place.expected));
        }
        let said = (checkpoint.max_timestamp, checkpoint.offset_of_max_timestamp);
        if position > 0 && said != (place.max_timestamp.0, place.offset_of_max_timestamp.0) {
            let problem = format!(
                "the checkpoint says that the largest timestamp is {} at offset {}; it is {} at {}",
                said.0, said.1, place.max_timestamp, place.offset_of_max_timestamp
            );
            self.findings.push(self.finding(Kind::ManifestSummary, problem).at(position));
        }
    }

    fn expiry(&self) -> Expiry {
        let options = self.context.options;
        Expiry { now: options.now, expiration_ms: options.producer_id_expiration_ms }
    }

    /// Where compaction left nothing in front of a batch, what refers to an offset in between is compared.
    fn gap(&mut self, header: &BatchHeader, place: &Place) {
        if self.planned.name.is_rewritten() && !place.damaged && header.base_offset > place.expected {
            let expiry = self.expiry();
            self.replay.between(place.expected, header.base_offset, expiry, self.findings);
        }
    }

    /// Why a batch does not belong where it stands.
    fn misfit(&self, header: &BatchHeader, place: &Place) -> Option<String> {
        let found = header.base_offset;
        let gap = self.planned.name.is_rewritten() && found > place.expected;
        if found != place.expected && Some(found) != place.alternative && !gap {
            return Some(format!("a batch of offset {found} stands where offset {} belongs", place.expected));
        }
        let epoch = self.epoch_at(found);
        (header.partition_leader_epoch != epoch.to_wire()).then(|| {
            format!("the batch says leader epoch {}, its segment {epoch}", header.partition_leader_epoch)
        })
    }

    /// The leader epochs of the segment's batches, and where each begins; none for one that was appended to.
    fn leader_epochs(&self) -> &[LeaderEpoch] {
        match &self.planned.extent {
            Extent::Pinned(entry) => &entry.leader_epochs,
            Extent::Whole | Extent::Tail => &[],
        }
    }

    /// The leader epoch of a batch at `offset`.
    fn epoch_at(&self, offset: Offset) -> Epoch {
        let begun = self.leader_epochs().iter().take_while(|from| from.start_offset <= offset.0).last();
        begun.and_then(|from| Epoch::new(from.epoch)).unwrap_or(self.planned.name.epoch)
    }

    /// The leader epochs that its batches can have.
    fn epochs(&self) -> Vec<Epoch> {
        let listed = self.leader_epochs();
        let own = listed.is_empty().then_some(self.planned.name.epoch);
        own.into_iter().chain(listed.iter().filter_map(|from| Epoch::new(from.epoch))).collect()
    }

    /// Takes a batch in.
    fn take(
        &mut self,
        file: &dyn File,
        position: u64,
        header: &BatchHeader,
        place: &mut Place,
        indexes: Option<&mut IndexCheck>,
    ) -> Result<(), kaas_substrate::Error> {
        self.counts.batches += 1;
        self.counts.bytes += header.batch_bytes as u64;
        self.counts.records += u64::try_from(header.record_count).unwrap_or(0);
        self.counts.highest_producer = self.counts.highest_producer.max(header.producer_id);
        self.counts.newest = self.counts.newest.max(Some(header.max_timestamp));
        let marker = marker(file, position, header)?;
        let ended = self.replay.batch(header, marker);
        if let Some(indexes) = indexes {
            indexes.batch(position, header, self.findings);
            if marker.is_some_and(|marker| marker.marker == Marker::Abort) {
                let expected = ended.as_ref().map(AbortedTransaction::from);
                indexes.aborted(header, expected, self.replay.is_complete(), self.findings);
            }
        }
        place.batch_crcs.add(position, header);
        if header.max_timestamp > place.max_timestamp {
            place.max_timestamp = header.max_timestamp;
            place.offset_of_max_timestamp = header.last_offset();
        }
        // Behind a batch that says another offset than it should, either may go on.
        let fits = self.planned.name.is_rewritten()
            || header.base_offset == place.expected
            || Some(header.base_offset) == place.alternative;
        let in_place = place.expected.plus(i64::from(header.last_offset_delta)).plus(1);
        (place.expected, place.alternative) =
            if fits { (header.next_offset(), None) } else { (in_place, Some(header.next_offset())) };
        Ok(())
    }

    /// Damage within what counts: tells of it, and goes on behind it if there is anything. False if not.
    fn pass_over(
        &mut self,
        walk: &mut Walk<'_>,
        position: u64,
        reason: String,
        place: &mut Place,
        mut indexes: Option<&mut IndexCheck>,
    ) -> Result<bool, kaas_substrate::Error> {
        let end = match &self.planned.extent {
            Extent::Pinned(entry) => Offset(entry.end_offset),
            Extent::Whole | Extent::Tail => Offset(i64::MAX),
        };
        let epochs = self.epochs();
        let wanted = Wanted { epochs: Epochs::Of(&epochs), from: place.expected, end };
        let next = walk.find(position + 1, &wanted)?;
        let lost = match next {
            Some((at, header)) => format!(
                "{reason}; {} bytes with offsets {} to {} cannot be read",
                at - position,
                place.expected,
                header.base_offset.plus(-1)
            ),
            None => format!("{reason}; nothing behind it in the segment can be read"),
        };
        let finding = self.finding(Kind::DamagedBatch, lost).at(position).offset(place.expected).certain();
        self.findings.push(finding);
        self.replay.break_off("batches cannot be read");
        place.damaged = true;
        if let Some((at, header)) = next {
            if let Some(indexes) = indexes.as_mut() {
                indexes.skip(place.expected, at, header.base_offset, self.findings);
            }
            place.expected = header.base_offset;
        }
        Ok(next.is_some())
    }
}
