//! What ends stays ended, and what ends in good order loses nobody's answer; what was synced is what is built upon.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, clippy::cast_possible_truncation)]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kaas_engine::batch::{BatchOptions, SimpleRecord, data_batch};
use kaas_engine::leadership::ClaimError;
use kaas_engine::manifest::versioned;
use kaas_engine::manifest::{MANIFEST, Manifest};
use kaas_engine::types::{Offset, Timestamp};
use kaas_engine::{AppendError, AppendOptions, EngineError, LogConfig, State};
use kaas_fault_injection::faulty::{Faulty, Hook, Point, Rule, Rules, Verdict};
use kaas_fault_injection::simulated::{Profile, Simulation, seeded};
use kaas_substrate::ErrorClass;
use parking_lot::{Condvar, Mutex};
use support::{Volume, batch, producer_batch};

/// Holds calls of one kind while it is closed, tells those it held how they end, and notes all calls.
#[derive(Debug)]
struct Gate {
    point: Point,
    path_contains: &'static str,
    state: Mutex<GateState>,
    changed: Condvar,
    trace: Mutex<Vec<(Point, PathBuf)>>,
}

#[derive(Debug)]
struct GateState {
    closed: bool,
    held: usize,
    verdict: Verdict,
}

impl Gate {
    fn new(point: Point, path_contains: &'static str) -> Arc<Self> {
        let state = GateState { closed: false, held: 0, verdict: Verdict::Pass };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Arc::new(Self { point, path_contains, state, changed, trace: Mutex::default() })
    }

    fn close(&self) {
        self.state.lock().closed = true;
    }

    fn open(&self, verdict: Verdict) {
        let mut state = self.state.lock();
        state.closed = false;
        state.verdict = verdict;
        self.changed.notify_all();
    }

    fn wait_until_held(&self, calls: usize) {
        until("a call is held", || self.state.lock().held >= calls);
    }

    fn through(self: &Arc<Self>, volume: &Volume) -> Volume {
        let hook: Arc<dyn Hook> = Arc::clone(self) as _;
        volume.seen_through(Arc::new(Faulty::new(Arc::clone(&volume.substrate), hook)))
    }
}

