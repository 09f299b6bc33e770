//! The names of a volume in memory, with the rules of a Linux directory tree.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path};
use std::sync::Arc;

use rustix::io::Errno;

use super::Inode;

/// Longest name in bytes (NAME_MAX on Linux).
const MAX_NAME_BYTES: usize = 255;

/// A directory.
#[derive(Debug, Default)]
pub(super) struct Dir {
    entries: BTreeMap<OsString, Node>,
}

/// What a name stands for.
#[derive(Debug)]
pub(super) enum Node {
    File(Arc<Inode>),
    Dir(Dir),
}

/// Checks a single name as the system would.
pub(super) fn check_name(name: &OsStr) -> Result<(), Errno> {
    if name.len() > MAX_NAME_BYTES {
        return Err(Errno::NAMETOOLONG);
    }
    if name.as_encoded_bytes().contains(&0) {
        return Err(Errno::INVAL);
    }
    Ok(())
}

impl Dir {
    /// The directory at `path` below this one.
    pub(super) fn descend(&mut self, path: &Path) -> Result<&mut Self, Errno> {
        let mut dir = self;
        for component in path.components() {
            let Component::Normal(name) = component else { continue };
            check_name(name)?;
            dir = match dir.entries.get_mut(name) {
                Some(Node::Dir(next)) => next,
                Some(Node::File(_)) => return Err(Errno::NOTDIR),
                None => return Err(Errno::NOENT),
            };
        }
        Ok(dir)
    }

    pub(super) fn get(&self, name: &OsStr) -> Option<&Node> {
        self.entries.get(name)
    }

    pub(super) fn iter(&self) -> btree_map::Iter<'_, OsString, Node> {
        self.entries.iter()
    }

    /// Adds a name; `EXIST` if it is taken.
    pub(super) fn insert_new(&mut self, name: &OsStr, node: Node) -> Result<(), Errno> {
        match self.entries.entry(name.to_owned()) {
            btree_map::Entry::Occupied(_) => Err(Errno::EXIST),
            btree_map::Entry::Vacant(entry) => {
                entry.insert(node);
                Ok(())
            }
        }
    }

    /// Renames; a file replaces a file, a directory replaces nothing.
    pub(super) fn rename(&mut self, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
        match (self.entries.get(from), self.entries.get(to)) {
            (None, _) => return Err(Errno::NOENT),
            (Some(Node::Dir(_)), Some(_)) => return Err(Errno::EXIST),
            (Some(Node::File(_)), Some(Node::Dir(_))) => return Err(Errno::ISDIR),
            _ => {}
        }
        if let Some(node) = self.entries.remove(from) {
            self.entries.insert(to.to_owned(), node);
        }
        Ok(())
    }

    pub(super) fn remove_file(&mut self, name: &OsStr) -> Result<(), Errno> {
        match self.entries.get(name) {
            Some(Node::File(_)) => {
                self.entries.remove(name);
                Ok(())
            }
            Some(Node::Dir(_)) => Err(Errno::ISDIR),
            None => Err(Errno::NOENT),
        }
    }

    pub(super) fn remove_dir(&mut self, name: &OsStr) -> Result<(), Errno> {
        match self.entries.get(name) {
            Some(Node::Dir(dir)) if dir.entries.is_empty() => {
                self.entries.remove(name);
                Ok(())
            }
            Some(Node::Dir(_)) => Err(Errno::NOTEMPTY),
            Some(Node::File(_)) => Err(Errno::NOTDIR),
            None => Err(Errno::NOENT),
        }
    }
}
