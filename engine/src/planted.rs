//! Bugs that can be switched on, one at a time and for one thread, to show that the explorer finds them.
//!
//! Each is one line of the protocol left out or turned round, where it stands: `if planted(Bug::NoFence)`. Without the
//! feature `planted-bugs` nothing of it is compiled.

/// A bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// The fence is read, and appends are acknowledged, before the sync.
    AcknowledgeBeforeSync,
    /// A slot's journal acknowledges what was written and not synced.
    JournalAcknowledgeBeforeSync,
    /// A slot's journal reads the fence before the write and the sync, and not again after them.
    JournalFenceBeforeSync,
    /// A slot's journal acknowledges without a look at the fence.
    JournalWithoutFence,
    /// A failed sync of a slot's journal is tried again, and believed.
    JournalRetryFailedSync,
    /// The journal file before the newest one is followed.
    JournalStaleFile,
    /// A journal that builds on a new snapshot is there before the snapshot is.
    JournalBeforeSnapshot,
    /// What was appended after the state that a snapshot holds is not taken over into the new journal.
    JournalForgetsLater,
    /// A torn record of the fence is taken for damage that nobody may pass over.
    TornRecordRefusesClaims,
    /// The fence is read before the sync, and not again after it.
    FenceBeforeSync,
    /// A look at the fence vouches for what was synced while it was under way, too.
    FenceVouchesForLater,
    /// Nobody looks at the fence.
    NoFence,
    /// Whether there is a successor is asked by opening the next claim's name.
    FenceByName,
    /// A fence that cannot be read is taken for leadership.
    UnknownIsLeading,
    /// Segments are unlinked before the manifest without them is durable.
    UnlinkBeforeManifest,
    /// Segments are unlinked without a look at the fence.
    UnlinkWithoutFence,
    /// A new segment's name is not synced.
    NoDirectorySync,
    /// A failed sync is tried again, and believed.
    RetryFailedSync,
    /// An epoch that has an owner is claimed again.
    ReuseEpoch,
    /// The manifest before the highest one is followed.
    StaleManifest,
    /// Segments of deposed leaders behind the manifest count.
    LateSegmentsCount,
    /// What was inherited is served before it is durable.
    InheritedNotDurable,
    /// Whole batches that a failed write has left are cut off at once.
    CutDoubtfulTail,
    /// Segments that were compacted are unlinked before the manifest with the rewritten one is durable.
    UnlinkCompacted,
    /// A manifest names a rewritten segment that was not synced.
    NoSyncOfRewritten,
    /// Compacted segments are unlinked without a look at the fence.
    ExchangeWithoutFence,
    /// Records at and behind the last stable offset are compacted, and supersede others.
    CompactPastStable,
    /// Records of aborted transactions supersede others.
    AbortedSupersede,
    /// Compaction removes tombstones at once.
    TombstonesAtOnce,
    /// Compaction does not keep the last batch of each producer.
    ForgetProducers,
    /// The last stable offset passes the records of open transactions.
    ServeOpenTransactions,
    /// A transaction is stable before its marker is committed.
    StableBeforeCommitted,
    /// Aborted transactions do not go into the transaction index.
    AbortedNotIndexed,
    /// A range of a file is handed out to readers past what is committed.
    RangePastCommitted,
    /// A repair removes what its manifest does not need without a look at the fence.
    RepairWithoutFence,
    /// A repair removes what it has written anew before its manifest is durable.
    RepairRemovesFirst,
    /// A repair goes by what it saw before it has fenced out whoever led.
    RepairTrustsFirstLook,
    /// A repair's manifest names a segment that was not synced.
    RepairNotDurable,
    /// A repair gives out offsets again that were promised, where the end of the log is lost.
    RepairReusesOffsets,
    /// A repair gives up what stands behind damage.
    RepairStopsAtDamage,
    /// A repair does not say what is lost.
    RepairSaysNothing,
}

#[cfg(feature = "planted-bugs")]
impl Bug {
    /// All of them.
    pub const ALL: [Self; 41] = [
        Self::AcknowledgeBeforeSync,
        Self::JournalAcknowledgeBeforeSync,
        Self::JournalFenceBeforeSync,
        Self::JournalWithoutFence,
        Self::JournalRetryFailedSync,
        Self::JournalStaleFile,
        Self::JournalBeforeSnapshot,
        Self::JournalForgetsLater,
        Self::TornRecordRefusesClaims,
        Self::FenceBeforeSync,
        Self::FenceVouchesForLater,
        Self::NoFence,
        Self::FenceByName,
        Self::UnknownIsLeading,
        Self::UnlinkBeforeManifest,
        Self::UnlinkWithoutFence,
        Self::NoDirectorySync,
        Self::RetryFailedSync,
        Self::ReuseEpoch,
        Self::StaleManifest,
        Self::LateSegmentsCount,
        Self::InheritedNotDurable,
        Self::CutDoubtfulTail,
        Self::UnlinkCompacted,
        Self::NoSyncOfRewritten,
        Self::ExchangeWithoutFence,
        Self::CompactPastStable,
        Self::AbortedSupersede,
        Self::TombstonesAtOnce,
        Self::ForgetProducers,
        Self::ServeOpenTransactions,
        Self::StableBeforeCommitted,
        Self::AbortedNotIndexed,
        Self::RangePastCommitted,
        Self::RepairWithoutFence,
        Self::RepairRemovesFirst,
        Self::RepairTrustsFirstLook,
        Self::RepairNotDurable,
        Self::RepairReusesOffsets,
        Self::RepairStopsAtDamage,
        Self::RepairSaysNothing,
    ];
}

#[cfg(feature = "planted-bugs")]
mod switch {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// The bug is there until this is dropped.
    #[derive(Debug)]
    pub struct Planted(());

    /// Plants a bug in what this thread does from now on, in place of any other.
    #[must_use]
    pub fn plant(bug: Bug) -> Planted {
        PLANTED.set(Some(bug));
        Planted(())
    }

    impl Drop for Planted {
        fn drop(&mut self) {
            PLANTED.set(None);
        }
    }

    pub(crate) fn planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(feature = "planted-bugs")]
pub(crate) use switch::planted;
#[cfg(feature = "planted-bugs")]
pub use switch::{Planted, plant};

/// Whether a bug is planted: never.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}
