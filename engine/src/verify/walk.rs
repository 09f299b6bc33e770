//! Walking through a segment's bytes at the volume's bandwidth, with bounded memory, past damage.
//!
//! Unlike recovery's scanner the walk does not end at the first bad batch: it says where the bad bytes begin and
//! looks for the next batch behind them that is whole, undamaged and could belong there.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use kaas_substrate::File;

use super::read_ahead::{MARGIN_BYTES, Piece, ReadAhead};
use crate::batch::{BatchError, BatchHeader, HEADER_BYTES};
use crate::types::{Epoch, Offset};

/// Where the CRC's cover begins in a batch: at the attributes.
const CRC_COVER_START: u64 = 21;

/// Where the leader epoch and the format number stand.
const EPOCH_AT: usize = 12;
const MAGIC_AT: usize = 16;

/// How many look-alikes of a batch are examined in the search behind damage.
const CANDIDATES_MAX: usize = 10_000;

/// What stands at a position.
#[derive(Debug)]
pub(super) enum Step {
    /// A whole, undamaged batch.
    Batch { position: u64, header: BatchHeader },
    /// The end of the bytes.
    End,
    /// Bytes that are no whole, undamaged batch.
    Damaged { position: u64, reason: String },
}

/// Leader epochs that a batch may have.
#[derive(Debug, Clone, Copy)]
pub(super) enum Epochs<'a> {
    /// Any of these.
    Of(&'a [Epoch]),
    /// This one, and all below.
    UpTo(Epoch),
}

impl Epochs<'_> {
    /// Whether the leader epoch in a header is one of them.
    fn have(&self, found: [u8; 4]) -> bool {
        let found = u32::from_be_bytes(found);
        match self {
            Self::Of(epochs) => epochs.iter().any(|epoch| epoch.get() == found),
            Self::UpTo(highest) => found <= highest.get(),
        }
    }
}

/// What a batch behind damage must look like.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) epochs: Epochs<'a>,
    /// Lowest base offset.
    pub(super) from: Offset,
    /// The offset that it must end below or at, exclusive.
    pub(super) end: Offset,
}

