//! `kaas-engine qualify` on real mounts of two hosts: it tells those that are fit from those that are not, and says why.
//!
//! Needs root and Debian packages, see docs/labs.md; where they are missing, or with `KAAS_TEST_NO_LAB=1`, the tests that are
//! part of `./test` are passed over. The others: `fault-injection/lab/run-all qualify`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kaas_fault_injection::lab::{self, Lab, Machine, Nfs};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kaas-engine");

/// Longest time that a verb of a lab may take.
const LIMIT: Duration = Duration::from_secs(90);

/// What is asked of the host from within a guest: a file in the directory that both see.
const REQUEST: &str = "restart-the-server";

const NO_LATENCIES: &[&str] = &["--no-latencies"];

/// Runs it on client 1, with its peer on client 2; the exit code and the JSON.
fn on_two_guests(nfs: Nfs<'_>, dir: &str, args: &[&str]) -> (i32, Value) {
    let program = lab::guest_path(Path::new(PROGRAM));
    let address = nfs.address(Machine::Client(2)).unwrap();
    let peer = format!("python3 /mnt/lab/lib/agent.py run {address} 7777 -- {}", program.display());
    let mut command = nfs.command(Machine::Client(1), Path::new(PROGRAM));
    report(command.args(["qualify", dir, "--json", "--peer", &peer]).args(args))
}

fn report(command: &mut Command) -> (i32, Value) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let report = serde_json::from_slice(&stdout)
        .unwrap_or_else(|error| panic!("{error}: {status}: {}", String::from_utf8_lossy(&stderr)));
    (status.code().unwrap(), report)
}

fn remount(nfs: Nfs<'_>, options: &str) {
    for client in [1, 2] {
        nfs.unmount(client).unwrap();
        nfs.mount(client, Some(options)).unwrap();
    }
}

#[track_caller]
fn is_fit((code, report): (i32, Value), clients: &str) {
    assert_eq!(
        (code, &report["verdict"], &report["clients"]),
        (0, &"fit".into(), &clients.into()),
        "{report:#}"
    );
}

#[track_caller]
fn is_unfit((code, report): (i32, Value), why: &[&str]) {
    assert_eq!((code, &report["verdict"]), (11, &"unfit".into()), "{report:#}");
    let reasons = report["reasons"].to_string();
    assert!(why.iter().all(|why| reasons.contains(why)), "{why:?}: {reasons}");
}

#[track_caller]
fn need(parts: &[&str]) {
    if let Some(reason) = lab::why_not(parts) {
        panic!("no lab: {reason}");
    }
}

fn left_behind(nfs: Nfs<'_>, dir: &str) -> String {
    nfs.exec(Machine::Client(1), &["ls", "-A", dir], LIMIT).unwrap()
}

/// Part of `./test`: the default mount, and one under which a client does not ask the server when it opens.
#[test]
fn nfs_is_fit_and_nocto_is_not() {
    if let Some(reason) = lab::why_not(&["nfs"]) {
        eprintln!("passed over, no lab: {reason}");
        return;
    }
    let lab = Lab::hold(&["nfs:2"]).unwrap();
    is_fit(on_two_guests(lab.nfs(), Nfs::MOUNT, NO_LATENCIES), "two_hosts");
    assert_eq!(left_behind(lab.nfs(), Nfs::MOUNT), "");
    remount(lab.nfs(), "vers=4.2,hard,nocto");
    // Not by the option alone: it was seen to miss files, too.
    is_unfit(on_two_guests(lab.nfs(), Nfs::MOUNT, NO_LATENCIES), &["nocto", "P4: a listing"]);
}

/// With everything, and mounted so that a slow server makes writes fail.
#[test]
#[ignore = "minutes: fault-injection/lab/run-all qualify"]
fn nfs_with_latencies_and_soft() {
    need(&["nfs"]);
    let lab = Lab::hold(&["nfs:2"]).unwrap();
    let (code, report) = on_two_guests(lab.nfs(), Nfs::MOUNT, &[]);
    assert_eq!(report["latencies"].as_array().unwrap().len(), 8, "{report:#}");
    is_fit((code, report), "two_hosts");
    remount(lab.nfs(), "vers=4.2,soft,timeo=50,retrans=2");
    is_unfit(on_two_guests(lab.nfs(), Nfs::MOUNT, NO_LATENCIES), &["soft"]);
    remount(lab.nfs(), "vers=4.0,hard");
    is_unfit(on_two_guests(lab.nfs(), Nfs::MOUNT, NO_LATENCIES), &["version 4.0"]);
}

