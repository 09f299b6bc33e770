//! Reading a partition of Kafka, batch by batch: what is checked before anything is written, and read again when it is copied.

use bytes::Bytes;
use kaas_substrate::{OpenMode, read_small};

use super::kafka_files::{Fields, SnapshotProducer, producer_snapshot};
use super::missing::{check_bounds, missing};
use super::source::{SourcePartition, shown};
use super::{Problem, Progress};
use crate::batch::{BatchHeader, EndMarker, MAGIC, read_marker};
use crate::leadership::is_out_of_reach;
use crate::log::indexes::{IndexImages, LogIndexes};
use crate::log::scan::{BatchScanner, Check, Scanned};
use crate::manifest::BatchCrcs;
use crate::producer_state::{BatchMetadata, ProducerEntry, ProducerStates, Ring};
use crate::types::{Epoch, Offset, ProducerId, Timestamp};
use crate::verify::counted;

/// Largest producer snapshot that is read.
const SNAPSHOT_BYTES_MAX: usize = 1 << 30;

/// Offset, length, checksum and magic of a message of the formats 0 and 1.
const OLD_HEADER_BYTES: usize = 17;

/// The smallest length that such a message can state.
const OLD_LENGTH_MIN: i32 = 14;

/// Most problems of one partition that are told.
const PROBLEMS_MAX: usize = 20;

const EPOCH_HINT: &str = "copy the topic to a new one with Kafka's tools, and import that";

const GAP_HINT: &str = "restore the segments, or take another replica; if it was compacted, which leaves gaps: \
                        --server-properties FILE tells of a log.cleanup.policy, --gaps TOPIC takes it as it is";

/// Where what was read goes.
pub(super) trait Sink {
    /// The segment at `base` begins.
    fn begin(&mut self, _base: Offset) -> Result<(), kaas_substrate::Error> {
        Ok(())
    }

    /// A batch whose CRC is right, as it stands in the log.
    fn batch(&mut self, _bytes: &[u8]) -> Result<(), kaas_substrate::Error> {
        Ok(())
    }

    /// The segment is over.
    fn end(&mut self, _segment: &ReadSegment, _indexes: &IndexImages) -> Result<(), kaas_substrate::Error> {
        Ok(())
    }
}

/// Only looks.
pub(super) struct Nowhere;

impl Sink for Nowhere {}

/// A segment's part that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReadSegment {
    pub(super) base: Offset,
    pub(super) end: Offset,
    pub(super) bytes: u64,
    pub(super) batches: u64,
    pub(super) records: u64,
    pub(super) max_timestamp: Timestamp,
    pub(super) offset_of_max_timestamp: Offset,
    pub(super) batch_crcs: BatchCrcs,
    /// Leader epochs of its batches and where each begins, ascending, the first at `base`.
    pub(super) leader_epochs: Vec<(u32, i64)>,
}

/// A tail that a crash of Kafka left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) at: Offset,
    pub(super) bytes: u64,
    pub(super) reason: String,
}

/// What a partition holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ReadPartition {
    pub(super) segments: Vec<ReadSegment>,
    pub(super) log_start: Offset,
    pub(super) end: Offset,
    pub(super) highest_epoch: u32,
    pub(super) producers: ProducerStates,
    /// Up to here it is compacted, if Kafka's cleaner has been at it.
    pub(super) first_dirty: Option<Offset>,
    /// A batch has fewer records than offsets: only compaction takes some out.
    pub(super) lacks_records: bool,
    /// Of all batches, also of those that leave no state.
    pub(super) highest_producer: Option<ProducerId>,
    pub(super) cut: Option<Cut>,
}

/// A read under way.
struct Reader<'a> {
    partition: &'a SourcePartition,
    is_compacted: bool,
    interval_bytes: u64,
    sink: &'a mut dyn Sink,
    progress: &'a Progress,
    problems: &'a mut Vec<Problem>,
    problems_before: usize,
    read: ReadPartition,
    /// The offset behind the last batch.
    expected: Option<Offset>,
    epoch: u32,
    /// Of the last batch that was taken.
    epoch_before: Option<u32>,
}

/// Reads all of a partition that counts. What keeps it from being imported is added to `problems`.
pub(super) fn read_partition(
    partition: &SourcePartition,
    is_compacted: bool,
    interval_bytes: u64,
    sink: &mut dyn Sink,
    progress: &Progress,
    problems: &mut Vec<Problem>,
) -> Result<ReadPartition, kaas_substrate::Error> {
    let problems_before = problems.len();
    let mut reader = Reader {
        partition,
        is_compacted,
        interval_bytes,
        sink,
        progress,
        problems,
        problems_before,
        read: ReadPartition::default(),
        expected: None,
        epoch: 0,
        epoch_before: None,
    };
    reader.run()?;
    Ok(reader.read)
}

