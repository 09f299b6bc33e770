//! The same on nfs-ganesha and on CephFS, and longer on the kernel's NFS server. Not part of `./test`: run
//! `fault-injection/lab/run-all`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use kaas_fault_injection::lab;
use kaas_lab::conformance::broken_rules;
use kaas_lab::scenarios;
use kaas_lab::site::{CephFuse, Guests, Site};

const ACTOR: &str = env!("CARGO_BIN_EXE_kaas-lab-actor");

/// One lab at a time: this machine is small.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// These are run by who wants them: a lab that cannot be had is a failure.
#[track_caller]
fn need(parts: &[&str]) {
    if let Some(reason) = lab::why_not(parts) {
        panic!("no lab: {reason}");
    }
}

/// Rounds of everything, `KAAS_LAB_ROUNDS`.
fn rounds() -> u32 {
    std::env::var("KAAS_LAB_ROUNDS").map_or(1, |rounds| rounds.parse().expect("KAAS_LAB_ROUNDS is a number"))
}

fn everything(up: impl Fn(&Path) -> Box<dyn Site>, conformance: bool) {
    let _alone = alone();
    for round in 1..=rounds() {
        // A new lab each round: partitions have the same names.
        let site = up(Path::new(ACTOR));
        eprintln!("{}: round {round} of {}", site.name(), rounds());
        scenarios::paused_process(&*site);
        scenarios::frozen_host(&*site, Duration::from_secs(15));
        scenarios::server_restarts(&*site);
        scenarios::server_freezes(&*site, Duration::from_secs(8));
        scenarios::to_and_fro(&*site, 12);
        scenarios::cut_off(&*site, Duration::from_secs(15));
        scenarios::host_loses_power(&*site);
        scenarios::all_lose_power(&*site);
        if conformance {
            let broken = broken_rules(site.actor(1, "conformance"), site.actor(2, "conformance"));
            assert_eq!(broken, Vec::<String>::new(), "{}", site.name());
        }
    }
}

#[test]
#[ignore = "minutes: fault-injection/lab/run-all"]
fn kernel_nfs_for_longer() {
    need(&["nfs"]);
    everything(|actor| Box::new(Guests::on_nfs(actor)), false);
}

#[test]
#[ignore = "minutes: fault-injection/lab/run-all"]
fn ganesha() {
    need(&["nfs", "ganesha"]);
    everything(|actor| Box::new(Guests::on_ganesha(actor)), true);
}

#[test]
#[ignore = "minutes: fault-injection/lab/run-all"]
fn cephfs_with_fuse() {
    need(&["nfs", "ceph"]);
    everything(|actor| Box::new(CephFuse::up(actor)), true);
}

#[test]
#[ignore = "minutes: fault-injection/lab/run-all"]
fn cephfs_with_the_kernel() {
    need(&["nfs", "ceph"]);
    everything(|actor| Box::new(Guests::on_ceph(actor)), true);
}
