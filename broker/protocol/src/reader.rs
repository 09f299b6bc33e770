//! Decoding of values from one body.
//!
//! Every length and count is checked against what remains before anything is reserved. Strings and byte strings are
//! slices of the body. Generated code calls this; nothing here loops without consuming input.

use bytes::Bytes;

use crate::error::{DecodeContext, DecodeError, DecodeErrorKind};
use crate::error_code::ErrorCode;
use crate::kstring::KString;
use crate::records::Records;
use crate::uuid::Uuid;

/// Elements for which room is made at once. A longer array grows as its elements really come, so that a small frame
/// cannot reserve much by a large count of elements that are larger in memory than on the wire.
const RESERVE_ELEMENTS: usize = 1024;

/// Longest string, in bytes, in either encoding.
const MAX_STRING_BYTES: usize = 32_767;

/// A cursor over the body of one message.
#[derive(Debug)]
pub struct Reader {
    body: Bytes,
    position: usize,
    message: &'static str,
    version: i16,
    flexible: bool,
}

/// Tagged fields still to come at the end of a structure.
#[derive(Debug)]
pub(crate) struct Tags {
    left: u32,
    previous: Option<u32>,
}

/// One tagged field: its number and where its value must end.
#[derive(Debug)]
pub(crate) struct Tag {
    pub(crate) number: u32,
    start: usize,
    end: usize,
}

impl Reader {
    pub(crate) fn new(body: Bytes, message: &'static str, version: i16, flexible: bool) -> Self {
        Reader { body, position: 0, message, version, flexible }
    }

    #[inline]
    pub(crate) fn version(&self) -> i16 {
        self.version
    }

    pub(crate) fn remaining(&self) -> usize {
        self.body.len() - self.position
    }

    pub(crate) fn position(&self) -> usize {
        self.position
    }

    #[cold]
    pub(crate) fn fault(&self, field: &'static str, kind: DecodeErrorKind) -> DecodeError {
        DecodeError::new(DecodeContext {
            message: self.message,
            version: self.version,
            field,
            offset: self.position,
            kind,
        })
    }

    #[cold]
    fn truncated(&self, field: &'static str, needed: usize) -> DecodeError {
        self.fault(field, DecodeErrorKind::Truncated { needed, remaining: self.remaining() })
    }

    /// The body must be used up.
    pub(crate) fn finish(&self) -> Result<(), DecodeError> {
        match self.remaining() {
            0 => Ok(()),
            left => Err(self.fault("end", DecodeErrorKind::TrailingBytes(left))),
        }
    }

