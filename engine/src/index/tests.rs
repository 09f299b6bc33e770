//! Tests of the indexes: layouts to the byte, damage, and properties against plain scans over the batches.

use proptest::prelude::*;

use super::*;
use crate::batch::BatchHeader;
use crate::types::{Offset, ProducerId, Timestamp};

fn header(base_offset: i64, delta: i32, timestamp: i64, batch_bytes: usize) -> BatchHeader {
    BatchHeader {
        batch_bytes,
        base_timestamp: Timestamp(timestamp),
        max_timestamp: Timestamp(timestamp),
        ..BatchHeader::plain(base_offset, delta + 1)
    }
}

fn entry(offset: i64, position: u64) -> OffsetPosition {
    OffsetPosition { offset: Offset(offset), position }
}

fn time(timestamp: i64, offset: i64) -> TimestampOffset {
    TimestampOffset { timestamp: Timestamp(timestamp), offset: Offset(offset) }
}

#[test]
fn the_layouts_are_kafkas() {
    let mut offsets = OffsetIndex::new(Offset(1000));
    offsets.append(Offset(1005), 4097).unwrap();
    offsets.append(Offset(1006), 0x0102_0304).unwrap();
    assert_eq!(offsets.as_bytes(), [0, 0, 0, 5, 0, 0, 16, 1, 0, 0, 0, 6, 1, 2, 3, 4]);
    assert_eq!(offsets.bytes_from(1), [0, 0, 0, 6, 1, 2, 3, 4]);
    assert!(offsets.bytes_from(2).is_empty() && offsets.bytes_from(9).is_empty());

    let mut times = TimeIndex::new(Offset(1000));
    assert!(times.maybe_append(time(0x0102_0304_0506, 1003)).unwrap());
    assert_eq!(times.as_bytes(), [0, 0, 1, 2, 3, 4, 5, 6, 0, 0, 0, 3]);

    let mut aborted = TxnIndex::new();
    let transaction = AbortedTransaction {
        producer_id: ProducerId(1),
        first_offset: Offset(2),
        last_offset: Offset(3),
        last_stable_offset: Offset(4),
    };
    aborted.append(&transaction).unwrap();
    let mut expected = vec![0, 0];
    for field in [1_i64, 2, 3, 4] {
        expected.extend_from_slice(&field.to_be_bytes());
    }
    assert_eq!(aborted.as_bytes(), expected);
    assert_eq!(TxnIndex::from_bytes(Offset(0), &expected).unwrap(), aborted);
}

#[test]
fn lookups_take_the_floor() {
    let mut offsets = OffsetIndex::new(Offset(100));
    assert_eq!(offsets.lookup(Offset(500)), entry(100, 0));
    offsets.append(Offset(110), 50).unwrap();
    offsets.append(Offset(120), 90).unwrap();
    assert_eq!(offsets.lookup(Offset(0)), entry(100, 0));
    assert_eq!(offsets.lookup(Offset(109)), entry(100, 0));
    assert_eq!(offsets.lookup(Offset(110)), entry(110, 50));
    assert_eq!(offsets.lookup(Offset(119)), entry(110, 50));
    assert_eq!(offsets.lookup(Offset(i64::MAX)), entry(120, 90));
    assert_eq!(offsets.at_or_behind(0), Some(entry(110, 50)));
    assert_eq!(offsets.at_or_behind(50), Some(entry(110, 50)));
    assert_eq!(offsets.at_or_behind(51), Some(entry(120, 90)));
    assert_eq!(offsets.at_or_behind(91), None);

    let mut times = TimeIndex::new(Offset(100));
    assert_eq!(times.last(), time(-1, 100));
    assert_eq!(times.lookup(Timestamp(7)), time(-1, 100));
    times.maybe_append(time(10, 104)).unwrap();
    times.maybe_append(time(20, 130)).unwrap();
    assert_eq!(times.lookup(Timestamp(9)), time(-1, 100));
    assert_eq!(times.lookup(Timestamp(10)), time(10, 104));
    assert_eq!(times.lookup(Timestamp(19)), time(10, 104));
    assert_eq!(times.lookup(Timestamp(i64::MAX)), time(20, 130));
}

