//! What every request and response can do.
//!
//! The generated structures implement [`Message`] and one of [`Request`] and [`Response`]. Decoding and encoding start
//! here: version check first, then the generated body, then the check that nothing is left.

use std::fmt::{self, Debug};

use bytes::Bytes;

use crate::error::{DecodeContext, DecodeError, DecodeErrorKind, EncodeError};
use crate::messages::ApiKey;
use crate::reader::Reader;
use crate::segments::Segments;
use crate::writer::Writer;

/// Versions from `min` to `max`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VersionRange {
    /// Lowest version.
    pub min: i16,
    /// Highest version.
    pub max: i16,
}

impl VersionRange {
    /// Whether the version lies in the range.
    pub const fn contains(&self, version: i16) -> bool {
        self.min <= version && version <= self.max
    }

    /// All versions, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = i16> + use<> {
        self.min..=self.max
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.min, self.max)
    }
}

/// A request or a response of some API, decodable and encodable in every version of its schema.
pub trait Message: Sized + Clone + Debug + Default + PartialEq {
    /// The API it belongs to.
    const API_KEY: ApiKey;
    /// Kafka's name, for example `FetchResponse`.
    const NAME: &'static str;
    /// The versions of its schema.
    const VERSIONS: VersionRange;
    /// First version with compact lengths and tagged fields; `i16::MAX` if there is none.
    const FLEXIBLE_FROM: i16;

    /// Reads the fields; called by [`decode`](Self::decode).
    fn read(reader: &mut Reader) -> Result<Self, DecodeError>;

    /// Writes the fields; called by [`encode`](Self::encode).
    fn write(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError>;

    /// Decodes a body, which is what follows the header in a frame. Strings, byte strings and records of the result are
    /// slices of `body`, and keep it alive.
    ///
    /// Errors on anything that is not exactly one message of that version, without having reserved memory beyond a small
    /// multiple of what was really there.
    fn decode(version: i16, body: Bytes) -> Result<Self, DecodeError> {
        let (message, reader) = read_one(version, body)?;
        reader.finish()?;
        Ok(message)
    }

    /// As [`decode`](Self::decode), but bytes may follow the message; their number is returned with it.
    ///
    /// For requests: Kafka's brokers do not look at what follows one, and librdkafka up to 2.16 at least sends a Metadata
    /// request (version 9 and above, all topics) that is three bytes longer than it should be.
    fn decode_prefix(version: i16, body: Bytes) -> Result<(Self, usize), DecodeError> {
        let (message, reader) = read_one(version, body)?;
        Ok((message, reader.remaining()))
    }

    /// Appends the body to `out`; on an error `out` is as it was.
    ///
    /// A field that the version does not have must hold its default, unless the schema says that it may be dropped.
    fn encode(&self, version: i16, out: &mut Segments) -> Result<(), EncodeError> {
        if !Self::VERSIONS.contains(version) {
            let VersionRange { min, max } = Self::VERSIONS;
            return Err(EncodeError::UnsupportedVersion { message: Self::NAME, version, min, max });
        }
        let start = out.mark();
        let mut writer = Writer::new(out, Self::NAME, version, version >= Self::FLEXIBLE_FROM);
        let result = self.write(&mut writer);
        if result.is_err() {
            out.rewind(start);
        }
        result
    }
}

/// Reads a message from the beginning of `body`.
fn read_one<M: Message>(version: i16, body: Bytes) -> Result<(M, Reader), DecodeError> {
    if !M::VERSIONS.contains(version) {
        let VersionRange { min, max } = M::VERSIONS;
        return Err(DecodeError::new(DecodeContext {
            message: M::NAME,
            version,
            field: "version",
            offset: 0,
            kind: DecodeErrorKind::UnsupportedVersion { min, max },
        }));
    }
    let mut reader = Reader::new(body, M::NAME, version, version >= M::FLEXIBLE_FROM);
    let message = M::read(&mut reader)?;
    Ok((message, reader))
}

/// A message from a client.
pub trait Request: Message {
    /// What answers it.
    type Response: Response;
}

/// A message to a client.
pub trait Response: Message {}
