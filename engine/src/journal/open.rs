//! Birth of a slot, and taking it over: claim, read what counts, copy it into a file of one's own, fence, serve.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_substrate::{OpenMode, Substrate, read_small, remove_tree, write_small};
use serde::Deserialize;
use serde_json::Value;

use super::line::{self, FORMAT, Header, Line, LineError, Parsed, Reference, parse_file};
use super::state::{Sequence, Shared, State, Writer};
use super::{IoPool, JOURNAL, Journal, JournalSettings, SNAPSHOT, cycle, path_of};
use crate::layout::{NEW_PREFIX, slot_name};
use crate::leadership::{self, ClaimError, Claimant, FenceError, Standing, is_out_of_reach};
use crate::manifest::seal::seal_line;
use crate::manifest::versioned::{self, FileVersion};
use crate::planted::{Bug, planted};
use crate::sync::{Condvar, Mutex};
use crate::types::Epoch;

/// Largest journal file or snapshot that is read.
pub(super) const MAX_FILE_BYTES: usize = 1 << 30;

/// Why a slot could not be taken over.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(transparent)]
    Storage(#[from] kaas_substrate::Error),
    /// A higher epoch was claimed meanwhile.
    #[error("deposed by epoch {by} while taking over")]
    Deposed { by: Epoch },
    /// The fence does not say who leads.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// Acknowledged bytes cannot be read. The slot is left as it is.
    #[error("{} is damaged at byte {offset}: {reason}", path.display())]
    Damaged { path: PathBuf, offset: u64, reason: LineError },
    /// The snapshot that the journal builds on is not there.
    #[error("{} is missing, and the journal builds on it", path.display())]
    SnapshotMissing { path: PathBuf },
    /// A snapshot is there and no journal that builds on it, which never happens by itself: the journal was lost.
    #[error("there is no journal that builds on {}; run `kaas-engine verify` on the directory", snapshot.display())]
    JournalMissing { snapshot: PathBuf },
    /// A file is whole, and another slot's: it was copied, restored or renamed wrongly.
    #[error("{} belongs to slot {found}, not to {expected}; run `kaas-engine verify` on the directory", path.display())]
    Foreign { path: PathBuf, found: String, expected: String },
    /// A newer kaas wrote it.
    #[error("{} has format {found}, this version of kaas reads up to {FORMAT}", path.display())]
    NewerFormat { path: PathBuf, found: u64 },
}

impl OpenError {
    /// Whether a file was not there that was listed or named.
    fn is_missing(&self) -> bool {
        match self {
            Self::Storage(error) => error.is_not_found(),
            Self::SnapshotMissing { .. } => true,
            _ => false,
        }
    }
}

/// What a slot held when it was taken over: the snapshot's state, then the appends behind it, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    pub snapshot: Option<Value>,
    pub entries: Vec<Entry>,
}

/// An entry, and the append it was part of.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub sequence: Sequence,
    pub value: Value,
}

/// Makes a slot's directory if there is none: built aside (`unique` makes its name, which no other attempt has), with its
/// fence, and renamed into place. If another was faster, that one's is as good. Durable on return. Any number of
/// processes may come to it at once: a coordinator that was deposed without knowing does.
pub fn birth(substrate: &dyn Substrate, dir: &Path, unique: &str) -> kaas_substrate::Result<()> {
    let parent = dir.parent().unwrap_or(Path::new(""));
    let name = dir.file_name().unwrap_or_default();
    let aside = format!("{NEW_PREFIX}{}", name.to_string_lossy());
    let entries = substrate.list(parent)?;
    if entries.iter().any(|entry| entry.name == name) {
        // What others have left, or are at in vain: their rename finds the name taken.
        for entry in entries {
            let rest = entry.name.to_str().and_then(|entry| entry.strip_prefix(&aside));
            if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-')) {
                let _ = remove_tree(substrate, &parent.join(&entry.name));
            }
        }
        // Who renamed it into place may have been killed before it was durable.
        return substrate.sync_dir(parent);
    }
    let temporary = parent.join(format!("{aside}-{unique}"));
    if let Err(error) = build(substrate, &temporary).and_then(|()| substrate.rename(&temporary, dir)) {
        let _ = remove_tree(substrate, &temporary);
        if !substrate.list(parent)?.iter().any(|entry| entry.name == name) {
            return Err(error);
        }
    }
    substrate.sync_dir(parent)
}

