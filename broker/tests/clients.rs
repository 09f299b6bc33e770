//! Kafka's own clients and tools against a real broker process: each test starts one and runs one program of
//! `tests/clients/` against it, which compares everything it reads with what it wrote.
//!
//! The programs need their clients: `./test` (or `broker/tests/clients/install`) installs them. A client that is not there
//! fails its tests, it never skips them. `./test --quick` leaves this module out by its name.
//!
//! `KAAS_TEST_BOOTSTRAP=HOST:PORT cargo test -p kaas-broker --test clients` runs all of them against another broker, such as the
//! Apache Kafka of `benches/kafka/kafka_broker.py`: what fails there is wrong in the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

mod real_clients {
    use std::{
        path::{Path, PathBuf},
        process::Command,
        sync::atomic::{AtomicU32, Ordering},
    };

    use crate::support::Broker;

    /// Programs bound their own run; this is for one that hangs all the same.
    const LIMIT_SECONDS: &str = "480";

    fn programs() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients")
    }

    /// A topic and group prefix that no other test of this or another run has.
    fn prefix() -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("t{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Runs one program to its end; fails with all that it printed. Returns its standard output.
    fn run(client: &str, scenario: &str, bootstrap: &str, prefix: &str, more: &[&str]) -> String {
        // `timeout` puts the program and what it starts into one process group and signals all of it.
        let output = Command::new("timeout")
            .args(["--kill-after=5", LIMIT_SECONDS])
            .arg(programs().join("run"))
            .args([client, scenario, "--bootstrap", bootstrap, "--prefix", prefix])
            .args(more)
            .output()
            .expect("timeout runs");
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{client} {scenario} ended with {}\n{stdout}\n{stderr}",
            output.status
        );
        stdout
    }

    fn check(client: &str, scenario: &str) {
        let broker = Broker::start();
        let output = run(client, scenario, broker.bootstrap(), &prefix(), &[]);
        assert!(output.contains("ok"), "{client} {scenario} did not say that it passed: {output}");
    }

    macro_rules! programs {
        ($($test:ident: $client:literal $scenario:literal;)*) => {
            $(#[test] fn $test() { check($client, $scenario); })*
        };
    }

    programs! {
        kcat_basic: "kcat" "basic";
        kcat_group: "kcat" "group";
        confluent_kafka_basic: "confluent" "basic";
        confluent_kafka_group: "confluent" "group";
        kafka_python_basic: "kafka-python" "basic";
        kafka_python_group: "kafka-python" "group";
        aiokafka_basic: "aiokafka" "basic";
        aiokafka_group: "aiokafka" "group";
        kafkajs_basic: "kafkajs" "basic";
        kafkajs_group: "kafkajs" "group";
        franz_go_basic: "franz-go" "basic";
        franz_go_group: "franz-go" "group";
        kafka_4_client_basic: "kafka-4" "basic";
        kafka_4_client_group: "kafka-4" "group";
        kafka_4_tools: "kafka-4" "tools";
        kafka_4_group_tools: "kafka-4" "group-tools";
        kafka_4_performance_tools: "kafka-4" "perf";
        kafka_3_7_client_basic: "kafka-3.7" "basic";
        kafka_3_7_client_group: "kafka-3.7" "group";
        kafka_3_7_tools: "kafka-3.7" "tools";
        kafka_3_7_group_tools: "kafka-3.7" "group-tools";
        kafka_3_7_performance_tools: "kafka-3.7" "perf";
    }

    /// The base offset in a segment's name, `<epoch>-<base offset>.log`, or with a generation behind it.
    fn base_offset(log: &Path) -> u64 {
        let stem = log.file_stem().unwrap().to_str().unwrap();
        stem.split('-').nth(1).unwrap().parse().unwrap()
    }

    /// Clients fill a compacted topic and wait until it is compacted; then Kafka's own kafka-dump-log reads what is left.
    #[test]
    fn compacted_topics() {
        let mut broker = Broker::start_with(&["--set", "log.cleaner.backoff.ms=100"]);
        assert!(broker.is_own(), "this test reads the broker's files");
        let prefix = prefix();
        for client in ["confluent", "kafka-4"] {
            let output = run(client, "compaction", broker.bootstrap(), &prefix, &[]);
            assert!(output.contains("ok"), "{client} did not say that it passed: {output}");
        }
        assert!(broker.stop().success(), "the broker's clean stop");
        let mut logs = Vec::new();
        logs_below(broker.data_dir(), &mut logs);
        let rewritten = |log: &PathBuf| log.file_stem().unwrap().to_str().unwrap().split('-').count() == 3;
        logs.retain(|log| log.to_str().unwrap().contains(&prefix) && rewritten(log));
        assert!(logs.len() >= 2, "rewritten segments: {logs:?}");
        let (mut index_entries, mut time_entries) = (0, 0);
        for log in &logs {
            let base = base_offset(log).to_string();
            let (index, time) = (log.with_extension("index"), log.with_extension("timeindex"));
            let mut more = vec!["--log", log.to_str().unwrap(), "--base-offset", &base, "--gaps"];
            // Where too few batches are left for entries, there are no files.
            let has_indexes = index.exists() && time.exists();
            if has_indexes {
                more.extend(["--index", index.to_str().unwrap(), "--timeindex", time.to_str().unwrap()]);
            }
            let answer = run("dump-log", "check", broker.bootstrap(), &prefix, &more);
            assert!(number(&answer, "batches") > 0, "{answer}");
            if has_indexes {
                index_entries += number(&answer, "index_entries");
                time_entries += number(&answer, "timeindex_entries");
            }
        }
        assert!(index_entries >= 10, "{index_entries} entries in the offset indexes");
        assert!(time_entries >= 1, "{time_entries} entries in the time indexes");
    }

    fn logs_below(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                logs_below(&path, found);
            } else if path.extension().is_some_and(|e| e == "log") {
                found.push(path);
            }
        }
    }

    /// The number behind `"name":` in a program's JSON answer.
    fn number(answer: &str, name: &str) -> u64 {
        let rest =
            answer.split(&format!("\"{name}\": ")).nth(1).unwrap_or_else(|| panic!("no {name} in {answer}"));
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    }

    /// Segments, offset indexes and time indexes of a broker that was stopped, read by Kafka's own kafka-dump-log.
    #[test]
    fn kafka_dump_log_reads_our_segments() {
        let mut broker = Broker::start();
        assert!(
            broker.is_own(),
            "this test reads the broker's files, which an external broker keeps to itself"
        );
        let prefix = prefix();
        run("confluent", "fill", broker.bootstrap(), &prefix, &[]);
        assert!(broker.stop().success(), "the broker's clean stop");
        let mut logs = Vec::new();
        logs_below(broker.data_dir(), &mut logs);
        logs.retain(|l| l.to_str().unwrap().contains(&prefix));
        logs.sort();
        let (mut records, mut index_entries, mut time_entries) = (0, 0, 0);
        for log in &logs {
            let base = base_offset(log);
            let index = log.with_extension("index");
            let time = log.with_extension("timeindex");
            let more = [
                "--log",
                log.to_str().unwrap(),
                "--index",
                index.to_str().unwrap(),
                "--timeindex",
                time.to_str().unwrap(),
                "--base-offset",
                &base.to_string(),
            ];
            let answer = run("dump-log", "check", broker.bootstrap(), &prefix, &more);
            if number(&answer, "records") > 0 {
                assert_eq!(number(&answer, "first_offset"), base, "{answer}");
            }
            records += number(&answer, "records");
            index_entries += number(&answer, "index_entries");
            time_entries += number(&answer, "timeindex_entries");
        }
        // What `fill` wrote: 3 partitions of 4,000 records, in segments of 1 MiB.
        assert_eq!(records, 12_000);
        assert!(logs.len() >= 6, "segments: {logs:?}");
        assert!(index_entries >= 100, "{index_entries} entries in the offset indexes");
        assert!(time_entries >= 100, "{time_entries} entries in the time indexes");
    }

    /// Runs a program that starts the broker itself, and uses `kaas-engine`.
    fn with_programs(client: &str) -> String {
        let kaas = env!("CARGO_BIN_EXE_kaas");
        // The other program of the workspace stands beside it; up to date, also if only this package is being tested.
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "kaas-engine", "--bin", "kaas-engine"])
            .status()
            .unwrap();
        assert!(built.success());
        let engine = Path::new(kaas).with_file_name("kaas-engine");
        let more = ["--kaas", kaas, "--kaas-engine", engine.to_str().unwrap()];
        run(client, "check", "none", "none", &more)
    }

    /// A real Kafka's log directory, imported: every record, offset, epoch, time and committed offset is compared.
    #[test]
    fn a_kafka_is_taken_over() {
        let answer = with_programs("import-kafka");
        assert!(answer.contains("records compared"), "{answer}");
    }

    /// Compaction under a broker that is killed again and again, and through many segments without a record.
    #[test]
    fn compaction_survives_sigkill() {
        let answer = with_programs("compact-crash");
        assert!(answer.contains("records are left"), "{answer}");
    }

    /// A real Kafka's cleaner and ours, three rounds on the same log: every batch and record that stays is compared.
    #[test]
    fn compaction_keeps_what_kafka_keeps() {
        let answer = with_programs("compact-kafka");
        assert!(answer.contains("ok"), "{answer}");
        for (what, least) in [("batches", 300), ("emptied", 50), ("horizons", 100)] {
            assert!(number(&answer, what) >= least, "{what}: {answer}");
        }
    }
}
