//! `kaas-engine verify --repair` on what is around the partitions: topics' own files, `cluster/`, slots, fences that are gone
//! or say that a live directory was taken away.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/data.rs"]
mod data;
#[path = "support/looking.rs"]
mod looking;
#[path = "support/mending.rs"]
mod mending;
mod support;

use std::path::Path;
use std::sync::Arc;

use data::{Data, SLOT};
use kaas_engine::leadership::{self, ClaimError, Claimant};
use kaas_engine::manifest::versioned::{self, FileKind};
use kaas_engine::types::{Epoch, Timestamp};
use kaas_engine::verify::repair::{Mode, Outcome, Repaired, repair};
use kaas_engine::verify::{Kind, Options, Progress};
use kaas_fault_injection::faulty::{Faulty, Hook, Point, Rule, Rules, Verdict};
use kaas_substrate::{ErrorClass, Substrate};
use looking::{change, options};
use mending::contents;
use serde_json::{Value, json};

fn lossy() -> Options {
    Options { accept_loss: true, ..options() }
}

/// With a clock that is behind nothing: claims carry the time of this host.
fn today() -> Options {
    let now = Timestamp(Options::default().now.0 + 3_600_000);
    Options { now, ..options() }
}

fn stopped() -> Options {
    Options { brokers_stopped: true, ..options() }
}

/// Repairs everything that is wrong; nothing is wrong afterwards.
#[track_caller]
fn mend(data: &Data, options: &Options) -> Vec<Repaired> {
    let before = contents(data.root());
    let planned = data.dry_run(options);
    assert_eq!(contents(data.root()), before, "a dry run writes nothing");
    let repaired = data.repair(options);
    assert!(repaired.iter().all(|repaired| repaired.outcome == Outcome::Repaired), "{repaired:#?}");
    for (planned, repaired) in planned.iter().zip(&repaired) {
        assert_eq!((&planned.directory, planned.outcome), (&repaired.directory, Outcome::WouldRepair));
        assert_eq!(planned.steps.len(), repaired.steps.len(), "{planned:#?} {repaired:#?}");
        assert_eq!((&planned.given_up, &planned.left), (&repaired.given_up, &repaired.left));
    }
    data.assert_clean();
    assert_eq!(data.repair(options), []);
    repaired
}

/// It is left as it is, with this in the reason.
#[track_caller]
fn assert_left(data: &Data, options: &Options, reason: &str) {
    let before = contents(data.root());
    let left = data.repair(options);
    assert_eq!(left.len(), 1, "{left:#?}");
    assert_eq!(left[0].outcome, Outcome::Refused, "{left:#?}");
    let said = left[0].reason.iter().chain(&left[0].left).any(|said| said.contains(reason));
    assert!(said, "{reason} is not in {left:#?}");
    let mut after = contents(data.root());
    // What keeps brokers out may have been made.
    after.retain(|name, _| before.contains_key(name) || name != "cluster/lock");
    assert_eq!(after, before);
}

fn newest(data: &Data, dir: &str, kind: FileKind) -> (Epoch, Value) {
    let (version, value) =
        versioned::read_highest::<Value>(&*data.volume(), Path::new(dir), kind).unwrap().unwrap();
    (version.epoch, value)
}

// Topics.

#[test]
fn a_topic_id_is_what_its_partitions_say() {
    let file = "topics/orders/topic-id.json";
    for harm in [b"".as_slice(), b"{\"format\":1}", b"missing"] {
        let data = Data::new();
        let kept = std::fs::read(data.path(file)).unwrap();
        std::fs::write(data.path(file), harm).unwrap();
        if harm == b"missing" {
            std::fs::remove_file(data.path(file)).unwrap();
        }
        // One that cannot say it is no obstacle, and is repaired from the others.
        data.write("topics/orders/1/partition.json", "?");
        let repaired = mend(&data, &options());
        assert_eq!(repaired.len(), 2, "{repaired:#?}");
        assert_eq!(std::fs::read(data.path(file)).unwrap(), kept);
        assert_eq!(data.path("topics/orders/quarantine/topic-id.json").exists(), harm != b"missing");
    }
}

