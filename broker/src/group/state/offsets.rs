//! Committed offsets of one group, and the rules of committing, deleting and expiring them.
//!
//! An offset becomes visible when its commit is durable, never before. Commits on their way are counted per
//! partition, so that nothing expires or disappears under a commit that is about to land.
//!
//! There are no transactional commits yet. They belong here, beside `committed`: by producer id, moved over or dropped when
//! the transaction ends; a partition that has one answers UNSTABLE_OFFSET_COMMIT to a fetch of stable offsets, does not
//! expire, and is deleted with its group or by OffsetDelete.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::context::Now;
use super::error::GroupError;
use super::group::{ClassicGroup, GroupState};
use super::messages::{FetchedOffset, OffsetCommitRequest};
use super::records::{OffsetRecord, OffsetsRecord};

/// Offsets by topic and partition.
#[derive(Debug, Default)]
pub struct OffsetTable {
    committed: BTreeMap<Arc<str>, BTreeMap<i32, CommittedOffset>>,
    in_flight: BTreeMap<Arc<str>, BTreeMap<i32, u32>>,
}

/// A committed offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedOffset {
    pub offset: i64,
    pub leader_epoch: Option<i32>,
    pub metadata: String,
    /// Wall clock milliseconds.
    pub commit_timestamp_ms: i64,
    pub expire_timestamp_ms: Option<i64>,
}

impl OffsetTable {
    /// The committed offset of a partition.
    pub fn get(&self, topic: &str, partition: i32) -> Option<&CommittedOffset> {
        self.committed.get(topic)?.get(&partition)
    }

    /// All topics with their offsets.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &BTreeMap<i32, CommittedOffset>)> {
        self.committed.iter()
    }

    /// Whether there are neither offsets nor commits on their way.
    pub fn is_empty(&self) -> bool {
        self.committed.is_empty() && self.in_flight.is_empty()
    }

    /// Whether a commit of this partition is on its way.
    pub fn is_in_flight(&self, topic: &str, partition: i32) -> bool {
        self.in_flight.get(topic).is_some_and(|partitions| partitions.contains_key(&partition))
    }

    pub(super) fn has_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Takes over durable offsets.
    pub(super) fn put(&mut self, record: &OffsetsRecord) {
        for (topic, offsets) in &record.topics {
            let partitions = self.committed.entry(Arc::from(topic.as_str())).or_default();
            for offset in offsets {
                partitions.insert(
                    offset.partition,
                    CommittedOffset {
                        offset: offset.offset,
                        leader_epoch: offset.leader_epoch,
                        metadata: offset.metadata.clone(),
                        commit_timestamp_ms: offset.commit_timestamp_ms,
                        expire_timestamp_ms: offset.expire_timestamp_ms,
                    },
                );
            }
        }
    }

    /// Forgets offsets whose deletion is durable.
    pub(super) fn remove(&mut self, topics: &BTreeMap<String, Vec<i32>>) {
        for (topic, partitions) in topics {
            let Some(committed) = self.committed.get_mut(topic.as_str()) else { continue };
            for partition in partitions {
                committed.remove(partition);
            }
            if committed.is_empty() {
                self.committed.remove(topic.as_str());
            }
        }
    }

    /// Counts a commit that is sent to the journal.
    pub(super) fn began(&mut self, record: &OffsetsRecord) {
        for (topic, offsets) in &record.topics {
            let partitions = self.in_flight.entry(Arc::from(topic.as_str())).or_default();
            for offset in offsets {
                let count = partitions.entry(offset.partition).or_insert(0);
                *count = count.saturating_add(1);
            }
        }
    }

    /// A commit has become durable, or has failed.
    pub(super) fn ended(&mut self, record: &OffsetsRecord) {
        for (topic, offsets) in &record.topics {
            let Some(partitions) = self.in_flight.get_mut(topic.as_str()) else { continue };
            for offset in offsets {
                if let Some(count) = partitions.get_mut(&offset.partition) {
                    *count = count.saturating_sub(1);
                    if *count == 0 {
                        partitions.remove(&offset.partition);
                    }
                }
            }
            if partitions.is_empty() {
                self.in_flight.remove(topic.as_str());
            }
        }
    }

    /// All offsets as a record; `None` if there are none.
    pub(super) fn to_record(&self, group: &str) -> Option<OffsetsRecord> {
        if self.committed.is_empty() {
            return None;
        }
        let topics = self
            .committed
            .iter()
            .map(|(topic, partitions)| {
                let offsets = partitions.iter().map(|(partition, value)| value.to_record(*partition));
                (topic.to_string(), offsets.collect())
            })
            .collect();
        Some(OffsetsRecord { group: group.to_owned(), topics })
    }
}

