//! Reading and writing the index files of a segment.
//!
//! They are derived from the log, written without a look at the fence, and checked when they are used. No two leaders write
//! one file: the segment's own leader writes them under the segment's name; whoever else does, or writes them anew,
//! under a name of its own ([`SegmentFileName::version`]), which the manifest then names.

use std::io::IoSlice;
use std::path::Path;

use kaas_substrate::{OpenMode, Substrate};

use super::indexes::IndexImages;
use super::names::{SegmentFile, SegmentFileName, SegmentName};
use crate::manifest::versioned::FileVersion;
use crate::manifest::{IndexFiles, IndexLengths};

/// Largest index file that is read; Kafka's largest setting is 2^31 - 1, and ours is checked against this.
const INDEX_BYTES_MAX: u64 = 1 << 30;

/// Reads as much of a segment's index files as `files` says is complete; the reason if they are not usable. Blocks.
pub(crate) fn read_index_files(
    substrate: &dyn Substrate,
    dir: &Path,
    segment: SegmentName,
    files: &IndexFiles,
) -> Result<IndexImages, String> {
    let read = |file: SegmentFile, length: u64| -> Result<Vec<u8>, String> {
        if length == 0 {
            return Ok(Vec::new());
        }
        let path = SegmentFileName { segment, file, version: files.version }.path(dir);
        let wanted = usize::try_from(length.min(INDEX_BYTES_MAX)).map_err(|e| e.to_string())?;
        let mut bytes = vec![0; wanted];
        let open = substrate.open(&path, OpenMode::Read).map_err(|e| e.to_string())?;
        let found = open.read_at(&mut bytes, 0).map_err(|e| e.to_string())?;
        if found < wanted {
            return Err(format!("{} has {found} bytes instead of {wanted}", path.display()));
        }
        Ok(bytes)
    };
    Ok(IndexImages {
        offset: read(SegmentFile::OffsetIndex, files.lengths.offset_index_bytes)?,
        time: read(SegmentFile::TimeIndex, files.lengths.time_index_bytes)?,
        txn: read(SegmentFile::TxnIndex, files.lengths.txn_index_bytes)?,
    })
}

/// Brings the index files of that version up to `images`; what `written` says is there already is not written again. An
/// empty one is not made. Synced on return, but for new names. Blocks.
pub(crate) fn write_index_files(
    substrate: &dyn Substrate,
    dir: &Path,
    segment: SegmentName,
    version: Option<FileVersion>,
    images: &IndexImages,
    written: &IndexLengths,
) -> Result<IndexFiles, kaas_substrate::Error> {
    let write = |file: SegmentFile, image: &[u8], done: u64| -> Result<u64, kaas_substrate::Error> {
        let length = image.len() as u64;
        if length == done {
            return Ok(length);
        }
        let path = SegmentFileName { segment, file, version }.path(dir);
        let mode = if done > 0 { OpenMode::Write } else { OpenMode::CreateNew };
        let open = match substrate.open(&path, mode) {
            // Left over from an attempt that failed half way.
            Err(error) if error.is_exists() => substrate.open(&path, OpenMode::Write)?,
            other => other?,
        };
        let from = usize::try_from(done).unwrap_or(usize::MAX).min(image.len());
        open.write_all_at(&[IoSlice::new(image.get(from..).unwrap_or_default())], done)?;
        open.set_length(length)?;
        open.sync_data()?;
        Ok(length)
    };
    let lengths = IndexLengths {
        offset_index_bytes: write(SegmentFile::OffsetIndex, &images.offset, written.offset_index_bytes)?,
        time_index_bytes: write(SegmentFile::TimeIndex, &images.time, written.time_index_bytes)?,
        txn_index_bytes: write(SegmentFile::TxnIndex, &images.txn, written.txn_index_bytes)?,
    };
    Ok(IndexFiles { version, lengths })
}
