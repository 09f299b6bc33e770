//! Hosts that are guests: kernel clients of an NFS server or of CephFS.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kaas_fault_injection::lab::{Lab, LabError, Machine, Nfs};

use super::Site;
use crate::client::Actor;

/// How long a verb may take.
const LIMIT: Duration = Duration::from_secs(90);

/// The daemons of a CephFS, in the order in which they are started.
pub(super) const CEPH_DAEMONS: [&str; 3] = ["mon", "osd", "mds"];

/// What serves the guests' volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    /// The kernel's NFS server, in a guest of its own.
    KernelNfs,
    /// nfs-ganesha.
    Ganesha,
    /// CephFS, with the kernel's client.
    Ceph,
}

/// Two guests with a shared volume.
#[derive(Debug)]
pub struct Guests {
    lab: Lab,
    server: Server,
    program: PathBuf,
}

impl Guests {
    /// The kernel's NFS server. `actor` is the program `kaas-lab-actor`.
    pub fn on_nfs(actor: &Path) -> Self {
        Self::up(Server::KernelNfs, &["nfs:2"], actor)
    }

    /// nfs-ganesha.
    pub fn on_ganesha(actor: &Path) -> Self {
        Self::up(Server::Ganesha, &["nfs:2", "ganesha"], actor)
    }

    /// CephFS with the kernel's client.
    pub fn on_ceph(actor: &Path) -> Self {
        Self::up(Server::Ceph, &["nfs:2", "cephfs:0", "ceph-kernel"], actor)
    }

    fn up(server: Server, labs: &[&str], actor: &Path) -> Self {
        let lab = Lab::hold(labs).unwrap_or_else(|error| panic!("{error}"));
        Self { lab, server, program: actor.to_owned() }
    }

    /// The verbs of the guests, and of the kernel's NFS server.
    pub fn nfs(&self) -> Nfs<'_> {
        self.lab.nfs()
    }

    /// As [`Site::actor`], with the implementation that is made for file systems of one host.
    pub fn actor_as_local(&self, host: u8, dir: &str) -> Actor {
        self.start(host, dir, &["--as-local"])
    }

    /// Only of the kernel's NFS server: boots it anew as one that lies about what is on stable storage.
    pub fn restart_lying(&self) {
        done(self.nfs().kill(Machine::Server));
        done(self.nfs().boot_lying_server());
    }

    /// Only of the kernel's NFS server: all that it holds in memory is put on its disk, whatever it tells its clients.
    pub fn sync_server(&self) {
        done(self.nfs().exec(Machine::Server, &["sync"], LIMIT).map(drop));
    }

    fn mount_point(&self) -> &'static Path {
        Path::new(match self.server {
            Server::KernelNfs => Nfs::MOUNT,
            Server::Ganesha => "/mnt/ganesha",
            Server::Ceph => "/mnt/ceph",
        })
    }

    fn start(&self, host: u8, dir: &str, options: &[&str]) -> Actor {
        let mut command = self.nfs().command(Machine::Client(host), &self.program);
        command.arg(self.mount_point().join(dir)).args(options);
        Actor::start(&format!("actor on c{host}"), command)
    }

    fn signal(&self, host: u8, actor: &Actor, signal: &str) {
        let arguments = ["kill", signal, &actor.pid().to_string()];
        done(self.nfs().exec(Machine::Client(host), &arguments, LIMIT).map(drop));
    }

    fn script(&self, script: &str, arguments: &[&str]) {
        done(self.lab.run(script, arguments, LIMIT).map(drop));
    }

    fn ceph(&self, verb: &str) {
        for daemon in CEPH_DAEMONS {
            self.script("cephfs", &[verb, daemon]);
        }
    }
}

impl Site for Guests {
    fn name(&self) -> &'static str {
        match self.server {
            Server::KernelNfs => "NFSv4.2, kernel server",
            Server::Ganesha => "NFSv4.2, nfs-ganesha",
            Server::Ceph => "CephFS, kernel client",
        }
    }

    fn evicts(&self) -> bool {
        self.server == Server::Ceph
    }

    fn actor(&self, host: u8, dir: &str) -> Actor {
        self.start(host, dir, &[])
    }

    fn pause(&self, host: u8, actor: &Actor) {
        self.signal(host, actor, "-STOP");
    }

    fn resume(&self, host: u8, actor: &Actor) {
        self.signal(host, actor, "-CONT");
    }

    fn freeze(&self, host: u8) {
        done(self.nfs().stop(Machine::Client(host)));
    }

    fn thaw(&self, host: u8) {
        done(self.nfs().cont(Machine::Client(host)));
    }

    fn cut(&self, host: u8) {
        match self.server {
            Server::KernelNfs => done(self.nfs().cut(host)),
            Server::Ganesha => self.script("ganesha", &["cut", &Machine::Client(host).to_string()]),
            Server::Ceph => self.script("ceph-kernel", &["cut", &Machine::Client(host).to_string()]),
        }
    }

    fn heal(&self, host: u8) {
        match self.server {
            Server::KernelNfs => done(self.nfs().heal(host)),
            Server::Ganesha => self.script("ganesha", &["heal", &Machine::Client(host).to_string()]),
            Server::Ceph => self.script("ceph-kernel", &["heal", &Machine::Client(host).to_string()]),
        }
    }

    fn shut_out(&self, host: u8) {
        assert_eq!(self.server, Server::Ceph, "only CephFS shuts hosts out");
        self.script("cephfs", &["evict", &format!("10.77.1{host}.2")]);
    }

    fn remount(&self, host: u8) {
        let client = Machine::Client(host).to_string();
        match self.server {
            Server::KernelNfs => {
                done(self.nfs().unmount(host));
                done(self.nfs().mount(host, None));
            }
            Server::Ganesha => self.script("ganesha", &["mount", &client]),
            Server::Ceph => {
                self.script("ceph-kernel", &["umount", &client]);
                self.script("ceph-kernel", &["mount", &client]);
            }
        }
    }

    fn lose_power(&self, host: u8) {
        done(self.nfs().kill(Machine::Client(host)));
    }

    fn restore(&self, host: u8) {
        let client = Machine::Client(host).to_string();
        done(self.nfs().boot(Machine::Client(host)));
        match self.server {
            Server::KernelNfs => done(self.nfs().mount(host, None)),
            Server::Ganesha => self.script("ganesha", &["mount", &client]),
            Server::Ceph => self.script("ceph-kernel", &["mount", &client]),
        }
    }

    fn freeze_server(&self) {
        match self.server {
            Server::KernelNfs => done(self.nfs().stop(Machine::Server)),
            Server::Ganesha => self.script("ganesha", &["stop"]),
            Server::Ceph => self.ceph("stop"),
        }
    }

    fn thaw_server(&self) {
        match self.server {
            Server::KernelNfs => done(self.nfs().cont(Machine::Server)),
            Server::Ganesha => self.script("ganesha", &["cont"]),
            Server::Ceph => self.ceph("cont"),
        }
    }

    fn kill_server(&self) {
        match self.server {
            Server::KernelNfs => done(self.nfs().kill(Machine::Server)),
            Server::Ganesha => self.script("ganesha", &["kill"]),
            Server::Ceph => self.ceph("kill"),
        }
    }

    fn start_server(&self) {
        match self.server {
            Server::KernelNfs => done(self.nfs().boot(Machine::Server)),
            Server::Ganesha => self.script("ganesha", &["start"]),
            Server::Ceph => self.ceph("start"),
        }
    }
}

pub(super) fn done(outcome: Result<(), LabError>) {
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
