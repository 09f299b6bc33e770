//! Files of a partition that say that they are another partition's: copied by a person, restored or synchronised to the wrong
//! place. They are whole, and pass their checksum. No leader believes them, `kaas-engine verify` names them, and a repair
//! goes by what is left of the partition's own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/compacting.rs"]
mod compacting;
#[path = "support/data.rs"]
mod data;
#[path = "support/looking.rs"]
mod looking;
#[path = "support/mending.rs"]
mod mending;
mod support;

use std::path::{Path, PathBuf};

use compacting::compacted;
use data::Data;
use kaas_engine::EngineError;
use kaas_engine::identity::Identity;
use kaas_engine::leadership;
use kaas_engine::manifest::versioned;
use kaas_engine::types::Offset;
use kaas_engine::verify::repair::{Mode, Outcome, repair_partition};
use kaas_engine::verify::{Expected, Kind, Progress};
use looking::{assert_found, bad, closed, crashed, dir, edit_json, files, look, options};
use mending::{assert_serves, claimant, dry_run, mend, open, placed, served, values};
use support::{Volume, identity};

/// The newest file of a kind.
fn newest(volume: &Volume, prefix: &str, suffix: &str) -> PathBuf {
    files(volume, prefix, suffix).pop().unwrap()
}

/// Makes a file one of another partition, whole and with the right checksum.
fn disown(path: &Path) {
    if path.extension().is_some_and(|extension| extension == "snapshot") {
        let text = std::fs::read_to_string(path).unwrap();
        let body = &text[..text.trim_end().rfind('\n').unwrap() + 1];
        let body = body.replacen("\"partition\":0", "\"partition\":3", 1);
        assert!(!text.starts_with(&body));
        let crc = crc32c::crc32c(body.as_bytes());
        std::fs::write(path, format!("{body}{{\"crc32c\":\"{crc:08x}\"}}\n")).unwrap();
        return;
    }
    let mut value: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    value["identity"]["partition"] = 3.into();
    for field in ["crc32c", "format"] {
        value.as_object_mut().unwrap().remove(field);
    }
    std::fs::write(path, versioned::encode(path, 1, &value).unwrap()).unwrap();
}

/// What nobody may believe: that the log has one segment, and begins late.
fn another_log(path: &Path) {
    edit_json(path, |value| {
        value["segments"].as_array_mut().unwrap().truncate(1);
        let end = value["segments"].get(0).map_or(5.into(), |first| first["end_offset"].clone());
        for field in ["log_start_offset", "high_watermark", "next_offset"] {
            value[field] = end.clone();
        }
        value["producer_state"] = serde_json::Value::Null;
    });
    disown(path);
}

fn given(volume: &Volume) -> i64 {
    placed(volume).last_key_value().map_or(0, |(offset, _)| offset + 1)
}

fn is_aside(volume: &Volume, path: &Path) -> bool {
    dir(volume).join("quarantine").join(path.file_name().unwrap()).exists()
}

#[track_caller]
fn assert_not_opened(volume: &Volume, file: &Path) {
    let error = match open_error(volume) {
        Some(EngineError::Damaged { path, reason }) => {
            assert_eq!(path.file_name(), file.file_name());
            EngineError::Damaged { path, reason }.to_string()
        }
        other => panic!("{other:?}"),
    };
    let other = Identity { partition: 3, ..identity() };
    for said in [&*other.to_string(), &*identity().to_string(), "belongs to", "kaas-engine verify"] {
        assert!(error.contains(said), "{said}: {error}");
    }
}

fn open_error(volume: &Volume) -> Option<EngineError> {
    let highest = leadership::highest(&*volume.substrate, &volume.dir).unwrap();
    volume.open_at(highest.next().get()).err()
}

