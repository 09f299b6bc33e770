//! The labs: real shared file systems with several clients on this machine, for tests.
//!
//! The scripts in `fault-injection/lab/` do the work; this is how tests drive them. A [`Lab`] is held by a process of its own
//! that takes everything down when the test's process goes away, in whichever way: by the end of `main`, a panic, or SIGKILL.
//! What a killed holder left behind is taken down by the next one.
//!
//! Guests of the NFS lab run the host's programs: their root is the host's, read-only ([`guest_path`]).

mod error;
mod keeper;
mod nfs;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub use error::LabError;
pub use nfs::{Machine, Nfs};

use keeper::Keeper;

/// Says that tests in labs are to be passed over.
const NO_LAB: &str = "KAAS_TEST_NO_LAB";

/// What is the guest's own, so that the host's files are seen elsewhere.
const HIDDEN_IN_GUESTS: &[&str] = &["/tmp", "/run", "/mnt", "/var/lib/nfs"];

/// Why no lab of these parts (`nfs`, `ganesha`, `ceph`) can be had here; `None` if one can.
pub fn why_not(parts: &[&str]) -> Option<String> {
    if std::env::var_os(NO_LAB).is_some_and(|value| value == "1") {
        return Some(format!("{NO_LAB}=1"));
    }
    match Command::new(scripts().join("install")).arg("--check").args(parts).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(
            (String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr))
                .trim()
                .to_owned(),
        ),
        Err(error) => Some(format!("fault-injection/lab/install cannot be run: {error}")),
    }
}

/// Where a file of the host is seen in a guest.
pub fn guest_path(host: &Path) -> PathBuf {
    if HIDDEN_IN_GUESTS.iter().any(|hidden| host.starts_with(hidden)) {
        Path::new("/mnt/root").join(host.strip_prefix("/").unwrap_or(host))
    } else {
        host.to_owned()
    }
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lab")
}

/// Labs in one work dir, as long as this lives.
#[derive(Debug)]
pub struct Lab {
    keeper: Keeper,
}

impl Lab {
    /// Brings up `labs`, in this order, as `fault-injection/lab/hold` names them: `nfs:2`, `ganesha`, `cephfs:2`, `ceph-kernel`.
    ///
    /// # Errors
    ///
    /// If one does not come up; then nothing is left of any.
    pub fn hold(labs: &[&str]) -> Result<Self, LabError> {
        Ok(Self { keeper: Keeper::start(labs)? })
    }

    /// The NFS lab, which must be among those that were brought up.
    pub fn nfs(&self) -> Nfs<'_> {
        Nfs::of(self)
    }

    /// The private work dir.
    pub fn work_dir(&self) -> &Path {
        self.keeper.work_dir()
    }

    /// Runs a script of the lab with these arguments, and returns what it printed.
    ///
    /// # Errors
    ///
    /// [`LabError::Failed`] with what it said, [`LabError::TooLong`] if it is not done within `limit`.
    pub fn run(&self, script: &str, arguments: &[&str], limit: Duration) -> Result<String, LabError> {
        keeper::run(self.command(script).args(arguments), limit)
    }

    /// A script of the lab as a command that is yet to be started.
    pub fn command(&self, script: &str) -> Command {
        let mut command = Command::new(scripts().join(script));
        command.env("KAAS_LAB_DIR", self.work_dir());
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_a_guest_has_of_its_own_are_seen_elsewhere() {
        for (host, guest) in [
            ("/srv/target/debug/x", "/srv/target/debug/x"),
            ("/tmp/target/x", "/mnt/root/tmp/target/x"),
            ("/tmpfiles/x", "/tmpfiles/x"),
            ("/mnt", "/mnt/root/mnt"),
        ] {
            assert_eq!(guest_path(Path::new(host)), Path::new(guest));
        }
    }
}
