//! One round over the partitions of a fetch: what each has at this moment, within the request's bounds.

use std::sync::Arc;

use kaas_control::metadata::Topic;
use kaas_engine::ReadError;
use kaas_engine::types::{Epoch, Offset};
use kaas_engine::{FetchedRecords, Isolation, Partition, Read, ReadRequest, Status};
use kaas_protocol::{ErrorCode, FetchRequest};

use super::super::error::{self, Failure};
use super::super::{Context, topics};
use super::IDS_SINCE;
use super::session::Wanted;

/// The bounds of a request.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub min_bytes: usize,
    pub max_bytes: usize,
    pub isolation: Isolation,
}

impl Bounds {
    pub fn of(context: &Context, request: &FetchRequest) -> Self {
        let limit = usize::try_from(context.broker.configs().effective.fetch_max_bytes).unwrap_or(usize::MAX);
        let max_bytes = bytes(request.max_bytes).min(limit);
        let isolation = match request.isolation_level {
            1 => Isolation::ReadCommitted,
            _ => Isolation::ReadUncommitted,
        };
        Self { min_bytes: bytes(request.min_bytes).min(max_bytes), max_bytes, isolation }
    }
}

fn bytes(number: i32) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// A partition that is asked for, found or not.
#[derive(Debug)]
pub struct Target {
    pub wanted: Wanted,
    pub topic: Option<Arc<Topic>>,
    pub partition: Result<Arc<Partition>, Failure>,
}

/// Finds the partitions; opens those that are not open, all at once.
pub async fn find(context: &Context, wanted: Vec<Wanted>) -> Vec<Target> {
    let by_id = context.version >= IDS_SINCE;
    let found: Vec<_> = wanted
        .into_iter()
        .map(|wanted| {
            let topic = topics::find(&context.broker, &wanted.key.name, wanted.key.id, by_id);
            if let Ok(topic) = &topic
                && let Ok(partition) = topics::partition(topic, wanted.key.partition)
            {
                context.broker.partitions.prepare(topic, partition);
            }
            (wanted, topic)
        })
        .collect();
    let mut targets = Vec::with_capacity(found.len());
    for (wanted, topic) in found {
        let partition = match &topic {
            Ok(topic) => context.open(topic, wanted.key.partition).await,
            Err(failure) => Err(failure.clone()),
        };
        targets.push(Target { wanted, topic: topic.ok(), partition });
    }
    targets
}

/// What one partition has.
#[derive(Debug)]
pub enum Have {
    Records(FetchedRecords),
    /// The reader's log and this one part ways: where they do.
    Diverging {
        epoch: i32,
        end_offset: i64,
        status: Status,
    },
    Failed(Failure),
}

/// What all partitions have.
#[derive(Debug)]
pub struct Round {
    pub have: Vec<Have>,
    bytes: usize,
    notable: bool,
    isolation: Isolation,
}

impl Round {
    /// Whether the request can be answered with this.
    pub fn is_enough(&self, bounds: &Bounds) -> bool {
        self.notable || self.bytes >= bounds.min_bytes
    }

    /// What the request may see.
    pub fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// Whether a partition has moved on, so that another round would find something else.
    pub fn is_stale(&self, targets: &[Target]) -> bool {
        let limit = |status: &Status| match self.isolation {
            Isolation::ReadUncommitted => status.high_watermark,
            Isolation::ReadCommitted => status.last_stable,
        };
        self.have.iter().zip(targets).any(|(have, target)| match (have, &target.partition) {
            (Have::Records(then), Ok(partition)) => {
                let now = partition.status();
                now.state != then.status.state || limit(&now) != limit(&then.status)
            }
            _ => false,
        })
    }
}

/// Reads once, in the order of the targets: each partition up to its own limit and what is left of the request's,
/// but at least one batch if nothing was found before.
pub async fn round(context: &Context, targets: &[Target], bounds: &Bounds) -> Round {
    let mut round = Round {
        have: Vec::with_capacity(targets.len()),
        bytes: 0,
        notable: false,
        isolation: bounds.isolation,
    };
    let mut left = bounds.max_bytes;
    let waits = targets.iter().any(|target| target.partition.is_ok());
    for target in targets {
        let at_least_one = round.bytes == 0;
        let have = match &target.partition {
            Ok(partition) => {
                let max_bytes = bytes(target.wanted.max_bytes).min(left);
                one(context, partition, &target.wanted, bounds.isolation, max_bytes, at_least_one).await
            }
            Err(failure) => Err(failure.clone()),
        };
        let have = have.unwrap_or_else(Have::Failed);
        match &have {
            // What does not exist is no reason to answer at once, unless there is nothing else to wait for: a client
            // that goes on asking for a deleted topic would never rest.
            Have::Failed(failure) if failure.is_unknown_topic() && waits => {}
            Have::Records(records) => {
                round.bytes = round.bytes.saturating_add(records.bytes);
                left = left.saturating_sub(records.bytes);
            }
            Have::Diverging { .. } | Have::Failed(_) => round.notable = true,
        }
        round.have.push(have);
    }
    round
}

async fn one(
    context: &Context,
    partition: &Arc<Partition>,
    wanted: &Wanted,
    isolation: Isolation,
    max_bytes: usize,
    at_least_one: bool,
) -> Result<Have, Failure> {
    // Every negative epoch means none here; elsewhere only -1 does.
    error::check_epoch(wanted.current_leader_epoch.max(-1), partition.epoch())?;
    if let Some(diverging) = diverging(partition, wanted)? {
        return Ok(diverging);
    }
    let from = Offset(wanted.fetch_offset);
    let request = ReadRequest { from, max_bytes, at_least_one, isolation, file_ranges: true };
    let failed = |error: ReadError| {
        context.broker.partitions.tell_unread(partition, &error);
        error::read(&error)
    };
    let read = partition.read(request).map_err(failed)?;
    let outcome: Result<FetchedRecords, ReadError> = match read {
        Read::Ready(records) => Ok(records),
        Read::Blocking(job) => context.read_blocking(move || job.run()).await?,
    };
    outcome.map(Have::Records).map_err(failed)
}

/// Where the reader's log and this one part ways, if they do (KIP-595).
fn diverging(partition: &Arc<Partition>, wanted: &Wanted) -> Result<Option<Have>, Failure> {
    let Some(last) = Epoch::from_wire(wanted.last_fetched_epoch) else { return Ok(None) };
    let status = partition.status();
    let out_of_range = || Failure::bare(ErrorCode::OFFSET_OUT_OF_RANGE);
    let (epoch, end) = partition.end_offset_for_epoch(last).ok_or_else(out_of_range)?;
    if wanted.fetch_offset < status.log_start.0 {
        return Err(out_of_range());
    }
    let parted = epoch < last || end.0 < wanted.fetch_offset;
    Ok(parted.then(|| Have::Diverging { epoch: epoch.to_wire(), end_offset: end.0, status }))
}
