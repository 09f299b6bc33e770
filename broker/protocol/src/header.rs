//! Request and response headers, and a look at frames that may be anything.
//!
//! Request header: version 0 has no client id, 1 has it, 2 adds tagged fields (the client id keeps its old encoding).
//! Response header: version 0 is the correlation id, 1 adds tagged fields. KIP-482, KIP-511.

use bytes::Bytes;

use crate::error::{DecodeContext, DecodeError, DecodeErrorKind, EncodeError};
use crate::kstring::KString;
use crate::messages::ApiKey;
use crate::reader::Reader;
use crate::segments::Segments;
use crate::writer::Writer;

const REQUEST_HEADER: &str = "RequestHeader";
const RESPONSE_HEADER: &str = "ResponseHeader";

/// Highest version of the request header.
const MAX_REQUEST_HEADER: i16 = 2;
/// Highest version of the response header.
const MAX_RESPONSE_HEADER: i16 = 1;

/// What precedes the body of every request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestHeader {
    /// Number of the API; see [`ApiKey`].
    pub api_key: i16,
    /// Version of the request, and of the answer that is expected.
    pub api_version: i16,
    /// Comes back in the answer.
    pub correlation_id: i32,
    /// What the client calls itself; free text, not to be trusted.
    pub client_id: Option<KString>,
}

/// What precedes the body of every response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResponseHeader {
    /// Copied from the request.
    pub correlation_id: i32,
}

impl RequestHeader {
    /// Decodes a header of the given header version and returns the body that follows. `frame` is the frame without its
    /// length.
    pub fn decode(header_version: i16, frame: &Bytes) -> Result<(Self, Bytes), DecodeError> {
        check_decode(REQUEST_HEADER, header_version, MAX_REQUEST_HEADER)?;
        let mut reader = Reader::new(frame.clone(), REQUEST_HEADER, header_version, header_version >= 2);
        let header = RequestHeader {
            api_key: reader.i16("api_key")?,
            api_version: reader.i16("api_version")?,
            correlation_id: reader.i32("correlation_id")?,
            client_id: if header_version >= 1 { reader.header_string("client_id")? } else { None },
        };
        reader.skip_tags("tags")?;
        Ok((header, frame.slice(reader.position()..)))
    }

    /// Appends the header in the given header version; the client id is dropped in version 0.
    pub fn encode(&self, header_version: i16, out: &mut Segments) -> Result<(), EncodeError> {
        check_encode(REQUEST_HEADER, header_version, MAX_REQUEST_HEADER)?;
        let mut writer = Writer::new(out, REQUEST_HEADER, header_version, header_version >= 2);
        writer.i16(self.api_key);
        writer.i16(self.api_version);
        writer.i32(self.correlation_id);
        if header_version >= 1 {
            writer.header_string(&self.client_id, "client_id")?;
        }
        writer.tag_count(0);
        Ok(())
    }
}

impl ResponseHeader {
    /// Decodes a header of the given header version and returns the body that follows. `frame` is the frame without its
    /// length.
    pub fn decode(header_version: i16, frame: &Bytes) -> Result<(Self, Bytes), DecodeError> {
        check_decode(RESPONSE_HEADER, header_version, MAX_RESPONSE_HEADER)?;
        let mut reader = Reader::new(frame.clone(), RESPONSE_HEADER, header_version, header_version >= 1);
        let header = ResponseHeader { correlation_id: reader.i32("correlation_id")? };
        reader.skip_tags("tags")?;
        Ok((header, frame.slice(reader.position()..)))
    }

    /// Appends the header in the given header version.
    pub fn encode(&self, header_version: i16, out: &mut Segments) -> Result<(), EncodeError> {
        check_encode(RESPONSE_HEADER, header_version, MAX_RESPONSE_HEADER)?;
        let mut writer = Writer::new(out, RESPONSE_HEADER, header_version, header_version >= 1);
        writer.i32(self.correlation_id);
        writer.tag_count(0);
        Ok(())
    }
}

fn check_decode(message: &'static str, version: i16, max: i16) -> Result<(), DecodeError> {
    if (0..=max).contains(&version) {
        return Ok(());
    }
    let kind = DecodeErrorKind::UnsupportedVersion { min: 0, max };
    Err(DecodeError::new(DecodeContext { message, version, field: "version", offset: 0, kind }))
}

fn check_encode(message: &'static str, version: i16, max: i16) -> Result<(), EncodeError> {
    if (0..=max).contains(&version) {
        return Ok(());
    }
    Err(EncodeError::UnsupportedVersion { message, version, min: 0, max })
}

