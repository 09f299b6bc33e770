//! A substrate that fails when it is told to: wraps any other, and asks a [`Hook`] before every call.
//!
//! [`Rules`] is the hook for most tests: the nth call of a kind, perhaps on paths that contain a word, fails, writes
//! short, or is the last one that happens (a crash: it and every later call of this wrapper fail; what was done
//! before stays in the wrapped volume, which a new wrapper or none can look at). Safe from any thread.

use std::io;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kaas_substrate::{
    Adoption, Entry, Error, ErrorClass, File, Kind, LockGuard, OpenMode, Operation, RECORD_BYTES, Record,
    RecordFile, Result, Sharing, Space, Substrate,
};
use parking_lot::Mutex;

/// Which call of the traits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    CreateDir,
    List,
    Rename,
    RemoveFile,
    RemoveDir,
    SyncDir,
    SyncTree,
    /// An open of an existing file, whatever the mode.
    Open,
    /// An exclusive create.
    Create,
    MakeDurable,
    CreateRecords,
    OpenRecords,
    Space,
    TryLock,
    Read,
    Write,
    SyncData,
    Length,
    SetLength,
    ReadRecords,
    WriteRecords,
    ExtendRecords,
}

impl Point {
    /// True for calls that change the volume or make changes durable; what a crash test cuts off.
    pub fn changes_something(self) -> bool {
        !matches!(
            self,
            Self::List
                | Self::Open
                | Self::OpenRecords
                | Self::Space
                | Self::Read
                | Self::Length
                | Self::ReadRecords
        )
    }

    fn operation(self) -> Operation {
        match self {
            Self::CreateDir => Operation::CreateDir,
            Self::List => Operation::List,
            Self::Rename => Operation::Rename,
            Self::RemoveFile => Operation::RemoveFile,
            Self::RemoveDir => Operation::RemoveDir,
            Self::SyncDir | Self::SyncTree => Operation::SyncDir,
            Self::Open | Self::OpenRecords => Operation::Open,
            Self::Create | Self::CreateRecords => Operation::Create,
            Self::Space => Operation::Space,
            Self::TryLock => Operation::Lock,
            Self::Read | Self::ReadRecords => Operation::Read,
            Self::Write | Self::WriteRecords => Operation::Write,
            Self::MakeDurable | Self::SyncData => Operation::Sync,
            Self::Length => Operation::Length,
            Self::SetLength | Self::ExtendRecords => Operation::SetLength,
        }
    }
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It goes through.
    Pass,
    /// It fails with an error of this class, without an effect.
    Fail(ErrorClass),
    /// It has its effect, and then fails with an error of this class.
    FailAfter(ErrorClass),
    /// A write: the first `bytes` bytes are written, then it fails with an error of this class. Other calls fail
    /// without an effect.
    Short { bytes: usize, class: ErrorClass },
    /// It fails with this system error number, after as much of its effect.
    Errno { number: i32, effect: Effect },
    /// As [`Verdict::Fail`] with an I/O error, and so do all later calls.
    Crash,
    /// As [`Verdict::Short`], and all later calls fail.
    CrashShort { bytes: usize },
}

/// How much of a failed call is done all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Nothing,
    /// A write: its first bytes, this many. Nothing of other calls.
    Part {
        bytes: usize,
    },
    Everything,
}

/// Asked before every call; may block (to let tests choose an interleaving).
pub trait Hook: Send + Sync + std::fmt::Debug {
    /// What becomes of this call.
    fn before(&self, point: Point, path: &Path) -> Verdict;
}

/// When a [`Rules`] entry applies, and what it does then.
#[derive(Debug, Clone)]
pub struct Rule {
    /// The call; `None` is any that [`Point::changes_something`].
    pub point: Option<Point>,
    /// Part of the path; empty is any.
    pub path_contains: String,
    /// The first matching call that is hit, from 1.
    pub nth: u64,
    /// How many calls from the nth on are hit.
    pub times: u64,
    pub verdict: Verdict,
}

impl Rule {
    /// The nth call of `point` (from 1) gets `verdict`, once.
    pub fn nth(point: Point, nth: u64, verdict: Verdict) -> Self {
        Self { point: Some(point), path_contains: String::new(), nth, times: 1, verdict }
    }

