//! At which offsets the batches of a damaged segment stand.
//!
//! A batch's base offset lies outside of its CRC, so damage that reaches into its first bytes leaves it whole, with another
//! offset. What a batch says of its own offset is therefore one statement among others. In a segment that was appended to,
//! whole batches that stand side by side (a [`Group`]) have one offset to be found out: that of the first. It is said by
//!
//! - each of them;
//! - the segment's name, or the whole batches in front, if no damage is between;
//! - the headers of the damaged batches in front, if they can be walked to the very byte where the group begins;
//! - where the segment ends by the manifest, or by the name of the next one, if the group is its last;
//! - the header of the damaged batch behind, as a witness.
//!
//! The offset that most say is the right one, from two on. One alone counts only if it lies where there is room and nobody
//! contradicts: a batch that speaks for itself, unless zeros reach up to it, which may have taken the upper bytes of its offset,
//! or it says that more is missing than can have stood there. Where a choice is left none of the group is served, and no offset
//! that it may have had is given out again.
//!
//! In a rewritten segment offsets may be missing anywhere; see [`super::neighbours`].

use std::collections::BTreeMap;

use crate::types::Offset;

/// Whole batches side by side, each of which says that it begins where the one before it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Where they stand in the file, and how many bytes and batches they are.
    pub(super) position: u64,
    pub(super) bytes: u64,
    pub(super) batches: u64,
    /// Where they begin, as they say; negative if that is impossible.
    pub(super) base: Offset,
    /// How many offsets they take up.
    pub(super) offsets: i64,
    /// Whether they say to end at or below the segment's limit.
    pub(super) is_within: bool,
    /// Of one batch: its leader epoch is not the segment's.
    pub(super) has_wrong_epoch: bool,
}

/// What stands in front of a group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Front {
    /// Whole batches whose offsets are known, or the segment's beginning.
    #[default]
    Known,
    /// Nothing, but what stands in front ends at another offset, as if bytes had been cut out.
    Gap,
    /// Bytes that cannot be read.
    Damage(Damage),
}

/// What bytes that cannot be read still say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Damage {
    /// How many offsets they took up, by headers that lead from their first byte to their last.
    pub(super) offsets: Option<i64>,
    /// The same by single fields, which prove nothing alone.
    pub(super) hints: Vec<i64>,
    /// They end with zeros.
    pub(super) ends_with_zeros: bool,
    /// How many they are.
    pub(super) bytes: u64,
}

/// Whole batches side by side.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Group {
    pub(super) front: Front,
    pub(super) pieces: Vec<Piece>,
    /// The base offset that the damaged batch behind it says.
    pub(super) behind: Option<Offset>,
    /// Its last byte is the last one that counts.
    pub(super) is_last: bool,
}

/// Where a segment ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub(super) offset: Offset,
    /// The manifest says so of the very byte; else the next segment's name does, and bytes may have been cut off.
    pub(super) is_pinned: bool,
}

/// A piece at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) piece: Piece,
    pub(super) base: Offset,
    /// Its one batch says another offset or leader epoch.
    pub(super) restamped: bool,
}

/// Offsets that a byte takes up at most, compressed: each record has an offset and a length of its own.
pub(super) const OFFSETS_PER_BYTE_MAX: u64 = 64;

/// Offsets that a byte takes up at most where it is asked whether zeros have made an offset smaller: that a batch has several to
/// a byte is as seldom as that.
const OFFSETS_PER_BYTE_LIKELY: u64 = 1;

/// How many of the pieces behind one that says another offset are asked for the right one: all, but where a file has nothing that
/// belongs there.
const WITNESSES_MAX: usize = 1000;

/// The pieces of a segment that was appended to which belong there, with their offsets; and the offset that all end below, also
/// those of which nobody knows where they belong, as far as that can be said. `begin` is where the first group begins if there is
/// no damage in front of it, `next` the offset that all begin at or above, `limit` the one that all end at or below.
pub(super) fn place(
    groups: &[Group],
    begin: Offset,
    next: Offset,
    limit: Offset,
    end: Option<End>,
) -> (Vec<Placed>, Offset) {
    let (next, limit) = (next.0, limit.0);
    let mut placing = Placing {
        begin: begin.0,
        next,
        is_exact: true,
        unread: 0,
        limit,
        end,
        placed: Vec::new(),
        given: next,
    };
    for group in groups.iter().flat_map(split) {
        placing.group(&group);
    }
    let Placing { placed, given, .. } = placing;
    (placed, Offset(given.min(limit)))
}

