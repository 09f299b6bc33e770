//! SyncGroup, Heartbeat, LeaveGroup, DescribeGroups of a classic group.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tracing::{info, warn};

use super::context::{Cx, Then};
use super::error::GroupError;
use super::group::{ClassicGroup, GroupState};
use super::join::logged_reason;
use super::messages::{
    DescribedGroup, DescribedMember, HeartbeatRequest, LeaveResponse, LeavingMember, LeftMember, Response,
    SyncRequest, SyncResponse, Token,
};
use super::records::Record;
use super::timers::TimerKey;

impl ClassicGroup {
    /// Handles a SyncGroup.
    pub(super) fn sync(&mut self, request: SyncRequest, token: Token, cx: &mut Cx<'_>) {
        if let Err(error) = self.validate_sync(&request) {
            return cx.reply(token, Response::Sync(SyncResponse::failed(error)));
        }
        match self.state {
            GroupState::CompletingRebalance => self.sync_completing(request, token, cx),
            GroupState::Stable => {
                self.sync_received(&request.member_id, cx);
                let response = self.sync_response(&request.member_id);
                cx.reply(token, Response::Sync(response));
            }
            GroupState::PreparingRebalance => {
                cx.reply(token, Response::Sync(SyncResponse::failed(GroupError::RebalanceInProgress)));
            }
            GroupState::Empty | GroupState::Dead => {
                cx.reply(token, Response::Sync(SyncResponse::failed(GroupError::UnknownMemberId)));
            }
        }
    }

    fn validate_sync(&self, request: &SyncRequest) -> Result<(), GroupError> {
        if self.is(GroupState::Dead) {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        if self.is(GroupState::Empty) {
            return Err(GroupError::UnknownMemberId);
        }
        self.validate_member(&request.member_id, request.group_instance_id.as_deref())?;
        if request.generation_id != self.generation_id {
            return Err(GroupError::IllegalGeneration);
        }
        let differs = |asked: &Option<String>, ours: &Option<String>| {
            asked.is_some() && ours.is_some() && asked != ours
        };
        if differs(&request.protocol_type, &self.protocol_type)
            || differs(&request.protocol_name, &self.protocol_name)
        {
            return Err(GroupError::InconsistentGroupProtocol);
        }
        Ok(())
    }

    fn sync_completing(&mut self, request: SyncRequest, token: Token, cx: &mut Cx<'_>) {
        let member_id = request.member_id.as_str();
        // An earlier SyncGroup of the same member gives way.
        self.complete_sync(member_id, SyncResponse::failed(GroupError::RebalanceInProgress), cx);
        if let Some(member) = self.members.get_mut(member_id) {
            member.awaiting_sync = Some(token);
        }
        self.sync_received(member_id, cx);
        if !self.is_leader(member_id) {
            return;
        }
        info!(group = %self.id, generation = self.generation_id, members = self.members.len(),
            leader = member_id, "assignment received from the leader");
        let given: BTreeMap<&str, &Bytes> =
            request.assignments.iter().map(|(member, bytes)| (member.as_str(), bytes)).collect();
        let mut assignment: BTreeMap<Arc<str>, Bytes> = BTreeMap::new();
        for id in self.members.keys() {
            let bytes = given.get(id.as_ref()).map(|bytes| (*bytes).clone());
            if bytes.is_none() {
                warn!(group = %self.id, member = %id, "the leader has left a member out of the assignment");
            }
            assignment.insert(Arc::clone(id), bytes.unwrap_or_default());
        }
        let record = Record::Group(self.to_record(Some(&assignment)));
        cx.persist(
            vec![record],
            Then::Assigned { group: Arc::clone(&self.id), generation_id: self.generation_id, assignment },
        );
    }

    fn sync_received(&mut self, member_id: &str, cx: &mut Cx<'_>) {
        self.pending_sync.remove(member_id);
        if self.pending_sync.is_empty() {
            cx.timers.cancel(&TimerKey::Sync(Arc::clone(&self.id)));
        }
    }

    /// Handles a Heartbeat.
    pub(super) fn heartbeat(
        &mut self,
        request: &HeartbeatRequest,
        cx: &mut Cx<'_>,
    ) -> Result<(), GroupError> {
        if self.is(GroupState::Dead) {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        self.validate_member(&request.member_id, request.group_instance_id.as_deref())?;
        if request.generation_id != self.generation_id {
            return Err(GroupError::IllegalGeneration);
        }
        match self.state {
            GroupState::Empty | GroupState::Dead => Err(GroupError::UnknownMemberId),
            GroupState::PreparingRebalance => {
                self.rearm_session(&request.member_id, cx);
                Err(GroupError::RebalanceInProgress)
            }
            // Heartbeats may come before the SyncGroup; they count.
            GroupState::CompletingRebalance | GroupState::Stable => {
                self.rearm_session(&request.member_id, cx);
                Ok(())
            }
        }
    }

    /// Handles a LeaveGroup of one or more members.
    pub(super) fn leave(&mut self, members: &[LeavingMember], cx: &mut Cx<'_>) -> LeaveResponse {
        if self.is(GroupState::Dead) {
            return LeaveResponse { error: Some(GroupError::CoordinatorNotAvailable), members: Vec::new() };
        }
        let left: Vec<LeftMember> = members
            .iter()
            .map(|member| LeftMember {
                member_id: member.member_id.clone(),
                group_instance_id: member.group_instance_id.clone(),
                error: self.leave_one(member, cx).err(),
            })
            .collect();
        if left.iter().any(|member| member.error.is_none()) {
            match self.state {
                GroupState::Stable | GroupState::CompletingRebalance => {
                    self.maybe_prepare_rebalance_or_complete_join("members have left the group", cx);
                }
                GroupState::PreparingRebalance => self.maybe_complete_join_phase(cx),
                GroupState::Empty | GroupState::Dead => {}
            }
        }
        LeaveResponse { error: None, members: left }
    }

    fn leave_one(&mut self, member: &LeavingMember, cx: &mut Cx<'_>) -> Result<(), GroupError> {
        let instance_id = member.group_instance_id.as_deref();
        let member_id: Arc<str> = if member.member_id.is_empty() {
            // An administrator removes a static member by its instance id alone.
            let id = instance_id.and_then(|instance_id| self.static_members.get(instance_id));
            id.cloned().ok_or(GroupError::UnknownMemberId)?
        } else {
            if !self.pending_join.contains(member.member_id.as_str()) {
                self.validate_member(&member.member_id, instance_id)?;
            }
            Arc::from(member.member_id.as_str())
        };
        info!(group = %self.id, member = %member_id,
            reason = logged_reason(member.reason.as_deref()), "member leaves the group");
        self.remove(&member_id, cx);
        Ok(())
    }

    /// The group as DescribeGroups shows it.
    pub(super) fn describe(&self) -> DescribedGroup {
        let stable = self.is(GroupState::Stable);
        let protocol = self.protocol_name.clone().filter(|_| stable).unwrap_or_default();
        DescribedGroup {
            group_id: self.id.to_string(),
            error: None,
            state: self.state.name(),
            found: true,
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            members: self
                .by_arrival()
                .into_iter()
                .map(|member| DescribedMember {
                    member_id: Arc::clone(&member.id),
                    group_instance_id: member.group_instance_id.clone(),
                    client_id: member.client_id.clone(),
                    client_host: member.client_host.clone(),
                    metadata: if stable { member.metadata(&protocol) } else { Bytes::new() },
                    assignment: member.assignment.clone(),
                })
                .collect(),
            protocol,
        }
    }
}
