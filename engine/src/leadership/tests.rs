use std::path::Path;
use std::sync::Arc;

use kaas_fault_injection::faulty::{Faulty, Hook, Point, Rule, Rules, Verdict};
use kaas_substrate::{ErrorClass, Memory, OpenMode, RECORD_BYTES, Substrate, write_small};

use super::*;

fn epoch(value: u32) -> Epoch {
    Epoch::new(value).unwrap()
}

fn run(name: &str) -> Claimant {
    Claimant { broker_id: 1, incarnation: name.to_owned(), assignment_version: 3 }
}

/// A volume with a newborn directory `d`.
fn volume() -> Arc<dyn Substrate> {
    let volume = Memory::new();
    volume.create_dir(Path::new("d")).unwrap();
    birth(&volume, Path::new("d"), Epoch::NONE).unwrap();
    Arc::new(volume)
}

fn take(volume: &Arc<dyn Substrate>, value: u32, name: &str) -> Result<Leadership, ClaimError> {
    claim(volume, Path::new("d"), epoch(value), &run(name))
}

#[track_caller]
fn assert_refused(outcome: Result<Leadership, ClaimError>, expected_highest: u32) {
    match outcome {
        Err(ClaimError::Refused { highest, .. }) => assert_eq!(highest, epoch(expected_highest)),
        other => panic!("not refused: {other:?}"),
    }
}

#[track_caller]
fn assert_deposed(leadership: &Leadership, expected: u32) {
    match leadership.standing() {
        Standing::Deposed { by } => assert_eq!(by, epoch(expected)),
        other => panic!("not deposed: {other:?}"),
    }
}

#[track_caller]
fn assert_leading(leadership: &Leadership) {
    let standing = leadership.standing();
    assert!(matches!(standing, Standing::Leading), "{standing:?}");
}

fn damage(volume: &Arc<dyn Substrate>, at: u32, byte: usize) {
    let fence = volume.open_records(Path::new("d/fence")).unwrap();
    let mut record = [[0; RECORD_BYTES]];
    fence.read(u64::from(at), &mut record).unwrap();
    record[0][byte] ^= 0x40;
    fence.write(u64::from(at), &record).unwrap();
}

#[test]
fn a_claim_leads_until_the_next_one() {
    let volume = volume();
    let first = take(&volume, 1, "a").unwrap();
    assert_leading(&first);
    let second = take(&volume, 2, "b").unwrap();
    assert_deposed(&first, 2);
    assert_leading(&second);
    assert_eq!(highest(volume.as_ref(), Path::new("d")).unwrap(), epoch(2));
}

#[test]
fn a_claim_that_skips_epochs_deposes_and_blocks_all_below() {
    let volume = volume();
    let first = take(&volume, 1, "a").unwrap();
    let later = take(&volume, 30, "b").unwrap();
    assert_deposed(&first, 30);
    for between in [2, 17, 29, 30] {
        assert_refused(take(&volume, between, "c"), 30);
    }
    assert_leading(&later);
    let names: Vec<_> = volume.list(Path::new("d")).unwrap().into_iter().map(|entry| entry.name).collect();
    assert!(!names.iter().any(|name| name == "claim.00000011"), "refused claims leave nothing: {names:?}");
    let found = records(volume.as_ref(), Path::new("d")).unwrap();
    assert_eq!(found.len(), 30);
    assert!(matches!(found[1], (_, FenceRecord::Skipped { by }) if by == epoch(30)));
}

#[test]
fn an_epoch_has_one_owner_even_before_its_fence_record() {
    let volume = volume();
    write_small(volume.as_ref(), Path::new("d/claim.00000004"), b"").unwrap();
    assert_refused(take(&volume, 4, "a"), 4);
    // Its creator died; the next epoch works.
    assert_leading(&take(&volume, 5, "a").unwrap());
}

#[test]
fn the_same_run_may_finish_its_claim_and_another_may_not() {
    let volume = volume();
    drop(take(&volume, 1, "a").unwrap());
    assert_refused(take(&volume, 1, "b"), 1);
    let other_broker = Claimant { broker_id: 2, ..run("a") };
    assert_refused(claim(&volume, Path::new("d"), epoch(1), &other_broker), 1);
    assert_leading(&take(&volume, 1, "a").unwrap());
    drop(take(&volume, 2, "b").unwrap());
    assert_refused(take(&volume, 1, "a"), 2);
}

