//! What the partition's worker does for a round: says what may be compacted, and exchanges segments for their copy.
//!
//! # An exchange, step by step
//!
//! | step | a crash, a deposition or an error here leaves |
//! | --- | --- |
//! | the copy and its index files are written, synced, the directory synced (by the round) | files that no manifest names: garbage |
//! | the manifest that names the copy in their place is written, durably | either manifest, and the files of both |
//! | the fence is read: still leading | as above; a later leader has read either manifest, and nothing is unlinked |
//! | the list of segments is replaced: readers find the copy from here on | as above |
//! | the old files are unlinked | files that no manifest names: garbage |
//!
//! Where the manifest or the fence fails, the old segments go on being served, and nothing is unlinked before a later
//! manifest has said that the copy does not count ([`Writer::pending_garbage`]).
//!
//! A reader that holds an old segment open reads on in it. One that comes to open it and finds it gone begins anew
//! with the new list.

use std::sync::Arc;

pub(crate) use super::plan::Compactable;
use crate::commit::housekeeping::pinned;
use crate::commit::writer::Writer;
use crate::completion::Ticket;
use crate::error::EngineError;
use crate::log::partition::{Partition, Request};
use crate::log::segment::Segment;
use crate::planted::{Bug, planted};
use crate::types::Offset;

/// Segments that are to be replaced by a copy, which is durable.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// Neighbours, in order.
    pub(crate) sources: Vec<Arc<Segment>>,
    pub(crate) output: Arc<Segment>,
    /// What is compacted from then on, if this is a round's last exchange.
    pub(crate) first_dirty: Option<Offset>,
}

/// How an exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exchanged {
    Done,
    /// One of the segments has been deleted meanwhile, or the topic is not compacted any more. The copy goes, too.
    NotWanted,
}

impl Partition {
    /// Has segments exchanged. Who asks must not touch the copy's files any more, whatever the answer.
    pub(crate) fn exchange(self: &Arc<Self>, exchange: Exchange) -> Ticket<Result<Exchanged, EngineError>> {
        self.request(|done| Request::Exchange { exchange: Box::new(exchange), done })
    }

    /// On the worker: what may be compacted.
    pub(crate) fn compactable_now(&self, writer: &mut Writer) -> Result<Compactable, EngineError> {
        if !writer.unsealed.is_empty() {
            // A copy takes the place of segments that a manifest pins.
            self.seal(writer, false)?;
        }
        let segments = pinned(&self.segments.read(), writer);
        let core = self.core.lock();
        Ok(Compactable {
            segments,
            log_start: core.status.log_start,
            last_stable: core.status.last_stable,
            first_dirty: Offset(writer.manifest.first_dirty_offset),
        })
    }

    /// On the worker: replaces segments by their copy.
    pub(crate) fn exchange_now(
        &self,
        writer: &mut Writer,
        exchange: &Exchange,
    ) -> Result<Exchanged, EngineError> {
        let Exchange { sources, output, first_dirty } = exchange;
        let segments = Arc::clone(&*self.segments.read());
        let wanted = self.config().compact.then(|| replaced(&segments, sources, output)).flatten();
        let Some(list) = wanted else {
            writer.garbage.extend(output.paths());
            return Ok(Exchanged::NotWanted);
        };
        if let Some(last) = sources.last() {
            output.inherit_fallback_timestamp(last);
        }
        let before = writer.manifest.first_dirty_offset;
        let compacted = first_dirty.map_or(before, |offset| offset.0.max(before));
        writer.manifest.first_dirty_offset = compacted;
        if planted(Bug::UnlinkCompacted) {
            writer.garbage.extend(sources.iter().flat_map(|source| source.paths()));
            self.unlink_garbage(writer);
        }
        let still_leading = || if planted(Bug::ExchangeWithoutFence) { Ok(()) } else { self.still_leading() };
        let settled = self.write_manifest_of(writer, &list, false).and_then(|()| still_leading());
        if let Err(error) = settled {
            writer.manifest.first_dirty_offset = before;
            writer.pending_garbage.extend(output.paths());
            return Err(error);
        }
        let end = output.end_offset();
        *self.segments.write() = Arc::new(list);
        self.tail.lock().forget_below(end);
        for source in sources {
            source.close();
            writer.garbage.extend(source.paths());
        }
        writer.remove_replaced();
        if planted(Bug::ExchangeWithoutFence) {
            self.unlink_garbage(writer);
        }
        // What cannot be removed now is left to the next round of maintenance.
        let _ = self.remove_garbage(writer);
        Ok(Exchanged::Done)
    }
}

/// The list with `output` in the place of `sources`; `None` if they are not in it, one behind the other.
fn replaced(
    segments: &[Arc<Segment>],
    sources: &[Arc<Segment>],
    output: &Arc<Segment>,
) -> Option<Vec<Arc<Segment>>> {
    let first = sources.first()?;
    let at = segments.iter().position(|segment| Arc::ptr_eq(segment, first))?;
    let end = at.checked_add(sources.len())?;
    let here = segments.get(at..end)?;
    let same = here.iter().zip(sources).all(|(segment, source)| Arc::ptr_eq(segment, source));
    same.then(|| {
        let (before, behind) = (segments.get(..at), segments.get(end..));
        let parts = [before.unwrap_or_default(), std::slice::from_ref(output), behind.unwrap_or_default()];
        parts.concat()
    })
}
