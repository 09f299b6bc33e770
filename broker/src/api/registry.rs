//! Which requests exist, in which versions. The one table that both dispatches and answers ApiVersions: what is
//! not in it is neither advertised nor served.
//!
//! An entry is a line in [`APIS`]: the API, the versions, and how to start it. Handlers are
//! `async fn handle(Context, XRequest) -> XResponse`.

use std::future::Future;

use bytes::Bytes;
use kaas_protocol::{ApiKey, EncodeError, Message, Request, Response, Segments, VersionRange};
use tracing::error;

use super::{
    Context, api_versions, configs, create_partitions, create_topics, delete_groups, delete_records,
    delete_topics, describe_cluster, describe_groups, describe_log_dirs, describe_topic_partitions, fetch,
    find_coordinator, heartbeat, init_producer_id, join_group, leave_group, list_groups, list_offsets,
    metadata, offset_commit, offset_delete, offset_fetch, offset_for_leader_epoch, produce, sync_group,
};
use crate::net::{Call, Reply};

/// One API.
pub struct Api {
    /// Which.
    pub key: ApiKey,
    /// Versions that are served, both ends included.
    pub versions: VersionRange,
    /// Lowest version that is advertised, where that differs (Produce).
    pub advertised_min: i16,
    /// Starts a request: correlation id and body.
    pub start: fn(Context, i32, Bytes) -> Call,
}

impl Api {
    const fn new(key: ApiKey, min: i16, max: i16, start: fn(Context, i32, Bytes) -> Call) -> Self {
        Self { key, versions: VersionRange { min, max }, advertised_min: min, start }
    }
}

/// Every API that is served.
pub const APIS: &[Api] = &[
    Api { advertised_min: 0, ..Api::new(ApiKey::Produce, 3, 13, produce::start) },
    Api::new(ApiKey::Fetch, 4, 18, |c, id, body| droppable(c, id, body, fetch::handle)),
    Api::new(ApiKey::ListOffsets, 1, 10, |c, id, body| alone(c, id, body, list_offsets::handle)),
    Api::new(ApiKey::Metadata, 0, 13, |c, id, body| alone(c, id, body, metadata::handle)),
    Api::new(ApiKey::FindCoordinator, 0, 6, |c, id, body| alone(c, id, body, find_coordinator::handle)),
    Api::new(ApiKey::OffsetCommit, 2, 10, |c, id, body| alone(c, id, body, offset_commit::handle)),
    Api::new(ApiKey::OffsetFetch, 1, 10, |c, id, body| alone(c, id, body, offset_fetch::handle)),
    Api::new(ApiKey::JoinGroup, 0, 9, |c, id, body| droppable(c, id, body, join_group::handle)),
    Api::new(ApiKey::Heartbeat, 0, 4, |c, id, body| alone(c, id, body, heartbeat::handle)),
    Api::new(ApiKey::LeaveGroup, 0, 5, |c, id, body| alone(c, id, body, leave_group::handle)),
    Api::new(ApiKey::SyncGroup, 0, 5, |c, id, body| droppable(c, id, body, sync_group::handle)),
    Api::new(ApiKey::DescribeGroups, 0, 6, |c, id, body| alone(c, id, body, describe_groups::handle)),
    Api::new(ApiKey::ListGroups, 0, 5, |c, id, body| alone(c, id, body, list_groups::handle)),
    Api::new(ApiKey::DeleteGroups, 0, 2, |c, id, body| alone(c, id, body, delete_groups::handle)),
    Api::new(ApiKey::OffsetDelete, 0, 0, |c, id, body| alone(c, id, body, offset_delete::handle)),
    Api::new(ApiKey::ApiVersions, 0, 4, |c, id, body| alone(c, id, body, api_versions::handle)),
    Api::new(ApiKey::CreateTopics, 2, 7, |c, id, body| alone(c, id, body, create_topics::handle)),
    Api::new(ApiKey::DeleteTopics, 1, 6, |c, id, body| alone(c, id, body, delete_topics::handle)),
    Api::new(ApiKey::DeleteRecords, 0, 2, |c, id, body| alone(c, id, body, delete_records::handle)),
    Api::new(ApiKey::InitProducerId, 0, 5, |c, id, body| alone(c, id, body, init_producer_id::handle)),
    Api::new(ApiKey::OffsetForLeaderEpoch, 2, 4, |c, id, body| {
        alone(c, id, body, offset_for_leader_epoch::handle)
    }),
    Api::new(ApiKey::DescribeConfigs, 1, 4, |c, id, body| alone(c, id, body, configs::describe)),
    Api::new(ApiKey::AlterConfigs, 0, 2, |c, id, body| alone(c, id, body, configs::alter)),
    Api::new(ApiKey::DescribeLogDirs, 1, 4, |c, id, body| alone(c, id, body, describe_log_dirs::handle)),
    Api::new(ApiKey::CreatePartitions, 0, 3, |c, id, body| alone(c, id, body, create_partitions::handle)),
    Api::new(ApiKey::IncrementalAlterConfigs, 0, 1, |c, id, body| {
        alone(c, id, body, configs::alter_incrementally)
    }),
    Api::new(ApiKey::DescribeCluster, 0, 2, |c, id, body| alone(c, id, body, describe_cluster::handle)),
    Api::new(ApiKey::ListConfigResources, 0, 1, |c, id, body| alone(c, id, body, configs::list)),
    Api::new(ApiKey::DescribeTopicPartitions, 0, 0, |c, id, body| {
        alone(c, id, body, describe_topic_partitions::handle)
    }),
];