    /// The nth call that changes anything (from 1) gets `verdict`.
    pub fn nth_change(nth: u64, verdict: Verdict) -> Self {
        Self { point: None, path_contains: String::new(), nth, times: 1, verdict }
    }

    /// Only for paths that contain `part`.
    pub fn on(mut self, part: &str) -> Self {
        part.clone_into(&mut self.path_contains);
        self
    }

    /// Hits this many calls in a row.
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    fn matches(&self, point: Point, path: &Path) -> bool {
        self.point.map_or(point.changes_something(), |wanted| wanted == point)
            && path.to_string_lossy().contains(&self.path_contains)
    }
}

/// A list of rules; the first that is due decides.
#[derive(Debug, Default)]
pub struct Rules {
    rules: Mutex<Vec<(Rule, u64)>>,
    changes: AtomicU64,
    hits: AtomicU64,
}

impl Rules {
    /// Hooks that let everything pass until rules are added.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Arc<Self> {
        let made = Self::default();
        made.rules.lock().extend(rules.into_iter().map(|rule| (rule, 0)));
        Arc::new(made)
    }

    /// Adds a rule; it counts calls from now on.
    pub fn add(&self, rule: Rule) {
        self.rules.lock().push((rule, 0));
    }

    /// Forgets all rules.
    pub fn clear(&self) {
        self.rules.lock().clear();
    }

    /// Calls that changed something, so far.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Calls that a rule hit, so far.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::SeqCst)
    }
}

impl Hook for Rules {
    fn before(&self, point: Point, path: &Path) -> Verdict {
        if point.changes_something() {
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
        let mut verdict = Verdict::Pass;
        for (rule, seen) in self.rules.lock().iter_mut().filter(|(rule, _)| rule.matches(point, path)) {
            *seen += 1;
            let due = *seen >= rule.nth && *seen - rule.nth < rule.times;
            if due && verdict == Verdict::Pass {
                verdict = rule.verdict;
            }
        }
        if verdict != Verdict::Pass {
            self.hits.fetch_add(1, Ordering::SeqCst);
        }
        verdict
    }
}

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
        ErrorClass::Retriable => 4,
        ErrorClass::Io => 5,
        ErrorClass::Invalid => 22,
        ErrorClass::Other => 32,
    }
}

impl Gate {
    fn error(point: Point, path: &Path, class: ErrorClass) -> Error {
        Self::system_error(point, path, error_number(class))
    }

    fn system_error(point: Point, path: &Path, number: i32) -> Error {
        Error::new(point.operation(), path, io::Error::from_raw_os_error(number))
    }

    fn verdict(&self, point: Point, path: &Path) -> Verdict {
        let verdict = self.hook.before(point, path);
        if self.crashed.load(Ordering::SeqCst) {
            return Verdict::Crash;
        }
        if matches!(verdict, Verdict::Crash | Verdict::CrashShort { .. }) {
            self.crashed.store(true, Ordering::SeqCst);
        }
        verdict
    }

    /// A call without a partial effect.
    fn call<T>(&self, point: Point, path: &Path, act: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.verdict(point, path) {
            Verdict::Pass => act(),
            Verdict::FailAfter(class) => act().and_then(|_| Err(Self::error(point, path, class))),
            Verdict::Fail(class) | Verdict::Short { class, .. } => Err(Self::error(point, path, class)),
            Verdict::Errno { number, effect } => {
                if effect == Effect::Everything {
                    act()?;
                }
                Err(Self::system_error(point, path, number))
            }
            Verdict::Crash | Verdict::CrashShort { .. } => Err(Self::error(point, path, ErrorClass::Io)),
        }
    }

