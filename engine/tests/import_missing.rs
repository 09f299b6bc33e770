//! Importing log directories of which something is missing: what Kafka's small files prove is refused, and what they do not
//! is imported as Kafka would go on with it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, clippy::cast_possible_truncation)]

#[path = "support/kafka.rs"]
mod kafka;
mod support;

use std::path::Path;
use std::sync::Arc;

use kaas_engine::import::{Options, Progress, Source, plan};
use kaas_engine::types::Offset;
use kaas_fault_injection::faulty::{Faulty, Point, Rule, Rules, Verdict};
use kaas_substrate::{ErrorClass, remove_tree};

use kafka::{ID, Kafka, assert_clean, compact, empty, epochs, metadata_record, open, options, values};

const FIRST: &str = "orders-0/00000000000000000000.log";
const LAST: &str = "orders-0/00000000000000000006.log";

/// What the topic is to be is said, and nothing of what it was.
fn deleting() -> Options {
    Options { configs: [("cleanup.policy".to_owned(), "delete".to_owned())].into(), ..options() }
}

fn after_crash() -> Options {
    Options { after_crash: true, ..options() }
}

/// Imports, and looks at partition 0: where the log begins and ends, and its values.
fn imported(kafka: &Kafka, options: &Options) -> (i64, i64, Vec<String>) {
    let target = empty();
    let report = kafka.import_with(&target, options).unwrap();
    assert!(report.is_done, "{:?}", report.problems);
    assert_clean(&target);
    let log = open(&target, 0, 4);
    let values = log.values();
    log.close();
    assert_clean(&target);
    let partition = &report.topics[0].partitions[0];
    (partition.log_start_offset, partition.log_end_offset, values)
}

fn only_problem(kafka: &Kafka, options: &Options) -> String {
    let problems = kafka.problems_with(options);
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems.into_iter().next().unwrap()
}

#[test]
fn a_missing_end_is_refused_if_the_recovery_point_proves_it() {
    let kafka = Kafka::orders();
    kafka.ends(&["orders 0 7", "orders 1 0"]);
    assert_eq!(imported(&kafka, &options()).1, 7);
    // The segment is empty, or gone.
    let told = "orders-0: offset 6 is missing: the log ended at 7, and its last segment, ";
    kafka.log("orders-0", 6, &[]);
    assert_eq!(only_problem(&kafka, &options()), format!("{told}00000000000000000006.log, ends at 6"));
    kafka.remove(LAST);
    assert_eq!(only_problem(&kafka, &options()), format!("{told}00000000000000000003.log, ends at 6"));
    // What was flushed is on the disk after a crash, too.
    kafka.remove(".kafka_cleanshutdown");
    assert!(
        only_problem(&kafka, &after_crash()).contains("offset 6 is missing: the log was flushed up to 7")
    );
    // A checkpoint may lag, and be missing: then nothing is proven.
    for ends in [&["orders 0 4"][..], &["orders 0 6"], &[]] {
        kafka.ends(ends);
        assert_eq!(imported(&kafka, &after_crash()).1, 6);
    }
    kafka.put(".kafka_cleanshutdown", b"");
    assert_eq!(imported(&kafka, &options()).1, 6);
}

#[test]
fn a_missing_end_is_refused_if_a_producer_snapshot_proves_it() {
    let kafka = Kafka::orders();
    kafka.put("orders-0/00000000000000000009.snapshot", b"");
    assert_eq!(
        only_problem(&kafka, &options()),
        "offsets 7 to 8 are missing: the log had reached 9, and ends at 7"
    );
    // A crash may lose records that a snapshot knew of.
    kafka.remove(".kafka_cleanshutdown");
    assert_eq!(imported(&kafka, &after_crash()).1, 7);
}

