//! Joining, syncing, heartbeats, leaving, time-outs.

use super::sim::*;
use crate::group::state::*;

#[test]
fn a_member_joins_syncs_and_lives() {
    let mut sim = Sim::new(config());
    let (id, token) = sim.dynamic("a");
    assert_eq!(id, "a-fresh-a");
    assert!(sim.waits(token));
    assert_eq!(sim.state(), "PreparingRebalance");
    sim.advance(2_999);
    assert!(sim.waits(token));
    sim.advance(1);
    let answer = sim.joined(token).clone();
    assert_eq!(answer.error, None);
    assert_eq!((answer.generation_id, answer.leader.as_str()), (1, id.as_str()));
    assert_eq!(answer.protocol_name.as_deref(), Some("range"));
    assert_eq!(answer.protocol_type.as_deref(), Some("consumer"));
    assert_eq!(answer.members.len(), 1);
    assert_eq!(answer.members[0].metadata, subscription(&["t"]));
    assert_eq!(sim.state(), "CompletingRebalance");
    assert_eq!(sim.heartbeat(&id, 1), Ok(()));

    sim.auto_persist = false;
    let synced = sim.sync(lead(&id, 1, std::slice::from_ref(&id)));
    assert!(sim.waits(synced), "an assignment is handed out only when it is durable");
    assert_eq!(sim.state(), "CompletingRebalance");
    sim.persist_one(Ok(()));
    assert_eq!(sim.synced(synced).assignment, assignment(&id, 1));
    assert_eq!(sim.state(), "Stable");

    for _ in 0..10 {
        sim.advance(9_999);
        assert_eq!(sim.heartbeat(&id, 1), Ok(()));
    }
    assert_eq!(sim.heartbeat(&id, 2), Err(GroupError::IllegalGeneration));
    assert_eq!(sim.heartbeat("stranger", 1), Err(GroupError::UnknownMemberId));
    sim.advance(10_000);
    assert_eq!(sim.heartbeat(&id, 1), Err(GroupError::UnknownMemberId));
    assert_eq!(sim.state(), "Empty");
}

#[test]
fn old_clients_join_in_one_step() {
    let mut sim = Sim::new(config());
    let token = sim.join(JoinRequest { requires_known_member_id: false, ..join("a", "") });
    sim.advance(3_000);
    assert_eq!(sim.joined(token).member_id, "a-fresh-a");
}

#[test]
fn the_initial_delay_is_extended_by_joins_up_to_the_rebalance_timeout() {
    let mut sim = Sim::new(config());
    let quick = |name: &str| JoinRequest {
        requires_known_member_id: false,
        rebalance_timeout_ms: 7_000,
        ..join(name, "")
    };
    let a = sim.join(quick("a"));
    sim.advance(2_000);
    let b = sim.join(quick("b"));
    sim.advance(1_000);
    assert!(sim.waits(a), "extended at 3 s");
    sim.advance(2_999);
    let c = sim.join(quick("c"));
    assert!(sim.waits(a) && sim.waits(b));
    sim.advance(1);
    // At 6 s one second of the rebalance timeout remains.
    assert!(sim.waits(a));
    sim.advance(1_000);
    for token in [a, b, c] {
        assert_eq!(sim.joined(token).generation_id, 1);
    }
    assert_eq!(sim.joined(a).members.len(), 3);
    assert!(sim.joined(b).members.is_empty());
}

#[test]
fn without_joins_the_initial_delay_ends_once() {
    let mut sim = Sim::new(GroupConfig { initial_rebalance_delay_ms: 0, ..config() });
    let (_, token) = sim.dynamic("a");
    sim.advance(0);
    assert_eq!(sim.joined(token).generation_id, 1);
}

#[test]
fn followers_wait_for_the_leader() {
    let mut sim = Sim::new(config());
    let ids = sim.stable(&["a", "b", "c"]);
    // A SyncGroup in a stable group just gets the assignment.
    let again = sim.sync(sync(&ids[1], 1));
    assert_eq!(sim.synced(again).assignment, assignment(&ids[1], 1));
    assert_eq!(sim.synced(again).protocol_name.as_deref(), Some("range"));
}

#[test]
fn members_that_the_leader_forgets_get_an_empty_assignment() {
    let mut sim = Sim::new(config());
    let (a, _) = sim.dynamic("a");
    let (b, _) = sim.dynamic("b");
    sim.advance(10_000);
    let follower = sim.sync(sync(&b, 1));
    let mut request = lead(&a, 1, std::slice::from_ref(&a));
    request.assignments.push(("stranger".into(), assignment("stranger", 1)));
    sim.sync(request);
    assert_eq!(sim.synced(follower).error, None);
    assert!(sim.synced(follower).assignment.is_empty());
}

