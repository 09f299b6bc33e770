//! `kaas-engine verify` on topics and whole data directories, on partitions that crashed at every step, and on arbitrary
//! bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/data.rs"]
mod data;
#[path = "support/looking.rs"]
mod looking;
mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data::Data;
use kaas_engine::types::Offset;
use kaas_engine::verify::{Kind, Severity, VerifyError};
use kaas_fault_injection::faulty::{Faulty, Hook, Rule, Rules, Verdict};
use kaas_substrate::Substrate;
use looking::{bad, change, closed, dir, files, look, small_segments};
use proptest::prelude::*;
use support::{Volume, producer_batch};

#[test]
fn every_level_of_a_data_directory_can_be_named() {
    let data = Data::new();
    let counts = |target: &str| {
        let report = data.verify(target);
        assert!(report.findings.is_empty(), "{target}: {:#?}", report.findings);
        (report.topics, report.partitions, report.slots, report.records)
    };
    assert_eq!(counts(""), (2, 6, 1, 18));
    assert_eq!(counts("topics"), (2, 6, 0, 18));
    assert_eq!(counts("topics/orders"), (1, 3, 0, 9));
    assert_eq!(counts("topics/orders/2"), (0, 1, 0, 3));
    assert_eq!(counts("slots"), (0, 0, 1, 0));
    assert_eq!(counts("slots/groups"), (0, 0, 1, 0));
    assert_eq!(counts("slots/groups/07"), (0, 0, 1, 0));
    assert_eq!(counts("cluster"), (0, 0, 0, 0));
    assert_eq!(counts("cluster/controller"), (0, 0, 0, 0));
    std::fs::create_dir(data.path("other")).unwrap();
    assert!(matches!(data.try_verify("other"), Err(VerifyError::NothingThere { .. })));
    assert!(matches!(data.try_verify("missing"), Err(VerifyError::Storage(_))));
}

