//! A leader that works at random and remembers what it was told, for tests that let leaders go through much.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, clippy::cast_possible_truncation)]

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use kaas_engine::completion::{Abandoned, Ticket};
use kaas_engine::types::Offset;
use kaas_engine::verify::{Expected, Options, Progress, Severity, verify_partition};
use kaas_engine::{AppendError, AppendOptions, EngineError, LogConfig};
use kaas_fault_injection::faulty::{Faulty, Hook, Point, Verdict};
use kaas_fault_injection::stepping::Stepper;
use kaas_substrate::ErrorClass;
use parking_lot::Mutex;

use super::{Log, Volume, decode, producer_batch};

/// A small generator of numbers (SplitMix64): the same seed, the same run.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    /// Another generator, which depends on this one.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }
}

/// What everybody was told, over all leaders.
#[derive(Debug, Default)]
pub struct History {
    /// Acknowledged or read: offset and value.
    pub seen: BTreeMap<i64, String>,
    /// Where each value stands: a batch that is sent again is not appended again.
    places: BTreeMap<String, i64>,
    /// The highest log start that was acknowledged, and the highest that was asked for.
    pub log_start: i64,
    pub log_start_asked: i64,
    pub problems: Vec<String>,
}

impl History {
    fn saw(&mut self, offset: i64, value: &str, how: &str) {
        let known = self.seen.entry(offset).or_insert_with(|| value.to_owned());
        let place = *self.places.entry(value.to_owned()).or_insert(offset);
        if place != offset {
            self.problems.push(format!("{value} was at offset {place}, and then at {offset} ({how})"));
        }
        if known != value {
            self.problems.push(format!("offset {offset} held {known}, and then {value} ({how})"));
        }
    }
}

/// Steps with the others; now and then the volume is full, or the process dies.
#[derive(Debug)]
pub struct Unlucky {
    pub stepper: Option<Arc<Stepper>>,
    pub random: Mutex<Random>,
    /// A call in so many is the last one; 0: none.
    pub crash_one_in: u64,
    /// A write of records in so many finds the volume full; 0: none.
    pub full_one_in: u64,
}

impl Hook for Unlucky {
    fn before(&self, point: Point, path: &Path) -> Verdict {
        let verdict = self.stepper.as_ref().map_or(Verdict::Pass, |stepper| stepper.before(point, path));
        let mut random = self.random.lock();
        if self.crash_one_in > 0 && random.one_in(self.crash_one_in) {
            return if point == Point::Write {
                Verdict::CrashShort { bytes: random.below(300) as usize }
            } else {
                Verdict::Crash
            };
        }
        let is_log = path.extension().is_some_and(|extension| extension == "log" || extension == "jsonl");
        if self.full_one_in > 0 && point == Point::Write && is_log && random.one_in(self.full_one_in) {
            return Verdict::Short { bytes: random.below(400) as usize, class: ErrorClass::NoSpace };
        }
        verdict
    }
}

/// Runs `job` on the one thread of the leader's pool, and waits until nothing is left to do there.
fn on_pool<T: Send + 'static>(log: &Log, job: impl FnOnce(&Log) -> T + Send + 'static) -> T {
    let inside = Log { engine: log.engine.clone(), partition: Arc::clone(&log.partition) };
    let outcome = log.engine.io().run(move || job(&inside)).unwrap().wait().unwrap();
    // The job may have started the worker, and that one a look at the fence.
    for _ in 0..3 {
        log.engine.io().run(|| ()).unwrap().wait().unwrap();
    }
    outcome
}

/// What a ticket is told; a panic if that never happens.
fn told<T>(ticket: Ticket<T>) -> Result<T, Abandoned> {
    ticket.wait_for(Duration::from_secs(20)).expect("a ticket hangs")
}

pub struct Actor {
    number: usize,
    pub volume: Volume,
    hook: Arc<Unlucky>,
    random: Random,
    epochs: Arc<AtomicU32>,
    history: Arc<Mutex<History>>,
    /// The next batch's, and those that have to be sent again.
    sequence: i32,
    unacknowledged: VecDeque<(i32, String)>,
    /// The volume as the run of the broker that is under way sees it.
    process: Option<Faulty>,
}

