//! The operations on a partition's files.

use std::sync::Arc;

use kaas_engine::types::Offset;
use kaas_engine::{AppendError, AppendOptions, EngineError, ReadError, State, TimeQuery};
use kaas_fault_injection::faulty::{Effect, Faulty, Hook, Point, Rule, Verdict};
use kaas_substrate::{ErrorClass, Substrate};

use super::harness::{Case, Fault, Outcome, case, until};
use super::support::{Log, Volume, producer_batch};

const PRODUCER: i64 = 5;

/// A partition on a volume that fails when it is told to, and what its clients know.
struct Bench {
    clean: Volume,
    faulty: Volume,
    acknowledged: Vec<String>,
    refused: Vec<String>,
    sent: i32,
}

impl Bench {
    /// Segments of two batches; a checkpoint every `checkpoint_bytes`.
    fn new(fault: &Fault, checkpoint_bytes: u64) -> Self {
        let mut clean = Volume::memory();
        clean.config.segment_bytes = 170;
        clean.config.index_interval_bytes = 1;
        clean.settings.checkpoint_distance_bytes = checkpoint_bytes;
        clean.settings.fence_retry_ms = 1;
        let hook: Arc<dyn Hook> = Arc::clone(&fault.rules) as _;
        let faulty: Arc<dyn Substrate> = Arc::new(Faulty::new(Arc::clone(&clean.substrate), hook));
        let faulty = clean.seen_through(faulty);
        Self { clean, faulty, acknowledged: Vec::new(), refused: Vec::new(), sent: 0 }
    }

    fn next(&self) -> (bytes::Bytes, String) {
        let value = format!("value-{:02}", self.sent);
        (producer_batch(PRODUCER, 0, self.sent, &[&value]), value)
    }

    fn append(&mut self, log: &Log) -> Result<(), AppendError> {
        let (batch, value) = self.next();
        let appended = log.append_batch(&batch)?;
        assert_eq!(appended.base_offset, Offset(self.acknowledged.len() as i64));
        self.acknowledged.push(value);
        self.sent += 1;
        Ok(())
    }

    /// A partition with an active segment of one batch, behind `closed` rolled ones.
    fn with_segments(fault: &Fault, closed: usize) -> (Self, Log) {
        let mut bench = Self::new(fault, 1 << 20);
        let log = bench.faulty.open();
        for _ in 0..2 * closed + 1 {
            bench.append(&log).unwrap();
        }
        (bench, log)
    }

    /// The same, opened anew: nothing is in memory, nothing is being appended to.
    fn reopened(fault: &Fault) -> (Self, Log) {
        let (bench, log) = Self::with_segments(fault, 2);
        log.crash();
        let log = bench.faulty.open();
        (bench, log)
    }

    /// What an append came to that meets the error; the error has gone afterwards.
    fn append_under(&mut self, fault: &Fault, log: &Log) -> Outcome {
        let (batch, value) = self.next();
        let before = log.partition.status().high_watermark;
        let ticket = log.partition.append(&batch, AppendOptions::default()).unwrap();
        // Without a descriptor for the directory the sync is tried again, and the leader is as sure as before.
        let waits_for_sync = fault.case.point == Point::SyncDir && fault.is_no_descriptors();
        let is_unsure = || log.partition.status().state == State::Unsure;
        until("the append is told of, or waits", || {
            ticket.is_told() || is_unsure() || (waits_for_sync && fault.rules.hits() > 3)
        });
        if !ticket.is_told() {
            assert_eq!(log.partition.status().high_watermark, before);
            if is_unsure() {
                assert!(matches!(log.read(0), Err(ReadError::NotLeader { .. })), "served, though unsure");
            }
            fault.mend();
            ticket.wait().unwrap().unwrap();
            self.acknowledged.push(value);
            self.sent += 1;
            return Outcome::Waits;
        }
        match ticket.wait().unwrap() {
            Ok(_) => {
                self.acknowledged.push(value);
                self.sent += 1;
                // What comes after a commit is done when the next request is.
                let _ = log.partition.delete_records(Some(Offset(0))).wait().unwrap();
                Outcome::GoesOn
            }
            Err(AppendError::NoSpace(error) | AppendError::NoDescriptors(error)) => {
                assert!(matches!(error.class, ErrorClass::NoSpace | ErrorClass::NoDescriptors));
                self.refused.push(value);
                Outcome::Refused
            }
            Err(AppendError::Storage { .. }) => Outcome::LedAnew,
            Err(error) => panic!("{error}"),
        }
    }

