//! Appending: checking a batch, giving it its offset, staging it. No system call is made here.

use std::sync::Arc;

use bytes::Bytes;

use super::partition::{Core, Partition};
use super::status::State;
use crate::batch::{self, BatchHeader, DecodeLimits, EndMarker, Limits, TimestampRule};
use crate::commit::staging::{AppendOutcome, Appended, Staged, Waiter, detach};
use crate::completion::{Ticket, pair, ready};
use crate::error::AppendError;
use crate::producer_state::{Checks, Verdict};
use crate::settings::{LogConfig, TimestampPolicy};
use crate::sync::MutexGuard;
use crate::types::{Offset, ProducerId, Timestamp};

/// What an append waits for, as Kafka's `acks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acks {
    /// Nothing (`acks=0`): told once it is staged.
    None,
    /// The write to the volume (`acks=1`): a crash of the host, or a takeover, can still lose the records.
    Written,
    /// The commit (`acks=all`): synced, and still leader afterwards.
    Committed,
}

/// How an append is to be done.
#[derive(Debug, Clone, Copy)]
pub struct AppendOptions {
    /// What to wait for.
    pub acks: Acks,
    /// Bytes of the allocation that the records are a slice of; 0 if they are their own. A batch that is a small
    /// part of it is copied, so that the tail does not keep it alive.
    pub frame_bytes: usize,
    /// Most batches; Kafka's clients send one.
    pub max_batches: usize,
}

impl Default for AppendOptions {
    fn default() -> Self {
        Self { acks: Acks::Committed, frame_bytes: 0, max_batches: 1 }
    }
}

/// Told where the records ended up, or why they did not. A future; [`Ticket::wait`] for plain threads.
pub type AppendTicket = Ticket<AppendOutcome>;

impl Partition {
    /// Checks `records` (whole batches of format 2, as a client sends them), gives them offsets and stages them.
    ///
    /// Returns at once. The ticket is told when what [`AppendOptions::acks`] asks for has happened. A batch that an
    /// idempotent producer sends again gets the offsets it got the first time, once those are committed.
    ///
    /// # Errors
    ///
    /// Everything that is known before the records are written: nothing was appended then. [`AppendError::Busy`]:
    /// wait on [`Partition::staging_space`] and call again.
    pub fn append(
        self: &Arc<Self>,
        records: &Bytes,
        options: AppendOptions,
    ) -> Result<AppendTicket, AppendError> {
        let (ticket, mut core) = self.stage_checked(records, options)?;
        self.kick(&mut core);
        Ok(ticket)
    }

    /// Appends and waits. The calling thread writes and syncs by itself if nobody else is at it, which saves two
    /// hand-offs between threads; what others stage meanwhile is committed along. Blocks: for plain threads.
    ///
    /// # Errors
    ///
    /// As [`Partition::append`], and as its ticket.
    pub fn append_and_wait(self: &Arc<Self>, records: &Bytes, options: AppendOptions) -> AppendOutcome {
        let (ticket, writer) = {
            let (ticket, mut core) = self.stage_checked(records, options)?;
            (ticket, core.take_work())
        };
        if let Some(writer) = writer {
            self.work_until(writer, || ticket.is_told());
        }
        ticket.wait().unwrap_or(Err(AppendError::NotLeader { reason: "the partition has ended" }))
    }

    /// Checks and stages; the lock is still held, so that the caller can see to the commit.
    fn stage_checked(
        &self,
        records: &Bytes,
        options: AppendOptions,
    ) -> Result<(AppendTicket, MutexGuard<'_, Core>), AppendError> {
        let config = self.config();
        let now = self.shared.clock.now();
        let mut batches = self.check(records, &config, now, options)?;
        if let Some(stalled_ms) = self.stalled_ms() {
            return Err(AppendError::Stalled { stalled_ms });
        }
        let mut core = self.core.lock();
        if let Some(error) = core.append_error() {
            return Err(error);
        }
        let bytes: usize = batches.iter().map(Staged::bytes).sum();
        let staged_bytes_max = self.shared.settings.staged_bytes_max;
        if core.staged_bytes > 0 && core.staged_bytes + bytes > staged_bytes_max {
            return Err(AppendError::Busy { staged_bytes: core.staged_bytes, staged_bytes_max });
        }
        let log_append_time = (config.timestamps == TimestampPolicy::LogAppendTime).then_some(now);
        let appended = self.stage(&mut core, &mut batches, log_append_time)?;
        let ticket = Self::wait_for(&mut core, appended, options.acks);
        Ok((ticket, core))
    }

    /// Ends the open transaction of a producer on this partition with a marker, as the transaction coordinator asks
    /// for it. The ticket is told once the marker is committed.
    ///
    /// # Errors
    ///
    /// [`AppendError::Producer`] if the producer's or the coordinator's epoch is lower than one seen before.
    pub fn append_marker(
        self: &Arc<Self>,
        producer_id: ProducerId,
        producer_epoch: i16,
        marker: EndMarker,
    ) -> Result<AppendTicket, AppendError> {
        let now = self.shared.clock.now();
        let batch = batch::control_batch(marker, producer_id, producer_epoch, now)?;
        let header = BatchHeader::parse(&batch)?;
        let mut staged = Staged::new(header, &batch, Offset::ZERO, self.epoch(), None)?;
        staged.marker = Some(marker);
        let mut core = self.core.lock();
        if let Some(error) = core.append_error() {
            return Err(error);
        }
        core.producers.check_marker(producer_id, producer_epoch, marker)?;
        staged.assign(core.status.log_end, self.epoch());
        let (base_offset, last_offset) = (staged.header.base_offset, staged.header.last_offset());
        core.status.log_end = staged.header.next_offset();
        staged.undo = Some(core.producers.append_marker(&staged.header, marker).1);
        core.staged_bytes += staged.bytes();
        core.staged.push_back(staged);
        let log_start = core.status.log_start;
        let appended = Appended { base_offset, last_offset, log_append_time: None, log_start };
        let ticket = Self::wait_for(&mut core, appended, Acks::Committed);
        self.kick(&mut core);
        Ok(ticket)
    }

