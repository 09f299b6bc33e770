//! The partitions this broker leads: opening, keeping, maintaining and closing them; waiting for records.
//!
//! A partition is opened on first use, by one task however many ask at once, on the engine's I/O threads. One
//! that was poisoned or closed by a failure is opened again at a higher epoch, which the controller claims for
//! itself first. Nothing here blocks a runtime thread.

mod cleaner;
mod config;
mod due;
mod keeper;
mod maintenance;
mod registry;
mod waiting;

pub use cleaner::Cleaner;
pub use config::log_config;
pub use keeper::Keeper;
pub use maintenance::Maintenance;
pub use registry::{OpenError, Partitions};
pub use waiting::Wake;
