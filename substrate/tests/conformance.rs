//! The conformance suite against every implementation there is.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::IoSlice;
use std::sync::Arc;

use kaas_substrate::conformance::{Hosts, Report, checks, run};
use kaas_substrate::{Local, Memory, OpenMode, Substrate, read_small};

#[track_caller]
fn assert_passed(failed: &[Report]) {
    assert!(checks().len() > 30, "the suite is empty");
    let lines: Vec<_> = failed
        .iter()
        .map(|report| format!("{}: {}", report.name, report.failure.as_ref().unwrap()))
        .collect();
    assert!(failed.is_empty(), "{} rules do not hold:\n{}", failed.len(), lines.join("\n"));
}

fn local_in(parent: &std::path::Path) -> Vec<Report> {
    let mut dirs = Vec::new();
    run(|| {
        let dir = tempfile::tempdir_in(parent).unwrap();
        let open = || Arc::new(Local::open(dir.path()).unwrap());
        let hosts = Hosts { first: open(), second: open() };
        dirs.push(dir);
        hosts
    })
}

#[test]
fn local_on_the_disk() {
    assert_passed(&local_in(&std::env::temp_dir()));
}

/// The suite lets a volume off that cannot; these can.
#[test]
fn files_move_on_local_disks_and_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let volumes: [&dyn Substrate; 2] = [&Local::open(dir.path()).unwrap(), &Memory::new()];
    for volume in volumes {
        volume.create_dir("d".as_ref()).unwrap();
        let file = volume.open("f".as_ref(), OpenMode::CreateNew).unwrap();
        file.write_all_at(&[IoSlice::new(b"one")], 0).unwrap();
        volume.move_file("f".as_ref(), "d/f".as_ref()).unwrap();
        assert_eq!(read_small(volume, "d/f".as_ref(), 10).unwrap(), b"one");
        assert_eq!(volume.list("".as_ref()).unwrap().len(), 1, "{volume:?}");
    }
}

#[test]
fn local_on_a_file_system_in_memory() {
    let shm = std::path::Path::new("/dev/shm");
    if shm.is_dir() {
        assert_passed(&local_in(shm));
    }
}

#[test]
fn memory() {
    assert_passed(&run(|| {
        let memory = Memory::new();
        Hosts { first: Arc::new(memory.another_handle()), second: Arc::new(memory) }
    }));
}

/// A volume that breaks a rule is found out: here, one whose two hosts do not share a volume at all.
#[test]
fn the_suite_finds_broken_volumes() {
    let failed = run(|| Hosts { first: Arc::new(Memory::new()), second: Arc::new(Memory::new()) });
    for rule in ["P1", "P2", "P4", "a lock", "a record is read", "a listing shows"] {
        assert!(
            failed.iter().any(|report| report.name.starts_with(rule)),
            "{rule} was not missed: {failed:?}"
        );
    }
}
