//! A classic group: its members, generation and protocol, and the rules that hold among them.
//!
//! This file holds what a group *is*; `join`, `sync` and `rebalance` hold what happens to it. Invariants:
//! - the members are those of one generation, plus those that have joined since the rebalance began;
//! - `supported_protocols` counts, for each protocol, the members that offer it;
//! - a static instance id belongs to one member;
//! - a token that waits in a member is answered before it is overwritten or the member goes away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use tracing::{info, warn};

use super::context::{Cx, Now};
use super::error::GroupError;
use super::member::Member;
use super::messages::{JoinResponse, JoinedMember, Protocol, Response, SyncResponse, Token};
use super::offsets::OffsetTable;
use super::records::{GroupRecord, MemberRecord};
use super::subscription;
use super::timers::TimerKey;

/// The protocol type of consumers; the only one whose subscriptions the coordinator reads.
pub const CONSUMER_PROTOCOL_TYPE: &str = "consumer";

/// State of a classic group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupState {
    /// No members; stays for its offsets.
    Empty,
    /// Members are joining.
    PreparingRebalance,
    /// The leader is computing the assignment.
    CompletingRebalance,
    /// Every member has its assignment.
    Stable,
    /// Being deleted.
    Dead,
}

impl GroupState {
    /// Kafka's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance => "PreparingRebalance",
            Self::CompletingRebalance => "CompletingRebalance",
            Self::Stable => "Stable",
            Self::Dead => "Dead",
        }
    }
}

/// A classic group.
#[derive(Debug)]
pub struct ClassicGroup {
    pub(super) id: Arc<str>,
    pub(super) state: GroupState,
    pub(super) previous_state: GroupState,
    /// Wall clock of the last change of state.
    pub(super) state_timestamp_ms: Option<i64>,
    pub(super) generation_id: i32,
    pub(super) protocol_type: Option<String>,
    pub(super) protocol_name: Option<String>,
    pub(super) leader_id: Option<Arc<str>>,
    pub(super) members: BTreeMap<Arc<str>, Member>,
    pub(super) static_members: BTreeMap<String, Arc<str>>,
    /// Told to come back with their id (KIP-394), not yet back.
    pub(super) pending_join: BTreeSet<Arc<str>>,
    /// Answered JoinGroup in this generation, SyncGroup not yet received.
    pub(super) pending_sync: BTreeSet<Arc<str>>,
    supported_protocols: BTreeMap<String, usize>,
    /// `None` if it cannot be known.
    pub(super) subscribed_topics: Option<BTreeSet<String>>,
    /// Someone joined during the initial delay.
    pub(super) new_member_added: bool,
    pub(super) offsets: OffsetTable,
    /// The membership that the journal holds.
    pub(super) durable: Option<GroupRecord>,
    arrivals: u64,
}

impl ClassicGroup {
    /// A new, empty group.
    pub fn new(id: Arc<str>, now: Now) -> Self {
        Self {
            id,
            state: GroupState::Empty,
            previous_state: GroupState::Dead,
            state_timestamp_ms: Some(now.wall_ms),
            generation_id: 0,
            protocol_type: None,
            protocol_name: None,
            leader_id: None,
            members: BTreeMap::new(),
            static_members: BTreeMap::new(),
            pending_join: BTreeSet::new(),
            pending_sync: BTreeSet::new(),
            supported_protocols: BTreeMap::new(),
            subscribed_topics: None,
            new_member_added: false,
            offsets: OffsetTable::default(),
            durable: None,
            arrivals: 0,
        }
    }

    /// Takes over the membership of a record: stable if it has members, empty otherwise.
    pub(super) fn restore(&mut self, record: GroupRecord) {
        let protocol = record.protocol.clone().unwrap_or_default();
        self.state = if record.members.is_empty() { GroupState::Empty } else { GroupState::Stable };
        self.previous_state = GroupState::Dead;
        self.state_timestamp_ms = record.state_timestamp_ms;
        self.generation_id = record.generation;
        self.protocol_type = Some(record.protocol_type.clone()).filter(|name| !name.is_empty());
        self.protocol_name = record.protocol.clone();
        self.leader_id = record.leader.as_deref().map(Arc::from);
        self.members.clear();
        self.static_members.clear();
        self.pending_join.clear();
        self.pending_sync.clear();
        self.supported_protocols.clear();
        for member in &record.members {
            self.add(Member {
                id: Arc::from(member.member_id.as_str()),
                group_instance_id: member.group_instance_id.clone(),
                client_id: member.client_id.clone(),
                client_host: member.client_host.clone(),
                rebalance_timeout_ms: member.rebalance_timeout_ms,
                session_timeout_ms: member.session_timeout_ms,
                protocol_type: record.protocol_type.clone(),
                protocols: vec![Protocol { name: protocol.clone(), metadata: member.subscription.clone() }],
                assignment: member.assignment.clone(),
                awaiting_join: None,
                awaiting_sync: None,
                is_new: false,
                arrival: 0,
            });
        }
        self.subscribed_topics = self.compute_subscribed_topics();
        self.durable = Some(record);
    }

