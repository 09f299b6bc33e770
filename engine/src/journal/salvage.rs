//! What of a slot can still be read where it does not open: for `kaas-engine verify --repair`.
//!
//! Entries are absolute, so those that are left give a state that the slot could have had, but for what the lost ones had
//! changed. Every line that is whole is kept, and the newest whole snapshot.

use std::path::{Path, PathBuf};

use kaas_substrate::{Substrate, read_small, write_small};
use serde::de::IgnoredAny;

use super::line::{Header, Line, parse, starts_within};
use super::open::{Born, MAX_FILE_BYTES, OpenError, check_slot, read_newest, read_snapshot, replay};
use super::state::Sequence;
use super::{JOURNAL, SNAPSHOT, path_of};
use crate::leadership::Leadership;
use crate::manifest::versioned::{self, FileVersion};
use crate::types::Epoch;

/// What is left of a slot.
pub(crate) struct Salvaged {
    snapshot: Option<FileVersion>,
    lines: Vec<Line>,
    last_sequence: Sequence,
    /// The journal file that the lines are from, and the bytes of it that cannot be read: from, to.
    pub(crate) journal: Option<PathBuf>,
    pub(crate) unreadable: Vec<(u64, u64)>,
    /// What was acknowledged, or may have been, and is gone; empty if the slot opens as it is.
    pub(crate) given_up: Vec<String>,
}

/// Reads what is left of the slot in `dir`; `None` if nothing was ever there. Blocks.
pub(crate) fn salvage(substrate: &dyn Substrate, dir: &Path) -> Result<Option<Salvaged>, OpenError> {
    let newest = versioned::list(substrate, dir, JOURNAL)?.pop();
    let Some(newest) = newest else { return without_journal(substrate, dir) };
    let path = path_of(dir, JOURNAL, newest);
    let read = read_newest(substrate, dir, newest);
    match read.and_then(|read| replay(&path, &read.0).map(|_| read)) {
        Ok((found, valid_bytes, bytes)) => Ok(Some(Salvaged {
            snapshot: found.snapshot.map(|(version, _)| version),
            lines: found.lines,
            last_sequence: found.last_sequence,
            journal: Some(path),
            unreadable: if valid_bytes < bytes { vec![(valid_bytes, bytes)] } else { Vec::new() },
            given_up: Vec::new(),
        })),
        Err(OpenError::Damaged { .. } | OpenError::SnapshotMissing { .. } | OpenError::Foreign { .. }) => {
            damaged(substrate, dir).map(Some)
        }
        Err(error) => Err(error),
    }
}

/// A snapshot follows a journal, and goes before it.
fn without_journal(substrate: &dyn Substrate, dir: &Path) -> Result<Option<Salvaged>, OpenError> {
    if versioned::list(substrate, dir, SNAPSHOT)?.is_empty() {
        return Ok(None);
    }
    let snapshot = newest_snapshot(substrate, dir, None)?;
    Ok(Some(Salvaged {
        snapshot: snapshot.as_ref().map(|found| found.version),
        lines: Vec::new(),
        last_sequence: Sequence(snapshot.as_ref().map_or(0, |found| found.covers)),
        journal: None,
        unreadable: Vec::new(),
        given_up: vec![match snapshot {
            Some(found) => format!("everything behind append {}: the journal is gone", found.covers),
            None => "everything: the journal is gone, and no snapshot can be read".to_owned(),
        }],
    }))
}

/// A journal file of which every line that is whole was taken.
struct Torn {
    name: FileVersion,
    header: Option<Header>,
    lines: Vec<Line>,
    unreadable: Vec<(u64, u64)>,
}

impl Torn {
    /// Which journal it is: what it says, or else what its name says.
    fn version(&self) -> FileVersion {
        let said = self
            .header
            .as_ref()
            .and_then(|header| Some(FileVersion { epoch: Epoch::new(header.epoch)?, number: header.number }));
        said.unwrap_or(self.name)
    }
}

