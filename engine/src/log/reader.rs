//! Reading: committed bytes only, whole batches, from the tail in memory or from a segment's file.
//!
//! [`Partition::read`] makes no system call: it answers from the tail, or hands out a [`BlockingRead`] to be run on
//! an I/O thread. A read never crosses from one segment into the next, as in Kafka: the reader comes back. What compaction has
//! left without a record is passed over to the next segment that has one: a client library that is given nothing but
//! empty batches several times takes them for messages that are too large (librdkafka).

use std::sync::Arc;

use bytes::Bytes;
use kaas_substrate::{ErrorClass, File};

use super::names::SegmentFile;
use super::partition::{Partition, SegmentList};
use super::reindex::earlier;
use super::scan::{BatchScanner, Check, Scanned, header_at};
use super::segment::{OpenSegment, Opened, Segment, Unusable};
use super::status::Status;
use crate::batch::{BatchHeader, HEADER_BYTES};
use crate::error::ReadError;
use crate::index::{AbortedTransaction, OffsetPosition};
use crate::planted::{Bug, planted};
use crate::types::Offset;

/// How often a lookup begins anew because its segments were replaced.
const LISTS_MAX: usize = 8;

/// Segments without a record that are passed over in one read; behind them the reader comes back.
const EMPTY_SEGMENTS_MAX: usize = 256;

/// Which records a reader may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Everything committed.
    ReadUncommitted,
    /// Nothing at or behind the first record of an open transaction; aborted ones are named.
    ReadCommitted,
}

/// What is to be read.
#[derive(Debug, Clone, Copy)]
pub struct ReadRequest {
    /// The first offset wanted. The batch that holds it is returned whole.
    pub from: Offset,
    /// Most bytes.
    pub max_bytes: usize,
    /// Return the first batch even if it is larger.
    pub at_least_one: bool,
    pub isolation: Isolation,
    /// Whether the reader can send file ranges; else everything is read into memory.
    pub file_ranges: bool,
}

/// The outcome of [`Partition::read`].
#[derive(Debug)]
pub enum Read {
    /// Here it is.
    Ready(FetchedRecords),
    /// To be run on an I/O thread.
    Blocking(BlockingRead),
}

/// Records, in pieces that are sent one behind the other.
#[derive(Debug, Clone)]
pub struct FetchedRecords {
    pub parts: Vec<RecordsPart>,
    /// Bytes of all parts.
    pub bytes: usize,
    /// Where the partition stood when the read began.
    pub status: Status,
    /// With [`Isolation::ReadCommitted`]: aborted transactions with records among these.
    pub aborted: Vec<AbortedTransaction>,
}

/// A piece of a log.
#[derive(Debug, Clone)]
pub enum RecordsPart {
    Bytes(Bytes),
    /// `length` bytes of `file` from `position` on; whole batches.
    FileRange {
        file: Arc<dyn File>,
        position: u64,
        length: usize,
    },
}

/// A read that needs the volume.
#[derive(Debug)]
pub struct BlockingRead {
    partition: Arc<Partition>,
    request: ReadRequest,
    limit: Offset,
    status: Status,
}

/// How far a read has come in a segment.
struct Reached {
    /// The offset behind what was read, or an upper bound of it.
    end: Offset,
    /// Whether there may be a record in what was read.
    has_records: bool,
}

impl Partition {
    /// Reads committed records from `request.from` on. Never blocks.
    ///
    /// # Errors
    ///
    /// [`ReadError::OffsetOutOfRange`] below the log start or above the log end; [`ReadError::NotLeader`].
    pub fn read(self: &Arc<Self>, request: ReadRequest) -> Result<Read, ReadError> {
        let status = self.status();
        if let Some(error) = status.state.read_error() {
            return Err(error);
        }
        if request.from < status.log_start || request.from > status.log_end {
            return Err(out_of_range(request.from, &status));
        }
        let limit = match request.isolation {
            Isolation::ReadUncommitted => status.high_watermark,
            Isolation::ReadCommitted => status.last_stable,
        };
        if request.from >= limit {
            return Ok(Read::Ready(FetchedRecords::empty(status)));
        }
        let may_have_aborted = request.isolation == Isolation::ReadCommitted
            && self.segments.read().iter().any(|segment| segment.may_have_aborted());
        if !may_have_aborted {
            let batches = self.tail.lock().read(request.from, limit, request.max_bytes, request.at_least_one);
            if let Some(batches) = batches {
                let mut fetched = FetchedRecords::empty(status);
                for batch in batches {
                    fetched.push(batch.header);
                    fetched.push(batch.body);
                }
                return Ok(Read::Ready(fetched));
            }
        }
        Ok(Read::Blocking(BlockingRead { partition: Arc::clone(self), request, limit, status }))
    }
}

