//! InitProducerId: an id for an idempotent producer. KIP-98.

use std::sync::Arc;

use kaas_engine::types::ProducerId;
use kaas_protocol::{ErrorCode, InitProducerIdRequest, InitProducerIdResponse};
use tracing::error;

use super::Context;

/// Hands out an id that nobody had before; its block is durable.
pub async fn handle(context: Context, request: InitProducerIdRequest) -> InitProducerIdResponse {
    if let Some(id) = &request.transactional_id {
        // The answer has no words: the log has them.
        error!(transactional_id = %id.as_str(), peer = %context.peer, "transactions are not supported by this broker");
        return failed(ErrorCode::INVALID_REQUEST);
    }
    // Both or neither: a producer that goes on says who it was (KIP-360).
    if (request.producer_id == -1) != (request.producer_epoch == -1) {
        return failed(ErrorCode::INVALID_REQUEST);
    }
    let ids = &context.broker.producer_ids;
    if let Some(id) = ids.try_next() {
        return given(id);
    }
    let reserving = Arc::clone(ids);
    match context.broker.blocking(move || reserving.next()).await {
        Ok(Ok(id)) => given(id),
        Ok(Err(error)) => {
            error!(%error, "cannot reserve producer ids");
            // Retriable, and the producer asks again.
            failed(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS)
        }
        Err(_) => failed(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS),
    }
}

fn given(id: ProducerId) -> InitProducerIdResponse {
    InitProducerIdResponse { producer_id: id.0, producer_epoch: 0, ..InitProducerIdResponse::default() }
}

fn failed(error_code: ErrorCode) -> InitProducerIdResponse {
    InitProducerIdResponse {
        error_code,
        producer_id: -1,
        producer_epoch: -1,
        ..InitProducerIdResponse::default()
    }
}
