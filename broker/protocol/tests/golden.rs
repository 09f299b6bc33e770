//! Bytes written by hand: versions that the oracle lacks, answers whose bytes clients rely on, and the shape of encoded
//! frames.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use kaas_protocol::messages::api_versions::ApiVersion;
use kaas_protocol::messages::fetch::{FetchableTopicResponse, NodeEndpoint, PartitionData};
use kaas_protocol::messages::metadata::MetadataRequestTopic;
use kaas_protocol::messages::offset_commit::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kaas_protocol::messages::offset_fetch::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use kaas_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use kaas_protocol::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, EncodeError, ErrorCode, ExternalRange, FetchResponse,
    InitProducerIdRequest, Message, MetadataRequest, OffsetCommitRequest, OffsetFetchRequest, Part,
    ProduceRequest, Records, RequestHeader, RequestKind, ResponseKind, Segments, Uuid, decode_response_frame,
    encode_request_frame, encode_response_frame, peek,
};

const ID: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

/// The value encodes to the bytes and the bytes decode to the value.
fn golden<M: Message>(value: &M, version: i16, bytes: &[u8]) {
    let mut out = Segments::new();
    value.encode(version, &mut out).unwrap();
    assert_eq!(out.to_bytes().unwrap(), bytes, "{} v{version}", M::NAME);
    assert_eq!(M::decode(version, Bytes::copy_from_slice(bytes)).unwrap(), *value);
}

#[test]
fn offset_commit_request_10() {
    let partition = OffsetCommitRequestPartition {
        partition_index: 3,
        committed_offset: 258,
        committed_leader_epoch: -1,
        committed_metadata: Some("m".into()),
    };
    let topic =
        OffsetCommitRequestTopic { topic_id: Uuid(ID), partitions: vec![partition], ..Default::default() };
    let request = OffsetCommitRequest {
        group_id: "g".into(),
        generation_id_or_member_epoch: 7,
        member_id: "mm".into(),
        topics: vec![topic],
        ..Default::default()
    };
    let mut bytes = vec![2, b'g', 0, 0, 0, 7, 3, b'm', b'm', 0, 2];
    bytes.extend_from_slice(&ID);
    bytes.extend_from_slice(&[
        2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 1, 2, 0xff, 0xff, 0xff, 0xff, 2, b'm', 0, 0, 0,
    ]);
    golden(&request, 10, &bytes);
}

#[test]
fn offset_fetch_request_10() {
    let topic =
        OffsetFetchRequestTopics { topic_id: Uuid(ID), partition_indexes: vec![5], ..Default::default() };
    let group = OffsetFetchRequestGroup {
        group_id: "g".into(),
        member_id: None,
        member_epoch: 2,
        topics: Some(vec![topic]),
    };
    let request = OffsetFetchRequest { groups: vec![group], require_stable: true, ..Default::default() };
    let mut bytes = vec![2, 2, b'g', 0, 0, 0, 0, 2, 2];
    bytes.extend_from_slice(&ID);
    bytes.extend_from_slice(&[2, 0, 0, 0, 5, 0, 0, 1, 0]);
    golden(&request, 10, &bytes);
}

#[test]
fn init_producer_id_request_6() {
    let request = InitProducerIdRequest {
        transactional_id: Some("t".into()),
        transaction_timeout_ms: 60_000,
        producer_id: -1,
        producer_epoch: -1,
        enable_2pc: true,
        keep_prepared_txn: false,
    };
    let mut bytes = vec![2, b't', 0, 0, 0xea, 0x60];
    bytes.extend_from_slice(&[0xff; 10]);
    bytes.extend_from_slice(&[1, 0, 0]);
    golden(&request, 6, &bytes);
    let mut out = Segments::new();
    let error = request.encode(5, &mut out).unwrap_err();
    let field = "InitProducerIdRequest.enable_2pc";
    assert_eq!(error, EncodeError::FieldNotInVersion { message: "InitProducerIdRequest", version: 5, field });
}

