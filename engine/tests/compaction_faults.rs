//! Compaction that fails, crashes, loses its leadership or its inputs, at every single step it makes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, clippy::cast_possible_truncation)]

#[path = "support/compacting.rs"]
mod compacting;
#[path = "support/looking.rs"]
mod looking;
mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use compacting::{compacted, keyed, latest, logs, manifest, offset};
use kaas_engine::batch::Compression;
use kaas_engine::types::Offset;
use kaas_engine::{EngineError, LogConfig, State};
use kaas_fault_injection::faulty::{Faulty, Hook, Point, Rule, Rules, Verdict};
use kaas_substrate::ErrorClass;
use looking::assert_clean;
use parking_lot::Mutex;
use support::{Log, Volume};

/// Runs something once, before a certain call of a kind that a round makes.
struct At {
    step: u64,
    calls: AtomicU64,
    action: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "step {}", self.step)
    }
}

impl At {
    fn step(step: u64) -> Arc<Self> {
        Arc::new(Self { step, calls: AtomicU64::new(u64::MAX / 2), action: Mutex::new(None) })
    }

    /// Counts from here on.
    fn arm(&self, action: impl FnOnce() + Send + 'static) {
        *self.action.lock() = Some(Box::new(action));
        self.calls.store(0, Ordering::SeqCst);
    }

    /// Whether it ran; it does not any more.
    fn end(&self) -> bool {
        self.action.lock().take().is_none()
    }
}

impl Hook for At {
    fn before(&self, _: Point, _: &Path) -> Verdict {
        if self.calls.fetch_add(1, Ordering::SeqCst) + 1 == self.step {
            let action = self.action.lock().take();
            if let Some(action) = action {
                action();
            }
        }
        Verdict::Pass
    }
}

fn compact(log: &Log) -> kaas_engine::Compacted {
    log.partition.compact_now().unwrap()
}

#[test]
fn segments_that_are_deleted_meanwhile_end_a_round() {
    let volume = compacted(Volume::memory());
    let log = volume.open();
    for n in 0..40 {
        log.put(&format!("k{}", n % 3), "x");
    }
    log.crash();
    // At each step of a round, everything before the active segment is deleted.
    for step in 1.. {
        let volume = compacted(Volume::memory());
        let hook = At::step(step);
        let seen = volume.seen_through(Arc::new(Faulty::new(Arc::clone(&volume.substrate), hook.clone())));
        let log = seen.open();
        for n in 0..40 {
            log.put(&format!("k{}", n % 3), "x");
        }
        let partition = Arc::clone(&log.partition);
        hook.arm(move || {
            // Not waited for: the step may be one of the worker's own.
            drop(partition.delete_records(offset(30)));
        });
        let outcome = log.partition.compact_now();
        assert!(outcome.is_ok(), "step {step}: {outcome:?}");
        let ran = hook.end();
        log.partition.maintain().wait().unwrap().unwrap();
        let (there, named) = logs(&volume);
        assert!(there.difference(&named).count() <= 1, "step {step}: {there:?}, {named:?}");
        assert_eq!(log.partition.status().log_start, Offset(if ran { 30 } else { 0 }));
        let left = latest(&log);
        assert_eq!(left.len(), 3, "step {step}: {left:?}");
        log.crash();
        assert_clean(&volume, &format!("deleted at step {step}"));
        assert_eq!(latest(&volume.after(&seen).open()), left, "step {step}");
        if !ran {
            assert!(step > 10, "there were only {step} steps");
            return;
        }
    }
}

