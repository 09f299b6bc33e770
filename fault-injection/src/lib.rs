//! What the tests of kaas break it with: a volume that fails when it is told to, a simulated one that several hosts share,
//! processes that are killed, paused and started again, and real shared file systems with several hosts.

mod choice;
pub mod faulty;
pub mod lab;
pub mod process;
mod ranges;
pub mod simulated;
pub mod stepping;