#[test]
fn a_manifest_beside_the_own_one_changes_nothing() {
    for (make, name) in [
        (closed as fn() -> Volume, "manifest.00000001.900.json"),
        (crashed, "manifest.00000001.900.json"),
        // Of a cluster that has got much further: nobody goes on above that.
        (closed, "manifest.7ffffff0.1.json"),
        (crashed, "manifest.00000400.1.json"),
    ] {
        let volume = make();
        let (all, given) = (values(&placed(&volume)), given(&volume));
        let foreign = dir(&volume).join(name);
        std::fs::copy(newest(&volume, "manifest.", ".json"), &foreign).unwrap();
        another_log(&foreign);
        let found = assert_found(&volume, Kind::ForeignFile);
        assert!(found.file.ends_with(name) && found.problem.contains("orders-3"), "{found:#?}");
        assert_eq!(bad(&look(&volume)).len(), 1, "{:#?}", bad(&look(&volume)));
        let highest = leadership::highest(&*volume.substrate, &volume.dir).unwrap();
        assert_not_opened(&volume, &foreign);
        let would = dry_run(&volume).unwrap();
        assert!(would.steps.contains(&format!("move {name} to quarantine/")), "{would:#?}");
        assert!(foreign.exists());
        let repaired = mend(&volume);
        assert!(repaired.lost.is_empty() && repaired.unknown.len() == 1, "{repaired:#?}");
        assert!(repaired.unknown[0].contains("taken the place of a later one"), "{repaired:#?}");
        assert!(is_aside(&volume, &foreign) && !foreign.exists());
        assert!(leadership::highest(&*volume.substrate, &volume.dir).unwrap().get() <= highest.get() + 2);
        assert_serves(&volume, &all, given);
    }
}

#[test]
fn the_own_manifest_decides_where_the_log_starts() {
    let volume = closed();
    let log = volume.open();
    log.partition.delete_records(Some(Offset(30))).wait().unwrap().unwrap();
    log.close();
    let all: std::collections::BTreeMap<_, _> =
        values(&placed(&volume)).into_iter().filter(|(offset, _)| *offset >= 30).collect();
    let given = given(&volume);
    let foreign = dir(&volume).join("manifest.00000003.1.json");
    std::fs::copy(newest(&volume, "manifest.", ".json"), &foreign).unwrap();
    another_log(&foreign);
    mend(&volume);
    let log = open(&volume);
    assert_eq!(log.partition.status().log_start, Offset(30));
    assert_eq!(served(&log), all);
    log.close();
    assert_serves(&volume, &all, given);
}

#[test]
fn a_manifest_in_the_place_of_the_own_one_leaves_the_segments_to_decide() {
    for make in [closed, crashed] {
        let volume = make();
        let (all, given) = (values(&placed(&volume)), given(&volume));
        for path in files(&volume, "manifest.", ".json") {
            another_log(&path);
        }
        let foreign = newest(&volume, "manifest.", ".json");
        assert_found(&volume, Kind::ManifestMissing);
        assert_not_opened(&volume, &foreign);
        let repaired = mend(&volume);
        assert!(repaired.lost.is_empty(), "{repaired:#?}");
        assert!(repaired.unknown[0].contains("the segments' names decided"), "{repaired:#?}");
        assert!(is_aside(&volume, &foreign));
        assert_serves(&volume, &all, given);
    }
}

#[test]
fn an_own_manifest_that_a_later_one_had_replaced_does_not_decide() {
    let mut volume = compacted(Volume::local());
    let log = volume.open();
    for n in 0..12 {
        log.put(&format!("key-{}", n % 5), &format!("value-{n}"));
    }
    log.close();
    let outdated = newest(&volume, "manifest.", ".json");
    let kept = std::fs::read(&outdated).unwrap();
    let log = volume.open();
    log.roll();
    log.partition.compact_now().unwrap();
    log.put("key-1", "behind");
    log.close();
    let (all, given) = (values(&placed(&volume)), given(&volume));
    volume.config = kaas_engine::LogConfig::default();
    // What the outdated one names has been compacted, and is gone.
    std::fs::write(&outdated, kept).unwrap();
    another_log(&newest(&volume, "manifest.00000002", ".json"));
    assert_found(&volume, Kind::MissingSegment);
    let repaired = mend(&volume);
    assert!(repaired.lost.is_empty(), "{repaired:#?}");
    assert!(repaired.unknown[0].contains("one of another partition"), "{repaired:#?}");
    assert_serves(&volume, &all, given);
}

