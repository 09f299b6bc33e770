//! The commit cycle: write, sync, fence, advance, tell. The rule of the house in code.
//!
//! One worker a partition runs as long as there is work: a job of the I/O pool, or a thread that waits for its append. A cycle takes what is staged,
//! writes it with one gathered write and syncs it. Then the fence is read: by the worker itself where that costs
//! nothing or nothing else is waiting, else by a second job, so that the next cycle's write and sync run
//! meanwhile. One fence read serves every cycle that was synced before it began.

use std::sync::Arc;
use std::time::Duration;

use kaas_substrate::{ErrorClass, Kind, Operation, Sharing};

use super::staging::{Staged, Told};
use super::writer::{Shortage, Writer, elapsed_ms};
use crate::error::{AppendError, EngineError};
use crate::leadership::Standing;
use crate::log::names::SegmentFile;
use crate::log::partition::{Core, Partition, Request};
use crate::log::status::State;
use crate::planted::{Bug, planted};
use crate::settings::LogConfig;
use crate::types::{Offset, Timestamp};

/// Batches up to this size are kept in one piece in the tail.
const TAIL_COPY_BYTES: usize = 4 << 10;

/// What the worker does next.
enum Work {
    Commit {
        batches: Vec<Staged>,
        roll: bool,
        config: Arc<LogConfig>,
    },
    Request(Request),
    /// Nothing is left to do; the writer has been put back.
    Idle,
    /// The partition has ended: the files are to be closed.
    Ended(Box<Writer>),
}

/// Ends the partition if the worker goes away with the writer (a panic), since nobody could serve it any more.
struct WorkerGuard<'a>(&'a Partition, bool);

impl Drop for WorkerGuard<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.end(State::Poisoned { reason: "the commit worker failed".into() });
        }
    }
}

impl Partition {
    /// The worker: runs until nothing is left to do.
    pub(crate) fn work(self: &Arc<Self>, writer: Box<Writer>) {
        self.work_until(writer, || false);
    }

    /// The worker on a thread that has better things to do once `enough`: what is left then goes to the I/O pool.
    pub(crate) fn work_until(self: &Arc<Self>, writer: Box<Writer>, enough: impl Fn() -> bool) {
        let mut guard = WorkerGuard(self, false);
        let mut writer = writer;
        loop {
            if enough() {
                let mut core = self.core.lock();
                if core.is_leading() {
                    core.worker_active = false;
                    core.writer = Some(writer);
                    self.kick(&mut core);
                    break;
                }
            }
            let work;
            (work, writer) = match self.next_work(writer) {
                (Work::Idle, _) => break,
                (Work::Ended(writer), _) => {
                    drop(writer);
                    break;
                }
                (work, Some(writer)) => (work, writer),
                (_, None) => break,
            };
            match work {
                Work::Commit { batches, roll, config } => self.commit(&mut writer, batches, roll, &config),
                Work::Request(request) => self.serve(&mut writer, request),
                Work::Idle | Work::Ended(_) => {}
            }
        }
        guard.1 = true;
    }

    fn next_work(&self, writer: Box<Writer>) -> (Work, Option<Box<Writer>>) {
        let mut core = self.core.lock();
        if !core.is_leading() {
            core.worker_active = false;
            return (Work::Ended(writer), None);
        }
        let staged_first = matches!(core.requests.front(), None | Some(Request::Close { .. }));
        if staged_first && !core.staged.is_empty() {
            let config = Arc::clone(&core.config);
            let (batches, roll) = self.take_cycle(&mut core, &writer, &config);
            return (Work::Commit { batches, roll, config }, Some(writer));
        }
        if let Some(request) = core.requests.pop_front() {
            return (Work::Request(request), Some(writer));
        }
        core.worker_active = false;
        core.writer = Some(writer);
        (Work::Idle, None)
    }