impl Reader<'_> {
    fn run(&mut self) -> Result<(), kaas_substrate::Error> {
        let partition = self.partition;
        let first = partition.logs.first().copied().unwrap_or(Offset::ZERO);
        self.read.log_start = partition.checkpointed_start.unwrap_or(Offset::ZERO).max(first);
        for (index, base) in partition.logs.iter().enumerate() {
            let next = partition.logs.get(index + 1).copied();
            if next.is_some_and(|next| next <= self.read.log_start) {
                // Kafka had not come to deleting it, and serves nothing of it.
                continue;
            }
            if let Some(cut) = &mut self.read.cut {
                cut.bytes += partition.volume.open(&log_path(partition, *base), OpenMode::Read)?.length()?;
                continue;
            }
            self.segment(*base, next)?;
            if self.problems.len() - self.problems_before >= PROBLEMS_MAX {
                return Ok(());
            }
        }
        let last = partition.logs.last().copied().filter(|_| self.read.cut.is_none());
        self.read.end = self.expected.max(last).unwrap_or(Offset::ZERO);
        let known = partition.leader_epochs.last().map_or(0, |last| last.0);
        self.read.highest_epoch = known.max(self.epoch);
        self.check_epoch();
        if self.read.log_start > self.read.end {
            // Kafka lets go of such a log, and begins a new one at the log start.
            self.read.end = self.read.log_start;
            self.read.segments.clear();
            self.read.producers = ProducerStates::default();
        } else {
            self.inherit_producers()?;
        }
        if self.read.segments.is_empty() {
            self.read.log_start = self.read.end;
        }
        let (start, end) = (self.read.log_start, self.read.end);
        // As Kafka takes it: what the checkpoint says of offsets that are not there says nothing. And after a loss of power the
        // segments that were cleaned may have their former contents again, though the checkpoint was on the disk.
        self.read.first_dirty = partition
            .cleaned_up_to
            .map(|offset| if offset > end || !partition.is_clean { start } else { offset.max(start) });
        if self.problems.len() == self.problems_before {
            // What is damaged would only be told once more.
            check_bounds(partition, &self.read, self.problems);
        }
        self.check_transactions();
        Ok(())
    }

    /// Whether kaas' own epochs, which begin at 1, can go on above Kafka's.
    fn check_epoch(&mut self) {
        let highest = self.read.highest_epoch;
        if Epoch::new(highest).is_none_or(|highest| is_out_of_reach(highest, Epoch::NONE)) {
            let path = shown(&*self.partition.volume, &self.partition.dir);
            let problem = format!("it has leader epoch {highest}, and those of kaas cannot go on above that");
            self.problems.push(Problem::new(path, problem, EPOCH_HINT));
        }
    }

    fn problem(&mut self, base: Offset, problem: String, hint: &'static str) {
        let path = shown(&*self.partition.volume, &log_path(self.partition, base));
        self.problems.push(Problem::new(path, problem, hint));
    }

    fn segment(&mut self, base: Offset, next: Option<Offset>) -> Result<(), kaas_substrate::Error> {
        let partition = self.partition;
        let file = partition.volume.open(&log_path(partition, base), OpenMode::Read)?;
        let length = file.length()?;
        let expected = *self.expected.get_or_insert(base);
        if base > expected && !self.is_compacted {
            self.problem(base, format!("{} before it", missing(expected, base)), GAP_HINT);
            self.expected = Some(base);
        }
        let mut segment = ReadSegment {
            base,
            end: base,
            bytes: 0,
            batches: 0,
            records: 0,
            max_timestamp: Timestamp::NONE,
            offset_of_max_timestamp: base,
            batch_crcs: BatchCrcs::default(),
            leader_epochs: Vec::new(),
        };
        let mut indexes = LogIndexes::new(base, self.interval_bytes);
        let mut scanner = BatchScanner::new(&*file, 0, length, Check::Crc);
        loop {
            self.progress.check(|| log_path(partition, base))?;
            let (position, header) = match scanner.next()? {
                Scanned::Batch { position, header } => (position, header),
                Scanned::End => break,
                Scanned::Torn { position, reason } => {
                    let mut start = [0; OLD_HEADER_BYTES];
                    file.read_at(&mut start, position)?;
                    self.torn(&segment, length - position, old_format(start), reason);
                    break;
                }
            };
            if !self.check_batch(base, next, &header) {
                // What follows is looked at on its own.
                self.expected = None;
                break;
            }
            let Some(bytes) = scanner.verified_batch(position, &header)? else {
                self.problem(base, "it changes while it is read".into(), "stop Kafka first");
                break;
            };
            let marker = marker(&header, bytes);
            if segment.batches == 0 {
                self.sink.begin(base)?;
            }
            self.sink.batch(bytes)?;
            self.take(&mut segment, &mut indexes, &header, marker, position);
            self.progress.add_bytes(header.batch_bytes as u64);
        }
        if segment.batches > 0 {
            indexes.finish();
            self.sink.end(&segment, &indexes.images())?;
            self.read.segments.push(segment);
        }
        Ok(())
    }

    fn take(
        &mut self,
        segment: &mut ReadSegment,
        indexes: &mut LogIndexes,
        header: &BatchHeader,
        marker: Option<EndMarker>,
        position: u64,
    ) {
        indexes.append(header, position);
        self.read.highest_producer = self.read.highest_producer.max(header.producer_id);
        if let Some(ended) = self.read.producers.replay(header, marker)
            && ended.aborted
        {
            indexes.append_aborted(&ended);
        }
        if segment.leader_epochs.last().is_none_or(|last| last.0 < self.epoch) {
            self.begin_epoch(segment, header);
        }
        self.epoch_before = Some(self.epoch);
        segment.batch_crcs.add(segment.bytes, header);
        segment.bytes += header.batch_bytes as u64;
        segment.batches += 1;
        segment.records += u64::try_from(header.record_count).unwrap_or(0);
        let offsets = header.next_offset().0 - header.base_offset.0;
        self.read.lacks_records |= i64::from(header.record_count) < offsets;
        segment.end = header.next_offset();
        if header.max_timestamp > segment.max_timestamp {
            segment.max_timestamp = header.max_timestamp;
            segment.offset_of_max_timestamp = header.last_offset();
        }
        self.expected = Some(header.next_offset());
    }

    /// Notes where the epoch of the batch begins, and those before it of which no batch is left: what Kafka's checkpoint
    /// says, since compaction may have removed their first batches; if that lies between the batch before and this one.
    fn begin_epoch(&self, segment: &mut ReadSegment, header: &BatchHeader) {
        let known = self.partition.leader_epochs.iter().filter(|known| known.0 <= self.epoch);
        let base = segment.base;
        let before = self.expected.unwrap_or(base).max(base);
        let epochs = &mut segment.leader_epochs;
        if epochs.is_empty() {
            let begun = known.clone().rfind(|known| known.1 <= base.0).map(|known| known.0);
            epochs.push((begun.max(self.epoch_before).unwrap_or(self.epoch), base.0));
        }
        let within = known.filter(|known| known.1 >= before.0 && known.1 <= header.base_offset.0);
        for (epoch, start) in within.copied().chain([(self.epoch, header.base_offset.0)]) {
            if epochs.last().is_some_and(|last| last.0 >= epoch) {
                continue;
            }
            // One that ended where it began.
            epochs.pop_if(|last| last.1 >= start);
            epochs.push((epoch, start));
        }
    }

    /// Whether a batch may stand where it does.
    fn check_batch(&mut self, base: Offset, next: Option<Offset>, header: &BatchHeader) -> bool {
        let at = header.base_offset;
        let hint = "compare it with another replica; kafka-dump-log shows more";
        let relative = header.last_offset().0.saturating_sub(base.0);
        if at < base || relative > i64::from(i32::MAX) {
            self.problem(base, format!("the batch at offset {at} does not belong into it"), hint);
            return false;
        }
        if let Some(next) = next.filter(|next| header.next_offset() > *next) {
            let last = header.last_offset();
            let problem =
                format!("the batch at offset {at} reaches to {last}, and the next segment begins at {next}");
            self.problem(base, problem, hint);
            return false;
        }
        let expected = self.expected.unwrap_or(base);
        if at < expected {
            self.problem(base, format!("offset {at} comes behind offset {}", expected.0 - 1), hint);
            return false;
        }
        if at > expected && !self.is_compacted {
            self.problem(base, missing(expected, at), GAP_HINT);
            return false;
        }
        match u32::try_from(header.partition_leader_epoch) {
            Ok(epoch) if epoch >= self.epoch => self.epoch = epoch,
            Ok(epoch) => {
                self.problem(
                    base,
                    format!("leader epoch {epoch} at offset {at} comes behind {}", self.epoch),
                    hint,
                );
                return false;
            }
            Err(_) => {
                self.problem(base, format!("the batch at offset {at} has no leader epoch"), hint);
                return false;
            }
        }
        if let Err(error) = header.compression() {
            self.problem(base, format!("the batch at offset {at}: {error}"), hint);
            return false;
        }
        true
    }

    /// Bytes that are no batch: the end, if a crash may have left them; else damage.
    fn torn(&mut self, segment: &ReadSegment, bytes: u64, old_format: Option<i8>, reason: String) {
        let base = segment.base;
        let expected = self.expected.take();
        if let Some(format) = old_format {
            let problem =
                format!("offset {} has message format {format}, older than Kafka 0.11", segment.end);
            self.problem(
                base,
                problem,
                "copy the topic to a new one with Kafka's own tools, and import that",
            );
            return;
        }
        // Kafka looks at the segments from the one with the recovery point on, and cuts at the first bad batch.
        let was_flushed = self.partition.recovery_point.is_some_and(|flushed| segment.end < flushed);
        if self.partition.is_clean || was_flushed {
            let problem = format!("damaged behind offset {}: {reason}", segment.end);
            self.problem(base, problem, "restore it from another replica: start Kafka and let it catch up");
            return;
        }
        self.read.cut = Some(Cut { at: segment.end, bytes, reason });
        self.expected = expected.max(Some(segment.end));
    }

    /// Producers that Kafka's newest snapshot knows and the log does not tell of any more.
    fn inherit_producers(&mut self) -> Result<(), kaas_substrate::Error> {
        let partition = self.partition;
        let newest = partition.snapshots.iter().rfind(|at| **at <= self.read.end);
        let mut known = Vec::new();
        if let Some(at) = newest {
            let path = partition.dir.join(format!("{:020}.snapshot", at.0));
            let bytes = read_small(&*partition.volume, &path, SNAPSHOT_BYTES_MAX)?;
            match producer_snapshot(&bytes) {
                Ok(producers) => known = producers,
                // Derived: Kafka would build it anew from the log, as was just done.
                Err(reason) => {
                    tracing::warn!(path = %shown(&*partition.volume, &path).display(), reason,
                        "a producer snapshot cannot be read; the log tells of the producers");
                }
            }
        }
        let entries = known.into_iter().map(|producer| (producer.id, entry(&producer)));
        self.read.producers.inherit(self.read.end, entries);
        Ok(())
    }

    fn check_transactions(&mut self) {
        let open: Vec<_> = self.read.producers.open_transactions().collect();
        if let Some((first, producer, _)) = open.first() {
            let path = shown(&*self.partition.volume, &self.partition.dir);
            let count = counted(open.len() as u64, "open transaction", "open transactions");
            let problem = format!("{count}, the first of producer {producer} at offset {first}");
            self.problems.push(Problem::new(
                path,
                problem,
                "start Kafka and let its coordinator end it: after transaction.timeout.ms at the latest, or with kafka-transactions.sh abort",
            ));
        }
    }
}