    /// The membership as a journal record, with the given assignment for members that have one there.
    pub(super) fn to_record(&self, assignment: Option<&BTreeMap<Arc<str>, Bytes>>) -> GroupRecord {
        let protocol = self.protocol_name.as_deref().unwrap_or_default();
        GroupRecord {
            group: self.id.to_string(),
            generation: self.generation_id,
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            protocol: self.protocol_name.clone(),
            leader: self.leader_id.as_deref().map(str::to_owned),
            state_timestamp_ms: self.state_timestamp_ms,
            members: self
                .by_arrival()
                .into_iter()
                .map(|member| MemberRecord {
                    member_id: member.id.to_string(),
                    group_instance_id: member.group_instance_id.clone(),
                    client_id: member.client_id.clone(),
                    client_host: member.client_host.clone(),
                    rebalance_timeout_ms: member.rebalance_timeout_ms,
                    session_timeout_ms: member.session_timeout_ms,
                    subscription: member.metadata(protocol),
                    assignment: assignment
                        .and_then(|assignment| assignment.get(&member.id))
                        .unwrap_or(&member.assignment)
                        .clone(),
                })
                .collect(),
        }
    }

    pub(super) fn by_arrival(&self) -> Vec<&Member> {
        let mut members: Vec<&Member> = self.members.values().collect();
        members.sort_by_key(|member| member.arrival);
        members
    }

    pub(super) fn is(&self, state: GroupState) -> bool {
        self.state == state
    }

    pub(super) fn transition_to(&mut self, state: GroupState, now: Now) {
        self.previous_state = self.state;
        self.state = state;
        self.state_timestamp_ms = Some(now.wall_ms);
    }

    pub(super) fn can_rebalance(&self) -> bool {
        matches!(self.state, GroupState::Stable | GroupState::CompletingRebalance | GroupState::Empty)
    }

    pub(super) fn is_leader(&self, member_id: &str) -> bool {
        self.leader_id.as_deref() == Some(member_id)
    }

    pub(super) fn leader_or_empty(&self) -> String {
        self.leader_id.as_deref().unwrap_or_default().to_owned()
    }

    pub(super) fn uses_consumer_protocol(&self) -> bool {
        self.protocol_type.as_deref() == Some(CONSUMER_PROTOCOL_TYPE)
    }

    /// Adds a member; its tokens, if any, are taken as they are.
    pub(super) fn add(&mut self, mut member: Member) {
        member.arrival = self.arrivals;
        self.arrivals = self.arrivals.saturating_add(1);
        if let Some(instance_id) = &member.group_instance_id {
            self.static_members.insert(instance_id.clone(), Arc::clone(&member.id));
        }
        if self.members.is_empty() {
            self.protocol_type = Some(member.protocol_type.clone());
        }
        if self.leader_id.is_none() {
            self.leader_id = Some(Arc::clone(&member.id));
        }
        self.count_protocols(&member.protocols, true);
        self.pending_join.remove(&member.id);
        self.members.insert(Arc::clone(&member.id), member);
    }

    /// Removes a member or pending member, whichever it is. Whoever still waits in its name is told that the
    /// member is unknown, so that a living client joins again.
    pub(super) fn remove(&mut self, member_id: &str, cx: &mut Cx<'_>) {
        self.complete_join(member_id, JoinResponse::failed("", GroupError::UnknownMemberId), cx);
        self.complete_sync(member_id, SyncResponse::failed(GroupError::UnknownMemberId), cx);
        if let Some(member) = self.members.remove(member_id) {
            self.count_protocols(&member.protocols, false);
            if let Some(instance_id) = &member.group_instance_id {
                self.static_members.remove(instance_id);
            }
        }
        if self.is_leader(member_id) {
            self.leader_id = self.by_arrival().first().map(|member| Arc::clone(&member.id));
        }
        self.pending_join.remove(member_id);
        self.pending_sync.remove(member_id);
        cx.timers.cancel(&TimerKey::Session(Arc::clone(&self.id), Arc::from(member_id)));
    }

