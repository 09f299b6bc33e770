//! What damage may have cost: which records it has hit, and what may be said of them since.
//!
//! A record is hit if any byte of its batch was changed, cut off or removed. Such a record may be gone, or be shown where it does not
//! belong until the partition was repaired; every other one stays where it is, but for these exceptions:
//!
//! - a leader that takes over before any repair ends the log in front of the first damaged batch of its open end, as after a
//!   crash, and what stands behind it is gone, too (`verify` calls it `damaged-tail`);
//! - an offset at the open end of the log that only records which were hit have had, and that no manifest has promised, may be another's;
//! - the last batch of the log, alone behind one that was hit, may be given up by a repair, which says so.

use std::collections::{BTreeMap, BTreeSet};

use super::met::Met;
use crate::names::Sender;

/// Who says below which offset all offsets belong to those that have them, or have had them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promised {
    /// A manifest that is whole.
    ByManifest(i64),
    /// The manifest is what was hit. The last segment begins behind everything that its leader had; and what stood in front of the
    /// log's start was deleted.
    ByNames { next_offset: i64, log_start: i64 },
}

/// What damage may have cost one partition.
#[derive(Debug, Clone, Default)]
pub struct Harm {
    met: Met,
    /// Records that were hit, or cut off behind one, by name.
    hit: BTreeSet<String>,
    /// Where they stood.
    places: BTreeSet<i64>,
    /// Producers of any of them, for good.
    producers: BTreeSet<i64>,
    /// A manifest was hit: what was deleted may be back.
    pub manifest_lost: bool,
    /// Where the log started by the manifests that were hit, whether anybody was told or not.
    pub lost_log_start: i64,
    /// Offsets below it were promised when records were hit, or are below what is left of names: nobody else gets them.
    floor: i64,
    /// Where leaders have ended the log in front of what was hit, by their epochs.
    cuts: BTreeMap<u32, i64>,
    /// Leaders have begun to open it before any repair: they may have ended the log, and not have come to their own end.
    may_be_cut: bool,
    /// Offsets that repairs have said are lost.
    told: Vec<(i64, i64)>,
    /// A repair has kept records behind others that it has said to be lost, and that nobody was ever told of: what a crash has torn, or
    /// a deposed leader wrote. Their producer is refused if it sends them again, since what follows them is there.
    pub kept_behind_unseen: bool,
    /// Repairs that nobody has heard of: they may have said more.
    unheard: u32,
}

impl Harm {
    /// Something of the partition is damaged. `hit` are the records that it has hit, `promised` the offset below which a manifest that
    /// is whole has promised all offsets, or the manifest is what was hit.
    pub fn damaged(&mut self, hit: impl IntoIterator<Item = (i64, String)>, promised: Promised) {
        self.met.damaged();
        for (offset, name) in hit {
            self.places.insert(offset);
            self.hit(name);
        }
        match promised {
            Promised::ByManifest(promised) => self.floor = self.floor.max(promised),
            Promised::ByNames { next_offset, log_start } => {
                (self.floor, self.manifest_lost) = (self.floor.min(next_offset), true);
                self.lost_log_start = self.lost_log_start.max(log_start);
            }
        }
    }

    /// A record may be gone.
    pub fn hit(&mut self, name: String) {
        self.takes_from_producer_of(&name);
        self.hit.insert(name);
    }

    /// A record is lost that its producer may have been told of: what leaders know of the producer is not what it knows.
    pub fn takes_from_producer_of(&mut self, name: &str) {
        self.producers.extend(Sender::of(name).map(|sender| sender.producer));
    }

    /// A leader that meets no damage any more has shown a record: it is whole.
    pub fn is_whole(&mut self, name: &str) {
        self.hit.remove(name);
    }

    /// True if anything ever was damaged.
    pub fn happened(&self) -> bool {
        self.met.happened()
    }

    /// Whether a leader of this epoch may meet damage.
    pub fn may_be_met_at(&self, epoch: u32) -> bool {
        self.met.may_be_met_at(epoch)
    }

    /// Whether damage may have taken a record.
    pub fn has_hit(&self, name: &str) -> bool {
        self.hit.contains(name)
    }

    /// Whether it may have taken what stood at an offset.
    pub fn has_hit_at(&self, offset: i64) -> bool {
        self.places.contains(&offset)
    }

