//! JoinGroup: new, returning and static members (KIP-394, KIP-345, KIP-800, KIP-814).

use std::sync::Arc;

use bytes::Bytes;
use tracing::{info, warn};

use super::context::{Cx, StaticReplaced, Then, millis};
use super::error::GroupError;
use super::group::{ClassicGroup, GroupState};
use super::member::Member;
use super::messages::{JoinRequest, JoinResponse, Response, Token};
use super::records::Record;

/// Most characters of a client's reason that are logged.
const REASON_CHARS_MAX: usize = 255;

impl ClassicGroup {
    /// Handles a JoinGroup whose session timeout has been checked.
    pub(super) fn join(&mut self, request: JoinRequest, token: Token, cx: &mut Cx<'_>) {
        if self.is(GroupState::Dead) {
            return fail(&request.member_id, GroupError::CoordinatorNotAvailable, token, cx);
        }
        if !self.accepts_joining_member(&request.member_id, cx) {
            self.remove(&request.member_id, cx);
            return fail("", GroupError::GroupMaxSizeReached, token, cx);
        }
        if !self.supports_protocols(&request.protocol_type, &request.protocols) {
            return fail(&request.member_id, GroupError::InconsistentGroupProtocol, token, cx);
        }
        if !request.member_id.is_empty() {
            return self.join_existing(request, token, cx);
        }
        let prefix = request.group_instance_id.as_deref().unwrap_or(&request.client_id);
        let member_id: Arc<str> = Arc::from(format!("{prefix}-{}", request.fresh_id));
        if request.group_instance_id.is_some() {
            self.join_new_static(request, member_id, token, cx);
        } else {
            self.join_new_dynamic(request, member_id, token, cx);
        }
    }

    /// Whether `group.max.size` has room for this member.
    fn accepts_joining_member(&self, member_id: &str, cx: &Cx<'_>) -> bool {
        let member = self.members.get(member_id);
        match self.state {
            GroupState::Empty | GroupState::Dead => true,
            // Those who already wait count, not all members: so the last to join again are kept out when the
            // limit has been lowered.
            GroupState::PreparingRebalance => {
                member.is_some_and(|member| member.awaiting_join.is_some())
                    || self.awaiting_join() < cx.config.max_size
            }
            GroupState::CompletingRebalance | GroupState::Stable => {
                member.is_some() || self.members.len() < cx.config.max_size
            }
        }
    }

    fn join_new_static(&mut self, request: JoinRequest, member_id: Arc<str>, token: Token, cx: &mut Cx<'_>) {
        let instance_id = request.group_instance_id.clone().unwrap_or_default();
        match self.static_members.get(&instance_id).cloned() {
            Some(existing) => {
                info!(group = %self.id, instance_id, old = %existing, new = %member_id,
                    "a static member is back under a new member id");
                self.replace_then_rebalance(request, &instance_id, &existing, &member_id, token, cx);
            }
            None => self.add_then_rebalance(request, member_id, token, cx),
        }
    }

    fn join_new_dynamic(&mut self, request: JoinRequest, member_id: Arc<str>, token: Token, cx: &mut Cx<'_>) {
        if !request.requires_known_member_id {
            return self.add_then_rebalance(request, member_id, token, cx);
        }
        info!(group = %self.id, member = %member_id, "new member must join again with its id");
        self.pending_join.insert(Arc::clone(&member_id));
        self.arm_session(Arc::clone(&member_id), millis(request.session_timeout_ms), cx);
        fail(&member_id, GroupError::MemberIdRequired, token, cx);
    }

