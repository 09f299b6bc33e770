//! `kaas-engine verify --repair`: a partition with damage of any kind is repaired once, serves exactly what can be read, and
//! says what cannot.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/looking.rs"]
mod looking;
#[path = "support/mending.rs"]
mod mending;
mod support;

use std::path::PathBuf;

use kaas_engine::types::Offset;
use kaas_engine::verify::Kind;
use kaas_engine::verify::repair::Outcome;
use kaas_engine::{ReadError, State};
use looking::{assert_clean, assert_found, change, closed, crashed, dir, edit_json, files, last_log, look};
use mending::{assert_serves, contents, dry_run, mend, open, placed, repair, served, values, without};
use support::{Volume, producer_batch};

/// The offset behind the last record.
fn given(volume: &Volume) -> i64 {
    placed(volume).last_key_value().map_or(0, |(offset, _)| offset + 1)
}

fn quarantined(volume: &Volume) -> Vec<String> {
    let entries = std::fs::read_dir(dir(volume).join("quarantine"));
    let mut names: Vec<_> = entries
        .map(|entries| entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect())
        .unwrap_or_default();
    names.sort();
    names
}

#[test]
fn what_is_in_order_is_left_alone() {
    for volume in [closed(), crashed()] {
        let before = contents(volume.path());
        assert_eq!(repair(&volume), None);
        assert_eq!(contents(volume.path()), before);
    }
}

#[test]
fn readers_that_meet_damage_learn_that_it_was_repaired() {
    let volume = closed();
    let damaged = files(&volume, "", ".log").remove(1);
    let placed = placed(&volume);
    let file = damaged.file_name().unwrap().to_str().unwrap();
    let mut batches: Vec<_> = placed.iter().filter(|(_, (_, place))| place.0 == file).collect();
    batches.dedup_by_key(|(_, (_, place))| place.1);
    let (first, (second, (_, (_, at, _)))) = (batches[0].0, batches[1]);
    change(&damaged, |bytes| bytes[usize::try_from(at + 57).unwrap()] ^= 0xff);
    let log = open(&volume);
    let in_front = log.read(*first).unwrap();
    assert!(in_front.bytes > 0, "what stands in front of the damage is served");
    assert!(matches!(log.read(*second), Err(ReadError::Damaged { .. })));
    assert_eq!(log.partition.status().state, State::Leading);
    mend(&volume);
    assert!(matches!(log.read(*second), Err(ReadError::NotLeader { .. })), "and is led anew, and served");
    assert!(matches!(log.partition.status().state, State::Deposed { .. }));
}

#[test]
fn derived_files_are_built_anew() {
    for make in [closed, crashed] {
        for suffix in [".index", ".timeindex", ".txnindex", ".snapshot"] {
            let volume = make();
            let (all, given) = (values(&placed(&volume)), given(&volume));
            let path = files(&volume, "", suffix).pop().unwrap();
            change(&path, |bytes| bytes[9] ^= 1);
            let repaired = mend(&volume);
            assert!(repaired.lost.is_empty(), "{repaired:#?}");
            assert_serves(&volume, &all, given);
            let path = files(&volume, "", suffix).pop().unwrap();
            std::fs::remove_file(&path).unwrap();
            if repair(&volume).is_some() {
                assert_clean(&volume, suffix);
            }
            assert_eq!(served(&open(&volume)).len(), all.len() + 1);
        }
    }
}

#[test]
fn retries_are_recognised_after_the_producer_snapshot_was_built_anew() {
    let volume = closed();
    for path in files(&volume, "", ".snapshot") {
        std::fs::write(path, b"?").unwrap();
    }
    assert!(volume.try_open().is_err(), "it would not open without a repair");
    let repaired = mend(&volume);
    assert!(repaired.unknown[0].contains("retries of batches"), "{repaired:#?}");
    let log = open(&volume);
    let end = log.partition.status().log_end;
    let again = log.append_batch(&producer_batch(7, 0, 9, &["idempotent"])).unwrap();
    assert!(again.base_offset < end, "a retry of the last batch: {again:?}");
    let next = log.append_batch(&producer_batch(7, 0, 10, &["idempotent"])).unwrap();
    assert_eq!(next.base_offset, end);
}

