//! Consumer groups over the wire, against the real binary: every version, kills, stops, deleted topics.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod raw;

use std::time::{Duration, Instant};

use kaas_protocol::messages::delete_topics::DeleteTopicState;
use kaas_protocol::messages::leave_group::MemberIdentity;
use kaas_protocol::messages::offset_commit::OffsetCommitRequestPartition;
use kaas_protocol::messages::offset_delete::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use kaas_protocol::messages::offset_fetch::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kaas_protocol::{
    DeleteGroupsRequest, DeleteTopicsRequest, DescribeGroupsRequest, ErrorCode, HeartbeatRequest,
    JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, ListGroupsRequest, OffsetCommitRequest,
    OffsetDeleteRequest, OffsetFetchRequest, Uuid,
};
use raw::groups::{
    QUICK, commit, commit_request, fetch, heartbeat, join, join_request, stable, sync, topic_id,
};
use raw::{Broker, Client};

#[test]
fn every_version_of_the_membership_requests() {
    let broker = Broker::start(QUICK);
    let mut client = broker.connect();
    for version in 0..=9 {
        let group = format!("group-{version}");
        let instance = format!("instance-{version}");
        let joined = join(&mut client, version, &group, Some(&instance));
        assert_eq!((joined.generation_id, &joined.leader), (1, &joined.member_id));
        assert_eq!(joined.members.len(), 1);
        assert_eq!(joined.protocol_type.is_some(), version >= 7);
        assert_eq!(sync(&mut client, version.min(5), &group, &joined), "mine");
        assert_eq!(heartbeat(&mut client, version.min(4), &group, &joined.member_id, 1), ErrorCode::NONE);
        let ours = heartbeat(&mut client, version.min(4), &group, "somebody", 1);
        assert_eq!(ours, ErrorCode::UNKNOWN_MEMBER_ID);

        let described = DescribeGroupsRequest {
            groups: vec![group.as_str().into(), "nope".into()],
            include_authorized_operations: version >= 3,
        };
        let described = client.call(version.min(6), &described).groups;
        let found = &described[0];
        assert_eq!((&*found.group_state, &*found.protocol_data), ("Stable", "range"));
        assert_eq!((&*found.members[0].client_id, &*found.members[0].client_host), ("raw", "/127.0.0.1"));
        assert_eq!(found.members[0].member_assignment, "mine");
        assert_eq!(found.authorized_operations == i32::MIN, version < 3);
        assert_eq!(&*described[1].group_state, "Dead");
        let not_found = if version >= 6 { ErrorCode::GROUP_ID_NOT_FOUND } else { ErrorCode::NONE };
        assert_eq!(described[1].error_code, not_found);

        let (member_id, leaver) = (joined.member_id.clone(), version.min(5));
        let mut leave = LeaveGroupRequest { group_id: group.as_str().into(), ..LeaveGroupRequest::default() };
        if leaver < 3 {
            leave.member_id = member_id;
        } else {
            leave.members = vec![
                MemberIdentity { member_id, ..MemberIdentity::default() },
                MemberIdentity { member_id: "somebody".into(), ..MemberIdentity::default() },
            ];
        }
        let left = client.call(leaver, &leave);
        assert_eq!(left.error_code, ErrorCode::NONE);
        if leaver >= 3 {
            let codes: Vec<_> = left.members.iter().map(|member| member.error_code).collect();
            assert_eq!(codes, [ErrorCode::NONE, ErrorCode::UNKNOWN_MEMBER_ID]);
        } else {
            // The old answer has one code for the one member.
            assert_eq!(client.call(leaver, &leave).error_code, ErrorCode::UNKNOWN_MEMBER_ID);
        }
    }
    for version in 0..=5 {
        let mut request = ListGroupsRequest::default();
        if version >= 4 {
            request.states_filter = vec!["empty".into()];
        }
        if version >= 5 {
            request.types_filter = vec!["classic".into()];
        }
        let listed = client.call(version, &request);
        assert_eq!(listed.groups.len(), 10);
        assert_eq!(&*listed.groups[0].protocol_type, "consumer");
        assert_eq!(&*listed.groups[0].group_type, if version >= 5 { "classic" } else { "" });
    }
    for version in 0..=2 {
        let names = vec![format!("group-{version}").into(), "nope".into(), "nope".into()];
        let deleted = client.call(version, &DeleteGroupsRequest { groups_names: names });
        assert_eq!(deleted.results.len(), 2, "each once");
        let code = |id: &str| deleted.results.iter().find(|group| group.group_id == *id).unwrap().error_code;
        assert_eq!(code(&format!("group-{version}")), ErrorCode::NONE);
        assert_eq!(code("nope"), ErrorCode::GROUP_ID_NOT_FOUND);
    }
    assert_eq!(client.call(5, &ListGroupsRequest::default()).groups.len(), 7);
}

