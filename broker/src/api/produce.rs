//! Produce: appending record batches. KIP-98, 467 (record errors), 516 (topics by id), 951 (who leads now).
//!
//! Two steps: the first finds the partitions and stages the batches, in the order of the connection's requests;
//! the second waits for what `acks` asks for. Records are never decoded and never copied.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kaas_engine::AppendError;
use kaas_engine::batch::{BatchHeader, Compression};
use kaas_engine::types::Timestamp;
use kaas_engine::{Acks, AppendOptions, AppendTicket, Appended, Partition};
use kaas_protocol::messages::produce::{
    LeaderIdAndEpoch, NodeEndpoint, PartitionProduceData, PartitionProduceResponse, TopicProduceData,
    TopicProduceResponse,
};
use kaas_protocol::{ErrorCode, KString, Message, ProduceRequest, ProduceResponse, Uuid};
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use super::error::{self, Failure};
use super::{Context, registry, topics};
use crate::net::{BoxFuture, Call, Reply};
use crate::server::Broker;

/// First version of a request that may carry Zstandard.
const ZSTD_SINCE: i16 = 7;
/// Offset and length in front of every batch or message.
const LENGTH_END: usize = 12;
/// The shortest message of the oldest format.
const SHORTEST: usize = LENGTH_END + 14;
/// Least time that an acks=1 request waits for the write.
const WRITE_TIMEOUT_MIN: Duration = Duration::from_secs(30);
/// First version that names topics by id.
const IDS_SINCE: i16 = 13;
/// First version whose answer says who leads.
const LEADER_SINCE: i16 = 10;

/// A partition of a request: appended, or refused.
struct Staged {
    index: i32,
    outcome: Result<AppendTicket, Failure>,
}

struct StagedTopic {
    name: KString,
    id: Uuid,
    partitions: Vec<Staged>,
}

/// Starts a request: staged in order, answered when it is due.
pub fn start(context: Context, correlation_id: i32, body: Bytes) -> Call {
    match ProduceRequest::decode(context.version, body.clone()) {
        Ok(request) => Call::Staged(Box::pin(stage(context, correlation_id, request, body.len()))),
        Err(error) => Call::Done(Reply::Close(format!("malformed request: {error}"))),
    }
}

/// Has the partitions of a request opened that waits for its turn, so that many partitions that are used for the
/// first time by one client are not opened one after the other.
pub fn foresee(broker: &Broker, version: i16, body: Bytes) {
    let Ok(request) = ProduceRequest::decode(version, body) else { return };
    for asked in &request.topic_data {
        let Ok(topic) = topics::find(broker, &asked.name, asked.topic_id, version >= IDS_SINCE) else {
            continue;
        };
        for data in &asked.partition_data {
            if let Ok(partition) = topics::partition(&topic, data.index) {
                broker.partitions.prepare(&topic, partition);
            }
        }
    }
}

async fn stage(
    context: Context,
    correlation_id: i32,
    request: ProduceRequest,
    bytes: usize,
) -> BoxFuture<Reply> {
    let timeout = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
    // The timeout bounds the wait for replicas, of which acks=1 has none in Kafka; here it waits for the write.
    let timeout = if request.acks == 1 { timeout.max(WRITE_TIMEOUT_MIN) } else { timeout };
    let deadline = Instant::now() + timeout;
    let acks = match request.acks {
        0 => Some(Acks::None),
        1 => Some(Acks::Written),
        -1 => Some(Acks::Committed),
        _ => None,
    };
    let options = acks.map(|acks| AppendOptions { acks, frame_bytes: bytes, ..AppendOptions::default() });
    let mut staged = Vec::with_capacity(request.topic_data.len());
    for topic in request.topic_data {
        staged.push(stage_topic(&context, topic, options, deadline).await);
    }
    if request.acks == 0 {
        return Box::pin(std::future::ready(unanswered(&context, &staged)));
    }
    Box::pin(async move {
        let response = wait(&context, staged, deadline).await;
        registry::reply(correlation_id, context.version, &response)
    })
}

