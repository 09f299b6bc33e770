//! A partition that this process leads.
//!
//! # Who owns what
//!
//! - [`Core`], under one lock held for memory work only: what is staged, who waits, the producers, the offsets.
//! - [`Writer`]: the open files of the leader. It has one owner at a time: it rests in the core, and the worker
//!   takes it out while it makes system calls. There is at most one worker a partition, a job on the I/O pool;
//!   everything that changes files (commits, rolls, retention, closing) is done by it, in order.
//! - the list of segments, replaced as a whole, and the tail: read by readers, changed by the worker.
//!
//! # Who may call what
//!
//! [`Partition::append`], [`Partition::status`], [`Partition::read`] and [`Partition::watch`] never block and make
//! no system call. Methods that return a [`Ticket`] queue work for the worker. What says "blocks" belongs on an
//! I/O thread.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::indexes::IndexImages;
use super::segment::Segment;
use super::status::{State, Status};
use super::tail::Tail;
use super::watch::Watchers;
use crate::commit::staging::{Staged, Told, Waiters};
use crate::commit::writer::Writer;
use crate::compaction::CleanerState;
use crate::compaction::swap::{Compactable, Exchange, Exchanged};
use crate::completion::{Completion, Ticket, pair};
use crate::engine::Shared;
use crate::error::{AppendError, EngineError};
use crate::identity::Identity;
use crate::leadership::Leadership;
use crate::producer_state::ProducerStates;
use crate::settings::LogConfig;
use crate::sync::{AtomicU64, Mutex, RwLock};
use crate::types::{Epoch, Offset};

/// The segments of a partition, in the order of their offsets.
pub(crate) type SegmentList = Arc<Vec<Arc<Segment>>>;

/// A partition that this process leads. See the module's documentation.
pub struct Partition {
    pub(crate) shared: Arc<Shared>,
    pub(crate) dir: PathBuf,
    pub(crate) identity: Identity,
    pub(crate) leadership: Leadership,
    pub(crate) core: Mutex<Core>,
    pub(crate) segments: RwLock<SegmentList>,
    pub(crate) tail: Mutex<Tail>,
    pub(crate) watchers: Watchers,
    pub(crate) cleaner: CleanerState,
    /// When the worker's system call under way began, in milliseconds of the engine's own time; 0: none.
    pub(crate) call_began_ms: AtomicU64,
    /// The same for a look at the fence, which may be under way beside the worker's calls.
    pub(crate) fence_began_ms: AtomicU64,
}

/// The partition's state in memory.
pub(crate) struct Core {
    pub(crate) status: Status,
    pub(crate) config: Arc<LogConfig>,
    pub(crate) producers: ProducerStates,
    pub(crate) staged: VecDeque<Staged>,
    /// Bytes staged or being written.
    pub(crate) staged_bytes: usize,
    pub(crate) requests: VecDeque<Request>,
    /// `None` while the worker has it, and for good once the partition has ended.
    pub(crate) writer: Option<Box<Writer>>,
    pub(crate) worker_active: bool,
    /// Everything below is written.
    pub(crate) written_end: Offset,
    /// Everything below is synced too, or its sync is not asked for; the fence is still to be read.
    pub(crate) synced_end: Offset,
    pub(crate) fence_running: bool,
    /// The fence could not be read, and a job is due that reads it again.
    pub(crate) asking_again: bool,
    /// Since when it is not known whether this leader still leads, in milliseconds of the engine's own time.
    pub(crate) unsure_since_ms: Option<u64>,
    /// Nothing more is taken: the partition closes once what is staged is committed.
    pub(crate) closing: bool,
    pub(crate) written_waiters: Waiters,
    pub(crate) committed_waiters: Waiters,
    pub(crate) space_waiters: Vec<Completion<()>>,
}

/// Work for the worker that is not a commit.
pub(crate) enum Request {
    DeleteRecords { before: Option<Offset>, done: Completion<Result<Offset, EngineError>> },
    Maintain { done: Completion<Result<Maintained, EngineError>> },
    Flush,
    Reindex { segment: Arc<Segment>, images: IndexImages },
    Compactable { done: Completion<Result<Compactable, EngineError>> },
    Exchange { exchange: Box<Exchange>, done: Completion<Result<Exchanged, EngineError>> },
    Close { done: Completion<Result<(), EngineError>> },
    Abandon { done: Completion<Result<(), EngineError>> },
}

