//! A partition on a volume that fails: at every step, in the middle of writes, at the worst moment.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, clippy::cast_possible_truncation)]

mod support;

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use kaas_engine::types::Offset;
use kaas_engine::{AppendError, AppendOptions, LogConfig, ReadError, State};
use kaas_fault_injection::faulty::{Faulty, Hook, Point, Rule, Rules, Stall, Verdict};
use kaas_substrate::{ErrorClass, Substrate};
use support::{Log, Volume, batch, producer_batch};

/// Nothing takes so long that goes well.
const LONG: Duration = Duration::from_secs(20);

/// The same volume seen through a hook.
fn through(volume: &Volume, hook: Arc<dyn Hook>) -> Volume {
    let faulty: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::clone(&volume.substrate), hook));
    volume.seen_through(faulty)
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn small_segments() -> Volume {
    let mut volume = Volume::memory();
    volume.config = LogConfig { segment_bytes: 400, index_interval_bytes: 100, ..LogConfig::default() };
    volume.settings.checkpoint_distance_bytes = 600;
    volume
}

/// What a run of the workload was told.
#[derive(Debug, Default)]
struct Told {
    /// Acknowledged records: offset and value.
    records: Vec<(i64, String)>,
    /// The highest log start offset that was acknowledged, and the highest that was asked for.
    log_start: i64,
    log_start_asked: i64,
}

/// Appends, rolls, checkpoints, deletes, maintains, closes; stops at the first failure.
fn workload(volume: &Volume, told: &mut Told, from: i64) -> Option<()> {
    let log = volume.try_open().ok()?;
    for n in 0..14 {
        let value = format!("value-{}-{n:02}", from);
        let appended = log.append_batch(&producer_batch(5, 0, (from + n) as i32, &[&value])).ok()?;
        told.records.push((appended.base_offset.0, value));
        if n == 8 {
            let before = log.partition.status().high_watermark.0 - 3;
            told.log_start_asked = told.log_start_asked.max(before);
            log.partition.delete_records(Some(Offset(before))).wait().ok()?.ok()?;
            told.log_start = told.log_start.max(before);
        }
    }
    log.partition.maintain().wait().ok()?.ok()?;
    log.partition.close().wait().ok()?.ok()
}

fn check(log: &Log, told: &Told, context: &str) {
    let records = log.records();
    let start = log.partition.status().log_start.0;
    assert!(
        start >= told.log_start && start <= told.log_start_asked.max(told.log_start),
        "{context}: log start {start}"
    );
    for (n, (offset, _)) in records.iter().enumerate() {
        assert_eq!(*offset, start + n as i64, "{context}: offsets have gaps");
    }
    for (offset, value) in told.records.iter().filter(|(offset, _)| *offset >= start) {
        let found = records.get((offset - start) as usize).map(|(_, value)| value);
        assert_eq!(found, Some(value), "{context}: acknowledged record at {offset}");
    }
}

#[test]
fn a_crash_at_any_step_loses_nothing_acknowledged() {
    let mut crashes = 0;
    for nth in 1.. {
        let mut crashed = false;
        for verdict in [Verdict::Crash, Verdict::CrashShort { bytes: 40 }, Verdict::FailAfter(ErrorClass::Io)]
        {
            let volume = small_segments();
            let mut told = Told::default();
            workload(&volume, &mut told, 0).unwrap();
            let rules = Rules::new([Rule::nth_change(nth, verdict)]);
            let rules_hook: Arc<dyn Hook> = Arc::clone(&rules) as _;
            let faulty = through(&volume, rules_hook);
            let base = told.records.len() as i64;
            let finished = workload(&faulty, &mut told, base).is_some();
            crashed |= rules.hits() > 0;
            let context = format!("{verdict:?} at change {nth}, finished {finished}");
            let volume = volume.after(&faulty);
            let log = volume.open();
            check(&log, &told, &context);
            // What was in doubt is settled now: nothing changes any more, and the producer goes on.
            let records = log.records();
            log.crash();
            let log = volume.open();
            assert_eq!(log.records(), records, "{context}");
            let next = records.last().map_or(0, |(offset, _)| offset + 1);
            assert_eq!(log.append(&["next"]).unwrap().base_offset, Offset(next), "{context}");
        }
        if !crashed {
            break;
        }
        crashes += 1;
    }
    assert!(crashes > 50, "only {crashes} steps were tried");
}