#[test]
fn a_hole_keeps_what_is_on_both_sides_of_it() {
    for make in [closed, crashed] {
        for batch in [0, 1, 3] {
            let volume = make();
            let (all, given) = (placed(&volume), given(&volume));
            let log = files(&volume, "", ".log").remove(0);
            let mut places: Vec<_> =
                all.values().filter(|(_, place)| log.ends_with(&place.0)).map(|(_, place)| place.1).collect();
            places.dedup();
            let at = places[batch] + 25;
            change(&log, |bytes| bytes[at as usize] ^= 1);
            let expected = without(&all, &log, at, at + 1);
            assert!(expected.len() < all.len());
            let repaired = mend(&volume);
            assert_eq!(repaired.lost.len(), 1, "{repaired:#?}");
            let gone: Vec<_> = all.keys().filter(|offset| !expected.contains_key(offset)).collect();
            assert!(
                gone.iter().all(|at| (repaired.lost[0].from..repaired.lost[0].to).contains(at)),
                "{repaired:#?}"
            );
            assert_eq!(repaired.lost[0].to - repaired.lost[0].from, gone.len() as i64);
            assert_eq!(quarantined(&volume).len(), 1, "{:?}", quarantined(&volume));
            assert_serves(&volume, &expected, given);
        }
    }
}

#[test]
fn an_offset_or_epoch_that_was_changed_is_put_back() {
    for (make, is_open) in [(closed as fn() -> Volume, false), (crashed, true)] {
        // Base offset and leader epoch are outside of the CRC.
        for (byte, bit) in [(7, 1), (3, 64), (6, 2), (15, 1), (13, 8)] {
            for which in [0, 2, usize::MAX] {
                let volume = make();
                let (all, given) = (placed(&volume), given(&volume));
                let log = files(&volume, "", ".log").remove(0);
                let places: Vec<u64> = all
                    .values()
                    .filter(|(_, place)| log.ends_with(&place.0))
                    .map(|(_, place)| place.1)
                    .collect();
                let start = places[which.min(places.len() - 1)] as usize;
                change(&log, |bytes| bytes[start + byte] ^= bit);
                let repaired = mend(&volume);
                if is_open && which == usize::MAX && byte < 8 {
                    // Nothing is behind it: bytes in front of it may be gone as well.
                    assert!(!repaired.lost.is_empty(), "{repaired:#?}");
                    let rest = all.into_iter().filter(|(_, (_, place))| place.1 as usize != start);
                    assert_serves(
                        &volume,
                        &rest.map(|(offset, (value, _))| (offset, value)).collect(),
                        given,
                    );
                    continue;
                }
                assert!(repaired.lost.is_empty(), "{repaired:#?}");
                assert!(repaired.steps.iter().any(|step| step.contains("get the offset")), "{repaired:#?}");
                assert_serves(&volume, &values(&all), given);
            }
        }
    }
}

#[test]
fn segments_that_are_gone_empty_or_cut_off() {
    for make in [closed, crashed] {
        let count = files(&make(), "", ".log").len();
        for index in [0, count / 2, count - 1] {
            for cut in [None, Some(0), Some(200)] {
                let volume = make();
                let (all, given) = (placed(&volume), given(&volume));
                let log = files(&volume, "", ".log").remove(index);
                match cut {
                    None => std::fs::remove_file(&log).unwrap(),
                    Some(cut) => change(&log, |bytes| bytes.truncate(cut)),
                }
                let expected = without(&all, &log, cut.unwrap_or(0) as u64, u64::MAX);
                let repaired = mend(&volume);
                assert!(!repaired.lost.is_empty(), "{repaired:#?}");
                let lost =
                    |offset: &i64| repaired.lost.iter().any(|lost| (lost.from..lost.to).contains(offset));
                for offset in all.keys() {
                    // What was lost behind the last checkpoint was never known to be there.
                    let known = expected.contains_key(offset) != lost(offset);
                    assert!(known || index == count - 1, "{offset}: {repaired:#?}");
                }
                let log_start = open(&volume).partition.status().log_start.0;
                let expected = expected.into_iter().filter(|(offset, _)| *offset >= log_start).collect();
                let promised = if index == count - 1 { 0 } else { given };
                assert_serves(&volume, &expected, promised);
            }
        }
    }
}

#[test]
fn torn_tails_and_batches_behind_a_tear() {
    let volume = crashed();
    let (all, log) = (placed(&volume), last_log(&volume));
    let length = std::fs::metadata(&log).unwrap().len();
    change(&log, |bytes| bytes.truncate(length as usize - 10));
    let expected = without(&all, &log, length - 10, length);
    let repaired = mend(&volume);
    assert!(repaired.lost.is_empty(), "a torn tail is no loss: {repaired:#?}");
    assert_eq!(quarantined(&volume).len(), 1);
    assert_serves(&volume, &expected, 0);

    // The tear is in the middle: what follows may have been acknowledged.
    let volume = crashed();
    let (all, log) = (placed(&volume), last_log(&volume));
    let given = given(&volume);
    let at = length - 200;
    change(&log, |bytes| bytes[at as usize] ^= 1);
    let expected = without(&all, &log, at, at + 1);
    assert!(
        all.last_key_value().map(|(offset, _)| offset) == expected.last_key_value().map(|(offset, _)| offset)
    );
    let repaired = mend(&volume);
    assert_eq!(repaired.lost.len(), 1, "{repaired:#?}");
    assert_serves(&volume, &expected, given);
}

