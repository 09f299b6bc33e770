//! Small trees of files as one string of bytes, so that a fuzzer can change them.
//!
//! One item after the other: a byte for the length of its path, the path, two bytes for the length of its content, the content.
//! A path that ends with `/` is a directory; one that ends with `@` is a symbolic link, to what its content says; the checksums of a
//! file whose path ends with `!` are set right. What does not fit is cut short. Mutations of such bytes damage contents, lengths
//! and names.

use std::io::IoSlice;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::checksums;
use kaas_substrate::{EntryKind, Memory, OpenMode, Substrate, read_small};

/// Most items that are unpacked.
const ITEMS_MAX: usize = 64;

/// Ends the path of a symbolic link.
const LINK: char = '@';

/// Ends the path of a file whose checksums are set right.
const RENEWED: char = '!';

/// A file, directory or link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub path: String,
    pub content: Vec<u8>,
}

/// Some of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Archive(pub Vec<Item>);

impl Archive {
    /// Reads what `pack` wrote, or anything.
    pub fn unpack(mut data: &[u8]) -> Self {
        let mut items = Vec::new();
        let take = |data: &mut &[u8], length: usize| {
            let (taken, rest) = data.split_at(length.min(data.len()));
            *data = rest;
            taken.to_vec()
        };
        while items.len() < ITEMS_MAX {
            let Some((length, rest)) = data.split_first() else { break };
            data = rest;
            let path = String::from_utf8_lossy(&take(&mut data, usize::from(*length))).into_owned();
            let length = take(&mut data, 2);
            let length =
                usize::from(*length.first().unwrap_or(&0)) << 8 | usize::from(*length.get(1).unwrap_or(&0));
            let mut content = take(&mut data, length);
            let path = match path.strip_suffix(RENEWED) {
                Some(path) => {
                    checksums::renew(path, &mut content);
                    path.to_owned()
                }
                None => path,
            };
            items.push(Item { path, content });
        }
        Self(items)
    }

    /// The bytes; contents must be shorter than 64 KiB, paths than 256 bytes.
    pub fn pack(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for Item { path, content } in &self.0 {
            bytes.push(u8::try_from(path.len()).expect("a short path"));
            bytes.extend_from_slice(path.as_bytes());
            bytes.extend_from_slice(&u16::try_from(content.len()).expect("a short content").to_be_bytes());
            bytes.extend_from_slice(content);
        }
        bytes
    }

    /// Everything below `dir` of a volume without links, its paths relative to the volume's root.
    pub fn of(volume: &dyn Substrate, dir: &Path) -> Self {
        let mut items = Vec::new();
        for entry in volume.list(dir).expect("a directory in memory") {
            let path = dir.join(&entry.name);
            let name = path.to_str().expect("a name of ours").to_owned();
            if entry.kind == EntryKind::Dir {
                items.push(Item { path: format!("{name}/"), content: Vec::new() });
                items.extend(Self::of(volume, &path).0);
            } else {
                items.push(Item { path: name, content: content(volume, &path) });
            }
        }
        Self(items)
    }

    /// The same below the directory `dir`, which comes with it.
    #[must_use]
    pub fn below(&self, dir: &str) -> Self {
        let mut items = vec![Item { path: format!("{dir}/"), content: Vec::new() }];
        let moved =
            |item: &Item| Item { path: format!("{dir}/{}", item.path), content: item.content.clone() };
        items.extend(self.0.iter().map(moved));
        Self(items)
    }

    /// The same with right checksums, whatever becomes of its bytes.
    #[must_use]
    pub fn renewed(mut self) -> Self {
        for item in self.0.iter_mut().filter(|item| !item.path.ends_with(['/', LINK])) {
            item.path.push(RENEWED);
        }
        self
    }

    pub fn has_links(&self) -> bool {
        self.0.iter().any(|item| item.path.ends_with(LINK))
    }

    /// A volume in memory with these files. What cannot be made is left out, as are links and files that hang in the air.
    pub fn volume(&self) -> Memory {
        // Bounded: a fence may be extended far, a length set to anything.
        let volume = Memory::with_capacity(64 << 20);
        self.write(&volume);
        volume
    }

    /// As [`Self::volume`], on a volume that is there.
    pub fn write(&self, volume: &dyn Substrate) {
        for Item { path, content } in self.0.iter().filter(|item| !item.path.ends_with(LINK)) {
            if let Some(dir) = path.strip_suffix('/') {
                let _ = volume.create_dir(Path::new(dir));
            } else if let Ok(file) = volume.open(Path::new(path), OpenMode::CreateNew) {
                let _ = file.write_all_at(&[IoSlice::new(content)], 0);
            }
        }
    }

    /// Makes the links below the real directory `root`, which has the files already. What they lead to counts from `root` on, and
    /// is always inside of it.
    pub fn link(&self, root: &Path) {
        for Item { path, content } in &self.0 {
            let Some(path) = path.strip_suffix(LINK) else { continue };
            let target = Path::new(std::ffi::OsStr::from_bytes(content));
            let names = |path: &Path| -> PathBuf {
                path.components().filter(|part| matches!(part, Component::Normal(_))).collect()
            };
            // One that cannot be made is left out.
            let _ = std::os::unix::fs::symlink(root.join(names(target)), root.join(names(Path::new(path))));
        }
    }
}

/// A whole file: content, and what its length says about what is too large to be read.
fn content(volume: &dyn Substrate, path: &Path) -> Vec<u8> {
    let length = volume.open(path, OpenMode::Read).and_then(|file| file.length());
    match length {
        Ok(length) if length > u64::from(u16::MAX) => {
            let start = volume.open(path, OpenMode::Read).and_then(|file| {
                let mut start = vec![0; usize::from(u16::MAX) - 8];
                file.read_at(&mut start, 0).map(|read| start[..read].to_vec())
            });
            [&length.to_be_bytes()[..], &start.unwrap_or_default()].concat()
        }
        _ => read_small(volume, path, usize::from(u16::MAX)).unwrap_or_default(),
    }
}
