//! The two processes of a qualification and the directory that they work in.

use std::cell::Cell;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::peer::{Peer, Trouble};
use super::protocol::{Ask, Begun, FailureClass, Family, Host, Opening, PROTOCOL, Volume};
use super::text::volume_words;
use super::{Options, QualifyError};
use crate::scratch;

/// Both processes, ready to be asked.
pub struct Pair {
    /// Always on this host; it made the run's directory and removes it.
    pub a: Peer,
    /// On this host, on a second mount, or elsewhere.
    pub b: Peer,
    pub facts: PairFacts,
    name: String,
    dirs: Cell<u32>,
    files: Cell<u32>,
}

/// What is known of the two.
#[derive(Debug, Clone)]
pub struct PairFacts {
    pub host_a: Host,
    pub host_b: Host,
    pub volume_a: Volume,
    pub volume_b: Volume,
    pub begun: Begun,
    pub clients: Clients,
}

/// What the two processes have between them and the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Clients {
    /// One mount: one client, one set of caches.
    One,
    /// Two mounts on one host.
    TwoMounts,
    /// Two hosts.
    TwoHosts,
}

impl Pair {
    /// Starts both and makes the run's directory.
    pub fn open(options: &Options) -> Result<Self, QualifyError> {
        let name = random_name();
        let (a, b, mut facts) = start(options)?;
        facts.begun = a.begun(Ask::Begin { name: name.clone() })?;
        Self::join(a, b, facts, name)
    }

    /// Starts both anew after a restart of the volume; and whether both see the directory, which should be there.
    pub fn reopen(options: &Options, name: &str, facts: &PairFacts) -> Result<(Self, bool), QualifyError> {
        let (a, b, _) = start(options)?;
        let seen_by_a = a.flag(Ask::Join { name: name.to_owned() })?;
        let seen_by_b = b.flag(Ask::Join { name: name.to_owned() })?;
        Ok((Self::new(a, b, facts.clone(), name.to_owned()), seen_by_a && seen_by_b))
    }

    fn new(a: Peer, b: Peer, facts: PairFacts, name: String) -> Self {
        Self { a, b, facts, name, dirs: Cell::new(0), files: Cell::new(0) }
    }

    fn join(a: Peer, b: Peer, facts: PairFacts, name: String) -> Result<Self, QualifyError> {
        // Tells the same volume from another one, whatever it is mounted as.
        if !b.flag(Ask::Join { name: name.clone() })? {
            let [here, there] = [&facts.volume_a, &facts.volume_b].map(volume_words);
            return Err(QualifyError::NotTheSameVolume { name, here, there });
        }
        Ok(Self::new(a, b, facts, name))
    }

    /// Whether somebody has removed the run's directory from under it. All that fails from then on says nothing of the volume.
    pub fn is_gone(&self) -> Result<bool, Trouble> {
        match self.a.names(Ask::List { path: self.name.clone() }) {
            Ok(_) => Ok(false),
            Err(trouble) => match trouble.class() {
                Some(FailureClass::NotFound | FailureClass::Stale) => Ok(true),
                // Whatever that is, it is told where it was met first.
                Some(_) => Ok(false),
                None => Err(trouble),
            },
        }
    }

    /// The name of the run's directory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A new directory for one probe.
    pub fn dir(&self, what: &str) -> Result<String, Trouble> {
        let number = self.dirs.get();
        self.dirs.set(number + 1);
        let path = format!("{}/{what}-{number}", self.name);
        self.a.done(Ask::CreateDir { path: path.clone() })?;
        self.a.done(Ask::SyncDir { path: self.name.clone() })?;
        // It must be there, and a listing looks for it without leaving "not there" in a cache.
        self.b.names(Ask::List { path: self.name.clone() })?;
        Ok(path)
    }

    /// A number for an open file.
    pub fn file(&self) -> u32 {
        let number = self.files.get();
        self.files.set(number + 1);
        number
    }

    /// Opens `path` in `peer`; the number of the open file.
    pub fn open_in(&self, peer: &Peer, path: &str, access: Opening, direct: bool) -> Result<u32, Trouble> {
        let file = self.file();
        peer.done(Ask::Open { file, path: path.to_owned(), access, direct })?;
        Ok(file)
    }

    /// Writes a new file of one version, syncs and closes it.
    pub fn put(&self, peer: &Peer, path: &str, version: u64, length: u64) -> Result<(), Trouble> {
        let file = self.open_in(peer, path, Opening::CreateNew, false)?;
        peer.done(Ask::Write { file, version, offset: 0, length, sync: true })?;
        peer.done(Ask::Close { file })
    }

    /// True where kaas reads and writes records with `O_DIRECT`: on volumes that several hosts may share.
    pub fn direct(&self) -> bool {
        matches!(self.facts.volume_a.family, Family::Nfs | Family::CephFs)
    }

    /// Ends both; the directory is removed.
    pub fn end(self) -> Result<(), Trouble> {
        let closed = self.b.done(Ask::End);
        let removed = self.a.done(Ask::End);
        closed.and(removed)
    }

    /// Ends both; the directory stays.
    pub fn leave(self) {
        self.b.leave();
        self.a.leave();
    }
}

/// What the names of runs' directories begin with.
pub const PREFIX: &str = "~qualify-";

/// A name that no other run has.
pub fn random_name() -> String {
    scratch::random_name(PREFIX)
}

/// Starts the two processes and lets them open their directories.
fn start(options: &Options) -> Result<(Peer, Peer, PairFacts), QualifyError> {
    let a = Peer::start("this host", own(options), options.timeout, &options.cancelled)?;
    let (b, dir_b) = match &options.peer {
        None => {
            let dir = options.second_mount.as_ref().unwrap_or(&options.dir);
            (Peer::start("the second process", own(options), options.timeout, &options.cancelled)?, dir)
        }
        Some(words) => {
            let mut shell = Command::new("sh");
            shell.arg("-c").arg(format!("exec {words} qualify-agent"));
            let dir = options.peer_dir.as_ref().unwrap_or(&options.dir);
            (Peer::start("the peer", shell, options.timeout, &options.cancelled)?, dir)
        }
    };
    let host_a = greet(&a)?;
    let host_b = match (greet(&b), &options.peer) {
        (Err(QualifyError::Trouble(trouble)), Some(command)) => {
            return Err(QualifyError::NoPeer { command: command.clone(), trouble });
        }
        (greeted, _) => greeted?,
    };
    let volume_a = a.volume(Ask::Attach { dir: options.dir.clone() })?;
    let volume_b = b.volume(Ask::Attach { dir: dir_b.clone() })?;
    let clients = if host_a.boot_id != host_b.boot_id {
        Clients::TwoHosts
    } else if volume_a.device == volume_b.device {
        Clients::One
    } else {
        Clients::TwoMounts
    };
    let begun = Begun { removed: Vec::new(), left: Vec::new() };
    Ok((a, b, PairFacts { host_a, host_b, volume_a, volume_b, begun, clients }))
}

fn greet(peer: &Peer) -> Result<Host, QualifyError> {
    let host = peer.host(Ask::Hello)?;
    if host.protocol != PROTOCOL {
        return Err(QualifyError::AnotherVersion { theirs: host.version });
    }
    Ok(host)
}

/// This program, as the process that touches the mount. In a group of its own: an interrupt from the terminal ends the
/// command, and this process then still removes the directory.
fn own(options: &Options) -> Command {
    let mut command = Command::new(&options.program);
    command.arg("qualify-agent").process_group(0);
    command
}