#[test]
fn every_version_of_the_offset_requests() {
    let broker = Broker::start(QUICK);
    let mut client = broker.connect();
    client.create_topic("t", 2, &[]);
    let id = topic_id(&mut client);
    for version in 2..=10 {
        let offset = i64::from(version) * 10;
        let mut request = commit_request("g", "", -1, 0, offset);
        let topic = &mut request.topics[0];
        topic.partitions.push(OffsetCommitRequestPartition {
            partition_index: 2,
            ..OffsetCommitRequestPartition::default()
        });
        if version >= 6 {
            topic.partitions[0].committed_leader_epoch = i32::from(version);
        }
        let mut unknown = topic.clone();
        unknown.name = "nope".into();
        unknown.topic_id = Uuid([7; 16]);
        if version >= 10 {
            topic.topic_id = id;
        }
        request.topics.insert(0, unknown);
        let response = client.call(version, &request);
        let codes: Vec<_> =
            response.topics.iter().flat_map(|topic| topic.partitions.iter().map(|p| p.error_code)).collect();
        let gone =
            if version >= 10 { ErrorCode::UNKNOWN_TOPIC_ID } else { ErrorCode::UNKNOWN_TOPIC_OR_PARTITION };
        assert_eq!(codes, [gone, gone, ErrorCode::NONE, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION]);

        for fetcher in 1..=10 {
            let (found, epoch) = fetched(&mut client, fetcher, id);
            assert_eq!(found, offset, "commit {version}, fetch {fetcher}");
            let known = if version >= 6 { i32::from(version) } else { -1 };
            assert_eq!(epoch, if fetcher >= 5 { known } else { -1 });
        }
    }
    // Everything, without naming it.
    for version in 2..=10 {
        let group = OffsetFetchRequestGroup { group_id: "g".into(), topics: None, ..Default::default() };
        let request = match version {
            8.. => OffsetFetchRequest { groups: vec![group], ..OffsetFetchRequest::default() },
            _ => OffsetFetchRequest { group_id: "g".into(), topics: None, ..OffsetFetchRequest::default() },
        };
        let response = client.call(version, &request);
        let topics = if version >= 8 { response.groups[0].topics.len() } else { response.topics.len() };
        assert_eq!(topics, 1, "version {version}");
    }
    // Over the longest metadata.
    let mut request = commit_request("g", "", -1, 1, 5);
    request.topics[0].partitions[0].committed_metadata = Some("x".repeat(4_097).into());
    let response = client.call(8, &request);
    assert_eq!(response.topics[0].partitions[0].error_code, ErrorCode::OFFSET_METADATA_TOO_LARGE);
    // A generation of a group that has none.
    let mut request = commit_request("unknown", "m", 4, 0, 5);
    let code = |client: &mut Client, version, request: &OffsetCommitRequest| {
        client.call(version, request).topics[0].partitions[0].error_code
    };
    assert_eq!(code(&mut client, 8, &request), ErrorCode::ILLEGAL_GENERATION);
    assert_eq!(code(&mut client, 9, &request), ErrorCode::GROUP_ID_NOT_FOUND);
    request.topics[0].topic_id = id;
    assert_eq!(code(&mut client, 10, &request), ErrorCode::GROUP_ID_NOT_FOUND);
}

