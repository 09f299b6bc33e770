//! What a repair does about what was found: worked out from what can be read, before anything is written.

use std::path::{Path, PathBuf};

use kaas_substrate::{Adoption, printable};

use super::super::Options;
use super::super::finding::{Finding, Kind};
use super::super::identity::Expected;
use super::super::view::View;
use super::content;
use super::layout::{Filler, Layout, Rewritten, lay_out};
use super::looked::Looked;
use super::quarantine::Quarantined;
use super::salvage::{Lost, Salvage, salvage, sources};
use crate::identity::{Identity, PARTITION_FILE};
use crate::log::{SegmentFile, SegmentFileName};
use crate::manifest::versioned::FileVersion;
use crate::manifest::{CHECKPOINT, MANIFEST, Manifest, PRODUCER_STATE, ProducerStateRef};
use crate::planted::{Bug, planted};
use crate::types::Epoch;
use crate::verify::counted;

/// A segment whose index files are built anew.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reindexed {
    /// Its place in the manifest.
    pub(super) at: usize,
    /// A transaction index that has what it needs, and how many bytes of it.
    pub(super) txn_index: Option<(SegmentFileName, u64)>,
}

/// What a repair does to one partition.
#[derive(Debug)]
pub(super) struct Plan {
    /// Of the manifest and the producer snapshot.
    pub(super) version: FileVersion,
    pub(super) quarantine: Vec<Quarantined>,
    pub(super) rewritten: Vec<Rewritten>,
    pub(super) fillers: Vec<Filler>,
    pub(super) reindexed: Vec<Reindexed>,
    pub(super) manifest: Manifest,
    /// The bytes of the producer snapshot that the manifest refers to; `None`: there are no producers.
    pub(super) producers: Option<Vec<u8>>,
    /// Whose the files are that are written.
    pub(super) identity: Identity,
    /// `partition.json` is written anew.
    pub(super) identity_is_wrong: bool,
    pub(super) salvage: Salvage,
    /// What cannot be known any more.
    pub(super) unknown: Vec<String>,
}

/// Findings about which a repair does nothing, since nothing can be known, and the partition must be left as it is.
pub(super) fn refusal(findings: &[Finding], expected: &Expected) -> Option<String> {
    let blocks = |finding: &&Finding| match finding.kind {
        Kind::NewerFormat | Kind::Unreadable | Kind::WrongType | Kind::ForeignDirectory => true,
        Kind::IdentityMissing | Kind::IdentityDamaged => expected.identity().is_none(),
        // It may be `partition.json` that does not belong here.
        Kind::ForeignFile => expected.identity().is_none(),
        _ => false,
    };
    let finding = findings.iter().find(blocks)?;
    if finding.kind == Kind::ForeignFile {
        let name = finding.file.file_name().unwrap_or_default().to_string_lossy();
        return Some(format!(
            "{}: {name}: {}; but no topic around the directory says whose it is, so it may be {PARTITION_FILE} that is in the \
             wrong place. Name a directory within a whole data directory",
            finding.kind.code(),
            finding.problem
        ));
    }
    Some(format!("{}: {}. {}", finding.kind.code(), finding.problem, finding.action))
}

/// Whether a repair can do anything about a finding.
pub(super) fn is_repairable(kind: Kind) -> bool {
    !matches!(
        kind,
        Kind::NewerFormat
            | Kind::Unreadable
            | Kind::WrongType
            | Kind::ForeignDirectory
            | Kind::EpochOutOfReach
            | Kind::NotShown
            | Kind::InProgress
    )
}

/// Reads the partition and works out how to repair it at `epoch`. Blocks.
pub(super) fn plan(
    looked: &Looked<'_>,
    identity: Identity,
    epoch: Epoch,
) -> Result<Plan, kaas_substrate::Error> {
    let Looked { context, dir, view, .. } = *looked;
    let mut sources = sources(context, dir, view, looked.manifest())?;
    content::find(looked, &mut sources)?;
    let salvage =
        salvage(context, dir, sources, looked.known_producers(), looked.log_start(), looked.floor())?;
    // Where a sync from here does not make another's bytes durable, what no manifest has pinned is written anew.
    let adopts = context.substrate.adoption() == Adoption::Sync;
    let layout = lay_out(&salvage, epoch, adopts);
    let reindexed = looked.reindexed(&layout);
    let reindexed = reindexed.into_iter().map(|at| {
        let from = layout.from.get(at).copied();
        let txn_index = from.and_then(|from| looked.txn_index(from));
        Reindexed { at, txn_index }
    });
    let reindexed = reindexed.collect();
    let Layout { entries, rewritten, fillers, .. } = layout;
    // A name that another partition's file has is not used again: a host may go on finding that one under it.
    let taken = view.foreign_manifests().filter(|version| version.epoch == epoch);
    let version = FileVersion { epoch, number: 1 + taken.map(|version| version.number).max().unwrap_or(0) };
    let (producers, producer_state) = producers(context.options, &salvage, &identity, version);
    let identity_is_wrong = looked.has(Kind::IdentityMissing) || looked.has(Kind::IdentityDamaged);
    let mut plan = Plan {
        version,
        quarantine: looked.quarantined(&salvage)?,
        rewritten,
        fillers,
        reindexed,
        manifest: looked.new_manifest(epoch, entries, salvage.next_offset, producer_state),
        producers,
        identity,
        identity_is_wrong,
        salvage,
        unknown: Vec::new(),
    };
    plan.unknown = looked.unknown(&plan);
    plan.unknown.extend(content::doubtful(looked, &plan.salvage)?);
    Ok(plan)
}

