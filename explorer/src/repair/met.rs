//! Which leaders may meet damage: those that begin before a repair that has seen all of it.

/// Damage and repairs of one directory.
#[derive(Debug, Clone, Copy, Default)]
pub struct Met {
    /// How often anything was damaged.
    times: u32,
    /// The epoch of the last repair since; 0: there was none.
    repaired_at: u32,
}

impl Met {
    /// Something of it is damaged.
    pub fn damaged(&mut self) {
        self.times += 1;
        self.repaired_at = 0;
    }

    /// True if anything ever was damaged.
    pub fn happened(&self) -> bool {
        self.times > 0
    }

    /// How often.
    pub fn times(&self) -> u32 {
        self.times
    }

    /// Whether a leader of this epoch may meet damage.
    pub fn may_be_met_at(&self, epoch: u32) -> bool {
        self.happened() && (self.repaired_at == 0 || epoch < self.repaired_at)
    }

    /// A repair that began when there was so much damage has come to its end at an epoch.
    pub fn repaired(&mut self, began: u32, epoch: u32) {
        if began == self.times {
            self.repaired_at = self.repaired_at.max(epoch);
        }
    }

    /// Nothing is left to be repaired, and every leader from now on has a higher epoch than this.
    pub fn repaired_for_good(&mut self, epoch: u32) {
        self.repaired_at = self.repaired_at.max(epoch).max(1);
    }
}
