//! Record batches of every kind, also broken ones, and what is compared of those that come back.

use std::fmt::Write as _;

use bytes::{BufMut, Bytes, BytesMut};
use kaas_engine::batch::{BatchOptions, Compression, Producer, SimpleRecord, data_batch};
use kaas_engine::types::{ProducerId, Timestamp};
use kaas_protocol::{Records, RecordsPart};

/// The time of all records, the same for both brokers: the start of this hour.
pub fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs() / 3_600 * 3_600_000).unwrap()
}

pub fn batch(values: &[&str]) -> Bytes {
    batch_at(now(), values)
}

pub fn batch_at(timestamp: i64, values: &[&str]) -> Bytes {
    with(values, BatchOptions { base_timestamp: Timestamp(timestamp), ..BatchOptions::default() })
}

pub fn compressed(compression: Compression, values: &[&str]) -> Bytes {
    with(values, BatchOptions { base_timestamp: Timestamp(now()), compression, ..BatchOptions::default() })
}

pub fn idempotent(id: i64, epoch: i16, base_sequence: i32, values: &[&str]) -> Bytes {
    let producer = Some(Producer { id: ProducerId(id), epoch, base_sequence });
    with(values, BatchOptions { base_timestamp: Timestamp(now()), producer, ..BatchOptions::default() })
}

pub fn transactional(id: i64, epoch: i16, base_sequence: i32, values: &[&str]) -> Bytes {
    let producer = Some(Producer { id: ProducerId(id), epoch, base_sequence });
    let base_timestamp = Timestamp(now());
    with(values, BatchOptions { base_timestamp, producer, transactional: true, ..BatchOptions::default() })
}

fn with(values: &[&str], options: BatchOptions) -> Bytes {
    let records: Vec<_> = (0..)
        .zip(values)
        .map(|(index, value)| SimpleRecord {
            timestamp_delta: index,
            ..SimpleRecord::of_value(value.as_bytes().to_vec())
        })
        .collect();
    data_batch(&records, &options).unwrap()
}

/// The batch with `bytes` written at `at`, and the checksum made right again.
pub fn patched(batch: &Bytes, at: usize, bytes: &[u8]) -> Bytes {
    let mut batch = BytesMut::from(&batch[..]);
    batch[at..at + bytes.len()].copy_from_slice(bytes);
    let crc = crc32c::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    batch.freeze()
}

/// The same, with the checksum as it was.
pub fn damaged(batch: &Bytes, at: usize, bytes: &[u8]) -> Bytes {
    let mut batch = BytesMut::from(&batch[..]);
    batch[at..at + bytes.len()].copy_from_slice(bytes);
    batch.freeze()
}

/// A message of the formats before record batches (magic 0 or 1).
pub fn old_message(magic: i8) -> Bytes {
    let mut body = BytesMut::new();
    body.put_i8(magic);
    body.put_i8(0);
    if magic == 1 {
        body.put_i64(now());
    }
    body.put_i32(-1);
    body.put_i32(5);
    body.put_slice(b"hello");
    let mut message = BytesMut::new();
    message.put_i64(0);
    message.put_i32(i32::try_from(body.len()).unwrap() + 4);
    message.put_u32(crc32(&body));
    message.put_slice(&body);
    message.freeze()
}

/// The checksum of zip, which the old formats use.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    !crc
}

/// What is compared of the records of a fetch: every header, and the checksum of what follows it.
pub fn describe(records: &Records, epoch: i32) -> String {
    let mut all = Vec::new();
    for part in records.parts() {
        match part {
            RecordsPart::Bytes(bytes) => all.extend_from_slice(bytes),
            RecordsPart::External(_) => panic!("a range over the wire"),
        }
    }
    let mut out = String::new();
    let mut rest = &all[..];
    while rest.len() >= 61 {
        let number = |at: usize, size: usize| {
            let sign = if rest[at] & 0x80 == 0 { 0 } else { -1 };
            rest[at..at + size].iter().fold(sign, |value: i64, byte| value << 8 | i64::from(*byte))
        };
        let length = usize::try_from(number(8, 4)).unwrap() + 12;
        let leader = number(12, 4);
        let leader = if leader == i64::from(epoch) { "current".to_owned() } else { leader.to_string() };
        let log_append_time = number(21, 2) & 8 != 0;
        let max_timestamp = if log_append_time { 0 } else { number(35, 8) - now() };
        let _ = write!(
            out,
            "[base {} bytes {length} leader {leader} magic {} attributes {} last {} base_ts {} max_ts {max_timestamp} epoch {} seq {} count {} cut {}]",
            number(0, 8),
            rest[16],
            number(21, 2),
            number(23, 4),
            number(27, 8) - now(),
            number(51, 2),
            number(53, 4),
            number(57, 4),
            rest.len() < length,
        );
        rest = rest.get(length..).unwrap_or_default();
    }
    if !rest.is_empty() {
        let _ = write!(out, "[{} bytes more]", rest.len());
    }
    out
}
