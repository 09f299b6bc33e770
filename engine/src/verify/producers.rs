//! The producer snapshots against the log: replaying the headers must give what the snapshot says.
//!
//! Neither knows everything. The replay begins at the first record that is still there, so a snapshot may know
//! producers, batches and transactions from before; and where segments were rewritten it meets only some batches. A
//! snapshot forgets producers that were idle for `producer.id.expiration.ms`, and the replay does not. Only what none
//! of these can explain is a finding.

use std::path::{Path, PathBuf};

use kaas_substrate::{Substrate, read_small};

use super::finding::{Finding, Kind};
use super::view::{FILE_BYTES_MAX, foreign};
use crate::batch::{BatchHeader, EndMarker};
use crate::identity::Identity;
use crate::manifest::versioned::FileVersion;
use crate::manifest::{PRODUCER_STATE, ProducerStateRef};
use crate::producer_state::{
    BATCHES_KEPT, BatchMetadata, CompletedTransaction, ProducerEntry, ProducerStates, SnapshotError,
};
use crate::types::{Epoch, Offset, ProducerId, Timestamp};

/// Differences that are told one by one.
const DIFFERENCES_MAX: usize = 3;

/// The producers as the batches tell, from the first batch that is there.
#[derive(Debug)]
pub(super) struct Replay {
    states: ProducerStates,
    /// Where the replay began: what lies before it is not known.
    start: Offset,
    /// The end of the last rewritten segment: below it batches may be missing.
    rewritten_end: Offset,
    /// Why the replay says nothing any more.
    broken: Option<String>,
    producers_max: usize,
    snapshots: Vec<Snapshot>,
}

/// A snapshot that the manifest or the checkpoint refers to.
#[derive(Debug)]
struct Snapshot {
    path: PathBuf,
    offset: Offset,
    states: ProducerStates,
    compared: bool,
}

/// What the comparison goes by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expiry {
    pub(super) now: Timestamp,
    pub(super) expiration_ms: i64,
}

impl Expiry {
    /// Whether a producer whose last batch has this timestamp may have been forgotten at some time until now.
    fn may_have_expired(self, last: Timestamp) -> bool {
        self.now.0.saturating_sub(last.0) >= self.expiration_ms
    }
}

impl Replay {
    pub(super) fn new(start: Offset, producers_max: usize) -> Self {
        Self {
            states: ProducerStates::new(),
            start,
            rewritten_end: Offset::ZERO,
            broken: None,
            producers_max,
            snapshots: Vec::new(),
        }
    }

    /// A rewritten segment comes, which ends at `end`.
    pub(super) fn rewritten_up_to(&mut self, end: Offset) {
        self.rewritten_end = self.rewritten_end.max(end);
    }

    /// From here on the replay meets every batch.
    pub(super) fn known_from(&self) -> Offset {
        self.start.max(self.rewritten_end)
    }

    /// Reads the snapshot that `reference` names, to be compared when the replay comes to its offset.
    pub(super) fn expect(
        &mut self,
        substrate: &dyn Substrate,
        dir: &Path,
        reference: Option<ProducerStateRef>,
        identity: Option<&Identity>,
        findings: &mut Vec<Finding>,
    ) {
        let Some(reference) = reference else { return };
        let Some(epoch) = Epoch::new(reference.epoch) else {
            let problem =
                format!("it refers to a producer snapshot of the impossible epoch {}", reference.epoch);
            findings.push(Finding::new(Kind::SnapshotMissing, dir, problem));
            return;
        };
        let version = FileVersion { epoch, number: reference.number };
        let path = dir.join(PRODUCER_STATE.file_name(version));
        if self.snapshots.iter().any(|snapshot| snapshot.path == path) {
            return;
        }
        match read_states(substrate, &path, reference.offset, identity) {
            Ok(states) => {
                let offset = Offset(reference.offset);
                self.snapshots.push(Snapshot { path, offset, states, compared: false });
            }
            Err(finding) => findings.push(*finding),
        }
    }

    /// The highest producer id in the snapshots that were read.
    pub(super) fn highest_expected(&self) -> Option<ProducerId> {
        self.snapshots.iter().flat_map(|snapshot| snapshot.states.producers()).map(|(id, _)| id).max()
    }

    /// From here on the replay is not complete.
    pub(super) fn break_off(&mut self, reason: &str) {
        self.broken.get_or_insert_with(|| reason.to_owned());
        self.states = ProducerStates::new();
    }

