use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use kaas_fault_injection::faulty::{Faulty, Hook, Point, Rule, Rules, Verdict};
use kaas_substrate::{ErrorClass, Local, Memory, OpenMode, Substrate, read_small};
use serde_json::{Value, json};

use super::*;
use crate::io::IoPoolSettings;
use crate::leadership::{ClaimError, Claimant};
use crate::manifest::seal::seal_line;

const SLOT: &str = "slots/07";

fn pool() -> Arc<IoPool> {
    let settings = IoPoolSettings { name: "test", max_threads: 4, idle_ms: 100, max_queued: 100 };
    Arc::new(IoPool::new(settings).unwrap())
}

fn born(volume: impl Substrate + 'static) -> Arc<dyn Substrate> {
    volume.create_dir(Path::new("slots")).unwrap();
    birth(&volume, Path::new(SLOT), "1").unwrap();
    Arc::new(volume)
}

fn with_rules(volume: &Arc<dyn Substrate>) -> (Arc<dyn Substrate>, Arc<Rules>) {
    let rules = Rules::new([]);
    (Arc::new(Faulty::new(Arc::clone(volume), Arc::clone(&rules) as Arc<dyn Hook>)), rules)
}

fn epoch(value: u32) -> Epoch {
    Epoch::new(value).unwrap()
}

fn settings() -> JournalSettings {
    JournalSettings { fence_limit_ms: 200, ..JournalSettings::default() }
}

fn try_open(
    volume: &Arc<dyn Substrate>,
    value: u32,
    settings: JournalSettings,
) -> Result<(Journal, Replay), OpenError> {
    let run = Claimant { broker_id: 1, incarnation: format!("run-{value}"), assignment_version: 0 };
    Journal::open(volume, Path::new(SLOT), epoch(value), &run, &pool(), settings)
}

fn open(volume: &Arc<dyn Substrate>, value: u32) -> (Journal, Replay) {
    try_open(volume, value, settings()).unwrap()
}

fn values(replay: &Replay) -> Vec<Value> {
    replay.entries.iter().map(|entry| entry.value.clone()).collect()
}

fn numbers(replay: &Replay) -> Vec<u64> {
    let snapshot = replay.snapshot.iter().flat_map(|state| state.as_array().unwrap().iter());
    snapshot
        .chain(replay.entries.iter().map(|entry| &entry.value))
        .map(|value| value.as_u64().unwrap())
        .collect()
}

fn files(volume: &Arc<dyn Substrate>) -> Vec<String> {
    let mut names: Vec<_> = volume
        .list(Path::new(SLOT))
        .unwrap()
        .into_iter()
        .map(|entry| entry.name.into_string().unwrap())
        .filter(|name| name != "fence" && !name.starts_with("claim."))
        .collect();
    names.sort();
    names
}

#[test]
fn entries_come_back_in_order_on_every_substrate() {
    let dir = tempfile::tempdir().unwrap();
    let volumes = [born(Memory::new()), born(Local::open(dir.path()).unwrap())];
    for volume in volumes {
        let (journal, replay) = open(&volume, 1);
        assert_eq!(replay, Replay { snapshot: None, entries: vec![] });
        let first = journal.append(&[json!({"group": "a\n", "offset": 1}), json!(2)]).wait().unwrap();
        let second = journal.append(&["three"]).wait().unwrap();
        assert!(first < second);
        assert_eq!((journal.committed(), journal.appends_since_snapshot()), (second, 2));
        journal.close();
        let (journal, replay) = open(&volume, 2);
        assert_eq!(values(&replay), [json!({"group": "a\n", "offset": 1}), json!(2), json!("three")]);
        assert_eq!(replay.entries[0].sequence, replay.entries[1].sequence);
        assert!(journal.append(&[4]).wait().unwrap() > second);
        assert_eq!(files(&volume), ["journal.00000002.0.jsonl"]);
        assert_eq!(journal.appends_since_snapshot(), 3);
    }
}

