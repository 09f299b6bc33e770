//! Requests of clients: any bytes behind the length of a frame.
//!
//! Asserted: what can be decoded can be encoded again in that version, and decodes to the same.

use bytes::Bytes;
use kaas_protocol::*;

/// A frame without its length.
pub fn request(data: &[u8]) {
    let frame = Bytes::copy_from_slice(data);
    let Some(seen) = peek(&frame) else { return };
    let Some(api) = seen.api().filter(|api| api.versions().contains(seen.api_version)) else { return };
    let Ok((header, body)) = decode_request_header(api, seen.api_version, &frame) else { return };
    decode(api, header.api_version, body);
}

fn round_trip<M: Message + PartialEq + std::fmt::Debug>(version: i16, body: Bytes) {
    let Ok(message) = M::decode(version, body) else { return };
    let mut out = Segments::new();
    message.encode(version, &mut out).expect("what was decoded cannot be encoded");
    let bytes = out.to_bytes().expect("no file ranges");
    let again = M::decode(version, bytes).expect("what was encoded cannot be decoded");
    // (A quota may be no number, which equals nothing.)
    if again != message {
        assert_eq!(format!("{again:?}"), format!("{message:?}"));
    }
}

macro_rules! apis {
    ($($api:ident => $request:ident),* $(,)?) => {
        fn decode(api: ApiKey, version: i16, body: Bytes) {
            match api {
                $(ApiKey::$api => round_trip::<$request>(version, body),)*
            }
        }
    };
}

apis! {
    AddOffsetsToTxn => AddOffsetsToTxnRequest,
    AddPartitionsToTxn => AddPartitionsToTxnRequest,
    AlterClientQuotas => AlterClientQuotasRequest,
    AlterConfigs => AlterConfigsRequest,
    AlterPartitionReassignments => AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirs => AlterReplicaLogDirsRequest,
    AlterUserScramCredentials => AlterUserScramCredentialsRequest,
    ApiVersions => ApiVersionsRequest,
    ConsumerGroupDescribe => ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeat => ConsumerGroupHeartbeatRequest,
    CreateAcls => CreateAclsRequest,
    CreatePartitions => CreatePartitionsRequest,
    CreateTopics => CreateTopicsRequest,
    DeleteAcls => DeleteAclsRequest,
    DeleteGroups => DeleteGroupsRequest,
    DeleteRecords => DeleteRecordsRequest,
    DeleteTopics => DeleteTopicsRequest,
    DescribeAcls => DescribeAclsRequest,
    DescribeClientQuotas => DescribeClientQuotasRequest,
    DescribeCluster => DescribeClusterRequest,
    DescribeConfigs => DescribeConfigsRequest,
    DescribeGroups => DescribeGroupsRequest,
    DescribeLogDirs => DescribeLogDirsRequest,
    DescribeProducers => DescribeProducersRequest,
    DescribeQuorum => DescribeQuorumRequest,
    DescribeTopicPartitions => DescribeTopicPartitionsRequest,
    DescribeTransactions => DescribeTransactionsRequest,
    DescribeUserScramCredentials => DescribeUserScramCredentialsRequest,
    ElectLeaders => ElectLeadersRequest,
    EndTxn => EndTxnRequest,
    Fetch => FetchRequest,
    FindCoordinator => FindCoordinatorRequest,
    Heartbeat => HeartbeatRequest,
    IncrementalAlterConfigs => IncrementalAlterConfigsRequest,
    InitProducerId => InitProducerIdRequest,
    JoinGroup => JoinGroupRequest,
    LeaveGroup => LeaveGroupRequest,
    ListConfigResources => ListConfigResourcesRequest,
    ListGroups => ListGroupsRequest,
    ListOffsets => ListOffsetsRequest,
    ListPartitionReassignments => ListPartitionReassignmentsRequest,
    ListTransactions => ListTransactionsRequest,
    Metadata => MetadataRequest,
    OffsetCommit => OffsetCommitRequest,
    OffsetDelete => OffsetDeleteRequest,
    OffsetFetch => OffsetFetchRequest,
    OffsetForLeaderEpoch => OffsetForLeaderEpochRequest,
    Produce => ProduceRequest,
    SaslAuthenticate => SaslAuthenticateRequest,
    SaslHandshake => SaslHandshakeRequest,
    SyncGroup => SyncGroupRequest,
    TxnOffsetCommit => TxnOffsetCommitRequest,
    UpdateFeatures => UpdateFeaturesRequest,
    WriteTxnMarkers => WriteTxnMarkersRequest,
}
