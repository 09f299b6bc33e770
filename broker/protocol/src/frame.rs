//! Whole frames: length, header, body.
//!
//! The length is filled in after the body, so one pass is enough. Several frames may be appended to one [`Segments`].

use bytes::Bytes;

use crate::error::{DecodeError, EncodeError};
use crate::header::{RequestHeader, ResponseHeader};
use crate::message::{Request, Response};
use crate::messages::ApiKey;
use crate::segments::Segments;

/// Appends the frame of a response: four bytes of length, the header that the API and version want, the body. Returns
/// the length of the whole frame in bytes; on an error `out` is as it was.
pub fn encode_response_frame<M: Response>(
    out: &mut Segments,
    correlation_id: i32,
    version: i16,
    response: &M,
) -> Result<usize, EncodeError> {
    framed(out, M::NAME, version, |out| {
        ResponseHeader { correlation_id }.encode(M::API_KEY.response_header_version(version), out)?;
        response.encode(version, out)
    })
}

/// Appends the frame of a request, with the API key and version of the request in its header. Returns the length of the
/// whole frame in bytes; on an error `out` is as it was.
pub fn encode_request_frame<M: Request>(
    out: &mut Segments,
    header: &RequestHeader,
    request: &M,
) -> Result<usize, EncodeError> {
    let version = header.api_version;
    let header = RequestHeader { api_key: M::API_KEY.code(), ..header.clone() };
    framed(out, M::NAME, version, |out| {
        header.encode(M::API_KEY.request_header_version(version), out)?;
        request.encode(version, out)
    })
}

fn framed(
    out: &mut Segments,
    message: &'static str,
    version: i16,
    content: impl FnOnce(&mut Segments) -> Result<(), EncodeError>,
) -> Result<usize, EncodeError> {
    let start = out.mark();
    out.put(&[0; 4]);
    if let Err(error) = content(out) {
        out.rewind(start);
        return Err(error);
    }
    let length = out.len_since(start);
    match i32::try_from(length - 4) {
        Ok(content_length) => out.overwrite(start, &content_length.to_be_bytes()),
        Err(_) => {
            out.rewind(start);
            return Err(EncodeError::TooLong { message, version, field: "frame", length });
        }
    }
    Ok(length)
}

/// Decodes the header of a request whose API and version are known to be supported, and returns the body. `frame` is the
/// frame without its length.
pub fn decode_request_header(
    api: ApiKey,
    version: i16,
    frame: &Bytes,
) -> Result<(RequestHeader, Bytes), DecodeError> {
    RequestHeader::decode(api.request_header_version(version), frame)
}

/// Decodes a whole response frame (without its length): the correlation id and the message. For clients and tests.
pub fn decode_response_frame<M: Response>(version: i16, frame: &Bytes) -> Result<(i32, M), DecodeError> {
    let (header, body) = ResponseHeader::decode(M::API_KEY.response_header_version(version), frame)?;
    Ok((header.correlation_id, M::decode(version, body)?))
}
