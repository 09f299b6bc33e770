//! Repairing a slot, or the controller's directory: as its next coordinator.
//!
//! What can be read of a slot's journal becomes the journal of the next epoch, as with every takeover. Where acknowledged
//! entries cannot be read, that gives them up, so it is done only if that is accepted.

use std::path::{Path, PathBuf};

use kaas_substrate::{Substrate, printable};

use super::claimed_dir::{ClaimedDir, still_leads};
use super::quarantine::{self, Quarantined};
use super::{Mode, Repaired, is_file, said, unfinished};
use crate::journal::{Salvaged, is_journal_file, make_durable, salvage};
use crate::leadership::Leadership;
use crate::planted::{Bug, planted};
use crate::types::Epoch;
use crate::verify::finding::{Finding, Kind};
use crate::verify::slots;

/// The repair of a directory that is led and has no log.
pub(super) struct SlotRepair<'a> {
    pub(super) claimed: &'a ClaimedDir<'a>,
    pub(super) mode: &'a Mode,
    /// Whether it has a journal: the controller has none.
    pub(super) has_journal: bool,
}

/// What is done.
struct Plan {
    quarantine: Vec<Quarantined>,
    /// What the next journal holds.
    salvaged: Option<Salvaged>,
    steps: Vec<String>,
    left: Vec<String>,
}

