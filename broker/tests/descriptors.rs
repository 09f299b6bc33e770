//! No file descriptors are left: the log says it once, and connections are accepted again when there are some.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod durability_support;

use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use durability_support::client::Client;
use durability_support::{kaas, wait_until};

const TOLD: &str = "cannot accept a connection";

/// Sets the limit of open files of a process that runs.
fn limit(pid: u32, files: usize) {
    let status = Command::new("prlimit")
        .args(["--pid", &pid.to_string(), &format!("--nofile={files}:")])
        .status()
        .expect("prlimit, of util-linux");
    assert!(status.success());
}

#[test]
fn connections_that_cannot_be_accepted_do_not_fill_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let broker = kaas(&dir.path().join("data")).start().unwrap();
    let mut before = Client::connect(broker.bootstrap()).unwrap();
    before.create_topic("orders", 1, &[]).unwrap();
    // Served from what is open.
    assert_eq!(before.list_offset("orders", 0, -1).unwrap(), 0);
    let open = std::fs::read_dir(format!("/proc/{}/fd", broker.pid())).unwrap().count();

    limit(broker.pid(), open);
    let waiting: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(broker.bootstrap()).unwrap()).collect();
    wait_until("the log to say so", || broker.said().contains(TOLD));
    // It is tried ten times a second.
    std::thread::sleep(Duration::from_secs(2));
    let said = broker.said();
    assert_eq!(said.matches(TOLD).count(), 1, "{said}");
    // Who is connected is served.
    assert_eq!(before.list_offset("orders", 0, -1).unwrap(), 0);

    limit(broker.pid(), open + 100);
    drop(waiting);
    let mut after = Client::connect(broker.bootstrap()).unwrap();
    assert_eq!(after.list_offset("orders", 0, -1).unwrap(), 0);
}
