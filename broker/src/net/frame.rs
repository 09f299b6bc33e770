//! Reading frames: a 4-byte big-endian length, then the request.
//!
//! The length is judged together with the API key behind it, before anything is allocated or reserved. Small
//! reads go through one scratch buffer a thread, so that an idle connection holds none; the body of a large
//! frame is read into its own allocation. A small frame is copied into an allocation of its own, so that what
//! keeps a slice of it keeps nothing else alive.
//!
//! [`FrameReader::next`] may be dropped at any await and called again: all progress is in the reader.

use std::cell::RefCell;
use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::{BoxFuture, Budget, Reservation, Settings};

/// Smallest possible request: API key, API version, correlation id.
const MIN_FRAME_BYTES: usize = 8;
/// Length prefix and API key, what is needed to judge a frame.
const HEAD_BYTES: usize = 6;
const SCRATCH_BYTES: usize = 32 << 10;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH_BYTES]);
}

/// Why reading ended.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The peer closed the connection between two frames.
    #[error("closed by the peer")]
    Closed,
    /// The peer closed the connection inside a frame.
    #[error("closed by the peer inside a request, {received} of {expected} bytes received")]
    Truncated {
        /// Bytes of the frame that came.
        received: usize,
        /// Bytes it announced.
        expected: usize,
    },
    /// The length prefix is impossible or over the limit.
    #[error("request length {length} is outside {MIN_FRAME_BYTES}..={limit} (api key {api_key:?})")]
    Length {
        /// The length as read.
        length: i32,
        /// What the frame calls itself, if that much was read.
        api_key: Option<i16>,
        /// The limit in bytes for this API key.
        limit: usize,
    },
    /// The socket failed.
    #[error("socket error: {0}")]
    Socket(#[from] io::Error),
}

/// A request as it was read; holds its part of the budget.
#[derive(Debug)]
pub struct Frame {
    /// What follows the length prefix.
    pub bytes: Bytes,
    /// Given back when the request is answered.
    pub reservation: Reservation,
}

/// Reads the frames of one connection.
pub struct FrameReader {
    budget: Budget,
    max_produce_bytes: usize,
    max_other_bytes: usize,
    /// Bytes received and not yet taken; empty and unallocated while idle.
    received: BytesMut,
    body: Option<Body>,
    waiting: Option<BoxFuture<Option<Reservation>>>,
    last_progress: Instant,
}

struct Body {
    bytes: BytesMut,
    expected: usize,
    reservation: Reservation,
}

impl FrameReader {
    /// A reader with the limits of `settings`.
    pub fn new(settings: &Settings, budget: Budget) -> Self {
        Self {
            budget,
            max_produce_bytes: settings.max_frame_bytes(0),
            max_other_bytes: settings.max_frame_bytes(1),
            received: BytesMut::new(),
            body: None,
            waiting: None,
            last_progress: Instant::now(),
        }
    }

    /// Whether a frame has begun and is not complete, and is not held back by the budget.
    pub fn is_inside_frame(&self) -> bool {
        self.waiting.is_none() && (self.body.is_some() || !self.received.is_empty())
    }

    /// When the last byte came.
    pub fn last_progress(&self) -> Instant {
        self.last_progress
    }

    /// The next frame.
    pub async fn next(&mut self, stream: &TcpStream) -> Result<Frame, FrameError> {
        loop {
            if self.body.is_none() {
                self.begin_body().await?;
            }
            if let Some(frame) = self.complete_body() {
                return Ok(frame);
            }
            self.receive(stream).await?;
        }
    }

    /// Judges the head of the next frame, if it is there, and makes room for the frame.
    async fn begin_body(&mut self) -> Result<(), FrameError> {
        let Some(prefix) = self.received.first_chunk::<4>() else { return Ok(()) };
        let length = i32::from_be_bytes(*prefix);
        // A length that no request may have is refused without waiting for the key.
        judge(length, None, self.max_produce_bytes)?;
        let Some(&[_, _, _, _, k0, k1]) = self.received.first_chunk::<HEAD_BYTES>() else { return Ok(()) };
        let api_key = i16::from_be_bytes([k0, k1]);
        let limit = if api_key == 0 { self.max_produce_bytes } else { self.max_other_bytes };
        let expected = judge(length, Some(api_key), limit)?;
        let reservation = self.reserve(expected).await?;
        self.received.advance(4);
        // A whole frame needs exactly its bytes; `with_capacity` of an unfinished one costs address space
        // until the bytes come.
        let mut bytes = BytesMut::with_capacity(expected);
        let take = expected.min(self.received.len());
        bytes.extend_from_slice(&self.received.split_to(take));
        self.release_if_empty();
        self.body = Some(Body { bytes, expected, reservation });
        self.last_progress = Instant::now();
        Ok(())
    }

    async fn reserve(&mut self, expected: usize) -> Result<Reservation, FrameError> {
        if self.waiting.is_none() {
            if let Some(reservation) = self.budget.try_reserve(expected) {
                return Ok(reservation);
            }
            self.waiting = Some(self.budget.reserve(expected));
        }
        let reserved = match self.waiting.as_mut() {
            Some(waiting) => waiting.await,
            None => None,
        };
        self.waiting = None;
        reserved.ok_or_else(|| FrameError::Socket(io::Error::other("the request budget is closed")))
    }

