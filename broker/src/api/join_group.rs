//! JoinGroup: enter a group, or a rebalance. KIP-345, 394, 559, 800, 814.

use bytes::Bytes;
use kaas_protocol::messages::join_group::JoinGroupResponseMember;
use kaas_protocol::{JoinGroupRequest, JoinGroupResponse, KString};

use super::{Context, error};
use crate::group::state::{JoinRequest, JoinResponse, Protocol};

/// Answers when the rebalance lets the member go on.
pub async fn handle(context: Context, request: JoinGroupRequest) -> JoinGroupResponse {
    let mut protocols: Vec<Protocol> = Vec::new();
    for protocol in request.protocols {
        if protocols.iter().all(|known| protocol.name.as_str() != known.name) {
            // A copy: the group must not keep the request's whole frame in memory.
            let metadata = Bytes::copy_from_slice(&protocol.metadata);
            protocols.push(Protocol { name: protocol.name.to_owned_string(), metadata });
        }
    }
    let version = context.version;
    let request = JoinRequest {
        group_id: request.group_id.to_owned_string(),
        member_id: request.member_id.to_owned_string(),
        group_instance_id: request.group_instance_id.map(String::from),
        client_id: context.client_id().to_owned(),
        client_host: context.client_host(),
        session_timeout_ms: request.session_timeout_ms,
        // Version 0 has one timeout for both.
        rebalance_timeout_ms: match version {
            0 => request.session_timeout_ms,
            _ => request.rebalance_timeout_ms,
        },
        protocol_type: request.protocol_type.to_owned_string(),
        protocols,
        reason: request.reason.map(String::from),
        requires_known_member_id: version >= 4,
        supports_skipping_assignment: version >= 9,
        fresh_id: String::new(),
    };
    encode(version, context.broker.groups.join_group(request).await)
}

fn encode(version: i16, response: JoinResponse) -> JoinGroupResponse {
    let protocol_name = match response.protocol_name {
        // It may be null only from version 7 on.
        None if version < 7 => Some(KString::default()),
        name => name.map(KString::from),
    };
    JoinGroupResponse {
        error_code: error::group(response.error),
        generation_id: response.generation_id,
        protocol_type: response.protocol_type.map(KString::from),
        protocol_name,
        leader: response.leader.into(),
        skip_assignment: response.skip_assignment,
        member_id: response.member_id.into(),
        members: response
            .members
            .into_iter()
            .map(|member| JoinGroupResponseMember {
                member_id: (&*member.member_id).into(),
                group_instance_id: member.group_instance_id.map(KString::from),
                metadata: member.metadata,
            })
            .collect(),
        ..JoinGroupResponse::default()
    }
}
