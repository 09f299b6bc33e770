//! `cluster/meta.json`: what the data directory is. Written once, when the directory is born.

use std::path::Path;

use kaas_engine::layout::{self, DATA_FORMAT, META_FILE};
use kaas_engine::manifest::versioned;
use kaas_substrate::{Substrate, read_small};

use super::ClusterId;
use crate::{CLUSTER_DIR, ControlError};

/// Longest `meta.json` that is read.
const FILE_BYTES_MAX: usize = 1 << 20;

/// `meta.json`.
pub(super) type Meta = layout::Meta<ClusterId>;

/// Reads it; the directory `cluster` exists. Touches nothing.
pub(super) fn read(substrate: &dyn Substrate) -> Result<Meta, ControlError> {
    let path = Path::new(CLUSTER_DIR).join(META_FILE);
    match read_small(substrate, &path, FILE_BYTES_MAX) {
        Ok(bytes) => Ok(versioned::decode(&path, DATA_FORMAT, &bytes)?),
        Err(error) if error.is_not_found() => {
            Err(ControlError::MissingMeta { dir: substrate.root().to_owned() })
        }
        Err(error) => Err(error.into()),
    }
}
