//! What a repair needs of a volume's room: nothing for files that are moved, no more than their bytes for files with holes; and a
//! full volume costs nothing but another try.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/looking.rs"]
mod looking;
#[path = "support/mending.rs"]
mod mending;
mod support;

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;

use kaas_engine::verify::repair::Outcome;
use kaas_fault_injection::faulty::{Faulty, Hook, Point, Rule, Rules, Verdict};
use kaas_substrate::{ErrorClass, Substrate};
use looking::{bad, change, closed, dir, files, last_log, look};
use mending::{mend, open, repair, repair_through, served};
use support::Volume;

const GIB: u64 = 1 << 30;

/// Bytes that a file takes of the disk.
fn room(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

/// A file of 20 GiB with a few bytes in the middle.
fn sparse(path: &Path) {
    let file = File::create(path).unwrap();
    file.set_len(20 * GIB).unwrap();
    file.write_all_at(b"mine", 7 * GIB).unwrap();
}

#[test]
fn a_stray_file_is_moved_and_not_copied() {
    let volume = closed();
    let path = dir(&volume).join("notes.img");
    sparse(&path);
    let inode = std::fs::metadata(&path).unwrap().ino();
    mend(&volume);
    let moved = dir(&volume).join("quarantine/notes.img");
    let found = std::fs::metadata(&moved).unwrap();
    assert_eq!((found.ino(), found.len()), (inode, 20 * GIB));
    assert!(!path.exists());

    // Another one of that name, and one that a crash has left both names.
    std::fs::write(&path, "another").unwrap();
    mend(&volume);
    assert_eq!(std::fs::read(dir(&volume).join("quarantine/notes.img.2")).unwrap(), b"another");
    std::fs::hard_link(dir(&volume).join("quarantine/notes.img.2"), &path).unwrap();
    std::fs::remove_file(&moved).unwrap();
    mend(&volume);
    assert!(!path.exists());
    assert_eq!(std::fs::read(&moved).unwrap(), b"another");
}

#[test]
fn a_copy_takes_no_more_room_than_its_bytes() {
    let volume = closed();
    // Where the manifest is gone a segment that does not count is kept. Its bytes begin with those of another one.
    let stray = dir(&volume).join("00000001-00000000000000000007-00000001.log");
    let other = std::fs::read(last_log(&volume)).unwrap();
    std::fs::write(&stray, &other[..60]).unwrap();
    let file = OpenOptions::new().write(true).open(&stray).unwrap();
    file.set_len(GIB / 8).unwrap();
    file.write_all_at(b"mine", GIB / 16 + 100).unwrap();
    std::fs::remove_file(files(&volume, "manifest.", ".json").pop().unwrap()).unwrap();
    let repaired = repair(&volume).unwrap();
    assert_eq!(repaired.outcome, Outcome::Repaired, "{repaired:#?}");
    let name = format!("{}.0-{}", stray.file_name().unwrap().to_str().unwrap(), GIB / 8);
    let copy = dir(&volume).join("quarantine").join(name);
    assert_eq!(std::fs::metadata(&copy).unwrap().len(), GIB / 8);
    assert!(room(&copy) <= 4 << 20, "{} bytes", room(&copy));
    let mut found = [0; 60];
    let copy = File::open(copy).unwrap();
    copy.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(found, other[..60]);
    copy.read_exact_at(&mut found[..4], GIB / 16 + 100).unwrap();
    assert_eq!(&found[..4], b"mine");
}

#[test]
fn zeros_that_the_volume_does_not_know_of_are_not_written() {
    let volume = closed();
    let log = last_log(&volume);
    let mut file = OpenOptions::new().append(true).open(&log).unwrap();
    // Behind what counts, and damaged so that the rest is put aside: zeros that take room.
    change(&files(&volume, "", ".log")[0], |bytes| bytes[120] ^= 1);
    file.write_all(&vec![0; 8 << 20]).unwrap();
    file.sync_all().unwrap();
    std::fs::remove_file(files(&volume, "manifest.", ".json").pop().unwrap()).unwrap();
    let repaired = repair(&volume).unwrap();
    assert_eq!(repaired.outcome, Outcome::Repaired, "{repaired:#?}");
    let copies =
        std::fs::read_dir(dir(&volume).join("quarantine")).unwrap().map(|entry| entry.unwrap().path());
    let long: Vec<_> = copies.filter(|path| std::fs::metadata(path).unwrap().len() >= 8 << 20).collect();
    assert!(!long.is_empty(), "{repaired:#?}");
    assert!(long.iter().all(|path| room(path) <= 1 << 20), "{long:?}");
}

/// Damage that a repair needs room for: copies, a rewritten segment, indexes, a snapshot, a manifest.
fn damaged() -> Volume {
    let volume = closed();
    change(&files(&volume, "", ".log")[0], |bytes| bytes[120] ^= 1);
    std::fs::write(dir(&volume).join("notes.txt"), "mine").unwrap();
    for path in files(&volume, "", ".index").into_iter().chain(files(&volume, "", ".snapshot")) {
        change(&path, |bytes| bytes[3] ^= 1);
    }
    volume
}

#[test]
fn a_volume_that_is_full_costs_another_try() {
    let expected = {
        let volume = damaged();
        mend(&volume);
        served(&open(&volume))
    };
    assert!(expected.len() > 40);
    let mut told = 0;
    for point in [Point::Write, Point::Create, Point::CreateDir, Point::SetLength, Point::Rename] {
        let mut nth = 1;
        loop {
            let volume = damaged();
            let before = names(&dir(&volume));
            let full = Verdict::Fail(ErrorClass::NoSpace);
            let rules = Rules::new([Rule::nth(point, nth, full).times(u64::MAX)]);
            let hook: Arc<dyn Hook> = Arc::clone(&rules) as Arc<dyn Hook>;
            let faulty: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::clone(&volume.substrate), hook));
            let outcome = repair_through(&volume, &faulty).unwrap();
            if rules.hits() == 0 {
                assert_eq!(outcome.outcome, Outcome::Repaired);
                break;
            }
            if outcome.outcome == Outcome::Refused {
                let reason = outcome.reason.unwrap();
                assert!(
                    reason.contains("the volume is full: make room, and run the repair again"),
                    "{reason}"
                );
                // What takes room and is of no use to the next try is gone again, unless the manifest may refer to it.
                let left: Vec<_> =
                    names(&dir(&volume)).into_iter().filter(|name| !before.contains(name)).collect();
                let small = |name: &String| {
                    ["claim.", "quarantine", "partition.json", "manifest.", "~tmp-"]
                        .iter()
                        .any(|kind| name.starts_with(kind))
                };
                let is_prepared = left.iter().any(|name| name.starts_with("producer-state."));
                assert!(is_prepared || left.iter().all(small), "{point:?} {nth}: {left:?}");
                told += 1;
            }
            let again = repair(&volume);
            assert!(
                again.as_ref().is_none_or(|again| again.outcome == Outcome::Repaired),
                "{point:?} {nth}: {again:#?}"
            );
            assert!(bad(&look(&volume)).is_empty(), "{point:?} {nth}: {:#?}", bad(&look(&volume)));
            assert_eq!(served(&open(&volume)), expected, "{point:?} {nth}");
            // All of the first ones, and a sample of those that follow.
            nth += 1 + nth / 3;
        }
    }
    assert!(told > 8, "{told}");
}

fn names(dir: &Path) -> Vec<String> {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}
