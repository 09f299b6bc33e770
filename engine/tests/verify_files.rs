//! `kaas-engine verify`: what stands beside the records in a partition's directory, damaged piece by piece.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/looking.rs"]
mod looking;
mod support;

use std::path::Path;
use std::sync::Arc;

use kaas_engine::leadership::{ClaimError, Claimant, claim};
use kaas_engine::types::Epoch;
use kaas_engine::verify::{Kind, Severity};
use kaas_fault_injection::faulty::{Faulty, Hook, Point, Rule, Rules, Verdict};
use kaas_substrate::Substrate;
use looking::{
    assert_clean, assert_found, bad, change, closed, crashed, dir, edit_json, files, last_log, look,
};

// Manifest and checkpoint.

#[test]
fn manifests() {
    let volume = closed();
    let manifest = files(&volume, "manifest.", ".json").pop().unwrap();
    let kept = std::fs::read(&manifest).unwrap();
    type Edit = fn(&mut serde_json::Value);
    let edits: [(Kind, Edit); 10] = [
        (Kind::NewerFormat, |value| value["format"] = 99.into()),
        (Kind::ManifestDamaged, |value| value["segments"] = "none".into()),
        (Kind::ManifestImpossible, |value| value["epoch"] = 7.into()),
        (Kind::ManifestImpossible, |value| value["segments"][1]["end_offset"] = 1_000_000.into()),
        (Kind::ManifestImpossible, |value| value["segments"][1]["base_offset"] = (-4).into()),
        (Kind::ManifestImpossible, |value| value["next_offset"] = 3.into()),
        (Kind::LogStartOutOfRange, |value| value["log_start_offset"] = 1_000_000.into()),
        (Kind::CommittedRecordsMissing, |value| value["high_watermark"] = 1_000_000.into()),
        (Kind::ManifestSummary, |value| value["segments"][0]["max_timestamp"] = 3.into()),
        (Kind::DamagedBatch, |value| {
            let bytes = value["segments"][0]["bytes"].as_u64().unwrap();
            value["segments"][0]["bytes"] = (bytes - 10).into();
        }),
    ];
    for (kind, edit) in edits {
        edit_json(&manifest, edit);
        assert_found(&volume, kind);
        std::fs::write(&manifest, &kept).unwrap();
    }
    edit_json(&manifest, |value| {
        value["segments"].as_array_mut().unwrap().remove(0);
    });
    let found = assert_found(&volume, Kind::LogStartOutOfRange);
    assert!(found.problem.contains("its first segment begins at"), "{}", found.problem);
    std::fs::write(&manifest, b"{").unwrap();
    assert_found(&volume, Kind::ManifestDamaged);
    std::fs::remove_file(&manifest).unwrap();
    assert_found(&volume, Kind::ManifestMissing);
    std::fs::write(&manifest, &kept).unwrap();
    assert_clean(&volume, "put back");

    // The leader of a higher epoch was here, and its manifest is gone.
    let log = volume.open();
    log.append(&["x"]).unwrap();
    log.crash();
    for path in files(&volume, "manifest.", ".json") {
        std::fs::remove_file(path).unwrap();
    }
    std::fs::write(&manifest, &kept).unwrap();
    assert_found(&volume, Kind::SegmentWithoutManifest);
}

#[test]
fn segments_behind_a_clean_close() {
    let volume = closed();
    let end = look(&volume).records;
    let extra = dir(&volume).join(format!("00000001-{end:020}.log"));
    let another = std::fs::read(last_log(&volume)).unwrap();
    std::fs::write(&extra, b"").unwrap();
    assert_clean(&volume, "an empty one");
    assert_found(&volume, Kind::EmptySegment);
    std::fs::write(&extra, another).unwrap();
    assert_found(&volume, Kind::SegmentBehindRelease);
}

