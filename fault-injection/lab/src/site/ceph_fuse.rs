//! Two ceph-fuse clients. A "host" is the client's process with its mount and network; actors run on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kaas_fault_injection::lab::Lab;

use super::Site;
use super::guests::{CEPH_DAEMONS, done};
use crate::client::Actor;

const LIMIT: Duration = Duration::from_secs(90);

/// The CephFS lab with two clients.
#[derive(Debug)]
pub struct CephFuse {
    lab: Lab,
    program: PathBuf,
}

impl CephFuse {
    /// Brings the lab up; `actor` is the program `kaas-lab-actor`.
    pub fn up(actor: &Path) -> Self {
        let lab = Lab::hold(&["cephfs:2"]).unwrap_or_else(|error| panic!("{error}"));
        Self { lab, program: actor.to_owned() }
    }

    fn script(&self, verb: &str, of: &str) {
        done(self.lab.run("cephfs", &[verb, of], LIMIT).map(drop));
    }

    fn client(&self, verb: &str, host: u8) {
        self.script(verb, &format!("c{host}"));
    }

    fn servers(&self, verb: &str) {
        for daemon in CEPH_DAEMONS {
            self.script(verb, daemon);
        }
    }
}

impl Site for CephFuse {
    fn name(&self) -> &'static str {
        "CephFS, ceph-fuse"
    }

    fn evicts(&self) -> bool {
        true
    }

    fn actor(&self, host: u8, dir: &str) -> Actor {
        let mut command = Command::new(&self.program);
        command.arg(self.lab.work_dir().join(format!("cephfs/mnt/c{host}")).join(dir));
        Actor::start(&format!("actor on c{host}"), command)
    }

    fn pause(&self, _host: u8, actor: &Actor) {
        signal(actor, "-STOP");
    }

    fn resume(&self, _host: u8, actor: &Actor) {
        signal(actor, "-CONT");
    }

    fn freeze(&self, host: u8) {
        self.client("stop", host);
    }

    fn thaw(&self, host: u8) {
        self.client("cont", host);
    }

    fn cut(&self, host: u8) {
        self.client("cut", host);
    }

    fn heal(&self, host: u8) {
        self.client("heal", host);
    }

    fn shut_out(&self, host: u8) {
        self.script("evict", &format!("10.78.1{host}.2"));
    }

    fn remount(&self, host: u8) {
        self.client("kill", host);
        self.client("start", host);
    }

    fn lose_power(&self, host: u8) {
        self.client("kill", host);
    }

    fn restore(&self, host: u8) {
        self.client("start", host);
    }

    fn freeze_server(&self) {
        self.servers("stop");
    }

    fn thaw_server(&self) {
        self.servers("cont");
    }

    fn kill_server(&self) {
        self.servers("kill");
    }

    fn start_server(&self) {
        self.servers("start");
    }
}

/// The actor is a child that has not been reaped: the id is its.
fn signal(actor: &Actor, signal: &str) {
    let sent = Command::new("kill").args([signal, &actor.pid().to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()), "{} cannot be signalled", actor.name());
}