#[test]
fn a_new_member_makes_everyone_rebalance() {
    let mut sim = Sim::new(config());
    let ids = sim.stable(&["a", "b"]);
    let (c, c_join) = sim.dynamic("c");
    assert_eq!(sim.state(), "PreparingRebalance");
    for id in &ids {
        assert_eq!(sim.heartbeat(id, 1), Err(GroupError::RebalanceInProgress));
    }
    let late = sim.sync(sync(&ids[1], 1));
    assert_eq!(sim.synced(late).error, Some(GroupError::RebalanceInProgress));
    let a_join = sim.join(join("a", &ids[0]));
    assert!(sim.waits(a_join) && sim.waits(c_join));
    let b_join = sim.join(join("b", &ids[1]));
    for token in [a_join, b_join, c_join] {
        assert_eq!(sim.joined(token).generation_id, 2);
        assert_eq!(sim.joined(token).leader, ids[0]);
    }
    assert_eq!(sim.joined(a_join).members.len(), 3);
    sim.sync_all(&[ids[0].clone(), ids[1].clone(), c], 2);
}

#[test]
fn who_does_not_join_again_in_time_is_out_and_a_new_leader_is_elected() {
    let mut sim = Sim::new(config());
    let ids = sim.stable(&["a", "b"]);
    let b_join = sim.join(JoinRequest {
        protocols: vec![Protocol { name: "range".into(), metadata: subscription(&["u"]) }],
        ..join("b", &ids[1])
    });
    for _ in 0..5 {
        sim.advance(9_999);
        assert_eq!(sim.heartbeat(&ids[0], 1), Err(GroupError::RebalanceInProgress));
        assert!(sim.waits(b_join));
    }
    sim.advance(9_999);
    assert_eq!(sim.heartbeat(&ids[0], 1), Err(GroupError::RebalanceInProgress));
    sim.advance(6);
    let answer = sim.joined(b_join);
    assert_eq!((answer.generation_id, answer.leader.as_str()), (2, ids[1].as_str()));
    assert_eq!(answer.members.len(), 1);
    assert_eq!(sim.heartbeat(&ids[0], 1), Err(GroupError::UnknownMemberId));
}

#[test]
fn a_leader_that_joins_again_triggers_a_rebalance_but_an_unchanged_follower_does_not() {
    let mut sim = Sim::new(config());
    let ids = sim.stable(&["a", "b"]);
    let follower = sim.join(join("b", &ids[1]));
    assert_eq!(sim.joined(follower).generation_id, 1);
    assert_eq!(sim.state(), "Stable");
    let leader = sim.join(join("a", &ids[0]));
    assert!(sim.waits(leader));
    assert_eq!(sim.state(), "PreparingRebalance");
}

#[test]
fn a_repeated_join_while_completing_gets_the_same_generation() {
    let mut sim = Sim::new(config());
    let (a, _) = sim.dynamic("a");
    let (b, _) = sim.dynamic("b");
    sim.advance(10_000);
    let again = sim.join(join("a", &a));
    assert_eq!(sim.joined(again).generation_id, 1);
    assert_eq!(sim.joined(again).members.len(), 2);
    let waiting = sim.sync(sync(&b, 1));
    // Changed metadata forces a rebalance, and the waiting SyncGroup is told.
    let changed = sim.join(JoinRequest {
        protocols: vec![Protocol { name: "range".into(), metadata: subscription(&["x"]) }],
        ..join("a", &a)
    });
    assert!(sim.waits(changed));
    assert_eq!(sim.synced(waiting).error, Some(GroupError::RebalanceInProgress));
    assert_eq!(sim.state(), "PreparingRebalance");
}

#[test]
fn a_superseded_join_and_sync_are_answered() {
    let mut sim = Sim::new(config());
    let (a, first) = sim.dynamic("a");
    let second = sim.join(join("a", &a));
    assert_eq!(sim.joined(first).error, Some(GroupError::RebalanceInProgress));
    let (b, _) = sim.dynamic("b");
    sim.advance(10_000);
    assert_eq!(sim.joined(second).generation_id, 1);
    let first = sim.sync(sync(&b, 1));
    let second = sim.sync(sync(&b, 1));
    assert_eq!(sim.synced(first).error, Some(GroupError::RebalanceInProgress));
    sim.sync(lead(&a, 1, &[a.clone(), b.clone()]));
    assert_eq!(sim.synced(second).assignment, assignment(&b, 1));
}