    /// The batches, checked and with everything done that needs no lock.
    fn check(
        &self,
        records: &Bytes,
        config: &LogConfig,
        now: Timestamp,
        options: AppendOptions,
    ) -> Result<Vec<Staged>, AppendError> {
        let (timestamps, log_append_time) = match config.timestamps {
            TimestampPolicy::LogAppendTime => (TimestampRule::LogAppendTime, Some(now)),
            TimestampPolicy::CreateTime => {
                let before_max_ms = config.timestamp_before_max_ms;
                let after_max_ms = config.timestamp_after_max_ms;
                (TimestampRule::CreateTime { now, before_max_ms, after_max_ms }, None)
            }
        };
        let limits = Limits {
            max_batch_bytes: config.max_message_bytes,
            max_batches: options.max_batches,
            timestamps,
        };
        batch::validate_client_batches(records, &limits)?
            .into_iter()
            .map(|(header, batch)| {
                if config.compact {
                    batch::check_keys(&batch, &DecodeLimits::default())?;
                }
                let batch = detach(batch, options.frame_bytes);
                Ok(Staged::new(header, &batch, Offset::ZERO, self.epoch(), log_append_time)?)
            })
            .collect()
    }

    /// Assigns offsets and stages, all batches or none. For a duplicate: where the batch went the first time.
    fn stage(
        &self,
        core: &mut Core,
        batches: &mut Vec<Staged>,
        log_append_time: Option<Timestamp>,
    ) -> Result<Appended, AppendError> {
        let log_start = core.status.log_start;
        let mut first = core.status.log_end;
        let mut last_offset: Option<Offset> = None;
        let mut log_append_times = log_append_time;
        let already_staged = core.staged.len();
        for (number, mut staged) in batches.drain(..).enumerate() {
            match core.producers.check(&staged.header, &Checks::default()) {
                Ok(Verdict::Append) => {
                    staged.assign(core.status.log_end, self.epoch());
                    core.status.log_end = staged.header.next_offset();
                    last_offset = last_offset.max(Some(staged.header.last_offset()));
                    staged.undo = Some(core.producers.append(&staged.header));
                    core.staged_bytes += staged.bytes();
                    core.staged.push_back(staged);
                }
                // Where it went the first time. Among several batches, which no client sends, the others go on.
                Ok(Verdict::Duplicate { base_offset, last_offset: last, timestamp }) => {
                    if number == 0 {
                        first = base_offset;
                        log_append_times = log_append_time.and(Some(timestamp));
                    }
                    last_offset = last_offset.max(Some(last));
                }
                Err(error) => {
                    core.unstage_from(already_staged);
                    return Err(error.into());
                }
            }
        }
        let last_offset = last_offset.unwrap_or(first.plus(-1));
        Ok(Appended { base_offset: first, last_offset, log_append_time: log_append_times, log_start })
    }

    fn wait_for(core: &mut Core, appended: Appended, acks: Acks) -> AppendTicket {
        let end = appended.last_offset.plus(1);
        let reached = match acks {
            Acks::None => true,
            Acks::Written => core.written_end >= end,
            Acks::Committed => core.status.high_watermark >= end,
        };
        if reached {
            return ready(Ok(appended));
        }
        let (completion, ticket) = pair();
        let waiters =
            if acks == Acks::Written { &mut core.written_waiters } else { &mut core.committed_waiters };
        waiters.push(Waiter { end, appended, completion });
        ticket
    }
}

impl Core {
    /// Takes the batches from position `keep` on back out of the staging queue, newest first, producers included.
    pub(crate) fn unstage_from(&mut self, keep: usize) {
        while self.staged.len() > keep {
            let Some(staged) = self.staged.pop_back() else { break };
            self.take_back(staged);
        }
    }

    /// Takes back one batch that was never written: the newest one there is.
    pub(crate) fn take_back(&mut self, staged: Staged) {
        self.staged_bytes = self.staged_bytes.saturating_sub(staged.bytes());
        self.status.log_end = staged.header.base_offset;
        if let Some(undo) = staged.undo {
            self.producers.undo(undo);
        }
    }

    /// Sets the high watermark, and with it the last stable offset. The only place where either moves.
    pub(crate) fn advance_high_watermark(&mut self, high_watermark: Offset) {
        self.status.high_watermark = self.status.high_watermark.max(high_watermark);
        self.producers.on_high_watermark(self.status.high_watermark);
        let unstable = self.producers.first_unstable_offset().unwrap_or(self.status.high_watermark);
        self.status.last_stable =
            unstable.min(self.status.high_watermark).max(self.status.log_start).max(self.status.last_stable);
        self.status.assert_ordered();
    }

    /// Raises the log start; the other bounds follow where it passes them.
    pub(crate) fn raise_log_start(&mut self, log_start: Offset) {
        self.status.log_start = self.status.log_start.max(log_start);
        self.status.last_stable = self.status.last_stable.max(self.status.log_start);
        self.status.assert_ordered();
    }

    /// Why nothing can be appended now.
    pub(crate) fn append_error(&self) -> Option<AppendError> {
        let closing = self.closing.then_some(AppendError::NotLeader { reason: "the partition is closing" });
        self.status.state.append_error().or(closing)
    }

    /// True while the partition may write and acknowledge.
    pub(crate) fn is_leading(&self) -> bool {
        matches!(self.status.state, State::Leading | State::Unsure)
    }
}
