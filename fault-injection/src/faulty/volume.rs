//! The wrapper.

use std::io;
use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kaas_substrate::{
    Adoption, Entry, Error, ErrorClass, File, Kind, LockGuard, OpenMode, RECORD_BYTES, Record, RecordFile,
    Result, Sharing, Space, Substrate,
};

use super::{Effect, Hook, Point, Verdict};
use crate::ranges::pieces;

/// A substrate that asks a hook before every call; see the module.
#[derive(Debug, Clone)]
pub struct Faulty {
    inner: Arc<dyn Substrate>,
    gate: Arc<Gate>,
}

#[derive(Debug)]
struct Gate {
    hook: Arc<dyn Hook>,
    crashed: AtomicBool,
}

/// The system error number that stands for a class (Linux).
pub(crate) fn error_number(class: ErrorClass) -> i32 {
    match class {
        ErrorClass::NotFound => 2,
        ErrorClass::Exists => 17,
        ErrorClass::NoSpace => 28,
        ErrorClass::Stale => 116,
        ErrorClass::Fenced => 108,
        ErrorClass::NoDescriptors => 24,
        ErrorClass::Retriable => 4,
        ErrorClass::Io => 5,
        ErrorClass::Invalid => 22,
        ErrorClass::Other => 32,
    }
}

impl Effect {
    /// The parts of a write of `length` bytes at `offset` that are made, relative to its beginning.
    fn parts(self, offset: u64, length: usize) -> Vec<Range<usize>> {
        match self {
            Self::Everything => vec![Range { start: 0, end: length }],
            Self::Nothing => Vec::new(),
            Self::Part { bytes } => vec![Range { start: 0, end: bytes.min(length) }],
            Self::Halves { bytes } => [bytes.min(length), length].map(|end| Range { start: 0, end }).to_vec(),
            Self::Sectors { kept } => {
                // Sectors are those of the file.
                let into = usize::try_from(offset % RECORD_BYTES as u64).unwrap_or(0);
                let sectors = pieces(into..into.saturating_add(length), RECORD_BYTES).zip((0..64).cycle());
                let kept = sectors.filter(|(_, bit)| kept >> bit & 1 == 1);
                kept.map(|(sector, _)| sector.start - into..sector.end - into).collect()
            }
        }
    }
}

impl Gate {
    fn error(point: Point, path: &Path, number: i32) -> Error {
        Error::new(point.operation(), path, io::Error::from_raw_os_error(number))
    }

    /// What happens of a call, and the system error that it returns then.
    fn decide(&self, point: Point, path: &Path) -> (Effect, Option<i32>) {
        let verdict = self.hook.before(point, path);
        if self.crashed.load(Ordering::SeqCst) {
            return (Effect::Nothing, Some(error_number(ErrorClass::Io)));
        }
        let crash = || {
            self.crashed.store(true, Ordering::SeqCst);
            Some(error_number(ErrorClass::Io))
        };
        match verdict {
            Verdict::Pass => (Effect::Everything, None),
            Verdict::Delay { ms } => {
                std::thread::sleep(Duration::from_millis(ms));
                (Effect::Everything, None)
            }
            Verdict::Halves { bytes } => (Effect::Halves { bytes }, None),
            Verdict::Lost => (Effect::Nothing, None),
            Verdict::Fail(class) => (Effect::Nothing, Some(error_number(class))),
            Verdict::FailAfter(class) => (Effect::Everything, Some(error_number(class))),
            Verdict::Short { bytes, class } => (Effect::Part { bytes }, Some(error_number(class))),
            Verdict::Torn { kept, class } => (Effect::Sectors { kept }, Some(error_number(class))),
            Verdict::Errno { number, effect } => (effect, Some(number)),
            Verdict::Crash => (Effect::Nothing, crash()),
            Verdict::CrashShort { bytes } => (Effect::Part { bytes }, crash()),
            Verdict::CrashTorn { kept } => (Effect::Sectors { kept }, crash()),
        }
    }

