//! One partition directory: what counts according to its manifest, and everything in it against that.
//!
//! The rules of what counts are recovery's (`crate::log::recovery`), followed without writing anything.

mod plan;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread;

use kaas_substrate::{Entry, EntryKind, OpenMode};

use super::finding::{Finding, Kind, Severity};
use super::identity::{self, Expected};
use super::leaders;
use super::producers::{Expiry, Replay};
use super::repair::quarantine::QUARANTINE_DIR;
use super::segment::{Counts, Extent, Planned, SegmentCheck};
use super::strays::{self, Strays};
use super::view::{Names, Read, View, log_path};
use super::{Context, Examined};
use crate::log::{SegmentFileName, SegmentName};
use crate::manifest::versioned::FileVersion;
use crate::manifest::{CHECKPOINT, MANIFEST, Manifest, PRODUCER_STATE, SegmentEntry};
use crate::types::{Epoch, Offset};

/// How often a partition that changes meanwhile is looked at.
const LOOKS_MAX: usize = 3;

/// Problems of one manifest, and unknown names, that are told one by one.
const SHOWN_MAX: usize = 20;

/// Looks at a partition; again if a leader's work may be what was found.
pub(super) fn examine(context: &Context<'_>, dir: &Path, expected: &Expected) -> Examined {
    let mut view = View::read(context.substrate, dir, expected);
    // Bad findings of every look so far.
    let mut lasting: Option<BTreeSet<(Kind, PathBuf)>> = None;
    for look in 1.. {
        let found = match view {
            Ok(found) => found,
            Err(error) => {
                let mut findings = vec![Finding::new(Kind::Unreadable, dir, error.to_string())];
                strays::explain(context.substrate, dir, &mut findings);
                return Examined { findings, counts: Counts::default() };
            }
        };
        let Examined { findings, counts } = look_once(context, dir, &found, expected);
        let in_doubt = findings.iter().any(|finding| finding.racy && finding.severity > Severity::Info);
        if !in_doubt {
            return Examined { findings, counts };
        }
        let bad = findings.iter().filter(|finding| finding.is_bad());
        let bad: BTreeSet<_> = bad.map(|finding| (finding.kind, finding.file.clone())).collect();
        let lasted = lasting.map_or_else(|| bad.clone(), |before| &before & &bad);
        thread::sleep(context.options.second_look_after);
        view = View::read(context.substrate, dir, expected);
        let changed = view.as_ref().map_or(true, |again| *again != found);
        if !changed || look >= LOOKS_MAX {
            let mut examined = Examined { findings, counts };
            if changed {
                // What a leader does looks different each time.
                let of_leader = |finding: &Finding| {
                    finding.is_bad()
                        && finding.racy
                        && !lasted.contains(&(finding.kind, finding.file.clone()))
                };
                examined.findings.retain(|finding| !of_leader(finding));
                let problem = format!(
                    "it changed during each of {look} looks; what was found in one of them only is left out"
                );
                examined.findings.push(Finding::new(Kind::InProgress, dir, problem));
            }
            return examined;
        }
        lasting = Some(lasted);
    }
    Examined::default()
}

/// About how many bytes of a partition will be read, for the progress.
pub(super) fn bytes(context: &Context<'_>, dir: &Path, expected: &Expected) -> u64 {
    let Ok(view) = View::read(context.substrate, dir, expected) else { return 0 };
    let pinned = view.manifest().map(|manifest| manifest.segments.as_slice()).unwrap_or_default();
    let pinned_names: BTreeSet<_> = pinned.iter().filter_map(SegmentEntry::name).collect();
    let length = |name: &SegmentName| {
        let file = context.substrate.open(&log_path(dir, *name), OpenMode::ReadUncached);
        file.and_then(|file| file.length()).unwrap_or(0)
    };
    let others = view.names.logs.iter().filter(|name| !pinned_names.contains(name)).map(length);
    pinned.iter().map(|entry| entry.bytes).chain(others).sum()
}

