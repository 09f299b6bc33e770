//! SyncGroup: the leader hands in the assignment, every member gets its own. KIP-345, 559.

use bytes::Bytes;
use kaas_protocol::{KString, SyncGroupRequest, SyncGroupResponse};

use super::{Context, error};
use crate::group::state::{GroupError, SyncRequest, SyncResponse};

/// Answers when the assignment is durable.
pub async fn handle(context: Context, request: SyncGroupRequest) -> SyncGroupResponse {
    if context.version >= 5 && (request.protocol_type.is_none() || request.protocol_name.is_none()) {
        return encode(SyncResponse::failed(GroupError::InconsistentGroupProtocol));
    }
    let request = SyncRequest {
        group_id: request.group_id.to_owned_string(),
        generation_id: request.generation_id,
        member_id: request.member_id.to_owned_string(),
        group_instance_id: request.group_instance_id.map(String::from),
        protocol_type: request.protocol_type.map(String::from),
        protocol_name: request.protocol_name.map(String::from),
        assignments: request
            .assignments
            .into_iter()
            // A copy: the group must not keep the request's whole frame in memory.
            .map(|a| (a.member_id.to_owned_string(), Bytes::copy_from_slice(&a.assignment)))
            .collect(),
    };
    encode(context.broker.groups.sync_group(request).await)
}

fn encode(response: SyncResponse) -> SyncGroupResponse {
    SyncGroupResponse {
        error_code: error::group(response.error),
        protocol_type: response.protocol_type.map(KString::from),
        protocol_name: response.protocol_name.map(KString::from),
        assignment: response.assignment,
        ..SyncGroupResponse::default()
    }
}
