//! Metadata: the brokers, and of topics the partitions, leaders and leader epochs. KIP-4, 430, 516.

use std::collections::HashSet;
use std::sync::Arc;

use kaas_control::metadata::{Topic, TopicId, is_internal};
use kaas_protocol::messages::metadata::{
    MetadataRequestTopic, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kaas_protocol::{ErrorCode, KString, MetadataRequest, MetadataResponse};

use super::error::Failure;
use super::{Context, operations, topics};

/// Answers with what is asked for; creates topics where the request and the broker's config allow it.
pub async fn handle(context: Context, request: MetadataRequest) -> MetadataResponse {
    let broker = &context.broker;
    // Versions 10 and 11 have ids, but clients may not ask by them yet.
    let by_id = |asked: &MetadataRequestTopic| asked.name.is_none() || !asked.topic_id.is_zero();
    if (10..12).contains(&context.version) && request.topics.iter().flatten().any(by_id) {
        return invalid(&request);
    }
    let mut response = MetadataResponse {
        brokers: vec![this_broker(&context)],
        cluster_id: Some(KString::from(broker.cluster_id().as_str())),
        controller_id: broker.node_id,
        ..MetadataResponse::default()
    };
    response.topics = match &request.topics {
        None => all(&context),
        // Version 0 cannot say null; an empty list means all there.
        Some(asked) if asked.is_empty() && context.version == 0 => all(&context),
        Some(_) => some(&context, &request).await,
    };
    if request.include_topic_authorized_operations {
        let unknown_id = ErrorCode::UNKNOWN_TOPIC_ID;
        for topic in response.topics.iter_mut().filter(|topic| topic.error_code != unknown_id) {
            topic.topic_authorized_operations = operations::TOPIC;
        }
    }
    if request.include_cluster_authorized_operations {
        response.cluster_authorized_operations = operations::CLUSTER;
    }
    response
}

/// The answer to a request that its version may not make: nothing but errors.
fn invalid(request: &MetadataRequest) -> MetadataResponse {
    let topics = request.topics.iter().flatten().map(|asked| {
        failed(
            ErrorCode::INVALID_REQUEST,
            Some(asked.name.clone().unwrap_or_default()),
            topics::topic_id(asked.topic_id),
        )
    });
    MetadataResponse { topics: topics.collect(), ..MetadataResponse::default() }
}

fn this_broker(context: &Context) -> MetadataResponseBroker {
    let (host, port) = context.broker.endpoint(&context.peer);
    let rack = context.broker.configs().effective.rack.as_deref().map(KString::from);
    MetadataResponseBroker { node_id: context.broker.node_id, host: host.as_str().into(), port, rack }
}

fn all(context: &Context) -> Vec<MetadataResponseTopic> {
    context.broker.store.topics().iter().map(|topic| describe(context, topic)).collect()
}

async fn some(context: &Context, request: &MetadataRequest) -> Vec<MetadataResponseTopic> {
    let may_create =
        request.allow_auto_topic_creation && context.broker.configs().effective.auto_create_topics_enable;
    let mut seen: HashSet<(Option<KString>, TopicId)> = HashSet::new();
    let mut answers = Vec::new();
    for asked in request.topics.iter().flatten() {
        let id = topics::topic_id(asked.topic_id);
        if !seen.insert((asked.name.clone(), id)) {
            continue;
        }
        answers.push(if id == TopicId::ZERO {
            one_by_name(context, asked.name.as_ref(), may_create).await
        } else {
            one_by_id(context, id)
        });
    }
    answers
}

fn one_by_id(context: &Context, id: TopicId) -> MetadataResponseTopic {
    match context.broker.store.topics().get_by_id(id) {
        Some(topic) => describe(context, topic),
        None => failed(ErrorCode::UNKNOWN_TOPIC_ID, None, id),
    }
}

async fn one_by_name(context: &Context, name: Option<&KString>, may_create: bool) -> MetadataResponseTopic {
    let Some(name) = name else {
        return failed(ErrorCode::INVALID_REQUEST, Some(KString::new()), TopicId::ZERO);
    };
    let known = context.broker.store.topics().get(name).cloned();
    let found = match known {
        Some(topic) => Ok(topic),
        None if may_create => topics::auto_create(&context.broker, name).await,
        None => Err(match kaas_control::metadata::validate_name(name) {
            Ok(()) => topics::unknown(false),
            Err(_) => Failure::bare(ErrorCode::INVALID_TOPIC_EXCEPTION),
        }),
    };
    match found {
        Ok(topic) => describe(context, &topic),
        Err(failure) => MetadataResponseTopic {
            is_internal: is_internal(name),
            ..failed(failure.code, Some(name.clone()), TopicId::ZERO)
        },
    }
}

fn failed(error_code: ErrorCode, name: Option<KString>, id: TopicId) -> MetadataResponseTopic {
    MetadataResponseTopic {
        error_code,
        name,
        topic_id: topics::wire_id(id),
        ..MetadataResponseTopic::default()
    }
}

fn describe(context: &Context, topic: &Arc<Topic>) -> MetadataResponseTopic {
    let node_id = context.broker.node_id;
    let partitions = (0..topic.partitions).map(|partition| MetadataResponsePartition {
        partition_index: i32::try_from(partition).unwrap_or(i32::MAX),
        leader_id: node_id,
        leader_epoch: context.broker.leader_epoch(topic, partition).to_wire(),
        // The volume is the replica: the leader is the only broker that answers for the partition.
        replica_nodes: vec![node_id],
        isr_nodes: vec![node_id],
        ..MetadataResponsePartition::default()
    });
    MetadataResponseTopic {
        name: Some(KString::from(&*topic.name)),
        topic_id: topics::wire_id(topic.id),
        is_internal: topic.is_internal(),
        partitions: partitions.collect(),
        ..MetadataResponseTopic::default()
    }
}
