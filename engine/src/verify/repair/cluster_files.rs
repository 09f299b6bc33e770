//! Repairing what belongs to no partition: a topic's own files, and the cluster's settings. As the next controller.
//!
//! # What each file promises, and what a repair may do about it
//!
//! | file | promise | if it is damaged |
//! | --- | --- | --- |
//! | `topic-id.json` | which incarnation the topic is; written once | written anew if its partitions agree on it: they all carry it |
//! | topic's and brokers' configs | an acknowledged change stays | the newest whole version, or none: a change may be lost, so only if that is accepted |
//! | `producer-ids` | no id is handed out twice | goes on behind every id that can have been handed out until now, by the logs and the clock |
//! | `meta.json` | which cluster and node it is | left: nothing else says it |
//!
//! The damaged file is copied to `quarantine/`; what takes its place is durable under a higher version, and the controller's
//! fence was read, before it is removed.

use std::collections::BTreeSet;
use std::path::Path;

use kaas_substrate::{printable, read_small, write_small};
use serde_json::{Map, Value, json};

use super::claimed_dir::still_leads;
use super::controller_guard::ControllerGuard;
use super::quarantine::{self, Quarantined};
use super::{Mode, Repaired, is_file, said, unfinished};
use crate::identity::read_partition;
use crate::layout::{
    META_FILE, PRODUCER_IDS, PRODUCER_IDS_BLOCK, TOPIC_CONFIG, TOPIC_ID_FORMAT, TopicIdFile,
};
use crate::leadership::Leadership;
use crate::manifest::versioned::{self, FileKind, FileVersion, VersionedError};
use crate::types::Epoch;
use crate::verify::cluster::{self, Problem, SETTINGS};
use crate::verify::finding::{Finding, Kind};
use crate::verify::identity::{FILE_BYTES_MAX, TOPIC_ID_FILE, show_topic_id};
use crate::verify::report::Traces;
use crate::verify::view::decode_as;
use crate::verify::{Context, topics};

/// Producer ids that are passed over for each second since 1970: no cluster hands out as many for long, so a number made of
/// the clock lies above all that were ever handed out, and one that is made later lies above this one and what follows it.
const IDS_PER_SECOND: i64 = 1 << 20;

/// What only the controller writes.
pub(super) enum ControllerFiles {
    /// A topic's own files.
    Topic,
    /// Those in `cluster/`; what all logs and claims say, if a whole data directory was looked at.
    Cluster { traces: Option<Traces> },
}

/// The repair of one such directory.
pub(super) struct ClusterFilesRepair<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) mode: &'a Mode,
    pub(super) guard: &'a ControllerGuard<'a>,
    pub(super) dir: &'a Path,
    pub(super) files: ControllerFiles,
}

/// What is done.
#[derive(Default)]
struct Plan {
    quarantine: Vec<Quarantined>,
    /// New versions, each over a damaged one.
    versions: Vec<(FileKind, Value)>,
    /// `topic-id.json`, and the id in it.
    topic_id: Option<(Vec<u8>, [u8; 16])>,
    steps: Vec<String>,
    given_up: Vec<String>,
    left: Vec<String>,
}

impl Plan {
    fn changes_anything(&self) -> bool {
        !self.quarantine.is_empty() || !self.versions.is_empty() || self.topic_id.is_some()
    }

    fn leave(&mut self, finding: &Finding, why: &str) {
        let file = file_name(&finding.file);
        self.left.push(format!("{file}: {}: {why}", finding.kind.code()));
    }
}

