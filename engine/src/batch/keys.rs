//! Whether every record of a batch has a key, and is a record at all: what a compacted topic asks of producers.
//!
//! A broker does this for clients, so it holds no record: a compressed batch is read as a stream, and what a hostile
//! batch can cost is the time to decompress up to the bound.

use super::error::{BatchError, RecordProblem};
use super::header::BatchHeader;
use super::records::DecodeLimits;
use super::times::{Stop, Walk};

/// Checks that the records of `batch` are well formed, have consecutive offsets, and all have keys.
///
/// # Errors
///
/// [`BatchError::NoKey`], or what is wrong with the header, the compression, or a record.
pub fn check_keys(batch: &[u8], limits: &DecodeLimits) -> Result<(), BatchError> {
    let header = BatchHeader::parse(batch)?;
    let mut walk = Walk::new(batch, &header, limits)?;
    for index in 0..usize::try_from(header.record_count).unwrap_or(0) {
        let start = walk.position();
        let (has_key, offset_delta) = record(&mut walk).map_err(|stop| walk.error(stop, index, start))?;
        if usize::try_from(offset_delta) != Ok(index) {
            let problem = RecordProblem::OffsetDelta(offset_delta);
            return Err(BatchError::Record { index, position: start, problem });
        }
        if !has_key {
            return Err(BatchError::NoKey { index });
        }
    }
    let end = walk.position();
    match walk.is_at_end() {
        Ok(true) => Ok(()),
        Ok(false) => {
            let index = usize::try_from(header.record_count).unwrap_or(0);
            Err(BatchError::Record { index, position: end, problem: RecordProblem::Remaining(1) })
        }
        Err(stop) => Err(walk.error(stop, 0, end)),
    }
}

/// Whether the next record has a key, and its offset delta.
fn record(walk: &mut Walk<'_>) -> Result<(bool, i32), Stop> {
    let end = walk.begin_record()?;
    walk.byte()?;
    walk.zigzag(10)?;
    let offset_delta = walk.varint()?;
    let has_key = bytes(walk)?;
    bytes(walk)?;
    let headers = walk.varint()?;
    let headers =
        u32::try_from(headers).map_err(|_| Stop::Record(RecordProblem::Length(i64::from(headers))))?;
    for _ in 0..headers {
        if !bytes(walk)? {
            return Err(Stop::Record(RecordProblem::Length(-1)));
        }
        bytes(walk)?;
    }
    walk.end_record(end)?;
    Ok((has_key, offset_delta))
}

/// Passes over bytes with their length in front; false for none (a negative length).
fn bytes(walk: &mut Walk<'_>) -> Result<bool, Stop> {
    match u64::try_from(walk.varint()?) {
        Ok(length) => walk.skip(length).map(|()| true),
        Err(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::batch::{BatchErrorClass, BatchOptions, Compression, SimpleRecord, data_batch};

    fn batch(compression: Compression, records: &[SimpleRecord]) -> Bytes {
        data_batch(records, &BatchOptions { compression, ..BatchOptions::default() }).unwrap()
    }

    #[test]
    fn every_record_needs_a_key() {
        use Compression::{Gzip, Lz4, None, Snappy, Zstd};
        let keyed = |n: usize| SimpleRecord {
            headers: vec![("h".into(), Some("x".into())), ("h".into(), Option::None)],
            ..SimpleRecord::of(format!("k{n}"), vec![b'v'; n])
        };
        let mut records: Vec<_> = (0..50).map(keyed).collect();
        records.push(SimpleRecord { key: Some("gone".into()), ..SimpleRecord::default() });
        records.push(SimpleRecord::of("", "an empty key is one"));
        for compression in [None, Gzip, Snappy, Lz4, Zstd] {
            let limits = DecodeLimits::default();
            assert_eq!(check_keys(&batch(compression, &records), &limits), Ok(()), "{compression:?}");
            let mut without = records.clone();
            without.insert(30, SimpleRecord::of_value("x"));
            let refused = check_keys(&batch(compression, &without), &limits).unwrap_err();
            assert_eq!(refused, BatchError::NoKey { index: 30 });
            assert_eq!(refused.class(), BatchErrorClass::Invalid);
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let whole = batch(Compression::None, &[SimpleRecord::of("key", "value"), SimpleRecord::of("k", "v")]);
        let limits = DecodeLimits::default();
        let mut refused = 0;
        for at in super::super::HEADER_BYTES..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.to_vec();
                bytes[at] ^= 1 << bit;
                refused += usize::from(check_keys(&bytes, &limits).is_err());
            }
        }
        assert!(refused > 30, "{refused} of the flipped bits were told");
        let small = DecodeLimits { max_decompressed_bytes: 10 };
        let large = batch(Compression::Zstd, &[SimpleRecord::of("key", vec![0; 1000])]);
        assert_eq!(check_keys(&large, &small), Err(BatchError::DecompressedTooLarge { max_bytes: 10 }));
    }
}
