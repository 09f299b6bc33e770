//! The process harness against shell scripts that behave as brokers do, and as brokers should not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use kaas_fault_injection::process::{BrokerCommand, ProcessError};
use tempfile::TempDir;

const READY: &str = "echo 'kaas is ready: bootstrap.servers=127.0.0.1:4711'";
const SHORT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(20);

/// One test at a time: a process that another test starts while a script is being written inherits the open file for a
/// moment, and a file that is open for writing cannot be run.
static ALONE: Mutex<()> = Mutex::new(());

/// A program that runs `script`, and lives as long as the directory.
fn program(script: &str) -> ((TempDir, MutexGuard<'static, ()>), BrokerCommand) {
    let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("broker");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    let command = BrokerCommand::new(&path, dir.path().join("data"));
    ((dir, alone), command)
}

#[test]
fn a_broker_is_ready_when_it_says_so_and_gets_its_flags() {
    let (_dir, command) = program(&format!("echo \"$@ $X\" >&2; echo first; {READY}; exec sleep 60"));
    let mut broker = command.clone().arg("--more").env("X", "y").start().unwrap();
    assert_eq!(broker.bootstrap().to_string(), "127.0.0.1:4711");
    assert!(broker.is_running());
    // The script becomes another program after its line, which begins with next to no memory.
    let deadline = Instant::now() + LONG;
    while broker.rss_bytes().unwrap() < 10_000 {
        assert!(Instant::now() < deadline, "{:?}", broker.rss_bytes());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(broker.kill().unwrap().signal(), Some(9));
    let said = broker.said();
    let data = command.data_dir().display();
    assert!(said.contains(&format!("--data-dir {data} --listen 127.0.0.1:0 --more y\n")), "{said}");
}

#[test]
fn an_early_end_is_reported_with_what_was_said() {
    let (_dir, command) = program("echo 'no room' >&2; exit 3");
    match command.start() {
        Err(ProcessError::EndedEarly { status, said }) => {
            assert_eq!(status.code(), Some(3));
            assert_eq!(said, "no room\n");
        }
        other => panic!("{other:?}"),
    }
    let ended = command.run_to_end(LONG).unwrap();
    assert_eq!((ended.status.code(), ended.stderr.as_str()), (Some(3), "no room\n"));
}

#[test]
fn silence_ends_with_the_deadline_and_leaves_no_process() {
    let ((dir, _alone), command) = program("echo $$ > \"$0.pid\"; exec sleep 60");
    let result = command.ready_within(Duration::from_millis(500)).start();
    assert!(matches!(result, Err(ProcessError::NotReady { .. })), "{result:?}");
    let pid = std::fs::read_to_string(dir.path().join("broker.pid")).unwrap();
    assert!(!std::path::Path::new("/proc").join(pid.trim()).exists());
}

#[test]
fn a_broker_that_does_not_end_by_itself_is_killed() {
    let (_dir, command) = program("exec sleep 60");
    let started = Instant::now();
    let result = command.run_to_end(SHORT);
    assert!(matches!(result, Err(ProcessError::StillRunning { .. })), "{result:?}");
    assert!(started.elapsed() < LONG);
}

#[test]
fn a_paused_broker_does_nothing_until_it_is_resumed() {
    // Bounded: a broker that nobody stops ends after a minute.
    let script = format!("{READY}; for n in $(seq 6000); do echo $n > \"$0.count\"; sleep 0.01; done");
    let ((dir, _alone), command) = program(&script);
    let mut broker = command.start().unwrap();
    let count = || std::fs::read_to_string(dir.path().join("broker.count")).unwrap_or_default();
    let wait_for_change = |from: &str| {
        let deadline = Instant::now() + LONG;
        while count() == from {
            assert!(Instant::now() < deadline, "nothing happens");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait_for_change("");
    broker.pause().unwrap();
    let paused_at = count();
    std::thread::sleep(SHORT);
    assert_eq!(count(), paused_at);
    assert!(broker.is_running());
    broker.resume().unwrap();
    wait_for_change(&paused_at);
    assert_eq!(broker.terminate(LONG).unwrap().signal(), Some(15));
    assert!(!broker.is_running());
    // A second time is nobody's process any more.
    broker.kill().unwrap();
}

#[test]
fn a_dropped_broker_is_killed_also_when_paused() {
    let (_dir, command) = program(&format!("{READY}; exec sleep 60"));
    let mut broker = command.start().unwrap();
    broker.pause().unwrap();
    let pid = broker.pid();
    drop(broker);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}