impl ClusterFilesRepair<'_> {
    /// `None` if nothing is wrong there. With it the topic's id, if that was, or would be, written anew.
    pub(super) fn run(&self) -> Option<(Repaired, Option<[u8; 16]>)> {
        let findings = self.findings();
        let mut repaired = Repaired::of(self.dir, &findings)?;
        let outcome = self.repair(findings);
        let mut topic_id = None;
        match outcome {
            Err(reason) => repaired.reason = Some(reason),
            Ok((plan, _, Err(error))) => {
                repaired.reason = Some(unfinished(&error, !plan.given_up.is_empty()));
                repaired.given_up = plan.given_up;
            }
            Ok((plan, ..)) if !plan.changes_anything() => {
                repaired.reason = Some("nothing of what was found can be repaired".to_owned());
                repaired.left = plan.left;
            }
            Ok((plan, epoch, Ok(()))) => {
                repaired.outcome = self.mode.done();
                let claim = format!("claim epoch {epoch} of {}", ControllerGuard::controller_dir().display());
                repaired.steps = std::iter::once(claim).chain(plan.steps).collect();
                repaired.given_up = plan.given_up;
                repaired.left = plan.left;
                topic_id = plan.topic_id.map(|(_, id)| id);
            }
        }
        Some((repaired, topic_id))
    }

    fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        match self.files {
            ControllerFiles::Topic => drop(topics::look(self.context, self.dir, &mut findings)),
            ControllerFiles::Cluster { traces } => {
                cluster::examine(self.context, self.dir, &mut findings);
                let highest = traces.and_then(|traces| traces.highest_producer);
                findings.extend(
                    highest.and_then(|highest| cluster::check_producer_ids(self.context, self.dir, highest)),
                );
            }
        }
        findings
    }

    /// What is done, at which epoch, and whether it came to its end.
    fn repair(&self, findings: Vec<Finding>) -> Result<(Plan, Epoch, Result<(), String>), String> {
        super::refusal(self.context.substrate, self.dir).map_or(Ok(()), Err)?;
        let plan = self.plan(&findings)?;
        if !plan.changes_anything() {
            return Ok((plan, Epoch::NONE, Ok(())));
        }
        let (epoch, controller) = self.guard.controller()?;
        let Some(controller) = controller else { return Ok((plan, epoch, Ok(()))) };
        // What a controller did before it was deposed is seen only now.
        let plan = self.plan(&self.findings())?;
        let acted = self.act(&plan, &controller);
        Ok((plan, epoch, acted))
    }

    fn plan(&self, findings: &[Finding]) -> Result<Plan, String> {
        let mut plan = Plan::default();
        for finding in findings.iter().filter(|finding| finding.is_bad()) {
            match finding.kind {
                Kind::TopicIdMissing | Kind::TopicIdDamaged => self.topic_id(finding, &mut plan),
                Kind::TopicConfigDamaged => {
                    let none = json!({ "config": {} });
                    self.settings(finding, (TOPIC_CONFIG, topics::config_problem), &none, &mut plan);
                }
                Kind::ProducerIdsBehind => self.producer_ids(finding, &mut plan)?,
                Kind::SettingsDamaged if is_of(finding, PRODUCER_IDS) => {
                    self.producer_ids(finding, &mut plan)?;
                }
                Kind::SettingsDamaged => {
                    let of = SETTINGS.into_iter().find(|(kind, _)| is_of(finding, *kind));
                    if let Some(of) = of {
                        self.settings(finding, of, &json!({ "all": {}, "brokers": {} }), &mut plan);
                    }
                }
                Kind::ClusterMetaDamaged => plan.leave(finding, &self.about_meta()),
                Kind::UnknownFile if is_file(self.context, &finding.file) => {
                    let moved = Quarantined::whole(finding.file.file_name().unwrap_or_default(), true);
                    plan.steps.push(moved.step());
                    plan.quarantine.push(moved);
                }
                _ => plan.leave(finding, finding.action),
            }
        }
        Ok(plan)
    }

    /// The topic's id, as its partitions say it with one voice.
    fn topic_id(&self, finding: &Finding, plan: &mut Plan) {
        let volume = self.context.substrate;
        let root = volume.root().join(self.dir);
        let name = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let numbers = volume.list(self.dir).map(|entries| topics::partitions(&entries)).unwrap_or_default();
        let said: BTreeSet<_> = numbers
            .iter()
            .filter_map(|number| read_partition(volume, &self.dir.join(number.to_string())).ok())
            .map(|identity| (identity.topic, identity.topic_id))
            .collect();
        let id = match said.first() {
            Some((topic, id)) if said.len() == 1 && *topic == name => *id,
            Some(_) => {
                return plan
                    .leave(finding, "its partitions do not agree on a topic and id; restore the file");
            }
            None => return plan.leave(finding, "none of its partitions says the id; restore the file"),
        };
        let path = self.dir.join(TOPIC_ID_FILE);
        let content = TopicIdFile { topic: name, topic_id: show_topic_id(&id) };
        match versioned::encode(&path, TOPIC_ID_FORMAT, &content) {
            Ok(bytes) => plan.topic_id = Some((bytes, id)),
            Err(error) => return plan.leave(finding, &error.to_string()),
        }
        if finding.kind == Kind::TopicIdDamaged {
            self.put_aside(finding, plan);
        }
        plan.steps.push(format!("write {TOPIC_ID_FILE} with the id that its partitions have"));
    }

    /// Configs go back to the newest whole version, or to `none`.
    fn settings(&self, finding: &Finding, of: (FileKind, Problem), none: &Value, plan: &mut Plan) {
        let (kind, _) = of;
        let older = self.newest_whole(of);
        let what = match &older {
            Some((version, _)) => format!("configs that were changed after {}", kind.file_name(*version)),
            None => "all configs that this file had: the defaults hold".to_owned(),
        };
        if !self.context.options.accept_loss {
            let back = format!(
                "acknowledged changes may be in it. Restore it; or repair with --accept-loss, which loses {what}"
            );
            return plan.leave(finding, &back);
        }
        plan.given_up.push(what);
        let value = older.map_or_else(|| none.clone(), |(_, value)| value);
        self.put_aside(finding, plan);
        plan.steps.push(format!("write a version above {}", file_name(&finding.file)));
        plan.versions.push((kind, value));
    }

    /// Ids go on behind all that were ever handed out. Those that no log has any more are known by the clock alone, so it must
    /// not be behind anything that carries a time.
    fn producer_ids(&self, finding: &Finding, plan: &mut Plan) -> Result<(), String> {
        let ControllerFiles::Cluster { traces: Some(traces) } = self.files else {
            let root = printable(self.context.substrate.root());
            let back = format!(
                "which ids were handed out is known only with all logs: repair the whole data directory, kaas-engine verify \
                 --repair {root}"
            );
            plan.leave(finding, &back);
            return Ok(());
        };
        let now = self.context.options.now;
        if let Some(newest) = traces.newest.filter(|newest| now < *newest) {
            let back = format!(
                "the clock says {now} ms since 1970, and a record or claim carries {newest}: set the clock and run this again. If \
                 it is right, restore the file, or write it by hand as docs/formats/cluster.md has it"
            );
            plan.leave(finding, &back);
            return Ok(());
        }
        let of = SETTINGS.into_iter().find(|(kind, _)| *kind == PRODUCER_IDS);
        let known = of.and_then(|of| self.newest_whole(of));
        let known = known.and_then(|(_, value)| value.get("next_block_start")?.as_i64()).unwrap_or(0);
        let in_logs = traces.highest_producer.map_or(0, |highest| highest.0.saturating_add(1));
        let by_clock = (now.0 / 1000).saturating_mul(IDS_PER_SECOND);
        let next = known.max(in_logs).max(by_clock);
        let next = next.checked_add(PRODUCER_IDS_BLOCK).map(|next| next - next % PRODUCER_IDS_BLOCK);
        let Some(next) = next else { return Err("there is no producer id left".to_owned()) };
        if is_file(self.context, &finding.file) {
            self.put_aside(finding, plan);
        }
        plan.steps.push(format!("hand out producer ids from {next} on, above all that were"));
        plan.versions.push((PRODUCER_IDS, json!({ "next_block_start": next })));
        Ok(())
    }

    fn put_aside(&self, finding: &Finding, plan: &mut Plan) {
        // What takes its place has a higher version, or its name.
        let copied = Quarantined::whole(finding.file.file_name().unwrap_or_default(), false);
        plan.steps.push(copied.step());
        plan.quarantine.push(copied);
    }

    /// The newest version that can be read, without what every JSON file has.
    fn newest_whole(&self, (kind, problem): (FileKind, Problem)) -> Option<(FileVersion, Value)> {
        let versions = versioned::list(self.context.substrate, self.dir, kind).ok()?;
        versions.into_iter().rev().find_map(|version| {
            let path = self.dir.join(kind.file_name(version));
            let bytes = read_small(self.context.substrate, &path, FILE_BYTES_MAX).ok()?;
            let mut value: Map<String, Value> = decode_as(&path, &bytes, Kind::SettingsDamaged).ok()?;
            value.retain(|name, _| name != "format" && name != "crc32c");
            let value = Value::Object(value);
            problem(&value).is_none().then_some((version, value))
        })
    }

    /// What is known of a `meta.json` that is gone.
    fn about_meta(&self) -> String {
        format!(
            "nothing else says which cluster this is. Restore {META_FILE}, or write it by hand as docs/formats/cluster.md has it, \
             with the cluster id that clients know and the broker's --node-id"
        )
    }

    fn act(&self, plan: &Plan, controller: &Leadership) -> Result<(), String> {
        let volume = self.context.substrate;
        let failed = |error: kaas_substrate::Error| said(&error);
        quarantine::copy_all(volume, self.dir, &plan.quarantine, controller.epoch()).map_err(failed)?;
        let version = FileVersion { epoch: controller.epoch(), number: 1 };
        if let Some((bytes, _)) = &plan.topic_id {
            // The one name that a later controller has, too.
            still_leads(controller)?;
            write_small(volume, &self.dir.join(TOPIC_ID_FILE), bytes).map_err(failed)?;
        }
        for (kind, value) in &plan.versions {
            let written = versioned::write(volume, self.dir, *kind, version, value);
            written.map_err(|error: VersionedError| said(&error))?;
        }
        still_leads(controller)?;
        for moved in plan.quarantine.iter().filter(|quarantined| quarantined.remove) {
            quarantine::take(volume, self.dir, &moved.name, controller.epoch()).map_err(failed)?;
        }
        for (kind, _) in &plan.versions {
            versioned::remove_below(volume, self.dir, *kind, version).map_err(failed)?;
        }
        volume.sync_dir(self.dir).map_err(failed)
    }
}

fn file_name(path: &Path) -> String {
    printable(Path::new(path.file_name().unwrap_or_default())).into_owned()
}

fn is_of(finding: &Finding, kind: FileKind) -> bool {
    finding.file.file_name().is_some_and(|name| kind.parse(name).is_some())
}