/// The API with this number.
pub fn find(api_key: i16) -> Option<&'static Api> {
    APIS.iter().find(|api| api.key.code() == api_key)
}

/// A request that runs by itself and is answered in any case.
fn alone<Q, F>(context: Context, id: i32, body: Bytes, handle: fn(Context, Q) -> F) -> Call
where
    Q: Request + Send + 'static,
    F: Future<Output = Q::Response> + Send + 'static,
    Q::Response: Send,
{
    start(context, id, body, handle, false)
}

/// As [`alone`]; only the answer is lost if it is dropped when the client is gone.
fn droppable<Q, F>(context: Context, id: i32, body: Bytes, handle: fn(Context, Q) -> F) -> Call
where
    Q: Request + Send + 'static,
    F: Future<Output = Q::Response> + Send + 'static,
    Q::Response: Send,
{
    start(context, id, body, handle, true)
}

fn start<Q, F>(context: Context, id: i32, body: Bytes, handle: fn(Context, Q) -> F, droppable: bool) -> Call
where
    Q: Request + Send + 'static,
    F: Future<Output = Q::Response> + Send + 'static,
    Q::Response: Send,
{
    let version = context.version;
    // Bytes behind a request are not looked at, as in Kafka.
    match Q::decode_prefix(version, body) {
        Ok((request, _)) => {
            let answer = handle(context, request);
            Call::Alone { reply: Box::pin(async move { reply(id, version, &answer.await) }), droppable }
        }
        Err(error) => Call::Done(Reply::Close(format!("malformed request: {error}"))),
    }
}

/// The answer as a frame.
pub fn reply<R: Response>(correlation_id: i32, version: i16, response: &R) -> Reply {
    let mut frame = Segments::new();
    match kaas_protocol::encode_response_frame(&mut frame, correlation_id, version, response) {
        Ok(_) => Reply::Send(frame),
        Err(error) => cannot_encode::<R>(&error),
    }
}

fn cannot_encode<R: Message>(error: &EncodeError) -> Reply {
    // Our own mistake: the answer holds what its version cannot say.
    error!(%error, message = R::NAME, "cannot encode a response");
    Reply::Close(format!("cannot encode a response: {error}"))
}
