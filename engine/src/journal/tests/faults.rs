//! A volume that fails, a process that dies, files that are damaged.

use super::*;

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

/// Nobody goes on without what a lost journal held, as if the slot had never been used.
#[test]
fn a_snapshot_without_any_journal_is_not_an_empty_slot() {
    let volume = born(Memory::new());
    let (journal, _) = open(&volume, 1);
    journal.append(&[1]).wait().unwrap();
    journal.write_snapshot(Sequence(1), &[0]).wait().unwrap();
    drop(journal);
    volume.remove_file(&Path::new(SLOT).join("journal.00000001.1.jsonl")).unwrap();
    let error = try_open(&volume, 2, settings()).unwrap_err();
    assert!(matches!(error, OpenError::JournalMissing { .. }), "{error}");
    assert_eq!(files(&volume), ["snapshot.00000001.1.json"], "nothing was written or removed");
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
