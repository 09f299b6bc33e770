//! `kaas-engine verify --repair`, cut off at every step, and on arbitrary damage.
//!
//! Whatever happens to a repair: no record that counted and could be read is lost, and another repair comes to the end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/looking.rs"]
mod looking;
#[path = "support/mending.rs"]
mod mending;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use kaas_engine::verify::repair::Outcome;
use kaas_fault_injection::faulty::{Faulty, Hook, Rule, Rules, Verdict};
use kaas_substrate::{ErrorClass, Local, Substrate};
use looking::{bad, change, closed, crashed, dir, files, last_log, look};
use mending::{assert_serves, contents, dry_run, open, placed, repair, repair_through, served, values};
use proptest::prelude::*;
use support::Volume;

/// Another volume with the same files.
fn copy(volume: &Volume) -> Volume {
    let temporary = tempfile::tempdir().unwrap();
    write(temporary.path(), &contents(volume.path()));
    let substrate = Arc::new(Local::open(temporary.path()).unwrap());
    Volume::of(substrate, temporary).after(volume)
}

fn write(root: &Path, contents: &BTreeMap<String, Vec<u8>>) {
    let is_dir = |name: &str| contents.keys().any(|other| other.starts_with(&format!("{name}/")));
    for (name, bytes) in contents {
        if is_dir(name) || name.ends_with("quarantine") {
            std::fs::create_dir_all(root.join(name)).unwrap();
        } else {
            std::fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            std::fs::write(root.join(name), bytes).unwrap();
        }
    }
}

/// Damage of many kinds at once: every kind of step is taken.
fn damaged(make: fn() -> Volume) -> Volume {
    let volume = make();
    change(&files(&volume, "", ".log")[0], |bytes| bytes[120] ^= 1);
    std::fs::write(dir(&volume).join("notes.txt"), "mine").unwrap();
    for path in files(&volume, "", ".index").into_iter().chain(files(&volume, "", ".snapshot")) {
        change(&path, |bytes| bytes[3] ^= 1);
    }
    change(&dir(&volume).join("fence"), |bytes| bytes[4] = 1);
    std::fs::remove_file(dir(&volume).join("partition.json")).unwrap();
    volume
}

/// What a repair that is not cut off serves.
fn mended(volume: &Volume) -> BTreeMap<i64, String> {
    let repaired = repair(volume).unwrap();
    assert_eq!(repaired.outcome, Outcome::Repaired, "{repaired:#?}");
    assert!(bad(&look(volume)).is_empty(), "{:#?}", bad(&look(volume)));
    served(&open(volume))
}

/// Cuts a repair off at its nth change, then repairs. False if the nth change was not needed.
fn cut_off(damaged: &Volume, nth: u64, verdict: Verdict, expected: &BTreeMap<i64, String>) -> bool {
    let volume = copy(damaged);
    let rules = Rules::new([Rule::nth_change(nth, verdict)]);
    let hook: Arc<dyn Hook> = Arc::clone(&rules) as Arc<dyn Hook>;
    let faulty: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::clone(&volume.substrate), hook));
    let outcome = repair_through(&volume, &faulty);
    if rules.hits() == 0 {
        assert_eq!(outcome.unwrap().outcome, Outcome::Repaired);
        return false;
    }
    // The second repair may be cut off too.
    let rules = Rules::new([Rule::nth_change(nth / 2 + 1, verdict)]);
    let hook: Arc<dyn Hook> = rules;
    let faulty: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::clone(&volume.substrate), hook));
    let _ = repair_through(&volume, &faulty);
    let third = repair(&volume);
    assert!(third.as_ref().is_none_or(|third| third.outcome == Outcome::Repaired), "{nth}: {third:#?}");
    assert!(bad(&look(&volume)).is_empty(), "{nth}: {:#?}\n{third:#?}", bad(&look(&volume)));
    assert_eq!(served(&open(&volume)), *expected, "{nth}: {third:#?}");
    true
}

#[test]
fn a_repair_that_is_cut_off_at_any_step_can_be_done_again() {
    for make in [closed as fn() -> Volume, crashed] {
        let damaged = damaged(make);
        let expected = mended(&copy(&damaged));
        assert!(expected.len() > 40);
        let mut steps = 0;
        for verdict in [Verdict::Crash, Verdict::CrashShort { bytes: 7 }, Verdict::FailAfter(ErrorClass::Io)]
        {
            let mut nth = 1;
            while cut_off(&damaged, nth, verdict, &expected) {
                // All of the first steps, and a sample of the many that follow.
                nth += 1 + nth / 5;
                steps += 1;
            }
        }
        assert!(steps > 30, "{steps}");
    }
}

