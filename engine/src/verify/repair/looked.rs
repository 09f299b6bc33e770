//! What a partition's directory says that a repair goes by, beside the batches themselves.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

use kaas_substrate::{EntryKind, OpenMode};

use super::super::Context;
use super::super::finding::{Finding, Kind};
use super::super::producers::read_states;
use super::super::view::{Read, View};
use super::layout::Layout;
use super::plan::Plan;
use super::quarantine::Quarantined;
use super::salvage::{KnownProducers, Lost, Salvage};
use crate::log::{SegmentFile, SegmentFileName, SegmentName};
use crate::manifest::versioned::FileVersion;
use crate::manifest::{Checkpoint, IndexFiles, Manifest, PRODUCER_STATE, ProducerStateRef, SegmentEntry};
use crate::planted::{Bug, planted};
use crate::types::{Epoch, Offset};

/// One look at a partition, and what was found.
pub(super) struct Looked<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) dir: &'a Path,
    pub(super) view: &'a View,
    pub(super) findings: &'a [Finding],
}

impl Looked<'_> {
    pub(super) fn has(&self, kind: Kind) -> bool {
        self.findings.iter().any(|finding| finding.kind == kind)
    }

    fn is_about(&self, path: &Path) -> bool {
        self.findings.iter().any(|finding| finding.file == path && finding.kind != Kind::OrphanIndex)
    }

    /// The manifest, if there is one that does not contradict itself, and that is the newest one for all that can be seen.
    pub(super) fn manifest(&self) -> Option<&Manifest> {
        self.possible_manifest().filter(|_| !self.may_be_outdated())
    }

    /// The same, if it is known to be the newest or not.
    fn possible_manifest(&self) -> Option<&Manifest> {
        self.view.manifest().filter(|_| !self.has(Kind::ManifestImpossible))
    }

    /// Whether a manifest of another partition is in the place of this one's newest.
    fn has_foreign_manifest(&self) -> bool {
        self.view.foreign_manifests().next().is_some()
    }

    /// Whether a later manifest may have stood where that of another partition is now. What a later one no longer needed, its
    /// leader has removed, and what it counted behind a clean close did not count before.
    fn may_be_outdated(&self) -> bool {
        let signs = [Kind::MissingSegment, Kind::ShortSegment, Kind::SegmentBehindRelease];
        self.has_foreign_manifest() && signs.into_iter().any(|kind| self.has(kind))
    }

    /// The checkpoint, if it is of the manifest's leader; without a manifest if no later leader has appended anything. What a
    /// leader writes once it is deposed promises nothing.
    fn checkpoint(&self) -> Option<&Checkpoint> {
        let Read::Found { content, .. } = &self.view.checkpoint else { return None };
        let is_last = match self.manifest() {
            Some(manifest) => manifest.epoch == content.epoch,
            None => {
                let appended = self.view.names.logs.iter().filter(|name| !name.is_rewritten());
                appended.clone().all(|name| name.epoch.get() <= content.epoch)
            }
        };
        is_last.then_some(content)
    }

    /// Without a manifest: the epoch behind the checkpoint's that was claimed, by another than this repair, and the checkpoint.
    /// Whoever claimed it may have led, and found the log to end before.
    fn late_checkpoint(&self, own: Epoch) -> Option<(Epoch, &Checkpoint)> {
        let checkpoint = self.checkpoint().filter(|_| self.manifest().is_none())?;
        let later = |epoch: &&Epoch| epoch.get() > checkpoint.epoch && **epoch < own;
        Some((*self.view.names.claims.iter().find(later)?, checkpoint))
    }

    /// An offset that was given out for certain: nothing else may ever stand below it.
    pub(super) fn floor(&self) -> Offset {
        if planted(Bug::RepairReusesOffsets) {
            return Offset::ZERO;
        }
        let of_manifest = self.possible_manifest().map_or(0, |manifest| {
            manifest.next_offset.max(manifest.high_watermark).max(manifest.log_start_offset)
        });
        let of_checkpoint = self.checkpoint().filter(|_| !self.has(Kind::CheckpointWrong));
        Offset(of_manifest.max(of_checkpoint.map_or(0, |checkpoint| checkpoint.offset)).max(0))
    }

    /// Where the log begins, if the manifest says it.
    pub(super) fn log_start(&self) -> Option<Offset> {
        self.manifest().map(|manifest| Offset(manifest.log_start_offset.max(0)))
    }

    /// The producer snapshots that the manifest and the checkpoint refer to, as far as nothing is wrong with them.
    pub(super) fn known_producers(&self) -> Vec<KnownProducers> {
        let of_manifest = self.manifest().and_then(|manifest| manifest.producer_state);
        let of_checkpoint = self.checkpoint().filter(|_| self.manifest().is_some());
        let of_checkpoint = of_checkpoint.and_then(|checkpoint| checkpoint.producer_state);
        let known = |reference: ProducerStateRef| {
            let epoch = Epoch::new(reference.epoch)?;
            let path =
                self.dir.join(PRODUCER_STATE.file_name(FileVersion { epoch, number: reference.number }));
            let identity = self.view.identity.as_ref();
            let states = read_states(self.context.substrate, &path, reference.offset, identity).ok()?;
            (!self.is_about(&path)).then_some(KnownProducers { offset: Offset(reference.offset), states })
        };
        [of_manifest, of_checkpoint].into_iter().flatten().filter_map(known).collect()
    }

    /// The segments whose files are not those that were written under their names.
    pub(super) fn foreign_segments(&self) -> BTreeSet<SegmentName> {
        let found = self.findings.iter().filter(|finding| finding.kind == Kind::ForeignSegment);
        let names = found.filter_map(|finding| SegmentFileName::parse(finding.file.file_name()?.to_str()?));
        names.map(|file| file.segment).collect()
    }

    /// What the manifest said of a segment.
    fn entry(&self, name: SegmentName) -> Option<&SegmentEntry> {
        let segments = self.view.manifest().map(|manifest| manifest.segments.as_slice()).unwrap_or_default();
        segments.iter().find(|entry| entry.name() == Some(name))
    }

    /// The segments of a layout whose index files are missing, wrong, or of another extent.
    pub(super) fn reindexed(&self, layout: &Layout) -> BTreeSet<usize> {
        let is_wrong = |entry: &SegmentEntry| {
            let Some(name) = entry.name() else { return false };
            let same = self.entry(name).is_some_and(|before| before.indexes == entry.indexes);
            let version = entry.indexes.and_then(|files| files.version);
            let path = |file| SegmentFileName { segment: name, file, version }.path(self.dir);
            let about = SegmentFile::INDEXES.map(path).iter().any(|path| self.is_about(path));
            about || (entry.indexes.is_none() && !same)
        };
        let wrong = layout.entries.iter().enumerate().filter(|(_, entry)| is_wrong(entry));
        wrong.map(|(at, _)| at).collect()
    }

    /// The segment's transaction index, if it is in order: it knows more than the batches that are left. With how many bytes
    /// of it count.
    pub(super) fn txn_index(&self, segment: SegmentName) -> Option<(SegmentFileName, u64)> {
        let IndexFiles { version, lengths } = self.entry(segment)?.indexes?;
        let file = SegmentFileName { segment, file: SegmentFile::TxnIndex, version };
        (!self.is_about(&file.path(self.dir))).then_some((file, lengths.txn_index_bytes))
    }

    pub(super) fn new_manifest(
        &self,
        epoch: Epoch,
        segments: Vec<SegmentEntry>,
        next_offset: Offset,
        producer_state: Option<ProducerStateRef>,
    ) -> Manifest {
        let before = self.view.manifest();
        let first = segments.first().map_or(next_offset.0, |first| first.base_offset);
        let high_watermark = segments.last().map_or(next_offset.0, |last| last.end_offset);
        // What an impossible manifest says must not hide records that can be read.
        let said = before.map(|manifest| manifest.log_start_offset);
        let said = said
            .filter(|start| self.possible_manifest().is_some() || (0..=high_watermark).contains(start))
            .unwrap_or(first);
        let log_start_offset = said.max(first).min(next_offset.0);
        let first_dirty_offset = before.map_or(0, |manifest| manifest.first_dirty_offset);
        Manifest {
            epoch: epoch.get(),
            log_start_offset,
            high_watermark: high_watermark.max(log_start_offset),
            next_offset: next_offset.0,
            released: true,
            segments,
            producer_state,
            first_dirty_offset: first_dirty_offset.clamp(0, next_offset.0),
        }
    }

    /// What is kept of what does not count any more, and of what is in the way.
    pub(super) fn quarantined(&self, salvage: &Salvage) -> Result<Vec<Quarantined>, kaas_substrate::Error> {
        let substrate = self.context.substrate;
        let mut found = Vec::new();
        for salvaged in &salvage.segments {
            let name = format!("{}.log", salvaged.source.name);
            let part = |(from, to): &(u64, u64)| Quarantined::part(name.clone(), *from, *to);
            found.extend(salvaged.damaged.iter().map(part));
        }
        let entries = substrate.list(self.dir)?;
        let is_file =
            |name: &OsStr| entries.iter().any(|entry| entry.kind == EntryKind::File && entry.name == name);
        for finding in self.findings.iter().filter(|finding| finding.file.parent() == Some(self.dir)) {
            let name = finding.file.file_name().unwrap_or_default();
            if is_file(name) && is_put_aside(finding.kind) {
                // Everything else is removed by whoever leads, or written anew.
                let is_strange =
                    matches!(finding.kind, Kind::UnknownFile | Kind::ForeignFile | Kind::ClaimOutOfReach);
                found.push(Quarantined::whole(name, is_strange));
            }
        }
        // Segments that a damaged manifest may have counted, and that their names do not; and where records are lost, all that do
        // not count: a manifest that belongs elsewhere can be whole, and the next leader removes what it does not name.
        let used: BTreeSet<_> = salvage.segments.iter().map(|salvaged| salvaged.source.name).collect();
        let uncertain = self.manifest().is_none() || !salvage.lost.is_empty();
        let unused = self.view.names.logs.iter().filter(|name| uncertain && !used.contains(name));
        found.extend(unused.map(|name| Quarantined::whole(format!("{name}.log"), false)));
        found.sort();
        found.dedup();
        // Nothing is kept of nothing.
        let length = |name: &OsStr| {
            substrate.open(&self.dir.join(name), OpenMode::ReadUncached).and_then(|file| file.length())
        };
        found.retain(|moved| {
            moved.part.is_some() || moved.remove || length(&moved.name).is_ok_and(|bytes| bytes > 0)
        });
        Ok(found)
    }

    /// What a person must know that the repair cannot bring back.
    pub(super) fn unknown(&self, plan: &Plan) -> Vec<String> {
        let mut unknown = Vec::new();
        let uncertain = self.manifest().is_none() && !self.view.names.logs.is_empty();
        if uncertain {
            let why = if self.possible_manifest().is_none() {
                "the manifest is gone"
            } else {
                "one of another partition has taken the place of a later manifest"
            };
            unknown.push(format!(
                "which bytes counted: {why}, so the segments' names decided; records that were deleted, or never \
                 acknowledged, may be back"
            ));
        } else if self.has_foreign_manifest() && self.manifest().is_some() {
            unknown.push(
                "whether another partition's manifest has taken the place of a later one: nothing that is here says so, and \
                 the newest one that is left decided which bytes count"
                    .to_owned(),
            );
        }
        if let Some((later, checkpoint)) = self.late_checkpoint(plan.version.epoch) {
            let is_lost = |lost: &Lost| lost.from < checkpoint.offset && lost.to >= checkpoint.offset;
            if plan.salvage.lost.iter().any(is_lost) {
                unknown.push(format!(
                    "whether what is lost below offset {} was ever acknowledged: the leader of epoch {} says so, and epoch {later} \
                     was claimed behind it",
                    checkpoint.offset, checkpoint.epoch
                ));
            }
        }
        if self.has(Kind::SegmentWithoutManifest) {
            unknown.push("where the later leader's log began, other than by its segments' names".to_owned());
        }
        let rebuilt = [Kind::SnapshotMissing, Kind::SnapshotDamaged, Kind::SnapshotDiffers];
        let is_foreign = |finding: &Finding| {
            let name = finding.file.file_name().filter(|_| finding.kind == Kind::ForeignFile);
            name.is_some_and(|name| PRODUCER_STATE.parse(name).is_some())
        };
        let rebuilt = rebuilt.into_iter().any(|kind| self.has(kind)) || self.findings.iter().any(is_foreign);
        let doubtful = uncertain || !plan.salvage.lost.is_empty();
        if rebuilt || (doubtful && plan.producers.is_some()) {
            let start = plan.manifest.log_start_offset;
            unknown.push(match plan.salvage.producers_from {
                Some(from) => format!("retries of batches that were lost from offset {from} on; all earlier ones are known"),
                None => format!(
                    "retries of batches that were lost, or deleted below offset {start}: they would be taken for new ones, or refused \
                     where later ones are kept"
                ),
            });
        }
        unknown
    }
}

/// Whether a copy is kept of a file with such a finding, before it is written anew or removed.
fn is_put_aside(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::UnknownFile
            | Kind::ForeignFile
            | Kind::ForeignSegment
            | Kind::ManifestDamaged
            | Kind::ManifestImpossible
            | Kind::CheckpointDamaged
            | Kind::CheckpointWrong
            | Kind::CheckpointUnused
            | Kind::SnapshotDamaged
            | Kind::SnapshotDiffers
            | Kind::ClaimDamaged
            | Kind::ClaimDisagrees
            | Kind::ClaimOutOfReach
            | Kind::IdentityDamaged
            | Kind::SegmentBehindRelease
    )
}
