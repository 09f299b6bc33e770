//! The server: its command line, everything a request needs, starting and stopping.

mod broker;
mod file_reads;
mod limits;
mod options;
mod serve;
mod silence;
mod start;
mod start_error;
mod watched;

pub use broker::{Broker, Configs, Overloaded};
pub use limits::{default_worker_threads, raise_descriptors};
pub use options::{HostPort, LogFormat, Options, Setting, SubstrateKind};
pub use start::{Started, start};
pub use start_error::StartError;
pub use watched::{Calls, Waiting, Watched};
