//! `quarantine/` in the directory of a partition, topic or slot, and in `cluster/`: copies of what cannot be read, and files
//! that do not belong there.
//!
//! Nobody looks into a directory of that name, so nothing in it can be taken for anything. It goes with the topic when that
//! is deleted. Nothing in it is ever written again or removed by kaas.

use std::ffi::{OsStr, OsString};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_substrate::{Entry, EntryKind, ErrorClass, File, OpenMode, Result, Substrate, printable};

use crate::types::Epoch;

/// Name of the directory.
pub(crate) const QUARANTINE_DIR: &str = "quarantine";

/// Prefix of a copy that is not whole.
const PARTIAL_PREFIX: &str = "~tmp-";

/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// A block of zeros of so many bytes is not written.
const BLOCK_BYTES: usize = 64 << 10;

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

/// Copies all of these that are not moved, and removes what earlier repairs have not finished. Durable on return, and may be repeated;
/// `by` is the epoch that the repair has claimed.
pub(super) fn copy_all<'a>(
    substrate: &dyn Substrate,
    dir: &Path,
    all: impl IntoIterator<Item = &'a Quarantined>,
    by: Epoch,
) -> Result<()> {
    let mut copied = all.into_iter().filter(|quarantined| !quarantined.remove).peekable();
    if copied.peek().is_none() {
        return Ok(());
    }
    remove_partial(substrate, &make_dir(substrate, dir)?, by)?;
    copied.try_for_each(|what| copy(substrate, dir, what, by))
}

