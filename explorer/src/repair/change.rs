//! What damage does to the bytes of a file.

use std::io::IoSlice;
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;
use kaas_substrate::{OpenMode, Result, Substrate};

use crate::choices::Stream;
use crate::scheduler::Scheduler;

/// Most bytes that become zeros.
const ZEROS_MAX: usize = 100;

/// What happens to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// One bit is another.
    Flip,
    /// Some bytes are zeros.
    Zero,
    /// Its end is gone.
    Truncate,
    Remove,
}

/// A change of certain bytes of a file.
#[derive(Debug, Clone)]
pub struct Damaged {
    pub change: Change,
    /// The bytes that change; all of them, if it is removed.
    pub range: Range<usize>,
    /// The file afterwards.
    pub after: Vec<u8>,
}

/// A number below `bound`, or 0.
pub fn below(scheduler: &Scheduler, bound: usize) -> usize {
    usize::try_from(scheduler.below(Stream::EVENTS, bound.max(1) as u64)).unwrap_or(0)
}

impl Damaged {
    /// Chooses where a file that holds `before` is hit; `None` if there is nothing to be hit.
    pub fn choose(scheduler: &Scheduler, change: Change, before: &[u8]) -> Option<Self> {
        let mut after = before.to_vec();
        if change == Change::Remove {
            after.clear();
            return Some(Self { change, range: 0..before.len(), after });
        }
        let from = below(scheduler, before.len());
        let to = match change {
            Change::Flip => from + 1,
            Change::Zero => (from + 1 + below(scheduler, ZEROS_MAX)).min(before.len()),
            Change::Truncate | Change::Remove => before.len(),
        };
        let range = from..to;
        let hit = after.get_mut(range.clone()).filter(|hit| !hit.is_empty())?;
        match change {
            Change::Flip => hit.iter_mut().for_each(|byte| *byte ^= 1 << below(scheduler, 8)),
            Change::Zero => hit.fill(0),
            Change::Truncate | Change::Remove => after.truncate(from),
        }
        Some(Self { change, range, after })
    }

    /// Makes the change. Durable on return.
    pub fn make(&self, volume: &dyn Substrate, path: &Path) -> Result<()> {
        if self.change == Change::Remove {
            volume.remove_file(path)?;
            return volume.sync_dir(path.parent().unwrap_or(Path::new("")));
        }
        let file = volume.open(path, OpenMode::Write)?;
        let at = self.range.start as u64;
        match self.change {
            Change::Truncate => file.set_length(at)?,
            _ => {
                let bytes = self.after.get(self.range.clone()).unwrap_or_default();
                file.write_all_at(&[IoSlice::new(bytes)], at)?;
            }
        }
        file.sync_data()
    }
}

/// Lays a file there that belongs to nobody.
pub fn lay_a_stranger(volume: &dyn Substrate, path: &Path) -> Result<()> {
    let file = volume.open(path, OpenMode::CreateNew)?;
    file.write_all_at(&[IoSlice::new(b"of nobody")], 0)?;
    file.sync_data()?;
    volume.sync_dir(path.parent().unwrap_or(Path::new("")))
}

/// All bytes of a file, as the volume has them.
pub fn read(volume: &dyn Substrate, path: &Path) -> Result<Bytes> {
    let file = volume.open(path, OpenMode::ReadUncached)?;
    let mut bytes = vec![0; usize::try_from(file.length()?).unwrap_or(0)];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes.into())
}