#[test]
fn entries_that_do_not_follow_are_refused() {
    let mut offsets = OffsetIndex::new(Offset(100));
    offsets.append(Offset(110), 50).unwrap();
    let disorder = IndexError::Disorder { kind: "offset", entry: 1 };
    assert_eq!(offsets.append(Offset(110), 60), Err(disorder));
    assert_eq!(offsets.append(Offset(111), 50), Err(disorder));
    let below = IndexError::OffsetOutOfRange { base_offset: 100, offset: 99 };
    assert_eq!(offsets.append(Offset(99), 60), Err(below));
    let far = 100 + i64::from(i32::MAX) + 1;
    let above = IndexError::OffsetOutOfRange { base_offset: 100, offset: far };
    assert_eq!(offsets.append(Offset(far), 60), Err(above));
    let position = IndexError::PositionOutOfRange { position: 1 << 31 };
    assert_eq!(offsets.append(Offset(111), 1 << 31), Err(position));
    assert_eq!(offsets.len(), 1);

    let mut times = TimeIndex::new(Offset(100));
    assert_eq!(times.maybe_append(time(-1, 104)), Ok(false));
    assert_eq!(times.maybe_append(time(10, 104)), Ok(true));
    assert_eq!(times.maybe_append(time(10, 105)), Ok(false));
    let disorder = IndexError::Disorder { kind: "time", entry: 1 };
    assert_eq!(times.maybe_append(time(11, 104)), Err(disorder));
}

#[test]
fn damaged_files_are_told_apart() {
    let good: Vec<u8> = [[0, 0, 0, 5, 0, 0, 0, 9], [0, 0, 0, 6, 0, 0, 0, 12]].concat();
    let read = |bytes: &[u8]| OffsetIndex::from_bytes(Offset(0), bytes);
    assert_eq!(read(&good).unwrap().last(), Some(entry(6, 12)));
    assert!(read(&[]).unwrap().is_empty());
    let torn = IndexError::TruncatedEntry { kind: "offset", trailing: 7 };
    assert_eq!(read(&good[..15]), Err(torn));
    let padded = [&good[..], &[0; 24]].concat();
    assert_eq!(read(&padded), Err(IndexError::ZeroPadding { kind: "offset", entry: 2 }));
    let prefix = OffsetIndex::valid_prefix(Offset(0), &padded);
    assert_eq!(prefix.index, read(&good).unwrap());
    // A lost page in the middle is not padding.
    let hole = [&good[..8], &[0; 8], &good[8..]].concat();
    assert_eq!(read(&hole), Err(IndexError::Impossible { kind: "offset", entry: 1 }));
    let swapped = [&good[8..], &good[..8]].concat();
    assert_eq!(read(&swapped), Err(IndexError::Disorder { kind: "offset", entry: 1 }));
    let negative = [&good[..8], &[0xff; 8]].concat();
    assert_eq!(read(&negative), Err(IndexError::Impossible { kind: "offset", entry: 1 }));

    // Timestamp 0 at the base offset is an entry; followed by zeros it is padding like the rest.
    assert_eq!(TimeIndex::from_bytes(Offset(3), &[0; 12]).unwrap().last(), time(0, 3));
    let prefix = TimeIndex::valid_prefix(Offset(3), &[0; 36]);
    assert!(prefix.index.is_empty());
    assert_eq!(prefix.damage, Some(IndexError::ZeroPadding { kind: "time", entry: 0 }));

    let version = TxnIndex::from_bytes(Offset(0), &[1; 34]).unwrap_err();
    assert_eq!(version, IndexError::Version { entry: 0, found: 257, supported: 0 });
    let zeros = TxnIndex::from_bytes(Offset(0), &[0; 34]).unwrap_err();
    assert_eq!(zeros, IndexError::ZeroPadding { kind: "transaction", entry: 0 });
}

fn aborted(producer: i64, first: i64, last: i64, stable: i64) -> AbortedTransaction {
    AbortedTransaction {
        producer_id: ProducerId(producer),
        first_offset: Offset(first),
        last_offset: Offset(last),
        last_stable_offset: Offset(stable),
    }
}