    /// Takes in a batch; what transaction it ended.
    pub(super) fn batch(
        &mut self,
        header: &BatchHeader,
        marker: Option<EndMarker>,
    ) -> Option<CompletedTransaction> {
        if self.broken.is_some() {
            return None;
        }
        let ended = self.states.replay(header, marker);
        if ended.is_some() {
            self.states.on_high_watermark(header.next_offset());
        }
        if self.states.len() > self.producers_max {
            self.break_off(&format!("there are more than {} producers", self.producers_max));
        }
        ended
    }

    /// Whether the replay knows every batch since its start.
    pub(super) fn is_complete(&self) -> bool {
        self.broken.is_none()
    }

    /// Compares the snapshots of a batch boundary: of the offset `to`, where the last batch ended at `from` or before.
    pub(super) fn between(&mut self, from: Offset, to: Offset, expiry: Expiry, findings: &mut Vec<Finding>) {
        let compacted = self.rewritten_end > self.start;
        let comparison = Comparison { known_from: self.known_from(), compacted, expiry };
        if self.broken.is_some() {
            return;
        }
        for snapshot in self.snapshots.iter_mut().filter(|snapshot| (from..=to).contains(&snapshot.offset)) {
            if std::mem::replace(&mut snapshot.compared, true) {
                continue;
            }
            let differences = comparison.differences(&self.states, &snapshot.states);
            if differences.is_empty() {
                continue;
            }
            let mut problem =
                differences.iter().take(DIFFERENCES_MAX).cloned().collect::<Vec<_>>().join("; ");
            if differences.len() > DIFFERENCES_MAX {
                problem.push_str(&format!("; and {} more", differences.len() - DIFFERENCES_MAX));
            }
            let finding = Finding::new(Kind::SnapshotDiffers, &snapshot.path, problem);
            findings.push(finding.offset(snapshot.offset));
        }
    }

    /// What is to be said at the end of the log.
    pub(super) fn finish(&mut self, dir: &Path, end: Offset, findings: &mut Vec<Finding>) {
        if self.snapshots.iter().all(|snapshot| snapshot.compared) {
            return;
        }
        if let Some(reason) = &self.broken {
            let problem = format!("not compared with the log: {reason}");
            findings.push(Finding::new(Kind::ProducersNotCompared, dir, problem));
            return;
        }
        for snapshot in self.snapshots.iter().filter(|snapshot| !snapshot.compared) {
            let problem = format!(
                "it is of offset {}, where no batch begins in the log from {} to {end}",
                snapshot.offset, self.start
            );
            findings
                .push(Finding::new(Kind::SnapshotDiffers, &snapshot.path, problem).offset(snapshot.offset));
        }
    }
}

/// The producers of a snapshot file that is referred to as of `offset`; `identity` says whose it must be, if that is known.
pub(super) fn read_states(
    substrate: &dyn Substrate,
    path: &Path,
    offset: i64,
    identity: Option<&Identity>,
) -> Result<ProducerStates, Box<Finding>> {
    let finding = |kind, problem: String| Box::new(Finding::new(kind, path, problem));
    let bytes = read_small(substrate, path, FILE_BYTES_MAX).map_err(|error| {
        if error.is_not_found() {
            return finding(Kind::SnapshotMissing, "it is referred to, but it is not there".into());
        }
        finding(Kind::Unreadable, error.to_string())
    })?;
    let (found, states) = ProducerStates::from_snapshot(&bytes).map_err(|error| {
        let kind = match error {
            SnapshotError::NewerFormat { .. } => Kind::NewerFormat,
            _ => Kind::SnapshotDamaged,
        };
        finding(kind, error.to_string())
    })?;
    if let Some(finding) = foreign(identity, &found, path) {
        return Err(Box::new(finding));
    }
    if states.end_offset().0 != offset {
        let problem = format!("it ends at offset {}, but is referred to as of {offset}", states.end_offset());
        return Err(finding(Kind::SnapshotDamaged, problem));
    }
    Ok(states)
}

/// Compares two states of one offset.
#[derive(Debug, Clone, Copy)]
struct Comparison {
    /// Where the replay knows every batch from.
    known_from: Offset,
    /// Whether some batches before that were met, and others not.
    compacted: bool,
    expiry: Expiry,
}