    /// What must hold whatever the outcome; the last step of every case.
    fn settle(mut self, fault: &Fault, log: Option<Log>, outcome: Outcome, log_start: i64) -> Outcome {
        fault.mend();
        let log = match (log, outcome) {
            (Some(log), Outcome::LedAnew) => {
                assert!(matches!(log.partition.status().state, State::Poisoned { .. }));
                assert!(matches!(log.append(&["x"]), Err(AppendError::Storage { .. })), "it takes appends");
                assert!(matches!(log.read(log_start), Err(ReadError::NotLeader { .. })), "it serves");
                // As the broker does: whatever this says, the partition has ended.
                let _ = log.partition.abandon().wait().unwrap();
                self.faulty.open()
            }
            (Some(log), _) => log,
            (None, _) => self.faulty.open(),
        };
        // What was refused goes in now under the same sequence number. What is in doubt may be there: then it is a duplicate.
        let (batch, value) = self.next();
        let (log, appended) = match log.append_batch(&batch) {
            // The failed call had its effect, which is only noticed now.
            Err(AppendError::Storage { .. }) if fault.has_its_effect() => {
                let _ = log.partition.abandon().wait().unwrap();
                let log = self.faulty.open();
                let appended = log.append_batch(&batch).unwrap();
                (log, appended)
            }
            appended => (log, appended.unwrap()),
        };
        assert_eq!(appended.base_offset, Offset(self.acknowledged.len() as i64), "a gap, or a loss");
        self.acknowledged.push(value);
        self.refused.clear();
        self.sent += 1;
        self.append(&log).unwrap();
        self.check(&log, log_start);
        log.crash();
        let clean = self.clean.after(&self.faulty);
        let log = clean.open();
        let records = log.records();
        let offsets: Vec<i64> = records.iter().map(|(offset, _)| *offset).collect();
        assert_eq!(offsets.first(), Some(&log_start));
        assert!(records.iter().all(|(offset, value)| self.acknowledged[*offset as usize] == *value));
        assert_eq!(offsets.len() as i64, self.acknowledged.len() as i64 - log_start);
        log.close();
        outcome
    }

    fn check(&self, log: &Log, log_start: i64) {
        let values = log.values();
        assert_eq!(values, self.acknowledged[log_start as usize..]);
        assert!(self.refused.iter().all(|refused| !values.contains(refused)));
    }
}

fn append(fault: &Fault) -> Outcome {
    let (mut bench, log) = Bench::with_segments(fault, 1);
    fault.arm();
    let outcome = bench.append_under(fault, &log);
    bench.settle(fault, Some(log), outcome, 0)
}

fn first_append(fault: &Fault) -> Outcome {
    let (mut bench, log) = Bench::reopened(fault);
    fault.arm();
    let outcome = bench.append_under(fault, &log);
    bench.settle(fault, Some(log), outcome, 0)
}

/// An append that does not fit into the active segment any more.
fn rolling_append(fault: &Fault) -> Outcome {
    let (mut bench, log) = Bench::with_segments(fault, 1);
    bench.append(&log).unwrap();
    fault.arm();
    let outcome = bench.append_under(fault, &log);
    bench.settle(fault, Some(log), outcome, 0)
}

