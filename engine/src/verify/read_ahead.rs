//! Reading a file from front to end ahead of whoever looks at it, so that the volume works while checksums are computed.
//!
//! A few threads read a piece each, and the next one while that waits to be taken: as many reads are under way, which is what
//! a volume behind a network needs to be read at its speed. Memory is two pieces a reader, and the one that is looked at. No more
//! than [`FILES_MAX`] files are read ahead at once, in the whole process; others are read by whoever looks at them.
//!
//! Measured on a local disk, from a cold cache: two threads read 1.2 times as fast as one, three hardly more; larger pieces
//! and `posix_fadvise` (sequential, random) are slower.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use kaas_substrate::File;

/// Bytes of a piece.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Room in front of each piece for what was left of the one before it.
pub(super) const MARGIN_BYTES: usize = 64;

/// Threads that read.
const READERS: u64 = 2;

/// Pieces of each of them: it goes on while one waits.
const PIECES: usize = 2;

/// Files that are read ahead at once: 64 MiB of pieces.
const FILES_MAX: usize = 16;

/// How many are.
static FILES: AtomicUsize = AtomicUsize::new(0);

/// One of [`FILES_MAX`].
struct Permit;

impl Permit {
    fn take() -> Option<Self> {
        let more = |files| (files < FILES_MAX).then_some(files + 1);
        FILES.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok().map(|_| Self)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        FILES.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A piece of a file.
#[derive(Debug, Default)]
pub(super) struct Piece {
    /// `MARGIN_BYTES` that are not the file's, then those that are.
    buffer: Vec<u8>,
    /// Where the valid bytes begin and end in the buffer.
    begin: usize,
    end: usize,
    /// Where the byte at `begin` stands in the file.
    at: u64,
}

impl Piece {
    /// The bytes from `at` on; `None` if that is not within them, or at their end.
    pub(super) fn from(&self, at: u64) -> Option<&[u8]> {
        let skip = usize::try_from(at.checked_sub(self.at)?).ok()?;
        self.bytes().get(skip..)
    }

    fn bytes(&self) -> &[u8] {
        self.buffer.get(self.begin..self.end).unwrap_or_default()
    }

    /// Where the bytes end in the file.
    pub(super) fn end(&self) -> u64 {
        self.at + (self.end - self.begin) as u64
    }

    /// Reads the piece at `at`, up to `end`.
    fn read(&mut self, file: &dyn File, at: u64, end: u64) -> Result<(), kaas_substrate::Error> {
        let wanted = usize::try_from(end.saturating_sub(at)).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        if self.buffer.len() < MARGIN_BYTES + wanted {
            self.buffer.resize(MARGIN_BYTES + wanted, 0);
        }
        (self.begin, self.end, self.at) = (MARGIN_BYTES, MARGIN_BYTES, at);
        if let Some(free) = self.buffer.get_mut(MARGIN_BYTES..MARGIN_BYTES + wanted) {
            self.end += file.read_at(free, at)?;
        }
        Ok(())
    }

    /// Puts the last bytes of the piece before it in front: at most `MARGIN_BYTES`.
    fn lead_with(&mut self, rest: &[u8]) {
        let begin = MARGIN_BYTES.saturating_sub(rest.len());
        if let Some(margin) = self.buffer.get_mut(begin..MARGIN_BYTES) {
            margin.copy_from_slice(rest);
            self.begin = begin;
            self.at -= rest.len() as u64;
        }
    }
}

/// What reads: whoever asks at first, threads once it is clear that the file is read on and on.
pub(super) struct ReadAhead<'a> {
    file: &'a Arc<dyn File>,
    bytes_read: &'a AtomicU64,
    end: u64,
    /// Where the next piece begins.
    next: u64,
    /// Pieces that were read one behind the other.
    in_a_row: u32,
    readers: Option<Readers>,
}

impl<'a> ReadAhead<'a> {
    /// Reads `file` up to `end`.
    pub(super) fn new(file: &'a Arc<dyn File>, end: u64, bytes_read: &'a AtomicU64) -> Self {
        Self { file, bytes_read, end, next: 0, in_a_row: 0, readers: None }
    }

    /// Goes on anew, up to `end`: nothing that was read before is given out any more.
    pub(super) fn restart(&mut self, end: u64) {
        (self.end, self.in_a_row, self.readers) = (end, 0, None);
    }

