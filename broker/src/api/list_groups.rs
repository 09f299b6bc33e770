//! ListGroups: the groups that this broker coordinates. KIP-518 (states), 848 (types).

use kaas_protocol::messages::list_groups::ListedGroup;
use kaas_protocol::{KString, ListGroupsRequest, ListGroupsResponse};

use super::{Context, error};

/// Lists all groups, or none: there is no partial answer.
pub async fn handle(context: Context, request: ListGroupsRequest) -> ListGroupsResponse {
    let states: Vec<String> = request.states_filter.iter().map(KString::to_owned_string).collect();
    let types: Vec<String> = request.types_filter.iter().map(KString::to_owned_string).collect();
    match context.broker.groups.list_groups(&states, &types).await {
        Ok(groups) => ListGroupsResponse {
            groups: groups
                .into_iter()
                .map(|group| ListedGroup {
                    group_id: group.group_id.into(),
                    protocol_type: group.protocol_type.into(),
                    group_state: group.state.into(),
                    group_type: group.group_type.into(),
                })
                .collect(),
            ..ListGroupsResponse::default()
        },
        Err(failed) => {
            ListGroupsResponse { error_code: error::group(Some(failed)), ..ListGroupsResponse::default() }
        }
    }
}
