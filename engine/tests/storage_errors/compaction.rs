//! The operations of a round of compaction.

use std::sync::Arc;

use kaas_engine::types::Offset;
use kaas_engine::{EngineError, State};
use kaas_fault_injection::faulty::{Faulty, Hook, Point};

use super::compacting::{compacted, latest, logs};
use super::harness::{Case, Fault, Outcome, case};
use super::support::Volume;

/// A round over a log that was opened anew: none of its segments is open.
fn round(fault: &Fault) -> Outcome {
    let mut clean = compacted(Volume::memory());
    clean.config.max_message_bytes = 1 << 20;
    let hook: Arc<dyn Hook> = Arc::clone(&fault.rules) as _;
    let faulty = clean.seen_through(Arc::new(Faulty::new(Arc::clone(&clean.substrate), hook)));
    let log = faulty.open();
    for n in 0..40 {
        log.put(&format!("k{}", n % 3), &n.to_string());
    }
    let acknowledged = latest(&log);
    log.crash();
    let log = faulty.open();
    fault.arm();
    let outcome = match log.partition.compact_now() {
        Ok(compacted) => {
            assert!(compacted.segments_before > 0, "{compacted:?}");
            Outcome::GoesOn
        }
        Err(EngineError::Poisoned { .. }) if log.partition.status().state != State::Leading => {
            Outcome::LedAnew
        }
        Err(EngineError::Storage(_) | EngineError::Poisoned { .. }) => {
            assert_eq!(log.partition.dirtiness().unwrap(), None, "it is left alone for a while");
            Outcome::NotCompacted
        }
        Err(error) => panic!("{error}"),
    };
    fault.mend();
    let log = if outcome == Outcome::LedAnew {
        let _ = log.partition.abandon().wait().unwrap();
        faulty.open()
    } else {
        log
    };
    assert_eq!(log.partition.status().state, State::Leading);
    assert_eq!(latest(&log), acknowledged, "while it is not compacted, or half");
    log.put("k0", "later");
    let mut acknowledged = acknowledged;
    acknowledged.insert("k0".into(), Some("later".into()));
    // What an operator can ask for, and what the time brings.
    log.partition.compact_now().unwrap();
    assert!(log.partition.dirtiness().unwrap().is_some(), "it has recovered");
    assert!(log.partition.compact_now().unwrap().first_dirty > Offset(30), "it is compacted");
    log.partition.maintain().wait().unwrap().unwrap();
    let (there, named) = logs(&clean);
    assert!(there.difference(&named).count() <= 1, "files are left: {there:?}, of which {named:?} count");
    assert_eq!(latest(&log), acknowledged);
    log.crash();
    let log = clean.after(&faulty).open();
    assert_eq!(latest(&log), acknowledged, "after a crash");
    log.close();
    outcome
}

pub const CASES: &[Case] = &[
    case("compact: open a segment", Point::Open, ".log", 1, round),
    case("compact: read it", Point::Read, ".log", 1, round),
    case("compact: open an index file", Point::Open, "index", 1, round),
    case("compact: read an index file", Point::Read, "index", 1, round),
    case("compact: create the rewritten segment", Point::Create, ".log", 1, round),
    case("compact: write the rewritten segment", Point::Write, ".log", 1, round),
    case("compact: sync the rewritten segment", Point::SyncData, ".log", 1, round),
    case("compact: create its index file", Point::Create, "index", 1, round),
    case("compact: write its index file", Point::Write, "index", 1, round),
    case("compact: set the length of its index file", Point::SetLength, "index", 1, round),
    case("compact: sync its index file", Point::SyncData, "index", 1, round),
    case("compact: sync the names", Point::SyncDir, "", 1, round),
    case("compact: create the manifest", Point::Create, "manifest", 1, round),
    case("compact: write the manifest", Point::Write, "manifest", 1, round),
    case("compact: sync the manifest", Point::SyncData, "manifest", 1, round),
    case("compact: rename the manifest into place", Point::Rename, "manifest", 1, round),
    case("compact: sync the manifest's name", Point::SyncDir, "", 2, round),
    case("compact: read the fence", Point::ReadRecords, "fence", 1, round),
    case("compact: remove an old segment", Point::RemoveFile, ".log", 1, round),
];