fn build(substrate: &dyn Substrate, temporary: &Path) -> kaas_substrate::Result<()> {
    substrate.create_dir(temporary)?;
    leadership::birth(substrate, temporary, Epoch::NONE)?;
    substrate.sync_tree(temporary)
}

/// A snapshot file, as one sealed line.
#[derive(Deserialize)]
struct SnapshotFile {
    format: u64,
    slot: Option<String>,
    covers: u64,
    state: Value,
}

/// The bytes of a snapshot file of the slot in `dir`. `state` is JSON.
pub(super) fn snapshot_bytes(
    substrate: &dyn Substrate,
    dir: &Path,
    covers: Sequence,
    state: &[u8],
) -> Result<Vec<u8>, serde_json::Error> {
    let slot = serde_json::to_string(&slot_name(substrate, dir))?;
    let open = format!("{{\"format\":{FORMAT},\"slot\":{slot},\"covers\":{},\"state\":", covers.0);
    Ok(seal_line([open.as_bytes(), state].concat()))
}

/// That a file which says that it is of the slot `found` lies in the directory of another one, if both are known.
pub(super) fn check_slot(
    substrate: &dyn Substrate,
    path: &Path,
    found: Option<&str>,
) -> Result<(), OpenError> {
    let expected = slot_name(substrate, path.parent().unwrap_or(Path::new("")));
    match (found, expected) {
        (Some(found), Some(expected)) if *found != expected => {
            Err(OpenError::Foreign { path: path.to_owned(), found: found.to_owned(), expected })
        }
        _ => Ok(()),
    }
}

/// A journal file as it is born.
pub(super) struct Born<'a> {
    pub(super) version: FileVersion,
    pub(super) snapshot: Option<FileVersion>,
    pub(super) lines: &'a [Line],
    pub(super) last_sequence: Sequence,
}

impl Born<'_> {
    /// The file's bytes, in the slot's directory `dir`.
    pub(super) fn encode(&self, substrate: &dyn Substrate, dir: &Path) -> Result<Vec<u8>, serde_json::Error> {
        let mut bytes = line::sealed(&Header {
            format: FORMAT,
            epoch: self.version.epoch.get(),
            number: self.version.number,
            slot: slot_name(substrate, dir),
            snapshot: self.snapshot.map(Reference::from),
            inherited: self.lines.len() as u64,
            last_sequence: self.last_sequence.0,
        })?;
        for line in self.lines {
            bytes.extend(Line::encode(line.sequence, 0, &line.entries));
        }
        Ok(bytes)
    }
}

/// What counts in a slot's directory.
pub(super) struct Found {
    newest: Option<FileVersion>,
    pub(super) snapshot: Option<(FileVersion, Value)>,
    pub(super) lines: Vec<Line>,
    pub(super) last_sequence: Sequence,
}

