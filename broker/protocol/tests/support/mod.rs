//! Random values of every message in every version, from the same tables as the library, with a seed.

#![allow(dead_code, unused_macros, unused_mut, clippy::all, clippy::pedantic)]

use bytes::Bytes;
use kaas_protocol::{ErrorCode, KString, Records, Uuid};

/// A small generator of random values (splitmix64); the same seed gives the same values.
pub struct Gen {
    state: u64,
    mode: Mode,
}

/// What values are like.
#[derive(PartialEq)]
enum Mode {
    /// Anything.
    Mixed,
    /// Every array has one element, nothing is null, every tag is there, values are short.
    Full,
    /// Half of the fields hold their default.
    Sparse,
}

impl Gen {
    pub fn new(seed: u64) -> Self {
        Gen { state: seed, mode: Mode::Mixed }
    }

    /// Every array has one element, nothing is null, every tag is there, values are short.
    pub fn full(seed: u64) -> Self {
        Gen { state: seed, mode: Mode::Full }
    }

    /// Half of the fields hold their default.
    pub fn sparse(seed: u64) -> Self {
        Gen { state: seed, mode: Mode::Sparse }
    }

    pub fn null(&mut self) -> bool {
        self.mode != Mode::Full && self.chance(4)
    }

    pub fn untagged(&mut self) -> bool {
        self.mode != Mode::Full && self.chance(3)
    }

    pub fn left_out(&mut self) -> bool {
        self.mode == Mode::Sparse && self.chance(2)
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True once in `n`.
    pub fn chance(&mut self, n: u64) -> bool {
        self.next() % n == 0
    }

    pub fn count(&mut self) -> u64 {
        if self.mode == Mode::Full { 1 } else { self.next() % 4 }
    }

    /// Any bits, but small and extreme numbers often.
    pub fn i64(&mut self) -> i64 {
        match self.next() % 8 {
            0 => 0,
            1 => -1,
            2 => i64::MAX,
            3 => i64::MIN,
            4 => (self.next() % 300) as i64,
            _ => self.next() as i64,
        }
    }

    pub fn i32(&mut self) -> i32 {
        match self.next() % 8 {
            0 => 0,
            1 => -1,
            2 => i32::MAX,
            3 => i32::MIN,
            _ => self.next() as i32,
        }
    }

    pub fn i16(&mut self) -> i16 {
        self.i32() as i16
    }

    pub fn i8(&mut self) -> i8 {
        self.i32() as i8
    }

    pub fn u16(&mut self) -> u16 {
        self.i32() as u16
    }

    pub fn bool(&mut self) -> bool {
        self.chance(2)
    }

    pub fn f64(&mut self) -> f64 {
        self.i32() as f64 / 7.0
    }

    pub fn error(&mut self) -> ErrorCode {
        ErrorCode(self.i16())
    }

    pub fn uuid(&mut self) -> Uuid {
        if self.mode != Mode::Full && self.chance(4) {
            return Uuid::ZERO;
        }
        Uuid::from_u128((u128::from(self.next()) << 64) | u128::from(self.next()))
    }

    /// Up to three hundred bytes, so that compact lengths of one and of two bytes occur.
    pub fn bytes(&mut self) -> Bytes {
        let length = match self.next() % 8 {
            0 => 0,
            _ if self.mode == Mode::Full => 3,
            1 => 120 + self.next() % 180,
            _ => self.next() % 12,
        };
        (0..length).map(|_| self.next() as u8).collect()
    }

    pub fn string(&mut self) -> KString {
        const SYMBOLS: [char; 8] = ['a', 'Z', '0', '.', '_', 'é', '€', '𝄞'];
        let length = match self.next() % 8 {
            0 => 0,
            _ if self.mode == Mode::Full => 2,
            1 => 60 + self.next() % 100,
            _ => self.next() % 10,
        };
        let text: String = (0..length).map(|_| SYMBOLS[(self.next() % 8) as usize]).collect();
        KString::from(text)
    }

    pub fn records(&mut self) -> Bytes {
        self.bytes()
    }

    pub fn record_parts(&mut self) -> Records {
        Records::from(self.bytes())
    }
}

include!(concat!(env!("OUT_DIR"), "/random.rs"));
