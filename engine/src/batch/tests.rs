//! Tests of the batch module: each rule is broken on purpose in one batch, and arbitrary bytes never panic.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::*;
use crate::types::{Epoch, Offset, ProducerId, Timestamp};

const NOW: Timestamp = Timestamp(1_700_000_000_000);

fn limits() -> Limits {
    Limits {
        max_batch_bytes: 4096,
        max_batches: 1,
        timestamps: TimestampRule::CreateTime { now: NOW, before_max_ms: 1000, after_max_ms: 10 },
    }
}

fn options() -> BatchOptions {
    BatchOptions { base_timestamp: NOW, ..BatchOptions::default() }
}

fn idempotent(base_sequence: i32) -> BatchOptions {
    let producer = Producer { id: ProducerId(7), epoch: 3, base_sequence };
    BatchOptions { producer: Some(producer), ..options() }
}

fn three() -> Vec<SimpleRecord> {
    vec![
        SimpleRecord::of("k", "v"),
        SimpleRecord { key: Some("gone".into()), ..SimpleRecord::default() },
        SimpleRecord {
            headers: vec![("h".into(), Some("1".into())), ("h".into(), None), ("".into(), Some("".into()))],
            timestamp_delta: 5,
            ..SimpleRecord::of_value("third")
        },
    ]
}

fn batch() -> Bytes {
    data_batch(&three(), &options()).unwrap()
}

/// Overwrites bytes and makes the CRC right again, so that only the rule under test can refuse the batch.
fn patched(batch: &Bytes, at: usize, bytes: &[u8]) -> Bytes {
    let mut copy = BytesMut::from(&batch[..]);
    copy[at..at + bytes.len()].copy_from_slice(bytes);
    let crc = crc32c::crc32c(&copy[21..]);
    copy[17..21].copy_from_slice(&crc.to_be_bytes());
    copy.freeze()
}

fn refused(batch: &Bytes) -> BatchError {
    validate_client_batches(batch, &limits()).unwrap_err()
}

#[test]
fn a_good_batch_is_taken_and_its_slice_shares_memory() {
    let batch = batch();
    let taken = validate_client_batches(&batch, &limits()).unwrap();
    assert_eq!(taken.len(), 1);
    let (header, slice) = &taken[0];
    assert_eq!(slice.as_ptr(), batch.as_ptr());
    assert_eq!(slice.len(), header.batch_bytes);
    assert_eq!(header.record_count, 3);
    assert_eq!(header.last_offset(), Offset(2));
    assert_eq!(header.next_offset(), Offset(3));
    assert_eq!(header.max_timestamp, Timestamp(NOW.0 + 5));
    assert_eq!(header.producer_id, None);
    assert_eq!(header.last_sequence(), -1);
    assert_eq!(header.partition_leader_epoch, -1);
}

#[test]
fn every_flipped_bit_is_noticed() {
    // Base offset and leader epoch lie outside the CRC; the former must be 0, the latter is overwritten anyway.
    let batch = batch();
    for byte in (0..12).chain(16..batch.len()) {
        for bit in 0..8 {
            let mut copy = batch.to_vec();
            copy[byte] ^= 1 << bit;
            assert!(validate_client_batches(&copy.into(), &limits()).is_err(), "byte {byte} bit {bit}");
        }
    }
}

#[test]
fn short_and_long_input_is_refused() {
    let batch = batch();
    assert_eq!(refused(&Bytes::new()), BatchError::Empty);
    for length in 1..61 {
        assert_eq!(refused(&batch.slice(..length)), BatchError::ShortHeader { found: length });
    }
    for length in 61..batch.len() {
        let truncated = BatchError::Truncated { batch_bytes: batch.len(), available: length };
        assert_eq!(refused(&batch.slice(..length)), truncated);
    }
    let trailing: Bytes = [&batch[..], &[0; 3]].concat().into();
    assert_eq!(refused(&trailing), BatchError::TrailingBytes { trailing: 3 });
    let twice: Bytes = [&batch[..], &batch[..]].concat().into();
    assert_eq!(refused(&twice), BatchError::SeveralBatches);
    let two = Limits { max_batches: 2, ..limits() };
    assert_eq!(validate_client_batches(&twice, &two).unwrap().len(), 2);
}

