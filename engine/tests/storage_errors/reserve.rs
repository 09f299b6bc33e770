//! The operations on the space that is put aside for a full volume.

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use kaas_engine::{RESERVE_FILE, Reserve};
use kaas_fault_injection::faulty::{Faulty, Hook, Point};
use kaas_substrate::{Memory, OpenMode, Substrate, write_small};

use super::harness::{Case, Fault, Outcome, case};

const CAPACITY: u64 = 4 << 20;

fn volume(fault: &Fault) -> Arc<dyn Substrate> {
    let memory = Arc::new(Memory::with_capacity(CAPACITY));
    Arc::new(Faulty::new(memory, Arc::clone(&fault.rules) as Arc<dyn Hook>))
}

/// Putting it aside: if that cannot be done it counts as in use, or the call says that it is not known.
fn put_aside(fault: &Fault) -> Outcome {
    let volume = volume(fault);
    let reserve = Reserve::new(Arc::clone(&volume));
    fault.arm();
    let outcome = match reserve.replenish() {
        Ok(()) if reserve.is_in_use() => Outcome::Refused,
        Ok(()) => Outcome::GoesOn,
        Err(_) => Outcome::RequestFails,
    };
    fault.mend();
    reserve.replenish().unwrap();
    assert!(!reserve.is_in_use());
    let there = volume.open(Path::new(RESERVE_FILE), OpenMode::Read).unwrap().length().unwrap();
    assert_eq!(there, 1 << 20);
    outcome
}

/// Lending it to a small write that finds the volume full.
fn release(fault: &Fault) -> Outcome {
    let volume = volume(fault);
    let reserve = Reserve::new(Arc::clone(&volume));
    reserve.replenish().unwrap();
    let left = volume.space().unwrap().available_bytes.unwrap();
    let ballast = volume.open(Path::new("ballast"), OpenMode::CreateNew).unwrap();
    ballast.write_all_at(&[IoSlice::new(&vec![1; left as usize])], 0).unwrap();
    drop(ballast);
    fault.arm();
    let written = reserve.with(|| write_small(&*volume, Path::new("small"), b"text"));
    let outcome = if written.is_ok() { Outcome::GoesOn } else { Outcome::RequestFails };
    fault.mend();
    reserve.with(|| write_small(&*volume, Path::new("small"), b"text")).unwrap();
    assert!(reserve.is_in_use());
    volume.remove_file(Path::new("ballast")).unwrap();
    reserve.replenish().unwrap();
    assert!(!reserve.is_in_use(), "put back when there is room");
    outcome
}

pub const CASES: &[Case] = &[
    case("put aside: create the file", Point::Create, "~reserve", 1, put_aside),
    case("put aside: write it", Point::Write, "~reserve", 1, put_aside),
    case("put aside: sync it", Point::SyncData, "~reserve", 1, put_aside),
    case("put aside: ask for the space left", Point::Space, "", 1, put_aside),
    case("put aside: list the spare files", Point::List, "~spare", 1, put_aside),
    case("put aside: create their directory", Point::CreateDir, "~spare", 1, put_aside),
    case("put aside: create a spare file", Point::Create, "~spare", 1, put_aside),
    case(
        "put aside: remove what was made to see whether there is room",
        Point::RemoveFile,
        "~spare",
        1,
        put_aside,
    ),
    case("release: open the file", Point::Open, "~reserve", 1, release),
    case("release: cut it", Point::SetLength, "~reserve", 1, release),
    case("release: sync the cut", Point::SyncData, "~reserve", 1, release),
];