#[test]
fn a_repair_that_is_cut_off_leaves_open_what_was_open() {
    // One damaged batch in the middle: the partition opens, and serves the rest.
    let damaged = closed();
    let log = files(&damaged, "", ".log").remove(3);
    change(&log, |bytes| bytes[70] ^= 1);
    let mut nth = 1;
    loop {
        let volume = copy(&damaged);
        let rules = Rules::new([Rule::nth_change(nth, Verdict::Crash)]);
        let hook: Arc<dyn Hook> = Arc::clone(&rules) as Arc<dyn Hook>;
        let faulty: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::clone(&volume.substrate), hook));
        let _ = repair_through(&volume, &faulty);
        let opened = open(&volume);
        assert!(opened.partition.status().high_watermark.0 > 60, "after {nth} steps");
        opened.close();
        if rules.hits() == 0 {
            break;
        }
        nth += 1;
    }
    assert!(nth > 10, "{nth}");
}

// Arbitrary damage.

#[derive(Debug, Clone)]
enum Mutation {
    Flip(usize, u8),
    Cut(usize),
    Fill(usize, usize, u8),
    Append(Vec<u8>),
    Replace(Vec<u8>),
    Remove,
    Rename(usize),
    CopyOver(usize),
    Extra(String, Vec<u8>),
}

