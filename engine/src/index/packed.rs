//! Entries kept in memory exactly as they stand in the file: compact, and written without conversion.

use super::error::{IndexError, Prefix};
use crate::types::Offset;

/// The `N` bytes at `at` of an entry; zeros outside, which cannot happen with constant positions.
pub(super) fn part<const N: usize>(entry: &[u8], at: usize) -> [u8; N] {
    entry.get(at..).and_then(|rest| rest.first_chunk::<N>()).copied().unwrap_or([0; N])
}

/// Copies `value` into an entry at `at`.
pub(super) fn put<const N: usize>(entry: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(place) = entry.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<N>()) {
        *place = value;
    }
}

/// `offset` relative to `base`, from 0 to `i32::MAX`.
pub(super) fn relative(base: Offset, offset: Offset) -> Result<i32, IndexError> {
    offset
        .0
        .checked_sub(base.0)
        .and_then(|relative| i32::try_from(relative).ok())
        .filter(|relative| *relative >= 0)
        .ok_or(IndexError::OffsetOutOfRange { base_offset: base.0, offset: offset.0 })
}

/// Splits a file into entries as long as `follows` accepts them; it gets the predecessor, the entry, its number.
pub(super) fn read<const N: usize>(
    kind: &'static str,
    bytes: &[u8],
    mut follows: impl FnMut(Option<&[u8; N]>, &[u8; N], usize) -> Result<(), IndexError>,
) -> Prefix<Vec<[u8; N]>> {
    let (chunks, tail) = bytes.as_chunks::<N>();
    let mut index: Vec<[u8; N]> = Vec::with_capacity(chunks.len());
    let mut damage = None;
    for (number, entry) in chunks.iter().enumerate() {
        if let Err(error) = follows(index.last(), entry, number) {
            let rest = chunks.get(number..).unwrap_or_default();
            let padding = rest.iter().all(|entry| entry.iter().all(|byte| *byte == 0));
            // Kafka preallocates its index files: the rest of one that was not closed is zeros.
            let mut first = number;
            if padding && index.last().is_some_and(|entry| entry.iter().all(|byte| *byte == 0)) {
                index.pop();
                first = number.saturating_sub(1);
            }
            damage = Some(if padding { IndexError::ZeroPadding { kind, entry: first } } else { error });
            break;
        }
        index.push(*entry);
    }
    if damage.is_none() && !tail.is_empty() {
        damage = Some(IndexError::TruncatedEntry { kind, trailing: tail.len() });
    }
    index.shrink_to_fit();
    Prefix { index, damage }
}