/// One look at a partition whose names and manifest were read already.
pub(super) fn look_once(context: &Context<'_>, dir: &Path, view: &View, expected: &Expected) -> Examined {
    let mut check = PartitionCheck::new(context, dir, view);
    check.run(expected);
    let PartitionCheck { mut findings, counts, .. } = check;
    strays::explain(context.substrate, dir, &mut findings);
    Examined { findings, counts }
}

/// One look.
struct PartitionCheck<'a> {
    context: &'a Context<'a>,
    dir: &'a Path,
    view: &'a View,
    findings: Vec<Finding>,
    counts: Counts,
    /// Producer snapshots that something refers to.
    snapshots_used: BTreeSet<FileVersion>,
}

impl<'a> PartitionCheck<'a> {
    fn new(context: &'a Context<'a>, dir: &'a Path, view: &'a View) -> Self {
        let (findings, counts, snapshots_used) = (Vec::new(), Counts::default(), BTreeSet::new());
        Self { context, dir, view, findings, counts, snapshots_used }
    }

    fn tell(&mut self, kind: Kind, path: &Path, problem: impl Into<String>) {
        self.findings.push(Finding::new(kind, path, problem));
    }

    fn manifest_path(&self) -> PathBuf {
        match self.view.names.manifests.last() {
            Some(version) => self.dir.join(MANIFEST.file_name(*version)),
            None => self.dir.to_owned(),
        }
    }

    fn run(&mut self, expected: &Expected) {
        identity::check(self.context, self.dir, expected, &mut self.findings);
        self.findings.extend(self.view.foreign.iter().cloned());
        let names = &self.view.names;
        let claims = leaders::check(self.context, self.dir, names.written(), &mut self.findings);
        self.counts.newest = self.counts.newest.max(claims.newest);

        let empty = Manifest::default();
        let manifest = match &self.view.manifest {
            Read::Found { version, content, unsealed } => {
                self.findings.extend(unsealed.as_deref().cloned());
                if content.epoch != version.epoch.get() {
                    let problem = format!("it says epoch {}, its name {}", content.epoch, version.epoch);
                    self.tell(Kind::ManifestImpossible, &self.manifest_path(), problem);
                }
                Some(content)
            }
            Read::Bad(finding) => {
                self.findings.push((**finding).clone());
                None
            }
            Read::Nothing => {
                if !names.logs.is_empty() || !names.checkpoints.is_empty() || !names.snapshots.is_empty() {
                    let (logs, checkpoints, snapshots) =
                        (names.logs.len(), names.checkpoints.len(), names.snapshots.len());
                    let problem = format!(
                        "there is none, and there are {logs} segments, {checkpoints} checkpoints and {snapshots} producer snapshots"
                    );
                    self.tell(Kind::ManifestMissing, self.dir, problem);
                } else if !names.claims.is_empty() {
                    self.tell(Kind::NeverServed, self.dir, "there is no manifest and no segment");
                }
                (names.logs.is_empty()).then_some(&empty)
            }
        };
        match manifest {
            Some(manifest) => self.log(manifest),
            None => self.segments_alone(),
        }
        self.strays(manifest.is_some());
    }

    /// Nothing says what counts: each segment for itself, as far as it goes.
    fn segments_alone(&mut self) {
        let view = self.view;
        for name in &view.names.logs {
            let planned = Planned { name: *name, extent: Extent::Tail, checkpoint: None };
            let mut replay = Replay::new(name.base_offset, self.context.options.producers_max);
            let check = SegmentCheck {
                context: self.context,
                dir: self.dir,
                planned: &planned,
                committed: Offset::ZERO,
                replay: &mut replay,
                counts: &mut self.counts,
                findings: &mut self.findings,
            };
            check.run(name.base_offset);
        }
    }

