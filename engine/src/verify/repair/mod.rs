//! `kaas-engine verify --repair`: keeps every record that can be read, and puts in order what is around them.
//!
//! A partition is repaired by its next leader: the repair claims the next epoch, so whoever leads is fenced out and can
//! acknowledge nothing more; it reads what counts as a new leader does; it writes a manifest of its own, which pins all
//! that can be read. The next leader opens it as after a clean close. Segments are never changed in place: what stands
//! behind damage is written as a new, rewritten segment, as compaction does. What cannot be read, and what does not
//! belong there, goes to `quarantine/`.
//!
//! # What a repair never does
//!
//! - make a record unreadable that counted and can be read;
//! - give an offset to a record that another record may have had: where the end of the log is lost, the next record goes
//!   behind everything that was ever promised;
//! - touch a partition where nothing is wrong, or that it cannot understand (a newer format, a foreign directory, a
//!   volume that gives errors).

mod act;
mod layout;
mod looked;
mod plan;
pub(super) mod quarantine;
mod salvage;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kaas_substrate::{OpenMode, RECORD_BYTES, RECORD_ZERO_AT, Substrate};
use serde::Serialize;

use super::finding::{Finding, Severity};
use super::identity::Expected;
use super::tree::parallel;
use super::view::{View, log_path};
use super::{Context, Options, Progress, Report, partition};
use crate::leadership::{self, ClaimError, Claimant, FENCE_NAME};
use crate::types::Epoch;
use looked::Looked;
use plan::Plan;
pub use salvage::Lost;

/// How often an epoch that somebody else took meanwhile is followed by a higher one.
const CLAIMS_MAX: u32 = 8;

/// Whether a repair writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// Nothing is written; the steps are those that a repair would take.
    DryRun,
    /// Claims what it repairs, as this one.
    Repair(Claimant),
}

/// What became of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The steps were taken.
    Repaired,
    /// The steps would be taken.
    WouldRepair,
    /// It must be left as it is, or the repair could not come to its end; the reason says why.
    Refused,
}

/// What was done to one directory, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Repaired {
    /// The directory, relative to the volume's root.
    pub directory: PathBuf,
    pub outcome: Outcome,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What is done, in order.
    pub steps: Vec<String>,
    /// Offsets that counted and that no file has any more.
    pub lost: Vec<Lost>,
    /// What cannot be known any more.
    pub unknown: Vec<String>,
    /// How many findings there were, errors and warnings.
    pub findings: usize,
}

/// Repairs every partition in which `report` has found something, side by side. `report` is of the same substrate, just now.
/// What became of each, in the order of their directories. Blocks for as long as it takes.
pub fn repair(
    substrate: &Arc<dyn Substrate>,
    report: &Report,
    options: &Options,
    mode: &Mode,
    progress: &Progress,
) -> Vec<Repaired> {
    progress.directories_total.store(report.to_repair.len() as u64, Ordering::Relaxed);
    let repaired = parallel(options.threads, &report.to_repair, |(dir, expected)| {
        let repaired = repair_partition(substrate, dir, expected, options, mode, progress);
        progress.directories.fetch_add(1, Ordering::Relaxed);
        repaired
    });
    repaired.into_iter().flatten().collect()
}

/// Repairs the partition in `dir`, relative to the substrate's root; `None` if nothing is wrong there. Blocks for as long as
/// reading it takes, up to three times. A failing volume makes it [`Outcome::Refused`]; it may be repeated then.
pub fn repair_partition(
    substrate: &Arc<dyn Substrate>,
    dir: &Path,
    expected: &Expected,
    options: &Options,
    mode: &Mode,
    progress: &Progress,
) -> Option<Repaired> {
    let context = Context { substrate: substrate.as_ref(), options, progress };
    let examined = partition::examine(&context, dir, expected);
    let mut repair = Repair { context, substrate, dir, expected, mode };
    repair.run(&examined.findings)
}

struct Repair<'a> {
    context: Context<'a>,
    substrate: &'a Arc<dyn Substrate>,
    dir: &'a Path,
    expected: &'a Expected,
    mode: &'a Mode,
}

