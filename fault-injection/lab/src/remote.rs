//! A substrate whose calls are made by an actor, on another host's mount.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_substrate::{
    Adoption, Entry, EntryKind, Error, File, Kind, LockGuard, OpenMode, Operation, RECORD_BYTES, Record,
    RecordFile, Result, Sharing, Space, Substrate,
};

use crate::client::Actor;
use crate::protocol::{Call, Data, EntryIs, Mode, Value, VolumeCall};

/// A directory of an actor, as a volume.
#[derive(Debug)]
pub struct Remote {
    actor: Arc<Actor>,
    volume: u64,
    root: PathBuf,
    kind: Kind,
}

#[derive(Debug)]
struct Handle {
    actor: Arc<Actor>,
    volume: u64,
    number: u64,
}

impl Remote {
    /// The actor's directory `dir`, created if absent.
    pub fn open(actor: &Arc<Actor>, dir: &str) -> Self {
        let kinds = [Kind::Local, Kind::Memory, Kind::Nfs, Kind::CephFs, Kind::Simulated];
        let kinds: HashMap<_, _> = kinds.into_iter().map(|kind| (format!("{kind:?}"), kind)).collect();
        let Value::Number(volume) = actor.call(Call::Volume { dir: dir.into() }) else { panic!("no number") };
        Self {
            actor: Arc::clone(actor),
            volume,
            root: actor.root().join(dir),
            kind: kinds[actor.volume().kind.as_str()],
        }
    }

    fn call(&self, call: VolumeCall) -> Result<Value> {
        self.actor.volume_call(self.volume, call)
    }

    fn handle(&self, call: VolumeCall) -> Result<Handle> {
        let Value::Number(number) = self.call(call)? else { panic!("no number") };
        Ok(self.numbered(number))
    }

    fn numbered(&self, number: u64) -> Handle {
        Handle { actor: Arc::clone(&self.actor), volume: self.volume, number }
    }
}

impl Substrate for Remote {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn sharing(&self) -> Sharing {
        if self.actor.volume().many_hosts {
            Sharing::ManyHosts
        } else {
            Sharing::OneHost { reason: "the actor's volume is not shared" }
        }
    }

    fn adoption(&self) -> Adoption {
        if self.actor.volume().rewrites { Adoption::Rewrite } else { Adoption::Sync }
    }

    fn root(&self) -> &Path {
        &self.root
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        self.call(VolumeCall::CreateDir { dir: Data::path(dir) }).map(drop)
    }

    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        let Value::Entries(entries) = self.call(VolumeCall::List { dir: Data::path(dir) })? else {
            panic!("no entries")
        };
        let entry = |(name, kind): (Data, EntryIs)| Entry {
            name: OsString::from_vec(name.bytes()),
            kind: match kind {
                EntryIs::File => EntryKind::File,
                EntryIs::Dir => EntryKind::Dir,
                EntryIs::Other => EntryKind::Other,
            },
        };
        Ok(entries.into_iter().map(entry).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.call(VolumeCall::Rename { from: Data::path(from), to: Data::path(to) }).map(drop)
    }

    fn move_file(&self, from: &Path, to: &Path) -> Result<()> {
        self.call(VolumeCall::MoveFile { from: Data::path(from), to: Data::path(to) }).map(drop)
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        self.call(VolumeCall::RemoveFile { path: Data::path(path) }).map(drop)
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.call(VolumeCall::RemoveDir { dir: Data::path(dir) }).map(drop)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.call(VolumeCall::SyncDir { dir: Data::path(dir) }).map(drop)
    }

    fn sync_tree(&self, dir: &Path) -> Result<()> {
        self.call(VolumeCall::SyncTree { dir: Data::path(dir) }).map(drop)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        let mode = match mode {
            OpenMode::Read => Mode::Read,
            OpenMode::ReadUncached => Mode::ReadUncached,
            OpenMode::Write => Mode::Write,
            OpenMode::Rewrite => Mode::Rewrite,
            OpenMode::CreateNew => Mode::CreateNew,
        };
        Ok(Arc::new(self.handle(VolumeCall::Open { path: Data::path(path), mode })?))
    }

