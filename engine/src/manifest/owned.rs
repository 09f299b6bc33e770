//! Versioned JSON files of a partition, which say whose they are: one that a person, a wrong restore or a copy gone wrong has
//! put into another partition's directory passes its checksum there, and must not be believed.
//!
//! The partition stands in the field `identity`, as in `partition.json`; a file without it is damaged.

use std::path::Path;

use kaas_substrate::Substrate;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Serialize};

use super::versioned::{self, FileKind, FileVersion, VersionedError};
use crate::identity::Identity;

/// What a file says, beside whose it is. Content must not have a field of that name.
#[derive(Serialize)]
struct Owned<'a, T> {
    identity: &'a Identity,
    #[serde(flatten)]
    content: &'a T,
}

#[derive(Deserialize)]
struct Owner {
    identity: Identity,
}

/// The bytes of such a file; `path` is for the error only.
pub(crate) fn encode<T: Serialize>(
    path: &Path,
    kind: FileKind,
    identity: &Identity,
    content: &T,
) -> Result<Vec<u8>, VersionedError> {
    versioned::encode(path, kind.format(), &Owned { identity, content })
}

/// Whose file it is, and what it says. As [`versioned::decode`]; `T` must not refuse unknown fields.
pub(crate) fn decode<T: DeserializeOwned>(
    path: &Path,
    kind: FileKind,
    bytes: &[u8],
) -> Result<(Identity, T), VersionedError> {
    let content = versioned::decode(path, kind.format(), bytes)?;
    let Owner { identity } = versioned::decode(path, kind.format(), bytes)?;
    Ok((identity, content))
}

/// Writes one version. Durable on return. A leader acts on it only after a look at its fence.
pub(crate) fn write<T: Serialize>(
    substrate: &dyn Substrate,
    dir: &Path,
    kind: FileKind,
    version: FileVersion,
    identity: &Identity,
    content: &T,
) -> Result<(), VersionedError> {
    versioned::write(substrate, dir, kind, version, &Owned { identity, content })
}

/// The highest version of `kind` in `dir`; `None` if there is none.
///
/// # Errors
///
/// [`VersionedError::Damaged`] also if it is not that of `identity`. A lower version does not count then either: it may be
/// older than what the foreign file took the place of.
pub(crate) fn read_highest<T: DeserializeOwned>(
    substrate: &dyn Substrate,
    dir: &Path,
    kind: FileKind,
    identity: &Identity,
) -> Result<Option<(FileVersion, T)>, VersionedError> {
    let Some((version, bytes)) = versioned::read_bytes(substrate, dir, kind)? else { return Ok(None) };
    let path = dir.join(kind.file_name(version));
    let (found, content) = decode(&path, kind, &bytes)?;
    match identity.differs_from(&found) {
        Some(reason) => Err(VersionedError::Damaged { path, reason: serde_json::Error::custom(reason) }),
        None => Ok(Some((version, content))),
    }
}
