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