#[test]
fn a_claim_survives_a_crash_at_every_step() {
    for step in 1.. {
        let volume = volume();
        let old = take(&volume, 1, "old").unwrap();
        let rules = Rules::new([Rule::nth_change(step, Verdict::CrashShort { bytes: 700 })]);
        let faulty: Arc<dyn Substrate> =
            Arc::new(Faulty::new(Arc::clone(&volume), Arc::clone(&rules) as Arc<dyn Hook>));
        let crashed = claim(&faulty, Path::new("d"), epoch(12), &run("b"));
        // The old leader is either untouched or deposed (or does not know), never confused about epoch 12.
        let next = highest(volume.as_ref(), Path::new("d")).unwrap().next();
        assert!(next <= epoch(13));
        let successor = claim(&volume, Path::new("d"), next, &run("c")).unwrap();
        assert_leading(&successor);
        assert_deposed(
            &old,
            records(volume.as_ref(), Path::new("d")).unwrap().get(1).map_or(0, |(_, record)| match record {
                FenceRecord::Skipped { by } => by.get(),
                _ => 2,
            }),
        );
        if let Ok(finished) = crashed {
            assert_eq!(rules.hits(), 0);
            assert!(step > 4, "a claim has at least four steps");
            assert!(matches!(finished.standing(), Standing::Deposed { .. }));
            return;
        }
    }
}

#[test]
fn a_claim_that_failed_at_any_step_may_be_repeated_by_its_run() {
    for step in 1.. {
        let volume = volume();
        let old = take(&volume, 1, "old").unwrap();
        let rules = Rules::new([Rule::nth_change(step, Verdict::Fail(ErrorClass::NoSpace))]);
        let faulty: Arc<dyn Substrate> =
            Arc::new(Faulty::new(Arc::clone(&volume), Arc::clone(&rules) as Arc<dyn Hook>));
        let first = claim(&faulty, Path::new("d"), epoch(5), &run("b"));
        if rules.hits() == 0 {
            return;
        }
        assert!(matches!(first, Err(ClaimError::Storage(_))), "{first:?}");
        assert_leading(&claim(&faulty, Path::new("d"), epoch(5), &run("b")).unwrap());
        assert!(matches!(old.standing(), Standing::Deposed { .. }));
    }
}

#[test]
fn damage_is_never_leading_and_the_next_claim_heals_it() {
    let volume = volume();
    let leader = take(&volume, 1, "a").unwrap();
    drop(take(&volume, 2, "b").unwrap());
    damage(&volume, 2, 100);
    let standing = leader.standing();
    assert!(
        matches!(&standing, Standing::Unknown(FenceError::Damaged { epoch: at, damage: Damage::Checksum { .. }, .. })
            if *at == epoch(2)),
        "{standing:?}"
    );
    // A damaged record counts as taken.
    assert_eq!(highest(volume.as_ref(), Path::new("d")).unwrap(), epoch(2));
    assert_leading(&take(&volume, 3, "c").unwrap());
    assert_deposed(&leader, 3);
}

#[test]
fn a_lost_or_foreign_own_record_is_not_leading() {
    let volume = volume();
    let leader = take(&volume, 1, "a").unwrap();
    damage(&volume, 1, 0);
    assert!(matches!(leader.standing(), Standing::Unknown(FenceError::Damaged { .. })));
    // The fence was taken away and another put in its place.
    volume.remove_file(Path::new("d/fence")).unwrap();
    birth(volume.as_ref(), Path::new("d"), Epoch::NONE).unwrap();
    let leader = Leadership::new(
        &volume,
        Path::new("d"),
        epoch(1),
        &run("a"),
        volume.open_records(Path::new("d/fence")).unwrap(),
    );
    let standing = leader.standing();
    assert!(
        matches!(standing, Standing::Unknown(FenceError::Damaged { damage: Damage::OwnRecordMissing, .. })),
        "{standing:?}"
    );
    assert!(matches!(standing, Standing::Unknown(error) if error.is_final()), "asking again is of no use");
}