#[test]
fn pending_members_time_out_and_hold_up_the_rebalance_until_then() {
    let mut sim = Sim::new(config());
    let ids = sim.stable(&["a"]);
    let pending = sim.join(join("b", ""));
    let b = sim.joined(pending).member_id.clone();
    let a_join = sim.join(join("a", &ids[0]));
    assert!(sim.waits(a_join), "the pending member is waited for");
    sim.advance(9_999);
    assert!(sim.waits(a_join));
    sim.advance(1);
    assert_eq!(sim.joined(a_join).generation_id, 2);
    let late = sim.join(join("b", &b));
    assert_eq!(sim.joined(late).error, Some(GroupError::UnknownMemberId));
}

#[test]
fn members_that_do_not_sync_are_removed() {
    let mut sim = Sim::new(config());
    let (a, _) = sim.dynamic("a");
    let (b, _) = sim.dynamic("b");
    sim.advance(9_000);
    assert_eq!(sim.state(), "CompletingRebalance");
    sim.sync(lead(&a, 1, &[a.clone(), b.clone()]));
    assert_eq!(sim.state(), "Stable");
    for _ in 0..8 {
        let (heard_a, heard_b) = (sim.heartbeat(&a, 1), sim.heartbeat(&b, 1));
        assert_eq!((heard_a, heard_b), (Ok(()), Ok(())));
        sim.advance(7_000);
    }
    // 65 s now; the generation began at 6 s, and the rebalance timeout is 60 s.
    sim.advance(1_000);
    assert_eq!(sim.heartbeat(&b, 1), Err(GroupError::UnknownMemberId));
    assert_eq!(sim.heartbeat(&a, 1), Err(GroupError::RebalanceInProgress));
}

#[test]
fn a_new_member_may_not_wait_for_ever() {
    let mut sim = Sim::new(config());
    let patient = |name: &str, id: &str| JoinRequest {
        rebalance_timeout_ms: 900_000,
        requires_known_member_id: false,
        ..join(name, id)
    };
    let a = sim.join(patient("a", ""));
    sim.advance(3_000);
    let a_id = sim.joined(a).member_id.clone();
    sim.sync(lead(&a_id, 1, std::slice::from_ref(&a_id)));
    let b = sim.join(patient("b", ""));
    for _ in 0..40 {
        sim.advance(7_500);
        assert_eq!(sim.heartbeat(&a_id, 1), Err(GroupError::RebalanceInProgress));
    }
    assert_eq!(sim.joined(b).error, Some(GroupError::UnknownMemberId), "after 5 minutes");
    let a_join = sim.join(patient("a", &a_id));
    assert_eq!(sim.joined(a_join).members.len(), 1);
}

#[test]
fn waiting_members_do_not_lose_their_session() {
    let mut sim = Sim::new(config());
    let ids = sim.stable(&["a", "b"]);
    let a_join = sim.join(join("a", &ids[0]));
    for _ in 0..4 {
        sim.advance(9_000);
        assert_eq!(sim.heartbeat(&ids[1], 1), Err(GroupError::RebalanceInProgress));
    }
    assert!(sim.waits(a_join));
    sim.join(join("b", &ids[1]));
    assert_eq!(sim.joined(a_join).generation_id, 2);
    // And the session runs again from here.
    sim.advance(9_999);
    assert_eq!(sim.heartbeat(&ids[0], 2), Ok(()));
    sim.advance(1);
    assert_eq!(sim.heartbeat(&ids[1], 2), Err(GroupError::UnknownMemberId));
}

#[test]
fn leaving() {
    let mut sim = Sim::new(config());
    let ids = sim.stable(&["a", "b"]);
    let pending = sim.join(join("p", ""));
    let p = sim.joined(pending).member_id.clone();
    let answer = sim.leave(&[(&p, None), ("stranger", None), (&ids[1], None), ("", Some("no"))]);
    let errors: Vec<_> = answer.members.iter().map(|member| member.error).collect();
    let unknown = Some(GroupError::UnknownMemberId);
    assert_eq!(errors, [None, unknown, None, unknown]);
    assert_eq!(answer.error, None);
    assert_eq!(sim.state(), "PreparingRebalance");
    let a_join = sim.join(join("a", &ids[0]));
    assert_eq!(sim.joined(a_join).generation_id, 2);
    sim.leave(&[(&ids[0], None)]);
    assert_eq!(sim.state(), "Empty");
    assert!(
        matches!(sim.journal.last(), Some(Record::Group(group)) if group.members.is_empty() && group.generation == 3),
        "that the group is empty is stored: {:?}",
        sim.journal.last()
    );
    assert_eq!(sim.leave(&[(&ids[0], None)]).members[0].error, unknown);
    assert_eq!(sim.slot.next_deadline(), None, "no timer is left");
}

