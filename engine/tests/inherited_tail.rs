//! A leader that inherits bytes which only their writer could have synced: it writes them again before it serves them, all
//! of them, and nothing else. The volume is a simulated NFS server: what its first client wrote and did not sync is in its
//! memory, and a sync of the second client does not cover it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use kaas_engine::{Acks, AppendOptions, MayBeNoSpace};
use kaas_fault_injection::faulty::{Faulty, Point, Rule, Rules, Verdict};
use kaas_fault_injection::simulated::{Profile, Simulation};
use kaas_substrate::{
    Adoption, Entry, ErrorClass, File, Kind, LockGuard, OpenMode, RecordFile, Result, Sharing, Space,
    Substrate,
};
use parking_lot::Mutex;
use support::{Volume, batch};

/// What was written through [`OpenMode::Rewrite`]: where, and what.
type Rewritten = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

/// A client that notes what it writes again.
#[derive(Debug, Clone)]
struct Client {
    server: Arc<dyn Substrate>,
    rewritten: Rewritten,
}

#[derive(Debug)]
struct Rewriting {
    inner: Arc<dyn File>,
    rewritten: Rewritten,
}

impl Client {
    /// A client on the second host.
    fn of(simulation: &Simulation) -> Self {
        Self { server: simulation.host(1), rewritten: Rewritten::default() }
    }
}

impl Substrate for Client {
    fn kind(&self) -> Kind {
        self.server.kind()
    }
    fn sharing(&self) -> Sharing {
        self.server.sharing()
    }
    fn adoption(&self) -> Adoption {
        self.server.adoption()
    }
    fn root(&self) -> &Path {
        self.server.root()
    }
    fn create_dir(&self, dir: &Path) -> Result<()> {
        self.server.create_dir(dir)
    }
    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        self.server.list(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.server.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> Result<()> {
        self.server.remove_file(path)
    }
    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.server.remove_dir(dir)
    }
    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.server.sync_dir(dir)
    }
    fn sync_tree(&self, dir: &Path) -> Result<()> {
        self.server.sync_tree(dir)
    }
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        let inner = self.server.open(path, mode)?;
        if mode != OpenMode::Rewrite {
            return Ok(inner);
        }
        Ok(Arc::new(Rewriting { inner, rewritten: Arc::clone(&self.rewritten) }))
    }
    fn make_durable(&self, path: &Path, length: u64) -> Result<()> {
        self.server.make_durable(path, length)
    }
    fn create_records(&self, path: &Path, records: u64) -> Result<()> {
        self.server.create_records(path, records)
    }
    fn open_records(&self, path: &Path) -> Result<Arc<dyn RecordFile>> {
        self.server.open_records(path)
    }
    fn space(&self) -> Result<Space> {
        self.server.space()
    }
    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        self.server.try_lock(path)
    }
}