/// Copies a file, or a part of it: what is zeros is not written, so that a copy takes no more room than the bytes in it. Durable
/// on return. A copy that is there already is not made again, so a repair that was cut off may be repeated; another file of the
/// same name gets a number.
///
/// `by` is the epoch that the repair has claimed. It stands in the name of a copy under way, so that a repair that was
/// deposed, and goes on late, writes over none of its successor's.
fn copy(substrate: &dyn Substrate, dir: &Path, what: &Quarantined, by: Epoch) -> Result<()> {
    let quarantine = dir.join(QUARANTINE_DIR);
    let path = dir.join(&what.name);
    // What the volume says of holes is asked for below, and some know only what has been synced.
    let durable = substrate.make_durable(&path, u64::MAX);
    let source = match durable.and_then(|()| substrate.open(&path, OpenMode::ReadUncached)) {
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
    for numbered in numbered(&name) {
        let target = quarantine.join(&numbered);
        match substrate.open(&target, OpenMode::ReadUncached) {
            Err(error) if error.is_not_found() => {
                let mut partial = partial_prefix(by);
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
    Err(too_many(&quarantine.join(name)))
}

/// Moves a whole file, without copying it where the volume can. Durable on return. May be repeated, as [`copy`].
pub(super) fn take(substrate: &dyn Substrate, dir: &Path, name: &OsStr, by: Epoch) -> Result<()> {
    let quarantine = make_dir(substrate, dir)?;
    let source = dir.join(name);
    for numbered in numbered(name) {
        let target = quarantine.join(numbered);
        match substrate.move_file(&source, &target) {
            Ok(()) => return Ok(()),
            // Moved by a repair that was cut off.
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) if error.is_exists() => {
                // It may have both names since then.
                if Piece::open(substrate, &source)?.is_same(&Piece::open(substrate, &target)?)? {
                    substrate.sync_dir(&quarantine)?;
                    substrate.remove_file(&source)?;
                    return substrate.sync_dir(dir);
                }
            }
            Err(error) if !matches!(error.class, ErrorClass::Invalid | ErrorClass::Other) => {
                return Err(error);
            }
            Err(_) => {
                copy_all(substrate, dir, &[Quarantined::whole(name, false)], by)?;
                substrate.remove_file(&source)?;
                return substrate.sync_dir(dir);
            }
        }
    }
    Err(too_many(&quarantine.join(name)))
}

/// What the names of copies under way begin with.
fn partial_prefix(by: Epoch) -> OsString {
    format!("{PARTIAL_PREFIX}{:08x}-", by.get()).into()
}

/// Removes what earlier repairs have not finished: who is still at it was deposed, and finds its copy gone.
fn remove_partial(substrate: &dyn Substrate, quarantine: &Path, by: Epoch) -> Result<()> {
    let own = partial_prefix(by);
    let is_earlier = |name: &OsStr| {
        name.as_encoded_bytes().starts_with(PARTIAL_PREFIX.as_bytes()) && name < own.as_os_str()
    };
    for entry in substrate.list(quarantine)?.iter().filter(|entry| is_earlier(&entry.name)) {
        match substrate.remove_file(&quarantine.join(&entry.name)) {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn make_dir(substrate: &dyn Substrate, dir: &Path) -> Result<PathBuf> {
    let quarantine = dir.join(QUARANTINE_DIR);
    match substrate.create_dir(&quarantine) {
        Err(error) if !error.is_exists() => return Err(error),
        _ => substrate.sync_dir(dir)?,
    }
    Ok(quarantine)
}

/// The names that a file may have in the quarantine.
fn numbered(name: &OsStr) -> impl Iterator<Item = OsString> {
    (1..=COPIES_MAX).map(move |number| {
        let mut numbered = name.to_owned();
        if number > 1 {
            numbered.push(format!(".{number}"));
        }
        numbered
    })
}

/// A thousand different files of this name were put aside before; what is where it is stays there.
fn too_many(path: &Path) -> kaas_substrate::Error {
    let exists = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
    kaas_substrate::Error::new(kaas_substrate::Operation::Create, path, exists)
}

/// Some bytes of a file.
struct Piece {
    file: Arc<dyn File>,
    from: u64,
    to: u64,
}

impl Piece {
    /// All of them.
    fn open(substrate: &dyn Substrate, path: &Path) -> Result<Self> {
        let file = substrate.open(path, OpenMode::ReadUncached)?;
        let to = file.length()?;
        Ok(Self { file, from: 0, to })
    }

    fn bytes(&self) -> u64 {
        self.to.saturating_sub(self.from)
    }

    /// The bytes from `at` on up to `end`, as many as fit.
    fn read<'a>(&self, at: u64, end: u64, buffer: &'a mut [u8]) -> Result<&'a [u8]> {
        let end = end.min(self.bytes());
        let want = usize::try_from(end.saturating_sub(at)).unwrap_or(COPY_BYTES).min(COPY_BYTES);
        let Some(buffer) = buffer.get_mut(..want) else { return Ok(&[]) };
        let read = self.file.read_at(buffer, self.from + at)?;
        Ok(buffer.get(..read).unwrap_or_default())
    }

    /// Where the next bytes from `at` on begin and end that may be other than zeros.
    fn next_data(&self, at: u64) -> Result<Option<(u64, u64)>> {
        let found = self.file.next_data(self.from + at)?;
        let found = found.map(|(begin, end)| {
            (begin.saturating_sub(self.from).max(at), end.min(self.to) - self.from.min(end))
        });
        Ok(found.filter(|(begin, end)| begin < end))
    }

    fn copy_to(&self, substrate: &dyn Substrate, partial: &Path, target: &Path) -> Result<()> {
        match substrate.remove_file(partial) {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
        let file = substrate.open(partial, OpenMode::CreateNew)?;
        let copied = self.copy_bytes(&*file).and_then(|()| file.sync_data());
        drop(file);
        copied.and_then(|()| substrate.rename(partial, target)).inspect_err(|_| {
            // Best effort: a leftover is removed by the next try. On a full volume it is in its way.
            let _ = substrate.remove_file(partial);
        })?;
        substrate.sync_dir(target.parent().unwrap_or(Path::new("")))
    }

    fn copy_bytes(&self, to: &dyn File) -> Result<()> {
        let (mut at, mut written, mut buffer) = (0, 0, vec![0; COPY_BYTES]);
        while let Some((begin, end)) = self.next_data(at)? {
            at = begin;
            while at < end {
                let piece = self.read(at, end, &mut buffer)?;
                if piece.is_empty() {
                    // It has become shorter.
                    return if written < at { to.set_length(at) } else { Ok(()) };
                }
                for block in piece.chunks(BLOCK_BYTES) {
                    if block.iter().any(|byte| *byte != 0) {
                        to.write_all_at(&[IoSlice::new(block)], at)?;
                        written = at + block.len() as u64;
                    }
                    at += block.len() as u64;
                }
            }
        }
        if written < self.bytes() { to.set_length(self.bytes()) } else { Ok(()) }
    }

    fn is_same(&self, other: &Self) -> Result<bool> {
        if self.bytes() != other.bytes() {
            return Ok(false);
        }
        let (mut at, mut own, mut others) = (0, vec![0; COPY_BYTES], vec![0; COPY_BYTES]);
        while at < self.bytes() {
            let end = self.bytes();
            let (own, others) = (self.read(at, end, &mut own)?, other.read(at, end, &mut others)?);
            if own != others || own.is_empty() {
                return Ok(false);
            }
            at += own.len() as u64;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use kaas_substrate::Memory;

    use super::*;

    #[test]
    fn a_copy_leaves_that_of_a_later_repair_alone_and_removes_what_earlier_ones_left() {
        let volume = Memory::new();
        let put = |name: &str, bytes: &[u8]| {
            let file = volume.open(Path::new(name), OpenMode::CreateNew).unwrap();
            file.write_all_at(&[IoSlice::new(bytes)], 0).unwrap();
        };
        volume.create_dir(Path::new("d")).unwrap();
        volume.create_dir(Path::new("d/quarantine")).unwrap();
        put("d/f", b"whole");
        put("d/quarantine/~tmp-00000004-f", b"wh");
        put("d/quarantine/~tmp-00000006-f", b"who");
        let by = Epoch::new(5).unwrap();
        copy_all(&volume, Path::new("d"), &[Quarantined::whole("f", false)], by).unwrap();
        let mut names: Vec<_> = volume.list(Path::new("d/quarantine")).unwrap();
        names.sort_by(|one, other| one.name.cmp(&other.name));
        let names: Vec<_> = names.iter().map(|entry| entry.name.to_str().unwrap()).collect();
        assert_eq!(names, ["f", "~tmp-00000006-f"]);
        let (copied, later) = ("d/quarantine/f", "d/quarantine/~tmp-00000006-f");
        let read = |name: &str| kaas_substrate::read_small(&volume, Path::new(name), 100).unwrap();
        assert_eq!((read(copied), read(later)), (b"whole".to_vec(), b"who".to_vec()));
    }
}
