//! The bytes of files: reads and writes through a host's cache or past it, and syncs.

use std::io::IoSlice;
use std::ops::Range;
use std::path::Path;

use rustix::io::Errno;

use super::cache::Cached;
use super::server::{Inode, Stability, Stored};
use super::world::{Outcome, Stop, Who, World};
use crate::faulty::{Point, Verdict, error_number};

/// Longest file in bytes; keeps a wild offset from taking the machine's memory.
const FILE_BYTES_MAX: usize = 1 << 32;

/// How long a cached version is used where uncached reads are broken (P3), at least.
const BROKEN_READ_MS: u64 = 3_000;

/// How a handle reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Cached,
    Uncached,
}

/// The bytes from `offset` on, `count` of them.
pub(super) fn range_at(offset: u64, count: usize) -> Outcome<Range<usize>> {
    let start = usize::try_from(offset).map_err(|_| Errno::FBIG)?;
    let end = start.checked_add(count).ok_or(Errno::FBIG)?;
    Ok(start..end)
}

fn check_size(end: usize) -> Outcome<()> {
    if end > FILE_BYTES_MAX { Err(Errno::FBIG.into()) } else { Ok(()) }
}

impl World {
    /// A file as the host has it, and as the server has it.
    fn both(&mut self, who: Who, inode: Inode) -> Outcome<(&mut Cached, &mut Stored)> {
        let stored = self.server.file(inode)?;
        let host = self.hosts.get_mut(who.host).ok_or(Errno::IO)?;
        Ok((host.files.entry(inode).or_insert_with(|| Cached::of(stored)), stored))
    }

    /// True if a handle of this kind reads past the host's cache.
    fn goes_around(&self, access: Access) -> bool {
        access == Access::Uncached
            && !self.profile.uncached_through_cache
            && !self.profile.broken.uncached_read
    }

    /// Other hosts send what they have changed; what is not sent by a host that is cut off is waited for.
    pub(super) fn recall(&mut self, who: Who, inode: Inode) -> Outcome<()> {
        if !self.profile.coherent || self.profile.broken.uncached_read {
            return Ok(());
        }
        self.reach(who)?;
        for number in (0..self.hosts.len()).filter(|number| *number != who.host) {
            let is_dirty = |host: &super::world::Host| host.files.get(&inode).is_some_and(Cached::is_dirty);
            if self.hosts.get(number).is_some_and(is_dirty) {
                if self.is_cut_off(number) {
                    return Err(Stop::Blocked);
                }
                let other = self.boot(number);
                self.send(other, inode, &Cached::ALL);
            }
        }
        Ok(())
    }

    /// Makes the host look at the file's version, if what it knows is too old.
    fn freshen(&mut self, who: Who, inode: Inode) -> Outcome<()> {
        let now_ms = self.clock_ms;
        if now_ms < self.both(who, inode)?.0.known_until_ms {
            return Ok(());
        }
        self.revalidate(who, inode)
    }

    fn revalidate(&mut self, who: Who, inode: Inode) -> Outcome<()> {
        self.reach(who)?;
        let at_least_ms = if self.profile.broken.uncached_read { BROKEN_READ_MS } else { 0 };
        let until_ms = self.clock_ms + self.profile.attributes_ms.max(at_least_ms);
        let (cached, stored) = self.both(who, inode)?;
        cached.revalidate(stored);
        cached.known_until_ms = until_ms;
        Ok(())
    }

    /// Counts a handle, after the look at the file that an open takes.
    pub(super) fn open(&mut self, who: Who, inode: Inode, access: Access) -> Outcome<()> {
        self.recall(who, inode)?;
        let is_new = !self.host(who)?.files.contains_key(&inode);
        let lies = access == Access::Uncached && self.profile.broken.uncached_read;
        if is_new || self.profile.opens_revalidate && !lies {
            self.revalidate(who, inode)?;
        }
        let drops = access == Access::Uncached && self.profile.uncached_through_cache && !lies;
        let (cached, _) = self.both(who, inode)?;
        if drops {
            cached.drop_clean();
        }
        cached.opens += 1;
        Ok(())
    }