#[test]
fn a_topic_that_ceases_to_be_compacted_keeps_what_it_has() {
    // At each step of a round: only what is being exchanged at that moment may still come.
    for step in 1.. {
        let volume = Arc::new(compacted(Volume::memory()));
        let hook = At::step(step);
        let seen = volume.seen_through(Arc::new(Faulty::new(Arc::clone(&volume.substrate), hook.clone())));
        let log = seen.open();
        for n in 0..40 {
            log.put(&format!("k{}", n % 3), &n.to_string());
        }
        let rewritten = |volume: &Volume| {
            manifest(volume).segments.into_iter().filter(|entry| entry.generation > 0).count()
        };
        let before: Arc<Mutex<Option<usize>>> = Arc::default();
        let (then, raw, partition) = (Arc::clone(&before), Arc::clone(&volume), Arc::clone(&log.partition));
        let switched = LogConfig { compact: false, delete: true, ..volume.config.clone() };
        hook.arm(move || {
            partition.set_config(switched);
            *then.lock() = Some(rewritten(&raw));
        });
        let outcome = log.partition.compact_now();
        assert!(outcome.is_ok(), "step {step}: {outcome:?}");
        if !hook.end() {
            assert!(step > 20 && rewritten(&volume) > 4, "there were only {step} steps");
            return;
        }
        let before = before.lock().unwrap();
        assert!(
            rewritten(&volume) <= before + 1,
            "step {step}: it went on to {} segments",
            rewritten(&volume)
        );
        log.partition.maintain().wait().unwrap().unwrap();
        let (there, named) = logs(&volume);
        assert!(there.difference(&named).count() <= 1, "step {step}: {there:?}, {named:?}");
        assert_eq!(latest(&log).len(), 3, "step {step}");
        // And back: the rest is compacted.
        log.partition.set_config(volume.config.clone());
        log.partition.compact_now().unwrap();
        assert_eq!(log.partition.dirtiness().unwrap().unwrap().dirty_bytes, 0, "step {step}");
        log.crash();
        assert_clean(&volume, &format!("switched at step {step}"));
    }
}

