//! Leaders on two kernel NFS clients, and everything that can befall them. See docs/labs.md.
//!
//! Needs root, Debian's user-mode-linux and NFS packages and /dev/net/tun; where they are missing, or with
//! `KAAS_TEST_NO_LAB=1`, these tests are passed over.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::io::{BufRead, BufReader, IoSlice};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kaas_fault_injection::lab::{self, Machine};
use kaas_lab::Remote;
use kaas_lab::conformance::{broken_rules, broken_rules_of};
use kaas_lab::history::tells_loss;
use kaas_lab::protocol::{Call, Value};
use kaas_lab::scenarios;
use kaas_lab::scenarios::{PARTITION, Scene};
use kaas_lab::site::{Guests, Site as _};
use kaas_substrate::{OpenMode, Substrate as _};

const ACTOR: &str = env!("CARGO_BIN_EXE_kaas-lab-actor");

/// One lab for all tests of this file, one test at a time. It goes away with this process.
static LAB: Mutex<Option<Guests>> = Mutex::new(None);

struct Site(MutexGuard<'static, Option<Guests>>);

impl std::ops::Deref for Site {
    type Target = Guests;

    fn deref(&self) -> &Guests {
        self.0.as_ref().unwrap()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Nobody knows what state it is in: the next test gets another.
            *self.0 = None;
        }
    }
}

fn site() -> Option<Site> {
    if let Some(reason) = lab::why_not(&["nfs"]) {
        eprintln!("passed over, no lab: {reason}");
        return None;
    }
    let mut site = LAB.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if site.is_none() {
        *site = Some(Guests::on_nfs(Path::new(ACTOR)));
    }
    Some(Site(site))
}

#[test]
fn a_leader_whose_process_is_paused() {
    let Some(site) = site() else { return };
    scenarios::paused_process(&*site);
}

#[test]
fn a_leader_whose_host_is_frozen() {
    let Some(site) = site() else { return };
    scenarios::frozen_host(&*site, Duration::from_secs(1));
}

#[test]
fn a_leader_that_is_cut_off() {
    let Some(site) = site() else { return };
    scenarios::cut_off(&*site, Duration::from_secs(1));
}

#[test]
fn a_leader_whose_host_loses_power() {
    let Some(site) = site() else { return };
    scenarios::host_loses_power(&*site);
}

#[test]
fn a_server_that_restarts() {
    let Some(site) = site() else { return };
    scenarios::server_restarts(&*site);
}

#[test]
fn a_server_that_freezes() {
    let Some(site) = site() else { return };
    scenarios::server_freezes(&*site, Duration::from_secs(3));
}

#[test]
fn a_server_and_a_leader_that_lose_power_together() {
    let Some(site) = site() else { return };
    scenarios::all_lose_power(&*site);
}

#[test]
fn leadership_that_goes_to_and_fro() {
    let Some(site) = site() else { return };
    scenarios::to_and_fro(&*site, 6);
}

/// A server whose fsync lies loses what was acknowledged, and the checker sees it: were that not so, the tests above
/// would show nothing.
#[test]
fn a_server_that_lies_is_found_out() {
    let Some(site) = site() else { return };
    let mut scene = Scene::new(&*site, "lying-server");
    site.restart_lying();
    // The partition itself and its first records are on the disk.
    let old = scene.leader(1);
    site.sync_server();
    old.until_acknowledged(200);
    site.lose_all_power(1);
    old.hang_up();
    site.start_server();
    let reader = scene.actor(2);
    let opened = reader.try_call(Call::Open { dir: PARTITION.into(), epoch: scene.next_epoch() });
    match opened {
        Ok(_) => {
            let Value::Records(log) = reader.call(Call::Read) else { panic!("no records") };
            let checked = scene.compare(&[&old], &log);
            assert!(!checked.broken.is_empty(), "nothing was lost: {checked}");
            assert!(
                checked
                    .broken
                    .iter()
                    .all(|line| line.contains("was acknowledged") || line.contains("was read"))
            );
            eprintln!("lying server: {checked}; {} promises broken", checked.broken.len());
        }
        // The engine itself may see that something is missing; that it does not open for another reason shows nothing.
        Err(failure) => {
            tells_loss(&failure, PARTITION).unwrap_or_else(|other| panic!("{other}"));
            eprintln!("lying server: not opened: {}", failure.text);
        }
    }
    drop(reader);
    site.restore(1);
}

