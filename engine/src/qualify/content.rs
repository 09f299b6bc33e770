//! What is written into the files of a qualification: bytes that tell which version they are of and where they belong.
//!
//! Every 16 bytes hold the version and their own position in the file, both little endian. So whoever reads any part
//! can say whether it is whole, of one version, and in its place. Zeros are version 0: never written.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes of one mark.
const MARK: usize = 16;

/// What was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Bytes read.
    pub bytes: u64,
    /// The lowest and the highest version among them; both 0 for nothing or zeros.
    pub oldest: u64,
    pub newest: u64,
    /// Bytes that nobody wrote there.
    pub foreign: bool,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes)?;
        match (self.foreign, self.oldest, self.newest) {
            (true, ..) => f.write_str(" that were never written there"),
            (false, 0, 0) => f.write_str(", all zero"),
            (false, oldest, newest) if oldest == newest => write!(f, " of version {newest}"),
            (false, oldest, newest) => write!(f, " of versions {oldest} to {newest}"),
        }
    }
}

impl Seen {
    /// True if all of it, `bytes` long, is of `version`.
    pub fn is(&self, version: u64, bytes: u64) -> bool {
        self.bytes == bytes && self.oldest == version && self.newest == version && !self.foreign
    }
}

/// Fills `bytes`, which begin at `position` of a file, with `version`. Both are multiples of 16.
pub fn fill(bytes: &mut [u8], version: u64, position: u64) {
    let mut at = position;
    for mark in bytes.chunks_mut(MARK) {
        let whole = (u128::from(at) << 64) | u128::from(version);
        for (byte, value) in mark.iter_mut().zip(whole.to_le_bytes()) {
            *byte = value;
        }
        at += MARK as u64;
    }
}

/// Looks at `bytes` read from `position`, a multiple of 16.
pub fn inspect(bytes: &[u8], position: u64) -> Seen {
    let mut seen = Seen { bytes: bytes.len() as u64, oldest: u64::MAX, newest: 0, foreign: false };
    let mut at = position;
    let (marks, rest) = bytes.as_chunks::<MARK>();
    for mark in marks {
        let whole = u128::from_le_bytes(*mark);
        let version = whole & u128::from(u64::MAX);
        seen.foreign |= whole != 0 && whole >> 64 != u128::from(at);
        let version = u64::try_from(version).unwrap_or(0);
        seen.oldest = seen.oldest.min(version);
        seen.newest = seen.newest.max(version);
        at += MARK as u64;
    }
    seen.foreign |= !rest.is_empty();
    seen.oldest = seen.oldest.min(seen.newest);
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_filled_is_recognised_in_its_place() {
        let mut bytes = [0; 64];
        assert!(inspect(&bytes, 512).is(0, 64));
        fill(&mut bytes, 7, 512);
        assert!(inspect(&bytes, 512).is(7, 64));
        assert!(inspect(&bytes[16..48], 528).is(7, 32));
        assert!(inspect(&bytes, 0).foreign);
        assert!(inspect(&bytes[..40], 512).foreign);
        fill(&mut bytes[32..], 8, 544);
        let torn = inspect(&bytes, 512);
        assert_eq!((torn.oldest, torn.newest, torn.foreign), (7, 8, false));
        bytes[3] ^= 1;
        assert!(inspect(&bytes, 512).newest > 8);
        assert!(inspect(&[], 0).is(0, 0));
    }
}
