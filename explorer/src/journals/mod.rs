//! Slots: coordinators that keep their state in the engine's journals, and what is checked of them.

mod audit;
mod coordinator;
mod entries;
mod harm;
mod history;
mod slot;

pub use audit::{look, next_epoch, verify};
pub use coordinator::{assign, open};
pub use entries::AppendId;
pub use harm::SlotHarm;
pub use slot::{Slot, settings};
