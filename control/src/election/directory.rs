//! The directory `cluster/`: found, or born whole.
//!
//! It is the first directory of a data directory, so topics without it mean that it was taken away.

use std::borrow::Cow;
use std::path::Path;

use kaas_engine::layout::{self, SLOTS_DIR};
use kaas_substrate::{Substrate, remove_tree};

use super::ClusterId;
use super::controller::ControllerSettings;
use super::meta::{self, Meta};
use crate::metadata::TOPICS_DIR;
use crate::{CLUSTER_DIR, ControlError};

/// Prefix of a directory that is not whole yet.
const NEW_PREFIX: &str = "~new-cluster-";

/// The meta data of the data directory, which is born if it is empty. A directory of a newer format, of another
/// node or another cluster is refused, and nothing in it touched.
pub(super) fn open(substrate: &dyn Substrate, settings: &ControllerSettings) -> Result<Meta, ControlError> {
    let entries = substrate.list(Path::new(""))?;
    let has = |name: &str| entries.iter().any(|entry| entry.name == name);
    let dir = substrate.root().to_owned();
    if !has(CLUSTER_DIR) {
        if has(TOPICS_DIR) || has(SLOTS_DIR) {
            return Err(ControlError::MissingMeta { dir });
        }
        let foreign: Vec<_> = entries
            .iter()
            .map(|entry| entry.name.to_string_lossy())
            .filter(|name| is_foreign(name))
            .collect();
        if !foreign.is_empty() {
            return Err(ControlError::NotEmpty { dir, found: some_of(&foreign) });
        }
        bear(substrate, settings)?;
        let unfinished = entries
            .iter()
            .filter(|entry| entry.name.to_str().is_some_and(|name| name.starts_with(NEW_PREFIX)));
        for entry in unfinished {
            if let Err(left) = remove_tree(substrate, Path::new(&entry.name)) {
                tracing::warn!(%left, "unfinished directory left behind");
            }
        }
    }
    // Read also after a birth: another process may have been faster.
    let meta = meta::read(substrate)?;
    if meta.node_id != settings.node_id {
        return Err(ControlError::ForeignDirectory {
            dir,
            what: "node",
            found: meta.node_id.to_string(),
            expected: settings.node_id.to_string(),
        });
    }
    match &settings.cluster_id {
        Some(expected) if *expected != meta.cluster_id => Err(ControlError::ForeignDirectory {
            dir,
            what: "cluster",
            found: meta.cluster_id.to_string(),
            expected: expected.to_string(),
        }),
        _ => Ok(meta),
    }
}

/// Whether a name in a directory without data says that the directory is in use for something else. Not what file systems and
/// kaas itself leave there, nor hidden files.
fn is_foreign(name: &str) -> bool {
    name != "lost+found" && !name.starts_with(['~', '.'])
}

fn some_of(names: &[Cow<'_, str>]) -> String {
    const SHOWN: usize = 3;
    let shown = names.iter().take(SHOWN).map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{shown} and {more} more"),
        _ => shown,
    }
}

fn bear(substrate: &dyn Substrate, settings: &ControllerSettings) -> Result<(), ControlError> {
    let cluster_id = settings.cluster_id.clone().unwrap_or_else(ClusterId::random);
    let meta = Meta { cluster_id, node_id: settings.node_id };
    Ok(layout::bear_cluster(substrate, &uuid::Uuid::new_v4().to_string(), &meta)?)
}
