//! What the durability tests share: a client of the Kafka protocol, producers, consumers and committers that run in
//! threads and write down every promise the broker makes, and the judge that compares the promises with the log.
//!
//! The client is synchronous and strict: a frame that does not decode, an answer in the wrong order or a batch with a
//! wrong checksum is a failure of the broker, never retried.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

pub mod calls;
pub mod client;
pub mod committer;
pub mod contest;
pub mod history;
pub mod producer;
pub mod random;
pub mod reader;
pub mod record;
pub mod small_disk;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kaas_fault_injection::process::BrokerCommand;

/// How long anything may take that is expected to happen. Generous: no test is about time.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The broker of this build on `data_dir`. The log level of the broker is that of the variable `KAAS_TEST_LOG`.
pub fn kaas(data_dir: &Path) -> BrokerCommand {
    let level = std::env::var("KAAS_TEST_LOG").unwrap_or_else(|_| "info".to_owned());
    BrokerCommand::new(env!("CARGO_BIN_EXE_kaas"), data_dir).arg("--log-level").arg(level)
}

/// Where a client finds its broker; changes when the broker is started anew.
#[derive(Clone, Debug)]
pub struct Target(Arc<Mutex<SocketAddr>>);

impl Target {
    pub fn new(address: SocketAddr) -> Self {
        Self(Arc::new(Mutex::new(address)))
    }

    pub fn get(&self) -> SocketAddr {
        *self.0.lock().unwrap()
    }

    pub fn set(&self, address: SocketAddr) {
        *self.0.lock().unwrap() = address;
    }
}

/// Tells the threads of a workload to come to an end.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn stop(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Waits until `done` holds; panics with `what` if that takes too long.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
