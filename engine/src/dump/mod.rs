//! `kaas-engine dump`: what is in a file or directory, batch by batch and entry by entry.
//!
//! Read-only, and takes no part in leadership: a live leader may go on writing, so what is at the very end of its
//! newest segment may look torn. Reads through the substrate in pieces; memory is bounded by the settings below.
//! Items go to the caller one by one as they are found; damage is an item too, and is counted.

mod item;
mod lines;
mod log_file;
mod names;
mod pins;
mod text;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use kaas_substrate::{EntryKind, OpenMode, Substrate, harmless, printable, read_small};

pub use item::{BatchItem, Content, Item, ProducerItem, RecordItem};
pub use names::FileKind;
pub use text::render;
#[cfg(feature = "cli")]
pub(crate) use text::utc;

use crate::index::{OffsetIndex, Prefix, TimeIndex, TxnIndex};
use crate::leadership::{self, FenceRecord};
use crate::log::SegmentFileName;
use crate::producer_state::ProducerStates;
use crate::verify::QUARANTINE_DIR;
use pins::Pins;

/// How deep below the named directory is looked: a data directory has partitions four levels down.
const MAX_DEPTH: usize = 8;

const INDEX_HINT: &str =
    "indexes are derived from the log: the leader walks through the log instead, and no record is missing";

/// What to show and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DumpOptions {
    /// The records of each batch too.
    pub records: bool,
    /// One JSON object a line instead of text.
    pub json: bool,
    /// Largest batch that is held in memory to show its records.
    pub max_batch_bytes: usize,
    /// Most bytes that a batch's records may have after decompression.
    pub max_decompressed_bytes: usize,
    /// Largest index, snapshot or JSON file, and longest line of JSON, that is held in memory.
    pub max_file_bytes: usize,
}

impl Default for DumpOptions {
    /// Text, no records; batches up to 128 MiB, 256 MiB after decompression; other files up to 256 MiB.
    fn default() -> Self {
        Self {
            records: false,
            json: false,
            max_batch_bytes: 128 << 20,
            max_decompressed_bytes: 256 << 20,
            max_file_bytes: 256 << 20,
        }
    }
}

/// Why a dump could not go on. What is wrong with the contents of a file is a finding, not an error.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    #[error(transparent)]
    Storage(#[from] kaas_substrate::Error),
    #[error("the output cannot be written: {0}")]
    Output(#[from] io::Error),
    #[error("{} is {}, and neither a file nor a directory", printable(path), kind.describe())]
    NotAFile { path: PathBuf, kind: EntryKind },
    #[error("there are no files of kaas in or below {}", printable(path))]
    NothingHere { path: PathBuf },
    /// By its name it is no file of kaas, or one that says nothing.
    #[error("{}: by its name it is no file of kaas, or one with nothing in it to show", printable(path))]
    NotOurs { path: PathBuf },
}

/// How many files were shown and how many findings there were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    pub files: u64,
    pub findings: u64,
}

/// Shows the directory or file `path` of `substrate` on `out`. Of a directory, files that are not ours are left out, and what
/// nobody reads: `quarantine/`, and everything on its way in or out (`~`).
///
/// # Errors
///
/// Only what keeps it from reading or writing.
pub fn dump(
    substrate: &dyn Substrate,
    path: &Path,
    options: &DumpOptions,
    out: &mut dyn Write,
) -> Result<Summary, DumpError> {
    let mut dumper = Dumper { substrate, options, out, summary: Summary::default(), pins: None };
    if is_dir(substrate, path)? {
        dumper.directory(path, 0)?;
        if dumper.summary.files == 0 {
            return Err(DumpError::NothingHere { path: substrate.root().join(path) });
        }
    } else if FileKind::of(&path.file_name().unwrap_or_default().to_string_lossy()) == FileKind::Other {
        return Err(DumpError::NotOurs { path: substrate.root().join(path) });
    } else {
        dumper.file(path)?;
    }
    dumper.out.flush()?;
    Ok(dumper.summary)
}

/// Whether `path` is a directory; by its parent's listing, which follows no links.
fn is_dir(substrate: &dyn Substrate, path: &Path) -> Result<bool, DumpError> {
    let Some(name) = path.file_name() else { return Ok(true) };
    let parent = path.parent().unwrap_or(Path::new(""));
    let found = substrate.list(parent)?.into_iter().find(|entry| entry.name == name);
    match found.map(|entry| entry.kind) {
        Some(EntryKind::Dir) => Ok(true),
        Some(EntryKind::File) => Ok(false),
        Some(kind) => Err(DumpError::NotAFile { path: path.to_owned(), kind }),
        // Opening it says why, in the system's words.
        None => substrate.open(path, OpenMode::Read).map(|_| false).map_err(DumpError::from),
    }
}

struct Dumper<'a> {
    substrate: &'a dyn Substrate,
    options: &'a DumpOptions,
    out: &'a mut dyn Write,
    summary: Summary,
    /// Of the directory that is being shown.
    pins: Option<Pins>,
}