    /// Takes from the staged batches what one write can hold, and whether a new segment must be begun for it.
    fn take_cycle(&self, core: &mut Core, writer: &Writer, config: &LogConfig) -> (Vec<Staged>, bool) {
        let cycle_bytes_max = self.shared.settings.cycle_bytes_max;
        let now = self.shared.clock.now();
        let (mut count, mut bytes, mut roll) = (0, 0_u64, false);
        let mut position = writer.active.as_ref().map_or(0, super::writer::Active::position);
        let (mut base, mut first_timestamp) = (None, None);
        for staged in &core.staged {
            let header = &staged.header;
            let full = if roll || writer.active.is_none() {
                // A segment that does not exist yet: the same rules from its own beginning.
                let base: i64 = *base.get_or_insert(header.base_offset.0);
                let first: Timestamp = *first_timestamp.get_or_insert(header.max_timestamp);
                position > 0
                    && (position + header.batch_bytes as u64 > config.segment_bytes
                        || header.last_offset().0.saturating_sub(base) > i64::from(i32::MAX)
                        || elapsed_ms(first, header.max_timestamp) > config.roll_ms())
            } else {
                writer.active.as_ref().is_some_and(|active| active.is_full_for(header, position, config, now))
            };
            if full && count == 0 && !roll {
                roll = true;
                position = 0;
                base = Some(header.base_offset.0);
                first_timestamp = Some(header.max_timestamp);
            } else if full {
                break;
            }
            if count > 0 && bytes + header.batch_bytes as u64 > cycle_bytes_max as u64 {
                break;
            }
            count += 1;
            bytes += header.batch_bytes as u64;
            position += header.batch_bytes as u64;
        }
        (core.staged.drain(..count).collect(), roll)
    }

    fn commit(self: &Arc<Self>, writer: &mut Writer, batches: Vec<Staged>, roll: bool, config: &LogConfig) {
        let now = self.shared.clock.now();
        if let Err(full) = self.room(writer, roll) {
            self.take_back_cycle(writer, batches, Arc::new(full));
            return;
        }
        if roll {
            // Whatever a failed sync calls itself, it is final for the file.
            match self.sync_or_poison(writer) {
                Ok(()) => writer.retire_active(),
                Err(EngineError::Storage(short)) if short.is_no_descriptors() => {
                    self.take_back_cycle(writer, batches, short);
                    return;
                }
                Err(_) => return,
            }
        }
        match self.write(writer, &batches, now, config) {
            Ok(()) => {}
            Err(_) if !self.core.lock().is_leading() => return,
            Err(EngineError::Storage(short)) if short.is_no_descriptors() => {
                self.take_back_cycle(writer, batches, short);
                return;
            }
            // Said of an earlier write, maybe, if there is one that was not synced: a network file system takes bytes
            // before it has asked for room, and says so once. Then it is a failed sync, which is final.
            Err(EngineError::Storage(full))
                if full.class == ErrorClass::NoSpace && writer.unsynced_records == 0 =>
            {
                self.leave_or_cut(writer, &batches);
                self.take_back_cycle(writer, batches, full);
                return;
            }
            Err(error) => {
                self.poison(&error);
                return;
            }
        }
        if writer.short_of.take_if(|short| *short == Shortage::Space).is_some() {
            tracing::info!(dir = %self.dir.display(), "there is space again: appends succeed");
        }
        writer.wrote(&batches, self.shared.elapsed_ms());
        let end = writer.end;
        let bytes: usize = batches.iter().map(Staged::bytes).sum();
        self.tail.lock().push(
            batches.iter().map(|staged| staged.to_tail(TAIL_COPY_BYTES)),
            now,
            &self.shared.settings,
        );
        drop(batches);
        let written = {
            let mut core = self.core.lock();
            core.written_end = end;
            core.written_waiters.take_up_to(end)
        };
        let mut told = Told::default();
        told.succeed(written);
        told.tell();

        if planted(Bug::AcknowledgeBeforeSync) {
            self.core.lock().synced_end = end;
            self.fence(false);
        }
        let asked_early =
            planted(Bug::FenceBeforeSync) && matches!(self.leadership.standing(), Standing::Leading);
        let is_synced = match self.sync_is_due(writer, config) {
            true => self.sync_or_poison(writer),
            false => Ok(()),
        };
        match &is_synced {
            Err(EngineError::Storage(short)) if short.is_no_descriptors() => {
                // What was written waits for it.
                self.tell_short(writer, short);
                self.sync_later(writer);
            }
            Err(_) => return,
            Ok(()) => self.tell_descriptors_again(writer),
        }
        if asked_early {
            self.committed(end);
        }
        let (space, more) = {
            let mut core = self.core.lock();
            if is_synced.is_ok() {
                core.synced_end = end;
            }
            core.staged_bytes = core.staged_bytes.saturating_sub(bytes);
            (std::mem::take(&mut core.space_waiters), !core.staged.is_empty())
        };
        space.into_iter().for_each(|completion| completion.complete(()));
        if is_synced.is_ok() {
            self.fence(more);
            self.after_commit(writer);
        }
    }

