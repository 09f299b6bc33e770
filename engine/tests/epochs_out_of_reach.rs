//! Epochs that no leader can have come to, in a fence or in the name of a file: verify tells of them, an open says what to do,
//! nobody makes a fence of gigabytes for them, and what the hint says helps.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/data.rs"]
mod data;
#[path = "support/looking.rs"]
mod looking;
#[path = "support/mending.rs"]
mod mending;
mod support;

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use data::{Data, SLOT};
use kaas_engine::EngineError;
use kaas_engine::leadership::{self, ClaimError, Claimant};
use kaas_engine::types::Epoch;
use kaas_engine::verify::repair::{Outcome, Repaired};
use kaas_engine::verify::{Kind, Options, Severity};
use looking::{assert_found, bad, closed, dir, files, look, options};
use support::Volume;

/// Near the highest one that there is.
const WILD: u32 = 0x7fff_fff0;

/// A record of the fence, as `docs/formats` has it: `kind` is 1 (claimed) or 3 (born).
fn record(epoch: u32, kind: u32) -> [u8; 512] {
    let mut record = [0; 512];
    record[..8].copy_from_slice(b"kaasfnce");
    for (at, value) in [(8, 1), (12, epoch), (16, kind), (20, epoch), (24, 1), (36, 1)] {
        record[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    record[40] = b'x';
    let crc = crc32c::crc32c(&record[..508]);
    record[508..].copy_from_slice(&crc.to_le_bytes());
    record
}

/// Puts it into the fence, whose end it moves there.
fn write_record(fence: &Path, epoch: u32, kind: u32) {
    let file = std::fs::File::options().write(true).open(fence).unwrap();
    file.write_all_at(&record(epoch, kind), u64::from(epoch) * 512).unwrap();
    file.set_len((u64::from(epoch) + 8) * 512).unwrap();
}

/// Bytes that a file takes on the volume.
fn allocated(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

/// It cannot be opened, and why; with what to do.
#[track_caller]
fn open_error(volume: &Volume) -> EngineError {
    let Err(error) = volume.open_at(3) else { panic!("it was opened") };
    let EngineError::Claim(claim) = &error else { panic!("{error}") };
    assert!(matches!(**claim, ClaimError::OutOfReach { .. }), "{error}");
    assert!(error.to_string().contains("kaas-engine verify"), "{error}");
    error
}

#[track_caller]
fn the_only(repaired: &[Repaired]) -> &Repaired {
    assert_eq!(repaired.len(), 1, "{repaired:#?}");
    &repaired[0]
}

fn brokers_stopped() -> Options {
    Options { brokers_stopped: true, ..options() }
}

#[test]
fn a_claim_file_is_passed_over_and_a_repair_puts_it_aside() {
    for place in ["topics/orders/0", SLOT, "cluster/controller"] {
        let data = Data::new();
        let name = format!("claim.{WILD:08x}");
        let file = format!("{place}/{name}");
        data.write(&file, "{}");
        let found = data.assert_found(Kind::ClaimOutOfReach, &file);
        assert_eq!(found.severity, Severity::Warning);
        // The next epoch is that of the fence, and it can be led.
        let (volume, place) = (data.volume(), Path::new(place));
        assert_eq!(leadership::highest(&*volume, place).unwrap(), Epoch::new(1).unwrap());
        let repaired = data.repair(&options());
        assert_eq!(the_only(&repaired).outcome, Outcome::Repaired, "{repaired:#?}");
        let aside = std::fs::read_dir(data.path("").join(place).join("quarantine")).unwrap();
        assert!(
            aside.into_iter().any(|entry| entry.unwrap().file_name().to_str().unwrap().contains(&name)),
            "a copy is kept"
        );
        data.assert_clean();
        assert!(allocated(&data.path("").join(place).join("fence")) < 1 << 20);
        let claimant = Claimant { broker_id: 1, incarnation: "next".into(), assignment_version: 0 };
        let next = leadership::highest(&*volume, place).unwrap().next();
        leadership::claim(&volume, place, next, &claimant).unwrap();
    }
}

#[test]
fn a_fence_is_left_alone_until_it_is_moved_away() {
    for kind in [1, 3] {
        let data = Data::new();
        let fence = data.path("topics/orders/0/fence");
        write_record(&fence, WILD, kind);
        let found = data.assert_found(Kind::EpochOutOfReach, "topics/orders/0/fence");
        assert_eq!(found.severity, Severity::Error);
        assert!(found.problem.contains(&WILD.to_string()), "{}", found.problem);
        let report = data.verify("");
        assert_eq!(bad(&report).len(), 1, "what follows from it is not told too: {:#?}", bad(&report));
        let before = allocated(&fence);
        let repaired = data.repair(&brokers_stopped());
        let refused = the_only(&repaired);
        assert!(refused.outcome != Outcome::Repaired, "{refused:#?}");
        assert!(refused.reason.as_ref().unwrap().contains("epoch-out-of-reach"), "{refused:#?}");
        assert_eq!(allocated(&fence), before, "a refused repair does not touch it");

        std::fs::rename(&fence, data.path("moved")).unwrap();
        let repaired = data.repair(&brokers_stopped());
        assert_eq!(the_only(&repaired).outcome, Outcome::Repaired, "{repaired:#?}");
        assert!(allocated(&fence) < 1 << 20);
        std::fs::remove_file(data.path("moved")).unwrap();
        data.assert_clean();
    }
}

/// Its epochs could not go on for long, and no verify would take it for sound.
#[test]
fn nobody_claims_above_what_a_cluster_can_come_to() {
    let volume = closed();
    let highest = 1 << 30;
    write_record(&dir(&volume).join("fence"), highest, 1);
    let Err(error) = volume.open_at(highest + 1) else { panic!("it was opened") };
    let EngineError::Claim(claim) = &error else { panic!("{error}") };
    assert!(matches!(**claim, ClaimError::OutOfRange { .. }), "{error}");
    assert!(!dir(&volume).join("claim.40000001").exists());
}

#[test]
fn a_leader_is_told_of_a_fence_that_nobody_can_lead() {
    let volume = closed();
    let fence = dir(&volume).join("fence");
    write_record(&fence, WILD, 1);
    let before = allocated(&fence);
    let error = open_error(&volume);
    assert!(error.to_string().contains(&WILD.to_string()), "{error}");
    assert_eq!(allocated(&fence), before);
    assert!(!dir(&volume).join("claim.00000003").exists(), "a refused claim leaves nothing");
}

#[test]
fn a_fence_without_end_is_not_read_to_its_end() {
    let volume = closed();
    let fence = dir(&volume).join("fence");
    std::fs::File::options().write(true).open(&fence).unwrap().set_len(1 << 40).unwrap();
    let found = assert_found(&volume, Kind::EpochOutOfReach);
    assert!(found.problem.contains(&(1u64 << 40).to_string()), "{}", found.problem);
    let Err(error) = volume.open_at(3) else { panic!("it was opened") };
    assert!(error.to_string().contains("kaas-engine verify"), "{error}");
}

#[test]
fn a_file_of_such_an_epoch_takes_nobody_with_it() {
    let volume = closed();
    let newest = files(&volume, "manifest.", ".json").pop().unwrap();
    let wild = dir(&volume).join(format!("manifest.{WILD:08x}.1.json"));
    std::fs::copy(&newest, &wild).unwrap();
    looking::edit_json(&wild, |json| json["epoch"] = WILD.into());
    let found = assert_found(&volume, Kind::EpochOutOfReach);
    assert!(found.problem.contains(&WILD.to_string()), "{}", found.problem);
    let error = open_error(&volume);
    assert!(error.to_string().contains(&WILD.to_string()), "{error}");
    let repaired = mending::repair(&volume).unwrap();
    assert!(repaired.reason.as_ref().unwrap().contains("epoch-out-of-reach"), "{repaired:#?}");
    // Without a fence, too.
    let fence = dir(&volume).join("fence");
    std::fs::remove_file(&wild).unwrap();
    let report = look(&volume);
    assert!(!report.findings.iter().any(|finding| finding.kind == Kind::EpochOutOfReach));
    volume.open_at(4).unwrap().close();
    assert!(allocated(&fence) < 1 << 20);
}

#[test]
fn a_journal_of_such_an_epoch_is_told_to_who_opens_the_slot() {
    let data = Data::new();
    let slot = data.path(SLOT);
    let journals = std::fs::read_dir(&slot).unwrap().map(|entry| entry.unwrap().path());
    let journal = journals.filter(|path| path.to_str().unwrap().contains("journal")).max().unwrap();
    let name = journal.file_name().unwrap().to_str().unwrap().replacen("00000001", &format!("{WILD:08x}"), 1);
    let wild = PathBuf::from(SLOT).join(&name);
    std::fs::copy(&journal, data.path(wild.to_str().unwrap())).unwrap();
    data.assert_found(Kind::EpochOutOfReach, &format!("{SLOT}/fence"));
    let Err(error) = data.try_open_slot() else { panic!("it was opened") };
    assert!(
        error.to_string().contains("kaas-engine verify") && error.to_string().contains(&WILD.to_string()),
        "{error}"
    );

    // A fence that is made anew does not follow it either.
    std::fs::remove_file(data.path(SLOT).join("fence")).unwrap();
    let repaired = data.repair(&Options { accept_loss: true, ..brokers_stopped() });
    let reason = the_only(&repaired).reason.as_ref().unwrap();
    assert!(reason.contains(&WILD.to_string()) && reason.contains("move it out"), "{repaired:#?}");
    assert!(!data.path(SLOT).join("fence").exists());
    std::fs::remove_file(data.path(wild.to_str().unwrap())).unwrap();
    let repaired = data.repair(&brokers_stopped());
    assert_eq!(the_only(&repaired).outcome, Outcome::Repaired, "{repaired:#?}");
    assert!(allocated(&data.path(SLOT).join("fence")) < 1 << 20);
    data.assert_clean();
}