    #[inline]
    fn fixed<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        match self.body.get(self.position..).and_then(|rest| rest.first_chunk::<N>()) {
            Some(bytes) => {
                self.position += N;
                Ok(*bytes)
            }
            None => Err(self.truncated(field, N)),
        }
    }

    fn slice(&mut self, length: usize, field: &'static str) -> Result<Bytes, DecodeError> {
        if length > self.remaining() {
            return Err(self.truncated(field, length));
        }
        let end = self.position + length;
        let bytes = self.body.slice(self.position..end);
        self.position = end;
        Ok(bytes)
    }

    pub(crate) fn bool(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        Ok(self.i8(field)? != 0)
    }

    pub(crate) fn i8(&mut self, field: &'static str) -> Result<i8, DecodeError> {
        self.fixed(field).map(i8::from_be_bytes)
    }

    pub(crate) fn i16(&mut self, field: &'static str) -> Result<i16, DecodeError> {
        self.fixed(field).map(i16::from_be_bytes)
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.fixed(field).map(u16::from_be_bytes)
    }

    pub(crate) fn i32(&mut self, field: &'static str) -> Result<i32, DecodeError> {
        self.fixed(field).map(i32::from_be_bytes)
    }

    pub(crate) fn i64(&mut self, field: &'static str) -> Result<i64, DecodeError> {
        self.fixed(field).map(i64::from_be_bytes)
    }

    pub(crate) fn f64(&mut self, field: &'static str) -> Result<f64, DecodeError> {
        self.fixed(field).map(f64::from_be_bytes)
    }

    pub(crate) fn uuid(&mut self, field: &'static str) -> Result<Uuid, DecodeError> {
        self.fixed(field).map(Uuid)
    }

    pub(crate) fn error(&mut self, field: &'static str) -> Result<ErrorCode, DecodeError> {
        self.i16(field).map(ErrorCode)
    }

    /// At most five bytes, at most 32 bits. Like Kafka, accepts encodings that are longer than necessary.
    pub(crate) fn unsigned_varint(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        let start = self.position;
        let mut value: u32 = 0;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.fixed::<1>(field)?;
            let low = u32::from(byte & 0x7f);
            if shift == 28 && byte > 0x0f {
                self.position = start;
                return Err(self.fault(field, DecodeErrorKind::VarintTooLong));
            }
            value |= low << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        Ok(value)
    }

    /// Length of a flexible value; `None` is null.
    fn compact_length(&mut self, field: &'static str) -> Result<Option<usize>, DecodeError> {
        let encoded = self.unsigned_varint(field)?;
        match encoded.checked_sub(1) {
            None => Ok(None),
            // usize is at least 32 bits wide wherever this runs; a failure reads as too large.
            Some(length) => Ok(Some(usize::try_from(length).unwrap_or(usize::MAX))),
        }
    }

    fn classic_length(&self, length: i64, field: &'static str) -> Result<Option<usize>, DecodeError> {
        match usize::try_from(length) {
            Ok(length) => Ok(Some(length)),
            Err(_) if length == -1 => Ok(None),
            Err(_) => Err(self.fault(field, DecodeErrorKind::NegativeLength(length))),
        }
    }

    fn string_length(&mut self, field: &'static str) -> Result<Option<usize>, DecodeError> {
        if self.flexible {
            self.compact_length(field)
        } else {
            let length = self.i16(field)?;
            self.classic_length(i64::from(length), field)
        }
    }

    fn long_length(&mut self, field: &'static str) -> Result<Option<usize>, DecodeError> {
        if self.flexible {
            self.compact_length(field)
        } else {
            let length = self.i32(field)?;
            self.classic_length(i64::from(length), field)
        }
    }

    #[cold]
    fn null(&self, field: &'static str) -> DecodeError {
        self.fault(field, DecodeErrorKind::UnexpectedNull)
    }

    pub(crate) fn nullable_string(&mut self, field: &'static str) -> Result<Option<KString>, DecodeError> {
        let Some(length) = self.string_length(field)? else { return Ok(None) };
        if length > MAX_STRING_BYTES {
            return Err(self.fault(field, DecodeErrorKind::StringTooLong(length)));
        }
        let bytes = self.slice(length, field)?;
        match KString::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(self.fault(field, DecodeErrorKind::InvalidUtf8)),
        }
    }

    pub(crate) fn string(&mut self, field: &'static str) -> Result<KString, DecodeError> {
        self.nullable_string(field)?.ok_or_else(|| self.null(field))
    }

    /// The nullable string of request headers, which never became flexible.
    pub(crate) fn header_string(&mut self, field: &'static str) -> Result<Option<KString>, DecodeError> {
        let flexible = std::mem::replace(&mut self.flexible, false);
        let text = self.nullable_string(field);
        self.flexible = flexible;
        text
    }

    pub(crate) fn nullable_bytes(&mut self, field: &'static str) -> Result<Option<Bytes>, DecodeError> {
        match self.long_length(field)? {
            Some(length) => self.slice(length, field).map(Some),
            None => Ok(None),
        }
    }

    pub(crate) fn bytes(&mut self, field: &'static str) -> Result<Bytes, DecodeError> {
        self.nullable_bytes(field)?.ok_or_else(|| self.null(field))
    }

    pub(crate) fn nullable_record_parts(
        &mut self,
        field: &'static str,
    ) -> Result<Option<Records>, DecodeError> {
        Ok(self.nullable_bytes(field)?.map(Records::from))
    }

    /// A structure that may be absent: one byte before it, negative for null.
    pub(crate) fn nullable_struct<T>(
        &mut self,
        field: &'static str,
        read: fn(&mut Reader) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        if self.i8(field)? < 0 { Ok(None) } else { read(self).map(Some) }
    }

    /// `least` is the smallest number of bytes that one element can take in any version, at least 1.
    pub(crate) fn nullable_array<T>(
        &mut self,
        field: &'static str,
        least: usize,
        read: fn(&mut Reader) -> Result<T, DecodeError>,
    ) -> Result<Option<Vec<T>>, DecodeError> {
        let Some(count) = self.array_count(field, least)? else { return Ok(None) };
        let mut items = Vec::with_capacity(count.min(RESERVE_ELEMENTS));
        for _ in 0..count {
            items.push(read(self)?);
        }
        Ok(Some(items))
    }

    pub(crate) fn array<T>(
        &mut self,
        field: &'static str,
        least: usize,
        read: fn(&mut Reader) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        self.nullable_array(field, least, read)?.ok_or_else(|| self.null(field))
    }

    fn array_count(&mut self, field: &'static str, least: usize) -> Result<Option<usize>, DecodeError> {
        let start = self.position;
        let Some(count) = self.long_length(field)? else { return Ok(None) };
        let remaining = self.remaining();
        if count > remaining / least.max(1) {
            self.position = start;
            return Err(self.fault(field, DecodeErrorKind::CountTooLarge { count, remaining }));
        }
        Ok(Some(count))
    }

    /// Begins the tagged fields of a structure; there are none in a version that is not flexible.
    pub(crate) fn tags(&mut self, field: &'static str) -> Result<Tags, DecodeError> {
        let left = if self.flexible { self.unsigned_varint(field)? } else { 0 };
        // A tagged field takes two bytes at least.
        let count = usize::try_from(left).unwrap_or(usize::MAX);
        let remaining = self.remaining();
        if count > remaining / 2 {
            return Err(self.fault(field, DecodeErrorKind::CountTooLarge { count, remaining }));
        }
        Ok(Tags { left, previous: None })
    }

    /// The next tagged field, if there is one. Its value must be read or skipped, then `end_tag` called.
    pub(crate) fn next_tag(
        &mut self,
        tags: &mut Tags,
        field: &'static str,
    ) -> Result<Option<Tag>, DecodeError> {
        if tags.left == 0 {
            return Ok(None);
        }
        tags.left -= 1;
        let number = self.unsigned_varint(field)?;
        if let Some(previous) = tags.previous.filter(|previous| number <= *previous) {
            return Err(self.fault(field, DecodeErrorKind::TagOutOfOrder { tag: number, previous }));
        }
        tags.previous = Some(number);
        let size = self.unsigned_varint(field)?;
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if size > self.remaining() {
            return Err(self.truncated(field, size));
        }
        Ok(Some(Tag { number, start: self.position, end: self.position + size }))
    }

    /// Skips the value of a tag that is not known.
    pub(crate) fn skip_tag(&mut self, tag: &Tag) {
        self.position = tag.end;
    }

    /// The value must have taken what its size said.
    pub(crate) fn end_tag(&self, tag: &Tag, field: &'static str) -> Result<(), DecodeError> {
        if self.position == tag.end {
            return Ok(());
        }
        let (claimed, found) = (tag.end - tag.start, self.position - tag.start);
        Err(self.fault(field, DecodeErrorKind::TagSize { tag: tag.number, claimed, found }))
    }

    /// Skips the tagged fields of a structure that knows none.
    pub(crate) fn skip_tags(&mut self, field: &'static str) -> Result<(), DecodeError> {
        if !self.flexible {
            return Ok(());
        }
        let mut tags = self.tags(field)?;
        while let Some(tag) = self.next_tag(&mut tags, field)? {
            self.skip_tag(&tag);
        }
        Ok(())
    }
}
