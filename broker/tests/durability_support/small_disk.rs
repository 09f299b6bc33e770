//! A file system of a few MiB in a file, mounted for the time of a test: the only way to a disk that is really full, or
//! that does not answer.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Says that this machine has no loop devices, and tests that need one are to be passed over.
const NO_LOOP: &str = "KAAS_TEST_NO_LOOP";

/// A mounted file system; unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    /// Makes and mounts an ext4 of `mib` MiB without blocks reserved for root. `None` if `KAAS_TEST_NO_LOOP=1`.
    pub fn mount(mib: u64) -> Option<Self> {
        Self::mount_made_with(mib, &[])
    }

    /// The same with about `inodes` inodes.
    pub fn mount_with_inodes(mib: u64, inodes: u32) -> Option<Self> {
        Self::mount_made_with(mib, &["-N", &inodes.to_string()])
    }

    fn mount_made_with(mib: u64, options: &[&str]) -> Option<Self> {
        if std::env::var_os(NO_LOOP).is_some_and(|value| value == "1") {
            println!("passed over: {NO_LOOP}=1");
            return None;
        }
        let disk = Self { dir: tempfile::tempdir().unwrap() };
        let image = disk.dir.path().join("image");
        File::create(&image).unwrap().set_len(mib << 20).unwrap();
        let mut arguments: Vec<&OsStr> =
            ["-q", "-F", "-m", "0"].iter().chain(options).map(OsStr::new).collect();
        arguments.push(image.as_os_str());
        run("mkfs.ext4", &arguments);
        fs::create_dir(disk.path()).unwrap();
        run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), disk.path().as_os_str()]);
        Some(disk)
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("mount")
    }

    /// Takes some space, for [`free`](Self::free) to give back.
    pub fn take(&self, bytes: usize) {
        let mut ballast = fs::OpenOptions::new().append(true).create(true).open(self.ballast()).unwrap();
        ballast.write_all(&vec![0x55; bytes]).and_then(|()| ballast.sync_data()).unwrap();
    }

    /// Takes all the space that is left, to the last block.
    pub fn fill(&self) {
        let mut ballast = fs::OpenOptions::new().append(true).create(true).open(self.ballast()).unwrap();
        let mut chunk = 1 << 20;
        while chunk > 0 {
            match ballast.write_all(&vec![0x55; chunk]).and_then(|()| ballast.sync_data()) {
                Ok(()) => {}
                Err(_) => chunk /= 2,
            }
        }
    }

    /// Takes all the inodes that are left, for [`free_inodes`](Self::free_inodes) to give back.
    pub fn take_inodes(&self) {
        let _ = fs::create_dir(self.many());
        for number in 0.. {
            let path = self.many().join(format!("{number}"));
            match File::create_new(path) {
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => return,
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                created => drop(created.unwrap()),
            }
        }
    }

    /// Gives back the inodes that were taken.
    pub fn free_inodes(&self) {
        fs::remove_dir_all(self.many()).unwrap();
    }

    fn many(&self) -> PathBuf {
        self.path().join("many")
    }

    /// Gives back all that was taken.
    pub fn free(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }

    /// Holds every write up until the guard is dropped; reads go on. Nobody who writes can be killed meanwhile.
    pub fn freeze(&self) -> Frozen {
        run("fsfreeze", &["--freeze".as_ref(), self.path().as_os_str()]);
        Frozen { mount: self.path() }
    }

    /// Mounts it anew, so that nobody can write to it.
    pub fn make_read_only(&self) {
        run("mount", &["-o".as_ref(), "remount,ro".as_ref(), self.path().as_os_str()]);
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let mount = self.path();
        let gone = |flags: &[&str]| {
            Command::new("umount").args(flags).arg(&mount).status().is_ok_and(|status| status.success())
        };
        // Lazily where something still holds it, so that the machine is left as it was.
        if !gone(&[]) && !gone(&["--lazy"]) {
            eprintln!("{} stays mounted", mount.display());
        }
    }
}

/// A file system that takes no writes; thawed when dropped.
#[derive(Debug)]
pub struct Frozen {
    mount: PathBuf,
}

impl Drop for Frozen {
    fn drop(&mut self) {
        run("fsfreeze", &["--unfreeze".as_ref(), self.mount.as_os_str()]);
    }
}

fn run(program: &str, arguments: &[&OsStr]) {
    let hint = format!(
        "tests of a disk of their own need root, e2fsprogs, util-linux, mount and a loop device; {NO_LOOP}=1 passes over them"
    );
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    match Command::new(program).args(arguments).env("PATH", path).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!(
            "{program} failed ({}): {}\nhint: {hint}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ),
        Err(error) => panic!("{program} cannot be run: {error}\nhint: {hint}"),
    }
}

/// Bytes that the files below `dir` take.
pub fn bytes_below(dir: &Path) -> u64 {
    let mut bytes = 0;
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += if metadata.is_dir() { bytes_below(&entry.path()) } else { metadata.len() };
    }
    bytes
}