    fn join_existing(&mut self, request: JoinRequest, token: Token, cx: &mut Cx<'_>) {
        let member_id = request.member_id.clone();
        if self.pending_join.contains(member_id.as_str()) {
            if request.group_instance_id.is_some() {
                // Ids of pending members are never given to static members.
                return fail(&member_id, GroupError::UnknownMemberId, token, cx);
            }
            return self.add_then_rebalance(request, Arc::from(member_id), token, cx);
        }
        if let Err(error) = self.validate_member(&member_id, request.group_instance_id.as_deref()) {
            return fail(&member_id, error, token, cx);
        }
        let unchanged =
            self.members.get(member_id.as_str()).is_some_and(|member| member.protocols == request.protocols);
        match self.state {
            GroupState::PreparingRebalance => self.update_then_rebalance(request, token, cx),
            // The member has perhaps not received the answer to its earlier JoinGroup.
            GroupState::CompletingRebalance if unchanged => {
                let response = self.join_response(&member_id);
                cx.reply(token, Response::Join(response));
            }
            // A leader joins again to trigger a rebalance; a follower that has not changed is just answered.
            GroupState::Stable if unchanged && !self.is_leader(&member_id) => {
                let response = self.join_response(&member_id);
                cx.reply(token, Response::Join(response));
            }
            GroupState::CompletingRebalance | GroupState::Stable => {
                self.update_then_rebalance(request, token, cx);
            }
            GroupState::Empty | GroupState::Dead => {
                warn!(group = %self.id, member = member_id, state = self.state.name(),
                    "a known member joins in an unexpected state");
                fail(&member_id, GroupError::UnknownMemberId, token, cx);
            }
        }
    }

    fn add_then_rebalance(
        &mut self,
        request: JoinRequest,
        member_id: Arc<str>,
        token: Token,
        cx: &mut Cx<'_>,
    ) {
        if self.is(GroupState::PreparingRebalance) && self.previous_state == GroupState::Empty {
            self.new_member_added = true;
        }
        let reason = format!(
            "adding member {member_id}, instance {}; client reason: {}",
            request.group_instance_id.as_deref().unwrap_or("none"),
            join_reason(&request)
        );
        self.add(Member {
            id: Arc::clone(&member_id),
            group_instance_id: request.group_instance_id,
            client_id: request.client_id,
            client_host: request.client_host,
            rebalance_timeout_ms: request.rebalance_timeout_ms,
            session_timeout_ms: request.session_timeout_ms,
            protocol_type: request.protocol_type,
            protocols: request.protocols,
            assignment: Bytes::new(),
            awaiting_join: Some(token),
            awaiting_sync: None,
            is_new: true,
            arrival: 0,
        });
        // A new member cannot send heartbeats while it waits, and its client may give up and come back as yet
        // another new member. So its place is kept for a limited time only.
        self.arm_session(member_id, u64::from(cx.config.new_member_join_timeout_ms), cx);
        self.maybe_prepare_rebalance_or_complete_join(&reason, cx);
    }

    fn update_then_rebalance(&mut self, request: JoinRequest, token: Token, cx: &mut Cx<'_>) {
        let reason = format!(
            "member {} joins again in state {}; client reason: {}",
            request.member_id,
            self.state.name(),
            join_reason(&request)
        );
        self.update_member(
            &request.member_id,
            request.protocols,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            Some(token),
            cx,
        );
        self.maybe_prepare_rebalance_or_complete_join(&reason, cx);
    }

    fn replace_then_rebalance(
        &mut self,
        request: JoinRequest,
        instance_id: &str,
        old_member_id: &Arc<str>,
        new_member_id: &Arc<str>,
        token: Token,
        cx: &mut Cx<'_>,
    ) {
        let old_leader = self.leader_id.clone();
        self.replace_static_member(instance_id, old_member_id, new_member_id, cx);
        self.rearm_session(new_member_id, cx);
        let Some(member) = self.members.get(new_member_id) else {
            return fail("", GroupError::UnknownMemberId, token, cx);
        };
        let replaced = StaticReplaced {
            group: Arc::clone(&self.id),
            generation_id: self.generation_id,
            instance_id: instance_id.to_owned(),
            old_member_id: Arc::clone(old_member_id),
            new_member_id: Arc::clone(new_member_id),
            old_protocols: member.protocols.clone(),
            old_rebalance_timeout_ms: member.rebalance_timeout_ms,
            old_session_timeout_ms: member.session_timeout_ms,
            old_leader,
            supports_skipping_assignment: request.supports_skipping_assignment,
            token,
        };
        let reason = format!("static member {instance_id} is back; client reason: {}", join_reason(&request));
        self.update_member(
            new_member_id,
            request.protocols,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            Some(token),
            cx,
        );
        match self.state {
            GroupState::Stable if self.protocol_name == self.select_protocol() => {
                // Nothing changes for the others: the new member id is stored, then the member goes on with the
                // assignment it had.
                let record = Record::Group(self.to_record(None));
                cx.persist(vec![record], Then::StaticReplaced(replaced));
            }
            GroupState::Stable => self.maybe_prepare_rebalance_or_complete_join(&reason, cx),
            // The leader may be computing with the old member id; its assignment would miss the new one.
            GroupState::CompletingRebalance => self.prepare_rebalance(&reason, cx),
            _ => self.maybe_complete_join_phase(cx),
        }
    }