impl File for Rewriting {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.inner.read_at(buf, offset)
    }
    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>> {
        self.inner.read_at_nowait(buf, offset)
    }
    fn write_all_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.rewritten.lock().push((offset, parts.iter().flat_map(|part| part.to_vec()).collect()));
        self.inner.write_all_at(parts, offset)
    }
    fn sync_data(&self) -> Result<()> {
        self.inner.sync_data()
    }
    fn length(&self) -> Result<u64> {
        self.inner.length()
    }
    fn set_length(&self, length: u64) -> Result<()> {
        self.inner.set_length(length)
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A server that loses everything in its memory with its power.
fn server() -> Simulation {
    Simulation::new(Profile::nfs(), Box::new(|_| 0))
}

/// The first host has sent everything and committed nothing of it when it dies.
fn dies_unsynced(simulation: &Simulation) {
    simulation.advance(Profile::nfs().write_back_ms);
    simulation.crash_host(0);
}

/// A partition whose first leader wrote these values, a batch each, and was killed before it synced them.
fn unsynced(simulation: &Simulation, values: &[String]) -> Volume {
    let mut volume = Volume::on(simulation.host(0), None);
    volume.config.max_message_bytes = 4 << 20;
    let killed = Rules::new([Rule::nth(Point::SyncData, 1, Verdict::Crash).on(".log")]);
    let seen = volume.seen_through(Arc::new(Faulty::new(Arc::clone(&volume.substrate), killed)));
    let log = seen.open();
    // One write, of all of them.
    let records: Vec<u8> = values.iter().flat_map(|value| batch(&[value]).to_vec()).collect();
    let options =
        AppendOptions { acks: Acks::Written, max_batches: values.len(), ..AppendOptions::default() };
    log.partition.append(&records.into(), options).unwrap().wait().unwrap().unwrap();
    // The failed sync may have ended it already.
    let _ = log.partition.abandon().wait();
    volume.after(&seen)
}

fn values() -> Vec<String> {
    // Small ones, and one that is larger than what is read at once.
    let mut values: Vec<_> = (0..50).map(|n| format!("value {n}").repeat(n * 20 + 1)).collect();
    values.insert(20, "large ".repeat(400_000));
    values
}

#[test]
fn what_is_served_survives_the_power_of_the_server() {
    let server = server();
    let values = values();
    let volume = unsynced(&server, &values);
    dies_unsynced(&server);
    let volume = volume.seen_through(server.host(1));
    let log = volume.open();
    assert_eq!(log.partition.status().high_watermark.0, 51);
    log.crash();
    server.lose_power();
    assert_eq!(volume.seen_through(server.host(1)).open().values(), values);
}

#[test]
fn what_counts_is_written_again_and_nothing_else() {
    let server = server();
    let volume = unsynced(&server, &values());
    let segment = Path::new("0/00000001-00000000000000000000.log");
    let file = server.host(0).open(segment, OpenMode::Write).unwrap();
    let counted = file.length().unwrap();
    // A batch whose end has not arrived.
    let torn = batch(&["torn", "off"]);
    file.write_all_at(&[IoSlice::new(&torn[..torn.len() - 3])], counted).unwrap();
    let mut before = vec![0; usize::try_from(counted).unwrap()];
    file.read_at(&mut before, 0).unwrap();
    dies_unsynced(&server);

    let client = Client::of(&server);
    let log = volume.seen_through(Arc::new(client.clone())).open();
    assert_eq!(log.values().len(), 51);
    let mut rewritten = client.rewritten.lock().clone();
    rewritten.sort();
    let mut end = 0;
    for (offset, bytes) in &rewritten {
        assert_eq!(*offset, end, "in order, without a gap");
        let from = usize::try_from(*offset).unwrap();
        assert_eq!(before[from..from + bytes.len()], bytes[..]);
        end += bytes.len() as u64;
    }
    assert_eq!(end, counted);
}

/// Behind a checkpoint only: what lies before it was synced by its writer.
#[test]
fn what_was_synced_is_not_written_again() {
    let server = server();
    let mut volume = Volume::on(server.host(0), None);
    volume.settings.checkpoint_distance_bytes = 10_000;
    let log = volume.open();
    for n in 0..200 {
        log.append(&[&format!("value {n}").repeat(30)]).unwrap();
    }
    log.crash();
    dies_unsynced(&server);
    let client = Client::of(&server);
    let log = volume.seen_through(Arc::new(client.clone())).open();
    assert_eq!(log.values().len(), 200);
    log.close();
    let bytes: usize = client.rewritten.lock().iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(bytes < 12_000, "{bytes}");
    // After a clean close there is nothing that might not be durable.
    let client = Client::of(&server);
    assert_eq!(volume.seen_through(Arc::new(client.clone())).open_at(9).unwrap().values().len(), 200);
    assert!(client.rewritten.lock().is_empty());
}

/// Nothing is served if it cannot be made durable; a later attempt finds the same.
#[test]
fn a_failure_to_write_again_fails_the_open() {
    let server = server();
    let values = values();
    let volume = unsynced(&server, &values);
    dies_unsynced(&server);
    for (point, class) in [
        (Point::Write, ErrorClass::Io),
        (Point::Write, ErrorClass::NoSpace),
        (Point::SyncData, ErrorClass::Io),
    ] {
        let rules = Rules::new([Rule::nth(point, 1, Verdict::Fail(class)).on(".log")]);
        let faulty = Faulty::new(Arc::new(Client::of(&server)), rules.clone());
        let Err(error) = volume.seen_through(Arc::new(faulty)).try_open() else { panic!("it opened") };
        assert_eq!(rules.hits(), 1, "{error}");
        assert_eq!(error.is_no_space(), class == ErrorClass::NoSpace, "{error}");
    }
    assert_eq!(volume.seen_through(server.host(1)).open_at(9).unwrap().values(), values);
}