const CODECS: [Compression; 5] =
    [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

/// Appends with keys, compacts, appends, compacts, closes; stops at the first failure. What was acknowledged last of
/// each key goes into `told`, and what was asked for last into `asked`.
fn workload(
    volume: &Volume,
    told: &mut BTreeMap<String, String>,
    asked: &mut BTreeMap<String, Vec<String>>,
) -> Option<()> {
    let log = volume.try_open().ok()?;
    for n in 0..24 {
        let (key, value) = (format!("k{}", n % 5), format!("{}-{n}", log.partition.epoch()));
        asked.entry(key.clone()).or_default().push(value.clone());
        let batch = keyed(&[(&key, Some(&value))], CODECS[n % 5]);
        log.append_batch(&batch).ok()?;
        asked.insert(key.clone(), vec![]);
        told.insert(key, value);
        if n % 8 == 7 {
            log.partition.compact_now().ok()?;
        }
    }
    log.partition.close().wait().ok()?.ok()
}

#[track_caller]
fn check_told(log: &Log, told: &BTreeMap<String, String>, asked: &BTreeMap<String, Vec<String>>, when: &str) {
    let found = latest(log);
    for (key, value) in told {
        let found = found.get(key).cloned().flatten();
        let maybe = &asked[key];
        assert!(
            found.as_ref() == Some(value) || found.as_ref().is_some_and(|found| maybe.contains(found)),
            "{when}: {key} is {found:?}; acknowledged was {value}, and perhaps {maybe:?}"
        );
    }
}

/// As `assert_clean`, but for a claim or a last batch that was torn.
#[track_caller]
fn assert_whole(volume: &Volume, when: &str) {
    let report = looking::look(volume);
    let bad: Vec<_> = looking::bad(&report)
        .into_iter()
        .filter(|finding| {
            let file = finding.file.to_string_lossy();
            let torn = finding.kind == kaas_engine::verify::Kind::TornTail;
            !torn && !file.contains("claim.") && !file.ends_with("fence")
        })
        .collect();
    assert!(bad.is_empty(), "{when}: {bad:#?}");
}

#[test]
fn a_crash_at_any_step_leaves_the_old_or_the_new() {
    for torn in [false, true] {
        let mut crashed_at = 0;
        for nth in 1.. {
            let volume = compacted(Volume::memory());
            let verdict = if torn { Verdict::CrashShort { bytes: 70 } } else { Verdict::Crash };
            let rules = Rules::new([Rule::nth_change(nth, verdict)]);
            let faulty = Faulty::new(Arc::clone(&volume.substrate), rules);
            let seen = volume.seen_through(Arc::new(faulty));
            let (mut told, mut asked) = (BTreeMap::new(), BTreeMap::new());
            if workload(&seen, &mut told, &mut asked).is_some() {
                assert!(crashed_at > 40, "only {crashed_at} steps");
                break;
            }
            crashed_at = nth;
            let when = format!("crash at step {nth}, torn: {torn}");
            let volume = volume.after(&seen);
            for round in 0..2 {
                assert_whole(&volume, &when);
                let log = volume.open();
                check_told(&log, &told, &asked, &when);
                compact(&log);
                check_told(&log, &told, &asked, &when);
                log.partition.maintain().wait().unwrap().unwrap();
                let (there, named) = logs(&volume);
                assert!(there.difference(&named).count() <= 1, "{when}: {there:?}, {named:?}");
                if round == 0 { log.crash() } else { log.close() }
            }
        }
    }
}

#[test]
fn a_failure_at_any_step_of_a_round_leaves_the_partition_serving() {
    for class in [ErrorClass::NoSpace, ErrorClass::Io] {
        for after in [false, true] {
            for nth in 1.. {
                let volume = compacted(Volume::memory());
                let rules = Rules::new([]);
                let hook: Arc<dyn Hook> = rules.clone();
                let seen = volume.seen_through(Arc::new(Faulty::new(Arc::clone(&volume.substrate), hook)));
                let log = seen.open();
                for n in 0..40 {
                    log.put(&format!("k{}", n % 3), &n.to_string());
                }
                let before = latest(&log);
                let verdict = if after { Verdict::FailAfter(class) } else { Verdict::Fail(class) };
                rules.add(Rule { point: None, path_contains: String::new(), nth, times: 1, verdict });
                let outcome = log.partition.compact_now();
                let hit = rules.hits() > 0;
                rules.clear();
                let when = format!("{class:?} at change {nth}, after: {after}");
                assert_eq!(log.partition.status().state, State::Leading, "{when}");
                assert_eq!(latest(&log), before, "{when}");
                log.put("k0", "later");
                if let Err(error) = outcome {
                    assert!(matches!(error, EngineError::Storage(_)), "{when}: {error}");
                    assert_eq!(
                        log.partition.dirtiness().unwrap(),
                        None,
                        "{when}: it is left alone for a while"
                    );
                }
                compact(&log);
                assert!(log.partition.dirtiness().unwrap().is_some(), "{when}: it has recovered");
                log.partition.maintain().wait().unwrap().unwrap();
                let (there, named) = logs(&volume);
                assert!(there.difference(&named).count() <= 1, "{when}: {there:?}, {named:?}");
                let left = latest(&log);
                assert_eq!(left["k0"].as_deref(), Some("later"));
                log.crash();
                assert_clean(&volume, &when);
                assert_eq!(latest(&volume.after(&seen).open()), left, "{when}");
                if !hit {
                    assert!(nth > 10, "only {nth} changes");
                    break;
                }
            }
        }
    }
}

#[test]
fn a_cleaner_that_is_deposed_at_any_step_harms_nobody() {
    for step in 1.. {
        let volume = compacted(Volume::memory());
        let hook = At::step(step);
        let seen = volume.seen_through(Arc::new(Faulty::new(Arc::clone(&volume.substrate), hook.clone())));
        let old = seen.open();
        for n in 0..40 {
            old.put(&format!("k{}", n % 3), &n.to_string());
        }
        let before = latest(&old);
        let successor: Arc<Mutex<Option<Log>>> = Arc::default();
        let (taken, raw, told) = (Arc::clone(&successor), volume.after(&seen), before.clone());
        let raw = Arc::new(raw);
        let host = Arc::clone(&raw);
        hook.arm(move || {
            let log = host.open();
            assert_eq!(latest(&log), told);
            log.put("k0", "by the successor");
            log.partition.compact_now().unwrap();
            *taken.lock() = Some(log);
        });
        let outcome = old.partition.compact_now();
        let Some(log) = successor.lock().take() else {
            assert!(step > 20, "there were only {step} steps");
            assert!(outcome.is_ok());
            return;
        };
        // It may have finished with its segments, or not; it does not come to serve anything of it.
        old.crash_if_open();
        let mut expected = before;
        expected.insert("k0".into(), Some("by the successor".into()));
        assert_eq!(latest(&log), expected, "step {step}");
        log.roll();
        compact(&log);
        expected.extend(latest(&log).remove_entry("filler"));
        assert_eq!(latest(&log), expected, "step {step}");
        log.crash();
        assert_clean(&raw, &format!("deposed at step {step}"));
        let log = raw.open();
        assert_eq!(latest(&log), expected, "step {step}, the third leader");
        log.partition.maintain().wait().unwrap().unwrap();
        let (there, named) = logs(&raw);
        assert!(there.difference(&named).count() <= 1, "step {step}: {there:?}, {named:?}");
    }
}

impl Log {
    /// A crash, unless it has ended by itself.
    fn crash_if_open(self) {
        let _ = self.partition.abandon().wait();
    }
}
