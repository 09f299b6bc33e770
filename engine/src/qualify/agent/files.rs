//! Single calls on names and open files.

use std::path::Path;
use std::sync::Arc;

use kaas_substrate::probing::{Access, AlignedBuffer, DIRECT_ALIGNMENT, LockKind, ProbeFile, ProbeOpen};

use super::{Agent, Answered, other};
use crate::qualify::content::{Seen, fill, inspect};
use crate::qualify::protocol::{Answer, Ask, Failure, FailureClass, Glance, Locking, Opening};

/// Most bytes of one read or write.
const MAX_BYTES: u64 = 64 << 20;

impl Agent {
    pub fn on_files(&self, ask: Ask) -> Answered {
        match ask {
            Ask::CreateDir { path } => self.dir()?.create_dir(&self.inside(&path)?)?,
            Ask::List { path } => return Ok(Answer::Names(self.dir()?.list(&self.inside(&path)?)?)),
            Ask::Rename { from, to } => self.dir()?.rename(&self.inside(&from)?, &self.inside(&to)?)?,
            Ask::Remove { path } => self.dir()?.remove_file(&self.inside(&path)?)?,
            Ask::SyncDir { path } => self.dir()?.sync_dir(&self.inside(&path)?)?,
            Ask::Look { path } => return Ok(Answer::Length(self.dir()?.look(&self.inside(&path)?)?.length)),
            Ask::Open { file, path, access, direct } => {
                let opened = self.open(&path, access, direct)?;
                self.files.lock().insert(file, Arc::new(opened));
            }
            Ask::Close { file } => {
                let closed = self.files.lock().remove(&file);
                drop(closed);
            }
            Ask::Write { file, version, offset, length, sync } => {
                let file = self.file(file)?;
                write(&file, version, offset, length)?;
                if sync {
                    file.sync_data()?;
                }
            }
            Ask::Read { file, offset, length } => {
                return Ok(Answer::Seen(read(&*self.file(file)?, offset, length)?));
            }
            Ask::Cut { file, length } => {
                let file = self.file(file)?;
                file.set_length(length)?;
                file.sync_data()?;
            }
            Ask::Glance { path, direct, offset, length } => {
                let file = self.open(&path, Opening::Read, direct)?;
                let known = file.length()?;
                return Ok(Answer::Glance(Glance { length: known, seen: read(&file, offset, length)? }));
            }
            Ask::Lock { file, kind } => {
                let kind = match kind {
                    Locking::Whole => LockKind::Whole,
                    Locking::Posix => LockKind::Posix,
                };
                return Ok(Answer::Flag(self.file(file)?.try_lock(kind)?));
            }
            Ask::RaceCreate { prefix, from, to, dirs } => {
                return self.race(from, to, FailureClass::Exists, |number| {
                    let name = format!("{prefix}{number}");
                    if dirs {
                        Ok(self.dir()?.create_dir(&self.inside(&name)?)?)
                    } else {
                        self.open(&name, Opening::CreateNew, false).map(drop)
                    }
                });
            }
            Ask::RaceRename { prefix, from, to, suffix } => {
                return self.race(from, to, FailureClass::NotFound, |number| {
                    let name = format!("{prefix}{number}");
                    let to = format!("{name}{suffix}");
                    Ok(self.dir()?.rename(&self.inside(&name)?, &self.inside(&to)?)?)
                });
            }
            ask => return Err(other(format!("not a call on files: {ask}"))),
        }
        Ok(Answer::Done)
    }

    /// Does `one` for each number: true where it succeeded, false where it failed as the loser of a race does.
    fn race(
        &self,
        from: u32,
        to: u32,
        lost: FailureClass,
        one: impl Fn(u32) -> Result<(), Failure>,
    ) -> Answered {
        let mut won = Vec::new();
        for number in from..to {
            match one(number) {
                Ok(()) => won.push(true),
                Err(failure) if failure.class == lost => won.push(false),
                Err(failure) => return Err(failure),
            }
        }
        Ok(Answer::Won(won))
    }

    pub fn open(&self, path: &str, access: Opening, direct: bool) -> Result<ProbeFile, Failure> {
        let access = match access {
            Opening::Read => Access::Read,
            Opening::ReadWrite => Access::ReadWrite,
            Opening::CreateNew => Access::CreateNew,
        };
        let path = self.inside(path)?;
        Ok(self.dir()?.open_file(Path::new(&path), ProbeOpen { access, direct })?)
    }
}

/// Memory for `length` bytes of a request.
pub fn buffer(length: u64) -> Result<AlignedBuffer, Failure> {
    if length > MAX_BYTES {
        return Err(other(format!("{length} bytes at once are too many")));
    }
    Ok(AlignedBuffer::new(usize::try_from(length).unwrap_or_default()))
}

fn write(file: &ProbeFile, version: u64, offset: u64, length: u64) -> Result<(), Failure> {
    let mut bytes = buffer(length)?;
    fill(bytes.bytes_mut(), version, offset);
    Ok(file.write_all_at(&bytes, offset)?)
}

/// Reads `length` bytes at `offset`, in pieces that direct reads accept.
pub fn read(file: &ProbeFile, offset: u64, length: u64) -> Result<Seen, Failure> {
    // Records are read as such; anything else in whole blocks.
    let whole = length.next_multiple_of(DIRECT_ALIGNMENT as u64);
    let mut bytes = buffer(if length < DIRECT_ALIGNMENT as u64 { length } else { whole })?;
    let read = file.read_at(&mut bytes, offset)?;
    let read = read.min(usize::try_from(length).unwrap_or_default());
    Ok(inspect(bytes.bytes().get(..read).unwrap_or_default(), offset))
}