    /// Fails if what room the volume has is for cleaning up: for bytes, or for a file where one must be begun.
    fn room(&self, writer: &Writer, roll: bool) -> Result<(), kaas_substrate::Error> {
        let reserve = &self.shared.reserve;
        let begins_file = roll || writer.tail_uncertain || writer.active.is_none();
        let is_in_use = if begins_file { reserve.is_in_use() } else { reserve.are_bytes_in_use() };
        if !is_in_use {
            return Ok(());
        }
        let active = writer.active.as_ref();
        let path = active.map_or_else(|| self.dir.clone(), |active| active.segment.path(SegmentFile::Log));
        let source = std::io::Error::from(std::io::ErrorKind::StorageFull);
        Err(kaas_substrate::Error { operation: Operation::Write, path, class: ErrorClass::NoSpace, source })
    }

    /// Begins a segment if there is none, writes.
    fn write(
        &self,
        writer: &mut Writer,
        batches: &[Staged],
        now: Timestamp,
        config: &LogConfig,
    ) -> Result<(), EngineError> {
        if writer.tail_uncertain {
            self.disown_tail(writer)?;
        }
        let _call = self.watch_call();
        if writer.active.is_none()
            && let Some(first) = batches.first()
        {
            let segment = writer.create_segment(first.header.base_offset, now, config)?;
            let mut segments = self.segments.write();
            let mut list = Vec::clone(&segments);
            list.push(segment);
            *segments = Arc::new(list);
        }
        Ok(writer.write(batches)?)
    }

    /// Whether a commit must be synced now: always, unless `flush.messages` and `flush.ms` allow otherwise, and nobody but
    /// this host has the volume: what it has written and not synced, another host may not see, and a takeover would lose
    /// it without any crash.
    pub(crate) fn sync_is_due(self: &Arc<Self>, writer: &mut Writer, config: &LogConfig) -> bool {
        let flush_ms = u64::try_from(config.flush_ms).unwrap_or(0);
        let since = writer.unsynced_since_ms.unwrap_or(0);
        let waited_ms =
            writer.unsynced_since_ms.map_or(0, |_| self.shared.elapsed_ms().saturating_sub(since));
        let is_shared = self.shared.substrate.sharing() == Sharing::ManyHosts;
        if is_shared || writer.unsynced_records >= config.flush_messages.max(1) || waited_ms >= flush_ms {
            return true;
        }
        // One is enough, whatever the number of cycles: it looks again when it is due.
        if config.flush_ms < i64::MAX && !std::mem::replace(&mut writer.flush_armed, true) {
            self.flush_after(Duration::from_millis(flush_ms - waited_ms));
        }
        false
    }

    fn flush_after(self: &Arc<Self>, delay: Duration) {
        let partition = Arc::downgrade(self);
        self.shared.timer.after(delay, move || {
            let Some(partition) = partition.upgrade() else { return };
            let mut core = partition.core.lock();
            if core.is_leading() {
                core.requests.push_back(Request::Flush);
                partition.kick(&mut core);
            }
        });
    }

    /// Has the sync tried soon that there was no descriptor for: nothing has failed, and whoever waits goes on waiting.
    pub(crate) fn sync_later(self: &Arc<Self>, writer: &mut Writer) {
        if !std::mem::replace(&mut writer.sync_armed, true) {
            self.flush_after(Duration::from_millis(self.shared.settings.fence_retry_ms.max(1)));
        }
    }

