//! Random choices that a seed repeats. The seed of a run is printed, and `KAAS_TEST_SEED` sets it.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// From `KAAS_TEST_SEED`, else from the clock; says which seed it took.
    pub fn for_test(name: &str) -> Self {
        let seed = match std::env::var("KAAS_TEST_SEED") {
            Ok(seed) => seed.parse().expect("KAAS_TEST_SEED is a number"),
            Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64,
        };
        println!("{name}: KAAS_TEST_SEED={seed}");
        Self(seed)
    }

    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `range`, which is not empty.
    pub fn below(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    pub fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.below(range))
    }

    /// Another generator that this one determines, for a thread of its own.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }
}
