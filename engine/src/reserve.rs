//! A little space put aside, so that a full volume can be cleaned up, opened and started on: deleting records needs a new
//! manifest first, deleting a topic and opening a partition need claims.
//!
//! The reserve has two parts, since a volume can be short of either: bytes, a file of zeros at the root whose length says
//! whether it is there; and names, files without content in a directory at the root (a file system may be out of inodes
//! while most of its bytes are free). When a small write of that kind finds the volume full, a part is released: the file is
//! cut to nothing, or the files are removed, and the write tried again. While bytes are in use nothing else is appended, and
//! while names are in use no append begins a file, or what was freed would be gone at once; [`Reserve::replenish`] puts it
//! back when there is room. Its methods block, those that only ask whether it is in use apart.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kaas_substrate::{ErrorClass, OpenMode, Substrate};

use crate::driver::Time;
use crate::error::EngineError;
use crate::journal;
use crate::leadership::ClaimError;
use crate::sync::AtomicBool;

/// Name of the reserve, at the engine's root.
pub const RESERVE_FILE: &str = "~reserve";

/// Bytes put aside.
const RESERVE_BYTES: u64 = 1 << 20;

/// Room that must be left beside the reserve when it is put back.
const ROOM_BYTES: u64 = RESERVE_BYTES / 4;

/// Name of the directory of the names that are put aside, at the engine's root.
pub const SPARE_DIR: &str = "~spare";

/// Names put aside. A claim needs one, the opening of a partition up to three more until it has removed as many.
const SPARE_NAMES: usize = 32;

/// Names that must be left beside those when they are put back.
const ROOM_NAMES: usize = 8;

/// How long a release waits for a thread that is just putting the reserve back.
const WAIT: Duration = Duration::from_secs(5);

/// Errors that may mean that the volume is full.
pub trait MayBeNoSpace {
    /// True when the volume said so.
    fn is_no_space(&self) -> bool;
}

impl MayBeNoSpace for kaas_substrate::Error {
    fn is_no_space(&self) -> bool {
        self.class == ErrorClass::NoSpace
    }
}

impl MayBeNoSpace for ClaimError {
    fn is_no_space(&self) -> bool {
        matches!(self, Self::Storage(error) if error.is_no_space())
    }
}

impl MayBeNoSpace for journal::OpenError {
    fn is_no_space(&self) -> bool {
        match self {
            Self::Claim(error) => error.is_no_space(),
            Self::Storage(error) => error.is_no_space(),
            _ => false,
        }
    }
}

impl MayBeNoSpace for EngineError {
    fn is_no_space(&self) -> bool {
        match self {
            Self::Storage(error) => error.is_no_space(),
            Self::Claim(error) => error.is_no_space(),
            _ => false,
        }
    }
}

/// The reserve of a volume. Shared between threads.
#[derive(Debug)]
pub struct Reserve {
    substrate: Arc<dyn Substrate>,
    time: Time,
    /// True from when the bytes were given up, or could not be put aside, until they are there.
    bytes_in_use: AtomicBool,
    /// The same of the names.
    names_in_use: AtomicBool,
    /// A thread changes the file.
    changing: AtomicBool,
}

impl Reserve {
    /// The reserve of `substrate`. Touches nothing; a volume without one gets it with [`Reserve::replenish`].
    pub fn new(substrate: Arc<dyn Substrate>) -> Self {
        Self::timed(substrate, Time::system())
    }

    pub(crate) fn timed(substrate: Arc<dyn Substrate>, time: Time) -> Self {
        let unused = || AtomicBool::new(false);
        Self {
            substrate,
            time,
            bytes_in_use: unused(),
            names_in_use: unused(),
            changing: AtomicBool::new(false),
        }
    }

    /// Whether a part of it is used, or may be, by what had to be written on the full volume. Answers from memory.
    pub fn is_in_use(&self) -> bool {
        self.are_bytes_in_use() || self.names_in_use.load(Ordering::Acquire)
    }

    /// The same of the bytes. Answers from memory.
    pub fn are_bytes_in_use(&self) -> bool {
        self.bytes_in_use.load(Ordering::Acquire)
    }

    /// Runs `write`, which must be good to run again; if the volume is full, releases the reserve, one part after the other,
    /// and runs it once more after each.
    pub fn with<T, E: MayBeNoSpace>(&self, mut write: impl FnMut() -> Result<T, E>) -> Result<T, E> {
        for _ in 0..2 {
            match write() {
                Err(error) if error.is_no_space() && self.release() => {}
                outcome => return outcome,
            }
        }
        write()
    }