/// The write finds the volume full after some bytes of a first batch; they are cut off.
fn half_written_append(fault: &Fault) -> Outcome {
    let (mut bench, log) = Bench::with_segments(fault, 1);
    let effect = Effect::Part { bytes: 50 };
    fault.rules.add(Rule::nth(Point::Write, 1, Verdict::Errno { number: 28, effect }).on(".log"));
    fault.arm();
    let outcome = bench.append_under(fault, &log);
    bench.settle(fault, Some(log), outcome, 0)
}

fn checkpointing_append(fault: &Fault) -> Outcome {
    let mut bench = Bench::new(fault, 300);
    bench.clean.config.segment_bytes = 1 << 20;
    bench.faulty.config.segment_bytes = 1 << 20;
    let log = bench.faulty.open();
    for _ in 0..3 {
        bench.append(&log).unwrap();
    }
    fault.arm();
    let outcome = bench.append_under(fault, &log);
    bench.settle(fault, Some(log), outcome, 0)
}

fn delete_records(fault: &Fault) -> Outcome {
    let (bench, log) = Bench::with_segments(fault, 2);
    fault.arm();
    let outcome = match log.partition.delete_records(Some(Offset(3))).wait().unwrap() {
        Ok(_) => Outcome::GoesOn,
        Err(_) if log.partition.status().state == State::Leading => Outcome::RequestFails,
        Err(_) => Outcome::LedAnew,
    };
    if outcome == Outcome::RequestFails {
        assert_eq!(log.partition.status().log_start, Offset(0), "acted on before it was certain");
    }
    fault.mend();
    if outcome == Outcome::LedAnew {
        // The manifest with the new start was durable before the fence was asked.
        return bench.settle(fault, Some(log), outcome, 3);
    }
    assert_eq!(log.partition.delete_records(Some(Offset(3))).wait().unwrap().unwrap(), Offset(3));
    log.partition.maintain().wait().unwrap().unwrap();
    let left = bench.clean.substrate.list(&bench.clean.dir).unwrap();
    let logs = left.iter().filter(|entry| entry.name.to_string_lossy().ends_with(".log")).count();
    assert_eq!(logs, 2, "files of deleted segments stay");
    bench.settle(fault, Some(log), outcome, 3)
}

fn close(fault: &Fault) -> Outcome {
    let (bench, log) = Bench::with_segments(fault, 1);
    fault.arm();
    log.partition.close().wait().unwrap().unwrap();
    assert_eq!(log.partition.status().state, State::Closed);
    bench.settle(fault, None, Outcome::GoesOn, 0)
}

/// A close that has something left to sync, as with `flush.messages`.
fn close_unsynced(fault: &Fault) -> Outcome {
    let (bench, log) = Bench::with_segments(fault, 1);
    let mut config = (*log.partition.config()).clone();
    config.flush_messages = 100;
    log.partition.set_config(config);
    let mut bench = bench;
    bench.append(&log).unwrap();
    fault.arm();
    log.partition.close().wait().unwrap().unwrap();
    bench.settle(fault, None, Outcome::GoesOn, 0)
}

fn read(fault: &Fault) -> Outcome {
    let (bench, log) = Bench::reopened(fault);
    fault.arm();
    let outcome = outcome_of_read(&log.read(0));
    if outcome == Outcome::GoesOn {
        let fetched = log.read(0).unwrap();
        assert!(fetched.bytes > 0);
    }
    assert_eq!(log.partition.status().state, State::Leading);
    bench.settle(fault, Some(log), outcome, 0)
}

/// A segment that is open already goes stale: its file handle is of no use any more, opening it anew works.
fn read_again(fault: &Fault) -> Outcome {
    let (bench, log) = Bench::reopened(fault);
    assert!(log.read(0).unwrap().bytes > 0);
    fault.rules.add(Rule::nth(fault.case.point, 1, fault.verdict).on(fault.case.path));
    let outcome = outcome_of_read(&log.read(0));
    bench.settle(fault, Some(log), outcome, 0)
}

fn outcome_of_read<T: std::fmt::Debug>(read: &Result<T, ReadError>) -> Outcome {
    match read {
        Ok(_) => Outcome::GoesOn,
        Err(ReadError::Storage(_)) => Outcome::RequestFails,
        Err(error) => panic!("{error}"),
    }
}