#[test]
fn a_missing_beginning_is_refused_if_the_log_start_proves_it() {
    let kafka = Kafka::orders();
    kafka.starts(&["orders 0 1"]);
    assert_eq!(imported(&kafka, &options()).0, 1);
    kafka.remove(FIRST);
    let told = "orders-0: offsets 1 to 2 are missing: the log begins at 1, and its first segment is \
                00000000000000000003.log";
    assert_eq!(only_problem(&kafka, &options()), told);
    // Of a segment that lies below the start nobody misses anything.
    kafka.starts(&["orders 0 3"]);
    assert_eq!(imported(&kafka, &options()), (3, 7, ["v3", "v4", "v5", "v6"].map(str::to_owned).to_vec()));
    // Starts are checkpointed once a minute: behind that, before a crash, retention may have gone on.
    kafka.starts(&["orders 0 1"]);
    kafka.remove(".kafka_cleanshutdown");
    assert_eq!(imported(&kafka, &after_crash()).0, 3);
}

#[test]
fn a_beginning_that_may_be_missing_is_told() {
    let kafka = Kafka::orders();
    let doubts = |kafka: &Kafka| {
        let report = kafka.import(&empty());
        assert!(report.is_done);
        report.doubts.into_iter().map(|doubt| doubt.doubt).collect::<Vec<_>>()
    };
    assert!(doubts(&kafka).is_empty());
    kafka.remove(FIRST);
    let told = doubts(&kafka);
    assert!(told[0].starts_with("leader epoch 0 begins at offset 0, the first segment at 3"), "{told:?}");
    // So it is after retention.
    kafka.put("orders-0/leader-epoch-checkpoint", b"0\n2\n0 3\n3 4\n");
    assert!(doubts(&kafka).is_empty());
}

#[test]
fn an_index_without_its_segment_proves_one() {
    let kafka = Kafka::orders();
    for name in ["00000000000000000000.index", "00000000000000000000.timeindex", "00000000000000000003.index"]
    {
        kafka.put(&format!("orders-0/{name}"), b"");
    }
    assert_eq!(imported(&kafka, &options()).0, 0);
    kafka.remove(FIRST);
    assert_eq!(
        only_problem(&kafka, &options()),
        "the segment is missing: its 00000000000000000000.index is there"
    );
    // Kafka was removing it when it crashed.
    kafka.remove(".kafka_cleanshutdown");
    assert_eq!(imported(&kafka, &after_crash()).0, 3);
}

#[test]
fn a_directory_without_segments_is_an_empty_log_unless_a_checkpoint_says_otherwise() {
    let kafka = Kafka::orders();
    for base in [0, 3, 6] {
        kafka.remove(&format!("orders-0/{base:020}.log"));
    }
    assert_eq!(imported(&kafka, &options()), (0, 0, vec![]));
    kafka.ends(&["orders 0 7"]);
    let told = "orders-0: offsets 0 to 6 are missing: the log ended at 7, and there is no segment";
    assert_eq!(only_problem(&kafka, &options()), told);
    // All of its records had been deleted: Kafka begins a new segment at the log start.
    kafka.starts(&["orders 0 7"]);
    assert_eq!(imported(&kafka, &options()), (7, 7, vec![]));
}

#[test]
fn a_log_that_ends_before_its_start_begins_anew_there() {
    let kafka = Kafka::orders();
    kafka.starts(&["orders 0 10"]);
    assert_eq!(imported(&kafka, &options()), (10, 10, vec![]));
    let target = empty();
    let report = kafka.import(&target);
    assert_eq!(report.topics[0].partitions[0].segments, 0);
    let log = open(&target, 0, 4);
    assert_eq!(log.append(&["next"]).unwrap().base_offset, Offset(10));
    // The producers went with the records.
    let again = support::producer_batch(4321, 0, 0, &["v6"]);
    assert_eq!(log.append_batch(&again).unwrap().base_offset, Offset(11));
    log.close();
    kafka.ends(&["orders 0 12"]);
    assert!(only_problem(&kafka, &options()).contains("offsets 10 to 11 are missing"));
}

