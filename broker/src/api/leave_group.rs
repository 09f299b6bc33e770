//! LeaveGroup: one member, or from version 3 several. KIP-345, 800.

use kaas_protocol::messages::leave_group::MemberResponse;
use kaas_protocol::{ErrorCode, KString, LeaveGroupRequest, LeaveGroupResponse};

use super::{Context, error};
use crate::group::state::{LeaveRequest, LeavingMember};

/// Removes the members. Each succeeds or fails by itself.
pub async fn handle(context: Context, request: LeaveGroupRequest) -> LeaveGroupResponse {
    let one_only = context.version < 3;
    let members = if one_only {
        let member_id = request.member_id.to_owned_string();
        vec![LeavingMember { member_id, group_instance_id: None, reason: None }]
    } else {
        let members = request.members.into_iter();
        members
            .map(|member| LeavingMember {
                member_id: member.member_id.to_owned_string(),
                group_instance_id: member.group_instance_id.map(String::from),
                reason: member.reason.map(String::from),
            })
            .collect()
    };
    let request = LeaveRequest { group_id: request.group_id.to_owned_string(), members };
    let left = context.broker.groups.leave_group(&request).await;
    let mut response =
        LeaveGroupResponse { error_code: error::group(left.error), ..LeaveGroupResponse::default() };
    if one_only {
        if let (ErrorCode::NONE, Some(member)) = (response.error_code, left.members.first()) {
            response.error_code = error::group(member.error);
        }
        return response;
    }
    response.members = left
        .members
        .into_iter()
        .map(|member| MemberResponse {
            member_id: member.member_id.into(),
            group_instance_id: member.group_instance_id.map(KString::from),
            error_code: error::group(member.error),
        })
        .collect();
    response
}
