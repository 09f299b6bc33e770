//! What every coordinator of a slot was told, and what must follow from it.
//!
//! A coordinator knows a list of appends: what it was shown when it took over, and what was acknowledged to it since. The
//! rules, over all coordinators of all epochs, deposed ones included:
//!
//! - what a coordinator of epoch e knows, at any time, is the beginning of what every one of a higher epoch is shown;
//! - a coordinator that confirms, before it answers a read, that it still leads, knows everything that was acknowledged
//!   to anybody before it asked;
//! - acknowledgements come in the order of the appends; an append keeps its sequence number;
//! - what was refused before it was written is never seen; an epoch has one coordinator.
//!
//! All of it holds for the appends that damage has not hit ([`SlotHarm`]) when it has hit others.

use std::collections::{BTreeMap, BTreeSet};

use super::entries::{AppendId, View};
use super::harm::SlotHarm;
use crate::problem::Problem;

/// The history of one slot.
#[derive(Debug, Default)]
pub struct SlotHistory {
    /// The last append that was made.
    last: AppendId,
    /// What each coordinator was shown.
    shown: BTreeMap<u32, Vec<AppendId>>,
    /// What each coordinator knows.
    known: BTreeMap<u32, Vec<AppendId>>,
    /// Sequence numbers, once somebody was told.
    sequences: BTreeMap<AppendId, u64>,
    /// Those that were never written.
    refused: BTreeSet<AppendId>,
    /// Everything that was acknowledged to anybody, in the order in which that became known.
    acknowledged: Vec<AppendId>,
    /// What damage may have cost.
    pub harm: SlotHarm,
    /// Repairs that have come to their end.
    pub repaired: u64,
    /// For the statistics.
    pub read: u64,
}

fn journal(text: String) -> Result<(), Problem> {
    Err(Problem::Journal(text))
}

impl SlotHistory {
    /// Another append.
    pub fn next(&mut self) -> AppendId {
        self.last += 1;
        self.last
    }

    /// A coordinator has taken over.
    pub fn opened(&mut self, epoch: u32, view: &View) -> Result<(), Problem> {
        self.read += view.appends.len() as u64;
        let shown = &view.appends;
        if self.shown.insert(epoch, shown.clone()).is_some() {
            return Err(Problem::Epoch(format!("epoch {epoch} has had two coordinators")));
        }
        self.known.insert(epoch, shown.clone());
        if let Some(id) = shown.iter().find(|id| self.refused.contains(id) || **id > self.last) {
            return journal(format!(
                "epoch {epoch} is shown append {id}, which was never written: {shown:?}"
            ));
        }
        let before = self.known.range(..epoch).find(|(_, known)| !self.begins_with(shown, known));
        if let Some((earlier, known)) = before {
            return journal(format!("epoch {earlier} knew {known:?}, epoch {epoch} is shown {shown:?}"));
        }
        let behind = self.shown.range(epoch + 1..).find(|(_, later)| !self.begins_with(later, shown));
        if let Some((later, found)) = behind {
            return journal(format!("epoch {epoch} is shown {shown:?}, epoch {later} was shown {found:?}"));
        }
        view.sequences.iter().try_for_each(|(id, sequence)| self.numbered(epoch, *id, *sequence))
    }

    /// An append was acknowledged to the coordinator of `epoch`.
    pub fn acknowledge(&mut self, epoch: u32, id: AppendId, sequence: u64) -> Result<(), Problem> {
        self.acknowledged.push(id);
        let known = self.known.entry(epoch).or_default();
        known.push(id);
        let known = known.clone();
        let late = self.shown.range(epoch + 1..).find(|(_, shown)| !self.begins_with(shown, &known));
        if let Some((later, shown)) = late {
            return journal(format!(
                "append {id} was acknowledged at epoch {epoch}, which knows {known:?}; epoch {later} was shown {shown:?}"
            ));
        }
        // (Where the end of a journal is lost, numbers are given out again.)
        let before = known.iter().rev().nth(1).filter(|before| !self.harm.has_hit(**before));
        let before = before.and_then(|before| Some((before, self.sequences.get(before)?)));
        if let Some((before, number)) = before.filter(|(_, number)| **number >= sequence) {
            return journal(format!(
                "append {id} was acknowledged at epoch {epoch} as {sequence}, after append {before} as {number}"
            ));
        }
        self.numbered(epoch, id, sequence)
    }

    /// An append was refused before anything of it was written.
    pub fn refuse(&mut self, id: AppendId) -> Result<(), Problem> {
        self.refused.insert(id);
        match self.shown.iter().find(|(_, shown)| shown.contains(&id)) {
            Some((epoch, shown)) => {
                journal(format!("append {id} was refused; epoch {epoch} was shown {shown:?}"))
            }
            None => Ok(()),
        }
    }

    /// How much was acknowledged by now: what a read that begins now must know.
    pub fn acknowledged(&self) -> usize {
        self.acknowledged.len()
    }

    /// A read that began when so much was acknowledged is answered from `applied`, by a coordinator that has confirmed
    /// since that it leads.
    pub fn served(&mut self, epoch: u32, began: usize, applied: &[AppendId]) -> Result<(), Problem> {
        self.read += applied.len() as u64;
        let must = self.acknowledged.get(..began).unwrap_or_default();
        match must.iter().find(|id| !applied.contains(id) && !self.harm.has_hit(**id)) {
            Some(id) => journal(format!(
                "append {id} was acknowledged; epoch {epoch} has confirmed that it leads, and serves {applied:?}"
            )),
            None => Ok(()),
        }
    }

