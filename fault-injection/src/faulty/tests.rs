use std::collections::BTreeSet;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use kaas_substrate::{
    Memory, NotRemoved, OpenMode, RECORD_BYTES, Substrate, read_small, remove_tree, write_small,
};

use super::*;

fn volume(rules: impl IntoIterator<Item = Rule>) -> (Memory, Arc<Rules>, Faulty) {
    let memory = Memory::new();
    let rules = Rules::new(rules);
    let faulty = Faulty::new(Arc::new(memory.clone()), Arc::clone(&rules) as Arc<dyn Hook>);
    (memory, rules, faulty)
}

#[test]
fn the_nth_call_fails_and_the_others_pass() {
    let (_, rules, faulty) =
        volume([Rule::nth(Point::CreateDir, 2, Verdict::Fail(ErrorClass::NoSpace)).on("x")]);
    for (dir, passes) in [("x1", true), ("y", true), ("x2", false), ("x3", true)] {
        let outcome = faulty.create_dir(Path::new(dir));
        assert_eq!(outcome.is_ok(), passes, "{dir}");
        if let Err(error) = outcome {
            assert_eq!(error.class, ErrorClass::NoSpace);
        }
    }
    assert_eq!((rules.hits(), rules.changes()), (1, 4));
}

#[test]
fn a_short_write_leaves_its_first_bytes() {
    let (memory, _, faulty) =
        volume([Rule::nth(Point::Write, 1, Verdict::Short { bytes: 4, class: ErrorClass::NoSpace })]);
    let file = faulty.open(Path::new("f"), OpenMode::CreateNew).unwrap();
    let parts = [IoSlice::new(b"abc"), IoSlice::new(b"def")];
    assert_eq!(file.write_all_at(&parts, 0).unwrap_err().class, ErrorClass::NoSpace);
    assert_eq!(read_small(&memory, Path::new("f"), 100).unwrap(), b"abcd");
}

#[test]
fn a_torn_record_is_half_new_and_half_old() {
    let (memory, _, faulty) =
        volume([Rule::nth(Point::WriteRecords, 2, Verdict::CrashShort { bytes: RECORD_BYTES + 100 })]);
    faulty.create_records(Path::new("r"), 4).unwrap();
    let records = faulty.open_records(Path::new("r")).unwrap();
    records.write(0, &[[1; RECORD_BYTES]; 4]).unwrap();
    assert!(records.write(1, &[[2; RECORD_BYTES]; 3]).is_err());
    assert!(faulty.has_crashed());
    assert!(records.read(0, &mut [[0; RECORD_BYTES]]).is_err());
    let mut found = [[0; RECORD_BYTES]; 4];
    memory.open_records(Path::new("r")).unwrap().read(0, &mut found).unwrap();
    assert_eq!([found[0], found[1], found[3]], [[1; RECORD_BYTES], [2; RECORD_BYTES], [1; RECORD_BYTES]]);
    assert_eq!((found[2][99], found[2][100]), (2, 1));
}

/// Keeps what stands in a record file between the two halves of a write.
#[derive(Debug)]
struct Halfway {
    seen: std::sync::Mutex<Vec<u8>>,
    memory: Memory,
    goes_on: bool,
}

impl Hook for Halfway {
    fn before(&self, point: Point, _: &Path) -> Verdict {
        let is_write = matches!(point, Point::WriteRecords | Point::CreateRecords | Point::SyncDir);
        if is_write { Verdict::Halves { bytes: RECORD_BYTES + 100 } } else { Verdict::Pass }
    }

    fn between_halves(&self, path: &Path) -> bool {
        let mut records = [[0; RECORD_BYTES]; 2];
        self.memory.open_records(path).unwrap().read(0, &mut records).unwrap();
        self.seen.lock().unwrap().extend_from_slice(records.as_flattened());
        self.goes_on
    }
}