    /// A handle goes. What cannot be done at the server now is left for later.
    pub(super) fn close(&mut self, who: Who, inode: Inode, is_writable: bool) {
        let Ok(host) = self.host(who) else { return };
        let Some(cached) = host.files.get_mut(&inode) else { return };
        cached.opens = cached.opens.saturating_sub(1);
        let (is_last, is_dirty) = (cached.opens == 0, cached.is_dirty());
        if self.profile.closes_flush && is_writable && is_dirty && self.reach(who).is_ok() {
            self.send(who, inode, &Cached::ALL);
            // It is not said that this includes a commit.
            if self.choice.one_in(2) {
                self.commit(who, inode);
            }
        }
        if is_last {
            self.remove_silly_name(who, inode);
        }
    }

    pub(super) fn read(
        &mut self,
        who: Who,
        inode: Inode,
        access: Access,
        buf: &mut [u8],
        offset: u64,
    ) -> Outcome<usize> {
        self.enter(who)?;
        let range = range_at(offset, buf.len())?;
        self.recall(who, inode)?;
        if self.goes_around(access) {
            self.reach(who)?;
            self.send(who, inode, &range);
            let from = self.server.file(inode)?.now.get(range.start..).unwrap_or_default();
            let count = from.len().min(buf.len());
            if let (Some(target), Some(from)) = (buf.get_mut(..count), from.get(..count)) {
                target.copy_from_slice(from);
            }
            return Ok(count);
        }
        self.freshen(who, inode)?;
        let reached = self.reach(who);
        let (cached, stored) = self.both(who, inode)?;
        if !cached.has(&range) {
            reached?;
            cached.fetch(&range, stored);
        }
        Ok(cached.read(buf, range.start))
    }

    /// As [`World::read`], of what is in memory and known to be right; nothing otherwise.
    pub(super) fn read_nowait(
        &mut self,
        who: Who,
        inode: Inode,
        access: Access,
        buf: &mut [u8],
        offset: u64,
    ) -> Outcome<Option<usize>> {
        self.enter(who)?;
        let range = range_at(offset, buf.len())?;
        let now_ms = self.clock_ms;
        let is_one_host = !self.profile.coherent && self.profile.attributes_ms == 0;
        let goes_around = self.goes_around(access);
        let (cached, _) = self.both(who, inode)?;
        let is_known = is_one_host || now_ms < cached.known_until_ms;
        let is_there = !goes_around && is_known && cached.has(&range);
        Ok(is_there.then(|| cached.read(buf, range.start)))
    }

    pub(super) fn length(&mut self, who: Who, inode: Inode, access: Access) -> Outcome<usize> {
        self.enter(who)?;
        self.recall(who, inode)?;
        if self.goes_around(access) {
            self.reach(who)?;
            self.send(who, inode, &Cached::ALL);
            return Ok(self.server.file(inode)?.now.len());
        }
        self.freshen(who, inode)?;
        Ok(self.both(who, inode)?.0.length())
    }

    pub(super) fn write(
        &mut self,
        who: Who,
        inode: Inode,
        access: Access,
        parts: &[IoSlice<'_>],
        offset: u64,
    ) -> Outcome<()> {
        self.enter(who)?;
        let mut at = range_at(offset, parts.iter().map(|part| part.len()).sum())?;
        check_size(at.end)?;
        if self.goes_around(access) {
            self.recall(who, inode)?;
            self.reach(who)?;
            let stability = self.stability();
            let (cached, stored) = self.both(who, inode)?;
            for part in parts.iter().filter(|part| !part.is_empty()) {
                cached.write_around(part, at.start, stored, who.client, stability);
                if stability == Stability::Unstable {
                    cached.keep_sent(part, at.start);
                }
                at.start += part.len();
            }
            return Ok(());
        }
        if self.profile.coherent {
            self.recall(who, inode)?;
            self.revalidate(who, inode)?;
        }
        let now_ms = self.clock_ms;
        let (cached, _) = self.both(who, inode)?;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            cached.write(part, at.start, now_ms);
            at.start += part.len();
        }
        Ok(())
    }