/// What one round of maintenance did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Maintained {
    /// Segments that were deleted.
    pub segments_deleted: usize,
    /// Bytes of their logs.
    pub bytes_deleted: u64,
    /// The log start offset afterwards.
    pub log_start: Offset,
}

impl Partition {
    /// Where the partition stands. Cheap.
    pub fn status(&self) -> Status {
        self.core.lock().status.clone()
    }

    /// The epoch this process leads at: the leader epoch on the wire.
    pub fn epoch(&self) -> Epoch {
        self.leadership.epoch()
    }

    /// Which partition this is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The partition's directory, relative to the engine's root.
    pub fn dir(&self) -> &std::path::Path {
        &self.dir
    }

    /// Bytes of records in the log, dead ones not counted. Cheap.
    pub fn size_bytes(&self) -> u64 {
        self.segments.read().iter().map(|segment| segment.bytes()).sum()
    }

    /// Replaces the configuration; takes effect with the next append, roll and retention round.
    pub fn set_config(&self, config: LogConfig) {
        self.core.lock().config = Arc::new(config);
    }

    /// The configuration in force.
    pub fn config(&self) -> Arc<LogConfig> {
        Arc::clone(&self.core.lock().config)
    }

    /// A copy of what is known of the producers, what is staged included.
    pub fn producers(&self) -> ProducerStates {
        self.core.lock().producers.clone()
    }

    /// How long the system call under way has taken, in milliseconds, if that is longer than the stall limit.
    pub fn stalled_ms(&self) -> Option<u64> {
        let now = self.shared.elapsed_ms();
        [&self.call_began_ms, &self.fence_began_ms]
            .into_iter()
            .map(|began| began.load(Ordering::Relaxed))
            .filter(|began| *began > 0)
            .map(|began| now.saturating_sub(began))
            .filter(|elapsed| *elapsed >= self.shared.settings.stall_limit_ms)
            .max()
    }

    /// Raises the log start offset to `before` (or to the high watermark), as Kafka's `DeleteRecords`. The ticket
    /// is told the new log start once it is durable and the fence was read; segments below it are gone then.
    ///
    /// An offset below the log start changes nothing; one above the high watermark is out of range.
    pub fn delete_records(self: &Arc<Self>, before: Option<Offset>) -> Ticket<Result<Offset, EngineError>> {
        self.request(|done| Request::DeleteRecords { before, done })
    }

    /// One round of what time brings: rolls a segment that has become too old, deletes what retention no longer
    /// keeps, forgets idle producers and the idle tail, removes files that no longer count.
    pub fn maintain(self: &Arc<Self>) -> Ticket<Result<Maintained, EngineError>> {
        self.request(|done| Request::Maintain { done })
    }

    /// Commits what is staged, writes what a successor needs to open without a scan, and closes the files.
    /// Everything but [`Partition::status`] fails afterwards.
    pub fn close(self: &Arc<Self>) -> Ticket<Result<(), EngineError>> {
        // Or busy producers would keep it from ever being done.
        self.core.lock().closing = true;
        self.request(|done| Request::Close { done })
    }

    /// Closes the files without writing anything: for a partition whose directory is about to be taken away. What
    /// is staged fails.
    pub fn abandon(self: &Arc<Self>) -> Ticket<Result<(), EngineError>> {
        self.request(|done| Request::Abandon { done })
    }

    /// A ticket that is told after the next commit cycle, when there may be room again after
    /// [`AppendError::Busy`].
    pub fn staging_space(&self) -> Ticket<()> {
        let (completion, ticket) = pair();
        let mut core = self.core.lock();
        // While something is staged a cycle will end, and tell.
        if core.staged_bytes == 0 || core.status.state != State::Leading {
            drop(core);
            completion.complete(());
        } else {
            core.space_waiters.push(completion);
        }
        ticket
    }

