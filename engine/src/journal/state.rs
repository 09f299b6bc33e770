//! What a journal keeps in memory: the staged work, and who is at it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use kaas_substrate::{File, Substrate};

use super::{IoPool, JournalError, JournalSettings, cycle};
use crate::completion::Completion;
use crate::leadership::Leadership;
use crate::manifest::versioned::FileVersion;
use crate::sync::{Condvar, Mutex};

/// Number of an append: counts up over all epochs of a slot, with gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sequence(pub u64);

/// Who is told what became of a piece of work.
pub(super) enum OnOutcome {
    Ticket(Completion<Result<Sequence, JournalError>>),
    /// Called on the thread that tells; one that panics costs itself only.
    Callback(Box<dyn FnOnce(Result<Sequence, JournalError>) + Send>),
}

impl OnOutcome {
    pub(super) fn tell(self, result: Result<Sequence, JournalError>) {
        match self {
            Self::Ticket(completion) => completion.complete(result),
            Self::Callback(callback) => {
                if catch_unwind(AssertUnwindSafe(|| callback(result))).is_err() {
                    tracing::error!("the callback of a journal panicked");
                }
            }
        }
    }
}

/// Work that waits for a cycle.
pub(super) enum Work {
    /// A JSON array of entries; empty bytes ask the fence only.
    Append { bytes: Vec<u8> },
    /// A state that covers all appends up to a sequence number.
    Snapshot { covers: Sequence, state: Vec<u8> },
}

pub(super) struct Staged {
    pub(super) work: Work,
    pub(super) on_outcome: OnOutcome,
}

impl Staged {
    /// True for an append that has a line.
    pub(super) fn is_written(&self) -> bool {
        matches!(&self.work, Work::Append { bytes } if !bytes.is_empty())
    }

    fn bytes(&self) -> usize {
        // An append costs memory even without entries.
        const OVERHEAD: usize = 64;
        match &self.work {
            Work::Append { bytes } | Work::Snapshot { state: bytes, .. } => bytes.len() + OVERHEAD,
        }
    }
}

/// A piece of work with the sequence number that it has, or for a snapshot the last one before it.
pub(super) struct Numbered {
    pub(super) sequence: Sequence,
    pub(super) staged: Staged,
}

/// The open file; owned by the cycle that runs.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) file: Arc<dyn File>,
    pub(super) version: FileVersion,
    /// Where the next write goes; everything below is synced.
    pub(super) length: u64,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) staged: Vec<Numbered>,
    /// Bytes staged, those of the running cycle included.
    pub(super) staged_bytes: usize,
    pub(super) last_sequence: Sequence,
    pub(super) committed: Sequence,
    pub(super) appends_since_snapshot: u64,
    pub(super) file_bytes: u64,
    /// Present while no cycle runs.
    pub(super) writer: Option<Writer>,
    pub(super) running: bool,
    pub(super) failure: Option<JournalError>,
}

/// A journal, shared by its handle and its cycles.
pub(super) struct Shared {
    pub(super) substrate: Arc<dyn Substrate>,
    pub(super) leadership: Leadership,
    pub(super) settings: JournalSettings,
    pub(super) pool: Arc<IoPool>,
    pub(super) state: Mutex<State>,
    pub(super) idle: Condvar,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Journal")
            .field("dir", &self.leadership.dir())
            .field("epoch", &self.leadership.epoch())
            .field("committed", &state.committed)
            .field("failure", &state.failure)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Stages work and sees to it that a cycle runs. Outcomes of refused work are told at once.
    pub(super) fn stage(shared: &Arc<Self>, staged: Staged) {
        let bytes = staged.bytes();
        let start = {
            let mut state = shared.state.lock();
            let refusal = match &state.failure {
                Some(failure) => Some(failure.clone()),
                // One piece of work is always let in, so that a large snapshot is possible at all.
                None if state.staged_bytes > 0
                    && state.staged_bytes.saturating_add(bytes) > shared.settings.max_staged_bytes =>
                {
                    Some(JournalError::Busy { staged_bytes: state.staged_bytes })
                }
                None => None,
            };
            if let Some(refusal) = refusal {
                drop(state);
                return staged.on_outcome.tell(Err(refusal));
            }
            if staged.is_written() {
                state.last_sequence.0 += 1;
            }
            let sequence = state.last_sequence;
            state.staged_bytes += bytes;
            state.staged.push(Numbered { sequence, staged });
            !std::mem::replace(&mut state.running, true)
        };
        if start {
            Self::start_cycle(shared);
        }
    }

