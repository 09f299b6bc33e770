//! Random histories of a compacted partition against a naive model, which keeps every record and applies Kafka's rules
//! to them one by one: keys, tombstones, transactions, all codecs, several rounds, deletions, restarts.
//!
//! A run is decided by its seed, which is printed when it fails; `KAAS_SEED=<n>` runs that one only, and
//! `KAAS_SCHEDULES=<n>` so many.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, clippy::cast_possible_truncation)]

#[path = "support/compacting.rs"]
mod compacting;
mod support;

use std::collections::BTreeMap;

use compacting::{Seen, compacted, consume, logs, manifest};
use kaas_engine::batch::{BatchOptions, Compression, EndMarker, Marker, Producer, SimpleRecord, data_batch};
use kaas_engine::types::{Offset, ProducerId, Timestamp};
use kaas_engine::verify::{Expected, Options, Progress, Severity, verify_partition};
use kaas_engine::{Clock, Isolation, LogConfig, TimeQuery};
use support::actor::{Random, try_seeds};
use support::{Log, START, Volume};

const CODECS: [Compression; 5] =
    [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

/// A transaction of the model.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Outcome {
    Open,
    Committed,
    Aborted,
}

/// A batch of the model.
#[derive(Debug)]
struct Batch {
    records: Vec<Seen>,
    transaction: Option<usize>,
    horizon: Option<i64>,
}

/// Every record that was ever appended and is not compacted away.
#[derive(Debug, Default)]
struct Model {
    batches: Vec<Batch>,
    transactions: Vec<Outcome>,
    /// Where the part that is not compacted begins.
    first_dirty: i64,
}

impl Model {
    fn outcome(&self, batch: &Batch) -> Option<Outcome> {
        batch.transaction.map(|number| self.transactions[number])
    }

    /// A round that has compacted everything below `up_to` and copied everything below `copied`.
    fn compact(&mut self, up_to: i64, copied: i64, log_start: i64, now: i64, delete_retention_ms: i64) {
        let from = self.first_dirty.max(log_start);
        let mut newest = BTreeMap::new();
        for batch in &self.batches {
            if self.outcome(batch) == Some(Outcome::Aborted) {
                continue;
            }
            for record in batch.records.iter().filter(|record| (from..up_to).contains(&record.offset)) {
                newest.insert(record.key.clone(), record.offset);
            }
        }
        let outcomes: Vec<_> = self.batches.iter().map(|batch| self.outcome(batch)).collect();
        for (batch, outcome) in self.batches.iter_mut().zip(outcomes) {
            if batch.records.first().is_none_or(|first| first.offset >= copied) {
                continue;
            }
            if outcome == Some(Outcome::Aborted) {
                batch.records.clear();
                continue;
            }
            let expired = batch.horizon.is_some_and(|horizon| now >= horizon);
            batch.records.retain(|record| {
                record.offset >= up_to
                    || (record.key.is_some()
                        && newest.get(&record.key).is_none_or(|newest| record.offset >= *newest)
                        && (record.value.is_some() || !expired))
            });
            if batch.records.iter().any(|record| record.value.is_none()) {
                batch.horizon.get_or_insert(now + delete_retention_ms);
            }
        }
        self.first_dirty = up_to;
    }

    fn expected(&self, isolation: Isolation, log_start: i64, limit: i64) -> Vec<Seen> {
        let visible = |batch: &&Batch| {
            isolation == Isolation::ReadUncommitted || self.outcome(batch) != Some(Outcome::Aborted)
        };
        let records = self.batches.iter().filter(visible).flat_map(|batch| &batch.records);
        records.filter(|record| (log_start..limit).contains(&record.offset)).cloned().collect()
    }
}

/// One run.
struct Run {
    random: Random,
    volume: Volume,
    log: Log,
    model: Model,
    /// The next sequence number, and the last batch with its offset, of each producer.
    sequences: BTreeMap<i64, i32>,
    last_batch: Option<(bytes::Bytes, i64)>,
    open: BTreeMap<i64, usize>,
    values: u64,
    with_transactions: bool,
}

impl Run {
    fn records(&mut self, keyless: bool) -> Vec<SimpleRecord> {
        let count = 1 + self.random.below(5);
        (0..count)
            .map(|_| {
                self.values += 1;
                let key = format!("k{}", self.random.below(8));
                let padding = "x".repeat(self.random.below(60) as usize);
                let value = format!("{}-{padding}", self.values);
                SimpleRecord {
                    key: (!keyless || self.random.one_in(2)).then(|| key.into()),
                    value: (!self.random.one_in(5)).then(|| value.into()),
                    headers: vec![],
                    timestamp_delta: self.random.below(30) as i64,
                }
            })
            .collect()
    }