#[test]
fn manifests_that_are_gone_or_damaged_are_derived() {
    for make in [closed, crashed] {
        for content in [None, Some(&b"{"[..]), Some(b"")] {
            let volume = make();
            let (all, given) = (values(&placed(&volume)), given(&volume));
            for path in files(&volume, "manifest", ".json") {
                match content {
                    None => std::fs::remove_file(path).unwrap(),
                    Some(content) => std::fs::write(path, content).unwrap(),
                }
            }
            let repaired = mend(&volume);
            assert!(repaired.lost.is_empty(), "{repaired:#?}");
            assert!(repaired.unknown[0].contains("the manifest is gone"), "{repaired:#?}");
            assert_serves(&volume, &all, given);
        }
    }
}

#[test]
fn a_manifest_of_another_partition_takes_nothing_away_for_good() {
    let volume = closed();
    let logs = files(&volume, "", ".log");
    assert!(logs.len() > 3);
    let kept: Vec<_> = logs.iter().map(|path| std::fs::read(path).unwrap()).collect();
    edit_json(&files(&volume, "manifest", ".json").pop().unwrap(), |value| {
        // As whole as ours, and it names one segment, which is not here.
        let end = value["next_offset"].clone();
        let segments = value["segments"].as_array_mut().unwrap();
        segments.truncate(1);
        segments[0]["end_offset"] = end;
        segments[0]["bytes"] = 100_000.into();
    });
    let repaired = mend(&volume);
    assert!(!repaired.lost.is_empty(), "{repaired:#?}");
    // The next leader removes what its manifest does not name.
    open(&volume).close();
    let aside = quarantined(&volume);
    for (path, bytes) in logs.iter().zip(kept).skip(1) {
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(path.exists() || aside.contains(&name.to_owned()), "{name} is gone: {aside:?}");
        let place = if path.exists() { path.clone() } else { dir(&volume).join("quarantine").join(name) };
        assert_eq!(std::fs::read(place).unwrap(), bytes, "{name}");
    }
}

#[test]
fn a_later_leader_whose_manifest_is_gone() {
    let volume = closed();
    let kept = files(&volume, "manifest", ".json").pop().unwrap();
    let manifest = std::fs::read(&kept).unwrap();
    let log = volume.open();
    log.append(&["later"]).unwrap();
    log.crash();
    let (all, given) = (values(&placed(&volume)), given(&volume));
    for path in files(&volume, "manifest", ".json") {
        std::fs::remove_file(path).unwrap();
    }
    std::fs::write(&kept, manifest).unwrap();
    assert_found(&volume, Kind::SegmentWithoutManifest);
    mend(&volume);
    assert_serves(&volume, &all, given);
}

#[test]
fn everything_else_that_stands_beside_the_records() {
    type Harm = fn(&Volume);
    let harms: [(Kind, Harm); 11] = [
        (Kind::ManifestImpossible, |volume| {
            let manifest = files(volume, "manifest", ".json").pop().unwrap();
            edit_json(&manifest, |value| value["segments"][1]["end_offset"] = 1_000_000.into());
        }),
        (Kind::ManifestSummary, |volume| {
            let manifest = files(volume, "manifest", ".json").pop().unwrap();
            edit_json(&manifest, |value| value["segments"][0]["max_timestamp"] = 3.into());
        }),
        (Kind::UnknownFile, |volume| std::fs::write(dir(volume).join("notes.txt"), "mine").unwrap()),
        (Kind::CheckpointUnused, |volume| {
            std::fs::write(dir(volume).join("recovery-checkpoint.00000001.9.json"), "?").unwrap();
        }),
        (Kind::FenceGap, |volume| {
            volume.open().close();
            volume.open().close();
            change(&dir(volume).join("fence"), |bytes| bytes[1024..1536].fill(0));
        }),
        (Kind::FenceRecordDamaged, |volume| {
            volume.open().close();
            change(&dir(volume).join("fence"), |bytes| bytes[520] ^= 1);
        }),
        (Kind::FenceRecordTorn, |volume| {
            change(&dir(volume).join("fence"), |bytes| bytes.copy_within(512..612, 1024));
        }),
        (Kind::FenceBehind, |volume| {
            volume.open().close();
            change(&dir(volume).join("fence"), |bytes| bytes[1024..1536].fill(0));
        }),
        (Kind::ClaimDamaged, |volume| std::fs::write(dir(volume).join("claim.00000001"), "?").unwrap()),
        (Kind::IdentityDamaged, |volume| std::fs::write(dir(volume).join("partition.json"), "?").unwrap()),
        (Kind::IdentityMissing, |volume| std::fs::remove_file(dir(volume).join("partition.json")).unwrap()),
    ];
    for (kind, harm) in harms {
        let volume = closed();
        let (all, given) = (values(&placed(&volume)), given(&volume));
        harm(&volume);
        assert_found(&volume, kind);
        let repaired = mend(&volume);
        // A wrong end of a segment in the manifest is a promise of offsets that nobody knows anything else of.
        if kind != Kind::ManifestImpossible {
            assert!(repaired.lost.is_empty(), "{kind:?}: {repaired:#?}");
        }
        assert_serves(&volume, &all, given);
        if kind == Kind::UnknownFile {
            assert_eq!(std::fs::read(dir(&volume).join("quarantine/notes.txt")).unwrap(), b"mine");
            assert!(!dir(&volume).join("notes.txt").exists());
        }
    }
}