fn mutation() -> impl Strategy<Value = (usize, Mutation)> {
    let place = any::<prop::sample::Index>();
    let bytes = prop::collection::vec(any::<u8>(), 0..60);
    let name = prop_oneof![
        Just("0000000f-00000000000000000003.log".to_owned()),
        Just("00000001-00000000000000000007-00000001.log".to_owned()),
        Just("manifest.00000003.1.json".to_owned()),
        Just("recovery-checkpoint.00000001.77.json".to_owned()),
        Just("producer-state.00000009.1.snapshot".to_owned()),
        Just("claim.00000007".to_owned()),
        Just("~tmp-manifest.00000002.1.json".to_owned()),
        "[a-z][a-z.]{0,11}",
    ];
    let mutation = prop_oneof![
        4 => (0..4000_usize, 0..8_u8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        1 => (0..4000_usize).prop_map(Mutation::Cut),
        1 => (0..4000_usize, 1..300_usize, any::<u8>()).prop_map(|(at, length, byte)| Mutation::Fill(at, length, byte)),
        1 => bytes.clone().prop_map(Mutation::Append),
        1 => bytes.clone().prop_map(Mutation::Replace),
        1 => Just(Mutation::Remove),
        1 => (0..40_usize).prop_map(Mutation::Rename),
        1 => (0..40_usize).prop_map(Mutation::CopyOver),
        1 => (name, bytes).prop_map(|(name, bytes)| Mutation::Extra(name, bytes)),
    ];
    (place.prop_map(|index| index.index(1 << 16)), mutation)
}

fn apply(volume: &Volume, file: usize, mutation: &Mutation) {
    let names = files(volume, "", "");
    let path = &names[file % names.len()];
    let other = |index: usize| names[index % names.len()].clone();
    match mutation {
        Mutation::Flip(at, bit) => change(path, |bytes| {
            let length = bytes.len();
            if length > 0 {
                bytes[at % length] ^= 1 << bit;
            }
        }),
        Mutation::Cut(at) => change(path, |bytes| bytes.truncate(*at)),
        Mutation::Fill(at, length, byte) => change(path, |bytes| {
            let end = (at + length).min(bytes.len());
            bytes.get_mut(*at..end).into_iter().for_each(|bytes| bytes.fill(*byte));
        }),
        Mutation::Append(more) => change(path, |bytes| bytes.extend(more)),
        Mutation::Replace(bytes) => std::fs::write(path, bytes).unwrap(),
        Mutation::Remove => std::fs::remove_file(path).unwrap(),
        Mutation::Rename(index) => std::fs::rename(path, other(*index)).unwrap(),
        Mutation::CopyOver(index) => drop(std::fs::copy(path, other(*index))),
        Mutation::Extra(name, bytes) => std::fs::write(dir(volume).join(name), bytes).unwrap(),
    }
}

/// The batches of a directory's logs, wherever they stand: the values of each record, by its offset.
fn every_value(volume: &Volume) -> BTreeSet<(i64, String)> {
    placed(volume).into_iter().map(|(offset, (value, _))| (offset, value)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("KAAS_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(12),
        max_shrink_iters: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Never a panic, nothing outside of the directory, nothing invented; a second repair finds nothing more to do, and what the
    /// engine could serve before, it serves afterwards.
    #[test]
    fn arbitrary_damage_is_repaired_or_left_alone(
        live in any::<bool>(),
        mutations in prop::collection::vec(mutation(), 1..4),
    ) {
        let volume = if live { crashed() } else { closed() };
        let original = every_value(&volume);
        std::fs::write(volume.path().join("beside"), "untouched").unwrap();
        for (file, mutation) in &mutations {
            apply(&volume, *file, mutation);
        }
        let before = contents(volume.path());
        let readable = readable(&copy(&volume));
        let planned = dry_run(&volume);
        prop_assert_eq!(&contents(volume.path()), &before, "a dry run writes nothing");
        let first = repair(&volume);
        prop_assert_eq!(planned.is_some(), first.is_some());
        prop_assert_eq!(std::fs::read(volume.path().join("beside")).unwrap(), b"untouched");
        let Some(first) = first else { return Ok(()) };
        let second = repair(&volume);
        match first.outcome {
            Outcome::Refused => {
                prop_assert_eq!(second.as_ref().map(|second| second.outcome), Some(Outcome::Refused), "{:#?}", first);
                return Ok(());
            }
            _ => prop_assert!(second.is_none(), "{:#?}\nafter {:#?}\n{:#?}", second, first, bad(&look(&volume))),
        }
        let log = open(&volume);
        let now = served(&log);
        for (offset, value) in &now {
            prop_assert!(original.contains(&(*offset, value.clone())), "{offset}: {value} was never there: {first:#?}");
        }
        for (offset, value) in &readable {
            prop_assert_eq!(now.get(offset), Some(value), "{}: {:#?}", offset, first);
        }
    }
}

/// The records that the engine serves, as far as it opens and can read: nothing if it does not open.
fn readable(volume: &Volume) -> BTreeMap<i64, String> {
    let Ok(highest) = kaas_engine::leadership::highest(&*volume.substrate, &volume.dir) else {
        return BTreeMap::new();
    };
    let Ok(log) = volume.open_at(highest.next().get()) else { return BTreeMap::new() };
    let status = log.partition.status();
    let mut records = BTreeMap::new();
    let mut from = status.log_start.0;
    while from < status.high_watermark.0 {
        // Batch by batch: behind one that cannot be read the next may be readable.
        match batch_at(&log, from) {
            Some((next, found)) if next > from => {
                records.extend(found);
                from = next;
            }
            _ => from += 1,
        }
    }
    records
}

/// The whole, undamaged batch that holds an offset.
fn batch_at(log: &support::Log, from: i64) -> Option<(i64, Vec<(i64, String)>)> {
    use kaas_engine::batch::{BatchHeader, DecodeLimits, check_crc, decode_records};
    let fetched = log.read(from).ok()?;
    let bytes = support::bytes_of(&fetched);
    let header = BatchHeader::parse(&bytes).ok()?;
    let holds = header.base_offset.0 <= from && header.last_offset().0 >= from;
    let batch = bytes.get(..header.batch_bytes).filter(|_| holds)?;
    let batch = bytes.slice_ref(batch);
    check_crc(&batch).ok()?;
    let mut records = Vec::new();
    if !header.is_control() {
        for record in decode_records(&batch, &DecodeLimits::default()).ok()? {
            let record = record.ok()?;
            records.push((record.offset.0, String::from_utf8(record.value?.to_vec()).ok()?));
        }
    }
    Some((header.next_offset().0, records))
}

#[test]
fn a_full_volume_keeps_nothing_from_being_repaired_later() {
    let damaged = damaged(closed);
    let expected = mended(&copy(&damaged));
    let mut nth = 1;
    loop {
        let volume = copy(&damaged);
        let verdict = Verdict::Short { bytes: 20, class: ErrorClass::NoSpace };
        let rules = Rules::new([Rule::nth_change(nth, verdict)]);
        let hook: Arc<dyn Hook> = Arc::clone(&rules) as Arc<dyn Hook>;
        let faulty: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::clone(&volume.substrate), hook));
        let first = repair_through(&volume, &faulty);
        if rules.hits() == 0 {
            break;
        }
        assert!(first.is_some());
        let _ = repair(&volume);
        assert!(bad(&look(&volume)).is_empty(), "{nth}: {:#?}", bad(&look(&volume)));
        assert_eq!(served(&open(&volume)), expected);
        nth += 1 + nth / 4;
    }
    assert_serves(&damaged_again(), &values(&placed(&closed())), 0);
}

/// A partition with a stranger's file only.
fn damaged_again() -> Volume {
    let volume = closed();
    std::fs::write(dir(&volume).join("notes.txt"), "mine").unwrap();
    assert!(repair(&volume).is_some() && last_log(&volume).exists());
    volume
}
