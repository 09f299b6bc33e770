//! The journal of a slot: the durable state of a coordinator, as appends of small JSON entries and snapshots.
//!
//! A slot is a directory with claims and a fence (see [`crate::leadership`]). Its state is one journal file,
//! `journal.<epoch:08x>.<number>.jsonl`, and the snapshot that the file's first line names, if any. The file with the
//! highest (epoch, number) counts, all others are history. A file appears whole (written under a temporary name and
//! renamed), with all that its predecessor holds since the snapshot copied into it; so what a deposed coordinator
//! still writes to its own file, or cuts off it, is looked at by nobody, and an acknowledged entry has one history.
//!
//! An append is acknowledged by the rule of the house: written, synced, fence, then the ticket. One cycle serves all
//! appends that were staged while the one before it ran. Each append is one line, so it is replayed whole or not at
//! all. An append that was *not* acknowledged may still be found by a successor, as with any write whose answer is
//! lost; one that failed with [`JournalError::NoSpace`] is not part of this journal any more, but a successor that took
//! over at that very moment may find it too.
//!
//! [`Journal::open`] and [`Journal::close`] block. Everything else returns at once and may be called from async code;
//! the volume is touched by jobs on the I/O pool, one at a time for a journal. Locks are held for memory work only.

mod cycle;
mod line;
mod open;
mod salvage;
mod state;

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use serde::Serialize;

pub use self::line::LineError;
pub use self::open::{Entry, OpenError, Replay, birth};
pub(crate) use self::open::{Inspected, inspect, is_journal_file, is_snapshot_file};
pub(crate) use self::salvage::{Salvaged, make_durable, salvage};
pub use self::state::Sequence;
use self::state::{OnOutcome, Shared, Staged, Work};
use crate::completion::{self, Ticket};
use crate::io::IoPool;
use crate::manifest::versioned::FileKind;
use crate::types::Epoch;

const JOURNAL: FileKind = FileKind::bytes("journal", "jsonl");
const SNAPSHOT: FileKind = FileKind::bytes("snapshot", "json");

/// Bounds of a journal.
#[derive(Debug, Clone)]
pub struct JournalSettings {
    /// Most bytes of appends and snapshots that wait for their commit.
    pub max_staged_bytes: usize,
    /// Largest single append in bytes of JSON.
    pub max_append_bytes: usize,
    /// Largest journal file; beyond it appends are refused until a snapshot is written.
    pub max_file_bytes: u64,
    /// How long a commit waits for a fence that does not answer, in milliseconds, before the journal gives up.
    pub fence_limit_ms: u64,
}

impl Default for JournalSettings {
    fn default() -> Self {
        Self {
            max_staged_bytes: 16 << 20,
            max_append_bytes: 4 << 20,
            max_file_bytes: 256 << 20,
            fence_limit_ms: 10_000,
        }
    }
}

/// Why an append or a snapshot was not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// More is staged than `max_staged_bytes` allows. Nothing was staged; try again when tickets have completed.
    #[error("{staged_bytes} bytes wait for their commit already")]
    Busy { staged_bytes: usize },
    /// The append is larger than `max_append_bytes`.
    #[error("an append of {bytes} bytes is larger than {max_bytes}")]
    TooLarge { bytes: usize, max_bytes: usize },
    /// The file is as large as it may be; write a snapshot.
    #[error("the journal holds {bytes} bytes and needs a snapshot")]
    Full { bytes: u64 },
    /// The volume has no space, or the process no file descriptor. The append is not in the journal; later ones succeed when there is
    /// some again.
    #[error("nothing can be added to the journal: {reason}")]
    NoSpace { reason: String },
    /// Another coordinator claimed the slot. For good.
    #[error("deposed by epoch {by}")]
    Deposed { by: Epoch },
    /// The volume failed. Whether the append is in the journal will be known when the slot is opened at a higher
    /// epoch, which is what the owner does now.
    #[error("the journal is unusable: {reason}")]
    Poisoned { reason: String },
    /// The journal is closed.
    #[error("the journal is closed")]
    Closed,
    /// An entry or a state cannot be written as JSON.
    #[error("cannot be written as JSON: {reason}")]
    Unwritable { reason: String },
}

/// The outcome of an append or a snapshot: a future, or [`JournalTicket::wait`] for plain threads.
#[derive(Debug)]
pub struct JournalTicket {
    ticket: Ticket<Result<Sequence, JournalError>>,
}

impl JournalTicket {
    fn failed(error: JournalError) -> Self {
        Self { ticket: completion::ready(Err(error)) }
    }

    /// True once the outcome is known: [`JournalTicket::wait`] would not block.
    pub fn is_told(&self) -> bool {
        self.ticket.is_told()
    }

