//! Which segments count, and how far: by the manifest, by the names behind what it pins, by the checkpoint.

use std::collections::BTreeSet;

use kaas_substrate::OpenMode;

use super::PartitionCheck;
use crate::log::SegmentName;
use crate::manifest::{CHECKPOINT, Checkpoint, Manifest, SegmentEntry};
use crate::types::{Epoch, Offset};
use crate::verify::finding::{Finding, Kind};
use crate::verify::segment::{Extent, Planned};
use crate::verify::view::{Read, View, log_path};

impl<'a> PartitionCheck<'a> {
    pub(super) fn plan_pinned(&mut self, manifest: &Manifest, plan: &mut Vec<Planned>) {
        for entry in &manifest.segments {
            let Some(name) = entry.name() else {
                let SegmentEntry { epoch, base_offset, end_offset, .. } = entry;
                let problem = format!(
                    "the segment of epoch {epoch} from offset {base_offset} to {end_offset} is impossible"
                );
                self.tell(Kind::ManifestImpossible, &self.manifest_path(), problem);
                // What follows it cannot be put in order.
                break;
            };
            plan.push(Planned { name, extent: Extent::Pinned(entry.clone()), checkpoint: None });
        }
    }

    pub(super) fn plan_unpinned(&mut self, manifest: &Manifest, plan: &mut Vec<Planned>) {
        let view = self.view;
        for later in view.names.logs.iter().filter(|name| is_later(name, manifest)) {
            let problem = format!("the highest manifest is of epoch {}", manifest.epoch);
            self.tell(Kind::SegmentWithoutManifest, &log_path(self.dir, *later), problem);
        }
        let names: Vec<_> = behind(view, manifest).collect();
        if manifest.released {
            for name in names {
                let path = log_path(self.dir, name);
                let file = self.context.substrate.open(&path, OpenMode::ReadUncached);
                match file.and_then(|file| file.length()) {
                    Ok(0) => self.tell(Kind::EmptySegment, &path, "it has no bytes"),
                    Ok(bytes) => {
                        let problem =
                            format!("{bytes} bytes at offset {} behind a clean close", name.base_offset);
                        self.tell(Kind::SegmentBehindRelease, &path, problem);
                    }
                    Err(error) if error.is_not_found() => {}
                    Err(error) => self.tell(Kind::Unreadable, &path, error.to_string()),
                }
            }
            return;
        }
        let last = names.last().copied();
        if let Some(first) = names.first().filter(|first| first.base_offset.0 != manifest.next_offset) {
            let problem =
                format!("a segment that begins at offset {} is missing before it", manifest.next_offset);
            let finding = Finding::new(Kind::MissingSegment, &log_path(self.dir, *first), problem);
            self.findings.push(finding.offset(Offset(manifest.next_offset)));
        }
        plan.extend(names.into_iter().map(|name| {
            let extent = if Some(name) == last { Extent::Tail } else { Extent::Whole };
            Planned { name, extent, checkpoint: None }
        }));
    }

    pub(super) fn dead_segments(&mut self, plan: &[Planned]) {
        let view = self.view;
        let used: BTreeSet<_> = plan.iter().map(|planned| planned.name).collect();
        let Some(manifest) = view.manifest() else { return };
        let released: BTreeSet<_> = behind(view, manifest).collect();
        for name in &view.names.logs {
            let counts = used.contains(name) || released.contains(name) || is_later(name, manifest);
            if !counts {
                let problem = "the manifest does not count it";
                self.tell(Kind::DeadSegment, &log_path(self.dir, *name), problem);
            }
        }
    }

    /// Attaches the checkpoint to its segment, if it would be used by the next open.
    pub(super) fn usable_checkpoint(
        &mut self,
        manifest: &Manifest,
        plan: &mut [Planned],
    ) -> Option<&'a Checkpoint> {
        let view = self.view;
        let first = plan.iter_mut().find(|planned| !matches!(planned.extent, Extent::Pinned(_)));
        let version = *view.names.checkpoints.last()?;
        let path = self.dir.join(CHECKPOINT.file_name(version));
        let checkpoint = match &view.checkpoint {
            Read::Found { content, unsealed, .. } => {
                self.findings.extend(unsealed.as_deref().cloned());
                content
            }
            Read::Bad(finding) => {
                let mut finding = (**finding).clone();
                if first.is_none() {
                    finding = Finding::new(Kind::CheckpointUnused, &finding.file, finding.problem.clone());
                }
                self.findings.push(finding);
                return None;
            }
            Read::Nothing => return None,
        };
        if version.epoch.get() > manifest.epoch {
            let problem =
                format!("its leader's manifest is gone; the highest one is of epoch {}", manifest.epoch);
            self.tell(Kind::SegmentWithoutManifest, &path, problem);
            return None;
        }
        if checkpoint.epoch != version.epoch.get() {
            let problem = format!("it says epoch {}, its name {}", checkpoint.epoch, version.epoch);
            self.tell(Kind::CheckpointUnused, &path, problem);
        }
        let behind = checkpoint.epoch == manifest.epoch && checkpoint.base_offset >= manifest.next_offset;
        match first {
            Some(first)
                if checkpoint.epoch == manifest.epoch
                    && checkpoint.base_offset == first.name.base_offset.0 =>
            {
                if let Some(reference) = checkpoint.producer_state
                    && reference.offset != checkpoint.offset
                {
                    let problem = format!(
                        "its producer snapshot is of offset {}, it is of offset {}",
                        reference.offset, checkpoint.offset
                    );
                    self.tell(Kind::CheckpointWrong, &path, problem);
                }
                first.checkpoint = Some(checkpoint.clone());
                Some(checkpoint)
            }
            // Its segment was begun behind what the manifest pins: where is it?
            None if behind && !manifest.released => {
                let problem = format!(
                    "the checkpoint says that {} bytes of a segment at offset {} were committed; there is none",
                    checkpoint.position, checkpoint.base_offset
                );
                let epoch = Epoch::new(checkpoint.epoch).unwrap_or(Epoch::NONE);
                let name = SegmentName::appended(epoch, Offset(checkpoint.base_offset));
                self.tell(Kind::MissingSegment, &log_path(self.dir, name), problem);
                None
            }
            _ => None,
        }
    }
}

/// Whether a leader behind the manifest's has appended to it.
fn is_later(name: &SegmentName, manifest: &Manifest) -> bool {
    name.epoch.get() > manifest.epoch && !name.is_rewritten()
}

/// The segments of the manifest's own epoch behind what it pins.
fn behind<'a>(view: &'a View, manifest: &Manifest) -> impl Iterator<Item = SegmentName> + use<'a> {
    let (epoch, next_offset) = (manifest.epoch, manifest.next_offset);
    let names = view.names.logs.iter().copied();
    names.filter(move |name| {
        name.epoch.get() == epoch && !name.is_rewritten() && name.base_offset.0 >= next_offset
    })
}
