//! P4, the half that only a crash can show: what was fsynced is there after the volume has lost its power.
//!
//! Files are planted and synced; both processes go, so that nothing holds the mount; a command of the user restarts the
//! volume; new processes look for what was planted.

use crate::qualify::check::{Basis, Check, Probe, probe};
use crate::qualify::pair::Pair;
use crate::qualify::peer::{Peer, Trouble};
use crate::qualify::protocol::{Ask, FailureClass, Opening};

/// Lengths of the files that each process plants.
const LENGTHS: [u64; 5] = [4096, 8192, 65_536, 262_144, 1 << 20];

/// A file that must be there, of one version throughout.
#[derive(Debug)]
struct Durable {
    what: &'static str,
    path: String,
    version: u64,
    length: u64,
}

/// What was planted.
#[derive(Debug)]
pub struct Planted {
    files: Vec<Durable>,
}

fn started() -> Probe {
    Probe::new("fsync_durable", "what was fsynced survives a restart of the volume", Basis::P4)
}

/// The finding if there was no command.
pub fn not_asked_for() -> Check {
    started().not_tested("needs a command that restarts the volume: --restart-command")
}

/// Writes files in all the ways in which kaas does, each synced before this returns.
pub fn plant(pair: &Pair) -> Result<Planted, Trouble> {
    let dir = pair.dir("durable")?;
    let mut planted = Planted { files: Vec::new() };
    for (peer, who) in [(&pair.a, "a"), (&pair.b, "b")] {
        for (number, length) in LENGTHS.into_iter().enumerate() {
            let path = format!("{dir}/{who}-{number}");
            pair.put(peer, &path, 7, length)?;
            planted.add("a new file", path, 7, length);
        }
        let path = format!("{dir}/{who}-overwritten");
        pair.put(peer, &path, 1, 65_536)?;
        overwrite(pair, peer, &path, pair.direct())?;
        planted.add("a file overwritten in place", path, 2, 65_536);

        let path = format!("{dir}/{who}-cut");
        let file = pair.open_in(peer, &path, Opening::CreateNew, false)?;
        peer.done(Ask::Write { file, version: 3, offset: 0, length: 65_536, sync: true })?;
        peer.done(Ask::Cut { file, length: 16_384 })?;
        peer.done(Ask::Close { file })?;
        planted.add("a file that was cut", path, 3, 16_384);

        let path = format!("{dir}/{who}-replaced");
        pair.put(peer, &path, 1, 4096)?;
        peer.done(Ask::SyncDir { path: dir.clone() })?;
        pair.put(peer, &format!("{path}.next"), 2, 4096)?;
        peer.done(Ask::Rename { from: format!("{path}.next"), to: path.clone() })?;
        planted.add("a file renamed over another", path, 2, 4096);
        peer.done(Ask::SyncDir { path: dir.clone() })?;
    }
    Ok(planted)
}

fn overwrite(pair: &Pair, peer: &Peer, path: &str, direct: bool) -> Result<(), Trouble> {
    let file = pair.open_in(peer, path, Opening::ReadWrite, direct)?;
    peer.done(Ask::Write { file, version: 2, offset: 0, length: 65_536, sync: true })?;
    peer.done(Ask::Close { file })
}

impl Planted {
    fn add(&mut self, what: &'static str, path: String, version: u64, length: u64) {
        self.files.push(Durable { what, path, version, length });
    }

    /// The finding if not even the directory of the files is there.
    pub fn all_gone(&self) -> Check {
        let mut probe = started();
        probe.rounds(self.files.len() as u64);
        probe.violations(
            self.files.len() as u64,
            "loses fsync: the directory of the files is gone with its name",
        );
        probe.end("")
    }

    /// Looks for all of it, from the process that did not write it first, whose caches know nothing of it.
    pub fn judge(&self, pair: &Pair) -> Result<Check, Trouble> {
        probe(started(), |probe| {
            for file in &self.files {
                probe.round();
                let here = file.path.contains("/b-");
                let reader = if here { &pair.a } else { &pair.b };
                let ask = Ask::Glance {
                    path: file.path.clone(),
                    direct: pair.direct(),
                    offset: 0,
                    length: file.length,
                };
                match reader.glance(ask) {
                    Ok(glance)
                        if glance.length == file.length && glance.seen.is(file.version, file.length) => {}
                    Ok(glance) => probe.violation(format!(
                        "loses fsync: {} has {} bytes of {} and not what was fsynced",
                        file.what, glance.length, file.length
                    )),
                    Err(trouble) if trouble.class() == Some(FailureClass::NotFound) => {
                        probe.violation(format!("loses fsync: {} is gone with its name", file.what));
                    }
                    Err(trouble) => return Err(trouble),
                }
            }
            Ok(format!("{} files, all there after the command", self.files.len()))
        })
    }
}
