//! How much of each segment counts, by the newest manifest of its directory: what stands behind it is never served.

use std::path::{Path, PathBuf};

use kaas_substrate::Substrate;

use crate::log::{SegmentFile, SegmentFileName};
use crate::manifest::versioned;
use crate::manifest::{IndexLengths, MANIFEST, Manifest};

/// The manifest of a directory, if one can be read.
pub(super) struct Pins {
    dir: PathBuf,
    manifest: Option<Manifest>,
}

impl Pins {
    pub(super) fn read(substrate: &dyn Substrate, dir: &Path) -> Self {
        let newest = versioned::read_bytes(substrate, dir, MANIFEST).ok().flatten();
        let manifest = newest.and_then(|(version, bytes)| {
            versioned::decode(&dir.join(MANIFEST.file_name(version)), MANIFEST.format(), &bytes).ok()
        });
        Self { dir: dir.to_owned(), manifest }
    }

    /// Whether they are those of `dir`.
    pub(super) fn are_of(&self, dir: &Path) -> bool {
        self.dir == dir
    }

    /// The bytes of a file of a segment that count; `None` if all may, or it cannot be told.
    pub(super) fn bytes(&self, name: &str) -> Option<u64> {
        let manifest = self.manifest.as_ref()?;
        let SegmentFileName { segment, file, version } = SegmentFileName::parse(name)?;
        let Some(entry) = manifest.segments.iter().find(|entry| entry.name() == Some(segment)) else {
            // It may have been appended to since the manifest was written.
            let counts = !segment.is_rewritten()
                && (segment.epoch.get() > manifest.epoch
                    || (segment.epoch.get() == manifest.epoch
                        && segment.base_offset.0 >= manifest.next_offset));
            return (!counts).then_some(0);
        };
        let IndexLengths { offset_index_bytes, time_index_bytes, txn_index_bytes } =
            match (file, entry.indexes) {
                (SegmentFile::Log, _) => return Some(entry.bytes),
                // Others have been written in its place.
                (_, Some(files)) if files.version != version => return Some(0),
                (_, files) => files?.lengths,
            };
        match file {
            SegmentFile::Log => None,
            SegmentFile::OffsetIndex => Some(offset_index_bytes),
            SegmentFile::TimeIndex => Some(time_index_bytes),
            SegmentFile::TxnIndex => Some(txn_index_bytes),
        }
    }
}
