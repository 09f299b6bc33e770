//! The labs under one interface: hosts with one shared volume, and what can be done to hosts, network and server.
//!
//! A site's verbs end the test if they fail: a lab that does not do as it is told shows nothing.

mod ceph_fuse;
mod guests;

pub use ceph_fuse::CephFuse;
pub use guests::Guests;

use crate::client::Actor;

/// Two hosts, 1 and 2, on one shared volume, and the server behind it.
pub trait Site {
    /// For messages.
    fn name(&self) -> &'static str;

    /// Whether a host that is silent for long is shut out for good, until it mounts anew.
    fn evicts(&self) -> bool {
        false
    }

    /// An actor on a host, on a directory of the shared volume, which is created if absent.
    fn actor(&self, host: u8, dir: &str) -> Actor;

    /// Stops an actor's process where it is (SIGSTOP).
    fn pause(&self, host: u8, actor: &Actor);

    /// Lets it go on (SIGCONT).
    fn resume(&self, host: u8, actor: &Actor);

    /// Freezes a whole host, as a hypervisor does; its kernel answers nobody.
    fn freeze(&self, host: u8);

    fn thaw(&self, host: u8);

    /// Nothing passes between the host and the server.
    fn cut(&self, host: u8);

    fn heal(&self, host: u8);

    /// The servers shut the host out at once and for good, until it mounts anew; only where [`Site::evicts`].
    fn shut_out(&self, host: u8) {
        panic!("{}: nobody shuts host {host} out", self.name());
    }

    /// The host mounts the volume anew.
    fn remount(&self, host: u8);

    /// The host's memory is gone. Its actors are hung up by whoever has them.
    fn lose_power(&self, host: u8);

    /// The host is up again, with the volume.
    fn restore(&self, host: u8);

    fn freeze_server(&self);

    fn thaw_server(&self);

    /// The server's memory is gone.
    fn kill_server(&self);

    fn start_server(&self);

    /// Server and host lose their power at one moment.
    fn lose_all_power(&self, host: u8) {
        // Frozen first: nothing reaches a disk between the two.
        self.freeze_server();
        self.lose_power(host);
        self.kill_server();
    }
}
