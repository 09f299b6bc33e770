//! Files that say what a directory holds.

mod partition;
pub mod versioned;

pub use partition::{
    CHECKPOINT, Checkpoint, IndexLengths, MANIFEST, Manifest, PRODUCER_STATE, ProducerStateRef, SegmentEntry,
};
