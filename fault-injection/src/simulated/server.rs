//! The store that all hosts share: what is in its memory, and what of it is on stable storage.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::ops::Range;

use rustix::io::Errno;

use crate::choice::Choice;
use crate::ranges::{Ranges, pieces};

/// Unit of tearing, in bytes.
pub(super) const SECTOR_BYTES: usize = 512;

/// Number of a file or directory.
pub(super) type Inode = usize;

/// One boot of a host; what it wrote is its own, and not its next boot's.
pub(super) type Client = u32;

pub(super) const ROOT: Inode = 0;

#[derive(Debug, Clone)]
pub(super) enum Node {
    File(Stored),
    Dir(Dir),
}

/// The bytes of a file.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    /// What a read of the server returns.
    pub now: Vec<u8>,
    stable: Vec<u8>,
    /// What is in `now` and not in `stable`, by who wrote it; for truncations, the bytes that they took away.
    unstable: BTreeMap<Client, Ranges>,
    /// Goes up with every change.
    pub version: u64,
    pub created_by: Client,
    /// Nobody will find it again: its handles are stale.
    pub is_gone: bool,
}

/// The names of a directory.
#[derive(Debug, Clone, Default)]
pub(super) struct Dir {
    pub names: BTreeMap<OsString, Inode>,
    /// How to take back the changes since the last sync, oldest first.
    undo: Vec<Undo>,
    pub is_gone: bool,
}

#[derive(Debug, Clone)]
struct Undo {
    by: Client,
    was: Vec<(OsString, Option<Inode>)>,
}

/// Whether a change is durable when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stability {
    Stable,
    /// Until a sync.
    Unstable,
}

fn copy(to: &mut Vec<u8>, from: &[u8], range: &Range<usize>) {
    let Some(bytes) = from.get(range.start..range.end.min(from.len())) else { return };
    let end = range.start + bytes.len();
    if to.len() < end {
        to.resize(end, 0);
    }
    if let Some(target) = to.get_mut(range.start..end) {
        target.copy_from_slice(bytes);
    }
}

/// What is left of a file when `top`, a newer state of it that is `top_length` long, is lost, and any sectors of what
/// had `changed` had reached `base` before; its length is any between the two.
fn survive(base: &mut Vec<u8>, top: &[u8], top_length: usize, changed: &Ranges, choice: &mut Choice) {
    let (short, long) = (base.len().min(top_length), base.len().max(top_length));
    let length = match choice.below(3) {
        0 => base.len(),
        1 => top_length,
        _ => short + choice.below(long - short + 1),
    };
    base.resize(length, 0);
    for range in changed.iter() {
        for sector in pieces(range.start..range.end.min(length), SECTOR_BYTES) {
            if choice.one_in(2) {
                copy(base, top, &sector);
            }
        }
    }
}

impl Stored {
    fn new(created_by: Client) -> Self {
        Self {
            now: Vec::new(),
            stable: Vec::new(),
            unstable: BTreeMap::new(),
            version: 0,
            created_by,
            is_gone: false,
        }
    }

    pub(super) fn write(&mut self, by: Client, at: usize, bytes: &[u8], stability: Stability) {
        let range = at..at + bytes.len();
        if range.is_empty() {
            return;
        }
        self.version += 1;
        if self.now.len() < range.end {
            self.now.resize(range.end, 0);
        }
        if let Some(target) = self.now.get_mut(range.clone()) {
            target.copy_from_slice(bytes);
        }
        match stability {
            Stability::Stable => copy(&mut self.stable, &self.now, &range),
            Stability::Unstable => self.unstable.entry(by).or_default().add(range),
        }
    }

    pub(super) fn resize(&mut self, by: Client, length: usize, stability: Stability) {
        let changed = self.now.len().min(length)..self.now.len().max(length);
        self.version += 1;
        self.now.resize(length, 0);
        match stability {
            Stability::Stable => self.stable.resize(length, 0),
            Stability::Unstable => self.unstable.entry(by).or_default().add(changed),
        }
    }

    /// Makes durable what `client` has written, and nobody else's bytes.
    pub(super) fn commit(&mut self, client: Client) {
        let ranges = self.unstable.remove(&client).unwrap_or_default();
        for range in ranges.iter() {
            copy(&mut self.stable, &self.now, &range);
        }
    }

    /// Whatever had arrived of a host's changes when the host crashed: any sectors, and a length up to `length`.
    pub(super) fn arrived(
        &mut self,
        by: Client,
        bytes: &[u8],
        length: usize,
        changed: &Ranges,
        choice: &mut Choice,
        stability: Stability,
    ) {
        let before = self.now.len();
        survive(&mut self.now, bytes, length, changed, choice);
        self.version += 1;
        let length = self.now.len();
        match stability {
            Stability::Stable => self.stable.clone_from(&self.now),
            Stability::Unstable => {
                let unstable = self.unstable.entry(by).or_default();
                unstable.add_all(changed);
                unstable.add(before.min(length)..before.max(length));
            }
        }
    }

