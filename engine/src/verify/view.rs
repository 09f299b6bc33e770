//! What a partition directory holds, by its names, and what its manifest and checkpoint say: one look.
//!
//! A manifest or checkpoint that says that it is another partition's is told of, and not believed: the next one of this
//! partition counts.
//!
//! A look is not atomic. What a live leader changes meanwhile shows in the names, so a look that is the same before
//! and after a check makes the check's findings certain.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use kaas_substrate::{EntryKind, Substrate, TEMPORARY_PREFIX, read_small};
use serde::de::DeserializeOwned;

use super::finding::{Finding, Kind};
use super::identity::Expected;
use super::repair::quarantine::QUARANTINE_DIR;
use crate::identity::{Identity, PARTITION_FILE, read_partition};
use crate::leadership::{FENCE_NAME, claim_epoch};
use crate::log::{SegmentFile, SegmentFileName, SegmentName};
use crate::manifest::versioned::{FileKind, FileVersion, VersionedError, decode};
use crate::manifest::{CHECKPOINT, Checkpoint, MANIFEST, Manifest, PRODUCER_STATE, owned, seal};
use crate::types::Epoch;

/// Largest manifest, checkpoint or producer snapshot that is read.
pub(super) const FILE_BYTES_MAX: usize = 256 << 20;

/// The names in a partition directory, by what they are.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) logs: BTreeSet<SegmentName>,
    pub(super) indexes: BTreeSet<SegmentFileName>,
    pub(super) manifests: BTreeSet<FileVersion>,
    pub(super) checkpoints: BTreeSet<FileVersion>,
    pub(super) snapshots: BTreeSet<FileVersion>,
    pub(super) claims: BTreeSet<Epoch>,
    pub(super) fence: bool,
    pub(super) identity: bool,
    pub(super) quarantine: bool,
    pub(super) temporary: BTreeSet<OsString>,
    /// What has a name of kaas's files, and is none.
    pub(super) wrong_types: BTreeMap<OsString, EntryKind>,
    pub(super) unknown: BTreeMap<OsString, EntryKind>,
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
            // By the same rules, as if it were a file.
            let mut names = Self::default();
            names.add(EntryKind::File, name.clone());
            let is_ours = names.unknown.is_empty() && names.temporary.is_empty();
            // These two are opened by everybody, who tells of them then.
            if is_ours && !names.fence && !names.identity {
                self.wrong_types.insert(name, kind);
            } else if !is_ours {
                self.unknown.insert(name, kind);
            }
        } else if text.starts_with(TEMPORARY_PREFIX) {
            self.temporary.insert(name);
        } else if let Some(file) = SegmentFileName::parse(text) {
            match file.file {
                SegmentFile::Log => self.logs.insert(file.segment),
                _ => self.indexes.insert(file),
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
            self.unknown.insert(name, kind);
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
    /// Without manifests and checkpoints that are another partition's.
    pub(super) names: Names,
    /// Whose directory it is, by what is around it or else by `partition.json`; `None` if neither says it.
    pub(super) identity: Option<Identity>,
    pub(super) manifest: Read<Manifest>,
    pub(super) checkpoint: Read<Checkpoint>,
    /// Manifests and checkpoints above this partition's own that are another's.
    pub(super) foreign: Vec<Finding>,
}

impl View {
    pub(super) fn read(
        substrate: &dyn Substrate,
        dir: &Path,
        expected: &Expected,
    ) -> Result<Self, kaas_substrate::Error> {
        let mut names = Names::read(substrate, dir)?;
        let identity = expected.identity().or_else(|| read_partition(substrate, dir).ok());
        let mut foreign = Vec::new();
        let look = Look { substrate, dir, identity: identity.as_ref() };
        let manifest = look.newest(MANIFEST, &mut names.manifests, Kind::ManifestDamaged, &mut foreign);
        let checkpoint =
            look.newest(CHECKPOINT, &mut names.checkpoints, Kind::CheckpointDamaged, &mut foreign);
        Ok(Self { names, identity, manifest, checkpoint, foreign })
    }

    /// The manifest, if there is one and it can be read.
    pub(super) fn manifest(&self) -> Option<&Manifest> {
        match &self.manifest {
            Read::Found { content, .. } => Some(content),
            _ => None,
        }
    }

    /// The versions of manifests of another partition that are in the place of this one's newest.
    pub(super) fn foreign_manifests(&self) -> impl Iterator<Item = FileVersion> {
        self.foreign.iter().filter_map(|finding| MANIFEST.parse(finding.file.file_name()?))
    }
}

/// Where versioned files are read.
struct Look<'a> {
    substrate: &'a dyn Substrate,
    dir: &'a Path,
    identity: Option<&'a Identity>,
}

