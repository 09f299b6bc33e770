//! The command: what it says, how it starts and stops, and how it refuses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod raw;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use kaas_protocol::{ErrorCode, MetadataRequest};
use raw::{Broker, LONG, batch, command, fetch_request, produce_request};

/// Runs `kaas` until it ends by itself.
fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_kaas")).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// Every file below `dir` with its content.
fn tree(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path.clone());
                found.insert(path, Vec::new());
            } else {
                let content = std::fs::read(&path).unwrap();
                found.insert(path, content);
            }
        }
    }
    found
}

#[test]
fn help_teaches() {
    let (code, out, _) = run(&["--help"]);
    assert_eq!(code, 0);
    for word in ["--data-dir", "KAAS_LISTEN", "--advertised", "Examples:", "kcat", "Exit codes"] {
        assert!(out.contains(word), "{word} is missing:\n{out}");
    }
}

#[test]
fn bad_usage_is_2_and_touches_nothing() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("data");
    let dir = dir.to_str().unwrap();
    for (arguments, word) in [
        (&["--nope"][..], "--nope"),
        (&["--listen", "localhost"], "HOST:PORT"),
        (&["--set", "num.partitions=none"], "num.partitions"),
        (&["--set", "no.such.config=1"], "no.such.config"),
        (&["--set", "log.dirs=/x"], "--data-dir"),
        (&["--set", "advertised.listeners=PLAINTEXT://x:1"], "--advertised"),
        (&["--log-level", "]["], "log level"),
        (&["--listen", "no-such-host.invalid:9092"], "no-such-host.invalid"),
    ] {
        let (code, out, err) = run(&[&["--data-dir", dir], arguments].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}: {err}");
        assert!(err.contains(word), "{arguments:?}: {err}");
        assert!(!Path::new(dir).exists(), "{arguments:?} touched the data directory");
    }
}

#[test]
fn a_taken_port_is_4_and_touches_nothing() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("data");
    let (code, out, err) = run(&["--data-dir", dir.to_str().unwrap(), "--listen", &address]);
    assert_eq!((code, out.as_str()), (4, ""), "{err}");
    assert!(err.contains("in use") && err.contains(&address), "{err}");
    assert!(!dir.exists());
}

#[test]
fn a_directory_that_cannot_be_used_is_3_and_not_touched() {
    let parent = tempfile::tempdir().unwrap();
    let file = parent.path().join("file");
    std::fs::write(&file, "not a directory").unwrap();
    let listen = ["--listen", "127.0.0.1:0"];
    for dir in [file.clone(), file.join("below")] {
        let (code, _, err) = run(&[&["--data-dir", dir.to_str().unwrap()], &listen[..]].concat());
        assert_eq!(code, 3, "{err}");
        assert!(err.contains(dir.to_str().unwrap()), "{err}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"not a directory");

    let mut broker = Broker::start(&[]);
    broker.process.terminate(LONG).unwrap();
    let meta = broker.dir.path().join("cluster/meta.json");
    let mut newer: serde_json::Value = serde_json::from_slice(&std::fs::read(&meta).unwrap()).unwrap();
    newer["format"] = 99.into();
    // Of the file as it was.
    newer.as_object_mut().unwrap().remove("crc32c").expect("a checksum");
    std::fs::write(&meta, newer.to_string()).unwrap();
    let before = tree(broker.dir.path());
    let (code, _, err) = run(&[&["--data-dir", broker.dir.path().to_str().unwrap()], &listen[..]].concat());
    assert_eq!(code, 3, "{err}");
    assert!(err.contains("99") && err.contains("meta.json"), "{err}");
    assert_eq!(tree(broker.dir.path()), before);
}

#[test]
fn a_second_broker_on_the_directory_is_3_and_the_first_goes_on() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[]);
    let before = tree(broker.dir.path());
    let (code, _, err) = run(&["--data-dir", broker.dir.path().to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    assert_eq!(code, 3, "{err}");
    assert!(err.contains("in use"), "{err}");
    assert_eq!(tree(broker.dir.path()), before);
    assert_eq!(client.produce("t", 0, batch(&[b"x"])).error_code, ErrorCode::NONE);
}

#[test]
fn a_clean_stop_answers_what_is_in_flight_and_keeps_everything() {
    let mut broker = Broker::start(&["--log-level", "debug"]);
    let mut client = broker.connect();
    client.create_topic("kept", 3, &[]);
    for n in 0..10_u8 {
        assert_eq!(client.produce("kept", 1, batch(&[&[n]])).error_code, ErrorCode::NONE);
    }
    // One fetch is parked, one produce request is on its way.
    let mut parked = broker.connect();
    parked.send(12, &fetch_request("kept", 2, 0, 60_000));
    std::thread::sleep(Duration::from_millis(300));
    client.send(9, &produce_request("kept", 1, -1, batch(&[b"last"])));
    let (_, answer) = client.receive::<raw::Produced>(9);
    assert_eq!(answer.responses[0].partition_responses[0].base_offset, 10);
    let began = Instant::now();
    let status = broker.process.terminate(LONG).unwrap();
    assert_eq!(status.code(), Some(0), "{}", broker.process.said());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}: {}", began.elapsed(), broker.process.said());
    let (_, parked) = parked.receive::<kaas_protocol::FetchResponse>(12);
    assert_eq!(parked.responses[0].partitions[0].error_code, ErrorCode::NONE);

    broker.restart(&[]);
    let mut client = broker.connect();
    let metadata = client.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() });
    assert_eq!(metadata.topics[0].partitions.len(), 3);
    let data = client.fetch("kept", 1, 0);
    assert_eq!(data.high_watermark, 11);
    assert!(metadata.topics[0].partitions[1].leader_epoch > 1);
    assert_eq!(client.produce("kept", 1, batch(&[b"more"])).base_offset, 11);
}

