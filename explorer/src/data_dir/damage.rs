//! Damage of what is around partitions: slots, the controller's directory, `cluster/`, topics' own files.

use std::path::Path;

use kaas_engine::layout::{CLUSTER_DIR, TOPIC_ID_FILE};
use kaas_engine::manifest::versioned::{self, FileVersion, decode};
use kaas_substrate::{EntryKind, Result, Substrate};
use serde_json::Value;

use super::home::{DataDir, controller_dir};
use super::slots::{JOURNAL, JournalFile, SNAPSHOT, in_snapshot};
use crate::cluster::Cluster;
use crate::journals::Slot;
use crate::repair::{Change, Damaged, below, lay_a_stranger, read};

/// What may happen to a file that is written once, under a name of its own.
const CONTENT: &[Change] = &[Change::Flip, Change::Zero, Change::Truncate];
/// Also where the name alone says that it is missing.
const EVERY: &[Change] = &[Change::Flip, Change::Zero, Change::Truncate, Change::Remove];

/// When it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Whoever leads goes on.
    Led,
    /// Nobody lived, and others may come before any repair.
    Stopped,
    /// Nobody lives until it is repaired.
    AtTheEnd,
}

/// Damages a file around the partitions, or lays one there that does not belong.
pub fn damage(cluster: &Cluster, data_dir: &DataDir, when: When) {
    if let Err(error) = (Damage { cluster, data_dir, when }).act() {
        cluster.scheduler.note(&format_args!("no damage: {error}"));
    }
}

struct Damage<'a> {
    cluster: &'a Cluster,
    data_dir: &'a DataDir,
    when: When,
}

/// Whose directory it is.
enum Place<'a> {
    Slot(&'a Slot),
    /// The controller's, `cluster/`, or a topic's.
    Home,
}

/// Whether a JSON file still has a checksum.
fn has_seal(bytes: &[u8]) -> bool {
    const NAME: &[u8] = b"\"crc32c\"";
    bytes.windows(NAME.len()).any(|window| window == NAME)
}

