//! OffsetDelete: removes committed offsets of topics that the group does not consume. KIP-496.

use kaas_protocol::messages::offset_delete::{
    OffsetDeleteRequestTopic, OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use kaas_protocol::{ErrorCode, OffsetDeleteRequest as Wire, OffsetDeleteResponse};

use super::{Context, error, topics};
use crate::group::state::OffsetDeleteRequest;

/// Deletes the offsets of partitions that exist; the others are refused one by one.
pub async fn handle(context: Context, request: Wire) -> OffsetDeleteResponse {
    let mut response = OffsetDeleteResponse::default();
    let mut accepted = Vec::new();
    for topic in &request.topics {
        let answers = check(&context, topic);
        let existing = answers.partitions.iter().filter(|answer| answer.error_code == ErrorCode::NONE);
        let existing: Vec<i32> = existing.map(|answer| answer.partition_index).collect();
        if !existing.is_empty() {
            accepted.push((topic.name.to_owned_string(), existing));
        }
        response.topics.push(answers);
    }
    // Asked even with nothing left to delete: the group may not exist, which is the answer then.
    let delete = OffsetDeleteRequest { group_id: request.group_id.to_owned_string(), topics: accepted };
    let deleted = context.broker.groups.delete_offsets(delete).await;
    if deleted.error.is_some() {
        return OffsetDeleteResponse {
            error_code: error::group(deleted.error),
            ..OffsetDeleteResponse::default()
        };
    }
    // The coordinator answers in the order asked; what was refused above has its answer already.
    let mut outcomes = deleted.topics.into_iter().flat_map(|(_, partitions)| partitions);
    let waiting = response.topics.iter_mut().flat_map(|topic| &mut topic.partitions);
    for partition in waiting.filter(|partition| partition.error_code == ErrorCode::NONE) {
        partition.error_code = match outcomes.next() {
            Some((index, outcome)) if index == partition.partition_index => error::group(outcome),
            _ => ErrorCode::UNKNOWN_SERVER_ERROR,
        };
    }
    response
}

fn check(context: &Context, topic: &OffsetDeleteRequestTopic) -> OffsetDeleteResponseTopic {
    let found = topics::find(&context.broker, &topic.name, kaas_protocol::Uuid::default(), false);
    let partitions = topic.partitions.iter().map(|wanted| {
        let exists = match &found {
            Ok(topic) => topics::partition(topic, wanted.partition_index).map(|_| ()),
            Err(failure) => Err(failure.clone()),
        };
        OffsetDeleteResponsePartition {
            partition_index: wanted.partition_index,
            error_code: exists.err().map_or(ErrorCode::NONE, |failure| failure.code),
        }
    });
    OffsetDeleteResponseTopic { name: topic.name.clone(), partitions: partitions.collect() }
}