impl Actor {
    pub fn new(
        number: usize,
        volume: Volume,
        hook: Arc<Unlucky>,
        random: Random,
        epochs: Arc<AtomicU32>,
        history: Arc<Mutex<History>>,
    ) -> Self {
        Self {
            number,
            volume,
            hook,
            random,
            epochs,
            history,
            sequence: 0,
            unacknowledged: VecDeque::new(),
            process: None,
        }
    }

    /// Opens and works as several runs of one broker, one after the other.
    pub fn work(&mut self) {
        let runs = 1 + self.random.below(3);
        for _ in 0..runs {
            let faulty = Faulty::new(Arc::clone(&self.volume.substrate), Arc::clone(&self.hook) as _);
            let volume = self.volume.seen_through(Arc::new(faulty.clone()));
            self.process = Some(faulty);
            let epoch = self.epochs.fetch_add(1, Ordering::SeqCst);
            match volume.open_at(epoch) {
                Ok(log) => self.lead(&log),
                Err(error @ (EngineError::Damaged { .. } | EngineError::NewerFormat { .. })) => {
                    let problem = format!("actor {} at epoch {epoch}: {error}", self.number);
                    self.history.lock().problems.push(problem);
                }
                Err(_) => {}
            }
        }
    }

    fn lead(&mut self, log: &Log) {
        for _ in 0..(2 + self.random.below(8)) {
            let goes_on = match self.random.below(12) {
                0 => self.delete(log),
                1 => self.maintain(log),
                2..=4 => self.read(log),
                _ => self.append(log),
            };
            if !goes_on {
                break;
            }
        }
        if self.random.one_in(2) {
            let _ = told(on_pool(log, |log| log.partition.close()));
        } else {
            let _ = told(on_pool(log, |log| log.partition.abandon()));
        }
        on_pool(log, |_| ());
    }

    /// Sends what was not acknowledged before once more, or something new, several batches at once; as an idempotent
    /// producer would.
    fn append(&mut self, log: &Log) -> bool {
        if self.unacknowledged.is_empty() {
            for _ in 0..1 + self.random.below(4) {
                let value = format!("{}-{}", self.number, self.sequence);
                self.unacknowledged.push_back((self.sequence, value));
                self.sequence += 1;
            }
        }
        let (staged, producer) = (self.unacknowledged.clone(), self.number as i64 + 1);
        let tickets: Vec<_> = on_pool(log, move |log| {
            let append = |(sequence, value): &(i32, String)| {
                let batch = producer_batch(producer, 0, *sequence, &[value]);
                log.partition.append(&batch, AppendOptions::default())
            };
            staged.iter().map(append).collect()
        });
        let mut goes_on = true;
        if self.process.as_ref().is_some_and(Faulty::has_crashed) {
            // Nobody is told anything by a dead process, which cannot ask its fence any more either.
            let _ = on_pool(log, |log| log.partition.abandon()).wait();
            goes_on = false;
        }
        let mut in_order = true;
        for ((sequence, value), ticket) in self.unacknowledged.clone().into_iter().zip(tickets) {
            match ticket.and_then(|ticket| told(ticket).unwrap()) {
                Ok(appended) => {
                    self.history.lock().saw(appended.base_offset.0, &value, "acknowledged");
                    if in_order {
                        self.unacknowledged.pop_front();
                    }
                }
                Err(AppendError::NoSpace(_)) => in_order = false,
                Err(error) => {
                    // A batch behind one that was refused in this very moment is out of order, and comes again.
                    if in_order && let AppendError::Producer(error) = error {
                        let problem = format!("sequence {sequence} of actor {}: {error}", self.number);
                        self.history.lock().problems.push(problem);
                    }
                    (in_order, goes_on) = (false, false);
                }
            }
        }
        goes_on
    }

    fn read(&mut self, log: &Log) -> bool {
        let from = log.partition.status().log_start.0;
        let read = on_pool(log, move |log| {
            let (mut records, mut from) = (Vec::new(), from);
            while let Ok(fetched) = log.read(from) {
                let Some(last) = decode(&fetched).last().map(|(offset, _)| *offset) else { break };
                records.extend(decode(&fetched).into_iter().filter(|(offset, _)| *offset >= from));
                from = last + 1;
            }
            records
        });
        let mut history = self.history.lock();
        for (offset, value) in &read {
            history.saw(*offset, value, "read");
        }
        true
    }

