//! What the worker does besides commits: sealing rolled segments, checkpoints, retention, `DeleteRecords`,
//! closing. Everything that takes a file away keeps the order: manifest durable, fence, unlink.

use std::path::PathBuf;
use std::sync::Arc;

use super::writer::Writer;
use crate::completion::Completion;
use crate::error::EngineError;
use crate::leadership::Standing;
use crate::log::names::SegmentFile;
use crate::log::partition::{Maintained, Partition, Request, SegmentList};
use crate::log::segment::Segment;
use crate::log::status::State;
use crate::planted::{Bug, planted};
use crate::settings::LogConfig;
use crate::types::{Offset, Timestamp};

impl Partition {
    /// Does what a request asks for.
    pub(crate) fn serve(self: &Arc<Self>, writer: &mut Writer, request: Request) {
        match request {
            Request::DeleteRecords { before, done } => {
                let outcome = self.delete_records_before(writer, before);
                self.answer(done, outcome);
            }
            Request::Maintain { done } => {
                let outcome = self.maintain_now(writer);
                self.answer(done, outcome);
            }
            Request::Flush => {
                (writer.flush_armed, writer.sync_armed) = (false, false);
                // What a sync was put off for may have been synced by a roll or a manifest since, which acknowledge nothing.
                let waits = self.core.lock().synced_end < writer.end;
                // A later timer looks again if something has been synced, and written, since this one was set.
                let is_due = writer.unsynced_records > 0 && self.sync_is_due(writer, &self.config());
                if waits || is_due {
                    match self.sync_or_poison(writer) {
                        Ok(()) => {
                            self.tell_descriptors_again(writer);
                            self.synced_late(writer.end);
                        }
                        Err(EngineError::Storage(short)) if short.is_no_descriptors() => {
                            self.sync_later(writer);
                        }
                        // Poisoned, and whoever waits is told.
                        Err(_) => {}
                    }
                }
            }
            Request::Reindex { segment, images } => {
                if let Err(error) = self.reindex_now(writer, &segment, &images) {
                    tracing::warn!(segment = %segment.name, dir = %self.dir.display(), %error,
                        "index files cannot be written anew; reads go on walking through the log");
                }
            }
            Request::Compactable { done } => {
                let outcome = self.compactable_now(writer);
                self.answer(done, outcome);
            }
            Request::Exchange { exchange, done } => {
                let outcome = self.exchange_now(writer, &exchange);
                self.answer(done, outcome);
            }
            Request::Close { done } => {
                if let Err(error) = self.release(writer) {
                    tracing::warn!(dir = %self.dir.display(), %error,
                        "closed without a final manifest: the next open will scan the tail");
                }
                self.shut(writer);
                done.complete(Ok(()));
            }
            Request::Abandon { done } => {
                self.shut(writer);
                done.complete(Ok(()));
            }
        }
    }

    fn answer<T>(&self, done: Completion<Result<T, EngineError>>, outcome: Result<T, EngineError>) {
        if let Err(error) = &outcome {
            tracing::warn!(dir = %self.dir.display(), %error, "housekeeping failed");
        }
        done.complete(outcome);
    }

    /// After a commit: seals what was rolled, and writes a checkpoint when enough was written since the last one.
    /// Failures cost a longer scan after a crash, nothing else, so they are left to the next round.
    pub(crate) fn after_commit(&self, writer: &mut Writer) {
        let outcome = if !writer.unsealed.is_empty() {
            self.seal(writer, false)
        } else if writer.unchecked_bytes >= self.shared.settings.checkpoint_distance_bytes {
            // With `flush.messages`, what is committed need not be synced.
            if self.sync_or_poison(writer).is_err() {
                return;
            }
            let _call = self.watch_call();
            writer.write_checkpoint()
        } else {
            return;
        };
        let was_behind = std::mem::replace(&mut writer.is_behind, outcome.is_err());
        if let Err(error) = outcome {
            writer.unchecked_bytes = 0;
            // Once: it is tried again after each commit.
            if !was_behind {
                tracing::warn!(dir = %self.dir.display(), %error, "cannot write a checkpoint; trying again later");
            }
        }
    }

