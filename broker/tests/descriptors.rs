//! No file descriptors are left: the log says it once, connections are accepted again when there are some, and partitions that
//! needed a new segment go on, at the epoch that they had.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod durability_support;

use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use durability_support::client::Client;
use durability_support::record::{Tag, batch};
use durability_support::{kaas, wait_until};
use kaas_protocol::ErrorCode;

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

#[test]
fn a_roll_without_file_descriptors_is_refused_and_goes_well_later() {
    let dir = tempfile::tempdir().unwrap();
    let broker = kaas(&dir.path().join("data")).start().unwrap();
    let mut client = Client::connect(broker.bootstrap()).unwrap();
    client.create_topic("orders", 1, &[("segment.bytes", "100")]).unwrap();
    let record = |n| batch(Tag { producer: 1, partition: 0, n }, 1, None);
    assert_eq!(client.produce("orders", 0, -1, record(0)).unwrap(), (ErrorCode::NONE, 0));
    assert_eq!(client.produce("orders", 0, -1, record(1)).unwrap(), (ErrorCode::NONE, 1));
    let claims = || {
        let partition = dir.path().join("data/topics/orders/0");
        let names = std::fs::read_dir(partition).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("claim.")).collect::<Vec<_>>()
    };
    let led_at = claims();
    // Every number below it is in use: for standard input, output and error.
    limit(broker.pid(), 3);
    for _ in 0..5 {
        let (code, _) = client.produce("orders", 0, -1, record(2)).unwrap();
        assert_eq!(code, ErrorCode::KAFKA_STORAGE_ERROR);
    }
    let told = "no file descriptors: appends that need a new segment";
    wait_until("the log to say so", || broker.said().contains(told));
    assert_eq!(client.list_offset("orders", 0, -1).unwrap(), 2);

    limit(broker.pid(), 1000);
    assert_eq!(client.produce("orders", 0, -1, record(2)).unwrap(), (ErrorCode::NONE, 2));
    assert_eq!(claims(), led_at, "it was led anew");
    wait_until("the log to say that it is over", || {
        broker.said().contains("there are file descriptors again")
    });
    let said = broker.said();
    assert_eq!(said.matches(told).count(), 1, "{said}");
    assert!(said.contains("ulimit -n"), "{said}");
}
