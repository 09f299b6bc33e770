//! The simulated volume does what was seen on real mounts, each in a test of its own, and each switch breaks what it says.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod broken;
mod ceph;
mod crashes;
mod local;
mod moves;
mod nfs;
mod partitions;
mod random;

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use kaas_fault_injection::simulated::{Choose, Profile, Simulation};
use kaas_substrate::{ErrorClass, File, OpenMode, Substrate};

/// Choices that are always the tamest: caches are not stale where that is open, crashes lose everything they can.
fn tame() -> Choose {
    Box::new(|_| 0)
}

/// Choices that are always the highest number: caches are as stale as they may be, crashes lose nothing.
fn wild() -> Choose {
    Box::new(|below| below - 1)
}

/// Two hosts of a volume.
fn two(profile: Profile, choose: Choose) -> (Simulation, Arc<dyn Substrate>, Arc<dyn Substrate>) {
    let simulation = Simulation::new(profile, choose);
    let (a, b) = (simulation.host(0), simulation.host(1));
    (simulation, a, b)
}

fn path(name: &str) -> &Path {
    Path::new(name)
}

fn write(file: &dyn File, bytes: &[u8], offset: u64) {
    file.write_all_at(&[IoSlice::new(bytes)], offset).unwrap();
}

/// A new file with this content; not synced.
fn create(volume: &dyn Substrate, name: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = volume.open(path(name), OpenMode::CreateNew).unwrap();
    write(file.as_ref(), bytes, 0);
    file
}

/// A new file with this content; synced, but for its name.
fn put(volume: &dyn Substrate, name: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = create(volume, name, bytes);
    file.sync_data().unwrap();
    file
}

fn read(file: &dyn File) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 16];
    let count = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(count);
    bytes
}

/// The content of a file through a fresh open.
fn content(volume: &dyn Substrate, name: &str, mode: OpenMode) -> Result<Vec<u8>, ErrorClass> {
    volume.open(path(name), mode).map(|file| read(file.as_ref())).map_err(|error| error.class)
}

fn fresh(volume: &dyn Substrate, name: &str) -> Result<Vec<u8>, ErrorClass> {
    content(volume, name, OpenMode::ReadUncached)
}

fn names(volume: &dyn Substrate, dir: &str) -> Vec<String> {
    let mut names: Vec<_> = volume.list(path(dir)).unwrap().into_iter().map(|entry| entry.name).collect();
    names.sort();
    names.into_iter().map(|name| name.into_string().unwrap()).collect()
}
