//! What damage may have cost a slot: which appends it has hit.
//!
//! An append is hit if any byte of its line was changed, cut off or removed, or of the snapshot that alone has it. One that stands
//! behind an unreadable line is, too, if nothing that can be read says that the line was synced: whoever takes over must take the end
//! for a torn write. Every other one stays, in its order.

use std::collections::BTreeSet;

use super::entries::AppendId;
use crate::repair::Met;

/// What damage may have cost one slot.
#[derive(Debug, Clone, Default)]
pub struct SlotHarm {
    pub met: Met,
    hit: BTreeSet<AppendId>,
    /// Those of them that may go without anybody being told.
    silent: BTreeSet<AppendId>,
    /// A file was hit that the slot's state is made of: what stood there is not always known.
    pub state_hit: bool,
    /// A repair has said that something is given up, or nobody has heard whether it has.
    told: bool,
}

impl SlotHarm {
    /// Something of the slot is damaged, which hits these; `silently`: at its end, as a crash may leave it.
    pub fn damaged(&mut self, hit: impl IntoIterator<Item = AppendId>, silently: bool) {
        self.met.damaged();
        self.hit.extend(hit);
        if silently {
            // What an earlier damage has hit is in front of that end, or behind it.
            self.silent.clone_from(&self.hit);
        }
    }

    /// Whether damage may have taken an append.
    pub fn has_hit(&self, id: AppendId) -> bool {
        self.hit.contains(&id)
    }

    /// The others of a list.
    pub fn spared(&self, appends: &[AppendId]) -> Vec<AppendId> {
        appends.iter().copied().filter(|id| !self.has_hit(*id)).collect()
    }

    /// A repair has given something up, or nobody has heard whether it has.
    pub fn told(&mut self) {
        self.told = true;
    }

    /// Whether an append may be gone.
    pub fn may_be_gone(&self, id: AppendId) -> bool {
        self.has_hit(id) && (self.told || self.silent.contains(&id))
    }
}
