//! The coordinator over logs in memory; time is tokio's, paused.

mod memory;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::*;
use crate::group::state::*;
use memory::*;

fn config() -> GroupConfig {
    GroupConfig { slots: 4, ..GroupConfig::default() }
}

fn coordinator(volume: &Arc<Volume>, config: GroupConfig) -> Arc<GroupCoordinator> {
    Arc::new(GroupCoordinator::new(config, Arc::new(MemoryLogs(Arc::clone(volume)))).unwrap())
}

fn join_request(group: &str, member_id: &str) -> JoinRequest {
    JoinRequest {
        group_id: group.into(),
        member_id: member_id.into(),
        group_instance_id: None,
        client_id: "client".into(),
        client_host: "/127.0.0.1".into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        protocol_type: "consumer".into(),
        protocols: vec![Protocol { name: "range".into(), metadata: Bytes::from_static(&[0, 0, 0, 0, 0, 0]) }],
        reason: None,
        requires_known_member_id: false,
        supports_skipping_assignment: true,
        fresh_id: String::new(),
    }
}

fn sync_request(group: &str, member_id: &str, generation_id: i32) -> SyncRequest {
    SyncRequest {
        group_id: group.into(),
        generation_id,
        member_id: member_id.into(),
        group_instance_id: None,
        protocol_type: None,
        protocol_name: None,
        assignments: vec![(member_id.into(), Bytes::from_static(b"mine"))],
    }
}

fn beat(group: &str, member_id: &str, generation_id: i32) -> HeartbeatRequest {
    HeartbeatRequest {
        group_id: group.into(),
        generation_id,
        member_id: member_id.into(),
        group_instance_id: None,
    }
}

fn commit_request(group: &str, offset: i64) -> OffsetCommitRequest {
    OffsetCommitRequest {
        group_id: group.into(),
        generation_id: -1,
        member_id: String::new(),
        group_instance_id: None,
        retention_time_ms: None,
        topics: vec![CommitTopic {
            name: "t".into(),
            partitions: vec![CommitPartition { partition: 0, offset, leader_epoch: None, metadata: None }],
        }],
        knows_group_id_not_found: true,
    }
}

async fn commit(coordinator: &GroupCoordinator, group: &str, offset: i64) -> Option<GroupError> {
    coordinator.commit_offsets(commit_request(group, offset)).await.topics[0].1[0].1
}

async fn offset(
    coordinator: &GroupCoordinator,
    group: &str,
    require_stable: bool,
) -> Result<i64, GroupError> {
    let topics = Some(vec![("t".to_owned(), vec![0])]);
    let request = OffsetFetchRequest { group_id: group.into(), topics, require_stable };
    let answer = coordinator.fetch_offsets(&request).await;
    answer.error.map_or_else(|| Ok(answer.topics[0].1[0].offset), Err)
}

/// A stable group of one member; its id.
async fn stable(coordinator: &GroupCoordinator, group: &str) -> String {
    let joined = coordinator.join_group(join_request(group, "")).await;
    assert_eq!((joined.error, joined.generation_id), (None, 1));
    let synced = coordinator.sync_group(sync_request(group, &joined.member_id, 1)).await;
    assert_eq!((synced.error, synced.assignment), (None, Bytes::from_static(b"mine")));
    joined.member_id
}

fn spawn<T, F, Fut>(coordinator: &Arc<GroupCoordinator>, f: F) -> JoinHandle<T>
where
    T: Send + 'static,
    F: FnOnce(Arc<GroupCoordinator>) -> Fut,
    Fut: Future<Output = T> + Send + 'static,
{
    tokio::spawn(f(Arc::clone(coordinator)))
}