/// The producers at the end of the log: the snapshot's bytes, and how the manifest refers to it.
fn producers(
    options: &Options,
    salvage: &Salvage,
    identity: &Identity,
    version: FileVersion,
) -> (Option<Vec<u8>>, Option<ProducerStateRef>) {
    let mut states = salvage.producers.clone();
    states.expire(options.now, options.producer_id_expiration_ms);
    states.advance_to(salvage.next_offset);
    if states.is_empty() {
        return (None, None);
    }
    let (epoch, number, offset) = (version.epoch.get(), version.number, states.end_offset().0);
    (Some(states.to_snapshot(identity)), Some(ProducerStateRef { epoch, number, offset }))
}

impl Plan {
    /// The steps behind the claim, for people, in the order in which they are taken.
    pub(super) fn steps(&self) -> Vec<String> {
        let mut steps: Vec<_> = self.quarantine.iter().map(Quarantined::step).collect();
        for Rewritten { from, to, runs } in &self.rewritten {
            let (Some(first), Some(last)) = (runs.first(), runs.last()) else { continue };
            let bytes: u64 = runs.iter().map(|run| run.bytes).sum();
            let stamped = runs.iter().filter(|run| run.restamped).count();
            let mut step = format!(
                "write {to}.log: {bytes} bytes of {} with offsets {} to {}",
                printable(Path::new(from)),
                first.base_offset,
                last.end_offset.plus(-1)
            );
            if stamped > 0 {
                step.push_str(&format!(
                    "; {stamped} of its batches get the offset and leader epoch back that they had"
                ));
            }
            steps.push(step);
        }
        for Filler { name, end, .. } in &self.fillers {
            steps.push(format!(
                "write {name}.log: no record, in place of offsets {} to {}, so that readers come past them",
                name.base_offset,
                end.plus(-1)
            ));
        }
        for entry in self.reindexed.iter().filter_map(|indexed| self.manifest.segments.get(indexed.at)) {
            if let Some(name) = entry.name() {
                steps.push(format!("build the indexes of {name} from its log"));
            }
        }
        if self.manifest.producer_state.is_some() {
            steps.push(format!("write {}", PRODUCER_STATE.file_name(self.version)));
        }
        if self.identity_is_wrong {
            steps.push(format!("write {PARTITION_FILE} as the directories around say"));
        }
        let Manifest { log_start_offset, next_offset, segments, .. } = &self.manifest;
        steps.push(format!(
            "write {}: {}, offsets {log_start_offset} to {next_offset}",
            MANIFEST.file_name(self.version),
            counted(segments.len() as u64, "segment", "segments")
        ));
        steps
    }

    /// Files that no later leader needs once the new manifest holds, but for those that are moved.
    pub(super) fn unneeded(&self, dir: &Path, view: &View) -> Vec<PathBuf> {
        let kept = self.manifest.by_name();
        let salvaged = self.salvage.segments.iter().filter(|salvaged| salvaged.exists);
        let replaced = salvaged.map(|salvaged| salvaged.source.name).filter(|name| !kept.contains_key(name));
        let replaced = replaced.map(|name| name.path(dir, SegmentFile::Log));
        let is_used =
            |file: &SegmentFileName| kept.get(&file.segment).is_some_and(|entry| entry.refers_to(file));
        let indexes = view.names.indexes.iter().filter(|file| !is_used(file)).map(|file| file.path(dir));
        let checkpoints =
            view.names.checkpoints.iter().map(|version| dir.join(CHECKPOINT.file_name(*version)));
        replaced.chain(indexes).chain(checkpoints).collect()
    }

    /// Why the repair must not be done unless a loss is accepted: segments are there that would be given up, though they can be
    /// read. `None` if there are none.
    pub(super) fn gives_up(&self) -> Option<String> {
        let given_up = self.salvage.segments.iter().filter(|salvaged| salvaged.source.file.is_none());
        let names: Vec<_> = given_up.map(|salvaged| format!("{}.log", salvaged.source.name)).collect();
        (!names.is_empty()).then(|| {
            format!(
                "{}: what is there as {} is whole, and not what was written there: it may be another partition's. Find the segment \
                 that was there and put it back; or repair with --accept-loss, which gives up the records that it had",
                Kind::ForeignSegment.code(),
                names.join(", ")
            )
        })
    }

    /// The offsets that are lost with this repair.
    pub(super) fn lost(&self) -> Vec<Lost> {
        if planted(Bug::RepairSaysNothing) { Vec::new() } else { self.salvage.lost.clone() }
    }
}
