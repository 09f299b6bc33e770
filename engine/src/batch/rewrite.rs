//! Batches with fewer records: what compaction leaves of a batch, under the same offsets (KIP-58, KIP-534).
//!
//! A batch keeps its base offset, its last offset, and where it stands in its producer's sequence, however few of its
//! records are left. The records that stay are copied as they are; only a new delete horizon, which takes the place of
//! the base timestamp, makes their timestamps be written anew.

use bytes::{BufMut, Bytes, BytesMut};

use super::error::{BatchError, RecordProblem};
use super::header::{
    ATTRIBUTES_AT, Attributes, BatchHeader, CRC_AT, Compression, HEADER_BYTES, LENGTH_FIELD_END,
    MAX_TIMESTAMP_AT, TimestampType,
};
use super::records::{DecodeLimits, Record, decode_records};
use super::varint::{Reader, put_varint};
use crate::types::Timestamp;

const LENGTH_AT: usize = 8;
const BASE_TIMESTAMP_AT: usize = 27;
const RECORD_COUNT_AT: usize = 57;

/// What is left of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retained {
    /// All of it, byte for byte.
    Whole,
    /// Some of its records, or all with a delete horizon: a batch of its own.
    Rewritten(Bytes),
    /// No record.
    Nothing,
}

/// Filters the records of a batch, whose CRC has been checked.
///
/// If a tombstone is among those that stay, or `is_removable_marker` says that the batch is a marker whose transaction
/// has nothing left, and the batch has no delete horizon yet, it gets `horizon` as one.
///
/// # Errors
///
/// As [`decode_records`], or what is wrong with a record; [`BatchError::Unencodable`] above 2 GiB.
pub fn retain_records(
    batch: &Bytes,
    limits: &DecodeLimits,
    is_removable_marker: bool,
    horizon: Timestamp,
    mut keep: impl FnMut(&Record) -> bool,
) -> Result<Retained, BatchError> {
    let mut records = decode_records(batch, limits)?;
    let header = *records.header();
    let plain = records.bytes();
    let mut kept = Vec::new();
    let (mut all, mut has_tombstones) = (true, false);
    loop {
        let from = records.position();
        let Some(record) = records.next() else { break };
        let record = record?;
        if keep(&record) {
            has_tombstones |= record.value.is_none();
            kept.push((from..records.position(), record.timestamp));
        } else {
            all = false;
        }
    }
    let needs_horizon = (has_tombstones || is_removable_marker) && !header.attributes.has_delete_horizon();
    if kept.is_empty() {
        return Ok(Retained::Nothing);
    }
    if all && !needs_horizon {
        return Ok(Retained::Whole);
    }
    let mut body = BytesMut::with_capacity(plain.len());
    for (range, timestamp) in &kept {
        let record = plain.slice(range.clone());
        if needs_horizon {
            put_at(&mut body, record, timestamp.0.wrapping_sub(horizon.0))
                .map_err(|problem| BatchError::Record { index: 0, position: range.start, problem })?;
        } else {
            body.put_slice(&record);
        }
    }
    let body = match header.compression()? {
        Compression::None => body.freeze(),
        compression => super::compression::compress(compression, &body)?,
    };
    let newest = kept.iter().map(|(_, timestamp)| *timestamp).max().unwrap_or(header.max_timestamp);
    let max_timestamp = match header.timestamp_type() {
        TimestampType::LogAppendTime => header.max_timestamp,
        TimestampType::CreateTime => newest,
    };
    let (attributes, base_timestamp) = if needs_horizon {
        (header.attributes.with_delete_horizon(), horizon)
    } else {
        (header.attributes, header.base_timestamp)
    };
    let count = i32::try_from(kept.len()).map_err(|_| BatchError::Unencodable)?;
    let fields = Fields { attributes, base_timestamp, max_timestamp, count };
    patched(batch, &fields, &body).map(Retained::Rewritten)
}

