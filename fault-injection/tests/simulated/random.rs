//! Random work of one writer against the plainest model of a file: what its own host reads is always what was written
//! last; what another host reads after a sync is that too; what was synced survives every crash.

use super::*;
use kaas_fault_injection::simulated::seeded;

const FILE: &str = "f";
const BYTES_MAX: u64 = 20_000;

/// The file as it must be.
#[derive(Default)]
struct Model {
    bytes: Vec<u8>,
    /// Which bytes a crash may change: those that were written, cut off or added since the last sync.
    loose: Vec<bool>,
    /// The shortest it was since then.
    shortest: usize,
}

impl Model {
    fn resize(&mut self, length: usize) {
        let old = self.bytes.len();
        self.bytes.resize(length, 0);
        self.loose.resize(self.loose.len().max(length), true);
        self.loose[old.min(length)..].fill(true);
        self.shortest = self.shortest.min(length);
    }

    fn write(&mut self, bytes: &[u8], at: usize) {
        if self.bytes.len() < at + bytes.len() {
            self.resize(at + bytes.len());
        }
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.loose[at..at + bytes.len()].fill(true);
    }

    fn sync(&mut self) {
        self.loose = vec![false; self.bytes.len()];
        self.shortest = self.bytes.len();
    }

    /// Goes on from what a crash has left.
    fn after_crash(&mut self, found: Vec<u8>, seed: u64) {
        assert!(found.len() >= self.shortest, "seed {seed}: {} of {} bytes", found.len(), self.shortest);
        for (at, (is, was)) in found.iter().zip(&self.bytes).enumerate() {
            assert!(self.loose[at] || is == was, "seed {seed}: byte {at} is {is} and was {was}");
        }
        self.bytes = found;
    }
}

fn run(profile: &Profile, seed: u64) -> Vec<u8> {
    let mut random = seeded(!seed);
    let simulation = Simulation::new(profile.clone(), seeded(seed));
    let shared = matches!(profile.sharing, kaas_substrate::Sharing::ManyHosts);
    put(&*simulation.host(0), FILE, b"");
    simulation.host(0).sync_dir(path("")).unwrap();
    let (mut model, mut fill) = (Model::default(), 0);
    let open = |mode| simulation.host(0).open(path(FILE), mode).unwrap();
    let mut handle = open(OpenMode::Write);
    for _ in 0..60 {
        match random(16) {
            0..=5 => {
                fill = fill % 250 + 1;
                let rewrites = random(4) == 0;
                let file = if rewrites { open(OpenMode::Rewrite) } else { Arc::clone(&handle) };
                let at = random(model.bytes.len() as u64 + 2_000).min(BYTES_MAX);
                let bytes = vec![fill; usize::try_from(random(6_000)).unwrap()];
                write(&*file, &bytes, at);
                model.write(&bytes, usize::try_from(at).unwrap());
                if rewrites {
                    file.sync_data().unwrap();
                    model.sync();
                }
            }
            6 => {
                let length = random(model.bytes.len() as u64 + 1_000).min(BYTES_MAX);
                handle.set_length(length).unwrap();
                model.resize(usize::try_from(length).unwrap());
            }
            7 | 8 => {
                if random(2) == 0 {
                    handle.sync_data().unwrap();
                } else {
                    simulation.host(0).make_durable(path(FILE), 0).unwrap();
                }
                model.sync();
                if shared {
                    let mode = [OpenMode::Read, OpenMode::ReadUncached][usize::try_from(random(2)).unwrap()];
                    assert_eq!(
                        content(&*simulation.host(1), FILE, mode).unwrap(),
                        model.bytes,
                        "seed {seed}"
                    );
                }
            }
            9 => {
                simulation.write_back(0);
            }
            10 => simulation.advance(random(20_000)),
            11 => simulation.drop_caches(0),
            12 => {
                simulation.crash_server();
                simulation.start_server();
            }
            13 => {
                drop(handle);
                handle = open(OpenMode::Write);
            }
            14 => {
                simulation.crash_host(0);
                let survivor = simulation.host(usize::from(shared));
                model.after_crash(fresh(&*survivor, FILE).unwrap(), seed);
                // What the host had sent before is made durable as a leader does it that takes over.
                handle = open(OpenMode::Rewrite);
                write(&*handle, &model.bytes, 0);
                handle.sync_data().unwrap();
                model.sync();
            }
            _ => {
                simulation.lose_power();
                model.after_crash(fresh(&*simulation.host(0), FILE).unwrap(), seed);
                model.sync();
                handle = open(OpenMode::Write);
            }
        }
        let reads = [OpenMode::Read, OpenMode::ReadUncached][usize::try_from(random(2)).unwrap()];
        assert_eq!(
            content(&*simulation.host(0), FILE, reads).unwrap(),
            model.bytes,
            "seed {seed}: {reads:?}"
        );
        assert_eq!(read(&*handle), model.bytes, "seed {seed}: a held handle");
        assert_eq!(handle.length().unwrap(), model.bytes.len() as u64, "seed {seed}");
    }
    model.bytes
}

#[test]
fn one_writer_reads_what_it_wrote_and_keeps_what_it_synced() {
    for profile in [Profile::local(), Profile::nfs(), Profile::cephfs()] {
        for seed in 0..150 {
            run(&profile, seed);
        }
    }
}

#[test]
fn the_same_choices_make_the_same_run() {
    for profile in [Profile::local(), Profile::nfs(), Profile::cephfs()] {
        assert_eq!(run(&profile, 7), run(&profile, 7));
    }
}