/// Offset and leader epoch of partition 0 by any version.
fn fetched(client: &mut Client, version: i16, id: Uuid) -> (i64, i32) {
    if version < 8 {
        let topic = OffsetFetchRequestTopic { name: "t".into(), partition_indexes: vec![0, 1] };
        let request = OffsetFetchRequest {
            group_id: "g".into(),
            topics: Some(vec![topic]),
            require_stable: version >= 7,
            ..OffsetFetchRequest::default()
        };
        let response = client.call(version, &request);
        assert_eq!(response.error_code, ErrorCode::NONE);
        let partitions = &response.topics[0].partitions;
        assert_eq!((partitions[1].committed_offset, partitions[1].error_code), (-1, ErrorCode::NONE));
        assert_eq!(partitions[0].metadata.as_deref(), Some("note"));
        return (partitions[0].committed_offset, partitions[0].committed_leader_epoch);
    }
    let by_id = version >= 10;
    let topic = |name: &str, topic_id| OffsetFetchRequestTopics {
        name: name.into(),
        topic_id,
        partition_indexes: vec![0],
    };
    let (known, unknown) = match by_id {
        true => (topic("", id), topic("", Uuid([7; 16]))),
        false => (topic("t", Uuid::default()), topic("nope", Uuid::default())),
    };
    let group = |group_id: &str| OffsetFetchRequestGroup {
        group_id: group_id.into(),
        topics: Some(vec![known.clone(), unknown.clone()]),
        ..OffsetFetchRequestGroup::default()
    };
    let request = OffsetFetchRequest {
        groups: vec![group("none"), group("g")],
        require_stable: true,
        ..OffsetFetchRequest::default()
    };
    let response = client.call(version, &request);
    assert_eq!(response.groups[0].topics[0].partitions[0].committed_offset, -1);
    let ours = &response.groups[1];
    assert_eq!((&*ours.group_id, ours.error_code), ("g", ErrorCode::NONE));
    let nope = &ours.topics[1].partitions[0];
    let code = if by_id { ErrorCode::UNKNOWN_TOPIC_ID } else { ErrorCode::NONE };
    assert_eq!((nope.committed_offset, nope.error_code), (-1, code));
    assert_eq!(ours.topics[0].topic_id, if by_id { id } else { Uuid::default() });
    let partition = &ours.topics[0].partitions[0];
    (partition.committed_offset, partition.committed_leader_epoch)
}

#[test]
fn offsets_are_deleted_by_request_and_with_their_topic() {
    let broker = Broker::start(QUICK);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[]);
    let delete = |client: &mut Client, group: &str| {
        let partitions = vec![OffsetDeleteRequestPartition { partition_index: 0 }];
        let topics = vec![OffsetDeleteRequestTopic { name: "t".into(), partitions }];
        let response = client.call(0, &OffsetDeleteRequest { group_id: group.into(), topics });
        (response.error_code, response.topics.first().map(|topic| topic.partitions[0].error_code))
    };
    assert_eq!(delete(&mut client, "nope"), (ErrorCode::GROUP_ID_NOT_FOUND, None));
    assert_eq!(commit(&mut client, "simple", 5), ErrorCode::NONE);
    assert_eq!(delete(&mut client, "simple"), (ErrorCode::NONE, Some(ErrorCode::NONE)));
    assert_eq!(fetch(&mut client, "simple"), -1);
    let member = stable(&mut client, "group", None);
    let response = client.call(8, &commit_request("group", &member, 1, 0, 6));
    assert_eq!(response.topics[0].partitions[0].error_code, ErrorCode::NONE);
    let subscribed = (ErrorCode::NONE, Some(ErrorCode::GROUP_SUBSCRIBED_TO_TOPIC));
    assert_eq!(delete(&mut client, "group"), subscribed);
    let refused = client.call(2, &DeleteGroupsRequest { groups_names: vec!["group".into()] });
    assert_eq!(refused.results[0].error_code, ErrorCode::NON_EMPTY_GROUP);

    let topics = vec![DeleteTopicState { name: Some("t".into()), ..DeleteTopicState::default() }];
    let request = DeleteTopicsRequest { topics, timeout_ms: 10_000, ..DeleteTopicsRequest::default() };
    assert_eq!(client.call(6, &request).responses[0].error_code, ErrorCode::NONE);
    client.create_topic("t", 1, &[]);
    assert_eq!(fetch(&mut client, "group"), -1, "a topic of the same name begins without offsets");
}

