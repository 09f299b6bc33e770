//! A controller's life, as a task: it claims an epoch, reads what is set, changes it as the broker's does (a new version, durable; the
//! fence; the acknowledgement; then older versions go), and goes on after it was deposed, without knowing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kaas_engine::layout::{PRODUCER_IDS_BLOCK, TOPIC_ID_FILE};
use kaas_engine::leadership::{Leadership, Standing, claim};
use kaas_engine::manifest::versioned::{self, FileVersion, VersionedError};
use kaas_engine::types::Epoch;
use parking_lot::Mutex;
use serde_json::Value;

use super::history::SettingsHistory;
use super::home::{DataDir, Setting, controller_dir};
use crate::choices::Stream;
use crate::cluster::Cluster;
use crate::problem::Problem;
use crate::process::Process;
use crate::scheduler::Dead;

/// Makes a process the controller of an epoch, in a task of its own.
pub fn assign(cluster: &Arc<Cluster>, process: &Arc<Process>, epoch: Epoch) {
    let script = Stream::script(cluster.next_leader());
    let (lived, process) = (Arc::clone(cluster), Arc::clone(process));
    cluster.scheduler.spawn(process.id, "controller", move || {
        if let Some(data_dir) = &lived.data_dir {
            // A dead one just ends.
            let _ = Controller { cluster: &lived, process: &process, data_dir, script }.control(epoch);
        }
    });
}

/// Becomes the controller once more, at the end: everything that is set is found.
pub fn look(cluster: &Arc<Cluster>, data_dir: &DataDir) {
    let process = &cluster.process(cluster.auditor());
    let controller = Controller { cluster, process, data_dir, script: Stream::EVENTS };
    let epoch = Epoch::new(data_dir.assigned.fetch_add(1, Ordering::Relaxed) + 1);
    let Some((_, found)) = epoch.and_then(|epoch| controller.open(epoch)) else {
        return cluster.scheduler.report(Problem::Damaged("nobody can be the controller".to_owned()));
    };
    for ((_, history), (_, number)) in data_dir.settings.iter().zip(found) {
        cluster.check(history.lock().check_told(number));
    }
}

/// Each setting's last version that was found or tried, and the number in it.
type Found = Vec<(Option<FileVersion>, Option<u64>)>;

struct Controller<'a> {
    cluster: &'a Arc<Cluster>,
    process: &'a Process,
    data_dir: &'a DataDir,
    script: Stream,
}

