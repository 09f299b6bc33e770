//! The Kafka wire codec of kaas, generated from schema tables, without I/O.
//!
//! Every request and response is a structure with Kafka's field names in snake case; [`Message`] decodes and encodes it in
//! every version of its schema. [`ApiKey`] knows numbers, versions and header versions. Frames are encoded into
//! [`Segments`], in which records stay the slices or file ranges that they were.
//!
//! ```
//! use bytes::Bytes;
//! use kaas_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
//! use kaas_protocol::{
//!     ApiKey, Message, ProduceRequest, ProduceResponse, RequestHeader, Segments, decode_request_header,
//!     encode_request_frame, encode_response_frame, peek,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A client's side: a frame with length, header and body.
//! let request = ProduceRequest {
//!     acks: -1,
//!     timeout_ms: 30_000,
//!     topic_data: vec![TopicProduceData {
//!         name: "orders".into(),
//!         partition_data: vec![PartitionProduceData { index: 0, records: Some(Bytes::from_static(b"a batch")) }],
//!         ..Default::default()
//!     }],
//!     ..Default::default()
//! };
//! let header = RequestHeader { api_version: 9, correlation_id: 7, client_id: Some("me".into()), ..Default::default() };
//! let mut out = Segments::new();
//! encode_request_frame(&mut out, &header, &request)?;
//!
//! // A broker's side: look first, then decode. The records are a slice of the frame.
//! let frame = out.to_bytes()?.slice(4..);
//! let seen = peek(&frame).ok_or("short frame")?;
//! let api = seen.api().filter(|api| api.versions().contains(seen.api_version)).ok_or("unsupported")?;
//! assert_eq!(api, ApiKey::Produce);
//! let (header, body) = decode_request_header(api, seen.api_version, &frame)?;
//! let decoded = ProduceRequest::decode(header.api_version, body)?;
//! assert_eq!(decoded, request);
//!
//! // The answer, as parts that go to the socket with one vectored write.
//! let mut out = Segments::new();
//! let length = encode_response_frame(&mut out, header.correlation_id, 9, &ProduceResponse::default())?;
//! assert_eq!(out.parts().map(|part| part.len()).sum::<usize>(), length);
//! # Ok(())
//! # }
//! ```
//!
//! Rules that hold for every message:
//!
//! - Lengths and counts are checked against the bytes that remain before memory is reserved; bytes after the end (but see
//!   [`Message::decode_prefix`]), null where it is not allowed, invalid UTF-8, tags that repeat or descend are errors that
//!   name message, field and offset.
//! - Unknown tagged fields are skipped and not kept. A known tag in a version without it is an error, as in Kafka.
//! - A field that the version does not have must hold its default when it is encoded, unless its table calls it
//!   `ignorable`: then it is dropped.
//! - `Default` gives the schema's defaults.
//!
//! The format of the tables is described in `schema/README.txt`.

mod error;
mod error_code;
mod frame;
mod header;
mod kstring;
mod message;
pub mod messages;
mod reader;
mod records;
mod segments;
mod uuid;
mod writer;

pub use error::{DecodeContext, DecodeError, DecodeErrorKind, EncodeError, ExternalBytes};
pub use error_code::ErrorCode;
pub use frame::{decode_request_header, decode_response_frame, encode_request_frame, encode_response_frame};
pub use header::{Peeked, RequestHeader, ResponseHeader, peek};
pub use kstring::KString;
pub use message::{Message, Request, Response, VersionRange};
pub use messages::roots::*;
pub use messages::{ApiKey, RequestKind, ResponseKind};
pub use reader::Reader;
pub use records::{ExternalRange, Records, RecordsPart};
pub use segments::{Part, Parts, Segments};
pub use uuid::{Uuid, UuidParseError};
pub use writer::Writer;
