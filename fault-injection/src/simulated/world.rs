//! Everything behind the lock: the server, the hosts, the clock; who reaches whom, and what crashes leave.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use rustix::io::Errno;

use super::cache::{Cached, KnownName, PAGE_BYTES};
use super::profile::Profile;
use super::server::{Client, Inode, Server, Stability};
use crate::choice::Choice;
use crate::faulty::Hook;

/// Why a call does not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Errno(Errno),
    /// It would not return before something else happens.
    Blocked,
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

pub(super) type Outcome<T> = std::result::Result<T, Stop>;

/// Who makes a call: a process on one boot of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Who {
    pub host: usize,
    pub client: Client,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Host {
    /// Its present boot, if it runs.
    client: Option<Client>,
    cut_off_since_ms: Option<u64>,
    /// The server refuses this boot.
    is_blocklisted: bool,
    pub files: BTreeMap<Inode, Cached>,
    pub names: BTreeMap<Inode, BTreeMap<OsString, KnownName>>,
}

/// A rename that others see half done (broken P1), until the renamer's next call.
#[derive(Debug, Clone)]
pub(super) struct HalfRename {
    pub by: Client,
    pub dir: Inode,
    /// The name that others see in another way, and what it stands for to them.
    pub name: OsString,
    pub seen_as: Option<Inode>,
}

#[derive(Debug)]
pub(super) struct World {
    pub profile: Profile,
    pub choice: Choice,
    pub clock_ms: u64,
    pub server: Server,
    server_is_up: bool,
    pub hosts: Vec<Host>,
    boots: Client,
    /// Asked before every sync of a file: what the disk says.
    pub disk: Option<Arc<dyn Hook>>,
    pub locks: BTreeMap<Inode, Client>,
    pub half_rename: Option<HalfRename>,
    pub silly_names: u32,
}

impl World {
    pub(super) fn new(profile: Profile, choice: Choice) -> Self {
        Self {
            profile,
            choice,
            clock_ms: 0,
            server: Server::new(),
            server_is_up: true,
            hosts: Vec::new(),
            boots: 0,
            disk: None,
            locks: BTreeMap::new(),
            half_rename: None,
            silly_names: 0,
        }
    }

    /// The same once more, with choices of its own.
    pub(super) fn fork(&self, choice: Choice) -> Self {
        Self {
            profile: self.profile.clone(),
            choice,
            clock_ms: self.clock_ms,
            server: self.server.clone(),
            server_is_up: self.server_is_up,
            hosts: self.hosts.clone(),
            boots: self.boots,
            disk: self.disk.clone(),
            locks: self.locks.clone(),
            half_rename: self.half_rename.clone(),
            silly_names: self.silly_names,
        }
    }

    /// Makes hosts up to this one, which do not run yet.
    fn add_hosts(&mut self, number: usize) {
        if self.hosts.len() <= number {
            self.hosts.resize_with(number + 1, Host::default);
        }
    }

    /// The present boot of a host, which starts if it does not run.
    pub(super) fn boot(&mut self, number: usize) -> Who {
        self.add_hosts(number);
        let next = self.boots + 1;
        let client = self.hosts.get_mut(number).map_or(0, |host| *host.client.get_or_insert(next));
        self.boots = self.boots.max(client);
        Who { host: number, client }
    }

    /// The host of `who`, if it is still that boot.
    pub(super) fn host(&mut self, who: Who) -> Outcome<&mut Host> {
        let host = self.hosts.get_mut(who.host).filter(|host| host.client == Some(who.client));
        host.ok_or(Stop::Errno(Errno::IO))
    }

    /// Begins a call.
    pub(super) fn enter(&mut self, who: Who) -> Outcome<&mut Host> {
        if self.half_rename.as_ref().is_some_and(|half| half.by == who.client) {
            self.half_rename = None;
        }
        self.host(who)
    }

    /// Whether a call that needs the server goes through.
    pub(super) fn reach(&self, who: Who) -> Outcome<()> {
        match self.hosts.get(who.host) {
            Some(host) if host.client != Some(who.client) => Err(Errno::IO.into()),
            Some(host) if host.cut_off_since_ms.is_some() => Err(Stop::Blocked),
            Some(host) if host.is_blocklisted => Err(Errno::SHUTDOWN.into()),
            Some(_) if self.server_is_up => Ok(()),
            Some(_) => Err(Stop::Blocked),
            None => Err(Errno::IO.into()),
        }
    }

