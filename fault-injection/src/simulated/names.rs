//! Names: what a host finds under one, which may be what it found there before.

use std::ffi::OsStr;
use std::path::{Component, Path};

use kaas_substrate::{Entry, EntryKind};
use rustix::io::Errno;

use super::cache::KnownName;
use super::server::{Inode, ROOT};
use super::world::{HalfRename, Outcome, Who, World};

const NAME_BYTES_MAX: usize = 255;

/// The parts of a path, which must be relative and without `..`.
pub(super) fn parts(path: &Path) -> Outcome<Vec<&OsStr>> {
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(part) if part.len() > NAME_BYTES_MAX => return Err(Errno::NAMETOOLONG.into()),
            Component::Normal(part) if !part.as_encoded_bytes().contains(&0) => parts.push(part),
            Component::CurDir => {}
            _ => return Err(Errno::INVAL.into()),
        }
    }
    Ok(parts)
}

/// True for what NFS clients call files that were removed while open.
fn is_silly(name: &OsStr) -> bool {
    let digits = name.as_encoded_bytes().strip_prefix(b".nfs").unwrap_or_default();
    digits.len() >= 16 && digits.iter().all(u8::is_ascii_hexdigit)
}

impl World {
    /// What a name stands for; the host may remember what it stood for before.
    fn look_up(&mut self, who: Who, dir: Inode, name: &OsStr) -> Outcome<Option<Inode>> {
        let now_ms = self.clock_ms;
        let known = self.host(who)?.names.get(&dir).and_then(|names| names.get(name));
        match known.filter(|known| now_ms < known.until_ms).map(|known| known.inode) {
            Some(None) => return Ok(None),
            Some(Some(inode)) if !self.server.is_gone(inode) => {
                let is_still = self.seen(who, dir, name).is_ok_and(|seen| seen == Some(inode));
                if is_still || self.choice.one_in(2) {
                    return Ok(Some(inode));
                }
            }
            _ => {}
        }
        self.reach(who)?;
        let found = self.seen(who, dir, name)?;
        self.remember(who, dir, name, found)?;
        Ok(found)
    }

    /// What the host knows of a name from now on.
    fn remember(&mut self, who: Who, dir: Inode, name: &OsStr, inode: Option<Inode>) -> Outcome<()> {
        let valid_ms = if inode.is_some() { self.profile.known_name_ms } else { self.profile.absent_name_ms };
        if valid_ms > 0 {
            let known = KnownName { inode, until_ms: self.clock_ms + valid_ms };
            self.host(who)?.names.entry(dir).or_default().insert(name.to_owned(), known);
        }
        Ok(())
    }

    fn walk(&mut self, who: Who, parts: &[&OsStr]) -> Outcome<Inode> {
        parts.iter().try_fold(ROOT, |dir, part| {
            let inode = self.look_up(who, dir, part)?.ok_or(Errno::NOENT)?;
            if self.server.is_dir(inode) { Ok(inode) } else { Err(Errno::NOTDIR.into()) }
        })
    }