fn offset_for_time(fault: &Fault) -> Outcome {
    let (bench, log) = Bench::reopened(fault);
    fault.arm();
    let found = log
        .partition
        .offset_for_time(TimeQuery::At(super::support::START), kaas_engine::Isolation::ReadUncommitted);
    let outcome = outcome_of_read(&found);
    bench.settle(fault, Some(log), outcome, 0)
}

/// An open after a crash: of a log with a closed segment, and an active one with a checkpoint.
fn open(fault: &Fault) -> Outcome {
    let mut bench = Bench::new(fault, 150);
    let log = bench.faulty.open();
    for _ in 0..3 {
        bench.append(&log).unwrap();
    }
    let mut config = (*log.partition.config()).clone();
    config.segment_bytes = 1 << 20;
    log.partition.set_config(config);
    for _ in 0..3 {
        bench.append(&log).unwrap();
    }
    // With its bytes behind the checkpoint.
    log.crash();
    fault.arm();
    match bench.faulty.try_open() {
        Ok(log) => {
            fault.mend();
            bench.check(&log, 0);
            bench.settle(fault, Some(log), Outcome::GoesOn, 0)
        }
        Err(EngineError::Storage(_) | EngineError::Claim(_) | EngineError::Poisoned { .. }) => {
            bench.settle(fault, None, Outcome::DoesNotOpen, 0)
        }
        Err(error) => panic!("{error}"),
    }
}