#[test]
fn a_topic_id_that_nobody_knows_for_certain_is_left() {
    let data = Data::new();
    std::fs::remove_file(data.path("topics/orders/topic-id.json")).unwrap();
    let kept = std::fs::read(data.path("topics/orders/2/partition.json")).unwrap();
    // Of a former topic of that name.
    let other = String::from_utf8(kept).unwrap().replace("0606", "0506");
    let body = &other[..other.find(",\"crc32c\"").unwrap()];
    data.write("topics/orders/2/partition.json", &format!("{body}}}"));
    let left = data.repair(&lossy());
    assert!(left.len() == 2 && left.iter().all(|left| left.outcome == Outcome::Refused), "{left:#?}");
    assert!(left[0].left[0].contains("do not agree"), "{left:#?}");
    // Its manifest is of the topic that the other partitions say.
    assert!(left[1].reason.as_ref().unwrap().contains("may be partition.json"), "{left:#?}");
    for partition in 0..3 {
        data.write(&format!("topics/orders/{partition}/partition.json"), "?");
    }
    let left = data.repair(&lossy());
    assert!(left[0].left[0].contains("none of its partitions"), "{left:#?}");
    // Without the topic's id the partitions cannot be put in order either.
    assert!(left.len() == 4 && left.iter().all(|left| left.outcome == Outcome::Refused), "{left:#?}");
}

#[test]
fn configs_go_back_only_if_a_loss_is_accepted() {
    let config = kaas_engine::layout::TOPIC_CONFIG;
    let data = Data::new();
    data.write("topics/orders/config.00000001.2.json", "{\"format\":1,\"config\":{\"retention.ms\":\"8");
    assert_left(&data, &options(), "--accept-loss");
    let repaired = mend(&data, &lossy());
    assert_eq!(repaired[0].given_up, ["configs that were changed after config.00000001.1.json"]);
    let (epoch, value) = newest(&data, "topics/orders", config);
    assert_eq!((epoch.get(), &value["config"]), (2, &json!({"retention.ms": "1"})));
    let aside = std::fs::read_to_string(data.path("topics/orders/quarantine/config.00000001.2.json"));
    assert!(aside.unwrap().ends_with("\"8"));

    // Nothing is left to go back to.
    data.write("topics/orders/config.00000002.1.json", "?");
    let repaired = mend(&data, &lossy());
    assert!(repaired[0].given_up[0].contains("the defaults hold"), "{repaired:#?}");
    let (epoch, value) = newest(&data, "topics/orders", config);
    assert_eq!((epoch.get(), &value["config"]), (3, &json!({})));

    // The brokers' configs likewise.
    let data = Data::new();
    data.write("cluster/broker-configs.00000001.9.json", "");
    assert_left(&data, &options(), "--accept-loss");
    mend(&data, &lossy());
    let (_, value) = newest(&data, "cluster", FileKind::json("broker-configs", 1));
    assert_eq!(value["all"], json!({"max.connections": "9"}));
}

#[test]
fn strangers_are_moved_and_what_cannot_be_made_up_is_left() {
    let data = Data::new();
    for name in ["topics/orders/notes", "cluster/notes", "cluster/controller/notes", "slots/groups/07/notes"]
    {
        data.write(name, "mine");
    }
    mend(&data, &options());
    for dir in ["topics/orders", "cluster", "cluster/controller", "slots/groups/07"] {
        let aside = data.path(dir).join("quarantine/notes");
        assert_eq!(std::fs::read_to_string(aside).unwrap(), "mine", "{dir}");
    }

    // A partition that is gone, beside something that can be repaired.
    std::fs::rename(data.path("topics/orders/1"), data.path("elsewhere")).unwrap();
    data.write("topics/orders/notes.2", "mine");
    let repaired = data.repair(&lossy());
    let topic = repaired.iter().find(|repaired| repaired.directory == Path::new("topics/orders")).unwrap();
    assert_eq!(topic.outcome, Outcome::Repaired);
    assert!(topic.left[0].contains("partition-missing"), "{topic:#?}");

    let data = Data::new();
    data.write("cluster/meta.json", "?");
    assert_left(&data, &lossy(), "--node-id");
}

#[test]
fn a_link_in_the_place_of_a_quarantine_is_not_followed() {
    for dir in ["topics/orders", "cluster", "cluster/controller", SLOT] {
        let data = Data::new();
        data.write(&format!("{dir}/notes"), "mine");
        let beside = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(beside.path(), data.path(dir).join("quarantine")).unwrap();
        assert_left(&data, &options(), "no directory");
        assert!(contents(beside.path()).is_empty());
    }
}

