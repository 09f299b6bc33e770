//! Record batches, as clients send them and as they lie in a log; producer snapshots.

use bytes::Bytes;
use kaas_engine::batch::{
    BatchHeader, DecodeLimits, Limits, Record, Retained, TimestampRule, check_crc, check_keys,
    decode_records, emptied, first_record_at_or_after, read_marker, record_of_max_timestamp, retain_records,
    validate_client_batches,
};
use kaas_engine::producer_state::{Checks, ProducerStates};
use kaas_engine::types::{Offset, Timestamp};

use crate::checksums;

const DECODE: DecodeLimits = DecodeLimits { max_decompressed_bytes: 1 << 20 };

/// Batches from a client, as they come and with right checksums. What is let in has a right checksum, can be parsed again, and keeps its length.
pub fn batch(data: &[u8]) {
    let mut renewed = data.to_vec();
    checksums::renew_batches(&mut renewed);
    for bytes in [Bytes::copy_from_slice(data), renewed.into()] {
        take(&bytes);
    }
}

fn take(bytes: &Bytes) {
    let limits = Limits {
        max_batch_bytes: 1 << 20,
        max_batches: 4,
        timestamps: TimestampRule::CreateTime {
            now: Timestamp(1_700_000_000_000),
            before_max_ms: i64::MAX,
            after_max_ms: i64::MAX,
        },
    };
    if let Ok(batches) = validate_client_batches(bytes, &limits) {
        let total: usize = batches.iter().map(|(header, _)| header.batch_bytes).sum();
        assert_eq!(total, bytes.len());
        for (header, batch) in &batches {
            check_crc(batch).expect("a batch with a wrong checksum was let in");
            assert_eq!(BatchHeader::parse(batch).as_ref(), Ok(header));
            let _ = ProducerStates::new().check(header, &Checks::default());
        }
    }
    let _ = read_marker(bytes);
    let header = BatchHeader::parse(bytes);
    let found = [
        first_record_at_or_after(bytes, Timestamp(0), Offset::ZERO, &DECODE),
        record_of_max_timestamp(bytes, &DECODE),
    ];
    for (offset, _) in found.into_iter().flatten().flatten() {
        assert_within(header.as_ref().expect("a header"), offset);
    }
    decode(bytes);
    for keep_every in 1..3 {
        retain(bytes, keep_every);
    }
}

/// All records or an error; all of them in their places and with keys if a compacted topic would take the batch.
fn decode(bytes: &Bytes) {
    let has_keys = check_keys(bytes, &DECODE).is_ok();
    let records = match decode_records(bytes, &DECODE) {
        Ok(records) => records,
        Err(error) => return assert!(!has_keys, "{error}"),
    };
    let header = *records.header();
    let mut decoded = 0;
    for record in records {
        let record = match record {
            Ok(record) => record,
            Err(error) => return assert!(!has_keys, "{error}"),
        };
        assert_within(&header, record.offset);
        assert!(!has_keys || (record.key.is_some() && record.offset_delta == decoded));
        decoded += 1;
    }
    assert_eq!(decoded, header.record_count);
}

/// What records say of their offsets is not checked on the way in, and believed by nobody.
fn assert_within(header: &BatchHeader, offset: Offset) {
    assert!(header.base_offset <= offset && offset <= header.last_offset(), "{offset} is not in {header:?}");
}

/// What compaction leaves of a batch is a batch, with the same offsets.
fn retain(bytes: &Bytes, keep_every: usize) {
    let mut seen = 0;
    let keep = |_: &Record| {
        seen += 1;
        seen % keep_every == 0
    };
    let retained = retain_records(bytes, &DECODE, false, Timestamp(1), keep);
    let rewritten = match retained {
        Ok(Retained::Rewritten(rewritten)) => rewritten,
        Ok(Retained::Nothing) => emptied(bytes).expect("a batch whose header could be read"),
        Ok(Retained::Whole) | Err(_) => return,
    };
    check_crc(&rewritten).expect("a rewritten batch has a wrong checksum");
    let (before, after) =
        (BatchHeader::parse(bytes).expect("a header"), BatchHeader::parse(&rewritten).expect("a header"));
    assert_eq!((after.base_offset, after.last_offset()), (before.base_offset, before.last_offset()));
    let again = decode_records(&rewritten, &DecodeLimits { max_decompressed_bytes: usize::MAX });
    let again =
        again.expect("a rewritten batch can be read").map(|record| record.expect("a record that was kept"));
    assert_eq!(again.count(), usize::try_from(after.record_count).expect("a count"));
}

/// A producer snapshot, as it is and with a right checksum. What can be read is written again, and read again is the same.
pub fn producer_state(data: &[u8]) {
    let mut renewed = data.to_vec();
    checksums::renew_json(&mut renewed);
    for bytes in [data, &renewed] {
        let Ok(read) = ProducerStates::from_snapshot(bytes) else { continue };
        let again = ProducerStates::from_snapshot(&read.1.to_snapshot(&read.0))
            .expect("a snapshot that was just written");
        assert_eq!(again, read);
        let _ = read.1.first_unstable_offset();
    }
}