#[test]
fn a_person_can_read_the_file() {
    let volume = born(Memory::new());
    let (journal, _) = open(&volume, 1);
    journal.append(&[json!({"key": "k", "value": 1})]).wait().unwrap();
    let bytes =
        read_small(volume.as_ref(), &Path::new(SLOT).join("journal.00000001.0.jsonl"), 10_000).unwrap();
    let lines: Vec<Value> = bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[0]["format"], &lines[0]["epoch"]), (&json!(1), &json!(1)));
    assert_eq!(lines[1]["entries"], json!([{"key": "k", "value": 1}]));
}

#[test]
fn a_slot_is_born_once_and_whole() {
    let memory = Memory::new();
    memory.create_dir(Path::new("slots")).unwrap();
    // A crash left half of one.
    memory.create_dir(Path::new("slots/~new-07")).unwrap();
    memory.open(Path::new("slots/~new-07/fence"), OpenMode::CreateNew).unwrap();
    birth(&memory, Path::new(SLOT), "1").unwrap();
    let volume: Arc<dyn Substrate> = Arc::new(memory.clone());
    let (journal, _) = open(&volume, 3);
    birth(&memory, Path::new(SLOT), "1").unwrap();
    journal.append(&[1]).wait().unwrap();
    assert_eq!(memory.list(Path::new("slots")).unwrap().len(), 1);
}

/// Lets another process do something right before the nth call.
struct Meanwhile {
    calls_left: AtomicU64,
    act: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meanwhile").field("calls_left", &self.calls_left).finish_non_exhaustive()
    }
}

impl Hook for Meanwhile {
    fn before(&self, _: Point, _: &Path) -> Verdict {
        if self.calls_left.fetch_sub(1, Ordering::SeqCst) == 1 {
            (self.act)();
        }
        Verdict::Pass
    }
}

/// The volume as a process sees it that another overtakes at its nth call; `None` once it makes fewer.
fn overtaken<T>(
    volume: &Arc<dyn Substrate>,
    nth: u64,
    act: impl Fn() + Send + Sync + 'static,
    work: impl FnOnce(&Arc<dyn Substrate>) -> T,
) -> Option<T> {
    let hook = Arc::new(Meanwhile { calls_left: AtomicU64::new(nth), act: Box::new(act) });
    let seen: Arc<dyn Substrate> =
        Arc::new(Faulty::new(Arc::clone(volume), Arc::clone(&hook) as Arc<dyn Hook>));
    let outcome = work(&seen);
    // Wrapped round if it went below zero.
    (hook.calls_left.load(Ordering::SeqCst).cast_signed() <= 0).then_some(outcome)
}

/// The process dies at its nth call.
#[derive(Debug)]
struct DiesAt(AtomicU64);

impl Hook for DiesAt {
    fn before(&self, _: Point, _: &Path) -> Verdict {
        if self.0.fetch_sub(1, Ordering::SeqCst) == 1 { Verdict::Crash } else { Verdict::Pass }
    }
}

#[test]
fn a_slot_is_born_whole_whoever_else_is_at_it_and_dies() {
    for (nth, mth) in (1..=6).flat_map(|nth| (1..=10).map(move |mth| (nth, mth))) {
        let memory = Memory::new();
        memory.create_dir(Path::new("slots")).unwrap();
        let volume: Arc<dyn Substrate> = Arc::new(memory);
        let other = Arc::clone(&volume);
        let act = move || {
            let dying = Faulty::new(Arc::clone(&other), Arc::new(DiesAt(AtomicU64::new(mth))));
            let _ = birth(&dying, Path::new(SLOT), "dying");
        };
        let birth_of_first = |seen: &Arc<dyn Substrate>| birth(seen.as_ref(), Path::new(SLOT), "first");
        overtaken(&volume, nth, act, birth_of_first).expect("a birth makes six calls").unwrap();
        birth(volume.as_ref(), Path::new(SLOT), "next").unwrap();
        open(&volume, 1).0.append(&[1]).wait().unwrap();
        assert_eq!(volume.list(Path::new("slots")).unwrap().len(), 1, "calls {nth} and {mth}");
    }
}

