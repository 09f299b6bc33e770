//! Requests and responses of the group state machine, in Kafka's words, without any wire encoding.

use std::sync::Arc;

use bytes::Bytes;

use super::error::GroupError;

/// Ties a deferred answer to the request that waits for it. Chosen by the driver, unique within a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// A protocol (assignor) a member offers, with its opaque subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protocol {
    pub name: String,
    pub metadata: Bytes,
}

/// JoinGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinRequest {
    pub group_id: String,
    /// Empty for a member that has no id yet.
    pub member_id: String,
    pub group_instance_id: Option<String>,
    pub client_id: String,
    pub client_host: String,
    pub session_timeout_ms: i32,
    pub rebalance_timeout_ms: i32,
    pub protocol_type: String,
    /// In the member's order of preference, without duplicate names.
    pub protocols: Vec<Protocol>,
    /// KIP-800.
    pub reason: Option<String>,
    /// KIP-394: the client can be told to come back with a member id (version 4 and above).
    pub requires_known_member_id: bool,
    /// KIP-814: the client understands `skip_assignment` (version 9 and above).
    pub supports_skipping_assignment: bool,
    /// What makes a new member id unique; a fresh UUID from the driver.
    pub fresh_id: String,
}

/// Answer to JoinGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinResponse {
    pub error: Option<GroupError>,
    /// -1 on an error.
    pub generation_id: i32,
    pub protocol_type: Option<String>,
    pub protocol_name: Option<String>,
    pub leader: String,
    pub skip_assignment: bool,
    pub member_id: String,
    /// All members for the leader; empty for followers.
    pub members: Vec<JoinedMember>,
}

/// A member as the leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedMember {
    pub member_id: Arc<str>,
    pub group_instance_id: Option<String>,
    pub metadata: Bytes,
}

impl JoinResponse {
    /// The answer for a join that failed.
    pub fn failed(member_id: &str, error: GroupError) -> Self {
        Self {
            error: Some(error),
            generation_id: -1,
            protocol_type: None,
            protocol_name: None,
            leader: String::new(),
            skip_assignment: false,
            member_id: member_id.to_owned(),
            members: Vec::new(),
        }
    }
}

/// SyncGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncRequest {
    pub group_id: String,
    pub generation_id: i32,
    pub member_id: String,
    pub group_instance_id: Option<String>,
    pub protocol_type: Option<String>,
    pub protocol_name: Option<String>,
    /// From the leader: member id and assignment.
    pub assignments: Vec<(String, Bytes)>,
}

/// Answer to SyncGroup.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SyncResponse {
    pub error: Option<GroupError>,
    pub protocol_type: Option<String>,
    pub protocol_name: Option<String>,
    pub assignment: Bytes,
}

impl SyncResponse {
    /// The answer for a sync that failed.
    pub fn failed(error: GroupError) -> Self {
        Self { error: Some(error), ..Self::default() }
    }
}

/// Heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeartbeatRequest {
    pub group_id: String,
    pub generation_id: i32,
    pub member_id: String,
    pub group_instance_id: Option<String>,
}

/// LeaveGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaveRequest {
    pub group_id: String,
    pub members: Vec<LeavingMember>,
}

/// One member of a LeaveGroup request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeavingMember {
    /// Empty if only the instance id is given (removal by an administrator).
    pub member_id: String,
    pub group_instance_id: Option<String>,
    /// KIP-800.
    pub reason: Option<String>,
}

/// Answer to LeaveGroup.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaveResponse {
    pub error: Option<GroupError>,
    pub members: Vec<LeftMember>,
}

/// One member of a LeaveGroup response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftMember {
    pub member_id: String,
    pub group_instance_id: Option<String>,
    pub error: Option<GroupError>,
}

/// OffsetCommit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffsetCommitRequest {
    pub group_id: String,
    /// Negative for consumers that do not use group management, and for administrators.
    pub generation_id: i32,
    pub member_id: String,
    pub group_instance_id: Option<String>,
    /// Retention asked for by versions 2 to 4; `None` for the broker's.
    pub retention_time_ms: Option<i64>,
    pub topics: Vec<CommitTopic>,
    /// The client understands GROUP_ID_NOT_FOUND here (version 9 and above).
    pub knows_group_id_not_found: bool,
}

/// The offsets of one topic in an OffsetCommit request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitTopic {
    pub name: String,
    pub partitions: Vec<CommitPartition>,
}

/// One offset of an OffsetCommit request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitPartition {
    pub partition: i32,
    pub offset: i64,
    pub leader_epoch: Option<i32>,
    pub metadata: Option<String>,
}

/// Topics, each with partitions and their errors.
pub type PartitionErrors = Vec<(String, Vec<(i32, Option<GroupError>)>)>;

/// Answer to OffsetCommit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OffsetCommitResponse {
    pub topics: PartitionErrors,
}

impl OffsetCommitResponse {
    /// One error for everything that was asked for.
    pub fn failed(topics: &[CommitTopic], error: GroupError) -> Self {
        let topics = topics
            .iter()
            .map(|t| (t.name.clone(), t.partitions.iter().map(|p| (p.partition, Some(error))).collect()))
            .collect();
        Self { topics }
    }
}

/// OffsetFetch for one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffsetFetchRequest {
    pub group_id: String,
    /// Topics and partitions; `None` for all offsets of the group.
    pub topics: Option<Vec<(String, Vec<i32>)>>,
    /// KIP-447: wait for commits that are on their way, and say so where a transaction is open.
    pub require_stable: bool,
}

/// Answer to OffsetFetch for one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffsetFetchResponse {
    pub group_id: String,
    pub error: Option<GroupError>,
    pub topics: Vec<(String, Vec<FetchedOffset>)>,
}

/// One offset of an OffsetFetch response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedOffset {
    pub partition: i32,
    /// -1 if there is none.
    pub offset: i64,
    /// -1 if it is not known.
    pub leader_epoch: i32,
    pub metadata: String,
    pub error: Option<GroupError>,
}

/// OffsetDelete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffsetDeleteRequest {
    pub group_id: String,
    pub topics: Vec<(String, Vec<i32>)>,
}

/// Answer to OffsetDelete.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OffsetDeleteResponse {
    pub error: Option<GroupError>,
    pub topics: PartitionErrors,
}

/// A group in the answer to DescribeGroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedGroup {
    pub group_id: String,
    pub error: Option<GroupError>,
    /// Kafka's name of the state; "Dead" for a group that is not known.
    pub state: &'static str,
    /// False if there is no such group (newer versions of the API say so).
    pub found: bool,
    pub protocol_type: String,
    pub protocol: String,
    pub members: Vec<DescribedMember>,
}

/// A member in the answer to DescribeGroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedMember {
    pub member_id: Arc<str>,
    pub group_instance_id: Option<String>,
    pub client_id: String,
    pub client_host: String,
    /// Empty unless the group is stable.
    pub metadata: Bytes,
    pub assignment: Bytes,
}

/// A group in the answer to ListGroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedGroup {
    pub group_id: String,
    pub protocol_type: String,
    pub state: &'static str,
    pub group_type: &'static str,
}

/// A group in the answer to DeleteGroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedGroup {
    pub group_id: String,
    pub error: Option<GroupError>,
}

/// A deferred answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    Join(JoinResponse),
    Sync(SyncResponse),
    OffsetCommit(OffsetCommitResponse),
    OffsetDelete(OffsetDeleteResponse),
    DeleteGroups(Vec<DeletedGroup>),
}