    /// The segments that count, in order, and what refers to them.
    fn log(&mut self, manifest: &Manifest) {
        self.check_manifest(manifest);
        let mut plan = Vec::new();
        self.plan_pinned(manifest, &mut plan);
        self.plan_unpinned(manifest, &mut plan);
        self.dead_segments(&plan);
        let checkpoint = self.usable_checkpoint(manifest, &mut plan);

        let next_offset = Offset(manifest.next_offset);
        let start = plan.first().map_or(next_offset, |planned| planned.name.base_offset);
        let mut replay = Replay::new(start, self.context.options.producers_max);
        let references = [manifest.producer_state, checkpoint.and_then(|found| found.producer_state)];
        for reference in references.into_iter().flatten() {
            let identity = self.view.identity.as_ref();
            replay.expect(self.context.substrate, self.dir, Some(reference), identity, &mut self.findings);
            self.snapshots_used.extend(
                Epoch::new(reference.epoch).map(|epoch| FileVersion { epoch, number: reference.number }),
            );
        }
        // Batches may be gone, and their producers known still.
        self.counts.highest_producer = self.counts.highest_producer.max(replay.highest_expected());
        let committed = Offset(manifest.high_watermark);
        let (mut end, mut whole, mut has_tail, mut rewritten) = (start, true, false, false);
        for planned in &plan {
            let base = planned.name.base_offset;
            let pinned = matches!(planned.extent, Extent::Pinned(_));
            if rewritten && !pinned {
                // What was appended goes on behind what is pinned; offsets may be missing in between.
                end = end.max(next_offset);
            }
            rewritten = planned.name.is_rewritten();
            if base > end {
                // Before or behind a rewritten one: whatever stood in between is gone.
                replay.rewritten_up_to(base);
            }
            if whole && base != end && !pinned {
                let problem = format!("the segments before it end at offset {end}");
                let finding =
                    Finding::new(Kind::SegmentsDoNotFollow, &log_path(self.dir, planned.name), problem);
                self.findings.push(finding.offset(base));
                replay.break_off("the segments do not follow one another");
            }
            has_tail = matches!(planned.extent, Extent::Tail);
            let check = SegmentCheck {
                context: self.context,
                dir: self.dir,
                planned,
                committed,
                replay: &mut replay,
                counts: &mut self.counts,
                findings: &mut self.findings,
            };
            let outcome = check.run(base);
            (end, whole) = (outcome.end, outcome.whole);
        }
        if plan.is_empty() || rewritten {
            let options = self.context.options;
            let expiry = Expiry { now: options.now, expiration_ms: options.producer_id_expiration_ms };
            if next_offset > end {
                replay.rewritten_up_to(next_offset);
            }
            replay.between(end, end.max(next_offset), expiry, &mut self.findings);
            end = end.max(next_offset);
        }
        replay.finish(self.dir, end, &mut self.findings);
        if !has_tail && committed > end {
            let problem = format!("the log ends at offset {end}; everything below {committed} was committed");
            let finding = Finding::new(Kind::CommittedRecordsMissing, self.dir, problem);
            self.findings.push(finding.offset(end));
        }
        self.check_log_start(manifest, start, end);
    }

    fn check_manifest(&mut self, manifest: &Manifest) {
        let Manifest { log_start_offset, high_watermark, next_offset, .. } = *manifest;
        let mut problems = Vec::new();
        if log_start_offset < 0 || next_offset < 0 {
            problems.push("an offset is negative".to_owned());
        }
        if high_watermark < log_start_offset {
            problems.push(format!(
                "the high watermark {high_watermark} is below the log start offset {log_start_offset}"
            ));
        }
        if let Some(reference) = manifest.producer_state
            && reference.offset != next_offset
        {
            problems.push(format!(
                "its producer snapshot is of offset {}, its next offset is {next_offset}",
                reference.offset
            ));
        }
        for pair in manifest.segments.windows(2) {
            if let [first, second] = pair
                && !first.may_precede(second)
            {
                problems.push(format!(
                    "the segment at {} does not follow the one at {}, which ends at {}",
                    second.base_offset, first.base_offset, first.end_offset
                ));
            }
        }
        if let Some(last) = manifest.segments.last().filter(|last| !last.may_end_before(next_offset)) {
            problems.push(format!(
                "its segments end at offset {}, its next offset is {next_offset}",
                last.end_offset
            ));
        }
        for problem in problems.into_iter().take(SHOWN_MAX) {
            self.tell(Kind::ManifestImpossible, &self.manifest_path(), problem);
        }
    }

