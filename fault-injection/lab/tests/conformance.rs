//! The conformance suite between two processes, on file systems of this host.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::{Path, PathBuf};
use std::process::Command;

use kaas_lab::Actor;
use kaas_lab::conformance::broken_rules;

fn actor(name: &str, dir: &Path) -> Actor {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kaas-lab-actor"));
    command.arg(dir);
    Actor::start(name, command)
}

#[track_caller]
fn assert_conforms(dir: &Path) {
    let broken = broken_rules(actor("one process", dir), actor("another", dir));
    assert_eq!(broken, Vec::<String>::new());
}

/// A file system of its own in a file, mounted for the time of a test.
struct LoopMount {
    dir: tempfile::TempDir,
}

impl LoopMount {
    /// `None`, with a word about it, without root or a loop device; `KAAS_TEST_NO_LOOP=1` says so.
    fn new(file_system: &str) -> Option<Self> {
        if std::env::var_os("KAAS_TEST_NO_LOOP").is_some_and(|value| value == "1") {
            eprintln!("passed over: KAAS_TEST_NO_LOOP=1");
            return None;
        }
        let mount = Self { dir: tempfile::tempdir().unwrap() };
        let image = mount.dir.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(400 << 20).unwrap();
        run(Command::new(format!("mkfs.{file_system}")).arg("-q").arg(&image));
        std::fs::create_dir(mount.path()).unwrap();
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(mount.path()));
        Some(mount)
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("mount")
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.path()).status().is_ok_and(|status| status.success());
        if !unmounted {
            // Lazily where something still holds it, so that the machine is left as it was.
            let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
        }
    }
}

fn run(command: &mut Command) {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let hint = "needs root, e2fsprogs, xfsprogs and a loop device; KAAS_TEST_NO_LOOP=1 passes over it";
    let output =
        command.env("PATH", path).output().unwrap_or_else(|error| panic!("{command:?}: {error}: {hint}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {said}: {hint}");
}

#[test]
fn on_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    assert_conforms(dir.path());
}

#[test]
fn in_memory() {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() {
        let dir = tempfile::tempdir_in(shm).unwrap();
        assert_conforms(dir.path());
    }
}

#[test]
fn on_ext4() {
    if let Some(mount) = LoopMount::new("ext4") {
        assert_conforms(&mount.path());
    }
}

#[test]
fn on_xfs() {
    if let Some(mount) = LoopMount::new("xfs") {
        assert_conforms(&mount.path());
    }
}

/// Two processes on two directories share nothing, which the suite sees through actors, too.
#[test]
fn what_is_not_one_volume_is_found_out() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let broken = broken_rules(actor("one process", one.path()), actor("another", other.path()));
    for rule in ["P1", "P2", "P4", "a lock", "a record is read", "a listing shows"] {
        assert!(broken.iter().any(|line| line.starts_with(rule)), "{rule} was not missed: {broken:?}");
    }
}
