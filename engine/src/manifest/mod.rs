//! Files that say what a directory holds.

pub(crate) mod owned;
mod partition;
pub(crate) mod seal;
pub mod versioned;

use std::path::Path;

use kaas_substrate::Substrate;

use crate::identity::Identity;

pub use partition::{
    BatchCrcs, CHECKPOINT, Checkpoint, IndexFiles, IndexLengths, LeaderEpoch, MANIFEST, Manifest,
    PRODUCER_STATE, ProducerStateRef, SegmentEntry,
};

/// The newest manifest in the directory of the partition `identity`; `None` if there is none, and so nobody has led it. Blocks.
///
/// # Errors
///
/// [`versioned::VersionedError::Damaged`] also for one of another partition.
pub fn read_newest(
    substrate: &dyn Substrate,
    dir: &Path,
    identity: &Identity,
) -> Result<Option<Manifest>, versioned::VersionedError> {
    let newest = owned::read_highest::<Manifest>(substrate, dir, MANIFEST, identity)?;
    Ok(newest.map(|(_, manifest)| manifest))
}
