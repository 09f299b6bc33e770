//! Path hygiene: every path that reaches a substrate is relative to its root and stays below it.

use std::io;
use std::path::{Component, Path};

use rustix::io::Errno;

use crate::{Error, Operation, Result};

/// Checks a path that may be the root itself (empty or `.`).
pub(crate) fn check(operation: Operation, path: &Path) -> Result<()> {
    for component in path.components() {
        if !matches!(component, Component::Normal(_) | Component::CurDir) {
            return Err(Error::new(operation, path, Errno::INVAL.into()));
        }
    }
    Ok(())
}

/// Checks a path that names something below the root.
pub(crate) fn check_named(operation: Operation, path: &Path) -> Result<()> {
    check(operation, path)?;
    if path.file_name().is_none() {
        return Err(Error::new(operation, path, Errno::INVAL.into()));
    }
    Ok(())
}

/// Checks the two names of a rename: both below the root, in the same directory.
pub(crate) fn check_rename(from: &Path, to: &Path) -> Result<()> {
    check_named(Operation::Rename, from)?;
    check_named(Operation::Rename, to)?;
    if normal_parent(from).ne(normal_parent(to)) {
        return Err(Error::new(Operation::Rename, from, Errno::XDEV.into()));
    }
    Ok(())
}

fn normal_parent(path: &Path) -> impl Iterator<Item = Component<'_>> {
    path.parent().unwrap_or(Path::new("")).components().filter(|part| *part != Component::CurDir)
}

/// The path as system calls want it: the root is `.`.
pub(crate) fn for_system(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

/// True for the names an NFS client gives to files that were removed while open (`.nfs`, 16 digits of the file's
/// id, 8 of a counter). They are nobody's: never ours to list, read or remove.
pub(crate) fn is_silly_rename(name: &[u8]) -> bool {
    name.strip_prefix(b".nfs").is_some_and(|rest| rest.len() >= 16 && rest.iter().all(u8::is_ascii_hexdigit))
}

/// Turns a system error into ours.
pub(crate) trait AtPath<T> {
    /// Adds the operation and the path to an error.
    fn at(self, operation: Operation, path: &Path) -> Result<T>;
}

impl<T, E: Into<io::Error>> AtPath<T> for std::result::Result<T, E> {
    fn at(self, operation: Operation, path: &Path) -> Result<T> {
        self.map_err(|error| Error::new(operation, path, error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_below_the_root_pass() {
        for good in ["", ".", "a", "a/b", "./a", "a/./b", ".nfs", "~new-1"] {
            assert!(check(Operation::Open, Path::new(good)).is_ok(), "{good}");
        }
        for bad in ["/", "/a", "..", "a/..", "../a", "a/../../b"] {
            assert!(check(Operation::Open, Path::new(bad)).is_err(), "{bad}");
        }
        for unnamed in ["", ".", "/", ".."] {
            assert!(check_named(Operation::Open, Path::new(unnamed)).is_err(), "{unnamed}");
        }
    }

    #[test]
    fn renames_stay_in_their_directory() {
        assert!(check_rename(Path::new("a/x"), Path::new("a/y")).is_ok());
        assert!(check_rename(Path::new("x"), Path::new("./y")).is_ok());
        assert!(check_rename(Path::new("a/x"), Path::new("b/x")).is_err());
        assert!(check_rename(Path::new("a/x"), Path::new("x")).is_err());
    }

    #[test]
    fn only_real_silly_names_are_left_out() {
        assert!(is_silly_rename(b".nfs00000000000a1b2c0000001f"));
        for ours in [&b".nfs"[..], b".nfs-topic", b".nfs0001", b"nfs00000000000a1b2c0000001f"] {
            assert!(!is_silly_rename(ours));
        }
    }
}
