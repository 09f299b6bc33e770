//! A record file of a mounted volume.
//!
//! Where other hosts have the file too, the descriptor is an uncached one: reads ask the volume, and writes have reached
//! it when they return. On a file system of one host a plain positioned read returns what the last write of any process
//! left, and the write is durable after fdatasync.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use rustix::io::{Errno, pwrite, retry_on_intr};

use super::file::{length_of, read_full};
use crate::paths::AtPath;
use crate::{Error, Operation, RECORD_BYTES, RECORD_ZERO_AT, Record, RecordFile, Result};

const BYTES: u64 = RECORD_BYTES as u64;

#[derive(Debug)]
pub(super) struct MountedRecords {
    fd: OwnedFd,
    path: PathBuf,
}

impl MountedRecords {
    pub(super) fn new(fd: OwnedFd, path: &Path) -> Self {
        Self { fd, path: path.to_owned() }
    }

    fn length(&self) -> Result<u64> {
        length_of(&self.fd, &self.path)
    }

    fn sync(&self) -> Result<()> {
        retry_on_intr(|| fdatasync(&self.fd)).at(Operation::Sync, &self.path)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let mut written = 0;
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            let position = offset.saturating_add(written as u64);
            let step = retry_on_intr(|| pwrite(&self.fd, rest, position)).at(Operation::Write, &self.path)?;
            if step == 0 {
                return Err(Error::new(Operation::Write, &self.path, std::io::ErrorKind::WriteZero.into()));
            }
            written += step;
        }
        Ok(())
    }
}

/// Adds zero records behind those of a file of `length` bytes, so that it has `records`; whoever else extends or writes
/// at the same time, or finds this done minutes later.
///
/// Setting the length could shorten what another has extended meanwhile, and cut off its record. Where the file system
/// cannot allocate, one byte is written instead, which never shortens: in the record behind the last one that is asked
/// for, at the place where every record has a zero.
pub(super) fn extend(fd: &OwnedFd, path: &Path, length: u64, records: u64) -> Result<()> {
    let bytes = records.saturating_mul(BYTES);
    if length >= bytes {
        return Ok(());
    }
    match retry_on_intr(|| fallocate(fd, FallocateFlags::empty(), length, bytes - length)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        outcome => return outcome.at(Operation::SetLength, path),
    }
    let place = bytes.saturating_add(RECORD_ZERO_AT as u64);
    match retry_on_intr(|| pwrite(fd, &[0], place)).at(Operation::SetLength, path)? {
        0 => Err(Error::new(Operation::SetLength, path, std::io::ErrorKind::WriteZero.into())),
        _ => Ok(()),
    }
}

impl RecordFile for MountedRecords {
    fn records(&self) -> Result<u64> {
        Ok(self.length()? / BYTES)
    }

    fn read(&self, first_index: u64, records: &mut [Record]) -> Result<()> {
        let bytes = records.as_flattened_mut();
        let offset = first_index.saturating_mul(BYTES);
        let mut read = read_full(&self.fd, &self.path, bytes, offset)?;
        // CephFS's kernel client stops at the length that it knows, until it is asked for the length.
        if read < bytes.len() && self.length()? > offset.saturating_add(read as u64) {
            read = read_full(&self.fd, &self.path, bytes, offset)?;
        }
        if let Some(behind) = bytes.get_mut(read..) {
            behind.fill(0);
        }
        Ok(())
    }

    fn write(&self, first_index: u64, records: &[Record]) -> Result<()> {
        let bytes = records.as_flattened();
        let offset = first_index.saturating_mul(BYTES);
        let is_zero = |record: &Record| record.get(RECORD_ZERO_AT) == Some(&0);
        if offset.saturating_add(bytes.len() as u64) > self.length()? || !records.iter().all(is_zero) {
            return Err(Error::new(Operation::Write, &self.path, Errno::INVAL.into()));
        }
        self.write_at(bytes, offset)?;
        self.sync()
    }

    fn extend(&self, records: u64) -> Result<()> {
        extend(&self.fd, &self.path, self.length()?, records)?;
        // Synced even when it was long enough: another process may have extended it a moment ago.
        self.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_extends_where_nothing_can_be_allocated() {
        let (file, path) = (tempfile::tempfile().unwrap(), Path::new("records"));
        let fd = OwnedFd::from(file);
        let place = 5 * BYTES + RECORD_ZERO_AT as u64;
        retry_on_intr(|| pwrite(&fd, &[0], place)).unwrap();
        let records = MountedRecords::new(fd, path);
        assert_eq!(records.records().unwrap(), 5);
        let mut record = [7; RECORD_BYTES];
        assert!(records.write(0, &[record]).is_err(), "it has no zero");
        record[RECORD_ZERO_AT] = 0;
        records.write(4, &[record]).unwrap();
        records.write(5, &[record]).unwrap_err();
        records.extend(6).unwrap();
        records.write(5, &[record]).unwrap();
        let mut found = [[1; RECORD_BYTES]; 7];
        records.read(0, &mut found).unwrap();
        let zeros = [0; RECORD_BYTES];
        assert_eq!(found, [zeros, zeros, zeros, zeros, record, record, zeros]);
    }
}