#[test]
fn groups_survive_a_kill() {
    let mut broker = Broker::start(QUICK);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[]);
    let dynamic = stable(&mut client, "dynamic", None);
    let fixed = stable(&mut client, "static", Some("instance"));
    let response = client.call(8, &commit_request("dynamic", &dynamic, 1, 0, 42));
    assert_eq!(response.topics[0].partitions[0].error_code, ErrorCode::NONE);
    assert_eq!(commit(&mut client, "simple", 43), ErrorCode::NONE);

    broker.process.kill().unwrap();
    broker.restart(QUICK);
    let mut client = broker.connect();
    assert_eq!(heartbeat(&mut client, 4, "dynamic", &dynamic, 1), ErrorCode::NONE, "no rebalance");
    assert_eq!(heartbeat(&mut client, 4, "static", &fixed, 1), ErrorCode::NONE);
    assert_eq!(fetch(&mut client, "dynamic"), 42);
    assert_eq!(fetch(&mut client, "simple"), 43);
    assert_eq!(client.call(5, &ListGroupsRequest::default()).groups.len(), 3);
    // A bounce of the static member: no new generation; the old process is fenced, also after another kill.
    let back = client.call(9, &join_request("static", "", Some("instance")));
    assert_eq!((back.error_code, back.generation_id, back.skip_assignment), (ErrorCode::NONE, 1, true));
    broker.process.kill().unwrap();
    broker.restart(QUICK);
    let mut client = broker.connect();
    let mut old = HeartbeatRequest {
        group_id: "static".into(),
        generation_id: 1,
        member_id: fixed.into(),
        group_instance_id: Some("instance".into()),
    };
    assert_eq!(client.call(4, &old).error_code, ErrorCode::FENCED_INSTANCE_ID);
    old.member_id = back.member_id;
    assert_eq!(client.call(4, &old).error_code, ErrorCode::NONE);
}

