//! Producer ids: each is given out once in the life of the cluster.
//!
//! Ids are reserved in blocks of 1,000 (`cluster/producer-ids.<epoch:08x>.<n>.json` says where the next block begins).
//! A block is durable, and the controller's fence was checked after that, before an id of it is used; so a deposed
//! controller's block is never used twice. A restart loses the rest of its block.

use std::path::Path;
use std::sync::Arc;

use kaas_engine::layout::{PRODUCER_IDS, PRODUCER_IDS_BLOCK, ProducerIdsFile};
use kaas_engine::manifest::versioned::{self, FileVersion};
use kaas_engine::types::ProducerId;
use kaas_substrate::Substrate;
use parking_lot::{Condvar, Mutex};

use crate::metadata::Fence;
use crate::{CLUSTER_DIR, ControlError};

/// Ids of one block; Kafka's number.
pub const BLOCK_IDS: i64 = PRODUCER_IDS_BLOCK;

/// Gives out producer ids. Shared between threads.
pub struct ProducerIds {
    substrate: Arc<dyn Substrate>,
    fence: Arc<dyn Fence>,
    state: Mutex<State>,
    reserved: Condvar,
}

/// Locked for memory work only.
#[derive(Debug)]
struct State {
    next: i64,
    /// Ids below this may be given out.
    block_end: i64,
    /// Where the next block begins.
    next_block_start: i64,
    /// The last version that was written or tried.
    version: Option<FileVersion>,
    /// A thread is reserving a block.
    reserving: bool,
}

impl ProducerIds {
    /// Reads what was reserved so far. Blocks. The fence must have been claimed before.
    pub fn open(substrate: Arc<dyn Substrate>, fence: Arc<dyn Fence>) -> Result<Self, ControlError> {
        let highest = versioned::read_highest::<ProducerIdsFile>(substrate.as_ref(), dir(), PRODUCER_IDS)?;
        let (version, start) = match highest {
            Some((version, reserved)) => (Some(version), reserved.next_block_start),
            None => (None, 0),
        };
        if start < 0 {
            let path = dir().join("producer-ids");
            return Err(ControlError::Damaged { path, reason: format!("next_block_start is {start}") });
        }
        let state =
            State { next: start, block_end: start, next_block_start: start, version, reserving: false };
        Ok(Self { substrate, fence, state: Mutex::new(state), reserved: Condvar::new() })
    }

    /// A new id, if the current block has one left. Answers from memory.
    pub fn try_next(&self) -> Option<ProducerId> {
        self.state.lock().take()
    }

    /// A new id. Blocks when a block has to be reserved first.
    pub fn next(&self) -> Result<ProducerId, ControlError> {
        let mut state = self.state.lock();
        loop {
            if let Some(id) = state.take() {
                return Ok(id);
            }
            if !state.reserving {
                break;
            }
            self.reserved.wait(&mut state);
        }
        state.reserving = true;
        let start = state.next_block_start;
        let epoch = self.fence.epoch();
        let version = match state.version {
            Some(last) if last.epoch == epoch => FileVersion { epoch, number: last.number.saturating_add(1) },
            _ => FileVersion { epoch, number: 1 },
        };
        // Before it is tried: what fails half-way may be there, and its name is not used again.
        state.version = Some(version);
        drop(state);

        let outcome = self.reserve(start, version);

        let mut state = self.state.lock();
        state.reserving = false;
        self.reserved.notify_all();
        let end = outcome?;
        (state.next, state.block_end, state.next_block_start) = (start, end, end);
        state.take().ok_or(ControlError::ProducerIdsExhausted)
    }

    /// Reserves the block that begins at `start`; its end.
    fn reserve(&self, start: i64, version: FileVersion) -> Result<i64, ControlError> {
        let end = start.checked_add(BLOCK_IDS).ok_or(ControlError::ProducerIdsExhausted)?;
        let reserved = ProducerIdsFile { next_block_start: end };
        versioned::write(self.substrate.as_ref(), dir(), PRODUCER_IDS, version, &reserved)?;
        self.fence.check()?;
        if let Err(error) = versioned::remove_below(self.substrate.as_ref(), dir(), PRODUCER_IDS, version) {
            tracing::warn!(%error, "older producer id files left behind");
        }
        Ok(end)
    }
}

impl State {
    fn take(&mut self) -> Option<ProducerId> {
        if self.next >= self.block_end {
            return None;
        }
        let id = ProducerId(self.next);
        self.next += 1;
        Some(id)
    }
}

fn dir() -> &'static Path {
    Path::new(CLUSTER_DIR)
}