impl Comparison {
    fn differences(self, replayed: &ProducerStates, snapshot: &ProducerStates) -> Vec<String> {
        let mut differences = Vec::new();
        for (id, entry) in snapshot.producers() {
            let problem = match replayed.producer(id) {
                Some(seen) => self.difference(seen, entry),
                None => self.unseen(entry),
            };
            differences.extend(problem.map(|problem| format!("producer {id}: {problem}")));
        }
        for (id, seen) in replayed.producers() {
            if snapshot.producer(id).is_none() && !self.may_be_absent(seen) {
                differences.push(format!("producer {id} is missing"));
            }
        }
        differences.sort_unstable();
        differences
    }

    /// A producer that the snapshot has and the log has not: all it wrote must have been deleted, or compacted away.
    fn unseen(self, entry: &ProducerEntry) -> Option<String> {
        let last = entry.batches.last()?;
        (last.last_offset >= self.known_from)
            .then(|| format!("its batch at offset {} is not in the log", last.base_offset()))
    }

    fn may_be_absent(self, seen: &ProducerEntry) -> bool {
        seen.transaction_first_offset.is_none() && self.expiry.may_have_expired(seen.last_timestamp)
    }

    fn difference(self, seen: &ProducerEntry, entry: &ProducerEntry) -> Option<String> {
        let last = entry.batches.last().map(|batch| batch.last_offset);
        if self.compacted && last.is_none_or(|last| last < self.known_from) {
            // Whatever came last of it may have been compacted away.
            return None;
        }
        if seen.epoch != entry.epoch {
            return Some(format!("epoch {} instead of {}", entry.epoch, seen.epoch));
        }
        // A marker of the coordinator may be older than the log, or than the producer's expiry.
        let markers = (entry.coordinator_epoch, seen.coordinator_epoch);
        let forgotten = markers.0 < 0 && self.expiry.may_have_expired(seen.last_timestamp);
        let removed = self.compacted && seen.coordinator_epoch < entry.coordinator_epoch;
        if seen.coordinator_epoch >= 0 && markers.0 != markers.1 && !forgotten && !removed {
            return Some(format!("coordinator epoch {} instead of {}", markers.0, markers.1));
        }
        if seen.last_timestamp != entry.last_timestamp {
            return Some(format!(
                "last timestamp {} instead of {}",
                entry.last_timestamp, seen.last_timestamp
            ));
        }
        match (entry.transaction_first_offset, seen.transaction_first_offset) {
            (Some(first), Some(other)) if first == other || first < self.known_from => {}
            // Its records are deleted, its end is still to come.
            (Some(first), None) if first < self.known_from => {}
            // Its end was among what is gone.
            (None, Some(other)) if self.compacted && other < self.known_from => {}
            (None, None) => {}
            (first, other) => {
                let show =
                    |offset: Option<Offset>| offset.map_or("none".to_owned(), |offset| offset.to_string());
                return Some(format!("open transaction {} instead of {}", show(first), show(other)));
            }
        }
        self.batches(self.met(seen), self.met(entry))
    }

    /// A producer's batches; without those that the replay may not have met, where segments were rewritten.
    fn met(self, entry: &ProducerEntry) -> &[BatchMetadata] {
        let batches = entry.batches.batches();
        let first = batches.partition_point(|batch| self.compacted && batch.last_offset < self.known_from);
        batches.get(first..).unwrap_or_default()
    }

    /// The newest batches must agree as far as both know them.
    fn batches(self, seen: &[BatchMetadata], snapshot: &[BatchMetadata]) -> Option<String> {
        let common = seen.len().min(snapshot.len());
        let newest =
            |batches: &[BatchMetadata]| batches.iter().rev().take(common).copied().collect::<Vec<_>>();
        if newest(seen) != newest(snapshot) {
            return Some("other batches than those in the log".into());
        }
        let (more_seen, more_known) = (seen.len() - common, snapshot.len() - common);
        if let Some(extra) = snapshot.get(..more_known).and_then(<[_]>::last)
            && extra.last_offset >= self.known_from
        {
            return Some(format!("a batch at offset {} that is not in the log", extra.base_offset()));
        }
        if let Some(forgotten) = seen.get(..more_seen).and_then(<[_]>::last)
            && snapshot.len() < BATCHES_KEPT
            && !self.expiry.may_have_expired(forgotten.timestamp)
        {
            return Some(format!("the batch at offset {} is missing", forgotten.base_offset()));
        }
        None
    }
}
