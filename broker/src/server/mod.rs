//! The server: its command line, and everything a request needs.

mod broker;
mod limits;
mod options;

pub use broker::{Broker, Configs, Overloaded};
pub use limits::{default_worker_threads, raise_descriptors};
pub use options::{HostPort, LogFormat, Options, Setting};
