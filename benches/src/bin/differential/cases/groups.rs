//! Groups of the classic protocol, and their offsets.

use std::time::Duration;

use bytes::Bytes;
use kaas_protocol::messages::join_group::JoinGroupRequestProtocol;
use kaas_protocol::messages::leave_group::MemberIdentity;
use kaas_protocol::messages::offset_commit::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kaas_protocol::messages::offset_delete::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use kaas_protocol::messages::offset_fetch::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kaas_protocol::messages::sync_group::SyncGroupRequestAssignment;
use kaas_protocol::{
    DeleteGroupsRequest, DescribeGroupsRequest, ErrorCode, FindCoordinatorRequest, HeartbeatRequest,
    JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, ListGroupsRequest, OffsetCommitRequest,
    OffsetDeleteRequest, OffsetFetchRequest, SyncGroupRequest, SyncGroupResponse, Uuid,
};

use super::super::side::Side;

const UNKNOWN: Uuid = Uuid::from_u128(0x1234_5678_9abc_def0_1234_5678_9abc_def0);

/// Waits until the broker coordinates the group.
fn ready(side: &mut Side, group: &str) {
    for _ in 0..200 {
        let request = FindCoordinatorRequest { coordinator_keys: vec![group.into()], ..Default::default() };
        let found = side.ask(4, &request).unwrap().coordinators[0].error_code.is_none();
        let heartbeat =
            HeartbeatRequest { group_id: group.into(), member_id: "x".into(), ..Default::default() };
        if found && side.ask(3, &heartbeat).unwrap().error_code == ErrorCode::UNKNOWN_MEMBER_ID {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("no coordinator of {group}");
}

fn fresh(side: &mut Side, suffix: &str) -> String {
    let group = side.name(suffix);
    ready(side, &group);
    group
}

fn protocol(name: &str, metadata: &'static [u8]) -> JoinGroupRequestProtocol {
    JoinGroupRequestProtocol { name: name.into(), metadata: Bytes::from_static(metadata) }
}

fn join_request(group: &str, member: &str) -> JoinGroupRequest {
    JoinGroupRequest {
        group_id: group.into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 10_000,
        member_id: member.into(),
        protocol_type: "consumer".into(),
        protocols: vec![protocol("range", b"m1")],
        ..Default::default()
    }
}

fn sync_request(
    group: &str,
    generation_id: i32,
    member: &str,
    assignments: &[(&str, &'static [u8])],
) -> SyncGroupRequest {
    SyncGroupRequest {
        group_id: group.into(),
        generation_id,
        member_id: member.into(),
        protocol_type: Some("consumer".into()),
        protocol_name: Some("range".into()),
        assignments: assignments
            .iter()
            .map(|(member, assignment)| SyncGroupRequestAssignment {
                member_id: (*member).into(),
                assignment: Bytes::from_static(assignment),
            })
            .collect(),
        ..Default::default()
    }
}

fn heartbeat_request(group: &str, generation_id: i32, member: &str) -> HeartbeatRequest {
    HeartbeatRequest {
        group_id: group.into(),
        generation_id,
        member_id: member.into(),
        group_instance_id: None,
    }
}

/// A member in a stable group of its own. Gives its id.
fn member(side: &mut Side, group: &str, instance: Option<&str>, name: &str) -> String {
    let mut request = join_request(group, "");
    request.group_instance_id = instance.map(Into::into);
    let first = side.ask(7, &request).unwrap();
    let id = first.member_id.to_owned_string();
    side.alias(&id, name);
    request.member_id = id.as_str().into();
    let joined = if first.error_code.is_none() { first } else { side.ask(7, &request).unwrap() };
    assert_eq!(joined.error_code, ErrorCode::NONE);
    let mut sync = sync_request(group, joined.generation_id, &id, &[(&id, b"assigned")]);
    sync.group_instance_id = instance.map(Into::into);
    assert_eq!(side.ask(5, &sync).unwrap().error_code, ErrorCode::NONE);
    id
}

fn describe(side: &mut Side, group: &str) {
    side.every(|_, version| DescribeGroupsRequest {
        groups: vec![group.into()],
        include_authorized_operations: version >= 3,
    });
}

pub fn join_errors(side: &mut Side) {
    let group = fresh(side, "g");
    let cases: Vec<(&str, JoinGroupRequest)> = vec![
        ("empty group id", join_request("", "")),
        ("session timeout 0", JoinGroupRequest { session_timeout_ms: 0, ..join_request(&group, "") }),
        ("session timeout negative", JoinGroupRequest { session_timeout_ms: -1, ..join_request(&group, "") }),
        ("session timeout 5999", JoinGroupRequest { session_timeout_ms: 5_999, ..join_request(&group, "") }),
        (
            "session timeout of a day",
            JoinGroupRequest { session_timeout_ms: 86_400_000, ..join_request(&group, "") },
        ),
        ("unknown member", join_request(&group, "nobody")),
        ("no protocol type", JoinGroupRequest { protocol_type: "".into(), ..join_request(&group, "") }),
        ("no protocols", JoinGroupRequest { protocols: vec![], ..join_request(&group, "") }),
        (
            "no protocols, unknown member",
            JoinGroupRequest { protocols: vec![], ..join_request(&group, "nobody") },
        ),
        (
            "empty instance",
            JoinGroupRequest { group_instance_id: Some("".into()), ..join_request(&group, "") },
        ),
        (
            "instance with a bad name",
            JoinGroupRequest { group_instance_id: Some("a b".into()), ..join_request(&group, "") },
        ),
        (
            "instance dot",
            JoinGroupRequest { group_instance_id: Some(".".into()), ..join_request(&group, "") },
        ),
        (
            "long instance",
            JoinGroupRequest { group_instance_id: Some("x".repeat(250).into()), ..join_request(&group, "") },
        ),
        (
            "instance, unknown member",
            JoinGroupRequest { group_instance_id: Some("i".into()), ..join_request(&group, "nobody") },
        ),
    ];
    for (note, request) in cases {
        for version in side.versions::<JoinGroupRequest>() {
            let mut request = request.clone();
            if version < 5 {
                request.group_instance_id = None;
            }
            // Joining for good would change the next answers.
            if version < 5 && request.group_instance_id.is_none() && (note.contains("instance")) {
                request.session_timeout_ms = 1;
            }
            // A group for each: who joins for good would make the next one wait.
            if !request.group_id.is_empty() {
                request.group_id = side.name(&format!("{}-{version}", note.replace(' ', "-"))).into();
            }
            let response = side.ask(version, &request).unwrap();
            if !response.member_id.is_empty() && response.member_id != "nobody" {
                side.alias(&response.member_id, &format!("member {note} {version}"));
            }
            side.note(note);
            side.write_noted("JoinGroup", version, note, &response);
        }
    }
}

/// One member through a whole life, in every version.
pub fn one_member(side: &mut Side) {
    for version in side.versions::<JoinGroupRequest>() {
        let group = fresh(side, &format!("g{version}"));
        side.note("joins");
        let first = side.try_ask(version, &join_request(&group, "")).unwrap();
        let id = first.member_id.to_owned_string();
        side.alias(&id, "member");
        side.write_noted("JoinGroup", version, "joins", &first);
        side.write_noted("JoinGroup", version, "form of the id", &(id.starts_with("differ-"), id.len()));
        describe(side, &group);
        let joined = if version >= 4 {
            side.note("joins with its id");
            side.call(version, &join_request(&group, &id)).unwrap()
        } else {
            first
        };
        describe(side, &group);
        let generation = joined.generation_id;
        side.note("heartbeat while syncing");
        side.call(3, &heartbeat_request(&group, generation, &id));
        side.note("commit while syncing");
        side.call(7, &commit_request(&group, generation, &id, &[("t", 0, 5, None)]));
        side.note("syncs");
        let sync_version = version.min(5);
        side.call(sync_version, &sync_request(&group, generation, &id, &[(&id, b"mine")]));
        side.note("syncs again");
        side.call(sync_version, &sync_request(&group, generation, &id, &[(&id, b"other")]));
        side.note("syncs as a follower would");
        side.call(sync_version, &sync_request(&group, generation, &id, &[]));
        describe(side, &group);
        for (note, group, generation, member) in [
            ("good", group.as_str(), generation, id.as_str()),
            ("older generation", &group, generation - 1, &id),
            ("next generation", &group, generation + 1, &id),
            ("generation -1", &group, -1, &id),
            ("unknown member", &group, generation, "nobody"),
            ("no member", &group, generation, ""),
            ("unknown group", "no-such-group", generation, &id),
            ("empty group", "", generation, &id),
        ] {
            side.note(format!("heartbeat: {note}"));
            side.call(version.min(4), &heartbeat_request(group, generation, member));
            side.note(format!("sync: {note}"));
            side.call(sync_version, &sync_request(group, generation, member, &[]));
        }
        if sync_version == 5 {
            for (note, kind, name) in [
                ("other type", Some("connect"), Some("range")),
                ("other name", Some("consumer"), Some("roundrobin")),
                ("no type", None, Some("range")),
                ("no name", Some("consumer"), None),
                ("neither", None, None),
                ("empty", Some(""), Some("")),
            ] {
                side.note(format!("sync: {note}"));
                let request = SyncGroupRequest {
                    protocol_type: kind.map(Into::into),
                    protocol_name: name.map(Into::into),
                    ..sync_request(&group, generation, &id, &[])
                };
                side.call(5, &request);
            }
        }
        side.note("another type joins");
        side.call(version, &JoinGroupRequest { protocol_type: "connect".into(), ..join_request(&group, "") });
        side.note("a member without a common protocol joins");
        side.call(
            version,
            &JoinGroupRequest { protocols: vec![protocol("other", b"")], ..join_request(&group, "") },
        );
        side.note("joins again, the same");
        let again = side.call(version, &join_request(&group, &id)).unwrap();
        side.note("joins again, with the sync outstanding");
        side.call(version, &join_request(&group, &id));
        side.note("joins again, with another protocol");
        let request = JoinGroupRequest {
            protocols: vec![protocol("roundrobin", b"m2"), protocol("range", b"m3")],
            ..join_request(&group, &id)
        };
        let again = side.call(version, &request).unwrap_or(again);
        side.note("syncs");
        side.call(
            sync_version.min(4),
            &sync_request(&group, again.generation_id, &id, &[(&id, b"mine"), ("stranger", b"x")]),
        );
        describe(side, &group);
        side.note("listed");
        side.every(|_, _| ListGroupsRequest::default());
        side.note("leaves");
        side.call(
            version.min(2),
            &LeaveGroupRequest {
                group_id: group.as_str().into(),
                member_id: id.as_str().into(),
                members: vec![],
            },
        );
        side.note("leaves again");
        side.call(
            version.min(2),
            &LeaveGroupRequest {
                group_id: group.as_str().into(),
                member_id: id.as_str().into(),
                members: vec![],
            },
        );
        describe(side, &group);
    }
}

pub fn unknown(side: &mut Side) {
    let group = fresh(side, "g");
    side.note("unknown group");
    describe(side, &group);
    side.note("empty id");
    describe(side, "");
    side.note("several");
    let groups = vec![group.as_str().into(), "x".into(), group.as_str().into()];
    side.every(|_, _| DescribeGroupsRequest { groups: groups.clone(), include_authorized_operations: false });
    side.note("none");
    side.every(|_, _| DescribeGroupsRequest::default());
    side.note("delete");
    for names in [vec![], vec![group.as_str()], vec![""], vec![group.as_str(), group.as_str()], vec!["", "x"]]
    {
        let names: Vec<&str> = names;
        side.note(format!(
            "{} names, first empty {}",
            names.len(),
            names.first().is_some_and(|name| name.is_empty())
        ));
        side.every(|_, _| DeleteGroupsRequest {
            groups_names: names.iter().map(|name| (*name).into()).collect(),
        });
    }
    for id in [group.as_str(), ""] {
        side.note(format!("leave '{}'", if id.is_empty() { "" } else { "g" }));
        side.every(|_, version| LeaveGroupRequest {
            group_id: id.into(),
            member_id: if version < 3 { "nobody".into() } else { "".into() },
            members: if version < 3 {
                vec![]
            } else {
                vec![MemberIdentity { member_id: "nobody".into(), ..Default::default() }]
            },
        });
        side.note(format!("heartbeat '{}'", if id.is_empty() { "" } else { "g" }));
        side.every(|_, _| heartbeat_request(id, 1, "nobody"));
        side.note(format!("heartbeat without a member '{}'", if id.is_empty() { "" } else { "g" }));
        side.every(|_, _| heartbeat_request(id, 1, ""));
        side.note(format!("sync '{}'", if id.is_empty() { "" } else { "g" }));
        side.every(|_, _| sync_request(id, 1, "nobody", &[]));
        side.note(format!("offset delete '{}'", if id.is_empty() { "" } else { "g" }));
        side.every(|_, _| delete_request(id, &[("t", &[0])]));
    }
    for instance in ["i", ""] {
        side.note(format!("heartbeat with instance '{instance}'"));
        side.every(|_, version| HeartbeatRequest {
            group_instance_id: if version >= 3 { Some(instance.into()) } else { None },
            ..heartbeat_request(&group, 1, "nobody")
        });
        side.note(format!("leave with instance '{instance}'"));
        for version in 3..=5 {
            let members = vec![
                MemberIdentity { group_instance_id: Some(instance.into()), ..Default::default() },
                MemberIdentity {
                    group_instance_id: Some(instance.into()),
                    member_id: "m".into(),
                    ..Default::default()
                },
            ];
            side.call(
                version,
                &LeaveGroupRequest { group_id: group.as_str().into(), members, ..Default::default() },
            );
        }
    }
    side.note("leave nobody");
    for version in 3..=5 {
        side.call(version, &LeaveGroupRequest { group_id: group.as_str().into(), ..Default::default() });
    }
}

pub fn static_members(side: &mut Side) {
    let group = fresh(side, "g");
    let request = JoinGroupRequest { group_instance_id: Some("one".into()), ..join_request(&group, "") };
    side.note("joins");
    let first = side.try_ask(7, &request).unwrap();
    let id = first.member_id.to_owned_string();
    side.alias(&id, "first id");
    side.write_noted("JoinGroup", 7, "static joins", &first);
    side.write_noted("JoinGroup", 7, "form of the id", &(id.starts_with("one-"), id.len()));
    let with = |request: SyncGroupRequest, instance: &str| SyncGroupRequest {
        group_instance_id: Some(instance.into()),
        ..request
    };
    side.note("syncs");
    side.call(5, &with(sync_request(&group, first.generation_id, &id, &[(&id, b"mine")]), "one"));
    describe(side, &group);
    side.note("bounces");
    for version in [5, 7, 8, 9] {
        let again = side.try_ask(version, &request).unwrap();
        let new_id = again.member_id.to_owned_string();
        side.alias(&new_id, &format!("id after the bounce in {version}"));
        side.write_noted("JoinGroup", version, "bounces", &again);
        describe(side, &group);
        for (note, member, instance) in [
            ("old id", id.as_str(), Some("one")),
            ("old id without instance", id.as_str(), None),
            ("new id", new_id.as_str(), Some("one")),
            ("new id without instance", new_id.as_str(), None),
            ("new id, other instance", new_id.as_str(), Some("two")),
            ("unknown id", "nobody", Some("one")),
            ("no id", "", Some("one")),
        ] {
            let heartbeat = HeartbeatRequest {
                group_instance_id: instance.map(Into::into),
                ..heartbeat_request(&group, again.generation_id, member)
            };
            side.note(format!("heartbeat: {note}"));
            side.call(4, &heartbeat);
            side.note(format!("sync: {note}"));
            side.call(
                5,
                &SyncGroupRequest {
                    group_instance_id: instance.map(Into::into),
                    ..sync_request(&group, again.generation_id, member, &[])
                },
            );
            side.note(format!("commit: {note}"));
            let commit = OffsetCommitRequest {
                group_instance_id: instance.map(Into::into),
                ..commit_request(&group, again.generation_id, member, &[("t", 0, 5, None)])
            };
            side.call(8, &commit);
        }
    }
    side.note("the old id joins");
    for version in [5, 9] {
        side.call(
            version,
            &JoinGroupRequest { group_instance_id: Some("one".into()), ..join_request(&group, &id) },
        );
        side.call(
            version,
            &JoinGroupRequest { group_instance_id: Some("two".into()), ..join_request(&group, &id) },
        );
    }
    side.note("leaves");
    for version in 3..=5 {
        for (member, instance) in [
            ("nobody", Some("one")),
            (id.as_str(), Some("one")),
            ("nobody", None),
            ("", Some("two")),
            ("", Some("one")),
            ("", Some("one")),
        ] {
            let members = vec![MemberIdentity {
                member_id: member.into(),
                group_instance_id: instance.map(Into::into),
                reason: None,
            }];
            side.call(
                version,
                &LeaveGroupRequest { group_id: group.as_str().into(), members, ..Default::default() },
            );
        }
    }
    describe(side, &group);
    side.note("bounces with another protocol");
    let first = side.ask(7, &request).unwrap();
    side.alias(&first.member_id, "second life");
    let id = first.member_id.to_owned_string();
    side.ask(5, &with(sync_request(&group, first.generation_id, &id, &[(&id, b"mine")]), "one"));
    let other = JoinGroupRequest { protocols: vec![protocol("range", b"changed")], ..request };
    let again = side.try_ask(9, &other).unwrap();
    side.alias(&again.member_id, "second life, changed");
    side.write_noted("JoinGroup", 9, "bounces with other metadata", &again);
    describe(side, &group);
}

fn commit_request(
    group: &str,
    generation: i32,
    member: &str,
    offsets: &[(&str, i32, i64, Option<&str>)],
) -> OffsetCommitRequest {
    let mut request = OffsetCommitRequest {
        group_id: group.into(),
        generation_id_or_member_epoch: generation,
        member_id: member.into(),
        ..Default::default()
    };
    for (topic, partition_index, committed_offset, metadata) in offsets {
        let partition = OffsetCommitRequestPartition {
            partition_index: *partition_index,
            committed_offset: *committed_offset,
            committed_metadata: metadata.map(Into::into),
            ..Default::default()
        };
        match request.topics.last_mut() {
            Some(last) if last.name == *topic => last.partitions.push(partition),
            _ => request.topics.push(OffsetCommitRequestTopic {
                name: (*topic).into(),
                partitions: vec![partition],
                ..Default::default()
            }),
        }
    }
    request
}

fn by_id(version: i16, mut request: OffsetCommitRequest, ids: &[(&str, Uuid)]) -> OffsetCommitRequest {
    if version >= 10 {
        for topic in &mut request.topics {
            topic.topic_id = ids.iter().find(|(name, _)| topic.name == *name).map_or(UNKNOWN, |(_, id)| *id);
        }
    }
    request
}

pub fn commit_simple(side: &mut Side) {
    let group = fresh(side, "g");
    let t = side.topic("t", 2, &[]);
    let id = side.topic_id(&t);
    let ids = [(t.as_str(), id), ("", Uuid::ZERO)];
    let unknown = side.name("unknown");
    let long = "m".repeat(4096);
    let longer = "m".repeat(4097);
    let cases: Vec<(&str, OffsetCommitRequest)> = vec![
        ("good", commit_request(&group, -1, "", &[(&t, 0, 5, Some("meta"))])),
        ("null metadata", commit_request(&group, -1, "", &[(&t, 1, 7, None)])),
        ("offset -1", commit_request(&group, -1, "", &[(&t, 1, -1, None)])),
        ("offset -2", commit_request(&group, -1, "", &[(&t, 1, -2, None)])),
        ("largest offset", commit_request(&group, -1, "", &[(&t, 1, i64::MAX, None)])),
        ("longest metadata", commit_request(&group, -1, "", &[(&t, 1, 8, Some(&long))])),
        ("too long metadata", commit_request(&group, -1, "", &[(&t, 0, 6, None), (&t, 1, 9, Some(&longer))])),
        ("unknown topic", commit_request(&group, -1, "", &[(&unknown, 0, 5, None)])),
        ("unknown and known", commit_request(&group, -1, "", &[(&unknown, 0, 5, None), (&t, 0, 9, None)])),
        (
            "unknown partitions",
            commit_request(&group, -1, "", &[(&t, 2, 5, None), (&t, -1, 5, None), (&t, 0, 10, None)]),
        ),
        ("partition twice", commit_request(&group, -1, "", &[(&t, 0, 11, None), (&t, 0, 12, None)])),
        ("bad topic", commit_request(&group, -1, "", &[("a b", 0, 5, None)])),
        ("empty topic", commit_request(&group, -1, "", &[("", 0, 5, None)])),
        ("no topics", commit_request(&group, -1, "", &[])),
        ("empty group", commit_request("", -1, "", &[(&t, 0, 5, None)])),
        ("generation 0", commit_request(&group, 0, "", &[(&t, 0, 5, None)])),
        ("generation 5", commit_request(&group, 5, "", &[(&t, 0, 5, None)])),
        ("generation -2", commit_request(&group, -2, "", &[(&t, 0, 5, None)])),
        ("member without generation", commit_request(&group, -1, "nobody", &[(&t, 0, 5, None)])),
        ("member and generation", commit_request(&group, 3, "nobody", &[(&t, 0, 5, None)])),
    ];
    for (note, request) in &cases {
        side.note(*note);
        side.every(|_, version| by_id(version, request.clone(), &ids));
    }
    side.note("no partitions");
    let mut request = commit_request(&group, -1, "", &[(&t, 0, 5, None)]);
    request.topics[0].partitions.clear();
    side.every(|_, version| by_id(version, request.clone(), &ids));
    side.note("instance");
    for version in 7..=side.max::<OffsetCommitRequest>() {
        for (generation, member) in [(-1, ""), (1, "m"), (1, "")] {
            let request = commit_request(&group, generation, member, &[(&t, 0, 5, None)]);
            side.call(
                version,
                &by_id(version, OffsetCommitRequest { group_instance_id: Some("i".into()), ..request }, &ids),
            );
        }
    }
    side.note("leader epoch and retention");
    for version in side.versions::<OffsetCommitRequest>() {
        let mut request = commit_request(&group, -1, "", &[(&t, 0, 50 + i64::from(version), None)]);
        request.topics[0].partitions[0].committed_leader_epoch = 77;
        request.retention_time_ms = 1_000_000;
        side.call(version, &by_id(version, request, &ids));
        side.call(6, &old_fetch(&group, Some(&[(&t, &[0])])));
    }
    side.note("what became of it");
    describe(side, &group);
    side.every(|_, _| ListGroupsRequest::default());
    fetch_all(side, &group);
    // So that another run begins without it.
    side.call(2, &DeleteGroupsRequest { groups_names: vec!["".into()] });
    side.note("to a group that does not exist");
    for version in side.versions::<OffsetCommitRequest>() {
        let new = side.name(&format!("new{version}"));
        ready(side, &new);
        side.call(version, &by_id(version, commit_request(&new, 1, "nobody", &[(&t, 0, 5, None)]), &ids));
        side.call(version, &by_id(version, commit_request(&new, 1, "", &[(&t, 0, 5, None)]), &ids));
        side.call(version, &by_id(version, commit_request(&new, -1, "nobody", &[(&t, 0, 5, None)]), &ids));
        describe(side, &new);
    }
}

fn old_fetch(group: &str, topics: Option<&[(&str, &[i32])]>) -> OffsetFetchRequest {
    OffsetFetchRequest {
        group_id: group.into(),
        topics: topics.map(|topics| {
            topics
                .iter()
                .map(|(name, partitions)| OffsetFetchRequestTopic {
                    name: (*name).into(),
                    partition_indexes: partitions.to_vec(),
                })
                .collect()
        }),
        ..Default::default()
    }
}

fn new_fetch(version: i16, groups: &[(&str, Option<&[(&str, Uuid, &[i32])]>)]) -> OffsetFetchRequest {
    let groups = groups.iter().map(|(group, topics)| OffsetFetchRequestGroup {
        group_id: (*group).into(),
        topics: topics.map(|topics| {
            topics
                .iter()
                .map(|(name, id, partitions)| OffsetFetchRequestTopics {
                    name: (*name).into(),
                    topic_id: if version >= 10 { *id } else { Uuid::ZERO },
                    partition_indexes: partitions.to_vec(),
                })
                .collect()
        }),
        ..Default::default()
    });
    OffsetFetchRequest { groups: groups.collect(), ..Default::default() }
}

fn fetch_all(side: &mut Side, group: &str) {
    for version in side.versions::<OffsetFetchRequest>() {
        side.note("all offsets");
        if version >= 8 {
            side.call(version, &new_fetch(version, &[(group, None)]));
        } else if version >= 2 {
            side.call(version, &old_fetch(group, None));
        }
    }
}

pub fn commit_member(side: &mut Side) {
    let group = fresh(side, "g");
    let t = side.topic("t", 2, &[]);
    let topic_id = side.topic_id(&t);
    let ids = [(t.as_str(), topic_id)];
    let id = member(side, &group, None, "member");
    for (note, generation, who) in [
        ("good", 1, id.as_str()),
        ("older generation", 0, &id),
        ("newer generation", 2, &id),
        ("generation -1", -1, &id),
        ("generation -2", -2, &id),
        ("unknown member", 1, "nobody"),
        ("unknown member, generation -1", -1, "nobody"),
        ("no member", 1, ""),
        ("nobody, as a simple consumer", -1, ""),
    ] {
        side.note(note);
        side.every(|_, version| {
            by_id(version, commit_request(&group, generation, who, &[(&t, 0, 5, None)]), &ids)
        });
        side.note(format!("{note}, instance"));
        for version in 7..=side.max::<OffsetCommitRequest>() {
            let request = commit_request(&group, generation, who, &[(&t, 0, 5, None)]);
            side.call(
                version,
                &by_id(version, OffsetCommitRequest { group_instance_id: Some("i".into()), ..request }, &ids),
            );
        }
    }
    side.note("deletes offsets of a live group");
    side.call(0, &delete_request(&group, &[(&t, &[0])]));
    side.note("deletes a live group");
    side.every(|_, _| DeleteGroupsRequest { groups_names: vec![group.as_str().into()] });
    // The member wants to join again: commits are still taken.
    side.note("joins again");
    side.send(
        7,
        &JoinGroupRequest {
            protocols: vec![protocol("range", b"m1"), protocol("x", b"")],
            ..join_request(&group, &id)
        },
    );
    side.received::<JoinGroupResponse>(7);
    side.note("commit of the new generation before the sync");
    side.call(7, &commit_request(&group, 2, &id, &[(&t, 0, 6, None)]));
    side.note("commit of the old generation before the sync");
    side.call(7, &commit_request(&group, 1, &id, &[(&t, 0, 7, None)]));
    side.note("leaves");
    let members = vec![MemberIdentity { member_id: id.as_str().into(), ..Default::default() }];
    side.call(4, &LeaveGroupRequest { group_id: group.as_str().into(), members, ..Default::default() });
    side.note("after it left");
    side.every(|_, version| by_id(version, commit_request(&group, 1, &id, &[(&t, 0, 5, None)]), &ids));
    side.every(|_, version| by_id(version, commit_request(&group, -1, "", &[(&t, 0, 15, None)]), &ids));
    describe(side, &group);
    fetch_all(side, &group);
}

pub fn fetch_offsets(side: &mut Side) {
    let group = fresh(side, "g");
    let other = fresh(side, "h");
    let t = side.topic("t", 3, &[]);
    let u = side.topic("u", 1, &[]);
    let (t_id, u_id) = (side.topic_id(&t), side.topic_id(&u));
    let unknown = side.name("unknown");
    side.ask(
        7,
        &commit_request(&group, -1, "", &[(&t, 0, 5, Some("a")), (&t, 1, 6, None), (&u, 0, 7, Some(""))]),
    )
    .unwrap();
    for version in side.versions::<OffsetFetchRequest>() {
        for stable in [false, true] {
            if stable && version < 7 {
                continue;
            }
            let mut ask = |note: &str, mut request: OffsetFetchRequest| {
                side.note(format!("{note}, stable {stable}"));
                request.require_stable = stable;
                side.call(version, &request);
            };
            if version < 8 {
                ask("some", old_fetch(&group, Some(&[(&t, &[0, 1]), (&u, &[0])])));
                ask("not committed", old_fetch(&group, Some(&[(&t, &[2, 9, -1])])));
                ask("unknown topic", old_fetch(&group, Some(&[(&unknown, &[0])])));
                ask("bad topic", old_fetch(&group, Some(&[("a b", &[0]), ("", &[0])])));
                ask("twice", old_fetch(&group, Some(&[(&t, &[0, 0]), (&t, &[1])])));
                ask("no topics", old_fetch(&group, Some(&[])));
                ask("no partitions", old_fetch(&group, Some(&[(&t, &[])])));
                ask("unknown group", old_fetch(&other, Some(&[(&t, &[0])])));
                ask("empty group", old_fetch("", Some(&[(&t, &[0])])));
                if version >= 2 {
                    ask("all", old_fetch(&group, None));
                    ask("all of an unknown group", old_fetch(&other, None));
                    ask("all of the empty group", old_fetch("", None));
                }
            } else {
                let (all, some): (_, &[(&str, Uuid, &[i32])]) =
                    (None, &[(&t, t_id, &[0, 1]), (&u, u_id, &[0])]);
                ask("some", new_fetch(version, &[(&group, Some(some))]));
                ask("not committed", new_fetch(version, &[(&group, Some(&[(&t, t_id, &[2, 9, -1])]))]));
                ask("unknown topic", new_fetch(version, &[(&group, Some(&[(&unknown, UNKNOWN, &[0])]))]));
                ask("zero id", new_fetch(version, &[(&group, Some(&[("", Uuid::ZERO, &[0])]))]));
                ask("twice", new_fetch(version, &[(&group, Some(&[(&t, t_id, &[0, 0]), (&t, t_id, &[1])]))]));
                ask("no topics", new_fetch(version, &[(&group, Some(&[]))]));
                ask("unknown group", new_fetch(version, &[(&other, Some(some))]));
                ask("empty group", new_fetch(version, &[("", Some(some))]));
                ask("all", new_fetch(version, &[(&group, all)]));
                ask("all of an unknown group", new_fetch(version, &[(&other, all)]));
                ask("no groups", new_fetch(version, &[]));
                ask(
                    "several groups",
                    new_fetch(
                        version,
                        &[(&group, all), (&other, Some(some)), (&group, Some(some)), ("", Some(some))],
                    ),
                );
                if version >= 9 {
                    for (note, member, epoch) in [
                        ("member", Some("nobody"), 1),
                        ("epoch", None, 1),
                        ("empty member", Some(""), -1),
                        ("member -1", Some("nobody"), -1),
                    ] {
                        let mut request = new_fetch(version, &[(&group, Some(some)), (&other, Some(some))]);
                        for group in &mut request.groups {
                            group.member_id = member.map(Into::into);
                            group.member_epoch = epoch;
                        }
                        ask(note, request);
                    }
                }
            }
        }
    }
    side.note("a deleted topic");
    let topics = vec![kaas_protocol::messages::delete_topics::DeleteTopicState {
        name: Some(u.as_str().into()),
        ..Default::default()
    }];
    side.call(6, &kaas_protocol::DeleteTopicsRequest { topics, timeout_ms: 10_000, ..Default::default() });
    std::thread::sleep(Duration::from_millis(500));
    fetch_all(side, &group);
    side.call(7, &old_fetch(&group, Some(&[(&u, &[0])])));
}

pub fn two_members(side: &mut Side) {
    let group = fresh(side, "g");
    let a = member(side, &group, None, "a");
    let mut second = side.another();
    let mut request = JoinGroupRequest {
        protocols: vec![protocol("other", b"o"), protocol("range", b"m2")],
        ..join_request(&group, "")
    };
    let b = second.ask(7, &request).unwrap().member_id.to_owned_string();
    side.alias(&b, "b");
    second.alias(&b, "b");
    request.member_id = b.as_str().into();
    second.send(7, &request);
    std::thread::sleep(Duration::from_millis(200));
    side.note("rebalance begun");
    describe(side, &group);
    side.call(3, &heartbeat_request(&group, 1, &a));
    side.call(5, &sync_request(&group, 1, &a, &[]));
    side.call(7, &commit_request(&group, 1, &a, &[("t", 0, 5, None)]));
    side.note("heartbeat of the one that waits");
    side.call(3, &heartbeat_request(&group, 1, &b));
    side.note("joins for the new generation");
    let joined = side.call(7, &join_request(&group, &a)).unwrap();
    second.note("the second joined");
    second.received::<JoinGroupResponse>(7);
    side.note("the follower syncs first");
    second.note("the follower syncs");
    let generation = joined.generation_id;
    second.send(5, &sync_request(&group, generation, &b, &[]));
    std::thread::sleep(Duration::from_millis(200));
    describe(side, &group);
    side.note("the leader syncs");
    let leader_syncs = sync_request(&group, generation, &a, &[(&a, b"for a"), (&b, b"for b")]);
    side.call(5, &leader_syncs);
    second.received::<SyncGroupResponse>(5);
    describe(side, &group);
    side.note("the follower joins again, unchanged");
    second.note("the follower joins again, unchanged");
    second.call(7, &request);
    second.call(9, &request);
    side.note("heartbeat");
    side.call(3, &heartbeat_request(&group, generation, &a));
    side.note("the follower leaves");
    let members = vec![MemberIdentity { member_id: b.as_str().into(), ..Default::default() }];
    second.call(4, &LeaveGroupRequest { group_id: group.as_str().into(), members, ..Default::default() });
    side.note("heartbeat after the follower left");
    side.call(3, &heartbeat_request(&group, generation, &a));
    describe(side, &group);
    side.note("the leader joins again");
    side.call(9, &join_request(&group, &a));
    side.note("the sync without anything for the leader");
    side.call(5, &sync_request(&group, generation + 1, &a, &[]));
    describe(side, &group);
    // A third member asks for an id, and does not come back.
    side.note("a third asks for an id");
    let mut third = side.another();
    let c = third.ask(7, &join_request(&group, "")).unwrap().member_id.to_owned_string();
    side.alias(&c, "c");
    describe(side, &group);
    side.call(3, &heartbeat_request(&group, generation + 1, &c));
    side.call(5, &sync_request(&group, generation + 1, &c, &[]));
    side.call(7, &commit_request(&group, generation + 1, &c, &[("t", 0, 5, None)]));
    side.note("it leaves before it joined");
    let members = vec![MemberIdentity { member_id: c.as_str().into(), ..Default::default() }];
    side.call(4, &LeaveGroupRequest { group_id: group.as_str().into(), members, ..Default::default() });
    describe(side, &group);
    side.absorb(second);
}

fn delete_request(group: &str, topics: &[(&str, &[i32])]) -> OffsetDeleteRequest {
    OffsetDeleteRequest {
        group_id: group.into(),
        topics: topics
            .iter()
            .map(|(name, partitions)| OffsetDeleteRequestTopic {
                name: (*name).into(),
                partitions: partitions
                    .iter()
                    .map(|partition_index| OffsetDeleteRequestPartition { partition_index: *partition_index })
                    .collect(),
            })
            .collect(),
    }
}

pub fn admin(side: &mut Side) {
    let (empty, live) = (fresh(side, "empty"), fresh(side, "live"));
    let t = side.topic("t", 2, &[]);
    let unknown = side.name("unknown");
    side.ask(7, &commit_request(&empty, -1, "", &[(&t, 0, 5, None), (&t, 1, 6, None)])).unwrap();
    let id = member(side, &live, None, "member");
    side.ask(7, &commit_request(&live, 1, &id, &[(&t, 0, 5, None)])).unwrap();
    for (states, types) in [
        (&[][..], &[][..]),
        (&["Stable"], &[]),
        (&["stable"], &[]),
        (&["Empty"], &[]),
        (&["Empty", "Stable"], &[]),
        (&["Dead"], &[]),
        (&["what"], &[]),
        (&[""], &[]),
        (&[], &["classic"]),
        (&[], &["Classic"]),
        (&[], &["CLASSIC"]),
        (&[], &["consumer"]),
        (&[], &["share"]),
        (&[], &["what"]),
        (&["Stable"], &["classic", "consumer"]),
        (&["PreparingRebalance", "CompletingRebalance"], &[]),
    ] {
        let (states, types): (&[&str], &[&str]) = (states, types);
        side.note(format!("states {states:?} types {types:?}"));
        side.every(|_, version| ListGroupsRequest {
            states_filter: if version >= 4 {
                states.iter().map(|state| (*state).into()).collect()
            } else {
                vec![]
            },
            types_filter: if version >= 5 {
                types.iter().map(|kind| (*kind).into()).collect()
            } else {
                vec![]
            },
        });
    }
    for (group, what) in [(&empty, "empty"), (&live, "live")] {
        for (note, topics) in [
            ("nothing", &[][..]),
            ("no partitions", &[(t.as_str(), &[][..])]),
            ("unknown topic", &[(&unknown, &[0])]),
            ("bad topic", &[("a b", &[0]), ("", &[0])]),
            ("unknown partition", &[(&t, &[9, -1])]),
            ("one", &[(&t, &[1])]),
            ("again", &[(&t, &[1])]),
            ("twice", &[(&t, &[1, 1]), (&t, &[1])]),
            ("good and bad", &[(&t, &[1]), (&unknown, &[0])]),
        ] {
            side.note(format!("offset delete, {what} group: {note}"));
            side.call(0, &delete_request(group, topics));
        }
        fetch_all(side, group);
    }
    side.note("delete live");
    side.every(|_, _| DeleteGroupsRequest { groups_names: vec![live.as_str().into()] });
    side.note("delete several");
    let names =
        vec![live.as_str().into(), empty.as_str().into(), unknown.as_str().into(), empty.as_str().into()];
    side.call(2, &DeleteGroupsRequest { groups_names: names });
    describe(side, &empty);
    fetch_all(side, &empty);
    side.note("offset delete of a deleted group");
    side.call(0, &delete_request(&empty, &[(&t, &[0])]));
    side.note("last offset deleted");
    let last = fresh(side, "last");
    side.ask(7, &commit_request(&last, -1, "", &[(&t, 0, 5, None)])).unwrap();
    side.call(0, &delete_request(&last, &[(&t, &[0])]));
    describe(side, &last);
    side.note("delete a group whose member left");
    let members = vec![MemberIdentity { member_id: id.as_str().into(), ..Default::default() }];
    side.call(4, &LeaveGroupRequest { group_id: live.as_str().into(), members, ..Default::default() });
    describe(side, &live);
    side.every(|_, _| DeleteGroupsRequest { groups_names: vec![live.as_str().into()] });
    describe(side, &live);
}

pub fn leave(side: &mut Side) {
    for version in 0..=5 {
        let group = fresh(side, &format!("g{version}"));
        let id = member(side, &group, None, "member");
        side.note("leaves");
        if version < 3 {
            for who in ["nobody", "", &id, &id] {
                side.call(
                    version,
                    &LeaveGroupRequest {
                        group_id: group.as_str().into(),
                        member_id: who.into(),
                        members: vec![],
                    },
                );
            }
            continue;
        }
        let one = |member: &str, instance: Option<&str>| MemberIdentity {
            member_id: member.into(),
            group_instance_id: instance.map(Into::into),
            reason: None,
        };
        let mut go = |note: &str, members: Vec<MemberIdentity>| {
            side.note(note);
            side.call(
                version,
                &LeaveGroupRequest { group_id: group.as_str().into(), members, ..Default::default() },
            );
        };
        go("nobody", vec![]);
        go("unknown", vec![one("nobody", None)]);
        go("empty", vec![one("", None)]);
        go("with an instance that it is not", vec![one(&id, Some("i"))]);
        go("several", vec![one("nobody", None), one(&id, None), one(&id, None), one("", Some("i"))]);
        go("again", vec![one(&id, None)]);
        describe(side, &group);
    }
}