#[test]
fn rules_of_headers() {
    let batch = batch();
    let check = |at: usize, bytes: &[u8]| refused(&patched(&batch, at, bytes));
    assert_eq!(check(0, &5_i64.to_be_bytes()), BatchError::ClientBaseOffset { base_offset: 5 });
    assert_eq!(check(8, &48_i32.to_be_bytes()), BatchError::ImpossibleLength { length: 48 });
    assert_eq!(check(8, &(-1_i32).to_be_bytes()), BatchError::ImpossibleLength { length: -1 });
    for magic in [0, 1, 3, -1_i8] {
        assert_eq!(check(16, &magic.to_be_bytes()), BatchError::UnsupportedMagic { magic });
    }
    let range = BatchError::OffsetRange { base_offset: 0, last_offset_delta: -1 };
    assert_eq!(check(23, &(-1_i32).to_be_bytes()), range);
    for delta in [1_i32, 3] {
        let count = BatchError::RecordCount { record_count: 3, last_offset_delta: delta };
        assert_eq!(check(23, &delta.to_be_bytes()), count);
    }
    let empty = BatchError::RecordCount { record_count: 0, last_offset_delta: 2 };
    assert_eq!(check(57, &0_i32.to_be_bytes()), empty);
    assert_eq!(check(21, &0x20_i16.to_be_bytes()), BatchError::ControlBatch);
    assert_eq!(check(21, &0x10_i16.to_be_bytes()), BatchError::TransactionalWithoutProducer);
    assert_eq!(check(21, &0x05_i16.to_be_bytes()), BatchError::UnknownCompression { codec: 5 });
    assert_eq!(check(21, &0x08_i16.to_be_bytes()), BatchError::LogAppendTimeFromClient);
    let small = Limits { max_batch_bytes: batch.len() - 1, ..limits() };
    let too_large = BatchError::TooLarge { batch_bytes: batch.len(), max_batch_bytes: batch.len() - 1 };
    assert_eq!(validate_client_batches(&batch, &small).unwrap_err(), too_large);
    let exact = Limits { max_batch_bytes: batch.len(), ..limits() };
    assert!(validate_client_batches(&batch, &exact).is_ok());

    let sequence = data_batch(&three(), &idempotent(-1)).unwrap();
    assert_eq!(refused(&sequence), BatchError::Sequence { producer_id: 7, base_sequence: -1 });
    assert!(validate_client_batches(&data_batch(&three(), &idempotent(0)).unwrap(), &limits()).is_ok());
}

#[test]
fn timestamps_are_held_to_the_topics_range() {
    let at = |base: i64, delta: i64| {
        let record = SimpleRecord { timestamp_delta: delta, ..SimpleRecord::of_value("v") };
        let options = BatchOptions { base_timestamp: Timestamp(base), ..BatchOptions::default() };
        data_batch(&[SimpleRecord::of_value("first"), record], &options).unwrap()
    };
    let range =
        |timestamp| BatchError::TimestampOutOfRange { timestamp, earliest: NOW.0 - 1000, latest: NOW.0 + 10 };
    assert!(validate_client_batches(&at(NOW.0 - 1000, 1010), &limits()).is_ok());
    assert_eq!(refused(&at(NOW.0, 11)), range(NOW.0 + 11));
    assert_eq!(refused(&at(NOW.0 - 1001, 1001)), range(NOW.0 - 1001));
    assert_eq!(refused(&at(NOW.0 - 5000, 1)), range(NOW.0 - 4999));
    // No timestamp is no reason.
    assert!(validate_client_batches(&at(-1, 0), &limits()).is_ok());
    let log_append = Limits { timestamps: TimestampRule::LogAppendTime, ..limits() };
    assert!(validate_client_batches(&at(NOW.0 - 5000, 1), &log_append).is_ok());
    // The defaults do not overflow.
    assert!(validate_client_batches(&at(0, 1), &Limits::kafka_defaults(NOW)).is_ok());
}

