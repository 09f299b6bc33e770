//! A record file of a local volume.
//!
//! One host has one page cache, so a plain positioned read returns what the last write of any process left, and
//! the write is durable after fdatasync.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, fdatasync, flock, fstat, ftruncate};
use rustix::io::{Errno, pwrite, retry_on_intr};

use super::file::read_full;
use crate::paths::AtPath;
use crate::{Error, Operation, RECORD_BYTES, Record, RecordFile, Result};

const BYTES: u64 = RECORD_BYTES as u64;

#[derive(Debug)]
pub(super) struct LocalRecords {
    fd: OwnedFd,
    path: PathBuf,
}

impl LocalRecords {
    pub(super) fn new(fd: OwnedFd, path: &Path) -> Self {
        Self { fd, path: path.to_owned() }
    }

    fn length(&self) -> Result<u64> {
        let found = fstat(&self.fd).at(Operation::Length, &self.path)?;
        Ok(u64::try_from(found.st_size).unwrap_or(0))
    }

    fn sync(&self) -> Result<()> {
        retry_on_intr(|| fdatasync(&self.fd)).at(Operation::Sync, &self.path)
    }

    /// Extends with `ftruncate`, under a lock: without it, two extenders could shorten each other's file.
    fn extend_locked(&self, bytes: u64) -> Result<()> {
        retry_on_intr(|| flock(&self.fd, FlockOperation::LockExclusive)).at(Operation::Lock, &self.path)?;
        let extended = self.length().and_then(|length| {
            if length >= bytes {
                return Ok(());
            }
            retry_on_intr(|| ftruncate(&self.fd, bytes)).at(Operation::SetLength, &self.path)
        });
        retry_on_intr(|| flock(&self.fd, FlockOperation::Unlock)).at(Operation::Lock, &self.path)?;
        extended
    }
}

impl RecordFile for LocalRecords {
    fn records(&self) -> Result<u64> {
        Ok(self.length()? / BYTES)
    }

    fn read(&self, first_index: u64, records: &mut [Record]) -> Result<()> {
        let bytes = records.as_flattened_mut();
        let read = read_full(&self.fd, &self.path, bytes, first_index.saturating_mul(BYTES))?;
        if let Some(behind) = bytes.get_mut(read..) {
            behind.fill(0);
        }
        Ok(())
    }

    fn write(&self, first_index: u64, records: &[Record]) -> Result<()> {
        let bytes = records.as_flattened();
        let offset = first_index.saturating_mul(BYTES);
        if offset.saturating_add(bytes.len() as u64) > self.length()? {
            return Err(Error::new(Operation::Write, &self.path, Errno::INVAL.into()));
        }
        let mut written = 0;
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            let position = offset.saturating_add(written as u64);
            let step = retry_on_intr(|| pwrite(&self.fd, rest, position)).at(Operation::Write, &self.path)?;
            if step == 0 {
                return Err(Error::new(Operation::Write, &self.path, std::io::ErrorKind::WriteZero.into()));
            }
            written += step;
        }
        self.sync()
    }

    fn extend(&self, records: u64) -> Result<()> {
        let bytes = records.saturating_mul(BYTES);
        let length = self.length()?;
        if length < bytes {
            // Allocating never shortens, whoever else extends at the same time.
            match retry_on_intr(|| fallocate(&self.fd, FallocateFlags::empty(), length, bytes - length)) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.extend_locked(bytes)?,
                Err(error) => return Err(Error::new(Operation::SetLength, &self.path, error.into())),
            }
        }
        // Synced even when it was long enough: another process may have extended it a moment ago.
        self.sync()
    }
}
