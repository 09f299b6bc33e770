//! The run's own directory: `~qualify-<16 hex digits>` with a lock in it, and what crashed runs left of theirs.
//!
//! The lock tells a run that is going on from one that is not, and goes with its process. A directory is removed only
//! if its name is of that form, and only once its lock was to be had.

use std::path::{Path, PathBuf};

use kaas_substrate::LockGuard;
use kaas_substrate::probing::ProbeDir;

use super::{Agent, other};
use crate::qualify::protocol::{Begun, Failure};

/// What the names of the directories begin with.
pub const PREFIX: &str = "~qualify-";

/// The file in it that is locked.
const LOCK: &str = "lock";

/// The directory that this process works in.
#[derive(Debug)]
pub enum Own {
    /// Made by this process.
    Begun { name: String, lock: Box<dyn LockGuard> },
    /// Made by another.
    Joined { name: String },
}

impl Own {
    pub fn name(&self) -> &str {
        match self {
            Self::Begun { name, .. } | Self::Joined { name } => name,
        }
    }
}

/// True for the name of a run's directory.
fn is_ours(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

impl Agent {
    pub fn begin(&self, name: &str) -> Result<Begun, Failure> {
        if !is_ours(name) {
            return Err(other(format!("{name} is no name for a run's directory")));
        }
        let dir = self.dir()?;
        let begun = remove_leftovers(dir)?;
        dir.create_dir(Path::new(name))?;
        let lock = match dir.try_lock_name(&Path::new(name).join(LOCK)) {
            Ok(Some(lock)) => lock,
            outcome => {
                // Another run took it for a leftover just now, or there are no locks.
                let _ = dir.remove_tree(Path::new(name));
                outcome?;
                return Err(other(format!("another run has taken {name} away: try again")));
            }
        };
        dir.sync_dir(Path::new(""))?;
        *self.own.lock() = Some(Own::Begun { name: name.to_owned(), lock });
        Ok(begun)
    }

    pub fn join(&self, name: &str) -> Result<bool, Failure> {
        if !is_ours(name) {
            return Err(other(format!("{name} is no name for a run's directory")));
        }
        let seen = self.dir()?.list_dirs(Path::new(""))?.iter().any(|found| found == name);
        if seen {
            *self.own.lock() = Some(Own::Joined { name: name.to_owned() });
        }
        Ok(seen)
    }

    /// Ends what is spinning, closes every file, and removes the directory if this process made it.
    pub fn end(&self) -> Result<(), Failure> {
        for stop in self.spinning.lock().values() {
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        // A file that is open while it is removed would leave a name of the client in the directory (NFS).
        self.files.lock().clear();
        let Some(Own::Begun { name, lock }) = self.own.lock().take() else { return Ok(()) };
        drop(lock);
        let dir = self.dir()?;
        // Another process may have let go of its files only now.
        let mut outcome = dir.remove_tree(Path::new(&name));
        for _ in 0..20 {
            if outcome.is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
            outcome = dir.remove_tree(Path::new(&name));
        }
        outcome.map_err(|error| other(error.to_string()))
    }
}

/// Removes the directories of runs that are over.
fn remove_leftovers(dir: &ProbeDir) -> Result<Begun, Failure> {
    let mut begun = Begun { removed: Vec::new(), left: Vec::new() };
    for name in dir.list_dirs(Path::new(""))? {
        if is_ours(&name) {
            if remove_leftover(dir, &name) { begun.removed.push(name) } else { begun.left.push(name) }
        }
    }
    Ok(begun)
}

fn remove_leftover(dir: &ProbeDir, name: &str) -> bool {
    let path = PathBuf::from(name);
    let Ok(Some(held)) = dir.try_lock_name(&path.join(LOCK)) else { return false };
    // Removed while open, the lock would leave a name of the client behind (NFS).
    drop(held);
    dir.remove_tree(&path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_runs_are_ours() {
        assert!(is_ours("~qualify-0123456789abcdef"));
        for name in
            ["~qualify-", "~qualify-0123456789abcde", "~qualify-0123456789abcdeg", "qualify", "~reserve"]
        {
            assert!(!is_ours(name), "{name}");
        }
    }
}
