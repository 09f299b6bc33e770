//! Every message in every version against another implementation of the protocol, byte for byte.
//!
//! A random value is encoded here, decoded there, encoded there: the same bytes. Those are decoded here: the same value.
//! So both directions of both codecs must agree on every field. What the other codec does not have is compared with bytes
//! written by hand in `golden.rs`.

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

use bytes::{Bytes, BytesMut};
use kaas_protocol::{ApiKey, EncodeError, ErrorCode, Message, Segments};
use kafka_protocol::protocol::{Decodable, Encodable};
use support::*;

/// Values per message and version.
const ROUNDS: u64 = 12;

/// Sparse values per message that are encoded in all versions below the highest.
const SPARSE_ROUNDS: u64 = 60;

fn encoded<M: Message>(message: &M, version: i16) -> Bytes {
    let mut out = Segments::new();
    message.encode(version, &mut out).unwrap();
    out.to_bytes().unwrap()
}

fn compare<Ours, Theirs>(theirs_max: i16, random: fn(&mut Gen, i16) -> Ours) -> usize
where
    Ours: Message,
    Theirs: Decodable + Encodable,
{
    let mut compared = 0;
    for version in Ours::VERSIONS.iter() {
        for round in 0..ROUNDS {
            let mut g = Gen::new(round * 1_000 + version as u64);
            let value = random(&mut g, version);
            let ours = encoded(&value, version);
            let decoded =
                Ours::decode(version, ours.clone()).unwrap_or_else(|error| panic!("{error}\n{value:?}"));
            assert_eq!(decoded, value, "{} v{version}", Ours::NAME);
            if version > theirs_max {
                continue;
            }
            let mut left = ours.clone();
            let theirs = Theirs::decode(&mut left, version)
                .unwrap_or_else(|error| panic!("{} v{version}: {error}\n{value:?}\n{ours:?}", Ours::NAME));
            assert!(
                left.is_empty(),
                "{} v{version}: they left {} bytes of {value:?}",
                Ours::NAME,
                left.len()
            );
            let mut again = BytesMut::new();
            theirs.encode(&mut again, version).unwrap();
            assert_eq!(again.freeze(), ours, "{} v{version}: {value:?}", Ours::NAME);
            compared += 1;
        }
    }
    compared
}

/// The highest version that the other codec has of a message. Three requests are one behind there, because Kafka 4.1
/// marks their newest version as not final.
fn theirs_max(name: &str, ours: i16) -> i16 {
    match name {
        "OffsetCommitRequest" | "OffsetFetchRequest" => 9,
        "InitProducerIdRequest" => 5,
        _ => ours,
    }
}

#[test]
fn every_message_in_every_version() {
    let mut compared = 0;
    macro_rules! check {
        ($api:ident, $message:ident, $random:ident, $arrays:ident) => {
            let max = theirs_max(stringify!($message), kaas_protocol::$message::VERSIONS.max);
            compared += compare::<kaas_protocol::$message, kafka_protocol::messages::$message>(max, $random);
        };
    }
    for_each_message!(check);
    assert!(compared > 5_000, "{compared}");
}

/// Encodes values of the highest version in all lower ones, here and there: both refuse, or both give the same bytes. So
/// the two agree on which fields may be dropped. Returns how many were encoded and how many refused.
fn compare_downwards<Ours, Theirs>(highest: i16, random: fn(&mut Gen, i16) -> Ours) -> (usize, usize)
where
    Ours: Message,
    Theirs: Decodable + Encodable,
{
    let (mut agreed, mut refused) = (0, 0);
    for round in 0..SPARSE_ROUNDS {
        let value = random(&mut Gen::sparse(round), highest);
        let theirs = Theirs::decode(&mut encoded(&value, highest), highest).unwrap();
        for version in Ours::VERSIONS.min..highest {
            let mut ours = Segments::new();
            let result = value.encode(version, &mut ours);
            let mut bytes = BytesMut::new();
            let their_result = theirs.encode(&mut bytes, version);
            match (&result, &their_result) {
                (Ok(()), Ok(())) => {
                    assert_eq!(
                        ours.to_bytes().unwrap(),
                        bytes.freeze(),
                        "{} v{version}: {value:?}",
                        Ours::NAME
                    );
                    agreed += 1;
                }
                (Err(error), _) => {
                    assert!(ours.is_empty(), "{error}");
                    assert!(their_result.is_err() || they_are_lax(error), "{error}\n{value:?}");
                    refused += 1;
                }
                (Ok(()), Err(error)) => panic!("{} v{version}: {error}\n{value:?}", Ours::NAME),
            }
        }
    }
    (agreed, refused)
}

