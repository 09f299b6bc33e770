//! OffsetFetch: what groups have committed. KIP-447 (stable offsets), 709 (several groups at once).

use kaas_protocol::messages::offset_fetch::{
    OffsetFetchRequestGroup, OffsetFetchResponseGroup, OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions, OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use kaas_protocol::{ErrorCode, KString, OffsetFetchRequest as Wire, OffsetFetchResponse};

use super::{Context, error, topics};
use crate::group::state::{FetchedOffset, OffsetFetchRequest};

/// Reads the offsets of one group, or from version 8 of several.
pub async fn handle(context: Context, request: Wire) -> OffsetFetchResponse {
    if context.version < 8 {
        return one_group(&context, request).await;
    }
    let mut response = OffsetFetchResponse::default();
    for group in request.groups {
        response.groups.push(one_of_several(&context, group, request.require_stable).await);
    }
    response
}

async fn one_group(context: &Context, request: Wire) -> OffsetFetchResponse {
    let asked = request.topics.map(|topics| {
        topics
            .into_iter()
            .map(|topic| (topic.name.to_owned_string(), topic.partition_indexes))
            .collect::<Vec<_>>()
    });
    let fetch = OffsetFetchRequest {
        group_id: request.group_id.to_owned_string(),
        topics: asked,
        require_stable: request.require_stable,
    };
    let mut fetched = context.broker.groups.fetch_offsets(&fetch).await;
    let error_code = error::group(fetched.error);
    if context.version < 2 && error_code != ErrorCode::NONE {
        // Version 1 has no place for the error but the partitions.
        let failed = |partition| FetchedOffset {
            partition,
            offset: -1,
            leader_epoch: -1,
            metadata: String::new(),
            error: fetched.error,
        };
        fetched.topics = fetch
            .topics
            .unwrap_or_default()
            .into_iter()
            .map(|(name, partitions)| (name, partitions.into_iter().map(failed).collect()))
            .collect();
    }
    let topics = fetched.topics.into_iter().map(|(name, partitions)| OffsetFetchResponseTopic {
        name: name.into(),
        partitions: partitions
            .into_iter()
            .map(|offset| OffsetFetchResponsePartition {
                partition_index: offset.partition,
                committed_offset: offset.offset,
                committed_leader_epoch: offset.leader_epoch,
                metadata: Some(offset.metadata.into()),
                error_code: error::group(offset.error),
            })
            .collect(),
    });
    OffsetFetchResponse { topics: topics.collect(), error_code, ..OffsetFetchResponse::default() }
}

async fn one_of_several(
    context: &Context,
    group: OffsetFetchRequestGroup,
    require_stable: bool,
) -> OffsetFetchResponseGroup {
    let by_id = context.version >= 10;
    let mut unknown = Vec::new();
    let asked = group.topics.map(|asked| {
        let mut known = Vec::new();
        for topic in asked {
            if !by_id {
                known.push((topic.name.to_owned_string(), topic.partition_indexes));
                continue;
            }
            match topics::find(&context.broker, "", topic.topic_id, true) {
                Ok(found) => known.push((found.name.to_string(), topic.partition_indexes)),
                Err(failure) => unknown.push(OffsetFetchResponseTopics {
                    topic_id: topic.topic_id,
                    partitions: refused(topic.partition_indexes, failure.code),
                    ..OffsetFetchResponseTopics::default()
                }),
            }
        }
        known
    });
    let fetch =
        OffsetFetchRequest { group_id: group.group_id.to_owned_string(), topics: asked, require_stable };
    let fetched = context.broker.groups.fetch_offsets(&fetch).await;
    let mut response = OffsetFetchResponseGroup {
        group_id: group.group_id,
        error_code: error::group(fetched.error),
        ..OffsetFetchResponseGroup::default()
    };
    if fetched.error.is_none() {
        let found = fetched.topics.into_iter().filter_map(|(name, partitions)| {
            let topic_id = match by_id.then(|| context.broker.store.topics().get(&name).cloned()) {
                None => kaas_protocol::Uuid::default(),
                Some(Some(topic)) => topics::wire_id(topic.id),
                // Offsets of a topic that is gone cannot be told by id.
                Some(None) => return None,
            };
            let partitions = partitions.into_iter().map(partition).collect();
            Some(OffsetFetchResponseTopics { name: KString::from(name), topic_id, partitions })
        });
        response.topics = found.collect();
        response.topics.extend(unknown);
    }
    response
}

fn partition(offset: FetchedOffset) -> OffsetFetchResponsePartitions {
    OffsetFetchResponsePartitions {
        partition_index: offset.partition,
        committed_offset: offset.offset,
        committed_leader_epoch: offset.leader_epoch,
        metadata: Some(offset.metadata.into()),
        error_code: error::group(offset.error),
    }
}

fn refused(partitions: Vec<i32>, error_code: ErrorCode) -> Vec<OffsetFetchResponsePartitions> {
    let refused = |partition_index| OffsetFetchResponsePartitions {
        partition_index,
        committed_offset: -1,
        committed_leader_epoch: -1,
        metadata: Some(KString::default()),
        error_code,
    };
    partitions.into_iter().map(refused).collect()
}
