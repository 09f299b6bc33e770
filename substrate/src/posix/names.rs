//! Names: looking them up afresh, listing, renaming, removing.
//!
//! A client of a file server remembers that a name was not there: on NFS for 30 s, and an open says so without asking.
//! Reading the directory ends that (measured; so does opening it on most kernels). So where other hosts have the volume
//! too, "not found" is believed only after the directories on the way have been read.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, linkat, mkdirat, openat, renameat, renameat_with,
    statat, unlinkat,
};
use rustix::io::{Errno, retry_on_intr};

use super::{Mounted, OPEN_FLAGS};
use crate::paths::{AtPath, for_system, is_silly_rename};
use crate::{Entry, EntryKind, Error, Operation, Result};

type Called<T> = std::result::Result<T, Errno>;

impl Mounted {
    /// Makes `call`, which looks `path` up; once more if it says "not found" and that may be an old answer.
    fn looked_up<T>(&self, path: &Path, mut call: impl FnMut() -> Called<T>) -> Called<T> {
        match retry_on_intr(&mut call) {
            Err(Errno::NOENT) if self.rules.shared => {
                self.read_directories_above(path);
                retry_on_intr(call)
            }
            outcome => outcome,
        }
    }

    /// Reads every directory on the way to `path`, from the root down, as far as they are there.
    fn read_directories_above(&self, path: &Path) {
        let mut above: Vec<_> = path.ancestors().skip(1).collect();
        above.reverse();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OPEN_FLAGS;
        for dir in above {
            let opened = retry_on_intr(|| openat(&self.root, for_system(dir), flags, Mode::empty()));
            let Ok(entries) = opened.and_then(Dir::new) else { return };
            // What is wrong with it, if anything, shows at the call that is made again.
            entries.take_while(std::result::Result::is_ok).for_each(drop);
        }
    }

    /// Opens `path`, or creates it. Never waits for the other end of a pipe that somebody put there.
    pub(crate) fn open_name(&self, path: &Path, flags: OFlags) -> Called<OwnedFd> {
        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o644) } else { Mode::empty() };
        let open = |flags| openat(&self.root, for_system(path), flags | OPEN_FLAGS, mode);
        self.looked_up(path, || match open(flags | OFlags::NONBLOCK) {
            // A file of which somebody has a lease: worth waiting for.
            Err(Errno::WOULDBLOCK) => open(flags),
            opened => opened,
        })
    }

    pub(super) fn make_dir(&self, dir: &Path) -> Called<()> {
        self.looked_up(dir, || mkdirat(&self.root, dir, Mode::from_raw_mode(0o755)))
    }

    pub(super) fn unlink(&self, path: &Path, kind: EntryKind) -> Called<()> {
        let flags = if kind == EntryKind::Dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        self.looked_up(path, || unlinkat(&self.root, path, flags))
    }

    /// A second name for a file; never replaces.
    pub(super) fn link(&self, from: &Path, to: &Path) -> Called<()> {
        self.looked_up(from, || linkat(&self.root, from, &self.root, to, AtFlags::empty()))
    }

    fn kind_of(&self, path: &Path) -> Called<EntryKind> {
        let found =
            self.looked_up(path, || statat(&self.root, for_system(path), AtFlags::SYMLINK_NOFOLLOW))?;
        Ok(entry_kind(FileType::from_raw_mode(found.st_mode)))
    }

    /// The entries of the open directory `dir`.
    pub(super) fn entries(&self, fd: OwnedFd, dir: &Path) -> Result<Vec<Entry>> {
        use std::os::unix::ffi::OsStrExt;
        let mut entries = Vec::new();
        for entry in Dir::new(fd).at(Operation::List, dir)? {
            let entry = entry.at(Operation::List, dir)?;
            let bytes = entry.file_name().to_bytes();
            if bytes == b"." || bytes == b".." {
                continue;
            }
            let name = std::ffi::OsStr::from_bytes(bytes).to_owned();
            let kind = match entry.file_type() {
                FileType::Unknown => match self.kind_of(&dir.join(&name)) {
                    Ok(kind) => kind,
                    // Removed since the listing began.
                    Err(Errno::NOENT) => continue,
                    Err(error) => return Err(Error::new(Operation::List, dir, error.into())),
                },
                known => entry_kind(known),
            };
            if kind != EntryKind::Dir && is_silly_rename(bytes) {
                continue;
            }
            entries.push(Entry { name, kind });
        }
        Ok(entries)
    }

    /// Renames a file over whatever file has the name, and a directory only to a name that is free.
    pub(super) fn rename_within(&self, from: &Path, to: &Path) -> Called<()> {
        if self.kind_of(from)? != EntryKind::Dir {
            return self.looked_up(from, || renameat(&self.root, from, &self.root, to));
        }
        let kept = RenameFlags::NOREPLACE;
        match self.looked_up(from, || renameat_with(&self.root, from, &self.root, to, kept)) {
            Err(Errno::INVAL | Errno::NOSYS) => self.rename_dir(from, to),
            outcome => outcome,
        }
    }

    /// Where the system call has no way to say "only if the name is free" (NFS, CephFS), it refuses by itself to replace
    /// a directory that is not empty, or a file. An empty directory, which it would replace, is looked for first: one
    /// that another host makes in between is replaced, and nothing is lost. Two hosts that rename directories with
    /// something in them to one name have one winner.
    fn rename_dir(&self, from: &Path, to: &Path) -> Called<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OPEN_FLAGS;
        // By opening it, which asks the volume: what is remembered of the name may be old.
        match retry_on_intr(|| openat(&self.root, for_system(to), flags, Mode::empty())) {
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT | Errno::STALE | Errno::NOTDIR | Errno::LOOP) => {}
            Err(error) => return Err(error),
        }
        match retry_on_intr(|| renameat(&self.root, from, &self.root, to)) {
            Err(Errno::NOTEMPTY | Errno::NOTDIR) => Err(Errno::EXIST),
            outcome => outcome,
        }
    }
}

fn entry_kind(found: FileType) -> EntryKind {
    match found {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Dir,
        FileType::Symlink => EntryKind::Link,
        FileType::Fifo => EntryKind::Pipe,
        FileType::Socket => EntryKind::Socket,
        FileType::BlockDevice | FileType::CharacterDevice => EntryKind::Device,
        FileType::Unknown => EntryKind::Other,
    }
}
