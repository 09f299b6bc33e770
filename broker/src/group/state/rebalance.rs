//! The rebalance of a classic group: join phase, sync phase, their time-outs.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tracing::{debug, error, info, warn};

use super::context::{Cx, Then, millis};
use super::error::GroupError;
use super::group::{ClassicGroup, GroupState};
use super::messages::SyncResponse;
use super::records::Record;
use super::timers::{TimerAction, TimerKey};

impl ClassicGroup {
    /// Starts a rebalance if the state allows one, else looks whether the running one can go on.
    pub(super) fn maybe_prepare_rebalance_or_complete_join(&mut self, reason: &str, cx: &mut Cx<'_>) {
        if self.can_rebalance() {
            self.prepare_rebalance(reason, cx);
        } else {
            self.maybe_complete_join_phase(cx);
        }
    }

    /// Starts a rebalance. An empty group first waits a while for more members.
    pub(super) fn prepare_rebalance(&mut self, reason: &str, cx: &mut Cx<'_>) {
        if self.is(GroupState::CompletingRebalance) {
            self.reset_and_propagate_error(GroupError::RebalanceInProgress, cx);
        }
        self.pending_sync.clear();
        cx.timers.cancel(&TimerKey::Sync(Arc::clone(&self.id)));

        let initial = self.is(GroupState::Empty);
        if initial {
            self.new_member_added = false;
            let delay_ms = u64::from(cx.config.initial_rebalance_delay_ms);
            let remaining_ms = self.rebalance_timeout_ms().saturating_sub(delay_ms);
            cx.timers.arm(
                TimerKey::Join(Arc::clone(&self.id)),
                cx.after(delay_ms),
                TimerAction::InitialJoin { delay_ms, remaining_ms },
            );
        }
        self.transition_to(GroupState::PreparingRebalance, cx.now);
        info!(group = %self.id, generation = self.generation_id, members = self.members.len(), reason,
            "preparing to rebalance");

        if !initial {
            if self.has_all_members_joined() {
                self.complete_join_phase(cx);
            } else {
                self.arm_join_timer(cx);
            }
        }
    }

    fn arm_join_timer(&mut self, cx: &mut Cx<'_>) {
        let deadline = cx.after(self.rebalance_timeout_ms());
        cx.timers.arm(TimerKey::Join(Arc::clone(&self.id)), deadline, TimerAction::CompleteJoin);
    }

    /// Ends the join phase if everyone is there and the initial delay is not running.
    pub(super) fn maybe_complete_join_phase(&mut self, cx: &mut Cx<'_>) {
        if self.is(GroupState::PreparingRebalance)
            && self.previous_state != GroupState::Empty
            && self.has_all_members_joined()
        {
            self.complete_join_phase(cx);
        }
    }

    /// The initial delay is over: extended if members have joined meanwhile and the rebalance timeout allows it.
    pub(super) fn initial_delay_over(&mut self, delay_ms: u64, remaining_ms: u64, cx: &mut Cx<'_>) {
        if !(self.new_member_added && remaining_ms != 0) {
            self.complete_join_phase(cx);
            return;
        }
        self.new_member_added = false;
        let next_delay_ms = u64::from(cx.config.initial_rebalance_delay_ms).min(remaining_ms);
        cx.timers.arm(
            TimerKey::Join(Arc::clone(&self.id)),
            cx.after(next_delay_ms),
            TimerAction::InitialJoin {
                delay_ms: next_delay_ms,
                remaining_ms: remaining_ms.saturating_sub(delay_ms),
            },
        );
    }

    /// Ends the join phase: dynamic members that have not joined are out, the others form the next generation.
    pub(super) fn complete_join_phase(&mut self, cx: &mut Cx<'_>) {
        cx.timers.cancel(&TimerKey::Join(Arc::clone(&self.id)));
        if !self.is(GroupState::PreparingRebalance) {
            return;
        }
        let late: Vec<Arc<str>> = self
            .members
            .values()
            .filter(|member| member.awaiting_join.is_none() && !member.is_static())
            .map(|member| Arc::clone(&member.id))
            .collect();
        for member_id in late {
            info!(group = %self.id, member = %member_id, "removed a member that has not joined");
            self.remove(&member_id, cx);
        }

        if !self.maybe_elect_new_joined_leader() && !self.members.is_empty() {
            // Only static members are left, and none has joined: wait for them or for their sessions to end.
            error!(group = %self.id, "no member has joined; the rebalance goes on waiting");
            self.arm_join_timer(cx);
            return;
        }
        self.init_next_generation(cx.now);
        if self.is(GroupState::Empty) {
            self.became_empty(cx);
        } else {
            self.begin_sync_phase(cx);
        }
    }

    fn became_empty(&mut self, cx: &mut Cx<'_>) {
        info!(group = %self.id, generation = self.generation_id, "the group is empty");
        let record = Record::Group(self.to_record(None));
        cx.persist(vec![record], Then::Emptied);
    }

    fn begin_sync_phase(&mut self, cx: &mut Cx<'_>) {
        info!(group = %self.id, generation = self.generation_id, members = self.members.len(),
            protocol = self.protocol_name.as_deref(), "stabilized the group");
        let member_ids: Vec<Arc<str>> =
            self.by_arrival().into_iter().map(|member| Arc::clone(&member.id)).collect();
        for member_id in member_ids {
            let response = self.join_response(&member_id);
            self.complete_join(&member_id, response, cx);
            self.rearm_session(&member_id, cx);
            if let Some(member) = self.members.get_mut(&member_id) {
                member.is_new = false;
            }
            self.pending_sync.insert(member_id);
        }
        cx.timers.arm(
            TimerKey::Sync(Arc::clone(&self.id)),
            cx.after(self.rebalance_timeout_ms()),
            TimerAction::ExpireSync { generation_id: self.generation_id },
        );
    }