/// Where the other codec drops or writes what Kafka refuses: set tagged fields in versions without tags, and null in
/// versions that do not allow it.
fn they_are_lax(error: &EncodeError) -> bool {
    match error {
        EncodeError::NullNotAllowed { .. } => true,
        EncodeError::FieldNotInVersion { field, .. } => LAX_TAGS.contains(field),
        _ => false,
    }
}

const LAX_TAGS: [&str; 7] = [
    "PartitionProduceResponse.current_leader",
    "ProduceResponse.node_endpoints",
    "FetchRequest.replica_state",
    "PartitionData.diverging_epoch",
    "PartitionData.current_leader",
    "PartitionData.snapshot_id",
    "FetchResponse.node_endpoints",
];

#[test]
fn versions_that_lack_fields() {
    let (mut agreed, mut refused) = (0, 0);
    macro_rules! check {
        ($api:ident, $message:ident, $random:ident, $arrays:ident) => {
            let max = theirs_max(stringify!($message), kaas_protocol::$message::VERSIONS.max);
            let counts = compare_downwards::<kaas_protocol::$message, kafka_protocol::messages::$message>(
                max, $random,
            );
            agreed += counts.0;
            refused += counts.1;
        };
    }
    for_each_message!(check);
    assert!(agreed > 3_000 && refused > 1_000, "{agreed} {refused}");
}

/// Data, groups, transactions, topics and configuration, security, cluster: all that a broker without replicas answers.
const CODES: [i16; 54] = [
    0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
    32, 33, 34, 35, 36, 37, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 55, 57, 60, 61, 65, 66, 68, 69, 74, 75,
];

#[test]
fn versions_and_header_versions() {
    let codes: Vec<i16> = ApiKey::ALL.iter().map(|api| api.code()).collect();
    assert_eq!(codes, CODES);
    for api in ApiKey::ALL {
        let theirs = kafka_protocol::messages::ApiKey::try_from(api.code()).unwrap();
        assert_eq!(format!("{theirs:?}"), api.name());
        let range = theirs.valid_versions();
        assert_eq!((range.min, range.max), (api.versions().min, api.versions().max), "{api}");
        for version in api.versions().iter() {
            assert_eq!(api.request_header_version(version), theirs.request_header_version(version), "{api}");
            assert_eq!(
                api.response_header_version(version),
                theirs.response_header_version(version),
                "{api}"
            );
        }
    }
}

const RETRIABLE_IN_KAFKA: [ErrorCode; 1] = [ErrorCode::CONCURRENT_TRANSACTIONS];

#[test]
fn error_codes() {
    for code in ErrorCode::ALL {
        let Some(theirs) = kafka_protocol::ResponseError::try_from_code(code.code()) else {
            assert!(code.is_none());
            continue;
        };
        assert_eq!(theirs.code(), code.code());
        // Kafka's own class is retriable (KIP-890); the other list is older.
        if !RETRIABLE_IN_KAFKA.contains(code) {
            assert_eq!(theirs.is_retriable(), code.is_retriable(), "{code}");
        }
        let name = format!("{theirs:?}").to_lowercase();
        assert_eq!(code.name().unwrap().replace('_', "").to_lowercase(), name);
    }
    assert_eq!(ErrorCode::ALL.len(), 135);
}