#[test]
fn checkpoints() {
    let volume = crashed();
    let (all, given) = (values(&placed(&volume)), given(&volume));
    let own = newest(&volume, "recovery-checkpoint", ".json");
    let foreign = dir(&volume).join("recovery-checkpoint.00000001.900.json");
    std::fs::copy(own, &foreign).unwrap();
    // It would have the next leader cut the log off.
    edit_json(&foreign, |value| value["position"] = 1.into());
    disown(&foreign);
    let found = assert_found(&volume, Kind::ForeignFile);
    assert!(found.file.ends_with(foreign.file_name().unwrap()), "{found:#?}");
    let repaired = mend(&volume);
    assert!(repaired.lost.is_empty() && repaired.unknown.is_empty(), "{repaired:#?}");
    assert!(is_aside(&volume, &foreign) && !foreign.exists());
    assert_serves(&volume, &all, given);
    // A leader goes without it.
    let volume = crashed();
    disown(&newest(&volume, "recovery-checkpoint", ".json"));
    assert_eq!(served(&open(&volume)), all);
}

#[test]
fn producer_snapshots() {
    for make in [closed, crashed] {
        let volume = make();
        let (all, given) = (values(&placed(&volume)), given(&volume));
        let snapshots = files(&volume, "producer-state", ".snapshot");
        for path in &snapshots {
            disown(path);
        }
        let found = assert_found(&volume, Kind::ForeignFile);
        assert!(found.problem.contains("orders-3"), "{found:#?}");
        if files(&volume, "recovery-checkpoint", ".json").is_empty() {
            // Else only the checkpoint needs it, and an open goes without both.
            assert_not_opened(&volume, &found.file);
        }
        let repaired = mend(&volume);
        assert!(repaired.lost.is_empty(), "{repaired:#?}");
        assert!(repaired.unknown[0].contains("retries of batches"), "{repaired:#?}");
        assert!(is_aside(&volume, &found.file));
        assert_serves(&volume, &all, given);
    }
}

#[test]
fn partitions_of_a_data_directory_exchange_their_manifests() {
    let data = Data::new();
    let of = |partition: &str| data.path(&format!("topics/{partition}/manifest.00000001.2.json"));
    let (one, other) = (of("orders/0"), of("payments/1"));
    let kept = std::fs::read(&one).unwrap();
    std::fs::copy(&other, &one).unwrap();
    std::fs::write(&other, kept).unwrap();
    let report = data.verify("");
    let found: Vec<_> = report.findings.iter().filter(|found| found.kind == Kind::ForeignFile).collect();
    assert!(found.len() == 2 && found[0].problem.contains("belongs to payments-1"), "{found:#?}");
    let repaired = data.repair(&options());
    assert!(
        repaired.iter().all(|repaired| repaired.outcome == Outcome::Repaired && repaired.lost.is_empty())
    );
    assert_eq!(repaired.len(), 2, "{repaired:#?}");
    assert_eq!(data.assert_clean().records, report.records);
}

#[test]
fn nothing_is_put_aside_where_nothing_says_whose_the_directory_is() {
    let volume = closed();
    disown(&newest(&volume, "manifest.", ".json"));
    let before = mending::contents(volume.path());
    let nobody = Expected { topic: None, ..looking::expected() };
    let mode = Mode::Repair(claimant());
    let progress = Progress::default();
    let repaired =
        repair_partition(&volume.substrate, &volume.dir, &nobody, &options(), &mode, &progress).unwrap();
    assert_eq!(repaired.outcome, Outcome::Refused);
    assert!(repaired.reason.unwrap().contains("may be partition.json"));
    assert_eq!(mending::contents(volume.path()), before);
}

// Slots.

/// A slot's file with another slot's name in it, and the right checksum in that line.
fn of_slot(path: &Path, slot: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    let (first, rest) = text.split_once('\n').unwrap();
    let body = first.split(",\"crc32c\"").next().unwrap().replacen("groups/07", slot, 1);
    assert!(body.contains(slot));
    let crc = crc32c::crc32c(body.as_bytes());
    std::fs::write(path, format!("{body},\"crc32c\":\"{crc:08x}\"}}\n{rest}")).unwrap();
}