/// What can be known of a frame whose API or version may be unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peeked {
    /// Number of the API.
    pub api_key: i16,
    /// Version of the request.
    pub api_version: i16,
    /// To be sent back.
    pub correlation_id: i32,
    /// The client id, if it is there and readable. Every header version since 1 has it at the same place.
    pub client_id: Option<KString>,
}

impl Peeked {
    /// The API, if there is a schema for it.
    pub fn api(&self) -> Option<ApiKey> {
        ApiKey::from_code(self.api_key)
    }
}

/// Looks at the first fields of a frame (without its length), which are the same in all header versions. `None` if the
/// frame is shorter than eight bytes: then there is nothing that could be answered.
pub fn peek(frame: &Bytes) -> Option<Peeked> {
    let mut reader = Reader::new(frame.clone(), REQUEST_HEADER, 1, false);
    let api_key = reader.i16("api_key").ok()?;
    let api_version = reader.i16("api_version").ok()?;
    let correlation_id = reader.i32("correlation_id").ok()?;
    let client_id = reader.header_string("client_id").ok().flatten();
    Some(Peeked { api_key, api_version, correlation_id, client_id })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(header: &RequestHeader, version: i16) -> Bytes {
        let mut out = Segments::new();
        header.encode(version, &mut out).unwrap();
        out.to_bytes().unwrap()
    }

    fn header(client_id: Option<&str>) -> RequestHeader {
        let client_id = client_id.map(KString::from);
        RequestHeader { api_key: 18, api_version: 3, correlation_id: 0x0102_0304, client_id }
    }

    #[test]
    fn request_header_bytes() {
        let named = header(Some("kc"));
        assert_eq!(encoded(&named, 0), &[0, 18, 0, 3, 1, 2, 3, 4][..]);
        assert_eq!(encoded(&named, 1), &[0, 18, 0, 3, 1, 2, 3, 4, 0, 2, b'k', b'c'][..]);
        assert_eq!(encoded(&named, 2), &[0, 18, 0, 3, 1, 2, 3, 4, 0, 2, b'k', b'c', 0][..]);
        assert_eq!(encoded(&header(None), 2), &[0, 18, 0, 3, 1, 2, 3, 4, 0xff, 0xff, 0][..]);
    }

    #[test]
    fn request_header_round_trip_leaves_the_body() {
        for version in 0..=2 {
            let client_id = if version == 0 { None } else { Some("a client") };
            let mut frame = encoded(&header(client_id), version).to_vec();
            frame.extend_from_slice(b"body");
            let (decoded, body) = RequestHeader::decode(version, &Bytes::from(frame)).unwrap();
            assert_eq!(decoded, header(client_id));
            assert_eq!(body, "body");
        }
    }

    #[test]
    fn tags_in_headers_are_skipped() {
        let frame = Bytes::from_static(&[0, 18, 0, 3, 0, 0, 0, 9, 0xff, 0xff, 1, 5, 2, 0xaa, 0xbb, b'x']);
        let (decoded, body) = RequestHeader::decode(2, &frame).unwrap();
        assert_eq!(decoded.correlation_id, 9);
        assert_eq!(body, "x");
        let frame = Bytes::from_static(&[0, 0, 0, 9, 1, 5, 1, 0xaa, b'x']);
        let (decoded, body) = ResponseHeader::decode(1, &frame).unwrap();
        assert_eq!((decoded.correlation_id, body), (9, Bytes::from_static(b"x")));
    }

    #[test]
    fn peek_takes_frames_of_any_length() {
        let frame = encoded(&header(Some("kc")), 1);
        for length in 0..=frame.len() {
            let peeked = peek(&frame.slice(..length));
            assert_eq!(peeked.is_some(), length >= 8, "{length}");
            if let Some(peeked) = peeked {
                assert_eq!((peeked.api_key, peeked.api_version, peeked.correlation_id), (18, 3, 0x0102_0304));
                assert_eq!(peeked.client_id.is_some(), length == frame.len());
            }
        }
        let odd = Bytes::from_static(&[0x7f, 0xff, 0x7f, 0xff, 0, 0, 0, 1, 0x7f, 0xff, 1]);
        assert_eq!(peek(&odd).unwrap().api(), None);
    }

    #[test]
    fn truncated_headers_are_errors() {
        let frame = encoded(&header(Some("kc")), 2);
        for length in 0..frame.len() {
            let error = RequestHeader::decode(2, &frame.slice(..length)).unwrap_err();
            assert!(matches!(error.kind(), DecodeErrorKind::Truncated { .. }), "{error}");
        }
        assert!(RequestHeader::decode(3, &frame).is_err());
        assert!(ResponseHeader::decode(-1, &frame).is_err());
    }
}
