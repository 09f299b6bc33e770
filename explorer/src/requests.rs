//! What a leader's clients ask for, and how often what.

use kaas_engine::{Acks, Isolation};

use crate::cluster::Cluster;

/// What clients ask for; the first is nothing.
#[derive(Debug, Clone, Copy)]
pub enum Request {
    Nothing,
    Produce,
    ProducePlain(Acks),
    Fetch,
    /// As [`Request::Fetch`], from any offset.
    FetchFrom(Isolation),
    Status,
    DeleteRecords,
    Maintain,
    Wait,
    /// A transactional producer sends.
    Transact,
    EndTransaction,
    Compact,
}

/// Some more often than others.
const ORDINARY: &[Request] = &[
    Request::Nothing,
    Request::Produce,
    Request::Produce,
    Request::Produce,
    Request::Produce,
    Request::ProducePlain(Acks::Committed),
    Request::ProducePlain(Acks::Written),
    Request::Fetch,
    Request::Fetch,
    Request::Fetch,
    Request::Status,
    Request::DeleteRecords,
    Request::Maintain,
    Request::Wait,
    Request::Wait,
    Request::Wait,
];

/// Those of a busy partition.
const BUSY: &[Request] = &[
    Request::Nothing,
    Request::Produce,
    Request::ProducePlain(Acks::Committed),
    Request::Produce,
    Request::Fetch,
];

/// Those of a partition with transactional producers.
const TRANSACTIONAL: &[Request] = &[
    Request::Nothing,
    Request::Produce,
    Request::Produce,
    Request::ProducePlain(Acks::Committed),
    Request::Transact,
    Request::Transact,
    Request::EndTransaction,
    Request::EndTransaction,
    Request::FetchFrom(Isolation::ReadUncommitted),
    Request::FetchFrom(Isolation::ReadCommitted),
    Request::Status,
    Request::DeleteRecords,
    Request::Maintain,
    Request::Wait,
    Request::Wait,
    Request::Wait,
];

/// Those of a compacted partition.
const COMPACTED: &[Request] = &[
    Request::Nothing,
    Request::Produce,
    Request::Produce,
    Request::Produce,
    Request::ProducePlain(Acks::Committed),
    Request::ProducePlain(Acks::Written),
    Request::Transact,
    Request::Transact,
    Request::EndTransaction,
    Request::EndTransaction,
    Request::FetchFrom(Isolation::ReadUncommitted),
    Request::FetchFrom(Isolation::ReadCommitted),
    Request::Status,
    Request::DeleteRecords,
    Request::Maintain,
    Request::Wait,
    Request::Wait,
    Request::Wait,
    Request::Compact,
    Request::Compact,
    Request::Compact,
];

/// What the clients of a cluster ask for.
pub fn requests(cluster: &Cluster) -> &'static [Request] {
    if cluster.is_busy {
        BUSY
    } else if cluster.config.compact {
        COMPACTED
    } else if cluster.transactions {
        TRANSACTIONAL
    } else {
        ORDINARY
    }
}
