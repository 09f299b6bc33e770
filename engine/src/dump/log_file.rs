//! Walking through a log file for people: unlike recovery it goes on behind a batch whose CRC is wrong.
//!
//! Reads a piece at a time: a batch's header, then its records in pieces for the CRC, or as a whole if records are
//! to be shown and the batch is below the bound.

use bytes::Bytes;
use kaas_substrate::File;

use super::item::{BatchItem, Item, RecordItem};
use super::{DumpError, Dumper};
use crate::batch::{BatchHeader, DecodeLimits, Marker, decode_records, read_marker};
use crate::log::scan::header_at;
use crate::types::Offset;

/// Bytes read at once for a CRC.
const PIECE_BYTES: usize = 256 << 10;

/// Where the cover of the CRC begins in a batch.
const CRC_COVER_START: usize = 21;

const TEAR_HINT: &str = "at the end of the newest segment this is what a crash leaves, and the next leader ends the log \
                         in front of it; in any segment the bytes behind what the manifest pins never count";
const ORDER_HINT: &str = "within a segment offsets only grow: the file is not as its leader wrote it";
const CRC_HINT: &str =
    "the batch was changed after it was written: restore the segment from a backup or snapshot of the volume";

impl Dumper<'_> {
    /// Shows every batch of a log file up to its end, or to the first bytes that are no batch. What stands at `counted` bytes
    /// and behind is dead, whatever it looks like.
    pub(super) fn log(&mut self, path: &str, file: &dyn File, counted: u64) -> Result<(), DumpError> {
        let length = file.length()?;
        let (mut position, mut next_offset) = (0, Offset::ZERO);
        while position < length {
            let is_dead = position >= counted;
            let header = match header_at(file, position)? {
                Ok(header) => header,
                Err(error) if is_dead => return self.dead(path, position, length, error.to_string()),
                Err(error) => {
                    let problem =
                        format!("no batch from here to the end ({} bytes): {error}", length - position);
                    return self.finding(path, position, problem, TEAR_HINT);
                }
            };
            let end = position.saturating_add(u64::try_from(header.batch_bytes).unwrap_or(u64::MAX));
            if end > length && is_dead {
                return self.dead(path, position, length, "a batch that is not whole".to_owned());
            }
            if end > length {
                let problem = format!(
                    "the batch has {} bytes, of which {} are in the file",
                    header.batch_bytes,
                    length - position
                );
                return self.finding(path, position, problem, TEAR_HINT);
            }
            if is_dead {
                let computed = crc_of(file, position.saturating_add(CRC_COVER_START as u64), end)?;
                self.show(&Item::Batch(BatchItem {
                    dead: true,
                    ..BatchItem::new(&header, position, computed)
                }))?;
                position = end;
                continue;
            }
            if header.base_offset < next_offset {
                let problem = format!("offset {} comes again, {next_offset} is next", header.base_offset);
                self.finding(path, position, problem, ORDER_HINT)?;
            }
            self.batch(path, file, &header, position, end)?;
            next_offset = header.next_offset();
            position = end;
        }
        Ok(())
    }

    fn dead(&mut self, path: &str, position: u64, length: u64, reason: String) -> Result<(), DumpError> {
        self.show(&Item::Dead { path: path.to_owned(), position, bytes: length - position, reason })
    }

    fn batch(
        &mut self,
        path: &str,
        file: &dyn File,
        header: &BatchHeader,
        position: u64,
        end: u64,
    ) -> Result<(), DumpError> {
        let small = header.batch_bytes <= self.options.max_batch_bytes;
        let whole =
            (self.options.records && small).then(|| read_whole(file, header, position)).transpose()?;
        let computed = match &whole {
            Some(bytes) => crc32c::crc32c(bytes.get(CRC_COVER_START..).unwrap_or_default()),
            None => crc_of(file, position.saturating_add(CRC_COVER_START as u64), end)?,
        };
        let item = BatchItem::new(header, position, computed);
        let wrong = (!item.crc_ok)
            .then(|| format!("the batch's CRC-32C is {computed:08x}, it says {:08x}", header.crc));
        self.show(&Item::Batch(item))?;
        if let Some(problem) = wrong {
            return self.finding(path, position, problem, CRC_HINT);
        }
        match whole {
            Some(bytes) => self.records(path, &bytes, position),
            None if self.options.records => {
                let problem = format!(
                    "records not shown: the batch has {} bytes, more than {}",
                    header.batch_bytes, self.options.max_batch_bytes
                );
                self.finding(path, position, problem, "raise --max-batch-bytes")
            }
            None => Ok(()),
        }
    }

    fn records(&mut self, path: &str, batch: &Bytes, position: u64) -> Result<(), DumpError> {
        const HINT: &str = "the CRC is right, so the producer sent it like this; consumers may fail here too";
        let marker = match read_marker(batch) {
            Ok(marker) => marker.map(|end| {
                let kind = match end.marker {
                    Marker::Commit => "COMMIT",
                    Marker::Abort => "ABORT",
                };
                format!("{kind} by coordinator epoch {}", end.coordinator_epoch)
            }),
            Err(error) => return self.finding(path, position, error.to_string(), HINT),
        };
        let limits = DecodeLimits { max_decompressed_bytes: self.options.max_decompressed_bytes };
        let records = match decode_records(batch, &limits) {
            Ok(records) => records,
            Err(error) => return self.finding(path, position, error.to_string(), HINT),
        };
        let base_offset = records.header().base_offset;
        for record in records {
            match record {
                Ok(record) => {
                    self.show(&Item::Record(RecordItem::new(&record, marker.clone())))?;
                    let said = base_offset.plus(i64::from(record.offset_delta));
                    if said != record.offset {
                        let problem = format!("a record says offset {said}, which is not in its batch");
                        self.finding(path, position, problem, HINT)?;
                    }
                }
                Err(error) => return self.finding(path, position, error.to_string(), HINT),
            }
        }
        Ok(())
    }
}

fn read_whole(file: &dyn File, header: &BatchHeader, position: u64) -> Result<Bytes, DumpError> {
    let mut bytes = vec![0; header.batch_bytes];
    let read = file.read_at(&mut bytes, position)?;
    bytes.truncate(read);
    Ok(bytes.into())
}

fn crc_of(file: &dyn File, from: u64, end: u64) -> Result<u32, DumpError> {
    let mut piece =
        vec![0; PIECE_BYTES.min(usize::try_from(end.saturating_sub(from)).unwrap_or(PIECE_BYTES))];
    let (mut at, mut crc) = (from, 0);
    while at < end {
        let want = usize::try_from(end - at).unwrap_or(PIECE_BYTES).min(piece.len());
        let read = file.read_at(piece.get_mut(..want).unwrap_or_default(), at)?;
        if read == 0 {
            break;
        }
        crc = crc32c::crc32c_append(crc, piece.get(..read).unwrap_or_default());
        at += read as u64;
    }
    Ok(crc)
}
