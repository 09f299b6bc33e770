//! Offset requests of a slot: commit, fetch, delete, expiry; deletion of groups.

use std::collections::BTreeMap;
use std::sync::Arc;

use tracing::info;

use super::context::{Now, Then};
use super::error::GroupError;
use super::group::{ClassicGroup, GroupState};
use super::messages::{
    CommitTopic, DeletedGroup, FetchedOffset, OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest,
    OffsetDeleteResponse, OffsetFetchRequest, OffsetFetchResponse, PartitionErrors, Response, Token,
};
use super::offsets::no_offset;
use super::records::{OffsetRecord, OffsetsRecord, Record};
use super::slot::{Effects, SlotState, get_or_create};

/// Most records of one append of the expiry.
const EXPIRED_PER_APPEND: usize = 1_000;

impl SlotState {
    /// OffsetCommit. The answer is an effect: at once if refused, else when the offsets are durable.
    pub fn offset_commit(
        &mut self,
        request: OffsetCommitRequest,
        token: Token,
        now: Now,
        effects: &mut Effects,
    ) {
        let known = self.groups.contains_key(request.group_id.as_str());
        let (groups, mut cx) = self.split(now, effects);
        let checked = if known {
            get_or_create(groups, &request.group_id, now).validate_offset_commit(&request)
        } else if request.generation_id < 0 {
            info!(group = request.group_id, "offsets of a group without members: the group is created");
            Ok(())
        } else if request.knows_group_id_not_found {
            Err(GroupError::GroupIdNotFound)
        } else {
            Err(GroupError::IllegalGeneration)
        };
        if let Err(error) = checked {
            let response = OffsetCommitResponse::failed(&request.topics, error);
            return cx.reply(token, Response::OffsetCommit(response));
        }
        let group = get_or_create(groups, &request.group_id, now);
        if matches!(group.state, GroupState::Stable | GroupState::PreparingRebalance) {
            // A commit is as good as a heartbeat.
            group.rearm_session(&request.member_id, &mut cx);
        }
        let expire_timestamp_ms =
            request.retention_time_ms.map(|retention_ms| now.wall_ms.saturating_add(retention_ms));
        let (response, topics) =
            accept_offsets(request.topics, cx.config.offset_metadata_max_bytes, now, expire_timestamp_ms);
        if topics.is_empty() {
            cx.reply(token, Response::OffsetCommit(OffsetCommitResponse { topics: response }));
            return self.drop_if_pristine(&request.group_id);
        }
        let record = OffsetsRecord { group: request.group_id, topics };
        group.offsets.began(&record);
        cx.persist(vec![Record::Offsets(record)], Then::Committed { response, token });
    }

    /// Whether commits of this group are on their way.
    pub fn has_commits_in_flight(&self, group_id: &str) -> bool {
        self.groups.get(group_id).is_some_and(|group| group.offsets.has_in_flight())
    }

    /// OffsetFetch for one group. Answers what is durable.
    pub fn offset_fetch(&self, request: &OffsetFetchRequest) -> OffsetFetchResponse {
        let group = self.groups.get(request.group_id.as_str()).filter(|group| !group.is(GroupState::Dead));
        let topics = match (&request.topics, group) {
            (Some(topics), group) => topics
                .iter()
                .map(|(topic, partitions)| (topic.clone(), fetch_topic(group, topic, partitions)))
                .collect(),
            (None, None) => Vec::new(),
            (None, Some(group)) => group
                .offsets
                .iter()
                .map(|(topic, partitions)| {
                    let fetched = partitions.keys().map(|partition| group.fetched(topic, *partition));
                    (topic.to_string(), fetched.collect())
                })
                .collect(),
        };
        OffsetFetchResponse { group_id: request.group_id.clone(), error: None, topics }
    }

