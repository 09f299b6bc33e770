//! Committed offsets: who may commit, what is visible when, deletion, expiry.

use std::collections::BTreeMap;

use super::sim::*;
use crate::group::state::*;

const HOUR: u64 = 3_600_000;

#[test]
fn a_commit_is_visible_and_answered_when_it_is_durable() {
    let mut sim = Sim::new(config());
    let ids = sim.stable(&["a"]);
    sim.auto_persist = false;
    let token = sim.commit(commit(&ids[0], 1, 42));
    assert!(sim.waits(token));
    assert_eq!(sim.offset("t", 0), -1);
    sim.persist_one(Ok(()));
    assert_eq!(sim.committed(token), None);
    let all = OffsetFetchRequest { group_id: "g".into(), topics: None, require_stable: false };
    let fetched = sim.slot.offset_fetch(&all);
    let expected =
        FetchedOffset { partition: 0, offset: 42, leader_epoch: 3, metadata: "note".into(), error: None };
    assert_eq!(fetched.topics, [("t".to_owned(), vec![expected])]);
    assert_eq!(sim.offset("t", 1), -1);
    let token = sim.commit(commit(&ids[0], 1, 43));
    sim.persist_one(Err(GroupError::NotCoordinator));
    assert_eq!(sim.committed(token), Some(GroupError::NotCoordinator));
    assert_eq!(sim.offset("t", 0), 42, "a failed commit is not visible");
}

#[test]
fn who_may_commit() {
    let mut sim = Sim::new(config());
    let error = |sim: &mut Sim, request: OffsetCommitRequest| {
        let token = sim.commit(request);
        sim.committed(token)
    };
    // No such group.
    assert_eq!(error(&mut sim, commit("m", 3, 1)), Some(GroupError::GroupIdNotFound));
    let older = OffsetCommitRequest { knows_group_id_not_found: false, ..commit("m", 3, 1) };
    assert_eq!(error(&mut sim, older), Some(GroupError::IllegalGeneration));
    assert_eq!(sim.slot.describe("g").state, "Dead");
    // Without group management: the group comes into being.
    assert_eq!(error(&mut sim, commit("", -1, 5)), None);
    assert_eq!(sim.slot.describe("g").state, "Empty");
    assert_eq!(sim.slot.describe("g").protocol_type, "");
    assert_eq!(sim.offset("t", 0), 5);
    // A member id in an empty group.
    assert_eq!(error(&mut sim, commit("m", 0, 1)), Some(GroupError::UnknownMemberId));
    assert_eq!(error(&mut sim, commit("m", -1, 6)), None, "as Kafka: the generation decides");

    let ids = sim.stable(&["a", "b"]);
    assert_eq!(
        error(&mut sim, commit("", -1, 7)),
        Some(GroupError::UnknownMemberId),
        "not while it has members"
    );
    assert_eq!(error(&mut sim, commit(&ids[0], 0, 7)), Some(GroupError::IllegalGeneration));
    assert_eq!(error(&mut sim, commit("stranger", 1, 7)), Some(GroupError::UnknownMemberId));
    assert_eq!(error(&mut sim, commit(&ids[0], 1, 7)), None);
    // Of the old generation while the next is being prepared: allowed.
    sim.join(join("a", &ids[0]));
    assert_eq!(sim.state(), "PreparingRebalance");
    assert_eq!(error(&mut sim, commit(&ids[1], 1, 8)), None);
    // With the new generation, before the assignment is known: not allowed.
    sim.join(join("b", &ids[1]));
    assert_eq!(sim.state(), "CompletingRebalance");
    assert_eq!(error(&mut sim, commit(&ids[0], 2, 9)), Some(GroupError::RebalanceInProgress));
    assert_eq!(error(&mut sim, commit(&ids[0], 1, 9)), Some(GroupError::IllegalGeneration));
    assert_eq!(sim.offset("t", 0), 8);
}

#[test]
fn a_commit_keeps_the_session_alive() {
    let mut sim = Sim::new(config());
    let ids = sim.stable(&["a"]);
    for offset in 0..5 {
        sim.advance(9_999);
        let token = sim.commit(commit(&ids[0], 1, offset));
        assert_eq!(sim.committed(token), None);
    }
    assert_eq!(sim.heartbeat(&ids[0], 1), Ok(()));
}

#[test]
fn long_metadata_is_refused_per_partition() {
    let mut sim = Sim::new(config());
    let mut request = commit("", -1, 1);
    request.topics[0].partitions.push(CommitPartition {
        partition: 1,
        offset: 2,
        leader_epoch: None,
        metadata: Some("x".repeat(4_097)),
    });
    request.topics[0].partitions[0].metadata = Some("x".repeat(4_096));
    let token = sim.commit(request.clone());
    let expected = vec![(0, None), (1, Some(GroupError::OffsetMetadataTooLarge))];
    assert_eq!(
        sim.answers.get(&token),
        Some(&Response::OffsetCommit(OffsetCommitResponse { topics: vec![("t".into(), expected)] }))
    );
    assert_eq!((sim.offset("t", 0), sim.offset("t", 1)), (1, -1));
    // Nothing acceptable: nothing is stored, and no group comes into being.
    request.group_id = "other".into();
    request.topics[0].partitions.remove(0);
    let records = sim.journal.len();
    sim.commit(request);
    assert_eq!(sim.journal.len(), records);
    assert!(sim.slot.group("other").is_none());
}

