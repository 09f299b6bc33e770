//! Small files that a leader rewrites: each version is a file of its own, `<kind>.<epoch:08x>.<number>.<extension>`,
//! written once under a temporary name, synced and renamed into place; the highest (epoch, number) counts.
//!
//! An epoch has one owner, so no two processes ever write the same name, and a deposed leader cannot replace what
//! a newer one wrote: whatever it writes has a lower name. Old versions are removed by the leader, after it has
//! checked its fence. All functions block, and may be called from any I/O thread; the versions of one epoch are
//! written by one thread at a time.
//!
//! JSON versions are objects with a `format` number and a checksum ([`super::seal`]); unknown fields are ignored when read,
//! a higher format is refused. A damaged highest version is an error: falling back to a lower one could bring back what was deleted.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use kaas_substrate::{EntryKind, Substrate, TEMPORARY_PREFIX, read_small, write_small};
use serde::de::{DeserializeOwned, Error as _, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::seal;
use crate::planted::{Bug, planted};
use crate::types::Epoch;

/// Largest file that is read.
const MAX_FILE_BYTES: usize = 256 << 20;

/// How often a listing is repeated because the file it named was gone when it was opened (its successor removed it).
const MAX_LISTINGS: usize = 8;

/// What kind of versioned file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileKind {
    name: &'static str,
    extension: &'static str,
    format: u32,
}

impl FileKind {
    /// JSON files `<name>.<epoch>.<number>.json` of format `format`, from 1.
    pub const fn json(name: &'static str, format: u32) -> Self {
        Self { name, extension: "json", format }
    }

    /// Files of another making, for [`read_bytes`] and [`write_bytes`]; their content says its own format.
    pub const fn bytes(name: &'static str, extension: &'static str) -> Self {
        Self { name, extension, format: 0 }
    }

    /// The format that is written, and the highest that is read.
    pub fn format(self) -> u32 {
        self.format
    }

    /// The file name of a version.
    pub fn file_name(self, version: FileVersion) -> String {
        format!("{}.{:08x}.{}.{}", self.name, version.epoch.get(), version.number, self.extension)
    }

    /// The version that a file name stands for; `None` if it is not a name of this kind.
    pub fn parse(self, name: &OsStr) -> Option<FileVersion> {
        let rest = name.to_str()?.strip_prefix(self.name)?.strip_prefix('.')?;
        let (versions, extension) = rest.split_once('.').and_then(|(epoch, rest)| {
            let (number, extension) = rest.split_once('.')?;
            Some(((epoch, number), extension))
        })?;
        let epoch = Epoch::new(u32::from_str_radix(versions.0, 16).ok()?)?;
        let version = FileVersion { epoch, number: versions.1.parse().ok()? };
        // Only the canonical spelling: two names must not stand for one version.
        (extension == self.extension && name.to_str()? == self.file_name(version)).then_some(version)
    }
}

/// Which version of a file: its writer's epoch, then a number that the writer counts up from 0 or 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileVersion {
    pub epoch: Epoch,
    pub number: u64,
}

impl fmt::Display for FileVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.number)
    }
}

/// Why a versioned file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum VersionedError {
    /// The volume failed.
    #[error(transparent)]
    Storage(#[from] kaas_substrate::Error),
    /// The file is there and is not what it should be.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: serde_json::Error },
    /// A newer kaas wrote it.
    #[error("{} has format {found}, this version of kaas reads up to {supported}", path.display())]
    NewerFormat { path: PathBuf, found: u64, supported: u32 },
    /// The value cannot be written as a JSON object.
    #[error("cannot write {}: {reason}", path.display())]
    Unwritable { path: PathBuf, reason: serde_json::Error },
    /// The listed file was gone each time it was opened.
    #[error("the versions of {} keep vanishing", path.display())]
    Vanishing { path: PathBuf },
}

