//! DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources. KIP-133, 226, 339, 524, 569, 1142.
//!
//! Resources are topics and brokers; the broker with the empty name stands for all brokers.

use std::sync::Arc;

use kaas_control::ControlError;
use kaas_control::metadata::{BrokerScope, ConfigMap};
use kaas_protocol::messages::alter_configs::{self, AlterConfigsResourceResponse as Altered};
use kaas_protocol::messages::describe_configs::{
    DescribeConfigsResource, DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use kaas_protocol::messages::incremental_alter_configs as incremental;
use kaas_protocol::messages::list_config_resources::ConfigResource;
use kaas_protocol::{
    AlterConfigsRequest, AlterConfigsResponse, DescribeConfigsRequest, DescribeConfigsResponse, ErrorCode,
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, KString, ListConfigResourcesRequest,
    ListConfigResourcesResponse,
};

use super::error::{self, Failure};
use super::{Context, topics};
use crate::config::alter::{self, Alteration, Operation};
use crate::config::{
    ConfigEntry, ConfigError, DescribeOptions, TopicConfigs, broker_definition, describe_all_brokers,
    describe_broker, describe_topic, topic_definition,
};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
/// Kinds of resources that Kafka has and kaas has none of: client metrics and groups.
const CLIENT_METRICS: i8 = 16;
const GROUP: i8 = 32;

/// What a config belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Resource {
    Topic(String),
    Broker(BrokerScope),
}

impl Resource {
    fn parse(context: &Context, kind: i8, name: &str) -> Result<Self, Failure> {
        match kind {
            TOPIC => match kaas_control::metadata::validate_name(name) {
                Ok(()) => Ok(Self::Topic(name.to_owned())),
                Err(reason) => Err(Failure::new(ErrorCode::INVALID_TOPIC_EXCEPTION, reason.to_string())),
            },
            BROKER if name.is_empty() => Ok(Self::Broker(BrokerScope::All)),
            BROKER if name.parse() == Ok(context.broker.node_id) => {
                Ok(Self::Broker(BrokerScope::Broker(context.broker.node_id)))
            }
            BROKER => Err(Failure::invalid_request(format!(
                "Unexpected broker id, expected {} or empty string, but received {name}",
                context.broker.node_id
            ))),
            other => Err(Failure::invalid_request(format!("Unsupported resource type {other}"))),
        }
    }
}

/// Describes configs, with their sources, synonyms and documentation where asked for.
pub async fn describe(context: Context, request: DescribeConfigsRequest) -> DescribeConfigsResponse {
    let results = request.resources.iter().map(|resource| {
        let described = describe_one(&context, resource, &request);
        let mut result = DescribeConfigsResult {
            resource_type: resource.resource_type,
            resource_name: resource.resource_name.clone(),
            ..DescribeConfigsResult::default()
        };
        match described {
            Ok(entries) => {
                result.configs = entries.into_iter().map(wire_entry).collect();
                // Empty, not null, as in Kafka.
                result.error_message = Some(KString::new());
            }
            Err(failure) => {
                result.error_code = failure.code;
                result.error_message = Some(failure.text().unwrap_or_default());
            }
        }
        result
    });
    DescribeConfigsResponse { results: results.collect(), ..DescribeConfigsResponse::default() }
}

fn describe_one(
    context: &Context,
    resource: &DescribeConfigsResource,
    request: &DescribeConfigsRequest,
) -> Result<Vec<ConfigEntry>, Failure> {
    let names: Option<Vec<&str>> =
        resource.configuration_keys.as_ref().map(|keys| keys.iter().map(KString::as_str).collect());
    let options = DescribeOptions {
        names: names.as_deref(),
        synonyms: request.include_synonyms,
        documentation: request.include_documentation,
    };
    let layers = &context.broker.configs().layers;
    match Resource::parse(context, resource.resource_type, &resource.resource_name)? {
        Resource::Topic(name) => {
            let topics = context.broker.store.topics();
            let topic = topics.get(&name).ok_or_else(|| topics::unknown(false))?;
            describe_topic(&topic.config, layers, options).map_err(|e| error::topic_config(&e))
        }
        Resource::Broker(BrokerScope::All) => {
            describe_all_brokers(layers, options).map_err(|e| error::broker_config(&e))
        }
        Resource::Broker(BrokerScope::Broker(_)) => {
            describe_broker(layers, options).map_err(|e| error::broker_config(&e))
        }
    }
}