#[test]
fn a_killed_broker_has_what_it_acknowledged() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[]);
    for n in 0..50_i64 {
        assert_eq!(client.produce("t", 0, batch(&[&n.to_be_bytes()])).base_offset, n);
    }
    broker.process.kill().unwrap();
    broker.restart(&[]);
    let mut client = broker.connect();
    assert_eq!(client.fetch("t", 0, 0).high_watermark, 50);
    assert_eq!(client.produce("t", 0, batch(&[b"next"])).base_offset, 50);
}

#[test]
fn a_second_process_by_force_fences_the_first() {
    let mut first = Broker::start(&[]);
    let mut client = first.connect();
    client.create_topic("t", 1, &[]);
    assert_eq!(client.produce("t", 0, batch(&[b"before"])).base_offset, 0);
    let mut second = command(&first.dir, &["--ignore-lock"]).start().unwrap();
    let mut other = raw::Client::connect(second.bootstrap());
    assert_eq!(other.fetch("t", 0, 0).high_watermark, 1, "what was acknowledged is there");
    assert_eq!(other.produce("t", 0, batch(&[b"second"])).base_offset, 1);
    for _ in 0..5 {
        let refused = client.produce("t", 0, batch(&[b"first"]));
        assert_ne!(refused.error_code, ErrorCode::NONE, "a deposed leader acknowledged {refused:?}");
    }
    // It changes nothing any more, either.
    let request = kaas_protocol::CreateTopicsRequest {
        topics: vec![kaas_protocol::messages::create_topics::CreatableTopic {
            name: "later".into(),
            num_partitions: 1,
            replication_factor: 1,
            ..Default::default()
        }],
        timeout_ms: 5_000,
        ..Default::default()
    };
    assert_ne!(client.call(7, &request).topics[0].error_code, ErrorCode::NONE);
    assert_eq!(other.produce("t", 0, batch(&[b"third"])).base_offset, 2);
    assert_eq!(other.fetch("t", 0, 0).high_watermark, 3);
    second.terminate(LONG).unwrap();
    first.process.terminate(LONG).unwrap();
}

