//! Importing log directories that look like Apache Kafka's, byte by byte: what is carried over, what is refused, and a crash at
//! any step. A real Kafka is imported by `broker/tests/clients/import_kafka.py`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, clippy::cast_possible_truncation)]

#[path = "support/kafka.rs"]
mod kafka;
mod support;

use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kaas_engine::batch::{
    BatchOptions, EndMarker, Marker, Producer, SimpleRecord, control_batch, data_batch,
};
use kaas_engine::identity::read_partition;
use kaas_engine::import::{ImportError, Options, Progress, plan};
use kaas_engine::leadership::Claimant;
use kaas_engine::types::{Epoch, Offset, ProducerId, Timestamp};
use kaas_engine::verify::{self, verify};
use kaas_engine::{Engine, EngineSettings, Isolation, LogConfig, ManualClock, OpenPartition, ReadRequest};
use kaas_fault_injection::faulty::{Faulty, Rule, Rules, Verdict};
use kaas_substrate::{ErrorClass, Memory, OpenMode, Space, Substrate, remove_tree};
use kafka::{Kafka, assert_clean, at, empty, epochs, identity, open, options, values};
use support::{START, decode, producer_batch};

#[test]
fn producer_ids_that_leave_none_are_refused() {
    let kafka = Kafka::new();
    kafka.log("orders-0", 0, &[at(&producer_batch(i64::MAX - 3, 0, 0, &["v0"]), 0, 0)]);
    let problems = kafka.problems();
    assert!(problems.iter().any(|problem| problem.contains("leaves none for kaas")), "{problems:?}");
}

