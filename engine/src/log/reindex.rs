//! Index files that turn out to be wrong, or cannot be used, are built anew by the leader: once for each segment.
//!
//! Who meets them while it reads goes on without them, and has them replaced in the background. The log is walked by a job
//! of its own; the files are written by the partition's worker, under names of their own (see
//! [`super::index_files`]), and count once a manifest names them. Whoever reads in between walks through the log.

use std::sync::Arc;

use super::index_files::write_index_files;
use super::indexes::{IndexImages, LogIndexes};
use super::names::{SegmentFile, SegmentFileName};
use super::partition::{Partition, Request};
use super::rebuild::rebuild_indexes;
use super::scan::header_at;
use super::segment::{OpenSegment, Segment};
use crate::commit::housekeeping::pinned;
use crate::commit::writer::Writer;
use crate::error::{EngineError, ReadError};
use crate::index::OffsetPosition;
use crate::manifest::IndexLengths;

impl Partition {
    /// From where a walk begins that the offset index of a segment sends to `hint`: there, if the batch stands there that the
    /// index says, or else at the segment's start. Blocks.
    pub(crate) fn start_of_walk(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        open: &OpenSegment,
        hint: OffsetPosition,
    ) -> Result<u64, kaas_substrate::Error> {
        if hint.position == 0 {
            return Ok(0);
        }
        let there = header_at(&*open.file, hint.position)?;
        if there.is_ok_and(|header| header.last_offset() == hint.offset) {
            return Ok(hint.position);
        }
        self.offset_index_is_wrong(segment, hint);
        Ok(0)
    }

    /// A reader has found that an entry of a segment's offset index is wrong. Does not block.
    pub(crate) fn offset_index_is_wrong(self: &Arc<Self>, segment: &Arc<Segment>, entry: OffsetPosition) {
        if !segment.mark_indexes_corrupt() {
            return;
        }
        let OffsetPosition { offset, position } = entry;
        tracing::warn!(segment = %segment.name, dir = %self.dir.display(), %offset, position,
            "an entry of an offset index is wrong; reads walk around it, and the index files are built anew");
        let (partition, segment) = (Arc::clone(self), Arc::clone(segment));
        // A closed pool means that the engine is going away.
        let _ = self.shared.io.schedule(move || {
            if let Err(error) = partition.rebuild(&segment) {
                let hint = partition.verify_hint();
                tracing::warn!(segment = %segment.name, dir = %partition.dir.display(), %error, hint,
                    "index files cannot be built anew; reads go on walking through the log");
            }
        });
    }

    /// A segment's index files could not be used (`reason`; none if there were no files), and `open` has indexes that were
    /// built from its log. Does not block.
    pub(crate) fn indexes_were_rebuilt(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        open: &OpenSegment,
        reason: Option<&str>,
    ) {
        if !segment.mark_indexes_corrupt() {
            return;
        }
        if let Some(reason) = reason {
            tracing::warn!(segment = %segment.name, dir = %self.dir.display(), reason,
                "index files are not usable; they are built anew from the log");
        }
        let images = open.indexes.lock().images();
        self.replace_indexes(segment, images);
    }

    /// Walks through a segment, and has its index files replaced.
    fn rebuild(self: &Arc<Self>, segment: &Arc<Segment>) -> Result<(), ReadError> {
        let interval_bytes = self.config().index_interval_bytes;
        let open = self.open_segment(segment)?;
        let segments = Arc::clone(&*self.segments.read());
        let earlier = earlier(&segments, segment);
        let indexes =
            rebuild_indexes(&*self.shared.substrate, segment, &*open.file, earlier, interval_bytes)?;
        self.replace_indexes(segment, indexes.images());
        Ok(())
    }

    fn replace_indexes(self: &Arc<Self>, segment: &Arc<Segment>, images: IndexImages) {
        let mut core = self.core.lock();
        if core.is_leading() {
            core.requests.push_back(Request::Reindex { segment: Arc::clone(segment), images });
            self.kick(&mut core);
        }
    }

    /// On the worker: writes a segment's index files anew, and a manifest that names them. What they replace goes.
    pub(crate) fn reindex_now(
        &self,
        writer: &mut Writer,
        segment: &Arc<Segment>,
        images: &IndexImages,
    ) -> Result<(), EngineError> {
        let segments = Arc::clone(&*self.segments.read());
        let is_in = |list: &[Arc<Segment>]| list.iter().any(|other| Arc::ptr_eq(other, segment));
        if !is_in(&pinned(&segments, writer)) || is_in(&writer.unsealed) {
            // It has been deleted or compacted meanwhile; or its index files are still to be written anyway.
            return Ok(());
        }
        let version = writer.next_index_version();
        let name = segment.name;
        let path = |file| SegmentFileName { segment: name, file, version: Some(version) }.path(&self.dir);
        let none = IndexLengths::default();
        let written = {
            let _call = self.watch_call();
            write_index_files(&*writer.substrate, &self.dir, name, Some(version), images, &none)
        };
        let files = written.inspect_err(|_| writer.garbage.extend(SegmentFile::INDEXES.map(path)))?;
        let state = segment.state();
        let replaced = state.index_files.map(|_| SegmentFile::INDEXES.map(|file| segment.path(file)));
        segment.set_index_files(files);
        if let Some(open) = segment.opened() {
            let interval_bytes = self.config().index_interval_bytes;
            let indexes =
                LogIndexes::closed(name.base_offset, interval_bytes, images, state.end_offset, state.bytes);
            if let Ok(indexes) = indexes {
                *open.indexes.lock() = indexes;
            }
        }
        // They go once a manifest is durable that names the new ones.
        writer.pending_garbage.extend(replaced.into_iter().flatten());
        self.write_manifest_of(writer, &segments, false)?;
        tracing::info!(segment = %name, dir = %self.dir.display(), "index files were built anew");
        self.remove_garbage(writer)
    }

    fn verify_hint(&self) -> String {
        format!("kaas-engine verify {}", self.shared.substrate.root().join(&self.dir).display())
    }
}

/// The segments in front of one. (The list may have been replaced since by one where another segment covers it.)
pub(super) fn earlier<'a>(segments: &'a [Arc<Segment>], segment: &Segment) -> &'a [Arc<Segment>] {
    let before = segments.partition_point(|other| other.end_offset() <= segment.base_offset());
    segments.get(..before).unwrap_or_default()
}
