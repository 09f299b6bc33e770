//! Requests of consumer groups, as a member makes them.

use super::Client;
use bytes::Bytes;
use kaas_protocol::messages::join_group::JoinGroupRequestProtocol;
use kaas_protocol::messages::offset_commit::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kaas_protocol::messages::offset_fetch::OffsetFetchRequestTopic;
use kaas_protocol::messages::sync_group::SyncGroupRequestAssignment;
use kaas_protocol::{
    ErrorCode, HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, MetadataRequest, OffsetCommitRequest,
    OffsetFetchRequest, SyncGroupRequest, Uuid,
};

pub const QUICK: &[&str] = &["--set", "group.initial.rebalance.delay.ms=20"];

pub fn join_request(group: &str, member: &str, instance: Option<&str>) -> JoinGroupRequest {
    // Version 1 of a consumer's subscription to the topic "t".
    let metadata = Bytes::from_static(&[0, 1, 0, 0, 0, 1, 0, 1, b't', 0xff, 0xff, 0xff, 0xff]);
    JoinGroupRequest {
        group_id: group.into(),
        session_timeout_ms: 30_000,
        rebalance_timeout_ms: 30_000,
        member_id: member.into(),
        group_instance_id: instance.map(Into::into),
        protocol_type: "consumer".into(),
        protocols: vec![JoinGroupRequestProtocol { name: "range".into(), metadata }],
        ..JoinGroupRequest::default()
    }
}

pub fn join(client: &mut Client, version: i16, group: &str, instance: Option<&str>) -> JoinGroupResponse {
    let instance = instance.filter(|_| version >= 5);
    let mut request = join_request(group, "", instance);
    if version == 0 {
        request.rebalance_timeout_ms = -1;
    }
    let mut response = client.call(version, &request);
    if version >= 4 && instance.is_none() {
        assert_eq!(response.error_code, ErrorCode::MEMBER_ID_REQUIRED);
        request.member_id = response.member_id;
        response = client.call(version, &request);
    }
    assert_eq!(response.error_code, ErrorCode::NONE, "version {version}");
    response
}

pub fn sync(client: &mut Client, version: i16, group: &str, joined: &JoinGroupResponse) -> Bytes {
    let mine = SyncGroupRequestAssignment { member_id: joined.member_id.clone(), assignment: "mine".into() };
    let known = version >= 5;
    let request = SyncGroupRequest {
        group_id: group.into(),
        generation_id: joined.generation_id,
        member_id: joined.member_id.clone(),
        protocol_type: known.then(|| "consumer".into()),
        protocol_name: known.then(|| "range".into()),
        assignments: vec![mine],
        ..SyncGroupRequest::default()
    };
    let response = client.call(version, &request);
    assert_eq!(response.error_code, ErrorCode::NONE, "version {version}");
    assert_eq!(response.protocol_name.is_some(), known);
    response.assignment
}

pub fn heartbeat(client: &mut Client, version: i16, group: &str, member: &str, generation: i32) -> ErrorCode {
    let request = HeartbeatRequest {
        group_id: group.into(),
        generation_id: generation,
        member_id: member.into(),
        ..HeartbeatRequest::default()
    };
    client.call(version, &request).error_code
}

/// A stable group of one member: its id.
pub fn stable(client: &mut Client, group: &str, instance: Option<&str>) -> String {
    let joined = join(client, 9, group, instance);
    assert_eq!(sync(client, 5, group, &joined), "mine");
    joined.member_id.to_owned_string()
}

pub fn commit_request(
    group: &str,
    member: &str,
    generation: i32,
    partition: i32,
    offset: i64,
) -> OffsetCommitRequest {
    let partition = OffsetCommitRequestPartition {
        partition_index: partition,
        committed_offset: offset,
        committed_metadata: Some("note".into()),
        ..OffsetCommitRequestPartition::default()
    };
    OffsetCommitRequest {
        group_id: group.into(),
        generation_id_or_member_epoch: generation,
        member_id: member.into(),
        topics: vec![OffsetCommitRequestTopic {
            name: "t".into(),
            partitions: vec![partition],
            ..OffsetCommitRequestTopic::default()
        }],
        ..OffsetCommitRequest::default()
    }
}

pub fn commit(client: &mut Client, group: &str, offset: i64) -> ErrorCode {
    let response = client.call(8, &commit_request(group, "", -1, 0, offset));
    response.topics[0].partitions[0].error_code
}

pub fn fetch(client: &mut Client, group: &str) -> i64 {
    let topic = OffsetFetchRequestTopic { name: "t".into(), partition_indexes: vec![0] };
    let request = OffsetFetchRequest {
        group_id: group.into(),
        topics: Some(vec![topic]),
        require_stable: true,
        ..OffsetFetchRequest::default()
    };
    let response = client.call(7, &request);
    assert_eq!(response.error_code, ErrorCode::NONE);
    response.topics[0].partitions[0].committed_offset
}

pub fn topic_id(client: &mut Client) -> Uuid {
    let response = client.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() });
    response.topics.iter().find(|topic| topic.name.as_deref() == Some("t")).unwrap().topic_id
}
