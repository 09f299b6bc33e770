//! What the kernel of one host holds in memory: pages and lengths of files, and names.

use std::ops::Range;

use rustix::io::Errno;

use super::server::{Client, Inode, Stability, Stored};
use crate::choice::Choice;
use crate::ranges::Ranges;

pub(super) const PAGE_BYTES: usize = 4096;

/// One file, as its host sees it.
#[derive(Debug, Clone, Default)]
pub(super) struct Cached {
    /// As long as the host believes the file to be.
    bytes: Vec<u8>,
    /// Where `bytes` has something; a read of anything else asks the server.
    valid: Ranges,
    /// Written here and not sent yet.
    dirty: Ranges,
    /// Sent, and not yet known to be durable; kept to be sent again.
    unstable: Ranges,
    /// The length was set here and not sent yet.
    length_is_dirty: bool,
    pub dirty_since_ms: u64,
    /// The server's version of what is valid.
    version: u64,
    /// Until when length and version count as known.
    pub known_until_ms: u64,
    /// Open handles.
    pub opens: usize,
    /// Syncs that have failed, which each handle is told once, and how the last one did.
    pub failed_syncs: u64,
    pub sync_error: Option<Errno>,
    /// The directory and name of the client under which the file lives on until its last handle goes.
    pub silly_name: Option<(Inode, std::ffi::OsString)>,
}

/// What a name stood for when it was looked up, until when that is remembered.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownName {
    pub inode: Option<Inode>,
    pub until_ms: u64,
}

fn pages_of(range: &Range<usize>) -> Range<usize> {
    range.start / PAGE_BYTES * PAGE_BYTES..range.end.next_multiple_of(PAGE_BYTES)
}

impl Cached {
    pub(super) fn of(stored: &Stored) -> Self {
        Self { bytes: vec![0; stored.now.len()], version: stored.version, ..Self::default() }
    }

    pub(super) fn length(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.length_is_dirty || !self.dirty.is_empty()
    }

    /// True if a sync has something to do at the server.
    pub(super) fn needs_sync(&self) -> bool {
        self.is_dirty() || !self.unstable.is_empty()
    }

    pub(super) fn dirty(&self) -> &Ranges {
        &self.dirty
    }

    /// Everything that may be dirty.
    pub(super) const ALL: Range<usize> = 0..usize::MAX;

    /// The part of `range` that is in the file.
    fn clip(&self, range: &Range<usize>) -> Range<usize> {
        let end = range.end.min(self.bytes.len());
        range.start.min(end)..end
    }

    pub(super) fn has(&self, range: &Range<usize>) -> bool {
        self.valid.covers(&self.clip(range))
    }

    /// Gets the pages of `range` that are not there.
    pub(super) fn fetch(&mut self, range: &Range<usize>, stored: &Stored) {
        let pages = pages_of(&self.clip(range));
        for gap in self.valid.gaps(&pages) {
            let end = gap.end.min(self.bytes.len());
            let Some(target) = self.bytes.get_mut(gap.start..end) else { continue };
            let found = stored.now.get(gap.start..end.min(stored.now.len())).unwrap_or_default();
            let (there, behind) = target.split_at_mut(found.len());
            there.copy_from_slice(found);
            behind.fill(0);
        }
        self.valid.add(pages);
    }

    /// What is there of `buf.len()` bytes at `at`; the number of bytes.
    pub(super) fn read(&self, buf: &mut [u8], at: usize) -> usize {
        let from = self.bytes.get(at..).unwrap_or_default();
        let count = from.len().min(buf.len());
        if let (Some(target), Some(from)) = (buf.get_mut(..count), from.get(..count)) {
            target.copy_from_slice(from);
        }
        count
    }

    fn becomes_dirty(&mut self, range: Range<usize>, now_ms: u64) {
        if !self.is_dirty() {
            self.dirty_since_ms = now_ms;
        }
        self.dirty.add(range);
    }

    fn put(&mut self, bytes: &[u8], at: usize) {
        let range = at..at + bytes.len();
        if self.bytes.len() < range.end {
            self.bytes.resize(range.end, 0);
        }
        if let Some(target) = self.bytes.get_mut(range.clone()) {
            target.copy_from_slice(bytes);
        }
        self.valid.add(range);
    }

    pub(super) fn write(&mut self, bytes: &[u8], at: usize, now_ms: u64) {
        self.put(bytes, at);
        self.becomes_dirty(at..at + bytes.len(), now_ms);
    }

