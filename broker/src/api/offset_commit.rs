//! OffsetCommit: stores what a group has consumed. Answered when durable. KIP-98, 211, 345.

use kaas_protocol::messages::offset_commit::{
    OffsetCommitRequestTopic, OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kaas_protocol::{ErrorCode, OffsetCommitRequest as Wire, OffsetCommitResponse};

use super::{Context, error, topics};
use crate::group::state::{CommitPartition, CommitTopic, OffsetCommitRequest};

/// Stores the offsets of partitions that exist; the others are refused one by one.
pub async fn handle(context: Context, request: Wire) -> OffsetCommitResponse {
    let mut response = OffsetCommitResponse::default();
    let mut accepted = Vec::new();
    for topic in &request.topics {
        let (answers, commits) = check(&context, topic);
        response.topics.push(answers);
        accepted.extend(commits);
    }
    if accepted.is_empty() {
        return response;
    }
    let commit = OffsetCommitRequest {
        group_id: request.group_id.to_owned_string(),
        generation_id: request.generation_id_or_member_epoch,
        member_id: request.member_id.to_owned_string(),
        group_instance_id: request.group_instance_id.map(String::from),
        retention_time_ms: Some(request.retention_time_ms).filter(|retention_ms| *retention_ms != -1),
        topics: accepted,
        knows_group_id_not_found: context.version >= 9,
    };
    let committed = context.broker.groups.commit_offsets(commit).await;
    // The coordinator answers in the order asked; what was refused above has its answer already.
    let mut outcomes = committed.topics.into_iter().flat_map(|(_, partitions)| partitions);
    let waiting = response.topics.iter_mut().flat_map(|topic| &mut topic.partitions);
    for partition in waiting.filter(|partition| partition.error_code == ErrorCode::NONE) {
        partition.error_code = match outcomes.next() {
            Some((index, outcome)) if index == partition.partition_index => error::group(outcome),
            _ => ErrorCode::UNKNOWN_SERVER_ERROR,
        };
    }
    response
}

/// The answers for a topic's partitions, with errors where they do not exist; and what is to be committed.
fn check(
    context: &Context,
    topic: &OffsetCommitRequestTopic,
) -> (OffsetCommitResponseTopic, Option<CommitTopic>) {
    let found = topics::find(&context.broker, &topic.name, topic.topic_id, context.version >= 10);
    let mut commits = Vec::new();
    let mut answers = Vec::new();
    for wanted in &topic.partitions {
        let exists = match &found {
            Ok(topic) => topics::partition(topic, wanted.partition_index).map(|_| ()),
            Err(failure) => Err(failure.clone()),
        };
        if exists.is_ok() {
            commits.push(CommitPartition {
                partition: wanted.partition_index,
                offset: wanted.committed_offset,
                leader_epoch: Some(wanted.committed_leader_epoch).filter(|epoch| *epoch >= 0),
                metadata: wanted.committed_metadata.as_ref().map(|text| text.to_owned_string()),
            });
        }
        answers.push(OffsetCommitResponsePartition {
            partition_index: wanted.partition_index,
            error_code: exists.err().map_or(ErrorCode::NONE, |failure| failure.code),
        });
    }
    let answer =
        OffsetCommitResponseTopic { name: topic.name.clone(), topic_id: topic.topic_id, partitions: answers };
    let commit = found
        .ok()
        .filter(|_| !commits.is_empty())
        .map(|topic| CommitTopic { name: topic.name.to_string(), partitions: commits });
    (answer, commit)
}
