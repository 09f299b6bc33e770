//! The NFS lab: a kernel server and kernel clients in guests that can lose their power, freeze, and be cut off.

use std::fmt;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{Lab, LabError, guest_path};

/// How long a verb of the lab may take.
const LIMIT: Duration = Duration::from_secs(90);

/// A guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
    /// The NFS server.
    Server,
    /// A client, from 1.
    Client(u8),
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server => f.write_str("srv"),
            Self::Client(number) => write!(f, "c{number}"),
        }
    }
}

/// The verbs of the NFS lab. Each returns when it is done.
#[derive(Debug, Clone, Copy)]
pub struct Nfs<'a> {
    lab: &'a Lab,
}

impl<'a> Nfs<'a> {
    /// Where clients have the export.
    pub const MOUNT: &'static str = "/mnt/nfs";

    pub(super) fn of(lab: &'a Lab) -> Self {
        Self { lab }
    }

    /// A program of the host, to be started in a guest; input, output and exit code are passed through. If the command's
    /// process on the host ends, the program in the guest is killed.
    pub fn command(&self, on: Machine, program: &Path) -> Command {
        let mut command = self.lab.command("nfs");
        command.args(["exec", &on.to_string(), "--"]).arg(guest_path(program));
        command
    }

    /// Runs a command in a guest for at most `limit`, and returns what it printed.
    pub fn exec(&self, on: Machine, arguments: &[&str], limit: Duration) -> Result<String, LabError> {
        let (guest, seconds) = (on.to_string(), limit.as_secs().max(1).to_string());
        let arguments = [&["exec", &guest, "-t", &seconds, "--"], arguments].concat();
        self.lab.run("nfs", &arguments, limit + Duration::from_secs(10))
    }

    /// Loss of power: what the guest had in memory is gone.
    pub fn kill(&self, machine: Machine) -> Result<(), LabError> {
        self.verb("kill", machine)
    }

    /// Boots a guest that has no power; a client's mounts are gone until [`Self::mount`].
    pub fn boot(&self, machine: Machine) -> Result<(), LabError> {
        self.verb("boot", machine)
    }

    /// Boots the server so that it says of data in its memory that it is on stable storage (`async`): a liar.
    pub fn boot_lying_server(&self) -> Result<(), LabError> {
        let mut command = self.lab.command("nfs");
        command.env("NFS_EXPORT", "async").args(["boot", "srv"]);
        super::keeper::run(&mut command, LIMIT).map(drop)
    }

    /// Freezes a guest where it is.
    pub fn stop(&self, machine: Machine) -> Result<(), LabError> {
        self.verb("stop", machine)
    }

    /// Thaws it.
    pub fn cont(&self, machine: Machine) -> Result<(), LabError> {
        self.verb("cont", machine)
    }

    /// Drops everything between a client and the server. Commands in the client still work.
    pub fn cut(&self, client: u8) -> Result<(), LabError> {
        self.verb("cut", Machine::Client(client))
    }

    /// Ends a [`Self::cut`].
    pub fn heal(&self, client: u8) -> Result<(), LabError> {
        self.verb("heal", Machine::Client(client))
    }

    /// Mounts the export on a client, with the lab's options or others.
    pub fn mount(&self, client: u8, options: Option<&str>) -> Result<(), LabError> {
        let client = Machine::Client(client).to_string();
        self.lab.run("nfs", &["mount", &client, options.unwrap_or_default()], LIMIT).map(drop)
    }

    /// Takes the mount away from under whoever uses it.
    pub fn unmount(&self, client: u8) -> Result<(), LabError> {
        self.verb("umount", Machine::Client(client))
    }

    /// The guest's address in the lab's private network.
    pub fn address(&self, machine: Machine) -> Result<String, LabError> {
        let printed = self.lab.run("nfs", &["address", &machine.to_string()], LIMIT)?;
        Ok(printed.trim().to_owned())
    }

    /// Moves the calling thread into the lab's private network, with all threads and processes that it starts from now on.
    ///
    /// # Errors
    ///
    /// [`LabError::Network`], without the right to.
    pub fn enter_network(&self) -> Result<(), LabError> {
        let name = self.lab.work_dir().join("nfs/netns");
        let name = std::fs::read_to_string(name).map_err(LabError::Network)?;
        let network =
            std::fs::File::open(Path::new("/run/netns").join(name.trim())).map_err(LabError::Network)?;
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| LabError::Network(errno.into()))
    }

    fn verb(&self, verb: &str, machine: Machine) -> Result<(), LabError> {
        self.lab.run("nfs", &[verb, &machine.to_string()], LIMIT).map(drop)
    }
}