    /// Members that have not sent SyncGroup in time are removed, and the others rebalance.
    pub(super) fn sync_expired(&mut self, generation_id: i32, cx: &mut Cx<'_>) {
        let current = generation_id == self.generation_id
            && matches!(self.state, GroupState::CompletingRebalance | GroupState::Stable);
        if !current || self.pending_sync.is_empty() {
            debug!(group = %self.id, generation_id, "a sync expiration that is no longer due");
            return;
        }
        let late = std::mem::take(&mut self.pending_sync);
        for member_id in &late {
            self.remove(member_id, cx);
        }
        self.prepare_rebalance("members have not sent SyncGroup in time", cx);
    }

    /// A session has ended: the member is removed unless it waits for an answer from us.
    pub(super) fn session_expired(&mut self, member_id: &str, cx: &mut Cx<'_>) {
        if self.is(GroupState::Dead) {
            return;
        }
        if self.pending_join.contains(member_id) {
            info!(group = %self.id, member = member_id, "pending member removed: its session has ended");
            self.remove(member_id, cx);
            if self.is(GroupState::PreparingRebalance) && self.has_all_members_joined() {
                self.complete_join_phase(cx);
            }
            return;
        }
        if self.members.get(member_id).is_none_or(super::member::Member::has_satisfied_heartbeat) {
            return;
        }
        info!(group = %self.id, member = member_id, "member failed: its session has ended");
        self.remove(member_id, cx);
        match self.state {
            GroupState::Stable | GroupState::CompletingRebalance => {
                self.prepare_rebalance("a member's session has ended", cx);
            }
            GroupState::PreparingRebalance if self.has_all_members_joined() => self.complete_join_phase(cx),
            _ => {}
        }
    }

    /// Restarts the member's session.
    pub(super) fn rearm_session(&mut self, member_id: &str, cx: &mut Cx<'_>) {
        if let Some(member) = self.members.get(member_id) {
            let timeout_ms = millis(member.session_timeout_ms);
            self.arm_session(Arc::clone(&member.id), timeout_ms, cx);
        }
    }

    pub(super) fn arm_session(&self, member_id: Arc<str>, timeout_ms: u64, cx: &mut Cx<'_>) {
        cx.timers.arm(
            TimerKey::Session(Arc::clone(&self.id), member_id),
            cx.after(timeout_ms),
            TimerAction::ExpireSession,
        );
    }

    /// Takes all assignments back and fails the SyncGroups that wait.
    pub(super) fn reset_and_propagate_error(&mut self, error: GroupError, cx: &mut Cx<'_>) {
        for member in self.members.values_mut() {
            member.assignment = Bytes::new();
        }
        self.propagate_assignment(Some(error), cx);
    }

    /// Gives every member its assignment and answers the SyncGroups that wait.
    pub(super) fn set_and_propagate_assignment(
        &mut self,
        assignment: &BTreeMap<Arc<str>, Bytes>,
        cx: &mut Cx<'_>,
    ) {
        for member in self.members.values_mut() {
            member.assignment = assignment.get(&member.id).cloned().unwrap_or_default();
            if member.assignment.is_empty() {
                warn!(group = %self.id, member = %member.id, generation = self.generation_id,
                    "the member gets an empty assignment");
            }
        }
        self.propagate_assignment(None, cx);
    }

    fn propagate_assignment(&mut self, error: Option<GroupError>, cx: &mut Cx<'_>) {
        let member_ids: Vec<Arc<str>> = self.members.keys().cloned().collect();
        for member_id in member_ids {
            let response = match error {
                Some(error) => SyncResponse::failed(error),
                None => self.sync_response(&member_id),
            };
            // The session did not run out while the member waited; it starts anew with the answer.
            if self.complete_sync(&member_id, response, cx) {
                self.rearm_session(&member_id, cx);
            }
        }
    }

    /// The answer to a SyncGroup of the current generation.
    pub(super) fn sync_response(&self, member_id: &str) -> SyncResponse {
        SyncResponse {
            error: None,
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol_name.clone(),
            assignment: self
                .members
                .get(member_id)
                .map(|member| member.assignment.clone())
                .unwrap_or_default(),
        }
    }

    /// The leader's assignment is durable, or could not be made so.
    pub(super) fn assignment_persisted(
        &mut self,
        outcome: Result<(), GroupError>,
        generation_id: i32,
        assignment: &BTreeMap<Arc<str>, Bytes>,
        cx: &mut Cx<'_>,
    ) {
        // Another member may have joined meanwhile; then the next generation will have its own assignment.
        if !self.is(GroupState::CompletingRebalance) || generation_id != self.generation_id {
            return;
        }
        match outcome {
            Ok(()) => {
                self.set_and_propagate_assignment(assignment, cx);
                self.transition_to(GroupState::Stable, cx.now);
            }
            Err(error) => {
                self.reset_and_propagate_error(error, cx);
                self.prepare_rebalance("the assignment could not be stored", cx);
            }
        }
    }
}
