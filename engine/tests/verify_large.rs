//! `kaas-engine verify` on a segment that is read ahead by threads: nothing is left out, nothing is read twice, and damage,
//! a cut and an error of the volume are found where they are.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/looking.rs"]
mod looking;
mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kaas_engine::verify::{Finding, Kind, Progress, Report, verify_partition};
use kaas_fault_injection::faulty::{Faulty, Hook, Point, Rule, Rules, Verdict};
use kaas_substrate::{ErrorClass, Substrate};
use looking::{bad, change, expected, files, look, options};
use support::Volume;

/// Sizes of values, over and over.
const SIZES: [usize; 7] = [900_000, 40, 333_333, 1, 700_001, 61, 1_000_000];

/// What is read at once.
const PIECE_BYTES: usize = 1 << 20;

/// A batch of so many bytes.
fn batch_of(bytes: usize) -> bytes::Bytes {
    let batches = (60..90).map(|overhead| support::batch(&[&"x".repeat(bytes - overhead)]));
    batches.into_iter().find(|batch| batch.len() == bytes).unwrap()
}

/// A partition of one segment of about 30 MB; where each batch begins, and its first offset.
fn large() -> (Volume, Vec<(u64, i64)>) {
    let mut volume = Volume::local();
    volume.config.max_message_bytes = 4 << 20;
    let log = volume.open();
    let mut value = String::new();
    for n in 0..70_usize {
        let bytes = SIZES[n % SIZES.len()] + n;
        value.clear();
        value.extend(std::iter::repeat_n(char::from(b'a' + (n % 26) as u8), bytes));
        log.append(&[&value]).unwrap();
    }
    // And batches that begin right in front of where a piece ends: it ends within their headers.
    let path = files(&volume, "", ".log").pop().unwrap();
    for before in [1, 7, 12, 20, 60, 61, 62, 0, 30] {
        let end = std::fs::metadata(&path).unwrap().len() as usize;
        let mut missing = PIECE_BYTES - end % PIECE_BYTES;
        if missing < before + 1000 {
            missing += PIECE_BYTES;
        }
        log.append_batch(&batch_of(missing - before)).unwrap();
    }
    log.append(&["the last one"]).unwrap();
    log.close();
    let bytes = std::fs::read(path).unwrap();
    let (mut at, mut batches) = (0_u64, Vec::new());
    while (at as usize) < bytes.len() {
        let header = kaas_engine::batch::BatchHeader::parse(&bytes[at as usize..]).unwrap();
        batches.push((at, header.base_offset.0));
        at += header.batch_bytes as u64;
    }
    let straddles = |(at, _): &(u64, i64)| *at as usize % PIECE_BYTES > PIECE_BYTES - 61;
    assert!(batches.len() == 80 && at > 25 << 20 && batches.iter().filter(|at| straddles(at)).count() >= 6);
    (volume, batches)
}

fn only(report: &Report) -> Finding {
    let bad = bad(report);
    assert_eq!(bad.len(), 1, "{bad:#?}");
    bad[0].clone()
}

#[test]
fn all_of_a_large_segment_is_read_once() {
    let (volume, batches) = large();
    let bytes = std::fs::metadata(files(&volume, "", ".log").pop().unwrap()).unwrap().len();
    let progress = Progress::default();
    let report = verify_partition(&*volume.substrate, &volume.dir, &expected(), &options(), &progress);
    assert!(bad(&report).is_empty(), "{:#?}", bad(&report));
    assert_eq!((report.batches, report.bytes), (batches.len() as u64, bytes));
    assert_eq!(progress.bytes.load(Ordering::Relaxed), bytes);
}

#[test]
fn damage_anywhere_in_a_large_segment_is_told_with_its_place() {
    let (volume, batches) = large();
    let path = files(&volume, "", ".log").pop().unwrap();
    // A sample of the first ones: each look reads all of it.
    for (n, (at, offset)) in batches.iter().enumerate().filter(|(n, _)| n % 12 == 0 || (70..76).contains(n)) {
        // In the checksum, and far behind the header.
        let next = batches.get(n + 1).map_or(at + 70, |next| next.0);
        for byte in [at + 18, (at + next) / 2 + 30.min((next - at) / 2 - 1)] {
            change(&path, |bytes| bytes[byte as usize] ^= 1);
            let report = look(&volume);
            let found = only(&report);
            assert_eq!(
                (found.kind, found.position),
                (Kind::DamagedBatch, Some(*at)),
                "byte {byte}: {found:#?}"
            );
            assert_eq!(found.offset, Some(*offset));
            assert_eq!(report.batches, batches.len() as u64 - 1);
            change(&path, |bytes| bytes[byte as usize] ^= 1);
        }
    }
}

#[test]
fn a_large_segment_that_is_cut_or_cannot_be_read() {
    let (volume, batches) = large();
    let path = files(&volume, "", ".log").pop().unwrap();
    let length = std::fs::metadata(&path).unwrap().len();
    for nth in [4, 9, 17, 25] {
        let rules = Rules::new([Rule::nth(Point::Read, nth, Verdict::Fail(ErrorClass::Io)).on(".log")]);
        let hook: Arc<dyn Hook> = rules;
        let faulty: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::clone(&volume.substrate), hook));
        let report = verify_partition(&*faulty, &volume.dir, &expected(), &options(), &Progress::default());
        assert!(bad(&report).iter().any(|found| found.kind == Kind::Unreadable), "{:#?}", bad(&report));
    }
    for cut in [1, 3 << 20, 20 << 20] {
        let kept = std::fs::read(&path).unwrap();
        change(&path, |bytes| bytes.truncate((length - cut) as usize));
        let report = look(&volume);
        let whole = batches.iter().filter(|(at, _)| *at <= length - cut).count() as u64 - 1;
        assert_eq!(report.batches, whole);
        assert!(bad(&report).iter().any(|found| found.kind == Kind::ShortSegment), "{:#?}", bad(&report));
        std::fs::write(&path, kept).unwrap();
    }
}