#[test]
fn a_failed_sync_is_final_for_the_leadership() {
    let volume = Volume::memory();
    let rules = Rules::new([]);
    let faulty = through(&volume, Arc::clone(&rules) as _);
    let log = faulty.open();
    log.append(&["a"]).unwrap();
    rules.add(Rule::nth(Point::SyncData, 1, Verdict::Fail(ErrorClass::Io)).on(".log"));
    let failed = log.append(&["b"]);
    assert!(matches!(failed, Err(AppendError::Storage { .. })), "{failed:?}");
    assert!(matches!(log.partition.status().state, State::Poisoned { .. }));
    // Asking again does not help: the file is not trusted any more, whatever a second sync would say.
    assert!(matches!(log.append(&["c"]), Err(AppendError::Storage { .. })));
    assert!(matches!(log.read(0), Err(ReadError::NotLeader { .. })));
    let log = volume.after(&faulty).open();
    assert_eq!(log.values()[0], "a");
    log.append(&["d"]).unwrap();
    assert_eq!(log.values().last().unwrap(), "d");
}

#[test]
fn nothing_is_acknowledged_while_the_fence_cannot_be_read() {
    let volume = Volume::memory();
    let rules = Rules::new([]);
    let mut faulty = through(&volume, Arc::clone(&rules) as _);
    faulty.settings.fence_retry_ms = 5;
    let log = faulty.open();
    log.append(&["a"]).unwrap();
    rules.add(Rule::nth(Point::ReadRecords, 1, Verdict::Fail(ErrorClass::Io)).times(20));
    let ticket = log.partition.append(&batch(&["b"]), AppendOptions::default()).unwrap();
    until("the fence is in doubt", || log.partition.status().state == State::Unsure);
    assert!(!ticket.is_told());
    assert_eq!(log.partition.status().high_watermark, Offset(1));
    assert!(
        matches!(log.read(0), Err(ReadError::NotLeader { .. })),
        "what is not known to be led is not served"
    );
    assert!(matches!(log.append(&["refused"]), Err(AppendError::Storage { .. })));
    assert_eq!(ticket.wait().unwrap().unwrap().base_offset, Offset(1));
    assert_eq!(log.values(), ["a", "b"]);
}

#[test]
fn a_leader_that_cannot_tell_for_long_whether_it_leads_gives_up() {
    let volume = Volume::memory();
    let rules = Rules::new([]);
    let mut faulty = through(&volume, Arc::clone(&rules) as _);
    (faulty.settings.fence_retry_ms, faulty.settings.fence_limit_ms) = (5, 100);
    let log = faulty.open();
    log.append(&["a"]).unwrap();
    rules.add(Rule::nth(Point::ReadRecords, 1, Verdict::Fail(ErrorClass::Io)).times(u64::MAX / 2));
    let in_doubt = log.append(&["b"]);
    assert!(matches!(in_doubt, Err(AppendError::Storage { .. })), "{in_doubt:?}");
    assert!(rules.hits() > 1, "it was asked again");
    assert!(matches!(log.partition.status().state, State::Poisoned { .. }));
    rules.clear();
    assert_eq!(volume.after(&faulty).open().values(), ["a", "b"]);
}

#[test]
fn without_file_descriptors_a_leader_goes_on_when_there_are_some_again() {
    let mut volume = Volume::memory();
    volume.config.segment_bytes = 100;
    let rules = Rules::new([]);
    let mut faulty = through(&volume, Arc::clone(&rules) as _);
    faulty.settings.fence_retry_ms = 5;
    let log = faulty.open();
    log.append(&["a"]).unwrap();
    let none = Verdict::Fail(ErrorClass::NoDescriptors);
    // No file can be created, and the names of none be made durable.
    rules.add(Rule::nth(Point::Create, 1, none).times(2));
    rules.add(Rule::nth(Point::SyncDir, 1, none).times(3));
    for _ in 0..2 {
        let refused = log.append(&["refused"]);
        assert!(matches!(refused, Err(AppendError::NoDescriptors(_))), "{refused:?}");
        assert_eq!(log.values(), ["a"]);
    }
    let waiting = log.partition.append(&batch(&["b"]), AppendOptions::default()).unwrap();
    assert_eq!(waiting.wait().unwrap().unwrap().base_offset, Offset(1));
    assert_eq!(rules.hits(), 5, "the sync was tried again");
    assert_eq!(log.partition.status().state, State::Leading);
    assert_eq!(log.values(), ["a", "b"]);
    log.crash();
    assert_eq!(volume.after(&faulty).open().values(), ["a", "b"]);
}