    fn complete_body(&mut self) -> Option<Frame> {
        let body = self.body.take_if(|body| body.bytes.len() >= body.expected)?;
        Some(Frame { bytes: body.bytes.freeze(), reservation: body.reservation })
    }

    /// Waits for bytes and takes what is there.
    async fn receive(&mut self, stream: &TcpStream) -> Result<(), FrameError> {
        loop {
            stream.readable().await?;
            let got = match self.body.as_mut() {
                Some(body) => {
                    let missing = body.expected.saturating_sub(body.bytes.len());
                    stream.try_read_buf(&mut (&mut body.bytes).limit(missing))
                }
                None => SCRATCH.with_borrow_mut(|scratch| {
                    let got = stream.try_read(scratch)?;
                    self.received.extend_from_slice(scratch.get(..got).unwrap_or_default());
                    Ok(got)
                }),
            };
            match got {
                Ok(0) => return Err(self.ended()),
                Ok(_) => {
                    self.last_progress = Instant::now();
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn ended(&self) -> FrameError {
        match &self.body {
            Some(body) => FrameError::Truncated { received: body.bytes.len(), expected: body.expected },
            None if self.received.is_empty() => FrameError::Closed,
            None => FrameError::Truncated { received: self.received.len(), expected: HEAD_BYTES },
        }
    }

    fn release_if_empty(&mut self) {
        if self.received.is_empty() {
            self.received = BytesMut::new();
        }
    }
}

/// The length of a frame, if it is one that a request may have.
fn judge(length: i32, api_key: Option<i16>, limit: usize) -> Result<usize, FrameError> {
    usize::try_from(length)
        .ok()
        .filter(|bytes| (MIN_FRAME_BYTES..=limit).contains(bytes))
        .ok_or(FrameError::Length { length, api_key, limit })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        (client, server)
    }

    fn reader(budget: &Budget) -> FrameReader {
        let settings =
            Settings { request_max_bytes: 1 << 20, other_request_max_bytes: 64 << 10, ..Settings::default() };
        FrameReader::new(&settings, budget.clone())
    }

    fn frame(api_key: i16, bytes: usize) -> Vec<u8> {
        let mut out = i32::try_from(bytes).unwrap().to_be_bytes().to_vec();
        out.extend_from_slice(&api_key.to_be_bytes());
        out.resize(bytes + 4, 7);
        out
    }

    #[tokio::test]
    async fn frames_come_out_whole_however_they_are_cut() {
        let (mut client, server) = pair().await;
        let budget = Budget::new(10 << 20);
        let mut reader = reader(&budget);
        let wire: Vec<u8> = [frame(3, 8), frame(0, 200_000), frame(18, 60_000), frame(0, 9)].concat();
        let writer = tokio::spawn(async move {
            for piece in wire.chunks(7_777) {
                client.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            client
        });
        for (key, bytes) in [(3, 8), (0, 200_000), (18, 60_000), (0, 9)] {
            let got = reader.next(&server).await.unwrap();
            assert_eq!(&got.bytes[..], &frame(key, bytes)[4..]);
        }
        assert!(!reader.is_inside_frame());
        assert_eq!(reader.received.capacity(), 0, "an idle connection holds no buffer");
        assert_eq!(budget.free_bytes(), 10 << 20);
        drop(writer.await.unwrap());
        assert!(matches!(reader.next(&server).await, Err(FrameError::Closed)));
    }

    #[tokio::test]
    async fn impossible_lengths_are_refused_before_anything_is_reserved() {
        for (length, key) in [(-1, 0), (0, 3), (7, 3), (i32::MAX, 0), ((64 << 10) + 1, 3), ((1 << 20) + 1, 0)]
        {
            let (mut client, server) = pair().await;
            let budget = Budget::new(10 << 20);
            let mut reader = reader(&budget);
            client.write_all(&i32::to_be_bytes(length)).await.unwrap();
            client.write_all(&i16::to_be_bytes(key)).await.unwrap();
            let error = reader.next(&server).await.unwrap_err();
            assert!(matches!(error, FrameError::Length { length: l, .. } if l == length), "{error}");
            assert_eq!(budget.free_bytes(), 10 << 20);
        }
    }

    #[tokio::test]
    async fn a_frame_waits_for_the_budget_and_survives_being_dropped_meanwhile() {
        let (mut client, server) = pair().await;
        let budget = Budget::new(1 << 20);
        let held = budget.try_reserve(900_000).unwrap();
        let mut reader = reader(&budget);
        client.write_all(&frame(0, 50_000)).await.unwrap();
        let wait = std::time::Duration::from_millis(50);
        assert!(tokio::time::timeout(wait, reader.next(&server)).await.is_err());
        assert!(!reader.is_inside_frame(), "waiting for the budget is not the peer's fault");
        drop(held);
        assert_eq!(reader.next(&server).await.unwrap().bytes.len(), 50_000);
    }

    #[tokio::test]
    async fn the_end_inside_a_frame_is_told_from_the_end_between_frames() {
        let (mut client, server) = pair().await;
        let mut reader = reader(&Budget::new(1 << 20));
        client.write_all(&frame(0, 500)[..100]).await.unwrap();
        drop(client);
        let error = reader.next(&server).await.unwrap_err();
        assert!(matches!(error, FrameError::Truncated { received: 96, expected: 500 }), "{error}");
    }
}
