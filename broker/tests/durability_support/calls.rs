//! The calls of the tests in one line each, with their errors.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use kaas_engine::batch::{BatchHeader, DecodeLimits, check_crc, decode_records};
use kaas_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig};
use kaas_protocol::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use kaas_protocol::messages::fetch::{FetchPartition, FetchTopic};
use kaas_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use kaas_protocol::messages::offset_commit::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kaas_protocol::messages::offset_fetch::OffsetFetchRequestTopic;
use kaas_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use kaas_protocol::{
    CreateTopicsRequest, DeleteRecordsRequest, DeleteTopicsRequest, ErrorCode, FetchRequest,
    FindCoordinatorRequest, InitProducerIdRequest, ListOffsetsRequest, OffsetCommitRequest,
    OffsetFetchRequest, ProduceRequest, Records, RecordsPart,
};

use super::client::{Client, Failure};

/// The answer for one partition of a fetch.
#[derive(Debug)]
pub struct Fetched {
    pub partition: i32,
    pub error: ErrorCode,
    pub high_watermark: i64,
    pub log_start: i64,
    /// Offset and value, ascending.
    pub records: Vec<(i64, Bytes)>,
}

impl Client {
    pub fn create_topic(
        &mut self,
        name: &str,
        partitions: i32,
        configs: &[(&str, &str)],
    ) -> Result<(), Failure> {
        let answer = self.call(&CreateTopicsRequest {
            topics: vec![CreatableTopic {
                name: name.into(),
                num_partitions: partitions,
                replication_factor: 1,
                configs: configs
                    .iter()
                    .map(|(name, value)| CreatableTopicConfig {
                        name: (*name).into(),
                        value: Some((*value).into()),
                    })
                    .collect(),
                ..Default::default()
            }],
            timeout_ms: 30_000,
            ..Default::default()
        })?;
        Failure::refused(format!("creating {name}"), answer.topics[0].error_code)
    }

    pub fn delete_topic(&mut self, name: &str) -> Result<(), Failure> {
        let answer = self.call(&DeleteTopicsRequest {
            topic_names: vec![name.into()],
            timeout_ms: 30_000,
            ..Default::default()
        })?;
        Failure::refused(format!("deleting {name}"), answer.responses[0].error_code)
    }

    /// Deletes what lies before `offset`; answers with the new log start offset.
    pub fn delete_records(&mut self, topic: &str, partition: i32, offset: i64) -> Result<i64, Failure> {
        let answer = self.call(&DeleteRecordsRequest {
            topics: vec![DeleteRecordsTopic {
                name: topic.into(),
                partitions: vec![DeleteRecordsPartition { partition_index: partition, offset }],
            }],
            timeout_ms: 30_000,
        })?;
        let answer = &answer.topics[0].partitions[0];
        Failure::refused(format!("deleting records of {topic}-{partition}"), answer.error_code)?;
        Ok(answer.low_watermark)
    }

    /// An idempotent producer's id and epoch.
    pub fn init_producer(&mut self) -> Result<(i64, i16), Failure> {
        let answer = self.call(&InitProducerIdRequest {
            transactional_id: None,
            transaction_timeout_ms: 60_000,
            producer_epoch: -1,
            producer_id: -1,
            ..Default::default()
        })?;
        Failure::refused("a producer id", answer.error_code)?;
        Ok((answer.producer_id, answer.producer_epoch))
    }

    /// Asks who coordinates a group, as every client does first.
    pub fn find_coordinator(&mut self, group: &str) -> Result<(), Failure> {
        let answer = self
            .call(&FindCoordinatorRequest { coordinator_keys: vec![group.into()], ..Default::default() })?;
        Failure::refused(format!("the coordinator of {group}"), answer.coordinators[0].error_code)
    }

    /// Produces one batch and waits: error code and base offset.
    pub fn produce(
        &mut self,
        topic: &str,
        partition: i32,
        acks: i16,
        batch: Bytes,
    ) -> Result<(ErrorCode, i64), Failure> {
        let answer = self.call(&produce_request(topic, partition, acks, batch))?;
        let answer = &answer.responses[0].partition_responses[0];
        Ok((answer.error_code, answer.base_offset))
    }

    /// Earliest (-2) or latest (-1) offset.
    pub fn list_offset(&mut self, topic: &str, partition: i32, timestamp: i64) -> Result<i64, Failure> {
        let answer = self.call(&ListOffsetsRequest {
            replica_id: -1,
            topics: vec![ListOffsetsTopic {
                name: topic.into(),
                partitions: vec![ListOffsetsPartition {
                    partition_index: partition,
                    timestamp,
                    ..Default::default()
                }],
            }],
            ..Default::default()
        })?;
        let answer = &answer.topics[0].partitions[0];
        Failure::refused(format!("offset of {topic}-{partition}"), answer.error_code)?;
        Ok(answer.offset)
    }