pub const CASES: &[Case] = &[
    case("append: write the batches", Point::Write, ".log", 1, append),
    case("append: sync them", Point::SyncData, ".log", 1, append),
    case("append: read the fence", Point::ReadRecords, "fence", 1, append),
    case("append: cut off a half-written batch", Point::SetLength, ".log", 1, half_written_append),
    case("append: measure a half-written batch", Point::Length, ".log", 1, half_written_append),
    case("first append: create the segment", Point::Create, ".log", 1, first_append),
    case("first append: sync its name", Point::SyncDir, "", 1, first_append),
    case("roll: create the next segment", Point::Create, ".log", 1, rolling_append),
    case("roll: create an index file", Point::Create, "index", 1, rolling_append),
    case("roll: write an index file", Point::Write, "index", 1, rolling_append),
    case("roll: set its length", Point::SetLength, "index", 1, rolling_append),
    case("roll: sync it", Point::SyncData, "index", 1, rolling_append),
    case("roll: create the producer snapshot", Point::Create, "producer-state", 1, rolling_append),
    case("roll: write it", Point::Write, "producer-state", 1, rolling_append),
    case("roll: sync the producer snapshot", Point::SyncData, "producer-state", 1, rolling_append),
    case("roll: rename it into place", Point::Rename, "producer-state", 1, rolling_append),
    case("roll: create the manifest", Point::Create, "manifest", 1, rolling_append),
    case("roll: write the manifest", Point::Write, "manifest", 1, rolling_append),
    case("roll: sync the manifest", Point::SyncData, "manifest", 1, rolling_append),
    case("roll: rename the manifest into place", Point::Rename, "manifest", 1, rolling_append),
    case("roll: sync the names", Point::SyncDir, "", 2, rolling_append),
    case("roll: list what the manifest replaces", Point::List, "", 1, rolling_append),
    case("roll: remove it", Point::RemoveFile, "manifest", 1, rolling_append),
    case("checkpoint: write an index file", Point::Write, "index", 1, checkpointing_append),
    case("checkpoint: sync it", Point::SyncData, "index", 1, checkpointing_append),
    case("checkpoint: write the producer snapshot", Point::Write, "producer-state", 1, checkpointing_append),
    case("checkpoint: write the checkpoint", Point::Write, "recovery-checkpoint", 1, checkpointing_append),
    case("checkpoint: rename it into place", Point::Rename, "recovery-checkpoint", 1, checkpointing_append),
    case("checkpoint: sync the names", Point::SyncDir, "", 1, checkpointing_append),
    case("delete records: create the manifest", Point::Create, "manifest", 1, delete_records),
    case("delete records: write the manifest", Point::Write, "manifest", 1, delete_records),
    case("delete records: sync it", Point::SyncData, "manifest", 1, delete_records),
    case("delete records: rename it into place", Point::Rename, "manifest", 1, delete_records),
    case("delete records: sync the names", Point::SyncDir, "", 1, delete_records),
    case("delete records: read the fence", Point::ReadRecords, "fence", 1, delete_records),
    case("delete records: remove a segment", Point::RemoveFile, ".log", 1, delete_records),
    case("close: sync the log", Point::SyncData, ".log", 1, close_unsynced),
    case("close: read the fence", Point::ReadRecords, "fence", 1, close),
    case("close: write an index file", Point::Write, "index", 1, close),
    case("close: write the producer snapshot", Point::Write, "producer-state", 1, close),
    case("close: write the manifest", Point::Write, "manifest", 1, close),
    case("close: rename the manifest into place", Point::Rename, "manifest", 1, close),
    case("read: open the segment", Point::Open, ".log", 1, read),
    case("read: read it", Point::Read, ".log", 1, read),
    case("read: read a segment that is open, once", Point::Read, ".log", 1, read_again),
    case("read: open an index file", Point::Open, "index", 1, read),
    case("read: read an index file", Point::Read, "index", 1, read),
    case("offset for a time: read the segment", Point::Read, ".log", 1, offset_for_time),
    case("open: open `partition.json`", Point::Open, "partition.json", 1, open),
    case("open: read `partition.json`", Point::Read, "partition.json", 1, open),
    case("open: open the fence", Point::OpenRecords, "fence", 1, open),
    case("open: get the fence's length", Point::Length, "fence", 1, open),
    case("open: read the fence", Point::ReadRecords, "fence", 1, open),
    case("open: create the claim", Point::Create, "claim", 1, open),
    case("open: write the claim", Point::Write, "claim", 1, open),
    case("open: sync the claim", Point::SyncData, "claim", 1, open),
    case("open: sync its name", Point::SyncDir, "", 1, open),
    case("open: extend the fence", Point::ExtendRecords, "fence", 1, open),
    case("open: write the fence", Point::WriteRecords, "fence", 1, open),
    case("open: list the directory", Point::List, "", 1, open),
    case("open: open the manifest", Point::Open, "manifest", 1, open),
    case("open: read the manifest", Point::Read, "manifest", 1, open),
    case("open: open the last closed segment", Point::Open, ".log", 1, open),
    case("open: get the closed segment's length", Point::Length, ".log", 1, open),
    case("open: read the closed segment's end", Point::Read, ".log", 1, open),
    case("open: open an index file", Point::Open, "index", 1, open),
    case("open: read the checkpoint", Point::Read, "recovery-checkpoint", 1, open),
    case("open: read the producer snapshot", Point::Read, "producer-state", 1, open),
    case("open: make the tail durable", Point::MakeDurable, ".log", 1, open),
    case("open: open the tail", Point::Open, ".log", 2, open),
    case("open: get its length", Point::Length, ".log", 2, open),
    case("open: read it", Point::Read, ".log", 2, open),
    case("open: make it durable again, once scanned", Point::MakeDurable, ".log", 2, open),
    case("open: create an index file", Point::Create, "index", 1, open),
    case("open: write an index file", Point::Write, "index", 1, open),
    case("open: sync an index file", Point::SyncData, "index", 1, open),
    case("open: write the manifest", Point::Write, "manifest", 1, open),
    case("open: rename the manifest into place", Point::Rename, "manifest", 1, open),
    case("open: read the fence at last", Point::ReadRecords, "fence", 3, open),
    case("open: remove an old claim", Point::RemoveFile, "claim", 1, open),
    case("open: remove an old manifest", Point::RemoveFile, "manifest", 1, open),
];