    /// Sets the length, to be sent later.
    pub(super) fn set_length(&mut self, length: usize, now_ms: u64) {
        let changed = self.bytes.len().min(length)..self.bytes.len().max(length);
        self.bytes.resize(length, 0);
        self.becomes_dirty(changed.clone(), now_ms);
        self.valid.add(changed);
        self.length_is_dirty = true;
    }

    /// The length that the server has just been given.
    pub(super) fn length_was_set(&mut self, length: usize, stored: &Stored) {
        self.bytes.resize(length, 0);
        for ranges in [&mut self.valid, &mut self.dirty, &mut self.unstable] {
            ranges.remove(&(length..usize::MAX));
        }
        self.version = stored.version;
    }

    /// Sends what is dirty in `range`; other bytes of the same pages go along if `whole_pages`.
    pub(super) fn send(
        &mut self,
        range: &Range<usize>,
        whole_pages: bool,
        stored: &mut Stored,
        client: Client,
        stability: Stability,
    ) {
        let was_newest = stored.version == self.version;
        if self.length_is_dirty {
            stored.resize(client, self.bytes.len(), stability);
            self.length_is_dirty = false;
        }
        for part in self.dirty.within(range) {
            let pages = self.clip(&pages_of(&part));
            let sent = if whole_pages && self.valid.covers(&pages) { pages } else { self.clip(&part) };
            stored.write(client, sent.start, self.bytes.get(sent.clone()).unwrap_or_default(), stability);
            if stability == Stability::Unstable {
                self.unstable.add(sent);
            }
            self.dirty.remove(&part);
        }
        if was_newest {
            self.version = stored.version;
        } else {
            // Somebody else has changed the file as well.
            self.known_until_ms = 0;
        }
    }

    /// A sync has covered everything that was sent.
    pub(super) fn is_durable(&mut self) {
        self.unstable.clear();
    }

    /// The server has lost its memory: what it was not known to have stored is to be sent again.
    pub(super) fn send_again(&mut self, now_ms: u64) {
        if !self.unstable.is_empty() {
            self.dirty_since_ms = now_ms;
            self.dirty.add_all(&std::mem::take(&mut self.unstable));
        }
    }

    /// Dirty pages count as clean from now on, as after a failed sync; what they hold was never sent.
    pub(super) fn forget_dirt(&mut self) {
        self.dirty.clear();
        self.unstable.clear();
        self.length_is_dirty = false;
    }

    /// Drops what another read can bring back.
    pub(super) fn drop_clean(&mut self) {
        self.valid.clear();
        self.valid.add_all(&self.dirty);
        self.valid.add_all(&self.unstable);
    }

    /// Writes exactly these bytes to the server, past the pages that are here.
    pub(super) fn write_around(
        &mut self,
        bytes: &[u8],
        at: usize,
        stored: &mut Stored,
        client: Client,
        stability: Stability,
    ) {
        let (range, was_newest) = (at..at + bytes.len(), stored.version == self.version);
        stored.write(client, at, bytes, stability);
        // Nothing older may be sent over them.
        for ranges in [&mut self.valid, &mut self.dirty, &mut self.unstable] {
            ranges.remove(&range);
        }
        if was_newest {
            self.version = stored.version;
            self.bytes.resize(self.bytes.len().max(range.end), 0);
        }
    }

    /// Keeps what was sent around the cache until it is known to be durable.
    pub(super) fn keep_sent(&mut self, bytes: &[u8], at: usize) {
        self.put(bytes, at);
        self.unstable.add(at..at + bytes.len());
    }

    /// Compares with the server's version, and drops what is older.
    pub(super) fn revalidate(&mut self, stored: &Stored) {
        if self.version == stored.version {
            return;
        }
        self.drop_clean();
        self.version = stored.version;
        if !self.length_is_dirty {
            let own = self.dirty.end().max(self.unstable.end());
            self.bytes.resize(stored.now.len().max(own), 0);
        }
    }

    /// The host has crashed: any of its dirty sectors may have arrived before.
    pub(super) fn crash(
        &self,
        stored: &mut Stored,
        client: Client,
        choice: &mut Choice,
        stability: Stability,
    ) {
        if self.is_dirty() {
            let length =
                if self.length_is_dirty { self.bytes.len() } else { stored.now.len().max(self.dirty.end()) };
            stored.arrived(client, &self.bytes, length, &self.dirty, choice, stability);
        }
    }
}
