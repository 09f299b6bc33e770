//! DescribeGroups: state and members of classic groups. KIP-345, 430 (operations), 1043 (groups that are not there).

use kaas_protocol::messages::describe_groups::{DescribedGroup as WireGroup, DescribedGroupMember};
use kaas_protocol::{DescribeGroupsRequest, DescribeGroupsResponse, ErrorCode, KString};

use super::{Context, error, operations};
use crate::group::state::DescribedGroup;

/// Describes the groups in the order asked for.
pub async fn handle(context: Context, request: DescribeGroupsRequest) -> DescribeGroupsResponse {
    let ids: Vec<String> = request.groups.iter().map(KString::to_owned_string).collect();
    let described = context.broker.groups.describe_groups(&ids).await;
    let operations = request.include_authorized_operations.then_some(operations::GROUP);
    DescribeGroupsResponse {
        groups: described.into_iter().map(|group| encode(context.version, group, operations)).collect(),
        ..DescribeGroupsResponse::default()
    }
}

fn encode(version: i16, group: DescribedGroup, operations: Option<i32>) -> WireGroup {
    let mut out = WireGroup {
        error_code: error::group(group.error),
        group_state: group.state.into(),
        protocol_type: group.protocol_type.into(),
        protocol_data: group.protocol.into(),
        members: group
            .members
            .into_iter()
            .map(|member| DescribedGroupMember {
                member_id: (&*member.member_id).into(),
                group_instance_id: member.group_instance_id.map(KString::from),
                client_id: member.client_id.into(),
                client_host: member.client_host.into(),
                member_metadata: member.metadata,
                member_assignment: member.assignment,
            })
            .collect(),
        ..WireGroup::default()
    };
    if group.error.is_none() && !group.found && version >= 6 {
        // Older clients know a group that is not there by its state, "Dead".
        out.error_code = ErrorCode::GROUP_ID_NOT_FOUND;
        out.error_message = Some(format!("Group {} not found.", group.group_id).into());
    }
    if let (ErrorCode::NONE, Some(operations)) = (out.error_code, operations) {
        out.authorized_operations = operations;
    }
    out.group_id = group.group_id.into();
    out
}
