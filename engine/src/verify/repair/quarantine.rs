//! `quarantine/` in the directory of a partition, topic or slot, and in `cluster/`: copies of what cannot be read, and files
//! that do not belong there.
//!
//! Nobody looks into a directory of that name, so nothing in it can be taken for anything. It goes with the topic when that
//! is deleted. Nothing in it is ever written again or removed by kaas.

use std::ffi::OsString;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use kaas_substrate::{Entry, EntryKind, File, OpenMode, Result, Substrate, printable};

/// Name of the directory.
pub(in crate::verify) const QUARANTINE_DIR: &str = "quarantine";

/// Prefix of a copy that is not whole.
const PARTIAL_PREFIX: &str = "~tmp-";

/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// Copies of one name that are told apart by a number.
const COPIES_MAX: u32 = 1000;

/// A file that goes to the quarantine, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Quarantined {
    /// Name in the directory.
    pub(super) name: OsString,
    /// The bytes of it, if it is not the whole file.
    pub(super) part: Option<(u64, u64)>,
    /// The file is removed once the new manifest holds: no leader would remove it.
    pub(super) remove: bool,
}

impl Quarantined {
    pub(super) fn whole(name: impl Into<OsString>, remove: bool) -> Self {
        Self { name: name.into(), part: None, remove }
    }

    pub(super) fn part(name: impl Into<OsString>, from: u64, to: u64) -> Self {
        Self { name: name.into(), part: Some((from, to)), remove: false }
    }

    /// What is done, for people.
    pub(super) fn step(&self) -> String {
        let Self { name, part, remove } = self;
        let name = printable(Path::new(name));
        let verb = if *remove { "move" } else { "copy" };
        match part {
            Some((from, to)) => format!("copy bytes {from} to {to} of {name} to {QUARANTINE_DIR}/"),
            None => format!("{verb} {name} to {QUARANTINE_DIR}/"),
        }
    }
}

/// Why nothing can be put aside in `dir`: what has the name is no directory. A link would lead out of it.
pub(super) fn refusal(substrate: &dyn Substrate, dir: &Path) -> Option<String> {
    let entries = substrate.list(dir).ok()?;
    let taken = |entry: &Entry| entry.name == QUARANTINE_DIR && entry.kind != EntryKind::Dir;
    entries
        .iter()
        .any(taken)
        .then(|| format!("{QUARANTINE_DIR} is there, and is no directory: move it out of the way"))
}

/// Copies a file, or a part of it. Durable on return. A copy that is there already is not made again, so a repair that was cut
/// off may be repeated; another file of the same name gets a number.
pub(super) fn copy(substrate: &dyn Substrate, dir: &Path, what: &Quarantined) -> Result<()> {
    let quarantine = dir.join(QUARANTINE_DIR);
    match substrate.create_dir(&quarantine) {
        Err(error) if !error.is_exists() => return Err(error),
        _ => substrate.sync_dir(dir)?,
    }
    let source = match substrate.open(&dir.join(&what.name), OpenMode::ReadUncached) {
        // Moved by a repair that was cut off.
        Err(error) if error.is_not_found() => return Ok(()),
        outcome => outcome?,
    };
    let length = source.length()?;
    let (from, to) = what.part.unwrap_or((0, length));
    let source = Piece { file: source, from, to: to.min(length) };
    let mut name = what.name.clone();
    if let Some((from, to)) = what.part {
        name.push(format!(".{from}-{to}"));
    }
    for number in 1..=COPIES_MAX {
        let mut numbered = name.clone();
        if number > 1 {
            numbered.push(format!(".{number}"));
        }
        let target = quarantine.join(&numbered);
        match substrate.open(&target, OpenMode::ReadUncached) {
            Err(error) if error.is_not_found() => {
                let mut partial = OsString::from(PARTIAL_PREFIX);
                partial.push(numbered);
                return source.copy_to(substrate, &quarantine.join(partial), &target);
            }
            Err(error) => return Err(error),
            Ok(found) => {
                let to = found.length()?;
                if source.is_same(&Piece { file: found, from: 0, to })? {
                    return substrate.sync_dir(&quarantine);
                }
            }
        }
    }
    // A thousand different files of this name were put aside before; what is where it is stays there.
    Err(kaas_substrate::Error::new(
        kaas_substrate::Operation::Create,
        &quarantine.join(name),
        std::io::Error::from(std::io::ErrorKind::AlreadyExists),
    ))
}

/// Some bytes of a file.
struct Piece {
    file: Arc<dyn File>,
    from: u64,
    to: u64,
}

impl Piece {
    fn bytes(&self) -> u64 {
        self.to.saturating_sub(self.from)
    }

    /// The bytes from `at` on, as many as fit.
    fn read<'a>(&self, at: u64, buffer: &'a mut [u8]) -> Result<&'a [u8]> {
        let want = usize::try_from(self.bytes().saturating_sub(at)).unwrap_or(COPY_BYTES).min(COPY_BYTES);
        let Some(buffer) = buffer.get_mut(..want) else { return Ok(&[]) };
        let read = self.file.read_at(buffer, self.from + at)?;
        Ok(buffer.get(..read).unwrap_or_default())
    }

    fn copy_to(&self, substrate: &dyn Substrate, partial: &Path, target: &Path) -> Result<()> {
        match substrate.remove_file(partial) {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
        let file = substrate.open(partial, OpenMode::CreateNew)?;
        let (mut at, mut buffer) = (0, vec![0; COPY_BYTES]);
        while at < self.bytes() {
            let piece = self.read(at, &mut buffer)?;
            if piece.is_empty() {
                break;
            }
            file.write_all_at(&[IoSlice::new(piece)], at)?;
            at += piece.len() as u64;
        }
        file.sync_data()?;
        drop(file);
        substrate.rename(partial, target)?;
        substrate.sync_dir(target.parent().unwrap_or(Path::new("")))
    }

    fn is_same(&self, other: &Self) -> Result<bool> {
        if self.bytes() != other.bytes() {
            return Ok(false);
        }
        let (mut at, mut own, mut others) = (0, vec![0; COPY_BYTES], vec![0; COPY_BYTES]);
        while at < self.bytes() {
            let (own, others) = (self.read(at, &mut own)?, other.read(at, &mut others)?);
            if own != others || own.is_empty() {
                return Ok(false);
            }
            at += own.len() as u64;
        }
        Ok(true)
    }
}
