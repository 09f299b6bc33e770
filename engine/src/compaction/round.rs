//! A round of compaction: build the map, copy group by group, exchange. Blocks; on a thread of the caller's.

use std::collections::HashMap;
use std::sync::Arc;

use super::filter::{Filter, LastOf, last_batches};
use super::offset_map::{Full, OffsetMap};
use super::output::{Output, Volume, discard};
use super::plan::{Compactable, Dirtiness, groups};
use super::read::Batches;
use super::swap::{Exchange, Exchanged};
use super::transactions::Transactions;
use crate::batch::{BatchHeader, DecodeLimits, decode_records, read_marker};
use crate::completion::Ticket;
use crate::error::EngineError;
use crate::index::AbortedTransaction;
use crate::log::names::SegmentName;
use crate::log::partition::{Partition, Request};
use crate::log::scan::header_at;
use crate::log::segment::Segment;
use crate::manifest::LeaderEpoch;
use crate::planted::{Bug, planted};
use crate::settings::LogConfig;
use crate::types::{Offset, ProducerId, Timestamp};

/// What a round did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Compacted {
    /// Segments that were replaced.
    pub segments_before: usize,
    /// Segments in their place.
    pub segments_after: usize,
    /// Bytes of the logs of the segments that were replaced.
    pub bytes_before: u64,
    /// Bytes of the logs in their place.
    pub bytes_after: u64,
    /// Keys that the map held.
    pub keys: usize,
    /// Bytes of the map.
    pub map_bytes: usize,
    /// Everything below is compacted now.
    pub first_dirty: Offset,
}

/// What all of a round goes by.
struct Round<'a> {
    partition: &'a Arc<Partition>,
    config: &'a LogConfig,
    now: Timestamp,
    volume: Volume<'a>,
    aborted: Vec<AbortedTransaction>,
}

impl Partition {
    /// How much there is to compact. Blocks: for the worker, and for small reads where `max.compaction.lag.ms` is set.
    ///
    /// `None` where nothing is to be done on the broker's own account: the topic is not compacted, a round is running,
    /// or the last one failed a short while ago.
    ///
    /// # Errors
    ///
    /// If the partition has ended, or the volume failed.
    pub fn dirtiness(self: &Arc<Self>) -> Result<Option<Dirtiness>, EngineError> {
        let config = self.config();
        if !config.compact || !self.cleaner.is_idle(self.shared.elapsed_ms()) {
            return Ok(None);
        }
        let compactable = self.told(self.compactable())?;
        let mut first_timestamps = Vec::new();
        if config.max_compaction_lag_ms < i64::MAX {
            for segment in compactable.dirty() {
                first_timestamps.extend(self.first_timestamp(segment)?);
            }
        }
        let now = self.shared.clock.now();
        Ok(Some(compactable.dirtiness(&config, now, first_timestamps.into_iter())))
    }

    /// One round of compaction, however dirty the log is, with everything that may be compacted now: closed segments
    /// below the last stable offset whose records are older than `min.compaction.lag.ms`. Blocks.
    ///
    /// Does nothing if the topic is not compacted, a round is running already, the volume is full, or there is nothing
    /// to compact. On return the outcome is durable. When records are deleted, the topic ceases to be compacted or the
    /// partition is closed meanwhile, the round ends early, with what it has come to.
    ///
    /// # Errors
    ///
    /// [`EngineError::Damaged`] at a batch that cannot be read, and whatever the volume fails with: the log stays as it
    /// is but for the segments that were exchanged already, and [`Partition::dirtiness`] has nothing to say for a while.
    pub fn compact_now(self: &Arc<Self>) -> Result<Compacted, EngineError> {
        let config = self.config();
        if !config.compact || self.shared.reserve.is_in_use() {
            return Ok(Compacted::default());
        }
        let Some(_running) = self.cleaner.begin() else { return Ok(Compacted::default()) };
        let outcome = self.round(&config);
        let retry_ms = self.shared.settings.cleaner.retry_ms;
        let not_before = match &outcome {
            Ok(_) | Err(EngineError::Closed | EngineError::Deposed { .. }) => None,
            Err(error) => {
                tracing::warn!(dir = %self.dir.display(), %error, retry_ms, hint = hint(error),
                    "compaction failed: the partition is left uncompacted for now");
                Some(self.shared.elapsed_ms().saturating_add(retry_ms))
            }
        };
        self.cleaner.ended(not_before);
        outcome
    }