#[test]
fn whoever_comes_to_a_slot_late_does_not_put_half_of_one_in_its_place() {
    for nth in 1.. {
        let memory = Memory::new();
        memory.create_dir(Path::new("slots")).unwrap();
        let volume: Arc<dyn Substrate> = Arc::new(memory);
        let other = Arc::clone(&volume);
        let act = move || {
            birth(other.as_ref(), Path::new(SLOT), "other").unwrap();
            open(&other, 1).0.append(&[1]).wait().unwrap();
        };
        let late = overtaken(&volume, nth, act, |seen| birth(seen.as_ref(), Path::new(SLOT), "late"));
        let Some(outcome) = late else {
            assert!(nth > 6, "{nth}");
            return;
        };
        outcome.unwrap();
        assert_eq!(numbers(&open(&volume, 2).1), [1], "call {nth}");
        birth(volume.as_ref(), Path::new(SLOT), "next").unwrap();
        assert_eq!(volume.list(Path::new("slots")).unwrap().len(), 1, "call {nth}");
    }
}

#[test]
fn a_coordinator_that_is_overtaken_while_it_opens_does_not_take_what_is_gone_for_damage() {
    for nth in 1.. {
        let volume = born(Memory::new());
        let (journal, _) = open(&volume, 1);
        let first = journal.append(&[1]).wait().unwrap();
        journal.write_snapshot(first, &[1]).wait().unwrap();
        let other = Arc::clone(&volume);
        let act = move || {
            let (journal, replay) = open(&other, 5);
            let next = journal.append(&[2]).wait().unwrap();
            journal.write_snapshot(next, &[numbers(&replay), vec![2]].concat()).wait().unwrap();
        };
        let Some(outcome) = overtaken(&volume, nth, act, |seen| try_open(seen, 3, settings())) else {
            assert!(nth > 20, "{nth}");
            return;
        };
        // Overtaken behind its last look at the fence, it finds out with its first append.
        let is_right = match &outcome {
            Err(OpenError::Deposed { .. } | OpenError::Claim(ClaimError::Refused { .. })) => true,
            // Its own file was below that one's, and went.
            Err(OpenError::Storage(error)) => error.path.to_string_lossy().contains("journal.00000003"),
            Ok((journal, _)) => matches!(journal.append(&[9]).wait(), Err(JournalError::Deposed { .. })),
            Err(_) => false,
        };
        assert!(is_right, "call {nth}: {outcome:?}");
        assert_eq!(numbers(&open(&volume, 6).1), [1, 2], "call {nth}");
    }
}

#[test]
fn one_cycle_serves_all_that_is_staged() {
    #[derive(Debug, Default)]
    struct SlowSyncs {
        syncs: AtomicU64,
        fence_reads: AtomicU64,
    }
    impl Hook for SlowSyncs {
        fn before(&self, point: Point, _: &Path) -> Verdict {
            match point {
                Point::SyncData => {
                    self.syncs.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(20));
                }
                Point::ReadRecords => {
                    self.fence_reads.fetch_add(1, Ordering::SeqCst);
                }
                _ => {}
            }
            Verdict::Pass
        }
    }
    let hook = Arc::new(SlowSyncs::default());
    let volume: Arc<dyn Substrate> =
        Arc::new(Faulty::new(born(Memory::new()), Arc::clone(&hook) as Arc<dyn Hook>));
    let (journal, _) = open(&volume, 1);
    let before = hook.syncs.load(Ordering::SeqCst);
    let reads_before = hook.fence_reads.load(Ordering::SeqCst);
    let tickets: Vec<_> = (0..500).map(|n| journal.append(&[n])).collect();
    for ticket in tickets {
        ticket.wait().unwrap();
    }
    let syncs = hook.syncs.load(Ordering::SeqCst) - before;
    assert!((1..=10).contains(&syncs), "{syncs} syncs for 500 appends");
    assert_eq!(
        hook.fence_reads.load(Ordering::SeqCst) - reads_before,
        syncs,
        "each cycle asks the fence once"
    );
    drop(journal);
    assert_eq!(numbers(&open(&volume, 2).1), (0..500).collect::<Vec<_>>());
}