#[test]
fn no_producer_id_is_handed_out_twice() {
    let file = "cluster/producer-ids.00000001.1.json";
    let mut before = 0;
    for harm in ["?", "", "{\"format\":1,\"next_block_start\":7}"] {
        let data = Data::new();
        data.write(file, harm);
        mend(&data, &today());
        let (epoch, value) = newest(&data, "cluster", kaas_engine::layout::PRODUCER_IDS);
        let start = value["next_block_start"].as_i64().unwrap();
        // Above what a cluster can have handed out since 1970, and far from the end.
        let seconds = today().now.0 / 1000 - 60;
        assert!(start > seconds * 1_000_000 && start < i64::MAX / 1000 && start % 1000 == 0, "{start}");
        assert_eq!(epoch.get(), 2);
        before = start;
    }
    // Once more, when all that was handed out since is lost too.
    let data = Data::new();
    data.write(file, "?");
    let mut later = today();
    later.now.0 += 120_000;
    data.repair(&later);
    let (_, value) = newest(&data, "cluster", kaas_engine::layout::PRODUCER_IDS);
    assert!(value["next_block_start"].as_i64().unwrap() > before + 60_000_000);
}

#[test]
fn producer_ids_need_all_logs_and_a_clock_that_can_be_right() {
    let data = Data::new();
    data.write("cluster/producer-ids.00000001.1.json", "?");
    // No clock, and one that is behind the claims, but not the records.
    assert_left(&data, &Options { now: Timestamp(0), ..options() }, "set the clock");
    assert_left(&data, &options(), "set the clock");
    for target in ["cluster", "topics/orders"] {
        let report = data.verify(target);
        let claimant = Claimant { broker_id: -1, incarnation: "repair".into(), assignment_version: 0 };
        let mode = Mode::Repair(claimant);
        let left = repair(&data.volume(), &report, &today(), &mode, &Progress::default());
        assert_eq!(left.len(), usize::from(target == "cluster"), "{left:#?}");
        assert!(left.iter().all(|left| left.outcome == Outcome::Refused), "{left:#?}");
        assert!(left.iter().all(|left| left.left[0].contains("whole data directory")), "{left:#?}");
    }
    mend(&data, &today());
    // A record that is newer than all claims.
    let data = Data::new();
    data.write("cluster/producer-ids.00000001.1.json", "?");
    for claim in contents(data.root()).into_keys().filter(|name| name.contains("/claim.")) {
        std::fs::remove_file(data.path(&claim)).unwrap();
    }
    let refused = |now: i64| {
        let planned = data.dry_run(&Options { now: Timestamp(now), ..options() });
        planned.iter().any(|planned| planned.left.iter().any(|left| left.contains("set the clock")))
    };
    assert!(refused(0) && !refused(today().now.0));
}

#[test]
fn a_broker_that_runs_keeps_its_cluster_to_itself() {
    let data = Data::new();
    let volume = data.volume();
    let lock = volume.try_lock(Path::new("cluster/lock")).unwrap().unwrap();
    data.write("topics/orders/notes", "mine");
    assert_left(&data, &options(), "a broker runs");
    std::fs::remove_file(data.path("topics/orders/notes")).unwrap();
    data.write("cluster/controller/notes", "mine");
    assert_left(&data, &options(), "a broker runs");
    drop(lock);
    mend(&data, &options());
}

// Leadership.

#[test]
fn fences_of_the_controller_and_of_slots() {
    for dir in ["cluster/controller", SLOT] {
        for harm in [9, 4, 508] {
            let data = Data::new();
            change(&data.path(dir).join("fence"), |bytes| bytes[512 + harm] ^= 1);
            mend(&data, &options());
        }
        let data = Data::new();
        data.write(&format!("{dir}/claim.00000001"), "?");
        mend(&data, &options());
        let data = Data::new();
        change(&data.path(dir).join("fence"), |bytes| bytes.truncate(1100));
        mend(&data, &options());
    }
    let data = Data::new();
    // A fence that lost what is known from elsewhere.
    change(&data.path("cluster/controller/fence"), |bytes| bytes[512..1024].fill(0));
    data.assert_found(Kind::FenceBehind, "cluster/controller/fence");
    mend(&data, &options());
}