    pub(crate) fn request<T>(
        self: &Arc<Self>,
        request: impl FnOnce(Completion<Result<T, EngineError>>) -> Request,
    ) -> Ticket<Result<T, EngineError>> {
        let (completion, ticket) = pair();
        let mut core = self.core.lock();
        match core.status.state.engine_error() {
            // The fence may become readable again: the worker asks for itself before it acts.
            Some(error) if core.status.state != State::Unsure => {
                drop(core);
                completion.complete(Err(error));
            }
            _ => {
                core.requests.push_back(request(completion));
                self.kick(&mut core);
            }
        }
        ticket
    }

    /// Starts the worker if there is work and none is running. Called with the lock held.
    pub(crate) fn kick(self: &Arc<Self>, core: &mut Core) {
        let Some(writer) = core.take_work() else { return };
        let partition = Arc::clone(self);
        if self.shared.io.schedule(move || partition.work(writer)).is_err() {
            // The pool is closed: the engine is being dropped, and nobody can be served any more.
            // Dropping what waits tells it.
            core.worker_active = false;
            core.status.state = State::Closed;
            core.staged.clear();
            core.staged_bytes = 0;
            core.requests.clear();
            core.written_waiters = Waiters::default();
            core.committed_waiters = Waiters::default();
            core.space_waiters.clear();
        }
    }

    /// Ends the partition: nothing more is acknowledged, everybody who waits is told. Idempotent; the first reason
    /// stays.
    pub(crate) fn end(&self, state: State) {
        let mut told = Told::default();
        let (space, requests) = {
            let mut core = self.core.lock();
            if matches!(core.status.state, State::Leading | State::Unsure) {
                tracing::info!(dir = %self.dir.display(), epoch = %self.epoch(), ?state, "partition ended");
                core.status.state = state;
            }
            let error = core
                .status
                .state
                .append_error()
                .unwrap_or(AppendError::NotLeader { reason: "the partition has ended" });
            core.staged.clear();
            core.staged_bytes = 0;
            let below_everything = Offset(i64::MIN);
            told.fail(core.written_waiters.take_above(below_everything), &error);
            told.fail(core.committed_waiters.take_above(below_everything), &error);
            (std::mem::take(&mut core.space_waiters), std::mem::take(&mut core.requests))
        };
        self.tail.lock().clear();
        told.tell();
        space.into_iter().for_each(|completion| completion.complete(()));
        let error = self.core.lock().status.state.engine_error().unwrap_or(EngineError::Closed);
        for request in requests {
            request.fail(error.clone());
        }
        self.watchers.notify();
    }

    /// Notes that a system call begins, for the watchdog, until the guard is dropped.
    pub(crate) fn watch_call(&self) -> CallGuard<'_> {
        self.call_began_ms.store(self.shared.elapsed_ms().max(1), Ordering::Relaxed);
        CallGuard(&self.call_began_ms)
    }

    /// As [`Self::watch_call`], for a look at the fence.
    pub(crate) fn watch_fence(&self) -> CallGuard<'_> {
        self.fence_began_ms.store(self.shared.elapsed_ms().max(1), Ordering::Relaxed);
        CallGuard(&self.fence_began_ms)
    }
}

pub(crate) struct CallGuard<'a>(&'a AtomicU64);

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Core {
    /// The files for whoever becomes the worker now; `None` if there is one, or nothing to do.
    pub(crate) fn take_work(&mut self) -> Option<Box<Writer>> {
        if self.worker_active || (self.staged.is_empty() && self.requests.is_empty()) {
            return None;
        }
        let writer = self.writer.take()?;
        self.worker_active = true;
        Some(writer)
    }
}

impl Request {
    pub(crate) fn fail(self, error: EngineError) {
        match self {
            Self::DeleteRecords { done, .. } => done.complete(Err(error)),
            Self::Maintain { done } => done.complete(Err(error)),
            Self::Compactable { done } => done.complete(Err(error)),
            Self::Exchange { done, .. } => done.complete(Err(error)),
            // Closing what has ended already is no failure.
            Self::Close { done } | Self::Abandon { done } => done.complete(Ok(())),
            Self::Flush | Self::Reindex { .. } => {}
        }
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition")
            .field("dir", &self.dir)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