    fn check_log_start(&mut self, manifest: &Manifest, start: Offset, end: Offset) {
        let log_start = Offset(manifest.log_start_offset);
        let problem = if log_start > end {
            format!("the log start offset {log_start} is behind the log's end at {end}")
        } else if log_start < start && manifest.segments.first().is_none_or(|entry| entry.generation == 0) {
            format!("the log starts at offset {log_start}; its first segment begins at {start}")
        } else {
            return;
        };
        let finding = Finding::new(Kind::LogStartOutOfRange, &self.manifest_path(), problem);
        self.findings.push(finding.offset(log_start));
    }

    /// What lies about: told once a kind, except for what nobody knows.
    fn strays(&mut self, has_manifest: bool) {
        let names = &self.view.names;
        let mut strays = Strays::new(self.dir, &mut self.findings);
        for (name, kind) in &names.wrong_types {
            strays.wrong_type(name, *kind, EntryKind::File);
        }
        for (name, kind) in &names.unknown {
            strays.other(&Entry { name: name.clone(), kind: *kind });
        }
        if names.quarantine {
            let problem = "a repair has put something aside";
            self.findings.push(Finding::new(Kind::Quarantine, &self.dir.join(QUARANTINE_DIR), problem));
        }
        let orphans: Vec<_> =
            names.indexes.iter().filter(|file| !names.logs.contains(&file.segment)).collect();
        let mut several = |kind: Kind, what: &str, count: usize, first: Option<String>| {
            if let Some(first) = first {
                let problem = match count {
                    1 => what.to_owned(),
                    _ => format!("{what} (one of {count})"),
                };
                self.findings.push(Finding::new(kind, &self.dir.join(first), problem));
            }
        };
        let first = orphans.first().map(|file| file.to_string());
        several(Kind::OrphanIndex, "an index file without its segment", orphans.len(), first);
        let first = names.temporary.first().and_then(|name| Some(name.to_str()?.to_owned()));
        several(Kind::Temporary, "a temporary file", names.temporary.len(), first);

        let old = names.manifests.len().saturating_sub(1);
        let first = names.manifests.first().filter(|_| old > 0).map(|version| MANIFEST.file_name(*version));
        several(Kind::Replaced, "an older manifest", old, first);
        let old = names.checkpoints.len().saturating_sub(1);
        let first =
            names.checkpoints.first().filter(|_| old > 0).map(|version| CHECKPOINT.file_name(*version));
        several(Kind::Replaced, "an older checkpoint", old, first);
        if let Some(manifest) = self.view.manifest() {
            let superseded = superseded(names, manifest);
            let first = superseded.first().map(|file| file.to_string());
            several(Kind::Replaced, "an index file that nothing refers to", superseded.len(), first);
        }
        if has_manifest {
            let unused: Vec<_> = names.snapshots.difference(&self.snapshots_used).collect();
            let first = unused.first().map(|version| PRODUCER_STATE.file_name(**version));
            several(Kind::Replaced, "a producer snapshot that nothing refers to", unused.len(), first);
        }
    }
}

/// Index files beside their segment that nobody reads any more: others have been written in their place.
fn superseded<'a>(names: &'a Names, manifest: &Manifest) -> Vec<&'a SegmentFileName> {
    let pinned = manifest.by_name();
    let is_used = |file: &SegmentFileName| match pinned.get(&file.segment) {
        Some(entry) => entry.refers_to(file),
        // What its own leader writes, a checkpoint may refer to.
        None => file.version.is_none(),
    };
    names.indexes.iter().filter(|file| names.logs.contains(&file.segment) && !is_used(file)).collect()
}