impl Repair<'_> {
    fn run(&mut self, findings: &[Finding]) -> Option<Repaired> {
        let bad = findings.iter().filter(|finding| finding.severity > Severity::Info);
        let count = bad.clone().count();
        if count == 0 {
            return None;
        }
        let mut repaired = Repaired {
            directory: self.dir.to_owned(),
            outcome: Outcome::Refused,
            reason: None,
            steps: Vec::new(),
            lost: Vec::new(),
            unknown: Vec::new(),
            findings: count,
        };
        if !bad.clone().any(|finding| self.can_do_anything(finding)) {
            repaired.reason = Some("nothing of what was found can be repaired".to_owned());
        }
        if let Some(reason) = plan::refusal(findings, self.expected) {
            repaired.reason = Some(reason);
        }
        if repaired.reason.is_some() {
            return Some(repaired);
        }
        match self.repair(findings) {
            Ok(plan) => {
                repaired.outcome = match self.mode {
                    Mode::DryRun => Outcome::WouldRepair,
                    Mode::Repair(_) => Outcome::Repaired,
                };
                repaired.steps = plan.steps();
                repaired.lost = plan.lost();
                repaired.unknown = plan.unknown;
            }
            Err(reason) => repaired.reason = Some(reason),
        }
        Some(repaired)
    }

    /// Directories and links that do not belong are left to a person.
    fn can_do_anything(&self, finding: &Finding) -> bool {
        let kind = finding.kind;
        let is_file = || self.context.substrate.open(&finding.file, OpenMode::Read).is_ok();
        plan::is_repairable(kind) && (kind != super::Kind::UnknownFile || is_file())
    }

    fn repair(&self, findings: &[Finding]) -> Result<Plan, String> {
        let view = self.look()?;
        let Mode::Repair(claimant) = self.mode else {
            return self.plan(&view, findings, self.next_epoch(&view)?);
        };
        let leadership = self.claim(&view, claimant)?;
        // What a leader did before it was fenced out is seen only now.
        let view = self.look()?;
        self.make_durable(&view)?;
        let examined = partition::look_once(&self.context, self.dir, &view, self.expected);
        let findings = examined.findings;
        if let Some(reason) = plan::refusal(&findings, self.expected) {
            return Err(reason);
        }
        let mut plan = self.plan(&view, &findings, leadership.epoch())?;
        act::act(self.substrate, self.dir, &view, &mut plan, &leadership)
            .map_err(|error| format!("{error}; what counted still does, and the repair may be repeated"))?;
        Ok(plan)
    }

    fn look(&self) -> Result<View, String> {
        let view = View::read(self.context.substrate, self.dir).map_err(|error| error.to_string())?;
        if view.names.unknown.iter().any(|name| name == quarantine::QUARANTINE_DIR) {
            // A link would lead out of the directory.
            return Err("quarantine is there, and is no directory: move it out of the way".to_owned());
        }
        Ok(view)
    }

    /// What no manifest has pinned is on stable storage before it is looked at, so that it reads the same afterwards.
    fn make_durable(&self, view: &View) -> Result<(), String> {
        for source in salvage::sources(view, view.manifest()).iter().filter(|source| source.entry.is_none()) {
            let path = log_path(self.dir, source.name);
            match self.context.substrate.make_durable(&path, u64::MAX) {
                Err(error) if !error.is_not_found() => return Err(error.to_string()),
                _ => {}
            }
        }
        Ok(())
    }

    fn plan(&self, view: &View, findings: &[Finding], epoch: Epoch) -> Result<Plan, String> {
        let looked = Looked { context: &self.context, dir: self.dir, view, findings };
        plan::plan(&looked, self.expected, epoch).map_err(|error| error.to_string())
    }

    /// The epoch behind every one that anybody has claimed, or has left a file of.
    fn next_epoch(&self, view: &View) -> Result<Epoch, String> {
        let claimed =
            leadership::highest(self.context.substrate, self.dir).map_err(|error| error.to_string())?;
        let versions = [&view.names.manifests, &view.names.checkpoints, &view.names.snapshots];
        let written = versions.into_iter().flatten().map(|version| version.epoch);
        let written = written.chain(view.names.logs.iter().map(|name| name.epoch)).max();
        let next = claimed.max(written.unwrap_or(Epoch::NONE)).next();
        // A piece of a record at the fence's end would be damage to whoever leads below it: it is claimed, and written over.
        let fence = self.context.substrate.open(&self.dir.join(FENCE_NAME), OpenMode::ReadUncached);
        let bytes = fence.and_then(|fence| fence.length()).map_err(|error| error.to_string())?;
        let piece = ![0, RECORD_ZERO_AT as u64 + 1].contains(&(bytes % RECORD_BYTES as u64));
        let at = u32::try_from(bytes / RECORD_BYTES as u64).ok().and_then(Epoch::new).filter(|_| piece);
        Ok(next.max(at.unwrap_or(next)))
    }

    fn claim(&self, view: &View, claimant: &Claimant) -> Result<leadership::Leadership, String> {
        let mut epoch = self.next_epoch(view)?;
        for _ in 0..CLAIMS_MAX {
            match leadership::claim(self.substrate, self.dir, epoch, claimant) {
                Ok(leadership) => return Ok(leadership),
                Err(ClaimError::Refused { highest, .. }) => epoch = highest.max(epoch).next(),
                Err(error) => return Err(error.to_string()),
            }
        }
        Err("other claims keep coming: somebody else is leading it again and again".to_owned())
    }
}