    /// A call that returns something, which therefore cannot be lost, nor happen in part.
    fn call<T>(&self, point: Point, path: &Path, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let act = || act().inspect(|_| self.hook.after(point, path));
        match self.decide(point, path) {
            (_, None) => act(),
            (Effect::Everything | Effect::Halves { .. }, Some(number)) => {
                act().and_then(|_| Err(Self::error(point, path, number)))
            }
            (_, Some(number)) => Err(Self::error(point, path, number)),
        }
    }

    /// A call that returns nothing; it cannot happen in part.
    fn change(&self, point: Point, path: &Path, act: impl FnOnce() -> Result<()>) -> Result<()> {
        let (effect, error) = self.decide(point, path);
        if matches!(effect, Effect::Everything | Effect::Halves { .. }) {
            act()?;
            self.hook.after(point, path);
        }
        error.map_or(Ok(()), |number| Err(Self::error(point, path, number)))
    }

    /// A write; `act` makes a part of it.
    fn write(
        &self,
        point: Point,
        path: &Path,
        offset: u64,
        length: usize,
        mut act: impl FnMut(Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let (effect, error) = self.decide(point, path);
        for (number, part) in effect.parts(offset, length).into_iter().enumerate() {
            let is_second = number > 0 && matches!(effect, Effect::Halves { .. });
            if is_second && !self.hook.between_halves(path) {
                self.crashed.store(true, Ordering::SeqCst);
                return Err(Self::error(point, path, error_number(ErrorClass::Io)));
            }
            act(part)?;
        }
        if effect != Effect::Nothing {
            self.hook.after(point, path);
        }
        error.map_or(Ok(()), |number| Err(Self::error(point, path, number)))
    }
}

/// The bytes `wanted` of parts that lie one behind the other.
fn slices<'a>(parts: &'a [IoSlice<'a>], wanted: &Range<usize>) -> Vec<IoSlice<'a>> {
    let mut at = 0;
    let mut found = Vec::with_capacity(parts.len());
    for part in parts {
        let from = wanted.start.saturating_sub(at).min(part.len());
        let to = wanted.end.saturating_sub(at).min(part.len());
        found.push(IoSlice::new(part.get(from..to).unwrap_or_default()));
        at += part.len();
    }
    found
}

impl Faulty {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Substrate>, hook: Arc<dyn Hook>) -> Self {
        Self { inner, gate: Arc::new(Gate { hook, crashed: AtomicBool::new(false) }) }
    }

    /// True once a rule has crashed it.
    pub fn has_crashed(&self) -> bool {
        self.gate.crashed.load(Ordering::SeqCst)
    }
}

impl Substrate for Faulty {
    fn kind(&self) -> Kind {
        Kind::Simulated
    }

    fn sharing(&self) -> Sharing {
        self.inner.sharing()
    }

    fn adoption(&self) -> Adoption {
        self.inner.adoption()
    }

    fn root(&self) -> &Path {
        self.inner.root()
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        self.gate.change(Point::CreateDir, dir, || self.inner.create_dir(dir))
    }

    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        self.gate.call(Point::List, dir, || self.inner.list(dir))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.gate.change(Point::Rename, from, || self.inner.rename(from, to))
    }

    fn move_file(&self, from: &Path, to: &Path) -> Result<()> {
        self.gate.change(Point::Rename, from, || self.inner.move_file(from, to))
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        self.gate.change(Point::RemoveFile, path, || self.inner.remove_file(path))
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.gate.change(Point::RemoveDir, dir, || self.inner.remove_dir(dir))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.gate.change(Point::SyncDir, dir, || self.inner.sync_dir(dir))
    }

    fn sync_tree(&self, dir: &Path) -> Result<()> {
        self.gate.change(Point::SyncTree, dir, || self.inner.sync_tree(dir))
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        let point = if mode == OpenMode::CreateNew { Point::Create } else { Point::Open };
        let inner = self.gate.call(point, path, || self.inner.open(path, mode))?;
        Ok(Arc::new(FaultyFile { inner, path: path.to_owned(), gate: Arc::clone(&self.gate) }))
    }

