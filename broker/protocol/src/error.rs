//! What can be wrong with bytes that are decoded, and with values that are encoded.
//!
//! A decode error says where: message, version, field and offset in the body. It never carries bytes of the input.

use thiserror::Error;

/// Bytes that are not a valid message of that key and version. The connection they came from cannot be trusted to be
/// in step any more.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct DecodeError(Box<DecodeContext>);

/// Where and why decoding stopped.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message} v{version}: {field} at byte {offset}: {kind}")]
pub struct DecodeContext {
    /// Name of the message, for example `ProduceRequest`.
    pub message: &'static str,
    /// The version that was asked for.
    pub version: i16,
    /// Structure and field, for example `TopicProduceData.name`.
    pub field: &'static str,
    /// Offset in the body where the fault was found, in bytes.
    pub offset: usize,
    /// The fault.
    pub kind: DecodeErrorKind,
}

/// The fault itself.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeErrorKind {
    /// The body ends before the value does.
    #[error("needs {needed} bytes, {remaining} remain")]
    Truncated {
        /// Bytes that the value needs.
        needed: usize,
        /// Bytes left in the body.
        remaining: usize,
    },
    /// A length or count below -1, or below 0 where null is impossible.
    #[error("negative length {0}")]
    NegativeLength(i64),
    /// Null where the version does not allow it.
    #[error("null is not allowed")]
    UnexpectedNull,
    /// Not UTF-8.
    #[error("invalid UTF-8")]
    InvalidUtf8,
    /// An unsigned varint of more than 32 bits.
    #[error("varint too long")]
    VarintTooLong,
    /// A string longer than 32767 bytes.
    #[error("string of {0} bytes")]
    StringTooLong(usize),
    /// More elements than the rest of the body could hold.
    #[error("{count} elements claimed, {remaining} bytes remain")]
    CountTooLarge {
        /// Elements that were claimed.
        count: usize,
        /// Bytes left in the body.
        remaining: usize,
    },
    /// Tags must ascend; this one repeats or comes late.
    #[error("tag {tag} after tag {previous}")]
    TagOutOfOrder {
        /// The tag.
        tag: u32,
        /// The tag before it.
        previous: u32,
    },
    /// A known tag in a version that does not have it.
    #[error("tag {0} does not exist in this version")]
    TagNotInVersion(u32),
    /// The value of a tagged field is shorter or longer than its size said.
    #[error("tag {tag} claims {claimed} bytes, its value takes {found}")]
    TagSize {
        /// The tag.
        tag: u32,
        /// Size before the value.
        claimed: usize,
        /// Bytes that the value took.
        found: usize,
    },
    /// Bytes after the end of the message.
    #[error("{0} bytes after the end of the message")]
    TrailingBytes(usize),
    /// No schema for that version.
    #[error("unsupported version, known are {min} to {max}")]
    UnsupportedVersion {
        /// Lowest version of the schema.
        min: i16,
        /// Highest version of the schema.
        max: i16,
    },
}

impl DecodeError {
    #[cold]
    pub(crate) fn new(context: DecodeContext) -> Self {
        DecodeError(Box::new(context))
    }

    /// Where and why.
    pub fn context(&self) -> &DecodeContext {
        &self.0
    }

    /// Why.
    pub fn kind(&self) -> &DecodeErrorKind {
        &self.0.kind
    }
}

/// A value that cannot be written in that version. A fault of the caller, never of a client.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// No schema for that version.
    #[error("{message} v{version}: unsupported version, known are {min} to {max}")]
    UnsupportedVersion {
        /// Name of the message.
        message: &'static str,
        /// The version that was asked for.
        version: i16,
        /// Lowest version of the schema.
        min: i16,
        /// Highest version of the schema.
        max: i16,
    },
    /// A field holds something else than its default, does not exist in the version and may not be dropped.
    #[error("{message} v{version}: {field} is set, this version does not have it")]
    FieldNotInVersion {
        /// Name of the message.
        message: &'static str,
        /// The version.
        version: i16,
        /// Structure and field.
        field: &'static str,
    },
    /// Null where the version does not allow it.
    #[error("{message} v{version}: {field} must not be null")]
    NullNotAllowed {
        /// Name of the message.
        message: &'static str,
        /// The version.
        version: i16,
        /// Structure and field.
        field: &'static str,
    },
    /// A string, byte string, array, tagged field or frame beyond what its length field can say.
    #[error("{message} v{version}: {field} is too long ({length})")]
    TooLong {
        /// Name of the message.
        message: &'static str,
        /// The version.
        version: i16,
        /// Structure and field.
        field: &'static str,
        /// Bytes or elements.
        length: usize,
    },
}

/// [`Segments::to_bytes`](crate::Segments::to_bytes) met a file range, which this crate cannot read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{external_bytes} of {total_bytes} bytes are file ranges")]
pub struct ExternalBytes {
    /// Bytes in file ranges.
    pub external_bytes: usize,
    /// All bytes.
    pub total_bytes: usize,
}