#[tokio::test(start_paused = true)]
async fn a_group_lives_and_survives_the_process() {
    let volume = Arc::new(Volume::default());
    let first = coordinator(&volume, config());
    let began = Instant::now();
    let id = stable(&first, "g").await;
    assert!(began.elapsed() >= Duration::from_secs(3), "the initial rebalance delay");
    assert!(began.elapsed() < Duration::from_millis(3_100));
    assert_eq!(first.heartbeat(&beat("g", &id, 1)).await, Ok(()));
    let mut request = commit_request("g", 42);
    request.member_id.clone_from(&id);
    request.generation_id = 1;
    assert_eq!(first.commit_offsets(request).await.topics[0].1[0].1, None);

    // The process is killed: nothing is closed.
    for task in first.shared.tasks.lock().drain(..) {
        task.abort();
    }
    drop(first);
    let second = coordinator(&volume, config());
    second.load_existing().await.unwrap();
    assert_eq!(second.heartbeat(&beat("g", &id, 1)).await, Ok(()), "no rebalance");
    assert_eq!(offset(&second, "g", false).await, Ok(42));
    let described = second.describe_groups(&["g".to_owned()]).await;
    assert_eq!((described[0].state, described[0].members.len()), ("Stable", 1));
    // The session runs anew, and ends.
    sleep(Duration::from_millis(9_900)).await;
    assert_eq!(second.heartbeat(&beat("g", &id, 1)).await, Ok(()));
    sleep(Duration::from_millis(10_100)).await;
    assert_eq!(second.heartbeat(&beat("g", &id, 1)).await, Err(GroupError::UnknownMemberId));
    assert_eq!(second.list_groups(&["Empty".into()], &[]).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_deposed_coordinator_acknowledges_nothing() {
    let volume = Arc::new(Volume::default());
    let first = coordinator(&volume, config());
    assert_eq!(commit(&first, "g", 1).await, None);
    let second = coordinator(&volume, config());
    assert_eq!(commit(&second, "g", 2).await, None);
    assert_eq!(offset(&first, "g", false).await, Err(GroupError::NotCoordinator), "not even what it knows");
    assert_eq!(commit(&first, "g", 3).await, Some(GroupError::NotCoordinator));
    assert_eq!(offset(&second, "g", true).await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn a_deposed_coordinator_does_not_believe_in_its_members_for_long() {
    let volume = Arc::new(Volume::default());
    let first = coordinator(&volume, config());
    let id = stable(&first, "g").await;
    let second = coordinator(&volume, config());
    second.load_existing().await.unwrap();
    volume.refuse_open.store(true, Ordering::Relaxed);
    assert_eq!(first.heartbeat(&beat("g", &id, 1)).await, Ok(()));
    sleep(Duration::from_millis(3_001)).await;
    assert_eq!(first.heartbeat(&beat("g", &id, 1)).await, Err(GroupError::NotCoordinator));
    assert_eq!(second.heartbeat(&beat("g", &id, 1)).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_commit_is_answered_and_seen_when_durable() {
    let volume = Arc::new(Volume::default());
    let coordinator = coordinator(&volume, GroupConfig { slots: 1, ..config() });
    assert_eq!(commit(&coordinator, "g", 1).await, None);
    volume.held.send_replace(true);
    let second = spawn(&coordinator, |c| async move { commit(&c, "g", 2).await });
    let stable = spawn(&coordinator, |c| async move { offset(&c, "g", true).await });
    sleep(Duration::from_secs(1)).await;
    assert!(!second.is_finished() && !stable.is_finished());
    assert_eq!(offset(&coordinator, "g", false).await, Ok(1));
    assert_eq!(offset(&coordinator, "other", true).await, Ok(-1), "nothing of this group is on its way");
    volume.held.send_replace(false);
    assert_eq!(second.await.unwrap(), None);
    assert_eq!(stable.await.unwrap(), Ok(2), "a stable fetch waits for what is on its way");
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_takes_too_long_is_to_be_retried() {
    let volume = Arc::new(Volume::default());
    let coordinator = coordinator(&volume, config());
    assert_eq!(commit(&coordinator, "g", 1).await, None);
    volume.held.send_replace(true);
    let began = Instant::now();
    assert_eq!(commit(&coordinator, "g", 2).await, Some(GroupError::CoordinatorNotAvailable));
    assert!(began.elapsed() >= Duration::from_secs(5));
    assert_eq!(offset(&coordinator, "g", true).await, Err(GroupError::NotCoordinator));
    volume.held.send_replace(false);
    assert_eq!(offset(&coordinator, "g", true).await, Ok(2), "it became durable later");
}

#[tokio::test(start_paused = true)]
async fn a_full_volume_fails_commits_until_there_is_room() {
    let volume = Arc::new(Volume::default());
    let coordinator = coordinator(&volume, config());
    let id = stable(&coordinator, "m").await;
    assert_eq!(commit(&coordinator, "g", 1).await, None);
    volume.no_space.store(true, Ordering::Relaxed);
    assert_eq!(commit(&coordinator, "g", 2).await, Some(GroupError::CoordinatorNotAvailable));
    assert_eq!(offset(&coordinator, "g", false).await, Ok(1));
    assert_eq!(coordinator.heartbeat(&beat("m", &id, 1)).await, Ok(()), "members live on");
    volume.no_space.store(false, Ordering::Relaxed);
    assert_eq!(commit(&coordinator, "g", 3).await, None);
    assert_eq!(volume.slots.lock().values().map(|s| s.epoch).max(), Some(1), "nothing was opened anew");
}

#[tokio::test(start_paused = true)]
async fn a_failed_log_unloads_the_slot_and_it_is_opened_anew() {
    let volume = Arc::new(Volume::default());
    let coordinator = coordinator(&volume, GroupConfig { slots: 1, ..config() });
    let id = stable(&coordinator, "m").await;
    assert_eq!(commit(&coordinator, "g", 1).await, None);
    volume.held.send_replace(true);
    let joining = spawn(&coordinator, |c| async move { c.join_group(join_request("m", "")).await.error });
    let committing = spawn(&coordinator, |c| async move { commit(&c, "g", 2).await });
    sleep(Duration::from_millis(100)).await;
    volume.poison.store(true, Ordering::Relaxed);
    volume.held.send_replace(false);
    let gone = Some(GroupError::NotCoordinator);
    assert_eq!(committing.await.unwrap(), gone);
    assert_eq!(joining.await.unwrap(), gone);
    volume.poison.store(false, Ordering::Relaxed);
    assert_eq!(coordinator.heartbeat(&beat("m", &id, 1)).await, Err(GroupError::NotCoordinator));
    sleep(REOPEN_AFTER).await;
    assert_eq!(coordinator.heartbeat(&beat("m", &id, 1)).await, Ok(()), "the member is known again");
    assert_eq!(offset(&coordinator, "g", false).await, Ok(1), "what was acknowledged is there");
    assert_eq!(commit(&coordinator, "g", 3).await, None);
    assert_eq!(volume.slots.lock()[&0].epoch, 2);
}

#[tokio::test(start_paused = true)]
async fn loading_takes_its_time_or_fails() {
    let volume = Arc::new(Volume::default());
    let coordinator = coordinator(&volume, config());
    volume.held.send_replace(true);
    assert_eq!(commit(&coordinator, "g", 1).await, Some(GroupError::CoordinatorLoadInProgress));
    assert_eq!(coordinator.heartbeat(&beat("g", "m", 1)).await, Ok(()), "as Kafka: not now, but no harm");
    let waiting = spawn(&coordinator, |c| async move { commit(&c, "g", 2).await });
    sleep(Duration::from_secs(1)).await;
    volume.held.send_replace(false);
    assert_eq!(waiting.await.unwrap(), None);

    volume.refuse_open.store(true, Ordering::Relaxed);
    let other = (0..).map(|n| format!("g{n}")).find(|g| slot_of(g, 4) != slot_of("g", 4)).unwrap();
    assert_eq!(commit(&coordinator, &other, 1).await, Some(GroupError::CoordinatorNotAvailable));
    volume.refuse_open.store(false, Ordering::Relaxed);
    assert_eq!(
        commit(&coordinator, &other, 1).await,
        Some(GroupError::CoordinatorNotAvailable),
        "not yet again"
    );
    sleep(REOPEN_AFTER).await;
    assert_eq!(commit(&coordinator, &other, 1).await, None);
}

#[tokio::test(start_paused = true)]
async fn unreadable_state_is_not_served() {
    let volume = Arc::new(Volume::default());
    let slot = slot_of("g", 4);
    let future = serde_json::json!({"type": "from_the_future", "group": "g"});
    volume.slots.lock().insert(slot, Stored { epoch: 1, snapshot: None, entries: vec![future] });
    let coordinator = coordinator(&volume, config());
    assert_eq!(coordinator.load_existing().await, Err(GroupError::CoordinatorNotAvailable));
    assert_eq!(commit(&coordinator, "g", 1).await, Some(GroupError::CoordinatorNotAvailable));
    assert_eq!(coordinator.list_groups(&[], &[]).await, Err(GroupError::CoordinatorNotAvailable));
}

#[tokio::test(start_paused = true)]
async fn snapshots_replace_entries_and_lose_nothing() {
    let volume = Arc::new(Volume::default());
    let config = GroupConfig { slots: 1, snapshot_after_entries: 10, ..config() };
    let first = coordinator(&volume, config.clone());
    let id = stable(&first, "m").await;
    let writers: Vec<_> = (0..5)
        .map(|writer| {
            spawn(&first, move |c| async move {
                for n in 1..=40 {
                    assert_eq!(commit(&c, &format!("g{writer}"), n).await, None);
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    assert!(volume.snapshots.load(Ordering::Relaxed) >= 10);
    assert!(volume.slots.lock()[&0].entries.len() < 20);
    let second = coordinator(&volume, config);
    for writer in 0..5 {
        assert_eq!(offset(&second, &format!("g{writer}"), false).await, Ok(40));
    }
    assert_eq!(second.heartbeat(&beat("m", &id, 1)).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_long_log_wants_a_snapshot_and_gets_it_when_there_is_room() {
    let volume = Arc::new(Volume::default());
    let coordinator = coordinator(&volume, GroupConfig { slots: 1, ..config() });
    assert_eq!(commit(&coordinator, "g", 1).await, None);
    volume.large.store(true, Ordering::Relaxed);
    volume.no_space.store(true, Ordering::Relaxed);
    assert_eq!(commit(&coordinator, "g", 2).await, Some(GroupError::CoordinatorNotAvailable));
    sleep(Duration::from_secs(5)).await;
    volume.no_space.store(false, Ordering::Relaxed);
    assert_eq!(commit(&coordinator, "g", 3).await, None, "appends go on without a snapshot");
    assert_eq!(volume.snapshots.load(Ordering::Relaxed), 0);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(commit(&coordinator, "g", 4).await, None);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(volume.snapshots.load(Ordering::Relaxed), 1);
    assert_eq!(offset(&coordinator, "g", true).await, Ok(4));
}

#[tokio::test(start_paused = true)]
async fn stopping_answers_everybody_and_leaves_a_snapshot() {
    let volume = Arc::new(Volume::default());
    let first = coordinator(&volume, config());
    let id = stable(&first, "g").await;
    let joining = spawn(&first, |c| async move { c.join_group(join_request("g", "")).await.error });
    volume.held.send_replace(true);
    let committing = spawn(&first, |c| async move { commit(&c, "g", 2).await });
    sleep(Duration::from_millis(10)).await;
    let stopping = spawn(&first, |c| async move { c.shutdown().await });
    sleep(Duration::from_millis(10)).await;
    assert_eq!(commit(&first, "g", 3).await, Some(GroupError::CoordinatorNotAvailable));
    assert!(!stopping.is_finished());
    volume.held.send_replace(false);
    stopping.await.unwrap();
    assert_eq!(
        committing.await.unwrap(),
        Some(GroupError::UnknownMemberId),
        "refused: the group has members"
    );
    assert_eq!(joining.await.unwrap(), Some(GroupError::NotCoordinator));
    assert_eq!(first.heartbeat(&beat("g", &id, 1)).await, Err(GroupError::CoordinatorNotAvailable));
    assert_eq!(volume.snapshots.load(Ordering::Relaxed), 1);
    assert_eq!(volume.closed.load(Ordering::Relaxed), 1);
    let second = coordinator(&volume, config());
    assert_eq!(second.heartbeat(&beat("g", &id, 1)).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_commit_on_its_way_is_acknowledged_before_stopping() {
    let volume = Arc::new(Volume::default());
    let first = coordinator(&volume, config());
    assert_eq!(commit(&first, "g", 1).await, None);
    volume.held.send_replace(true);
    let committing = spawn(&first, |c| async move { commit(&c, "g", 2).await });
    sleep(Duration::from_millis(10)).await;
    let stopping = spawn(&first, |c| async move { c.shutdown().await });
    sleep(Duration::from_millis(10)).await;
    volume.held.send_replace(false);
    stopping.await.unwrap();
    assert_eq!(committing.await.unwrap(), None);
    let second = coordinator(&volume, config());
    assert_eq!(offset(&second, "g", false).await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn stopping_does_not_wait_for_a_volume_that_hangs() {
    let volume = Arc::new(Volume::default());
    let first = coordinator(&volume, config());
    assert_eq!(commit(&first, "g", 1).await, None);
    volume.held.send_replace(true);
    let committing = spawn(&first, |c| async move { commit(&c, "g", 2).await });
    sleep(Duration::from_millis(10)).await;
    let began = Instant::now();
    first.shutdown().await;
    assert!(began.elapsed() < Duration::from_secs(6));
    let answer = committing.await.unwrap();
    assert!(
        matches!(answer, Some(GroupError::NotCoordinator | GroupError::CoordinatorNotAvailable)),
        "{answer:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn expired_offsets_are_looked_for() {
    let volume = Arc::new(Volume::default());
    let coordinator = coordinator(&volume, config());
    let mut request = commit_request("g", 5);
    request.retention_time_ms = Some(0);
    assert_eq!(coordinator.commit_offsets(request).await.topics[0].1[0].1, None);
    assert_eq!(commit(&coordinator, "keeps", 6).await, None);
    sleep(Duration::from_secs(590)).await;
    assert_eq!(offset(&coordinator, "g", false).await, Ok(5));
    sleep(Duration::from_secs(11)).await;
    assert_eq!(offset(&coordinator, "g", false).await, Ok(-1));
    assert_eq!(offset(&coordinator, "keeps", false).await, Ok(6));
    let groups = coordinator.list_groups(&[], &[]).await.unwrap();
    assert_eq!(groups.into_iter().map(|group| group.group_id).collect::<Vec<_>>(), ["keeps"]);
}

#[tokio::test(start_paused = true)]
async fn groups_and_offsets_are_deleted_over_all_slots() {
    let volume = Arc::new(Volume::default());
    let coordinator = coordinator(&volume, config());
    let groups: Vec<String> = (0..8).map(|n| format!("g{n}")).collect();
    for group in &groups {
        assert_eq!(commit(&coordinator, group, 1).await, None);
    }
    assert_eq!(coordinator.list_groups(&[], &[]).await.unwrap().len(), 8);
    let gone = std::collections::BTreeMap::from([("t".to_owned(), vec![0])]);
    coordinator.partitions_deleted(&gone).await.unwrap();
    for group in &groups {
        assert_eq!(offset(&coordinator, group, true).await, Ok(-1));
    }
    assert_eq!(commit(&coordinator, "g0", 1).await, None);
    let deleted = coordinator.delete_groups(vec!["g0".into(), "nope".into()]).await;
    let error = |id: &str| deleted.iter().find(|group| group.group_id == id).unwrap().error;
    assert_eq!((error("g0"), error("nope")), (None, Some(GroupError::GroupIdNotFound)));
    assert_eq!(offset(&coordinator, "g0", false).await, Ok(-1));
}

#[tokio::test(start_paused = true)]
async fn appends_in_flight_are_bounded() {
    let volume = Arc::new(Volume::default());
    let coordinator = coordinator(&volume, GroupConfig { slots: 1, max_appends_in_flight: 3, ..config() });
    assert_eq!(commit(&coordinator, "g", 0).await, None);
    volume.held.send_replace(true);
    let waiting: Vec<_> =
        (1..=3).map(|n| spawn(&coordinator, move |c| async move { commit(&c, "g", n).await })).collect();
    sleep(Duration::from_millis(10)).await;
    assert_eq!(commit(&coordinator, "g", 4).await, Some(GroupError::CoordinatorNotAvailable));
    volume.held.send_replace(false);
    for answer in waiting {
        assert_eq!(answer.await.unwrap(), None);
    }
    assert_eq!(offset(&coordinator, "g", false).await, Ok(3), "in the order of the requests");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_members_and_commits_at_once() {
    let volume = Arc::new(Volume::default());
    let quick =
        GroupConfig { initial_rebalance_delay_ms: 50, min_session_timeout_ms: 100, ..GroupConfig::default() };
    let first = coordinator(&volume, quick.clone());
    let tasks: Vec<_> = (0..40)
        .map(|n| {
            spawn(&first, move |c| async move {
                let group = format!("group-{n}");
                let id = stable(&c, &group).await;
                for offset in 0..50 {
                    let mut request = commit_request(&group, offset);
                    request.member_id.clone_from(&id);
                    request.generation_id = 1;
                    assert_eq!(c.commit_offsets(request).await.topics[0].1[0].1, None);
                    assert_eq!(c.heartbeat(&beat(&group, &id, 1)).await, Ok(()));
                }
                (group, id)
            })
        })
        .collect();
    let mut members = Vec::new();
    for task in tasks {
        members.push(task.await.unwrap());
    }
    let second = coordinator(&volume, quick);
    for (group, id) in members {
        assert_eq!(second.heartbeat(&beat(&group, &id, 1)).await, Ok(()));
        assert_eq!(offset(&second, &group, false).await, Ok(49));
    }
}