#[test]
fn a_gap_between_segments_is_refused_unless_the_cleaner_may_have_left_it() {
    // The batch behind the gap tells of it, or the base of an empty segment.
    for last in [&[values(6, 3, &["v6"])][..], &[]] {
        let kafka = Kafka::orders();
        kafka.log("orders-0", 6, last);
        kafka.remove("orders-0/00000000000000000003.log");
        assert_eq!(only_problem(&kafka, &options()), "offsets 3 to 5 are missing before it");
        kafka.checkpoint("cleaner-offset", &["orders 0 6"]);
        let target = empty();
        let report = kafka.import_with(&target, &deleting()).unwrap();
        let end = 6 + last.len() as i64;
        assert_eq!(report.topics[0].partitions[0].log_end_offset, end);
        let log = open(&target, 0, 4);
        assert_eq!(log.append(&["next"]).unwrap().base_offset, Offset(end));
        assert_eq!(log.values().last().unwrap(), "next");
        log.close();
        assert_clean(&target);
    }
    // A log whose first batch lies behind the base of its segment.
    let kafka = Kafka::orders();
    kafka.log("orders-0", 0, &[values(2, 0, &["v2"])]);
    assert_eq!(only_problem(&kafka, &options()), "offsets 0 to 1 are missing");
    kafka.checkpoint("cleaner-offset", &["orders 0 6"]);
    assert_eq!(imported(&kafka, &deleting()).2, ["v2", "v3", "v4", "v5", "v6"]);
    // Who knows that it was compacted once may say so, of this topic alone. What it is to be from now on says nothing.
    kafka.checkpoint("cleaner-offset", &[]);
    let gaps = Options { gaps: vec!["orders".into()], ..options() };
    assert_eq!(imported(&kafka, &gaps).2, ["v2", "v3", "v4", "v5", "v6"]);
    assert!(
        kafka.problems_with(&Options { gaps: vec!["order".into()], ..options() })[0]
            .contains("no topic \"order\"")
    );
}

#[test]
fn a_segment_below_the_log_start_is_not_looked_at() {
    // Kafka's log ends where its last segment does: it serves nothing of what the first has behind that.
    let kafka = Kafka::orders();
    for base in [3, 6] {
        kafka.remove(&format!("orders-0/{base:020}.log"));
    }
    kafka.log("orders-0", 0, &[values(0, 0, &["v0", "v1", "v2", "v3"])]);
    kafka.log("orders-0", 1, &[]);
    kafka.starts(&["orders 0 1"]);
    assert_eq!(imported(&kafka, &options()), (1, 1, vec![]));
    kafka.ends(&["orders 0 4"]);
    assert!(only_problem(&kafka, &options()).contains("offsets 1 to 3 are missing"));
}

#[test]
fn a_directory_that_has_been_taken_away_is_missed() {
    let kafka = Kafka::orders();
    kafka.ends(&["orders 0 7", "orders 1 0", "payments 0 5"]);
    assert_eq!(only_problem(&kafka, &options()), "there is no directory payments-0, whose log ended at 5");
    assert!(kafka.problems_with(&Options { topics: vec!["orders".into()], ..options() }).is_empty());
    // A partition of a topic of which others are there is told of once.
    kafka.ends(&["orders 0 7", "orders 1 0", "orders 2 5"]);
    assert_eq!(only_problem(&kafka, &options()), "there is no directory orders-2, whose log ended at 5");
    kafka.log("orders-3", 0, &[]);
    assert_eq!(only_problem(&kafka, &options()), "there is no directory orders-2, whose log ended at 5");
    kafka.ends(&["orders 0 7", "orders 1 0"]);
    assert_eq!(
        only_problem(&kafka, &options()),
        "partition 2 of \"orders\" is missing: the next one here is 3"
    );
    remove_tree(&kafka.volume, Path::new("orders-3")).unwrap();
    kafka.ends(&["orders 0 7", "orders 1 0", "payments 0 5"]);
    // It was moved to another log directory.
    let other = Kafka::new();
    other.log("payments-0", 0, &[values(0, 0, &["p0"])]);
    let sources = [kafka.sources(), other.sources()].concat();
    let planned = plan(&sources, None, &options(), &Progress::default()).unwrap();
    assert_eq!(planned.report().problems, []);
    // Before a crash it may have been deleted.
    kafka.remove(".kafka_cleanshutdown");
    assert!(kafka.problems_with(&after_crash()).is_empty());
}

