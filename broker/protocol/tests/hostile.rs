//! Bytes that no honest client sends, for every message in every version: hostile counts at every array, truncation at
//! every byte, bytes too many, odd tags, random damage. Always an error or a valid value, never a panic, never memory
//! beyond a multiple of what was sent.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

#[macro_use]
mod support;

use std::alloc::System;
use std::collections::BTreeSet;
use std::sync::Mutex;

use bytes::Bytes;
use kaas_protocol::{
    CreateTopicsRequest, DecodeError, DecodeErrorKind, Message, MetadataRequest, ProduceRequest, Segments,
    VersionRange,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::*;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Tests run in threads and allocations are counted for the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The error and the like.
const FIXED_COST_BYTES: usize = 512;

/// In-memory bytes for one byte of a frame, at worst: structures are larger than their shortest encoding.
const AMPLIFICATION: usize = 64;

/// Decodes, and says how many bytes that allocated. The test harness allocates in its own threads now and then, so what
/// is above the limit is measured again.
fn measured<M: Message>(version: i16, body: &Bytes, limit: usize) -> (Result<M, DecodeError>, usize) {
    let mut least = usize::MAX;
    loop {
        let region = Region::new(ALLOCATOR);
        let result = M::decode(version, body.clone());
        let allocated = region.change().bytes_allocated;
        if allocated <= limit || allocated >= least {
            return (result, allocated);
        }
        least = allocated;
    }
}

fn encoded<M: Message>(message: &M, version: i16) -> Bytes {
    let mut out = Segments::new();
    message.encode(version, &mut out).unwrap();
    out.to_bytes().unwrap()
}

/// The varint of a count of 2^31 - 1, plus one.
const COMPACT_COUNT: [u8; 5] = [0x80, 0x80, 0x80, 0x80, 0x08];

/// Bodies that claim a huge count, one for every place where a count could be.
fn with_hostile_counts(body: &[u8], flexible: bool) -> impl Iterator<Item = Vec<u8>> + use<'_> {
    (0..body.len()).map(move |at| {
        let mut damaged = body[..at].to_vec();
        if flexible {
            damaged.extend_from_slice(&COMPACT_COUNT);
            damaged.extend_from_slice(&body[at + 1..]);
        } else {
            damaged.extend_from_slice(&i32::MAX.to_be_bytes());
            damaged.extend_from_slice(&body[(at + 4).min(body.len())..]);
        }
        damaged
    })
}

fn hostile_counts<M: Message>(random: fn(&mut Gen, i16) -> M, arrays: fn(i16) -> Vec<&'static str>) -> usize {
    let mut seen = 0;
    for version in M::VERSIONS.iter() {
        let body = encoded(&random(&mut Gen::full(1), version), version);
        let mut refused = BTreeSet::new();
        for damaged in with_hostile_counts(&body, version >= M::FLEXIBLE_FROM) {
            let length = damaged.len();
            let limit = AMPLIFICATION * length + FIXED_COST_BYTES;
            let (result, allocated) = measured::<M>(version, &Bytes::from(damaged), limit);
            assert!(allocated <= limit, "{} v{version}: {allocated} bytes for a body of {length}", M::NAME);
            if let Err(error) = result
                && let DecodeErrorKind::CountTooLarge { count, .. } = error.kind()
                && *count == i32::MAX as usize
            {
                refused.insert(error.context().field);
            }
        }
        for array in arrays(version) {
            assert!(
                refused.contains(array),
                "{} v{version}: no error at {array}, only at {refused:?}",
                M::NAME
            );
            seen += 1;
        }
    }
    seen
}

#[test]
fn a_hostile_count_at_every_array_costs_nothing() {
    let _guard = ONE_AT_A_TIME.lock();
    let mut seen = 0;
    macro_rules! check {
        ($api:ident, $message:ident, $random:ident, $arrays:ident) => {
            seen += hostile_counts::<kaas_protocol::$message>($random, $arrays);
        };
    }
    for_each_message!(check);
    assert!(seen > 800, "{seen}");
}

#[test]
fn metadata_for_two_billion_topics_in_five_bytes() {
    let _guard = ONE_AT_A_TIME.lock();
    for version in MetadataRequest::VERSIONS.iter() {
        let body = if version >= MetadataRequest::FLEXIBLE_FROM {
            Bytes::from_static(&COMPACT_COUNT)
        } else {
            Bytes::from_static(&[0x7f, 0xff, 0xff, 0xff, 0])
        };
        let (result, allocated) = measured::<MetadataRequest>(version, &body, 128);
        assert!(allocated <= 128, "{allocated}");
        let error = result.unwrap_err();
        assert!(matches!(error.kind(), DecodeErrorKind::CountTooLarge { count: 0x7fff_ffff, .. }), "{error}");
        assert_eq!(error.context().field, "MetadataRequest.topics");
    }
}

