//! DeleteRecords: moving the log start offset forward. KIP-107.

use kaas_engine::types::Offset;
use kaas_protocol::messages::delete_records::{
    DeleteRecordsPartition, DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use kaas_protocol::{DeleteRecordsRequest, DeleteRecordsResponse, ErrorCode, Uuid};
use tokio::time::{Duration, Instant, timeout_at};

use super::error::{self, Failure};
use super::{Context, topics};

/// The offset that means the high watermark.
const TO_HIGH_WATERMARK: i64 = -1;

/// Deletes in each partition by itself; what is told is durable.
pub async fn handle(context: Context, request: DeleteRecordsRequest) -> DeleteRecordsResponse {
    let timeout = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
    let deadline = Instant::now() + timeout;
    let mut response = DeleteRecordsResponse::default();
    for topic in request.topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for asked in &topic.partitions {
            let mut result = DeleteRecordsPartitionResult {
                partition_index: asked.partition_index,
                low_watermark: -1,
                ..DeleteRecordsPartitionResult::default()
            };
            match one(&context, &topic.name, asked, deadline).await {
                Ok(log_start) => result.low_watermark = log_start.0,
                Err(failure) => result.error_code = failure.code,
            }
            partitions.push(result);
        }
        response.topics.push(DeleteRecordsTopicResult { name: topic.name, partitions });
    }
    response
}

async fn one(
    context: &Context,
    topic: &str,
    asked: &DeleteRecordsPartition,
    deadline: Instant,
) -> Result<Offset, Failure> {
    let topic = topics::find(&context.broker, topic, Uuid::ZERO, false)?;
    let partition = context.open(&topic, asked.partition_index).await?;
    let config = partition.config();
    if config.compact && !config.delete {
        return Err(Failure::bare(ErrorCode::POLICY_VIOLATION));
    }
    let before = match asked.offset {
        TO_HIGH_WATERMARK => None,
        offset if offset < 0 => return Err(Failure::bare(ErrorCode::OFFSET_OUT_OF_RANGE)),
        offset => Some(Offset(offset)),
    };
    match timeout_at(deadline, partition.delete_records(before)).await {
        Ok(Ok(outcome)) => outcome.map_err(|e| error::engine(&e)),
        Ok(Err(_)) => Err(Failure::bare(ErrorCode::NOT_LEADER_OR_FOLLOWER)),
        Err(_) => Err(Failure::bare(ErrorCode::REQUEST_TIMED_OUT)),
    }
}
