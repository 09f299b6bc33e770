//! The real engine on real shared file systems, on several hosts at once.
//!
//! A test runs on the host and steers *actors*: processes of `kaas-lab-actor` on the hosts of a lab (see
//! `kaas_fault_injection::lab`), each on its own mount of one volume. An actor leads a partition with the engine, or makes
//! single calls to the substrate, as the test says, and tells every acknowledgement and every record that it read. The
//! test's [`History`] compares that with what a fresh reader finds at the end.
//!
//! - [`protocol`]: what test and actor say to each other: JSON, a line each.
//! - [`actor`]: the actor's side. [`Actor`]: the test's side.
//! - [`Remote`]: a substrate whose calls are made by an actor, so that the conformance suite runs between two hosts.
//! - [`site`]: the labs under one interface; [`scenarios`]: what is done to leaders on them.
//!
//! Everything here is part of tests: what goes wrong ends the test with a message.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

pub mod actor;
mod client;
pub mod conformance;
pub mod history;
pub mod protocol;
mod remote;
pub mod scenarios;
pub mod site;

pub use client::{Actor, Answer};
pub use history::{Checked, History};
pub use remote::Remote;