    pub(super) fn is_cut_off(&self, number: usize) -> bool {
        !self.server_is_up || self.hosts.get(number).is_some_and(|host| host.cut_off_since_ms.is_some())
    }

    /// What becomes of a write when it is sent.
    pub(super) fn stability(&self) -> Stability {
        if self.profile.unstable_writes || self.profile.broken.sync {
            Stability::Unstable
        } else {
            Stability::Stable
        }
    }

    /// What becomes of a change that the server must store before it answers.
    pub(super) fn synced(&self) -> Stability {
        if self.profile.broken.sync { Stability::Unstable } else { Stability::Stable }
    }

    /// What becomes of a change of names.
    pub(super) fn names_stability(&self) -> Stability {
        if self.profile.metadata_durable_at_once { self.synced() } else { Stability::Unstable }
    }

    pub(super) fn cut_off(&mut self, number: usize) {
        self.add_hosts(number);
        let now_ms = self.clock_ms;
        if let Some(host) = self.hosts.get_mut(number) {
            host.cut_off_since_ms.get_or_insert(now_ms);
        }
    }

    pub(super) fn heal(&mut self, number: usize) {
        let Some(host) = self.hosts.get_mut(number) else { return };
        host.cut_off_since_ms = None;
        let Some(client) = host.client else { return };
        let closed = host.files.iter().filter(|(_, file)| file.opens == 0 && file.silly_name.is_some());
        let closed: Vec<_> = closed.map(|(inode, _)| *inode).collect();
        closed.into_iter().for_each(|inode| self.remove_silly_name(Who { host: number, client }, inode));
    }

    /// Whether a lock that `holder` has may be given to another.
    pub(super) fn has_lost_its_lock(&self, holder: Client) -> bool {
        let host = self.hosts.iter().find(|host| host.client == Some(holder));
        let since = host.map(|host| host.cut_off_since_ms);
        match since {
            None => true,
            Some(None) => false,
            Some(Some(since)) => self.clock_ms.saturating_sub(since) >= self.profile.lock_lease_ms,
        }
    }

    /// Moves the clock: old dirty pages are sent, hosts that are cut off for too long are refused.
    pub(super) fn advance(&mut self, ms: u64) {
        self.clock_ms += ms;
        let (now_ms, limit_ms) = (self.clock_ms, self.profile.blocklist_after_ms);
        for host in &mut self.hosts {
            let silent_ms = host.cut_off_since_ms.map(|since| now_ms.saturating_sub(since));
            if limit_ms.zip(silent_ms).is_some_and(|(limit, silent)| silent >= limit) {
                host.is_blocklisted = host.client.is_some();
                host.files.values_mut().for_each(Cached::forget_dirt);
            }
        }
        let write_back_ms = self.profile.write_back_ms;
        for number in 0..self.hosts.len() {
            self.send_where(number, |file| file.dirty_since_ms + write_back_ms <= now_ms);
        }
    }

    /// Sends the dirty pages of the files that are asked for, if the host reaches the server.
    fn send_where(&mut self, number: usize, wanted: impl Fn(&Cached) -> bool) {
        let Some(host) = self.hosts.get(number) else { return };
        let Some(client) = host.client else { return };
        let who = Who { host: number, client };
        if self.reach(who).is_ok() {
            let files = host.files.iter().filter(|(_, file)| file.is_dirty() && wanted(file));
            let files: Vec<_> = files.map(|(inode, _)| *inode).collect();
            files.into_iter().for_each(|inode| self.send(who, inode, &Cached::ALL));
        }
    }

    /// Sends dirty pages of a file; ones that the server does not take any more (the file is gone) are dropped.
    pub(super) fn send(&mut self, who: Who, inode: Inode, range: &std::ops::Range<usize>) {
        let stability = self.stability();
        let whole_pages = self.profile.whole_page_writes && self.choice.one_in(2);
        let Some(host) = self.hosts.get_mut(who.host) else { return };
        let Some(cached) = host.files.get_mut(&inode).filter(|cached| cached.is_dirty()) else { return };
        match self.server.file(inode) {
            Ok(stored) => cached.send(range, whole_pages, stored, who.client, stability),
            Err(_) => cached.forget_dirt(),
        }
    }