    fn append(&mut self, producer: Option<i64>, transaction: Option<usize>, keyless: bool) {
        let records = self.records(keyless);
        let base_timestamp = self.volume.clock.now();
        let sequence = producer.map(|id| *self.sequences.entry(id).or_insert(0));
        let options = BatchOptions {
            base_timestamp,
            compression: CODECS[self.random.below(5) as usize],
            producer: producer.map(|id| Producer {
                id: ProducerId(id),
                epoch: 0,
                base_sequence: sequence.unwrap(),
            }),
            transactional: transaction.is_some(),
            ..BatchOptions::default()
        };
        let batch = data_batch(&records, &options).unwrap();
        if keyless {
            self.log.partition.set_config(LogConfig { compact: false, ..self.volume.config.clone() });
        }
        let base = self.log.append_batch(&batch).unwrap().base_offset.0;
        self.log.partition.set_config(self.volume.config.clone());
        if let Some(id) = producer {
            *self.sequences.get_mut(&id).unwrap() += records.len() as i32;
            if transaction.is_none() {
                self.last_batch = Some((batch, base));
            }
        }
        let text = |bytes: &bytes::Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        let records = (base..).zip(&records).map(|(offset, record)| Seen {
            offset,
            key: record.key.as_ref().map(text),
            value: record.value.as_ref().map(text),
            timestamp: base_timestamp.0 + record.timestamp_delta,
        });
        self.model.batches.push(Batch { records: records.collect(), transaction, horizon: None });
    }

    fn transactional(&mut self) {
        let id = 10 + self.random.below(3) as i64;
        let transaction = *self.open.entry(id).or_insert_with(|| {
            self.model.transactions.push(Outcome::Open);
            self.model.transactions.len() - 1
        });
        self.append(Some(id), Some(transaction), false);
    }

    fn end_transaction(&mut self) {
        let Some((id, transaction)) = self.open.pop_first() else { return };
        let commits = self.random.one_in(2);
        let marker = if commits { Marker::Commit } else { Marker::Abort };
        let marker = EndMarker { marker, coordinator_epoch: 0 };
        self.log.partition.append_marker(ProducerId(id), 0, marker).unwrap().wait().unwrap().unwrap();
        self.model.transactions[transaction] = if commits { Outcome::Committed } else { Outcome::Aborted };
    }

    fn compact(&mut self) {
        let log_start = self.log.partition.status().log_start.0;
        let compacted = self.log.partition.compact_now().unwrap();
        if compacted.segments_before == 0 {
            return;
        }
        assert!(compacted.segments_after <= compacted.segments_before);
        let manifest = manifest(&self.volume);
        let rewritten = manifest.segments.iter().filter(|entry| entry.generation > 0);
        let copied = rewritten.map(|entry| entry.end_offset).max().unwrap();
        assert_eq!(manifest.first_dirty_offset, compacted.first_dirty.0);
        let now = self.volume.clock.now().0;
        let retention = self.volume.config.delete_retention_ms;
        self.model.compact(compacted.first_dirty.0, copied, log_start, now, retention);
        if self.volume.settings.cleaner.dedupe_buffer_bytes < 10_000 {
            self.forget_half_mapped(compacted.first_dirty.0);
        }
        let (there, named) = logs(&self.volume);
        assert!(there.difference(&named).count() <= 1, "{there:?} are there, {named:?} are needed");
        // A second round finds nothing to do, unless the first could not hold all keys.
        if self.volume.settings.cleaner.dedupe_buffer_bytes > 10_000 {
            assert_eq!(self.log.partition.compact_now().unwrap().segments_before, 0);
        }
    }

    /// The map may know some keys of the first batch that it has no room for. Their older records go too, early: the
    /// newer ones are there.
    fn forget_half_mapped(&mut self, up_to: i64) {
        let found = consume(&self.log, Isolation::ReadUncommitted);
        let log_start = self.log.partition.status().log_start.0;
        for batch in &mut self.model.batches {
            batch.records.retain(|record| {
                let gone = (log_start..up_to).contains(&record.offset)
                    && found.binary_search_by_key(&record.offset, |found| found.offset).is_err();
                let newer = |found: &&Seen| found.key == record.key && found.offset >= up_to;
                assert!(!gone || found.iter().any(|found| newer(&found)), "{record:?} is lost");
                !gone
            });
        }
    }

    fn reopen(&mut self) {
        let log = Log { engine: self.log.engine.clone(), partition: self.log.partition.clone() };
        if self.random.one_in(2) {
            log.close()
        } else {
            log.crash()
        }
        self.verify("closed or crashed");
        self.log = self.volume.open();
        assert_eq!(manifest(&self.volume).first_dirty_offset, self.model.first_dirty);
    }

