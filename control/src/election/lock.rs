//! The advisory lock on the data directory, against two brokers started on it by mistake.

use std::path::{Path, PathBuf};

use kaas_engine::layout::LOCK_FILE;
use kaas_substrate::probing::host_facts;
use kaas_substrate::{LockGuard, Substrate, read_small, write_small};
use serde::{Deserialize, Serialize};

use crate::{CLUSTER_DIR, ControlError};

/// Longest holder file that is read.
const FILE_BYTES_MAX: usize = 4096;

/// Who holds the lock; for the other's error message only.
#[derive(Debug, Serialize, Deserialize)]
struct Holder {
    pid: u32,
    /// Absent in files of older versions.
    #[serde(default)]
    host: String,
    incarnation: String,
}

/// Takes the lock, and leaves word who has it. `Locked` if another process has it.
pub(super) fn take(substrate: &dyn Substrate, incarnation: &str) -> Result<Box<dyn LockGuard>, ControlError> {
    let dir = Path::new(CLUSTER_DIR);
    let Some(guard) = substrate.try_lock(&dir.join(LOCK_FILE))? else {
        let holder = holder(substrate);
        let elsewhere = |holder: &Holder| !holder.host.is_empty() && holder.host != host_facts().name;
        return Err(ControlError::Locked {
            dir: substrate.root().to_owned(),
            pid: holder.as_ref().map(|holder| holder.pid),
            host: holder.filter(elsewhere).map(|holder| holder.host),
        });
    };
    let holder =
        Holder { pid: std::process::id(), host: host_facts().name, incarnation: incarnation.to_owned() };
    let written = serde_json::to_vec(&holder)
        .map_err(|error| error.to_string())
        .and_then(|bytes| write_small(substrate, &holder_path(), &bytes).map_err(|error| error.to_string()));
    if let Err(error) = written {
        // Nothing depends on it.
        tracing::warn!(%error, "the holder of the data directory's lock could not be noted");
    }
    Ok(guard)
}

fn holder(substrate: &dyn Substrate) -> Option<Holder> {
    let bytes = read_small(substrate, &holder_path(), FILE_BYTES_MAX).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn holder_path() -> PathBuf {
    Path::new(CLUSTER_DIR).join("lock-holder.json")
}
