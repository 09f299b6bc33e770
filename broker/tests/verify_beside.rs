//! `kaas-engine verify` beside a broker that creates, fills and deletes topics: no look at it finds damage. And pipes where the
//! broker has files: nobody waits for their other end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod raw;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kaas_engine::verify::{Finding, Options, Progress, Severity, verify};
use kaas_protocol::messages::create_partitions::CreatePartitionsTopic;
use kaas_protocol::messages::delete_topics::DeleteTopicState;
use kaas_protocol::{CreatePartitionsRequest, DeleteTopicsRequest, ErrorCode};
use kaas_substrate::recognise::open_to_read;
use raw::{Broker, Client, LONG, batch};

/// How long topics come and go.
const WHILE: Duration = Duration::from_secs(8);

fn come_and_go(client: &mut Client, name: &str, round: usize) {
    client.create_topic(name, 2, &[("retention.ms", "60000")]);
    for partition in 0..2 {
        let produced = client.produce(name, partition, batch(&[b"a", b"b"]));
        assert_eq!(produced.error_code, ErrorCode::NONE);
    }
    let more = CreatePartitionsTopic { name: name.into(), count: 4, assignments: None };
    let more = CreatePartitionsRequest { topics: vec![more], timeout_ms: 10_000, ..Default::default() };
    assert_eq!(client.call(3, &more).results[0].error_code, ErrorCode::NONE);
    // Some stay for a look, some do not.
    thread::sleep(Duration::from_millis(u64::try_from(round % 4).unwrap() * 40));
    let topics = vec![DeleteTopicState { name: Some(name.into()), ..Default::default() }];
    let request = DeleteTopicsRequest { topics, timeout_ms: 10_000, ..Default::default() };
    assert_eq!(client.call(6, &request).responses[0].error_code, ErrorCode::NONE);
}

#[test]
fn topics_that_come_and_go_are_no_damage() {
    let broker = Broker::start(&[]);
    let stop = AtomicBool::new(false);
    let (mut looks, mut rounds) = (0, 0);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|worker| {
                let (broker, stop) = (&broker, &stop);
                scope.spawn(move || {
                    let mut client = broker.connect();
                    let mut round = 0;
                    while !stop.load(Ordering::Relaxed) {
                        // One name is another topic each time.
                        come_and_go(&mut client, &format!("topic-{worker}"), round);
                        round += 1;
                    }
                    round
                })
            })
            .collect();
        let began = Instant::now();
        let mut found: Vec<Finding> = Vec::new();
        while began.elapsed() < WHILE && found.is_empty() {
            let volume = open_to_read(broker.dir.path()).unwrap();
            let options = Options { second_look_after: Duration::from_millis(20), ..Options::default() };
            let report = verify(&volume, Path::new(""), &options, &Progress::default()).unwrap();
            found = report.findings.into_iter().filter(|finding| finding.severity > Severity::Info).collect();
            looks += 1;
        }
        stop.store(true, Ordering::Relaxed);
        rounds = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        assert!(found.is_empty(), "look {looks}: {found:#?}");
    });
    assert!(looks >= 5 && rounds >= 10, "{looks} looks, {rounds} topics: nothing was shown");
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

#[test]
fn a_broker_does_not_wait_for_the_other_end_of_a_pipe() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.connect();
    client.create_topic("t", 1, &[("retention.ms", "60000")]);
    client.produce("t", 0, batch(&[b"a"]));
    broker.process.terminate(LONG).unwrap();
    let mut all = Vec::new();
    files(broker.dir.path(), &mut all);
    assert!(all.len() >= 10, "{all:?}");
    for path in all {
        // A start changes files, so each has a copy of its own.
        let copy = tempfile::tempdir().unwrap();
        let root = copy.path().join("data");
        assert!(Command::new("cp").arg("-a").args([broker.dir.path(), &root]).status().unwrap().success());
        let path = root.join(path.strip_prefix(broker.dir.path()).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let mut process = Command::new(env!("CARGO_BIN_EXE_kaas"))
            .args(["--listen", "127.0.0.1:0", "--data-dir"])
            .arg(&root)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut out = process.stdout.take().unwrap();
        let (said, hears) = std::sync::mpsc::channel();
        thread::spawn(move || {
            use std::io::Read;
            let mut line = [0; 200];
            // It is ready, or it has ended.
            let _ = said.send(out.read(&mut line));
        });
        let heard = hears.recv_timeout(LONG);
        let _ = process.kill();
        let _ = process.wait();
        assert!(heard.is_ok(), "the broker waits for {}", path.display());
    }
}
