//! FindCoordinator: which broker coordinates a group. KIP-699 (several keys at once).

use kaas_protocol::messages::find_coordinator::Coordinator;
use kaas_protocol::{FindCoordinatorRequest, FindCoordinatorResponse, KString};

use super::Context;
use super::error::Failure;

const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;

/// Answers with this broker for groups.
pub async fn handle(context: Context, request: FindCoordinatorRequest) -> FindCoordinatorResponse {
    let mut response = FindCoordinatorResponse::default();
    if context.version >= 4 {
        let keys = request.coordinator_keys.into_iter();
        response.coordinators = keys.map(|key| find(&context, request.key_type, key)).collect();
    } else {
        let found = find(&context, request.key_type, request.key);
        response.error_code = found.error_code;
        response.error_message = found.error_message;
        response.node_id = found.node_id;
        response.host = found.host;
        response.port = found.port;
    }
    response
}

fn find(context: &Context, key_type: i8, key: KString) -> Coordinator {
    let refused = match key_type {
        GROUP => None,
        // Not a retriable code: a transactional producer should fail at once, with these words.
        TRANSACTION => Some(Failure::invalid_request("Transactions are not supported by this broker.")),
        other => Some(Failure::invalid_request(format!("Unknown coordinator type {other}"))),
    };
    if let Some(failure) = refused {
        let error_message = failure.text();
        return Coordinator {
            key,
            node_id: -1,
            port: -1,
            error_code: failure.code,
            error_message,
            ..Coordinator::default()
        };
    }
    let (host, port) = context.broker.endpoint(&context.peer);
    Coordinator {
        key,
        node_id: context.broker.node_id,
        host: host.as_str().into(),
        port,
        ..Coordinator::default()
    }
}