#[test]
fn metadata_request_of_all_topics_and_of_none() {
    let all = MetadataRequest { topics: None, ..Default::default() };
    golden(&all, 1, &[0xff, 0xff, 0xff, 0xff]);
    golden(&all, 12, &[0, 1, 0, 0]);
    let none = MetadataRequest { topics: Some(Vec::new()), ..Default::default() };
    golden(&none, 0, &[0, 0, 0, 0]);
    golden(&none, 12, &[1, 1, 0, 0]);
    let mut out = Segments::new();
    let refused = EncodeError::NullNotAllowed {
        message: "MetadataRequest",
        version: 0,
        field: "MetadataRequest.topics",
    };
    assert_eq!(all.encode(0, &mut out), Err(refused));
    let topic = MetadataRequestTopic { name: None, topic_id: Uuid(ID) };
    let by_id = MetadataRequest { topics: Some(vec![topic]), ..Default::default() };
    let bytes = [&[2][..], &ID, &[0, 0, 1, 0, 0]].concat();
    golden(&by_id, 12, &bytes);
    assert!(by_id.encode(9, &mut out).is_err());
    assert!(out.is_empty());
}

/// What a client gets that asks with a version from the future: a body of version 0 that any client can read.
#[test]
fn api_versions_answer_to_an_unknown_version() {
    let answer = ApiVersionsResponse {
        error_code: ErrorCode::UNSUPPORTED_VERSION,
        api_keys: vec![ApiVersion { api_key: 18, min_version: 0, max_version: 4 }],
        ..Default::default()
    };
    let mut out = Segments::new();
    let length = encode_response_frame(&mut out, 9, 0, &answer).unwrap();
    let bytes = [0, 0, 0, 16, 0, 0, 0, 9, 0, 35, 0, 0, 0, 1, 0, 18, 0, 0, 0, 4];
    assert_eq!(out.to_bytes().unwrap(), &bytes[..]);
    assert_eq!(length, bytes.len());
    // Version 3 is flexible, its header is not.
    out.clear();
    encode_response_frame(&mut out, 9, 3, &ApiVersionsResponse::default()).unwrap();
    assert_eq!(out.to_bytes().unwrap(), &[0, 0, 0, 12, 0, 0, 0, 9, 0, 0, 1, 0, 0, 0, 0, 0][..]);
}

#[test]
fn api_versions_request_frame() {
    let request =
        ApiVersionsRequest { client_software_name: "kc".into(), client_software_version: "1".into() };
    let header = RequestHeader {
        api_version: 3,
        correlation_id: 1,
        client_id: Some("c".into()),
        ..Default::default()
    };
    let mut out = Segments::new();
    encode_request_frame(&mut out, &header, &request).unwrap();
    let bytes = out.to_bytes().unwrap();
    assert_eq!(bytes, &[0, 0, 0, 18, 0, 18, 0, 3, 0, 0, 0, 1, 0, 1, b'c', 0, 3, b'k', b'c', 2, b'1', 0][..]);
    let seen = peek(&bytes.slice(4..)).unwrap();
    assert_eq!((seen.api(), seen.api_version), (Some(ApiKey::ApiVersions), 3));
}

fn fetch_response(first: Records, second: Records) -> FetchResponse {
    let partition = |partition_index, records| PartitionData {
        partition_index,
        high_watermark: 10,
        last_stable_offset: 10,
        log_start_offset: 0,
        records: Some(records),
        ..Default::default()
    };
    FetchResponse {
        responses: vec![FetchableTopicResponse {
            topic_id: Uuid(ID),
            partitions: vec![partition(0, first), partition(1, second)],
            ..Default::default()
        }],
        node_endpoints: vec![NodeEndpoint { node_id: 1, host: "h".into(), port: 9092, rack: None }],
        ..Default::default()
    }
}

#[test]
fn records_of_a_fetch_stay_where_they_are() {
    let batch = Bytes::from(vec![7; 100_000]);
    let tail = Bytes::from_static(b"tail");
    let range = ExternalRange { handle: Arc::new("a file"), offset: 4_096, length: 1_000_000 };
    let mut mixed = Records::from(range.clone());
    mixed.push_bytes(tail.clone());
    let response = fetch_response(Records::from(batch.clone()), mixed);
    let mut out = Segments::with_scratch(BytesMut::with_capacity(4_096));
    let length = encode_response_frame(&mut out, 5, 16, &response).unwrap();
    assert_eq!(out.len(), length);
    assert!(out.scratch_capacity_bytes() <= 4_096);

    let parts: Vec<Part<'_>> = out.parts().collect();
    assert_eq!(parts.len(), 6, "{parts:?}");
    let Part::Bytes(head) = parts[0] else { panic!() };
    assert_eq!(head[..4], u32::try_from(length - 4).unwrap().to_be_bytes());
    let Part::Bytes(first) = parts[1] else { panic!() };
    assert_eq!((first.as_ptr(), first.len()), (batch.as_ptr(), batch.len()));
    assert_eq!(parts[3], Part::External(&range));
    let Part::External(found) = parts[3] else { panic!() };
    assert_eq!(found.handle.downcast_ref::<&str>(), Some(&"a file"));
    let Part::Bytes(second) = parts[4] else { panic!() };
    assert_eq!(second.as_ptr(), tail.as_ptr());
    assert_eq!(parts.iter().map(Part::len).sum::<usize>(), length);
    let error = out.to_bytes().unwrap_err();
    assert_eq!((error.external_bytes, error.total_bytes), (1_000_000, length));
}