    /// A write; `act` writes its first bytes, as many as it is told.
    fn write(
        &self,
        point: Point,
        path: &Path,
        length: usize,
        act: impl FnOnce(usize) -> Result<()>,
    ) -> Result<()> {
        match self.verdict(point, path) {
            Verdict::Pass => act(length),
            Verdict::FailAfter(class) => act(length).and_then(|()| Err(Self::error(point, path, class))),
            Verdict::Fail(class) => Err(Self::error(point, path, class)),
            Verdict::Short { bytes, class } => {
                act(bytes.min(length)).and_then(|()| Err(Self::error(point, path, class)))
            }
            Verdict::Errno { number, effect } => {
                let written = match effect {
                    Effect::Nothing => Ok(()),
                    Effect::Part { bytes } => act(bytes.min(length)),
                    Effect::Everything => act(length),
                };
                written.and_then(|()| Err(Self::system_error(point, path, number)))
            }
            Verdict::Crash => Err(Self::error(point, path, ErrorClass::Io)),
            Verdict::CrashShort { bytes } => {
                act(bytes.min(length)).and_then(|()| Err(Self::error(point, path, ErrorClass::Io)))
            }
        }
    }
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
        self.gate.call(Point::CreateDir, dir, || self.inner.create_dir(dir))
    }

    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        self.gate.call(Point::List, dir, || self.inner.list(dir))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.gate.call(Point::Rename, from, || self.inner.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        self.gate.call(Point::RemoveFile, path, || self.inner.remove_file(path))
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.gate.call(Point::RemoveDir, dir, || self.inner.remove_dir(dir))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.gate.call(Point::SyncDir, dir, || self.inner.sync_dir(dir))
    }

    fn sync_tree(&self, dir: &Path) -> Result<()> {
        self.gate.call(Point::SyncTree, dir, || self.inner.sync_tree(dir))
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        let point = if mode == OpenMode::CreateNew { Point::Create } else { Point::Open };
        let inner = self.gate.call(point, path, || self.inner.open(path, mode))?;
        Ok(Arc::new(FaultyFile { inner, path: path.to_owned(), gate: Arc::clone(&self.gate) }))
    }

    fn make_durable(&self, path: &Path, length: u64) -> Result<()> {
        self.gate.call(Point::MakeDurable, path, || self.inner.make_durable(path, length))
    }

    fn create_records(&self, path: &Path, records: u64) -> Result<()> {
        self.gate.call(Point::CreateRecords, path, || self.inner.create_records(path, records))
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
        self.gate.write(Point::Write, &self.path, length, |bytes| {
            let mut left = bytes;
            let mut shortened = Vec::with_capacity(parts.len());
            for part in parts {
                let taken = part.len().min(left);
                left -= taken;
                shortened.push(IoSlice::new(part.get(..taken).unwrap_or_default()));
            }
            self.inner.write_all_at(&shortened, offset)
        })
    }

    fn sync_data(&self) -> Result<()> {
        self.gate.call(Point::SyncData, &self.path, || self.inner.sync_data())
    }

    fn length(&self) -> Result<u64> {
        self.gate.call(Point::Length, &self.path, || self.inner.length())
    }

    fn set_length(&self, length: u64) -> Result<()> {
        self.gate.call(Point::SetLength, &self.path, || self.inner.set_length(length))
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
        let length = records.len() * RECORD_BYTES;
        self.gate.write(Point::WriteRecords, &self.path, length, |bytes| {
            let whole = bytes / RECORD_BYTES;
            let mut written = records.get(..whole).unwrap_or_default().to_vec();
            let torn_bytes = bytes % RECORD_BYTES;
            if let Some(torn) = records.get(whole).filter(|_| torn_bytes > 0) {
                let mut mixed = [[0; RECORD_BYTES]; 1];
                self.inner.read(first_index + whole as u64, &mut mixed)?;
                let [mut mixed] = mixed;
                for (to, from) in mixed.iter_mut().zip(torn.iter().take(torn_bytes)) {
                    *to = *from;
                }
                written.push(mixed);
            }
            self.inner.write(first_index, &written)
        })
    }

    fn extend(&self, records: u64) -> Result<()> {
        self.gate.call(Point::ExtendRecords, &self.path, || self.inner.extend(records))
    }
}

#[cfg(test)]
mod tests {
    use kaas_substrate::{Memory, NotRemoved, read_small, remove_tree, write_small};

    use super::*;

    fn volume(rules: impl IntoIterator<Item = Rule>) -> (Memory, Arc<Rules>, Faulty) {
        let memory = Memory::new();
        let rules = Rules::new(rules);
        let faulty = Faulty::new(Arc::new(memory.clone()), Arc::clone(&rules) as Arc<dyn Hook>);
        (memory, rules, faulty)
    }