#[test]
fn a_fence_that_is_gone_is_made_anew_only_if_all_brokers_are_stopped() {
    for (dir, options) in
        [("topics/orders/1", stopped()), (SLOT, stopped()), ("cluster/controller", stopped())]
    {
        let data = Data::new();
        std::fs::remove_file(data.path(dir).join("fence")).unwrap();
        data.assert_found(Kind::FenceMissing, &format!("{dir}/fence"));
        assert_left(&data, &looking::options(), "--brokers-stopped");
        let repaired = mend(&data, &options);
        assert!(repaired[0].steps[0].contains("no epoch up to 1 "), "{repaired:#?}");
        // Whoever led before can neither come back nor claim again what it had.
        let volume = data.volume();
        let again = Claimant { broker_id: 1, incarnation: "run".into(), assignment_version: 0 };
        let refused = leadership::claim(&volume, Path::new(dir), Epoch::new(1).unwrap(), &again).unwrap_err();
        assert!(matches!(refused, ClaimError::Refused { .. }), "{refused}");
    }
}

#[test]
fn a_new_fence_is_above_all_that_left_a_trace() {
    // The controller's epochs, which partitions are claimed at.
    let data = Data::new();
    let volume = data.volume();
    let claimant = |n: u32| Claimant { broker_id: 1, incarnation: format!("run-{n}"), assignment_version: 0 };
    for n in 2..=9 {
        let dir = Path::new("cluster/controller");
        leadership::claim(&volume, dir, Epoch::new(n).unwrap(), &claimant(n)).unwrap();
    }
    std::fs::remove_file(data.path("topics/orders/1/fence")).unwrap();
    let repaired = mend(&data, &stopped());
    assert!(repaired[0].steps[0].contains("no epoch up to 9 "), "{repaired:#?}");
    // The controller's own: what the partitions know.
    std::fs::remove_dir_all(data.path("cluster/controller")).unwrap();
    data.assert_found(Kind::FenceMissing, "cluster/controller");
    let repaired = mend(&data, &stopped());
    assert!(repaired[0].steps[0].contains("no epoch up to 10 "), "{repaired:#?}");
}

#[test]
fn a_live_directory_that_was_taken_away_is_taken_back() {
    let data = Data::new();
    let (volume, dir) = (data.volume(), Path::new("topics/orders/1"));
    leadership::take_away(&*volume, dir, Epoch::new(1).unwrap()).unwrap();
    let found = data.assert_found(Kind::TakenAway, "topics/orders/1/fence");
    assert_eq!(found.position, Some(0));
    let next = Claimant { broker_id: 1, incarnation: "next".into(), assignment_version: 0 };
    let refused = leadership::claim(&volume, dir, Epoch::new(2).unwrap(), &next).unwrap_err();
    assert!(matches!(refused, ClaimError::TakenAway { .. }), "{refused}");
    let repaired = mend(&data, &options());
    assert_eq!(repaired.len(), 1);
    leadership::claim(&volume, dir, Epoch::new(9).unwrap(), &next).unwrap();

    // Where its topic is renamed aside it is as it should be, and stays.
    leadership::take_away(&*volume, dir, Epoch::new(9).unwrap()).unwrap();
    let aside = "topics/~deleted-00000001-orders-x";
    std::fs::rename(data.path("topics/orders"), data.path(aside)).unwrap();
    let report = data.verify(&format!("{aside}/1"));
    assert!(report.is_clean(), "{:#?}", report.findings);
    let deleted = report.findings.iter().find(|finding| finding.kind == Kind::Deleted).unwrap();
    assert_eq!(deleted.file, Path::new(aside).join("1/fence"));
}

// Slots.

/// The numbers in the entries that the slot opens with.
fn entries(data: &Data) -> Vec<i64> {
    let (journal, replay) = data.open_slot();
    journal.close();
    replay.entries.iter().map(|entry| entry.value.as_i64().unwrap()).collect()
}

/// Where the lines of the slot's journal begin.
fn lines(bytes: &[u8]) -> Vec<usize> {
    let feeds = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    std::iter::once(0).chain(feeds).collect()
}

const JOURNAL: &str = "slots/groups/07/journal.00000001.0.jsonl";

#[test]
fn a_torn_journal_loses_nothing() {
    let data = Data::new();
    change(&data.path(JOURNAL), |bytes| bytes.truncate(bytes.len() - 3));
    data.assert_found(Kind::TornTail, JOURNAL);
    let repaired = mend(&data, &options());
    assert!(repaired[0].given_up.is_empty());
    let aside: Vec<_> = contents(&data.path(SLOT).join("quarantine")).into_keys().collect();
    assert!(aside.len() == 1 && aside[0].starts_with("journal.00000001.0.jsonl."), "{aside:?}");
    assert_eq!(entries(&data), [0, 1, 2, 3]);
}

