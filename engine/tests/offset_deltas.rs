//! Batches whose records say offsets that are not their batch's: nobody looks at records on the way in, so they may stand
//! in any log. Lookups answer with offsets of the batch, and compaction loses nothing newer because of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/compacting.rs"]
mod compacting;
mod support;

use bytes::Bytes;
use compacting::{compacted, consume, keyed, latest};
use kaas_engine::batch::{Compression, HEADER_BYTES};
use kaas_engine::types::{Offset, Timestamp};
use kaas_engine::{Isolation, LogConfig, TimeQuery};
use support::{Log, START, Volume};

/// A batch of one record whose offset delta is `delta`, from -64 to 63.
fn saying(delta: i8, key: &str, value: &str) -> Bytes {
    let mut batch = keyed(&[(key, Some(value))], Compression::None).to_vec();
    let zigzag = (delta << 1) ^ (delta >> 7);
    // Behind the record's length, attributes and timestamp delta, a byte each.
    batch[HEADER_BYTES + 3] = zigzag.to_be_bytes()[0];
    let crc = crc32c::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    batch.into()
}

/// A partition that was not compacted when it got such batches, and is now.
fn open_with(volume: &Volume, batches: &[Bytes]) -> Log {
    let log = volume.open();
    log.partition.set_config(LogConfig { compact: false, ..volume.config.clone() });
    for batch in batches {
        log.append_batch(batch).unwrap();
    }
    log.partition.set_config(volume.config.clone());
    log
}

#[test]
fn lookups_by_time_answer_with_an_offset_of_the_batch() {
    for delta in [63, -64] {
        let volume = compacted(Volume::memory());
        let log = open_with(&volume, &[saying(0, "a", "1"), saying(delta, "a", "2"), saying(0, "a", "3")]);
        log.partition.delete_records(Some(Offset(1))).wait().unwrap().unwrap();
        for query in [TimeQuery::At(Timestamp(START.0)), TimeQuery::MaxTimestamp] {
            let found = log.partition.offset_for_time(query, Isolation::ReadUncommitted).unwrap().unwrap();
            assert_eq!((found.offset, found.timestamp), (Offset(1), START), "{query:?} with {delta}");
        }
    }
}

#[test]
fn compaction_keeps_what_is_newer_than_a_record_that_says_to_be_newest() {
    for delta in [63, 1, -1, -64] {
        let volume = compacted(Volume::memory());
        let batches =
            [saying(0, "b", "1"), saying(delta, "a", "old"), saying(0, "a", "new"), saying(delta, "c", "1")];
        let log = open_with(&volume, &batches);
        log.roll();
        let outcome = log.partition.compact_now().unwrap();
        assert!(outcome.bytes_after < outcome.bytes_before, "{outcome:?}");
        let values = latest(&log);
        let value = |key: &str| values.get(key).and_then(Option::as_deref);
        assert_eq!((value("a"), value("b"), value("c")), (Some("new"), Some("1"), Some("1")), "with {delta}");
        let seen = consume(&log, Isolation::ReadUncommitted);
        assert!(!seen.iter().any(|record| record.value.as_deref() == Some("old")), "with {delta}");
    }
}