    /// Blocks until the append is durable and was made by the slot's leader, or failed. Not for async code.
    pub fn wait(self) -> Result<Sequence, JournalError> {
        self.ticket.wait().unwrap_or_else(|_| Err(abandoned()))
    }
}

impl Future for JournalTicket {
    type Output = Result<Sequence, JournalError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.ticket).poll(context).map(|outcome| outcome.unwrap_or_else(|_| Err(abandoned())))
    }
}

fn abandoned() -> JournalError {
    JournalError::Poisoned { reason: "a commit was abandoned".to_owned() }
}

/// A slot's journal, led by this process. Dropping it lets staged appends finish; see [`Journal::close`].
#[derive(Debug)]
pub struct Journal {
    shared: Arc<Shared>,
}

impl Journal {
    /// The epoch that was claimed.
    pub fn epoch(&self) -> Epoch {
        self.shared.leadership.epoch()
    }

    /// The slot's directory, relative to the substrate's root.
    pub fn dir(&self) -> &Path {
        self.shared.leadership.dir()
    }

    /// Stages `entries` as one append. The ticket completes when it is durable and the fence said that this journal
    /// still leads; its value is the append's sequence number. Without entries it asks the fence only.
    pub fn append<T: Serialize>(&self, entries: &[T]) -> JournalTicket {
        let (completion, ticket) = completion::pair();
        self.stage_append(entries, OnOutcome::Ticket(completion));
        JournalTicket { ticket }
    }

    /// As [`Journal::append`], but calls `on_outcome` instead: on an I/O thread, in the order of the appends, or at
    /// once on this thread when the append is refused. It must not block. A coordinator that applies entries there
    /// may read [`Journal::committed`], then take its state, and write it as a snapshot that covers that.
    pub fn append_with<T: Serialize>(
        &self,
        entries: &[T],
        on_outcome: impl FnOnce(Result<Sequence, JournalError>) + Send + 'static,
    ) {
        self.stage_append(entries, OnOutcome::Callback(Box::new(on_outcome)));
    }

    fn stage_append<T: Serialize>(&self, entries: &[T], on_outcome: OnOutcome) {
        let bytes = match serde_json::to_vec(entries) {
            Ok(_) if entries.is_empty() => Vec::new(),
            Ok(bytes) => bytes,
            Err(error) => {
                return on_outcome.tell(Err(JournalError::Unwritable { reason: error.to_string() }));
            }
        };
        let max_bytes = self.shared.settings.max_append_bytes;
        if bytes.len() > max_bytes {
            return on_outcome.tell(Err(JournalError::TooLarge { bytes: bytes.len(), max_bytes }));
        }
        Shared::stage(&self.shared, Staged { work: Work::Append { bytes }, on_outcome });
    }

    /// Replaces the journal's history by `state`, the coordinator's state after at least all appends up to
    /// `covers` (too low is safe if entries may be applied twice in order, too high loses entries). The ticket completes
    /// when the snapshot counts; appends go on meanwhile and are kept.
    pub fn write_snapshot<T: Serialize>(&self, covers: Sequence, state: &T) -> JournalTicket {
        let state = match serde_json::to_vec(state) {
            Ok(state) => state,
            Err(error) => {
                return JournalTicket::failed(JournalError::Unwritable { reason: error.to_string() });
            }
        };
        let (completion, ticket) = completion::pair();
        let on_outcome = OnOutcome::Ticket(completion);
        Shared::stage(&self.shared, Staged { work: Work::Snapshot { covers, state }, on_outcome });
        JournalTicket { ticket }
    }

    /// The last append that was acknowledged, and whose callback has returned if it has one.
    pub fn committed(&self) -> Sequence {
        self.shared.state.lock().committed
    }

    /// Appends in the journal since its snapshot, inherited ones included.
    pub fn appends_since_snapshot(&self) -> u64 {
        self.shared.state.lock().appends_since_snapshot
    }

    /// Length of the journal file in bytes: what a successor will have to read.
    pub fn file_bytes(&self) -> u64 {
        self.shared.state.lock().file_bytes
    }

    /// Bytes that wait for their commit.
    pub fn staged_bytes(&self) -> usize {
        self.shared.state.lock().staged_bytes
    }

    /// Why the journal takes no more appends; `None` while it does.
    pub fn failure(&self) -> Option<JournalError> {
        self.shared.state.lock().failure.clone()
    }

    /// Takes no more appends and returns when those staged have their outcomes. Blocks; not to be called from a job
    /// of the I/O pool.
    pub fn close(&self) {
        self.shared.close();
    }
}

impl fmt::Display for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "journal {} at epoch {}", self.dir().display(), self.epoch())
    }
}

/// The path of a versioned file in a slot.
fn path_of(dir: &Path, kind: FileKind, version: crate::manifest::versioned::FileVersion) -> PathBuf {
    dir.join(kind.file_name(version))
}

#[cfg(test)]
mod tests;