    /// Whether one list is the beginning of another, but for what damage has hit.
    fn begins_with(&self, all: &[AppendId], first: &[AppendId]) -> bool {
        self.harm.spared(all).starts_with(&self.harm.spared(first))
    }

    /// Those that were made and whose outcome nobody knows.
    pub fn in_doubt(&self) -> Vec<AppendId> {
        let known = |id: &AppendId| self.acknowledged.contains(id) || self.refused.contains(id);
        (1..=self.last).filter(|id| !known(id)).collect()
    }

    /// At the end: of what the last coordinator was shown, what is missing was given up, and somebody was told.
    pub fn check_told(&self) -> Result<(), Problem> {
        let Some(shown) = self.shown.values().next_back() else { return Ok(()) };
        let lost = self.acknowledged.iter().find(|id| !shown.contains(id) && !self.harm.may_be_gone(**id));
        match lost {
            Some(id) => journal(format!(
                "append {id} was acknowledged, is lost, and no repair has said so: {shown:?}"
            )),
            None => Ok(()),
        }
    }

    fn numbered(&mut self, epoch: u32, id: AppendId, sequence: u64) -> Result<(), Problem> {
        let known = *self.sequences.entry(id).or_insert(sequence);
        if known == sequence {
            return Ok(());
        }
        journal(format!("append {id} had sequence number {known}, and has {sequence} at epoch {epoch}"))
    }

    /// How many coordinators there were.
    pub fn coordinators(&self) -> usize {
        self.shown.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(appends: &[AppendId]) -> View {
        let sequences = appends.iter().map(|id| (*id, *id * 10)).collect();
        View { appends: appends.to_vec(), sequences }
    }

    /// Epoch 1 has appended 1 to 4, of which 1 and 2 were acknowledged.
    fn history() -> SlotHistory {
        let mut history = SlotHistory::default();
        while history.next() < 4 {}
        history.opened(1, &view(&[])).unwrap();
        history.acknowledge(1, 1, 10).unwrap();
        history.acknowledge(1, 2, 20).unwrap();
        history
    }

    fn is_wrong(outcome: Result<(), Problem>) {
        assert_eq!(outcome.unwrap_err().kind(), "journal");
    }

    #[test]
    fn what_was_acknowledged_is_the_beginning_of_what_every_successor_is_shown() {
        history().opened(2, &view(&[1, 2])).unwrap();
        history().opened(2, &view(&[1, 2, 3])).unwrap();
        for lost in [&[][..], &[1], &[2, 1], &[2], &[1, 3, 2], &[1, 2, 9]] {
            is_wrong(history().opened(2, &view(lost)));
        }
    }

    #[test]
    fn what_was_shown_once_is_shown_for_ever_whichever_is_known_first() {
        let mut history = history();
        history.opened(3, &view(&[1, 2, 3])).unwrap();
        is_wrong(history.opened(4, &view(&[1, 2])));
        is_wrong(history.opened(2, &view(&[1, 2, 4])));
    }

    #[test]
    fn a_deposed_coordinator_is_acknowledged_nothing_that_its_successor_was_not_shown() {
        let mut history = history();
        history.opened(2, &view(&[1, 2, 3])).unwrap();
        history.acknowledge(1, 3, 30).unwrap();
        is_wrong(history.acknowledge(1, 4, 40));
    }

    #[test]
    fn a_confirmed_read_knows_everything_that_was_acknowledged_before_it_began() {
        let mut history = history();
        let began = history.acknowledged();
        history.opened(2, &view(&[1, 2])).unwrap();
        history.acknowledge(2, 3, 30).unwrap();
        history.served(1, began, &[1, 2]).unwrap();
        is_wrong(history.served(1, history.acknowledged(), &[1, 2]));
    }

    #[test]
    fn appends_keep_their_order_and_their_numbers() {
        is_wrong(history().acknowledge(1, 3, 15));
        let mut renumbered = view(&[1, 2]);
        renumbered.sequences.insert(2, 21);
        is_wrong(history().opened(2, &renumbered));
    }

    #[test]
    fn damage_takes_what_it_hits_and_nothing_else() {
        let hit = || {
            let mut history = history();
            history.acknowledge(1, 3, 30).unwrap();
            history.harm.damaged([2], false);
            history
        };
        let mut history = hit();
        history.opened(2, &view(&[1, 3])).unwrap();
        history.check_told().unwrap_err();
        history.harm.told();
        history.check_told().unwrap();
        history.opened(3, &view(&[1, 2, 3])).unwrap();
        assert_eq!(history.in_doubt(), [4]);
        is_wrong(hit().opened(2, &view(&[1, 2])));
        is_wrong(hit().opened(2, &view(&[3, 1])));
    }

    #[test]
    fn what_was_refused_is_never_seen_and_an_epoch_has_one_coordinator() {
        let mut history = history();
        history.refuse(3).unwrap();
        is_wrong(history.opened(2, &view(&[1, 2, 3])));
        is_wrong(history.refuse(3));
        assert_eq!(history.opened(1, &view(&[])).unwrap_err().kind(), "epoch");
    }
}