impl Hook for Gate {
    fn before(&self, point: Point, path: &Path) -> Verdict {
        self.trace.lock().push((point, path.to_owned()));
        if point != self.point || !path.to_string_lossy().contains(self.path_contains) {
            return Verdict::Pass;
        }
        let mut state = self.state.lock();
        if !state.closed {
            return Verdict::Pass;
        }
        state.held += 1;
        while state.closed {
            self.changed.wait(&mut state);
        }
        state.held -= 1;
        state.verdict
    }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn with_rules(volume: &Volume, rules: &Arc<Rules>) -> Volume {
    let hook: Arc<dyn Hook> = Arc::clone(rules) as _;
    volume.seen_through(Arc::new(Faulty::new(Arc::clone(&volume.substrate), hook)))
}

fn last_manifest(volume: &Volume) -> Manifest {
    versioned::read_highest(&*volume.substrate, &volume.dir, MANIFEST).unwrap().unwrap().1
}

#[test]
fn a_look_at_the_fence_that_fails_late_does_not_bring_a_closed_partition_back() {
    let volume = Volume::memory();
    let rules = Rules::new([]);
    let mut seen = with_rules(&volume, &rules);
    seen.settings.fence_retry_ms = 5;
    let gate = Gate::new(Point::ReadRecords, "fence");
    let gated = gate.through(&seen);
    let log = gated.open();
    log.append(&["a"]).unwrap();
    // Looks fail, which makes jobs of their own ask again; one of those is held.
    rules.add(Rule::nth(Point::ReadRecords, 1, Verdict::Fail(ErrorClass::Io)).times(1_000_000));
    let ticket = log.partition.append(&batch(&["b"]), AppendOptions::default()).unwrap();
    until("the fence is in doubt", || log.partition.status().state == State::Unsure);
    gate.close();
    gate.wait_until_held(1);
    log.partition.abandon().wait().unwrap().unwrap();
    assert!(matches!(ticket.wait().unwrap(), Err(AppendError::NotLeader { .. })));
    gate.open(Verdict::Fail(ErrorClass::Io));
    std::thread::sleep(Duration::from_millis(60));
    rules.clear();
    std::thread::sleep(Duration::from_millis(60));
    assert_eq!(log.partition.status().state, State::Closed);
    assert!(matches!(log.append(&["c"]), Err(AppendError::NotLeader { .. })));
}

#[test]
fn closing_commits_what_the_fence_is_just_being_asked_for() {
    let volume = Volume::memory();
    let syncs = Gate::new(Point::SyncData, ".log");
    let fence = Gate::new(Point::ReadRecords, "fence");
    let log = fence.through(&syncs.through(&volume)).open();
    log.append(&["a"]).unwrap();
    // The first cycle finds more to do when it is synced, so that another thread asks the fence for it.
    syncs.close();
    let append = |value| log.partition.append(&batch(&[value]), AppendOptions::default()).unwrap();
    let first = append("b");
    syncs.wait_until_held(1);
    let second = append("c");
    fence.close();
    let closed = log.partition.close();
    syncs.open(Verdict::Pass);
    fence.wait_until_held(1);
    std::thread::sleep(Duration::from_millis(50));
    fence.open(Verdict::Pass);
    assert_eq!(first.wait().unwrap().unwrap().base_offset, Offset(1));
    assert_eq!(second.wait().unwrap().unwrap().base_offset, Offset(2));
    closed.wait().unwrap().unwrap();
    assert!(last_manifest(&volume).released, "closed in good order");
}

#[test]
fn nothing_is_taken_any_more_while_a_partition_closes() {
    let volume = Volume::memory();
    let gate = Gate::new(Point::SyncData, ".log");
    let log = gate.through(&volume).open();
    gate.close();
    let staged = log.partition.append(&batch(&["a"]), AppendOptions::default()).unwrap();
    gate.wait_until_held(1);
    let closed = log.partition.close();
    assert!(matches!(log.append(&["b"]), Err(AppendError::NotLeader { .. })));
    gate.open(Verdict::Pass);
    staged.wait().unwrap().unwrap();
    closed.wait().unwrap().unwrap();
    assert_eq!(volume.open_at(2).unwrap().values(), ["a"]);
}

#[test]
fn an_epoch_that_was_led_at_is_not_led_at_again() {
    let volume = Volume::memory();
    let log = volume.open_at(5).unwrap();
    log.append(&["a"]).unwrap();
    log.crash();
    // The same run of the same broker.
    match volume.open_at(5).map(|_| ()) {
        Err(EngineError::Claim(claim)) => assert!(matches!(&*claim, ClaimError::Refused { .. }), "{claim:?}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(volume.open_at(6).unwrap().values(), ["a"]);
}

#[test]
fn the_log_start_and_checkpoints_never_pass_what_is_synced() {
    let mut volume = Volume::memory();
    volume.config = LogConfig { flush_messages: 1000, index_interval_bytes: 100, ..LogConfig::default() };
    volume.settings.checkpoint_distance_bytes = 500;
    let gate = Gate::new(Point::SyncData, "nothing");
    let log = gate.through(&volume).open();
    for n in 0..20 {
        log.append(&[&format!("value-{n:02}")]).unwrap();
    }
    log.partition.delete_records(Some(Offset(19))).wait().unwrap().unwrap();
    let trace = gate.trace.lock();
    let is = |(point, path): &(Point, PathBuf), wanted: Point, part: &str| {
        *point == wanted && path.to_string_lossy().contains(part)
    };
    let first_write = trace.iter().position(|call| is(call, Point::Write, ".log")).unwrap();
    let mut pointers = 0;
    for (at, call) in trace.iter().enumerate().skip(first_write) {
        if !is(call, Point::Rename, "recovery-checkpoint") && !is(call, Point::Rename, "manifest") {
            continue;
        }
        pointers += 1;
        let before = &trace[..at];
        let write = before.iter().rposition(|call| is(call, Point::Write, ".log")).unwrap();
        let synced = before[write..].iter().any(|call| is(call, Point::SyncData, ".log"));
        assert!(synced, "{call:?} points at what may be lost with the host");
    }
    assert!(pointers >= 3, "only {pointers}");
}

#[test]
fn flush_ms_bounds_how_long_records_stay_unsynced() {
    let mut volume = Volume::memory();
    volume.config = LogConfig { flush_messages: 1000, flush_ms: 40, ..LogConfig::default() };
    let gate = Gate::new(Point::SyncData, "nothing");
    let log = gate.through(&volume).open();
    let syncs = || {
        let is_sync = |(point, path): &&(Point, PathBuf)| {
            *point == Point::SyncData && path.to_string_lossy().ends_with(".log")
        };
        gate.trace.lock().iter().filter(is_sync).count()
    };
    for round in 1..=3 {
        let before = syncs();
        for n in 0..5 {
            log.append(&[&format!("{round}-{n}")]).unwrap();
        }
        until("the records are synced", || syncs() > before);
    }
    assert!(syncs() <= 9, "{} syncs for 15 records in three bursts", syncs());
}

/// What a host has only written, another may not see: there a takeover must not depend on it.
#[test]
fn on_a_shared_volume_every_commit_is_synced_whatever_flush_messages_says() {
    let server = Simulation::new(Profile::nfs(), seeded(1));
    let mut volume = Volume::on(server.host(0), None);
    volume.config = LogConfig { flush_messages: 1000, ..LogConfig::default() };
    let deposed = volume.open();
    deposed.append(&["acknowledged"]).unwrap();
    let volume = volume.seen_through(server.host(1));
    assert_eq!(volume.open().values(), ["acknowledged"]);
    drop(deposed);
}

#[test]
fn a_failed_sync_is_final_also_when_a_segment_is_rolled_on_a_full_volume() {
    let mut volume = Volume::memory();
    volume.config = LogConfig { flush_messages: 1000, segment_bytes: 300, ..LogConfig::default() };
    let rules = Rules::new([]);
    let log = with_rules(&volume, &rules).open();
    rules.add(Rule::nth(Point::SyncData, 1, Verdict::Fail(ErrorClass::NoSpace)).on(".log"));
    let failed = (0..20).find_map(|n| log.append(&[&format!("value-{n:02}")]).err()).expect("one fails");
    assert!(matches!(failed, AppendError::Storage { .. }), "{failed:?}");
    assert!(matches!(log.partition.status().state, State::Poisoned { .. }));
}

#[test]
fn a_checkpoint_keeps_the_producers_it_refers_to() {
    let mut volume = Volume::memory();
    volume.config = LogConfig { index_interval_bytes: 100, ..LogConfig::default() };
    volume.settings.checkpoint_distance_bytes = 300;
    let rules = Rules::new([]);
    let seen = with_rules(&volume, &rules);
    let log = seen.open();
    let append = |n: i32| log.append_batch(&producer_batch(5, 0, n, &[&format!("value-{n:02}")])).unwrap();
    (0..2).for_each(|n| assert_eq!(append(n).base_offset, Offset(n.into())));
    // A deletion that does not get as far as its manifest.
    rules.add(Rule::nth(Point::Rename, 1, Verdict::Fail(ErrorClass::Io)).on("producer-state"));
    log.partition.delete_records(None).wait().unwrap().unwrap_err();
    (2..9).for_each(|n| assert_eq!(append(n).base_offset, Offset(n.into())));
    log.partition.delete_records(Some(Offset(4))).wait().unwrap().unwrap();
    log.crash();
    let log = volume.after(&seen).open();
    assert_eq!(log.partition.status().log_start, Offset(4));
    let again = log.append_batch(&producer_batch(5, 0, 8, &["value-08"])).unwrap();
    assert_eq!(again.base_offset, Offset(8), "a retry is recognised");
}

#[test]
fn a_duplicate_does_not_swallow_the_batches_behind_it() {
    let volume = Volume::memory();
    let log = volume.open();
    let first = producer_batch(5, 0, 0, &["a"]);
    log.append_batch(&first).unwrap();
    let both = Bytes::from([&first[..], &producer_batch(5, 0, 1, &["b"])[..]].concat());
    let options = AppendOptions { max_batches: 2, ..AppendOptions::default() };
    let appended = log.partition.append(&both, options).unwrap().wait().unwrap().unwrap();
    assert_eq!((appended.base_offset, appended.last_offset), (Offset(0), Offset(1)));
    assert_eq!(log.values(), ["a", "b"]);
}

#[test]
fn records_without_a_timestamp_are_kept_for_the_retention_time() {
    let mut volume = Volume::memory();
    volume.config = LogConfig { retention_ms: 60_000, ..LogConfig::default() };
    let log = volume.open();
    let options = BatchOptions { base_timestamp: Timestamp::NONE, ..BatchOptions::default() };
    log.append_batch(&data_batch(&[SimpleRecord::of_value("undated")], &options).unwrap()).unwrap();
    for _ in 0..2 {
        log.partition.maintain().wait().unwrap().unwrap();
        assert_eq!(log.values(), ["undated"]);
        volume.clock.advance_ms(30_000);
    }
    volume.clock.advance_ms(30_000);
    log.partition.maintain().wait().unwrap().unwrap();
    assert_eq!(log.values(), Vec::<String>::new());
}
