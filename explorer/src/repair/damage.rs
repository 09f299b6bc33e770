//! Damage of a partition's files, by nobody who leads it: as a disk, a controller or a person does it. What it hits is read from the
//! files right before.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;
use kaas_engine::batch::{BatchHeader, HEADER_BYTES, check_crc};
use kaas_substrate::{EntryKind, OpenMode, Result, Substrate};

use crate::choices::Stream;
use crate::cluster::{Cluster, Topic};
use crate::records::{Form, decode};

/// What happens to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// One bit is another.
    Flip,
    /// Some bytes are zeros.
    Zero,
    /// Its end is gone.
    Truncate,
    Remove,
}

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
        let chosen = self.cluster.scheduler.below(Stream::EVENTS, bound.max(1) as u64);
        usize::try_from(chosen).unwrap_or(0)
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
        let has_records = || {
            let logs = names.iter().filter(|name| name.ends_with(".log"));
            let read = |name: &&&str| read(volume, &dir.join(name)).is_ok_and(|bytes| !bytes.is_empty());
            logs.clone().any(|name| read(&name))
        };
        if what == What::Manifest && !has_records() {
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
        let Some(range) = self.range(change, before.len()) else { return Ok(()) };
        let hit = if what == What::Log { hit(&before, &range, self.topic.form) } else { Vec::new() };
        let promised = match what {
            What::Manifest => None,
            _ => Some(manifest.and_then(|name| promised(volume, &dir.join(name))).unwrap_or(0)),
        };
        self.cluster
            .scheduler
            .note(&format_args!("{change:?} {} {range:?}, which hits {hit:?}", path.display()));
        self.topic.history.lock().harm.damaged(hit, promised);
        self.change(volume, &path, change, &before, range)
    }

    /// The bytes that change; `None` if there are none.
    fn range(&self, change: Change, length: usize) -> Option<Range<usize>> {
        if change == Change::Remove {
            return Some(0..length);
        }
        let from = self.below(length);
        let to = match change {
            Change::Flip => from + 1,
            Change::Zero => (from + 1 + self.below(100)).min(length),
            Change::Truncate | Change::Remove => length,
        };
        (from < length).then_some(from..to)
    }

    fn change(
        &self,
        volume: &dyn Substrate,
        path: &Path,
        change: Change,
        before: &[u8],
        range: Range<usize>,
    ) -> Result<()> {
        if change == Change::Remove {
            volume.remove_file(path)?;
            return volume.sync_dir(&self.topic.dir);
        }
        let file = volume.open(path, OpenMode::Write)?;
        let at = range.start as u64;
        match change {
            Change::Flip => {
                let flipped: Vec<_> =
                    before.get(range).into_iter().flatten().map(|byte| byte ^ (1 << self.below(8))).collect();
                file.write_all_at(&[IoSlice::new(&flipped)], at)?;
            }
            Change::Zero => file.write_all_at(&[IoSlice::new(&vec![0; range.len()])], at)?,
            Change::Truncate | Change::Remove => file.set_length(at)?,
        }
        file.sync_data()
    }

    /// A file that does not belong there.
    fn lay_a_stranger(&self, volume: &dyn Substrate) -> Result<()> {
        const NAMES: [&str; 4] =
            ["notes", "0000000f-00000000000000000003.index", "~tmp-manifest.00000002.1.json", "claim.1"];
        let path = self.topic.dir.join(NAMES.get(self.below(NAMES.len())).copied().unwrap_or("notes"));
        self.cluster.scheduler.note(&format_args!("a stranger: {}", path.display()));
        let file = volume.open(&path, OpenMode::CreateNew)?;
        file.write_all_at(&[IoSlice::new(b"of nobody")], 0)?;
        file.sync_data()?;
        volume.sync_dir(&self.topic.dir)
    }
}

fn read(volume: &dyn Substrate, path: &Path) -> Result<Bytes> {
    let file = volume.open(path, OpenMode::ReadUncached)?;
    let mut bytes = vec![0; usize::try_from(file.length()?).unwrap_or(0)];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes.into())
}

/// The offset below which a manifest has promised all offsets to those that have them; `None` if it cannot be read.
fn promised(volume: &dyn Substrate, manifest: &Path) -> Option<i64> {
    let said: serde_json::Value = serde_json::from_slice(&read(volume, manifest).ok()?).ok()?;
    let offset = |name: &str| said.get(name)?.as_i64();
    Some(offset("next_offset")?.max(offset("high_watermark")?))
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
