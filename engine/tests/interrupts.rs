//! Ctrl-C during a long command of `kaas-engine`: it says so, cleans up, and ends with 130.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

fn start(args: &[&str], dir: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_kaas-engine"))
        .arg(args[0])
        .arg(dir)
        .args(&args[1..])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn signal(child: &Child, signal: &str) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// What a command that is about to end has said; one that does not end is killed.
fn ended(mut child: Child) -> Output {
    let until = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() && Instant::now() < until {
        thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    child.wait_with_output().unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Starts a command that makes a directory in an empty one, and interrupts it once that is there.
fn interrupted(args: &[&str], by: &str, code: i32) {
    let dir = tempfile::tempdir().unwrap();
    let mut child = start(args, dir.path());
    let until = Instant::now() + Duration::from_secs(60);
    while names(dir.path()).is_empty() {
        assert!(Instant::now() < until && child.try_wait().unwrap().is_none(), "{args:?}");
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(200));
    signal(&child, by);
    let output = ended(child);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    assert!(said.starts_with("kaas-engine: interrupted; removing"), "{args:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    assert!(output.stdout.is_empty(), "{args:?}");
    assert_eq!(names(dir.path()), Vec::<String>::new(), "{args:?}");
}

#[test]
fn qualify_removes_its_directory() {
    interrupted(&["qualify", "--duration", "1h", "--no-latencies"], "-INT", 130);
    interrupted(&["qualify", "--duration", "1h"], "-TERM", 143);
}

#[test]
fn bench_removes_its_directory() {
    let rounds = ["--rounds", "1000", "--round-ms", "50", "--partitions", "1", "--batch-bytes", "4KiB"];
    interrupted(&[&["bench"], &rounds[..], &["--no-reads"]].concat(), "-INT", 130);
    // In the middle of writing a log.
    let log = ["bench", "--no-commits", "--no-reads", "--takeover", "1GiB"];
    interrupted(&log, "-INT", 130);
}

#[test]
fn a_second_interrupt_ends_it_at_once() {
    let dir = tempfile::tempdir().unwrap();
    // A round that is not over soon.
    let child = start(&["bench", "--round-ms", "600000", "--no-reads"], dir.path());
    while names(dir.path()).is_empty() {
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(300));
    signal(&child, "-INT");
    thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    signal(&child, "-INT");
    let output = ended(child);
    assert_eq!(output.status.code(), Some(130));
    assert!(began.elapsed() < Duration::from_secs(30));
    assert_eq!(names(dir.path()).len(), 1, "its directory is left to the next run");
}