/// A batch without records in place of `batch`, with its offsets and its place in the producer's sequence: 61 bytes.
///
/// # Errors
///
/// What is wrong with the header.
pub fn emptied(batch: &[u8]) -> Result<Bytes, BatchError> {
    let header = BatchHeader::parse(batch)?;
    let fields = Fields {
        attributes: header.attributes.of_nothing(),
        base_timestamp: Timestamp::NONE,
        // What the producer's expiry goes by.
        max_timestamp: header.max_timestamp,
        count: 0,
    };
    patched(batch, &fields, &[])
}

/// What becomes different about a header.
struct Fields {
    attributes: Attributes,
    base_timestamp: Timestamp,
    max_timestamp: Timestamp,
    count: i32,
}

/// The header of `batch` with other fields and `body` behind it.
fn patched(batch: &[u8], fields: &Fields, body: &[u8]) -> Result<Bytes, BatchError> {
    let header = batch.first_chunk::<HEADER_BYTES>();
    let mut header = *header.ok_or(BatchError::ShortHeader { found: batch.len() })?;
    let total = HEADER_BYTES.checked_add(body.len()).ok_or(BatchError::Unencodable)?;
    let length = i32::try_from(total - LENGTH_FIELD_END).map_err(|_| BatchError::Unencodable)?;
    put(&mut header, LENGTH_AT, length.to_be_bytes());
    put(&mut header, ATTRIBUTES_AT, fields.attributes.0.to_be_bytes());
    put(&mut header, BASE_TIMESTAMP_AT, fields.base_timestamp.0.to_be_bytes());
    put(&mut header, MAX_TIMESTAMP_AT, fields.max_timestamp.0.to_be_bytes());
    put(&mut header, RECORD_COUNT_AT, fields.count.to_be_bytes());
    let crc = crc32c::crc32c(header.get(ATTRIBUTES_AT..).unwrap_or_default());
    put(&mut header, CRC_AT, crc32c::crc32c_append(crc, body).to_be_bytes());
    let mut rewritten = BytesMut::with_capacity(total);
    rewritten.put_slice(&header);
    rewritten.put_slice(body);
    Ok(rewritten.freeze())
}

fn put<const N: usize>(header: &mut [u8; HEADER_BYTES], at: usize, value: [u8; N]) {
    if let Some(chunk) = header.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<N>()) {
        *chunk = value;
    }
}

