//! A substrate that fails when it is told to: wraps any other, and asks a [`Hook`] before every call.
//!
//! [`Rules`] is the hook for most tests: the nth call of a kind, perhaps on paths that contain a word, fails, writes
//! short, or is the last one that happens (a crash: it and every later call of this wrapper fail; what was done
//! before stays in the wrapped volume, which a new wrapper or none can look at). [`Seeded`] lets calls fail at random, as a
//! seed decides; [`Stall`] holds calls until they are let go. Safe from any thread.

mod rules;
mod seeded;
mod stall;
mod volume;

use std::path::Path;

use kaas_substrate::{ErrorClass, Operation};

pub use self::rules::{Rule, Rules};
pub use self::seeded::{Odds, Seeded};
pub use self::stall::Stall;
pub use self::volume::Faulty;
pub(crate) use self::volume::error_number;

/// Which call of the traits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    CreateDir,
    List,
    /// Also a file that is moved to another directory.
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
    /// A write: some sectors are written ([`Effect::Sectors`]), then it fails with an error of this class. Other calls fail
    /// without an effect.
    Torn { kept: u64, class: ErrorClass },
    /// A write goes through in two calls: the first `bytes` bytes, then [`Hook::between_halves`], then all of it. Other
    /// calls go through.
    Halves { bytes: usize },
    /// It says that it has succeeded, and has no effect: a sync that lies, a write that went nowhere. Calls that return
    /// something go through.
    Lost,
    /// It goes through, so many milliseconds later.
    Delay { ms: u64 },
    /// It fails with this system error number, after as much of its effect.
    Errno { number: i32, effect: Effect },
    /// As [`Verdict::Fail`] with an I/O error, and so do all later calls.
    Crash,
    /// As [`Verdict::Short`], and all later calls fail.
    CrashShort { bytes: usize },
    /// As [`Verdict::Torn`], and all later calls fail.
    CrashTorn { kept: u64 },
}

/// How much of a call is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Nothing,
    /// A write: its first bytes, this many. Nothing of other calls.
    Part {
        bytes: usize,
    },
    /// A write: of each 64 sectors (512 bytes, aligned in the file) those whose bit is set. Nothing of other calls.
    Sectors {
        kept: u64,
    },
    /// A write: its first bytes, this many, and then everything. Everything of other calls.
    Halves {
        bytes: usize,
    },
    Everything,
}

/// Asked before every call; may block (to let tests choose an interleaving).
pub trait Hook: Send + Sync + std::fmt::Debug {
    /// What becomes of this call.
    fn before(&self, point: Point, path: &Path) -> Verdict;

    /// Called in the middle of a write that happens in two halves. False if there is no second one: the process died.
    fn between_halves(&self, _path: &Path) -> bool {
        true
    }

    /// Called between two steps of a call that takes several: a file that is moved has both names. False if there are no more
    /// steps: the process died. Only volumes that know of steps call it ([`crate::simulated::Simulation::host_with`]).
    fn between_steps(&self, _path: &Path) -> bool {
        true
    }

    /// Called when the call has had its effect, before its caller goes on; not for calls without an effect.
    fn after(&self, _point: Point, _path: &Path) {}
}

#[cfg(test)]
mod tests;
