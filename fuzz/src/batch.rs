//! Record batches, as clients send them and as they lie in a log; producer snapshots.

use bytes::Bytes;
use kaas_engine::batch::{
    BatchHeader, DecodeLimits, Limits, TimestampRule, check_crc, decode_records, first_record_at_or_after,
    read_marker, record_of_max_timestamp, validate_client_batches,
};
use kaas_engine::producer_state::{Checks, ProducerStates};
use kaas_engine::types::{Offset, Timestamp};

const DECODE: DecodeLimits = DecodeLimits { max_decompressed_bytes: 1 << 20 };

/// Batches from a client. What is let in has a right checksum, can be parsed again, and keeps its length.
pub fn batch(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let limits = Limits {
        max_batch_bytes: 1 << 20,
        max_batches: 4,
        timestamps: TimestampRule::CreateTime {
            now: Timestamp(1_700_000_000_000),
            before_max_ms: i64::MAX,
            after_max_ms: i64::MAX,
        },
    };
    if let Ok(batches) = validate_client_batches(&bytes, &limits) {
        let total: usize = batches.iter().map(|(header, _)| header.batch_bytes).sum();
        assert_eq!(total, data.len());
        for (header, batch) in &batches {
            check_crc(batch).expect("a batch with a wrong checksum was let in");
            assert_eq!(BatchHeader::parse(batch).as_ref(), Ok(header));
            let _ = ProducerStates::new().check(header, &Checks::default());
        }
    }
    let _ = read_marker(&bytes);
    let _ = first_record_at_or_after(&bytes, Timestamp(0), Offset::ZERO, &DECODE);
    let _ = record_of_max_timestamp(&bytes, &DECODE);
    if let Ok(records) = decode_records(&bytes, &DECODE) {
        // Offsets within a batch are what its producer says: nobody decodes a batch that is appended.
        let (count, mut decoded) = (records.header().record_count, 0);
        for record in records {
            let Ok(_) = record else { return };
            decoded += 1;
        }
        assert!(decoded <= count, "{decoded} records of {count}");
    }
}

/// A producer snapshot. What can be read is written again, and read again is the same.
pub fn producer_state(data: &[u8]) {
    if let Ok(states) = ProducerStates::from_snapshot(data) {
        let again =
            ProducerStates::from_snapshot(&states.to_snapshot()).expect("a snapshot that was just written");
        assert_eq!(again, states);
        let _ = states.first_unstable_offset();
    }
}
