//! The Kafka server of kaas: the library behind the command `kaas`.

pub mod api;
pub use kaas_config as config;
pub mod group;
pub mod net;
pub mod partitions;
mod repeated;
pub mod server;
pub mod telemetry;
