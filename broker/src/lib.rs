//! The Kafka server of kaas: the library behind the command `kaas`.

pub mod config;
pub mod net;
