//! Who is the controller.
//!
//! Standalone: the one process that holds the data directory. It claims `cluster/controller/` at a new epoch at each
//! start, so that even a second process on the same directory (a test can force one past the lock) deposes the
//! first for good instead of quarrelling with it.

mod cluster_id;
mod controller;
mod directory;
mod lock;
mod meta;

pub use cluster_id::{ClusterId, ClusterIdError};
pub use controller::{Controller, ControllerSettings};