    fn make_durable(&self, path: &Path, length: u64) -> Result<()> {
        self.call(VolumeCall::MakeDurable { path: Data::path(path), length }).map(drop)
    }

    fn create_records(&self, path: &Path, records: u64) -> Result<()> {
        self.call(VolumeCall::CreateRecords { path: Data::path(path), records }).map(drop)
    }

    fn open_records(&self, path: &Path) -> Result<Arc<dyn RecordFile>> {
        Ok(Arc::new(self.handle(VolumeCall::OpenRecords { path: Data::path(path) })?))
    }

    fn space(&self) -> Result<Space> {
        match self.call(VolumeCall::Space)? {
            Value::Space { total, available } => Ok(Space { total_bytes: total, available_bytes: available }),
            other => panic!("no space: {other:?}"),
        }
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        let Value::Maybe(number) = self.call(VolumeCall::TryLock { path: Data::path(path) })? else {
            panic!("no answer")
        };
        Ok(number.map(|number| Box::new(self.numbered(number)) as Box<dyn LockGuard>))
    }
}

impl Handle {
    fn call(&self, call: VolumeCall) -> Result<Value> {
        self.actor.volume_call(self.volume, call)
    }

    fn number(&self, call: VolumeCall) -> Result<u64> {
        match self.call(call)? {
            Value::Number(number) => Ok(number),
            other => panic!("no number: {other:?}"),
        }
    }

    fn fill(&self, call: VolumeCall, buf: &mut [u8]) -> Result<Option<usize>> {
        match self.call(call)? {
            Value::Bytes(bytes) => {
                let bytes = bytes.bytes();
                buf[..bytes.len()].copy_from_slice(&bytes);
                Ok(Some(bytes.len()))
            }
            Value::Nothing => Ok(None),
            other => panic!("no bytes: {other:?}"),
        }
    }
}

impl File for Handle {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let call = VolumeCall::ReadAt { handle: self.number, length: buf.len(), offset };
        Ok(self.fill(call, buf)?.unwrap_or(0))
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>> {
        self.fill(VolumeCall::ReadAtNoWait { handle: self.number, length: buf.len(), offset }, buf)
    }

    fn write_all_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<()> {
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.call(VolumeCall::WriteAllAt { handle: self.number, bytes: Data::of(&bytes), offset }).map(drop)
    }

    fn sync_data(&self) -> Result<()> {
        self.call(VolumeCall::SyncData { handle: self.number }).map(drop)
    }

    fn length(&self) -> Result<u64> {
        self.number(VolumeCall::Length { handle: self.number })
    }

    fn next_data(&self, from: u64) -> Result<Option<(u64, u64)>> {
        match self.call(VolumeCall::NextData { handle: self.number, from })? {
            Value::Range(range) => Ok(range),
            other => panic!("no range: {other:?}"),
        }
    }

    fn set_length(&self, length: u64) -> Result<()> {
        self.call(VolumeCall::SetLength { handle: self.number, length }).map(drop)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl RecordFile for Handle {
    fn records(&self) -> Result<u64> {
        self.number(VolumeCall::Records { handle: self.number })
    }

    fn read(&self, first_index: u64, records: &mut [Record]) -> Result<()> {
        let call = VolumeCall::ReadRecords { handle: self.number, first_index, count: records.len() };
        match self.fill(call, records.as_flattened_mut())? {
            Some(read) if read == records.len() * RECORD_BYTES => Ok(()),
            other => {
                let source = std::io::Error::other(format!("{other:?} bytes"));
                Err(Error::new(Operation::Read, Path::new(""), source))
            }
        }
    }

    fn write(&self, first_index: u64, records: &[Record]) -> Result<()> {
        let bytes = Data::of(records.as_flattened());
        self.call(VolumeCall::WriteRecords { handle: self.number, first_index, bytes }).map(drop)
    }

    fn extend(&self, records: u64) -> Result<()> {
        self.call(VolumeCall::ExtendRecords { handle: self.number, records }).map(drop)
    }
}

impl LockGuard for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // An actor that is gone has closed everything.
        let _ = self.call(VolumeCall::Release { handle: self.number });
    }
}
