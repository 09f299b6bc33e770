//! CreatePartitions: growing a topic. KIP-195.

use std::collections::HashMap;
use std::sync::Arc;

use kaas_protocol::messages::create_partitions::{CreatePartitionsTopic, CreatePartitionsTopicResult};
use kaas_protocol::{CreatePartitionsRequest, CreatePartitionsResponse, ErrorCode, KString};

use super::create_topics::check_replicas;
use super::error::Failure;
use super::{Context, topics};

/// Grows what can be grown; each topic succeeds or fails by itself.
pub async fn handle(context: Context, request: CreatePartitionsRequest) -> CreatePartitionsResponse {
    let mut named: HashMap<KString, usize> = HashMap::new();
    for topic in &request.topics {
        *named.entry(topic.name.clone()).or_default() += 1;
    }
    let mut response = CreatePartitionsResponse::default();
    for topic in &request.topics {
        let outcome = match named.remove(&topic.name) {
            Some(1) => grow(&context, topic, request.validate_only).await,
            Some(_) => Err(Failure::invalid_request("Duplicate topic in request.")),
            None => continue,
        };
        let mut result = CreatePartitionsTopicResult {
            name: topic.name.clone(),
            ..CreatePartitionsTopicResult::default()
        };
        if let Err(failure) = outcome {
            result.error_code = failure.code;
            result.error_message = failure.text();
        }
        response.results.push(result);
    }
    response
}

async fn grow(context: &Context, asked: &CreatePartitionsTopic, validate_only: bool) -> Result<(), Failure> {
    let broker = &context.broker;
    let (store, name) = (Arc::clone(&broker.store), asked.name.to_owned_string());
    let count = u32::try_from(asked.count).map_err(|_| {
        Failure::new(
            ErrorCode::INVALID_PARTITIONS,
            format!("{} partitions would not be an increase.", asked.count),
        )
    })?;
    store.check_growth(&name, count)?;
    if let Some(assignments) = &asked.assignments {
        let current = store.topics().get(&name).map_or(0, |topic| topic.partitions);
        let added = count.saturating_sub(current);
        if usize::try_from(added).ok() != Some(assignments.len()) {
            return Err(Failure::new(
                ErrorCode::INVALID_REPLICA_ASSIGNMENT,
                format!(
                    "Attempted to add {added} additional partition(s), but {} assignment(s) were specified.",
                    assignments.len()
                ),
            ));
        }
        for assignment in assignments {
            check_replicas(&assignment.broker_ids, broker.node_id)?;
        }
    }
    if !validate_only {
        topics::room_for_partitions(broker)?;
        broker.blocking(move || store.grow_topic(&name, count)).await??;
    }
    Ok(())
}