#[test]
fn a_stop_does_not_wait_for_those_that_do_not_read() {
    let mut broker = Broker::start(&["--shutdown-timeout-ms", "700"]);
    let mut client = broker.connect();
    client.create_topic("big", 1, &[]);
    for _ in 0..40 {
        client.produce("big", 0, batch(&[&vec![1; 900_000]]));
    }
    let mut lazy = broker.connect();
    lazy.send(12, &fetch_request("big", 0, 0, 0));
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    let status = broker.process.terminate(LONG).unwrap();
    assert_eq!(status.code(), Some(0), "{}", broker.process.said());
    assert!(began.elapsed() >= Duration::from_millis(600), "{:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
}

#[test]
fn a_second_signal_stops_at_once() {
    let mut broker = Broker::start(&["--shutdown-timeout-ms", "60000"]);
    let mut client = broker.connect();
    client.create_topic("big", 1, &[]);
    for _ in 0..40 {
        client.produce("big", 0, batch(&[&vec![1; 900_000]]));
    }
    let mut lazy = broker.connect();
    lazy.send(12, &fetch_request("big", 0, 0, 0));
    std::thread::sleep(Duration::from_millis(300));
    let pid = rustix::process::Pid::from_raw(i32::try_from(broker.process.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(broker.process.is_running(), "it waits for the reader");
    let began = Instant::now();
    let status = broker.process.terminate(LONG).unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn flags_and_environment_do_what_they_say() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = command(&dir, &["--worker-threads", "3", "--log-format", "json"])
        .env("KAAS_NODE_ID", "42")
        .env("KAAS_SET", "num.partitions=7;auto.create.topics.enable=false")
        .env("KAAS_LOG_LEVEL", "debug")
        .start()
        .unwrap();
    let mut client = raw::Client::connect(process.bootstrap());
    let metadata = client.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() });
    assert_eq!(metadata.brokers[0].node_id, 42);
    client.create_topic("t", -1, &[]);
    let metadata = client.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() });
    assert_eq!(metadata.topics[0].partitions.len(), 7);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.pid())).unwrap();
    let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap());
    assert_eq!(names.filter(|name| name.starts_with("tokio-rt-worker")).count(), 3);
    process.terminate(LONG).unwrap();
    let said = process.said();
    let lines: Vec<serde_json::Value> =
        said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(lines.iter().any(|line| line["level"] == "DEBUG"), "{said}");
    assert!(lines.iter().any(|line| line["message"] == "stopped"), "{said}");
}

#[test]
fn wrong_values_of_the_environment_are_told_with_their_variable() {
    for (name, value, said) in [
        ("KAAS_MEMORY", "maybe", "the value comes from KAAS_MEMORY"),
        ("KAAS_SET", "nonsense", "the value comes from KAAS_SET"),
        ("KAAS_SET", "num.partitions=many", "KAAS_SET sets it"),
        ("KAAS_ADVERTISED", "0.0.0.0:9092", "the value comes from KAAS_ADVERTISED"),
        ("KAAS_LOG_LEVEL", "loud", "'loud' is not a log level: error, warn"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut kaas = std::process::Command::new(env!("CARGO_BIN_EXE_kaas"));
        let output =
            kaas.env(name, value).env("KAAS_LISTEN", "localhost:0").current_dir(&dir).output().unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && complaint.contains(said), "{name}={value}: {complaint}");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "something was made");
    }
}

#[test]
fn memory_mode_leaves_nothing() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("data");
    let mut process = command(&dir, &[]).env("KAAS_MEMORY", "1").start().unwrap();
    let mut client = raw::Client::connect(process.bootstrap());
    client.create_topic("t", 1, &[]);
    assert_eq!(client.produce("t", 0, batch(&[b"x"])).base_offset, 0);
    assert!(!raw::record_bytes(&client.fetch("t", 0, 0)).is_empty());
    process.terminate(LONG).unwrap();
    assert!(!dir.exists());
}

#[test]
fn it_starts_fast_also_with_many_partitions() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("many", 1_000, &[]);
    for partition in (0..1_000).step_by(50) {
        client.produce("many", partition, batch(&[b"x"]));
    }
    broker.process.terminate(LONG).unwrap();
    let began = Instant::now();
    broker.restart(&[]);
    let mut client = broker.connect();
    assert_eq!(client.produce("many", 999, batch(&[b"x"])).error_code, ErrorCode::NONE);
    let elapsed = began.elapsed();
    println!("start to first produce with 1,000 partitions: {elapsed:?}");
    assert!(elapsed < Duration::from_secs(3), "{elapsed:?}");
}