    /// Queues the next cycle; the caller has set `running`.
    pub(super) fn start_cycle(shared: &Arc<Self>) {
        let job = Arc::clone(shared);
        // At most one job a journal is queued, so the pool's queue is bounded by the number of journals.
        if shared.pool.schedule(move || cycle::run(&job)).is_err() {
            shared.fail(JournalError::Poisoned { reason: "the I/O pool is closed".to_owned() });
            shared.end_cycle(Vec::new(), None);
        }
    }

    /// Ends the journal. The first failure stays; being closed is not one.
    pub(super) fn fail(&self, failure: JournalError) {
        let mut state = self.state.lock();
        if matches!(state.failure, None | Some(JournalError::Closed)) {
            state.failure = Some(failure);
        }
    }

    /// Tells outcomes, gives the writer back and frees the bytes; then either more work waits (true), or the
    /// journal is idle. Work that waits in a failed journal fails with it.
    pub(super) fn end_cycle(&self, outcomes: Vec<Outcome>, writer: Option<Writer>) -> bool {
        let freed: usize = outcomes.iter().map(|outcome| outcome.bytes).sum();
        {
            let mut state = self.state.lock();
            state.staged_bytes = state.staged_bytes.saturating_sub(freed);
            state.file_bytes = writer.as_ref().map_or(state.file_bytes, |writer| writer.length);
        }
        for outcome in outcomes {
            self.tell(outcome);
        }
        let mut state = self.state.lock();
        if writer.is_some() {
            state.writer = writer;
        }
        loop {
            if state.staged.is_empty() {
                state.running = false;
                self.idle.notify_all();
                return false;
            }
            match state.failure.clone() {
                None | Some(JournalError::Closed) if state.writer.is_some() => return true,
                None => return true,
                Some(failure) => {
                    let orphans = std::mem::take(&mut state.staged);
                    let freed: usize = orphans.iter().map(|orphan| orphan.staged.bytes()).sum();
                    state.staged_bytes = state.staged_bytes.saturating_sub(freed);
                    drop(state);
                    for orphan in orphans {
                        orphan.staged.on_outcome.tell(Err(failure.clone()));
                    }
                    state = self.state.lock();
                }
            }
        }
    }

    /// Tells an outcome. Who waits for a ticket then finds `committed` moved; who is called back sees it move when
    /// the callback has returned, so that who reads `committed` and then looks at what was applied has that.
    fn tell(&self, outcome: Outcome) {
        let committed = outcome.acknowledges.filter(|_| outcome.result.is_ok());
        let advance = || {
            if let Some(sequence) = committed {
                self.state.lock().committed = sequence;
            }
        };
        match outcome.on_outcome {
            ticket @ OnOutcome::Ticket(_) => {
                advance();
                ticket.tell(outcome.result);
            }
            callback @ OnOutcome::Callback(_) => {
                callback.tell(outcome.result);
                advance();
            }
        }
    }

    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.failure.get_or_insert(JournalError::Closed);
        while state.running {
            self.idle.wait(&mut state);
        }
        state.writer = None;
    }
}

/// What became of a piece of work, before it is told.
pub(super) struct Outcome {
    bytes: usize,
    /// The append that is acknowledged by it.
    acknowledges: Option<Sequence>,
    result: Result<Sequence, JournalError>,
    on_outcome: OnOutcome,
}

impl Outcome {
    pub(super) fn new(numbered: Numbered, result: Result<Sequence, JournalError>) -> Self {
        let acknowledges = numbered.staged.is_written().then_some(numbered.sequence);
        Self { bytes: numbered.staged.bytes(), acknowledges, result, on_outcome: numbered.staged.on_outcome }
    }
}
