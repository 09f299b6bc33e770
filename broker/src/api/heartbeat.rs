//! Heartbeat: a member of a classic group is alive.

use kaas_protocol::{HeartbeatRequest as Wire, HeartbeatResponse};

use super::{Context, error};
use crate::group::state::HeartbeatRequest;

/// Restarts the member's session, and tells it whether to join again.
pub async fn handle(context: Context, request: Wire) -> HeartbeatResponse {
    let request = HeartbeatRequest {
        group_id: request.group_id.to_owned_string(),
        generation_id: request.generation_id,
        member_id: request.member_id.to_owned_string(),
        group_instance_id: request.group_instance_id.map(String::from),
    };
    let answer = context.broker.groups.heartbeat(&request).await;
    HeartbeatResponse { error_code: error::group(answer.err()), ..HeartbeatResponse::default() }
}