#[test]
fn kafkas_metadata_says_how_many_partitions_there_are() {
    let kafka = Kafka::orders();
    let topic = metadata_record(2, &[&compact("orders"), &ID]);
    let partition = |n: u8| metadata_record(3, &[&[0, 0, 0, n], &ID]);
    let log = "00000000000000000000.log";
    let others = ["payments", "audit", "__consumer_offsets"];
    let others = others.map(|name| metadata_record(2, &[&compact(name), &[name.len() as u8; 16]]));
    kafka.metadata(log, 0, &[&[topic.clone(), partition(0), partition(1)], &others[..]].concat());
    let report = kafka.import(&empty());
    assert!(report.is_done, "{:?}", report.problems);
    // Nothing of them is given, which may be right.
    assert_eq!(report.not_here, ["audit", "payments"]);
    assert!(report.to_text(100).contains("though Kafka has them: audit, payments\n"));
    kafka.metadata(log, 0, &[topic.clone(), partition(0), partition(3), partition(1)]);
    let told = "partitions 2 to 3 of \"orders\" are missing: Kafka's metadata has 4 in all";
    assert_eq!(only_problem(&kafka, &options()), told);
    kafka.metadata(log, 0, &[topic.clone(), partition(0), partition(1), metadata_record(9, &[&ID])]);
    let told = "Kafka's metadata has no topic \"orders\" with its id: it was deleted";
    assert_eq!(only_problem(&kafka, &options()), told);
    // Of two replicas the longer one counts.
    let newer = Kafka::new();
    newer.metadata(log, 0, &[topic.clone(), partition(0), partition(1), partition(1), partition(1)]);
    for sources in [[kafka.sources(), newer.sources()].concat(), [newer.sources(), kafka.sources()].concat()]
    {
        let planned = plan(&sources, None, &options(), &Progress::default()).unwrap();
        assert_eq!(planned.report().problems, []);
    }
}

#[test]
fn segments_in_tiered_storage_are_told_from_lost_ones() {
    let kafka = Kafka::orders();
    let tiered =
        metadata_record(4, &[&[2], &compact("orders"), &compact("remote.storage.enable"), &compact("true")]);
    let records =
        [metadata_record(2, &[&compact("orders"), &ID]), metadata_record(3, &[&[0, 0, 0, 1], &ID]), tiered];
    kafka.metadata("00000000000000000000.log", 0, &records);
    // All of it is here still.
    kafka.starts(&["orders 0 0"]);
    let report = kafka.import(&empty());
    assert!(report.is_done, "{:?}", report.problems);
    assert_eq!(report.topics[0].configs_not_carried[0].name, "remote.storage.enable");
    kafka.remove(FIRST);
    assert_eq!(only_problem(&kafka, &options()), "orders-0: offsets 0 to 2 are in tiered storage");
    kafka.remove(".kafka_cleanshutdown");
    assert_eq!(only_problem(&kafka, &after_crash()), "orders-0: offsets 0 to 2 are in tiered storage");
}

#[test]
fn a_metadata_log_that_is_not_whole_is_refused() {
    let kafka = Kafka::orders();
    let topic = metadata_record(2, &[&compact("orders"), &ID]);
    let partitions = metadata_record(3, &[&[0, 0, 0, 1], &ID]);
    let log = "00000000000000000000.log";
    let batch = kafka.metadata(log, 0, &[topic.clone(), partitions.clone()]);
    let torn = &batch[..batch.len() - 1];
    let path = format!("__cluster_metadata-0/{log}");
    // At its end a crash may leave it torn, but not a clean stop; and not before its last segment.
    kafka.put(&path, &[&batch, torn].concat());
    assert!(only_problem(&kafka, &options()).contains("the metadata log cannot be read: at byte"));
    kafka.remove(".kafka_cleanshutdown");
    assert!(kafka.problems_with(&after_crash()).is_empty());
    kafka.metadata("00000000000000000002.log", 2, std::slice::from_ref(&topic));
    assert!(only_problem(&kafka, &after_crash()).contains("the metadata log cannot be read: at byte"));
    // Its beginning is in a snapshot, or it is missing.
    kafka.put(".kafka_cleanshutdown", b"");
    kafka.remove(&path);
    assert!(
        only_problem(&kafka, &options())
            .contains("the metadata log cannot be read: offsets 0 to 1 are missing")
    );
    let snapshot = "00000000000000000002-0000000001.checkpoint";
    kafka.metadata_snapshot(snapshot, &[topic.clone(), partitions.clone()]);
    assert!(kafka.problems().is_empty());
    // One that was cut off between two batches, or all of it.
    kafka.metadata(snapshot, 0, &[topic, partitions]);
    let told = "the metadata log cannot be read: the snapshot has no end";
    assert_eq!(only_problem(&kafka, &options()), told);
    kafka.put(&format!("__cluster_metadata-0/{snapshot}"), b"");
    assert_eq!(only_problem(&kafka, &options()), told);
    // A log that lacks its end.
    kafka.remove(&format!("__cluster_metadata-0/{snapshot}"));
    kafka.remove("__cluster_metadata-0/00000000000000000002.log");
    kafka.put(&path, &batch);
    kafka.put("__cluster_metadata-0/00000000000000000002.snapshot", b"");
    assert!(kafka.problems().is_empty());
    kafka.put("__cluster_metadata-0/00000000000000000003.snapshot", b"");
    let told = "the metadata log cannot be read: offset 2 is missing: the log had reached 3";
    assert_eq!(only_problem(&kafka, &options()), told);
    kafka.remove(".kafka_cleanshutdown");
    assert!(kafka.problems_with(&after_crash()).is_empty());
}