/// Two neighbours of several batches each that disagree are both right, and something between them is missing.
fn split(group: &Group) -> Vec<Group> {
    let mut parts = vec![Group { pieces: Vec::new(), behind: None, is_last: false, ..group.clone() }];
    for piece in &group.pieces {
        let before = parts.last().and_then(|part| part.pieces.last());
        if piece.batches > 1 && before.is_some_and(|before| before.batches > 1) {
            parts.push(Group { front: Front::Gap, ..Group::default() });
        }
        if let Some(part) = parts.last_mut() {
            part.pieces.push(*piece);
        }
    }
    if let Some(part) = parts.last_mut() {
        (part.behind, part.is_last) = (group.behind, group.is_last);
    }
    parts
}

struct Placing {
    /// Where a group begins that has nothing but known batches in front.
    begin: i64,
    /// The offset behind what was placed.
    next: i64,
    /// What was placed last stands right in front of what comes now.
    is_exact: bool,
    /// Bytes behind what was placed.
    unread: u64,
    limit: i64,
    end: Option<End>,
    placed: Vec<Placed>,
    /// The offset behind everything that may have been given out.
    given: i64,
}

impl Placing {
    fn group(&mut self, group: &Group) {
        let total: i64 = group.pieces.iter().map(|piece| piece.offsets).sum();
        // What a deposed leader has written late, behind the limit, does not end there.
        let all_within = group.pieces.iter().all(|piece| piece.base.0 < self.limit);
        let end = self.end.filter(|end| group.is_last && (all_within || end.is_pinned));
        // Where the group begins so that it ends there.
        let by_end = end.map(|end| end.offset.0.saturating_sub(total));
        if let Front::Damage(damage) = &group.front {
            self.unread += damage.bytes;
        }
        let begin = match &group.front {
            Front::Known => Some(self.begin),
            Front::Gap => self.most(group, total, by_end, end, None),
            Front::Damage(damage) => self.most(group, total, by_end, end, Some(damage)),
        };
        self.is_exact &= begin.is_some();
        match begin {
            Some(begin) => self.pieces(group, begin, by_end),
            None => {
                self.unread += group.pieces.iter().map(|piece| piece.bytes).sum::<u64>();
                self.given = self.given.max(self.next.saturating_add(total).saturating_add(1));
            }
        }
    }

    /// Where a group begins that is not known by what is in front of it.
    fn most(
        &mut self,
        group: &Group,
        total: i64,
        by_end: Option<i64>,
        end: Option<End>,
        damage: Option<&Damage>,
    ) -> Option<i64> {
        let mut said: BTreeMap<i64, u64> = BTreeMap::new();
        let mut before = 0;
        // What cannot be read took up an offset at least.
        let has_room =
            |begin: i64, up_to: i64| begin > self.next && begin.saturating_add(up_to) <= self.limit;
        // Zeros that reach up to the first batch may have taken the upper bytes of its offset.
        let has_zeros = damage.is_some_and(|damage| damage.ends_with_zeros);
        let likely = self.unread.saturating_mul(OFFSETS_PER_BYTE_LIKELY);
        let most = self.limit.saturating_sub(total).min(self.next.saturating_add_unsigned(likely));
        let missing_max = self.unread.saturating_mul(OFFSETS_PER_BYTE_MAX);
        for piece in &group.pieces {
            let begin = piece.base.0.saturating_sub(before);
            let is_possible = piece.batches > 1 || begin.abs_diff(self.next) <= missing_max;
            if piece.base.0 >= 0 && is_possible && has_room(begin, before + piece.offsets) {
                let longer = longest(begin, most).filter(|_| before == 0 && has_zeros);
                *said.entry(begin).or_default() += piece.batches - u64::from(longer.is_some());
                self.given = self.given.max(longer.map_or(0, |longer| longer.saturating_add(total)));
            }
            before += piece.offsets;
        }
        let said_by_batches = said.clone();
        let highest = said.keys().next_back().map_or(0, |begin| begin.saturating_add(total));
        self.given = self.given.max(highest);
        let counted = damage.and_then(|damage| damage.offsets).filter(|_| self.is_exact);
        let counted = counted.map(|offsets| self.next.saturating_add(offsets));
        for (begin, weight) in
            [(counted, 1), (by_end, if end.is_some_and(|end| end.is_pinned) { 2 } else { 1 })]
        {
            if let Some(begin) = begin.filter(|begin| has_room(*begin, total)) {
                *said.entry(begin).or_default() += weight;
            }
        }
        let behind = group.behind.map(|behind| behind.0.saturating_sub(total));
        for (begin, weight) in &mut said {
            let hinted = |damage: &Damage| {
                let hint = |offsets: &i64| self.next.saturating_add(*offsets) == *begin;
                self.is_exact && counted != Some(*begin) && damage.hints.iter().any(hint)
            };
            *weight += u64::from(damage.is_some_and(hinted)) + u64::from(behind == Some(*begin));
        }
        let most = said.values().max().copied()?;
        let mut of_most = said.iter().filter(|(_, weight)| **weight == most).map(|(begin, _)| *begin);
        let (begin, other) = (of_most.next()?, of_most.next());
        if other.is_some() || most != 1 {
            return Some(begin).filter(|_| other.is_none() && most > 0);
        }
        // One statement.
        let contradicted = behind.is_some_and(|behind| behind != begin);
        Some(begin).filter(|begin| !contradicted || !said_by_batches.contains_key(begin))
    }