#[test]
fn checkpoints() {
    let volume = crashed();
    let checkpoint = files(&volume, "recovery-checkpoint", ".json").pop().unwrap();
    let kept = std::fs::read(&checkpoint).unwrap();
    type Edit = fn(&mut serde_json::Value);
    let plus_one = |field: &'static str| {
        move |value: &mut serde_json::Value| value[field] = (value[field].as_i64().unwrap() + 1).into()
    };
    edit_json(&checkpoint, plus_one("position"));
    assert_found(&volume, Kind::CheckpointWrong);
    std::fs::write(&checkpoint, &kept).unwrap();
    edit_json(&checkpoint, plus_one("offset"));
    let found = assert_found(&volume, Kind::CheckpointWrong);
    assert!(found.problem.contains("its producer snapshot"), "{}", found.problem);
    edit_json(&checkpoint, |value| value["producer_state"] = serde_json::Value::Null);
    let found = assert_found(&volume, Kind::CheckpointWrong);
    assert!(found.problem.contains("is offset"), "{}", found.problem);
    std::fs::write(&checkpoint, &kept).unwrap();
    let edits: [(Kind, Edit); 3] = [
        (Kind::CheckpointDamaged, |value| value["position"] = (-1).into()),
        (Kind::NewerFormat, |value| value["format"] = 2.into()),
        (Kind::ManifestSummary, |value| value["max_timestamp"] = 0.into()),
    ];
    for (kind, edit) in edits {
        edit_json(&checkpoint, edit);
        assert_found(&volume, kind);
        std::fs::write(&checkpoint, &kept).unwrap();
    }
    // One that nothing needs is no error.
    volume.open().close();
    std::fs::write(&checkpoint, b"?").unwrap();
    let found = assert_found(&volume, Kind::CheckpointUnused);
    assert_eq!(found.severity, Severity::Warning);
}

// Derived data.

/// A producer snapshot with other contents and the right checksum.
fn reseal(path: &Path, from: &str, to: &str) {
    change(path, |bytes| {
        let text = String::from_utf8(bytes.clone()).unwrap();
        let body = &text[..text.trim_end().rfind('\n').unwrap() + 1];
        assert!(body.contains(from), "{body}");
        let body = body.replacen(from, to, 1);
        let crc = crc32c::crc32c(body.as_bytes());
        *bytes = format!("{body}{{\"crc32c\":\"{crc:08x}\"}}\n").into_bytes();
    });
}

#[test]
fn producer_snapshots() {
    for volume in [closed(), crashed()] {
        let snapshot = files(&volume, "producer-state", ".snapshot").pop().unwrap();
        let kept = std::fs::read(&snapshot).unwrap();
        for (from, to) in [
            ("\"last_sequence\":", "\"last_sequence\":1"),
            ("\"epoch\":0", "\"epoch\":1"),
            ("\"coordinator_epoch\":0", "\"coordinator_epoch\":4"),
            ("\"last_timestamp\":", "\"last_timestamp\":9"),
            ("\"producer_id\":7", "\"producer_id\":6"),
        ] {
            reseal(&snapshot, from, to);
            let found = assert_found(&volume, Kind::SnapshotDiffers);
            assert!(found.problem.contains("producer "), "{}", found.problem);
            std::fs::write(&snapshot, &kept).unwrap();
        }
        assert_clean(&volume, "put back");
        reseal(&snapshot, "\"version\":1", "\"version\":9");
        assert_found(&volume, Kind::NewerFormat);
        for at in (0..kept.len()).step_by(13) {
            std::fs::write(&snapshot, &kept).unwrap();
            change(&snapshot, |bytes| bytes[at] ^= 2);
            assert_found(&volume, Kind::SnapshotDamaged);
        }
        std::fs::remove_file(&snapshot).unwrap();
        let found = assert_found(&volume, Kind::SnapshotMissing);
        assert_eq!(found.file, snapshot.strip_prefix(volume.path()).unwrap());
    }
}

