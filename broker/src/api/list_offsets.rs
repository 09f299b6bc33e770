//! ListOffsets: the offset of a moment, or of the ends of the log. KIP-79, 98 (isolation), 320, 405, 734.

use std::collections::HashMap;
use std::sync::Arc;

use kaas_engine::types::Timestamp;
use kaas_engine::{Isolation, TimeQuery};
use kaas_protocol::messages::list_offsets::{
    ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsTopic, ListOffsetsTopicResponse,
};
use kaas_protocol::{ErrorCode, KString, ListOffsetsRequest, ListOffsetsResponse, Uuid};

use super::error::{self, Failure};
use super::{Context, topics};

/// Timestamps that mean something else, and the version each came with.
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;

/// First version that knows leader epochs.
const EPOCH_SINCE: i16 = 4;

/// What was found; -1 where there is nothing.
#[derive(Debug, Clone, Copy)]
struct Found {
    offset: i64,
    timestamp: i64,
    leader_epoch: i32,
}

const NOTHING: Found = Found { offset: -1, timestamp: -1, leader_epoch: -1 };

/// Answers each partition by itself.
pub async fn handle(context: Context, request: ListOffsetsRequest) -> ListOffsetsResponse {
    let isolation = match request.isolation_level {
        1 => Isolation::ReadCommitted,
        _ => Isolation::ReadUncommitted,
    };
    let mut named: HashMap<(KString, i32), usize> = HashMap::new();
    for topic in &request.topics {
        for partition in &topic.partitions {
            *named.entry((topic.name.clone(), partition.partition_index)).or_default() += 1;
        }
    }
    let mut response = ListOffsetsResponse::default();
    for topic in request.topics {
        if let Ok(known) = topics::find(&context.broker, &topic.name, Uuid::ZERO, false) {
            context.prepare(&known, topic.partitions.iter().map(|asked| asked.partition_index));
        }
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for asked in &topic.partitions {
            let index = asked.partition_index;
            let outcome = match named.get(&(topic.name.clone(), index)) {
                Some(1) => one(&context, &topic, asked, isolation).await,
                _ => Err(Failure::bare(ErrorCode::INVALID_REQUEST)),
            };
            partitions.push(answer(&context, index, outcome));
        }
        response.topics.push(ListOffsetsTopicResponse { name: topic.name, partitions });
    }
    response
}

fn answer(context: &Context, index: i32, outcome: Result<Found, Failure>) -> ListOffsetsPartitionResponse {
    let (error_code, found) = match outcome {
        Ok(found) => (ErrorCode::NONE, found),
        Err(failure) => (failure.code, NOTHING),
    };
    ListOffsetsPartitionResponse {
        partition_index: index,
        error_code,
        timestamp: found.timestamp,
        offset: found.offset,
        leader_epoch: if context.version >= EPOCH_SINCE { found.leader_epoch } else { -1 },
    }
}

async fn one(
    context: &Context,
    topic: &ListOffsetsTopic,
    asked: &ListOffsetsPartition,
    isolation: Isolation,
) -> Result<Found, Failure> {
    let since = match asked.timestamp {
        0.. | LATEST | EARLIEST => 1,
        MAX_TIMESTAMP => 7,
        EARLIEST_LOCAL => 8,
        LATEST_TIERED => 9,
        _ => i16::MAX,
    };
    if context.version < since {
        return Err(Failure::bare(ErrorCode::UNSUPPORTED_VERSION));
    }
    let broker = &context.broker;
    let known = topics::find(broker, &topic.name, Uuid::ZERO, false)?;
    let partition = context.open(&known, asked.partition_index).await?;
    error::check_epoch(asked.current_leader_epoch, partition.epoch())?;
    let status = partition.status();
    let epoch = partition.epoch().to_wire();
    let query = match asked.timestamp {
        LATEST => {
            let end = match isolation {
                Isolation::ReadUncommitted => status.high_watermark,
                Isolation::ReadCommitted => status.last_stable,
            };
            return Ok(Found { offset: end.0, leader_epoch: epoch, ..NOTHING });
        }
        // Without tiered storage everything is local.
        EARLIEST | EARLIEST_LOCAL => {
            let leader_epoch = partition.epoch_of_log_start().to_wire();
            return Ok(Found { offset: status.log_start.0, leader_epoch, ..NOTHING });
        }
        LATEST_TIERED => return Ok(NOTHING),
        MAX_TIMESTAMP => TimeQuery::MaxTimestamp,
        timestamp => TimeQuery::At(Timestamp(timestamp)),
    };
    let looked_in = Arc::clone(&partition);
    let lookup = move || looked_in.offset_for_time(query, isolation);
    let found = context.read_blocking(lookup).await?.map_err(|error| {
        broker.partitions.tell_unread(&partition, &error);
        error::read(&error)
    })?;
    Ok(found.map_or(NOTHING, |found| Found {
        offset: found.offset.0,
        timestamp: found.timestamp.0,
        leader_epoch: found.leader_epoch.to_wire(),
    }))
}