#[test]
fn a_write_in_two_halves_shows_the_first_and_then_everything_or_nothing_more() {
    for goes_on in [true, false] {
        let memory = Memory::new();
        let hook = Arc::new(Halfway { seen: std::sync::Mutex::default(), memory: memory.clone(), goes_on });
        let faulty = Faulty::new(Arc::new(memory.clone()), Arc::clone(&hook) as Arc<dyn Hook>);
        faulty.create_records(Path::new("r"), 2).unwrap();
        let records = faulty.open_records(Path::new("r")).unwrap();
        let outcome = records.write(0, &[[7; RECORD_BYTES]; 2]);
        assert_eq!((outcome.is_ok(), faulty.has_crashed()), (goes_on, !goes_on));
        let half = [vec![7; RECORD_BYTES + 100], vec![0; RECORD_BYTES - 100]].concat();
        assert_eq!(*hook.seen.lock().unwrap(), half);
        let mut found = [[0; RECORD_BYTES]; 2];
        memory.open_records(Path::new("r")).unwrap().read(0, &mut found).unwrap();
        assert_eq!(found.as_flattened(), if goes_on { &[7; 2 * RECORD_BYTES][..] } else { &half[..] });
        assert_eq!(faulty.sync_dir(Path::new("")).is_ok(), goes_on);
    }
}

#[test]
fn a_failure_after_the_effect_has_the_effect() {
    let (memory, _, faulty) =
        volume([Rule::nth(Point::Rename, 1, Verdict::FailAfter(ErrorClass::Retriable))]);
    assert_eq!(write_small(&faulty, Path::new("f"), b"x").unwrap_err().class, ErrorClass::Retriable);
    assert_eq!(read_small(&memory, Path::new("f"), 10).unwrap(), b"x");
}

#[test]
fn removing_a_tree_goes_on_past_failures() {
    let (memory, rules, faulty) =
        volume([Rule::nth(Point::RemoveFile, 1, Verdict::Fail(ErrorClass::Io)).on("t/0/b").times(2)]);
    for dir in ["t", "t/0", "t/1"] {
        memory.create_dir(Path::new(dir)).unwrap();
    }
    for file in ["t/a", "t/0/b", "t/0/c", "t/1/d"] {
        memory.open(Path::new(file), OpenMode::CreateNew).unwrap();
    }
    let NotRemoved { failures, count } = remove_tree(&faulty, Path::new("t")).unwrap_err();
    // The file, and the two directories above it that are not empty.
    assert_eq!((count, failures.len(), rules.hits()), (3, 3, 1));
    assert_eq!(memory.list(Path::new("t")).unwrap().len(), 1);
    assert_eq!(memory.list(Path::new("t/0")).unwrap().len(), 1);
    rules.clear();
    remove_tree(&faulty, Path::new("t")).unwrap();
    assert!(memory.list(Path::new("t")).unwrap_err().is_not_found());
}

#[test]
fn a_torn_write_leaves_some_of_its_sectors() {
    for (verdict, crashes) in [
        (Verdict::Torn { kept: 0b101, class: ErrorClass::Io }, false),
        (Verdict::CrashTorn { kept: 0b101 }, true),
    ] {
        let (memory, _, faulty) = volume([Rule::nth(Point::Write, 2, verdict)]);
        let file = faulty.open(Path::new("f"), OpenMode::CreateNew).unwrap();
        file.write_all_at(&[IoSlice::new(&[1; 2000])], 0).unwrap();
        // From within the first sector to within the fourth; two parts.
        let parts = [IoSlice::new(&[2; 700]), IoSlice::new(&[3; 900])];
        assert_eq!(file.write_all_at(&parts, 300).unwrap_err().class, ErrorClass::Io);
        assert_eq!(faulty.has_crashed(), crashes);
        let expected = [vec![1; 300], vec![2; 212], vec![1; 512], vec![3; 512], vec![1; 464]].concat();
        assert_eq!(read_small(&memory, Path::new("f"), 4000).unwrap(), expected);
    }
}

#[test]
fn torn_records_are_whole_ones_that_are_missing() {
    let (memory, _, faulty) =
        volume([Rule::nth(Point::WriteRecords, 1, Verdict::Torn { kept: 0b10, class: ErrorClass::Io })]);
    faulty.create_records(Path::new("r"), 4).unwrap();
    assert!(faulty.open_records(Path::new("r")).unwrap().write(1, &[[2; RECORD_BYTES]; 2]).is_err());
    let mut found = [[9; RECORD_BYTES]; 4];
    memory.open_records(Path::new("r")).unwrap().read(0, &mut found).unwrap();
    assert_eq!(found.map(|record| record[0]), [0, 0, 2, 0]);
}

