//! A directory of a file system of this host.
//!
//! The page cache of one host is coherent: what one process wrote is what every later read of this host returns. What it
//! is not is honest after a failed sync, so an uncached open drops what is cached of the file first.

use std::path::Path;

use crate::posix::{Mounted, Rules};
use crate::{Adoption, Kind, Result, Sharing};

const RULES: Rules = Rules {
    kind: Kind::Local,
    sharing: Sharing::OneHost { reason: "the directory is on a file system of this host" },
    // One kernel holds every page of a file, whoever wrote it.
    adoption: Adoption::Sync,
    shared: false,
    delegations: false,
    checked_cache: true,
};

/// Volumes on a file system of this host; see the module.
#[derive(Debug)]
pub struct Local;

impl Local {
    /// Opens an existing directory.
    pub fn open(root: &Path) -> Result<Mounted> {
        Mounted::open_root(root, RULES)
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use crate::{OpenMode, Substrate};

    /// A test that does not end is one that fails.
    #[test]
    fn a_pipe_is_no_file_and_nobody_waits_for_its_other_end() {
        let dir = tempfile::tempdir().unwrap();
        let volume = Local::open(dir.path()).unwrap();
        mknodat(CWD, dir.path().join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let pipe = Path::new("pipe");
        for mode in [OpenMode::Read, OpenMode::ReadUncached, OpenMode::Write] {
            let error = volume.open(pipe, mode).unwrap_err();
            assert!(!error.is_not_found(), "{error}");
        }
        volume.open_records(pipe).unwrap_err();
        volume.make_durable(pipe, 0).unwrap_err();
    }
}
