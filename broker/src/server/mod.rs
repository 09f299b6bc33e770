//! The server: its command line, everything a request needs, starting and stopping.

mod broker;
mod file_reads;
mod limits;
mod options;
mod serve;
mod start;

pub use broker::{Broker, Configs, Overloaded};
pub use limits::{default_worker_threads, raise_descriptors};
pub use options::{HostPort, LogFormat, Options, Setting, SubstrateKind};
pub use start::{StartError, Started, start};