    /// Whether a round is under way.
    pub fn is_compacting(&self) -> bool {
        self.cleaner.is_running()
    }

    fn compactable(self: &Arc<Self>) -> Ticket<Result<Compactable, EngineError>> {
        self.request(|done| Request::Compactable { done })
    }

    /// Waits for what the worker has to say.
    fn told<T: Send + 'static>(&self, ticket: Ticket<Result<T, EngineError>>) -> Result<T, EngineError> {
        self.shared.time.wait(ticket).unwrap_or(Err(EngineError::Closed))
    }

    /// The largest timestamp of a segment's first batch.
    fn first_timestamp(self: &Arc<Self>, segment: &Arc<Segment>) -> Result<Option<Timestamp>, EngineError> {
        let open = self.open_segment(segment)?;
        Ok(header_at(&*open.file, 0)?.ok().map(|header| header.max_timestamp))
    }

    fn round(self: &Arc<Self>, config: &LogConfig) -> Result<Compacted, EngineError> {
        let compactable = self.told(self.compactable())?;
        let now = self.shared.clock.now();
        let goes_on = || {
            let core = self.core.lock();
            core.is_leading() && !core.closing && core.config.compact
        };
        let volume = Volume {
            substrate: &*self.shared.substrate,
            dir: &self.dir,
            buffer_bytes: self.shared.settings.cleaner.buffer_bytes(),
            throttle: &self.shared.cleaner_throttle,
            goes_on: &goes_on,
        };
        let mut round = Round { partition: self, config, now, volume, aborted: Vec::new() };
        let outcome = round.run(&compactable);
        match outcome {
            // Retention or DeleteRecords took a segment away: what is left is the next round's.
            Err(EngineError::Storage(error))
                if error.is_not_found() && self.status().log_start > compactable.log_start =>
            {
                Ok(Compacted::default())
            }
            // So did the topic's configuration: what it is to keep from now on, it keeps.
            Err(EngineError::Closed) if !self.config().compact => Ok(Compacted::default()),
            outcome => outcome,
        }
    }

    /// Every aborted transaction that may have batches below `end`.
    fn aborted_below(self: &Arc<Self>, end: Offset) -> Result<Vec<AbortedTransaction>, EngineError> {
        let mut aborted = Vec::new();
        let segments = Arc::clone(&*self.segments.read());
        // Markers of transactions that began below may lie in any later segment.
        for segment in segments.iter().filter(|segment| segment.may_have_aborted()) {
            let open = self.open_segment(segment)?;
            open.indexes.lock().collect_aborted(Offset::ZERO, Offset(i64::MAX), &mut aborted);
        }
        aborted.retain(|transaction| transaction.first_offset < end);
        Ok(aborted)
    }
}