    /// OffsetDelete. The answer is an effect: at once if there is nothing to delete, else when that is durable.
    pub fn offset_delete(
        &mut self,
        request: OffsetDeleteRequest,
        token: Token,
        now: Now,
        effects: &mut Effects,
    ) {
        let (groups, mut cx) = self.split(now, effects);
        let checked = if request.group_id.is_empty() {
            Err(GroupError::InvalidGroupId)
        } else {
            groups.get(request.group_id.as_str()).ok_or(GroupError::GroupIdNotFound)
        };
        let checked = checked.and_then(|group| group.validate_offset_delete().map(|()| group));
        let group = match checked {
            Ok(group) => group,
            Err(error) => {
                let response = OffsetDeleteResponse { error: Some(error), topics: Vec::new() };
                return cx.reply(token, Response::OffsetDelete(response));
            }
        };
        let mut deleted: BTreeMap<String, Vec<i32>> = BTreeMap::new();
        let mut response: PartitionErrors = Vec::new();
        for (topic, partitions) in request.topics {
            let subscribed = group.is_subscribed_to(&topic);
            let error = subscribed.then_some(GroupError::GroupSubscribedToTopic);
            response.push((topic.clone(), partitions.iter().map(|partition| (*partition, error)).collect()));
            let there: Vec<i32> = partitions
                .into_iter()
                .filter(|partition| {
                    group.offsets.get(&topic, *partition).is_some()
                        || group.offsets.is_in_flight(&topic, *partition)
                })
                .collect();
            if !subscribed && !there.is_empty() {
                deleted.entry(topic).or_default().extend(there);
            }
        }
        if deleted.is_empty() {
            let response = OffsetDeleteResponse { error: None, topics: response };
            return cx.reply(token, Response::OffsetDelete(response));
        }
        let record = Record::OffsetsDeleted { group: request.group_id, topics: deleted };
        cx.persist(vec![record], Then::OffsetsDeleted { response, token });
    }

    /// DeleteGroups. The answer is an effect; deleted groups are gone for good when it comes.
    pub fn delete_groups(&mut self, ids: &[String], token: Token, now: Now, effects: &mut Effects) {
        let (groups, mut cx) = self.split(now, effects);
        let mut response = Vec::new();
        let mut records = Vec::new();
        let mut deleted = Vec::new();
        for id in ids {
            let group = groups.get_mut(id.as_str()).ok_or(GroupError::GroupIdNotFound);
            let checked = group.and_then(|group| group.validate_delete().map(|()| group));
            if let Ok(group) = &checked {
                info!(group = id, offsets = group.offsets.iter().count(), "deleting the group");
                records.push(Record::GroupDeleted { group: id.clone() });
                deleted.push(Arc::clone(&group.id));
            }
            let error = checked.map(ClassicGroup::mark_dead).err();
            response.push(DeletedGroup { group_id: id.clone(), error });
        }
        if records.is_empty() {
            return cx.reply(token, Response::DeleteGroups(response));
        }
        cx.persist(records, Then::GroupsDeleted { groups: deleted, response, token });
    }

    /// Removes what is past its retention. To be called every `offsets.retention.check.interval.ms`.
    pub fn expire_offsets(&mut self, now: Now, effects: &mut Effects) {
        let retention_ms = self.config().offsets_retention_ms;
        let mut unknown_to_the_journal = Vec::new();
        let (groups, mut cx) = self.split(now, effects);
        let mut records = Vec::new();
        for group in groups.values_mut().filter(|group| !group.is(GroupState::Dead)) {
            let expired = group.expired_offsets(now, retention_ms);
            if expired.whole_group {
                if group.durable.is_none() && group.offsets.is_empty() {
                    unknown_to_the_journal.push(Arc::clone(&group.id));
                    continue;
                }
                info!(group = %group.id, "the group is empty and its offsets have expired: deleting it");
                records.push(Record::GroupDeleted { group: group.id.to_string() });
                group.mark_dead();
            } else if !expired.topics.is_empty() {
                info!(group = %group.id, topics = ?expired.topics, "offsets have expired");
                let group = group.id.to_string();
                records.push(Record::OffsetsDeleted { group, topics: expired.topics });
            }
        }
        // Several appends if need be: a journal takes only so much at a time.
        while !records.is_empty() {
            let rest = records.split_off(records.len().min(EXPIRED_PER_APPEND));
            let chunk = std::mem::replace(&mut records, rest);
            let deleted = |record: &Record| match record {
                Record::GroupDeleted { group } => Some(Arc::from(group.as_str())),
                _ => None,
            };
            let groups = chunk.iter().filter_map(deleted).collect();
            cx.persist(chunk, Then::Cleaned { groups });
        }
        for group_id in unknown_to_the_journal {
            self.drop_group(&group_id);
        }
    }

