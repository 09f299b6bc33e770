//! DeleteGroups: removes groups without members, with their offsets. KIP-229.

use std::collections::HashSet;

use kaas_protocol::messages::delete_groups::DeletableGroupResult;
use kaas_protocol::{DeleteGroupsRequest, DeleteGroupsResponse, KString};

use super::{Context, error};

/// Deletes what can be deleted; each group succeeds or fails by itself. Durable when answered.
pub async fn handle(context: Context, request: DeleteGroupsRequest) -> DeleteGroupsResponse {
    let mut seen = HashSet::new();
    let ids = request.groups_names.iter().map(KString::to_owned_string);
    let ids: Vec<String> = ids.filter(|id| seen.insert(id.clone())).collect();
    let deleted = context.broker.groups.delete_groups(ids).await;
    DeleteGroupsResponse {
        results: deleted
            .into_iter()
            .map(|group| DeletableGroupResult {
                group_id: group.group_id.into(),
                error_code: error::group(group.error),
            })
            .collect(),
        ..DeleteGroupsResponse::default()
    }
}
