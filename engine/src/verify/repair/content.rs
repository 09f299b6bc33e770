//! Where the batches of a segment stand that is not under its name any more: by what the manifest pins of its content.
//!
//! Records are taken from another file only if it is certain that they were the acknowledged ones: whole batches from its
//! beginning on, with the bytes, offsets, leader epochs, largest timestamp and checksums of first and last batch that the
//! manifest has. Everything else (a segment that the manifest does not count, of the very offsets that are lost) may be a
//! deposed leader's, never acknowledged: it is put aside, and told of.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use kaas_substrate::{EntryKind, File, OpenMode, Substrate, printable};

use super::looked::Looked;
use super::quarantine::QUARANTINE_DIR;
use super::salvage::{Salvage, Source, epoch_at, log_name};
use crate::log::scan::{BatchScanner, Check, Scanned, header_at};
use crate::log::segment::SegmentState;
use crate::manifest::SegmentEntry;
use crate::types::{Epoch, Offset, Timestamp};

/// For each source whose file is missing or another segment: the file in which its content stands, if there is one, or
/// none. Blocks for as long as reading the candidates takes.
pub(super) fn find(looked: &Looked<'_>, sources: &mut [Source]) -> Result<(), kaas_substrate::Error> {
    let Looked { context, dir, view, .. } = *looked;
    let foreign = looked.foreign_segments();
    let in_own_file: BTreeSet<_> =
        sources.iter().map(|source| source.name).filter(|name| !foreign.contains(name)).collect();
    let logs = view.names.logs.iter().filter(|name| !in_own_file.contains(name)).map(|name| log_name(*name));
    let files = view.names.unknown.iter().filter(|(_, kind)| **kind == EntryKind::File);
    let files = files.map(|(name, _)| name.clone());
    let candidates: Vec<OsString> = logs.chain(files).collect();
    for source in sources {
        let is_foreign = foreign.contains(&source.name);
        if view.names.logs.contains(&source.name) && !is_foreign {
            continue;
        }
        if is_foreign {
            source.file = None;
        }
        let Some(entry) = &source.entry else { continue };
        for candidate in &candidates {
            if is_content_of(context.substrate, &dir.join(candidate), source, entry)? {
                source.file = Some(candidate.clone());
                break;
            }
        }
    }
    Ok(())
}

/// Whether the file holds what the manifest's entry pins.
fn is_content_of(
    substrate: &dyn Substrate,
    path: &Path,
    source: &Source,
    entry: &SegmentEntry,
) -> Result<bool, kaas_substrate::Error> {
    let file = match substrate.open(path, OpenMode::ReadUncached) {
        Err(error) if error.is_not_found() => return Ok(false),
        file => file?,
    };
    let begins = header_at(&*file, 0)?.is_ok_and(|header| header.crc == entry.batch_crcs.first);
    if !begins || file.length()? < entry.bytes {
        return Ok(false);
    }
    let Some(state) = walked(&*file, source, entry.bytes)? else { return Ok(false) };
    let pinned = SegmentState {
        bytes: entry.bytes,
        end_offset: Offset(entry.end_offset),
        max_timestamp: Timestamp(entry.max_timestamp),
        offset_of_max_timestamp: Offset(entry.offset_of_max_timestamp),
        batch_crcs: entry.batch_crcs,
        index_files: None,
    };
    Ok(state == pinned)
}

/// What whole, undamaged batches of the source's offsets and leader epochs in the first `bytes` of a file come to.
fn walked(
    file: &dyn File,
    source: &Source,
    bytes: u64,
) -> Result<Option<SegmentState>, kaas_substrate::Error> {
    let mut state = SegmentState::empty(source.name.base_offset);
    let mut scanner = BatchScanner::new(file, 0, bytes, Check::Crc);
    loop {
        let header = match scanner.next()? {
            Scanned::Batch { header, .. } => header,
            Scanned::End => return Ok(Some(state)),
            Scanned::Torn { .. } => return Ok(None),
        };
        let gap = header.base_offset > state.end_offset && source.name.is_rewritten();
        let follows = header.base_offset == state.end_offset || gap;
        let epoch = epoch_at(source, header.base_offset).map(Epoch::to_wire);
        if !follows || epoch != Some(header.partition_leader_epoch) {
            return Ok(None);
        }
        state.add(&header);
    }
}

/// What is to be said of segments that the manifest does not count and that have offsets which are lost.
pub(super) fn doubtful(looked: &Looked<'_>, salvage: &Salvage) -> Result<Vec<String>, kaas_substrate::Error> {
    let Looked { context, dir, view, .. } = *looked;
    let used: BTreeSet<_> = salvage.segments.iter().map(|salvaged| log_name(salvaged.source.name)).collect();
    let found: BTreeSet<_> =
        salvage.segments.iter().filter_map(|salvaged| salvaged.source.file.as_ref()).collect();
    let mut told = Vec::new();
    for name in &view.names.logs {
        let log = log_name(*name);
        if salvage.lost.is_empty() || used.contains(&log) || found.contains(&log) {
            continue;
        }
        let file = match context.substrate.open(&dir.join(&log), OpenMode::ReadUncached) {
            Err(error) if error.is_not_found() => continue,
            file => file?,
        };
        let (begins, ends) = (name.base_offset.0, headers_end(&*file, name.base_offset)?.0);
        if salvage.lost.iter().any(|lost| lost.from < ends && begins < lost.to) {
            let log = printable(Path::new(&log));
            told.push(format!(
                "whether {QUARANTINE_DIR}/{log} has lost records: it has offsets {begins} to {}, and nothing says that these \
                 were the acknowledged ones; a leader that was deposed may have written them",
                ends.saturating_sub(1)
            ));
        }
    }
    Ok(told)
}

/// The offset behind the batches of a file, by their headers.
fn headers_end(file: &dyn File, base_offset: Offset) -> Result<Offset, kaas_substrate::Error> {
    let mut end = base_offset;
    let mut scanner = BatchScanner::new(file, 0, u64::MAX, Check::Headers);
    while let Scanned::Batch { header, .. } = scanner.next()? {
        end = end.max(header.next_offset());
    }
    Ok(end)
}
