//! Writing responses: vectored writes of what is in memory, and ranges of files.
//!
//! A range that is in memory goes from the file to the socket without a copy, one chunk at a time; any other
//! chunk is read on an I/O thread first. Memory for a range is one chunk, whatever its length.

use std::any::Any;
use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kaas_protocol::{ExternalRange, Part, Segments};
use kaas_substrate::{File, send_file};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{BoxFuture, Settings};

/// Distance of the places that are asked for when a range is to be sent from memory.
const PROBE_BYTES: usize = 64 << 10;
/// Slices in one gathered write.
const MAX_SLICES: usize = 64;

/// Reads of files off the runtime's threads.
pub trait FileReads: Send + Sync + fmt::Debug + 'static {
    /// Reads exactly `length` bytes at `offset` on an I/O thread.
    fn read(&self, file: Arc<dyn File>, offset: u64, length: usize) -> BoxFuture<io::Result<Bytes>>;
}

/// What the handle of an [`ExternalRange`] is: a file, kept open until the range is sent.
#[derive(Debug, Clone)]
pub struct FileHandle(pub Arc<dyn File>);

impl FileHandle {
    /// A range of `file` for a response.
    pub fn range(file: Arc<dyn File>, offset: u64, length: usize) -> ExternalRange {
        ExternalRange { handle: Arc::new(Self(file)), offset, length }
    }

    fn of(range: &ExternalRange) -> io::Result<Arc<dyn File>> {
        let handle: &(dyn Any + Send + Sync) = &*range.handle;
        let handle = handle.downcast_ref::<Self>();
        handle.map(|handle| Arc::clone(&handle.0)).ok_or_else(|| io::Error::other("a range of no file"))
    }
}

/// Writes whole response frames. Fails with `TimedOut` when the peer takes nothing for
/// [`Settings::send_stall`]. Must not be dropped and called again: a frame may have been cut.
pub async fn write_responses(
    stream: &TcpStream,
    responses: &[Segments],
    reads: &dyn FileReads,
    settings: &Settings,
) -> io::Result<()> {
    let mut memory: Vec<&[u8]> = Vec::with_capacity(responses.len().saturating_mul(2));
    for part in responses.iter().flat_map(Segments::parts) {
        match part {
            Part::Bytes(bytes) => memory.push(bytes),
            Part::External(range) => {
                write_memory(stream, &mut memory, settings.send_stall).await?;
                write_range(stream, range, reads, settings).await?;
            }
        }
    }
    write_memory(stream, &mut memory, settings.send_stall).await
}

