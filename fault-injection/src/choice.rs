//! The one source of everything that is not decided.

use std::fmt;

/// Where a simulation's choices come from: given a bound of at least 1, a number below it. The same numbers make the
/// same run; 0 is always the tamest outcome for a cache, and for a crash the one that loses most.
pub type Choose = Box<dyn FnMut(u64) -> u64 + Send>;

/// Choices at random (SplitMix64), decided by a seed.
pub fn seeded(seed: u64) -> Choose {
    let mut state = seed;
    Box::new(move |below| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % below
    })
}

pub(crate) struct Choice(pub Choose);

impl fmt::Debug for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Choice")
    }
}

impl Choice {
    /// A number below `bound` (below 1, if that is 0).
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        usize::try_from((self.0)(bound).min(bound - 1)).unwrap_or(0)
    }

    /// True for one number of so many; not for 0.
    pub(crate) fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) + 1 == bound
    }
}