    /// Writes the index files of the rolled segments and a manifest that pins them.
    pub(crate) fn seal(&self, writer: &mut Writer, released: bool) -> Result<(), EngineError> {
        let _call = self.watch_call();
        writer.write_unsealed_indexes()?;
        let segments = Arc::clone(&*self.segments.read());
        self.write_manifest_of(writer, &segments, released)?;
        writer.unchecked_bytes = 0;
        for segment in writer.unsealed.drain(..) {
            self.shared.open_segments.opened(&segment);
        }
        if matches!(self.leadership.standing(), Standing::Leading) {
            writer.remove_replaced();
        }
        Ok(())
    }

    /// Writes a manifest that pins the closed ones of `segments`, with the bounds as they are now.
    pub(crate) fn write_manifest_of(
        &self,
        writer: &mut Writer,
        segments: &[Arc<Segment>],
        released: bool,
    ) -> Result<(), EngineError> {
        let _call = self.watch_call();
        let (log_start, high_watermark) = {
            let core = self.core.lock();
            (core.status.log_start, core.status.high_watermark)
        };
        writer.write_manifest(&pinned(segments, writer), log_start, high_watermark, released)
    }

    fn delete_records_before(
        &self,
        writer: &mut Writer,
        before: Option<Offset>,
    ) -> Result<Offset, EngineError> {
        let (log_start, high_watermark) = {
            let core = self.core.lock();
            (core.status.log_start, core.status.high_watermark)
        };
        let offset = before.unwrap_or(high_watermark);
        if offset > high_watermark || offset < Offset::ZERO {
            return Err(EngineError::OffsetOutOfRange { offset, log_start, high_watermark });
        }
        if offset <= log_start {
            self.still_leading()?;
            return Ok(log_start);
        }
        self.raise_log_start(writer, offset)?;
        Ok(offset)
    }

    fn maintain_now(&self, writer: &mut Writer) -> Result<Maintained, EngineError> {
        let now = self.shared.clock.now();
        let config = self.config();
        self.tail.lock().clear_if_idle(now, self.shared.settings.tail_idle_ms);
        let expiration_ms = self.shared.settings.producer_id_expiration_ms;
        self.core.lock().producers.expire(now, expiration_ms);
        writer.producers.expire(now, expiration_ms);

        if writer.active.as_ref().is_some_and(|active| active.is_expired(now, &config)) {
            self.sync_or_poison(writer)?;
            writer.retire_active();
        }
        let segments = Arc::clone(&*self.segments.read());
        for segment in segments.iter() {
            // One without timestamps is as old as the first look at it, whether or not retention comes as far as to it.
            segment.retention_timestamp(now);
        }
        let mut maintained = Maintained::default();
        match self.retention_start(&segments, &config, now) {
            Some(log_start) => {
                let (count, bytes) = self.raise_log_start(writer, log_start)?;
                maintained.segments_deleted = count;
                maintained.bytes_deleted = bytes;
            }
            None if !writer.unsealed.is_empty() => self.seal(writer, false)?,
            None => {}
        }
        self.remove_garbage(writer)?;
        maintained.log_start = self.core.lock().status.log_start;
        Ok(maintained)
    }

    /// Where the log is to begin according to retention, if that is further on than now. The rules are Kafka's:
    /// oldest first, whole segments below the high watermark, the active one too.
    fn retention_start(&self, segments: &SegmentList, config: &LogConfig, now: Timestamp) -> Option<Offset> {
        if !config.delete {
            return None;
        }
        let high_watermark = self.core.lock().status.high_watermark;
        let mut excess = match u64::try_from(config.retention_bytes) {
            Ok(keep) => segments.iter().map(|segment| segment.bytes()).sum::<u64>().checked_sub(keep),
            Err(_) => None,
        };
        let mut start = None;
        let begins = segments.iter().skip(1).map(|next| next.base_offset()).chain([high_watermark]);
        for (segment, next) in segments.iter().zip(begins) {
            let state = segment.state();
            if state.end_offset > high_watermark || state.bytes == 0 {
                break;
            }
            let expired = config.retention_ms >= 0
                && now.0.saturating_sub(segment.retention_timestamp(now).0) > config.retention_ms;
            excess = excess.and_then(|excess| excess.checked_sub(state.bytes));
            if !expired && excess.is_none() {
                break;
            }
            // Behind a rewritten segment offsets may be missing.
            start = Some(next);
        }
        start
    }