fn damaged(substrate: &dyn Substrate, dir: &Path) -> Result<Salvaged, OpenError> {
    let (mut journals, mut foreign) = (Vec::new(), Vec::new());
    for name in versioned::list(substrate, dir, JOURNAL)? {
        let path = path_of(dir, JOURNAL, name);
        let torn = read_lines(name, &path, &read_small(substrate, &path, MAX_FILE_BYTES)?)?;
        let slot = torn.header.as_ref().and_then(|header| header.slot.as_deref());
        match check_slot(substrate, &path, slot) {
            Ok(()) => journals.push(torn),
            Err(_) => foreign.push(name),
        }
    }
    // Of two files that say the same the one with more in it.
    let newest = journals.into_iter().max_by_key(|torn| (torn.version(), torn.lines.len()));
    let mut given_up: Vec<_> = foreign
        .iter()
        .map(|name| format!("whatever stood where the other slot's {} is now", JOURNAL.file_name(*name)))
        .collect();
    let Some(Torn { name, header, mut lines, unreadable }) = newest else {
        let mut salvaged = match without_journal(substrate, dir)? {
            None if foreign.is_empty() => return Err(vanished(dir)),
            None => Salvaged::nothing(),
            Some(salvaged) => salvaged,
        };
        salvaged.given_up.extend(given_up);
        return Ok(salvaged);
    };
    if !unreadable.is_empty() {
        let bytes: u64 = unreadable.iter().map(|(from, to)| to - from).sum();
        given_up.push(format!(
            "the appends in {bytes} bytes of {} that cannot be read, as far as later ones have not replaced them",
            JOURNAL.file_name(name)
        ));
    }
    if header.as_ref().is_some_and(|header| (header.epoch, header.number) != (name.epoch.get(), name.number))
    {
        given_up.push(format!("whatever stood in {} before it was replaced", JOURNAL.file_name(name)));
    }
    let referred = header.as_ref().map(|header| header.snapshot.and_then(super::line::Reference::version));
    let snapshot = match referred {
        // It builds on none.
        Some(None) => None,
        _ => newest_snapshot(substrate, dir, Some(name))?,
    };
    if let Some(Some(version)) = referred
        && snapshot.as_ref().is_none_or(|found| found.version != version)
    {
        given_up.push(format!(
            "the state in {}, as far as the journal has not replaced it",
            SNAPSHOT.file_name(version)
        ));
    }
    if referred.is_none() && snapshot.is_none() {
        given_up.push("the snapshot that the journal may have built on".to_owned());
    }
    if given_up.is_empty() {
        // It does not open, though every line that is there is whole: what is not there has left no trace.
        given_up.push(format!("the appends that {} lacks at its end", JOURNAL.file_name(name)));
    }
    let covers = snapshot.as_ref().map_or(0, |found| found.covers);
    lines.retain(|line| line.sequence > covers);
    let last = lines.last().map_or(covers, |line| line.sequence);
    let last = last.max(header.map_or(0, |header| header.last_sequence));
    Ok(Salvaged {
        snapshot: snapshot.map(|found| found.version),
        lines,
        last_sequence: Sequence(last),
        journal: Some(path_of(dir, JOURNAL, name)),
        unreadable,
        given_up,
    })
}

fn vanished(dir: &Path) -> OpenError {
    let gone = std::io::Error::from(std::io::ErrorKind::NotFound);
    OpenError::Storage(kaas_substrate::Error::new(kaas_substrate::Operation::Open, dir, gone))
}

/// Takes every line that is whole, in whatever there is around it.
fn read_lines(name: FileVersion, path: &Path, bytes: &[u8]) -> Result<Torn, OpenError> {
    let mut torn = Torn { name, header: None, lines: Vec::new(), unreadable: Vec::new() };
    let mut position = 0;
    for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
        let line = piece.strip_suffix(b"\n").unwrap_or(piece);
        let whole = line.len() < piece.len();
        if position == 0 {
            torn.header = parse::<Header>(line).ok().filter(|_| whole);
            if let Some(found) = torn.header.as_ref().map(|header| header.format)
                && found > super::line::FORMAT
            {
                return Err(OpenError::NewerFormat { path: path.to_owned(), found });
            }
        }
        let is_header = position == 0 && torn.header.is_some();
        let is_taken = is_header || (whole && torn.take(line, position));
        if !is_taken {
            torn.search(line, position, position + piece.len() as u64);
        }
        position += piece.len() as u64;
    }
    Ok(torn)
}