#[test]
fn every_flipped_bit_of_an_index_is_found() {
    for volume in [closed(), crashed()] {
        for extension in [".index", ".timeindex", ".txnindex"] {
            let indexes = files(&volume, "", extension);
            assert!(!indexes.is_empty(), "{extension}");
            for path in indexes.iter().take(3) {
                let kept = std::fs::read(path).unwrap();
                let counted = kept.len().min(400);
                for at in 0..counted {
                    change(path, |bytes| bytes[at] ^= 1 << (at % 8));
                    let report = look(&volume);
                    let file = path.strip_prefix(volume.path()).unwrap();
                    let found = bad(&report).iter().any(|finding| finding.file == file);
                    assert!(found, "byte {at} of {}: {:#?}", path.display(), report.findings);
                    std::fs::write(path, &kept).unwrap();
                }
                std::fs::write(path, &kept[..kept.len() - 1]).unwrap();
                assert_found(&volume, Kind::IndexDamaged);
                std::fs::remove_file(path).unwrap();
                assert_found(&volume, Kind::IndexMissing);
                std::fs::write(path, &kept).unwrap();
            }
        }
        assert_clean(&volume, "put back");
    }
}

#[test]
fn an_aborted_transaction_that_is_not_indexed() {
    let volume = closed();
    let manifest = files(&volume, "manifest.", ".json").pop().unwrap();
    edit_json(&manifest, |value| {
        for entry in value["segments"].as_array_mut().unwrap() {
            entry["indexes"]["txn_index_bytes"] = 0.into();
        }
    });
    let found = assert_found(&volume, Kind::TxnIndexWrong);
    assert!(found.severity == Severity::Error && found.problem.contains("is missing"), "{}", found.problem);
}

// Leadership and identity.

#[test]
fn fences_and_claims() {
    let volume = closed();
    volume.open().crash();
    volume.open().crash();
    assert_clean(&volume, "three epochs");
    let fence = dir(&volume).join("fence");
    let kept = std::fs::read(&fence).unwrap();
    let with = |kind: Kind, edit: &dyn Fn(&mut Vec<u8>)| {
        change(&fence, edit);
        let found = assert_found(&volume, kind);
        std::fs::write(&fence, &kept).unwrap();
        found
    };
    with(Kind::FenceGap, &|bytes| bytes[512 * 2..512 * 3].fill(0));
    with(Kind::FenceBehind, &|bytes| bytes[512 * 3..512 * 4].fill(0));
    with(Kind::FenceDamaged, &|bytes| bytes[512 * 4 + 7] = 1);
    with(Kind::FenceDamaged, &|bytes| bytes[512 * 3 + 100] = 1);
    let found = with(Kind::FenceRecordDamaged, &|bytes| bytes[512] ^= 1);
    assert_eq!((found.severity, found.position), (Severity::Warning, Some(512)));
    with(Kind::FenceShort, &|bytes| bytes.truncate(512 * 4));
    with(Kind::FenceShort, &|bytes| bytes.push(0));
    let skip = |bytes: &mut Vec<u8>| bytes.copy_within(512..1024, 512 * 5);
    with(Kind::FenceDamaged, &skip);

    let claim = dir(&volume).join("claim.00000003");
    let kept = std::fs::read(&claim).unwrap();
    edit_json(&claim, |value| value["incarnation"] = "somebody else".into());
    assert_found(&volume, Kind::ClaimDisagrees);
    std::fs::write(&claim, b"{\"format\":1").unwrap();
    assert_found(&volume, Kind::ClaimDamaged);
    std::fs::write(&claim, b"").unwrap();
    assert_clean(&volume, "an empty claim is one that was not finished");
    std::fs::remove_file(&claim).unwrap();
    assert_found(&volume, Kind::ClaimMissing);
    std::fs::write(&claim, kept).unwrap();
    std::fs::write(dir(&volume).join("claim.00000009"), b"").unwrap();
    assert_clean(&volume, "somebody has begun a claim");
    std::fs::remove_file(&fence).unwrap();
    assert_found(&volume, Kind::FenceMissing);
}