    /// Makes `piece` the one that follows it, keeping what it has from `at` on, at most `MARGIN_BYTES`. Elsewhere than behind
    /// it, or with more to be kept, it is the piece at `at`.
    pub(super) fn advance(&mut self, piece: &mut Piece, at: u64) -> Result<(), kaas_substrate::Error> {
        let rest = piece.from(at).filter(|rest| rest.len() <= MARGIN_BYTES && piece.end() == self.next);
        let mut kept = [0; MARGIN_BYTES];
        let kept = match rest {
            Some(rest) => {
                let kept = kept.get_mut(..rest.len()).unwrap_or_default();
                kept.copy_from_slice(rest);
                self.in_a_row += 1;
                kept
            }
            None => {
                (self.next, self.in_a_row, self.readers) = (at, 0, None);
                &mut []
            }
        };
        if self.readers.is_none()
            && self.in_a_row >= 2
            && self.end.saturating_sub(self.next) > 4 * PIECE_BYTES as u64
        {
            self.readers = Readers::begin(self.file, self.next, self.end);
        }
        match &mut self.readers {
            Some(readers) => readers.take(piece)?,
            None => piece.read(&**self.file, self.next, self.end)?,
        }
        self.bytes_read.fetch_add((piece.end - piece.begin) as u64, Ordering::Relaxed);
        self.next = piece.end();
        piece.lead_with(kept);
        Ok(())
    }
}

type Filled = Result<Piece, kaas_substrate::Error>;

/// Threads that read every so-many-th piece each.
struct Readers {
    readers: Vec<Reader>,
    turn: usize,
    /// Given back once the readers have ended: fields go in the order in which they stand.
    _permit: Permit,
}

struct Reader {
    empty: Option<SyncSender<Piece>>,
    filled: Receiver<Filled>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Readers {
    /// Begins to read at `next`; `None` if there can be no threads, or enough files are read ahead.
    fn begin(file: &Arc<dyn File>, next: u64, end: u64) -> Option<Self> {
        let permit = Permit::take()?;
        let mut readers = Vec::new();
        for number in 0..READERS {
            let (empty, to_fill) = sync_channel::<Piece>(PIECES);
            let (fill, filled) = sync_channel(PIECES);
            for _ in 0..PIECES {
                empty.try_send(Piece::default()).ok()?;
            }
            let (file, first) = (Arc::clone(file), next + number * PIECE_BYTES as u64);
            let thread = thread::Builder::new().name("read-ahead".to_owned()).spawn(move || {
                let mut at = first;
                while let Ok(mut piece) = to_fill.recv() {
                    let outcome = piece.read(&*file, at.min(end), end).map(|()| piece);
                    at += READERS * PIECE_BYTES as u64;
                    if fill.send(outcome).is_err() {
                        return;
                    }
                }
            });
            readers.push(Reader { empty: Some(empty), filled, thread: Some(thread.ok()?) });
        }
        Some(Self { readers, turn: 0, _permit: permit })
    }

    /// Exchanges `piece` for the next one.
    fn take(&mut self, piece: &mut Piece) -> Result<(), kaas_substrate::Error> {
        let turn = self.turn;
        self.turn = (turn + 1) % self.readers.len().max(1);
        let Some(reader) = self.readers.get(turn) else { return Ok(()) };
        let gone = || {
            let gone = std::io::Error::other("a reader has stopped");
            kaas_substrate::Error::new(kaas_substrate::Operation::Read, std::path::Path::new(""), gone)
        };
        let filled = reader.filled.recv().map_err(|_| gone())??;
        let emptied = std::mem::replace(piece, filled);
        if let Some(empty) = &reader.empty {
            // If it has stopped, the next turn says so.
            let _ = empty.send(emptied);
        }
        Ok(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.empty = None;
        if let Some(thread) = self.thread.take() {
            // What it may be reading is of no use to anybody.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_files_and_no_more_are_read_ahead() {
        // Other tests of this process may read ahead, too.
        let permits: Vec<_> = std::iter::from_fn(Permit::take).collect();
        assert!(permits.len() <= FILES_MAX && FILES.load(Ordering::Acquire) == FILES_MAX);
        drop(permits);
        assert!(Permit::take().is_some());
    }
}