    pub(super) fn set_length(&mut self, who: Who, inode: Inode, length: u64) -> Outcome<()> {
        self.enter(who)?;
        let length = range_at(length, 0)?.start;
        check_size(length)?;
        let (now_ms, synced) = (self.clock_ms, self.synced());
        if !self.profile.metadata_durable_at_once {
            self.recall(who, inode)?;
            self.freshen(who, inode)?;
            self.both(who, inode)?.0.set_length(length, now_ms);
            return Ok(());
        }
        self.reach(who)?;
        self.send(who, inode, &Cached::ALL);
        self.commit(who, inode);
        let (cached, stored) = self.both(who, inode)?;
        stored.resize(who.client, length, synced);
        cached.length_was_set(length, stored);
        Ok(())
    }

    /// What a host has sent becomes durable.
    fn commit(&mut self, who: Who, inode: Inode) {
        let lies = self.profile.broken.sync;
        if let Ok((cached, stored)) = self.both(who, inode) {
            if !lies {
                stored.commit(who.client);
            }
            cached.is_durable();
        }
    }

    /// Makes what this host has written to a file durable.
    pub(super) fn sync(&mut self, who: Who, inode: Inode, point: Point, path: &Path) -> Outcome<()> {
        let needs_sync = self.both(who, inode)?.0.needs_sync();
        match self.reach(who) {
            // Nothing is asked of the server.
            Err(Stop::Blocked) if !needs_sync => return Ok(()),
            reached => reached?,
        }
        let verdict = self.disk.as_ref().map(|disk| disk.before(point, path));
        if let Some(Verdict::Fail(class)) = verdict {
            let errno = Errno::from_raw_os_error(error_number(class));
            let (cached, _) = self.both(who, inode)?;
            cached.forget_dirt();
            cached.failed_syncs += 1;
            cached.sync_error = Some(errno);
            return Err(errno.into());
        }
        // A disk that lies keeps everything in its memory, which here is the host's.
        if needs_sync && (self.profile.unstable_writes || !self.profile.broken.sync) {
            self.send(who, inode, &Cached::ALL);
            self.commit(who, inode);
        }
        Ok(())
    }

    /// How many syncs of the file have failed on this host, and how the last one did.
    pub(super) fn failed_syncs(&mut self, who: Who, inode: Inode) -> (u64, Option<Errno>) {
        self.both(who, inode).map_or((0, None), |(cached, _)| (cached.failed_syncs, cached.sync_error))
    }

    /// Drops what the host has of a file and what another read can bring back.
    pub(super) fn drop_clean(&mut self, who: Who, inode: Inode) -> Outcome<()> {
        self.both(who, inode)?.0.drop_clean();
        Ok(())
    }

    /// Writes past the cache, durably; nothing if the file is not long enough.
    pub(super) fn write_record(&mut self, who: Who, inode: Inode, bytes: &[u8], offset: u64) -> Outcome<()> {
        self.enter(who)?;
        let range = range_at(offset, bytes.len())?;
        self.recall(who, inode)?;
        self.reach(who)?;
        // The length may have been set here and not sent yet.
        self.send(who, inode, &range);
        let (synced, is_through_cache) = (self.synced(), self.profile.uncached_through_cache);
        let (cached, stored) = self.both(who, inode)?;
        let length = if is_through_cache { cached.length() } else { stored.now.len() };
        if range.end > length {
            return Err(Errno::INVAL.into());
        }
        cached.write_around(bytes, range.start, stored, who.client, synced);
        Ok(())
    }

    /// Extends with zeros, durably.
    pub(super) fn extend(&mut self, who: Who, inode: Inode, length: u64) -> Outcome<()> {
        self.enter(who)?;
        self.recall(who, inode)?;
        self.reach(who)?;
        let wanted = range_at(length, 0)?.start;
        check_size(wanted)?;
        if self.length(who, inode, Access::Uncached)? < wanted {
            self.set_length(who, inode, length)?;
            self.send(who, inode, &Cached::ALL);
            self.commit(who, inode);
        }
        Ok(())
    }

    /// Takes the lock on a file, which is created if need be; the file, or nothing if another holds it.
    pub(super) fn try_lock(&mut self, who: Who, path: &Path) -> Outcome<Option<Inode>> {
        let inode = match self.create(who, path) {
            Err(Stop::Errno(Errno::EXIST)) => self.find(who, path)?,
            created => created?,
        };
        if self.locks.get(&inode).is_some_and(|holder| !self.has_lost_its_lock(*holder)) {
            return Ok(None);
        }
        self.locks.insert(inode, who.client);
        Ok(Some(inode))
    }
}