#[test]
fn what_cannot_be_understood_is_left_as_it_is() {
    type Harm = fn(&Volume);
    let harms: [(&str, Harm); 5] = [
        ("newer-format", |volume| {
            let manifest = files(volume, "manifest", ".json").pop().unwrap();
            edit_json(&manifest, |value| value["format"] = 2.into());
        }),
        ("foreign-directory", |volume| {
            edit_json(&dir(volume).join("partition.json"), |value| value["topic"] = "another".into());
        }),
        ("fence-missing", |volume| std::fs::remove_file(dir(volume).join("fence")).unwrap()),
        ("nothing of what was found", |volume| std::fs::create_dir(dir(volume).join("old")).unwrap()),
        ("nothing of what was found", |volume| {
            std::os::unix::fs::symlink("/etc/passwd", dir(volume).join("link")).unwrap();
        }),
    ];
    for (reason, harm) in harms {
        let volume = closed();
        harm(&volume);
        // Something that could be repaired beside it.
        if reason != "nothing of what was found" {
            std::fs::remove_file(files(&volume, "", ".index").pop().unwrap()).unwrap();
        }
        let before = contents(volume.path());
        let repaired = repair(&volume).unwrap();
        assert_eq!(repaired.outcome, Outcome::Refused, "{repaired:#?}");
        assert!(repaired.reason.as_ref().unwrap().contains(reason), "{repaired:#?}");
        assert_eq!(contents(volume.path()), before);
    }
}

#[test]
fn a_link_in_the_place_of_the_quarantine_is_not_followed() {
    let volume = crashed();
    change(&last_log(&volume), |bytes| bytes[700] ^= 1);
    let beside = tempfile::tempdir().unwrap();
    let quarantine = dir(&volume).join("quarantine");
    std::os::unix::fs::symlink(beside.path(), &quarantine).unwrap();
    let fence = std::fs::read(dir(&volume).join("fence")).unwrap();
    for repaired in [dry_run(&volume), repair(&volume)] {
        let repaired = repaired.unwrap();
        assert_eq!(repaired.outcome, Outcome::Refused, "{repaired:#?}");
        assert!(repaired.reason.unwrap().contains("quarantine"));
    }
    assert!(contents(beside.path()).is_empty());
    assert_eq!(std::fs::read(dir(&volume).join("fence")).unwrap(), fence, "nothing was claimed");
    std::fs::remove_file(&quarantine).unwrap();
    mend(&volume);
}

#[test]
fn a_fence_that_ends_with_a_piece_of_a_record() {
    let volume = closed();
    volume.open().close();
    // The next claim extends it, and the piece becomes a record that is damaged: of an epoch that was led, so it was whole.
    change(&dir(&volume).join("fence"), |bytes| bytes.truncate(1024 + 8));
    assert_found(&volume, Kind::FenceDamaged);
    mend(&volume);
}