fn damaged(segment: &Segment, position: u64, reason: String) -> ReadError {
    ReadError::Damaged { path: segment.path(SegmentFile::Log), position, reason }
}

fn out_of_range(offset: Offset, status: &Status) -> ReadError {
    let Status { log_start, high_watermark, .. } = *status;
    ReadError::OffsetOutOfRange { offset, log_start, high_watermark }
}

impl FetchedRecords {
    fn empty(status: Status) -> Self {
        Self { parts: Vec::new(), bytes: 0, status, aborted: Vec::new() }
    }

    fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.bytes += bytes.len();
            self.parts.push(RecordsPart::Bytes(bytes));
        }
    }
}

impl BlockingRead {
    /// Reads from the volume. Blocks.
    pub fn run(self) -> Result<FetchedRecords, ReadError> {
        let outcome = self.partition.with_segments(|segments| self.read(segments));
        // What the log start has passed since is gone: nothing was found there, or what follows it.
        let status = self.partition.status();
        if status.log_start > self.request.from
            && outcome.as_ref().err().is_none_or(|error| error.is_storage_not_found())
        {
            return Err(out_of_range(self.request.from, &status));
        }
        // A later leader, or a repair, may have put others in the place of these files.
        let has_failed = matches!(&outcome, Err(ReadError::Damaged { .. } | ReadError::Storage(_)));
        if has_failed
            && self.partition.is_deposed()
            && let Some(error) = self.partition.status().state.read_error()
        {
            return Err(error);
        }
        outcome
    }

    fn read(&self, segments: &SegmentList) -> Result<FetchedRecords, ReadError> {
        // Compaction may have left nothing at the offset: then what follows.
        let first = segments.partition_point(|segment| segment.end_offset() <= self.request.from);
        let mut fetched = FetchedRecords::empty(self.status.clone());
        let mut from = self.request.from;
        for (at, segment) in segments.iter().enumerate().skip(first).take(EMPTY_SEGMENTS_MAX) {
            // What stands behind the limit is on its way at most.
            if from >= self.limit {
                break;
            }
            let (found, reached) = self.read_from(segments, at, segment, from)?;
            if found.bytes == 0 {
                break;
            }
            fetched = found;
            if reached.has_records || reached.end < segment.end_offset() {
                break;
            }
            from = reached.end;
        }
        Ok(fetched)
    }

    /// Reads from `segment`, the one at `at`, what is there from `from` on.
    fn read_from(
        &self,
        segments: &SegmentList,
        at: usize,
        segment: &Arc<Segment>,
        from: Offset,
    ) -> Result<(FetchedRecords, Reached), ReadError> {
        let attempt = || {
            let mut fetched = FetchedRecords::empty(self.status.clone());
            let reached = self.read_segment(segment, from, &mut fetched)?;
            if self.request.isolation == Isolation::ReadCommitted && fetched.bytes > 0 {
                fetched.aborted = self.aborted(segments, at, from, reached.end)?;
            }
            Ok((fetched, reached))
        };
        match attempt() {
            // A file server has forgotten the handle. By its name the file is found again, unless it is gone; the last
            // segment is the leader's own, and its handle the one that it writes through.
            Err(ReadError::Storage(error)) if error.class == ErrorClass::Stale && at + 1 < segments.len() => {
                segment.close();
                attempt()
            }
            outcome => outcome,
        }
    }