#[test]
fn classes_follow_kafkas_error_codes() {
    assert_eq!(BatchError::Crc { stored: 0, computed: 1 }.class(), BatchErrorClass::Corrupt);
    assert_eq!(BatchError::UnsupportedMagic { magic: 1 }.class(), BatchErrorClass::Invalid);
    assert_eq!(BatchError::UnsupportedMagic { magic: 9 }.class(), BatchErrorClass::Corrupt);
    assert_eq!(BatchError::ControlBatch.class(), BatchErrorClass::Invalid);
    assert_eq!(BatchError::LogAppendTimeFromClient.class(), BatchErrorClass::Timestamp);
}

#[test]
fn stamping_keeps_the_crc_and_log_append_time_renews_it() {
    let batch = batch();
    let stamped = StampedHeader::new(&batch, Offset(1234), Epoch::new(9).unwrap()).unwrap();
    let log: Bytes = [&stamped.bytes()[..], &batch[HEADER_BYTES..]].concat().into();
    check_crc(&log).unwrap();
    let header = stamped.header().unwrap();
    assert_eq!(header.base_offset, Offset(1234));
    assert_eq!(header.partition_leader_epoch, 9);
    let original = BatchHeader::parse(&batch).unwrap();
    assert_eq!(header, original.appended_at(Offset(1234), Epoch::new(9).unwrap()));

    let stamped = stamped.with_log_append_time(Timestamp(42), &batch[HEADER_BYTES..]);
    let log: Bytes = [&stamped.bytes()[..], &batch[HEADER_BYTES..]].concat().into();
    check_crc(&log).unwrap();
    let header = stamped.header().unwrap();
    assert_eq!(header.timestamp_type(), TimestampType::LogAppendTime);
    assert_eq!(header.max_timestamp, Timestamp(42));
    assert_eq!(header.base_timestamp, NOW);
    for record in decode_records(&log, &DecodeLimits::default()).unwrap() {
        assert_eq!(record.unwrap().timestamp, Timestamp(42));
    }
}

#[test]
fn markers_are_read_back() {
    for marker in [Marker::Commit, Marker::Abort] {
        let end = EndMarker { marker, coordinator_epoch: 77 };
        let batch = control_batch(end, ProducerId(5), 2, NOW).unwrap();
        check_crc(&batch).unwrap();
        let header = BatchHeader::parse(&batch).unwrap();
        assert!(header.is_control() && header.is_transactional());
        assert_eq!((header.base_sequence, header.record_count), (-1, 1));
        assert_eq!((header.producer_id, header.producer_epoch), (Some(ProducerId(5)), 2));
        assert_eq!(read_marker(&batch).unwrap(), Some(end));
        // 61 of the header, then length, attributes, deltas, key (1+4), value (1+6), headers.
        assert_eq!(batch.len(), 61 + 1 + 1 + 1 + 1 + 5 + 7 + 1);
    }
    assert_eq!(read_marker(&batch()).unwrap(), None);
}

#[test]
fn sequences_wrap() {
    assert_eq!(increment_sequence(i32::MAX, 1), 0);
    assert_eq!(increment_sequence(i32::MAX - 1, 3), 1);
    assert_eq!(decrement_sequence(0, 1), i32::MAX);
    assert_eq!(decrement_sequence(2, 2), 0);
    let batch = data_batch(&three(), &idempotent(i32::MAX)).unwrap();
    let header = BatchHeader::parse(&batch).unwrap();
    assert_eq!(header.last_sequence(), 1);
    let sequences = decode_records(&batch, &DecodeLimits::default()).unwrap();
    assert_eq!(sequences.map(|r| r.unwrap().sequence).collect::<Vec<_>>(), [i32::MAX, 0, 1]);
}

fn decoded(batch: &Bytes) -> Vec<Record> {
    decode_records(batch, &DecodeLimits::default()).unwrap().map(Result::unwrap).collect()
}