impl Dumper<'_> {
    fn show(&mut self, item: &Item) -> Result<(), DumpError> {
        if self.options.json {
            let text = serde_json::to_string(item).map_err(io::Error::from)?;
            self.out.write_all(crate::printable::json(text).as_bytes())?;
            self.out.write_all(b"\n")?;
        } else {
            self.out.write_all(harmless(&render(item)).as_bytes())?;
        }
        Ok(())
    }

    fn finding(
        &mut self,
        path: &str,
        position: u64,
        problem: String,
        hint: &'static str,
    ) -> Result<(), DumpError> {
        self.summary.findings += 1;
        self.show(&Item::Finding { path: path.to_owned(), position, problem, hint })
    }

    fn directory(&mut self, dir: &Path, depth: usize) -> Result<(), DumpError> {
        let mut entries = self.substrate.list(dir)?;
        entries.sort();
        for entry in entries {
            let path = dir.join(&entry.name);
            let bytes = entry.name.as_encoded_bytes();
            match entry.kind {
                _ if bytes == QUARANTINE_DIR.as_bytes() || bytes.starts_with(b"~") => {}
                EntryKind::File if FileKind::of(&entry.name.to_string_lossy()) == FileKind::Other => {}
                EntryKind::File => self.file(&path)?,
                EntryKind::Dir if depth < MAX_DEPTH => self.directory(&path, depth + 1)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path) -> Result<(), DumpError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let kind = FileKind::of(&name);
        let file = match self.substrate.open(path, OpenMode::Read) {
            Ok(file) => file,
            // The leader removed it since it was listed.
            Err(error) if error.is_not_found() && self.summary.files > 0 => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let shown = crate::printable::path(path);
        self.summary.files += 1;
        self.show(&Item::File { path: shown.clone(), what: kind.describe(), bytes: file.length()? })?;
        let counted = self.counted(path, &name);
        match kind {
            FileKind::Log => self.log(&shown, file.as_ref(), counted.unwrap_or(u64::MAX)),
            FileKind::OffsetIndex { base_offset } => {
                let bytes = self.read(path)?;
                let Prefix { index, damage } = OffsetIndex::valid_prefix(base_offset, &bytes);
                let good = index.as_bytes().len();
                let damage = damage.filter(|_| counted.is_none_or(|counted| (good as u64) < counted));
                self.entries(&shown, index.iter(), good, damage)
            }
            FileKind::TimeIndex { base_offset } => {
                let bytes = self.read(path)?;
                let Prefix { index, damage } = TimeIndex::valid_prefix(base_offset, &bytes);
                let good = index.as_bytes().len();
                let damage = damage.filter(|_| counted.is_none_or(|counted| (good as u64) < counted));
                self.entries(&shown, index.iter(), good, damage)
            }
            FileKind::TxnIndex { base_offset } => {
                let bytes = self.read(path)?;
                let Prefix { index, damage } = TxnIndex::valid_prefix(base_offset, &bytes);
                let good = index.as_bytes().len();
                let damage = damage.filter(|_| counted.is_none_or(|counted| (good as u64) < counted));
                self.entries(&shown, index.iter(), good, damage)
            }
            FileKind::ProducerSnapshot => self.snapshot(&shown, path),
            FileKind::Json => self.json(&shown, path),
            FileKind::JsonLines => self.json_lines(&shown, file.as_ref()),
            FileKind::Fence => self.fence(&shown, path),
            FileKind::Other => Ok(()),
        }
    }

    /// The bytes of a segment's file that count, if the directory's manifest says it.
    fn counted(&mut self, path: &Path, name: &str) -> Option<u64> {
        SegmentFileName::parse(name)?;
        let dir = path.parent().unwrap_or(Path::new(""));
        let known = self.pins.take().filter(|pins| pins.are_of(dir));
        self.pins.insert(known.unwrap_or_else(|| Pins::read(self.substrate, dir))).bytes(name)
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, DumpError> {
        Ok(read_small(self.substrate, path, self.options.max_file_bytes)?)
    }

    fn entries(
        &mut self,
        path: &str,
        entries: impl Iterator<Item = impl Into<Item>>,
        good_bytes: usize,
        damage: Option<crate::index::IndexError>,
    ) -> Result<(), DumpError> {
        for entry in entries {
            self.show(&entry.into())?;
        }
        match damage {
            Some(damage) => {
                let position = u64::try_from(good_bytes).unwrap_or(u64::MAX);
                self.finding(path, position, damage.to_string(), INDEX_HINT)
            }
            None => Ok(()),
        }
    }

    fn snapshot(&mut self, shown: &str, path: &Path) -> Result<(), DumpError> {
        let bytes = self.read(path)?;
        if let Err(error) = ProducerStates::from_snapshot(&bytes) {
            let hint = "recovery falls back to an older snapshot, or scans the log from its start";
            self.finding(shown, 0, error.to_string(), hint)?;
        }
        self.show_lines(shown, &bytes, 0)
    }

    fn json(&mut self, shown: &str, path: &Path) -> Result<(), DumpError> {
        let bytes = self.read(path)?;
        match serde_json::from_slice(&bytes) {
            Ok(value) => self.show(&Item::Json { value }),
            Err(error) => {
                let hint = "such files are written whole and renamed into place: this one was changed since";
                self.finding(shown, 0, format!("not JSON: {error}"), hint)
            }
        }
    }

    fn fence(&mut self, shown: &str, path: &Path) -> Result<(), DumpError> {
        let dir = path.parent().unwrap_or(Path::new(""));
        for (epoch, record) in leadership::records(self.substrate, dir)? {
            let state = match &record {
                FenceRecord::Unclaimed => "not claimed".to_owned(),
                FenceRecord::Claimed { owner } => format!(
                    "claimed by broker {}, incarnation {}, assignment {}",
                    owner.broker_id, owner.incarnation, owner.assignment_version
                ),
                FenceRecord::Skipped { by } => format!("skipped by the claimant of epoch {by}"),
                FenceRecord::Born => "the directory was born after this epoch".to_owned(),
                FenceRecord::TakenAway { by } => {
                    format!("taken away by the controller of epoch {by}: its topic is deleted")
                }
                FenceRecord::Damaged(damage) => {
                    let hint = "a claim of a higher epoch heals it";
                    let position = u64::from(epoch.get()) * 512;
                    self.finding(shown, position, format!("epoch {epoch}: {damage}"), hint)?;
                    continue;
                }
            };
            self.show(&Item::Fence { epoch: epoch.get(), state })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
