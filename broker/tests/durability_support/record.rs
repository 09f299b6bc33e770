//! Records whose values say who wrote them, and prove that they are whole.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use kaas_engine::batch::{BatchOptions, Producer, SimpleRecord, data_batch};
use kaas_engine::types::Timestamp;

use super::random::Random;

/// Producers from this number on write records of up to 2 KiB, others of up to 100 bytes.
pub const LARGE_FROM: u32 = 1000;

/// Which record it is: the `n`-th that `producer` made for `partition`, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    pub producer: u32,
    pub partition: i32,
    pub n: u64,
}

impl Tag {
    pub fn nth_after(self, count: u64) -> Self {
        Self { n: self.n + count, ..self }
    }

    /// The value: the tag in text, and behind it bytes that only this tag has, of a length that varies.
    pub fn value(self) -> Bytes {
        let mut value = format!("{}.{}.{}|", self.producer, self.partition, self.n).into_bytes();
        let mut filler = Random::new(u64::from(self.producer) << 48 ^ (self.partition as u64) << 40 ^ self.n);
        let words = if self.producer < LARGE_FROM { 12 } else { 240 };
        for _ in 0..filler.below(0..words) {
            value.extend_from_slice(&filler.next().to_le_bytes());
        }
        value.into()
    }

    /// The tag of a value; `None` if the value is not exactly what [`value`](Self::value) makes.
    pub fn of_value(value: &[u8]) -> Option<Self> {
        let text = value.split(|&byte| byte == b'|').next()?;
        let mut parts = std::str::from_utf8(text).ok()?.split('.');
        let tag = Self {
            producer: parts.next()?.parse().ok()?,
            partition: parts.next()?.parse().ok()?,
            n: parts.next()?.parse().ok()?,
        };
        (tag.value() == value).then_some(tag)
    }
}

/// A batch of `count` records from `first` on.
pub fn batch(first: Tag, count: u64, producer: Option<Producer>) -> Bytes {
    let records: Vec<_> = (0..count).map(|i| SimpleRecord::of_value(first.nth_after(i).value())).collect();
    // Now, or retention would delete it.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    let options = BatchOptions { base_timestamp: Timestamp(now), producer, ..Default::default() };
    data_batch(&records, &options).unwrap()
}
