//! Restarts: what the journal and the snapshot bring back.

use super::sim::*;
use crate::group::state::*;

#[test]
fn members_go_on_without_a_rebalance_after_a_restart() {
    let mut sim = Sim::new(config());
    let ids = sim.stable(&["a", "b"]);
    sim.commit(commit(&ids[0], 1, 42));
    let mut sim = sim.restarted(config());
    assert_eq!(sim.state(), "Stable");
    for id in &ids {
        assert_eq!(sim.heartbeat(id, 1), Ok(()));
    }
    let token = sim.commit(commit(&ids[1], 1, 43));
    assert_eq!(sim.committed(token), None);
    assert_eq!(sim.offset("t", 0), 43);
    let synced = sim.sync(sync(&ids[1], 1));
    assert_eq!(sim.synced(synced).assignment, assignment(&ids[1], 1));
    let described = sim.slot.describe("g");
    assert_eq!(described.members[0].metadata, subscription(&["t"]));
    assert_eq!(described.protocol, "range");
    // Sessions run anew.
    sim.advance(10_000);
    assert_eq!(sim.state(), "Empty");
}

#[test]
fn an_unfinished_rebalance_is_forgotten() {
    let mut sim = Sim::new(config());
    let ids = sim.stable(&["a"]);
    sim.dynamic("b");
    assert_eq!(sim.state(), "PreparingRebalance");
    let mut sim = sim.restarted(config());
    assert_eq!(sim.state(), "Stable");
    assert_eq!(sim.heartbeat(&ids[0], 1), Ok(()));
    assert_eq!(sim.slot.describe("g").members.len(), 1);
}

#[test]
fn static_members_are_known_after_a_restart() {
    let mut sim = Sim::new(config());
    let token = sim.join(join_static("i0", "", "1"));
    sim.advance(3_000);
    let id = sim.joined(token).member_id.clone();
    sim.sync(lead(&id, 1, std::slice::from_ref(&id)));
    let mut sim = sim.restarted(config());
    let back = sim.join(join_static("i0", "", "2"));
    assert_eq!(sim.joined(back).generation_id, 1);
    assert_eq!(sim.heartbeat_static(&id, 1, Some("i0")), Err(GroupError::FencedInstanceId));
    let mut sim = sim.restarted(config());
    assert_eq!(sim.heartbeat_static("i0-2", 1, Some("i0")), Ok(()), "the new id was stored");
}

#[test]
fn a_group_above_the_maximum_size_rebalances_after_a_restart() {
    let mut sim = Sim::new(config());
    let ids = sim.stable(&["a", "b"]);
    let mut sim = sim.restarted(GroupConfig { max_size: 1, ..config() });
    assert_eq!(sim.state(), "PreparingRebalance");
    let token = sim.commit(commit(&ids[0], 1, 5));
    assert_eq!(sim.committed(token), None, "members can still commit");
    let first = sim.join(join("a", &ids[0]));
    let second = sim.join(join("b", &ids[1]));
    assert_eq!(sim.joined(second).error, Some(GroupError::GroupMaxSizeReached));
    sim.advance(60_000);
    assert_eq!(sim.joined(first).generation_id, 2);
}

#[test]
fn a_snapshot_is_the_state() {
    let mut sim = Sim::new(config());
    let ids = sim.stable(&["a"]);
    sim.commit(commit(&ids[0], 1, 42));
    let mut simple = commit("", -1, 7);
    simple.group_id = "simple".into();
    sim.commit(simple);
    sim.dynamic("b");
    let snapshot = sim.slot.snapshot();
    let json = serde_json::to_value(&snapshot).unwrap();
    let group = &json["groups"][0]["group"];
    assert_eq!(group["generation"], 1, "the durable generation, not the one that is being prepared");
    assert_eq!(group["members"].as_array().unwrap().len(), 1);
    assert_eq!(json["groups"][1]["offsets"]["topics"]["t"][0]["offset"], 7);

    let read: SlotSnapshot = serde_json::from_value(json).unwrap();
    assert_eq!(read, snapshot);
    let mut other = Sim::new(config());
    other.slot.restore(read, other.now()).unwrap();
    let mut effects = Vec::new();
    other.slot.loaded(other.now(), &mut effects);
    other.run(effects);
    assert_eq!(other.slot.snapshot(), snapshot);
    assert_eq!(other.heartbeat(&ids[0], 1), Ok(()));
    assert_eq!(other.offset("t", 0), 42);

    sim.auto_persist = false;
    sim.commit(OffsetCommitRequest { group_id: "simple".into(), ..commit("", -1, 8) });
    assert_eq!(sim.slot.snapshot(), snapshot, "what is on its way is not in it");
}

