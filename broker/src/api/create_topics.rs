//! CreateTopics. KIP-4, 464 (broker defaults), 525 (configs in the answer), 516 (ids in the answer).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kaas_control::ControlError;
use kaas_control::metadata::{ConfigMap, NewTopic, Topic};
use kaas_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfigs, CreatableTopicResult};
use kaas_protocol::{CreateTopicsRequest, CreateTopicsResponse, ErrorCode, KString};

use super::error::{self, Failure};
use super::{Context, topics};
use crate::config::{DescribeOptions, TopicConfigs, describe_topic};

/// Most partitions that one request may create, as in Kafka.
const REQUEST_PARTITIONS_MAX: u64 = 10_000;

/// Creates what can be created; each topic succeeds or fails by itself.
pub async fn handle(context: Context, request: CreateTopicsRequest) -> CreateTopicsResponse {
    let mut named: HashMap<KString, usize> = HashMap::new();
    for topic in &request.topics {
        *named.entry(topic.name.clone()).or_default() += 1;
    }
    let too_many = is_too_large(&context, &request);
    let mut answered = HashSet::new();
    let mut response = CreateTopicsResponse::default();
    for topic in &request.topics {
        if !answered.insert(topic.name.clone()) {
            continue;
        }
        let outcome = match named.get(&topic.name) {
            _ if too_many => Err(Failure::new(
                ErrorCode::POLICY_VIOLATION,
                "Excessively large number of partitions per request.",
            )),
            Some(1) => create(&context, topic, request.validate_only).await,
            _ => Err(Failure::invalid_request("Duplicate topic name.")),
        };
        response.topics.push(outcome.unwrap_or_else(|failure| CreatableTopicResult {
            name: topic.name.clone(),
            error_code: failure.code,
            error_message: failure.text(),
            // Without a topic there are no configs to tell of.
            configs: Some(Vec::new()),
            ..CreatableTopicResult::default()
        }));
    }
    response
}

/// Whether all topics of the request together have more partitions than one request may create.
fn is_too_large(context: &Context, request: &CreateTopicsRequest) -> bool {
    let default = context.broker.configs().effective.num_partitions;
    let partitions =
        request.topics.iter().map(|topic| match (topic.assignments.len(), topic.num_partitions) {
            (0, -1) => u64::from(default),
            (0, number) => u64::try_from(number).unwrap_or(0),
            (assigned, _) => u64::try_from(assigned).unwrap_or(u64::MAX),
        });
    partitions.fold(0, u64::saturating_add) > REQUEST_PARTITIONS_MAX
}

async fn create(
    context: &Context,
    asked: &CreatableTopic,
    validate_only: bool,
) -> Result<CreatableTopicResult, Failure> {
    let broker = &context.broker;
    let configs = broker.configs();
    if let Some(existing) = broker.store.topics().get(&asked.name) {
        // Before anything else about it, as in Kafka.
        return Err(ControlError::TopicExists { name: existing.name.to_string() }.into());
    }
    let topic = NewTopic {
        name: asked.name.to_owned_string(),
        partitions: partitions(context, asked, configs.effective.num_partitions)?,
        config: overrides(asked)?,
    };
    TopicConfigs::validate(&topic.config, &configs.layers).map_err(|e| error::topic_config(&e))?;
    let store = Arc::clone(&broker.store);
    let (created, topic) = if validate_only {
        store.check_new_topic(&topic)?;
        (None, topic)
    } else {
        topics::room_for_partitions(broker)?;
        let create = move || (store.create_topic(&topic), topic);
        let (created, topic) = broker.blocking(create).await?;
        (Some(created?), topic)
    };
    describe(context, &topic, created.as_deref())
}