pub(super) fn log_path(partition: &SourcePartition, base: Offset) -> std::path::PathBuf {
    partition.dir.join(format!("{:020}.log", base.0))
}

/// The format of a message that is older than batches, if it looks like one.
fn old_format(start: [u8; OLD_HEADER_BYTES]) -> Option<i8> {
    let mut fields = Fields(&start);
    let (_offset, length, _checksum, magic) = (fields.i64()?, fields.i32()?, fields.i32()?, fields.i8()?);
    ((0..MAGIC).contains(&magic) && length >= OLD_LENGTH_MIN).then_some(magic)
}

fn marker(header: &BatchHeader, bytes: &[u8]) -> Option<EndMarker> {
    // Markers are small; what cannot be read ends no transaction, as in recovery.
    header.is_control().then(|| read_marker(&Bytes::copy_from_slice(bytes)).ok().flatten()).flatten()
}

fn entry(producer: &SnapshotProducer) -> ProducerEntry {
    let mut batches = Ring::EMPTY;
    if producer.last_offset >= Offset::ZERO && producer.last_sequence >= 0 {
        let _ = batches.push(BatchMetadata {
            last_sequence: producer.last_sequence,
            last_offset: producer.last_offset,
            offset_delta: producer.offset_delta.max(0),
            timestamp: producer.timestamp,
        });
    }
    ProducerEntry {
        epoch: producer.epoch,
        coordinator_epoch: producer.coordinator_epoch,
        last_timestamp: producer.timestamp,
        transaction_first_offset: producer.transaction_first_offset,
        batches,
    }
}