#[test]
fn who_only_looks_needs_no_right_to_write() {
    let volume = volume();
    take(&volume, 1, "a").unwrap();
    let rules = Rules::new([Rule::nth(Point::OpenRecords, 1, Verdict::Fail(ErrorClass::Invalid))]);
    let read_only = Faulty::new(volume, rules as Arc<dyn Hook>);
    assert_eq!(records(&read_only, Path::new("d")).unwrap().len(), 1);
    assert_eq!(highest(&read_only, Path::new("d")).unwrap(), epoch(1));
}

#[test]
fn a_failed_read_is_unknown_and_passes() {
    let volume = volume();
    let rules = Rules::new([]);
    let faulty: Arc<dyn Substrate> = Arc::new(Faulty::new(volume, Arc::clone(&rules) as Arc<dyn Hook>));
    let leader = take(&faulty, 1, "a").unwrap();
    rules.add(Rule::nth(Point::ReadRecords, 1, Verdict::Fail(ErrorClass::Io)));
    assert!(matches!(leader.standing(), Standing::Unknown(FenceError::Storage(_))));
    assert_leading(&leader);
    // A stale handle is replaced by a fresh one, once.
    rules.add(Rule::nth(Point::ReadRecords, 1, Verdict::Fail(ErrorClass::Stale)));
    assert_leading(&leader);
    rules.add(Rule::nth(Point::ReadRecords, 1, Verdict::Fail(ErrorClass::Stale)).times(2));
    assert!(matches!(leader.standing(), Standing::Unknown(FenceError::Storage(_))));
}

#[test]
fn deposed_is_for_good_even_if_the_fence_is_restored() {
    let volume = volume();
    let leader = take(&volume, 1, "a").unwrap();
    drop(take(&volume, 2, "b").unwrap());
    assert_deposed(&leader, 2);
    let fence = volume.open_records(Path::new("d/fence")).unwrap();
    fence.write(2, &[[0; RECORD_BYTES]]).unwrap();
    assert_deposed(&leader, 2);
}

#[test]
fn the_next_record_always_lies_inside_the_file() {
    let volume = volume();
    for value in [1, 5, 6, 7, 8, 100, 5000] {
        drop(take(&volume, value, "a").unwrap());
        let fence = volume.open_records(Path::new("d/fence")).unwrap();
        assert!(fence.records().unwrap() >= u64::from(value) + 2, "epoch {value}");
    }
    assert_eq!(records(volume.as_ref(), Path::new("d")).unwrap().len(), 5000);
}

#[test]
fn a_directory_born_at_an_epoch_cannot_be_claimed_at_or_below_it() {
    let volume: Arc<dyn Substrate> = Arc::new(Memory::new());
    volume.create_dir(Path::new("d")).unwrap();
    birth(volume.as_ref(), Path::new("d"), epoch(40)).unwrap();
    assert_eq!(highest(volume.as_ref(), Path::new("d")).unwrap(), epoch(40));
    for low in [1, 39, 40] {
        assert_refused(take(&volume, low, "a"), 40);
    }
    assert_leading(&take(&volume, 41, "a").unwrap());
    let found = records(volume.as_ref(), Path::new("d")).unwrap();
    assert_eq!(found.iter().map(|(at, _)| at.get()).collect::<Vec<_>>(), [40, 41]);
}

#[test]
fn impossible_claims_leave_nothing_behind() {
    let volume = volume();
    for wild in [0, i32::MAX as u32, 900_000_000] {
        let outcome = take(&volume, wild, "a");
        assert!(matches!(outcome, Err(ClaimError::OutOfRange { .. })), "{outcome:?}");
    }
    for bad in ["", &"x".repeat(129)] {
        assert!(matches!(take(&volume, 1, bad), Err(ClaimError::Incarnation { .. })));
    }
    assert_eq!(volume.list(Path::new("d")).unwrap().len(), 1);
    let nowhere = claim(&volume, Path::new("nowhere"), epoch(1), &run("a"));
    assert!(matches!(nowhere, Err(ClaimError::Storage(error)) if error.is_not_found()));
}