impl SlotRepair<'_> {
    fn dir(&self) -> &Path {
        self.claimed.dir
    }

    fn volume(&self) -> &dyn Substrate {
        self.claimed.context.substrate
    }

    /// Repairs, if anything is wrong according to `findings`.
    pub(super) fn run(&self, findings: &[Finding]) -> Option<Repaired> {
        let mut repaired = Repaired::of(self.dir(), findings)?;
        match self.repair(findings) {
            Ok((plan, epoch, acted)) => {
                let given_up = plan.salvaged.map(|salvaged| salvaged.given_up).unwrap_or_default();
                repaired.given_up = if planted(Bug::RepairSaysNothing) { Vec::new() } else { given_up };
                if let Err(error) = acted {
                    repaired.reason = Some(unfinished(&error, !repaired.given_up.is_empty()));
                    return Some(repaired);
                }
                repaired.outcome = self.mode.done();
                repaired.steps = self.claimed.steps(epoch);
                repaired.steps.extend(plan.steps);
                repaired.left = plan.left;
            }
            Err(reason) => repaired.reason = Some(reason),
        }
        Some(repaired)
    }

    /// What is done, at which epoch, and whether it came to its end.
    fn repair(&self, findings: &[Finding]) -> Result<(Plan, Epoch, Result<(), String>), String> {
        self.refusal(findings).or_else(|| self.claimed.refusal()).map_or(Ok(()), Err)?;
        // What cannot be repaired is said before anything is claimed.
        let plan = self.plan(findings, None)?;
        let written = self.written().map_err(|error| said(&error))?;
        if !self.has_journal {
            // A controller that runs does not take its place back.
            self.claimed.guard.lock()?;
        }
        let (epoch, leadership) = self.claimed.epoch(self.mode, written)?;
        let Some(leadership) = leadership else {
            return Ok((self.plan(findings, Some(epoch))?, epoch, Ok(())));
        };
        drop(plan);
        // What a coordinator did before it was deposed is seen only now.
        make_durable(self.volume(), self.dir()).map_err(|error| said(&error))?;
        let findings = self.look();
        self.refusal(&findings).map_or(Ok(()), Err)?;
        let plan = self.plan(&findings, Some(epoch))?;
        let acted = self.act(&plan, &leadership);
        Ok((plan, epoch, acted))
    }

    fn look(&self) -> Vec<Finding> {
        let examine = if self.has_journal { slots::examine } else { slots::examine_controller };
        examine(self.claimed.context, self.dir()).findings
    }

    fn refusal(&self, findings: &[Finding]) -> Option<String> {
        let blocks = |finding: &&Finding| {
            matches!(finding.kind, Kind::NewerFormat | Kind::Unreadable | Kind::WrongType)
        };
        let finding = findings.iter().find(blocks)?;
        Some(format!("{}: {}. {}", finding.kind.code(), finding.problem, finding.action))
    }

    /// The highest epoch that has left a journal or snapshot.
    fn written(&self) -> kaas_substrate::Result<Epoch> {
        if !self.has_journal {
            return Ok(self.claimed.guard.written());
        }
        let entries = self.volume().list(self.dir())?;
        let written = entries.iter().filter_map(|entry| is_journal_file(&entry.name));
        Ok(written.map(|version| version.epoch).max().unwrap_or(Epoch::NONE))
    }

    /// What is done at `epoch`, if that is known already.
    fn plan(&self, findings: &[Finding], epoch: Option<Epoch>) -> Result<Plan, String> {
        let mut plan = Plan { quarantine: Vec::new(), salvaged: None, steps: Vec::new(), left: Vec::new() };
        if self.has_journal {
            self.journal(epoch, &mut plan)?;
        }
        for finding in findings.iter().filter(|finding| finding.is_bad()) {
            let name = finding.file.file_name().unwrap_or_default();
            match finding.kind {
                Kind::UnknownFile if is_file(self.claimed.context, &finding.file) => {
                    plan.quarantine.push(Quarantined::whole(name, true));
                }
                Kind::UnknownFile | Kind::NotShown => {
                    plan.left.push(format!(
                        "{}: {}: {}",
                        printable(Path::new(name)),
                        finding.kind.code(),
                        finding.action
                    ));
                }
                Kind::ClaimOutOfReach => plan.quarantine.push(Quarantined::whole(name, true)),
                Kind::ClaimDamaged | Kind::ClaimDisagrees => {
                    plan.quarantine.push(Quarantined::whole(name, false));
                }
                _ => {}
            }
        }
        plan.quarantine.sort();
        plan.quarantine.dedup();
        let steps = plan.quarantine.iter().map(Quarantined::step).collect::<Vec<_>>();
        plan.steps.splice(0..0, steps);
        Ok(plan)
    }

    /// The journal of the next epoch holds what can be read.
    fn journal(&self, epoch: Option<Epoch>, plan: &mut Plan) -> Result<(), String> {
        let salvaged = salvage(self.volume(), self.dir()).map_err(|error| said(&error))?;
        let Some(salvaged) = salvaged else { return Ok(()) };
        if !salvaged.given_up.is_empty() && !self.claimed.context.options.accept_loss {
            return Err(format!(
                "{}: acknowledged entries cannot be read. Restore the directory from a backup or snapshot of the volume; or \
                 repair with --accept-loss, which gives up {}",
                Kind::JournalDamaged.code(),
                salvaged.given_up.join("; and ")
            ));
        }
        if salvaged.given_up.is_empty() {
            let journal = salvaged.journal.as_deref().map(file_name).unwrap_or_default();
            let torn = salvaged.unreadable.iter();
            plan.quarantine.extend(torn.map(|(from, to)| Quarantined::part(journal.clone(), *from, *to)));
        } else {
            // All of what the state was made of; what cannot be read here somebody else may be able to.
            let unused = salvaged.unused(self.volume(), self.dir()).map_err(|error| said(&error))?;
            plan.quarantine.extend(unused.iter().map(|path| Quarantined::whole(file_name(path), false)));
        }
        if let Some(epoch) = epoch {
            let on = salvaged.snapshot().map_or_else(String::new, |snapshot| format!(" on {snapshot}"));
            let appends = salvaged.appends();
            plan.steps.push(format!("write {} with {appends} appends{on}", Salvaged::file_name(epoch)));
        }
        plan.salvaged = Some(salvaged);
        Ok(())
    }

    fn act(&self, plan: &Plan, leadership: &Leadership) -> Result<(), String> {
        let (volume, dir) = (self.volume(), self.dir());
        let failed = |error: kaas_substrate::Error| said(&error);
        self.claimed.fill(leadership).map_err(failed)?;
        quarantine::copy_all(volume, dir, &plan.quarantine, leadership.epoch()).map_err(failed)?;
        let mut unneeded: Vec<PathBuf> = Vec::new();
        if let Some(salvaged) = &plan.salvaged {
            unneeded = salvaged.unused(volume, dir).map_err(failed)?;
            salvaged.write(volume, leadership).map_err(|error| said(&error))?;
        }
        still_leads(leadership)?;
        for moved in plan.quarantine.iter().filter(|quarantined| quarantined.remove) {
            quarantine::take(volume, dir, &moved.name, leadership.epoch()).map_err(failed)?;
        }
        for path in unneeded {
            match volume.remove_file(&path) {
                Err(error) if !error.is_not_found() => return Err(said(&error)),
                _ => {}
            }
        }
        leadership.collect_old_claims().map_err(failed)?;
        volume.sync_dir(dir).map_err(failed)
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