#[test]
fn parts_in_order_are_the_frame() {
    let response = fetch_response(Records::from(Bytes::from_static(b"first")), Records::new());
    for version in FetchResponse::VERSIONS.iter().filter(|version| *version >= 16) {
        let mut out = Segments::new();
        // Two frames in one output, as for pipelined requests.
        let first = encode_response_frame(&mut out, 1, version, &response).unwrap();
        let second = encode_response_frame(&mut out, 2, version, &response).unwrap();
        let bytes = out.to_bytes().unwrap();
        assert_eq!((first, second), (bytes.len() / 2, bytes.len() / 2));
        for (correlation_id, frame) in [(1, bytes.slice(4..first)), (2, bytes.slice(first + 4..))] {
            let decoded = decode_response_frame::<FetchResponse>(version, &frame).unwrap();
            assert_eq!(decoded, (correlation_id, response.clone()));
        }
    }
}

#[test]
fn a_failed_frame_leaves_the_others_whole() {
    let mut out = Segments::new();
    let response = fetch_response(Records::from(Bytes::from_static(b"first")), Records::new());
    encode_response_frame(&mut out, 1, 16, &response).unwrap();
    let before = out.to_bytes().unwrap();
    let field = "FetchResponse.node_endpoints";
    assert_eq!(
        encode_response_frame(&mut out, 2, 15, &response),
        Err(EncodeError::FieldNotInVersion { message: "FetchResponse", version: 15, field })
    );
    let long = FetchResponse {
        node_endpoints: vec![NodeEndpoint { host: "x".repeat(32_768).into(), ..Default::default() }],
        ..response
    };
    assert_eq!(
        encode_response_frame(&mut out, 2, 16, &long),
        Err(EncodeError::TooLong {
            message: "FetchResponse",
            version: 16,
            field: "NodeEndpoint.host",
            length: 32_768
        })
    );
    assert!(encode_response_frame(&mut out, 2, 19, &long).is_err());
    assert_eq!(out.to_bytes().unwrap(), before);
}

#[test]
fn a_decoded_produce_request_borrows_from_its_frame() {
    let records = Bytes::from_static(b"a record batch");
    let request = ProduceRequest {
        acks: 1,
        topic_data: vec![TopicProduceData {
            name: "topic".into(),
            partition_data: vec![PartitionProduceData { index: 0, records: Some(records.clone()) }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let mut out = Segments::new();
    request.encode(9, &mut out).unwrap();
    // A client that encodes does not copy records either.
    assert!(out.parts().any(|part| matches!(part, Part::Bytes(bytes) if bytes.as_ptr() == records.as_ptr())));
    let body = out.to_bytes().unwrap();
    let decoded = ProduceRequest::decode(9, body.clone()).unwrap();
    let inside = |bytes: &[u8]| body.as_ptr_range().contains(&bytes.as_ptr());
    assert!(inside(decoded.topic_data[0].name.as_bytes()));
    assert!(inside(decoded.topic_data[0].partition_data[0].records.as_ref().unwrap()));
}

#[test]
fn kinds_reach_every_api() {
    for api in ApiKey::ALL {
        assert_eq!(ApiKey::from_code(api.code()), Some(*api));
        let version = api.versions().max;
        let error = RequestKind::decode(*api, version + 1, Bytes::new()).unwrap_err();
        assert_eq!(error.context().message, format!("{api}Request"));
        let error = ResponseKind::decode(*api, version + 1, Bytes::new()).unwrap_err();
        assert_eq!(error.context().message, format!("{api}Response"));
    }
    assert_eq!(ApiKey::from_code(4), None);
    let kind = RequestKind::from(MetadataRequest { topics: None, ..Default::default() });
    let mut out = Segments::new();
    kind.encode(1, &mut out).unwrap();
    assert_eq!(RequestKind::decode(kind.api(), 1, out.to_bytes().unwrap()).unwrap(), kind);
}