    /// Whether it has ever hit a record of a producer.
    pub fn has_hit_producer(&self, producer: i64) -> bool {
        self.producers.contains(&producer)
    }

    /// Whether another record may stand where a record stood that was hit.
    pub fn may_be_anothers(&self, offset: i64) -> bool {
        offset >= self.floor
    }

    /// A leader of this epoch begins to open the log; whether it may meet damage.
    pub fn opens(&mut self, epoch: u32) -> bool {
        let may_meet = self.may_be_met_at(epoch);
        self.may_be_cut |= may_meet;
        may_meet
    }

    /// Whether a leader, if only on its way, may have ended the log in front of what was hit, as after a crash.
    pub fn may_be_cut(&self) -> bool {
        self.may_be_cut
    }

    /// A leader has ended the log at `end`, and these were lost with that.
    pub fn cut(&mut self, epoch: u32, end: i64, lost: impl IntoIterator<Item = String>) {
        self.cuts.insert(epoch, end);
        lost.into_iter().for_each(|name| self.hit(name));
    }

    /// The offset that a later leader has ended the log at, of what a leader of this epoch has: what lies behind it was lost then.
    pub fn cut_above(&self, epoch: u32) -> i64 {
        self.cuts.range(epoch + 1..).map(|(_, end)| *end).min().unwrap_or(i64::MAX)
    }

    /// A repair has begun, when there was so much damage.
    pub fn repair_begins(&mut self) -> u32 {
        self.unheard += 1;
        self.met.times()
    }

    /// A repair that began when there was so much damage has come to its end, at an epoch, if it has claimed one, and has said what is
    /// lost.
    pub fn repaired(&mut self, began: u32, epoch: Option<u32>, lost: impl IntoIterator<Item = (i64, i64)>) {
        self.unheard = self.unheard.saturating_sub(1);
        self.told.extend(lost);
        if let Some(epoch) = epoch {
            self.met.repaired(began, epoch);
        }
    }

    /// Nothing is left to be repaired, and every leader from now on has a higher epoch than this.
    pub fn repaired_for_good(&mut self, epoch: u32) {
        self.met.repaired_for_good(epoch);
    }

    /// Whether somebody was told that an offset is lost, or nobody listened.
    pub fn is_told(&self, offset: i64) -> bool {
        self.unheard > 0 || self.told.iter().any(|(from, to)| (*from..*to).contains(&offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaders_behind_a_repair_meet_no_damage() {
        let mut harm = Harm::default();
        assert!(!harm.may_be_met_at(1));
        harm.damaged([(3, "1-0".to_owned())], Promised::ByManifest(7));
        assert!(harm.may_be_met_at(1) && harm.may_be_met_at(9));
        let began = harm.repair_begins();
        harm.repaired(began, Some(5), []);
        assert!(harm.may_be_met_at(4) && !harm.may_be_met_at(5) && !harm.may_be_met_at(6));
        let began = harm.repair_begins();
        harm.damaged([], Promised::ByManifest(0));
        assert!(harm.may_be_met_at(6));
        harm.repaired(began, Some(7), []);
        assert!(harm.may_be_met_at(8), "it was damaged again meanwhile");
        assert!(
            harm.has_hit_at(3)
                && harm.has_hit("1-0")
                && harm.has_hit_producer(1)
                && !harm.has_hit_producer(10)
        );
        assert!(!harm.may_be_anothers(6) && harm.may_be_anothers(7));
        harm.damaged([], Promised::ByNames { next_offset: 4, log_start: 2 });
        assert!(!harm.may_be_anothers(3) && harm.may_be_anothers(4) && harm.manifest_lost);
    }

    #[test]
    fn what_a_later_leader_has_cut_off_is_lost_to_earlier_ones() {
        let mut harm = Harm::default();
        harm.cut(4, 20, ["1-3".to_owned()]);
        assert_eq!((harm.cut_above(3), harm.cut_above(4)), (20, i64::MAX));
        assert!(harm.has_hit("1-3"));
    }

    #[test]
    fn what_is_lost_is_told_unless_nobody_has_heard_it() {
        let mut harm = Harm::default();
        let began = harm.repair_begins();
        assert!(harm.is_told(3));
        harm.repaired(began, Some(2), [(4, 6)]);
        assert!(!harm.is_told(3) && harm.is_told(5) && !harm.is_told(6));
    }
}