    /// Moves the log start to `log_start`: manifest, fence, unlink. The number and bytes of segments deleted.
    fn raise_log_start(&self, writer: &mut Writer, log_start: Offset) -> Result<(usize, u64), EngineError> {
        let whole_log = writer
            .active
            .as_ref()
            .is_some_and(|active| active.position() > 0 && active.segment.end_offset() <= log_start);
        // The log must never be found to end before it starts.
        self.sync_or_poison(writer)?;
        if whole_log {
            writer.retire_active();
        }
        let segments = Arc::clone(&*self.segments.read());
        let is_active = |segment: &Arc<Segment>| {
            writer.active.as_ref().is_some_and(|active| Arc::ptr_eq(&active.segment, segment))
        };
        // A segment stays until the next one begins at or below the log start: a gap between them needs a segment that
        // accounts for it.
        let begins = segments.iter().skip(1).map(|next| next.base_offset()).chain([writer.end]);
        let (mut kept, mut gone) = (Vec::new(), Vec::new());
        for (segment, next) in segments.iter().zip(begins) {
            let stays = is_active(segment) || next > log_start;
            if stays { &mut kept } else { &mut gone }.push(Arc::clone(segment));
        }
        let high_watermark = self.core.lock().status.high_watermark;
        let kept = Arc::new(kept);
        if planted(Bug::UnlinkBeforeManifest) {
            writer.garbage.extend(gone.iter().map(|segment| segment.path(SegmentFile::Log)));
            self.remove_garbage(writer)?;
        }
        {
            let _call = self.watch_call();
            let pinned = pinned(&kept, writer);
            // A full volume must not keep anybody from deleting: the manifest may use the reserve.
            self.shared.reserve.with(|| writer.write_manifest(&pinned, log_start, high_watermark, false))?;
        }
        writer.unsealed.retain(|segment| segment.end_offset() > log_start);
        self.still_leading()?;
        self.core.lock().raise_log_start(log_start);
        *self.segments.write() = kept;
        self.watchers.notify();
        let bytes = gone.iter().map(|segment| segment.bytes()).sum();
        for segment in &gone {
            segment.close();
            writer.garbage.extend(segment.paths());
        }
        writer.remove_replaced();
        self.remove_garbage(writer)?;
        Ok((gone.len(), bytes))
    }