impl Controller<'_> {
    /// Claims an epoch, and reads everything. `None` if that fails for a reason that may be.
    fn open(&self, epoch: Epoch) -> Option<(Leadership, Found)> {
        let (dir, scheduler) = (controller_dir(), &self.cluster.scheduler);
        if !self.process.may_claim(&dir, epoch) {
            return None;
        }
        let may_meet = || self.data_dir.met.lock().may_be_met_at(epoch.get());
        let met_before = may_meet();
        let claimed = claim(self.process.engine.substrate(), &dir, epoch, &self.process.claimant());
        let leadership = match claimed {
            Ok(leadership) => leadership,
            Err(error) => {
                self.process.claim_failed(&dir, epoch);
                scheduler.note(&format_args!("no controller at epoch {epoch}: {error}"));
                return None;
            }
        };
        let read = self.read(epoch);
        if self.process.is_dead() {
            return None;
        }
        match read {
            Ok(found) => Some((leadership, found)),
            Err(error) => {
                let text = format!("the controller of epoch {epoch} cannot begin: {error}");
                let is_damage =
                    matches!(error, VersionedError::Damaged { .. } | VersionedError::NewerFormat { .. });
                let is_missing = matches!(&error, VersionedError::Storage(error) if error.is_not_found());
                if (is_damage || is_missing) && !met_before && !may_meet() && !self.is_old_id(&error) {
                    scheduler.report(Problem::Damaged(text));
                } else {
                    scheduler.note(&text);
                }
                None
            }
        }
    }

    fn read(&self, epoch: Epoch) -> Result<Found, VersionedError> {
        let volume = &**self.process.engine.substrate();
        let mut found = Found::new();
        for dir in &self.data_dir.topics {
            let checked = self.data_dir.check_topic_id(volume, dir)?;
            self.check(checked);
        }
        for (setting, history) in &self.data_dir.settings {
            let read = versioned::read_highest::<Value>(volume, &setting.dir, setting.kind)?;
            let (version, number) = match read {
                None => (None, None),
                Some((version, content)) => match setting.number(&content) {
                    Ok(number) => (Some(version), number),
                    Err(content) => {
                        self.check(Err(Problem::Settings(format!(
                            "{version} of {setting:?} holds {content}"
                        ))));
                        (Some(version), None)
                    }
                },
            };
            self.cluster.scheduler.note(&format_args!("epoch {epoch} finds {number:?} in {setting:?}"));
            if !setting.is_producer_ids() && !self.process.is_dead() {
                let checked = history.lock().finds(epoch.get(), number);
                self.check(checked);
            }
            found.push((version, number));
        }
        Ok(found)
    }

    /// A name that was renamed over, or came back, and that a host finds as it was for some time, as on NFS: whoever begins tries
    /// again.
    fn is_old_id(&self, error: &VersionedError) -> bool {
        let is_id = match error {
            VersionedError::Damaged { path, .. } => path.ends_with(TOPIC_ID_FILE),
            VersionedError::Storage(error) => error.path.ends_with(TOPIC_ID_FILE),
            _ => false,
        };
        is_id && self.data_dir.met.lock().happened()
    }

    fn check(&self, outcome: Result<(), Problem>) {
        if !self.process.is_dead() {
            self.cluster.check(outcome);
        }
    }

    fn control(&self, epoch: Epoch) -> Result<(), Dead> {
        let scheduler = &self.cluster.scheduler;
        let Some((leadership, mut found)) = self.open(epoch) else { return Ok(()) };
        for _ in 0..4 + scheduler.below(self.script, 8) {
            if scheduler.has_problems() {
                return Ok(());
            }
            let chosen = usize::try_from(scheduler.below(self.script, found.len() as u64 + 1)).unwrap_or(0);
            scheduler.step(&format_args!("controller: setting {chosen}"))?;
            let Some(at) = chosen.checked_sub(1) else { continue };
            let (Some((setting, history)), Some(last)) = (self.data_dir.settings.get(at), found.get_mut(at))
            else {
                continue;
            };
            if let Err(error) = self.change(&leadership, setting, history, last) {
                scheduler.note(&format_args!("not changed at epoch {epoch}: {error}"));
            }
        }
        Ok(())
    }

    /// Makes one change, or hands out one block of ids.
    fn change(
        &self,
        leadership: &Leadership,
        setting: &Setting,
        history: &Mutex<SettingsHistory>,
        (last, known): &mut (Option<FileVersion>, Option<u64>),
    ) -> Result<(), VersionedError> {
        let (volume, epoch) = (&**self.process.engine.substrate(), leadership.epoch());
        let number = match last {
            Some(last) if last.epoch == epoch => last.number + 1,
            _ => 1,
        };
        let version = FileVersion { epoch, number };
        // Before it is tried: what fails half-way may be there, and its name is not used again.
        *last = Some(version);
        let block = PRODUCER_IDS_BLOCK.unsigned_abs();
        let start = known.unwrap_or(0);
        let number = if setting.is_producer_ids() { start + block } else { self.data_dir.next_change() };
        history.lock().writes(number, version);
        versioned::write(volume, &setting.dir, setting.kind, version, &setting.content(number))?;
        if !matches!(leadership.standing(), Standing::Leading) || self.process.is_dead() {
            return Ok(());
        }
        *known = Some(number);
        self.cluster.scheduler.note(&format_args!("{version} of {setting:?} is acknowledged: {number}"));
        let checked = if setting.is_producer_ids() {
            history.lock().hands_out(epoch.get(), start..number)
        } else {
            history.lock().acknowledged(version, epoch.get(), number)
        };
        self.check(checked);
        versioned::remove_below(volume, &setting.dir, setting.kind, version).map(|_| ())?;
        Ok(())
    }
}
