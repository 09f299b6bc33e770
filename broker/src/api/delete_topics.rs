//! DeleteTopics, by name or by id. KIP-4, 516.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kaas_control::metadata::{Topic, TopicId};
use kaas_protocol::messages::delete_topics::{DeletableTopicResult, DeleteTopicState};
use kaas_protocol::{DeleteTopicsRequest, DeleteTopicsResponse, ErrorCode, KString, Uuid};

use tracing::warn;

use super::error::Failure;
use super::{Context, topics};
use crate::server::Broker;

/// Deletes what can be deleted; each topic succeeds or fails by itself.
pub async fn handle(context: Context, request: DeleteTopicsRequest) -> DeleteTopicsResponse {
    let asked = if context.version >= 6 {
        request.topics
    } else {
        let named = |name| DeleteTopicState { name: Some(name), ..DeleteTopicState::default() };
        request.topic_names.into_iter().map(named).collect()
    };
    let mut response = DeleteTopicsResponse::default();
    for (state, found) in resolve(&context, asked) {
        let mut result = DeletableTopicResult {
            name: state.name.clone(),
            topic_id: state.topic_id,
            ..DeletableTopicResult::default()
        };
        let outcome = match found {
            Ok(topic) => {
                result.name = Some((&*topic.name).into());
                result.topic_id = topics::wire_id(topic.id);
                delete(&context, &topic).await
            }
            Err(failure) => Err(failure),
        };
        if let Err(failure) = outcome {
            result.error_code = failure.code;
            result.error_message = failure.text();
        }
        response.responses.push(result);
    }
    response
}

/// What each entry means. A topic that is named twice, also once by name and once by id, is answered once and not
/// touched: nothing may be deleted by a request that contradicts itself.
fn resolve(
    context: &Context,
    asked: Vec<DeleteTopicState>,
) -> Vec<(DeleteTopicState, Result<Arc<Topic>, Failure>)> {
    let mut entries: Vec<(DeleteTopicState, Result<Arc<Topic>, Failure>)> = Vec::with_capacity(asked.len());
    let mut seen: HashMap<(Option<KString>, Uuid), usize> = HashMap::new();
    let mut by_topic: HashMap<TopicId, usize> = HashMap::new();
    for state in asked {
        let found = find(context, &state);
        let contradicts = state.name.is_some() != state.topic_id.is_zero();
        if contradicts {
            entries.push((state, found));
            continue;
        }
        let index = entries.len();
        let key = (state.name.clone(), state.topic_id);
        let earlier = seen.get(&key).or_else(|| by_topic.get(&found.as_ref().ok()?.id)).copied();
        if let Some((first, outcome)) = earlier.and_then(|earlier| entries.get_mut(earlier)) {
            // Once by name and once by id: the answer has both.
            if first.name.is_some() != state.name.is_some() {
                first.name = first.name.take().or(state.name.clone());
                first.topic_id = if first.topic_id.is_zero() { state.topic_id } else { first.topic_id };
            }
            let words = if state.name.is_some() { "Duplicate topic name." } else { "Duplicate topic id." };
            *outcome = Err(Failure::invalid_request(words));
            continue;
        }
        seen.insert(key, index);
        if let Ok(topic) = &found {
            by_topic.insert(topic.id, index);
        }
        entries.push((state, found));
    }
    entries
}

fn find(context: &Context, state: &DeleteTopicState) -> Result<Arc<Topic>, Failure> {
    match (&state.name, state.topic_id.is_zero()) {
        (Some(_), false) => {
            Err(Failure::invalid_request("You may not specify both topic name and topic id."))
        }
        (None, true) => Err(Failure::invalid_request("Neither topic name nor id were specified.")),
        (Some(name), true) => topics::find(&context.broker, name, state.topic_id, false)
            .map_err(|failure| Failure::new(failure.code, "This server does not host this topic-partition.")),
        (None, false) => topics::find(&context.broker, "", state.topic_id, true)
            .map_err(|failure| Failure::new(failure.code, "This server does not host this topic ID.")),
    }
}

async fn delete(context: &Context, topic: &Topic) -> Result<(), Failure> {
    let broker = &context.broker;
    if !broker.configs().effective.delete_topic_enable {
        // The code came with version 3.
        let code = match context.version {
            ..3 => ErrorCode::INVALID_REQUEST,
            _ => ErrorCode::TOPIC_DELETION_DISABLED,
        };
        return Err(Failure::new(
            code,
            "This cluster does not allow deleting topics (delete.topic.enable=false).",
        ));
    }
    let (store, id) = (Arc::clone(&broker.store), topic.id);
    broker.blocking(move || store.delete_topic(id)).await??;
    broker.sweep_later();
    forget_offsets(broker, topic).await;
    Ok(())
}

/// Removes what groups have committed for the topic, so that a later topic of the same name begins without.
async fn forget_offsets(broker: &Broker, topic: &Topic) {
    let partitions = (0..topic.partitions).filter_map(|partition| i32::try_from(partition).ok()).collect();
    let gone = BTreeMap::from([(topic.name.to_string(), partitions)]);
    if let Err(error) = broker.groups.partitions_deleted(&gone).await {
        // The topic is deleted all the same; these offsets expire like all others.
        warn!(topic = %topic.name, %error, "committed offsets of a deleted topic are left behind");
    }
}