#[test]
fn unknown_groups_have_no_offsets() {
    let sim = Sim::new(config());
    assert_eq!(sim.offset("t", 0), -1);
    let all = OffsetFetchRequest { group_id: "g".into(), topics: None, require_stable: true };
    assert!(sim.slot.offset_fetch(&all).topics.is_empty());
}

#[test]
fn offsets_of_subscribed_topics_are_not_deleted() {
    let mut sim = Sim::new(config());
    let token = sim.offset_delete(&[("t", &[0])]);
    let not_found = OffsetDeleteResponse { error: Some(GroupError::GroupIdNotFound), topics: Vec::new() };
    assert_eq!(sim.answers.get(&token), Some(&Response::OffsetDelete(not_found)));

    sim.commit(commit("", -1, 5));
    let mut other = commit("", -1, 6);
    other.topics[0].name = "u".into();
    sim.commit(other);
    let ids = sim.stable(&["a"]);
    let token = sim.offset_delete(&[("t", &[0]), ("u", &[0, 1])]);
    let topics = vec![
        ("t".to_owned(), vec![(0, Some(GroupError::GroupSubscribedToTopic))]),
        ("u".to_owned(), vec![(0, None), (1, None)]),
    ];
    let expected = OffsetDeleteResponse { error: None, topics };
    assert_eq!(sim.answers.get(&token), Some(&Response::OffsetDelete(expected)));
    assert_eq!((sim.offset("t", 0), sim.offset("u", 0)), (5, -1));
    sim.leave(&[(&ids[0], None)]);
    sim.offset_delete(&[("t", &[0])]);
    assert_eq!(sim.offset("t", 0), -1, "without members everything may go");
}

#[test]
fn offsets_of_other_protocols_are_deleted_only_without_members() {
    let mut sim = Sim::new(config());
    let token = sim.join(JoinRequest {
        protocol_type: "connect".into(),
        requires_known_member_id: false,
        ..join("a", "")
    });
    sim.advance(3_000);
    assert_eq!(sim.joined(token).error, None);
    let token = sim.offset_delete(&[("t", &[0])]);
    let refused = OffsetDeleteResponse { error: Some(GroupError::NonEmptyGroup), topics: Vec::new() };
    assert_eq!(sim.answers.get(&token), Some(&Response::OffsetDelete(refused)));
}

