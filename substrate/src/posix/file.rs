//! An open file of a mounted volume: positioned reads and gathered writes that finish what they start.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, SeekFrom, StatxFlags, fdatasync, ftruncate, seek, statx};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2, pwritev, retry_on_intr};

use crate::paths::AtPath;
use crate::{Error, File, Operation, Result};

/// Most parts one `pwritev` takes (IOV_MAX on Linux).
const MAX_PARTS: usize = 1024;

#[derive(Debug)]
pub(super) struct MountedFile {
    fd: OwnedFd,
    path: PathBuf,
    /// The descriptor is not one that goes past the page cache.
    cached: bool,
}

impl MountedFile {
    pub(super) fn new(fd: OwnedFd, path: &Path, cached: bool) -> Self {
        Self { fd, path: path.to_owned(), cached }
    }

    /// Writes at most [`MAX_PARTS`] parts, however often the system stops in between; the bytes written.
    fn write_chunk(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<u64> {
        let total: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let mut written = self.write_some(parts, offset)?;
        if written == total {
            return Ok(total);
        }
        // A short write: go on behind it. What stopped it (no space, a signal) shows at the next attempt.
        let mut rest = parts.to_vec();
        let mut rest = rest.as_mut_slice();
        let mut step = written;
        loop {
            IoSlice::advance_slices(&mut rest, usize::try_from(step).unwrap_or(usize::MAX));
            if written == total {
                return Ok(total);
            }
            step = self.write_some(rest, offset.saturating_add(written))?;
            written += step;
        }
    }

    /// One `pwritev`; zero bytes without an error is an error.
    fn write_some(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<u64> {
        let written =
            retry_on_intr(|| pwritev(&self.fd, parts, offset)).at(Operation::Write, &self.path)? as u64;
        if written == 0 && parts.iter().any(|part| !part.is_empty()) {
            return Err(Error::new(Operation::Write, &self.path, std::io::ErrorKind::WriteZero.into()));
        }
        Ok(written)
    }
}

/// Reads at `offset` until `buf` is full or the file ends; the bytes read.
pub(super) fn read_full(fd: &OwnedFd, path: &Path, buf: &mut [u8], offset: u64) -> Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let position = offset.saturating_add(filled as u64);
        let read = retry_on_intr(|| pread(fd, &mut *rest, position)).at(Operation::Read, path)?;
        if read == 0 {
            break;
        }
        filled += read;
    }
    Ok(filled)
}

/// Length in bytes, as the volume knows it: a client of a file server otherwise answers from what it has heard seconds ago.
pub(super) fn length_of(fd: &OwnedFd, path: &Path) -> Result<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    let found = retry_on_intr(|| statx(fd, "", flags, StatxFlags::SIZE)).at(Operation::Length, path)?;
    Ok(found.stx_size)
}

impl File for MountedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        read_full(&self.fd, &self.path, buf, offset)
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>> {
        if !self.cached {
            return Ok(None);
        }
        let mut parts = [std::io::IoSliceMut::new(buf)];
        match retry_on_intr(|| preadv2(&self.fd, &mut parts, offset, ReadWriteFlags::NOWAIT)) {
            Ok(read) => Ok(Some(read)),
            // Not in memory, or a file system (or kernel) that cannot tell.
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
            Err(error) => Err(Error::new(Operation::Read, &self.path, error.into())),
        }
    }

    fn write_all_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<()> {
        let mut position = offset;
        for chunk in parts.chunks(MAX_PARTS) {
            position = position.saturating_add(self.write_chunk(chunk, position)?);
        }
        Ok(())
    }

    fn sync_data(&self) -> Result<()> {
        retry_on_intr(|| fdatasync(&self.fd)).at(Operation::Sync, &self.path)
    }

    fn length(&self) -> Result<u64> {
        length_of(&self.fd, &self.path)
    }

    fn next_data(&self, from: u64) -> Result<Option<(u64, u64)>> {
        let length = self.length()?;
        if from >= length {
            return Ok(None);
        }
        match retry_on_intr(|| seek(&self.fd, SeekFrom::Data(from))) {
            Ok(begin) => {
                let end = retry_on_intr(|| seek(&self.fd, SeekFrom::Hole(begin))).unwrap_or(length);
                Ok(Some((begin, end.clamp(begin, length.max(begin)))))
            }
            Err(Errno::NXIO) => Ok(None),
            // A file system that cannot tell.
            Err(_) => Ok(Some((from, length))),
        }
    }

    fn set_length(&self, length: u64) -> Result<()> {
        retry_on_intr(|| ftruncate(&self.fd, length)).at(Operation::SetLength, &self.path)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // A send from it would not go past the page cache, or not work at all.
        self.cached.then(|| self.fd.as_fd())
    }
}