#[test]
fn what_waits_for_a_sync_is_acknowledged_if_something_else_has_synced_it() {
    let mut volume = Volume::memory();
    volume.config.segment_bytes = 100;
    let rules = Rules::new([]);
    let mut faulty = through(&volume, Arc::clone(&rules) as _);
    faulty.settings.fence_retry_ms = 500;
    let log = faulty.open();
    log.append(&["a"]).unwrap();
    let none = Verdict::Fail(ErrorClass::NoDescriptors);
    rules.add(Rule::nth(Point::SyncDir, 1, none));
    rules.add(Rule::nth(Point::Create, 2, none));
    let waiting = log.partition.append(&batch(&["b"]), AppendOptions::default()).unwrap();
    // It syncs the segment that it ends, and cannot create its own.
    let refused = log.append(&["refused"]);
    assert!(matches!(refused, Err(AppendError::NoDescriptors(_))), "{refused:?}");
    until("it is acknowledged", || waiting.is_told());
    assert_eq!(waiting.wait().unwrap().unwrap().base_offset, Offset(1));
    assert_eq!(log.values(), ["a", "b"]);
}

#[test]
fn no_space_in_the_middle_of_a_write_leaves_no_trace() {
    let volume = Volume::memory();
    let rules = Rules::new([]);
    let faulty = through(&volume, Arc::clone(&rules) as _);
    let log = faulty.open();
    log.append_batch(&producer_batch(1, 0, 0, &["a"])).unwrap();
    let short = Verdict::Short { bytes: 70, class: ErrorClass::NoSpace };
    rules.add(Rule::nth(Point::Write, 1, short).on(".log").times(2));
    for _ in 0..2 {
        let full = log.append_batch(&producer_batch(1, 0, 1, &["b"]));
        assert!(matches!(full, Err(AppendError::NoSpace(_))), "{full:?}");
        assert_eq!(log.partition.status().log_end, Offset(1));
    }
    assert_eq!(log.values(), ["a"]);
    // The same batch again, now with space: not taken for a duplicate, and not out of order.
    assert_eq!(log.append_batch(&producer_batch(1, 0, 1, &["b"])).unwrap().base_offset, Offset(1));
    log.crash();
    assert_eq!(volume.after(&faulty).open().values(), ["a", "b"]);
}

#[test]
fn a_leader_paused_before_its_fence_read_acknowledges_nothing_after_a_takeover() {
    let volume = Volume::memory();
    let gate = Stall::new(Point::ReadRecords, "fence");
    let paused = through(&volume, Arc::clone(&gate) as _);
    let old = paused.open();
    old.append(&["a"]).unwrap();
    gate.close();
    let in_doubt = old.partition.append(&batch(&["b"]), AppendOptions::default()).unwrap();
    assert!(gate.wait_until_held(1, LONG));
    // Written and synced, not acknowledged; now somebody else takes over and goes on.
    let volume = volume.after(&paused);
    let new = volume.open();
    assert_eq!(new.values(), ["a", "b"], "what was durable before the takeover is kept");
    new.append(&["c"]).unwrap();
    gate.release(Verdict::Pass);
    assert!(matches!(in_doubt.wait().unwrap(), Err(AppendError::NotLeader { .. })));
    assert!(matches!(old.append(&["d"]), Err(AppendError::NotLeader { .. })));
    assert_eq!(new.values(), ["a", "b", "c"]);
}

#[test]
fn a_leader_paused_before_its_write_adds_nothing_after_a_takeover() {
    let volume = Volume::memory();
    let gate = Stall::new(Point::Write, ".log");
    let paused = through(&volume, Arc::clone(&gate) as _);
    let old = paused.open();
    old.append(&["a"]).unwrap();
    gate.close();
    let late = old.partition.append(&batch(&["late"]), AppendOptions::default()).unwrap();
    assert!(gate.wait_until_held(1, LONG));
    let volume = volume.after(&paused);
    let new = volume.open();
    new.append(&["b"]).unwrap();
    gate.release(Verdict::Pass);
    assert!(late.wait().unwrap().is_err());
    assert_eq!(new.values(), ["a", "b"]);
    new.crash();
    assert_eq!(volume.open().values(), ["a", "b"], "nor for a later leader");
}

#[test]
fn a_volume_that_does_not_answer_fails_appends_fast_and_recovers_by_itself() {
    let volume = Volume::memory();
    let gate = Stall::new(Point::SyncData, ".log");
    let mut slow = through(&volume, Arc::clone(&gate) as _);
    slow.settings.stall_limit_ms = 30;
    let log = slow.open();
    log.append(&["a"]).unwrap();
    gate.close();
    let waiting = log.partition.append(&batch(&["b"]), AppendOptions::default()).unwrap();
    assert!(gate.wait_until_held(1, LONG));
    until("the stall is noticed", || log.partition.stalled_ms().is_some());
    assert!(matches!(log.append(&["c"]), Err(AppendError::Stalled { .. })));
    assert_eq!(log.values(), ["a"], "what is committed is served meanwhile");
    gate.release(Verdict::Pass);
    assert_eq!(waiting.wait().unwrap().unwrap().base_offset, Offset(1));
    until("the stall is over", || log.partition.stalled_ms().is_none());
    assert_eq!(log.append(&["c"]).unwrap().base_offset, Offset(2));
}