#[test]
fn records_come_back_as_they_were() {
    let records = decoded(&batch());
    assert_eq!(records.len(), 3);
    assert_eq!(records[1].value, None);
    assert_eq!(records[1].key, Some("gone".into()));
    assert_eq!(records[2].key, None);
    assert_eq!(records[2].timestamp, Timestamp(NOW.0 + 5));
    assert_eq!(records[2].offset, Offset(2));
    // Repeated header keys stay, in order.
    let headers: Vec<_> = records[2].headers.iter().map(|h| (h.key.clone(), h.value.clone())).collect();
    assert_eq!(headers, three()[2].headers);
}

#[test]
fn lookups_inside_a_batch() {
    let records: Vec<_> = [0, 7, 3, 7]
        .into_iter()
        .map(|timestamp_delta| SimpleRecord { timestamp_delta, ..SimpleRecord::of_value("v") })
        .collect();
    let options = BatchOptions { base_offset: Offset(100), base_timestamp: NOW, ..BatchOptions::default() };
    let batch = data_batch(&records, &options).unwrap();
    let limits = DecodeLimits::default();
    let find = |delta: i64, from: i64| {
        let found =
            first_record_at_or_after(&batch, Timestamp(NOW.0 + delta), Offset(from), &limits).unwrap();
        found.map(|(offset, timestamp)| (offset.0, timestamp.0 - NOW.0))
    };
    assert_eq!(find(-10, 0), Some((100, 0)));
    assert_eq!(find(1, 0), Some((101, 7)));
    assert_eq!(find(1, 102), Some((102, 3)));
    assert_eq!(find(8, 0), None);
    let newest = record_of_max_timestamp(&batch, &limits).unwrap();
    assert_eq!(newest, Some((Offset(101), Timestamp(NOW.0 + 7))));
}

#[test]
fn no_record_lies_outside_of_its_batch() {
    let options = BatchOptions { base_offset: Offset(100), base_timestamp: NOW, ..BatchOptions::default() };
    let records: Vec<_> = [0, 7, 3]
        .into_iter()
        .map(|timestamp_delta| SimpleRecord { timestamp_delta, ..SimpleRecord::of_value("v") })
        .collect();
    let batch = data_batch(&records, &options).unwrap();
    let record_bytes = (batch.len() - HEADER_BYTES) / 3;
    let limits = DecodeLimits::default();
    // Behind length, attributes and timestamp delta of the second record, zigzag: 60, -60, 1.
    for (written, said, offset) in [(120, 60, 102), (119, -60, 100), (2, 1, 101)] {
        let batch = patched(&batch, HEADER_BYTES + record_bytes + 3, &[written]);
        let found = first_record_at_or_after(&batch, Timestamp(NOW.0 + 1), Offset(0), &limits).unwrap();
        assert_eq!(found, Some((Offset(offset), Timestamp(NOW.0 + 7))));
        assert_eq!(record_of_max_timestamp(&batch, &limits).unwrap(), found);
        let record = &decoded(&batch)[1];
        assert_eq!((record.offset, record.offset_delta), (Offset(offset), said));
    }
}

#[test]
fn hostile_lengths_are_bounded() {
    let body_at = |bytes: &[u8]| {
        let mut raw = batch().to_vec();
        raw.truncate(HEADER_BYTES);
        raw.extend_from_slice(bytes);
        let length = i32::try_from(raw.len() - 12).unwrap();
        raw[8..12].copy_from_slice(&length.to_be_bytes());
        decode_records(&raw.into(), &DecodeLimits::default()).unwrap().next().unwrap().unwrap_err()
    };
    let record = |bytes: &[u8]| match body_at(bytes) {
        BatchError::Record { index: 0, position: 0, problem } => problem,
        other => panic!("{other}"),
    };
    assert_eq!(record(&[]), RecordProblem::Ends);
    assert_eq!(record(&[0xff; 20]), RecordProblem::Varint);
    // A record of 2 GiB, of which one byte is there.
    assert_eq!(record(&[0xfe, 0xff, 0xff, 0xff, 0x0f, 0]), RecordProblem::Ends);
    // One billion headers in a record of 11 bytes.
    let headers = [22, 0, 0, 0, 1, 1, 0x80, 0xa8, 0xd6, 0xb9, 0x07, 0];
    assert_eq!(record(&headers), RecordProblem::Length(1_000_000_000));
    // Fields that end before the record does.
    assert_eq!(record(&[14, 0, 0, 0, 1, 1, 0, 0]), RecordProblem::Size { declared: 7, used: 6 });
}

