//! Sets of byte ranges of a file.

use std::ops::Range;

/// Disjoint ranges in ascending order; none is empty, none touches the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    sorted: Vec<Range<usize>>,
}

impl Ranges {
    pub(crate) fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.sorted.clear();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.sorted.iter().cloned()
    }

    /// The end of the last range; 0 if there is none.
    pub(crate) fn end(&self) -> usize {
        self.sorted.last().map_or(0, |range| range.end)
    }

    pub(crate) fn add(&mut self, new: Range<usize>) {
        if new.is_empty() {
            return;
        }
        let first = self.sorted.partition_point(|range| range.end < new.start);
        let last = self.sorted.partition_point(|range| range.start <= new.end);
        let start = self.sorted.get(first).map_or(new.start, |range| range.start.min(new.start));
        let end = last.checked_sub(1).and_then(|last| self.sorted.get(last));
        let end = end.map_or(new.end, |range| range.end.max(new.end));
        self.sorted.splice(first..last, std::iter::once(start..end));
    }

    pub(crate) fn add_all(&mut self, others: &Self) {
        others.iter().for_each(|range| self.add(range));
    }

    pub(crate) fn remove(&mut self, cut: &Range<usize>) {
        let first = self.sorted.partition_point(|range| range.end <= cut.start);
        let last = self.sorted.partition_point(|range| range.start < cut.end);
        if first >= last || cut.is_empty() {
            return;
        }
        let head = self.sorted.get(first).map(|range| range.start..cut.start);
        let tail = self.sorted.get(last - 1).map(|range| cut.end..range.end);
        let rest: Vec<_> = [head, tail].into_iter().flatten().filter(|range| !range.is_empty()).collect();
        self.sorted.splice(first..last, rest);
    }

    /// The parts of `window` that are in the set.
    pub(crate) fn within(&self, window: &Range<usize>) -> Vec<Range<usize>> {
        let first = self.sorted.partition_point(|range| range.end <= window.start);
        let rest = self.sorted.iter().skip(first).take_while(|range| range.start < window.end);
        rest.map(|range| range.start.max(window.start)..range.end.min(window.end))
            .filter(|range| !range.is_empty())
            .collect()
    }

    /// The parts of `window` that are not in the set.
    pub(crate) fn gaps(&self, window: &Range<usize>) -> Vec<Range<usize>> {
        let mut gaps = Vec::new();
        let mut at = window.start;
        for covered in self.within(window) {
            gaps.push(at..covered.start);
            at = covered.end;
        }
        gaps.push(at..window.end);
        gaps.retain(|gap| !gap.is_empty());
        gaps
    }

    pub(crate) fn covers(&self, window: &Range<usize>) -> bool {
        let at = self.sorted.partition_point(|range| range.end <= window.start);
        window.is_empty()
            || self.sorted.get(at).is_some_and(|range| range.start <= window.start && window.end <= range.end)
    }
}

/// `range` cut at every multiple of `unit`.
pub(crate) fn pieces(range: Range<usize>, unit: usize) -> impl Iterator<Item = Range<usize>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let start = at;
        at = (start / unit + 1).saturating_mul(unit).min(range.end);
        (start < range.end).then_some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ranges: &[Range<usize>]) -> Ranges {
        let mut made = Ranges::default();
        ranges.iter().for_each(|range| made.add(range.clone()));
        made
    }

    #[test]
    fn ranges_are_what_a_set_of_bytes_is() {
        let mut state = 1u64;
        let mut next = move |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % below
        };
        for _ in 0..200 {
            let (mut ranges, mut bytes) = (Ranges::default(), [false; 60]);
            for _ in 0..20 {
                let start = next(60);
                let range = start..start + next(61 - start);
                let adds = next(3) > 0;
                if adds {
                    ranges.add(range.clone());
                } else {
                    ranges.remove(&range);
                }
                bytes[range].fill(adds);
                for (position, is_in) in bytes.iter().enumerate() {
                    assert_eq!(ranges.covers(&(position..position + 1)), *is_in, "{ranges:?}");
                }
                let touching = ranges.sorted.windows(2).any(|pair| pair[0].end >= pair[1].start);
                assert!(!touching && ranges.iter().all(|range| !range.is_empty()), "{ranges:?}");
                let start = next(60);
                let window = start..start + next(61 - start);
                let inside: usize = ranges.within(&window).iter().map(|range| range.len()).sum();
                let outside: usize = ranges.gaps(&window).iter().map(|range| range.len()).sum();
                assert_eq!(inside, bytes[window.clone()].iter().filter(|byte| **byte).count());
                assert_eq!(inside + outside, window.len());
                assert_eq!(ranges.covers(&window), outside == 0);
            }
        }
        assert_eq!(of(&[0..2, 4..6, 2..4]), of(&[0..3, 3..6]));
    }

    #[test]
    fn pieces_end_at_multiples() {
        let found: Vec<_> = pieces(500..1030, 512).collect();
        assert_eq!(found, [500..512, 512..1024, 1024..1030]);
        assert_eq!(pieces(5..5, 512).count(), 0);
    }
}