fn wire_entry(entry: ConfigEntry) -> DescribeConfigsResourceResult {
    let synonyms = entry.synonyms.into_iter().map(|synonym| DescribeConfigsSynonym {
        name: synonym.name.into(),
        value: synonym.value.as_deref().map(KString::from),
        source: synonym.source.code(),
    });
    DescribeConfigsResourceResult {
        name: entry.name.into(),
        value: entry.value.as_deref().map(KString::from),
        read_only: entry.read_only,
        config_source: entry.source.code(),
        is_sensitive: entry.sensitive,
        synonyms: synonyms.collect(),
        config_type: entry.kind.code(),
        documentation: entry.documentation.as_deref().map(KString::from),
    }
}

/// Replaces all configs of each resource. Deprecated by Kafka, still sent by older tools.
pub async fn alter(context: Context, request: AlterConfigsRequest) -> AlterConfigsResponse {
    let mut response = AlterConfigsResponse::default();
    for (index, resource) in request.resources.iter().enumerate() {
        let kind = resource.resource_type;
        let repeated = is_repeated(&request.resources, index, |r| (r.resource_type, r.resource_name.clone()));
        let configs = resource.configs.clone();
        let change = move |_: &ConfigMap| replaced(&configs);
        let outcome = match repeated {
            true => Err(duplicate()),
            false => change_one(&context, kind, &resource.resource_name, request.validate_only, change).await,
        };
        let mut altered = Altered {
            resource_type: kind,
            resource_name: resource.resource_name.clone(),
            ..Altered::default()
        };
        if let Err(failure) = outcome {
            altered.error_code = failure.code;
            altered.error_message = failure.text();
        }
        response.responses.push(altered);
    }
    response
}

fn replaced(configs: &[alter_configs::AlterableConfig]) -> Result<ConfigMap, ConfigError> {
    alter::replacement(configs.iter().map(|config| (config.name.as_str(), config.value.as_deref())))
}

/// Sets, deletes, appends to and subtracts from single configs of each resource.
pub async fn alter_incrementally(
    context: Context,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let mut response = IncrementalAlterConfigsResponse::default();
    for (index, resource) in request.resources.iter().enumerate() {
        let kind = resource.resource_type;
        let repeated = is_repeated(&request.resources, index, |r| (r.resource_type, r.resource_name.clone()));
        let configs = resource.configs.clone();
        let change = move |current: &ConfigMap| incremented(current, &configs, kind);
        let outcome = match repeated {
            true => Err(duplicate()),
            false => change_one(&context, kind, &resource.resource_name, request.validate_only, change).await,
        };
        let mut altered = incremental::AlterConfigsResourceResponse {
            resource_type: kind,
            resource_name: resource.resource_name.clone(),
            ..incremental::AlterConfigsResourceResponse::default()
        };
        if let Err(failure) = outcome {
            altered.error_code = failure.code;
            altered.error_message = failure.text();
        }
        response.responses.push(altered);
    }
    response
}

fn incremented(
    current: &ConfigMap,
    configs: &[incremental::AlterableConfig],
    kind: i8,
) -> Result<ConfigMap, ConfigError> {
    let mut changes = Vec::with_capacity(configs.len());
    for config in configs {
        let operation = Operation::from_code(config.config_operation)?;
        changes.push(Alteration { name: &config.name, operation, value: config.value.as_deref() });
    }
    let definition = if kind == TOPIC { topic_definition } else { broker_definition };
    alter::incremental(current, &changes, definition)
}

fn is_repeated<T, K: PartialEq>(all: &[T], index: usize, key: impl Fn(&T) -> K) -> bool {
    let this = all.get(index).map(&key);
    all.iter().enumerate().any(|(other, resource)| other != index && Some(key(resource)) == this)
}

fn duplicate() -> Failure {
    Failure::invalid_request("Each resource must appear at most once.")
}

