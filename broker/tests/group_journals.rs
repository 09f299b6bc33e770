//! The group coordinator over the journals of a real data directory: restarts, crashes, faults of the volume.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kaas_broker::group::state::*;
use kaas_broker::group::{GroupCoordinator, JournalLogs};
use kaas_control::election::{Controller, ControllerSettings};
use kaas_engine::Reserve;
use kaas_engine::io::{IoPool, IoPoolSettings};
use kaas_engine::journal::JournalSettings;
use kaas_fault_injection::faulty::{Faulty, Point, Rule, Rules, Verdict};
use kaas_substrate::{ErrorClass, Local, Substrate};
use serde_json::Value;
use tempfile::TempDir;

/// One run of a broker's coordinator.
struct Run {
    coordinator: Arc<GroupCoordinator>,
    controller: Arc<Controller>,
    rules: Arc<Rules>,
}

fn config() -> GroupConfig {
    GroupConfig {
        initial_rebalance_delay_ms: 10,
        min_session_timeout_ms: 100,
        slots: 3,
        ..GroupConfig::default()
    }
}

fn start(data: &Path, config: GroupConfig) -> Run {
    let rules = Rules::new([]);
    let local: Arc<dyn Substrate> = Arc::new(Local::open(data).unwrap());
    let volume: Arc<dyn Substrate> = Arc::new(Faulty::new(local, rules.clone()));
    // The lock guards against mistakes; here a run takes over from one that is still there.
    let settings = ControllerSettings { node_id: 1, cluster_id: None, ignore_lock: true };
    let controller = Arc::new(Controller::start(Arc::clone(&volume), &settings).unwrap());
    let io = Arc::new(IoPool::new(IoPoolSettings::default()).unwrap());
    let reserve = Arc::new(Reserve::new(Arc::clone(&volume)));
    let logs = JournalLogs::new(volume, controller.clone(), io, JournalSettings::default(), reserve);
    let coordinator = Arc::new(GroupCoordinator::new(config, Arc::new(logs)).unwrap());
    Run { coordinator, controller, rules }
}

fn commit_request(group: &str, member: &str, generation: i32, offset: i64) -> OffsetCommitRequest {
    OffsetCommitRequest {
        group_id: group.into(),
        generation_id: generation,
        member_id: member.into(),
        group_instance_id: None,
        retention_time_ms: None,
        topics: vec![CommitTopic {
            name: "topic".into(),
            partitions: vec![CommitPartition {
                partition: 7,
                offset,
                leader_epoch: Some(4),
                metadata: Some("ä".into()),
            }],
        }],
        knows_group_id_not_found: true,
    }
}

async fn commit(run: &Run, group: &str, offset: i64) -> Option<GroupError> {
    run.coordinator.commit_offsets(commit_request(group, "", -1, offset)).await.topics[0].1[0].1
}

async fn offset(run: &Run, group: &str) -> Result<i64, GroupError> {
    let topics = Some(vec![("topic".to_owned(), vec![7])]);
    let request = OffsetFetchRequest { group_id: group.into(), topics, require_stable: true };
    let answer = run.coordinator.fetch_offsets(&request).await;
    answer.error.map_or_else(|| Ok(answer.topics[0].1[0].offset), Err)
}

async fn stable(run: &Run, group: &str, instance: Option<&str>) -> String {
    let request = JoinRequest {
        group_id: group.into(),
        member_id: String::new(),
        group_instance_id: instance.map(Into::into),
        client_id: "client".into(),
        client_host: "/127.0.0.1".into(),
        session_timeout_ms: 60_000,
        rebalance_timeout_ms: 60_000,
        protocol_type: "consumer".into(),
        protocols: vec![Protocol { name: "range".into(), metadata: Bytes::from_static(&[0, 1, 0, 0, 0, 0]) }],
        reason: None,
        requires_known_member_id: false,
        supports_skipping_assignment: true,
        fresh_id: String::new(),
    };
    let joined = run.coordinator.join_group(request).await;
    assert_eq!(joined.error, None);
    let assignments = vec![(joined.member_id.clone(), Bytes::from_static(b"\x00mine\xff"))];
    let request = SyncRequest {
        group_id: group.into(),
        generation_id: joined.generation_id,
        member_id: joined.member_id.clone(),
        group_instance_id: None,
        protocol_type: None,
        protocol_name: None,
        assignments,
    };
    let synced = run.coordinator.sync_group(request).await;
    assert_eq!((synced.error, synced.assignment), (None, Bytes::from_static(b"\x00mine\xff")));
    joined.member_id
}