    /// Places the pieces of a group that begins at `begin`.
    fn pieces(&mut self, group: &Group, mut begin: i64, by_end: Option<i64>) {
        let pieces = &group.pieces;
        // Others than the pieces have said so; where the group is known to begin, the last of them may stand behind bytes that are gone.
        let is_voted = group.front != Front::Known;
        let said = |before: i64, piece: &Piece| piece.base.0.saturating_sub(before);
        let mut before = 0;
        for (at, piece) in pieces.iter().enumerate() {
            let (mut base, mut restamped) = (begin.saturating_add(before), piece.has_wrong_epoch);
            let mut belongs = true;
            if piece.base.0 != base {
                // Whether anything behind it stands where it stands if this one does.
                let mut behind = before + piece.offsets;
                let later = pieces.get(at + 1..).unwrap_or_default();
                let is_borne_out = later.iter().take(WITNESSES_MAX).any(|later| {
                    let agrees = said(behind, later) == begin;
                    behind += later.offsets;
                    agrees
                }) || by_end == Some(begin);
                let own = said(before, piece);
                let nobody_says = is_voted && later.is_empty() && by_end.is_none();
                if piece.batches == 1 && (is_borne_out || nobody_says) {
                    restamped = true;
                } else if !is_borne_out && own > begin && (piece.batches > 1 || by_end == Some(own)) {
                    // Offsets are missing in front of it.
                    (begin, base) = (own, piece.base.0);
                } else {
                    belongs = false;
                }
            }
            before += piece.offsets;
            let end = base.saturating_add(piece.offsets);
            self.is_exact = belongs && base >= self.next && end <= self.limit;
            self.given = self.given.max(end.min(self.limit));
            if self.is_exact {
                // All that stands in front of it ended below it.
                self.given = end;
                self.placed.push(Placed { piece: *piece, base: Offset(base), restamped });
                (self.next, self.unread) = (end, 0);
            } else {
                self.unread += piece.bytes;
                // What it says itself, if so much can be missing.
                let said_end = piece.base.0.saturating_add(piece.offsets);
                let missing_max = self.unread.saturating_mul(OFFSETS_PER_BYTE_MAX);
                if piece.base.0 >= self.next && piece.base.0.abs_diff(self.next) <= missing_max {
                    self.given = self.given.max(said_end.min(self.limit));
                }
            }
        }
    }
}