#[test]
fn leaving_while_waiting_answers_what_waits() {
    let mut sim = Sim::new(config());
    let (a, a_join) = sim.dynamic("a");
    sim.leave(&[(&a, None)]);
    assert_eq!(sim.joined(a_join).error, Some(GroupError::UnknownMemberId));
    let ids = sim.stable(&["b", "c"]);
    sim.join(join("b", &ids[0]));
    sim.join(join("c", &ids[1]));
    assert_eq!(sim.state(), "CompletingRebalance");
    let generation = sim.slot.group("g").unwrap().generation_id;
    let waiting = sim.sync(sync(&ids[1], generation));
    sim.leave(&[(&ids[1], None)]);
    assert_eq!(sim.synced(waiting).error, Some(GroupError::UnknownMemberId));
}

#[test]
fn protocols_must_fit() {
    let mut sim = Sim::new(config());
    let nothing = sim.join(JoinRequest { protocols: Vec::new(), ..join("a", "") });
    assert_eq!(sim.joined(nothing).error, Some(GroupError::InconsistentGroupProtocol));
    let no_type = sim.join(JoinRequest { protocol_type: String::new(), ..join("a", "") });
    assert_eq!(sim.joined(no_type).error, Some(GroupError::InconsistentGroupProtocol));
    assert!(sim.slot.group("g").is_none(), "a refused join leaves nothing behind");

    let ids = sim.stable(&["a"]);
    let other_type = sim.join(JoinRequest { protocol_type: "connect".into(), ..join("b", "") });
    assert_eq!(sim.joined(other_type).error, Some(GroupError::InconsistentGroupProtocol));
    let protocols = vec![Protocol { name: "sticky".into(), metadata: subscription(&["t"]) }];
    let other = sim.join(JoinRequest { protocols, ..join("b", "") });
    assert_eq!(sim.joined(other).error, Some(GroupError::InconsistentGroupProtocol));
    let mut wrong = sync(&ids[0], 1);
    wrong.protocol_name = Some("sticky".into());
    let token = sim.sync(wrong);
    assert_eq!(sim.synced(token).error, Some(GroupError::InconsistentGroupProtocol));
}

#[test]
fn the_protocol_with_most_votes_among_the_common_ones_wins() {
    let mut sim = Sim::new(config());
    let offer = |name: &str, protocols: &[&str]| JoinRequest {
        requires_known_member_id: false,
        protocols: protocols
            .iter()
            .map(|p| Protocol { name: (*p).into(), metadata: subscription(&[p]) })
            .collect(),
        ..join(name, "")
    };
    let a = sim.join(offer("a", &["only-a", "range", "sticky"]));
    let b = sim.join(offer("b", &["sticky", "range"]));
    let c = sim.join(offer("c", &["sticky", "range"]));
    sim.advance(15_000);
    for token in [a, b, c] {
        assert_eq!(sim.joined(token).protocol_name.as_deref(), Some("sticky"));
    }
    assert!(sim.joined(a).members.iter().all(|member| member.metadata == subscription(&["sticky"])));
}

#[test]
fn refused_requests() {
    let mut sim = Sim::new(config());
    for (timeout, refused) in
        [(5_999, true), (6_000, false), (1_800_000, false), (1_800_001, true), (-1, true)]
    {
        let token = sim.join(JoinRequest { session_timeout_ms: timeout, ..join("a", "") });
        let error = sim.joined(token).error;
        let expected = if refused { GroupError::InvalidSessionTimeout } else { GroupError::MemberIdRequired };
        assert_eq!(error, Some(expected), "{timeout}");
    }
    let token = sim.join(JoinRequest { group_id: String::new(), ..join("a", "") });
    assert_eq!(sim.joined(token).error, Some(GroupError::InvalidGroupId));
    let token = sim.join(JoinRequest { group_id: "other".into(), ..join("a", "someone") });
    assert_eq!(sim.joined(token).error, Some(GroupError::UnknownMemberId));
    assert_eq!(sim.joined(token).member_id, "someone");
    let token = sim.sync(SyncRequest { group_id: "other".into(), ..sync("x", 1) });
    assert_eq!(sim.synced(token).error, Some(GroupError::UnknownMemberId));
    let ids = sim.stable(&["b"]);
    let token = sim.sync(sync(&ids[0], 7));
    assert_eq!(sim.synced(token).error, Some(GroupError::IllegalGeneration));
}

