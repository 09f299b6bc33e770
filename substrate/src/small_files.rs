//! Small files that are written once and read whole: metadata, manifests, claims.

use std::fs::File;
use std::io::{self, IoSlice, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::paths::check_named;
use crate::{Error, ErrorClass, OpenMode, Operation, Result, Substrate};

/// Prefix of the names that small files have while they are written. A name with it, found at a start, is what a
/// crash left; nothing refers to it.
pub const TEMPORARY_PREFIX: &str = "~tmp-";

/// How often a small file is opened again because its handle was stale.
const STALE_MAX: usize = 8;

/// Reads a whole file, uncached; `Invalid` if it is longer than `max_bytes`.
pub fn read_small(substrate: &dyn Substrate, path: &Path, max_bytes: usize) -> Result<Vec<u8>> {
    let mut outcome = read_once(substrate, path, max_bytes);
    for _ in 0..STALE_MAX {
        // Another host has replaced the file, and on NFS its name may lead to the former one, which cannot be read any
        // more, until the directory has been read (measured: more than a hundred opens in a row).
        match &outcome {
            Err(error) if error.class == ErrorClass::Stale => {}
            _ => break,
        }
        substrate.list(path.parent().unwrap_or(Path::new("")))?;
        outcome = read_once(substrate, path, max_bytes);
    }
    outcome
}

fn read_once(substrate: &dyn Substrate, path: &Path, max_bytes: usize) -> Result<Vec<u8>> {
    let file = substrate.open(path, OpenMode::ReadUncached)?;
    let length = usize::try_from(file.length()?).unwrap_or(usize::MAX);
    if length > max_bytes {
        return Err(Error::new(Operation::Read, path, Errno::FBIG.into()));
    }
    let mut bytes = vec![0; length];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Reads a whole file that somebody has named, wherever it is. Links are followed; a pipe or a device is not waited for.
///
/// # Errors
///
/// What the system says, `InvalidInput` for what is no file, `FileTooLarge` for more than `max_bytes`.
pub fn read_named(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let file = File::from(rustix::fs::open(path, OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"));
    }
    let mut bytes = Vec::new();
    file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

/// Writes a whole file under a temporary name beside `path`, syncs it, and renames it into place, replacing a file
/// of that name. Readers see the old file or the new one, never a part. Durable on return.
///
/// Two writers of one `path` at the same time must not exist. After an error the file may be there or not.
pub fn write_small(substrate: &dyn Substrate, path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = temporary_name(path)?;
    let file = match substrate.open(&temporary, OpenMode::CreateNew) {
        Err(error) if error.is_exists() => {
            // A crash left it.
            substrate.remove_file(&temporary)?;
            substrate.open(&temporary, OpenMode::CreateNew)?
        }
        outcome => outcome?,
    };
    let written = file.write_all_at(&[IoSlice::new(bytes)], 0).and_then(|()| file.sync_data());
    drop(file);
    written.and_then(|()| substrate.rename(&temporary, path)).inspect_err(|_| {
        // Best effort: a leftover is found and removed by the next writer.
        let _ = substrate.remove_file(&temporary);
    })?;
    substrate.sync_dir(path.parent().unwrap_or(Path::new("")))
}

fn temporary_name(path: &Path) -> Result<PathBuf> {
    check_named(Operation::Create, path)?;
    let mut name = std::ffi::OsString::from(TEMPORARY_PREFIX);
    name.push(path.file_name().unwrap_or_default());
    Ok(path.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    #[test]
    fn a_small_file_comes_back_and_is_replaced_whole() {
        let volume = Memory::new();
        volume.create_dir(Path::new("d")).unwrap();
        let path = Path::new("d/x.json");
        write_small(&volume, path, b"one, a longer text").unwrap();
        write_small(&volume, path, b"two").unwrap();
        assert_eq!(read_small(&volume, path, 100).unwrap(), b"two");
        assert_eq!(volume.list(Path::new("d")).unwrap().len(), 1);
        assert_eq!(read_small(&volume, path, 2).unwrap_err().class, crate::ErrorClass::Invalid);
    }

    #[test]
    fn a_named_file_is_read_through_a_link_and_nothing_but_files_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("file"), b"text").unwrap();
        std::os::unix::fs::symlink("file", path("link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), rustix::fs::FileType::Fifo, Mode::RWXU, 0)
            .unwrap();
        assert_eq!(read_named(&path("link"), 4).unwrap(), b"text");
        let kind = |name: &str, max_bytes| read_named(&path(name), max_bytes).unwrap_err().kind();
        assert_eq!(kind("file", 3), io::ErrorKind::FileTooLarge);
        assert_eq!(kind("pipe", 4), io::ErrorKind::InvalidInput);
        assert_eq!(kind("", 4), io::ErrorKind::InvalidInput);
        assert_eq!(kind("nothing", 4), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_leftover_of_a_crash_is_in_nobodys_way() {
        let volume = Memory::new();
        volume.open(Path::new("~tmp-x"), OpenMode::CreateNew).unwrap();
        write_small(&volume, Path::new("x"), b"new").unwrap();
        assert_eq!(read_small(&volume, Path::new("x"), 100).unwrap(), b"new");
        assert_eq!(volume.list(Path::new("")).unwrap().len(), 1);
    }

    #[test]
    fn no_space_leaves_the_old_file_and_no_leftover() {
        let volume = Memory::with_capacity(8);
        write_small(&volume, Path::new("x"), b"old").unwrap();
        let error = write_small(&volume, Path::new("x"), b"far too long").unwrap_err();
        assert_eq!(error.class, crate::ErrorClass::NoSpace);
        assert_eq!(read_small(&volume, Path::new("x"), 100).unwrap(), b"old");
        assert_eq!(volume.space().unwrap().available_bytes, Some(5));
    }
}
