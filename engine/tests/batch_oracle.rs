//! Our batches against another implementation of the format, in both directions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use bytes::{Bytes, BytesMut};
use kaas_engine::batch::{
    BatchOptions, DecodeLimits, EndMarker, Limits, Marker, Producer, SimpleRecord, control_batch, data_batch,
    decode_records, validate_client_batches,
};
use kaas_engine::types::{Offset, ProducerId, Timestamp};
use kafka_protocol::records::{
    Compression, Record, RecordBatchDecoder, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};
use proptest::prelude::*;

const NOW: i64 = 1_700_000_000_000;

/// Key, value, timestamp delta, headers (distinct keys: the other implementation loses repeated ones).
type Sample = (Option<Vec<u8>>, Option<Vec<u8>>, i64, Vec<Option<Vec<u8>>>);

fn samples() -> impl Strategy<Value = Vec<Sample>> {
    let bytes = || proptest::option::of(proptest::collection::vec(any::<u8>(), 0..200));
    let headers = proptest::collection::vec(bytes(), 0..3);
    proptest::collection::vec((bytes(), bytes(), 0_i64..100_000, headers), 1..20)
}

fn theirs(samples: &[Sample], producer: Option<Producer>, transactional: bool) -> Vec<Record> {
    let record = |(index, (key, value, delta, headers)): (usize, &Sample)| {
        let index = i32::try_from(index).unwrap();
        let named = headers.iter().enumerate();
        Record {
            transactional,
            control: false,
            delete_horizon: false,
            partition_leader_epoch: -1,
            producer_id: producer.map_or(-1, |producer| producer.id.0),
            producer_epoch: producer.map_or(-1, |producer| producer.epoch),
            timestamp_type: TimestampType::Creation,
            offset: i64::from(index),
            // The other implementation counts on from -1 where there is no sequence.
            sequence: producer.map_or(-1, |producer| producer.base_sequence) + index,
            timestamp: NOW + delta,
            key: key.clone().map(Bytes::from),
            value: value.clone().map(Bytes::from),
            headers: named
                .map(|(at, value)| (format!("h{at}").into(), value.clone().map(Bytes::from)))
                .collect(),
        }
    };
    samples.iter().enumerate().map(record).collect()
}

proptest! {
    #[test]
    fn batches_agree(samples in samples(), idempotent: bool, transactional: bool) {
        let producer = idempotent.then_some(Producer { id: ProducerId(99), epoch: 4, base_sequence: 17 });
        let transactional = transactional && idempotent;
        let records = theirs(&samples, producer, transactional);

        // What the other one writes is taken and read.
        let mut encoded = BytesMut::new();
        let options = RecordEncodeOptions { version: 2, compression: Compression::None };
        RecordBatchEncoder::encode(&mut encoded, &records, &options).unwrap();
        let encoded = encoded.freeze();
        let taken = validate_client_batches(&encoded, &Limits::kafka_defaults(Timestamp(NOW))).unwrap();
        prop_assert_eq!(taken.len(), 1);
        let header = taken[0].0;
        prop_assert_eq!(header.producer_id, producer.map(|producer| producer.id));
        prop_assert_eq!(header.is_transactional(), transactional);
        prop_assert_eq!(header.max_timestamp.0, records.iter().map(|record| record.timestamp).max().unwrap());
        let decoded: Vec<_> = decode_records(&encoded, &DecodeLimits::default())
            .unwrap()
            .map(Result::unwrap)
            .collect();
        prop_assert_eq!(decoded.len(), records.len());
        for (ours, theirs) in decoded.iter().zip(&records) {
            prop_assert_eq!(&ours.key, &theirs.key);
            prop_assert_eq!(&ours.value, &theirs.value);
            prop_assert_eq!((ours.offset.0, ours.timestamp.0), (theirs.offset, theirs.timestamp));
            prop_assert_eq!(ours.sequence, if idempotent { theirs.sequence } else { -1 });
            let headers: Vec<_> = ours.headers.iter().map(|h| (&h.key[..], h.value.clone())).collect();
            let expected: Vec<_> = theirs.headers.iter().map(|(k, v)| (k.as_bytes(), v.clone())).collect();
            prop_assert_eq!(headers, expected);
        }

        // And the other way round.
        let simple: Vec<_> = samples
            .iter()
            .map(|(key, value, delta, headers)| SimpleRecord {
                key: key.clone().map(Bytes::from),
                value: value.clone().map(Bytes::from),
                headers: headers
                    .iter()
                    .enumerate()
                    .map(|(at, value)| (format!("h{at}").into(), value.clone().map(Bytes::from)))
                    .collect(),
                timestamp_delta: *delta,
            })
            .collect();
        let options = BatchOptions {
            base_timestamp: Timestamp(NOW),
            base_offset: Offset::ZERO,
            producer,
            transactional,
            ..BatchOptions::default()
        };
        let mut batch = data_batch(&simple, &options).unwrap();
        let read = RecordBatchDecoder::decode(&mut batch).unwrap();
        prop_assert_eq!(read.records, records);
    }
}

#[test]
fn markers_agree() {
    for (marker, kind) in [(Marker::Abort, 0_u8), (Marker::Commit, 1)] {
        let end = EndMarker { marker, coordinator_epoch: 258 };
        let mut batch = control_batch(end, ProducerId(8), 3, Timestamp(NOW)).unwrap();
        let read = RecordBatchDecoder::decode(&mut batch).unwrap();
        let record = &read.records[0];
        assert!(record.control && record.transactional);
        assert_eq!((record.producer_id, record.producer_epoch, record.timestamp), (8, 3, NOW));
        assert_eq!(record.key.as_deref(), Some(&[0, 0, 0, kind][..]));
        assert_eq!(record.value.as_deref(), Some(&[0, 0, 0, 0, 1, 2][..]));
    }
}
