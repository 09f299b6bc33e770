//! Index files. What is taken in whole is the same when it is written, and answers every question within its bounds.

use kaas_engine::index::{OffsetIndex, SegmentIndexes, TimeIndex, TxnIndex};
use kaas_engine::types::{Offset, Timestamp};

const BASE: Offset = Offset(1000);

/// The first byte says which index; the next eight are the question.
pub fn index(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    let Some((question, bytes)) = rest.split_first_chunk::<8>() else { return };
    let question = i64::from_be_bytes(*question);
    match kind % 4 {
        0 => offsets(question, bytes),
        1 => times(question, bytes),
        2 => transactions(question, bytes),
        _ => together(question, bytes),
    }
}

fn offsets(question: i64, bytes: &[u8]) {
    let prefix = OffsetIndex::valid_prefix(BASE, bytes);
    assert!(bytes.starts_with(prefix.index.as_bytes()));
    let Ok(mut index) = OffsetIndex::from_bytes(BASE, bytes) else {
        assert!(prefix.damage.is_some());
        return;
    };
    assert_eq!(index.as_bytes(), bytes);
    let found = index.lookup(Offset(question));
    assert!(found.offset <= Offset(question).max(BASE));
    let _ = index.last_below(question.unsigned_abs(), Offset(question));
    let _ = index.at_or_behind(question.unsigned_abs());
    let _ = index.append(Offset(question), question.unsigned_abs());
    index.truncate_to_position(question.unsigned_abs());
    assert!(index.last().is_none_or(|last| last.position < question.unsigned_abs()));
    index.truncate_to_offset(Offset(question));
    assert!(index.last().is_none_or(|last| last.offset < Offset(question)));
}

fn times(question: i64, bytes: &[u8]) {
    let Ok(mut index) = TimeIndex::from_bytes(BASE, bytes) else { return };
    assert_eq!(index.as_bytes(), bytes);
    let found = index.lookup(Timestamp(question));
    assert!(found.timestamp <= Timestamp(question.max(-1)));
    index.truncate_to_offset(Offset(question));
    assert!(index.is_empty() || index.last().offset < Offset(question));
}

fn transactions(question: i64, bytes: &[u8]) {
    let Ok(mut index) = TxnIndex::from_bytes(BASE, bytes) else { return };
    assert_eq!(index.as_bytes(), bytes);
    let mut found = Vec::new();
    let _ = index.collect(BASE, Offset(question), &mut found);
    assert!(found.len() <= index.len());
    index.truncate_to_offset(Offset(question));
    assert!(index.len() * TxnIndex::ENTRY_BYTES <= bytes.len());
}

/// An offset index and a time index that may not belong together.
fn together(question: i64, bytes: &[u8]) {
    let (offsets, times) = bytes.split_at(bytes.len() / 2);
    let offsets = OffsetIndex::valid_prefix(BASE, offsets).index;
    let times = TimeIndex::valid_prefix(BASE, times).index;
    let valid_bytes = question.unsigned_abs() % (1 << 20);
    let (indexes, position) = SegmentIndexes::resume(offsets, times, 4096, BASE, valid_bytes);
    assert!(position <= valid_bytes);
    let _ = indexes.position_of(Offset(question));
    let _ = indexes.position_of_time(Timestamp(question), BASE);
}