#[test]
fn what_is_staged_meanwhile_is_committed_together() {
    let volume = Volume::memory();
    let gate = Stall::new(Point::SyncData, ".log");
    let slow = through(&volume, Arc::clone(&gate) as _);
    let log = slow.open();
    log.append(&["first"]).unwrap();
    gate.close();
    let before = gate.calls().len();
    let tickets: Vec<_> = (0..50)
        .map(|n| log.partition.append(&batch(&[&format!("{n}")]), AppendOptions::default()).unwrap())
        .collect();
    assert!(gate.wait_until_held(1, LONG));
    gate.release(Verdict::Pass);
    for (n, ticket) in tickets.into_iter().enumerate() {
        assert_eq!(ticket.wait().unwrap().unwrap().base_offset, Offset(n as i64 + 1));
    }
    let trace = gate.calls();
    let syncs = trace[before..].iter().filter(|(point, _)| *point == Point::SyncData).count();
    assert!(syncs <= 3, "{syncs} syncs for 50 appends");
}

#[test]
fn every_acknowledgement_follows_a_write_a_sync_and_a_look_at_the_fence() {
    let volume = Volume::memory();
    let gate = Stall::new(Point::SyncData, "nothing");
    let log = through(&volume, Arc::clone(&gate) as _).open();
    for n in 0..5 {
        let before = gate.calls().len();
        log.append(&[&format!("{n}")]).unwrap();
        let trace = gate.calls();
        let position = |wanted: Point| trace[before..].iter().position(|(point, _)| *point == wanted);
        let (write, sync, fence) =
            (position(Point::Write), position(Point::SyncData), position(Point::ReadRecords));
        assert!(write.is_some() && write < sync && sync < fence, "{:?}", &trace[before..]);
        if n == 0 {
            let name = position(Point::SyncDir);
            assert!(
                name.is_some() && name < fence,
                "the new segment's name must be durable before the fence"
            );
        }
    }
}

#[test]
fn a_segment_is_unlinked_only_after_the_manifest_and_the_fence() {
    let volume = small_segments();
    let gate = Stall::new(Point::SyncData, "nothing");
    let log = through(&volume, Arc::clone(&gate) as _).open();
    for n in 0..12 {
        log.append(&[&format!("value-{n:02}")]).unwrap();
    }
    let before = gate.calls().len();
    log.partition.delete_records(Some(Offset(10))).wait().unwrap().unwrap();
    let trace = gate.calls();
    let trace = &trace[before..];
    let unlink = trace
        .iter()
        .position(|(point, path)| *point == Point::RemoveFile && path.to_string_lossy().ends_with(".log"))
        .expect("a segment is gone");
    let manifest = trace
        .iter()
        .position(|(point, path)| *point == Point::Rename && path.to_string_lossy().contains("manifest"))
        .expect("a manifest was written");
    let durable =
        manifest + trace[manifest..].iter().position(|(point, _)| *point == Point::SyncDir).unwrap();
    let fence =
        durable + trace[durable..].iter().position(|(point, _)| *point == Point::ReadRecords).unwrap();
    assert!(fence < unlink, "{trace:?}");
}

#[test]
fn producers_wait_when_too_much_is_staged() {
    let volume = Volume::memory();
    let gate = Stall::new(Point::SyncData, ".log");
    let mut slow = through(&volume, Arc::clone(&gate) as _);
    slow.settings.staged_bytes_max = 1000;
    let log = slow.open();
    log.append(&["first"]).unwrap();
    gate.close();
    let mut tickets = Vec::new();
    let busy = loop {
        match log.partition.append(&batch(&["0123456789"]), AppendOptions::default()) {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => break error,
        }
        assert!(tickets.len() < 100);
    };
    assert!(matches!(busy, AppendError::Busy { .. }), "{busy:?}");
    let space = log.partition.staging_space();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(space.wait()).unwrap());
    assert!(receiver.recv_timeout(Duration::from_millis(30)).is_err());
    gate.release(Verdict::Pass);
    receiver.recv_timeout(Duration::from_secs(20)).unwrap().unwrap();
    for ticket in tickets {
        ticket.wait().unwrap().unwrap();
    }
    log.append(&["last"]).unwrap();
}
