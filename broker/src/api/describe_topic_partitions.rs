//! DescribeTopicPartitions: as Metadata, in pages. KIP-966.

use std::collections::BTreeSet;

use kaas_control::metadata::{Topic, validate_name};
use kaas_protocol::messages::describe_topic_partitions::{
    DescribeTopicPartitionsRequestCursor as Cursor, DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use kaas_protocol::{DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, ErrorCode};

use super::{Context, operations, topics};

/// Most partitions in one answer (`max.request.partition.size.limit`).
const PARTITIONS_MAX: usize = 2000;

/// Answers in the order of the topics' names, from the cursor on, up to the limit.
pub async fn handle(
    context: Context,
    request: DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    let known = context.broker.store.topics();
    if let Some(cursor) = &request.cursor {
        let asked = |name: &kaas_protocol::KString| request.topics.iter().any(|topic| topic.name == *name);
        if cursor.partition_index < 0 || !(request.topics.is_empty() || asked(&cursor.topic_name)) {
            return refused(&request);
        }
    }
    let mut names: BTreeSet<&str> = request.topics.iter().map(|topic| topic.name.as_str()).collect();
    if names.is_empty() {
        names = known.iter().map(|topic| &*topic.name).collect();
    }
    let cursor = request.cursor.as_ref();
    if let Some(Cursor { topic_name, .. }) = cursor {
        names.retain(|name| *name >= topic_name.as_str());
    }
    let asked = usize::try_from(request.response_partition_limit).unwrap_or(0);
    let mut room = asked.clamp(1, PARTITIONS_MAX);
    let mut response = DescribeTopicPartitionsResponse::default();
    for name in names {
        let Some(topic) = known.get(name) else {
            response.topics.push(missing(name));
            continue;
        };
        let first = cursor
            .filter(|cursor| cursor.topic_name.as_str() == name)
            .and_then(|cursor| u32::try_from(cursor.partition_index).ok())
            .unwrap_or(0);
        if room == 0 {
            response.next_cursor = Some(next(name, first));
            break;
        }
        let last = topic.partitions.min(first.saturating_add(u32::try_from(room).unwrap_or(u32::MAX)));
        response.topics.push(describe(&context, topic, first, last));
        room = room.saturating_sub(usize::try_from(last.saturating_sub(first)).unwrap_or(room));
        if last < topic.partitions {
            response.next_cursor = Some(next(name, last));
            break;
        }
    }
    response
}

fn next(topic: &str, partition: u32) -> DescribeTopicPartitionsResponseCursor {
    DescribeTopicPartitionsResponseCursor {
        topic_name: topic.into(),
        partition_index: i32::try_from(partition).unwrap_or(i32::MAX),
    }
}

/// The answer to a cursor that points to nothing that was asked for.
fn refused(request: &DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse {
    let topics = request.topics.iter().map(|topic| DescribeTopicPartitionsResponseTopic {
        error_code: ErrorCode::INVALID_REQUEST,
        name: Some(topic.name.clone()),
        ..DescribeTopicPartitionsResponseTopic::default()
    });
    DescribeTopicPartitionsResponse { topics: topics.collect(), ..DescribeTopicPartitionsResponse::default() }
}

fn missing(name: &str) -> DescribeTopicPartitionsResponseTopic {
    let error_code = match validate_name(name) {
        Ok(()) => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        Err(_) => ErrorCode::INVALID_TOPIC_EXCEPTION,
    };
    DescribeTopicPartitionsResponseTopic {
        error_code,
        name: Some(name.into()),
        topic_authorized_operations: operations::TOPIC,
        ..DescribeTopicPartitionsResponseTopic::default()
    }
}

fn describe(context: &Context, topic: &Topic, first: u32, last: u32) -> DescribeTopicPartitionsResponseTopic {
    let node_id = context.broker.node_id;
    let partitions = (first..last).map(|partition| DescribeTopicPartitionsResponsePartition {
        partition_index: i32::try_from(partition).unwrap_or(i32::MAX),
        leader_id: node_id,
        leader_epoch: context.broker.leader_epoch(topic, partition).to_wire(),
        replica_nodes: vec![node_id],
        isr_nodes: vec![node_id],
        eligible_leader_replicas: Some(Vec::new()),
        last_known_elr: Some(Vec::new()),
        ..DescribeTopicPartitionsResponsePartition::default()
    });
    DescribeTopicPartitionsResponseTopic {
        name: Some((&*topic.name).into()),
        topic_id: topics::wire_id(topic.id),
        is_internal: topic.is_internal(),
        partitions: partitions.collect(),
        topic_authorized_operations: operations::TOPIC,
        ..DescribeTopicPartitionsResponseTopic::default()
    }
}