#[test]
fn a_leader_epoch_that_was_changed_in_a_rewritten_segment_is_put_back() {
    let mut volume = support::Volume::local();
    volume.config = kaas_engine::LogConfig {
        segment_bytes: 500,
        compact: true,
        delete: false,
        min_cleanable_dirty_ratio: 0.0,
        ..kaas_engine::LogConfig::default()
    };
    let log = volume.open();
    for n in 0..20 {
        let record = kaas_engine::batch::SimpleRecord::of(format!("key-{}", n % 12), format!("value-{n}"));
        let options =
            kaas_engine::batch::BatchOptions { base_timestamp: support::START, ..Default::default() };
        log.append_batch(&kaas_engine::batch::data_batch(&[record], &options).unwrap()).unwrap();
    }
    log.partition.compact_now().unwrap();
    let all = served(&log);
    log.close();
    let rewritten =
        files(&volume, "", ".log").into_iter().filter(|path| path.to_string_lossy().matches('-').count() > 1);
    let rewritten = rewritten.max_by_key(|path| std::fs::metadata(path).unwrap().len()).unwrap();
    let first = std::fs::read(&rewritten).unwrap();
    let second = kaas_engine::batch::BatchHeader::parse(&first).unwrap().batch_bytes;
    change(&rewritten, |bytes| bytes[second + 14] ^= 1);
    assert_found(&volume, Kind::OutOfSequence);
    let repaired = mend(&volume);
    assert!(repaired.lost.is_empty(), "{repaired:#?}");
    assert_eq!(served(&open(&volume)), all);
}

#[test]
fn an_entry_of_a_transaction_that_was_not_aborted_goes_though_the_log_is_damaged_behind_it() {
    let volume = closed();
    let index = files(&volume, "", ".txnindex").remove(0);
    let bytes = std::fs::read(&index).unwrap();
    let last = bytes[bytes.len() - 34..].to_vec();
    let marker = i64::from_be_bytes(last[18..26].try_into().unwrap());
    // One more entry, of what stands behind the last marker.
    change(&index, |bytes| {
        bytes.extend(&last[..18]);
        bytes.extend((marker + 1).to_be_bytes());
        bytes.extend(&last[26..]);
    });
    edit_json(&files(&volume, "manifest", ".json").pop().unwrap(), |manifest| {
        let segments = manifest["segments"].as_array_mut().unwrap();
        let entry = segments.iter_mut().find(|entry| entry["end_offset"].as_i64().unwrap() > marker);
        entry.unwrap()["indexes"]["txn_index_bytes"] = (bytes.len() + 34).into();
    });
    assert_found(&volume, Kind::TxnIndexWrong);
    let log = index.with_extension("log");
    let behind = placed(&volume).into_iter().rfind(|(_, (_, place))| log.ends_with(&place.0)).unwrap();
    assert!(behind.0 > marker + 1, "there is room for damage behind it");
    change(&log, |bytes| bytes[behind.1.1.1 as usize + 30] ^= 1);
    assert_found(&volume, Kind::TxnIndexWrong);
    mend(&volume);
}

#[test]
fn a_dry_run_says_what_a_repair_does_and_writes_nothing() {
    let volume = crashed();
    let log = last_log(&volume);
    change(&log, |bytes| bytes[700] ^= 1);
    std::fs::write(dir(&volume).join("notes.txt"), "mine").unwrap();
    std::fs::write(files(&volume, "", ".snapshot").pop().unwrap(), "?").unwrap();
    let before = contents(volume.path());
    let planned = dry_run(&volume).unwrap();
    assert_eq!(contents(volume.path()), before);
    assert_eq!(planned.outcome, Outcome::WouldRepair);
    let done = repair(&volume).unwrap();
    assert_eq!((&planned.steps, &planned.lost, &planned.unknown), (&done.steps, &done.lost, &done.unknown));
    assert!(planned.steps.len() > 5, "{planned:#?}");
}

#[test]
fn a_live_leader_is_fenced_out_and_what_it_had_acknowledged_stays() {
    let volume = closed();
    let leader = volume.open();
    let last = leader.append(&["acknowledged"]).unwrap().base_offset;
    std::fs::write(dir(&volume).join("notes.txt"), "mine").unwrap();
    mend(&volume);
    assert!(leader.append(&["too late"]).is_err());
    let log = open(&volume);
    assert_eq!(served(&log).last_key_value(), Some((&last.0, &"acknowledged".to_owned())));
}

#[test]
fn the_log_start_stays_where_it_was() {
    let volume = closed();
    let log = open(&volume);
    log.partition.delete_records(Some(Offset(20))).wait().unwrap().unwrap();
    log.close();
    let before: Vec<PathBuf> = files(&volume, "", ".log");
    change(before.last().unwrap(), |bytes| bytes[90] ^= 1);
    mend(&volume);
    assert_eq!(open(&volume).partition.status().log_start, Offset(20));
    assert!(look(&volume).is_clean());
}