#[test]
fn no_producer_id_of_a_batch_is_handed_out_again() {
    let kafka = Kafka::new();
    // A control batch that ends no transaction leaves nothing in the producers' state.
    let mut batch = producer_batch(7_654_321, 0, 0, &["v0"]).to_vec();
    batch[22] |= 0x30;
    let crc = crc32c::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    kafka.log("orders-0", 0, &[at(&batch, 0, 0)]);
    let target = empty();
    assert!(kafka.import(&target).is_done);
    let report = verify(&*target, Path::new(""), &verify::Options::default(), &verify::Progress::default());
    let report = report.unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

#[test]
fn names_and_ids_that_kaas_would_not_take_are_refused() {
    let kafka = Kafka::orders();
    kafka.put("meta.properties", b"version=1\ncluster.id=\n");
    kafka.log("a line\nbreak-0", 0, &[]);
    let problems = kafka.problems();
    for problem in ["its cluster.id is no text", "\"a line\\nbreak\" is no name of a topic"] {
        assert!(problems.iter().any(|found| found.contains(problem)), "{problem}: {problems:?}");
    }
    kafka.put("meta.properties", b"");
    let problems = kafka.problems();
    assert!(problems.iter().any(|found| found == "it has no cluster.id"), "{problems:?}");
}

#[test]
fn records_offsets_epochs_and_producers_are_carried_over() {
    let (kafka, target) = (Kafka::orders(), empty());
    let report = kafka.import(&target);
    assert!(report.is_done, "{:?}", report.problems);
    assert_eq!((report.partitions, report.records), (2, 7));
    assert_clean(&target);
    assert_eq!(read_partition(&*target, Path::new("topics/orders/0")).unwrap(), identity(0));
    let log = open(&target, 0, 4);
    let expected: Vec<_> = (0..7).map(|n| (n, format!("v{n}"))).collect();
    assert_eq!(log.records(), expected);
    assert_eq!(epochs(&log.partition), [Some((0, 4)), Some((0, 4)), Some((0, 4)), Some((3, 7))]);
    // The producer's last batch again, and then its next one.
    assert_eq!(log.append_batch(&producer_batch(4321, 0, 0, &["v6"])).unwrap().base_offset, Offset(6));
    assert_eq!(log.append_batch(&producer_batch(4321, 0, 1, &["v7"])).unwrap().base_offset, Offset(7));
    assert!(log.append_batch(&producer_batch(4321, 0, 5, &["gap"])).is_err());
    log.close();
    let log = open(&target, 1, 4);
    assert_eq!(log.append(&["first"]).unwrap().base_offset, Offset(0));
    log.close();
    assert_clean(&target);
}

#[test]
fn no_epoch_of_kafka_can_be_led_again() {
    let target = empty();
    Kafka::orders().import(&target);
    let clock = Arc::new(ManualClock::new(START));
    let engine = Engine::open(Arc::clone(&target), EngineSettings::default(), clock).unwrap();
    let request = OpenPartition {
        dir: PathBuf::from("topics/orders/0"),
        identity: identity(0),
        epoch: Epoch::new(3).unwrap(),
        claimant: Claimant { broker_id: 1, incarnation: "run".into(), assignment_version: 0 },
        config: LogConfig::default(),
    };
    assert!(engine.open_partition(request).is_err());
}

#[test]
fn the_log_start_is_carried_over_and_what_lies_below_is_left_behind() {
    let (kafka, target) = (Kafka::orders(), empty());
    kafka.put("log-start-offset-checkpoint", b"0\n1\norders 0 5\n");
    let report = kafka.import(&target);
    let partition = &report.topics[0].partitions[0];
    assert_eq!((partition.log_start_offset, partition.log_end_offset, partition.segments), (5, 7, 2));
    let log = open(&target, 0, 4);
    assert_eq!(log.values(), ["v5", "v6"]);
    log.close();
    assert_clean(&target);
}

#[test]
fn aborted_transactions_are_known_to_readers() {
    let (kafka, target) = (Kafka::orders(), empty());
    let in_transaction = |id, value: &str| {
        let producer = Some(Producer { id: ProducerId(id), epoch: 0, base_sequence: 0 });
        let options =
            BatchOptions { base_timestamp: START, producer, transactional: true, ..BatchOptions::default() };
        data_batch(&[SimpleRecord::of_value(value.to_owned())], &options).unwrap()
    };
    let end = |id, marker| {
        let marker = EndMarker { marker, coordinator_epoch: 0 };
        control_batch(marker, ProducerId(id), 0, Timestamp(START.0)).unwrap()
    };
    let batches = [
        at(&producer_batch(4321, 0, 0, &["v6"]), 6, 3),
        at(&in_transaction(7, "aborted"), 7, 3),
        at(&in_transaction(8, "committed"), 8, 3),
        at(&end(8, Marker::Commit), 9, 3),
        at(&end(7, Marker::Abort), 10, 3),
    ];
    kafka.log("orders-0", 6, &batches);
    assert!(kafka.import(&target).is_done);
    let log = open(&target, 0, 4);
    let request = ReadRequest {
        from: Offset(6),
        max_bytes: 1 << 20,
        at_least_one: true,
        isolation: Isolation::ReadCommitted,
        file_ranges: false,
    };
    let fetched = log.read_with(request).unwrap();
    let aborted: Vec<_> = fetched.aborted.iter().map(|txn| (txn.producer_id.0, txn.first_offset.0)).collect();
    assert_eq!(aborted, [(7, 7)]);
    assert_eq!(fetched.status.last_stable, Offset(11));
    log.close();
    assert_clean(&target);
    // Without its marker the transaction would keep readers from everything behind it, for good.
    kafka.log("orders-0", 6, &batches[..4]);
    let problems = kafka.problems();
    assert!(problems.iter().any(|problem| problem.contains("open transaction")), "{problems:?}");
}

#[test]
fn compacted_logs_keep_their_gaps() {
    let (kafka, target) = (Kafka::new(), empty());
    kafka.log("orders-0", 0, &[values(3, 0, &["v3"]), values(9, 2, &["v9"])]);
    kafka.log("orders-0", 20, &[values(20, 2, &["v20"])]);
    kafka.put("orders-0/leader-epoch-checkpoint", b"0\n2\n0 0\n2 7\n");
    kafka.put("orders-0/partition.metadata", b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw");
    assert!(kafka.problems().iter().any(|problem| problem.contains("offsets 0 to 2 are missing")));
    kafka.put("cleaner-offset-checkpoint", b"0\n1\norders 0 20\n");
    // What it is to be from now on says nothing of what it was.
    let deleting =
        Options { configs: [("cleanup.policy".to_owned(), "delete".to_owned())].into(), ..options() };
    assert!(kafka.import_with(&target, &deleting).unwrap().is_done);
    assert_clean(&target);
    let log = open(&target, 0, 3);
    let request = ReadRequest {
        from: Offset(4),
        max_bytes: 1 << 20,
        at_least_one: true,
        isolation: Isolation::ReadUncommitted,
        file_ranges: false,
    };
    assert_eq!(decode(&log.read_with(request).unwrap())[0], (9, "v9".to_owned()));
    // The epoch began where Kafka says, though its first records are gone.
    assert_eq!(epochs(&log.partition)[..3], [Some((0, 7)), Some((0, 7)), Some((2, 21))]);
    assert_eq!(log.append(&["next"]).unwrap().base_offset, Offset(21));
    log.close();
}

#[test]
fn checkpoints_without_a_byte_have_no_entries() {
    for name in [
        "cleaner-offset-checkpoint",
        "log-start-offset-checkpoint",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "orders-0/leader-epoch-checkpoint",
        "orders-1/leader-epoch-checkpoint",
    ] {
        let (kafka, target) = (Kafka::orders(), empty());
        kafka.put(name, b"");
        let report = kafka.import(&target);
        assert!(report.is_done && report.records == 7, "{name}: {:?}", report.problems);
        assert_clean(&target);
    }
}

#[test]
fn a_directory_without_partitions_is_no_log_directory() {
    // Empty; the directory above the log directory; one that looks like partitions and holds no log.
    let (nothing, above, system) = (Memory::new(), Memory::new(), Memory::new());
    above.create_dir(Path::new("logs")).unwrap();
    system.create_dir(Path::new("dhcp-3")).unwrap();
    let settings = system.open(Path::new("dhcp-3/settings"), OpenMode::CreateNew).unwrap();
    settings.write_all_at(&[IoSlice::new(b"x")], 0).unwrap();
    for volume in [nothing, above, system] {
        let problems = Kafka { volume }.problems();
        assert_eq!(problems, ["no partitions of Kafka here"]);
    }
    // A log directory whose Kafka has no topics; but one of several may have none.
    assert_eq!(Kafka::new().problems(), ["no partitions of Kafka here"]);
    let sources = [Kafka::new().sources(), Kafka::orders().sources()].concat();
    let plan = plan(&sources, None, &options(), &Progress::default()).unwrap();
    assert_eq!(plan.report().problems, []);
}

#[test]
fn a_cluster_id_that_is_not_carried_over_is_told() {
    let (kafka, target) = (Kafka::orders(), empty());
    let report = kafka.import(&target);
    assert!(report.is_done && report.cluster_id_left.is_none());
    assert!(kafka.import(&target).cluster_id_left.is_none(), "it is the same");
    let payments = Kafka::new();
    payments.put("meta.properties", b"version=1\ncluster.id=zzzzzzzzzzzzzzzzzzzzzz\nnode.id=1\n");
    payments.log("payments-0", 0, &[values(0, 0, &["v0"])]);
    let text = payments.import(&target).to_text(100).replace("\n  ", " ");
    let told = "Kafka's cluster id zzzzzzzzzzzzzzzzzzzzzz is not carried over: the data directory has \
                abcdefghijklmnopqrstuv already";
    assert!(text.contains(told), "{text}");
}

#[test]
fn what_cannot_be_carried_over_is_told_before_anything_is_written() {
    type Change = fn(&Kafka);
    let old_message = |kafka: &Kafka| {
        let mut bytes = values(6, 3, &["v6"]);
        bytes[16] = 1;
        kafka.log("orders-0", 6, &[bytes]);
    };
    let cases: [(&str, Change); 17] = [
        ("message format 1", old_message),
        ("damaged behind offset 3", |kafka| {
            let mut bytes = values(3, 0, &["v3"]);
            bytes[64] ^= 1;
            kafka.log("orders-0", 3, &[bytes, values(4, 3, &["v4", "v5"])]);
        }),
        ("damaged behind offset 6", |kafka| {
            let bytes = values(6, 3, &["v6"]);
            kafka.log("orders-0", 6, &[bytes[..66].to_vec()]);
        }),
        ("offsets 3 to 5 are missing", |kafka| kafka.remove("orders-0/00000000000000000003.log")),
        ("the batch at offset 3 reaches to 6, and the next segment begins at 6", |kafka| {
            kafka.log("orders-0", 3, &[values(3, 0, &["v3", "v4", "v5", "v6"])]);
        }),
        ("the batch at offset 2 does not belong into it", |kafka| {
            kafka.log("orders-0", 3, &[values(2, 0, &["v2"])]);
        }),
        ("leader epoch 0 at offset 6 comes behind 3", |kafka| {
            kafka.log("orders-0", 6, &[values(6, 0, &["v6"])]);
        }),
        ("it has leader epoch 2147483000, and those of kaas cannot go on", |kafka| {
            kafka.log("orders-0", 6, &[values(6, 2_147_483_000, &["v6"])]);
        }),
        ("it has leader epoch 2000000, and", |kafka| {
            kafka.put("orders-0/leader-epoch-checkpoint", b"0\n1\n2000000 7\n");
        }),
        ("has no leader epoch", |kafka| kafka.log("orders-0", 6, &[values(6, -1, &["v6"])])),
        ("partition 1 of \"orders\" is missing", |kafka| {
            remove_tree(&kafka.volume, Path::new("orders-1")).unwrap();
            kafka.log("orders-2", 0, &[]);
        }),
        ("its topic id is not that", |kafka| {
            kafka.put("orders-1/partition.metadata", b"version: 0\ntopic_id: BBECAwQFBgcICQoLDA0ODw");
        }),
        ("Kafka is running on it", |kafka| kafka.remove(".kafka_cleanshutdown")),
        ("cleaner was putting it into place", |kafka| {
            kafka.put("orders-0/00000000000000000000.log.swap", b"")
        }),
        ("not a file that can be imported", |kafka| kafka.put("orders-0/remote_log_snapshot", b"")),
        ("its version is 7, not 0", |kafka| kafka.put("log-start-offset-checkpoint", b"7\n0\n")),
        ("epoch 1 does not follow", |kafka| {
            kafka.put("orders-0/leader-epoch-checkpoint", b"0\n2\n3 0\n1 4\n");
        }),
    ];
    assert!(Kafka::orders().problems().is_empty());
    for (expected, change) in cases {
        let kafka = Kafka::orders();
        change(&kafka);
        let problems = kafka.problems();
        assert!(problems.iter().any(|problem| problem.contains(expected)), "{expected}: {problems:?}");
    }
}

#[test]
fn after_a_crash_of_kafka_the_tail_is_cut_as_it_would_cut_it() {
    let (kafka, target) = (Kafka::orders(), empty());
    kafka.remove(".kafka_cleanshutdown");
    let torn = values(4, 3, &["v4", "v5"]);
    kafka.log("orders-0", 3, &[values(3, 0, &["v3"]), torn[..70].to_vec()]);
    kafka.put("recovery-point-offset-checkpoint", b"0\n1\norders 0 3\n");
    let after_crash = Options { after_crash: true, ..options() };
    let report = kafka.import_with(&target, &after_crash).unwrap();
    let cut = report.topics[0].partitions[0].cut.as_ref().unwrap();
    assert_eq!(cut.offset, 4);
    assert!(cut.bytes > 70, "the segment behind it goes, too");
    let log = open(&target, 0, 4);
    assert_eq!(log.values(), ["v0", "v1", "v2", "v3"]);
    assert_eq!(log.append(&["next"]).unwrap().base_offset, Offset(4));
    log.close();
    assert_clean(&target);
    // A small file that was being written is in nobody's way.
    kafka.put("orders-0/leader-epoch-checkpoint.tmp", b"0\n1\n0");
    assert!(kafka.import_with(&empty(), &after_crash).unwrap().is_done);
    // What Kafka had flushed cannot be torn: that is damage.
    kafka.put("recovery-point-offset-checkpoint", b"0\n1\norders 0 6\n");
    let report = kafka.import_with(&empty(), &after_crash).unwrap();
    assert!(report.problems[0].problem.contains("damaged behind offset 4"), "{:?}", report.problems);
}

#[test]
fn a_directory_that_is_something_else_or_in_use_is_left_alone() {
    let kafka = Kafka::orders();
    let photos = Memory::new();
    photos.create_dir(Path::new("photos")).unwrap();
    let photos: Arc<dyn Substrate> = Arc::new(photos);
    let refused = kafka.import_with(&photos, &options());
    assert!(matches!(refused, Err(ImportError::NotADataDirectory { .. })), "{refused:?}");
    let target = empty();
    kafka.import(&target);
    // Another topic of the name.
    kafka.put("orders-0/partition.metadata", b"version: 0\ntopic_id: BBECAwQFBgcICQoLDA0ODw");
    kafka.put("orders-1/partition.metadata", b"version: 0\ntopic_id: BBECAwQFBgcICQoLDA0ODw");
    let report = kafka.import(&target);
    assert!(report.problems[0].problem.contains("another topic \"orders\""), "{:?}", report.problems);
    let _broker = target.try_lock(Path::new("cluster/lock")).unwrap().unwrap();
    let payments = Kafka::new();
    payments.log("payments-0", 0, &[values(0, 0, &["v0"])]);
    let refused = payments.import_with(&target, &options());
    assert!(matches!(refused, Err(ImportError::Locked { .. })), "{refused:?}");
}

#[test]
fn configs_that_kaas_would_refuse_are_told_before_anything_is_written() {
    let kafka = Kafka::orders();
    for (name, value, problem) in [
        (
            "retention.ms",
            "soon",
            "Invalid value soon for configuration retention.ms: Not a number of type LONG",
        ),
        ("segment.bytes", "3", "Invalid value 3 for configuration segment.bytes: Value must be at least"),
        ("cleanup.policy", "keep", "configuration cleanup.policy: String must be one of: compact, delete"),
        ("min.compaction.lag.ms", "9223372036854775807", ""),
    ] {
        let target: Arc<dyn Substrate> = Arc::new(Memory::new());
        let mut options = options();
        options.configs.insert(name.to_owned(), value.to_owned());
        if name == "min.compaction.lag.ms" {
            options.configs.insert("max.compaction.lag.ms".to_owned(), "5".to_owned());
        }
        let report = kafka.import_with(&target, &options).unwrap();
        let said = &report.problems[0];
        assert!(said.problem.contains(problem) && said.path == Path::new("orders"), "{said:?}");
        assert!(!report.is_done && target.list(Path::new("")).unwrap().is_empty());
    }
}

#[test]
fn a_topic_without_an_id_gets_one_that_stays() {
    let kafka = Kafka::orders();
    let known = kafka.import(&empty());
    assert_eq!(
        (known.topics[0].topic_id.as_str(), known.topics[0].has_new_topic_id),
        ("AAECAwQFBgcICQoLDA0ODw", false)
    );
    for partition in 0..2 {
        kafka.remove(&format!("orders-{partition}/partition.metadata"));
    }
    let target = empty();
    let report = kafka.import(&target);
    assert!(report.topics[0].has_new_topic_id);
    assert!(report.to_text(100).contains(&report.topics[0].topic_id), "{}", report.to_text(100));
    let again = kafka.import(&target);
    assert_eq!(again.already_there, ["orders"]);
    // Another cluster's topic of that name is another one.
    kafka.put("meta.properties", b"version=1\ncluster.id=zzzzzzzzzzzzzzzzzzzzzz\nnode.id=1\n");
    assert_ne!(kafka.import(&empty()).topics[0].topic_id, report.topics[0].topic_id);
}

#[test]
fn what_does_not_fit_is_told_before_anything_is_written() {
    let kafka = Kafka::orders();
    let space = |available_bytes| Space { total_bytes: None, available_bytes };
    for (available, problems) in [(None, 0), (Some(1 << 20), 0), (Some(100), 1)] {
        let (target, progress) = (empty(), Progress::default());
        let mut planned = plan(&kafka.sources(), Some(&*target), &options(), &progress).unwrap();
        planned.check_room(Path::new("/data"), &space(available));
        let report = planned.carry_out(&target, &progress).unwrap();
        assert_eq!((report.problems.len(), report.is_done), (problems, problems == 0));
        assert_eq!(target.list(Path::new("")).unwrap().is_empty(), problems > 0);
        if let Some(problem) = report.problems.first() {
            assert!(problem.problem.ends_with(" bytes are to be written, and 100 are free"), "{problem:?}");
        }
    }
}

#[test]
fn an_import_that_is_interrupted_leaves_nothing_half_done() {
    let kafka = Kafka::orders();
    let (target, progress) = (empty(), Progress::default());
    let planned = plan(&kafka.sources(), Some(&*target), &options(), &progress).unwrap();
    progress.cancelled.store(true, Ordering::Relaxed);
    assert!(plan(&kafka.sources(), Some(&*target), &options(), &progress).is_err());
    assert!(planned.carry_out(&target, &progress).is_err());
    assert_eq!(target.list(Path::new("topics")).unwrap(), []);
    kafka.import(&target);
    assert_clean(&target);
}

#[test]
fn an_import_that_dies_at_any_step_leaves_whole_topics_only_and_is_begun_again() {
    let kafka = Kafka::orders();
    kafka.log("payments-0", 0, &[values(0, 0, &["p0"])]);
    kafka.put("payments-0/partition.metadata", b"version: 0\ntopic_id: BBECAwQFBgcICQoLDA0ODw");
    let mut steps = 0;
    loop {
        let mut crashed = false;
        for verdict in [
            Verdict::Crash,
            Verdict::CrashShort { bytes: 40 },
            Verdict::FailAfter(ErrorClass::Io),
            Verdict::Fail(ErrorClass::NoSpace),
        ] {
            let target = empty();
            let rules = Rules::new([Rule::nth_change(steps + 1, verdict)]);
            let faulty: Arc<dyn Substrate> =
                Arc::new(Faulty::new(Arc::clone(&target), Arc::clone(&rules) as _));
            let ended = kafka.import_with(&faulty, &options());
            crashed |= rules.hits() > 0;
            if matches!(verdict, Verdict::Fail(_)) {
                // What was being made is removed: a full volume lets it.
                let left = target.list(Path::new("topics")).unwrap_or_default();
                let building = left.iter().any(|entry| entry.name.to_string_lossy().starts_with('~'));
                assert!(!building, "{steps}: {left:?}");
                assert!(ended.is_err() || left.len() == 2, "{steps}: {ended:?}");
            }
            let report = kafka.import(&target);
            assert!(report.is_done, "{verdict:?} at {steps}: {:?}", report.problems);
            assert_eq!(report.topics.len() + report.already_there.len(), 2);
            assert_clean(&target);
            let left = target.list(Path::new("topics")).unwrap();
            assert_eq!(left.len(), 2, "{verdict:?} at {steps}: {left:?}");
            let log = open(&target, 0, 4);
            assert_eq!(log.values().len(), 7, "{verdict:?} at {steps}");
            log.close();
        }
        if !crashed {
            break;
        }
        steps += 1;
    }
    assert!(steps > 40, "only {steps} steps");
}
