//! At which offset a batch of a rewritten segment stands. Offsets may be missing anywhere there, so that what it says itself counts,
//! within the bounds that its neighbours set.

use super::placing::longest;
use crate::batch::BatchHeader;
use crate::types::Offset;

/// Whether a batch of a rewritten segment belongs where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Belongs,
    /// At this offset, which is not the one that it says.
    At(Offset),
    /// Which offset it had is not known.
    Unknown,
    /// Nor whether it is this one that says another offset than it had, or the one behind it.
    ThisOrNext,
}

/// What is known around a batch of a rewritten segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Around {
    /// What is in front of it ends there.
    pub(super) next: Offset,
    /// It ends at or below it.
    pub(super) limit: Offset,
    /// What is in front of it cannot be read.
    pub(super) is_behind_damage: bool,
    /// And ends with zeros.
    pub(super) is_behind_zeros: bool,
    /// It may be this one that says another offset than it had, or the one in front of it.
    pub(super) is_doubtful: bool,
    /// The two behind it, by their headers.
    pub(super) following: Option<BatchHeader>,
    pub(super) after: Option<BatchHeader>,
    /// What it holds may have been read from elsewhere.
    pub(super) may_be_there_already: bool,
}

/// Judges a batch of a rewritten segment by its neighbours.
pub(super) fn judge(header: &BatchHeader, around: &Around) -> Verdict {
    let offsets = i64::from(header.last_offset_delta) + 1;
    let (own, own_end) = (header.base_offset.0, header.next_offset().0);
    let lowest = around.next.0.saturating_add(i64::from(around.is_behind_damage));
    let limit = around.limit.0;
    let fits = own >= lowest && own_end <= limit;
    // Whether it has that offset, where it may end up to there at most.
    let is_certain = |most: i64| {
        own == most || !(around.is_doubtful || around.is_behind_zeros && longest(own, most).is_some())
    };
    let Some(following) = around.following else {
        let most = limit.saturating_sub(offsets);
        return match fits {
            true if is_certain(most) => Verdict::Belongs,
            false if most == lowest && !around.may_be_there_already => Verdict::At(Offset(lowest)),
            _ => Verdict::Unknown,
        };
    };
    let (begins, ends) = (following.base_offset.0, following.next_offset().0);
    let bound = around.after.map_or(limit, |after| after.base_offset.0).min(limit);
    let in_order = fits && own_end <= begins;
    let this_may = fits && own_end <= bound;
    let next_may = begins >= lowest.saturating_add(offsets) && ends <= bound;
    if in_order {
        let is_certain = is_certain(begins.saturating_sub(offsets));
        return if is_certain { Verdict::Belongs } else { Verdict::Unknown };
    }
    match (this_may, next_may) {
        (true, true) => Verdict::ThisOrNext,
        (true, false) => Verdict::Belongs,
        // There is one place for it.
        (false, true) if begins.saturating_sub(offsets) == lowest && !around.may_be_there_already => {
            Verdict::At(Offset(lowest))
        }
        (false, _) => Verdict::Unknown,
    }
}
