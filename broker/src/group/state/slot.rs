//! The groups of one slot: finds the group a request is for, applies what has become durable, fires timers.
//!
//! This is the whole pure state machine. It never blocks and never reads a clock. The driver holds it under a
//! lock, passes the time in, and carries out the effects in order. Any thread may call, one at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;
use tracing::{error, info, warn};

use super::config::GroupConfig;
use super::context::{Cx, Effect, Now, Pending, PersistId, PersistOutcome, Then};
use super::error::GroupError;
use super::group::{ClassicGroup, GroupState};
use super::messages::{
    DescribedGroup, HeartbeatRequest, JoinRequest, JoinResponse, LeaveRequest, LeaveResponse, LeftMember,
    ListedGroup, OffsetCommitResponse, OffsetDeleteResponse, PartitionErrors, Response, SyncRequest,
    SyncResponse, Token,
};
use super::records::{GroupSnapshot, Record, SNAPSHOT_FORMAT_VERSION, SlotSnapshot};
use super::timers::{TimerAction, TimerKey, Timers};

/// The name of the only group type there is so far (KIP-848 has others).
pub const GROUP_TYPE_CLASSIC: &str = "classic";

/// A slot that cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReplayError {
    #[error("the snapshot has format version {found}; this version reads up to {SNAPSHOT_FORMAT_VERSION}")]
    NewerFormat { found: u32 },
    #[error(
        "group {group} is stored in slot {stored} but belongs to slot {belongs}: the directory is another slot's; run \
         `kaas-engine verify` on it"
    )]
    WrongSlot { group: String, stored: usize, belongs: usize },
}

/// The state of one slot.
#[derive(Debug)]
pub struct SlotState {
    slot: usize,
    config: Arc<GroupConfig>,
    pub(super) groups: BTreeMap<Arc<str>, ClassicGroup>,
    timers: Timers,
    pending: Pending,
}

/// Effects of an operation, in the order in which they must be carried out.
pub type Effects = Vec<Effect>;

impl SlotState {
    /// An empty slot.
    pub fn new(slot: usize, config: Arc<GroupConfig>) -> Self {
        Self { slot, config, groups: BTreeMap::new(), timers: Timers::default(), pending: Pending::default() }
    }

