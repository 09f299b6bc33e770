//! Logs that hold less than their manifest says: they are not opened, verify names it, and a repair leaves nothing that a reader
//! would wait in front of. What is missing in the middle is an error for whoever reads there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/looking.rs"]
mod looking;
#[path = "support/mending.rs"]
mod mending;
mod support;

use std::path::Path;

use kaas_engine::types::Offset;
use kaas_engine::verify::Kind;
use kaas_engine::{EngineError, FetchedRecords, Isolation, ReadError, ReadRequest, RecordsPart};
use kaas_fault_injection::simulated::{Profile, Simulation, seeded};
use kaas_substrate::OpenMode;
use looking::{assert_found, change, closed, crashed, edit_json, files, fill, last_log, small_segments};
use mending::{assert_serves, mend, open, placed, without};
use support::Volume;

/// That the next leader finds damage in this file, of which verify says this; then repaired.
#[track_caller]
fn assert_damaged(volume: &Volume, file: &str, reason: &str, kind: Kind) {
    match volume.try_open() {
        Err(EngineError::Damaged { path, reason: found }) => {
            assert!(
                path.to_string_lossy().ends_with(file) && found.contains(reason),
                "{}: {found}",
                path.display()
            );
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was opened"),
    }
    assert_found(volume, kind);
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

fn last_manifest(volume: &Volume) -> std::path::PathBuf {
    files(volume, "manifest.", ".json").pop().unwrap()
}

#[test]
fn a_last_segment_that_is_too_short() {
    for cut in [1, 300] {
        let volume = closed();
        let (all, log) = (placed(&volume), last_log(&volume));
        let given = all.last_key_value().unwrap().0 + 1;
        let length = std::fs::metadata(&log).unwrap().len();
        change(&log, |bytes| bytes.truncate(length as usize - cut));
        let expected = without(&all, &log, length - cut as u64, length);
        assert_eq!(expected.len() < all.len(), cut > 1, "the last batch is a marker");
        assert_damaged(&volume, name(&log), "were committed", Kind::ShortSegment);
        let repaired = mend(&volume);
        assert_eq!(repaired.lost.last().unwrap().to, open(&volume).partition.status().log_end.0);
        assert_serves(&volume, &expected, given);
    }
}

/// What a host has in its cache does not stand for what the volume has: the host that wrote the log still holds all of it, and does not
/// ask when it opens (as with a delegation, with `nocto`, or ceph-fuse's page cache). Led by it, the log would take new records
/// behind the hole, acknowledge them, and no other host could open it again.
#[test]
fn a_last_segment_that_is_too_short_beneath_the_writers_cache() {
    let nfs = Simulation::new(Profile::nfs(), seeded(1));
    let mut volume = Volume::on(nfs.host(0), None);
    volume.config.segment_bytes = 1000;
    let log = volume.open();
    fill(&log, 0);
    log.close();
    let on_this_host = volume.substrate.list(&volume.dir).unwrap();
    let last = on_this_host.iter().filter(|entry| entry.name.to_str().unwrap().ends_with(".log")).max();
    let path = volume.dir.join(&last.unwrap().name);
    let cached = volume.substrate.open(&path, OpenMode::Read).unwrap();
    let length = cached.length().unwrap();
    cached.read_at(&mut vec![0; length as usize], 0).unwrap();
    drop(cached);

    nfs.change_profile(|profile| {
        profile.opens_revalidate = false;
        profile.attributes_ms = 60_000;
    });
    let other = nfs.host(1);
    let file = other.open(&path, OpenMode::Write).unwrap();
    file.set_length(length - 1).unwrap();
    file.sync_data().unwrap();
    drop(file);
    let seen = |mode| volume.substrate.open(&path, mode).unwrap().length().unwrap();
    assert_eq!(
        (seen(OpenMode::Read), seen(OpenMode::ReadUncached)),
        (length, length - 1),
        "the cache is asked"
    );
    match volume.try_open() {
        Err(EngineError::Damaged { path: found, reason }) => {
            assert_eq!(found, path);
            assert!(reason.contains("were committed"), "{reason}");
        }
        Err(other) => panic!("{other}"),
        Ok(log) => {
            let appended = log.append(&["behind the hole"]).unwrap();
            panic!("{appended:?} was acknowledged");
        }
    }
}

#[test]
fn a_manifest_that_promises_more_than_there_is() {
    for more in [1, 1000] {
        let volume = closed();
        let all = mending::values(&placed(&volume));
        let mut promised = 0;
        edit_json(&last_manifest(&volume), |value| {
            let end = value["next_offset"].as_i64().unwrap();
            promised = end + more;
            value["next_offset"] = promised.into();
            value["high_watermark"] = promised.into();
            value["segments"].as_array_mut().unwrap().last_mut().unwrap()["end_offset"] = promised.into();
            value["producer_state"] = serde_json::Value::Null;
        });
        let log = last_log(&volume);
        assert_damaged(&volume, name(&log), "do not end with a batch", Kind::WrongEnd);
        let repaired = mend(&volume);
        assert_eq!(repaired.lost.last().unwrap().to, promised, "{repaired:#?}");
        assert!(repaired.steps.iter().any(|step| step.contains("no record, in place of")), "{repaired:#?}");
        assert_serves(&volume, &all, promised);
    }
}

#[test]
fn a_last_segment_that_ends_elsewhere_than_its_index_says() {
    // A hint that leads nowhere costs a walk from the beginning, and is no damage.
    let volume = closed();
    let all = mending::values(&placed(&volume));
    for index in files(&volume, "", ".index") {
        change(&index, |bytes| {
            let last = bytes.len().saturating_sub(1);
            bytes.iter_mut().skip(last).for_each(|byte| *byte ^= 1);
        });
    }
    assert_eq!(mending::served(&open(&volume)), all);
}

#[test]
fn an_index_that_leads_too_far_hides_nothing() {
    let volume = closed();
    let all = placed(&volume);
    for index in files(&volume, "", ".index") {
        // Each entry says that its batch ends one offset earlier than it does.
        change(&index, |bytes| {
            for entry in bytes.chunks_mut(8) {
                let offset = i32::from_be_bytes(entry[..4].try_into().unwrap());
                entry[..4].copy_from_slice(&(offset - 1).to_be_bytes());
            }
        });
    }
    let led = open(&volume);
    for offset in all.keys() {
        let batch = support::bytes_of(&led.read(*offset).unwrap());
        let header = kaas_engine::batch::BatchHeader::parse(&batch).unwrap();
        assert!(header.base_offset.0 <= *offset && *offset <= header.last_offset().0, "{offset}: {header:?}");
    }
}

#[test]
fn an_index_that_is_wrong_about_positions_ends_no_range_within_a_batch() {
    let mut volume = Volume::local();
    volume.settings.tail_bytes_max = 0;
    let log = volume.open();
    for _ in 0..50 {
        log.append(&[&"x".repeat(10_000)]).unwrap();
    }
    log.close();
    let request = ReadRequest {
        from: Offset(3),
        max_bytes: 200_000,
        at_least_one: true,
        isolation: Isolation::ReadUncommitted,
        file_ranges: true,
    };
    let is_range = |fetched: &FetchedRecords| matches!(fetched.parts[0], RecordsPart::FileRange { .. });
    assert!(is_range(&open(&volume).read_with(request).unwrap()), "with the index as it was");
    for index in files(&volume, "", ".index") {
        change(&index, |bytes| {
            for entry in bytes.chunks_mut(8) {
                let position = i32::from_be_bytes(entry[4..].try_into().unwrap());
                entry[4..].copy_from_slice(&(position - 100).to_be_bytes());
            }
        });
    }
    let fetched = open(&volume).read_with(request).unwrap();
    assert!(!is_range(&fetched), "{fetched:?}");
    let offsets: Vec<i64> = support::decode(&fetched).iter().map(|record| record.0).collect();
    assert!(offsets.len() > 10 && offsets.iter().copied().eq(3..3 + offsets.len() as i64), "{offsets:?}");
}

#[test]
fn records_below_the_high_watermark_that_are_gone() {
    let volume = small_segments();
    let log = volume.open();
    fill(&log, 0);
    // A rolled segment is sealed, with the high watermark beyond it.
    log.crash();
    let active = last_log(&volume);
    let (all, before) = (placed(&volume), std::fs::read(&active).unwrap());
    let manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(last_manifest(&volume)).unwrap()).unwrap();
    let committed = manifest["high_watermark"].as_i64().unwrap();
    assert!(committed > manifest["next_offset"].as_i64().unwrap(), "{manifest}");
    change(&active, Vec::clear);
    for path in files(&volume, "recovery-checkpoint", ".json") {
        std::fs::remove_file(path).unwrap();
    }
    assert_damaged(&volume, "manifest", "was committed", Kind::CommittedRecordsMissing);
    mend(&volume);
    assert_serves(&volume, &without(&all, &active, 0, before.len() as u64), committed);
}

#[test]
fn what_is_missing_in_the_middle_is_told_to_whoever_reads_there() {
    let volume = closed();
    let (all, log) = (placed(&volume), files(&volume, "", ".log").remove(1));
    let places: Vec<_> = all.iter().filter(|(_, (_, place))| log.ends_with(&place.0)).collect();
    let (offset, (_, place)) = places.last().unwrap();
    // Within a batch, at the beginning of one, and all of it.
    for length in [place.2 - 1, place.1, 0] {
        change(&log, |bytes| bytes.truncate(length as usize));
        let led = volume.open();
        let from = if length == 0 { *places[0].0 } else { **offset };
        for max_bytes in [100, 1 << 20] {
            let request = kaas_engine::ReadRequest {
                from: Offset(from),
                max_bytes,
                at_least_one: true,
                isolation: kaas_engine::Isolation::ReadUncommitted,
                file_ranges: false,
            };
            match led.read_with(request) {
                Err(ReadError::Damaged { path, .. }) => assert!(log.ends_with(name(&path))),
                other => panic!("{length}: {other:?}"),
            }
        }
        assert!(led.read(*all.last_key_value().unwrap().0).unwrap().bytes > 0, "what follows is served");
        led.close();
        assert_found(&volume, Kind::ShortSegment);
    }
    mend(&volume);
    assert_serves(&volume, &without(&all, &log, 0, u64::MAX), 0);
}

#[test]
fn a_manifest_under_a_later_leaders_name() {
    // Followed, it would go on hiding what leaders in between append.
    let volume = closed();
    let manifest = last_manifest(&volume);
    let renamed = manifest.with_file_name("manifest.00000909.1.json");
    std::fs::rename(&manifest, &renamed).unwrap();
    assert_damaged(&volume, name(&renamed), "its name 2313", Kind::ManifestImpossible);
    std::fs::rename(&renamed, &manifest).unwrap();
    volume.open().close();
}

#[test]
fn a_batch_whose_offset_was_changed_is_told_to_whoever_reads_there() {
    let volume = closed();
    let (all, log) = (placed(&volume), files(&volume, "", ".log").remove(1));
    let (offset, (_, place)) = all.iter().rev().find(|(_, (_, place))| log.ends_with(&place.0)).unwrap();
    // Outside of the CRC: far behind the end of the log.
    change(&log, |bytes| bytes[place.1 as usize + 1] = 1);
    let led = volume.open();
    assert!(matches!(led.read(*offset), Err(ReadError::Damaged { .. })), "{:?}", led.read(*offset));
    led.close();
    assert_found(&volume, Kind::OutOfSequence);
    mend(&volume);
    assert_serves(&volume, &mending::values(&all), 0);
}

#[test]
fn a_tail_that_nobody_was_promised_is_no_damage() {
    let volume = crashed();
    let log = last_log(&volume);
    let length = std::fs::metadata(&log).unwrap().len();
    change(&log, |bytes| bytes.truncate(length as usize - 10));
    volume.open().close();
}