async fn heartbeat(run: &Run, group: &str, member: &str) -> Result<(), GroupError> {
    let request = HeartbeatRequest {
        group_id: group.into(),
        generation_id: 1,
        member_id: member.into(),
        group_instance_id: None,
    };
    run.coordinator.heartbeat(&request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_survive_a_run_that_just_ends() {
    let data = TempDir::new().unwrap();
    let first = start(data.path(), config());
    let member = stable(&first, "group", None).await;
    let request = commit_request("group", &member, 1, 42);
    assert_eq!(first.coordinator.commit_offsets(request).await.topics[0].1[0].1, None);
    for n in 0..10 {
        assert_eq!(commit(&first, &format!("simple-{n}"), n).await, None);
    }

    let second = start(data.path(), config());
    second.coordinator.load_existing().await.unwrap();
    assert_eq!(heartbeat(&second, "group", &member).await, Ok(()), "no rebalance");
    assert_eq!(offset(&second, "group").await, Ok(42));
    for n in 0..10 {
        assert_eq!(offset(&second, &format!("simple-{n}")).await, Ok(n));
    }
    assert_eq!(second.coordinator.list_groups(&[], &[]).await.unwrap().len(), 11);

    // The first run is still there, and may neither acknowledge nor tell anything any more.
    assert_eq!(offset(&first, "simple-0").await, Err(GroupError::NotCoordinator));
    let request = commit_request("group", &member, 1, 43);
    let answer = first.coordinator.commit_offsets(request).await.topics[0].1[0].1;
    assert_eq!(answer, Some(GroupError::NotCoordinator));
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(
        commit(&first, "simple-0", 99).await,
        Some(GroupError::CoordinatorNotAvailable),
        "a deposed controller does not take the slot back"
    );
    assert_eq!(offset(&second, "group").await, Ok(42));
    assert_eq!(offset(&second, "simple-0").await, Ok(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_leaves_snapshots_that_a_person_can_read() {
    let data = TempDir::new().unwrap();
    let first = start(data.path(), GroupConfig { slots: 1, ..config() });
    let member = stable(&first, "group", Some("instance")).await;
    assert_eq!(commit(&first, "simple", 5).await, None);
    let slot = data.path().join("slots/groups/00");
    let lines = |name: &str| -> Vec<Value> {
        let mut files: Vec<_> = std::fs::read_dir(&slot)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(name))
            .collect();
        files.sort();
        let text = std::fs::read_to_string(files.last().unwrap()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let journal = format!("{:?}", lines("journal"));
    assert!(journal.contains("group_instance_id") && journal.contains("AG1pbmX/"), "{journal}");
    first.coordinator.shutdown().await;

    let snapshot = &lines("snapshot")[0]["state"];
    assert_eq!(snapshot["format_version"], 1);
    assert_eq!(snapshot["groups"][0]["group"]["members"][0]["member_id"], member.as_str());
    assert_eq!(snapshot["groups"][1]["offsets"]["topics"]["topic"][0]["metadata"], "ä");
    let second = start(data.path(), GroupConfig { slots: 1, ..config() });
    assert_eq!(heartbeat(&second, "group", &member).await, Ok(()));
    assert_eq!(offset(&second, "simple").await, Ok(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_is_not_acknowledged_and_the_slot_is_led_anew() {
    let data = TempDir::new().unwrap();
    let run = start(data.path(), GroupConfig { slots: 1, ..config() });
    let member = stable(&run, "group", None).await;
    assert_eq!(commit(&run, "simple", 1).await, None);
    let epoch = run.controller.current();
    run.rules.add(Rule::nth(Point::SyncData, 1, Verdict::Fail(ErrorClass::Io)).on("slots/"));
    assert_eq!(commit(&run, "simple", 2).await, Some(GroupError::NotCoordinator));
    assert_eq!(heartbeat(&run, "group", &member).await, Err(GroupError::NotCoordinator));
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(heartbeat(&run, "group", &member).await, Ok(()), "the group is back, with its member");
    let now = offset(&run, "simple").await.unwrap();
    assert!(now == 1 || now == 2, "acknowledged, or what was not: {now}");
    assert_eq!(commit(&run, "simple", 3).await, None);
    assert_eq!(run.controller.current(), epoch.next(), "at the controller's next epoch");
    let later = start(data.path(), GroupConfig { slots: 1, ..config() });
    assert_eq!(offset(&later, "simple").await, Ok(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_volume_is_survived_without_a_restart() {
    let data = TempDir::new().unwrap();
    let run = start(data.path(), GroupConfig { slots: 1, ..config() });
    let member = stable(&run, "group", None).await;
    assert_eq!(commit(&run, "simple", 1).await, None);
    let epoch = run.controller.current();
    run.rules.add(Rule::nth(Point::Write, 1, Verdict::Fail(ErrorClass::NoSpace)).on("slots/").times(1_000));
    for offset in 2..5 {
        assert_eq!(commit(&run, "simple", offset).await, Some(GroupError::CoordinatorNotAvailable));
    }
    assert_eq!(heartbeat(&run, "group", &member).await, Ok(()), "members live on");
    assert_eq!(offset(&run, "simple").await, Ok(1));
    run.rules.clear();
    assert_eq!(commit(&run, "simple", 6).await, None);
    assert_eq!(offset(&run, "simple").await, Ok(6));
    assert_eq!(run.controller.current(), epoch);
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_under_load_lose_nothing() {
    let data = TempDir::new().unwrap();
    let config = GroupConfig { snapshot_after_entries: 20, ..config() };
    let run = start(data.path(), config.clone());
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let coordinator = Arc::clone(&run.coordinator);
            tokio::spawn(async move {
                for n in 0..60 {
                    let request = commit_request(&format!("group-{writer}"), "", -1, n);
                    assert_eq!(coordinator.commit_offsets(request).await.topics[0].1[0].1, None);
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let later = start(data.path(), config);
    for writer in 0..8 {
        assert_eq!(offset(&later, &format!("group-{writer}")).await, Ok(59));
    }
    let count = |prefix: &str| {
        (0..3)
            .filter_map(|slot| std::fs::read_dir(data.path().join(format!("slots/groups/{slot:02}"))).ok())
            .flatten()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with(prefix))
            .count()
    };
    assert!((1..=3).contains(&count("snapshot")), "old ones are removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_is_not_served() {
    let data = TempDir::new().unwrap();
    let run = start(data.path(), GroupConfig { slots: 1, ..config() });
    assert_eq!(commit(&run, "simple", 1).await, None);
    assert_eq!(commit(&run, "simple", 2).await, None);
    run.coordinator.shutdown().await;
    let slot = data.path().join("slots/groups/00");
    for entry in std::fs::read_dir(slot).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_str().unwrap().starts_with("snapshot") {
            let mut bytes = std::fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let later = start(data.path(), GroupConfig { slots: 1, ..config() });
    assert_eq!(offset(&later, "simple").await, Err(GroupError::NotCoordinator));
    assert_eq!(later.coordinator.list_groups(&[], &[]).await, Err(GroupError::CoordinatorNotAvailable));
    assert_eq!(commit(&later, "simple", 3).await, Some(GroupError::CoordinatorNotAvailable));
}
