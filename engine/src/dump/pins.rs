//! How much of each segment counts, by the newest manifest of its directory: what stands behind it is never served.

use std::path::{Path, PathBuf};

use kaas_substrate::Substrate;

use crate::identity::read_partition;
use crate::log::{SegmentFile, SegmentFileName};
use crate::manifest::{self, IndexLengths, MANIFEST, Manifest, owned, versioned};

/// The manifest of a directory, if one can be read, and is not that of another partition.
pub(super) struct Pins {
    dir: PathBuf,
    manifest: Option<Manifest>,
}

impl Pins {
    pub(super) fn read(substrate: &dyn Substrate, dir: &Path) -> Self {
        let manifest = match read_partition(substrate, dir) {
            Ok(identity) => manifest::read_newest(substrate, dir, &identity).ok().flatten(),
            // Nothing says whose directory it is: files that somebody has copied here.
            Err(error) if error.is_storage_not_found() => unchecked(substrate, dir),
            Err(_) => None,
        };
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

fn unchecked(substrate: &dyn Substrate, dir: &Path) -> Option<Manifest> {
    let (version, bytes) = versioned::read_bytes(substrate, dir, MANIFEST).ok().flatten()?;
    owned::decode(&dir.join(MANIFEST.file_name(version)), MANIFEST, &bytes).ok().map(|(_, manifest)| manifest)
}

#[cfg(test)]
mod tests {
    use kaas_substrate::Memory;

    use super::*;
    use crate::identity::{Identity, write_partition};
    use crate::manifest::versioned::FileVersion;
    use crate::types::Epoch;

    #[test]
    fn a_manifest_of_another_partition_pins_nothing() {
        let (volume, dir) = (Memory::new(), Path::new("0"));
        let of = |partition| Identity { topic: "orders".to_owned(), partition, topic_id: [7; 16] };
        let put = |number, identity: &Identity| {
            let version = FileVersion { epoch: Epoch::new(1).unwrap(), number };
            let manifest = Manifest {
                epoch: 1,
                log_start_offset: 0,
                high_watermark: 0,
                next_offset: 0,
                released: false,
                segments: Vec::new(),
                producer_state: None,
                first_dirty_offset: 0,
            };
            owned::write(&volume, dir, MANIFEST, version, identity, &manifest).unwrap();
        };
        volume.create_dir(dir).unwrap();
        put(1, &of(1));
        assert!(Pins::read(&volume, dir).manifest.is_some(), "nothing says whose directory it is");
        write_partition(&volume, dir, &of(0), Epoch::NONE).unwrap();
        assert!(Pins::read(&volume, dir).manifest.is_none());
        put(2, &of(0));
        assert!(Pins::read(&volume, dir).manifest.is_some());
    }
}
