//! A little space put aside, so that a full volume can be cleaned up, opened and started on: deleting records needs a new
//! manifest first, deleting a topic and opening a partition need claims.
//!
//! The reserve is a file of zeros at the root, and its length says whether it is there. When a small write of that kind
//! finds the volume full, the reserve is lent: the file is cut to nothing and the write tried again. While it is lent
//! nothing else is appended, or the space would be gone with the first batch; [`Reserve::replenish`] puts it back when
//! there is room. Its methods block, [`Reserve::is_lent`] apart.

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

/// How long lending waits for a thread that is just putting the reserve back.
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
    /// True from when it was given up, or could not be put aside, until it is there.
    lent: AtomicBool,
    /// A thread changes the file.
    changing: AtomicBool,
}

impl Reserve {
    /// The reserve of `substrate`. Touches nothing; a volume without one gets it with [`Reserve::replenish`].
    pub fn new(substrate: Arc<dyn Substrate>) -> Self {
        Self::timed(substrate, Time::system())
    }

    pub(crate) fn timed(substrate: Arc<dyn Substrate>, time: Time) -> Self {
        Self { substrate, time, lent: AtomicBool::new(false), changing: AtomicBool::new(false) }
    }

    /// Whether the space is used, or may be, by what had to be written on the full volume. Answers from memory.
    pub fn is_lent(&self) -> bool {
        self.lent.load(Ordering::Acquire)
    }

    /// Runs `write`, which must be good to run again; if the volume is full, lends the reserve and runs it once more.
    pub fn with<T, E: MayBeNoSpace>(&self, mut write: impl FnMut() -> Result<T, E>) -> Result<T, E> {
        match write() {
            Err(error) if error.is_no_space() && self.lend() => write(),
            outcome => outcome,
        }
    }

    /// Frees the reserve. True if it is worth trying again: there was one, or another thread has just freed it.
    pub fn lend(&self) -> bool {
        let path = Path::new(RESERVE_FILE);
        let deadline = self.time.elapsed() + WAIT;
        let _alone = loop {
            match Alone::enter(&self.changing) {
                Some(alone) => break alone,
                None if self.time.elapsed() > deadline => return self.is_lent(),
                None => self.time.sleep(Duration::from_millis(1)),
            }
        };
        let freed = self.substrate.open(path, OpenMode::Write).and_then(|file| {
            let held = file.length()? > 0;
            if held {
                // Said first: nobody may take for room what is freed now.
                self.lent.store(true, Ordering::Release);
                file.set_length(0)?;
                file.sync_data()?;
            }
            Ok(held)
        });
        match freed {
            Ok(true) => {
                tracing::warn!(
                    "the volume is full: the space put aside for cleaning up is in use, nothing is appended"
                );
                true
            }
            Ok(false) => self.is_lent(),
            Err(error) => {
                if !error.is_not_found() {
                    tracing::warn!(%error, "cannot free the space put aside for a full volume");
                }
                self.is_lent()
            }
        }
    }

    /// Puts the reserve aside if it is not there. To be called at the start, now and then, and often while it is lent. A
    /// volume without the room is no error: then the reserve is lent, until a later call finds room.
    pub fn replenish(&self) -> Result<(), EngineError> {
        let Some(_alone) = Alone::enter(&self.changing) else { return Ok(()) };
        let path = Path::new(RESERVE_FILE);
        let put = self.put_aside(path);
        match put {
            Ok(true) => {
                if self.lent.swap(false, Ordering::AcqRel) {
                    tracing::info!("there is room on the volume again");
                }
                Ok(())
            }
            Ok(false) => {
                if !self.lent.swap(true, Ordering::AcqRel) {
                    tracing::warn!("the volume is as good as full: nothing is appended until there is room");
                }
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// True if the reserve is there now; false if there is no room for it.
    fn put_aside(&self, path: &Path) -> kaas_substrate::Result<bool> {
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
        assert!(!reserve.is_lent());
        fill(&volume);
        let write = || write_small(volume.as_ref(), Path::new("small"), b"text");
        assert!(write().unwrap_err().is_no_space());
        reserve.with(write).unwrap();
        assert!(reserve.is_lent());
        reserve.replenish().unwrap();
        assert!(reserve.is_lent(), "there is no room for it");
        volume.remove_file(Path::new("ballast")).unwrap();
        reserve.replenish().unwrap();
        assert!(!reserve.is_lent());
        fill(&volume);
        reserve.with(|| write_small(volume.as_ref(), Path::new("another"), b"text")).unwrap();
    }

    #[test]
    fn what_an_earlier_run_put_aside_is_used_and_what_it_lent_is_known() {
        let volume = Arc::new(Memory::with_capacity(4 << 20));
        Reserve::new(Arc::<Memory>::clone(&volume)).replenish().unwrap();
        fill(&volume);
        let reserve = Reserve::new(Arc::<Memory>::clone(&volume));
        reserve.with(|| write_small(volume.as_ref(), Path::new("small"), b"text")).unwrap();
        let later = Reserve::new(Arc::<Memory>::clone(&volume));
        later.replenish().unwrap();
        assert!(later.is_lent());
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