fn refuse_topic(topic: TopicProduceData, failure: &Failure) -> StagedTopic {
    let refused = |data: PartitionProduceData| Staged { index: data.index, outcome: Err(failure.clone()) };
    StagedTopic {
        name: topic.name,
        id: topic.topic_id,
        partitions: topic.partition_data.into_iter().map(refused).collect(),
    }
}

async fn stage_topic(
    context: &Context,
    asked: TopicProduceData,
    options: Option<AppendOptions>,
    deadline: Instant,
) -> StagedTopic {
    let topic = match topics::find(&context.broker, &asked.name, asked.topic_id, context.version >= IDS_SINCE)
    {
        Ok(topic) => topic,
        Err(failure) => return refuse_topic(asked, &failure),
    };
    context.prepare(&topic, asked.partition_data.iter().map(|data| data.index));
    let mut partitions = Vec::with_capacity(asked.partition_data.len());
    for data in asked.partition_data {
        let index = data.index;
        let outcome = match context.open(&topic, index).await {
            Ok(partition) => match (checked(context, data), options) {
                (Ok(records), Some(options)) => append(&partition, &records, options, deadline).await,
                (Ok(_), None) => Err(Failure::bare(ErrorCode::INVALID_REQUIRED_ACKS)),
                (Err(failure), _) => Err(failure),
            },
            Err(failure) => Err(failure),
        };
        partitions.push(Staged { index, outcome });
    }
    StagedTopic { name: asked.name, id: asked.topic_id, partitions }
}

/// The records, if the version of the request allows them. Everything else is checked by the engine.
fn checked(context: &Context, data: PartitionProduceData) -> Result<Bytes, Failure> {
    let version = context.version;
    let records = data.records.unwrap_or_default();
    check_framing(version, &records)?;
    let header = BatchHeader::parse(&records).map_err(|e| error::batch(&e))?;
    if version < ZSTD_SINCE && header.compression() == Ok(Compression::Zstd) {
        let words =
            format!("Produce requests with version {version} are not allowed to use ZStandard compression");
        return Err(Failure::new(ErrorCode::UNSUPPORTED_COMPRESSION_TYPE, words));
    }
    if header.is_transactional() {
        // No transaction can be open: nobody could begin one.
        return Err(Failure::new(
            ErrorCode::INVALID_TXN_STATE,
            "Transactions are not supported by this broker.",
        ));
    }
    Ok(records)
}

/// Refuses anything but one whole batch of format 2, with Kafka's codes: these are looked at before what the batch
/// holds. Bytes behind the batch that are no batch are left to the engine.
fn check_framing(version: i16, records: &[u8]) -> Result<(), Failure> {
    let refused = |words: &str| {
        let words = format!("Produce requests with version {version} {words}");
        Failure::new(ErrorCode::INVALID_RECORD, words)
    };
    let Some((magic, length)) = entry(records) else {
        return Err(refused("must have at least one record batch per partition"));
    };
    if matches!(magic, 0 | 1) {
        return Err(refused("are only allowed to contain record batches with magic version 2"));
    }
    // A shorter one is damaged, and says nothing about what is behind it.
    if length >= SHORTEST && records.get(length..).is_some_and(|rest| entry(rest).is_some()) {
        return Err(refused("are only allowed to contain exactly one record batch per partition"));
    }
    Ok(())
}

/// Format and size of the batch, or of the message of an older format, that `bytes` begin with, if all of it is there.
/// What cannot be right about its length is found later.
fn entry(bytes: &[u8]) -> Option<(u8, usize)> {
    let magic = *bytes.get(16)?;
    let length = bytes.get(8..LENGTH_END)?.first_chunk::<4>()?;
    let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0).saturating_add(LENGTH_END);
    (length <= bytes.len()).then_some((magic, length))
}