#[test]
fn partitions_of_committed_offsets_that_are_missing_are_told() {
    let kafka = Kafka::orders();
    let ends = ["orders 0 7", "orders 1 0"];
    kafka.ends(&[&ends[..], &["__consumer_offsets 3 9"]].concat());
    let without = Options { without_groups: true, ..options() };
    let told = "there is no directory __consumer_offsets-3, whose log ended at 9";
    assert_eq!(only_problem(&kafka, &options()), told);
    assert!(kafka.problems_with(&without).is_empty());
    // It was moved to another log directory.
    let other = Kafka::new();
    other.log("__consumer_offsets-3", 0, &[]);
    let sources = [kafka.sources(), other.sources()].concat();
    let planned = plan(&sources, None, &options(), &Progress::default()).unwrap();
    assert_eq!(planned.report().problems, []);
    // Of one that never was in these directories only the metadata knows.
    kafka.ends(&ends);
    kafka.log("__consumer_offsets-0", 0, &[]);
    let topic = |name: &str, id: &[u8; 16]| metadata_record(2, &[&compact(name), id]);
    let partition = |n: u8, id: &[u8; 16]| metadata_record(3, &[&[0, 0, 0, n], id]);
    let offsets = [7; 16];
    let records = [
        topic("orders", &ID),
        partition(0, &ID),
        partition(1, &ID),
        topic("__consumer_offsets", &offsets),
        partition(0, &offsets),
        partition(1, &offsets),
    ];
    kafka.metadata("00000000000000000000.log", 0, &records);
    assert_eq!(only_problem(&kafka, &options()), "1 of the 2 partitions of __consumer_offsets are not here");
    assert!(kafka.problems_with(&without).is_empty());
    kafka.log("__consumer_offsets-1", 0, &[]);
    assert!(kafka.problems().is_empty());
}

#[test]
fn committed_offsets_that_are_not_whole_are_refused() {
    let kafka = Kafka::orders();
    let log = "__consumer_offsets-3/00000000000000000000.log";
    let batch = values(0, 0, &["x"]);
    kafka.put(log, &[&batch[..], &batch[..30]].concat());
    let torn = "committed offsets cannot be read: at byte";
    assert!(only_problem(&kafka, &options()).contains(torn));
    assert!(kafka.problems_with(&Options { without_groups: true, ..options() }).is_empty());
    kafka.remove(".kafka_cleanshutdown");
    assert!(kafka.problems_with(&after_crash()).is_empty());
    kafka.ends(&["__consumer_offsets 3 2"]);
    assert!(only_problem(&kafka, &after_crash()).contains(torn));
    kafka.put(".kafka_cleanshutdown", b"");
    kafka.put(log, &batch);
    let told = "committed offsets cannot be read: offset 1 is missing: the log ended at 2";
    assert_eq!(only_problem(&kafka, &options()), told);
    kafka.ends(&["__consumer_offsets 3 1"]);
    assert!(kafka.problems().is_empty());
}

