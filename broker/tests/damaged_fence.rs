//! A fence that somebody cuts under a running broker: the partition is led anew, and so is the cluster, without a restart and
//! without a flood of log lines.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod durability_support;

use std::fs::OpenOptions;

use durability_support::client::Client;
use durability_support::record::{Tag, batch};
use durability_support::{kaas, wait_until};
use kaas_protocol::ErrorCode;

const TOPIC: &str = "orders";

#[test]
fn a_fence_that_was_cut_is_claimed_anew() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let broker = kaas(&data).start().unwrap();
    let mut client = Client::connect(broker.bootstrap()).unwrap();
    client.create_topic(TOPIC, 1, &[]).unwrap();
    let record = |n| batch(Tag { producer: 1, partition: 0, n }, 1, None);
    assert_eq!(client.produce(TOPIC, 0, -1, record(0)).unwrap(), (ErrorCode::NONE, 0));

    let fence = data.join("topics").join(TOPIC).join("0").join("fence");
    OpenOptions::new().write(true).open(&fence).unwrap().set_len(0).unwrap();

    // What is produced meanwhile may or may not be there: it was written, and could not be acknowledged.
    let mut last = 0;
    wait_until("the partition to take records again", || {
        let (code, offset) = client.produce(TOPIC, 0, -1, record(1)).unwrap();
        assert!(code.is_none() || code.is_retriable(), "{code:?}");
        last = offset;
        code.is_none()
    });
    assert!(last > 0, "the acknowledged record keeps its offset");
    assert_eq!(client.list_offset(TOPIC, 0, -2).unwrap(), 0);
    assert_eq!(client.list_offset(TOPIC, 0, -1).unwrap(), last + 1);
    let said = broker.said();
    assert!(said.matches("fence").count() <= 6, "{said}");
}

#[test]
fn a_controllers_fence_that_was_cut_is_claimed_anew() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let command = kaas(&data);
    let mut broker = command.start().unwrap();
    let mut client = Client::connect(broker.bootstrap()).unwrap();
    client.create_topic(TOPIC, 1, &[]).unwrap();

    let cut = || {
        let fence = data.join("cluster").join("controller").join("fence");
        OpenOptions::new().write(true).open(&fence).unwrap().set_len(0).unwrap();
    };
    cut();
    client.create_topic("payments", 1, &[]).unwrap();
    cut();
    client.delete_topic(TOPIC).unwrap();
    let said = broker.said();
    assert_eq!(said.matches("the controller's fence did not say who leads").count(), 2, "{said}");
    assert!(said.contains("hint=\"kaas-engine verify "), "{said}");
    // The partitions of such a broker can be led anew, too.
    let fence = data.join("topics").join("payments").join("0").join("fence");
    let record = |n| batch(Tag { producer: 1, partition: 0, n }, 1, None);
    assert_eq!(client.produce("payments", 0, -1, record(0)).unwrap(), (ErrorCode::NONE, 0));
    cut();
    OpenOptions::new().write(true).open(&fence).unwrap().set_len(0).unwrap();
    wait_until("the partition to take records again", || {
        client.produce("payments", 0, -1, record(1)).unwrap().0.is_none()
    });
    broker.kill().unwrap();
    let broker = command.start().unwrap();
    let mut client = Client::connect(broker.bootstrap()).unwrap();
    assert!(client.list_offset("payments", 0, -1).unwrap() >= 2);
    assert!(client.list_offset(TOPIC, 0, -1).is_err());
}
