//! A fence that somebody cuts under a running broker: the partition is led anew, without a restart and without a flood
//! of log lines.
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