#[test]
fn a_deposed_journal_acknowledges_nothing_and_its_late_lines_are_never_seen() {
    let volume = born(Memory::new());
    let (old, _) = open(&volume, 1);
    old.append(&[1]).wait().unwrap();
    let (new, replay) = open(&volume, 2);
    assert_eq!(numbers(&replay), [1]);
    // The deposed one cannot know yet; it writes to what is left of its file.
    assert_eq!(old.append(&[666]).wait(), Err(JournalError::Deposed { by: epoch(2) }));
    assert_eq!(old.append(&[667]).wait(), Err(JournalError::Deposed { by: epoch(2) }));
    assert_eq!(old.failure(), Some(JournalError::Deposed { by: epoch(2) }));
    new.append(&[2]).wait().unwrap();
    assert_eq!(
        old.write_snapshot(Sequence(9), &[6, 6, 6]).wait(),
        Err(JournalError::Deposed { by: epoch(2) })
    );
    drop(new);
    let (_third, replay) = open(&volume, 3);
    assert_eq!(numbers(&replay), [1, 2]);
}

#[test]
fn late_lines_of_a_deposed_file_are_not_inherited_even_if_nothing_was_appended_since() {
    let volume = born(Memory::new());
    let (old, _) = open(&volume, 1);
    old.append(&[1]).wait().unwrap();
    // The successor prunes the file; the late writer has it open, or puts it back.
    let late = Path::new(SLOT).join("journal.00000001.0.jsonl");
    let bytes = read_small(volume.as_ref(), &late, 10_000).unwrap();
    drop(open(&volume, 2));
    let mut bytes = bytes;
    let at = bytes.len() as u64;
    bytes.extend(line::Line::encode(2, at, b"[666]"));
    kaas_substrate::write_small(volume.as_ref(), &late, &bytes).unwrap();
    assert_eq!(numbers(&open(&volume, 3).1), [1]);
}

#[test]
fn no_space_fails_the_append_and_space_back_means_appends_back() {
    let memory = Memory::with_capacity(64 * 1024);
    let volume = born(memory.clone());
    let (journal, _) = open(&volume, 1);
    journal.append(&[1]).wait().unwrap();
    let ballast = memory.open(Path::new("ballast"), OpenMode::CreateNew).unwrap();
    ballast.set_length(memory.space().unwrap().available_bytes.unwrap() - 100).unwrap();
    let length = journal.file_bytes();
    let outcome = journal.append(&["x".repeat(500)]).wait();
    assert!(matches!(outcome, Err(JournalError::NoSpace { .. })), "{outcome:?}");
    assert_eq!((journal.failure(), journal.file_bytes()), (None, length));
    // A small one still fits, behind the cut.
    journal.append(&[2]).wait().unwrap();
    ballast.set_length(0).unwrap();
    journal.append(&[3]).wait().unwrap();
    drop(journal);
    assert_eq!(numbers(&open(&volume, 2).1), [1, 2, 3]);
}

#[test]
fn a_short_write_is_cut_back() {
    let volume = born(Memory::new());
    let (faulty, rules) = with_rules(&volume);
    let (journal, _) = open(&faulty, 1);
    rules.add(Rule::nth(Point::Write, 1, Verdict::Short { bytes: 30, class: ErrorClass::NoSpace }));
    assert!(matches!(journal.append(&[666]).wait(), Err(JournalError::NoSpace { .. })));
    journal.append(&[1]).wait().unwrap();
    drop(journal);
    let (faulty, rules) = with_rules(&volume);
    let (journal, _) = open(&faulty, 2);
    // What cannot be cut back cannot be written behind.
    rules.add(Rule::nth(Point::Write, 1, Verdict::Short { bytes: 30, class: ErrorClass::NoSpace }));
    rules.add(Rule::nth(Point::SetLength, 1, Verdict::Fail(ErrorClass::Io)));
    assert!(matches!(journal.append(&[667]).wait(), Err(JournalError::Poisoned { .. })));
    assert!(matches!(journal.append(&[668]).wait(), Err(JournalError::Poisoned { .. })));
    assert_eq!(numbers(&open(&volume, 3).1), [1]);
}