    /// Sends one piece of one dirty file; false if the host has none, or does not reach the server.
    pub(super) fn write_back(&mut self, number: usize) -> bool {
        let Some(host) = self.hosts.get(number) else { return false };
        let Some(client) = host.client else { return false };
        let who = Who { host: number, client };
        let dirty: Vec<_> = host.files.iter().filter(|(_, file)| file.is_dirty()).collect();
        if dirty.is_empty() || self.reach(who).is_err() {
            return false;
        }
        let Some((inode, file)) = dirty.get(self.choice.below(dirty.len())) else { return false };
        let (inode, ranges) = (**inode, file.dirty().iter().collect::<Vec<_>>());
        // One of its ranges, or a part of one that ends or begins where a page does.
        let mut part = ranges.get(self.choice.below(ranges.len())).cloned().unwrap_or(Cached::ALL);
        let cut = (part.start + self.choice.below(part.len())).next_multiple_of(PAGE_BYTES);
        match self.choice.below(3) {
            1 if cut > part.start => part.end = part.end.min(cut),
            2 if cut < part.end => part.start = cut,
            _ => {}
        }
        self.send(who, inode, &part);
        true
    }

    /// A loss of power of one host. Of what it had not sent, any sectors may have arrived if it reached the server.
    pub(super) fn crash_host(&mut self, number: usize) {
        let stability = self.stability();
        let is_cut_off = self.is_cut_off(number);
        let Some(host) = self.hosts.get_mut(number) else { return };
        let Some(client) = host.client.take() else { return };
        for (inode, cached) in std::mem::take(&mut host.files) {
            if !is_cut_off && let Ok(stored) = self.server.file(inode) {
                cached.crash(stored, client, &mut self.choice, stability);
            }
        }
        host.names.clear();
        host.is_blocklisted = false;
        self.end_half_rename(|half| half.by == client);
        if matches!(self.profile.sharing, kaas_substrate::Sharing::OneHost { .. }) {
            self.server.crash(|_| true, |_| false, &mut self.choice);
        }
    }

    /// The server loses its memory, and is not there until it is started. Hosts that run have what they had not committed,
    /// and will send it again.
    pub(super) fn crash_server(&mut self) {
        self.end_half_rename(|_| true);
        let running: Vec<_> = self.hosts.iter().filter_map(|host| host.client).collect();
        let lies = self.profile.broken.sync;
        let (hosts, reclaimed) = (&self.hosts, self.profile.restart_keeps_open_files);
        let is_open = |host: &Host, inode: Inode| host.files.get(&inode).is_some_and(|file| file.opens > 0);
        let held = |inode| reclaimed && hosts.iter().any(|host| is_open(host, inode));
        self.server.crash(|client| lies || !running.contains(&client), held, &mut self.choice);
        for host in &mut self.hosts {
            host.files.values_mut().for_each(|file| file.send_again(self.clock_ms));
        }
        self.server_is_up = false;
    }

    pub(super) fn start_server(&mut self) {
        self.server_is_up = true;
    }

    /// Whoever made a rename that is half done cannot finish it: it is done, or stays as others saw it.
    fn end_half_rename(&mut self, is_lost: impl Fn(&HalfRename) -> bool) {
        let synced = self.synced();
        if let Some(half) = self.half_rename.take_if(|half| is_lost(half))
            && self.choice.one_in(2)
            && let Ok(dir) = self.server.dir_mut(half.dir)
        {
            dir.change(half.by, &[(half.name.as_os_str(), half.seen_as)], synced);
        }
    }

    /// The host forgets what it can get again (memory pressure).
    pub(super) fn drop_caches(&mut self, number: usize) {
        if let Some(host) = self.hosts.get_mut(number) {
            host.files.values_mut().for_each(Cached::drop_clean);
            host.names.clear();
        }
    }

    /// What a name stands for at the server, as `who` sees it.
    pub(super) fn seen(&self, who: Who, dir: Inode, name: &OsStr) -> Outcome<Option<Inode>> {
        let half = self.half_rename.as_ref();
        match half.filter(|half| half.by != who.client && half.dir == dir && half.name == name) {
            Some(half) => Ok(half.seen_as),
            None => Ok(self.server.dir(dir)?.get(name)),
        }
    }
}
