//! From what was read to the response.

use kaas_engine::{FetchedRecords, Isolation, RecordsPart, Status};
use kaas_protocol::messages::fetch::{
    AbortedTransaction, EpochEndOffset, FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint, PartitionData,
};
use kaas_protocol::{ErrorCode, FetchResponse, Records};

use super::super::Context;
use super::super::error::Failure;
use super::read::{Have, Round, Target};
use super::session::{Answered, Key};
use crate::net::FileHandle;

/// First version whose answer says who leads.
const LEADER_SINCE: i16 = 16;
/// Last version whose clients may not know `KAFKA_STORAGE_ERROR`.
const NO_STORAGE_ERROR_UNTIL: i16 = 5;

/// The answer of one partition.
#[derive(Debug)]
pub struct Answer {
    pub key: Key,
    data: PartitionData,
}

impl Answer {
    /// What the session remembers of it.
    pub fn note(&self) -> Answered {
        let failed = !self.data.error_code.is_none();
        Answered {
            bytes: self.data.records.as_ref().map_or(0, Records::len),
            high_watermark: self.data.high_watermark,
            log_start: self.data.log_start_offset,
            notable: failed || self.data.diverging_epoch.epoch >= 0,
            failed,
        }
    }
}

/// The answers of a round, in its order.
pub fn build(context: &Context, targets: &[Target], round: Round) -> Vec<Answer> {
    let isolation = round.isolation();
    let answers = round.have.into_iter().zip(targets).map(|(have, target)| {
        let mut data = match have {
            Have::Records(records) => found(records, isolation),
            Have::Diverging { epoch, end_offset, status } => {
                let mut data = empty(&status, isolation);
                data.diverging_epoch = EpochEndOffset { epoch, end_offset };
                data
            }
            Have::Failed(failure) => failed(context, target, &failure),
        };
        data.partition_index = target.wanted.key.partition;
        Answer { key: target.wanted.key.clone(), data }
    });
    answers.collect()
}

fn empty(status: &Status, isolation: Isolation) -> PartitionData {
    PartitionData {
        high_watermark: status.high_watermark.0,
        last_stable_offset: status.last_stable.0,
        log_start_offset: status.log_start.0,
        aborted_transactions: (isolation == Isolation::ReadCommitted).then(Vec::new),
        records: Some(Records::new()),
        ..PartitionData::default()
    }
}

fn found(fetched: FetchedRecords, isolation: Isolation) -> PartitionData {
    let mut data = empty(&fetched.status, isolation);
    if let Some(aborted) = &mut data.aborted_transactions {
        aborted.extend(fetched.aborted.iter().map(|transaction| AbortedTransaction {
            producer_id: transaction.producer_id.0,
            first_offset: transaction.first_offset.0,
        }));
    }
    let mut records = Records::new();
    for part in fetched.parts {
        match part {
            RecordsPart::Bytes(bytes) => records.push_bytes(bytes),
            RecordsPart::FileRange { file, position, length } => {
                records.push_external(FileHandle::range(file, position, length));
            }
        }
    }
    data.records = Some(records);
    data
}

fn failed(context: &Context, target: &Target, failure: &Failure) -> PartitionData {
    let error_code = match failure.code {
        ErrorCode::KAFKA_STORAGE_ERROR if context.version <= NO_STORAGE_ERROR_UNTIL => {
            ErrorCode::NOT_LEADER_OR_FOLLOWER
        }
        code => code,
    };
    let mut data = PartitionData {
        error_code,
        high_watermark: -1,
        // Empty and not null here, as Kafka; no client can tell why.
        aborted_transactions: failure.is_unknown_topic().then(Vec::new),
        records: Some(Records::new()),
        ..PartitionData::default()
    };
    let moved = matches!(error_code, ErrorCode::NOT_LEADER_OR_FOLLOWER | ErrorCode::FENCED_LEADER_EPOCH);
    if moved
        && context.version >= LEADER_SINCE
        && let Some(topic) = &target.topic
        && let Ok(partition) = super::super::topics::partition(topic, target.wanted.key.partition)
    {
        let epoch = context.broker.leader_epoch(topic, partition);
        data.current_leader =
            LeaderIdAndEpoch { leader_id: context.broker.node_id, leader_epoch: epoch.to_wire() };
    }
    data
}

/// The response with these answers; neighbours of one topic share an entry.
pub fn response(context: &Context, session_id: i32, answers: impl Iterator<Item = Answer>) -> FetchResponse {
    let mut response = FetchResponse { session_id, ..FetchResponse::default() };
    let mut last: Option<Key> = None;
    let mut moved = false;
    for Answer { key, data } in answers {
        moved |= data.current_leader.leader_id >= 0;
        let same = last.as_ref().is_some_and(|last| last.name == key.name && last.id == key.id);
        if !same {
            response.responses.push(FetchableTopicResponse {
                topic: (&*key.name).into(),
                topic_id: key.id,
                ..FetchableTopicResponse::default()
            });
        }
        if let Some(topic) = response.responses.last_mut() {
            topic.partitions.push(data);
        }
        last = Some(key);
    }
    if moved {
        let (host, port) = context.broker.endpoint(&context.peer);
        let node_id = context.broker.node_id;
        response.node_endpoints.push(NodeEndpoint { node_id, host: host.as_str().into(), port, rack: None });
    }
    response
}