impl CommittedOffset {
    fn to_record(&self, partition: i32) -> OffsetRecord {
        OffsetRecord {
            partition,
            offset: self.offset,
            leader_epoch: self.leader_epoch,
            metadata: self.metadata.clone(),
            commit_timestamp_ms: self.commit_timestamp_ms,
            expire_timestamp_ms: self.expire_timestamp_ms,
        }
    }

    fn is_expired(&self, base_ms: i64, now_ms: i64, retention_ms: i64) -> bool {
        match self.expire_timestamp_ms {
            Some(expires) => now_ms >= expires,
            None => now_ms.saturating_sub(base_ms) >= retention_ms,
        }
    }
}

/// What has expired in a group.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Expired {
    pub topics: BTreeMap<String, Vec<i32>>,
    /// Nothing is left of the group's offsets, and it has no members.
    pub whole_group: bool,
}

impl ClassicGroup {
    /// Whether this commit may be made now.
    pub(super) fn validate_offset_commit(&self, request: &OffsetCommitRequest) -> Result<(), GroupError> {
        if self.is(GroupState::Dead) {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        if request.generation_id < 0 && self.is(GroupState::Empty) {
            // An administrator, or a consumer that does not use group management.
            return Ok(());
        }
        let instance_id = request.group_instance_id.as_deref();
        if request.generation_id >= 0 || !request.member_id.is_empty() || instance_id.is_some() {
            self.validate_member(&request.member_id, instance_id)?;
            if request.generation_id != self.generation_id {
                return Err(GroupError::IllegalGeneration);
            }
        } else if !self.is(GroupState::Empty) {
            return Err(GroupError::UnknownMemberId);
        }
        if self.is(GroupState::CompletingRebalance) {
            // The member has the new generation but not yet its assignment.
            return Err(GroupError::RebalanceInProgress);
        }
        Ok(())
    }

    /// Whether offsets of this group may be deleted at all.
    pub(super) fn validate_offset_delete(&self) -> Result<(), GroupError> {
        match self.state {
            GroupState::Dead => Err(GroupError::GroupIdNotFound),
            GroupState::Empty => Ok(()),
            _ if self.uses_consumer_protocol() => Ok(()),
            _ => Err(GroupError::NonEmptyGroup),
        }
    }

    /// Whether the group may be deleted.
    pub(super) fn validate_delete(&self) -> Result<(), GroupError> {
        match self.state {
            GroupState::Dead => Err(GroupError::GroupIdNotFound),
            GroupState::Empty => Ok(()),
            _ => Err(GroupError::NonEmptyGroup),
        }
    }

    /// One offset as OffsetFetch shows it.
    pub(super) fn fetched(&self, topic: &str, partition: i32) -> FetchedOffset {
        match self.offsets.get(topic, partition) {
            Some(committed) => FetchedOffset {
                partition,
                offset: committed.offset,
                leader_epoch: committed.leader_epoch.unwrap_or(-1),
                metadata: committed.metadata.clone(),
                error: None,
            },
            None => no_offset(partition),
        }
    }

    /// Which offsets are past their retention.
    ///
    /// - No members: all of them, once the group has been empty for as long as the retention.
    /// - Stable, and the subscriptions are known: those of topics nobody subscribes, by the time of their commit.
    /// - Never had members: by the time of their commit.
    pub(super) fn expired_offsets(&self, now: Now, retention_ms: i64) -> Expired {
        let since_empty = match (&self.protocol_type, self.state) {
            (None, _) => None,
            (Some(_), GroupState::Empty) => self.state_timestamp_ms,
            (Some(_), GroupState::Stable)
                if self.uses_consumer_protocol() && self.subscribed_topics.is_some() =>
            {
                None
            }
            _ => return Expired::default(),
        };
        let mut expired = Expired { topics: BTreeMap::new(), whole_group: true };
        for (topic, partitions) in self.offsets.iter() {
            let subscribed = self.is_subscribed_to(topic);
            for (partition, committed) in partitions {
                let base_ms = since_empty.unwrap_or(committed.commit_timestamp_ms);
                let over = !subscribed
                    && committed.is_expired(base_ms, now.wall_ms, retention_ms)
                    && !self.offsets.is_in_flight(topic, *partition);
                if over {
                    expired.topics.entry(topic.to_string()).or_default().push(*partition);
                } else {
                    expired.whole_group = false;
                }
            }
        }
        expired.whole_group = expired.whole_group
            && self.is(GroupState::Empty)
            && self.pending_join.is_empty()
            && !self.offsets.has_in_flight();
        expired
    }
}

/// "There is no committed offset."
pub(super) fn no_offset(partition: i32) -> FetchedOffset {
    FetchedOffset { partition, offset: -1, leader_epoch: -1, metadata: String::new(), error: None }
}
