//! Single calls to the substrate, for a test on another host.

use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::Arc;

use kaas_substrate::{
    EntryKind, Error, File, LockGuard, OpenMode, RECORD_BYTES, Record, RecordFile, Result, Space, Substrate,
};
use parking_lot::Mutex;

use super::Opener;
use crate::protocol::{Data, EntryIs, Failure, Mode, Value, VolumeCall};

/// The volumes that an actor has opened, by number.
#[derive(Debug)]
pub(super) struct Volumes {
    opener: Opener,
    open: Mutex<Vec<Arc<Volume>>>,
}

impl Volumes {
    pub(super) fn new(opener: Opener, root: Arc<dyn Substrate>) -> Self {
        Self { opener, open: Mutex::new(vec![Arc::new(Volume::new(root))]) }
    }

    pub(super) fn open(&self, dir: &str) -> std::result::Result<Value, Failure> {
        let volume = Arc::new(Volume::new(self.opener.open(dir)?));
        let mut open = self.open.lock();
        open.push(volume);
        Ok(Value::Number(open.len() as u64 - 1))
    }

    pub(super) fn get(&self, number: u64) -> Arc<Volume> {
        Arc::clone(&self.open.lock()[usize::try_from(number).unwrap_or(usize::MAX)])
    }
}

/// A substrate and what is open on it.
#[derive(Debug)]
pub(super) struct Volume {
    substrate: Arc<dyn Substrate>,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    files: HashMap<u64, Arc<dyn File>>,
    records: HashMap<u64, Arc<dyn RecordFile>>,
    locks: HashMap<u64, Box<dyn LockGuard>>,
}

impl Open {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Volume {
    fn new(substrate: Arc<dyn Substrate>) -> Self {
        Self { substrate, open: Mutex::default() }
    }

    pub(super) fn serve(&self, call: VolumeCall) -> std::result::Result<Value, Failure> {
        self.names(call).map_err(Failure::from)
    }

    fn names(&self, call: VolumeCall) -> Result<Value> {
        let volume = &self.substrate;
        let done = |()| Value::Nothing;
        match call {
            VolumeCall::CreateDir { dir } => volume.create_dir(&dir.to_path()).map(done),
            VolumeCall::List { dir } => {
                let entries = volume.list(&dir.to_path())?;
                let entry = |entry: kaas_substrate::Entry| (Data::name(&entry.name), entry_is(entry.kind));
                Ok(Value::Entries(entries.into_iter().map(entry).collect()))
            }
            VolumeCall::Rename { from, to } => volume.rename(&from.to_path(), &to.to_path()).map(done),
            VolumeCall::MoveFile { from, to } => volume.move_file(&from.to_path(), &to.to_path()).map(done),
            VolumeCall::RemoveFile { path } => volume.remove_file(&path.to_path()).map(done),
            VolumeCall::RemoveDir { dir } => volume.remove_dir(&dir.to_path()).map(done),
            VolumeCall::SyncDir { dir } => volume.sync_dir(&dir.to_path()).map(done),
            VolumeCall::SyncTree { dir } => volume.sync_tree(&dir.to_path()).map(done),
            VolumeCall::Open { path, mode } => {
                let file = volume.open(&path.to_path(), open_mode(mode))?;
                let mut open = self.open.lock();
                let handle = open.number();
                open.files.insert(handle, file);
                Ok(Value::Number(handle))
            }
            VolumeCall::MakeDurable { path, length } => {
                volume.make_durable(&path.to_path(), length).map(done)
            }
            VolumeCall::CreateRecords { path, records } => {
                volume.create_records(&path.to_path(), records).map(done)
            }
            VolumeCall::OpenRecords { path } => {
                let file = volume.open_records(&path.to_path())?;
                let mut open = self.open.lock();
                let handle = open.number();
                open.records.insert(handle, file);
                Ok(Value::Number(handle))
            }
            VolumeCall::Space => {
                let Space { total_bytes, available_bytes } = volume.space()?;
                Ok(Value::Space { total: total_bytes, available: available_bytes })
            }
            VolumeCall::TryLock { path } => {
                let Some(lock) = volume.try_lock(&path.to_path())? else { return Ok(Value::Maybe(None)) };
                let mut open = self.open.lock();
                let handle = open.number();
                open.locks.insert(handle, lock);
                Ok(Value::Maybe(Some(handle)))
            }
            VolumeCall::Release { handle } => {
                let mut open = self.open.lock();
                // Closing may take long: not under the lock.
                let closed =
                    (open.files.remove(&handle), open.records.remove(&handle), open.locks.remove(&handle));
                drop(open);
                drop(closed);
                Ok(Value::Nothing)
            }
            on_file => self.file(on_file),
        }
    }