    fn make_durable(&self, path: &Path, length: u64) -> Result<()> {
        self.gate.change(Point::MakeDurable, path, || self.inner.make_durable(path, length))
    }

    fn create_records(&self, path: &Path, records: u64) -> Result<()> {
        self.gate.change(Point::CreateRecords, path, || self.inner.create_records(path, records))
    }

    fn open_records(&self, path: &Path) -> Result<Arc<dyn RecordFile>> {
        let inner = self.gate.call(Point::OpenRecords, path, || self.inner.open_records(path))?;
        Ok(Arc::new(FaultyRecords { inner, path: path.to_owned(), gate: Arc::clone(&self.gate) }))
    }

    fn space(&self) -> Result<Space> {
        self.gate.call(Point::Space, Path::new(""), || self.inner.space())
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        self.gate.call(Point::TryLock, path, || self.inner.try_lock(path))
    }
}

#[derive(Debug)]
struct FaultyFile {
    inner: Arc<dyn File>,
    path: PathBuf,
    gate: Arc<Gate>,
}

impl File for FaultyFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.gate.call(Point::Read, &self.path, || self.inner.read_at(buf, offset))
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>> {
        self.gate.call(Point::Read, &self.path, || self.inner.read_at_nowait(buf, offset))
    }

    fn write_all_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<()> {
        let length = parts.iter().map(|part| part.len()).sum();
        self.gate.write(Point::Write, &self.path, offset, length, |range| {
            self.inner.write_all_at(&slices(parts, &range), offset.saturating_add(range.start as u64))
        })
    }

    fn sync_data(&self) -> Result<()> {
        self.gate.change(Point::SyncData, &self.path, || self.inner.sync_data())
    }

    fn length(&self) -> Result<u64> {
        self.gate.call(Point::Length, &self.path, || self.inner.length())
    }

    fn next_data(&self, from: u64) -> Result<Option<(u64, u64)>> {
        self.gate.call(Point::Read, &self.path, || self.inner.next_data(from))
    }

    fn set_length(&self, length: u64) -> Result<()> {
        self.gate.change(Point::SetLength, &self.path, || self.inner.set_length(length))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // Bytes sent past the wrapper would be reads that no rule sees.
        None
    }
}

#[derive(Debug)]
struct FaultyRecords {
    inner: Arc<dyn RecordFile>,
    path: PathBuf,
    gate: Arc<Gate>,
}

impl RecordFile for FaultyRecords {
    fn records(&self) -> Result<u64> {
        self.gate.call(Point::Length, &self.path, || self.inner.records())
    }

    fn read(&self, first_index: u64, records: &mut [Record]) -> Result<()> {
        self.gate.call(Point::ReadRecords, &self.path, || self.inner.read(first_index, records))
    }

    /// A short write here tears a record: its first bytes are new, the rest is what was there.
    fn write(&self, first_index: u64, records: &[Record]) -> Result<()> {
        let bytes = records.as_flattened();
        self.gate.write(Point::WriteRecords, &self.path, 0, bytes.len(), |range| {
            // Starts with a record, and may end within one.
            let first = first_index + (range.start / RECORD_BYTES) as u64;
            let count = range.len().div_ceil(RECORD_BYTES);
            let mut mixed = vec![[0; RECORD_BYTES]; count];
            if range.len() < mixed.as_flattened().len() {
                self.inner.read(first, &mut mixed)?;
            }
            for (to, from) in mixed.as_flattened_mut().iter_mut().zip(bytes.get(range).unwrap_or_default()) {
                *to = *from;
            }
            self.inner.write(first, &mixed)
        })
    }

    fn extend(&self, records: u64) -> Result<()> {
        self.gate.change(Point::ExtendRecords, &self.path, || self.inner.extend(records))
    }
}