    /// What the server has after it lost its memory.
    fn crash(&mut self, choice: &mut Choice) {
        let mut changed = Ranges::default();
        std::mem::take(&mut self.unstable).values().for_each(|ranges| changed.add_all(ranges));
        if changed.is_empty() {
            return;
        }
        survive(&mut self.stable, &self.now, self.now.len(), &changed, choice);
        self.now.clone_from(&self.stable);
        self.version += 1;
    }
}

impl Dir {
    pub(super) fn get(&self, name: &OsStr) -> Option<Inode> {
        self.names.get(name).copied()
    }

    /// Changes what names stand for, as one change.
    pub(super) fn change(&mut self, by: Client, changes: &[(&OsStr, Option<Inode>)], stability: Stability) {
        let mut was = Vec::new();
        for (name, inode) in changes {
            let before = match inode {
                Some(inode) => self.names.insert((*name).to_owned(), *inode),
                None => self.names.remove(*name),
            };
            if stability == Stability::Unstable {
                was.push(((*name).to_owned(), before));
            }
        }
        if stability == Stability::Unstable {
            self.undo.push(Undo { by, was });
        }
    }

    pub(super) fn sync(&mut self) {
        self.undo.clear();
    }

    /// Takes back any number of the last changes; only such as `may_go`, and nothing that one which stays came after.
    fn crash(&mut self, may_go: impl Fn(Client) -> bool, choice: &mut Choice) {
        let staying = self.undo.iter().rposition(|undo| !may_go(undo.by)).map_or(0, |last| last + 1);
        if staying < self.undo.len() {
            let kept = staying + choice.below(self.undo.len() - staying + 1);
            for undo in self.undo.drain(kept..).rev() {
                for (name, inode) in undo.was.into_iter().rev() {
                    match inode {
                        Some(inode) => self.names.insert(name, inode),
                        None => self.names.remove(&name),
                    };
                }
            }
        }
        self.undo.clear();
    }
}

/// All files and directories, by number; nothing is ever taken out.
#[derive(Debug, Clone)]
pub(super) struct Server {
    nodes: Vec<Node>,
}

impl Server {
    pub(super) fn new() -> Self {
        Self { nodes: vec![Node::Dir(Dir::default())] }
    }

    pub(super) fn dir(&self, inode: Inode) -> Result<&Dir, Errno> {
        match self.nodes.get(inode) {
            Some(Node::Dir(dir)) if dir.is_gone => Err(Errno::STALE),
            Some(Node::Dir(dir)) => Ok(dir),
            _ => Err(Errno::NOTDIR),
        }
    }

    pub(super) fn dir_mut(&mut self, inode: Inode) -> Result<&mut Dir, Errno> {
        match self.nodes.get_mut(inode) {
            Some(Node::Dir(dir)) if dir.is_gone => Err(Errno::STALE),
            Some(Node::Dir(dir)) => Ok(dir),
            _ => Err(Errno::NOTDIR),
        }
    }

    pub(super) fn file(&mut self, inode: Inode) -> Result<&mut Stored, Errno> {
        match self.nodes.get_mut(inode) {
            Some(Node::File(file)) if file.is_gone => Err(Errno::STALE),
            Some(Node::File(file)) => Ok(file),
            _ => Err(Errno::ISDIR),
        }
    }

    pub(super) fn is_dir(&self, inode: Inode) -> bool {
        matches!(self.nodes.get(inode), Some(Node::Dir(_)))
    }

    pub(super) fn is_gone(&self, inode: Inode) -> bool {
        match self.nodes.get(inode) {
            Some(Node::Dir(dir)) => dir.is_gone,
            Some(Node::File(file)) => file.is_gone,
            None => true,
        }
    }

    pub(super) fn add_file(&mut self, by: Client) -> Inode {
        self.nodes.push(Node::File(Stored::new(by)));
        self.nodes.len() - 1
    }

    pub(super) fn add_dir(&mut self) -> Inode {
        self.nodes.push(Node::Dir(Dir::default()));
        self.nodes.len() - 1
    }

    /// Loses what is not on stable storage, except changes of names by clients that are not `lost`: they make them again.
    /// Files without a name are gone, unless they are `held`.
    pub(super) fn crash(
        &mut self,
        lost: impl Fn(Client) -> bool,
        held: impl Fn(Inode) -> bool,
        choice: &mut Choice,
    ) {
        for node in &mut self.nodes {
            match node {
                Node::File(file) => file.crash(choice),
                Node::Dir(dir) => dir.crash(&lost, choice),
            }
        }
        self.forget_the_nameless(held);
    }

    /// A server that starts knows files by their names; what has none is gone.
    fn forget_the_nameless(&mut self, held: impl Fn(Inode) -> bool) {
        let mut has_name = vec![false; self.nodes.len()];
        let mut next = vec![ROOT];
        while let Some(inode) = next.pop() {
            if let Some(has_name) = has_name.get_mut(inode) {
                *has_name = true;
            }
            if let Some(Node::Dir(dir)) = self.nodes.get(inode) {
                next.extend(dir.names.values());
            }
        }
        for (inode, (node, has_name)) in self.nodes.iter_mut().zip(has_name).enumerate() {
            match node {
                Node::File(file) => file.is_gone = !has_name && !held(inode),
                Node::Dir(dir) => dir.is_gone = !has_name,
            }
        }
    }
}
