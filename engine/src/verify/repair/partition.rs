//! Repairing one partition: as its next leader.

use std::path::Path;
use std::sync::Arc;

use kaas_substrate::Substrate;

use super::claimed_dir::ClaimedDir;
use super::controller_guard::ControllerGuard;
use super::looked::Looked;
use super::plan::{self, Plan};
use super::{Mode, Repaired, act, said, salvage, unfinished};
use crate::leadership::Leadership;
use crate::planted::{Bug, planted};
use crate::types::Epoch;
use crate::verify::finding::{Finding, Kind};
use crate::verify::identity::Expected;
use crate::verify::view::{View, log_path};
use crate::verify::{Context, partition};

pub(super) struct PartitionRepair<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) substrate: &'a Arc<dyn Substrate>,
    pub(super) dir: &'a Path,
    pub(super) expected: &'a Expected,
    pub(super) mode: &'a Mode,
    pub(super) guard: &'a ControllerGuard<'a>,
}

impl PartitionRepair<'_> {
    /// `None` if nothing is wrong there.
    pub(super) fn run(&self) -> Option<Repaired> {
        let findings = partition::examine(self.context, self.dir, self.expected).findings;
        let mut repaired = Repaired::of(self.dir, &findings)?;
        let claimed = ClaimedDir::new(self.context, self.substrate, self.dir, self.guard, &findings);
        if !findings.iter().any(|finding| self.can_do_anything(finding)) {
            repaired.reason = Some("nothing of what was found can be repaired".to_owned());
        }
        let refusal = plan::refusal(&findings, self.expected).or_else(|| claimed.refusal());
        repaired.reason = refusal.or(repaired.reason);
        if repaired.reason.is_some() {
            return Some(repaired);
        }
        match self.repair(&claimed, &findings) {
            Ok((plan, epoch, acted)) => {
                repaired.lost = plan.lost();
                if let Err(error) = acted {
                    repaired.reason = Some(unfinished(&error, !repaired.lost.is_empty()));
                    return Some(repaired);
                }
                repaired.outcome = self.mode.done();
                repaired.steps = claimed.steps(epoch);
                repaired.steps.extend(plan.steps());
                repaired.unknown = plan.unknown;
            }
            Err(reason) => repaired.reason = Some(reason),
        }
        Some(repaired)
    }

    /// Directories and links that do not belong are left to a person.
    fn can_do_anything(&self, finding: &Finding) -> bool {
        finding.is_bad()
            && plan::is_repairable(finding.kind)
            && (finding.kind != Kind::UnknownFile || super::is_file(self.context, &finding.file))
    }

    /// What is done, at which epoch, and whether it came to its end.
    fn repair(
        &self,
        claimed: &ClaimedDir<'_>,
        findings: &[Finding],
    ) -> Result<(Plan, Epoch, Result<(), String>), String> {
        let view = self.look()?;
        if findings.iter().any(|finding| finding.kind == Kind::ForeignSegment) {
            // What cannot be repaired is said before anything is claimed.
            self.plan(&view, findings, Epoch::NONE)?;
        }
        let written = view.names.written().unwrap_or(Epoch::NONE);
        let (epoch, leadership) = claimed.epoch(self.mode, written)?;
        match leadership {
            None => Ok((self.plan(&view, findings, epoch)?, epoch, Ok(()))),
            Some(leadership) => {
                let (plan, acted) = self.act(claimed, &leadership, view)?;
                Ok((plan, epoch, acted))
            }
        }
    }

    fn act(
        &self,
        claimed: &ClaimedDir<'_>,
        leadership: &Leadership,
        before: View,
    ) -> Result<(Plan, Result<(), String>), String> {
        // What a leader did before it was fenced out is seen only now.
        let view = if planted(Bug::RepairTrustsFirstLook) { before } else { self.look()? };
        self.make_durable(&view)?;
        let findings = partition::look_once(self.context, self.dir, &view, self.expected).findings;
        if let Some(reason) = plan::refusal(&findings, self.expected) {
            return Err(reason);
        }
        let mut plan = self.plan(&view, &findings, leadership.epoch())?;
        let acted = claimed
            .fill(leadership)
            .map_err(Into::into)
            .and_then(|()| act::act(self.substrate, self.dir, &view, &mut plan, leadership))
            .map_err(|error| said(&error));
        Ok((plan, acted))
    }

    fn look(&self) -> Result<View, String> {
        View::read(self.context.substrate, self.dir, self.expected).map_err(|error| said(&error))
    }

    /// What no manifest has pinned is on stable storage before it is looked at, so that it reads the same afterwards.
    fn make_durable(&self, view: &View) -> Result<(), String> {
        let sources = salvage::sources(self.context, self.dir, view, view.manifest());
        let sources = sources.map_err(|error| said(&error))?;
        for source in sources.iter().filter(|source| source.entry.is_none()) {
            let path = log_path(self.dir, source.name);
            match self.context.substrate.make_durable(&path, u64::MAX) {
                Err(error) if !error.is_not_found() => return Err(said(&error)),
                _ => {}
            }
        }
        Ok(())
    }

    fn plan(&self, view: &View, findings: &[Finding], epoch: Epoch) -> Result<Plan, String> {
        let looked = Looked { context: self.context, dir: self.dir, view, findings };
        let identity = view.identity.clone().ok_or("nothing says which partition it is")?;
        let plan = plan::plan(&looked, identity, epoch).map_err(|error| said(&error))?;
        match plan.gives_up().filter(|_| !self.context.options.accept_loss) {
            Some(reason) => Err(reason),
            None => Ok(plan),
        }
    }
}