    /// Tells the log once what appends are refused or wait for.
    pub(crate) fn tell_short(&self, writer: &mut Writer, error: &kaas_substrate::Error) {
        let dir = self.dir.display();
        let short_of = if error.is_no_descriptors() { Shortage::Descriptors } else { Shortage::Space };
        if writer.short_of.replace(short_of) == Some(short_of) {
            return;
        }
        match short_of {
            Shortage::Space => {
                tracing::warn!(%dir, %error, "no space: appends fail until there is space again");
            }
            Shortage::Descriptors => tracing::warn!(
                %dir, %error, hint = "raise the limit of open files (ulimit -n, LimitNOFILE= of systemd)",
                "no file descriptors: appends that need a new segment wait or fail until there are some again"
            ),
        }
    }

    /// A segment has its name, or none was begun.
    pub(crate) fn tell_descriptors_again(&self, writer: &mut Writer) {
        let has_segment = writer.active.as_ref().is_some_and(|active| active.name_durable);
        if has_segment && writer.short_of.take_if(|short| *short == Shortage::Descriptors).is_some() {
            tracing::info!(dir = %self.dir.display(), "there are file descriptors again: appends succeed");
        }
    }

    /// Everything up to `end` has been synced, later than it was written.
    pub(crate) fn synced_late(self: &Arc<Self>, end: Offset) {
        {
            let mut core = self.core.lock();
            core.synced_end = core.synced_end.max(end);
        }
        self.fence(false);
    }

    pub(crate) fn sync(&self, writer: &mut Writer) -> Result<(), kaas_substrate::Error> {
        let _call = self.watch_call();
        writer.sync()
    }

    /// After a write that failed half way: cuts off what there is of a first batch, or leaves what may hold more.
    ///
    /// A successor that is looking at the file at this moment takes whole batches for the log's. So they may be
    /// neither cut off nor written over, even by a leader that has just looked at its fence, before a manifest says
    /// that they do not count: see [`Self::disown_tail`]. A torn batch counts for nobody.
    fn leave_or_cut(&self, writer: &mut Writer, batches: &[Staged]) {
        let Some(active) = writer.active.as_ref().filter(|_| !writer.tail_uncertain) else { return };
        let first_batch_bytes = batches.first().map_or(0, Staged::bytes) as u64;
        let file = &active.open.file;
        let outcome = file.length().and_then(|length| {
            let whole = length.saturating_sub(active.position()) >= first_batch_bytes
                && !planted(Bug::CutDoubtfulTail);
            if whole { Ok(true) } else { file.set_length(active.position()).map(|()| false) }
        });
        writer.tail_uncertain = outcome.unwrap_or_else(|error| {
            tracing::warn!(dir = %self.dir.display(), %error, "cannot cut off a half-written batch");
            true
        });
    }

    /// The volume is full, or no file can be opened: takes back this cycle's batches and everything staged behind them.
    fn take_back_cycle(&self, writer: &mut Writer, batches: Vec<Staged>, error: Arc<kaas_substrate::Error>) {
        self.tell_short(writer, &error);
        let error = match error.is_no_descriptors() {
            true => AppendError::NoDescriptors(error),
            false => AppendError::NoSpace(error),
        };
        let mut told = Told::default();
        let space = {
            let mut core = self.core.lock();
            core.unstage_from(0);
            for staged in batches.into_iter().rev() {
                core.take_back(staged);
            }
            told.fail(core.written_waiters.take_above(writer.end), &error);
            told.fail(core.committed_waiters.take_above(writer.end), &error);
            std::mem::take(&mut core.space_waiters)
        };
        told.tell();
        space.into_iter().for_each(|completion| completion.complete(()));
    }

    /// A storage error after which the open files cannot be trusted.
    pub(crate) fn poison(&self, error: &dyn std::fmt::Display) {
        tracing::error!(dir = %self.dir.display(), epoch = %self.epoch(), %error,
            "storage error: the partition stops and must be led anew");
        self.end(State::Poisoned { reason: error.to_string() });
    }

