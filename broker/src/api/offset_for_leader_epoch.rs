//! OffsetForLeaderEpoch: where a leader's records end, so that a consumer notices that it read what is no more.
//! KIP-101, 279, 320.

use kaas_engine::types::Epoch;
use kaas_protocol::messages::offset_for_leader_epoch::{
    EpochEndOffset, OffsetForLeaderPartition, OffsetForLeaderTopicResult,
};
use kaas_protocol::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, Uuid};

use super::error::{self, Failure};
use super::{Context, topics};

/// Answers each partition by itself.
pub async fn handle(context: Context, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse {
    let mut response = OffsetForLeaderEpochResponse::default();
    for topic in request.topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for asked in &topic.partitions {
            let mut answer = EpochEndOffset { partition: asked.partition, ..EpochEndOffset::default() };
            match one(&context, &topic.topic, asked).await {
                Ok(Some((leader_epoch, end_offset))) => {
                    answer.leader_epoch = leader_epoch;
                    answer.end_offset = end_offset;
                }
                // Not known: -1 and -1.
                Ok(None) => {}
                Err(failure) => answer.error_code = failure.code,
            }
            partitions.push(answer);
        }
        response.topics.push(OffsetForLeaderTopicResult { topic: topic.topic, partitions });
    }
    response
}

async fn one(
    context: &Context,
    topic: &str,
    asked: &OffsetForLeaderPartition,
) -> Result<Option<(i32, i64)>, Failure> {
    let topic = topics::find(&context.broker, topic, Uuid::ZERO, false)?;
    let partition = context.open(&topic, asked.partition).await?;
    error::check_epoch(asked.current_leader_epoch, partition.epoch())?;
    let Some(epoch) = Epoch::from_wire(asked.leader_epoch) else {
        // -1 is no epoch. Anything else lies below every epoch in the log, and is answered as such.
        let end = (asked.leader_epoch != -1).then(|| partition.end_offset_for_epoch(Epoch::NONE)).flatten();
        return Ok(end.map(|(_, offset)| (asked.leader_epoch, offset.0)));
    };
    let end = partition.end_offset_for_epoch(epoch);
    Ok(end.map(|(epoch, offset)| (epoch.to_wire(), offset.0)))
}