/// A record, its length in front, with another timestamp delta.
fn put_at(out: &mut BytesMut, record: Bytes, timestamp_delta: i64) -> Result<(), RecordProblem> {
    let mut reader = Reader::new(record);
    reader.varint()?;
    let attributes = reader.i8()?;
    reader.varlong()?;
    let rest = reader.take(reader.remaining())?;
    let mut front = BytesMut::new();
    front.put_i8(attributes);
    put_varint(&mut front, timestamp_delta);
    let length = front.len().saturating_add(rest.len());
    put_varint(out, i64::try_from(length).unwrap_or(i64::MAX));
    out.put_slice(&front);
    out.put_slice(&rest);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{BatchOptions, EndMarker, Marker, Producer, SimpleRecord, check_crc, data_batch};
    use crate::batch::{control_batch, read_marker};
    use crate::types::{Offset, ProducerId};

    const HORIZON: Timestamp = Timestamp(5_000);

    fn batch(compression: Compression, tombstones: bool) -> Bytes {
        let records: Vec<_> = (0..6_i64)
            .map(|n| SimpleRecord {
                key: Some(format!("key-{n}").into()),
                value: (!tombstones || n % 2 == 0).then(|| Bytes::from(vec![b'v'; 100])),
                headers: vec![(Bytes::from("h"), None)],
                timestamp_delta: (n * 7) % 5,
            })
            .collect();
        let options = BatchOptions {
            base_offset: Offset(100),
            base_timestamp: Timestamp(1_000),
            producer: Some(Producer { id: ProducerId(9), epoch: 3, base_sequence: 40 }),
            transactional: true,
            compression,
        };
        data_batch(&records, &options).unwrap()
    }

    fn records(batch: &Bytes) -> Vec<Record> {
        check_crc(batch).unwrap();
        decode_records(batch, &DecodeLimits::default()).unwrap().map(Result::unwrap).collect()
    }

    fn retain(batch: &Bytes, keep: impl FnMut(&Record) -> bool) -> Retained {
        retain_records(batch, &DecodeLimits::default(), false, HORIZON, keep).unwrap()
    }

    #[test]
    fn the_records_that_stay_are_the_same_whatever_the_codec() {
        use Compression::{Gzip, Lz4, None, Snappy, Zstd};
        for compression in [None, Gzip, Snappy, Lz4, Zstd] {
            for tombstones in [false, true] {
                let before = batch(compression, tombstones);
                let wanted = |record: &Record| record.offset.0 % 3 != 0;
                let Retained::Rewritten(after) = retain(&before, wanted) else { panic!("{compression:?}") };
                let expected: Vec<_> = records(&before).into_iter().filter(wanted).collect();
                assert_eq!(records(&after), expected);
                let (old, new) = (BatchHeader::parse(&before).unwrap(), BatchHeader::parse(&after).unwrap());
                assert_eq!(new.compression(), Ok(compression));
                assert_eq!((new.base_offset, new.last_offset()), (old.base_offset, old.last_offset()));
                assert_eq!((new.base_sequence, new.last_sequence()), (40, 45));
                assert_eq!((new.producer_id, new.producer_epoch), (old.producer_id, old.producer_epoch));
                assert_eq!(new.max_timestamp, expected.iter().map(|record| record.timestamp).max().unwrap());
                assert_eq!(new.attributes.has_delete_horizon(), tombstones);
                assert_eq!(new.base_timestamp, if tombstones { HORIZON } else { Timestamp(1_000) });
                // A horizon is set once.
                let later = Timestamp(9_999);
                let again = retain_records(&after, &DecodeLimits::default(), false, later, |_| true).unwrap();
                assert_eq!(again, Retained::Whole);
            }
        }
    }

    #[test]
    fn all_or_nothing() {
        assert_eq!(retain(&batch(Compression::Lz4, false), |_| true), Retained::Whole);
        assert_eq!(retain(&batch(Compression::Lz4, true), |_| false), Retained::Nothing);
    }

    #[test]
    fn an_emptied_batch_keeps_its_offsets_and_sequence() {
        let before = batch(Compression::Zstd, true);
        let after = emptied(&before).unwrap();
        assert_eq!(after.len(), HEADER_BYTES);
        assert_eq!(records(&after), []);
        let (old, new) = (BatchHeader::parse(&before).unwrap(), BatchHeader::parse(&after).unwrap());
        let expected = BatchHeader {
            batch_bytes: HEADER_BYTES,
            crc: new.crc,
            attributes: Attributes::new(Compression::None, true, false),
            base_timestamp: Timestamp::NONE,
            record_count: 0,
            ..old
        };
        assert_eq!(new, expected);
    }

    #[test]
    fn a_marker_gets_a_horizon_and_stays_readable() {
        let marker = EndMarker { marker: Marker::Abort, coordinator_epoch: 4 };
        let before = control_batch(marker, ProducerId(9), 3, Timestamp(1_000)).unwrap();
        let Ok(Retained::Rewritten(after)) =
            retain_records(&before, &DecodeLimits::default(), true, HORIZON, |_| true)
        else {
            panic!("it got none")
        };
        check_crc(&after).unwrap();
        assert_eq!(read_marker(&after).unwrap(), Some(marker));
        let header = BatchHeader::parse(&after).unwrap();
        assert_eq!((header.base_timestamp, header.max_timestamp), (HORIZON, Timestamp(1_000)));
        assert!(header.is_control() && header.attributes.has_delete_horizon());
        assert_eq!(read_marker(&emptied(&after).unwrap()).unwrap(), None);
    }
}