impl Torn {
    fn take(&mut self, line: &[u8], at: u64) -> bool {
        let last = self.lines.last().map_or(0, |line| line.sequence);
        let Ok((line, _)) = Line::parse(line, at, last) else { return false };
        let is_list = serde_json::from_slice::<Vec<IgnoredAny>>(&line.entries).is_ok();
        if is_list {
            self.lines.push(line);
        }
        is_list
    }

    /// Looks for a line behind the damage in a piece: the line feed in between may be what was damaged.
    fn search(&mut self, piece: &[u8], start: u64, end: u64) {
        for at in starts_within(piece) {
            let behind = piece.get(at..).unwrap_or_default();
            if self.take(behind, start + at as u64) {
                self.unreadable.push((start, start + at as u64));
                return;
            }
        }
        self.unreadable.push((start, end));
    }
}

/// A snapshot that can be read.
struct Snapshot {
    version: FileVersion,
    covers: u64,
}

/// The newest snapshot that can be read, of those that a journal of version `below` can build on.
fn newest_snapshot(
    substrate: &dyn Substrate,
    dir: &Path,
    below: Option<FileVersion>,
) -> Result<Option<Snapshot>, OpenError> {
    let versions = versioned::list(substrate, dir, SNAPSHOT)?;
    for version in versions.into_iter().rev().filter(|version| below.is_none_or(|below| *version <= below)) {
        match read_snapshot(substrate, &path_of(dir, SNAPSHOT, version)) {
            Ok((covers, _)) => return Ok(Some(Snapshot { version, covers })),
            Err(
                OpenError::Damaged { .. } | OpenError::SnapshotMissing { .. } | OpenError::Foreign { .. },
            ) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

impl Salvaged {
    fn nothing() -> Self {
        Self {
            snapshot: None,
            lines: Vec::new(),
            last_sequence: Sequence::default(),
            journal: None,
            unreadable: Vec::new(),
            given_up: Vec::new(),
        }
    }

    /// The files that this is not built on: they are not needed once [`Salvaged::write`] has returned.
    pub(crate) fn unused(
        &self,
        substrate: &dyn Substrate,
        dir: &Path,
    ) -> kaas_substrate::Result<Vec<PathBuf>> {
        let mut unused = Vec::new();
        for (kind, kept) in [(JOURNAL, None), (SNAPSHOT, self.snapshot)] {
            let versions = versioned::list(substrate, dir, kind)?;
            let others = versions.into_iter().filter(|version| Some(*version) != kept);
            unused.extend(others.map(|version| path_of(dir, kind, version)));
        }
        Ok(unused)
    }

    /// Writes what is left as the journal of `leadership`'s epoch, as a successor does: durable on return, and it counts,
    /// unless a higher epoch was claimed, for which the caller asks the fence.
    pub(crate) fn write(&self, substrate: &dyn Substrate, leadership: &Leadership) -> Result<(), OpenError> {
        let version = FileVersion { epoch: leadership.epoch(), number: 0 };
        let path = path_of(leadership.dir(), JOURNAL, version);
        let born =
            Born { version, snapshot: self.snapshot, lines: &self.lines, last_sequence: self.last_sequence };
        let bytes = born.encode(substrate, leadership.dir()).map_err(|error| OpenError::Damaged {
            path: path.clone(),
            offset: 0,
            reason: error.into(),
        })?;
        Ok(write_small(substrate, &path, &bytes)?)
    }

    /// The journal that [`Salvaged::write`] makes at `epoch`.
    pub(crate) fn file_name(epoch: Epoch) -> String {
        JOURNAL.file_name(FileVersion { epoch, number: 0 })
    }

    /// How many appends are kept.
    pub(crate) fn appends(&self) -> usize {
        self.lines.len()
    }

    /// The snapshot that is kept.
    pub(crate) fn snapshot(&self) -> Option<String> {
        self.snapshot.map(|version| SNAPSHOT.file_name(version))
    }
}

/// Makes what the slot's files hold durable, before they are read by whoever has claimed the slot: their last writer may
/// have died between a write and its sync.
pub(crate) fn make_durable(substrate: &dyn Substrate, dir: &Path) -> kaas_substrate::Result<()> {
    for version in versioned::list(substrate, dir, JOURNAL)? {
        substrate.make_durable(&path_of(dir, JOURNAL, version), MAX_FILE_BYTES as u64)?;
    }
    Ok(())
}