/// Each kind of sync, lost, and a loss of power after it.
#[test]
fn a_lost_sync_says_that_it_has_succeeded() {
    use crate::simulated::{Profile, Simulation};
    let path = Path::new("f");
    for lost in [None, Some(Point::SyncData), Some(Point::SyncDir), Some(Point::MakeDurable)] {
        let simulation = Simulation::new(Profile::local(), Box::new(|_| 0));
        let rules = lost.map(|point| Rule::nth(point, 1, Verdict::Lost));
        let faulty = Faulty::new(simulation.host(0), Rules::new(rules));
        let file = faulty.open(path, OpenMode::CreateNew).unwrap();
        file.write_all_at(&[IoSlice::new(b"x")], 0).unwrap();
        match lost {
            Some(Point::MakeDurable) => faulty.make_durable(path, 1).unwrap(),
            _ => file.sync_data().unwrap(),
        }
        faulty.sync_dir(Path::new("")).unwrap();
        simulation.crash_host(0);
        let left = read_small(&*simulation.host(0), path, 10).ok();
        let expected = match lost {
            None => Some(&b"x"[..]),
            Some(Point::SyncDir) => None,
            Some(_) => Some(&b""[..]),
        };
        assert_eq!(left.as_deref(), expected, "{lost:?}");
    }
}

#[test]
fn a_lost_write_goes_nowhere_and_a_lost_open_opens() {
    let (memory, _, faulty) =
        volume([Rule::nth(Point::Write, 1, Verdict::Lost), Rule::nth(Point::Create, 1, Verdict::Lost)]);
    let file = faulty.open(Path::new("f"), OpenMode::CreateNew).unwrap();
    file.write_all_at(&[IoSlice::new(b"x")], 0).unwrap();
    assert_eq!(read_small(&memory, Path::new("f"), 10).unwrap(), b"");
}

#[test]
fn a_delayed_call_has_its_effect() {
    let (memory, rules, faulty) = volume([Rule::nth(Point::CreateDir, 1, Verdict::Delay { ms: 1 })]);
    faulty.create_dir(Path::new("d")).unwrap();
    assert_eq!((memory.list(Path::new("")).unwrap().len(), rules.hits()), (1, 1));
}

#[test]
fn a_stalled_call_does_not_return_until_it_is_let_go() {
    let long = Duration::from_secs(20);
    for (verdict, made) in [(Verdict::Pass, 1), (Verdict::Fail(ErrorClass::Io), 0)] {
        let memory = Memory::new();
        let stall = Stall::new(Point::CreateDir, "d");
        let faulty = Faulty::new(Arc::new(memory.clone()), Arc::clone(&stall) as Arc<dyn Hook>);
        stall.close();
        assert!(!stall.wait_until_held(1, Duration::ZERO));
        let call = std::thread::spawn(move || faulty.create_dir(Path::new("d")));
        assert!(stall.wait_until_held(1, long));
        assert_eq!(memory.list(Path::new("")).unwrap().len(), 0);
        stall.release(verdict);
        assert_eq!(call.join().unwrap().is_ok(), made == 1);
        assert_eq!(memory.list(Path::new("")).unwrap().len(), made);
    }
}

#[test]
fn a_seed_decides_what_fails() {
    let odds = Odds { crashes: 0, errors: 3, full: 5, lost_syncs: 4, delays: 50 };
    let calls = [Point::Write, Point::SyncData, Point::Rename, Point::Read, Point::WriteRecords];
    let verdicts = |seed| -> Vec<_> {
        let hook = Seeded::new(seed, odds);
        calls.iter().cycle().take(1000).map(|point| hook.before(*point, Path::new("f"))).collect()
    };
    assert_eq!(verdicts(7), verdicts(7));
    assert_ne!(verdicts(7), verdicts(8));
    let kinds: BTreeSet<_> = verdicts(7)
        .iter()
        .map(|verdict| format!("{verdict:?}").split([' ', '(']).next().unwrap_or_default().to_owned())
        .collect();
    let expected = ["Delay", "Fail", "FailAfter", "Lost", "Pass", "Short", "Torn"];
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), expected);
    let crashing = Seeded::new(7, Odds { crashes: 2, ..Odds::default() });
    let kinds: BTreeSet<_> = (0..100)
        .map(|_| format!("{:?}", crashing.before(Point::Write, Path::new("f"))))
        .map(|verdict| verdict.split(' ').next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["Crash", "CrashShort", "CrashTorn", "Pass"]);
}