#[test]
fn acknowledged_commits_survive_kills_at_any_moment() {
    let mut broker = Broker::start(QUICK);
    broker.connect().create_topic("t", 1, &[]);
    let mut acknowledged = [-1_i64; 4];
    let mut next = 0;
    for round in 0..8_u64 {
        let address = broker.address();
        let writers: Vec<_> = (0..4_usize)
            .map(|writer| {
                std::thread::spawn(move || {
                    let mut client = Client::connect(address);
                    let mut last = None;
                    for offset in next.. {
                        let request = commit_request(&format!("group-{writer}"), "", -1, 0, offset);
                        let sent = client.encode(8, &request).1;
                        if std::io::Write::write_all(&mut client.stream, &sent).is_err() {
                            return (last, offset);
                        }
                        let Some(frame) = client.frame() else { return (last, offset) };
                        let (_, response): (i32, kaas_protocol::OffsetCommitResponse) =
                            kaas_protocol::decode_response_frame(8, &frame).unwrap();
                        assert_eq!(response.topics[0].partitions[0].error_code, ErrorCode::NONE);
                        last = Some(offset);
                    }
                    unreachable!()
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(40 + 37 * round));
        broker.process.kill().unwrap();
        let mut highest = next;
        for (writer, thread) in writers.into_iter().enumerate() {
            let (last, tried) = thread.join().unwrap();
            acknowledged[writer] = last.unwrap_or(acknowledged[writer]);
            highest = highest.max(tried);
        }
        next = highest + 1;
        broker.restart(QUICK);
        let mut client = broker.connect();
        for (writer, acknowledged) in acknowledged.iter().enumerate() {
            let found = fetch(&mut client, &format!("group-{writer}"));
            assert!(
                (*acknowledged..=highest).contains(&found),
                "round {round}, group {writer}: {acknowledged} was acknowledged, {found} is there"
            );
        }
    }
    assert!(acknowledged.iter().all(|offset| *offset > 0), "every writer got somewhere: {acknowledged:?}");
}

#[test]
fn a_stop_answers_members_that_wait() {
    let mut broker = Broker::start(&["--set", "group.initial.rebalance.delay.ms=60000"]);
    let mut client = broker.connect();
    let request = join_request("g", "", Some("instance"));
    client.send(9, &request);
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    let ended = broker.process.terminate(Duration::from_secs(20)).unwrap();
    assert!(ended.success());
    assert!(began.elapsed() < Duration::from_secs(10), "took {:?}", began.elapsed());
    let (_, answer) = client.receive::<JoinGroupResponse>(9);
    assert_eq!(answer.error_code, ErrorCode::NOT_COORDINATOR);
}

#[test]
fn offsets_expire_as_configured() {
    let broker = Broker::start(&["--set", "offsets.retention.check.interval.ms=200"]);
    let mut client = broker.connect();
    client.create_topic("t", 2, &[]);
    let mut request = commit_request("g", "", -1, 0, 5);
    request.retention_time_ms = 1_000;
    assert_eq!(client.call(2, &request).topics[0].partitions[0].error_code, ErrorCode::NONE);
    let kept = client.call(8, &commit_request("g", "", -1, 1, 6));
    assert_eq!(kept.topics[0].partitions[0].error_code, ErrorCode::NONE);
    assert_eq!(fetch(&mut client, "g"), 5);
    let deadline = Instant::now() + Duration::from_secs(10);
    while fetch(&mut client, "g") != -1 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(client.call(5, &ListGroupsRequest::default()).groups.len(), 1, "the group has an offset left");
}

#[test]
fn settings_of_groups_act() {
    let broker = Broker::start(&[
        "--set",
        "group.min.session.timeout.ms=20000",
        "--set",
        "group.max.session.timeout.ms=40000",
        "--set",
        "group.max.size=1",
        "--set",
        "offset.metadata.max.bytes=3",
        "--set",
        "group.initial.rebalance.delay.ms=1500",
    ]);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[]);
    let mut request = join_request("g", "", Some("a"));
    for (timeout, code) in
        [(19_999, ErrorCode::INVALID_SESSION_TIMEOUT), (40_001, ErrorCode::INVALID_SESSION_TIMEOUT)]
    {
        request.session_timeout_ms = timeout;
        assert_eq!(client.call(9, &request).error_code, code);
    }
    request.session_timeout_ms = 20_000;
    let began = Instant::now();
    assert_eq!(client.call(9, &request).error_code, ErrorCode::NONE);
    assert!(began.elapsed() >= Duration::from_millis(1_500), "{:?}", began.elapsed());
    let full = client.call(9, &join_request("g", "", Some("b")));
    assert_eq!(full.error_code, ErrorCode::GROUP_MAX_SIZE_REACHED);
    assert_eq!(commit(&mut client, "simple", 1), ErrorCode::OFFSET_METADATA_TOO_LARGE);
}

#[test]
fn a_refused_join_names_no_protocol() {
    let broker = Broker::start(QUICK);
    let mut client = broker.connect();
    for version in 0..=9 {
        let response =
            client.call(version, &JoinGroupRequest { session_timeout_ms: 1, ..join_request("g", "", None) });
        assert_eq!(response.error_code, ErrorCode::INVALID_SESSION_TIMEOUT);
        // Null where the version has it.
        let expected = if version < 7 { Some("".into()) } else { None };
        assert_eq!(response.protocol_name, expected, "version {version}");
    }
}