#[test]
fn a_damaged_journal_keeps_what_can_be_read_if_the_rest_may_be_lost() {
    let data = Data::new();
    let kept = std::fs::read(data.path(JOURNAL)).unwrap();
    let at = lines(&kept);
    // The header; a line; a line feed, which makes two lines one.
    for (harm, left) in [
        (3, vec![0, 1, 2, 3, 4]),
        (at[2] + 20, vec![0, 2, 3, 4]),
        (at[3] - 1, vec![0, 2, 3, 4]),
        (at[1], vec![1, 2, 3, 4]),
    ] {
        let data = Data::new();
        std::fs::write(data.path(JOURNAL), &kept).unwrap();
        change(&data.path(JOURNAL), |bytes| bytes[harm] ^= 1);
        data.assert_found(Kind::JournalDamaged, JOURNAL);
        assert_left(&data, &options(), "--accept-loss");
        let repaired = mend(&data, &lossy());
        assert!(!repaired[0].given_up.is_empty(), "{repaired:#?}");
        assert_eq!(entries(&data), left, "byte {harm}");
        assert!(data.path("slots/groups/07/quarantine/journal.00000001.0.jsonl").exists());
    }
}

#[test]
fn a_journal_that_lacks_its_end_without_a_trace() {
    // Of one that took five entries over, all is gone, or all but the first line.
    for keep_header in [false, true] {
        let data = Data::new();
        assert_eq!(entries(&data).len(), 5);
        let dir = contents(&data.path(SLOT));
        let newest = dir.keys().rfind(|name| name.starts_with("journal.")).unwrap().clone();
        let path = format!("{SLOT}/{newest}");
        change(&data.path(&path), |bytes| bytes.truncate(if keep_header { lines(bytes)[1] } else { 0 }));
        data.assert_found(Kind::JournalDamaged, &path);
        assert_left(&data, &options(), "--accept-loss");
        let repaired = mend(&data, &lossy());
        assert!(!repaired[0].given_up.is_empty(), "{repaired:#?}");
    }
}

#[test]
fn snapshots() {
    let data = Data::with_snapshot();
    let names: Vec<_> = contents(&data.path(SLOT)).into_keys().collect();
    let named = |start: &str| names.iter().find(|name| name.starts_with(start)).unwrap().clone();
    let (journal, snapshot) = (named("journal"), named("snapshot"));
    let all = entries(&data);
    assert_eq!(all, [3, 4, 7]);

    for harm in ["damaged", "missing"] {
        let data = Data::with_snapshot();
        let path = data.path(SLOT).join(&snapshot);
        std::fs::write(&path, "?").unwrap();
        if harm == "missing" {
            std::fs::remove_file(&path).unwrap();
        }
        assert_left(&data, &options(), "--accept-loss");
        let repaired = mend(&data, &lossy());
        assert!(repaired[0].given_up[0].contains(&snapshot), "{repaired:#?}");
        let (_, replay) = data.open_slot();
        assert_eq!((replay.snapshot, replay.entries.len()), (None, 3), "{harm}");
    }
    // Without the journal's first line the newest snapshot is the one.
    let data = Data::with_snapshot();
    change(&data.path(SLOT).join(&journal), |bytes| bytes[3] ^= 1);
    mend(&data, &lossy());
    let (_, replay) = data.open_slot();
    assert_eq!((replay.snapshot, replay.entries.len()), (Some(json!({"state": "three"})), 3));
    // A journal that is gone; and one of a higher name that is an older one.
    let data = Data::with_snapshot();
    std::fs::remove_file(data.path(SLOT).join(&journal)).unwrap();
    mend(&data, &lossy());
    let (_, replay) = data.open_slot();
    assert_eq!((replay.snapshot, replay.entries.len()), (Some(json!({"state": "three"})), 0));
    let data = Data::new();
    let renamed = "slots/groups/07/journal.00000001.3.jsonl";
    std::fs::rename(data.path(JOURNAL), data.path(renamed)).unwrap();
    assert_left(&data, &options(), "--accept-loss");
    mend(&data, &lossy());
    assert_eq!(entries(&data), [0, 1, 2, 3, 4]);
}

#[test]
fn a_live_coordinator_is_fenced_out() {
    let data = Data::new();
    let (journal, _) = data.open_slot();
    journal.append(&[8]).wait().unwrap();
    data.write("slots/groups/07/notes", "mine");
    mend(&data, &options());
    assert!(journal.append(&[9]).wait().is_err());
    assert_eq!(entries(&data), [0, 1, 2, 3, 4, 8]);
}

/// Claims the next epoch of a directory once something of this name is renamed there.
#[derive(Debug)]
struct Rival {
    volume: Arc<dyn Substrate>,
    dir: &'static str,
    renamed: &'static str,
}

