//! KIP-345: static members.

use super::sim::*;
use crate::group::state::*;

/// A stable group of the static members `i0` (leader) and `i1`; their member ids. Generation 1.
fn stable(sim: &mut Sim) -> Vec<String> {
    let tokens: Vec<Token> = ["i0", "i1"].map(|i| sim.join(join_static(i, "", &format!("{i}.1")))).into();
    sim.advance(10_000);
    let ids: Vec<String> = tokens.iter().map(|token| sim.joined(*token).member_id.clone()).collect();
    assert_eq!(ids, ["i0-i0.1", "i1-i1.1"]);
    assert_eq!(sim.joined(tokens[0]).members[1].group_instance_id.as_deref(), Some("i1"));
    sim.sync_all(&ids, 1);
    ids
}

#[test]
fn a_bounce_of_a_follower_changes_nothing_but_its_id() {
    let mut sim = Sim::new(config());
    let ids = stable(&mut sim);
    sim.auto_persist = false;
    let back = sim.join(join_static("i1", "", "i1.2"));
    assert!(sim.waits(back), "the new id must be durable first");
    sim.persist_one(Ok(()));
    let answer = sim.joined(back).clone();
    assert_eq!((answer.error, answer.generation_id), (None, 1));
    assert_eq!(answer.member_id, "i1-i1.2");
    assert_eq!((answer.leader.as_str(), answer.skip_assignment), (ids[0].as_str(), false));
    assert!(answer.members.is_empty());
    assert_eq!(sim.state(), "Stable");
    let synced = sim.sync(sync("i1-i1.2", 1));
    assert_eq!(sim.synced(synced).assignment, assignment(&ids[1], 1), "it keeps its assignment");
    assert_eq!(sim.heartbeat(&ids[0], 1), Ok(()), "nobody else rebalances");

    let fenced = Err(GroupError::FencedInstanceId);
    assert_eq!(sim.heartbeat_static(&ids[1], 1, Some("i1")), fenced);
    assert_eq!(sim.heartbeat_static("i1-i1.2", 1, Some("i1")), Ok(()));
    assert_eq!(sim.heartbeat_static("i1-i1.2", 1, Some("i9")), Err(GroupError::UnknownMemberId));
    let old_sync = sim.sync(SyncRequest { group_instance_id: Some("i1".into()), ..sync(&ids[1], 1) });
    assert_eq!(sim.synced(old_sync).error, Some(GroupError::FencedInstanceId));
    let old_join = sim.join(join_static("i1", &ids[1], "x"));
    assert_eq!(sim.joined(old_join).error, Some(GroupError::FencedInstanceId));
    let mut old_commit = commit(&ids[1], 1, 9);
    old_commit.group_instance_id = Some("i1".into());
    let old_commit = sim.commit(old_commit);
    assert_eq!(sim.committed(old_commit), Some(GroupError::FencedInstanceId));
    let left = sim.leave(&[(&ids[1], Some("i1"))]);
    assert_eq!(left.members[0].error, Some(GroupError::FencedInstanceId));

    match sim.journal.last() {
        Some(Record::Group(group)) => {
            let stored: Vec<&str> = group.members.iter().map(|m| m.member_id.as_str()).collect();
            assert_eq!(stored, ["i0-i0.1", "i1-i1.2"]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_bounce_of_the_leader_skips_the_assignment() {
    let mut sim = Sim::new(config());
    let ids = stable(&mut sim);
    let back = sim.join(join_static("i0", "", "i0.2"));
    let answer = sim.joined(back).clone();
    assert_eq!((answer.error, answer.skip_assignment), (None, true));
    assert_eq!(answer.leader, "i0-i0.2");
    assert_eq!(answer.members.len(), 2, "it goes on watching the members' topics");
    // Clients below version 9 must not believe that they lead.
    let old = JoinRequest { supports_skipping_assignment: false, ..join_static("i0", "", "i0.3") };
    let back = sim.join(old);
    let answer = sim.joined(back).clone();
    assert_eq!((answer.skip_assignment, answer.leader.as_str()), (false, "i0-i0.2"));
    assert!(answer.members.is_empty());
    let synced = sim.sync(sync("i0-i0.3", 1));
    assert_eq!(sim.synced(synced).assignment, assignment(&ids[0], 1));
}

#[test]
fn a_bounce_during_the_sync_phase_rebalances() {
    let mut sim = Sim::new(config());
    let tokens: Vec<Token> = ["i0", "i1"].map(|i| sim.join(join_static(i, "", &format!("{i}.1")))).into();
    sim.advance(10_000);
    let old = sim.joined(tokens[1]).member_id.clone();
    let waiting = sim.sync(sync(&old, 1));
    let back = sim.join(join_static("i1", "", "i1.2"));
    assert_eq!(sim.synced(waiting).error, Some(GroupError::FencedInstanceId));
    assert_eq!(sim.state(), "PreparingRebalance");
    assert!(sim.waits(back));
    let leader = sim.join(join_static("i0", "i0-i0.1", "-"));
    assert_eq!(sim.joined(leader).generation_id, 2);
    assert_eq!(sim.joined(back).generation_id, 2);
}

#[test]
fn a_bounce_during_the_join_phase_fences_the_waiting_one() {
    let mut sim = Sim::new(config());
    let first = sim.join(join_static("i0", "", "1"));
    let second = sim.join(join_static("i0", "", "2"));
    assert_eq!(sim.joined(first).error, Some(GroupError::FencedInstanceId));
    assert_eq!(sim.joined(first).member_id, "i0-1");
    sim.advance(3_000);
    assert_eq!(sim.joined(second).member_id, "i0-2");
    assert_eq!(sim.joined(second).members.len(), 1);
}

#[test]
fn a_bounce_with_other_protocols_rebalances_if_the_chosen_one_changes() {
    let mut sim = Sim::new(config());
    let two = |instance: &str, fresh: &str, first: &str, second: &str| JoinRequest {
        protocols: [first, second]
            .map(|name| Protocol { name: name.into(), metadata: subscription(&["t"]) })
            .into(),
        ..join_static(instance, "", fresh)
    };
    let a = sim.join(two("i0", "1", "range", "sticky"));
    sim.advance(3_000);
    assert_eq!(sim.joined(a).protocol_name.as_deref(), Some("range"));
    sim.sync(lead("i0-1", 1, &["i0-1".to_owned()]));
    let same = sim.join(two("i0", "2", "range", "other"));
    assert_eq!(sim.joined(same).generation_id, 1);
    let changed = sim.join(two("i0", "3", "sticky", "range"));
    assert_eq!(sim.joined(changed).generation_id, 2, "a rebalance of one member is over at once");
    assert_eq!(sim.joined(changed).protocol_name.as_deref(), Some("sticky"));
}

#[test]
fn an_id_that_cannot_be_stored_is_taken_back() {
    let mut sim = Sim::new(config());
    let ids = stable(&mut sim);
    sim.auto_persist = false;
    let back = sim.join(join_static("i1", "", "i1.2"));
    sim.persist_one(Err(GroupError::CoordinatorNotAvailable));
    let answer = sim.joined(back);
    assert_eq!(answer.error, Some(GroupError::CoordinatorNotAvailable));
    assert_eq!(answer.member_id, "");
    assert_eq!(sim.heartbeat_static(&ids[1], 1, Some("i1")), Ok(()), "the old id is still valid");
    assert_eq!(sim.heartbeat("i1-i1.2", 1), Err(GroupError::UnknownMemberId));
}

#[test]
fn two_bounces_in_a_row_answer_both() {
    let mut sim = Sim::new(config());
    stable(&mut sim);
    sim.auto_persist = false;
    let second = sim.join(join_static("i1", "", "i1.2"));
    let third = sim.join(join_static("i1", "", "i1.3"));
    assert_eq!(sim.joined(second).error, Some(GroupError::FencedInstanceId));
    sim.persist_one(Ok(()));
    assert!(sim.waits(third));
    sim.persist_one(Ok(()));
    assert_eq!(sim.joined(third).member_id, "i1-i1.3");
}

#[test]
fn static_members_survive_a_missed_rejoin_but_not_their_session() {
    let mut sim = Sim::new(config());
    let tokens: Vec<Token> = ["i0", "i1"]
        .map(|i| {
            let mut request = join_static(i, "", "1");
            request.rebalance_timeout_ms = 5_000;
            request.session_timeout_ms = 20_000;
            sim.join(request)
        })
        .into();
    sim.advance(5_000);
    let ids: Vec<String> = tokens.iter().map(|token| sim.joined(*token).member_id.clone()).collect();
    sim.sync_all(&ids, 1);
    let mut again = join_static("i1", &ids[1], "-");
    again.rebalance_timeout_ms = 5_000;
    again.protocols = vec![Protocol { name: "range".into(), metadata: subscription(&["new"]) }];
    let join = sim.join(again);
    sim.advance(5_000);
    let answer = sim.joined(join).clone();
    assert_eq!(answer.generation_id, 2);
    assert_eq!(answer.leader, ids[1], "the leader was absent: another one leads");
    assert_eq!(answer.members.len(), 2, "the absent static member stays");
    sim.advance(20_000);
    assert_eq!(sim.heartbeat(&ids[0], 2), Err(GroupError::UnknownMemberId), "until its session ends");
}

#[test]
fn a_rebalance_without_any_join_waits_for_the_static_members_sessions() {
    let mut sim = Sim::new(config());
    let mut request = join_static("i0", "", "1");
    request.rebalance_timeout_ms = 6_000;
    request.session_timeout_ms = 20_000;
    let a = sim.join(request);
    let (b, _) = sim.dynamic("b");
    sim.advance(6_000);
    assert_eq!(sim.joined(a).members.len(), 2);
    sim.sync_all(&["i0-1".to_owned(), b.clone()], 1);
    sim.leave(&[(&b, None)]);
    assert_eq!(sim.state(), "PreparingRebalance");
    sim.advance(12_500);
    assert_eq!(sim.state(), "PreparingRebalance", "nobody joined, but the static member has a session");
    sim.advance(10_000);
    assert_eq!(sim.state(), "Empty");
}

#[test]
fn an_administrator_removes_by_instance_id() {
    let mut sim = Sim::new(config());
    let ids = stable(&mut sim);
    let left = sim.leave(&[("", Some("i1")), ("", Some("i7"))]);
    assert_eq!(left.members[0].error, None);
    assert_eq!(left.members[0].group_instance_id.as_deref(), Some("i1"));
    assert_eq!(left.members[1].error, Some(GroupError::UnknownMemberId));
    assert_eq!(sim.heartbeat(&ids[1], 1), Err(GroupError::UnknownMemberId));
    assert_eq!(sim.heartbeat(&ids[0], 1), Err(GroupError::RebalanceInProgress));
    // The instance id is free again.
    let again = sim.join(join_static("i1", "", "new"));
    assert!(sim.waits(again));
}

#[test]
fn a_rebalance_that_begins_while_the_new_id_is_stored_takes_the_member_along() {
    let mut sim = Sim::new(config());
    let ids = stable(&mut sim);
    sim.auto_persist = false;
    let back = sim.join(join_static("i1", "", "i1.2"));
    let leader = sim.join(join_static("i0", &ids[0], "-"));
    assert_eq!(sim.joined(leader).generation_id, 2, "the returning member counts as joined");
    assert_eq!(sim.joined(back).generation_id, 2);
    sim.persist_one(Ok(()));
    assert_eq!(sim.state(), "CompletingRebalance");

    let mut sim = Sim::new(config());
    let ids = stable(&mut sim);
    let third = sim.join(join_static("i2", "", "i2.1"));
    for (instance, id) in [("i0", &ids[0]), ("i1", &ids[1])] {
        sim.join(join_static(instance, id, "-"));
    }
    assert_eq!(sim.joined(third).generation_id, 2);
    let all = [ids[0].clone(), ids[1].clone(), "i2-i2.1".to_owned()];
    sim.sync_all(&all, 2);
    sim.auto_persist = false;
    let back = sim.join(join_static("i1", "", "i1.2"));
    let leader = sim.join(join_static("i0", &ids[0], "-"));
    assert_eq!(sim.state(), "PreparingRebalance");
    sim.persist_one(Ok(()));
    assert!(sim.waits(back), "it is part of the rebalance now, not of generation 2");
    sim.join(join_static("i2", "i2-i2.1", "-"));
    assert_eq!(sim.joined(back).generation_id, 3);
    assert_eq!(sim.joined(leader).members.len(), 3);
}