/// All versions of `kind` in `dir`, lowest first.
pub fn list(
    substrate: &dyn Substrate,
    dir: &Path,
    kind: FileKind,
) -> Result<Vec<FileVersion>, kaas_substrate::Error> {
    let mut versions: Vec<_> = substrate
        .list(dir)?
        .into_iter()
        .filter(|entry| entry.kind == EntryKind::File)
        .filter_map(|entry| kind.parse(&entry.name))
        .collect();
    versions.sort_unstable();
    Ok(versions)
}

/// The highest version of `kind` in `dir`, as bytes; `None` if there is none.
pub fn read_bytes(
    substrate: &dyn Substrate,
    dir: &Path,
    kind: FileKind,
) -> Result<Option<(FileVersion, Vec<u8>)>, VersionedError> {
    for _ in 0..MAX_LISTINGS {
        let mut versions = list(substrate, dir, kind)?;
        if planted(Bug::StaleManifest) && versions.len() > 1 {
            versions.pop();
        }
        let Some(version) = versions.pop() else { return Ok(None) };
        match read_small(substrate, &dir.join(kind.file_name(version)), MAX_FILE_BYTES) {
            Ok(bytes) => return Ok(Some((version, bytes))),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(VersionedError::Vanishing { path: dir.join(kind.name) })
}

/// The highest version of `kind` in `dir`; `None` if there is none. `T` must not refuse unknown fields.
pub fn read_highest<T: DeserializeOwned>(
    substrate: &dyn Substrate,
    dir: &Path,
    kind: FileKind,
) -> Result<Option<(FileVersion, T)>, VersionedError> {
    let Some((version, bytes)) = read_bytes(substrate, dir, kind)? else { return Ok(None) };
    let path = dir.join(kind.file_name(version));
    Ok(Some((version, decode(&path, kind.format, &bytes)?)))
}

/// Reads a JSON object with a `format` from 1 to `supported`. A checksum is checked; an object without one is taken as
/// it is. `path` is for the error only.
pub fn decode<T: DeserializeOwned>(path: &Path, supported: u32, bytes: &[u8]) -> Result<T, VersionedError> {
    #[derive(Deserialize)]
    struct Head {
        format: u64,
        crc32c: Option<IgnoredAny>,
    }
    let damaged = |reason| VersionedError::Damaged { path: path.to_owned(), reason };
    let Head { format, crc32c } = serde_json::from_slice(bytes).map_err(damaged)?;
    if crc32c.is_some() && !seal::is_sealed(bytes) {
        return Err(damaged(serde_json::Error::custom("its checksum is wrong")));
    }
    if format > u64::from(supported) {
        return Err(VersionedError::NewerFormat { path: path.to_owned(), found: format, supported });
    }
    if format == 0 {
        return Err(damaged(serde_json::Error::custom("there is no format 0")));
    }
    serde_json::from_slice(bytes).map_err(damaged)
}

/// A JSON object for people: `format` first, then the fields of `value` (a struct or map without such a field), and a
/// checksum at the end.
pub fn encode<T: Serialize>(path: &Path, format: u32, value: &T) -> Result<Vec<u8>, VersionedError> {
    #[derive(Serialize)]
    struct Envelope<'a, T> {
        format: u32,
        #[serde(flatten)]
        value: &'a T,
    }
    let mut bytes = serde_json::to_vec_pretty(&Envelope { format, value })
        .map_err(|reason| VersionedError::Unwritable { path: path.to_owned(), reason })?;
    bytes.truncate(bytes.len().saturating_sub("\n}".len()));
    Ok(seal::seal_document(bytes))
}

/// Writes one version. Durable on return. A leader acts on it only after a look at its fence.
pub fn write<T: Serialize>(
    substrate: &dyn Substrate,
    dir: &Path,
    kind: FileKind,
    version: FileVersion,
    value: &T,
) -> Result<(), VersionedError> {
    let path = dir.join(kind.file_name(version));
    let bytes = encode(&path, kind.format, value)?;
    Ok(write_small(substrate, &path, &bytes)?)
}

/// As [`write`], for content of another making.
pub fn write_bytes(
    substrate: &dyn Substrate,
    dir: &Path,
    kind: FileKind,
    version: FileVersion,
    bytes: &[u8],
) -> Result<(), VersionedError> {
    Ok(write_small(substrate, &dir.join(kind.file_name(version)), bytes)?)
}

/// Removes the versions below `keep`, and what crashes left of them. The caller has written `keep` durably and found
/// itself leading after that. The number of files removed; stops at the first that cannot be.
pub fn remove_below(
    substrate: &dyn Substrate,
    dir: &Path,
    kind: FileKind,
    keep: FileVersion,
) -> Result<usize, kaas_substrate::Error> {
    let mut removed = 0;
    for entry in substrate.list(dir)? {
        let name = entry.name.to_str().unwrap_or_default();
        let version = kind.parse(OsStr::new(name.strip_prefix(TEMPORARY_PREFIX).unwrap_or(name)));
        if entry.kind != EntryKind::File || version.is_none_or(|version| version >= keep) {
            continue;
        }
        match substrate.remove_file(&dir.join(&entry.name)) {
            Ok(()) => removed += 1,
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use kaas_substrate::{Memory, OpenMode};

    use super::*;

    const MANIFEST: FileKind = FileKind::json("manifest", 2);

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Sample {
        log_start: i64,
        name: String,
    }

    fn version(epoch: u32, number: u64) -> FileVersion {
        FileVersion { epoch: Epoch::new(epoch).unwrap(), number }
    }

    fn sample(log_start: i64) -> Sample {
        Sample { log_start, name: "x".to_owned() }
    }

    fn volume() -> Memory {
        let volume = Memory::new();
        volume.create_dir(Path::new("d")).unwrap();
        volume
    }

    fn put(volume: &Memory, name: &str, bytes: &[u8]) {
        write_small(volume, &Path::new("d").join(name), bytes).unwrap();
    }

    #[test]
    fn the_highest_epoch_wins_then_the_highest_number() {
        let (volume, dir) = (volume(), Path::new("d"));
        assert_eq!(read_highest::<Sample>(&volume, dir, MANIFEST).unwrap(), None);
        for (epoch, number, start) in [(2, 9, 1), (16, 2, 2), (16, 10, 3), (2, 100, 4)] {
            write(&volume, dir, MANIFEST, version(epoch, number), &sample(start)).unwrap();
        }
        assert_eq!(read_highest(&volume, dir, MANIFEST).unwrap(), Some((version(16, 10), sample(3))));
        assert_eq!(
            list(&volume, dir, MANIFEST).unwrap(),
            [version(2, 9), version(2, 100), version(16, 2), version(16, 10)]
        );
    }

    #[test]
    fn the_file_is_readable_and_its_format_comes_first() {
        let (volume, dir) = (volume(), Path::new("d"));
        write(&volume, dir, MANIFEST, version(31, 4), &sample(7)).unwrap();
        let bytes = read_small(&volume, Path::new("d/manifest.0000001f.4.json"), 1000).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let fields = "{\n  \"format\": 2,\n  \"log_start\": 7,\n  \"name\": \"x\"";
        assert_eq!(
            text,
            format!("{fields},\n  \"crc32c\": \"{:08x}\"\n}}\n", crc32c::crc32c(fields.as_bytes()))
        );
    }

    #[test]
    fn foreign_names_are_not_versions() {
        for name in [
            "manifest.0000001F.4.json",
            "manifest.1f.4.json",
            "manifest.0000001f.04.json",
            "manifest.0000001f.+4.json",
            "manifest.0000001f.4.json.bak",
            "manifest.0000001f.4.snapshot",
            "~tmp-manifest.0000001f.4.json",
            "manifests.0000001f.4.json",
            "manifest.ffffffff.4.json",
            "manifest",
        ] {
            assert_eq!(MANIFEST.parse(OsStr::new(name)), None, "{name}");
        }
        assert_eq!(MANIFEST.parse(OsStr::new("manifest.0000001f.4.json")), Some(version(31, 4)));
    }

    #[test]
    fn a_damaged_highest_version_is_an_error_not_an_older_state() {
        let (volume, dir) = (volume(), Path::new("d"));
        write(&volume, dir, MANIFEST, version(1, 1), &sample(1)).unwrap();
        for damage in
            [&b"{\"format\": 2, \"log_"[..], b"", b"{\"log_start\": 3}", b"{\"format\":2,\"log_start\":true}"]
        {
            put(&volume, "manifest.00000001.2.json", damage);
            let error = read_highest::<Sample>(&volume, dir, MANIFEST).unwrap_err();
            assert!(matches!(error, VersionedError::Damaged { .. }), "{error}");
        }
    }

    #[test]
    fn every_flipped_bit_is_found_and_files_without_a_checksum_are_read() {
        let (volume, dir) = (volume(), Path::new("d"));
        write(&volume, dir, MANIFEST, version(1, 1), &sample(7)).unwrap();
        let kept = read_small(&volume, Path::new("d/manifest.00000001.1.json"), 1000).unwrap();
        let read = |bytes: &[u8]| decode::<Sample>(Path::new("x"), 2, bytes);
        for at in 0..kept.len() {
            for bit in 0..8 {
                let mut flipped = kept.clone();
                flipped[at] ^= 1 << bit;
                // A field of another name is one that is not known: then the file has no checksum, and is unharmed.
                let harmless = read(&flipped).is_ok_and(|found| found == sample(7));
                assert!(read(&flipped).is_err() || harmless, "bit {bit} of byte {at}");
            }
        }
        assert_eq!(read(br#"{"format": 1, "log_start": 7, "name": "x"}"#).unwrap(), sample(7));
        assert!(read(br#"{"format": 0, "log_start": 7, "name": "x"}"#).is_err());
        assert!(read(br#"{"format": 1, "log_start": 7, "name": "x", "crc32c": "00000000"}"#).is_err());
    }

    #[test]
    fn unknown_fields_are_ignored_and_newer_formats_refused() {
        let (volume, dir) = (volume(), Path::new("d"));
        put(
            &volume,
            "manifest.00000001.1.json",
            br#"{"new": [1], "format": 1, "log_start": 5, "name": "x"}"#,
        );
        assert_eq!(read_highest(&volume, dir, MANIFEST).unwrap(), Some((version(1, 1), sample(5))));
        put(&volume, "manifest.00000001.2.json", br#"{"format": 3}"#);
        let error = read_highest::<Sample>(&volume, dir, MANIFEST).unwrap_err();
        assert!(matches!(error, VersionedError::NewerFormat { found: 3, supported: 2, .. }), "{error}");
    }

    #[test]
    fn removal_keeps_what_counts_and_other_files() {
        let (volume, dir) = (volume(), Path::new("d"));
        for (epoch, number) in [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)] {
            write(&volume, dir, MANIFEST, version(epoch, number), &sample(0)).unwrap();
        }
        for leftover in ["d/~tmp-manifest.00000001.3.json", "d/~tmp-manifest.00000003.2.json", "d/other"] {
            volume.open(Path::new(leftover), OpenMode::CreateNew).unwrap();
        }
        assert_eq!(remove_below(&volume, dir, MANIFEST, version(2, 2)).unwrap(), 4);
        assert_eq!(list(&volume, dir, MANIFEST).unwrap(), [version(2, 2), version(3, 1)]);
        assert_eq!(volume.list(dir).unwrap().len(), 4);
    }

    #[test]
    fn other_content_is_kept_as_it_is() {
        let (volume, dir) = (volume(), Path::new("d"));
        let kind = FileKind::bytes("producer-state", "snapshot");
        write_bytes(&volume, dir, kind, version(1, 0), b"anything\n").unwrap();
        let (found, bytes) = read_bytes(&volume, dir, kind).unwrap().unwrap();
        assert_eq!((found, bytes.as_slice()), (version(1, 0), &b"anything\n"[..]));
        assert!(volume.open(Path::new("d/producer-state.00000001.0.snapshot"), OpenMode::Read).is_ok());
    }
}