#[test]
fn what_cannot_be_understood_is_an_error() {
    let mut sim = Sim::new(config());
    let newer = SlotSnapshot { format_version: 2, groups: Vec::new() };
    assert_eq!(sim.slot.restore(newer, sim.now()), Err(ReplayError::NewerFormat { found: 2 }));
    assert!(serde_json::from_str::<Record>(r#"{"type":"from_the_future","group":"g"}"#).is_err());
    let two = GroupConfig { slots: 2, ..config() };
    let mut slot = SlotState::new(0, std::sync::Arc::new(two));
    assert_eq!(slot_of("g", 2), 1);
    let record = Record::GroupDeleted { group: "g".into() };
    assert!(slot.replay(record, sim.now()).is_ok());
    let record = Record::OffsetsDeleted { group: "g".into(), topics: std::collections::BTreeMap::new() };
    let wrong = ReplayError::WrongSlot { group: "g".into(), stored: 0, belongs: 1 };
    assert_eq!(slot.replay(record, sim.now()), Err(wrong));
}

#[test]
fn records_read_as_documented() {
    let mut sim = Sim::new(config());
    let ids = sim.stable(&["a"]);
    sim.commit(commit(&ids[0], 1, 42));
    let lines: Vec<serde_json::Value> =
        sim.journal.iter().map(|record| serde_json::to_value(record).unwrap()).collect();
    let expected = serde_json::json!({
        "type": "group", "group": "g", "generation": 1, "protocol_type": "consumer", "protocol": "range",
        "leader": "a-fresh-a", "state_timestamp_ms": WALL + 6_000,
        "members": [{
            "member_id": "a-fresh-a", "client_id": "a", "client_host": "/127.0.0.1",
            "rebalance_timeout_ms": 60_000, "session_timeout_ms": 10_000,
            "subscription": "AAEAAAABAAF0/////w==", "assignment": "YS1mcmVzaC1hQDE=",
        }],
    });
    let mut found = lines[0].clone();
    found["state_timestamp_ms"] = expected["state_timestamp_ms"].clone();
    assert_eq!(found, expected);
    assert_eq!(lines[1]["type"], "offsets");
    assert_eq!(lines[1]["topics"]["t"][0]["metadata"], "note");
    assert_eq!(lines[1]["topics"]["t"][0]["leader_epoch"], 3);
    for (line, record) in lines.iter().zip(&sim.journal) {
        assert_eq!(&serde_json::from_value::<Record>(line.clone()).unwrap(), record);
    }
}

#[test]
fn unloading_answers_everyone() {
    let mut sim = Sim::new(config());
    let (a, _) = sim.dynamic("a");
    let (b, _) = sim.dynamic("b");
    sim.advance(10_000);
    let waiting_sync = sim.sync(sync(&b, 1));
    sim.auto_persist = false;
    let leading = sim.sync(lead(&a, 1, &[a.clone(), b.clone()]));
    let other_join =
        sim.join(JoinRequest { group_id: "h".into(), requires_known_member_id: false, ..join("z", "") });
    let committing = sim.commit(OffsetCommitRequest { group_id: "s".into(), ..commit("", -1, 1) });
    sim.unload();
    let gone = Some(GroupError::NotCoordinator);
    assert_eq!(sim.synced(waiting_sync).error, gone);
    assert_eq!(sim.synced(leading).error, gone);
    assert_eq!(sim.joined(other_join).error, gone);
    assert_eq!(sim.committed(committing), gone);
    assert!(sim.slot.list(&[], &[]).is_empty());
    assert_eq!(sim.slot.next_deadline(), None);
}

#[test]
fn slots_are_java_hash_codes() {
    // Known values of Java's String.hashCode.
    assert_eq!(slot_of("", 50), 0);
    assert_eq!(slot_of("abc", 1_000_000_000), 96_354);
    // "polygenelubricants" hashes to i32::MIN, which has no absolute value.
    assert_eq!(slot_of("polygenelubricants", 50), 0);
    assert_eq!(slot_of("my-group", 50), 12);
    assert_eq!(slot_of("my-group", 2_000_000_000), 1_906_497_762);
    assert_eq!(slot_of("gruppe-ä-😀", 2_000_000_000), 1_164_736_450);
}
