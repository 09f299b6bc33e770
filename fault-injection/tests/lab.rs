//! The NFS lab does as it is told, and leaves nothing behind. Passed over where there can be no lab, with the reason.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kaas_fault_injection::lab::{self, Lab, LabError, Machine, Nfs};

const LIMIT: Duration = Duration::from_secs(30);
const CLIENT: Machine = Machine::Client(1);

fn hold() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/hold")
}

/// Processes whose command line names this work dir.
fn processes_of(work_dir: &Path) -> Vec<String> {
    let wanted = work_dir.to_str().unwrap();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        // A process that has gone meanwhile has no command line.
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(wanted) {
            found.push(line);
        }
    }
    found
}

/// The network namespace that a lab has made.
fn namespace_of(work_dir: &Path) -> PathBuf {
    let name = std::fs::read_to_string(work_dir.join("nfs/netns")).unwrap();
    Path::new("/run/netns").join(name.trim())
}

fn until_gone(work_dir: &Path, namespace: &Path) {
    let deadline = Instant::now() + LIMIT;
    while work_dir.exists() || namespace.exists() || !processes_of(work_dir).is_empty() {
        assert!(Instant::now() < deadline, "still there: {work_dir:?} {:?}", processes_of(work_dir));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_lab_obeys_and_goes_away() {
    if let Some(reason) = lab::why_not(&["nfs"]) {
        eprintln!("passed over, no lab: {reason}");
        return;
    }
    let lab = Lab::hold(&["nfs:1"]).unwrap();
    let nfs = lab.nfs();
    let touch =
        |name: &str, limit| nfs.exec(CLIENT, &["touch", &format!("{}/{name}", Nfs::MOUNT)], limit).map(drop);
    let listed = || nfs.exec(Machine::Server, &["ls", "/mnt/disk/export"], LIMIT).unwrap();

    touch("a", LIMIT).unwrap();
    assert_eq!(listed(), "a\n");
    // What fails is an error with what was said.
    let error = nfs.exec(CLIENT, &["ls", "/nowhere"], LIMIT).unwrap_err();
    assert!(matches!(&error, LabError::Failed { said, .. } if said.contains("/nowhere")), "{error}");

    nfs.cut(1).unwrap();
    assert!(touch("b", Duration::from_secs(2)).is_err(), "the cut-off client reaches the server");
    nfs.heal(1).unwrap();
    touch("b", LIMIT).unwrap();

    nfs.stop(Machine::Server).unwrap();
    assert!(touch("c", Duration::from_secs(2)).is_err(), "a frozen server answers");
    nfs.cont(Machine::Server).unwrap();
    touch("c", LIMIT).unwrap();

    // Loss of power: what was synced is there, what the client had only written is not.
    // (A shell would not do: it duplicates descriptors, and closing one makes an NFS client write everything back.)
    let write = format!(
        "import os, time; os.chdir('{}'); new = lambda name: os.open(name, os.O_CREAT | os.O_WRONLY)\n\
         synced = new('synced'); os.write(synced, b'1'); os.fsync(synced)\n\
         os.write(new('written'), b'2'); time.sleep(60)",
        Nfs::MOUNT
    );
    let mut writer = nfs.command(CLIENT, Path::new("/usr/bin/python3"));
    let mut writer = writer.args(["-c", &write]).stdin(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + LIMIT;
    while !listed().contains("written") {
        assert!(Instant::now() < deadline, "{}", listed());
    }
    nfs.kill(CLIENT).unwrap();
    writer.kill().unwrap();
    writer.wait().unwrap();
    nfs.kill(Machine::Server).unwrap();
    nfs.boot(Machine::Server).unwrap();
    let sizes = ["sh", "-c", "cd /mnt/disk/export; stat -c '%n %s' synced; test ! -s written"];
    assert_eq!(nfs.exec(Machine::Server, &sizes, LIMIT).unwrap(), "synced 1\n");

    let (work_dir, namespace) = (lab.work_dir().to_owned(), namespace_of(lab.work_dir()));
    assert!(!processes_of(&work_dir).is_empty() && namespace.exists());
    drop(lab);
    until_gone(&work_dir, &namespace);
}

#[test]
fn a_lab_goes_away_after_whoever_held_it_was_killed() {
    if let Some(reason) = lab::why_not(&["nfs"]) {
        eprintln!("passed over, no lab: {reason}");
        return;
    }
    let start = || {
        let mut holder =
            Command::new(hold()).arg("nfs:0").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let work_dir = PathBuf::from(line.trim().strip_prefix("ready ").expect("a lab that is up"));
        let namespace = namespace_of(&work_dir);
        (holder, work_dir, namespace)
    };
    // The test's end of the pipe closes, as it does when its process is killed.
    let (mut holder, work_dir, namespace) = start();
    drop(holder.stdin.take());
    until_gone(&work_dir, &namespace);
    assert!(holder.wait().unwrap().success());

    // The holder itself is killed: the next one sweeps. It leaves alone what somebody holds.
    let (mut killed, left_behind, its_namespace) = start();
    killed.kill().unwrap();
    killed.wait().unwrap();
    drop(killed.stdin.take());
    assert!(left_behind.exists());
    let (mut holder, work_dir, namespace) = start();
    until_gone(&left_behind, &its_namespace);
    assert!(Command::new(hold()).arg("--sweep").status().unwrap().success());
    assert!(work_dir.exists() && namespace.exists());
    drop(holder.stdin.take());
    until_gone(&work_dir, &namespace);
    assert!(holder.wait().unwrap().success());
}