    /// Reads from one segment.
    fn read_segment(
        &self,
        segment: &Arc<Segment>,
        from: Offset,
        fetched: &mut FetchedRecords,
    ) -> Result<Reached, ReadError> {
        let ReadRequest { max_bytes, at_least_one, file_ranges, .. } = self.request;
        let open = self.partition.open_segment(segment)?;
        let hint = open.indexes.lock().lookup(from);
        let found = match first_batch(&*open.file, hint, from, segment)? {
            First::WrongHint => {
                self.partition.offset_index_is_wrong(segment, hint);
                let start = OffsetPosition { offset: segment.base_offset(), position: 0 };
                first_batch(&*open.file, start, from, segment)?
            }
            found => found,
        };
        let First::Batch(start, first) = found else {
            // Nothing would ever come here for a reader that waits.
            let reason =
                format!("no batch goes beyond offset {from}, though the segment counts up to further on");
            return Err(damaged(segment, segment.bytes(), reason));
        };
        // (Asked for after the batch was read: an active segment grows.)
        let end_offset = segment.end_offset();
        if first.next_offset() > end_offset {
            let reason =
                format!("the batch ends at offset {}, its segment at {end_offset}", first.next_offset());
            return Err(damaged(segment, start, reason));
        }
        if first.next_offset() > self.limit || (first.batch_bytes > max_bytes && !at_least_one) {
            return Ok(Reached { end: from, has_records: false });
        }
        if file_ranges
            && let Some((end, end_offset)) = self.range_end(segment, &open, start)?
            && let Ok(length) = usize::try_from(end - start)
            && length >= self.partition.shared.settings.file_range_bytes_min
        {
            let file = Arc::clone(&open.file);
            fetched.parts.push(RecordsPart::FileRange { file, position: start, length });
            fetched.bytes += length;
            return Ok(Reached { end: end_offset, has_records: true });
        }
        if first.batch_bytes >= max_bytes {
            fetched.push(read_batch(&*open.file, start, &first, segment)?);
            return Ok(Reached { end: first.next_offset(), has_records: first.record_count > 0 });
        }
        self.read_into_memory(segment, &open, start, &first, fetched)
    }

    /// The furthest batch boundary that the index knows within reach of `start`, with everything before it below the limit;
    /// and the offset of the batch there. `None` without one, or if the index is wrong about it.
    fn range_end(
        &self,
        segment: &Arc<Segment>,
        open: &OpenSegment,
        start: u64,
    ) -> Result<Option<(u64, Offset)>, ReadError> {
        let furthest = start.saturating_add(self.request.max_bytes as u64);
        let limit = if planted(Bug::RangePastCommitted) { Offset(i64::MAX) } else { self.limit };
        let boundary = open.indexes.lock().boundary(furthest, limit);
        let Some(entry) = boundary.filter(|entry| entry.position > start) else { return Ok(None) };
        let there = header_at(&*open.file, entry.position)?
            .ok()
            .filter(|header| header.last_offset() == entry.offset);
        if there.is_none() {
            self.partition.offset_index_is_wrong(segment, entry);
        }
        Ok(there.map(|header| (entry.position, header.base_offset)))
    }

    /// Reads whole batches into memory, as many as fit; `first`, at `start`, does.
    fn read_into_memory(
        &self,
        segment: &Segment,
        open: &OpenSegment,
        start: u64,
        first: &BatchHeader,
        fetched: &mut FetchedRecords,
    ) -> Result<Reached, ReadError> {
        let room = usize::try_from(segment.bytes().saturating_sub(start)).unwrap_or(usize::MAX);
        let mut buffer = vec![0; self.request.max_bytes.min(room)];
        let read = open.file.read_at(&mut buffer, start)?;
        buffer.truncate(read);
        let (mut end, mut end_offset, mut has_records) = (0, first.base_offset, false);
        while let Some(rest) = buffer.get(end..).filter(|rest| rest.len() >= HEADER_BYTES) {
            let header = match BatchHeader::parse(rest) {
                Ok(header) => header,
                Err(error) if end == 0 => return Err(damaged(segment, start, error.to_string())),
                // Told to whoever comes for it; what stands in front is in order.
                Err(_) => break,
            };
            let batch_end = end.saturating_add(header.batch_bytes);
            let is_in_place = misplaced(segment, end_offset, &header).is_none();
            if !is_in_place || header.next_offset() > self.limit || batch_end > buffer.len() {
                break;
            }
            (end, end_offset) = (batch_end, header.next_offset());
            has_records |= header.record_count > 0;
        }
        if end == 0 {
            let reason = format!("of the batch that counts {} bytes are there", buffer.len());
            return Err(damaged(segment, start, reason));
        }
        buffer.truncate(end);
        fetched.push(Bytes::from(buffer));
        Ok(Reached { end: end_offset, has_records })
    }

