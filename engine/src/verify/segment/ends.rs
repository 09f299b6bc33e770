//! Where a segment ends: what its manifest or checkpoint says, and what was found.

use kaas_substrate::Error;

use super::{Extent, Outcome, Place, SegmentCheck};
use crate::manifest::SegmentEntry;
use crate::types::Offset;
use crate::verify::finding::{Finding, Kind};
use crate::verify::indexes::IndexCheck;
use crate::verify::walk::{Epochs, Walk, Wanted};

impl SegmentCheck<'_> {
    /// How far a pinned segment is walked through.
    pub(super) fn pinned_end(&mut self, entry: &SegmentEntry, length: u64) -> u64 {
        if length < entry.bytes {
            let problem = format!("it has {length} bytes; {} were committed", entry.bytes);
            let finding = self.finding(Kind::ShortSegment, problem).at(length);
            self.findings.push(finding);
        } else if length > entry.bytes {
            let problem = format!("{} bytes behind its end at {}", length - entry.bytes, entry.bytes);
            let finding = self.finding(Kind::DeadBytes, problem).at(entry.bytes);
            self.findings.push(finding.offset(Offset(entry.end_offset)));
        }
        length.min(entry.bytes)
    }

    /// The last segment ends at `position` for the next leader: harmless, or a loss? With what to call it if nothing follows.
    pub(super) fn tear(
        &mut self,
        mut walk: Walk<'_>,
        position: u64,
        (alone, reason): (Kind, String),
        place: Place,
        indexes: Option<IndexCheck>,
    ) -> Result<Outcome, Error> {
        self.replay.break_off("the log ends before");
        let epochs = self.epochs();
        let wanted = Wanted { epochs: Epochs::Of(&epochs), from: place.expected, end: Offset(i64::MAX) };
        let behind = walk.find(position + 1, &wanted)?;
        let finding = match behind {
            Some((at, header)) => {
                let problem =
                    format!("{reason}; a whole batch of offset {} follows at byte {at}", header.base_offset);
                self.finding(Kind::DamagedTail, problem)
            }
            None => self.finding(alone, format!("{reason}; no whole batch follows")),
        };
        self.findings.push(finding.at(position).offset(place.expected));
        let length = walk.position();
        if let Some(indexes) = indexes {
            indexes.finish(place.expected, false, self.findings);
        }
        self.finish(position, length, place)
    }

    /// At the end of what counts.
    pub(super) fn finish(&mut self, position: u64, length: u64, place: Place) -> Result<Outcome, Error> {
        match self.planned.extent.clone() {
            Extent::Pinned(entry) => {
                if !place.damaged && length >= entry.bytes && place.batch_crcs != entry.batch_crcs {
                    let problem = "its batches are not those that were written: their CRC-32Cs differ from what the manifest says";
                    return Ok(self.foreign(&place, problem.to_owned()));
                }
                self.finish_pinned(&entry, position, length, &place);
                return Ok(Outcome { end: Offset(entry.end_offset), whole: true });
            }
            Extent::Whole | Extent::Tail => self.finish_checkpoint(position, &place),
        }
        let last = matches!(self.planned.extent, Extent::Tail);
        if last && place.expected < self.committed {
            let problem = format!(
                "the log ends at offset {}; everything below {} was committed",
                place.expected, self.committed
            );
            let finding = self.finding(Kind::CommittedRecordsMissing, problem);
            self.findings.push(finding.at(position).offset(place.expected));
        }
        if last && position == 0 && length == 0 {
            self.findings.push(self.finding(Kind::EmptySegment, "it has no bytes"));
        }
        Ok(Outcome { end: place.expected, whole: !place.damaged })
    }

    pub(super) fn finish_pinned(&mut self, entry: &SegmentEntry, position: u64, length: u64, place: &Place) {
        if place.damaged || length < entry.bytes {
            self.replay.break_off("batches cannot be read");
            return;
        }
        if place.expected.0 != entry.end_offset {
            let problem = format!(
                "{} bytes of it count and end at offset {}; the manifest says {}",
                entry.bytes, place.expected, entry.end_offset
            );
            let finding = self.finding(Kind::WrongEnd, problem);
            self.findings.push(finding.at(position).offset(place.expected));
            self.replay.break_off("a segment does not end where the manifest says");
        }
        let said = (entry.max_timestamp, entry.offset_of_max_timestamp);
        if said != (place.max_timestamp.0, place.offset_of_max_timestamp.0) {
            let problem = format!(
                "the manifest says that its largest timestamp is {} at offset {}; it is {} at {}",
                said.0, said.1, place.max_timestamp, place.offset_of_max_timestamp
            );
            self.findings.push(self.finding(Kind::ManifestSummary, problem));
        }
    }

    pub(super) fn finish_checkpoint(&mut self, position: u64, place: &Place) {
        let Some(checkpoint) = &self.planned.checkpoint else { return };
        if checkpoint.position > position {
            let problem = format!(
                "the segment can be read up to byte {position} (offset {}); {} bytes up to offset {} were committed",
                place.expected, checkpoint.position, checkpoint.offset
            );
            let finding = self.finding(Kind::CommittedRecordsMissing, problem);
            self.findings.push(finding.at(position).offset(place.expected));
        } else if !place.checkpoint_met && !place.damaged {
            let problem = format!(
                "it says that a batch begins at byte {} of {}; none does",
                checkpoint.position, self.planned.name
            );
            self.findings.push(Finding::new(Kind::CheckpointWrong, self.dir, problem));
        }
    }
}