#[test]
fn aborted_transactions_of_a_fetch() {
    let mut index = TxnIndex::new();
    let all = [aborted(1, 0, 10, 5), aborted(2, 5, 15, 16), aborted(3, 20, 30, 31)];
    for transaction in &all {
        index.append(transaction).unwrap();
    }
    let disorder = IndexError::Disorder { kind: "transaction", entry: 3 };
    assert_eq!(index.append(&aborted(4, 1, 30, 31)), Err(disorder));
    let fetch = |from, up_to| {
        let mut found = Vec::new();
        let complete = index.collect(Offset(from), Offset(up_to), &mut found);
        (found.iter().map(|found| found.producer_id.0).collect::<Vec<_>>(), complete)
    };
    assert_eq!(fetch(0, 5), (vec![1], true));
    assert_eq!(fetch(0, 16), (vec![1, 2], true));
    assert_eq!(fetch(0, 17), (vec![1, 2], true));
    assert_eq!(fetch(11, 17), (vec![2], true));
    assert_eq!(fetch(16, 20), (vec![], true));
    assert_eq!(fetch(0, 40), (vec![1, 2, 3], false));
    assert_eq!(fetch(31, 40), (vec![], false));
    assert_eq!(fetch(16, 31), (vec![3], true));
    index.truncate_to_offset(Offset(15));
    assert_eq!(index.iter().collect::<Vec<_>>(), all[..1]);
    assert_eq!(
        TxnIndex::from_bytes(Offset(11), index.as_bytes()).unwrap_err(),
        IndexError::Impossible { kind: "transaction", entry: 0 }
    );
}

/// Batches of a segment and where they begin.
fn batches() -> impl Strategy<Value = (Vec<(BatchHeader, u64)>, u64)> {
    let batch = (0_i32..5, 0_i64..3, -1_i64..60, 61_usize..400);
    (proptest::collection::vec(batch, 0..60), 1_i64..2000).prop_map(|(sizes, base)| {
        let (mut offset, mut position) = (base, 0_u64);
        let mut batches = Vec::new();
        for (delta, gap, timestamp, bytes) in sizes {
            // Compaction leaves gaps.
            offset += gap;
            batches.push((header(offset, delta, timestamp, bytes), position));
            offset += i64::from(delta) + 1;
            position += u64::try_from(bytes).unwrap();
        }
        (batches, position)
    })
}

fn build(base: Offset, batches: &[(BatchHeader, u64)], interval: u64) -> SegmentIndexes {
    let mut indexes = SegmentIndexes::new(base, interval);
    for (batch, position) in batches {
        indexes.observe(batch, *position).unwrap();
    }
    indexes
}