#[test]
fn a_failed_write_or_sync_is_final() {
    for (point, class) in [
        (Point::SyncData, ErrorClass::Io),
        (Point::SyncData, ErrorClass::NoSpace),
        (Point::SyncData, ErrorClass::Retriable),
        (Point::Write, ErrorClass::Io),
        (Point::Write, ErrorClass::Fenced),
    ] {
        let volume = born(Memory::new());
        let (faulty, rules) = with_rules(&volume);
        let (journal, _) = open(&faulty, 1);
        journal.append(&[1]).wait().unwrap();
        rules.add(Rule::nth(point, 1, Verdict::Fail(class)));
        let outcome = journal.append(&[2]).wait();
        assert!(matches!(outcome, Err(JournalError::Poisoned { .. })), "{point:?}: {outcome:?}");
        // The volume works again, the journal does not.
        assert!(matches!(journal.append(&[3]).wait(), Err(JournalError::Poisoned { .. })));
        let snapshot = journal.write_snapshot(Sequence(1), &[1]).wait();
        assert!(matches!(snapshot, Err(JournalError::Poisoned { .. })));
        let (journal, replay) = open(&volume, 2);
        let found = numbers(&replay);
        assert!(found == [1] || found == [1, 2], "{found:?}");
        journal.append(&[4]).wait().unwrap();
    }
}

#[test]
fn an_unanswered_fence_delays_the_acknowledgement_and_then_ends_the_journal() {
    let volume = born(Memory::new());
    let (faulty, rules) = with_rules(&volume);
    let (journal, _) = open(&faulty, 1);
    rules.add(Rule::nth(Point::ReadRecords, 1, Verdict::Fail(ErrorClass::Io)).times(3));
    let started = Instant::now();
    journal.append(&[1]).wait().unwrap();
    assert!(started.elapsed() >= Duration::from_millis(5 + 10 + 20), "{:?}", started.elapsed());
    rules.add(Rule::nth(Point::ReadRecords, 1, Verdict::Fail(ErrorClass::Io)).times(1000));
    assert!(matches!(journal.append(&[2]).wait(), Err(JournalError::Poisoned { .. })));
}

#[test]
fn a_fence_that_the_volume_does_not_let_this_host_read_ends_the_journal_at_once() {
    let volume = born(Memory::new());
    let (faulty, rules) = with_rules(&volume);
    let (journal, _) = open(&faulty, 1);
    // Asked again it would answer.
    rules.add(Rule::nth(Point::ReadRecords, 1, Verdict::Fail(ErrorClass::Fenced)));
    assert!(matches!(journal.append(&[1]).wait(), Err(JournalError::Poisoned { .. })));
}

#[test]
fn a_snapshot_replaces_what_it_covers_and_keeps_the_rest() {
    let volume = born(Memory::new());
    let (journal, _) = open(&volume, 1);
    let mut sequences = Vec::new();
    for n in 1..=6 {
        sequences.push(journal.append(&[n]).wait().unwrap());
    }
    // Staged around the snapshot: before it and behind it in the same moment.
    let staged = journal.append(&[7]);
    let snapshot = journal.write_snapshot(sequences[3], &[1, 2, 3, 4]);
    let behind = journal.append(&[8]);
    assert_eq!(snapshot.wait(), Ok(sequences[3]));
    staged.wait().unwrap();
    behind.wait().unwrap();
    assert_eq!(journal.appends_since_snapshot(), 4);
    assert_eq!(files(&volume), ["journal.00000001.1.jsonl", "snapshot.00000001.1.json"]);
    drop(journal);
    let (journal, replay) = open(&volume, 2);
    assert_eq!(replay.snapshot, Some(json!([1, 2, 3, 4])));
    assert_eq!(values(&replay), [5, 6, 7, 8]);
    assert_eq!(journal.appends_since_snapshot(), 4);
    assert_eq!(files(&volume), ["journal.00000002.0.jsonl", "snapshot.00000001.1.json"]);
    // The next one of another epoch, covering everything.
    journal.write_snapshot(journal.committed(), &numbers(&replay)).wait().unwrap();
    assert_eq!(journal.appends_since_snapshot(), 0);
    let last = journal.append(&[9]).wait().unwrap();
    assert_eq!(files(&volume), ["journal.00000002.1.jsonl", "snapshot.00000002.1.json"]);
    drop(journal);
    let (journal, replay) = open(&volume, 3);
    assert_eq!(numbers(&replay), (1..=9).collect::<Vec<_>>());
    assert_eq!(journal.committed(), last);
}

