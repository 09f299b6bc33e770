//! Damage of a partition's files, by nobody who leads it: as a disk, a controller or a person does it. What it hits is read from the
//! files right before.

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::Bytes;
use kaas_engine::batch::{BatchHeader, HEADER_BYTES, check_crc};
use kaas_engine::manifest::versioned::read_highest;
use kaas_engine::manifest::{MANIFEST, Manifest};
use kaas_substrate::{EntryKind, Result, Substrate};

use super::change::{Change, Damaged, below, lay_a_stranger, read};
use super::harm::Promised;
use crate::cluster::{Cluster, Topic};
use crate::records::{Form, decode};

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Log,
    /// Built from the log, and checked before it is used.
    Derived,
    Manifest,
    Fence,
    Claim,
    Identity,
}

/// What may happen to it while leaders live. No byte of what says who leads is lost, and nothing that a leader goes on to write
/// to: the promises do not go so far.
const WHILE_LED: [Change; 3] = [Change::Flip, Change::Zero, Change::Truncate];
const EVERY: [Change; 4] = [Change::Flip, Change::Zero, Change::Truncate, Change::Remove];

impl What {
    fn of(name: &str) -> Option<Self> {
        let ends = |suffix: &str| name.ends_with(suffix);
        Some(match name {
            "fence" => Self::Fence,
            "partition.json" => Self::Identity,
            _ if name.starts_with("claim.") => Self::Claim,
            _ if name.starts_with("manifest.") => Self::Manifest,
            _ if name.starts_with("recovery-checkpoint.") || name.starts_with("producer-state.") => {
                Self::Derived
            }
            _ if ends(".index") || ends(".timeindex") || ends(".txnindex") => Self::Derived,
            _ if ends(".log") => Self::Log,
            _ => return None,
        })
    }

    fn changes(self, is_led: bool) -> &'static [Change] {
        match self {
            Self::Fence if is_led => &[Change::Flip],
            // (What a claim says of the time is not the run's: no bit of it is flipped.)
            Self::Claim if is_led => &[Change::Truncate],
            Self::Claim => &[Change::Truncate, Change::Remove],
            Self::Derived => &EVERY,
            // (Another bit may make another name of it, and a directory of somebody else's is left alone.)
            Self::Identity => &[Change::Zero, Change::Truncate, Change::Remove],
            Self::Log | Self::Manifest if is_led => &WHILE_LED,
            Self::Fence => &WHILE_LED,
            Self::Log | Self::Manifest => &EVERY,
        }
    }
}

/// Damages a file of a partition, or lays one there that does not belong. `is_led`: leaders may live.
pub fn damage(cluster: &Cluster, topic: &Topic, is_led: bool) {
    if let Err(error) = (Damage { cluster, topic, is_led }).act() {
        cluster.scheduler.note(&format_args!("no damage: {error}"));
    }
}

struct Damage<'a> {
    cluster: &'a Cluster,
    topic: &'a Topic,
    is_led: bool,
}