/// How many partitions, from the number or the assignment.
fn partitions(context: &Context, asked: &CreatableTopic, default: u32) -> Result<u32, Failure> {
    if !asked.assignments.is_empty() {
        return assigned(context, asked);
    }
    if asked.replication_factor < -1 || asked.replication_factor == 0 {
        return Err(Failure::new(
            ErrorCode::INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ));
    }
    match asked.num_partitions {
        -1 => Ok(default),
        number => u32::try_from(number).ok().filter(|number| *number > 0).ok_or_else(|| {
            Failure::new(
                ErrorCode::INVALID_PARTITIONS,
                "Number of partitions was set to an invalid non-positive value.",
            )
        }),
    }
}

fn assigned(context: &Context, asked: &CreatableTopic) -> Result<u32, Failure> {
    let manual = "A manual partition assignment was specified, but";
    if asked.num_partitions != -1 {
        return Err(Failure::invalid_request(format!("{manual} numPartitions was not set to -1.")));
    }
    if asked.replication_factor != -1 {
        return Err(Failure::invalid_request(format!("{manual} replication factor was not set to -1.")));
    }
    let invalid = |words: String| Failure::new(ErrorCode::INVALID_REPLICA_ASSIGNMENT, words);
    let mut indexes = HashSet::new();
    for assignment in &asked.assignments {
        if !indexes.insert(assignment.partition_index) {
            let index = assignment.partition_index;
            return Err(invalid(format!(
                "Found multiple manual partition assignments for partition {index}"
            )));
        }
        check_replicas(&assignment.broker_ids, context.broker.node_id)?;
    }
    let count = i32::try_from(indexes.len()).unwrap_or(i32::MAX);
    if (0..count).any(|index| !indexes.contains(&index)) {
        return Err(invalid("partitions should be a consecutive 0-based integer sequence".to_owned()));
    }
    u32::try_from(count).map_err(|_| invalid("too many partitions".to_owned()))
}

/// Checks the replicas that a client asks for; the only broker there is has to be among them.
pub fn check_replicas(broker_ids: &[i32], node_id: i32) -> Result<(), Failure> {
    let invalid = |words: String| Err(Failure::new(ErrorCode::INVALID_REPLICA_ASSIGNMENT, words));
    let mut seen = HashSet::new();
    for id in broker_ids {
        if !seen.insert(id) {
            return invalid(format!(
                "The manual partition assignment includes the broker {id} more than once."
            ));
        }
        if *id != node_id {
            return invalid(format!(
                "The manual partition assignment includes broker {id}, but no such broker is registered."
            ));
        }
    }
    if broker_ids.is_empty() {
        return invalid("The manual partition assignment includes an empty replica list.".to_owned());
    }
    Ok(())
}

fn overrides(asked: &CreatableTopic) -> Result<ConfigMap, Failure> {
    let mut overrides = ConfigMap::new();
    for config in &asked.configs {
        let Some(value) = &config.value else {
            let words = format!("Null value not supported for topic configs: {}", config.name.as_str());
            return Err(Failure::new(ErrorCode::INVALID_CONFIG, words));
        };
        overrides.insert(config.name.to_owned_string(), value.to_owned_string());
    }
    Ok(overrides)
}

fn describe(
    context: &Context,
    topic: &NewTopic,
    created: Option<&Topic>,
) -> Result<CreatableTopicResult, Failure> {
    let layers = &context.broker.configs().layers;
    let entries = describe_topic(&topic.config, layers, DescribeOptions::default());
    let entries = entries.map_err(|e| error::topic_config(&e))?;
    let configs = entries.into_iter().map(|entry| CreatableTopicConfigs {
        name: KString::from(entry.name),
        value: entry.value.as_deref().map(KString::from),
        read_only: entry.read_only,
        config_source: entry.source.code(),
        is_sensitive: entry.sensitive,
    });
    Ok(CreatableTopicResult {
        name: topic.name.as_str().into(),
        topic_id: created.map(|topic| topics::wire_id(topic.id)).unwrap_or_default(),
        num_partitions: i32::try_from(topic.partitions).unwrap_or(i32::MAX),
        replication_factor: 1,
        configs: Some(configs.collect()),
        ..CreatableTopicResult::default()
    })
}