    fn verify(&self, when: &str) {
        let identity = support::identity();
        let expected = Expected {
            topic: Some(identity.topic),
            topic_id: Some(identity.topic_id),
            partition: Some(identity.partition),
        };
        let options = Options {
            now: self.volume.clock.now(),
            second_look_after: std::time::Duration::ZERO,
            ..Options::default()
        };
        let report = verify_partition(
            &*self.volume.substrate,
            &self.volume.dir,
            &expected,
            &options,
            &Progress::default(),
        );
        let bad: Vec<_> =
            report.findings.iter().filter(|finding| finding.severity > Severity::Info).collect();
        assert!(bad.is_empty(), "{when}: {bad:#?}");
    }

    fn check(&mut self) {
        let status = self.log.partition.status();
        let log_start = status.log_start.0;
        for (isolation, limit) in [
            (Isolation::ReadUncommitted, status.high_watermark.0),
            (Isolation::ReadCommitted, status.last_stable.0),
        ] {
            let expected = self.model.expected(isolation, log_start, limit);
            assert_same(&consume(&self.log, isolation), &expected, isolation);
            if self.with_transactions {
                continue;
            }
            // Lookups by time know records only; with transactions they may find markers too.
            for _ in 0..5 {
                let target = START.0 + self.random.below(3000) as i64;
                let query = TimeQuery::At(Timestamp(target));
                let found = self.log.partition.offset_for_time(query, isolation).unwrap();
                let first = expected.iter().find(|record| record.timestamp >= target);
                assert_eq!(found.map(|found| found.offset.0), first.map(|first| first.offset));
            }
            if log_start > 0 {
                continue;
            }
            let found = self.log.partition.offset_for_time(TimeQuery::MaxTimestamp, isolation).unwrap();
            let newest = expected.iter().map(|record| record.timestamp).max();
            assert_eq!(found.map(|found| found.timestamp.0), newest, "the largest timestamp");
        }
        if let Some((batch, offset)) = &self.last_batch {
            let again = self.log.append_batch(batch).unwrap();
            assert_eq!(again.base_offset.0, *offset, "a repetition is recognised");
        }
    }
}

/// Fails with the first difference only.
#[track_caller]
fn assert_same(found: &[Seen], expected: &[Seen], isolation: Isolation) {
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    let at = differs.unwrap_or(found.len().min(expected.len()));
    assert_eq!(found.get(at), expected.get(at), "{isolation:?}, record number {at}");
}

fn run(seed: u64) -> Vec<String> {
    let mut random = Random(seed);
    let mut volume = compacted(Volume::memory());
    volume.config.segment_bytes = 300 + random.below(1200);
    volume.config.delete_retention_ms = [0, 200, 100_000][random.below(3) as usize];
    volume.config.min_compaction_lag_ms = [0, 0, 300][random.below(3) as usize];
    volume.settings.cleaner.io_buffer_bytes = 10_000 + random.below(100_000) as usize;
    if random.one_in(4) {
        // Seven keys of eight.
        volume.settings.cleaner.dedupe_buffer_bytes = 240;
    }
    volume.settings.checkpoint_distance_bytes = 1000;
    let with_transactions = random.one_in(2);
    let log = volume.open();
    let mut run = Run {
        random,
        volume,
        log,
        model: Model::default(),
        sequences: BTreeMap::new(),
        last_batch: None,
        open: BTreeMap::new(),
        values: 0,
        with_transactions,
    };
    let steps = 40 + run.random.below(120);
    for _ in 0..steps {
        match run.random.below(20) {
            0..6 => run.append(None, None, false),
            6..9 => {
                let producer = 1 + run.random.below(2) as i64;
                run.append(Some(producer), None, false);
            }
            9 => run.append(None, None, true),
            10..13 if with_transactions => run.transactional(),
            13 | 14 if with_transactions => run.end_transaction(),
            15 => run.compact(),
            16 => {
                run.log.partition.maintain().wait().unwrap().unwrap();
            }
            17 if run.random.one_in(3) => {
                let status = run.log.partition.status();
                let span = (status.high_watermark.0 - status.log_start.0 + 1) as u64;
                let before = status.log_start.0 + (run.random.below(span) / 2) as i64;
                run.log.partition.delete_records(Some(Offset(before))).wait().unwrap().unwrap();
            }
            18 if run.random.one_in(2) => run.reopen(),
            19 => run.check(),
            _ => run.volume.clock.advance_ms(run.random.below(100) as i64),
        }
    }
    run.volume.clock.advance_ms(1000);
    run.compact();
    run.check();
    run.verify("at the end");
    run.reopen();
    run.check();
    Vec::new()
}

#[test]
fn what_is_left_is_what_the_rules_leave() {
    try_seeds(80, |seed| {
        let outcome = std::panic::catch_unwind(|| run(seed));
        outcome.unwrap_or_else(|_| vec!["see above".to_owned()])
    });
}
