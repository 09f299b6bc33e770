//! Reading the segments that count, one behind the other: which of their batches belong where, and what that comes to.

use std::path::Path;
use std::sync::Arc;

use kaas_substrate::{File, OpenMode};

use super::super::Context;
use super::super::walk::{Epochs, Step, Walk, Wanted};
use super::neighbours::{Around, Verdict, judge};
use super::placing::{End, OFFSETS_PER_BYTE_MAX, place};
use super::salvage::{KnownProducers, Lost, Run, Salvage, Salvaged, Source, epoch_at, epochs};
use super::survey::survey;
use crate::batch::BatchHeader;
use crate::log::SegmentName;
use crate::log::recovery::marker;
use crate::manifest::{BatchCrcs, LeaderEpoch};
use crate::planted::{Bug, planted};
use crate::producer_state::{CompletedTransaction, ProducerStates};
use crate::types::{Epoch, Offset, Timestamp};

type Result<T> = std::result::Result<T, kaas_substrate::Error>;

/// What has been read so far.
pub(super) struct Reader<'a> {
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

impl<'a> Reader<'a> {
    /// Of a log that begins at `start`; `known` are producers as of offsets.
    pub(super) fn new(
        context: &'a Context<'a>,
        dir: &'a Path,
        start: Offset,
        known: Vec<KnownProducers>,
    ) -> Self {
        Self {
            context,
            dir,
            next: start,
            last_epoch: 0,
            lost: Vec::new(),
            producers: ProducerStates::new(),
            known,
            producers_from: None,
            aborted: Vec::new(),
        }
    }

