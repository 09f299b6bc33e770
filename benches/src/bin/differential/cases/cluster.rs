//! The cluster, its coordinators and its log directories.

use kaas_protocol::messages::describe_log_dirs::DescribableLogDirTopic;
use kaas_protocol::{DescribeClusterRequest, DescribeLogDirsRequest, FindCoordinatorRequest};

use super::super::batches;
use super::super::side::Side;
use super::produce::produce_request;

pub fn describe(side: &mut Side) {
    for operations in [false, true] {
        for fenced in [false, true] {
            for endpoint_type in [1, 2, 0, 3, -1] {
                side.note(format!("operations {operations} fenced {fenced} endpoints {endpoint_type}"));
                side.every(|_, version| DescribeClusterRequest {
                    include_cluster_authorized_operations: operations,
                    endpoint_type: if version >= 1 { endpoint_type } else { 1 },
                    include_fenced_brokers: fenced && version >= 2,
                });
            }
        }
    }
}

pub fn coordinators(side: &mut Side) {
    let group = side.name("group");
    // Kafka makes its internal topics on the first request for them.
    for _ in 0..100 {
        let ask = |key_type| FindCoordinatorRequest {
            coordinator_keys: vec!["x".into()],
            key_type,
            ..Default::default()
        };
        let ready =
            |side: &mut Side, kind| side.ask(4, &ask(kind)).unwrap().coordinators[0].error_code.is_none();
        let transactions = side.who == super::super::side::Who::Kaas || ready(side, 1);
        if ready(side, 0) && transactions {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    for key_type in [0, 1, 2, 3, -1, 100] {
        for key in [group.as_str(), "", "a:b:c", "g:AAAAAAAAAAAAAAAAAAAAAQ:0"] {
            side.note(format!("type {key_type} key '{}'", key.replace(&group, "group")));
            side.every(|_, version| {
                let mut request = FindCoordinatorRequest::default();
                if version >= 1 {
                    request.key_type = key_type;
                }
                if version >= 4 {
                    request.coordinator_keys = vec![key.into()];
                } else {
                    request.key = key.into();
                }
                request
            });
        }
    }
    side.note("several keys, one twice");
    for version in 4..=side.max::<FindCoordinatorRequest>() {
        let coordinator_keys = vec!["b".into(), "a".into(), "b".into(), "".into()];
        side.call(version, &FindCoordinatorRequest { coordinator_keys, ..Default::default() });
        side.call(version, &FindCoordinatorRequest::default());
    }
}

pub fn log_dirs(side: &mut Side) {
    let a = side.topic("a", 3, &[]);
    let b = side.topic("b", 1, &[]);
    side.ask(9, &produce_request(&a, 0, -1, batches::batch(&["hello"])));
    let unknown = side.name("unknown");
    let of = |name: &str, partitions: &[i32]| DescribableLogDirTopic {
        topic: name.into(),
        partitions: partitions.to_vec(),
    };
    let asked = [
        ("all", None),
        ("none", Some(vec![])),
        ("one", Some(vec![of(&a, &[0])])),
        ("one topic without partitions", Some(vec![of(&a, &[])])),
        ("unknown", Some(vec![of(&unknown, &[0])])),
        ("unknown partition", Some(vec![of(&a, &[0, 7, -1])])),
        ("twice", Some(vec![of(&a, &[1, 1]), of(&b, &[0]), of(&a, &[1])])),
    ];
    for (note, topics) in asked {
        side.note(note);
        side.every(|_, _| DescribeLogDirsRequest { topics: topics.clone() });
    }
}
