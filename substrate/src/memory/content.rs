//! The bytes of a file in memory, in chunks so that growing never moves what is there, and the account of all
//! bytes of a volume.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use crate::Space;

/// All chunks of a file but the last are this long.
const CHUNK_BYTES: usize = 256 * 1024;

/// Longest file in bytes; keeps a wild offset from allocating the machine's memory.
const MAX_FILE_BYTES: u64 = 1 << 40;

/// How many bytes a volume may hold, and holds.
#[derive(Debug)]
pub(super) struct Store {
    limit: Option<u64>,
    used: AtomicU64,
}

impl Store {
    pub(super) fn unlimited() -> Self {
        Self { limit: None, used: AtomicU64::new(0) }
    }

    pub(super) fn limited(bytes: u64) -> Self {
        Self { limit: Some(bytes), used: AtomicU64::new(0) }
    }

    pub(super) fn space(&self) -> Space {
        let used = self.used.load(Ordering::Acquire);
        Space { total_bytes: self.limit, available_bytes: self.limit.map(|limit| limit.saturating_sub(used)) }
    }

    /// Takes up to `bytes`; how many were to be had.
    fn take(&self, bytes: u64) -> u64 {
        let Some(limit) = self.limit else { return bytes };
        let mut taken = 0;
        let _ = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            taken = bytes.min(limit.saturating_sub(used));
            Some(used + taken)
        });
        taken
    }

    fn give_back(&self, bytes: u64) {
        if self.limit.is_some() {
            self.used.fetch_sub(bytes, Ordering::AcqRel);
        }
    }
}

/// The bytes of one file.
#[derive(Debug)]
pub(super) struct Content {
    chunks: Vec<Vec<u8>>,
    length: u64,
    store: Arc<Store>,
}

impl Drop for Content {
    fn drop(&mut self) {
        self.store.give_back(self.length);
    }
}

/// Chunk and position within it of a byte of a file.
fn locate(offset: u64) -> (usize, usize) {
    let chunk = CHUNK_BYTES as u64;
    (usize::try_from(offset / chunk).unwrap_or(usize::MAX), usize::try_from(offset % chunk).unwrap_or(0))
}

impl Content {
    pub(super) fn new(store: Arc<Store>) -> Self {
        Self { chunks: Vec::new(), length: 0, store }
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Reads until `buf` is full or the file ends; the bytes read.
    pub(super) fn read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        let mut filled = 0;
        while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let (chunk, start) = locate(offset.saturating_add(filled as u64));
            let Some(there) = self.chunks.get(chunk).and_then(|chunk| chunk.get(start..)) else { break };
            let step = there.len().min(rest.len());
            if step == 0 {
                break;
            }
            if let (Some(to), Some(from)) = (rest.get_mut(..step), there.get(..step)) {
                to.copy_from_slice(from);
            }
            filled += step;
        }
        filled
    }

    /// Writes all of `bytes`, or as much as there is space for and then fails.
    pub(super) fn write_at(&mut self, bytes: &[u8], offset: u64) -> Result<(), Errno> {
        if bytes.is_empty() {
            return Ok(());
        }
        let grown = self.grow(offset.saturating_add(bytes.len() as u64));
        let mut written = 0;
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            let (chunk, start) = locate(offset.saturating_add(written as u64));
            let Some(there) = self.chunks.get_mut(chunk).and_then(|chunk| chunk.get_mut(start..)) else {
                break;
            };
            let step = there.len().min(rest.len());
            if step == 0 {
                break;
            }
            if let (Some(to), Some(from)) = (there.get_mut(..step), rest.get(..step)) {
                to.copy_from_slice(from);
            }
            written += step;
        }
        grown
    }

    pub(super) fn set_length(&mut self, length: u64) -> Result<(), Errno> {
        if length >= self.length {
            return self.grow(length);
        }
        let (chunk, within) = locate(length);
        self.chunks.truncate(chunk.saturating_add(1));
        if let Some(last) = self.chunks.get_mut(chunk) {
            last.truncate(within);
            last.shrink_to_fit();
        }
        self.chunks.retain(|chunk| !chunk.is_empty());
        self.store.give_back(self.length - length);
        self.length = length;
        Ok(())
    }

    /// Extends with zeros to `length`, or as far as there is space and then fails.
    fn grow(&mut self, length: u64) -> Result<(), Errno> {
        if length <= self.length {
            return Ok(());
        }
        if length > MAX_FILE_BYTES {
            return Err(Errno::FBIG);
        }
        let wanted = length - self.length;
        let taken = self.store.take(wanted);
        let end = self.length + taken;
        while self.length < end {
            let (chunk, start) = locate(self.length);
            if chunk == self.chunks.len() {
                self.chunks.push(Vec::new());
            }
            let Some(last) = self.chunks.get_mut(chunk) else { break };
            let room = CHUNK_BYTES - start;
            let step = usize::try_from(end - self.length).unwrap_or(room).min(room);
            last.resize(start + step, 0);
            self.length += step as u64;
        }
        if taken < wanted { Err(Errno::NOSPC) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_across_chunks_come_back() {
        let mut content = Content::new(Arc::new(Store::unlimited()));
        let bytes: Vec<u8> = (0..251).cycle().take(3 * CHUNK_BYTES + 77).collect();
        content.write_at(&bytes, 1000).unwrap();
        assert_eq!(content.length(), 1000 + bytes.len() as u64);
        let mut back = vec![1; bytes.len() + 2000];
        assert_eq!(content.read_at(&mut back, 0), 1000 + bytes.len());
        assert!(back[..1000].iter().all(|byte| *byte == 0));
        assert_eq!(back[1000..1000 + bytes.len()], bytes[..]);
    }

    #[test]
    fn cutting_and_extending_leaves_zeros() {
        let mut content = Content::new(Arc::new(Store::unlimited()));
        content.write_at(&vec![7; CHUNK_BYTES + 10], 0).unwrap();
        content.set_length(CHUNK_BYTES as u64).unwrap();
        assert_eq!(content.read_at(&mut [0; 4], CHUNK_BYTES as u64), 0);
        content.set_length(5).unwrap();
        content.set_length(8).unwrap();
        let mut back = [9; 10];
        assert_eq!(content.read_at(&mut back, 0), 8);
        assert_eq!(back, [7, 7, 7, 7, 7, 0, 0, 0, 9, 9]);
    }

    #[test]
    fn a_full_store_takes_what_fits_and_gets_bytes_back() {
        let store = Arc::new(Store::limited(10));
        let mut content = Content::new(Arc::clone(&store));
        content.write_at(b"123456", 0).unwrap();
        assert_eq!(content.write_at(b"abcdef", 6), Err(Errno::NOSPC));
        assert_eq!(content.length(), 10);
        assert_eq!(store.space(), Space { total_bytes: Some(10), available_bytes: Some(0) });
        content.write_at(b"ZZ", 0).unwrap();
        content.set_length(3).unwrap();
        assert_eq!(store.space().available_bytes, Some(7));
        drop(content);
        assert_eq!(store.space().available_bytes, Some(10));
        let mut wild = Content::new(store);
        assert_eq!(wild.write_at(b"x", u64::MAX - 5), Err(Errno::FBIG));
    }
}