    /// Frees a part of the reserve, first the one that the volume is probably short of. True if it is worth trying again:
    /// there was one, or another thread has just freed it.
    pub fn release(&self) -> bool {
        let deadline = self.time.elapsed() + WAIT;
        let _alone = loop {
            match Alone::enter(&self.changing) {
                Some(alone) => break alone,
                None if self.time.elapsed() > deadline => return self.is_in_use(),
                None => self.time.sleep(Duration::from_millis(1)),
            }
        };
        let available_bytes = self.substrate.space().ok().and_then(|space| space.available_bytes);
        let bytes_left = available_bytes.is_some_and(|left| left >= ROOM_BYTES);
        for names in [bytes_left, !bytes_left] {
            let freed = if names { self.free_names() } else { self.free_bytes() };
            match freed {
                Ok(true) if names => {
                    tracing::warn!(
                        available_bytes,
                        "the volume takes no more files (df -i shows inodes): the names put aside for cleaning up are \
                         in use, no segment is begun"
                    );
                    return true;
                }
                Ok(true) => {
                    tracing::warn!(
                        available_bytes,
                        "the volume is full: the space put aside for cleaning up is in use, nothing is appended"
                    );
                    return true;
                }
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "cannot free the space put aside for a full volume"),
            }
        }
        self.is_in_use()
    }

    /// True if there were bytes put aside, and now they are free.
    fn free_bytes(&self) -> kaas_substrate::Result<bool> {
        let file = match self.substrate.open(Path::new(RESERVE_FILE), OpenMode::Write) {
            Err(error) if error.is_not_found() => return Ok(false),
            opened => opened?,
        };
        let held = file.length()? > 0;
        if held {
            // Said first: nobody may take for room what is freed now.
            self.bytes_in_use.store(true, Ordering::Release);
            file.set_length(0)?;
            file.sync_data()?;
        }
        Ok(held)
    }

    /// True if there were names put aside, and now they are free.
    fn free_names(&self) -> kaas_substrate::Result<bool> {
        let spare = self.spare_names()?.unwrap_or_default();
        if spare.is_empty() {
            return Ok(false);
        }
        self.names_in_use.store(true, Ordering::Release);
        self.remove_names(&spare)?;
        Ok(true)
    }

    /// The names that are put aside; `None` without their directory.
    fn spare_names(&self) -> kaas_substrate::Result<Option<BTreeSet<OsString>>> {
        match self.substrate.list(Path::new(SPARE_DIR)) {
            Err(error) if error.is_not_found() => Ok(None),
            listed => Ok(Some(listed?.into_iter().map(|entry| entry.name).collect())),
        }
    }

    fn remove_names(&self, names: &BTreeSet<OsString>) -> kaas_substrate::Result<()> {
        for name in names {
            match self.substrate.remove_file(&Path::new(SPARE_DIR).join(name)) {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Puts aside what of the reserve is not there. To be called at the start, now and then, and often while it is in use. A
    /// volume without the room is no error: then the reserve counts as in use, until a later call finds room.
    pub fn replenish(&self) -> Result<(), EngineError> {
        let Some(_alone) = Alone::enter(&self.changing) else { return Ok(()) };
        let was_in_use = self.is_in_use();
        let bytes = self.put_bytes_aside(Path::new(RESERVE_FILE))?;
        self.bytes_in_use.store(!bytes, Ordering::Release);
        let names = self.put_names_aside()?;
        self.names_in_use.store(!names, Ordering::Release);
        match self.is_in_use() {
            false if was_in_use => tracing::info!("there is room on the volume again"),
            true if !was_in_use => {
                tracing::warn!(
                    bytes,
                    names,
                    "the volume is as good as full: nothing is appended until there is room"
                );
            }
            _ => {}
        }
        Ok(())
    }

    /// True if the names are there now; false if there is no room for them.
    fn put_names_aside(&self) -> kaas_substrate::Result<bool> {
        let dir = Path::new(SPARE_DIR);
        let there = match self.spare_names()? {
            Some(there) => there,
            None => match self.substrate.create_dir(dir) {
                Err(error) if error.is_no_space() => return Ok(false),
                // Another broker on the volume has just made it.
                Err(error) if !error.is_exists() => return Err(error),
                _ => BTreeSet::new(),
            },
        };
        let named = |number: usize| OsString::from(number.to_string());
        let missing: BTreeSet<OsString> =
            (0..SPARE_NAMES).map(named).filter(|name| !there.contains(name)).collect();
        if missing.is_empty() {
            return Ok(true);
        }
        let beyond: BTreeSet<OsString> = (SPARE_NAMES..SPARE_NAMES + ROOM_NAMES).map(named).collect();
        for name in missing.iter().chain(&beyond) {
            match self.substrate.open(&dir.join(name), OpenMode::CreateNew) {
                Err(error) if error.is_no_space() => {
                    self.remove_names(&self.spare_names()?.unwrap_or_default())?;
                    return Ok(false);
                }
                Err(error) if !error.is_exists() => return Err(error),
                _ => {}
            }
        }
        self.remove_names(&beyond)?;
        Ok(true)
    }

    /// True if the bytes are there now; false if there is no room for them.
    fn put_bytes_aside(&self, path: &Path) -> kaas_substrate::Result<bool> {
        let file = match self.substrate.open(path, OpenMode::Write) {
            Err(error) if error.is_not_found() => match self.substrate.open(path, OpenMode::CreateNew) {
                Err(error) if error.is_no_space() => return Ok(false),
                // Another broker on the volume has just made it.
                Err(error) if error.is_exists() => self.substrate.open(path, OpenMode::Write)?,
                created => created?,
            },
            opened => opened?,
        };
        if file.length()? >= RESERVE_BYTES {
            return Ok(true);
        }
        // Tried rather than asked for: file systems count what was deleted as free only after a while, or when space is
        // wanted.
        let zeros = vec![0; usize::try_from(RESERVE_BYTES).unwrap_or(0)];
        let written = file.write_all_at(&[IoSlice::new(&zeros)], 0).and_then(|()| file.sync_data());
        let room = written.and_then(|()| {
            let left = self.substrate.space()?.available_bytes;
            // Unknown is not full.
            Ok(left.is_none_or(|left| left >= ROOM_BYTES))
        });
        match room {
            Ok(true) => Ok(true),
            Ok(false) => file.set_length(0).map(|()| false),
            Err(error) => {
                file.set_length(0)?;
                if error.is_no_space() { Ok(false) } else { Err(error) }
            }
        }
    }
}

/// One thread at a time.
struct Alone<'a>(&'a AtomicBool);

impl<'a> Alone<'a> {
    fn enter(flag: &'a AtomicBool) -> Option<Self> {
        (!flag.swap(true, Ordering::Acquire)).then_some(Self(flag))
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaas_substrate::{Memory, write_small};

    fn fill(volume: &Memory) {
        let left = volume.space().unwrap().available_bytes.unwrap();
        let ballast = volume.open(Path::new("ballast"), OpenMode::CreateNew).unwrap();
        ballast.write_all_at(&[IoSlice::new(&vec![1; usize::try_from(left).unwrap()])], 0).unwrap();
    }

    #[test]
    fn a_full_volume_takes_small_writes_and_says_that_they_used_the_reserve() {
        let volume = Arc::new(Memory::with_capacity(4 << 20));
        let reserve = Reserve::new(Arc::<Memory>::clone(&volume));
        reserve.replenish().unwrap();
        assert!(!reserve.is_in_use());
        fill(&volume);
        let write = || write_small(volume.as_ref(), Path::new("small"), b"text");
        assert!(write().unwrap_err().is_no_space());
        reserve.with(write).unwrap();
        assert!(reserve.is_in_use());
        reserve.replenish().unwrap();
        assert!(reserve.is_in_use(), "there is no room for it");
        volume.remove_file(Path::new("ballast")).unwrap();
        reserve.replenish().unwrap();
        assert!(!reserve.is_in_use());
        fill(&volume);
        reserve.with(|| write_small(volume.as_ref(), Path::new("another"), b"text")).unwrap();
    }

    #[test]
    fn what_an_earlier_run_put_aside_is_used_and_what_it_released_is_known() {
        let volume = Arc::new(Memory::with_capacity(4 << 20));
        Reserve::new(Arc::<Memory>::clone(&volume)).replenish().unwrap();
        fill(&volume);
        let reserve = Reserve::new(Arc::<Memory>::clone(&volume));
        reserve.with(|| write_small(volume.as_ref(), Path::new("small"), b"text")).unwrap();
        let later = Reserve::new(Arc::<Memory>::clone(&volume));
        later.replenish().unwrap();
        assert!(later.is_in_use());
    }

    #[test]
    fn without_a_reserve_the_error_stays() {
        let volume = Arc::new(Memory::with_capacity(1 << 20));
        let reserve = Reserve::new(Arc::<Memory>::clone(&volume));
        fill(&volume);
        let outcome = reserve.with(|| write_small(volume.as_ref(), Path::new("small"), b"text"));
        assert!(outcome.unwrap_err().is_no_space());
    }
}