/// A count that the body could hold, of elements that are not there: what is reserved is bounded even so.
#[test]
fn a_large_body_that_lies_reserves_little() {
    let _guard = ONE_AT_A_TIME.lock();
    let mut body = vec![0xff; 16 << 20];
    // Version 1: four million topics, each at least two bytes long; the first one claims a length of -1.
    body[..4].copy_from_slice(&4_000_000_i32.to_be_bytes());
    let body = Bytes::from(body);
    let (result, allocated) = measured::<MetadataRequest>(1, &body, 100_000);
    assert!(allocated <= 100_000, "{allocated}");
    assert_eq!(*result.unwrap_err().kind(), DecodeErrorKind::UnexpectedNull);
}

/// No beginning of a message is a message, and neither is one with a byte more.
fn truncated_and_extended<M: Message>(random: fn(&mut Gen, i16) -> M) {
    for version in M::VERSIONS.iter() {
        for seed in 0..2 {
            let mut g = if seed == 0 { Gen::full(9) } else { Gen::new(9) };
            let body = encoded(&random(&mut g, version), version);
            // Long strings are not cut at every byte.
            for length in (0..body.len()).filter(|length| *length < 400 || length % 16 == 0) {
                let error = M::decode(version, body.slice(..length)).unwrap_err();
                assert!(error.context().offset <= length, "{error}");
            }
            let mut extended = body.to_vec();
            extended.push(0);
            let error = M::decode(version, Bytes::from(extended)).unwrap_err();
            assert_eq!(*error.kind(), DecodeErrorKind::TrailingBytes(1), "{error}");
            assert_eq!(error.context().offset, body.len());
        }
    }
}

#[test]
fn truncation_and_trailing_bytes() {
    let _guard = ONE_AT_A_TIME.lock();
    macro_rules! check {
        ($api:ident, $message:ident, $random:ident, $arrays:ident) => {
            truncated_and_extended::<kaas_protocol::$message>($random);
        };
    }
    for_each_message!(check);
}

/// Damaged bytes that decode are a value that encodes and decodes again.
fn damaged<M: Message>(random: fn(&mut Gen, i16) -> M) -> usize {
    let mut decoded = 0;
    for version in M::VERSIONS.iter() {
        let mut g = Gen::new(77);
        for _ in 0..20 {
            let mut body = encoded(&random(&mut g, version), version).to_vec();
            if body.is_empty() {
                continue;
            }
            for _ in 0..1 + g.next() % 3 {
                let at = (g.next() % body.len() as u64) as usize;
                body[at] = g.next() as u8;
            }
            let Ok(value) = M::decode(version, Bytes::from(body)) else { continue };
            let again = encoded(&value, version);
            let value = M::decode(version, again.clone()).unwrap();
            assert_eq!(encoded(&value, version), again);
            decoded += 1;
        }
    }
    decoded
}

#[test]
fn random_damage() {
    let _guard = ONE_AT_A_TIME.lock();
    let mut decoded = 0;
    macro_rules! check {
        ($api:ident, $message:ident, $random:ident, $arrays:ident) => {
            decoded += damaged::<kaas_protocol::$message>($random);
        };
    }
    for_each_message!(check);
    assert!(decoded > 1_000, "{decoded}");
}