    fn file(&self, call: VolumeCall) -> Result<Value> {
        let file = |handle: u64| Arc::clone(&self.open.lock().files[&handle]);
        match call {
            VolumeCall::ReadAt { handle, length, offset } => {
                let mut bytes = vec![0; length];
                let read = file(handle).read_at(&mut bytes, offset)?;
                Ok(Value::Bytes(Data::of(&bytes[..read])))
            }
            VolumeCall::ReadAtNoWait { handle, length, offset } => {
                let mut bytes = vec![0; length];
                match file(handle).read_at_nowait(&mut bytes, offset)? {
                    Some(read) => Ok(Value::Bytes(Data::of(&bytes[..read]))),
                    None => Ok(Value::Nothing),
                }
            }
            VolumeCall::WriteAllAt { handle, bytes, offset } => {
                file(handle).write_all_at(&[IoSlice::new(&bytes.bytes())], offset)?;
                Ok(Value::Nothing)
            }
            VolumeCall::SyncData { handle } => file(handle).sync_data().map(|()| Value::Nothing),
            VolumeCall::Length { handle } => file(handle).length().map(Value::Number),
            VolumeCall::NextData { handle, from } => file(handle).next_data(from).map(Value::Range),
            VolumeCall::SetLength { handle, length } => {
                file(handle).set_length(length).map(|()| Value::Nothing)
            }
            on_records => self.records(on_records),
        }
    }

    fn records(&self, call: VolumeCall) -> Result<Value> {
        let file = |handle: u64| Arc::clone(&self.open.lock().records[&handle]);
        match call {
            VolumeCall::Records { handle } => file(handle).records().map(Value::Number),
            VolumeCall::ReadRecords { handle, first_index, count } => {
                let mut records: Vec<Record> = vec![[0; RECORD_BYTES]; count];
                file(handle).read(first_index, &mut records)?;
                Ok(Value::Bytes(Data::of(records.as_flattened())))
            }
            VolumeCall::WriteRecords { handle, first_index, bytes } => {
                let bytes = bytes.bytes();
                let (records, rest) = bytes.as_chunks::<RECORD_BYTES>();
                assert!(rest.is_empty(), "half a record");
                file(handle).write(first_index, records).map(|()| Value::Nothing)
            }
            VolumeCall::ExtendRecords { handle, records } => {
                file(handle).extend(records).map(|()| Value::Nothing)
            }
            other => {
                let source = std::io::Error::other(format!("not a call on a file: {other:?}"));
                Err(Error::new(kaas_substrate::Operation::Open, std::path::Path::new(""), source))
            }
        }
    }
}

fn open_mode(mode: Mode) -> OpenMode {
    match mode {
        Mode::Read => OpenMode::Read,
        Mode::ReadUncached => OpenMode::ReadUncached,
        Mode::Write => OpenMode::Write,
        Mode::Rewrite => OpenMode::Rewrite,
        Mode::CreateNew => OpenMode::CreateNew,
    }
}

fn entry_is(kind: EntryKind) -> EntryIs {
    match kind {
        EntryKind::File => EntryIs::File,
        EntryKind::Dir => EntryIs::Dir,
        _ => EntryIs::Other,
    }
}
