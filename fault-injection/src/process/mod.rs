//! Real processes under test: brokers that are started, stopped in every way, and started again.
//!
//! Owns the life of the processes it starts: one that is dropped is killed and reaped, also when it was paused. What
//! a process says on its standard error is kept, bounded, for the report of a failure.
//!
//! Blocking, for the threads of a test; every wait has a deadline. The harness knows how a broker announces itself and
//! nothing of the protocol behind the socket.

mod broker;
mod command;
mod error;
mod output;

pub use broker::BrokerProcess;
pub use command::{BrokerCommand, Ended};
pub use error::ProcessError;