/// The tagged fields of a message are at its end; a sparse value has none there, which is a zero.
fn odd_tags<M: Message>() -> usize {
    let mut checked = 0;
    for version in M::VERSIONS.iter().filter(|version| *version >= M::FLEXIBLE_FROM) {
        let value = M::default();
        let mut out = Segments::new();
        if value.encode(version, &mut out).is_err() {
            continue;
        }
        let body = out.to_bytes().unwrap();
        assert_eq!(body.last(), Some(&0), "{} v{version}", M::NAME);
        let with_tags = |tags: &[u8]| {
            let mut bytes = body[..body.len() - 1].to_vec();
            bytes.extend_from_slice(tags);
            M::decode(version, Bytes::from(bytes))
        };
        let plain = M::decode(version, body.clone()).unwrap();
        assert_eq!(with_tags(&[1, 77, 3, 1, 2, 3]).unwrap(), plain);
        assert_eq!(with_tags(&[2, 77, 0, 0xff, 1, 1, 9]).unwrap(), plain);
        let error = with_tags(&[2, 77, 0, 77, 0]).unwrap_err();
        assert_eq!(*error.kind(), DecodeErrorKind::TagOutOfOrder { tag: 77, previous: 77 });
        let error = with_tags(&[2, 77, 0, 76, 0]).unwrap_err();
        assert_eq!(*error.kind(), DecodeErrorKind::TagOutOfOrder { tag: 76, previous: 77 });
        let error = with_tags(&[1, 77, 3, 1, 2]).unwrap_err();
        assert_eq!(*error.kind(), DecodeErrorKind::Truncated { needed: 3, remaining: 2 });
        let error = with_tags(&[0xff, 0xff, 0xff, 0xff, 0x0f]).unwrap_err();
        assert_eq!(*error.kind(), DecodeErrorKind::CountTooLarge { count: 0xffff_ffff, remaining: 0 });
        let error = with_tags(&[0xff, 0xff, 0xff, 0xff, 0x1f]).unwrap_err();
        assert_eq!(*error.kind(), DecodeErrorKind::VarintTooLong);
        checked += 1;
    }
    checked
}

#[test]
fn tags_that_are_unknown_repeat_or_lie() {
    let _guard = ONE_AT_A_TIME.lock();
    let mut checked = 0;
    macro_rules! check {
        ($api:ident, $message:ident, $random:ident, $arrays:ident) => {
            checked += odd_tags::<kaas_protocol::$message>();
        };
    }
    for_each_message!(check);
    assert!(checked > 200, "{checked}");
}

#[test]
fn versions_without_a_schema() {
    let _guard = ONE_AT_A_TIME.lock();
    let VersionRange { min, max } = ProduceRequest::VERSIONS;
    for version in [i16::MIN, -1, min - 1, max + 1, i16::MAX] {
        let error = ProduceRequest::decode(version, Bytes::new()).unwrap_err();
        assert_eq!(*error.kind(), DecodeErrorKind::UnsupportedVersion { min, max });
    }
}

fn produce_v3(topic: &[u8]) -> Bytes {
    // transactional id null, acks, timeout, one topic.
    let mut body = vec![0xff, 0xff, 0, 1, 0, 0, 0, 5, 0, 0, 0, 1];
    body.extend_from_slice(topic);
    Bytes::from(body)
}

#[test]
fn values_that_are_not_allowed() {
    let _guard = ONE_AT_A_TIME.lock();
    let no_partition: [u8; 4] = [0; 4];
    let with = |name: &[u8]| ProduceRequest::decode(3, produce_v3(&[name, &no_partition].concat()));
    assert_eq!(with(&[0, 1, b't']).unwrap().topic_data[0].name, "t");
    let error = with(&[0, 2, b't', 0xff]).unwrap_err();
    assert_eq!(*error.kind(), DecodeErrorKind::InvalidUtf8);
    assert_eq!(error.context().field, "TopicProduceData.name");
    assert_eq!(error.to_string(), "ProduceRequest v3: TopicProduceData.name at byte 16: invalid UTF-8");
    assert_eq!(*with(&[0xff, 0xff]).unwrap_err().kind(), DecodeErrorKind::UnexpectedNull);
    assert_eq!(*with(&[0xff, 0xfe]).unwrap_err().kind(), DecodeErrorKind::NegativeLength(-2));
    assert_eq!(*with(&[0x80, 0]).unwrap_err().kind(), DecodeErrorKind::NegativeLength(-32_768));
    // A null array where only records may be null, and a negative length of records.
    let error = ProduceRequest::decode(3, produce_v3(&[0, 1, b't', 0xff, 0xff, 0xff, 0xff])).unwrap_err();
    assert_eq!(*error.kind(), DecodeErrorKind::UnexpectedNull);
    let records = [0, 1, b't', 0, 0, 0, 1, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xfe];
    let error = ProduceRequest::decode(3, produce_v3(&records)).unwrap_err();
    assert_eq!(*error.kind(), DecodeErrorKind::NegativeLength(-2));
    assert_eq!(error.context().field, "PartitionProduceData.records");
    // Compact strings have no length limit of their own on the wire; Kafka's is that of a short.
    let mut long = vec![0x81, 0x80, 2];
    long.extend_from_slice(&vec![b'x'; 32_768]);
    let body = [&[2][..], &long, &[0, 0, 0, 0][..]].concat();
    let error = CreateTopicsRequest::decode(5, Bytes::from(body)).unwrap_err();
    assert_eq!(*error.kind(), DecodeErrorKind::StringTooLong(32_768));
}
