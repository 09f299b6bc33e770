//! An engine: what the partitions of one root share.

use std::sync::Arc;

use kaas_substrate::Substrate;

use crate::clock::Clock;
use crate::compaction::Throttle;
use crate::driver::{Driver, Time};
use crate::error::EngineError;
use crate::io::IoPool;
use crate::log::open::{OpenPartition, open};
use crate::log::partition::Partition;
use crate::log::segment::OpenSegments;
use crate::log::tail::TailBudget;
use crate::reserve::Reserve;
use crate::settings::EngineSettings;
use crate::timer::Timer;

/// The log engine of one process on one root directory.
#[derive(Debug, Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

/// What partitions share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) substrate: Arc<dyn Substrate>,
    pub(crate) settings: EngineSettings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) io: IoPool,
    pub(crate) timer: Timer,
    pub(crate) open_segments: OpenSegments,
    pub(crate) tail_budget: Arc<TailBudget>,
    pub(crate) reserve: Arc<Reserve>,
    pub(crate) cleaner_throttle: Throttle,
    pub(crate) time: Time,
}

impl Shared {
    /// Milliseconds of the engine's own time; monotonic.
    pub(crate) fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.time.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Engine {
    /// An engine on `substrate`, whose root exists. Starts its threads and writes nothing.
    ///
    /// # Errors
    ///
    /// If the system gives no threads.
    pub fn open(
        substrate: Arc<dyn Substrate>,
        settings: EngineSettings,
        clock: Arc<dyn Clock>,
    ) -> std::io::Result<Self> {
        let (io, timer) = (IoPool::new(settings.io.clone())?, Timer::new()?);
        Ok(Self::assemble(substrate, settings, clock, Time::system(), io, timer))
    }

    /// An engine without threads: `driver` runs its jobs and is its monotonic time. For simulations.
    pub fn driven(
        substrate: Arc<dyn Substrate>,
        settings: EngineSettings,
        clock: Arc<dyn Clock>,
        driver: &Arc<dyn Driver>,
    ) -> Self {
        let time = Time::Driven(Arc::clone(driver));
        let (io, timer) = (IoPool::driven(driver), Timer::driven(driver));
        Self::assemble(substrate, settings, clock, time, io, timer)
    }

    fn assemble(
        substrate: Arc<dyn Substrate>,
        settings: EngineSettings,
        clock: Arc<dyn Clock>,
        time: Time,
        io: IoPool,
        timer: Timer,
    ) -> Self {
        let shared = Shared {
            io,
            timer,
            open_segments: OpenSegments::new(settings.open_segments_max),
            tail_budget: Arc::default(),
            reserve: Arc::new(Reserve::timed(Arc::clone(&substrate), time.clone())),
            cleaner_throttle: Throttle::new(settings.cleaner.max_bytes_per_second, time.clone()),
            time,
            substrate,
            settings,
            clock,
        };
        Self { shared: Arc::new(shared) }
    }

    /// The threads that blocking calls belong on.
    pub fn io(&self) -> &IoPool {
        &self.shared.io
    }

    /// The volume.
    pub fn substrate(&self) -> &Arc<dyn Substrate> {
        &self.shared.substrate
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.clock
    }

    /// Claims a partition at an epoch and opens it. Blocks: on a clean log for a handful of small files, after a
    /// crash for a scan of at most the checkpoint distance. The partition serves when this returns.
    ///
    /// # Errors
    ///
    /// [`EngineError::Claim`] if somebody has the epoch or a higher one; [`EngineError::Foreign`] if the directory
    /// belongs to another incarnation of the topic; [`EngineError::Damaged`] if records that were committed are not
    /// there, which only a person may decide to go on from.
    pub fn open_partition(&self, request: OpenPartition) -> Result<Arc<Partition>, EngineError> {
        // A full volume must not keep a partition from being read and cleaned up.
        self.shared.reserve.with(|| open(&self.shared, request.clone()))
    }

    /// The space put aside for a full volume. Who runs the engine replenishes it at the start, now and then, and often
    /// while it is in use; without that there is none.
    pub fn reserve(&self) -> &Arc<Reserve> {
        &self.shared.reserve
    }

    /// Bytes of records kept in memory for readers at the tail.
    pub fn tail_bytes(&self) -> usize {
        self.shared.tail_budget.bytes()
    }

    /// Ends the threads after what is queued. Partitions must have been closed. Blocks.
    pub fn close(&self) {
        self.shared.io.close();
    }
}