#[test]
fn sequence_numbers_never_go_back_behind_an_empty_journal() {
    let volume = born(Memory::new());
    let (journal, _) = open(&volume, 1);
    let last = journal.append(&[1]).wait().unwrap();
    journal.write_snapshot(last, &[1]).wait().unwrap();
    drop(journal);
    drop(open(&volume, 2));
    let (journal, _) = open(&volume, 3);
    assert!(journal.append(&[2]).wait().unwrap() > last);
}

#[test]
fn a_snapshot_without_space_leaves_the_journal_going() {
    for point in [Point::Create, Point::Write, Point::SyncData, Point::Rename] {
        for nth in [1, 2] {
            let volume = born(Memory::new());
            let (faulty, rules) = with_rules(&volume);
            let (journal, _) = open(&faulty, 1);
            let first = journal.append(&[1]).wait().unwrap();
            rules.add(Rule::nth(point, nth, Verdict::Fail(ErrorClass::NoSpace)));
            let outcome = journal.write_snapshot(first, &[1]).wait();
            assert!(matches!(outcome, Err(JournalError::NoSpace { .. })), "{point:?} {nth}: {outcome:?}");
            journal.append(&[2]).wait().unwrap();
            journal.write_snapshot(first, &[1]).wait().unwrap();
            journal.append(&[3]).wait().unwrap();
            drop(journal);
            assert_eq!(numbers(&open(&volume, 2).1), [1, 2, 3]);
        }
    }
}

#[test]
fn a_journal_file_that_may_count_already_ends_the_old_one() {
    let volume = born(Memory::new());
    let (faulty, rules) = with_rules(&volume);
    let (journal, _) = open(&faulty, 1);
    let first = journal.append(&[1]).wait().unwrap();
    // The new journal file is in place, and its writer is told that it failed.
    rules.add(Rule::nth(Point::SyncDir, 2, Verdict::Fail(ErrorClass::NoSpace)));
    let outcome = journal.write_snapshot(first, &[1]).wait();
    assert!(matches!(outcome, Err(JournalError::Poisoned { .. })), "{outcome:?}");
    assert!(matches!(journal.append(&[2]).wait(), Err(JournalError::Poisoned { .. })));
    assert_eq!(numbers(&open(&volume, 2).1), [1]);
}

