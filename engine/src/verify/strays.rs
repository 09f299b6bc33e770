//! What stands in a data directory and does not belong there, or is not what it should be: whose it is, as far as names tell.

use std::ffi::OsStr;
use std::path::Path;

use kaas_substrate::{Entry, EntryKind, Substrate, TEMPORARY_PREFIX};

use super::finding::{Finding, Kind};
use super::identity::partition_number;
use crate::dump::FileKind;

/// Strays of one directory that are told one by one.
pub(super) const SHOWN_MAX: usize = 20;

/// Tells of what does not belong into one directory.
pub(super) struct Strays<'a> {
    dir: &'a Path,
    findings: &'a mut Vec<Finding>,
    unknown: usize,
}

impl<'a> Strays<'a> {
    pub(super) fn new(dir: &'a Path, findings: &'a mut Vec<Finding>) -> Self {
        Self { dir, findings, unknown: 0 }
    }

    pub(super) fn tell(&mut self, kind: Kind, name: &OsStr, problem: &str) {
        self.findings.push(Finding::new(kind, &self.dir.join(name), problem));
    }

    /// An entry that has a name of kaas's, and is not what kaas makes under it.
    pub(super) fn wrong_type(&mut self, name: &OsStr, kind: EntryKind, wanted: EntryKind) {
        self.findings.push(wrong_type(&self.dir.join(name), kind, wanted));
    }

    /// An entry with no name of kaas's.
    pub(super) fn other(&mut self, entry: &Entry) {
        let Entry { name, kind } = entry;
        if *kind == EntryKind::File && name.as_encoded_bytes().starts_with(TEMPORARY_PREFIX.as_bytes()) {
            return self.tell(Kind::Temporary, name, "a temporary file");
        }
        if let Some(origin) = origin(name, *kind) {
            return self.tell(Kind::KnownStray, name, origin);
        }
        self.unknown += 1;
        if self.unknown <= SHOWN_MAX {
            let problem = unknown(name, *kind);
            self.tell(Kind::UnknownFile, name, &problem);
        }
    }
}

/// That something else stands where kaas has a file or a directory.
fn wrong_type(path: &Path, found: EntryKind, wanted: EntryKind) -> Finding {
    let problem = format!("it is {}, where kaas has {}", found.describe(), wanted.describe());
    Finding::new(Kind::WrongType, path, problem)
}

/// Says of what could not be read in or at `dir` that it is no file, or no directory, where that is why.
pub(super) fn explain(substrate: &dyn Substrate, dir: &Path, findings: &mut [Finding]) {
    for finding in findings.iter_mut().filter(|finding| finding.kind == Kind::Unreadable) {
        let wanted = if finding.file == dir { EntryKind::Dir } else { EntryKind::File };
        let found = kind_at(substrate, &finding.file);
        if let Some(found) = found.filter(|found| *found != wanted) {
            *finding = wrong_type(&finding.file, found, wanted);
        }
    }
}

/// What stands under a name, by a listing, which opens nothing and follows nothing.
fn kind_at(substrate: &dyn Substrate, path: &Path) -> Option<EntryKind> {
    let entries = substrate.list(path.parent()?).ok()?;
    entries.into_iter().find(|entry| Some(entry.name.as_os_str()) == path.file_name()).map(|entry| entry.kind)
}

/// What is said of something with no name of kaas's.
fn unknown(name: &OsStr, kind: EntryKind) -> String {
    match kind {
        EntryKind::File => match name.to_str().and_then(copied) {
            Some(original) => {
                format!("by its name somebody's copy of {original}; kaas made it not, and does not read it")
            }
            None => "the name is not one of kaas".to_owned(),
        },
        kind => format!("it is {}, and the name is not one of kaas", kind.describe()),
    }
}

/// What a file is a copy of, by the name that editors and people give to copies.
fn copied(name: &str) -> Option<&str> {
    const ENDINGS: [&str; 9] = ["~", ".bak", ".orig", ".old", ".save", ".copy", ".rej", ".tmp", ".part"];
    let original = ENDINGS.iter().find_map(|ending| name.strip_suffix(ending));
    // rsync: `.name.XXXXXX` until it is whole.
    let rsync = || name.strip_prefix('.')?.rsplit_once('.').filter(|(_, random)| random.len() == 6);
    original.or_else(|| rsync().map(|(original, _)| original)).filter(|original| !original.is_empty())
}