#[test]
fn topics() {
    let data = Data::new();
    std::fs::rename(data.path("topics/orders/1"), data.path("topics/orders/7")).unwrap();
    let found = data.assert_found(Kind::PartitionMissing, "topics/orders/1");
    assert_eq!(found.severity, Severity::Error);
    let found = data.assert_found(Kind::ForeignDirectory, "topics/orders/7/partition.json");
    assert!(found.problem.contains("partition 1"), "{}", found.problem);
    std::fs::rename(data.path("topics/orders/7"), data.path("topics/orders/1")).unwrap();

    let sealed = std::fs::read_to_string(data.path("topics/orders/topic-id.json")).unwrap();
    data.write("topics/orders/topic-id.json", &sealed.replace("orders", "sales"));
    data.assert_found(Kind::TopicIdDamaged, "topics/orders/topic-id.json");
    let id = r#"{"format":1,"topic":"orders","topic_id":"BgYGBgYGBgYGBgYGBgYGBg"}"#;
    data.write("topics/orders/topic-id.json", &id.replace("orders", "sales"));
    data.assert_found(Kind::ForeignDirectory, "topics/orders/topic-id.json");
    // A new incarnation of the topic with a partition of the former one.
    data.write(
        "topics/orders/topic-id.json",
        &id.replace("BgYGBgYGBgYGBgYGBgYGBg", "AAAAAAAAAAAAAAAAAAAABQ"),
    );
    let found = data.assert_found(Kind::ForeignDirectory, "topics/orders/0/partition.json");
    assert!(found.problem.contains("topic id"), "{}", found.problem);
    data.write("topics/orders/topic-id.json", &id.replace("BgYG", "!"));
    data.assert_found(Kind::TopicIdDamaged, "topics/orders/topic-id.json");
    data.write("topics/orders/topic-id.json", "");
    data.assert_found(Kind::TopicIdDamaged, "topics/orders/topic-id.json");
    std::fs::remove_file(data.path("topics/orders/topic-id.json")).unwrap();
    data.assert_found(Kind::TopicIdMissing, "topics/orders/topic-id.json");
    data.write("topics/orders/topic-id.json", &sealed);
    data.assert_clean();

    data.write("topics/orders/config.00000001.2.json", r#"{"format":1,"config":{"retention.ms":1}}"#);
    data.assert_found(Kind::TopicConfigDamaged, "topics/orders/config.00000001.2.json");
    data.write("topics/orders/config.00000001.2.json", "{");
    data.assert_found(Kind::TopicConfigDamaged, "topics/orders/config.00000001.2.json");
    data.write("topics/orders/config.00000001.2.json", r#"{"format":2,"config":{}}"#);
    data.assert_found(Kind::NewerFormat, "topics/orders/config.00000001.2.json");
    data.write("topics/orders/config.00000001.2.json", r#"{"format":1,"config":{}}"#);
    data.assert_clean();
    data.assert_found(Kind::Replaced, "topics/orders/config.00000001.1.json");

    for (name, kind) in [
        ("topics/~new-4f", Kind::Unfinished),
        ("topics/~deleted-orders-4f", Kind::Deleted),
        ("topics/orders/~new-3-4f", Kind::Unfinished),
    ] {
        std::fs::create_dir(data.path(name)).unwrap();
        data.assert_found(kind, name);
        data.assert_clean();
        std::fs::remove_dir(data.path(name)).unwrap();
    }
    for name in ["topics/orders/00", "topics/what is this"] {
        std::fs::create_dir(data.path(name)).unwrap();
        data.assert_found(Kind::UnknownFile, name);
        std::fs::remove_dir(data.path(name)).unwrap();
    }
}

#[test]
fn the_cluster_and_slots() {
    let data = Data::new();
    data.write("cluster/broker-configs.00000001.1.json", "?");
    data.assert_found(Kind::SettingsDamaged, "cluster/broker-configs.00000001.1.json");
    data.write("cluster/broker-configs.00000001.1.json", r#"{"format":1,"all":{}}"#);
    data.assert_found(Kind::SettingsDamaged, "cluster/broker-configs.00000001.1.json");
    data.write("cluster/broker-configs.00000001.1.json", r#"{"format":1,"all":{},"brokers":{}}"#);
    data.write("cluster/producer-ids.00000001.1.json", r#"{"format":1,"next_block_start":-1}"#);
    data.assert_found(Kind::SettingsDamaged, "cluster/producer-ids.00000001.1.json");
    data.write("cluster/producer-ids.00000001.2.json", r#"{"format":1,"next_block_start":5000}"#);
    data.assert_found(Kind::Replaced, "cluster/producer-ids.00000001.1.json");
    data.write("cluster/meta.json", "?");
    data.assert_found(Kind::ClusterMetaDamaged, "cluster/meta.json");
    std::fs::remove_file(data.path("cluster/meta.json")).unwrap();
    data.assert_found(Kind::ClusterMetaDamaged, "cluster/meta.json");
    data.write("cluster/meta.json", r#"{"format":1}"#);
    data.assert_found(Kind::ClusterMetaDamaged, "cluster/meta.json");
    data.write("cluster/meta.json", r#"{"format":1,"cluster_id":"x","node_id":1}"#);
    for name in ["cluster/notes", "notes", "slots/notes", "slots/groups/notes"] {
        data.write(name, "");
        data.assert_found(Kind::UnknownFile, name);
        std::fs::remove_file(data.path(name)).unwrap();
    }
    data.write("cluster/~tmp-meta.json", "");
    data.assert_found(Kind::Temporary, "cluster/~tmp-meta.json");
    change(&data.path("cluster/controller/fence"), |bytes| bytes[512 + 9] ^= 1);
    data.assert_found(Kind::FenceDamaged, "cluster/controller/fence");
    change(&data.path("cluster/controller/fence"), |bytes| bytes[512 + 9] ^= 1);
    data.assert_clean();

    let journal = "slots/groups/07/journal.00000001.0.jsonl";
    let kept = std::fs::read(data.path(journal)).unwrap();
    std::fs::write(data.path(journal), &kept[..kept.len() - 3]).unwrap();
    let found = data.assert_found(Kind::TornTail, journal);
    assert_eq!(found.severity, Severity::Warning);
    let second = kept.iter().position(|byte| *byte == b'\n').unwrap() + 20;
    std::fs::write(data.path(journal), &kept).unwrap();
    change(&data.path(journal), |bytes| bytes[second] ^= 1);
    data.assert_found(Kind::JournalDamaged, journal);
    // An older one in the place of the newest.
    let renamed = "slots/groups/07/journal.00000001.1.jsonl";
    std::fs::write(data.path(renamed), &kept).unwrap();
    data.assert_found(Kind::JournalDamaged, renamed);
    std::fs::remove_file(data.path(renamed)).unwrap();
    std::fs::remove_file(data.path(journal)).unwrap();
    data.write("slots/groups/07/snapshot.00000001.1.json", "");
    data.assert_found(Kind::JournalDamaged, "slots/groups/07/snapshot.00000001.1.json");
    std::fs::remove_file(data.path("slots/groups/07/snapshot.00000001.1.json")).unwrap();
    std::fs::write(data.path(journal), kept).unwrap();
    data.write("slots/groups/07/notes", "");
    data.assert_found(Kind::UnknownFile, "slots/groups/07/notes");
    std::fs::remove_file(data.path("slots/groups/07/fence")).unwrap();
    data.assert_found(Kind::FenceMissing, "slots/groups/07/fence");
}

// Crashes at every step.

/// The volume after a run that was cut off at its nth change; `None` if the run came to its end.
fn cut_off(nth: u64, verdict: Verdict) -> Option<Volume> {
    let volume = small_segments();
    let rules = Rules::new([Rule::nth_change(nth, verdict)]);
    let hook: Arc<dyn Hook> = Arc::clone(&rules) as Arc<dyn Hook>;
    let faulty: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::clone(&volume.substrate), hook));
    let seen = volume.seen_through(faulty);
    let run = || -> Option<()> {
        for round in 0..2 {
            let log = seen.try_open().ok()?;
            for n in 0..10 {
                log.append_batch(&producer_batch(5, 0, round * 10 + n, &["some value"])).ok()?;
            }
            log.partition.delete_records(Some(Offset(i64::from(round) * 10 + 5))).wait().unwrap().ok()?;
            log.partition.maintain().wait().unwrap().ok()?;
            log.append(&["behind"]).ok()?;
            log.partition.close().wait().unwrap().ok()?;
        }
        Some(())
    };
    let _ = run();
    (rules.hits() > 0).then_some(volume)
}

#[test]
fn a_crash_at_any_step_leaves_nothing_to_complain_about() {
    for nth in 1.. {
        let Some(volume) = cut_off(nth, Verdict::Crash) else {
            assert!(nth > 80, "{nth}");
            return;
        };
        let report = look(&volume);
        assert!(report.is_clean(), "step {nth}: {:#?}", bad(&report));
    }
}

#[test]
fn a_crash_in_the_middle_of_any_write_leaves_a_torn_tail_at_most() {
    let mut torn = 0;
    for nth in 1.. {
        let Some(volume) = cut_off(nth, Verdict::CrashShort { bytes: 70 }) else {
            assert!(nth > 80 && torn > 3, "{nth} {torn}");
            return;
        };
        let report = look(&volume);
        let kinds: Vec<_> = bad(&report).iter().map(|finding| finding.kind).collect();
        // A record of the fence stays half written until the next claim, which heals it.
        let harmless = [Kind::TornTail, Kind::FenceRecordTorn, Kind::ClaimDamaged];
        assert!(kinds.iter().all(|kind| harmless.contains(kind)), "step {nth}: {:#?}", bad(&report));
        torn += usize::from(kinds.contains(&Kind::TornTail));
    }
}

// Arbitrary bytes.

#[derive(Debug, Clone)]
enum Mutation {
    Overwrite { at: usize, bytes: Vec<u8> },
    Truncate { at: usize },
    Append { bytes: Vec<u8> },
    Replace { bytes: Vec<u8> },
    Remove,
    CopyFrom { other: usize },
}

fn mutation() -> impl Strategy<Value = (usize, Mutation)> {
    let bytes = || prop::collection::vec(any::<u8>(), 1..80);
    let mutation = prop_oneof![
        4 => (any::<usize>(), bytes()).prop_map(|(at, bytes)| Mutation::Overwrite { at, bytes }),
        2 => any::<usize>().prop_map(|at| Mutation::Truncate { at }),
        1 => bytes().prop_map(|bytes| Mutation::Append { bytes }),
        1 => bytes().prop_map(|bytes| Mutation::Replace { bytes }),
        1 => Just(Mutation::Remove),
        1 => any::<usize>().prop_map(|other| Mutation::CopyFrom { other }),
    ];
    (any::<usize>(), mutation)
}

fn apply(files: &[PathBuf], file: usize, mutation: Mutation) {
    let path = &files[file % files.len()];
    let Ok(mut bytes) = std::fs::read(path) else { return };
    match mutation {
        Mutation::Overwrite { at, bytes: new } => {
            let at = at % bytes.len().max(1);
            let end = (at + new.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&new[..end - at]);
        }
        Mutation::Truncate { at } => bytes.truncate(at % bytes.len().max(1)),
        Mutation::Append { bytes: new } => bytes.extend(new),
        Mutation::Replace { bytes: new } => bytes = new,
        Mutation::Remove => {
            std::fs::remove_file(path).unwrap();
            return;
        }
        Mutation::CopyFrom { other } => {
            bytes = std::fs::read(&files[other % files.len()]).unwrap_or_default();
        }
    }
    std::fs::write(path, bytes).unwrap();
}

fn contents(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.is_file()).map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

#[test]
fn arbitrary_bytes_are_findings_and_nothing_is_written() {
    let clean = [closed(), looking::crashed()];
    let whole = clean.each_ref().map(|volume| contents(&dir(volume)));
    let records = {
        let volume = closed();
        volume.open().records()
    };
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(150);
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(which in 0..2usize, mutations in prop::collection::vec(mutation(), 1..6))| {
        let volume = &clean[which];
        let all = files(volume, "", "");
        for (file, mutation) in mutations {
            apply(&all, file, mutation);
        }
        let before = contents(&dir(volume));
        let report = look(volume);
        report.to_json(1).unwrap();
        kaas_engine::verify::render(&report, std::time::Duration::from_secs(1), true, 100);
        prop_assert_eq!(&contents(&dir(volume)), &before);
        if report.errors == 0 {
            // Then nothing keeps anybody from opening it, and what was closed is all there.
            let again = volume.seen_through(Arc::clone(&volume.substrate)).open_at(1000);
            prop_assert!(again.is_ok(), "{:?}: {:#?}", again.err(), report.findings);
            let again = again.unwrap();
            let is_whole = which == 1 || again.records() == records;
            // What it does in the background is over then.
            again.close();
            prop_assert!(is_whole);
        }
        for path in files(volume, "", "") {
            std::fs::remove_file(path).unwrap();
        }
        for (path, bytes) in &whole[which] {
            std::fs::write(path, bytes).unwrap();
        }
    });
}