async fn append(
    partition: &Arc<Partition>,
    records: &Bytes,
    options: AppendOptions,
    deadline: Instant,
) -> Result<AppendTicket, Failure> {
    loop {
        match partition.append(records, options) {
            Ok(ticket) => return Ok(ticket),
            Err(AppendError::Busy { .. }) => {
                if timeout_at(deadline, partition.staging_space()).await.is_err() {
                    let words = "the volume does not keep up: too many bytes wait to be written";
                    return Err(Failure::new(ErrorCode::REQUEST_TIMED_OUT, words));
                }
            }
            Err(error) => return Err(error::append(&error)),
        }
    }
}

/// What becomes of a request that wants no answer: if anything was refused, closing is all that can tell.
fn unanswered(context: &Context, staged: &[StagedTopic]) -> Reply {
    let refused = staged.iter().flat_map(|topic| &topic.partitions).find_map(|p| p.outcome.as_ref().err());
    match refused {
        Some(failure) => Reply::Close(format!(
            "a produce request with acks=0 (client '{}') was refused: {}",
            context.client_id(),
            failure.code.name().unwrap_or("unknown error"),
        )),
        None => Reply::Silent,
    }
}

async fn wait(context: &Context, staged: Vec<StagedTopic>, deadline: Instant) -> ProduceResponse {
    let mut response = ProduceResponse::default();
    for StagedTopic { name, id, partitions: staged } in staged {
        let mut partitions = Vec::with_capacity(staged.len());
        for Staged { index, outcome } in staged {
            let outcome = match outcome {
                Ok(ticket) => outcome_of(ticket, deadline).await,
                Err(failure) => Err(failure),
            };
            partitions.push(match outcome {
                Ok(appended) => acknowledged(index, &appended),
                Err(failure) => refused(context, (&name, id), index, &failure, &mut response),
            });
        }
        response.responses.push(TopicProduceResponse { name, topic_id: id, partition_responses: partitions });
    }
    response
}

async fn outcome_of(ticket: AppendTicket, deadline: Instant) -> Result<Appended, Failure> {
    match timeout_at(deadline, ticket).await {
        Ok(Ok(outcome)) => outcome.map_err(|e| error::append(&e)),
        // The engine gave the append up: whether it survives is not known.
        Ok(Err(_)) => Err(Failure::bare(ErrorCode::NOT_LEADER_OR_FOLLOWER)),
        Err(_) => Err(Failure::bare(ErrorCode::REQUEST_TIMED_OUT)),
    }
}

fn acknowledged(index: i32, appended: &Appended) -> PartitionProduceResponse {
    PartitionProduceResponse {
        index,
        base_offset: appended.base_offset.0,
        log_append_time_ms: appended.log_append_time.unwrap_or(Timestamp::NONE).0,
        log_start_offset: appended.log_start.0,
        ..PartitionProduceResponse::default()
    }
}

fn refused(
    context: &Context,
    (name, id): (&KString, Uuid),
    index: i32,
    failure: &Failure,
    response: &mut ProduceResponse,
) -> PartitionProduceResponse {
    debug!(
        peer = %context.peer, topic = %name.as_str(), partition = index,
        code = failure.code.name().unwrap_or_default(), message = failure.message.as_deref().unwrap_or_default(),
        "produce refused"
    );
    let mut refused = PartitionProduceResponse {
        index,
        error_code: failure.code,
        base_offset: -1,
        error_message: failure.text(),
        ..PartitionProduceResponse::default()
    };
    if failure.code == ErrorCode::NOT_LEADER_OR_FOLLOWER && context.version >= LEADER_SINCE {
        let broker = &context.broker;
        let by_id = context.version >= IDS_SINCE;
        let epoch = topics::find(broker, name, id, by_id)
            .and_then(|topic| Ok(broker.leader_epoch(&topic, topics::partition(&topic, index)?)));
        if let Ok(epoch) = epoch {
            refused.current_leader =
                LeaderIdAndEpoch { leader_id: broker.node_id, leader_epoch: epoch.to_wire() };
            if response.node_endpoints.is_empty() {
                let (host, port) = broker.endpoint(&context.peer);
                let (node_id, host) = (broker.node_id, host.as_str().into());
                response.node_endpoints.push(NodeEndpoint { node_id, host, port, rack: None });
            }
        }
    }
    refused
}