/// What made something in a data directory that is in nobody's way.
pub(super) fn origin(name: &OsStr, kind: EntryKind) -> Option<&'static str> {
    let name = name.to_str()?;
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match kind {
        EntryKind::Dir => match name {
            "lost+found" => {
                Some("where fsck puts what it finds: look into it after a repair of the file system")
            }
            ".snapshot" | ".snapshots" | "~snapshot" | "#snapshot" | ".zfs" => {
                Some("snapshots that the file system or its server keeps")
            }
            "@eaDir" | "#recycle" | "@Recycle" | "@Recently-Snapshot" | ".@__thumb" => {
                Some("what a storage appliance keeps beside shared files")
            }
            "System Volume Information" | "$RECYCLE.BIN" => Some("what Windows keeps on a volume"),
            ".Spotlight-V100"
            | ".fseventsd"
            | ".Trashes"
            | ".TemporaryItems"
            | ".DocumentRevisions-V100"
            | ".AppleDouble" => Some("what macOS keeps on a volume"),
            ".glusterfs" => Some("what GlusterFS keeps on a volume"),
            _ if name == ".Trash" || name.starts_with(".Trash-") => Some("a desktop's trash"),
            _ => None,
        },
        EntryKind::File | EntryKind::Link if name.starts_with(".#") => {
            Some("a lock of Emacs: somebody is changing the file of that name, or was when it ended")
        }
        EntryKind::File => match name {
            ".DS_Store" | ".localized" => Some("what the Finder of macOS keeps of a directory"),
            "Thumbs.db" | "ehthumbs.db" | "desktop.ini" | "Desktop.ini" => {
                Some("what the Explorer of Windows keeps of a directory")
            }
            ".directory" => Some("what the file manager of KDE keeps of a directory"),
            "aquota.user" | "aquota.group" | "quota.user" | "quota.group" => {
                Some("the quotas of a file system")
            }
            ".gitkeep" | ".keep" => Some("what keeps an empty directory in an archive"),
            _ if name.starts_with("._") => {
                Some("AppleDouble: what macOS keeps beside a file on a foreign volume")
            }
            _ if name.starts_with('.') && is_vim_swap(name) => Some(
                "a swap file of vim: somebody has the file of that name open in it, or had when it ended",
            ),
            _ if name.len() > 2 && name.starts_with('#') && name.ends_with('#') => {
                Some("what Emacs has saved by itself of a file that somebody was changing")
            }
            _ if name.strip_prefix(".nfs").is_some_and(is_hex) => {
                Some("a file that was removed while a client of NFS had it open; it goes when that closes it")
            }
            _ if name.strip_prefix(".fuse_hidden").is_some_and(is_hex) => Some(
                "a file that was removed while something had it open through FUSE; it goes when that closes it",
            ),
            _ => None,
        },
        _ => None,
    }
}

/// `.name.swp`, and what vim takes where that is taken: `.swo`, `.swn` and so on.
fn is_vim_swap(name: &str) -> bool {
    let Some((_, extension)) = name.rsplit_once('.') else { return false };
    matches!(extension.as_bytes(), [b's', b'w', b'a'..=b'p'])
}

/// What is said of a directory without an id among the topics if it is none and holds no records; `None` if it may.
pub(super) fn directory(substrate: &dyn Substrate, dir: &Path, is_empty: bool) -> Option<Finding> {
    if let Some(origin) = dir.file_name().and_then(|name| origin(name, EntryKind::Dir)) {
        return Some(Finding::new(Kind::KnownStray, dir, origin));
    }
    let problem =
        if is_empty { "it is empty" } else { "it has no topic-id.json, no partition and no file of one" };
    (!holds_records(substrate, dir, 0)).then(|| Finding::new(Kind::UnknownDirectory, dir, problem))
}

/// How far below a stray directory is looked for records.
const DEPTH_MAX: usize = 2;

/// Whether something in a directory may be records, or belong to some, by its name. What cannot be looked into may be anything.
fn holds_records(substrate: &dyn Substrate, dir: &Path, depth: usize) -> bool {
    let Ok(entries) = substrate.list(dir) else { return true };
    entries.iter().any(|Entry { name, kind }| {
        let text = name.to_string_lossy();
        match kind {
            EntryKind::Dir | EntryKind::Link if partition_number(&text).is_some() => true,
            EntryKind::Dir if origin(name, *kind).is_some() => false,
            EntryKind::Dir => depth >= DEPTH_MAX || holds_records(substrate, &dir.join(name), depth + 1),
            EntryKind::File => is_of_records(copied(&text).unwrap_or(&text)),
            _ => false,
        }
    })
}

fn is_of_records(name: &str) -> bool {
    !matches!(FileKind::of(name), FileKind::Json | FileKind::Other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_by_its_name() {
        let files = [
            ".manifest.00000001.1.json.swp",
            ".x.swo",
            ".#fence",
            "#x.json#",
            "._00000001-00000000000000000000.log",
            ".DS_Store",
            "Thumbs.db",
            ".nfs0000012300000004",
            ".nfs80",
            ".fuse_hidden0000000300000001",
        ];
        for name in files {
            assert!(origin(OsStr::new(name), EntryKind::File).is_some(), "{name}");
            assert!(origin(OsStr::new(name), EntryKind::Dir).is_none(), "{name}");
        }
        for name in ["lost+found", ".snapshot", ".snapshots", "@eaDir", ".Trash-1000"] {
            assert!(origin(OsStr::new(name), EntryKind::Dir).is_some(), "{name}");
            assert!(origin(OsStr::new(name), EntryKind::File).is_none(), "{name}");
        }
        for name in ["x.swp", ".swap", "#", "##", ".nfs", ".nfsx", "notes.txt", "manifest.00000001.1.json"] {
            assert!(origin(OsStr::new(name), EntryKind::File).is_none(), "{name}");
        }
        assert!(origin(OsStr::new(".#fence"), EntryKind::Link).is_some());
        assert!(origin(OsStr::new("x"), EntryKind::Link).is_none());
    }

    #[test]
    fn copies() {
        assert_eq!(copied("fence~"), Some("fence"));
        assert_eq!(copied("x.log.bak"), Some("x.log"));
        assert_eq!(copied(".x.log.a3F9xQ"), Some("x.log"));
        for name in ["x.log", "~", ".bak", ".x.log", "notes.txt"] {
            assert_eq!(copied(name), None, "{name}");
        }
    }
}