    /// Removes the offsets of partitions that are deleted. The answer is an effect, without topics.
    pub fn partitions_deleted(
        &mut self,
        partitions: &BTreeMap<String, Vec<i32>>,
        token: Token,
        now: Now,
        effects: &mut Effects,
    ) {
        let (groups, mut cx) = self.split(now, effects);
        let mut records = Vec::new();
        for group in groups.values().filter(|group| !group.is(GroupState::Dead)) {
            let mut topics: BTreeMap<String, Vec<i32>> = BTreeMap::new();
            for (topic, partitions) in partitions {
                let there = partitions.iter().copied().filter(|partition| {
                    group.offsets.get(topic, *partition).is_some()
                        || group.offsets.is_in_flight(topic, *partition)
                });
                let there: Vec<i32> = there.collect();
                if !there.is_empty() {
                    topics.insert(topic.clone(), there);
                }
            }
            if !topics.is_empty() {
                records.push(Record::OffsetsDeleted { group: group.id.to_string(), topics });
            }
        }
        if records.is_empty() {
            return cx.reply(token, Response::OffsetDelete(OffsetDeleteResponse::default()));
        }
        cx.persist(records, Then::OffsetsDeleted { response: Vec::new(), token });
    }
}

impl ClassicGroup {
    /// The group is being deleted; requests are refused until that is durable, or has failed.
    pub(super) fn mark_dead(&mut self) {
        self.previous_state = self.state;
        self.state = GroupState::Dead;
    }

    /// The deletion has failed: the group is what it was.
    pub(super) fn revive(&mut self) {
        self.previous_state = GroupState::Dead;
        self.state = GroupState::Empty;
    }
}

fn accept_offsets(
    topics: Vec<CommitTopic>,
    metadata_max: usize,
    now: Now,
    expire_timestamp_ms: Option<i64>,
) -> (PartitionErrors, BTreeMap<String, Vec<OffsetRecord>>) {
    let mut response: PartitionErrors = Vec::new();
    let mut accepted: BTreeMap<String, Vec<OffsetRecord>> = BTreeMap::new();
    for topic in topics {
        let mut errors = Vec::new();
        for partition in topic.partitions {
            let metadata = partition.metadata.unwrap_or_default();
            // Counted as Kafka counts it: in UTF-16 units.
            if metadata.encode_utf16().count() > metadata_max {
                errors.push((partition.partition, Some(GroupError::OffsetMetadataTooLarge)));
                continue;
            }
            errors.push((partition.partition, None));
            accepted.entry(topic.name.clone()).or_default().push(OffsetRecord {
                partition: partition.partition,
                offset: partition.offset,
                leader_epoch: partition.leader_epoch,
                metadata,
                commit_timestamp_ms: now.wall_ms,
                expire_timestamp_ms,
            });
        }
        response.push((topic.name, errors));
    }
    (response, accepted)
}

fn fetch_topic(group: Option<&ClassicGroup>, topic: &str, partitions: &[i32]) -> Vec<FetchedOffset> {
    partitions
        .iter()
        .map(|partition| {
            group.map_or_else(|| no_offset(*partition), |group| group.fetched(topic, *partition))
        })
        .collect()
}