/// Writes 8 KiB into each of the named files, which it creates, and has them sent, but not committed: the server has them in its
/// memory. The files stay open, since closing them commits.
const WRITE_UNCOMMITTED: &str = "
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
for name in sys.argv[1:]:
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.pwrite(file, b'u' * 8192, 0)
    # Not in one call: that would ask for stable storage.
    begin, wait = 2, 1
    for flags in begin, wait:
        if libc.sync_file_range(file, ctypes.c_int64(0), ctypes.c_int64(0), flags):
            sys.exit('sync_file_range failed')
print('sent', flush=True)
time.sleep(1000)
";

/// Why a leader on NFS writes again what it inherits: bytes that a client has sent and not committed are read by everybody, and no
/// other client's sync makes them durable; only writing them again does.
#[test]
fn bytes_that_their_client_never_committed() {
    let Some(site) = site() else { return };
    const DIR: &str = "uncommitted";
    let files = [Path::new("synced"), Path::new("rewritten")];
    let read = |host: u8| {
        let reader = Remote::open(&Arc::new(site.actor(host, DIR)), "files");
        files.map(|name| {
            let mut bytes = vec![0; 8192];
            let file = reader.open(name, OpenMode::ReadUncached).unwrap();
            let read = file.read_at(&mut bytes, 0).unwrap();
            bytes.truncate(read);
            bytes
        })
    };
    let other = Remote::open(&Arc::new(site.actor(2, DIR)), "files");
    // Otherwise what is sent is committed a moment later, and a client would have to be cut off in between.
    site.nfs().unmount(1).unwrap();
    site.nfs().mount(1, Some("vers=4.2,hard,timeo=50,retrans=2,write=eager")).unwrap();
    let mut command = site.nfs().command(Machine::Client(1), Path::new("/usr/bin/python3"));
    command.args(["-c", WRITE_UNCOMMITTED]).args(files.map(|name| other.root().join(name)));
    let mut writer = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(writer.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "sent\n");

    let whole = vec![b'u'; 8192];
    assert!(read(2).iter().all(|read| *read == whole), "what was sent is seen");
    let [synced, rewritten] = files;
    other.make_durable(synced, 8192).unwrap();
    let file = other.open(rewritten, OpenMode::Rewrite).unwrap();
    file.write_all_at(&[IoSlice::new(&whole)], 0).unwrap();
    file.sync_data().unwrap();
    drop((file, other));

    site.lose_all_power(1);
    writer.kill().unwrap();
    writer.wait().unwrap();
    site.start_server();
    let [synced, rewritten] = read(2);
    assert!(rewritten == whole, "what was written again is lost");
    assert!(synced != whole, "a sync of another client was enough");
    eprintln!(
        "uncommitted bytes: {} of {} left after a sync, {} after a rewrite",
        synced.len(),
        whole.len(),
        rewritten.len()
    );
    site.restore(1);
}

#[test]
fn two_clients_conform() {
    let Some(site) = site() else { return };
    let broken = broken_rules(site.actor(1, "conformance"), site.actor(2, "conformance"));
    assert_eq!(broken, Vec::<String>::new());
}

/// The implementation for file systems of one host does not do on two: the suite sees what is cached.
#[test]
fn two_clients_that_cache_as_on_one_host_are_found_out() {
    let Some(site) = site() else { return };
    let (first, second) = (site.actor_as_local(1, "as-local"), site.actor_as_local(2, "as-local"));
    let broken = broken_rules_of(first, second, |rule| {
        ["a record is read", "extending"].iter().any(|name| rule.starts_with(name))
    });
    assert!(!broken.is_empty(), "nothing was found");
}