    fn delete(&mut self, log: &Log) -> bool {
        let status = log.partition.status();
        let span = (status.high_watermark.0 - status.log_start.0).max(0) as u64;
        let before = status.log_start.0 + self.random.below(span + 1) as i64;
        {
            let mut history = self.history.lock();
            history.log_start_asked = history.log_start_asked.max(before);
        }
        let ticket = on_pool(log, move |log| log.partition.delete_records(Some(Offset(before))));
        match told(ticket).unwrap() {
            Ok(_) => {
                let mut history = self.history.lock();
                history.log_start = history.log_start.max(before);
                true
            }
            Err(EngineError::Storage(_)) => true,
            Err(_) => false,
        }
    }

    fn maintain(&mut self, log: &Log) -> bool {
        told(on_pool(log, |log| log.partition.maintain())).unwrap().is_ok()
    }
}

/// The volume with settings chosen at random that make segments, checkpoints and cycles small.
pub fn small_volume(random: &mut Random, mut volume: Volume) -> Volume {
    let segment_bytes = [250, 500, 1 << 20][random.below(3) as usize];
    volume.config = LogConfig { segment_bytes, index_interval_bytes: 60, ..LogConfig::default() };
    volume.settings.checkpoint_distance_bytes = [200, 600, 1 << 20][random.below(3) as usize];
    volume.settings.tail_bytes_max = [0, 4 << 20][random.below(2) as usize];
    volume.settings.cycle_bytes_max = [100, 1 << 20][random.below(2) as usize];
    volume.settings.io.max_threads = 1;
    volume
}

/// The last word: everything anybody saw is there, at its offset.
pub fn check(log: &Log, history: &mut History) {
    let start = log.partition.status().log_start.0;
    if start < history.log_start || start > history.log_start_asked {
        let History { log_start, log_start_asked, .. } = *history;
        let problem = format!("log start {start}; told {log_start}, asked for {log_start_asked}");
        history.problems.push(problem);
    }
    let mut records = BTreeMap::new();
    let mut from = start;
    while from < log.partition.status().high_watermark.0 {
        match log.read(from).map(|fetched| decode(&fetched)) {
            Ok(read) if !read.is_empty() => {
                from = read.last().map_or(from, |(offset, _)| offset + 1);
                records.extend(read);
            }
            other => {
                history.problems.push(format!("nothing can be read at offset {from}: {other:?}"));
                break;
            }
        }
    }
    for (offset, value) in &records {
        history.saw(*offset, value, "read at last");
    }
    for (offset, value) in history.seen.range(start..) {
        if records.get(offset) != Some(value) {
            let found = records.get(offset);
            history.problems.push(format!("{value} was at offset {offset}; now {found:?} is"));
        }
    }
}

/// What `kaas-engine verify` has to say about a volume that nobody leads at the moment: torn writes and litter at most.
pub fn verify(volume: &Volume, history: &mut History) {
    let options = Options { now: super::START, second_look_after: Duration::ZERO, ..Options::default() };
    let expected = Expected::default();
    let report = verify_partition(&*volume.substrate, &volume.dir, &expected, &options, &Progress::default());
    let findings = report.findings.iter().filter(|finding| finding.severity == Severity::Error);
    history.problems.extend(findings.map(|finding| format!("{finding:?}")));
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// Runs the seed in `KAAS_SEED`, or as many as `KAAS_SCHEDULES` says, and panics with those that find problems.
pub fn try_seeds(schedules: u64, run: impl Fn(u64) -> Vec<String> + Sync) {
    if let Some(seed) = setting("KAAS_SEED") {
        assert_eq!(run(seed), Vec::<String>::new(), "seed {seed}");
        return;
    }
    let schedules = setting("KAAS_SCHEDULES").unwrap_or(schedules);
    let next = AtomicU64::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= schedules || failed.lock().len() > 20 {
                        break;
                    }
                    let problems = run(seed);
                    if !problems.is_empty() {
                        failed.lock().push((seed, problems));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    assert!(failed.is_empty(), "run again with KAAS_SEED=<seed>: {failed:#?}");
}
