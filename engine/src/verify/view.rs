//! What a partition directory holds, by its names, and what its manifest and checkpoint say: one look.
//!
//! A look is not atomic. What a live leader changes meanwhile shows in the names, so a look that is the same before
//! and after a check makes the check's findings certain.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use kaas_substrate::{EntryKind, Substrate, TEMPORARY_PREFIX, read_small};

use super::finding::{Finding, Kind};
use super::repair::quarantine::QUARANTINE_DIR;
use crate::identity::PARTITION_FILE;
use crate::leadership::{FENCE_NAME, claim_epoch};
use crate::log::{SegmentFile, SegmentName};
use crate::manifest::seal;
use crate::manifest::versioned::{FileKind, FileVersion, VersionedError, decode};
use crate::manifest::{CHECKPOINT, Checkpoint, MANIFEST, Manifest, PRODUCER_STATE};
use crate::types::Epoch;

/// Largest manifest, checkpoint or producer snapshot that is read.
pub(super) const FILE_BYTES_MAX: usize = 256 << 20;

/// The names in a partition directory, by what they are.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) logs: BTreeSet<SegmentName>,
    pub(super) indexes: BTreeSet<(SegmentName, &'static str)>,
    pub(super) manifests: BTreeSet<FileVersion>,
    pub(super) checkpoints: BTreeSet<FileVersion>,
    pub(super) snapshots: BTreeSet<FileVersion>,
    pub(super) claims: BTreeSet<Epoch>,
    pub(super) fence: bool,
    pub(super) identity: bool,
    pub(super) quarantine: bool,
    pub(super) temporary: BTreeSet<OsString>,
    pub(super) unknown: BTreeSet<OsString>,
}

impl Names {
    pub(super) fn read(substrate: &dyn Substrate, dir: &Path) -> Result<Self, kaas_substrate::Error> {
        let mut names = Self::default();
        for entry in substrate.list(dir)? {
            names.add(entry.kind, entry.name);
        }
        Ok(names)
    }

    /// The highest epoch whose leader left a file behind.
    pub(super) fn written(&self) -> Option<Epoch> {
        let versions = [&self.manifests, &self.checkpoints, &self.snapshots].into_iter().flatten();
        versions.map(|version| version.epoch).chain(self.logs.iter().map(|name| name.epoch)).max()
    }

    fn add(&mut self, kind: EntryKind, name: OsString) {
        let text = name.to_str().unwrap_or_default();
        if kind == EntryKind::Dir && text == QUARANTINE_DIR {
            self.quarantine = true;
        } else if kind != EntryKind::File {
            self.unknown.insert(name);
        } else if text.starts_with(TEMPORARY_PREFIX) {
            self.temporary.insert(name);
        } else if let Some((segment, file)) = SegmentName::parse(text) {
            match file {
                SegmentFile::Log => self.logs.insert(segment),
                SegmentFile::OffsetIndex => self.indexes.insert((segment, "index")),
                SegmentFile::TimeIndex => self.indexes.insert((segment, "timeindex")),
                SegmentFile::TxnIndex => self.indexes.insert((segment, "txnindex")),
            };
        } else if let Some(version) = MANIFEST.parse(&name) {
            self.manifests.insert(version);
        } else if let Some(version) = CHECKPOINT.parse(&name) {
            self.checkpoints.insert(version);
        } else if let Some(version) = PRODUCER_STATE.parse(&name) {
            self.snapshots.insert(version);
        } else if let Some(epoch) = claim_epoch(&name) {
            self.claims.insert(epoch);
        } else if text == FENCE_NAME {
            self.fence = true;
        } else if text == PARTITION_FILE {
            self.identity = true;
        } else {
            self.unknown.insert(name);
        }
    }
}

/// A versioned file: what it says, or the finding that keeps it from saying anything.
#[derive(Debug, PartialEq)]
pub(super) enum Read<T> {
    Nothing,
    Found { version: FileVersion, content: T, unsealed: Option<Box<Finding>> },
    Bad(Box<Finding>),
}

/// One look at a partition directory.
#[derive(Debug, PartialEq)]
pub(super) struct View {
    pub(super) names: Names,
    pub(super) manifest: Read<Manifest>,
    pub(super) checkpoint: Read<Checkpoint>,
}

impl View {
    pub(super) fn read(substrate: &dyn Substrate, dir: &Path) -> Result<Self, kaas_substrate::Error> {
        let names = Names::read(substrate, dir)?;
        let manifest = read(substrate, dir, MANIFEST, names.manifests.last(), Kind::ManifestDamaged);
        let checkpoint = read(substrate, dir, CHECKPOINT, names.checkpoints.last(), Kind::CheckpointDamaged);
        Ok(Self { names, manifest, checkpoint })
    }

    /// The manifest, if there is one and it can be read.
    pub(super) fn manifest(&self) -> Option<&Manifest> {
        match &self.manifest {
            Read::Found { content, .. } => Some(content),
            _ => None,
        }
    }
}

fn read<T: serde::de::DeserializeOwned>(
    substrate: &dyn Substrate,
    dir: &Path,
    kind: FileKind,
    version: Option<&FileVersion>,
    damage: Kind,
) -> Read<T> {
    let Some(version) = version else { return Read::Nothing };
    let path = dir.join(kind.file_name(*version));
    match read_small(substrate, &path, FILE_BYTES_MAX) {
        Err(error) => {
            let kind = if error.is_not_found() { damage } else { Kind::Unreadable };
            Read::Bad(Box::new(Finding::new(kind, &path, error.to_string())))
        }
        Ok(bytes) => match decode_as(&path, &bytes, damage) {
            Ok(content) => {
                let unsealed = unsealed(&path, &bytes).map(Box::new);
                Read::Found { version: *version, content, unsealed }
            }
            Err(finding) => Read::Bad(Box::new(finding)),
        },
    }
}

/// A JSON file of format 1, or what is wrong with it.
pub(super) fn decode_as<T: serde::de::DeserializeOwned>(
    path: &Path,
    bytes: &[u8],
    damage: Kind,
) -> Result<T, Finding> {
    decode(path, 1, bytes).map_err(|error| {
        let kind = match error {
            VersionedError::NewerFormat { .. } => Kind::NewerFormat,
            _ => damage,
        };
        let problem = match &error {
            VersionedError::Damaged { reason, .. } => format!("it cannot be read: {reason}"),
            VersionedError::NewerFormat { found, supported, .. } => {
                format!("it has format {found}; this version of kaas reads up to {supported}")
            }
            other => other.to_string(),
        };
        Finding::new(kind, path, problem)
    })
}

/// That a JSON file has no checksum.
pub(super) fn unsealed(path: &Path, bytes: &[u8]) -> Option<Finding> {
    (!seal::is_sealed(bytes)).then(|| Finding::new(Kind::NoChecksum, path, "it has no field `crc32c`"))
}

/// The path of a segment's log.
pub(super) fn log_path(dir: &Path, name: SegmentName) -> PathBuf {
    name.path(dir, SegmentFile::Log)
}