    /// The new id of a static member is durable, or could not be made so.
    pub(super) fn static_replacement_persisted(
        &mut self,
        outcome: Result<(), GroupError>,
        replaced: StaticReplaced,
        cx: &mut Cx<'_>,
    ) {
        let member_id = Arc::clone(&replaced.new_member_id);
        let waits =
            self.members.get(&member_id).is_some_and(|member| member.awaiting_join == Some(replaced.token));
        if !waits {
            // Answered already: fenced by yet another bounce, removed, or part of a newer generation.
            return;
        }
        if let Err(error) = outcome {
            return self.take_back_static_replacement(error, replaced, cx);
        }
        if !self.is(GroupState::Stable) || self.generation_id != replaced.generation_id {
            // A rebalance has begun meanwhile; the waiting JoinGroup counts for it and is answered by it.
            return;
        }
        let mut response = self.join_response(&member_id);
        if replaced.supports_skipping_assignment {
            response.skip_assignment = self.is_leader(&member_id);
        } else {
            // Older clients that find themselves to be the leader would compute an assignment which nobody
            // will get; under the old leader's id they do not recognise themselves.
            response.leader = replaced.old_leader.as_deref().unwrap_or_default().to_owned();
            response.members = Vec::new();
        }
        self.complete_join(&member_id, response, cx);
        self.rearm_session(&member_id, cx);
    }

    fn take_back_static_replacement(&mut self, error: GroupError, replaced: StaticReplaced, cx: &mut Cx<'_>) {
        warn!(group = %self.id, instance_id = replaced.instance_id, %error,
            "a static member's new id could not be stored; its old one stays");
        let mut response = self.join_response(&replaced.new_member_id);
        response.error = Some(error);
        response.member_id = String::new();
        response.members = Vec::new();
        response.leader = replaced.old_leader.as_deref().unwrap_or_default().to_owned();
        self.complete_join(&replaced.new_member_id, response, cx);
        self.update_member(
            &replaced.new_member_id,
            replaced.old_protocols,
            replaced.old_rebalance_timeout_ms,
            replaced.old_session_timeout_ms,
            None,
            cx,
        );
        let old = Arc::clone(&replaced.old_member_id);
        self.replace_static_member(&replaced.instance_id, &replaced.new_member_id, &old, cx);
        self.rearm_session(&old, cx);
        self.maybe_complete_join_phase(cx);
    }
}

fn join_reason(request: &JoinRequest) -> &str {
    logged_reason(request.reason.as_deref())
}

/// A client's reason, as long as it may be in our log (clients send up to 255 characters).
pub(super) fn logged_reason(reason: Option<&str>) -> &str {
    let reason = reason.filter(|reason| !reason.is_empty()).unwrap_or("not provided");
    reason.char_indices().nth(REASON_CHARS_MAX).and_then(|(end, _)| reason.get(..end)).unwrap_or(reason)
}

fn fail(member_id: &str, error: GroupError, token: Token, cx: &mut Cx<'_>) {
    cx.reply(token, Response::Join(JoinResponse::failed(member_id, error)));
}

#[cfg(test)]
mod tests {
    use super::logged_reason;

    #[test]
    fn long_reasons_are_cut_between_characters() {
        assert_eq!(logged_reason(None), "not provided");
        assert_eq!(logged_reason(Some("")), "not provided");
        assert_eq!(logged_reason(Some("ä")), "ä");
        assert_eq!(logged_reason(Some(&"ä".repeat(300))), "ä".repeat(255));
    }
}