/// Runs a coordinator's life with a crash at every step in turn; whatever was acknowledged is there afterwards.
#[test]
fn acknowledged_entries_survive_a_crash_at_every_step() {
    for torn in [0, 1, 40, 90] {
        for step in 1.. {
            let volume = born(Memory::new());
            let rules = Rules::new([Rule::nth_change(step, Verdict::CrashShort { bytes: torn })]);
            let faulty: Arc<dyn Substrate> =
                Arc::new(Faulty::new(Arc::clone(&volume), Arc::clone(&rules) as Arc<dyn Hook>));
            let acknowledged = Arc::new(parking_lot::Mutex::new(Vec::new()));
            for value in [1, 2] {
                let Ok((journal, replay)) = try_open(&faulty, value, settings()) else { break };
                let applied = Arc::new(parking_lot::Mutex::new(numbers(&replay)));
                let first = u64::from(value) * 100;
                for n in first..first + 6 {
                    let (apply, acknowledge) = (Arc::clone(&applied), Arc::clone(&acknowledged));
                    journal.append_with(&[n], move |outcome| {
                        if outcome.is_ok() {
                            apply.lock().push(n);
                            acknowledge.lock().push(n);
                        }
                    });
                    if n % 2 == 0 {
                        let _ = journal.append::<u64>(&[]).wait();
                    }
                    if n % 3 == 0 {
                        let covers = journal.committed();
                        let state = applied.lock().clone();
                        // Entries may be applied twice, so a state that is ahead of what it covers is trimmed here.
                        let _ = journal.write_snapshot(covers, &state).wait();
                    }
                }
                journal.close();
            }
            let (_journal, replay) = open(&volume, 3);
            let mut found = numbers(&replay);
            found.dedup();
            let acknowledged = acknowledged.lock().clone();
            for n in &acknowledged {
                assert!(
                    found.contains(n),
                    "step {step}, torn at {torn}: {n} of {acknowledged:?} not in {found:?}"
                );
            }
            let mut sorted = found.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(found, sorted, "step {step}: in order and once");
            if rules.hits() == 0 {
                assert!(step > 40, "{step}");
                assert_eq!(acknowledged.len(), 12);
                break;
            }
        }
    }
}

#[test]
fn bounds_are_kept() {
    let volume = born(Memory::new());
    let small =
        JournalSettings { max_staged_bytes: 1000, max_append_bytes: 400, max_file_bytes: 1200, ..settings() };
    let (journal, _) = try_open(&volume, 1, small).unwrap();
    let outcome = journal.append(&["x".repeat(500)]).wait();
    assert_eq!(outcome, Err(JournalError::TooLarge { bytes: 504, max_bytes: 400 }));
    let outcomes: Vec<_> =
        (0..50).map(|_| journal.append(&["x".repeat(300)])).map(JournalTicket::wait).collect();
    let full = outcomes.iter().filter(|outcome| matches!(outcome, Err(JournalError::Full { .. }))).count();
    let made = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert_eq!((made, full), (3, 47), "{outcomes:?}");
    assert!(journal.file_bytes() <= 1200);
    // A snapshot makes room.
    journal.write_snapshot(journal.committed(), &json!({})).wait().unwrap();
    journal.append(&[1]).wait().unwrap();
    drop(journal);
    assert_eq!(values(&open(&volume, 2).1), [1]);
}

#[test]
fn staged_bytes_are_bounded() {
    #[derive(Debug)]
    struct Gate(parking_lot::Mutex<()>);
    impl Hook for Gate {
        fn before(&self, point: Point, path: &Path) -> Verdict {
            if point == Point::Write && path.to_string_lossy().contains("/journal.") {
                drop(self.0.lock());
            }
            Verdict::Pass
        }
    }
    let gate = Arc::new(Gate(parking_lot::Mutex::new(())));
    let volume: Arc<dyn Substrate> =
        Arc::new(Faulty::new(born(Memory::new()), Arc::clone(&gate) as Arc<dyn Hook>));
    let (journal, _) =
        try_open(&volume, 1, JournalSettings { max_staged_bytes: 1000, ..settings() }).unwrap();
    let held = gate.0.lock();
    let tickets: Vec<_> = (0..10).map(|_| journal.append(&["x".repeat(200)])).collect();
    assert!(journal.staged_bytes() <= 1000);
    drop(held);
    let outcomes: Vec<_> = tickets.into_iter().map(JournalTicket::wait).collect();
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 3);
    assert_eq!(
        outcomes.iter().filter(|outcome| matches!(outcome, Err(JournalError::Busy { .. }))).count(),
        7
    );
    journal.append(&[1]).wait().unwrap();
    journal.close();
    assert_eq!(journal.staged_bytes(), 0);
}