    pub(super) fn split<'a>(
        &'a mut self,
        now: Now,
        effects: &'a mut Effects,
    ) -> (&'a mut BTreeMap<Arc<str>, ClassicGroup>, Cx<'a>) {
        let cx =
            Cx { now, config: &self.config, timers: &mut self.timers, pending: &mut self.pending, effects };
        (&mut self.groups, cx)
    }

    /// The settings.
    pub fn config(&self) -> &GroupConfig {
        &self.config
    }

    /// When [`SlotState::fire`] should be called next, in monotonic milliseconds.
    pub fn next_deadline(&self) -> Option<u64> {
        self.timers.next_deadline()
    }

    /// Appends that are on their way.
    pub fn appends_in_flight(&self) -> usize {
        self.pending.appends.len()
    }

    /// Whether there is any group.
    pub fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    /// The group, for tests and metrics.
    pub fn group(&self, group_id: &str) -> Option<&ClassicGroup> {
        self.groups.get(group_id)
    }

    // ----- loading and unloading

    /// Takes over a snapshot. Only before anything else.
    ///
    /// # Errors
    /// The snapshot is of a newer format or of another slot.
    pub fn restore(&mut self, snapshot: SlotSnapshot, now: Now) -> Result<(), ReplayError> {
        if snapshot.format_version > SNAPSHOT_FORMAT_VERSION {
            return Err(ReplayError::NewerFormat { found: snapshot.format_version });
        }
        for group in snapshot.groups {
            if let Some(record) = group.group {
                self.replay(Record::Group(record), now)?;
            }
            if let Some(offsets) = group.offsets {
                self.replay(Record::Offsets(offsets), now)?;
            }
        }
        Ok(())
    }

    /// Takes over a journal entry. Only before [`SlotState::loaded`], in journal order.
    ///
    /// # Errors
    /// The entry belongs to another slot.
    pub fn replay(&mut self, record: Record, now: Now) -> Result<(), ReplayError> {
        match record {
            Record::Group(record) => self.replayed_group(&record.group.clone(), now)?.restore(record),
            Record::Offsets(record) => {
                self.replayed_group(&record.group, now)?.offsets.put(&record);
            }
            Record::OffsetsDeleted { group, topics } => {
                self.replayed_group(&group, now)?.offsets.remove(&topics);
            }
            Record::GroupDeleted { group } => {
                self.groups.remove(group.as_str());
            }
        }
        Ok(())
    }

    fn replayed_group(&mut self, group_id: &str, now: Now) -> Result<&mut ClassicGroup, ReplayError> {
        let belongs = kaas_engine::layout::slot_of(group_id, self.config.slots);
        if belongs != self.slot {
            return Err(ReplayError::WrongSlot { group: group_id.to_owned(), stored: self.slot, belongs });
        }
        Ok(get_or_create(&mut self.groups, group_id, now))
    }

    /// Everything has been replayed: sessions start anew.
    pub fn loaded(&mut self, now: Now, effects: &mut Effects) {
        // A group whose offsets were all deleted and that has never had members left nothing behind.
        self.groups.retain(|_, group| !is_pristine(group));
        let (groups, mut cx) = self.split(now, effects);
        for group in groups.values_mut() {
            let members: Vec<Arc<str>> = group.members.keys().cloned().collect();
            info!(group = %group.id, members = members.len(), generation = group.generation_id,
                "loaded the group");
            for member_id in &members {
                group.rearm_session(member_id, &mut cx);
            }
            if members.len() > cx.config.max_size {
                group.prepare_rebalance("the group is larger than group.max.size", &mut cx);
            }
        }
    }

    /// This broker no longer serves the slot: whoever waits is told why, and nothing is left.
    pub fn unload(&mut self, why: GroupError, now: Now, effects: &mut Effects) {
        let appends: Vec<PersistId> = self.pending.appends.keys().copied().collect();
        let members: Vec<(Arc<str>, Arc<str>)> = self
            .groups
            .values()
            .flat_map(|group| group.members.keys().map(|member| (Arc::clone(&group.id), Arc::clone(member))))
            .collect();
        let (groups, mut cx) = self.split(now, effects);
        for (group_id, member_id) in members {
            if let Some(group) = groups.get_mut(&group_id) {
                group.complete_join(&member_id, JoinResponse::failed(&member_id, why), &mut cx);
                group.complete_sync(&member_id, SyncResponse::failed(why), &mut cx);
            }
        }
        for group in groups.values_mut() {
            group.mark_dead();
        }
        for id in appends {
            self.persisted(id, Err(why), now, effects);
        }
        self.groups.clear();
        self.timers = Timers::default();
    }

    /// The durable state: what a replay of everything that has completed would give. Appends that are on their
    /// way are not in it, so it must not replace a journal that may hold some of them.
    pub fn snapshot(&self) -> SlotSnapshot {
        let groups = self
            .groups
            .values()
            .map(|group| GroupSnapshot {
                group: group.durable.clone(),
                offsets: group.offsets.to_record(&group.id),
            })
            .filter(|snapshot| snapshot.group.is_some() || snapshot.offsets.is_some())
            .collect();
        SlotSnapshot { format_version: SNAPSHOT_FORMAT_VERSION, groups }
    }

    // ----- membership

    /// JoinGroup. The answer is an effect, now or later.
    pub fn join(&mut self, request: JoinRequest, token: Token, now: Now, effects: &mut Effects) {
        let range = self.config.min_session_timeout_ms..=self.config.max_session_timeout_ms;
        let (groups, mut cx) = self.split(now, effects);
        let refused = if request.group_id.is_empty() {
            Some(GroupError::InvalidGroupId)
        } else if !range.contains(&request.session_timeout_ms) {
            Some(GroupError::InvalidSessionTimeout)
        } else if !request.member_id.is_empty() && !groups.contains_key(request.group_id.as_str()) {
            Some(GroupError::UnknownMemberId)
        } else {
            None
        };
        if let Some(error) = refused {
            return cx.reply(token, Response::Join(JoinResponse::failed(&request.member_id, error)));
        }
        let group_id = request.group_id.clone();
        get_or_create(groups, &group_id, now).join(request, token, &mut cx);
        self.drop_if_pristine(&group_id);
    }

    /// SyncGroup. The answer is an effect, now or later.
    pub fn sync(&mut self, request: SyncRequest, token: Token, now: Now, effects: &mut Effects) {
        let (groups, mut cx) = self.split(now, effects);
        match groups.get_mut(request.group_id.as_str()) {
            Some(group) => group.sync(request, token, &mut cx),
            None if request.group_id.is_empty() => {
                cx.reply(token, Response::Sync(SyncResponse::failed(GroupError::InvalidGroupId)));
            }
            None => cx.reply(token, Response::Sync(SyncResponse::failed(GroupError::UnknownMemberId))),
        }
    }

    /// Heartbeat.
    ///
    /// # Errors
    /// What the member has to be told.
    pub fn heartbeat(
        &mut self,
        request: &HeartbeatRequest,
        now: Now,
        effects: &mut Effects,
    ) -> Result<(), GroupError> {
        if request.group_id.is_empty() {
            return Err(GroupError::InvalidGroupId);
        }
        let (groups, mut cx) = self.split(now, effects);
        let group = groups.get_mut(request.group_id.as_str()).ok_or(GroupError::UnknownMemberId)?;
        group.heartbeat(request, &mut cx)
    }

    /// LeaveGroup.
    pub fn leave(&mut self, request: &LeaveRequest, now: Now, effects: &mut Effects) -> LeaveResponse {
        if request.group_id.is_empty() {
            return LeaveResponse { error: Some(GroupError::InvalidGroupId), members: Vec::new() };
        }
        let (groups, mut cx) = self.split(now, effects);
        let response = match groups.get_mut(request.group_id.as_str()) {
            Some(group) => group.leave(&request.members, &mut cx),
            None => LeaveResponse {
                error: None,
                members: request
                    .members
                    .iter()
                    .map(|member| LeftMember {
                        member_id: member.member_id.clone(),
                        group_instance_id: member.group_instance_id.clone(),
                        error: Some(GroupError::UnknownMemberId),
                    })
                    .collect(),
            },
        };
        self.drop_if_pristine(&request.group_id);
        response
    }

    // ----- administration

    /// DescribeGroups for one group.
    pub fn describe(&self, group_id: &str) -> DescribedGroup {
        self.groups.get(group_id).map(ClassicGroup::describe).unwrap_or_else(|| DescribedGroup {
            group_id: group_id.to_owned(),
            error: None,
            state: GroupState::Dead.name(),
            found: false,
            protocol_type: String::new(),
            protocol: String::new(),
            members: Vec::new(),
        })
    }

    /// ListGroups. Filters are Kafka's names in any case; an empty filter lets everything through.
    pub fn list(&self, states: &[String], types: &[String]) -> Vec<ListedGroup> {
        let matches = |filter: &[String], name: &str| {
            filter.is_empty() || filter.iter().any(|wanted| wanted.trim().eq_ignore_ascii_case(name))
        };
        if !matches(types, GROUP_TYPE_CLASSIC) {
            return Vec::new();
        }
        self.groups
            .values()
            .filter(|group| matches(states, group.state.name()))
            .map(|group| ListedGroup {
                group_id: group.id.to_string(),
                protocol_type: group.protocol_type.clone().unwrap_or_default(),
                state: group.state.name(),
                group_type: GROUP_TYPE_CLASSIC,
            })
            .collect()
    }

    // ----- time and durability

    /// Fires what is due.
    pub fn fire(&mut self, now: Now, effects: &mut Effects) {
        while let Some((key, action)) = self.timers.take_due(now.monotonic_ms) {
            let (groups, mut cx) = self.split(now, effects);
            let (group_id, member_id) = match &key {
                TimerKey::Join(group) | TimerKey::Sync(group) => (Arc::clone(group), None),
                TimerKey::Session(group, member) => (Arc::clone(group), Some(Arc::clone(member))),
            };
            let Some(group) = groups.get_mut(&group_id) else { continue };
            match (action, member_id) {
                (TimerAction::InitialJoin { delay_ms, remaining_ms }, _) => {
                    group.initial_delay_over(delay_ms, remaining_ms, &mut cx);
                }
                (TimerAction::CompleteJoin, _) => group.complete_join_phase(&mut cx),
                (TimerAction::ExpireSync { generation_id }, _) => {
                    group.sync_expired(generation_id, &mut cx);
                }
                (TimerAction::ExpireSession, Some(member_id)) => {
                    group.session_expired(&member_id, &mut cx);
                }
                (TimerAction::ExpireSession, None) => {}
            }
            self.drop_if_pristine(&group_id);
        }
    }

    /// An append has become durable, or has failed. Calls come in the order of the ids.
    pub fn persisted(&mut self, id: PersistId, outcome: PersistOutcome, now: Now, effects: &mut Effects) {
        let Some((records, then)) = self.pending.appends.remove(&id) else {
            error!(slot = self.slot, id = id.0, "completion of an append that is not known");
            return;
        };
        for record in &records {
            if let Record::Offsets(offsets) = record
                && let Some(group) = self.groups.get_mut(offsets.group.as_str())
            {
                group.offsets.ended(offsets);
            }
        }
        if outcome.is_ok() {
            for record in records {
                self.apply_durable(record, now);
            }
        } else {
            for record in &records {
                self.drop_if_pristine(record.group());
            }
        }
        self.then(then, outcome, now, effects);
    }

    fn apply_durable(&mut self, record: Record, now: Now) {
        match record {
            Record::Group(record) => {
                if let Some(group) = self.groups.get_mut(record.group.as_str()) {
                    group.durable = Some(record);
                }
            }
            Record::Offsets(record) => {
                get_or_create(&mut self.groups, &record.group, now).offsets.put(&record)
            }
            Record::OffsetsDeleted { group, topics } => {
                if let Some(group) = self.groups.get_mut(group.as_str()) {
                    group.offsets.remove(&topics);
                }
                self.drop_if_pristine(&group);
            }
            Record::GroupDeleted { group } => self.drop_group(&group),
        }
    }

    fn then(&mut self, then: Then, outcome: PersistOutcome, now: Now, effects: &mut Effects) {
        let (groups, mut cx) = self.split(now, effects);
        match then {
            Then::Assigned { group, generation_id, assignment } => {
                if let Some(group) = groups.get_mut(&group) {
                    group.assignment_persisted(outcome, generation_id, &assignment, &mut cx);
                }
            }
            Then::Emptied => {
                if let Err(error) = outcome {
                    // The previous generation is the durable one; after a restart its sessions would run out.
                    warn!(%error, "could not store that a group has become empty");
                }
            }
            Then::StaticReplaced(replaced) => {
                if let Some(group) = groups.get_mut(&replaced.group.clone()) {
                    group.static_replacement_persisted(outcome, replaced, &mut cx);
                }
            }
            Then::Committed { response, token } => {
                let topics = with_outcome(response, outcome);
                cx.reply(token, Response::OffsetCommit(OffsetCommitResponse { topics }));
            }
            Then::OffsetsDeleted { response, token } => {
                let response = match outcome {
                    Ok(()) => OffsetDeleteResponse { error: None, topics: response },
                    Err(error) => OffsetDeleteResponse { error: Some(error), topics: Vec::new() },
                };
                cx.reply(token, Response::OffsetDelete(response));
            }
            Then::GroupsDeleted { groups: deleted, mut response, token } => {
                if let Err(error) = outcome {
                    revive(groups, &deleted);
                    for group in response.iter_mut().filter(|group| group.error.is_none()) {
                        group.error = Some(error);
                    }
                }
                cx.reply(token, Response::DeleteGroups(response));
            }
            Then::Cleaned { groups: deleted } => {
                if let Err(error) = outcome {
                    warn!(%error, "could not remove expired offsets; tried again at the next check");
                    revive(groups, &deleted);
                }
            }
        }
    }

    pub(super) fn drop_group(&mut self, group_id: &str) {
        if let Some(group) = self.groups.remove(group_id) {
            self.timers.cancel(&TimerKey::Join(Arc::clone(&group.id)));
            self.timers.cancel(&TimerKey::Sync(Arc::clone(&group.id)));
            for member_id in group.members.keys().chain(&group.pending_join) {
                self.timers.cancel(&TimerKey::Session(Arc::clone(&group.id), Arc::clone(member_id)));
            }
        }
    }

    /// Forgets a group that nothing is known about and that the journal does not have.
    pub(super) fn drop_if_pristine(&mut self, group_id: &str) {
        if self.groups.get(group_id).is_some_and(is_pristine) {
            self.drop_group(group_id);
        }
    }
}

pub(super) fn get_or_create<'a>(
    groups: &'a mut BTreeMap<Arc<str>, ClassicGroup>,
    group_id: &str,
    now: Now,
) -> &'a mut ClassicGroup {
    let id: Arc<str> = Arc::from(group_id);
    groups.entry(Arc::clone(&id)).or_insert_with(|| ClassicGroup::new(id, now))
}

fn is_pristine(group: &ClassicGroup) -> bool {
    group.is(GroupState::Empty)
        && group.generation_id == 0
        && group.pending_join.is_empty()
        && group.offsets.is_empty()
        && group.durable.is_none()
}

fn revive(groups: &mut BTreeMap<Arc<str>, ClassicGroup>, ids: &[Arc<str>]) {
    for id in ids {
        if let Some(group) = groups.get_mut(id) {
            group.revive();
        }
    }
}

fn with_outcome(response: PartitionErrors, outcome: PersistOutcome) -> PartitionErrors {
    let Err(error) = outcome else { return response };
    response
        .into_iter()
        .map(|(topic, partitions)| {
            let failed = partitions.into_iter().map(|(partition, own)| (partition, own.or(Some(error))));
            (topic, failed.collect())
        })
        .collect()
}