#[test]
fn the_group_has_a_maximum_size() {
    let mut sim = Sim::new(GroupConfig { max_size: 2, ..config() });
    let ids = sim.stable(&["a", "b"]);
    let token = sim.join(join("c", ""));
    assert_eq!(sim.joined(token).error, Some(GroupError::GroupMaxSizeReached));
    assert_eq!(sim.joined(token).member_id, "");
    let known = sim.join(join("b", &ids[1]));
    assert_eq!(sim.joined(known).error, None);
    // Two pending members: the place goes to the first that comes back.
    let mut sim = Sim::new(GroupConfig { max_size: 1, ..config() });
    let first = sim.join(join("a", ""));
    let second = sim.join(join("b", ""));
    let (a, b) = (sim.joined(first).member_id.clone(), sim.joined(second).member_id.clone());
    let a_join = sim.join(join("a", &a));
    let b_join = sim.join(join("b", &b));
    assert_eq!(sim.joined(b_join).error, Some(GroupError::GroupMaxSizeReached));
    sim.advance(3_000);
    assert_eq!(sim.joined(a_join).generation_id, 1);
}

#[test]
fn an_assignment_that_cannot_be_stored_makes_everyone_rebalance() {
    let mut sim = Sim::new(config());
    let (a, _) = sim.dynamic("a");
    let (b, _) = sim.dynamic("b");
    sim.advance(10_000);
    sim.auto_persist = false;
    let follower = sim.sync(sync(&b, 1));
    let leader = sim.sync(lead(&a, 1, &[a.clone(), b.clone()]));
    sim.persist_one(Err(GroupError::CoordinatorNotAvailable));
    for token in [follower, leader] {
        assert_eq!(sim.synced(token).error, Some(GroupError::CoordinatorNotAvailable));
        assert!(sim.synced(token).assignment.is_empty());
    }
    assert_eq!(sim.state(), "PreparingRebalance");
}

#[test]
fn an_assignment_of_an_earlier_generation_is_not_handed_out() {
    let mut sim = Sim::new(config());
    let (a, _) = sim.dynamic("a");
    sim.advance(3_000);
    sim.auto_persist = false;
    let leader = sim.sync(lead(&a, 1, std::slice::from_ref(&a)));
    let (b, b_join) = sim.dynamic("b");
    assert_eq!(sim.synced(leader).error, Some(GroupError::RebalanceInProgress));
    sim.persist_one(Ok(()));
    assert_eq!(sim.state(), "PreparingRebalance");
    let a_join = sim.join(join("a", &a));
    assert_eq!(sim.joined(a_join).generation_id, 2);
    assert_eq!(sim.joined(b_join).generation_id, 2);
    let early = sim.sync(sync(&b, 2));
    assert!(sim.waits(early));
}

#[test]
fn describe_and_list() {
    let mut sim = Sim::new(config());
    let unknown = sim.slot.describe("nope");
    assert_eq!((unknown.state, unknown.found, unknown.error), ("Dead", false, None));
    let ids = sim.stable(&["a"]);
    let stable = sim.slot.describe("g");
    assert_eq!((stable.state, stable.protocol.as_str()), ("Stable", "range"));
    assert_eq!(stable.protocol_type, "consumer");
    let member = &stable.members[0];
    assert_eq!(member.member_id.as_ref(), ids[0]);
    assert_eq!((member.client_id.as_str(), member.client_host.as_str()), ("a", "/127.0.0.1"));
    assert_eq!(member.metadata, subscription(&["t"]));
    assert_eq!(member.assignment, assignment(&ids[0], 1));
    sim.join(JoinRequest { group_id: "h".into(), ..join("z", "") });
    let names = |states: &[&str], types: &[&str]| -> Vec<String> {
        let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        sim.slot.list(&own(states), &own(types)).into_iter().map(|group| group.group_id).collect()
    };
    assert_eq!(names(&[], &[]), ["g", "h"]);
    assert_eq!(names(&[" STABLE ", "dead"], &[]), ["g"]);
    assert_eq!(names(&["Empty"], &["Classic"]), ["h"]);
    assert!(names(&[], &["consumer"]).is_empty());
    assert!(names(&["nonsense"], &[]).is_empty());
    sim.join(join("a", &ids[0]));
    let rejoined = sim.slot.describe("g");
    assert_eq!((rejoined.state, rejoined.protocol.as_str()), ("CompletingRebalance", ""));
    assert!(rejoined.members[0].metadata.is_empty());
}