/// The first owner's claim file is collected by a later leader, which makes room for another's: that one is refused, and
/// may die before it has taken its file back.
#[test]
fn a_claim_that_came_too_late_does_not_disagree_with_the_fence() {
    let volume = closed();
    volume.open().crash();
    volume.open().crash();
    let rules = Rules::new([Rule::nth(Point::RemoveFile, 1, Verdict::Crash)]);
    let dying: Arc<dyn Substrate> =
        Arc::new(Faulty::new(Arc::clone(&volume.substrate), Arc::clone(&rules) as Arc<dyn Hook>));
    let late = Claimant { broker_id: 9, incarnation: "late".into(), assignment_version: 0 };
    let outcome = claim(&dying, &volume.dir, Epoch::new(2).unwrap(), &late);
    assert!(matches!(outcome, Err(ClaimError::Refused { .. })), "{outcome:?}");
    assert_eq!((rules.hits(), dir(&volume).join("claim.00000002").exists()), (1, true));
    let report = assert_clean(&volume, "a claim of an epoch that was led by another");
    let found = report.findings.iter().find(|finding| finding.kind == Kind::ClaimUnfinished).unwrap();
    assert_eq!(found.file, volume.dir.join("claim.00000002"));
    assert!(found.problem.contains("a later epoch"), "{}", found.problem);
}

#[test]
fn identities() {
    let volume = closed();
    let file = dir(&volume).join("partition.json");
    let kept = std::fs::read(&file).unwrap();
    for (field, value) in [
        ("topic", serde_json::json!("payments")),
        ("partition", serde_json::json!(3)),
        ("topic_id", serde_json::json!("00112233445566778899aabbccddeeff")),
    ] {
        edit_json(&file, |json| json[field] = value);
        let found = assert_found(&volume, Kind::ForeignDirectory);
        assert!(found.problem.contains(&field.replace('_', " ")), "{}", found.problem);
        std::fs::write(&file, &kept).unwrap();
    }
    edit_json(&file, |json| json["format"] = 2.into());
    assert_found(&volume, Kind::NewerFormat);
    std::fs::write(&file, b"[]").unwrap();
    assert_found(&volume, Kind::IdentityDamaged);
    std::fs::remove_file(&file).unwrap();
    assert_found(&volume, Kind::IdentityMissing);
}

#[test]
fn what_lies_about() {
    let volume = closed();
    for name in ["notes.txt", "00000001-00000000000000000000.log.bak", "manifest.0000001F.1.json", ".nfs"] {
        std::fs::write(dir(&volume).join(name), b"x").unwrap();
        let found = assert_found(&volume, Kind::UnknownFile);
        assert_eq!(found.file, volume.dir.join(name));
        std::fs::remove_file(dir(&volume).join(name)).unwrap();
    }
    for (name, kind) in [("old", Kind::UnknownFile), ("quarantine", Kind::Quarantine)] {
        std::fs::create_dir(dir(&volume).join(name)).unwrap();
        assert_found(&volume, kind);
        std::fs::remove_dir(dir(&volume).join(name)).unwrap();
    }

    for (name, kind) in [
        ("~tmp-manifest.00000001.9.json", Kind::Temporary),
        ("00000001-00000000000000009999.index", Kind::OrphanIndex),
        ("recovery-checkpoint.00000000.1.json", Kind::Replaced),
        ("producer-state.00000001.999.snapshot", Kind::Replaced),
        ("00000000-00000000000000000005.log", Kind::DeadSegment),
    ] {
        std::fs::write(dir(&volume).join(name), b"{}").unwrap();
        assert_found(&volume, kind);
        assert_clean(&volume, name);
        std::fs::remove_file(dir(&volume).join(name)).unwrap();
    }
}