impl Damage<'_> {
    fn one_of<'a, T>(&self, several: &'a [T]) -> Option<&'a T> {
        several.get(below(&self.cluster.scheduler, several.len()))
    }

    fn act(&self) -> Result<()> {
        let (controller, topics) = ([controller_dir(), CLUSTER_DIR.into()], &self.data_dir.topics);
        let homes = controller.iter().chain(topics).map(|dir| (Place::Home, dir.as_path()));
        let slots = self.cluster.slots.iter().map(|slot| (Place::Slot(slot), slot.dir.as_path()));
        // As often a slot as anything else.
        let of = below(&self.cluster.scheduler, 2);
        let places: Vec<_> = if of == 0 { homes.collect() } else { slots.collect() };
        let Some((place, dir)) = self.one_of(&places) else { return Ok(()) };
        let volume = self.cluster.storage.mount(self.cluster.auditor());
        let volume = &*volume;
        let entries = volume.list(dir)?;
        let files = entries.iter().filter(|entry| entry.kind == EntryKind::File);
        let mut names: Vec<_> = files.filter_map(|entry| entry.name.to_str()).collect();
        names.sort_unstable();
        let is_led_dir = matches!(place, Place::Slot(_)) || *dir == controller_dir();
        if is_led_dir && !names.contains(&"fence") {
            // Without a fence nobody leads there; what else is lost may be all that says who did.
            return Ok(());
        }
        let may: Vec<_> = names
            .iter()
            .filter_map(|name| {
                let changes = self.changes(place, name, &names);
                (!changes.is_empty()).then_some((*name, changes))
            })
            .collect();
        let chosen = below(&self.cluster.scheduler, may.len() + 1);
        let Some((name, changes)) = chosen.checked_sub(1).and_then(|at| may.get(at)) else {
            return self.lay_a_stranger(volume, place, dir);
        };
        let Some(change) = self.one_of(changes).copied() else { return Ok(()) };
        let path = dir.join(name);
        let before = read(volume, &path)?;
        if matches!(place, Place::Home) && name.ends_with(".json") && !has_seal(&before) {
            // Without a checksum, which the last damage has taken, nobody could tell what else is wrong.
            return Ok(());
        }
        let Some(damaged) = Damaged::choose(&self.cluster.scheduler, change, &before) else { return Ok(()) };
        self.cluster.scheduler.note(&format_args!("{change:?} {} {:?}", path.display(), damaged.range));
        match place {
            Place::Slot(slot) => self.hits_slot(volume, slot, name, &before, &damaged, &names),
            Place::Home => self.hits_setting(volume, dir, name),
        }
        damaged.make(volume, &path)
    }

    /// What may happen to a file. No byte of what says who leads is lost while somebody does, nor a file that leaves no trace.
    fn changes(&self, place: &Place<'_>, name: &str, names: &[&str]) -> &'static [Change] {
        let happened = match place {
            Place::Slot(slot) => slot.history.lock().harm.met.happened(),
            Place::Home => self.data_dir.met.lock().happened(),
        };
        let newest =
            |kind: versioned::FileKind| names.iter().filter_map(|name| kind.parse(name.as_ref())).max();
        match name {
            "fence" => match self.when {
                When::Led => &[Change::Flip],
                When::Stopped => CONTENT,
                When::AtTheEnd if happened => CONTENT,
                When::AtTheEnd => EVERY,
            },
            // (What a claim says of the time is not the run's: no bit of it is flipped.)
            _ if name.starts_with("claim.") => match self.when {
                When::Led => &[Change::Truncate],
                _ => &[Change::Truncate, Change::Remove],
            },
            TOPIC_ID_FILE => EVERY,
            _ if SNAPSHOT.parse(name.as_ref()).is_some() => {
                // Where the journal is gone it is all that says so.
                let leaves_trace = newest(JOURNAL).is_some();
                if self.when == When::Led || !leaves_trace { CONTENT } else { EVERY }
            }
            _ if JOURNAL.parse(name.as_ref()).is_some() => {
                let version = JOURNAL.parse(name.as_ref());
                let is_only = names.iter().filter(|name| JOURNAL.parse(name.as_ref()).is_some()).count() == 1;
                let leaves_trace = version != newest(JOURNAL) || is_only && newest(SNAPSHOT).is_some();
                if self.when == When::Led || !leaves_trace { CONTENT } else { EVERY }
            }
            _ => {
                // Of a version that does not count any more nothing is to be learnt.
                let mut kinds = self.data_dir.settings.iter().map(|(setting, _)| setting.kind);
                let is_newest = kinds.any(|kind| {
                    let version = kind.parse(name.as_ref());
                    version.is_some() && version == newest(kind)
                });
                if is_newest { CONTENT } else { &[] }
            }
        }
    }

    fn hits_slot(
        &self,
        volume: &dyn Substrate,
        slot: &Slot,
        name: &str,
        before: &[u8],
        damaged: &Damaged,
        names: &[&str],
    ) {
        let newest = names.iter().filter_map(|name| JOURNAL.parse(name.as_ref())).max();
        let journal = || {
            let path = newest.map(|version| slot.dir.join(JOURNAL.file_name(version)));
            let bytes = path.and_then(|path| read(volume, &path).ok());
            JournalFile::parse(&bytes.unwrap_or_default())
        };
        let (mut hit, mut silently, mut counts) = (Vec::new(), false, false);
        if let Some(version) = JOURNAL.parse(name.as_ref()).filter(|version| Some(*version) == newest) {
            self.cluster.scheduler.note(&format_args!("it is the journal that counts: {version}"));
            counts = true;
            let after = JournalFile::parse(&damaged.after);
            (hit, silently) = JournalFile::parse(before).hit(&after, damaged.after.len());
            if silently {
                hit.extend(slot.history.lock().in_doubt());
            }
        } else if let Some(version) = SNAPSHOT.parse(name.as_ref()) {
            let journal = journal();
            if self.when == When::Led && Some(version) > newest {
                // The journal that builds on it may be under way.
                counts = true;
                hit = in_snapshot(before);
            } else if journal.builds_on(version) {
                counts = true;
                let copied: Vec<_> = journal.appends().collect();
                hit = in_snapshot(before).into_iter().filter(|id| !copied.contains(id)).collect();
            }
        }
        self.cluster.scheduler.note(&format_args!("which hits {hit:?}, silently: {silently}"));
        let mut history = slot.history.lock();
        history.harm.damaged(hit, silently);
        history.harm.state_hit |= counts;
    }

    fn hits_setting(&self, volume: &dyn Substrate, dir: &Path, name: &str) {
        self.data_dir.met.lock().damaged();
        for (setting, history) in self.data_dir.settings.iter().filter(|(setting, _)| setting.dir == *dir) {
            // (Of producer ids none is handed out twice, whatever is lost.)
            if setting.is_producer_ids() {
                continue;
            }
            let Some(version) = setting.kind.parse(name.as_ref()) else { continue };
            let is_whole = |version: &FileVersion| {
                let path = dir.join(setting.kind.file_name(*version));
                let content: Option<Value> = read(volume, &path)
                    .ok()
                    .and_then(|bytes| decode(&path, setting.kind.format(), &bytes).ok());
                content.is_some()
            };
            let others = versioned::list(volume, dir, setting.kind).unwrap_or_default();
            let mut others = others.into_iter().filter(|other| *other < version).rev();
            // Whoever leads may be about to remove those.
            let next = if self.when == When::Led { None } else { others.find(is_whole) };
            history.lock().damaged(version, next);
        }
    }

    /// A file that does not belong there.
    fn lay_a_stranger(&self, volume: &dyn Substrate, place: &Place<'_>, dir: &Path) -> Result<()> {
        const NAMES: [&str; 3] = ["notes", "~tmp-notes", "claim.1"];
        let path = dir.join(self.one_of(&NAMES).copied().unwrap_or("notes"));
        self.cluster.scheduler.note(&format_args!("a stranger: {}", path.display()));
        match place {
            Place::Slot(slot) => slot.history.lock().harm.damaged([], false),
            Place::Home => self.data_dir.met.lock().damaged(),
        }
        lay_a_stranger(volume, &path)
    }
}