impl Journal {
    /// Takes the slot in `dir` over at `epoch`: claims it, reads what it holds, and returns it with the journal to go
    /// on with. On return everything in the [`Replay`] is durable, and pinned: no successor sees less, and none
    /// sees what an earlier coordinator writes from now on. Blocks.
    pub fn open(
        substrate: &Arc<dyn Substrate>,
        dir: &Path,
        epoch: Epoch,
        claimant: &Claimant,
        pool: &Arc<IoPool>,
        settings: JournalSettings,
    ) -> Result<(Self, Replay), OpenError> {
        let leadership = leadership::claim(substrate, dir, epoch, claimant)?.timed(pool.time());
        let found = find(substrate.as_ref(), dir, epoch)?;
        let version = FileVersion {
            epoch,
            // A number of this epoch is there if an earlier attempt of this run got as far.
            number: found.newest.filter(|newest| newest.epoch == epoch).map_or(0, |newest| newest.number + 1),
        };
        let snapshot = found.snapshot.as_ref().map(|(version, _)| *version);
        let path = path_of(dir, JOURNAL, version);
        let born = Born { version, snapshot, lines: &found.lines, last_sequence: found.last_sequence };
        let bytes = born.encode(substrate.as_ref(), dir).map_err(|error| OpenError::Damaged {
            path: path.clone(),
            offset: 0,
            reason: error.into(),
        })?;
        write_small(substrate.as_ref(), &path, &bytes)?;
        let file = substrate.open(&path, OpenMode::Write)?;
        match leadership.standing() {
            Standing::Leading => {}
            Standing::Deposed { by } => return Err(OpenError::Deposed { by }),
            Standing::Unknown(error) => return Err(error.into()),
        }
        let replay = replay(&path, &found)?;
        let length = bytes.len() as u64;
        let state = State {
            last_sequence: found.last_sequence,
            committed: found.last_sequence,
            appends_since_snapshot: found.lines.len() as u64,
            file_bytes: length,
            writer: Some(Writer { file, version, length }),
            ..State::default()
        };
        let shared = Arc::new(Shared {
            substrate: Arc::clone(substrate),
            leadership,
            settings,
            pool: Arc::clone(pool),
            state: Mutex::new(state),
            idle: Condvar::new(),
        });
        cycle::prune(&shared, version, snapshot);
        if let Err(error) = shared.leadership.collect_old_claims() {
            tracing::warn!(dir = %dir.display(), %error, "old claims cannot be removed");
        }
        Ok((Self { shared }, replay))
    }
}

/// Reads the newest journal file and its snapshot. What is returned is on stable storage.
fn find(substrate: &dyn Substrate, dir: &Path, epoch: Epoch) -> Result<Found, OpenError> {
    let mut seen = None;
    loop {
        let mut versions = versioned::list(substrate, dir, JOURNAL)?;
        if planted(Bug::JournalStaleFile) && versions.len() > 1 {
            versions.pop();
        }
        let Some(newest) = versions.pop() else {
            if !is_empty(substrate, dir)? {
                continue;
            }
            return Ok(Found {
                newest: None,
                snapshot: None,
                lines: Vec::new(),
                last_sequence: Sequence::default(),
            });
        };
        if is_out_of_reach(newest.epoch, epoch) {
            let (dir, highest) = (dir.to_owned(), newest.epoch);
            return Err(ClaimError::OutOfReach { dir, epoch, highest }.into());
        }
        // A journal of its own would be below that one, and looked at by nobody.
        if newest.epoch > epoch {
            return Err(OpenError::Deposed { by: newest.epoch });
        }
        let path = path_of(dir, JOURNAL, newest);
        // Its last coordinator may have died between a write and its sync.
        let durable = substrate.make_durable(&path, MAX_FILE_BYTES as u64).map_err(OpenError::from);
        match durable.and_then(|()| read_newest(substrate, dir, newest)) {
            // A successor has removed it, perhaps; the newest one now says whether it has.
            Err(error) if error.is_missing() && seen.replace(newest) != Some(newest) => {}
            outcome => return Ok(outcome?.0),
        }
    }
}

/// Whether a slot in which no journal was found never had one; false: there is one by now. A snapshot is written while the journal
/// before it is there, and goes before its own.
fn is_empty(substrate: &dyn Substrate, dir: &Path) -> Result<bool, OpenError> {
    let Some(snapshot) = versioned::list(substrate, dir, SNAPSHOT)?.pop() else { return Ok(true) };
    // A listing may miss a name that comes while another goes.
    if versioned::list(substrate, dir, JOURNAL)?.is_empty() {
        return Err(OpenError::JournalMissing { snapshot: path_of(dir, SNAPSHOT, snapshot) });
    }
    Ok(false)
}