    /// Settles what a failed write has left behind the active segment's end: says that it does not count, looks at
    /// the fence, and only then cuts it off. Goes on where it stopped if it fails half way and is called again.
    pub(crate) fn disown_tail(&self, writer: &mut Writer) -> Result<(), EngineError> {
        // The bounds of what is written already, which nobody else moves meanwhile but upwards.
        let write_manifest = |writer: &mut Writer, released: bool| {
            let segments = Arc::clone(&*self.segments.read());
            self.write_manifest_of(writer, &segments, released)
        };
        self.sync_or_poison(writer)?;
        if let Some(active) = writer.active.take_if(|active| active.position() > 0) {
            let (open, position) = (Arc::clone(&active.open), active.position());
            writer.active = Some(active);
            writer.retire_active();
            write_manifest(writer, false)?;
            self.still_leading()?;
            if let Err(error) = open.file.set_length(position) {
                tracing::debug!(dir = %self.dir.display(), %error, "dead bytes stay in a segment");
            }
        } else if let Some(path) = writer.active.as_ref().map(|active| active.segment.path(SegmentFile::Log))
        {
            // The next segment will have its name. Nothing behind the manifest counts until that is said anew.
            write_manifest(writer, true)?;
            self.still_leading()?;
            match writer.substrate.remove_file(&path) {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
            writer.active = None;
            let mut segments = self.segments.write();
            *segments = Arc::new(segments.iter().filter(|segment| segment.bytes() > 0).cloned().collect());
            drop(segments);
            write_manifest(writer, false)?;
        } else {
            write_manifest(writer, false)?;
        }
        writer.tail_uncertain = false;
        Ok(())
    }

    /// Unlinks files that the durable manifest does not need. Failures are left to the next round.
    pub(crate) fn remove_garbage(&self, writer: &mut Writer) -> Result<(), EngineError> {
        if writer.garbage.is_empty() {
            return Ok(());
        }
        self.still_leading()?;
        self.unlink_garbage(writer);
        Ok(())
    }

    /// The same, once the fence was read.
    pub(crate) fn unlink_garbage(&self, writer: &mut Writer) {
        let _call = self.watch_call();
        let remove = |path: &PathBuf| match writer.substrate.remove_file(path) {
            Err(error) if !error.is_not_found() => {
                tracing::warn!(%error, "cannot remove a file; trying again later");
                true
            }
            _ => false,
        };
        let mut garbage = std::mem::take(&mut writer.garbage);
        garbage.retain(remove);
        writer.garbage = garbage;
    }

    /// The fence, for everything but commits. A leader that was deposed, or can never be told again that it leads, ends here.
    pub(crate) fn still_leading(&self) -> Result<(), EngineError> {
        if planted(Bug::UnlinkWithoutFence) {
            return Ok(());
        }
        match self.leadership.standing() {
            Standing::Leading => Ok(()),
            Standing::Deposed { by } => {
                self.end(State::Deposed { by });
                Err(EngineError::Deposed { by })
            }
            Standing::Unknown(error) => {
                if error.is_final() {
                    self.poison(&error);
                }
                Err(EngineError::Poisoned { reason: format!("the fence cannot be read: {error}") })
            }
        }
    }

    /// Asks the fence whether another has taken over, which ends the partition then. Blocks.
    pub(crate) fn is_deposed(&self) -> bool {
        let Standing::Deposed { by } = self.leadership.standing() else { return false };
        self.end(State::Deposed { by });
        true
    }

    /// Makes everything written durable. The partition has ended if it fails, unless
    /// [`kaas_substrate::Error::is_no_descriptors`]: then it was not tried.
    pub(crate) fn sync_or_poison(&self, writer: &mut Writer) -> Result<(), EngineError> {
        let mut outcome = self.sync(writer);
        if planted(Bug::RetryFailedSync) && outcome.is_err() {
            outcome = self.sync(writer);
        }
        outcome.map_err(|error| {
            // Without a descriptor nothing was synced, and nothing has failed to be.
            if !error.is_no_descriptors() {
                self.poison(&error);
            }
            EngineError::from(error)
        })
    }

    /// Writes what lets a successor open without a scan.
    fn release(&self, writer: &mut Writer) -> Result<(), EngineError> {
        self.sync_or_poison(writer)?;
        let committed = {
            let core = self.core.lock();
            core.status.state == State::Leading && core.status.high_watermark == writer.end
        };
        if !committed {
            // Another thread may be at it; it need not be waited for.
            self.still_leading()?;
            self.committed(writer.end);
        }
        if let Some(active) = writer.active.take_if(|active| active.position() == 0) {
            // Empty, but for what a failed write may have left: nothing refers to it.
            writer.garbage.extend(active.segment.paths());
            let mut segments = self.segments.write();
            *segments = Arc::new(segments.iter().filter(|segment| segment.bytes() > 0).cloned().collect());
        }
        writer.retire_active();
        if writer.manifest.released && writer.unsealed.is_empty() {
            return Ok(());
        }
        self.seal(writer, true)?;
        // What cannot be removed now is garbage to the next leader too.
        let _ = self.remove_garbage(writer);
        Ok(())
    }

    /// Closes every file.
    fn shut(&self, writer: &mut Writer) {
        self.end(State::Closed);
        writer.active = None;
        writer.unsealed.clear();
        for segment in self.segments.read().iter() {
            segment.close();
        }
    }
}

/// The segments that a manifest pins: all but the one that is appended to.
pub(crate) fn pinned(segments: &[Arc<Segment>], writer: &Writer) -> Vec<Arc<Segment>> {
    segments
        .iter()
        .filter(|segment| writer.active.as_ref().is_none_or(|active| !Arc::ptr_eq(&active.segment, segment)))
        .cloned()
        .collect()
}
