//! One connection: versions negotiated, requests pipelined, answers in order, every wait bounded.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::marker::PhantomData;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kaas_protocol::{
    ApiKey, ApiVersionsRequest, ErrorCode, Request, RequestHeader, Segments, VersionRange,
    decode_response_frame, encode_request_frame,
};

/// A request that cannot be answered within this is given up, with its connection.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Largest answer that is believed.
const FRAME_BYTES_MAX: usize = 64 << 20;

/// The version of a request that topics are named in, where later ones use ids.
const BY_NAME: &[(ApiKey, i16)] = &[
    (ApiKey::Produce, 12),
    (ApiKey::Fetch, 12),
    (ApiKey::OffsetCommit, 9),
    (ApiKey::OffsetFetch, 7),
    (ApiKey::DeleteTopics, 5),
];

/// The broker is not there, or went away, or does not answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("connection: {0}")]
    Connection(#[from] io::Error),
    #[error("{what} was refused: {code:?}")]
    Refused { what: String, code: ErrorCode },
}

impl Failure {
    pub fn refused(what: impl Into<String>, code: ErrorCode) -> Result<(), Self> {
        if code.is_none() { Ok(()) } else { Err(Self::Refused { what: what.into(), code }) }
    }
}

/// A request on its way; answers must be received in the order of sending.
#[derive(Debug)]
pub struct Sent<R> {
    correlation: i32,
    version: i16,
    request: PhantomData<R>,
}

#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    versions: BTreeMap<i16, VersionRange>,
    next_correlation: i32,
    due: VecDeque<i32>,
    answer_within: Duration,
}

impl Client {
    /// Connects and asks for the versions.
    pub fn connect(address: SocketAddr) -> Result<Self, Failure> {
        Self::connect_with(address, ANSWER_WITHIN)
    }

    pub fn connect_with(address: SocketAddr, answer_within: Duration) -> Result<Self, Failure> {
        let stream = TcpStream::connect_timeout(&address, answer_within)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(answer_within))?;
        let initial = BTreeMap::from([(ApiKey::ApiVersions.code(), VersionRange { min: 3, max: 3 })]);
        let mut client =
            Self { stream, versions: initial, next_correlation: 1, due: VecDeque::new(), answer_within };
        let answer = client.call(&ApiVersionsRequest {
            client_software_name: "kaas-tests".into(),
            client_software_version: "1".into(),
        })?;
        assert_eq!(answer.error_code, ErrorCode::NONE);
        client.versions = answer
            .api_keys
            .iter()
            .map(|api| (api.api_key, VersionRange { min: api.min_version, max: api.max_version }))
            .collect();
        Ok(client)
    }

    /// Sends a request; the answer is to be received later.
    pub fn send<R: Request>(&mut self, request: &R) -> Result<Sent<R>, Failure> {
        let version = self.version_of::<R>();
        let correlation = self.next_correlation;
        self.next_correlation += 1;
        let header = RequestHeader {
            api_version: version,
            correlation_id: correlation,
            client_id: Some("kaas-tests".into()),
            ..Default::default()
        };
        let mut out = Segments::new();
        encode_request_frame(&mut out, &header, request).expect("a request that can be encoded");
        let frame = out.to_bytes().expect("no file ranges in requests");
        self.stream.write_all(&frame)?;
        self.due.push_back(correlation);
        Ok(Sent { correlation, version, request: PhantomData })
    }

    /// The answer to the oldest request that has none yet, which must be `sent`.
    pub fn receive<R: Request>(&mut self, sent: Sent<R>) -> Result<R::Response, Failure> {
        assert_eq!(self.due.pop_front(), Some(sent.correlation), "received out of order by the test");
        let deadline = Instant::now() + self.answer_within;
        let mut length = [0; 4];
        self.read_exact(&mut length, deadline)?;
        let length = usize::try_from(i32::from_be_bytes(length)).expect("a length that is not negative");
        assert!(length <= FRAME_BYTES_MAX, "a frame of {length} bytes");
        let mut frame = vec![0; length];
        self.read_exact(&mut frame, deadline)?;
        let (correlation, response) =
            decode_response_frame::<R::Response>(sent.version, &Bytes::from(frame)).expect("a whole answer");
        assert_eq!(correlation, sent.correlation, "answers in the order of the requests");
        Ok(response)
    }

    /// Sends and receives; nothing else may be on its way.
    pub fn call<R: Request>(&mut self, request: &R) -> Result<R::Response, Failure> {
        let sent = self.send(request)?;
        self.receive(sent)
    }

    fn version_of<R: Request>(&self) -> i16 {
        let ours =
            BY_NAME.iter().find(|(key, _)| *key == R::API_KEY).map_or(R::VERSIONS.max, |(_, max)| *max);
        let theirs = self.versions.get(&R::API_KEY.code()).expect("an API that the broker has");
        let version = ours.min(theirs.max);
        assert!(version >= theirs.min.max(R::VERSIONS.min), "no common version of {}", R::NAME);
        version
    }

    fn read_exact(&mut self, mut into: &mut [u8], deadline: Instant) -> io::Result<()> {
        while !into.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(into) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => into = &mut into[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
