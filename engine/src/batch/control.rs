//! Control batches: the markers that end a transaction on a partition (KIP-98).
//!
//! A marker is a batch with one record. Its key is a version (i16, 0) and a type (i16, 0 abort, 1 commit), its value
//! a version (i16, 0) and the epoch of the transaction coordinator (i32).

use bytes::{BufMut, Bytes, BytesMut};

use super::build::{BatchOptions, Producer, SimpleRecord, assemble, put_record};
use super::error::{BatchError, RecordProblem};
use super::header::{Attributes, BatchHeader, Compression};
use super::records::{DecodeLimits, decode_records};
use crate::types::{Offset, ProducerId, Timestamp};

/// How a transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Marker {
    Abort,
    Commit,
}

/// What a marker says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndMarker {
    pub marker: Marker,
    /// Epoch of the coordinator that decided; a lower one than before is a zombie's.
    pub coordinator_epoch: i32,
}

/// A control batch is small; this bounds what a damaged one can make us allocate.
const MARKER_LIMITS: DecodeLimits = DecodeLimits { max_decompressed_bytes: 64 << 10 };

/// The batch that ends a transaction of `producer_id`, with base offset 0 and no leader epoch yet.
///
/// # Errors
///
/// None in practice; the type is that of the builder.
pub fn control_batch(
    marker: EndMarker,
    producer_id: ProducerId,
    producer_epoch: i16,
    timestamp: Timestamp,
) -> Result<Bytes, BatchError> {
    let mut key = BytesMut::with_capacity(4);
    key.put_i16(0);
    key.put_i16(match marker.marker {
        Marker::Abort => 0,
        Marker::Commit => 1,
    });
    let mut value = BytesMut::with_capacity(6);
    value.put_i16(0);
    value.put_i32(marker.coordinator_epoch);
    let record = SimpleRecord::of(key.freeze(), value.freeze());
    let mut body = BytesMut::new();
    put_record(&mut body, 0, &record)?;
    let options = BatchOptions {
        base_offset: Offset::ZERO,
        base_timestamp: timestamp,
        // Markers have no place in the producer's sequence.
        producer: Some(Producer { id: producer_id, epoch: producer_epoch, base_sequence: -1 }),
        transactional: true,
        compression: Compression::None,
    };
    assemble(&options, Attributes::new(Compression::None, true, true), timestamp, 1, &body)
}

/// The marker in a control batch.
///
/// `None` if the batch is no control batch, is empty (compaction has removed the whole transaction), or holds a
/// control record of a kind that ends no transaction.
///
/// # Errors
///
/// As [`decode_records`], or what is wrong with the record.
pub fn read_marker(batch: &Bytes) -> Result<Option<EndMarker>, BatchError> {
    if !BatchHeader::parse(batch)?.is_control() {
        return Ok(None);
    }
    let Some(record) = decode_records(batch, &MARKER_LIMITS)?.next() else { return Ok(None) };
    let record = record?;
    let problem = |problem| BatchError::Record { index: 0, position: 0, problem };
    let key = record.key.unwrap_or_default();
    let (version, kind) = pair(&key).ok_or(problem(RecordProblem::Ends))?;
    if version < 0 {
        return Err(problem(RecordProblem::ControlVersion(version)));
    }
    let marker = match kind.first_chunk().map(|kind| i16::from_be_bytes(*kind)) {
        None => return Err(problem(RecordProblem::Ends)),
        Some(0) => Marker::Abort,
        Some(1) => Marker::Commit,
        Some(_) => return Ok(None),
    };
    let value = record.value.unwrap_or_default();
    let (version, epoch) = pair(&value).ok_or(problem(RecordProblem::Ends))?;
    if version < 0 {
        return Err(problem(RecordProblem::ControlVersion(version)));
    }
    let epoch = epoch.first_chunk().ok_or(problem(RecordProblem::Ends))?;
    Ok(Some(EndMarker { marker, coordinator_epoch: i32::from_be_bytes(*epoch) }))
}

/// A version and what follows it.
fn pair(bytes: &[u8]) -> Option<(i16, &[u8])> {
    let (version, rest) = bytes.split_first_chunk::<2>()?;
    Some((i16::from_be_bytes(*version), rest))
}