    /// Has the fence read and, if this leader still leads, the high watermark advanced to what is synced.
    ///
    /// With `more` to write, and where the read goes over a network, another job does it.
    pub(crate) fn fence(self: &Arc<Self>, more: bool) {
        {
            let mut core = self.core.lock();
            if core.fence_running {
                return;
            }
            core.fence_running = true;
        }
        let cheap = matches!(self.shared.substrate.kind(), Kind::Local | Kind::Memory);
        if more && !cheap {
            let partition = Arc::clone(self);
            if self.shared.io.schedule(move || partition.run_fence()).is_ok() {
                return;
            }
        }
        self.run_fence();
    }

    /// Reads the fence until everything synced is committed. Ends with `fence_running` unset.
    fn run_fence(self: &Arc<Self>) {
        let mut guard = WorkerGuard(self, false);
        self.ask_fence();
        guard.1 = true;
    }

    fn ask_fence(self: &Arc<Self>) {
        loop {
            let synced = {
                let mut core = self.core.lock();
                let sure = core.status.state != State::Unsure;
                if !core.is_leading() || (sure && core.synced_end <= core.status.high_watermark) {
                    core.fence_running = false;
                    return;
                }
                core.synced_end
            };
            let standing = {
                let _call = self.watch_fence();
                self.leadership.standing()
            };
            match standing {
                Standing::Leading if planted(Bug::FenceVouchesForLater) => {
                    let synced = self.core.lock().synced_end;
                    self.committed(synced);
                }
                Standing::Leading => self.committed(synced),
                Standing::Unknown(_) if planted(Bug::UnknownIsLeading) => self.committed(synced),
                Standing::Deposed { by } => {
                    self.core.lock().fence_running = false;
                    self.end(State::Deposed { by });
                    return;
                }
                Standing::Unknown(error) if error.is_final() => {
                    self.core.lock().fence_running = false;
                    self.poison(&error);
                    return;
                }
                Standing::Unknown(error) => {
                    let mut core = self.core.lock();
                    core.fence_running = false;
                    if !core.is_leading() {
                        // It has ended meanwhile, for good.
                        return;
                    }
                    let now_ms = self.shared.elapsed_ms();
                    let since_ms = *core.unsure_since_ms.get_or_insert(now_ms);
                    if now_ms.saturating_sub(since_ms) >= self.shared.settings.fence_limit_ms {
                        // The handle may be of no use any more, or a record have stayed half written: opening it anew, at
                        // a higher epoch, is the way back from either.
                        drop(core);
                        self.poison(&error);
                        return;
                    }
                    let before = std::mem::replace(&mut core.status.state, State::Unsure);
                    let is_asking = std::mem::replace(&mut core.asking_again, true);
                    drop(core);
                    // Once: it is asked many times a second.
                    if before != State::Unsure {
                        tracing::warn!(dir = %self.dir.display(), %error, "the fence cannot be read; asking again");
                    }
                    self.watchers.notify();
                    if !is_asking {
                        self.ask_again();
                    }
                    return;
                }
            }
        }
    }

    fn ask_again(self: &Arc<Self>) {
        let partition = Arc::downgrade(self);
        let delay = Duration::from_millis(self.shared.settings.fence_retry_ms.max(1));
        self.shared.timer.after(delay, move || {
            let Some(partition) = partition.upgrade() else { return };
            let io = Arc::clone(&partition.shared);
            partition.core.lock().asking_again = false;
            // A closed pool means that the engine is going away.
            let _ = io.io.schedule(move || partition.fence(false));
        });
    }

    /// Everything below `end` is committed: it was synced, and the fence was read after that.
    pub(crate) fn committed(&self, end: Offset) {
        let mut told = Told::default();
        let was_unsure;
        {
            let mut core = self.core.lock();
            if !core.is_leading() {
                return;
            }
            core.unsure_since_ms = None;
            was_unsure = std::mem::replace(&mut core.status.state, State::Leading) == State::Unsure;
            core.advance_high_watermark(end);
            let end = core.status.high_watermark;
            told.succeed(core.committed_waiters.take_up_to(end));
        }
        if was_unsure {
            tracing::info!(dir = %self.dir.display(), "the fence can be read again");
        }
        told.tell();
        self.watchers.notify();
    }
}