    /// All of the log; `floor` is an offset that was given out for certain.
    pub(super) fn finish(mut self, segments: Vec<Salvaged>, floor: Offset) -> Salvage {
        self.lose(floor, "they were committed, and no file has them");
        let next_offset = self.next;
        self.adopt(next_offset);
        let Self { lost, producers, producers_from, aborted, .. } = self;
        Salvage { segments, next_offset, lost, producers, producers_from, aborted }
    }

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
    pub(super) fn segment(&mut self, source: Source, following: Option<SegmentName>) -> Result<Salvaged> {
        let name = source.name;
        let mut salvaged = Salvaged { source, runs: Vec::new(), damaged: Vec::new(), exists: true };
        if let Some(end) = salvaged.source.fills_up_to {
            self.lose(end.min(salvaged.source.limit), "an earlier repair has found them lost");
            return Ok(salvaged);
        }
        if salvaged.source.gap_before {
            self.next = self.next.max(name.base_offset);
        } else {
            self.lose(name.base_offset, "the segment that had them is gone");
        }
        let path = salvaged.source.file.as_ref().map(|file| self.dir.join(file));
        match path.map(|path| self.context.substrate.open(&path, OpenMode::ReadUncached)) {
            Some(Ok(file)) if name.is_rewritten() => self.rewritten(&file, &mut salvaged)?,
            Some(Ok(file)) => self.appended(&file, &mut salvaged)?,
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

    /// The batches of a segment that was appended to: one behind the other, without gaps.
    fn appended(&mut self, file: &Arc<dyn File>, salvaged: &mut Salvaged) -> Result<()> {
        let source = salvaged.source.clone();
        let end = file.length()?.min(source.bytes);
        let mut walk = Walk::of_any_offset(file, end, &self.context.progress.bytes);
        let mut position = 0;
        while let Step::Batch { position: at, header } = walk.step()? {
            if position == 0 && self.next > source.name.base_offset {
                break;
            }
            let stamped = header.appended_at(self.next, source.name.epoch);
            if stamped != header || header.next_offset() > source.limit {
                break;
            }
            self.take(&**file, at, &header, false, salvaged)?;
            position = walk.position();
        }
        if position >= end {
            return Ok(());
        }
        walk.restart(position, end);
        let groups = survey(&mut walk, &source, end)?;
        let ends = source.should_end.map(|offset| {
            let is_pinned = source.entry.as_ref().is_some_and(|entry| entry.bytes == end);
            End { offset, is_pinned }
        });
        // Where the manifest says where it ends, a file that is shorter does not end there.
        let ends = ends.filter(|ends| source.entry.is_none() || ends.is_pinned);
        let begin = if position == 0 { source.name.base_offset } else { self.next };
        let (mut placed, given) = place(&groups, begin, self.next, source.limit, ends);
        if placed.iter().any(|placed| placed.restamped) && disproved(&mut walk, &source, end)? {
            placed.retain(|placed| !placed.restamped);
        }
        for placed in placed {
            let from = placed.piece.position;
            self.lose(placed.base, &unread(&source, position, from));
            salvaged.damaged.extend((position < from).then_some((position, from)));
            position = from;
            walk.restart(from, end);
            for _ in 0..placed.piece.batches {
                let Step::Batch { position: at, header } = walk.step()? else { break };
                let stamped = header.appended_at(self.next, source.name.epoch);
                self.take(&**file, at, &stamped, placed.restamped, salvaged)?;
                position = walk.position();
            }
        }
        salvaged.damaged.extend((position < end).then_some((position, end)));
        self.lose(
            given,
            &format!(
                "which of them whole batches had at byte {position} of {}.log, nothing says",
                source.name
            ),
        );
        Ok(())
    }

    /// The batches of a segment that was rewritten as a whole: offsets may be missing between them.
    fn rewritten(&mut self, file: &Arc<dyn File>, salvaged: &mut Salvaged) -> Result<()> {
        let source = salvaged.source.clone();
        let end = file.length()?.min(source.bytes);
        let mut walk = Walk::of_any_offset(file, end, &self.context.progress.bytes);
        let listed = epochs(&source);
        let epochs = match source.entry {
            Some(_) => Epochs::Of(&listed),
            // Its name has the epoch of whoever has rewritten it.
            None => Epochs::UpTo(source.name.epoch),
        };
        // The offset that what cannot be used ends below, by what it says.
        let mut given = self.next;
        // Where what cannot be used begins, if that is right in front.
        let mut damaged: Option<u64> = None;
        let mut is_doubtful = false;
        loop {
            let (position, header) = match walk.step()? {
                Step::End => break,
                Step::Batch { position, header } => (position, header),
                Step::Damaged { position, .. } => {
                    damaged = damaged.or(Some(position));
                    let said = walk.peek(position)?.map(|header| header.next_offset());
                    given = given.max(self.may_end_at(said, end - position));
                    let wanted = Wanted { epochs, from: Offset(i64::MIN), end: Offset(i64::MAX) };
                    let stops = planted(Bug::RepairStopsAtDamage);
                    if stops || walk.find(position + 1, &wanted)?.is_none() {
                        break;
                    }
                    continue;
                }
            };
            let following = walk.peek(walk.position())?;
            let after = match following {
                Some(following) => walk.peek(walk.position() + following.batch_bytes as u64)?,
                None => None,
            };
            let around = Around {
                next: self.next,
                limit: source.limit,
                is_behind_damage: damaged.is_some(),
                is_behind_zeros: damaged.is_some() && walk.is_behind_zeros(position)?,
                is_doubtful: std::mem::take(&mut is_doubtful),
                following,
                after,
                // Where only names count, an earlier repair may have written what stands elsewhere, too.
                may_be_there_already: source.entry.is_none(),
            };
            let stamped = match judge(&header, &around) {
                Verdict::Belongs => self.with_epoch(&source, &header, following.as_ref()),
                Verdict::At(base_offset) => {
                    let epoch = epoch_at(&source, base_offset).map(Epoch::to_wire);
                    let partition_leader_epoch = epoch.unwrap_or(header.partition_leader_epoch);
                    Some(BatchHeader { base_offset, partition_leader_epoch, ..header })
                }
                Verdict::Unknown => None,
                Verdict::ThisOrNext => {
                    is_doubtful = true;
                    None
                }
            };
            match stamped {
                Some(stamped) => {
                    if let Some(from) = damaged.take() {
                        salvaged.damaged.push((from, position));
                        // Of a compacted segment these are more than there were: offsets may have been missing.
                        let reason = format!("at most: {}", unread(&source, from, position));
                        self.lose(stamped.base_offset, &reason);
                    }
                    self.take(&**file, position, &stamped, stamped != header, salvaged)?;
                    given = self.next;
                }
                // It belongs somewhere else, and so may what follows; the next one that fits goes on.
                None => {
                    damaged = damaged.or(Some(position));
                    given = given.max(self.may_end_at(Some(header.next_offset()), end - position));
                }
            }
        }
        if let Some(from) = damaged {
            salvaged.damaged.push((from, end));
            if source.entry.is_none() {
                self.lose(given.min(source.limit), &format!("at least: {}", unread(&source, from, end)));
            }
        }
        Ok(())
    }

    /// Where what cannot be used, up to the end of a segment in `bytes`, ended if it says to have ended at `said`: not further away than so
    /// many bytes can have led. Without a word of it nothing is lost: it may be what a repair that died had begun to copy.
    fn may_end_at(&self, said: Option<Offset>, bytes: u64) -> Offset {
        let most = self.next.0.saturating_add_unsigned(bytes.saturating_mul(OFFSETS_PER_BYTE_MAX));
        said.filter(|said| (self.next.0..=most).contains(&said.0)).unwrap_or(self.next)
    }

    /// A batch of a rewritten segment whose offset is right with the leader epoch that it must have; `None` if that is not known.
    fn with_epoch(
        &self,
        source: &Source,
        header: &BatchHeader,
        following: Option<&BatchHeader>,
    ) -> Option<BatchHeader> {
        let found = header.base_offset;
        let said = epoch_at(source, found);
        let own = Epoch::from_wire(header.partition_leader_epoch);
        if own.is_some_and(|own| own.get() >= self.last_epoch && said.is_none_or(|said| said == own)) {
            return Some(*header);
        }
        // Another epoch than the manifest says of this offset, which is the right one: what stands around it says so.
        let said = said.filter(|said| said.get() >= self.last_epoch)?;
        let end = following.map(|following| following.base_offset).or(source.should_end);
        let follows = end == Some(header.next_offset());
        (found == self.next || follows).then(|| header.appended_at(found, said))
    }

    fn take(
        &mut self,
        file: &dyn File,
        position: u64,
        header: &BatchHeader,
        restamped: bool,
        salvaged: &mut Salvaged,
    ) -> Result<()> {
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

/// Whether a segment of which every byte is whole is not the one that the manifest has the checksum of: then a batch that says another
/// offset than it would have there is another batch.
fn disproved(walk: &mut Walk<'_>, source: &Source, end: u64) -> Result<bool> {
    let Some(entry) = source.entry.as_ref().filter(|entry| entry.bytes == end) else { return Ok(false) };
    walk.restart(0, end);
    let mut found = BatchCrcs::default();
    while let Step::Batch { position, header } = walk.step()? {
        found.add(position, &header);
    }
    Ok(walk.position() == end && found != entry.batch_crcs)
}

/// Why offsets are lost in front of byte `to` of a segment, if those from `from` on are not used.
fn unread(source: &Source, from: u64, to: u64) -> String {
    match from < to {
        true => format!("bytes {from} to {to} of {}.log cannot be read", source.name),
        false => format!("they are not in {}.log", source.name),
    }
}