/// Writes all of `parts` and empties it.
async fn write_memory(stream: &TcpStream, parts: &mut Vec<&[u8]>, stall: Duration) -> io::Result<()> {
    let mut first = 0;
    while let Some(left) = parts.get(first..).filter(|left| !left.is_empty()) {
        let attempt = {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let count = left.len().min(MAX_SLICES);
            for (slice, part) in slices.iter_mut().zip(left) {
                *slice = IoSlice::new(part);
            }
            stream.try_write_vectored(slices.get(..count).unwrap_or_default())
        };
        let mut written = match attempt {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                timeout(stall, stream.writable()).await??;
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        while let Some(part) = parts.get_mut(first).filter(|_| written > 0) {
            let step = written.min(part.len());
            *part = part.get(step..).unwrap_or_default();
            written -= step;
            first += usize::from(part.is_empty());
        }
    }
    parts.clear();
    Ok(())
}

async fn write_range(
    stream: &TcpStream,
    range: &ExternalRange,
    reads: &dyn FileReads,
    settings: &Settings,
) -> io::Result<()> {
    let file = FileHandle::of(range)?;
    let (mut offset, mut left) = (range.offset, range.length);
    while left > 0 {
        let chunk = left.min(settings.file_chunk_bytes.max(4096));
        let sent = if is_warm(&*file, offset, chunk) {
            send_chunk(stream, &*file, offset, chunk, settings.send_stall).await?
        } else {
            None
        };
        let sent = match sent {
            Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some(sent) => sent,
            None => {
                let bytes = reads.read(Arc::clone(&file), offset, chunk).await?;
                if bytes.len() != chunk {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                write_memory(stream, &mut vec![&bytes], settings.send_stall).await?;
                chunk
            }
        };
        offset = offset.saturating_add(sent as u64);
        left = left.saturating_sub(sent);
    }
    Ok(())
}

/// Whether the range is in memory, by a byte of every [`PROBE_BYTES`] and the last one. Where the page cache has those
/// it most likely has what lies between, since it reads ahead in larger steps.
fn is_warm(file: &dyn File, offset: u64, length: usize) -> bool {
    if file.descriptor().is_none() {
        return false;
    }
    let end = offset.saturating_add(length as u64);
    let probes = (offset..end).step_by(PROBE_BYTES).chain(end.checked_sub(1));
    probes.into_iter().all(|position| {
        let mut byte = [0_u8];
        matches!(file.read_at_nowait(&mut byte, position), Ok(Some(1)))
    })
}

/// `None` if the file cannot be sent this way.
async fn send_chunk(
    stream: &TcpStream,
    file: &dyn File,
    offset: u64,
    length: usize,
    stall: Duration,
) -> io::Result<Option<usize>> {
    loop {
        let attempt =
            stream.try_io(Interest::WRITABLE, || match send_file(stream.as_fd(), file, offset, length) {
                Some(result) => result.map(Some),
                None => Ok(None),
            });
        match attempt {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                timeout(stall, stream.writable()).await??;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kaas_protocol::messages::fetch::{FetchableTopicResponse, PartitionData};
    use kaas_protocol::{FetchResponse, Records, encode_response_frame};
    use kaas_substrate::{Local, Memory, OpenMode, Substrate};
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    /// Reads where it is asked, and counts.
    #[derive(Debug, Default)]
    struct Counting(AtomicUsize);

    impl FileReads for Counting {
        fn read(&self, file: Arc<dyn File>, offset: u64, length: usize) -> BoxFuture<io::Result<Bytes>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let mut buffer = vec![0; length];
            let read = file.read_at(&mut buffer, offset).unwrap();
            buffer.truncate(read);
            Box::pin(std::future::ready(Ok(Bytes::from(buffer))))
        }
    }

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    fn file(substrate: &dyn Substrate, bytes: &[u8]) -> Arc<dyn File> {
        let file = substrate.open(Path::new("log"), OpenMode::CreateNew).unwrap();
        file.write_all_at(&[IoSlice::new(bytes)], 0).unwrap();
        file
    }

    /// A response with `records` between other bytes.
    fn frame(records: Records) -> Segments {
        let partition = PartitionData { records: Some(records), ..PartitionData::default() };
        let topic =
            FetchableTopicResponse { partitions: vec![partition], ..FetchableTopicResponse::default() };
        let response = FetchResponse { responses: vec![topic], ..FetchResponse::default() };
        let mut out = Segments::new();
        encode_response_frame(&mut out, 7, 12, &response).unwrap();
        out
    }

    fn content(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|index| u8::try_from(index % 251).unwrap()).collect()
    }

    async fn sent(responses: Vec<Segments>, reads: &Counting) -> Vec<u8> {
        let (mut client, server) = pair().await;
        let reader = tokio::spawn(async move {
            let mut all = Vec::new();
            client.read_to_end(&mut all).await.unwrap();
            all
        });
        let settings = Settings { file_chunk_bytes: 100_000, ..Settings::default() };
        write_responses(&server, &responses, reads, &settings).await.unwrap();
        drop(server);
        reader.await.unwrap()
    }

    #[tokio::test]
    async fn ranges_of_files_arrive_as_memory_would() {
        let all = content(3_000_000);
        let expected =
            frame(Records::from(Bytes::copy_from_slice(&all[1_000..2_900_000]))).to_bytes().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let local = Local::open(dir.path()).unwrap();
        let memory = Memory::new();
        for substrate in [&local as &dyn Substrate, &memory] {
            let file = file(substrate, &all);
            let reads = Counting::default();
            let ranges = || frame(Records::from(FileHandle::range(Arc::clone(&file), 1_000, 2_899_000)));
            let got = sent(vec![ranges(), ranges()], &reads).await;
            assert_eq!(got, [&expected[..], &expected[..]].concat());
            let count = reads.0.load(Ordering::Relaxed);
            // A file without a descriptor is read, in chunks; one that is in memory goes straight to the socket.
            assert!(
                if substrate.kind() == kaas_substrate::Kind::Memory { count == 58 } else { count < 58 },
                "{count}"
            );
        }
    }

    #[tokio::test]
    async fn a_file_that_ends_early_is_an_error_and_not_a_short_frame() {
        let dir = tempfile::tempdir().unwrap();
        let local = Local::open(dir.path()).unwrap();
        let memory = Memory::new();
        for substrate in [&local as &dyn Substrate, &memory] {
            let file = file(substrate, &content(5_000));
            let (_client, server) = pair().await;
            let response = frame(Records::from(FileHandle::range(file, 1_000, 50_000)));
            let written =
                write_responses(&server, &[response], &Counting::default(), &Settings::default()).await;
            assert_eq!(written.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[tokio::test]
    async fn a_peer_that_takes_nothing_is_given_up() {
        let (client, server) = pair().await;
        let settings = Settings { send_stall: Duration::from_millis(200), ..Settings::default() };
        let response = frame(Records::from(Bytes::from(content(50_000_000))));
        let written = write_responses(&server, &[response], &Counting::default(), &settings).await;
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(client);
    }
}
