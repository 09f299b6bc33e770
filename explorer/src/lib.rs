//! Explores what whole engines do under pauses, crashes and faults, deterministically.
//!
//! A run has several hosts on one volume, a process on each, leaders of partitions and slots in them, and their clients. All
//! of it runs on one thread: tasks take turns at every call to the volume, and every decision (whose turn it is, what
//! fails, who is killed, what clients ask for, what a crash leaves) follows from the run's [`Line`]. A checker is told
//! every acknowledgement and every read. A run that fails is replayed by its line, and shrunk by taking decisions out
//! of it.
//!
//! - [`run()`] runs a line; [`explore`] runs many seeds; [`shrink`] makes a failing line shorter.
//! - [`scenario::SCENARIOS`] is what can happen.

mod audit;
mod choices;
mod clients;
mod cluster;
mod compaction;
mod data_dir;
mod director;
mod explore;
mod history;
mod journals;
mod leader;
mod names;
mod problem;
mod process;
mod reading;
mod records;
mod repair;
mod replay;
mod requests;
mod run;
pub mod scenario;
mod scheduler;
mod shrink;
pub mod storage;
mod transactions;

pub use choices::{Line, LineError};
pub use explore::{Explored, Plan, explore};
pub use problem::Problem;
pub use run::{Counts, Outcome, UnknownScenario, run};
pub use shrink::{Shrunk, shrink};