/// What a journal file and its snapshot hold, and how many of the file's bytes that is, of how many.
pub(super) fn read_newest(
    substrate: &dyn Substrate,
    dir: &Path,
    newest: FileVersion,
) -> Result<(Found, u64, u64), OpenError> {
    let path = path_of(dir, JOURNAL, newest);
    let bytes = read_small(substrate, &path, MAX_FILE_BYTES)?;
    let Parsed { header, lines, valid_bytes } = parse_file(&bytes).map_err(|damaged| OpenError::Damaged {
        path: path.clone(),
        offset: damaged.offset,
        reason: damaged.reason,
    })?;
    if header.format > FORMAT {
        return Err(OpenError::NewerFormat { path, found: header.format });
    }
    check_slot(substrate, &path, header.slot.as_deref())?;
    if (header.epoch, header.number) != (newest.epoch.get(), newest.number) {
        // Under another's name it would take the place of what was acknowledged after it.
        let reason = LineError::Name { epoch: header.epoch, number: header.number };
        return Err(OpenError::Damaged { path, offset: 0, reason });
    }
    let mut last = header.last_sequence.max(lines.last().map_or(0, |line| line.sequence));
    let snapshot = match header.snapshot.and_then(Reference::version) {
        None => None,
        Some(version) => {
            let (covers, state) = read_snapshot(substrate, &path_of(dir, SNAPSHOT, version))?;
            last = last.max(covers);
            Some((version, state))
        }
    };
    let found = Found { newest: Some(newest), snapshot, lines, last_sequence: Sequence(last) };
    Ok((found, valid_bytes, bytes.len() as u64))
}

/// The newest journal file of a slot, as `kaas-engine verify` sees it.
pub(crate) struct Inspected {
    pub(crate) path: PathBuf,
    /// Length of the file.
    pub(crate) bytes: u64,
    /// How much of it can be read; the rest is a torn write.
    pub(crate) valid_bytes: u64,
}

/// Reads what a successor would read, without a claim and without writing anything. `None` for an empty slot.
pub(crate) fn inspect(substrate: &dyn Substrate, dir: &Path) -> Result<Option<Inspected>, OpenError> {
    let Some(newest) = versioned::list(substrate, dir, JOURNAL)?.pop() else { return Ok(None) };
    let path = path_of(dir, JOURNAL, newest);
    let (found, valid_bytes, bytes) = read_newest(substrate, dir, newest)?;
    replay(&path, &found)?;
    Ok(Some(Inspected { path, bytes, valid_bytes }))
}

/// The version that the name of a journal or snapshot file stands for.
pub(crate) fn is_journal_file(name: &std::ffi::OsStr) -> Option<FileVersion> {
    JOURNAL.parse(name).or_else(|| SNAPSHOT.parse(name))
}

/// Whether the name is that of a snapshot.
pub(crate) fn is_snapshot_file(name: &std::ffi::OsStr) -> bool {
    SNAPSHOT.parse(name).is_some()
}

pub(super) fn read_snapshot(substrate: &dyn Substrate, path: &Path) -> Result<(u64, Value), OpenError> {
    let bytes = match read_small(substrate, path, MAX_FILE_BYTES) {
        Err(error) if error.is_not_found() => {
            return Err(OpenError::SnapshotMissing { path: path.to_owned() });
        }
        outcome => outcome?,
    };
    let damaged = |reason| OpenError::Damaged { path: path.to_owned(), offset: 0, reason };
    let line = bytes.strip_suffix(b"\n").ok_or_else(|| damaged(LineError::Unfinished))?;
    let SnapshotFile { format, slot, covers, state } = line::parse(line).map_err(damaged)?;
    if format > FORMAT {
        return Err(OpenError::NewerFormat { path: path.to_owned(), found: format });
    }
    check_slot(substrate, path, slot.as_deref())?;
    Ok((covers, state))
}

pub(super) fn replay(path: &Path, found: &Found) -> Result<Replay, OpenError> {
    let mut entries = Vec::new();
    for line in &found.lines {
        let values: Vec<Value> = serde_json::from_slice(&line.entries)
            .map_err(|error| OpenError::Damaged { path: path.to_owned(), offset: 0, reason: error.into() })?;
        let sequence = Sequence(line.sequence);
        entries.extend(values.into_iter().map(|value| Entry { sequence, value }));
    }
    Ok(Replay { snapshot: found.snapshot.as_ref().map(|(_, state)| state.clone()), entries })
}
