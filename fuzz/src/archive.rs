//! Small trees of files as one string of bytes, so that a fuzzer can change them.
//!
//! One item after the other: a byte for the length of its path, the path (a directory if it ends with `/`), two bytes for the length
//! of its content, the content. What does not fit is cut short. Mutations of such bytes damage contents, lengths and names.

use std::io::IoSlice;
use std::path::Path;

use kaas_substrate::{Memory, OpenMode, Substrate};

/// Most items that are unpacked.
const ITEMS_MAX: usize = 64;

/// A file or directory.
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
            let content = take(&mut data, length);
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

    /// Everything below `dir` of a volume, but what is too large.
    pub fn of(volume: &dyn Substrate, dir: &Path) -> Self {
        let mut items = Vec::new();
        for entry in volume.list(dir).expect("a directory in memory") {
            let path = dir.join(&entry.name);
            let name = path.to_str().expect("a name of ours").to_owned();
            if entry.kind == kaas_substrate::EntryKind::Dir {
                items.push(Item { path: format!("{name}/"), content: Vec::new() });
                items.extend(Self::of(volume, &path).0);
            } else {
                let content =
                    kaas_substrate::read_small(volume, &path, usize::from(u16::MAX)).unwrap_or_default();
                items.push(Item { path: name, content });
            }
        }
        Self(items)
    }

    /// A volume with these files; what cannot be made is left out, as are files that hang in the air.
    pub fn volume(&self) -> Memory {
        // Bounded: a fence may be extended far, a length set to anything.
        let volume = Memory::with_capacity(64 << 20);
        for Item { path, content } in &self.0 {
            if let Some(dir) = path.strip_suffix('/') {
                let _ = volume.create_dir(Path::new(dir));
            } else if let Ok(file) = volume.open(Path::new(path), OpenMode::CreateNew) {
                let _ = file.write_all_at(&[IoSlice::new(content)], 0);
            }
        }
        volume
    }
}