/// An honest server keeps what was fsynced through a loss of power; one with an `async` export does not.
#[test]
#[ignore = "minutes: fault-injection/lab/run-all qualify"]
fn an_nfs_server_that_lies_is_found_out() {
    need(&["nfs"]);
    let lab = Lab::hold(&["nfs:2"]).unwrap();
    let nfs = lab.nfs();
    let (code, report) = restarted(&lab, || nfs.boot(Machine::Server).unwrap());
    // The restart itself was seen: by the clients' connections.
    let found = durable(&report);
    assert_eq!(found["outcome"], "passed", "{found}");
    assert!(found["detail"].as_str().unwrap().ends_with("broke and was made anew"), "{found}");
    is_fit((code, report), "two_hosts");
    let in_vain = on_two_guests(nfs, Nfs::MOUNT, &["--no-latencies", "--restart-command", "true"]);
    let found = durable(&in_vain.1);
    assert_eq!(found["outcome"], "not_tested", "{found}");
    assert!(found["detail"].as_str().unwrap().ends_with("connections to the server never broke"), "{found}");
    is_fit(in_vain, "two_hosts");
    nfs.kill(Machine::Server).unwrap();
    nfs.boot_lying_server().unwrap();
    is_unfit(restarted(&lab, || nfs.boot_lying_server().unwrap()), &["loses fsync"]);
}

/// The finding about what survives a restart.
fn durable(report: &Value) -> Value {
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == "fsync_durable").unwrap().clone()
}

/// Runs it with a command that has this process take the server's power and `boot` it.
fn restarted(lab: &Lab, boot: impl Fn() + Sync) -> (i32, Value) {
    let request = lab.work_dir().join("nfs/share").join(REQUEST);
    let restart = format!("touch /mnt/host/{REQUEST}; while [ -e /mnt/host/{REQUEST} ]; do sleep 0.2; done");
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !request.exists() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                thread::sleep(Duration::from_millis(100));
            }
            lab.nfs().kill(Machine::Server).unwrap();
            boot();
            std::fs::remove_file(&request).unwrap();
        });
        let outcome =
            on_two_guests(lab.nfs(), Nfs::MOUNT, &["--no-latencies", "--restart-command", &restart]);
        ended.store(true, Ordering::Relaxed);
        outcome
    })
}

/// ceph-fuse without its page cache is fit; with it, a file that was opened anew shows old bytes. Without `client_oc=false`, 16.2
/// loses the wakeup of a read now and then, and the read does not return.
#[test]
#[ignore = "minutes: fault-injection/lab/run-all qualify"]
fn ceph_fuse_is_fit_without_its_page_cache_only() {
    need(&["ceph"]);
    let lab = Lab::hold(&["cephfs:2"]).unwrap();
    let mounts = lab.work_dir().join("cephfs/mnt");
    let qualify = || {
        let mut command = Command::new(PROGRAM);
        command.arg("qualify").arg(mounts.join("c1")).arg("--second-mount").arg(mounts.join("c2"));
        report(command.args(["--json", "--no-latencies"]))
    };
    let mount_with = |options: &str| {
        for client in ["c1", "c2"] {
            lab.run("cephfs", &["kill", client], LIMIT).unwrap();
            let started =
                lab.command("cephfs").env("CEPHFS_CLIENT_OPTIONS", options).args(["start", client]).status();
            assert!(started.unwrap().success());
        }
    };
    mount_with("--client_oc=false --fuse_disable_pagecache=true");
    is_fit(qualify(), "two_mounts");
    mount_with("--client_oc=false");
    is_unfit(qualify(), &["by a fresh open", "fuse_disable_pagecache"]);
}

#[test]
#[ignore = "minutes: fault-injection/lab/run-all qualify"]
fn the_kernels_client_of_cephfs_is_fit() {
    need(&["nfs", "ceph"]);
    let lab = Lab::hold(&["nfs:2", "cephfs:0", "ceph-kernel"]).unwrap();
    is_fit(on_two_guests(lab.nfs(), "/mnt/ceph", NO_LATENCIES), "two_hosts");
    assert_eq!(left_behind(lab.nfs(), "/mnt/ceph"), "");
}