fn slot_repaired(data: &Data, accept_loss: bool) -> kaas_engine::verify::repair::Repaired {
    let mut repaired = data.repair(&kaas_engine::verify::Options { accept_loss, ..options() });
    assert_eq!(repaired.len(), 1, "{repaired:#?}");
    repaired.pop().unwrap()
}

fn newest_of_slot(data: &Data, prefix: &str) -> PathBuf {
    let entries = std::fs::read_dir(data.path(data::SLOT)).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(prefix)).max().unwrap()
}

fn entries(data: &Data) -> Vec<i64> {
    let (journal, replay) = data.open_slot();
    journal.close();
    replay.entries.iter().map(|entry| entry.value.as_i64().unwrap()).collect()
}

#[test]
fn a_journal_of_another_slot() {
    let data = Data::new();
    let journal = newest_of_slot(&data, "journal");
    of_slot(&journal, "groups/08");
    let name = format!("{}/{}", data::SLOT, journal.file_name().unwrap().to_str().unwrap());
    let found = data.assert_found(Kind::ForeignFile, &name);
    assert!(found.problem.contains("slot groups/08, not to groups/07"), "{found:#?}");
    assert_eq!(bad(&data.verify("")).len(), 1);
    let error = data.try_open_slot().unwrap_err().to_string();
    assert!(error.contains("groups/08") && error.contains("kaas-engine verify"), "{error}");
    let refused = slot_repaired(&data, false);
    assert!(refused.reason.unwrap().contains("the other slot's journal"));
    assert!(journal.exists());
    let repaired = slot_repaired(&data, true);
    assert_eq!((repaired.outcome, repaired.given_up.len()), (Outcome::Repaired, 1), "{repaired:#?}");
    assert!(data.path(data::SLOT).join("quarantine").join(journal.file_name().unwrap()).exists());
    data.assert_clean();
    assert!(entries(&data).is_empty());
}

#[test]
fn a_journal_of_another_slot_beside_the_own_one() {
    let data = Data::with_snapshot();
    let own = newest_of_slot(&data, "journal");
    for name in ["journal.00000005.3.jsonl", "journal.00000002.9.jsonl"] {
        let foreign = data.path(data::SLOT).join(name);
        std::fs::copy(&own, &foreign).unwrap();
        of_slot(&foreign, "groups/08");
    }
    let repaired = slot_repaired(&data, true);
    assert_eq!((repaired.outcome, repaired.given_up.len()), (Outcome::Repaired, 2), "{repaired:#?}");
    data.assert_clean();
    assert_eq!(entries(&data), [3, 4, 7]);
}

#[test]
fn a_snapshot_of_another_slot() {
    let data = Data::with_snapshot();
    of_slot(&newest_of_slot(&data, "snapshot"), "groups/08");
    assert!(data.verify("").findings.iter().any(|found| found.kind == Kind::ForeignFile));
    let repaired = slot_repaired(&data, true);
    assert_eq!(repaired.outcome, Outcome::Repaired, "{repaired:#?}");
    assert!(repaired.given_up[0].contains("the state in snapshot"), "{repaired:#?}");
    data.assert_clean();
    let (journal, replay) = data.open_slot();
    journal.close();
    assert_eq!(replay.snapshot, None);
}

#[test]
fn a_slot_that_was_copied_away_is_looked_at_for_itself() {
    let data = Data::with_snapshot();
    std::fs::rename(data.path(data::SLOT), data.path("copy")).unwrap();
    let report = data.verify("copy");
    assert!(bad(&report).is_empty(), "{:#?}", report.findings);
    // In another slot's place it is another slot's.
    std::fs::rename(data.path("copy"), data.path("slots/groups/08")).unwrap();
    assert_eq!(data.verify("").findings.iter().filter(|found| found.kind == Kind::ForeignFile).count(), 1);
}