#[test]
fn leader_epochs_begin_where_kafka_says_also_between_segments_and_without_records() {
    let kafka = Kafka::new();
    kafka.checkpoint("cleaner-offset", &["orders 0 20"]);
    kafka.log("orders-0", 0, &[values(0, 0, &["v0"])]);
    // Epoch 2 began at 7, before its first record that is left, and epoch 1 has none left.
    kafka.log("orders-0", 5, &[values(9, 2, &["v9"])]);
    kafka.put("orders-0/leader-epoch-checkpoint", b"0\n3\n0 0\n1 6\n2 7\n");
    kafka.put("orders-0/partition.metadata", b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw");
    let target = empty();
    assert!(kafka.import_with(&target, &deleting()).unwrap().is_done);
    assert_clean(&target);
    let log = open(&target, 0, 3);
    assert_eq!(epochs(&log.partition)[..3], [Some((0, 6)), Some((1, 7)), Some((2, 10))]);
    log.close();
    // Epoch 1 began before the segment, and was over in it.
    kafka.put("orders-0/leader-epoch-checkpoint", b"0\n3\n0 0\n1 4\n2 7\n");
    let target = empty();
    assert!(kafka.import_with(&target, &deleting()).unwrap().is_done);
    assert_clean(&target);
    let log = open(&target, 0, 3);
    assert_eq!(epochs(&log.partition)[..3], [Some((0, 5)), Some((1, 7)), Some((2, 10))]);
    log.close();
    // Without the file, as far as the batches tell.
    kafka.remove("orders-0/leader-epoch-checkpoint");
    let target = empty();
    assert!(kafka.import_with(&target, &deleting()).unwrap().is_done);
    assert_clean(&target);
    let log = open(&target, 0, 3);
    assert_eq!(epochs(&log.partition)[..3], [Some((0, 9)), Some((0, 9)), Some((2, 10))]);
    log.close();
}

#[test]
fn two_clusters_are_not_mixed() {
    let (orders, payments) = (Kafka::orders(), Kafka::new());
    payments.log("payments-0", 0, &[values(0, 0, &["p0"])]);
    let sources = [orders.sources(), payments.sources()].concat();
    let problems = || {
        let planned = plan(&sources, None, &options(), &Progress::default()).unwrap();
        planned.report().problems.iter().map(|problem| problem.problem.clone()).collect::<Vec<_>>()
    };
    assert!(problems().is_empty());
    payments.put("meta.properties", b"version=1\ncluster.id=zzzzzzzzzzzzzzzzzzzzzz\nnode.id=1\n");
    let told = "its cluster id is zzzzzzzzzzzzzzzzzzzzzz, and abcdefghijklmnopqrstuv in ";
    assert!(problems()[0].starts_with(told), "{:?}", problems());
}

#[test]
fn what_cannot_be_read_is_a_problem_and_no_error() {
    let kafka = Kafka::orders();
    kafka.put("orders-0/00000000000000000007.snapshot", b"");
    kafka.log("__consumer_offsets-0", 0, &[]);
    let records = [metadata_record(2, &[&compact("orders"), &ID]), metadata_record(3, &[&[0, 0, 0, 1], &ID])];
    kafka.metadata("00000000000000000000.log", 0, &records);
    let mut problems = 0;
    for point in [Point::List, Point::Open, Point::Read, Point::Length] {
        for nth in 1.. {
            let rules = Rules::new([Rule::nth(point, nth, Verdict::Fail(ErrorClass::Io))]);
            let volume = Faulty::new(Arc::new(kafka.volume.clone()), Arc::clone(&rules) as _);
            let sources = [Source { volume: Arc::new(volume), only: None }];
            let planned = plan(&sources, None, &options(), &Progress::default());
            if rules.hits() == 0 {
                break;
            }
            if (point, nth) == (Point::List, 1) {
                // A log directory that cannot be listed at all is none.
                assert!(planned.is_err(), "{planned:?}");
                continue;
            }
            let planned = planned.unwrap();
            let report = planned.report();
            // What only tells how far it is may fail.
            assert!(!report.problems.is_empty() || report.records == 7, "{point:?} {nth}: {report:?}");
            problems += report.problems.len();
            for problem in &report.problems {
                assert!(problem.problem.contains("fails: "), "{point:?} {nth}: {problem:?}");
            }
        }
    }
    assert!(problems > 25, "only {problems} problems");
}
