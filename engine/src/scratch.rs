//! Directories that a command works in and removes: `~<command>-<16 hex digits>` with a lock in it, and what crashed runs
//! left of theirs.
//!
//! The lock tells a run that is going on from one that is not, and goes with its process. A directory is removed only if
//! its name is of that form, and only once its lock was to be had.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::Path;
use std::thread;
use std::time::Duration;

use kaas_substrate::{EntryKind, LockGuard, NotRemoved, Substrate, remove_tree};

/// The file in it that is locked.
const LOCK: &str = "lock";

/// How often a removal is tried once more, and how long after.
const REMOVALS: u32 = 30;
const BETWEEN_REMOVALS: Duration = Duration::from_millis(100);

/// A directory that this process works in. Left alone if it is only dropped.
#[derive(Debug)]
pub struct Scratch {
    name: String,
    lock: Box<dyn LockGuard>,
}

/// A run has begun.
#[derive(Debug)]
pub struct Begun {
    pub scratch: Scratch,
    /// Directories of crashed runs that were removed.
    pub removed: Vec<String>,
    /// Such that could not be, or whose run is still going on.
    pub left: Vec<String>,
}

/// A run cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum ScratchError {
    /// The volume.
    #[error(transparent)]
    Storage(#[from] kaas_substrate::Error),
    /// Another run took the new directory for what a crash had left.
    #[error("another run has taken {name} away: try again")]
    TakenAway { name: String },
}

/// A name that no other run has.
pub fn random_name(prefix: &str) -> String {
    format!("{prefix}{:016x}", RandomState::new().hash_one(std::process::id()))
}

/// True for the name of a run's directory.
pub fn is_name(prefix: &str, name: &str) -> bool {
    name.strip_prefix(prefix)
        .is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Removes what crashed runs left, and creates `name`. Durable on return.
pub fn begin(substrate: &dyn Substrate, prefix: &str, name: &str) -> Result<Begun, ScratchError> {
    let (mut removed, mut left) = (Vec::new(), Vec::new());
    for entry in substrate.list(Path::new(""))? {
        if let (EntryKind::Dir, Ok(found)) = (entry.kind, entry.name.into_string())
            && is_name(prefix, &found)
        {
            if remove_leftover(substrate, &found) { removed.push(found) } else { left.push(found) }
        }
    }
    substrate.create_dir(Path::new(name))?;
    let taken_away = || ScratchError::TakenAway { name: name.to_owned() };
    let lock = match substrate.try_lock(&Path::new(name).join(LOCK)) {
        Ok(lock) => lock.ok_or_else(taken_away)?,
        Err(error) if error.is_not_found() => return Err(taken_away()),
        Err(error) => {
            // Where there are no locks nothing is left behind either.
            let _ = remove_tree(substrate, Path::new(name));
            return Err(error.into());
        }
    };
    substrate.sync_dir(Path::new(""))?;
    Ok(Begun { scratch: Scratch { name: name.to_owned(), lock }, removed, left })
}

fn remove_leftover(substrate: &dyn Substrate, name: &str) -> bool {
    let path = Path::new(name);
    let Ok(Some(held)) = substrate.try_lock(&path.join(LOCK)) else { return false };
    // Removed while open, the lock would leave a name of the client behind (NFS).
    drop(held);
    remove_tree(substrate, path).is_ok()
}

impl Scratch {
    /// The directory, below the root.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Removes it.
    pub fn end(self, substrate: &dyn Substrate) -> Result<(), NotRemoved> {
        let Self { name, lock } = self;
        drop(lock);
        remove(substrate, Path::new(&name))
    }
}

/// Removes a directory and all below it. A file that is still open, here or in another process that is about to close it, has
/// a name of the client on NFS until then, which keeps its directory: so it is tried again for a while.
pub fn remove(substrate: &dyn Substrate, dir: &Path) -> Result<(), NotRemoved> {
    let mut outcome = remove_tree(substrate, dir);
    for _ in 0..REMOVALS {
        if outcome.is_ok() {
            break;
        }
        thread::sleep(BETWEEN_REMOVALS);
        outcome = remove_tree(substrate, dir);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use kaas_substrate::{Memory, OpenMode};

    use super::*;

    #[test]
    fn only_names_of_runs_are_ours() {
        assert!(is_name("~x-", &random_name("~x-")) && random_name("~x-") != random_name("~x-"));
        for name in ["~x-", "~x-0123456789abcde", "~x-0123456789abcdeg", "~y-0123456789abcdef", "x"] {
            assert!(!is_name("~x-", name), "{name}");
        }
    }

    #[test]
    fn leftovers_go_and_runs_that_go_on_stay() {
        let volume = Memory::new();
        let (old, live) = ("~x-00000000000000aa", "~x-00000000000000bb");
        for dir in [old, "~y-00000000000000cc", "neighbour"] {
            volume.create_dir(Path::new(dir)).unwrap();
            volume.open(&Path::new(dir).join("file"), OpenMode::CreateNew).unwrap();
        }
        let first = begin(&volume, "~x-", live).unwrap();
        assert_eq!((first.removed, first.left.len()), (vec![old.to_owned()], 0));
        let second = begin(&volume, "~x-", "~x-00000000000000dd").unwrap();
        assert_eq!((second.removed.len(), second.left), (0, vec![live.to_owned()]));
        second.scratch.end(&volume).unwrap();
        first.scratch.end(&volume).unwrap();
        let mut names: Vec<_> =
            volume.list(Path::new("")).unwrap().into_iter().map(|entry| entry.name).collect();
        names.sort();
        assert_eq!(names, ["neighbour", "~y-00000000000000cc"]);
    }
}