impl Damage<'_> {
    fn below(&self, bound: usize) -> usize {
        below(&self.cluster.scheduler, bound)
    }

    fn act(&self) -> Result<()> {
        let volume = self.cluster.storage.mount(self.cluster.auditor());
        let (volume, dir) = (&*volume, &*self.topic.dir);
        let entries = volume.list(dir)?;
        let names = entries.iter().filter(|entry| entry.kind == EntryKind::File);
        let names: BTreeSet<_> = names.filter_map(|entry| entry.name.to_str()).collect();
        let newest = |prefix: &str| names.iter().rfind(|name| name.starts_with(prefix)).copied();
        let manifest = newest("manifest.");
        let newest_log = names.iter().rfind(|name| name.ends_with(".log")).copied();
        let known = names.iter().copied().filter_map(|name| Some((name, What::of(name)?)));
        // Of a manifest that does not count any more nothing is to be learnt.
        let known: Vec<_> =
            known.filter(|(name, what)| *what != What::Manifest || Some(*name) == manifest).collect();
        let chosen = self.below(known.len() + 1);
        let Some((name, what)) = chosen.checked_sub(1).and_then(|at| known.get(at)).copied() else {
            return self.lay_a_stranger(volume);
        };
        let leaves_trace = || {
            let manifest = read(volume, &dir.join(name)).unwrap_or_default();
            let is_empty = |log: &str| read(volume, &dir.join(log)).is_ok_and(|bytes| bytes.is_empty());
            let mut logs = names.iter().filter(|name| name.ends_with(".log"));
            logs.any(|log| may_count(&manifest, log) && !is_empty(log))
        };
        if what == What::Manifest && !leaves_trace() {
            // Nothing else says where the log ends: that it is lost cannot be seen.
            return Ok(());
        }
        let changes = what.changes(self.is_led);
        let change = changes.get(self.below(changes.len())).copied().unwrap_or(Change::Flip);
        let is_older = |other: &&&str| other.starts_with("manifest.") && **other != name;
        let has_older = what == What::Manifest && names.iter().any(|other| is_older(&other));
        if change == Change::Remove && (Some(name) == newest_log || has_older) {
            // Nor that there was such a segment, or a newer manifest.
            return Ok(());
        }
        let path = dir.join(name);
        let before = read(volume, &path)?;
        let Some(damaged) = Damaged::choose(&self.cluster.scheduler, change, &before) else { return Ok(()) };
        let range = damaged.range.clone();
        let hit = if what == What::Log { hit(&before, &range, self.topic.form) } else { Vec::new() };
        let promised = match what {
            What::Manifest => Promised::ByNames {
                next_offset: newest_log.and_then(base_offset).unwrap_or(0),
                log_start: says(&before, &["log_start_offset"]).unwrap_or(0),
            },
            _ => {
                // One that was damaged promises nothing, though it may be JSON still.
                let whole = read_highest::<Manifest>(volume, dir, MANIFEST).ok().flatten();
                let said = whole.map(|(_, manifest)| manifest.next_offset.max(manifest.high_watermark));
                Promised::ByManifest(said.unwrap_or(0))
            }
        };
        self.cluster
            .scheduler
            .note(&format_args!("{change:?} {} {range:?}, which hits {hit:?}", path.display()));
        self.topic.history.lock().harm.damaged(hit, promised);
        damaged.make(volume, &path)
    }

    /// A file that does not belong there.
    fn lay_a_stranger(&self, volume: &dyn Substrate) -> Result<()> {
        const NAMES: [&str; 4] =
            ["notes", "0000000f-00000000000000000003.index", "~tmp-manifest.00000002.1.json", "claim.1"];
        let path = self.topic.dir.join(NAMES.get(self.below(NAMES.len())).copied().unwrap_or("notes"));
        self.cluster.scheduler.note(&format_args!("a stranger: {}", path.display()));
        lay_a_stranger(volume, &path)
    }
}

/// The offset that a segment of this name begins with.
fn base_offset(log: &str) -> Option<i64> {
    log.strip_suffix(".log")?.split('-').nth(1)?.parse().ok()
}

/// Whether a log is one that a manifest counts, or stands behind them; any, if the manifest cannot be read. Others are being removed.
fn may_count(manifest: &[u8], log: &str) -> bool {
    let Ok(said) = serde_json::from_slice::<serde_json::Value>(manifest) else { return true };
    let offset = |value: &serde_json::Value, name: &str| value.get(name).and_then(serde_json::Value::as_i64);
    let base = base_offset(log);
    let named = said.get("segments").and_then(serde_json::Value::as_array).into_iter().flatten();
    named.map(|segment| offset(segment, "base_offset")).any(|named| named == base)
        || base >= offset(&said, "next_offset")
}

/// The highest of these offsets of a manifest; `None` if it cannot be read.
fn says(manifest: &[u8], offsets: &[&str]) -> Option<i64> {
    let said: serde_json::Value = serde_json::from_slice(manifest).ok()?;
    let said: Option<Vec<i64>> = offsets.iter().map(|name| said.get(name)?.as_i64()).collect();
    said?.into_iter().max()
}

/// Offsets and names of the records of all whole batches of a log that have a byte in `range`, wherever they stand.
fn hit(log: &Bytes, range: &Range<usize>, form: Form) -> Vec<(i64, String)> {
    let (mut hit, mut at) = (Vec::new(), 0);
    while at + HEADER_BYTES <= log.len() {
        let rest = log.slice(at..);
        let header = BatchHeader::parse(&rest).ok().filter(|header| header.batch_bytes <= rest.len());
        let batch =
            header.map(|header| rest.slice(..header.batch_bytes)).filter(|batch| check_crc(batch).is_ok());
        let Some(batch) = batch else {
            at += 1;
            continue;
        };
        let end = at + batch.len();
        if at < range.end && range.start < end {
            let records = decode(batch, form).unwrap_or_default();
            hit.extend(records.into_iter().flat_map(|batch| batch.records));
        }
        at = end;
    }
    hit
}
