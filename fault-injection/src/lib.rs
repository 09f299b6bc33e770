//! What the tests of kaas break it with: a volume that fails when it is told to, and processes that are killed, paused
//! and started again.

pub mod faulty;
pub mod power;
pub mod process;
pub mod stepping;