proptest! {
    #[test]
    fn entries_point_at_batches_and_scans_from_them_find_everything(
        (batches, length) in batches(),
        interval in 0_u64..1000,
    ) {
        let base = batches.first().map_or(Offset(0), |(batch, _)| batch.base_offset);
        let mut indexes = build(base, &batches, interval);
        indexes.finish().unwrap();
        indexes.finish().unwrap();

        // Each offset entry is a batch's position with its last offset, further than the interval from the last.
        let mut previous = 0;
        for entry in indexes.offsets().iter() {
            let hit = batches.iter().find(|(_, position)| *position == entry.position);
            prop_assert_eq!(hit.map(|(batch, _)| batch.last_offset()), Some(entry.offset));
            prop_assert!(entry.position - previous > interval);
            previous = entry.position;
        }
        prop_assert!(
            batches.last().is_none_or(|(_, position)| position - previous <= interval),
            "a batch without an entry lies too far behind the last one"
        );
        // Each time entry is the running maximum where it was first reached.
        for entry in indexes.times().iter() {
            let max = batches.iter().filter(|(b, _)| b.last_offset() <= entry.offset)
                .map(|(b, _)| b.max_timestamp).max();
            prop_assert_eq!(max, Some(entry.timestamp));
            let first = batches.iter().find(|(b, _)| b.max_timestamp >= entry.timestamp);
            prop_assert_eq!(first.map(|(b, _)| b.last_offset()), Some(entry.offset));
        }
        let largest = batches.iter().map(|(batch, _)| batch.max_timestamp).max();
        let largest = largest.unwrap_or(Timestamp::NONE);
        prop_assert_eq!(indexes.largest_timestamp().timestamp, largest);
        prop_assert_eq!(indexes.times().last().timestamp, largest);

        // A scan from the index meets the same batch as one from the start.
        for target in base.0 - 1..base.0 + 200 {
            let target = Offset(target);
            let holds = |(batch, _): &&(BatchHeader, u64)| batch.last_offset() >= target;
            let from = indexes.position_of(target);
            prop_assert!(from == 0 || batches.iter().any(|(_, position)| *position == from));
            let scanned = batches.iter().filter(|(_, position)| *position >= from).find(holds);
            prop_assert_eq!(scanned, batches.iter().find(holds));
        }
        for target in -1..61 {
            for from in [0, base.0 + 30] {
                let (target, from) = (Timestamp(target), Offset(from));
                let answers = |(batch, _): &&(BatchHeader, u64)| may_answer(batch, target, from);
                let start = indexes.position_of_time(target, from);
                let scanned = batches.iter().filter(|(_, position)| *position >= start).find(answers);
                prop_assert_eq!(scanned, batches.iter().find(answers));
                prop_assert!(start >= indexes.position_of(from), "scans what lies in front of `from`");
                prop_assert_eq!(
                    indexes.reaches(target),
                    largest >= target,
                );
            }
        }
        prop_assert!(length == 0 || indexes.position_of(Offset(i64::MAX)) < length);
    }

    #[test]
    fn continuing_behind_loaded_files_gives_the_same_indexes(
        (batches, length) in batches(),
        interval in 0_u64..1000,
        valid in 0_u64..20_000,
        torn in 0_usize..200,
        finished: bool,
    ) {
        let base = batches.first().map_or(Offset(0), |(batch, _)| batch.base_offset);
        let grown = build(base, &batches, interval);
        let mut file = grown.clone();
        if finished {
            file.finish().unwrap();
        }
        // The files as a crash may leave them, the log known to be good up to some batch.
        let cut = |bytes: &[u8]| bytes[..bytes.len().saturating_sub(torn)].to_vec();
        let offsets = OffsetIndex::valid_prefix(base, &cut(file.offsets().as_bytes())).index;
        let times = TimeIndex::valid_prefix(base, file.times().as_bytes()).index;
        let valid = batches.iter().map(|(_, at)| *at).filter(|at| *at <= valid).max().unwrap_or(length);
        let (mut resumed, from) = SegmentIndexes::resume(offsets, times, interval, base, valid);
        prop_assert!(from <= valid);
        if torn == 0 {
            let longest = batches.iter().map(|(batch, _)| batch.batch_bytes).max().unwrap_or(0);
            prop_assert!(valid - from <= interval + u64::try_from(longest).unwrap());
        }
        for (batch, position) in batches.iter().filter(|(_, position)| *position >= from) {
            resumed.observe(batch, *position).unwrap();
        }
        prop_assert_eq!(resumed.offsets(), grown.offsets());
        prop_assert_eq!(resumed.times(), grown.times());
        prop_assert_eq!(resumed.largest_timestamp(), grown.largest_timestamp());
    }

    #[test]
    fn any_bytes_give_an_ordered_prefix(bytes in proptest::collection::vec(0_u8..3, 0..400)) {
        let offsets = OffsetIndex::valid_prefix(Offset(5), &bytes);
        prop_assert!(bytes.starts_with(offsets.index.as_bytes()));
        prop_assert!(offsets.index.iter().is_sorted_by(|a, b| a.offset < b.offset && a.position < b.position));
        prop_assert_eq!(offsets.damage.is_none(), offsets.index.as_bytes().len() == bytes.len());
        let times = TimeIndex::valid_prefix(Offset(5), &bytes);
        prop_assert!(bytes.starts_with(times.index.as_bytes()));
        prop_assert!(times.index.iter().is_sorted_by(|a, b| a.timestamp < b.timestamp && a.offset < b.offset));
        let aborted = TxnIndex::valid_prefix(Offset(5), &bytes);
        prop_assert!(bytes.starts_with(aborted.index.as_bytes()));
    }
}

#[test]
fn empty_indexes_hold_no_memory() {
    assert!(size_of::<SegmentIndexes>() + size_of::<TxnIndex>() <= 160, "{}", size_of::<SegmentIndexes>());
}
