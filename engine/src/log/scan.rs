//! Walking through a segment file batch by batch, with a bounded buffer.
//!
//! Used by recovery (with checksums) and by lookups (headers only). Bytes of a file are never trusted: the walk
//! ends at the first batch that is short, impossible or damaged, and says why. Runs on I/O threads.

use std::ops::Range;

use kaas_substrate::File;

use crate::batch::{BatchError, BatchHeader, HEADER_BYTES};

/// Reads the header of the batch at `position`, of which nothing else is looked at: a few bytes, on their own.
pub(crate) fn header_at(
    file: &dyn File,
    position: u64,
) -> Result<Result<BatchHeader, BatchError>, kaas_substrate::Error> {
    let mut header = [0; HEADER_BYTES];
    let read = file.read_at(&mut header, position)?;
    Ok(BatchHeader::parse(header.get(..read).unwrap_or_default()))
}

/// Bytes read at once: what a file server gives in one reply.
const CHUNK_BYTES: usize = 1 << 20;

/// Where the CRC's cover begins in a batch: at the attributes.
const CRC_COVER_START: usize = 21;

/// What stands at a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scanned {
    /// A whole batch.
    Batch { position: u64, header: BatchHeader },
    /// The end of the bytes that count.
    End,
    /// Bytes that are no whole, undamaged batch.
    Torn { position: u64, reason: String },
}

/// Whether a walk verifies checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// Every byte is read and its CRC checked.
    Crc,
    /// Only headers are read.
    Headers,
}

/// A walk through the bytes of `file` from `position` to `end`.
#[derive(Debug)]
pub(crate) struct BatchScanner<'a> {
    file: &'a dyn File,
    position: u64,
    end: u64,
    check: Check,
    /// Bytes of the file from `buffer_at` on.
    buffer: Vec<u8>,
    buffer_at: u64,
    chunk_bytes: usize,
}

impl<'a> BatchScanner<'a> {
    /// A walk that begins at a batch at `position` and ends at `end` or at the end of the file.
    pub(crate) fn new(file: &'a dyn File, position: u64, end: u64, check: Check) -> Self {
        let chunk_bytes = if check == Check::Crc { CHUNK_BYTES } else { 16 << 10 };
        Self { file, position, end, check, buffer: Vec::new(), buffer_at: position, chunk_bytes }
    }

    /// The next batch. After `End` or `Torn` it stays there.
    pub(crate) fn next(&mut self) -> Result<Scanned, kaas_substrate::Error> {
        let position = self.position;
        let left = self.end.saturating_sub(position);
        if left == 0 {
            return Ok(Scanned::End);
        }
        let torn = |reason: String| Ok(Scanned::Torn { position, reason });
        let header_bytes = self.bytes_at(position, HEADER_BYTES)?;
        if header_bytes.is_empty() {
            return Ok(Scanned::End);
        }
        let header = match BatchHeader::parse(header_bytes) {
            Ok(header) => header,
            Err(error) => return torn(error.to_string()),
        };
        let batch_bytes = header.batch_bytes as u64;
        if batch_bytes > left {
            return torn(format!("the batch has {batch_bytes} bytes, of which {left} are here"));
        }
        match self.check {
            Check::Crc => {
                if let Some(reason) = self.crc_problem(position, &header)? {
                    return torn(reason);
                }
            }
            Check::Headers => {}
        }
        self.position = position + batch_bytes;
        Ok(Scanned::Batch { position, header })
    }

    /// The bytes of the batch at `position` that [`Self::next`] has just returned, its CRC having been checked: the very
    /// bytes that were verified, or, of a batch that is larger than the buffer, bytes that are read anew and verified
    /// anew. `None` if those are not the same batch any more.
    pub(crate) fn verified_batch(
        &mut self,
        position: u64,
        header: &BatchHeader,
    ) -> Result<Option<&[u8]>, kaas_substrate::Error> {
        let range = |skip: usize| -> Range<usize> { skip..skip.saturating_add(header.batch_bytes) };
        let inside = position.checked_sub(self.buffer_at).and_then(|skip| usize::try_from(skip).ok());
        if let Some(skip) = inside.filter(|skip| range(*skip).end <= self.buffer.len()) {
            return Ok(self.buffer.get(range(skip)));
        }
        let bytes = self.bytes_at(position, header.batch_bytes)?.get(range(0)).unwrap_or_default();
        let covered = bytes.get(CRC_COVER_START..).unwrap_or_default();
        let same = BatchHeader::parse(bytes).is_ok_and(|found| found == *header);
        Ok((same && crc32c::crc32c(covered) == header.crc).then_some(bytes))
    }

    fn crc_problem(
        &mut self,
        position: u64,
        header: &BatchHeader,
    ) -> Result<Option<String>, kaas_substrate::Error> {
        let end = position + header.batch_bytes as u64;
        if header.batch_bytes <= self.chunk_bytes {
            // From its beginning, so that all of it stays in memory for `verified_batch`.
            self.bytes_at(position, header.batch_bytes)?;
        }
        let mut at = position + CRC_COVER_START as u64;
        let mut computed = 0;
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(self.chunk_bytes);
            let chunk = self.bytes_at(at, want)?;
            if chunk.is_empty() {
                return Ok(Some(format!("the file ends {} bytes before the batch does", end - at)));
            }
            let chunk = chunk.get(..want.min(chunk.len())).unwrap_or_default();
            computed = crc32c::crc32c_append(computed, chunk);
            at += chunk.len() as u64;
        }
        let stored = header.crc;
        Ok((computed != stored)
            .then(|| format!("stored CRC-32C {stored:#010x} differs from the computed {computed:#010x}")))
    }

    /// The bytes from `at` on: at least `want` unless the file ends before, in which case what there is.
    fn bytes_at(&mut self, at: u64, want: usize) -> Result<&[u8], kaas_substrate::Error> {
        let have = at.checked_sub(self.buffer_at).and_then(|skip| usize::try_from(skip).ok());
        let inside = have.filter(|skip| skip.saturating_add(want) <= self.buffer.len());
        let skip = match inside {
            Some(skip) => skip,
            None => {
                let room = self.end.saturating_sub(at);
                let length = usize::try_from(room).unwrap_or(usize::MAX).min(self.chunk_bytes.max(want));
                self.buffer.resize(length, 0);
                let read = self.file.read_at(&mut self.buffer, at)?;
                self.buffer.truncate(read);
                self.buffer_at = at;
                0
            }
        };
        Ok(self.buffer.get(skip..).unwrap_or_default())
    }
}
