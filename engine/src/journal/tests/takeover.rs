//! Birth of a slot, and several coordinators at it.

use super::*;

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
fn a_lower_epoch_is_refused() {
    let volume = born(Memory::new());
    drop(open(&volume, 5));
    let error = try_open(&volume, 4, settings()).unwrap_err();
    assert!(
        matches!(error, OpenError::Claim(ClaimError::Refused { highest, .. }) if highest == epoch(5)),
        "{error}"
    );
}