#[cfg(feature = "compression")]
mod compressed {
    use super::*;

    const CODECS: [Compression; 4] =
        [Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

    #[test]
    fn every_codec_gives_the_same_records() {
        let mut records = three();
        // More than one block of snappy-java's stream.
        records.push(SimpleRecord::of_value(vec![b'x'; 100_000]));
        let plain = decoded(&data_batch(&records, &options()).unwrap());
        for compression in CODECS {
            let batch = data_batch(&records, &BatchOptions { compression, ..options() }).unwrap();
            assert!(batch.len() < 20_000, "{} did not compress", compression.name());
            assert_eq!(decoded(&batch), plain, "{}", compression.name());
        }
    }

    #[test]
    fn a_raw_snappy_block_is_read_too() {
        let plain = batch();
        let raw = snap::raw::Encoder::new().compress_vec(&plain[HEADER_BYTES..]).unwrap();
        let mut batch = plain[..HEADER_BYTES].to_vec();
        batch.extend_from_slice(&raw);
        let length = i32::try_from(batch.len() - 12).unwrap();
        batch[8..12].copy_from_slice(&length.to_be_bytes());
        batch[21..23].copy_from_slice(&2_i16.to_be_bytes());
        assert_eq!(decoded(&batch.into()), decoded(&plain));
    }

    #[test]
    fn a_bomb_stops_at_the_bound() {
        let records = [SimpleRecord::of_value(vec![0; 1 << 20])];
        for compression in CODECS {
            let batch = data_batch(&records, &BatchOptions { compression, ..options() }).unwrap();
            let limits = DecodeLimits { max_decompressed_bytes: 64 << 10 };
            let error = decode_records(&batch, &limits).unwrap_err();
            assert_eq!(error, BatchError::DecompressedTooLarge { max_bytes: 64 << 10 });
        }
    }

    #[test]
    fn lookups_by_time_stop_at_the_bound_and_hold_nothing() {
        // The record that is asked for comes behind one that is above the bound.
        let big = SimpleRecord::of_value(vec![0; 1 << 20]);
        let late = SimpleRecord { timestamp_delta: 9, ..SimpleRecord::of_value("late") };
        for compression in CODECS {
            let batch = data_batch(&[big.clone(), late.clone()], &BatchOptions { compression, ..options() });
            let batch = batch.unwrap();
            let find = |max_decompressed_bytes| {
                let limits = DecodeLimits { max_decompressed_bytes };
                first_record_at_or_after(&batch, Timestamp(NOW.0 + 9), Offset(0), &limits)
            };
            let too_large = BatchError::DecompressedTooLarge { max_bytes: 64 << 10 };
            assert_eq!(find(64 << 10), Err(too_large), "{}", compression.name());
            assert_eq!(find(2 << 20), Ok(Some((Offset(1), Timestamp(NOW.0 + 9)))), "{}", compression.name());
        }
    }

    #[test]
    fn damaged_streams_are_errors() {
        for compression in CODECS {
            let batch = data_batch(&three(), &BatchOptions { compression, ..options() }).unwrap();
            for byte in HEADER_BYTES..batch.len() {
                let mut copy = batch.to_vec();
                copy[byte] ^= 0xff;
                // Any outcome but a panic; the CRC is what vouches for contents.
                if let Ok(records) = decode_records(&copy.into(), &DecodeLimits::default()) {
                    records.for_each(drop);
                }
            }
        }
    }
}

/// Bytes that get past the first checks often enough to reach the later ones.
fn batch_like() -> impl Strategy<Value = Vec<u8>> {
    let arbitrary = proptest::collection::vec(any::<u8>(), 0..200);
    let changes = proptest::collection::vec((0_usize..200, any::<u8>()), 0..6);
    let damaged = (changes, 0_usize..3, 0_i16..8).prop_map(|(changes, kind, codec)| {
        let end = EndMarker { marker: Marker::Abort, coordinator_epoch: 1 };
        let mut bytes = match kind {
            0 => batch().to_vec(),
            1 => control_batch(end, ProducerId(1), 0, NOW).unwrap().to_vec(),
            _ => patched(&batch(), 21, &codec.to_be_bytes()).to_vec(),
        };
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes
    });
    prop_oneof![arbitrary, damaged]
}

proptest! {
    #[test]
    fn nothing_panics(bytes in batch_like(), fix_crc: bool) {
        let mut bytes = bytes;
        if fix_crc && bytes.len() > 21 {
            let crc = crc32c::crc32c(&bytes[21..]);
            bytes[17..21].copy_from_slice(&crc.to_be_bytes());
        }
        let bytes = Bytes::from(bytes);
        let limits = DecodeLimits { max_decompressed_bytes: 1 << 20 };
        if let Ok(header) = BatchHeader::parse(&bytes) {
            prop_assert!(header.next_offset() > header.last_offset());
            prop_assert!(header.last_sequence() >= -1);
        }
        let _ = check_crc(&bytes);
        let _ = read_marker(&bytes);
        let _ = StampedHeader::new(&bytes, Offset(1), Epoch::NONE).map(|header| header.header());
        let _ = first_record_at_or_after(&bytes, NOW, Offset(0), &limits);
        if let Ok(records) = decode_records(&bytes, &limits) {
            records.for_each(drop);
        }
        if let Ok(taken) = validate_client_batches(&bytes, &super::tests::limits()) {
            let total: usize = taken.iter().map(|(_, slice)| slice.len()).sum();
            prop_assert_eq!(total, bytes.len());
        }
    }

    /// The walk that holds no records finds what a look at all of them finds.
    #[test]
    fn lookups_agree_with_decoding(bytes in batch_like(), target in -1_i64..7, from in 0_i64..4) {
        let (bytes, target, from) = (Bytes::from(bytes), Timestamp(NOW.0 + target), Offset(from));
        let limits = DecodeLimits { max_decompressed_bytes: 1 << 20 };
        let found = first_record_at_or_after(&bytes, target, from, &limits);
        if let Ok(records) = decode_records(&bytes, &limits) {
            let all: Result<Vec<_>, _> = records.collect();
            if let Ok(all) = all {
                let first = all.iter().find(|r| r.timestamp >= target && r.offset >= from);
                prop_assert_eq!(found, Ok(first.map(|record| (record.offset, record.timestamp))));
            }
        }
    }

    #[test]
    fn any_records_come_back(
        records in proptest::collection::vec(
            (
                proptest::option::of(proptest::collection::vec(any::<u8>(), 0..300)),
                proptest::option::of(proptest::collection::vec(any::<u8>(), 0..300)),
                any::<i32>(),
            ),
            1..20,
        ),
    ) {
        let simple: Vec<_> = records
            .iter()
            .map(|(key, value, delta)| SimpleRecord {
                key: key.clone().map(Bytes::from),
                value: value.clone().map(Bytes::from),
                headers: Vec::new(),
                timestamp_delta: i64::from(*delta),
            })
            .collect();
        let batch = data_batch(&simple, &options()).unwrap();
        check_crc(&batch).unwrap();
        let back = decoded(&batch);
        prop_assert_eq!(back.len(), simple.len());
        for (index, (record, sent)) in back.iter().zip(&simple).enumerate() {
            prop_assert_eq!(&record.key, &sent.key);
            prop_assert_eq!(&record.value, &sent.value);
            prop_assert_eq!(record.timestamp, Timestamp(NOW.0 + sent.timestamp_delta));
            prop_assert_eq!(record.offset, Offset(i64::try_from(index).unwrap()));
        }
    }
}