impl Round<'_> {
    fn run(&mut self, compactable: &Compactable) -> Result<Compacted, EngineError> {
        let cleanable = compactable.cleanable(self.config, self.now);
        let first_dirty = compactable.first_dirty();
        let Some(end) = cleanable.last().map(|last| last.end_offset()).filter(|end| *end > first_dirty)
        else {
            return Ok(Compacted { first_dirty, ..Compacted::default() });
        };
        self.aborted = self.partition.aborted_below(end)?;
        let map = self.build_map(cleanable, first_dirty)?;
        let Some(latest) = map.latest().filter(|latest| *latest >= first_dirty) else {
            let max_bytes = self.partition.shared.settings.cleaner.map_bytes();
            return Err(EngineError::DedupeBufferTooSmall { offset: first_dirty, max_bytes });
        };
        let compacted_up_to = latest.plus(1);
        let count = cleanable.partition_point(|segment| segment.base_offset() < compacted_up_to);
        let sources = cleanable.get(..count).unwrap_or_default();
        let producers = {
            let core = self.partition.core.lock();
            let high_watermark = core.status.high_watermark;
            // With `flush.messages` what is committed need not be synced, and may be lost with the host; closed segments are.
            let is_synced = self.config.flush_messages <= 1;
            last_batches(&core.producers, if is_synced { high_watermark } else { high_watermark.min(end) })
        };
        self.copy(sources, &map, &producers, compacted_up_to)
    }

    /// Notes the newest offset of each key from `first_dirty` on, as far as the memory goes.
    fn build_map(&self, segments: &[Arc<Segment>], first_dirty: Offset) -> Result<OffsetMap, EngineError> {
        let settings = &self.partition.shared.settings.cleaner;
        let mut map = OffsetMap::new(settings.map_bytes(), settings.load_factor);
        // One that ended before is over for its producer, though the walk does not meet its marker.
        let ends_later = |aborted: &&AbortedTransaction| aborted.last_offset >= first_dirty;
        let mut transactions = Transactions::new(self.aborted.iter().filter(ends_later).copied().collect());
        let limits = DecodeLimits::default();
        for segment in segments.iter().filter(|segment| segment.end_offset() > first_dirty) {
            let open = self.partition.open_segment(segment)?;
            let hint = open.indexes.lock().lookup(first_dirty);
            let position = self.partition.start_of_walk(segment, &open, hint)?;
            let mut batches = self.batches(segment, position)?;
            while let Some((header, batch)) = batches.next()? {
                if header.is_control() {
                    let marker = read_marker(&batch).map_err(|error| batches.damaged(&error))?;
                    transactions.control(&header, marker);
                } else if !transactions.data(&header) || planted(Bug::AbortedSupersede) {
                    let records = decode_records(&batch, &limits).map_err(|error| batches.damaged(&error))?;
                    for record in records {
                        let record = record.map_err(|error| batches.damaged(&error))?;
                        let Some(key) = record.key.filter(|_| record.offset >= first_dirty) else { continue };
                        if map.put(&key, record.offset) == Err(Full) {
                            return Ok(map);
                        }
                    }
                }
                if header.last_offset() >= first_dirty {
                    map.set_latest(header.last_offset());
                }
            }
            map.set_latest(segment.end_offset().plus(-1));
        }
        Ok(map)
    }

    fn batches<'b>(&'b self, segment: &'b Arc<Segment>, position: u64) -> Result<Batches<'b>, EngineError> {
        let file = Arc::clone(&self.partition.open_segment(segment)?.file);
        let Volume { buffer_bytes, throttle, goes_on, .. } = self.volume;
        Ok(Batches::new(segment, file, position, buffer_bytes, throttle, goes_on))
    }

    /// Copies the segments, group by group, and exchanges each group for its copy.
    fn copy(
        &self,
        sources: &[Arc<Segment>],
        map: &OffsetMap,
        producers: &HashMap<ProducerId, LastOf>,
        compacted_up_to: Offset,
    ) -> Result<Compacted, EngineError> {
        let filter = Filter {
            map,
            producers,
            now: self.now,
            delete_retention_ms: self.config.delete_retention_ms,
            limits: DecodeLimits::default(),
        };
        let mut transactions = Transactions::new(self.aborted.clone());
        let mut compacted = Compacted { keys: map.len(), map_bytes: map.bytes(), ..Compacted::default() };
        let groups = groups(sources, self.config);
        for (number, group) in groups.iter().enumerate() {
            let group = sources.get(group.clone()).unwrap_or_default();
            let output = self.copy_group(group, &filter, &mut transactions)?;
            let first_dirty = (number + 1 == groups.len()).then_some(compacted_up_to);
            let bytes = output.bytes();
            let exchange = Exchange { sources: group.to_vec(), output, first_dirty };
            match self.partition.told(self.partition.exchange(exchange))? {
                Exchanged::Done => {}
                Exchanged::NotWanted => return Ok(compacted),
            }
            compacted.segments_before += group.len();
            compacted.segments_after += 1;
            compacted.bytes_before += group.iter().map(|segment| segment.bytes()).sum::<u64>();
            compacted.bytes_after += bytes;
        }
        compacted.first_dirty = compacted_up_to;
        let Compacted { segments_before, segments_after, bytes_before, bytes_after, keys, .. } = compacted;
        tracing::info!(dir = %self.volume.dir.display(), segments_before, segments_after, bytes_before,
            bytes_after, keys, %compacted_up_to, "compacted");
        Ok(compacted)
    }

    /// Copies the segments of a group into one. It is durable on return, and nothing of it is left on an error.
    fn copy_group(
        &self,
        group: &[Arc<Segment>],
        filter: &Filter<'_>,
        transactions: &mut Transactions,
    ) -> Result<Arc<Segment>, EngineError> {
        let base_offset = group.first().map_or(Offset::ZERO, |first| first.base_offset());
        let generation = self.partition.cleaner.next_generation().ok_or(EngineError::Closed)?;
        let name = SegmentName { epoch: self.partition.epoch(), base_offset, generation };
        let written = Output::create(self.volume, name, self.config.index_interval_bytes)
            .and_then(|output| self.fill(output, group, filter, transactions));
        match &written {
            // Nobody else has the name; but what is not ours is not touched.
            Err(EngineError::Storage(error)) if error.is_exists() => {}
            Err(_) => discard(&self.volume, name),
            Ok(_) => {}
        }
        written
    }

    fn fill(
        &self,
        mut output: Output<'_>,
        group: &[Arc<Segment>],
        filter: &Filter<'_>,
        transactions: &mut Transactions,
    ) -> Result<Arc<Segment>, EngineError> {
        for (number, segment) in group.iter().enumerate() {
            let is_last_segment = number + 1 == group.len();
            let mut batches = self.batches(segment, 0)?;
            while let Some((header, batch)) = batches.next()? {
                let is_last = is_last_segment && batches.is_at_end();
                let kept = filter.apply(transactions, &header, batch, is_last);
                let kept = kept.map_err(|error| batches.damaged(&error))?;
                let Some(batch) = kept.batch else { continue };
                let copied = BatchHeader::parse(&batch).map_err(|error| batches.damaged(&error))?;
                self.warn_if_grown(&header, &copied);
                output.add(&copied, batch)?;
                if let Some(aborted) = &kept.aborted {
                    output.add_aborted(aborted);
                }
            }
        }
        output.finish(leader_epochs(group))
    }

    /// Fewer records may take more bytes with another compressor than the producer's. Consumers get the batch all the
    /// same, as with Kafka.
    fn warn_if_grown(&self, before: &BatchHeader, after: &BatchHeader) {
        let max_message_bytes = self.config.max_message_bytes;
        if after.batch_bytes > before.batch_bytes.max(max_message_bytes) {
            tracing::warn!(dir = %self.volume.dir.display(), offset = %after.base_offset,
                bytes = after.batch_bytes, max_message_bytes, "a batch has grown beyond max.message.bytes");
        }
    }
}

/// What an operator can do about a round that failed, where the error does not say so itself.
fn hint(error: &EngineError) -> Option<&'static str> {
    match error {
        EngineError::Storage(_) => Some("look at the volume: is it full, can it be written?"),
        _ => None,
    }
}

/// The leader epochs of the batches of a group, and where each begins.
fn leader_epochs(group: &[Arc<Segment>]) -> Vec<LeaderEpoch> {
    let mut epochs: Vec<LeaderEpoch> = Vec::new();
    for (epoch, start) in group.iter().flat_map(|segment| segment.leader_epochs()) {
        if epochs.last().is_none_or(|last| last.epoch < epoch.get()) {
            epochs.push(LeaderEpoch { epoch: epoch.get(), start_offset: start.0 });
        }
    }
    epochs
}