#[test]
fn groups_are_deleted_when_empty() {
    let mut sim = Sim::new(config());
    let ids = sim.stable(&["a"]);
    sim.commit(commit(&ids[0], 1, 5));
    let deleted = |sim: &Sim, token: Token| match sim.answers.get(&token) {
        Some(Response::DeleteGroups(groups)) => groups.iter().map(|group| group.error).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let token = sim.delete_groups(&["g", "nope"]);
    assert_eq!(deleted(&sim, token), [Some(GroupError::NonEmptyGroup), Some(GroupError::GroupIdNotFound)]);
    sim.leave(&[(&ids[0], None)]);

    sim.auto_persist = false;
    let token = sim.delete_groups(&["g", "g"]);
    assert!(sim.waits(token));
    // While the deletion is on its way the group is dead for everyone.
    let join_token = sim.join(join("b", ""));
    assert_eq!(sim.joined(join_token).error, Some(GroupError::CoordinatorNotAvailable));
    let commit_token = sim.commit(commit("", -1, 9));
    assert_eq!(sim.committed(commit_token), Some(GroupError::CoordinatorNotAvailable));
    assert_eq!(sim.offset("t", 0), -1);
    sim.persist_one(Err(GroupError::CoordinatorNotAvailable));
    let unavailable = Some(GroupError::CoordinatorNotAvailable);
    assert_eq!(deleted(&sim, token), [unavailable, Some(GroupError::GroupIdNotFound)]);
    assert_eq!((sim.state(), sim.offset("t", 0)), ("Empty", 5), "a failed deletion changes nothing");

    sim.auto_persist = true;
    let token = sim.delete_groups(&["g"]);
    assert_eq!(deleted(&sim, token), [None]);
    assert!(sim.slot.group("g").is_none());
    assert!(sim.restarted(config()).slot.group("g").is_none());
}

#[test]
fn a_commit_on_its_way_is_deleted_with_its_group() {
    let mut sim = Sim::new(config());
    sim.commit(commit("", -1, 1));
    sim.auto_persist = false;
    let late = sim.commit(commit("", -1, 2));
    let token = sim.delete_groups(&["g"]);
    sim.persist_one(Ok(()));
    assert_eq!(sim.committed(late), None);
    sim.persist_one(Ok(()));
    assert!(!sim.waits(token));
    assert!(sim.slot.group("g").is_none());
    assert!(sim.restarted(config()).slot.group("g").is_none());
}

#[test]
fn offsets_of_an_empty_group_expire_by_the_time_it_became_empty() {
    let mut sim = Sim::new(config());
    let ids = sim.stable(&["a"]);
    sim.commit(commit(&ids[0], 1, 5));
    for _ in 0..(8 * 24 * 400) {
        sim.advance(9_000);
        assert_eq!(sim.heartbeat(&ids[0], 1), Ok(()));
    }
    sim.expire();
    assert_eq!(sim.offset("t", 0), 5, "older than the retention, but subscribed");
    sim.leave(&[(&ids[0], None)]);
    sim.advance(7 * 24 * HOUR - 1);
    sim.expire();
    assert_eq!((sim.offset("t", 0), sim.state()), (5, "Empty"));
    // The retention goes on across a restart.
    let mut sim = sim.restarted(config());
    sim.advance(1);
    sim.expire();
    assert!(sim.slot.group("g").is_none());
    assert!(matches!(sim.journal.last(), Some(Record::GroupDeleted { group }) if group == "g"));
}

#[test]
fn offsets_of_topics_nobody_subscribes_expire_by_their_commit() {
    let mut sim = Sim::new(GroupConfig { offsets_retention_ms: 60_000, ..config() });
    let mut other = commit("", -1, 6);
    other.topics[0].name = "u".into();
    sim.commit(other);
    let ids = sim.stable(&["a"]);
    sim.commit(commit(&ids[0], 1, 5));
    for _ in 0..6 {
        sim.advance(9_999);
        sim.heartbeat(&ids[0], 1).unwrap();
    }
    sim.expire();
    assert_eq!((sim.offset("t", 0), sim.offset("u", 0)), (5, -1));
    assert_eq!(sim.state(), "Stable");
}

#[test]
fn offsets_without_members_ever_expire_by_their_commit_or_as_asked_for() {
    let mut sim = Sim::new(GroupConfig { offsets_retention_ms: 60_000, ..config() });
    sim.commit(commit("", -1, 5));
    let mut long = commit("", -1, 6);
    long.topics[0].partitions[0].partition = 1;
    long.retention_time_ms = Some(90_000);
    sim.commit(long);
    sim.advance(59_999);
    sim.expire();
    assert_eq!(sim.offset("t", 0), 5);
    sim.advance(1);
    sim.expire();
    assert_eq!((sim.offset("t", 0), sim.offset("t", 1)), (-1, 6));
    assert_eq!(sim.state(), "Empty");
    sim.advance(30_000);
    sim.expire();
    assert!(sim.slot.group("g").is_none());
}

#[test]
fn nothing_expires_under_a_commit_that_is_about_to_land() {
    let mut sim = Sim::new(GroupConfig { offsets_retention_ms: 60_000, ..config() });
    sim.commit(commit("", -1, 5));
    sim.advance(60_000);
    sim.auto_persist = false;
    sim.commit(commit("", -1, 6));
    sim.expire();
    assert_eq!(sim.in_flight.len(), 1, "no deletion was written");
    sim.persist_one(Ok(()));
    assert_eq!(sim.offset("t", 0), 6);
}

#[test]
fn an_empty_group_without_offsets_goes_at_the_next_check() {
    let mut sim = Sim::new(config());
    let ids = sim.stable(&["a"]);
    sim.leave(&[(&ids[0], None)]);
    sim.expire();
    assert!(sim.slot.group("g").is_none());
    assert!(sim.restarted(config()).slot.group("g").is_none());
}

#[test]
fn offsets_of_deleted_partitions_go() {
    let mut sim = Sim::new(config());
    let mut request = commit("", -1, 5);
    let mut second = request.topics[0].partitions[0].clone();
    second.partition = 1;
    request.topics[0].partitions.push(second);
    sim.commit(request);
    let mut effects = Vec::new();
    let gone = BTreeMap::from([("t".to_owned(), vec![1, 2]), ("x".to_owned(), vec![0])]);
    let token = sim.token();
    sim.slot.partitions_deleted(&gone, token, sim.now(), &mut effects);
    sim.run(effects);
    assert_eq!((sim.offset("t", 0), sim.offset("t", 1)), (5, -1));
}

#[test]
fn many_groups_expire_in_several_appends() {
    let mut sim = Sim::new(GroupConfig { offsets_retention_ms: 60_000, ..config() });
    for n in 0..2_500 {
        sim.commit(OffsetCommitRequest { group_id: format!("g{n}"), ..commit("", -1, 5) });
    }
    sim.advance(60_000);
    sim.auto_persist = false;
    sim.expire();
    assert_eq!(
        sim.in_flight.iter().map(|(_, records)| records.len()).collect::<Vec<_>>(),
        [1_000, 1_000, 500]
    );
    sim.persist_one(Ok(()));
    sim.persist_one(Err(GroupError::CoordinatorNotAvailable));
    sim.persist_one(Ok(()));
    assert_eq!(sim.slot.list(&["Empty".into()], &[]).len(), 1_000, "a failed deletion is taken back");
    assert!(sim.slot.list(&["Dead".into()], &[]).is_empty());
}