    /// Gives the member of an instance id a new member id; whoever waits under the old one is fenced.
    pub(super) fn replace_static_member(
        &mut self,
        instance_id: &str,
        old_member_id: &str,
        new_member_id: &Arc<str>,
        cx: &mut Cx<'_>,
    ) {
        let mut fenced = JoinResponse::failed(old_member_id, GroupError::FencedInstanceId);
        fenced.protocol_name = None;
        self.complete_join(old_member_id, fenced, cx);
        self.complete_sync(old_member_id, SyncResponse::failed(GroupError::FencedInstanceId), cx);
        cx.timers.cancel(&TimerKey::Session(Arc::clone(&self.id), Arc::from(old_member_id)));

        let Some(mut member) = self.members.remove(old_member_id) else { return };
        member.id = Arc::clone(new_member_id);
        member.is_new = false;
        self.members.insert(Arc::clone(new_member_id), member);
        if self.is_leader(old_member_id) {
            self.leader_id = Some(Arc::clone(new_member_id));
        }
        if self.pending_sync.remove(old_member_id) {
            self.pending_sync.insert(Arc::clone(new_member_id));
        }
        self.static_members.insert(instance_id.to_owned(), Arc::clone(new_member_id));
    }

    /// Replaces what a member offers, and which JoinGroup of it waits.
    pub(super) fn update_member(
        &mut self,
        member_id: &str,
        protocols: Vec<Protocol>,
        rebalance_timeout_ms: i32,
        session_timeout_ms: i32,
        awaiting_join: Option<Token>,
        cx: &mut Cx<'_>,
    ) {
        // An earlier JoinGroup of the same member gives way; a client that still reads it will join again.
        let superseded = JoinResponse::failed(member_id, GroupError::RebalanceInProgress);
        self.complete_join(member_id, superseded, cx);
        let Some(member) = self.members.get_mut(member_id) else { return };
        let old = std::mem::replace(&mut member.protocols, protocols.clone());
        member.rebalance_timeout_ms = rebalance_timeout_ms;
        member.session_timeout_ms = session_timeout_ms;
        member.awaiting_join = awaiting_join;
        self.count_protocols(&old, false);
        self.count_protocols(&protocols, true);
    }

    fn count_protocols(&mut self, protocols: &[Protocol], add: bool) {
        for protocol in protocols {
            let count = self.supported_protocols.entry(protocol.name.clone()).or_insert(0);
            *count = if add { count.saturating_add(1) } else { count.saturating_sub(1) };
            if *count == 0 {
                self.supported_protocols.remove(&protocol.name);
            }
        }
    }

    /// Answers the member's waiting JoinGroup; false if none waits.
    pub(super) fn complete_join(&mut self, member_id: &str, response: JoinResponse, cx: &mut Cx<'_>) -> bool {
        let token = self.members.get_mut(member_id).and_then(|member| member.awaiting_join.take());
        token.map(|token| cx.reply(token, Response::Join(response))).is_some()
    }

    /// Answers the member's waiting SyncGroup; false if none waits.
    pub(super) fn complete_sync(&mut self, member_id: &str, response: SyncResponse, cx: &mut Cx<'_>) -> bool {
        let token = self.members.get_mut(member_id).and_then(|member| member.awaiting_sync.take());
        token.map(|token| cx.reply(token, Response::Sync(response))).is_some()
    }

    /// Members whose JoinGroup waits.
    pub(super) fn awaiting_join(&self) -> usize {
        self.members.values().filter(|member| member.awaiting_join.is_some()).count()
    }

    pub(super) fn has_all_members_joined(&self) -> bool {
        self.pending_join.is_empty() && self.members.values().all(|member| member.awaiting_join.is_some())
    }

    /// The longest rebalance timeout among the members.
    pub(super) fn rebalance_timeout_ms(&self) -> u64 {
        self.members
            .values()
            .map(|member| super::context::millis(member.rebalance_timeout_ms))
            .max()
            .unwrap_or(0)
    }

    /// If the leader has not joined again, another member that has becomes leader. False if nobody has joined.
    pub(super) fn maybe_elect_new_joined_leader(&mut self) -> bool {
        let Some(leader_id) = &self.leader_id else { return false };
        if self.members.get(leader_id).is_some_and(|leader| leader.awaiting_join.is_some()) {
            return true;
        }
        let elected = self
            .by_arrival()
            .into_iter()
            .find(|member| member.awaiting_join.is_some())
            .map(|member| Arc::clone(&member.id));
        if let Some(elected) = elected {
            info!(group = %self.id, old_leader = %leader_id, leader = %elected,
                "the leader did not join before the rebalance timeout; another member leads");
            self.leader_id = Some(elected);
            return true;
        }
        false
    }