impl Hook for Rival {
    fn before(&self, point: Point, path: &Path) -> Verdict {
        if point == Point::Rename && path.to_string_lossy().contains(self.renamed) {
            let dir = Path::new(self.dir);
            let next = leadership::highest(&*self.volume, dir).unwrap().next();
            let claimant = Claimant { broker_id: 1, incarnation: "rival".into(), assignment_version: 0 };
            leadership::claim(&self.volume, dir, next, &claimant).unwrap();
        }
        Verdict::Pass
    }
}

#[test]
fn a_repair_that_is_deposed_removes_nothing() {
    for (dir, renamed, led) in
        [("topics/orders", "config.", "cluster/controller"), (SLOT, "~tmp-journal.", SLOT)]
    {
        let data = Data::new();
        data.write(&format!("{dir}/notes"), "mine");
        let damaged = if dir == SLOT { JOURNAL.to_owned() } else { format!("{dir}/config.00000001.2.json") };
        data.write(&damaged, "?");
        let rival = Rival { volume: data.volume(), dir: led, renamed };
        let volume: Arc<dyn Substrate> = Arc::new(Faulty::new(data.volume(), Arc::new(rival)));
        let claimant = Claimant { broker_id: -1, incarnation: "repair".into(), assignment_version: 0 };
        let repaired = data.repair_through(&volume, &lossy(), &Mode::Repair(claimant));
        assert_eq!(repaired[0].outcome, Outcome::Refused, "{repaired:#?}");
        assert!(repaired[0].reason.as_ref().unwrap().contains("deposed by epoch 3"), "{repaired:#?}");
        assert!(data.path(&damaged).exists() && data.path(dir).join("notes").exists());
        mend(&data, &lossy());
    }
}

// Crashes.

/// Everything that can be repaired around the partitions, at once.
fn damaged() -> Data {
    let data = Data::with_snapshot();
    data.write("topics/orders/topic-id.json", "?");
    data.write("topics/orders/notes", "mine");
    data.write("topics/orders/config.00000001.2.json", "?");
    data.write("cluster/broker-configs.00000001.9.json", "?");
    data.write("cluster/producer-ids.00000001.1.json", "?");
    std::fs::remove_file(data.path("cluster/controller/fence")).unwrap();
    std::fs::remove_file(data.path("topics/payments/2/fence")).unwrap();
    let journal = contents(&data.path(SLOT)).into_keys().find(|name| name.starts_with("journal")).unwrap();
    change(&data.path(SLOT).join(journal), |bytes| {
        let second = lines(bytes)[1] + 20;
        bytes[second] ^= 1;
    });
    data
}

#[test]
fn a_repair_that_is_cut_off_at_any_step_is_repeated() {
    let options = Options { accept_loss: true, brokers_stopped: true, threads: 1, ..today() };
    let claimant = |n: u64| Claimant { broker_id: -1, incarnation: format!("{n}"), assignment_version: 0 };
    let mut steps = 0;
    for verdict in [Verdict::Crash, Verdict::CrashShort { bytes: 7 }, Verdict::FailAfter(ErrorClass::Io)] {
        for nth in (1..).map(|n| n + n * n / 40) {
            let data = damaged();
            let rules = Rules::new([Rule::nth_change(nth, verdict)]);
            let hook: Arc<dyn Hook> = Arc::clone(&rules) as Arc<dyn Hook>;
            let faulty: Arc<dyn Substrate> = Arc::new(Faulty::new(data.volume(), hook));
            data.repair_through(&faulty, &options, &Mode::Repair(claimant(nth)));
            drop(faulty);
            let again = data.repair(&options);
            assert!(again.iter().all(|again| again.outcome == Outcome::Repaired), "{nth}: {again:#?}");
            data.assert_clean();
            let (_, replay) = data.open_slot();
            assert_eq!(replay.snapshot, Some(json!({"state": "three"})), "{nth}");
            let left: Vec<_> = replay.entries.iter().map(|entry| entry.value.clone()).collect();
            assert_eq!(left, [json!(4), json!(7)], "{nth}");
            let (_, config) = newest(&data, "topics/orders", kaas_engine::layout::TOPIC_CONFIG);
            assert_eq!(config["config"], json!({"retention.ms": "1"}), "{nth}");
            if rules.hits() == 0 {
                break;
            }
            steps += 1;
        }
    }
    assert!(steps > 30, "{steps}");
}