    /// One fetch of some partitions from some offsets.
    pub fn fetch(
        &mut self,
        topic: &str,
        from: &BTreeMap<i32, i64>,
        max_wait_ms: i32,
    ) -> Result<Vec<Fetched>, Failure> {
        let answer = self.call(&FetchRequest {
            max_wait_ms,
            min_bytes: 1,
            max_bytes: 8 << 20,
            session_epoch: -1,
            topics: vec![FetchTopic {
                topic: topic.into(),
                partitions: from
                    .iter()
                    .map(|(&partition, &fetch_offset)| FetchPartition {
                        partition,
                        fetch_offset,
                        partition_max_bytes: 1 << 20,
                        ..Default::default()
                    })
                    .collect(),
                ..Default::default()
            }],
            ..Default::default()
        })?;
        Failure::refused("a fetch", answer.error_code)?;
        let mut fetched = Vec::new();
        for partition in answer.responses.iter().flat_map(|topic| &topic.partitions) {
            let start = from[&partition.partition_index];
            let records = partition.records.as_ref().map(whole).unwrap_or_default();
            fetched.push(Fetched {
                partition: partition.partition_index,
                error: partition.error_code,
                high_watermark: partition.high_watermark,
                log_start: partition.log_start_offset,
                records: decode(records).into_iter().filter(|(offset, _)| *offset >= start).collect(),
            });
        }
        Ok(fetched)
    }

    /// Commits `offsets` for a group without members; the error code of each.
    pub fn commit(
        &mut self,
        group: &str,
        topic: &str,
        offsets: &BTreeMap<i32, i64>,
    ) -> Result<BTreeMap<i32, ErrorCode>, Failure> {
        let answer = self.call(&OffsetCommitRequest {
            group_id: group.into(),
            generation_id_or_member_epoch: -1,
            topics: vec![OffsetCommitRequestTopic {
                name: topic.into(),
                partitions: offsets
                    .iter()
                    .map(|(&partition, &offset)| OffsetCommitRequestPartition {
                        partition_index: partition,
                        committed_offset: offset,
                        committed_metadata: Some(format!("offset {offset}").into()),
                        ..Default::default()
                    })
                    .collect(),
                ..Default::default()
            }],
            ..Default::default()
        })?;
        Ok(answer.topics[0].partitions.iter().map(|p| (p.partition_index, p.error_code)).collect())
    }

    /// The committed offsets of a group, with their metadata checked against what [`commit`](Self::commit) writes.
    pub fn committed(
        &mut self,
        group: &str,
        topic: &str,
        partitions: &[i32],
    ) -> Result<BTreeMap<i32, i64>, Failure> {
        let found = self.committed_by_anybody(group, topic, partitions)?;
        for (partition, (offset, metadata)) in found.iter().filter(|(_, (offset, _))| *offset >= 0) {
            assert_eq!(
                metadata.as_deref(),
                Some(format!("offset {offset}").as_str()),
                "partition {partition}"
            );
        }
        Ok(found.into_iter().map(|(partition, (offset, _))| (partition, offset)).collect())
    }

    /// The committed offsets of a group (-1: none) and their metadata.
    pub fn committed_by_anybody(
        &mut self,
        group: &str,
        topic: &str,
        partitions: &[i32],
    ) -> Result<BTreeMap<i32, (i64, Option<String>)>, Failure> {
        let answer = self.call(&OffsetFetchRequest {
            group_id: group.into(),
            topics: Some(vec![OffsetFetchRequestTopic {
                name: topic.into(),
                partition_indexes: partitions.to_vec(),
            }]),
            ..Default::default()
        })?;
        Failure::refused(format!("offsets of {group}"), answer.error_code)?;
        let mut offsets = BTreeMap::new();
        for partition in &answer.topics[0].partitions {
            Failure::refused(format!("an offset of {group}"), partition.error_code)?;
            let metadata = partition.metadata.as_ref().map(|text| text.to_owned_string());
            offsets.insert(partition.partition_index, (partition.committed_offset, metadata));
        }
        Ok(offsets)
    }
}

/// A produce request with one batch.
pub fn produce_request(topic: &str, partition: i32, acks: i16, batch: Bytes) -> ProduceRequest {
    ProduceRequest {
        acks,
        timeout_ms: 15_000,
        topic_data: vec![TopicProduceData {
            name: topic.into(),
            partition_data: vec![PartitionProduceData { index: partition, records: Some(batch) }],
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn whole(records: &Records) -> Bytes {
    let mut all = BytesMut::with_capacity(records.len());
    for part in records.parts() {
        match part {
            RecordsPart::Bytes(bytes) => all.extend_from_slice(bytes),
            RecordsPart::External(_) => unreachable!("file ranges do not come out of a socket"),
        }
    }
    all.freeze()
}

/// The records of whole batches; what is behind the last whole one is left.
fn decode(mut bytes: Bytes) -> Vec<(i64, Bytes)> {
    let mut records = Vec::new();
    while bytes.len() >= kaas_engine::batch::HEADER_BYTES {
        let header = BatchHeader::parse(&bytes).expect("a batch");
        if header.batch_bytes > bytes.len() {
            break;
        }
        let batch = bytes.split_to(header.batch_bytes);
        check_crc(&batch).expect("an undamaged batch");
        for record in decode_records(&batch, &DecodeLimits::default()).expect("a batch of records") {
            let record = record.expect("a record");
            records.push((record.offset.0, record.value.expect("a value")));
        }
    }
    records
}