    /// Checks that the member exists and has not been fenced (KIP-345).
    pub(super) fn validate_member(
        &self,
        member_id: &str,
        instance_id: Option<&str>,
    ) -> Result<(), GroupError> {
        if let Some(instance_id) = instance_id {
            match self.static_members.get(instance_id) {
                None => return Err(GroupError::UnknownMemberId),
                Some(existing) if existing.as_ref() != member_id => {
                    info!(group = %self.id, instance_id, member_id, existing = %existing,
                        "request of a fenced static member");
                    return Err(GroupError::FencedInstanceId);
                }
                Some(_) => {}
            }
        }
        if self.members.contains_key(member_id) { Ok(()) } else { Err(GroupError::UnknownMemberId) }
    }

    /// Whether a member with these protocols can join.
    pub(super) fn supports_protocols(&self, protocol_type: &str, protocols: &[Protocol]) -> bool {
        if self.is(GroupState::Empty) {
            return !protocol_type.is_empty() && !protocols.is_empty();
        }
        self.protocol_type.as_deref() == Some(protocol_type)
            && protocols.iter().any(|protocol| {
                self.supported_protocols.get(&protocol.name).copied().unwrap_or(0) == self.members.len()
            })
    }

    /// The protocol with the most votes among those that every member offers; on a tie the leader's preference
    /// decides. `None` if there are no members or no common protocol.
    pub(super) fn select_protocol(&self) -> Option<String> {
        let everyone = self.members.len();
        let candidates: BTreeSet<&str> = self
            .supported_protocols
            .iter()
            .filter(|(_, count)| **count == everyone)
            .map(|(name, _)| name.as_str())
            .collect();
        let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
        for vote in self.members.values().filter_map(|member| member.vote(&candidates)) {
            let count = votes.entry(vote).or_insert(0);
            *count = count.saturating_add(1);
        }
        let most = votes.values().copied().max()?;
        let winners: BTreeSet<&str> =
            votes.iter().filter(|(_, count)| **count == most).map(|(name, _)| *name).collect();
        let leader = self.leader_id.as_ref().and_then(|leader_id| self.members.get(leader_id));
        leader
            .and_then(|leader| leader.vote(&winners))
            .or_else(|| winners.first().copied())
            .map(str::to_owned)
    }

    /// The topics of all subscriptions; `None` if the group's protocol is not the consumer's, or unreadable.
    pub(super) fn compute_subscribed_topics(&self) -> Option<BTreeSet<String>> {
        if !self.uses_consumer_protocol() {
            return None;
        }
        if self.members.is_empty() {
            return Some(BTreeSet::new());
        }
        let protocol = self.protocol_name.as_deref()?;
        let mut all = BTreeSet::new();
        for member in self.members.values() {
            match subscription::topics(&member.metadata(protocol)) {
                Some(topics) => all.extend(topics),
                None => {
                    warn!(group = %self.id, member = %member.id, protocol,
                        "a subscription cannot be read; the subscribed topics are not known");
                    return None;
                }
            }
        }
        Some(all)
    }

    /// Whether a member consumes the topic; assumed where the subscriptions cannot be read.
    pub(super) fn is_subscribed_to(&self, topic: &str) -> bool {
        match &self.subscribed_topics {
            Some(topics) => topics.contains(topic),
            None => self.uses_consumer_protocol(),
        }
    }

    /// Begins the next generation with the members there are; empty if there are none.
    pub(super) fn init_next_generation(&mut self, now: Now) {
        self.generation_id = self.generation_id.checked_add(1).unwrap_or(1);
        self.protocol_name = self.select_protocol();
        self.subscribed_topics = self.compute_subscribed_topics();
        let next = if self.members.is_empty() { GroupState::Empty } else { GroupState::CompletingRebalance };
        self.transition_to(next, now);
        self.pending_sync.clear();
    }

    /// The members as the leader gets them.
    pub(super) fn joined_members(&self) -> Vec<JoinedMember> {
        let protocol = self.protocol_name.as_deref().unwrap_or_default();
        self.by_arrival()
            .into_iter()
            .map(|member| JoinedMember {
                member_id: Arc::clone(&member.id),
                group_instance_id: member.group_instance_id.clone(),
                metadata: member.metadata(protocol),
            })
            .collect()
    }

    /// The answer to a JoinGroup of the current generation.
    pub(super) fn join_response(&self, member_id: &str) -> JoinResponse {
        JoinResponse {
            error: None,
            generation_id: self.generation_id,
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol_name.clone(),
            leader: self.leader_or_empty(),
            skip_assignment: false,
            member_id: member_id.to_owned(),
            members: if self.is_leader(member_id) { self.joined_members() } else { Vec::new() },
        }
    }
}