#[test]
fn damage_is_refused_and_left_as_it_is() {
    let volume = born(Memory::new());
    let (journal, _) = open(&volume, 1);
    for n in 0..3 {
        journal.append(&[n]).wait().unwrap();
    }
    journal.write_snapshot(Sequence(1), &[0]).wait().unwrap();
    journal.append(&[3]).wait().unwrap();
    journal.append(&[4]).wait().unwrap();
    drop(journal);
    let mut next = 2;
    for (name, at) in [("journal.00000001.1.jsonl", 200), ("snapshot.00000001.1.json", 30)] {
        let path = Path::new(SLOT).join(name);
        let good = read_small(volume.as_ref(), &path, 10_000).unwrap();
        let mut bad = good.clone();
        bad[at] ^= 4;
        kaas_substrate::write_small(volume.as_ref(), &path, &bad).unwrap();
        let error = try_open(&volume, next, settings()).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
        assert_eq!(files(&volume).len(), 2, "nothing was written or removed");
        volume.remove_file(&path).unwrap();
        if name.starts_with("snapshot") {
            let error = try_open(&volume, next + 1, settings()).unwrap_err();
            assert!(matches!(error, OpenError::SnapshotMissing { .. }), "{error}");
        }
        kaas_substrate::write_small(volume.as_ref(), &path, &good).unwrap();
        next += 2;
    }
    assert_eq!(numbers(&open(&volume, next).1), [0, 1, 2, 3, 4]);
}

#[test]
fn newer_formats_are_refused() {
    let volume = born(Memory::new());
    drop(open(&volume, 1));
    let newer = seal_line(
        br#"{"format":2,"epoch":1,"number":1,"snapshot":null,"inherited":0,"last_sequence":0,"x":1"#.to_vec(),
    );
    kaas_substrate::write_small(volume.as_ref(), &Path::new(SLOT).join("journal.00000001.1.jsonl"), &newer)
        .unwrap();
    let error = try_open(&volume, 2, settings()).unwrap_err();
    assert!(matches!(error, OpenError::NewerFormat { found: 2, .. }), "{error}");
}

#[test]
fn a_lower_epoch_is_refused() {
    let volume = born(Memory::new());
    drop(open(&volume, 5));
    let error = try_open(&volume, 4, settings()).unwrap_err();
    assert!(
        matches!(error, OpenError::Claim(ClaimError::Refused { highest, .. }) if highest == epoch(5)),
        "{error}"
    );
}

#[test]
fn a_ticket_is_a_future() {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let volume = born(Memory::new());
    let (journal, _) = open(&volume, 1);
    let mut ticket = journal.append(&[1]);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let outcome = loop {
        match Pin::new(&mut ticket).poll(&mut context) {
            Poll::Ready(outcome) => break outcome,
            Poll::Pending => std::thread::park(),
        }
    };
    assert_eq!(outcome, Ok(journal.committed()));
}

#[test]
fn closing_finishes_what_is_staged_and_takes_no_more() {
    let volume = born(Memory::new());
    let (journal, _) = open(&volume, 1);
    let tickets: Vec<_> = (0..100).map(|n| journal.append(&[n])).collect();
    journal.close();
    for ticket in tickets {
        assert!(ticket.ticket.is_told());
        ticket.wait().unwrap();
    }
    assert_eq!(journal.append(&[1]).wait(), Err(JournalError::Closed));
    assert_eq!(numbers(&open(&volume, 2).1).len(), 100);
}

#[test]
fn a_closed_pool_or_a_panicking_callback_does_not_hang_anybody() {
    let volume = born(Memory::new());
    let pool = pool();
    let run = Claimant { broker_id: 1, incarnation: "r".to_owned(), assignment_version: 0 };
    let (journal, _) =
        Journal::open(&volume, Path::new(SLOT), epoch(1), &run, &pool, JournalSettings::default()).unwrap();
    journal.append_with(&[1], |_| assert_eq!(1, 2, "on purpose"));
    journal.append(&[2]).wait().unwrap();
    pool.close();
    assert!(matches!(journal.append(&[3]).wait(), Err(JournalError::Poisoned { .. })));
    journal.close();
    assert_eq!(numbers(&open(&volume, 2).1), [1, 2]);
}