/// Applies `change` to the configs of one resource, checks the outcome, and stores it unless only asked to check.
async fn change_one(
    context: &Context,
    kind: i8,
    name: &str,
    validate_only: bool,
    change: impl Fn(&ConfigMap) -> Result<ConfigMap, ConfigError> + Send + 'static,
) -> Result<(), Failure> {
    if kind == TOPIC && name.is_empty() {
        return Err(Failure::invalid_request("Default topic resources are not allowed."));
    }
    let resource = Resource::parse(context, kind, name)?;
    let broker = Arc::clone(&context.broker);
    let store = Arc::clone(&broker.store);
    let checking = Arc::clone(&broker);
    let checked_for = resource.clone();
    let checked = move |current: &ConfigMap| -> Result<ConfigMap, Failure> {
        check(&checking, &checked_for, change(current).map_err(|e| refused(&checked_for, &e))?)
    };
    if validate_only {
        let current = match &resource {
            Resource::Topic(name) => {
                let topics = store.topics();
                let unknown = || ControlError::UnknownTopic { name: name.clone() };
                ConfigMap::clone(&topics.get(name).ok_or_else(unknown)?.config)
            }
            Resource::Broker(scope) => store.broker_overrides().scope(*scope),
        };
        return checked(&current).map(|_| ());
    }
    let outcome = broker.blocking(move || {
        let mut refusal = None;
        let mut apply = |current: &ConfigMap| match checked(current) {
            Ok(next) => Some(next),
            Err(failure) => {
                refusal = Some(failure);
                None
            }
        };
        let stored = match &resource {
            Resource::Topic(name) => store.alter_topic_config(name, &mut apply).map(|_| ()),
            Resource::Broker(scope) => store.alter_broker_config(*scope, &mut apply).map(|_| ()),
        };
        (stored, refusal)
    });
    let (stored, refusal) = outcome.await?;
    stored?;
    refusal.map_or(Ok(()), Err)?;
    context.broker.apply_configs();
    Ok(())
}

/// The next configs of a resource, if they are valid together with everything else.
fn check(broker: &crate::server::Broker, resource: &Resource, next: ConfigMap) -> Result<ConfigMap, Failure> {
    let layers = &broker.configs().layers;
    let verdict = match resource {
        Resource::Topic(_) => TopicConfigs::validate(&next, layers).map(|_| ()),
        Resource::Broker(BrokerScope::All) => {
            layers.with_overrides(next.clone(), layers.own().clone()).map(|_| ())
        }
        Resource::Broker(BrokerScope::Broker(_)) => {
            layers.with_overrides(layers.all().clone(), next.clone()).map(|_| ())
        }
    };
    verdict.map(|()| next).map_err(|e| refused(resource, &e))
}

fn refused(resource: &Resource, error: &ConfigError) -> Failure {
    match resource {
        Resource::Topic(_) => error::topic_config(error),
        Resource::Broker(_) => error::broker_config(error),
    }
}

/// Names of the resources that have configs.
pub async fn list(context: Context, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse {
    let mut response = ListConfigResourcesResponse::default();
    // Version 0 lists client metrics only, of which there are none.
    let kinds = match (context.version, request.resource_types.is_empty()) {
        (0, _) => vec![CLIENT_METRICS],
        (_, true) => vec![TOPIC, BROKER],
        (_, false) => request.resource_types,
    };
    if kinds.iter().any(|kind| !matches!(*kind, TOPIC | BROKER | CLIENT_METRICS | GROUP)) {
        response.error_code = ErrorCode::UNSUPPORTED_VERSION;
        return response;
    }
    if kinds.contains(&TOPIC) {
        let topics = context.broker.store.topics();
        let names = topics.iter().map(|topic| resource(KString::from(&*topic.name), TOPIC));
        response.config_resources.extend(names);
    }
    if kinds.contains(&BROKER) {
        let id = context.broker.node_id.to_string();
        response.config_resources.push(resource(id.as_str().into(), BROKER));
    }
    response
}

fn resource(resource_name: KString, resource_type: i8) -> ConfigResource {
    ConfigResource { resource_name, resource_type }
}