impl Look<'_> {
    /// The highest version that is this partition's; those above are taken out of `versions`.
    fn newest<T: DeserializeOwned>(
        &self,
        kind: FileKind,
        versions: &mut BTreeSet<FileVersion>,
        damage: Kind,
        foreign: &mut Vec<Finding>,
    ) -> Read<T> {
        while let Some(version) = versions.last().copied() {
            match self.read(kind, version, damage) {
                Err(finding) if finding.kind == Kind::ForeignFile => {
                    foreign.push(*finding);
                    versions.pop_last();
                }
                Err(finding) => return Read::Bad(finding),
                Ok(found) => return found,
            }
        }
        Read::Nothing
    }

    fn read<T: DeserializeOwned>(
        &self,
        kind: FileKind,
        version: FileVersion,
        damage: Kind,
    ) -> Result<Read<T>, Box<Finding>> {
        let path = self.dir.join(kind.file_name(version));
        let bytes = read_small(self.substrate, &path, FILE_BYTES_MAX).map_err(|error| {
            let kind = if error.is_not_found() || error.is_too_long() { damage } else { Kind::Unreadable };
            Box::new(Finding::new(kind, &path, error.to_string()))
        })?;
        let (found, content) = owned::decode(&path, kind, &bytes)
            .map_err(|error| Box::new(undecodable(&path, &error, damage)))?;
        if let Some(finding) = foreign(self.identity, &found, &path) {
            return Err(Box::new(finding));
        }
        Ok(Read::Found { version, content, unsealed: unsealed(&path, &bytes).map(Box::new) })
    }
}

/// That the file at `path` says that it is another partition's, if that can be told.
pub(super) fn foreign(identity: Option<&Identity>, found: &Identity, path: &Path) -> Option<Finding> {
    let problem = identity?.differs_from(found)?;
    Some(Finding::new(Kind::ForeignFile, path, problem))
}

/// A JSON file of format 1, or what is wrong with it.
pub(super) fn decode_as<T: DeserializeOwned>(path: &Path, bytes: &[u8], damage: Kind) -> Result<T, Finding> {
    decode(path, 1, bytes).map_err(|error| undecodable(path, &error, damage))
}

fn undecodable(path: &Path, error: &VersionedError, damage: Kind) -> Finding {
    let kind = match error {
        VersionedError::NewerFormat { .. } => Kind::NewerFormat,
        _ => damage,
    };
    let problem = match error {
        VersionedError::Damaged { reason, .. } => format!("it cannot be read: {reason}"),
        VersionedError::NewerFormat { found, supported, .. } => {
            format!("it has format {found}; this version of kaas reads up to {supported}")
        }
        other => other.to_string(),
    };
    Finding::new(kind, path, problem)
}

/// That a JSON file has no checksum.
pub(super) fn unsealed(path: &Path, bytes: &[u8]) -> Option<Finding> {
    (!seal::is_sealed(bytes)).then(|| Finding::new(Kind::NoChecksum, path, "it has no field `crc32c`"))
}

/// The path of a segment's log.
pub(super) fn log_path(dir: &Path, name: SegmentName) -> PathBuf {
    name.path(dir, SegmentFile::Log)
}
