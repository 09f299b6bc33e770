//! `cluster/meta.json`: what the data directory is. Written once, when the directory is born.

use std::path::{Path, PathBuf};

use kaas_engine::manifest::versioned;
use kaas_substrate::{Substrate, read_small};
use serde::{Deserialize, Serialize};

use super::ClusterId;
use crate::{CLUSTER_DIR, ControlError};

/// The format of the data directory that is written, and the highest that is read.
pub(super) const DATA_FORMAT: u32 = 1;

/// Longest `meta.json` that is read.
const FILE_BYTES_MAX: usize = 1 << 20;

const NAME: &str = "meta.json";

/// `meta.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meta {
    pub cluster_id: ClusterId,
    pub node_id: i32,
}

/// Where it is within `dir`.
pub(super) fn path_in(dir: &Path) -> PathBuf {
    dir.join(NAME)
}

/// Its bytes.
pub(super) fn encode(path: &Path, meta: &Meta) -> Result<Vec<u8>, ControlError> {
    Ok(versioned::encode(path, DATA_FORMAT, meta)?)
}

/// Reads it; the directory `cluster` exists. Touches nothing.
pub(super) fn read(substrate: &dyn Substrate) -> Result<Meta, ControlError> {
    let path = path_in(Path::new(CLUSTER_DIR));
    match read_small(substrate, &path, FILE_BYTES_MAX) {
        Ok(bytes) => Ok(versioned::decode(&path, DATA_FORMAT, &bytes)?),
        Err(error) if error.is_not_found() => {
            Err(ControlError::MissingMeta { dir: substrate.root().to_owned() })
        }
        Err(error) => Err(error.into()),
    }
}
