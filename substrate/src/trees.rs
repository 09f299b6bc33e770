//! Removal of whole directories.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::{EntryKind, Error, Result, Substrate};

/// Most failures that are kept word by word; the rest is counted.
const MAX_KEPT: usize = 16;

/// What could not be removed. What could be is gone; the same call may be made again.
#[derive(Debug)]
pub struct NotRemoved {
    /// The first failures.
    pub failures: Vec<Error>,
    /// All failures.
    pub count: usize,
}

impl fmt::Display for NotRemoved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} entries could not be removed", self.count)?;
        if let Some(first) = self.failures.first() {
            write!(f, ", the first: {first}")?;
        }
        Ok(())
    }
}

impl std::error::Error for NotRemoved {}

impl NotRemoved {
    fn note(&mut self, outcome: Result<()>) {
        match outcome {
            Err(error) if !error.is_not_found() => {
                self.count += 1;
                if self.failures.len() < MAX_KEPT {
                    self.failures.push(error);
                }
            }
            _ => {}
        }
    }
}

/// Removes `dir` and everything below it. Goes on past what it cannot remove and reports it at the end; a directory
/// that is gone already is no failure. The removal of `dir` itself is durable on return.
pub fn remove_tree(substrate: &dyn Substrate, dir: &Path) -> std::result::Result<(), NotRemoved> {
    let mut report = NotRemoved { failures: Vec::new(), count: 0 };
    let mut dirs = vec![dir.to_owned()];
    let mut next = 0;
    while let Some(current) = dirs.get(next).cloned() {
        match substrate.list(&current) {
            Ok(entries) => {
                for entry in entries {
                    let path: PathBuf = current.join(entry.name);
                    match entry.kind {
                        EntryKind::Dir => dirs.push(path),
                        _ => report.note(substrate.remove_file(&path)),
                    }
                }
            }
            Err(error) => report.note(Err(error)),
        }
        next += 1;
    }
    for current in dirs.iter().rev() {
        report.note(substrate.remove_dir(current));
    }
    report.note(substrate.sync_dir(dir.parent().unwrap_or(Path::new(""))));
    if report.count == 0 { Ok(()) } else { Err(report) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Local, Memory, OpenMode};

    fn build(volume: &dyn Substrate) {
        for dir in ["t", "t/0", "t/1", "t/1/deep", "other"] {
            volume.create_dir(Path::new(dir)).unwrap();
        }
        for file in ["t/a", "t/0/b", "t/1/c", "t/1/deep/d", "other/kept"] {
            volume.open(Path::new(file), OpenMode::CreateNew).unwrap();
        }
    }

    #[test]
    fn a_tree_goes_and_its_neighbours_stay() {
        let dir = tempfile::tempdir().unwrap();
        let local = Local::open(dir.path()).unwrap();
        let memory = Memory::new();
        for volume in [&local as &dyn Substrate, &memory] {
            build(volume);
            remove_tree(volume, Path::new("t")).unwrap();
            let names: Vec<_> =
                volume.list(Path::new("")).unwrap().into_iter().map(|entry| entry.name).collect();
            assert_eq!(names, ["other"]);
            remove_tree(volume, Path::new("t")).unwrap();
        }
    }

    #[test]
    fn removal_goes_on_past_a_failure_and_reports_it() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let local = Local::open(dir.path()).unwrap();
        build(&local);
        // A foreign link is removed, not followed.
        std::os::unix::fs::symlink("../other", dir.path().join("t/link")).unwrap();
        let deep = dir.path().join("t/1/deep");
        std::fs::set_permissions(&deep, std::fs::Permissions::from_mode(0o500)).unwrap();
        if std::fs::File::create(deep.join("probe")).is_ok() {
            // Running as root, whom permissions do not stop: a mount point would, but is not to be had here.
            std::fs::remove_file(deep.join("probe")).unwrap();
            remove_tree(&local, Path::new("t")).unwrap();
        } else {
            let report = remove_tree(&local, Path::new("t")).unwrap_err();
            assert_eq!(report.count, 4);
            assert!(local.list(Path::new("t/0")).unwrap_err().is_not_found());
            std::fs::set_permissions(&deep, std::fs::Permissions::from_mode(0o700)).unwrap();
            remove_tree(&local, Path::new("t")).unwrap();
        }
        assert!(dir.path().join("other/kept").exists());
        assert!(!dir.path().join("t").exists());
    }
}
