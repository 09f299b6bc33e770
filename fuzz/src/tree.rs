//! What a directory holds, to be compared with what it holds later.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kaas_substrate::Substrate;

use crate::Archive;

/// Every name below a directory: directories end with `/`, links with `@`; and what is in it.
pub type Tree = BTreeMap<String, Vec<u8>>;

/// All of a volume without links.
pub fn of_volume(volume: &dyn Substrate) -> Tree {
    Archive::of(volume, Path::new("")).0.into_iter().map(|item| (item.path, item.content)).collect()
}

/// Everything below a real directory; links are not followed.
pub fn of_directory(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(root.join(&dir)).expect("a directory") {
            let entry = entry.expect("an entry");
            let (path, kind) = (dir.join(entry.file_name()), entry.file_type().expect("a kind"));
            let name = path.to_string_lossy().into_owned();
            if kind.is_dir() {
                tree.insert(format!("{name}/"), Vec::new());
                dirs.push(path);
            } else if kind.is_symlink() {
                let target = std::fs::read_link(entry.path()).expect("a link");
                tree.insert(format!("{name}@"), target.as_os_str().as_bytes().to_vec());
            } else {
                tree.insert(name, std::fs::read(entry.path()).expect("a file"));
            }
        }
    }
    tree
}

/// What is not below any of these directories.
pub fn outside(tree: &Tree, dirs: &[PathBuf]) -> Tree {
    let is_outside = |path: &str| !dirs.iter().any(|dir| Path::new(path).starts_with(dir));
    tree.iter()
        .filter(|(path, _)| is_outside(path))
        .map(|(path, bytes)| (path.clone(), bytes.clone()))
        .collect()
}

/// Panics with the names that differ.
#[track_caller]
pub fn assert_same(before: &Tree, after: &Tree, what: &str) {
    let names = before.keys().chain(after.keys());
    let changed: std::collections::BTreeSet<_> =
        names.filter(|name| before.get(*name) != after.get(*name)).collect();
    assert!(changed.is_empty(), "{what}: {changed:?}");
}
