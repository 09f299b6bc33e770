//! The engine's vocabulary: newtypes for offsets, epochs and producer ids.
//!
//! Offsets that bound a range are exclusive; `base_offset` and `last_offset` are not.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Position of a record in a partition, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Offset(pub i64);

impl Offset {
    /// The first offset of every partition.
    pub const ZERO: Self = Self(0);

    /// The offset `count` records further on.
    pub fn plus(self, count: i64) -> Self {
        Self(self.0.saturating_add(count))
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A leader epoch: who may lead a partition (or a slot), from 1. Epoch 0 never leads anything.
///
/// At most `i32::MAX`, since the wire carries it as an `int32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Epoch(u32);

impl Epoch {
    /// The epoch below every leader's.
    pub const NONE: Self = Self(0);

    /// An epoch, if `value` is within 0 and `i32::MAX`.
    pub fn new(value: u32) -> Option<Self> {
        i32::try_from(value).is_ok().then_some(Self(value))
    }

    /// The epoch a wire field carries; `None` if it is negative.
    pub fn from_wire(value: i32) -> Option<Self> {
        u32::try_from(value).ok().map(Self)
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }

    /// The number as the wire carries it.
    pub fn to_wire(self) -> i32 {
        i32::try_from(self.0).unwrap_or(i32::MAX)
    }

    /// The next epoch; stays at the highest.
    pub fn next(self) -> Self {
        Self::new(self.0.saturating_add(1)).unwrap_or(self)
    }
}

impl TryFrom<u32> for Epoch {
    type Error = String;

    fn try_from(value: u32) -> Result<Self, String> {
        Self::new(value).ok_or_else(|| format!("{value} is no leader epoch"))
    }
}

impl From<Epoch> for u32 {
    fn from(epoch: Epoch) -> Self {
        epoch.0
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A producer id; `None` on the wire is -1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProducerId(pub i64);

impl fmt::Display for ProducerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Milliseconds since 1970 UTC; -1 means "no timestamp".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// No timestamp.
    pub const NONE: Self = Self(-1);
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
