//! The control plane of kaas: who leads what, and which topics exist.
//!
//! Synchronous: every call that touches the volume blocks, and belongs on an I/O thread. Calls that say they
//! answer from memory may be made from anywhere.
//!
//! - [`metadata`]: topics and dynamic configs, behind one store trait.
//! - [`election`]: who is the controller, and at which epoch.
//! - [`producer_ids`]: ids for idempotent producers.
//!
//! Safety never rests on this crate. It follows the rule of the house all the same: make it durable, then check
//! the fence, then answer.

pub mod election;
mod error;
pub mod metadata;
pub mod producer_ids;

pub use error::ControlError;

pub use kaas_engine::layout::CLUSTER_DIR;