    /// The directory that holds `path`, and the name in it.
    fn place<'a>(&mut self, who: Who, path: &'a Path) -> Outcome<(Inode, &'a OsStr)> {
        let parts = parts(path)?;
        let (name, parents) = parts.split_last().ok_or(Errno::INVAL)?;
        Ok((self.walk(who, parents)?, name))
    }

    pub(super) fn find_dir(&mut self, who: Who, path: &Path) -> Outcome<Inode> {
        self.enter(who)?;
        self.walk(who, &parts(path)?)
    }

    /// The file of this name.
    pub(super) fn find(&mut self, who: Who, path: &Path) -> Outcome<Inode> {
        self.enter(who)?;
        let (dir, name) = self.place(who, path)?;
        let inode = self.look_up(who, dir, name)?.ok_or(Errno::NOENT)?;
        if self.server.is_dir(inode) { Err(Errno::ISDIR.into()) } else { Ok(inode) }
    }

    /// Creates a file exclusively.
    pub(super) fn create(&mut self, who: Who, path: &Path) -> Outcome<Inode> {
        self.enter(who)?;
        let (dir, name) = self.place(who, path)?;
        self.reach(who)?;
        if let Some(found) = self.seen(who, dir, name)? {
            self.remember(who, dir, name, Some(found))?;
            let by_another = self.server.file(found).is_ok_and(|file| file.created_by != who.client);
            return if self.profile.broken.exclusive_create && by_another && self.choice.one_in(2) {
                Ok(found)
            } else {
                Err(Errno::EXIST.into())
            };
        }
        let inode = self.server.add_file(who.client);
        self.add(who, dir, name, inode)?;
        Ok(inode)
    }

    pub(super) fn create_dir(&mut self, who: Who, path: &Path) -> Outcome<()> {
        self.enter(who)?;
        let (dir, name) = self.place(who, path)?;
        self.reach(who)?;
        if self.seen(who, dir, name)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        let inode = self.server.add_dir();
        self.add(who, dir, name, inode)
    }

    fn add(&mut self, who: Who, dir: Inode, name: &OsStr, inode: Inode) -> Outcome<()> {
        let stability = self.names_stability();
        self.server.dir_mut(dir)?.change(who.client, &[(name, Some(inode))], stability);
        self.remember(who, dir, name, Some(inode))
    }

    pub(super) fn list(&mut self, who: Who, path: &Path) -> Outcome<Vec<Entry>> {
        let dir = self.find_dir(who, path)?;
        self.reach(who)?;
        self.host(who)?.names.remove(&dir);
        let names = &self.server.dir(dir)?.names;
        let entry = |name: &OsStr, inode: Inode| Entry {
            name: name.to_owned(),
            kind: if self.server.is_dir(inode) { EntryKind::Dir } else { EntryKind::File },
        };
        let visible = names.iter().filter(|(name, inode)| !is_silly(name) || self.server.is_dir(**inode));
        let mut entries: Vec<_> = visible.map(|(name, inode)| entry(name, *inode)).collect();
        if let Some(half) = self.half_rename.as_ref().filter(|half| half.by != who.client && half.dir == dir)
        {
            entries.retain(|entry| entry.name != half.name);
            entries.extend(half.seen_as.map(|inode| entry(&half.name, inode)));
        }
        Ok(entries)
    }

    pub(super) fn rename(&mut self, who: Who, from: &Path, to: &Path) -> Outcome<()> {
        self.enter(who)?;
        let (old, new) = (parts(from)?, parts(to)?);
        let (Some((old, parents)), Some((new, new_parents))) = (old.split_last(), new.split_last()) else {
            return Err(Errno::INVAL.into());
        };
        if parents != new_parents {
            return Err(Errno::XDEV.into());
        }
        let dir = self.walk(who, parents)?;
        self.look_up(who, dir, old)?.ok_or(Errno::NOENT)?;
        self.reach(who)?;
        let inode = self.seen(who, dir, old)?.ok_or(Errno::NOENT)?;
        let replaced = self.seen(who, dir, new)?;
        if let Some(replaced) = replaced.filter(|replaced| *replaced != inode) {
            if self.server.is_dir(inode) {
                return Err(Errno::EXIST.into());
            }
            if self.server.is_dir(replaced) {
                return Err(Errno::ISDIR.into());
            }
            self.keep_under_silly_name(who, dir, replaced)?;
        }
        if old == new {
            return Ok(());
        }
        let stability = self.names_stability();
        let server = self.server.dir_mut(dir)?;
        let (gone, come) = ((*old, None), (*new, Some(inode)));
        if self.profile.broken.rename {
            // Both names for a while, or neither; what others see, and what a crash may leave.
            let both = self.choice.one_in(2);
            let steps = if both { [come, gone] } else { [gone, come] };
            steps.iter().for_each(|step| server.change(who.client, &[*step], stability));
            let (name, seen_as) = if both { (*old, Some(inode)) } else { (*new, None) };
            self.half_rename = Some(HalfRename { by: who.client, dir, name: name.to_owned(), seen_as });
        } else {
            server.change(who.client, &[gone, come], stability);
        }
        self.remember(who, dir, old, None)?;
        self.remember(who, dir, new, Some(inode))
    }

    /// A second name for a file; replaces nothing.
    pub(super) fn link(&mut self, who: Who, from: &Path, to: &Path) -> Outcome<()> {
        self.enter(who)?;
        let (dir, old) = self.place(who, from)?;
        let (target, new) = self.place(who, to)?;
        self.look_up(who, dir, old)?.ok_or(Errno::NOENT)?;
        self.reach(who)?;
        let inode = self.seen(who, dir, old)?.ok_or(Errno::NOENT)?;
        if self.server.is_dir(inode) {
            return Err(Errno::PERM.into());
        }
        if let Some(found) = self.seen(who, target, new)? {
            self.remember(who, target, new, Some(found))?;
            return Err(Errno::EXIST.into());
        }
        self.add(who, target, new, inode)
    }

    pub(super) fn remove_file(&mut self, who: Who, path: &Path) -> Outcome<()> {
        self.enter(who)?;
        let (dir, name) = self.place(who, path)?;
        self.look_up(who, dir, name)?.ok_or(Errno::NOENT)?;
        self.reach(who)?;
        let inode = self.seen(who, dir, name)?.ok_or(Errno::NOENT)?;
        if self.server.is_dir(inode) {
            return Err(Errno::ISDIR.into());
        }
        self.keep_under_silly_name(who, dir, inode)?;
        let stability = self.names_stability();
        self.server.dir_mut(dir)?.change(who.client, &[(name, None)], stability);
        self.remember(who, dir, name, None)
    }

    pub(super) fn remove_dir(&mut self, who: Who, path: &Path) -> Outcome<()> {
        self.enter(who)?;
        let (parent, name) = self.place(who, path)?;
        self.look_up(who, parent, name)?.ok_or(Errno::NOENT)?;
        self.reach(who)?;
        let inode = self.seen(who, parent, name)?.ok_or(Errno::NOENT)?;
        let stability = self.names_stability();
        let dir = self.server.dir_mut(inode)?;
        if !dir.names.is_empty() {
            return Err(Errno::NOTEMPTY.into());
        }
        dir.is_gone = true;
        self.server.dir_mut(parent)?.change(who.client, &[(name, None)], stability);
        self.remember(who, parent, name, None)
    }

    /// Whoever has a file open goes on using it when its name goes: its own client gives it another name.
    fn keep_under_silly_name(&mut self, who: Who, dir: Inode, inode: Inode) -> Outcome<()> {
        let stability = self.names_stability();
        self.silly_names += 1;
        let name = std::ffi::OsString::from(format!(".nfs{inode:016x}{:08x}", self.silly_names));
        let is_kept = self.profile.silly_rename;
        let Some(cached) = self.host(who)?.files.get_mut(&inode).filter(|file| is_kept && file.opens > 0)
        else {
            return Ok(());
        };
        cached.silly_name = Some((dir, name.clone()));
        self.server.dir_mut(dir)?.change(who.client, &[(name.as_os_str(), Some(inode))], stability);
        Ok(())
    }

    /// The last handle on a removed file has gone.
    pub(super) fn remove_silly_name(&mut self, who: Who, inode: Inode) {
        let stability = self.names_stability();
        if self.reach(who).is_ok()
            && let Ok(host) = self.host(who)
            && let Some((dir, name)) = host.files.get_mut(&inode).and_then(|file| file.silly_name.take())
            && let Ok(dir) = self.server.dir_mut(dir)
        {
            dir.change(who.client, &[(name.as_os_str(), None)], stability);
        }
    }

    pub(super) fn sync_dir(&mut self, who: Who, dir: Inode) -> Outcome<()> {
        if self.profile.metadata_durable_at_once {
            return Ok(());
        }
        self.reach(who)?;
        if !self.profile.broken.sync {
            self.server.dir_mut(dir)?.sync();
        }
        Ok(())
    }

    /// Everything at and below `top`, deepest first.
    pub(super) fn below(&self, top: Inode) -> Vec<Inode> {
        let mut found = vec![top];
        let mut next = 0;
        while let Some(inode) = found.get(next) {
            if let Ok(dir) = self.server.dir(*inode) {
                found.extend(dir.names.values());
            }
            next += 1;
        }
        found.reverse();
        found
    }
}