    #[test]
    fn the_nth_call_fails_and_the_others_pass() {
        let (_, rules, faulty) =
            volume([Rule::nth(Point::CreateDir, 2, Verdict::Fail(ErrorClass::NoSpace)).on("x")]);
        for (dir, passes) in [("x1", true), ("y", true), ("x2", false), ("x3", true)] {
            let outcome = faulty.create_dir(Path::new(dir));
            assert_eq!(outcome.is_ok(), passes, "{dir}");
            if let Err(error) = outcome {
                assert_eq!(error.class, ErrorClass::NoSpace);
            }
        }
        assert_eq!((rules.hits(), rules.changes()), (1, 4));
    }

    #[test]
    fn a_short_write_leaves_its_first_bytes() {
        let (memory, _, faulty) =
            volume([Rule::nth(Point::Write, 1, Verdict::Short { bytes: 4, class: ErrorClass::NoSpace })]);
        let file = faulty.open(Path::new("f"), OpenMode::CreateNew).unwrap();
        let parts = [IoSlice::new(b"abc"), IoSlice::new(b"def")];
        assert_eq!(file.write_all_at(&parts, 0).unwrap_err().class, ErrorClass::NoSpace);
        assert_eq!(read_small(&memory, Path::new("f"), 100).unwrap(), b"abcd");
    }

    #[test]
    fn a_torn_record_is_half_new_and_half_old() {
        let (memory, _, faulty) =
            volume([Rule::nth(Point::WriteRecords, 2, Verdict::CrashShort { bytes: RECORD_BYTES + 100 })]);
        faulty.create_records(Path::new("r"), 4).unwrap();
        let records = faulty.open_records(Path::new("r")).unwrap();
        records.write(0, &[[1; RECORD_BYTES]; 4]).unwrap();
        assert!(records.write(1, &[[2; RECORD_BYTES]; 3]).is_err());
        assert!(faulty.has_crashed());
        assert!(records.read(0, &mut [[0; RECORD_BYTES]]).is_err());
        let mut found = [[0; RECORD_BYTES]; 4];
        memory.open_records(Path::new("r")).unwrap().read(0, &mut found).unwrap();
        assert_eq!([found[0], found[1], found[3]], [[1; RECORD_BYTES], [2; RECORD_BYTES], [1; RECORD_BYTES]]);
        assert_eq!((found[2][99], found[2][100]), (2, 1));
    }

    #[test]
    fn a_failure_after_the_effect_has_the_effect() {
        let (memory, _, faulty) =
            volume([Rule::nth(Point::Rename, 1, Verdict::FailAfter(ErrorClass::Retriable))]);
        assert_eq!(write_small(&faulty, Path::new("f"), b"x").unwrap_err().class, ErrorClass::Retriable);
        assert_eq!(read_small(&memory, Path::new("f"), 10).unwrap(), b"x");
    }

    #[test]
    fn removing_a_tree_goes_on_past_failures() {
        let (memory, rules, faulty) =
            volume([Rule::nth(Point::RemoveFile, 1, Verdict::Fail(ErrorClass::Io)).on("t/0/b").times(2)]);
        for dir in ["t", "t/0", "t/1"] {
            memory.create_dir(Path::new(dir)).unwrap();
        }
        for file in ["t/a", "t/0/b", "t/0/c", "t/1/d"] {
            memory.open(Path::new(file), OpenMode::CreateNew).unwrap();
        }
        let NotRemoved { failures, count } = remove_tree(&faulty, Path::new("t")).unwrap_err();
        // The file, and the two directories above it that are not empty.
        assert_eq!((count, failures.len(), rules.hits()), (3, 3, 1));
        assert_eq!(memory.list(Path::new("t")).unwrap().len(), 1);
        assert_eq!(memory.list(Path::new("t/0")).unwrap().len(), 1);
        rules.clear();
        remove_tree(&faulty, Path::new("t")).unwrap();
        assert!(memory.list(Path::new("t")).unwrap_err().is_not_found());
    }
}