/// A walk through the bytes of a file from its beginning up to `end`, or to the end of the file.
pub(super) struct Walk<'a> {
    source: ReadAhead<'a>,
    piece: Piece,
    position: u64,
    end: u64,
    takes_any_offset: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn new(file: &'a Arc<dyn File>, end: u64, bytes_read: &'a AtomicU64) -> Self {
        let (source, piece) = (ReadAhead::new(file, end, bytes_read), Piece::default());
        Self { source, piece, position: 0, end, takes_any_offset: false }
    }

    /// As [`Self::new`]; a batch with an impossible base offset, which no checksum covers, is whole, and of offset -1.
    pub(super) fn of_any_offset(file: &'a Arc<dyn File>, end: u64, bytes_read: &'a AtomicU64) -> Self {
        Self { takes_any_offset: true, ..Self::new(file, end, bytes_read) }
    }

    fn header(takes_any_offset: bool, bytes: &[u8]) -> Result<BatchHeader, BatchError> {
        let outcome = BatchHeader::parse(bytes);
        if let Err(BatchError::OffsetRange { .. }) = outcome
            && takes_any_offset
            && let Some(mut header) = bytes.first_chunk::<HEADER_BYTES>().copied()
        {
            header.iter_mut().take(size_of::<Offset>()).for_each(|byte| *byte = 0);
            return Ok(BatchHeader { base_offset: Offset(-1), ..BatchHeader::parse(&header)? });
        }
        outcome
    }

    /// Where the walk stands.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Goes on at `position`, reading everything afresh, up to `end`.
    pub(super) fn restart(&mut self, position: u64, end: u64) {
        self.source.restart(end);
        self.piece = Piece::default();
        self.position = position;
        self.end = end;
    }

    /// The batch at the position, which is moved behind it if it is whole and undamaged.
    pub(super) fn step(&mut self) -> Result<Step, kaas_substrate::Error> {
        let position = self.position;
        if position >= self.end {
            return Ok(Step::End);
        }
        let damaged = |reason: String| Ok(Step::Damaged { position, reason });
        let takes_any_offset = self.takes_any_offset;
        let bytes = self.bytes_at(position, HEADER_BYTES)?;
        if bytes.is_empty() {
            return Ok(Step::End);
        }
        let header = match Self::header(takes_any_offset, bytes) {
            Ok(header) => header,
            Err(_) if bytes.iter().take(HEADER_BYTES).all(|byte| *byte == 0) => {
                return damaged("zeros stand where a batch should begin".into());
            }
            Err(error) => return damaged(error.to_string()),
        };
        match self.problem(position, &header)? {
            Some(reason) => damaged(reason),
            None => {
                self.position = position + header.batch_bytes as u64;
                Ok(Step::Batch { position, header })
            }
        }
    }

    /// The header of what stands at `position`, if it can be one.
    pub(super) fn peek(&mut self, position: u64) -> Result<Option<BatchHeader>, kaas_substrate::Error> {
        if position >= self.end {
            return Ok(None);
        }
        Ok(BatchHeader::parse(self.bytes_at(position, HEADER_BYTES)?).ok())
    }

    /// The bytes from `at` on that a header takes up, or as many as are there.
    pub(super) fn bytes_of_header(&mut self, at: u64) -> Result<&[u8], kaas_substrate::Error> {
        let bytes = self.bytes_at(at, HEADER_BYTES)?;
        Ok(bytes.get(..HEADER_BYTES).unwrap_or(bytes))
    }

    /// Whether there are only zeros in the bytes right in front of `position`.
    pub(super) fn is_behind_zeros(&mut self, position: u64) -> Result<bool, kaas_substrate::Error> {
        // An uncompressed batch ends with one: its last record has no headers.
        const BYTES: usize = 2;
        let bytes = self.bytes_at(position.saturating_sub(BYTES as u64), BYTES)?;
        Ok(bytes.iter().take(BYTES).all(|byte| *byte == 0))
    }

    /// Whether a whole, undamaged batch stands at `position`; the walk goes on there if one does.
    pub(super) fn goes_on_at(&mut self, position: u64) -> Result<bool, kaas_substrate::Error> {
        let before = self.position;
        self.position = position;
        let is_whole = matches!(self.step()?, Step::Batch { .. });
        self.position = if is_whole { position } else { before };
        Ok(is_whole)
    }

    /// What is wrong with the batch whose header stands at `position`.
    fn problem(
        &mut self,
        position: u64,
        header: &BatchHeader,
    ) -> Result<Option<String>, kaas_substrate::Error> {
        let batch_bytes = header.batch_bytes as u64;
        let left = self.end - position;
        if batch_bytes > left {
            return Ok(Some(format!("the batch has {batch_bytes} bytes, of which {left} are there")));
        }
        let end = position + batch_bytes;
        let mut at = position + CRC_COVER_START;
        let mut computed = 0;
        while at < end {
            let piece = self.bytes_at(at, 1)?;
            if piece.is_empty() {
                return Ok(Some(format!("the file ends {} bytes before the batch does", end - at)));
            }
            let wanted = usize::try_from(end - at).unwrap_or(usize::MAX);
            let piece = piece.get(..wanted).unwrap_or(piece);
            computed = crc32c::crc32c_append(computed, piece);
            at += piece.len() as u64;
        }
        let stored = header.crc;
        Ok((computed != stored)
            .then(|| format!("stored CRC-32C {stored:#010x} differs from the computed {computed:#010x}")))
    }

    /// The first position from `from` on with a whole, undamaged batch that is as wanted; the walk goes on there.
    /// `None` if there is none: the walk is at its end then.
    pub(super) fn find(
        &mut self,
        from: u64,
        wanted: &Wanted<'_>,
    ) -> Result<Option<(u64, BatchHeader)>, kaas_substrate::Error> {
        let (mut at, mut candidates) = (from, 0);
        while at < self.end {
            let takes_any_offset = self.takes_any_offset;
            let bytes = self.bytes_at(at, HEADER_BYTES)?;
            if bytes.len() < HEADER_BYTES {
                break;
            }
            let starts = bytes.len() - HEADER_BYTES + 1;
            let found = bytes.windows(HEADER_BYTES).position(|header| {
                header.get(MAGIC_AT) == Some(&2)
                    && header
                        .get(EPOCH_AT..MAGIC_AT)
                        .and_then(|found| found.try_into().ok())
                        .is_some_and(|found| wanted.epochs.have(found))
            });
            let Some(skip) = found else {
                at += starts as u64;
                continue;
            };
            let header = bytes.get(skip..).and_then(|bytes| Self::header(takes_any_offset, bytes).ok());
            at += skip as u64;
            if let Some(header) = header
                && header.base_offset >= wanted.from
                && header.next_offset() <= wanted.end
            {
                if self.problem(at, &header)?.is_none() {
                    self.position = at;
                    return Ok(Some((at, header)));
                }
                candidates += 1;
                if candidates >= CANDIDATES_MAX {
                    break;
                }
            }
            at += 1;
        }
        self.position = self.end;
        Ok(None)
    }

    /// The bytes from `at` on: at least `want`, which is at most what a piece leads with, unless the bytes end before, in
    /// which case what there is.
    fn bytes_at(&mut self, at: u64, want: usize) -> Result<&[u8], kaas_substrate::Error> {
        if self.piece.from(at).is_none_or(|bytes| bytes.len() < want) {
            self.source.advance(&mut self.piece, at)?;
        }
        Ok(self.piece.from(at).unwrap_or_default())
    }
}

// What a header needs is never more than what can be kept of a piece.
const _: () = assert!(HEADER_BYTES <= MARGIN_BYTES);
