//! Files that say what a directory holds.

pub(crate) mod owned;
mod partition;
pub(crate) mod seal;
pub mod versioned;

pub use partition::{
    BatchCrcs, CHECKPOINT, Checkpoint, IndexFiles, IndexLengths, LeaderEpoch, MANIFEST, Manifest,
    PRODUCER_STATE, ProducerStateRef, SegmentEntry,
};