    /// Aborted transactions with records in `[from, end)`: noted in the segment of their marker, which may be a
    /// later one.
    fn aborted(
        &self,
        segments: &SegmentList,
        at: usize,
        from: Offset,
        end: Offset,
    ) -> Result<Vec<AbortedTransaction>, ReadError> {
        let mut aborted = Vec::new();
        for segment in segments.iter().skip(at).filter(|segment| segment.may_have_aborted()) {
            let open = self.partition.open_segment(segment)?;
            let complete = open.indexes.lock().collect_aborted(from, end, &mut aborted);
            if complete {
                break;
            }
        }
        Ok(aborted)
    }
}

impl Partition {
    /// Runs a lookup over the segments as they are now; again if one of them is gone because the cleaner (or
    /// retention) has replaced the list meanwhile. A lookup holds no file back from being unlinked.
    pub(crate) fn with_segments<T>(
        &self,
        lookup: impl Fn(&SegmentList) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        let mut segments = Arc::clone(&*self.segments.read());
        for _ in 0..LISTS_MAX {
            let outcome = lookup(&segments);
            let now = Arc::clone(&*self.segments.read());
            match outcome {
                Err(error) if error.is_storage_not_found() && !Arc::ptr_eq(&segments, &now) => segments = now,
                outcome => return outcome,
            }
        }
        lookup(&segments)
    }

    /// A segment's file and indexes. Blocks.
    pub(crate) fn open_segment(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
    ) -> Result<Arc<OpenSegment>, ReadError> {
        let interval_bytes = self.config().index_interval_bytes;
        let segments = Arc::clone(&*self.segments.read());
        let (substrate, cache) = (&*self.shared.substrate, &self.shared.open_segments);
        let Opened { open, rebuilt } =
            segment.open(substrate, cache, interval_bytes, earlier(&segments, segment))?;
        match rebuilt {
            None => {}
            Some(Unusable::Unwritten) => self.indexes_were_rebuilt(segment, &open, None),
            Some(Unusable::Bad(reason)) => self.indexes_were_rebuilt(segment, &open, Some(&reason)),
        }
        Ok(open)
    }
}

/// Where a walk to a batch has come to.
enum First {
    /// Where the batch stands, and its header.
    Batch(u64, BatchHeader),
    /// There is none.
    Nothing,
    /// No batch with the last offset that the index says stands where the walk was to begin.
    WrongHint,
}

/// The first batch of a segment that ends behind `from`. `hint` is where the index says to look from.
fn first_batch(
    file: &dyn File,
    hint: OffsetPosition,
    from: Offset,
    segment: &Segment,
) -> Result<First, ReadError> {
    let mut scanner = BatchScanner::new(file, hint.position, segment.bytes(), Check::Headers);
    let mut expected = (hint.position == 0).then_some(segment.base_offset());
    loop {
        let scanned = scanner.next()?;
        if expected.is_none() {
            let is_right =
                matches!(&scanned, Scanned::Batch { header, .. } if header.last_offset() == hint.offset);
            if !is_right {
                return Ok(First::WrongHint);
            }
        }
        let (position, header) = match scanned {
            Scanned::Batch { position, header } => (position, header),
            Scanned::End => return Ok(First::Nothing),
            Scanned::Torn { position, reason } => return Err(damaged(segment, position, reason)),
        };
        if let Some(reason) = expected.and_then(|expected| misplaced(segment, expected, &header)) {
            return Err(damaged(segment, position, reason));
        }
        if header.last_offset() >= from {
            return Ok(First::Batch(position, header));
        }
        expected = Some(header.next_offset());
    }
}

/// Why a batch does not belong behind the offset `expected`. Its own offset is outside of its CRC.
fn misplaced(segment: &Segment, expected: Offset, header: &BatchHeader) -> Option<String> {
    let found = header.base_offset;
    let gap = segment.name.is_rewritten() && found > expected;
    (found != expected && !gap)
        .then(|| format!("a batch of offset {found} stands where offset {expected} belongs"))
}

/// Reads the whole batch at `position`.
pub(crate) fn read_batch(
    file: &dyn File,
    position: u64,
    header: &BatchHeader,
    segment: &Segment,
) -> Result<Bytes, ReadError> {
    let mut bytes = vec![0; header.batch_bytes];
    let read = file.read_at(&mut bytes, position)?;
    if read < bytes.len() {
        let reason = format!("the batch has {} bytes, of which {read} are there", bytes.len());
        return Err(damaged(segment, position, reason));
    }
    Ok(Bytes::from(bytes))
}