#[test]
fn old_claim_files_are_collected_and_stay_refused() {
    let volume = volume();
    for value in 1..=4 {
        drop(take(&volume, value, "a").unwrap());
    }
    write_small(volume.as_ref(), Path::new("d/claim.other"), b"").unwrap();
    let leader = take(&volume, 5, "a").unwrap();
    assert_eq!(leader.collect_old_claims().unwrap(), 4);
    assert_eq!(volume.list(Path::new("d")).unwrap().len(), 3);
    assert_refused(take(&volume, 3, "b"), 5);
    assert_leading(&leader);
}

#[test]
fn the_claim_file_tells_a_person_who_claimed() {
    let volume = volume();
    drop(take(&volume, 26, "run-7").unwrap());
    let file = volume.open(Path::new("d/claim.0000001a"), OpenMode::Read).unwrap();
    let mut bytes = vec![0; 1000];
    let read = file.read_at(&mut bytes, 0).unwrap();
    let found: serde_json::Value = serde_json::from_slice(&bytes[..read]).unwrap();
    assert_eq!(found["incarnation"], "run-7");
    assert_eq!((found["epoch"].as_u64(), found["broker_id"].as_i64()), (Some(26), Some(1)));
}

#[test]
fn a_directory_that_was_taken_away_cannot_be_claimed_until_it_is_given_back() {
    let volume = volume();
    let dir = Path::new("d");
    take(&volume, 3, "deleter").unwrap();
    assert_eq!(take_away(&*volume, dir, epoch(3)).unwrap(), None);
    let refused = take(&volume, 4, "late").unwrap_err();
    assert!(matches!(refused, ClaimError::TakenAway { by, .. } if by == epoch(3)), "{refused}");
    give_back(&*volume, dir).unwrap();
    let leadership = take(&volume, 4, "late").unwrap();
    assert_eq!(take_away(&*volume, dir, epoch(3)).unwrap(), Some(epoch(4)));
    // Whoever led before is not deposed by it: it was not asked.
    assert_leading(&leadership);
}

#[test]
fn a_fence_that_is_made_anew_is_closed_for_what_was_before_from_its_first_moment() {
    for nth in 1.. {
        let inner = volume();
        take(&inner, 5, "before").unwrap();
        inner.remove_file(Path::new("d/fence")).unwrap();
        // What a crash in the middle leaves is no fence, or all of it.
        let rules = Rules::new([Rule::nth_change(nth, Verdict::Crash)]);
        let hook: Arc<dyn Hook> = Arc::clone(&rules) as Arc<dyn Hook>;
        let outcome = recreate_fence(&Faulty::new(Arc::clone(&inner), hook), Path::new("d"), epoch(5));
        let is_there = inner.list(Path::new("d")).unwrap().iter().any(|entry| entry.name == FENCE_NAME);
        assert!(is_there || outcome.is_err());
        if !is_there {
            recreate_fence(&*inner, Path::new("d"), epoch(5)).unwrap();
        }
        for value in 1..=5 {
            assert_refused(take(&inner, value, &format!("late-{value}")), 5);
        }
        let leadership = take(&inner, 6, "next").unwrap();
        assert_leading(&leadership);
        if rules.hits() == 0 {
            assert!(nth > 4, "{nth}");
            return;
        }
    }
}

#[test]
fn damage_of_the_first_record_does_not_keep_anybody_from_leading() {
    let volume = volume();
    take_away(&*volume, Path::new("d"), epoch(1)).unwrap();
    damage(&volume, 0, 20);
    assert_leading(&take(&volume, 2, "a").unwrap());
}

#[test]
fn filling_gaps_leaves_no_damaged_record() {
    let volume: Arc<dyn Substrate> = Arc::new(Memory::new());
    volume.create_dir(Path::new("d")).unwrap();
    // Below its birth nothing has a record.
    birth(&*volume, Path::new("d"), epoch(3)).unwrap();
    take(&volume, 5, "a").unwrap();
    for at in [1, 2, 4] {
        damage(&volume, at, 300);
    }
    let leadership = take(&volume, 6, "repair").unwrap();
    fill_gaps(&*volume, Path::new("d"), epoch(6)).unwrap();
    let records = records(&*volume, Path::new("d")).unwrap();
    assert!(!records.iter().any(|(_, record)| matches!(record, FenceRecord::Damaged(_))), "{records:?}");
    assert!(records.contains(&(epoch(3), FenceRecord::Born)));
    assert_leading(&leadership);
}