/// The largest offset, up to `most`, that zeros may have made `offset` of by taking its upper bytes; `None` if there is none.
pub(super) fn longest(offset: i64, most: i64) -> Option<i64> {
    let mut rest: i64 = 1;
    while rest <= offset {
        rest = rest.saturating_mul(256);
    }
    let times = most.saturating_sub(offset) / rest;
    (times > 0).then(|| offset.saturating_add(times.saturating_mul(rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches of one record each from byte `position` on, of 100 bytes each.
    fn piece(position: u64, batches: u64, base: i64) -> Piece {
        Piece {
            position,
            bytes: batches * 100,
            batches,
            base: Offset(base),
            offsets: batches.cast_signed(),
            is_within: true,
            has_wrong_epoch: false,
        }
    }

    fn group(front: Front, pieces: &[Piece]) -> Group {
        Group { front, pieces: pieces.to_vec(), ..Group::default() }
    }

    fn damaged(offsets: Option<i64>, hints: &[i64], ends_with_zeros: bool) -> Front {
        Front::Damage(Damage { offsets, hints: hints.to_vec(), ends_with_zeros, bytes: 1500 })
    }

    const OPEN: Offset = Offset(i64::MAX);

    fn bases(groups: &[Group], next: i64, limit: Offset, end: Option<End>) -> Vec<(u64, i64, bool)> {
        let (placed, _) = place(groups, Offset(next), Offset(next), limit, end);
        placed.iter().map(|placed| (placed.piece.position, placed.base.0, placed.restamped)).collect()
    }

    #[test]
    fn one_wrong_batch_among_others_is_put_right_in_front_of_them_and_behind_them() {
        let pieces = [piece(0, 1, 7), piece(100, 3, 301), piece(400, 1, 2), piece(500, 1, 305)];
        let expected = [(0, 300, true), (100, 301, false), (400, 304, true), (500, 305, false)];
        assert_eq!(bases(&[group(Front::Known, &pieces)], 300, OPEN, None), expected);
        let behind = group(damaged(None, &[], true), &pieces);
        assert_eq!(bases(&[behind], 290, OPEN, None), expected);
    }

    #[test]
    fn where_bytes_were_cut_out_both_sides_stay_and_what_is_there_twice_goes() {
        let cut = [piece(0, 3, 10), piece(300, 2, 20)];
        let expected = [(0, 10, false), (300, 20, false)];
        assert_eq!(bases(&[group(Front::Known, &cut)], 10, OPEN, None), expected);
        let twice = [piece(0, 3, 10), piece(300, 2, 11), piece(500, 2, 14)];
        let expected = [(0, 10, false), (500, 14, false)];
        assert_eq!(bases(&[group(Front::Known, &twice)], 10, OPEN, None), expected);
    }

    #[test]
    fn what_a_deposed_leader_wrote_behind_the_limit_is_not_moved_below_it() {
        let late = Piece { is_within: false, ..piece(200, 2, 22) };
        let pieces = [piece(0, 2, 20), late];
        let end = Some(End { offset: Offset(22), is_pinned: false });
        let last = Group { is_last: true, ..group(damaged(None, &[], false), &pieces) };
        assert_eq!(bases(&[last], 10, Offset(22), end), [(0, 20, false)]);
    }

    #[test]
    fn a_batch_alone_needs_a_witness_if_its_offset_may_have_been_hit() {
        let alone = [piece(0, 1, 132)];
        let at = |front: Front, base: i64| {
            let placed = bases(&[group(front, &alone)], 100, OPEN, None);
            assert!(placed.is_empty() || placed == [(0, base, base != 132)], "{placed:?}");
            !placed.is_empty()
        };
        assert!(at(damaged(None, &[], false), 132), "nothing says that it was hit");
        assert!(!at(damaged(None, &[], true), 132), "388 with its upper bytes gone, perhaps");
        assert!(at(damaged(None, &[32], true), 132) && at(damaged(Some(32), &[], true), 132));
        assert!(
            at(damaged(Some(288), &[], true), 388),
            "the header in front of it says it, and zeros took it"
        );
        assert!(!at(damaged(Some(288), &[], false), 388), "two that contradict each other");
        let far = [piece(0, 1, 10_000_000)];
        assert!(bases(&[group(damaged(None, &[], false), &far)], 100, OPEN, None).is_empty());
    }

    #[test]
    fn the_end_of_the_segment_says_where_its_last_batches_stand() {
        let of = |base: i64, is_pinned: bool| {
            let last = Group { is_last: true, ..group(damaged(None, &[], false), &[piece(0, 1, base)]) };
            let end = Some(End { offset: Offset(400), is_pinned });
            bases(&[last], 100, Offset(400), end)
        };
        assert_eq!(of(399, false), [(0, 399, false)]);
        assert_eq!(of(-1, false), [(0, 399, true)]);
        assert_eq!(of(200, true), [(0, 399, true)], "the manifest knows better");
        assert_eq!(of(200, false), [], "either the batch is wrong, or something behind it was cut off");
    }

    #[test]
    fn what_is_there_already_is_not_moved_behind_itself() {
        let groups = [group(Front::Known, &[piece(0, 1, 4)])];
        let (placed, _) = place(&groups, Offset(4), Offset(7), OPEN, None);
        assert!(placed.is_empty(), "{placed:?}");
    }

    #[test]
    fn no_offset_is_given_out_again_that_a_batch_without_a_place_may_have_had() {
        let behind = group(damaged(None, &[], true), &[piece(0, 1, 132)]);
        let (placed, given) = place(&[behind], Offset(100), Offset(100), OPEN, None);
        // 132 with its upper bytes gone: up to 1,412, as 1,500 bytes are missing in front of it.
        assert_eq!((placed, given), (Vec::new(), Offset(1413)));
    }
}
