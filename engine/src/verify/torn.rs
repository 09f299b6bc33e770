//! Torn writes told from damage: what a loss of power leaves of a write that was not synced.
//!
//! It leaves out any sectors, and where they would be the file has zeros, since it had just grown. Whole batches may stand
//! behind them: nobody was told of those either, as a sync covers everything in front of what is acknowledged. Bytes
//! that were synced once do not become zeros a sector at a time.

use kaas_substrate::File;

use crate::types::Offset;

/// What a volume stores whole or not at all.
const SECTOR_BYTES: u64 = 512;

/// Bytes that are read at once.
const LOOK_BYTES: usize = 64 << 10;

/// Where the length of a batch ends, which is never 0.
const LENGTH_END: usize = 12;

/// Whether a sector of the damaged stretch from `from`, where a batch of offset `expected` should begin, to a whole batch at
/// `to` holds nothing but zeros, and cannot have been written so.
pub(super) fn has_lost_sector(
    file: &dyn File,
    from: u64,
    to: u64,
    expected: Offset,
) -> Result<bool, kaas_substrate::Error> {
    let mut buffer = vec![0; LOOK_BYTES];
    let mut at = from;
    loop {
        // Up to a sector's beginning; what shares its sector with the whole batch has been stored.
        let end = (at + LOOK_BYTES as u64).min(to) / SECTOR_BYTES * SECTOR_BYTES;
        let wanted = end.checked_sub(at).and_then(|wanted| usize::try_from(wanted).ok()).unwrap_or(0);
        let Some(target) = buffer.get_mut(..wanted).filter(|target| !target.is_empty()) else {
            return Ok(false);
        };
        let read = file.read_at(target, at)?;
        let mut rest = buffer.get(..read).unwrap_or_default();
        while !rest.is_empty() {
            let sector = usize::try_from(SECTOR_BYTES - at % SECTOR_BYTES).unwrap_or(rest.len());
            let (piece, behind) = rest.split_at_checked(sector).unwrap_or((rest, &[]));
            // In its first sector a batch may have few bytes, and its offset begins with zeros.
            let is_told = piece.len() >= LENGTH_END
                || expected.0.to_be_bytes().iter().take(piece.len()).any(|byte| *byte != 0);
            if is_told && piece.iter().all(|byte| *byte == 0) {
                return Ok(true);
            }
            at += piece.len() as u64;
            rest = behind;
        }
        if read < wanted {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::path::Path;

    use kaas_substrate::{Memory, OpenMode, Substrate};

    use super::*;

    /// A file of so many bytes that are not zero, but for these.
    fn has_lost(length: usize, zeros: std::ops::Range<usize>, from: u64, to: u64, expected: i64) -> bool {
        let mut bytes = vec![7; length];
        bytes[zeros].fill(0);
        let file = Memory::new().open(Path::new("f"), OpenMode::CreateNew).unwrap();
        file.write_all_at(&[IoSlice::new(&bytes)], 0).unwrap();
        has_lost_sector(&*file, from, to, Offset(expected)).unwrap()
    }

    #[test]
    fn a_sector_of_zeros_in_the_stretch_is_a_lost_one() {
        assert!(has_lost(5000, 1024..1536, 700, 2000, 3));
        assert!(has_lost(200_000, 150_016..150_528, 700, 190_000, 3), "behind the first piece that is read");
        assert!(!has_lost(5000, 1025..1536, 700, 2000, 3), "not all of it");
        assert!(!has_lost(5000, 1000..1530, 700, 2000, 3), "zeros that are no sector");
        assert!(!has_lost(5000, 1024..1400, 700, 1400, 3), "what shares its sector with the whole batch");
        assert!(!has_lost(5000, 2048..2560, 700, 2000, 3), "behind the stretch");
    }

    #[test]
    fn the_end_of_the_first_sector_counts_if_a_batch_cannot_begin_so() {
        assert!(has_lost(5000, 1000..1024, 1000, 2000, 0), "a length of 0");
        assert!(has_lost(5000, 1016..1024, 1016, 2000, 3), "not the offset that belongs here");
        assert!(!has_lost(5000, 1017..1024, 1017, 2000, 3), "any offset begins with zeros");
    }
}
